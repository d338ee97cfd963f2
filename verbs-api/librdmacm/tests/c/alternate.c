/* A connection of two processes that migrates to an alternate path, as an event-driven program does
 * it. Each end loads the alternate path after ESTABLISHED, and is ready (REARM). The client
 * migrates, and both devices report PATH_MIG. The private data of the connection contain the
 * addresses of the alternate path. */
#include "cm_rig.h"

#include <sys/wait.h>

enum { SERVER, CLIENT };

/* Addresses of the ports of each end. */
static char ip_of[2][2][48];

/* The state of one end of the connection. */
struct talk {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buffer[2][256];
	/* The GID of the peer's second port. */
	union ibv_gid alternate;
	int is_up, is_over, migrations;
	int sent, received, heard;
};

/* Gives this end two ports with addresses that differ from those of the other end. */
static void choose_addresses(void)
{
	unsigned byte[4];
	CHECK_INT(sscanf(own_ip, "%u.%u.%u.%u", &byte[0], &byte[1], &byte[2], &byte[3]), 4);
	for (int end = SERVER; end <= CLIENT; end++)
		for (int port = 0; port < 2; port++)
			snprintf(ip_of[end][port], sizeof(ip_of[end][port]), "%u.%u.%u.%u", byte[0],
				 port ? byte[1] ^ 0x80 : byte[1], byte[2],
				 end == CLIENT ? byte[3] ^ 1 : byte[3]);
}

static void be(int end)
{
	char devices[128];
	snprintf(devices, sizeof(devices), "rocade%d=%s+%s", end, ip_of[end][0], ip_of[end][1]);
	CHECK_INT(unsetenv("ROCADE_IP"), 0);
	CHECK_INT(setenv("ROCADE_DEVICES", devices, 1), 0);
}

/* Reads an event of the device, which must report the path migration. */
static void hear_device(struct talk *talk)
{
	struct ibv_async_event event;
	CHECK_INT(ibv_get_async_event(talk->id->verbs, &event), 0);
	CHECK_INT(event.event_type, IBV_EVENT_PATH_MIG);
	CHECK(event.element.qp == talk->id->qp);
	ibv_ack_async_event(&event);
	talk->migrations++;
}

static void build(struct talk *talk)
{
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	talk->cq = ibv_create_cq(talk->id->verbs, 32, NULL, NULL, 0);
	CHECK(talk->cq);
	attr.send_cq = attr.recv_cq = talk->cq;
	CHECK_INT(rdma_create_qp(talk->id, NULL, &attr), 0);
	CHECK((talk->mr = rdma_reg_msgs(talk->id, talk->buffer, sizeof(talk->buffer))));
}

static struct rdma_conn_param with_alternate(struct talk *talk, union ibv_gid *own)
{
	CHECK_INT(ibv_query_gid(talk->id->verbs, 2, 0, own), 0);
	struct rdma_conn_param param = { .private_data = own, .private_data_len = sizeof(*own),
					 .responder_resources = 1, .initiator_depth = 1,
					 .retry_count = 7, .rnr_retry_count = 7 };
	return param;
}

static void load_alternate_path(struct talk *talk)
{
	struct ibv_qp_attr attr = {
		.alt_ah_attr = { .is_global = 1, .port_num = 2,
				 .grh = { .dgid = talk->alternate, .hop_limit = 64 } },
		.alt_port_num = 2,
		.alt_timeout = 18,
		.path_mig_state = IBV_MIG_REARM,
	};
	CHECK_INT(ibv_modify_qp(talk->id->qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0);
}

static struct ibv_qp_attr attributes_of(struct talk *talk)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK_INT(ibv_query_qp(talk->id->qp, &attr, IBV_QP_PATH_MIG_STATE | IBV_QP_AV, &init), 0);
	return attr;
}

/* Handles an event. */
static void on_event(struct talk *talk, struct rdma_cm_event *event)
{
	union ibv_gid own;
	struct rdma_conn_param param;
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		CHECK_INT(talk->id->port_num, 1);
		build(talk);
		CHECK_INT(rdma_resolve_route(talk->id, 2000), 0);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		param = with_alternate(talk, &own);
		CHECK_INT(rdma_connect(talk->id, &param), 0);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		talk->id = event->id;
		build(talk);
		memcpy(&talk->alternate, event->param.conn.private_data, sizeof(talk->alternate));
		param = with_alternate(talk, &own);
		CHECK_INT(rdma_accept(talk->id, &param), 0);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (event->param.conn.private_data_len)
			memcpy(&talk->alternate, event->param.conn.private_data,
			       sizeof(talk->alternate));
		load_alternate_path(talk);
		CHECK_INT(attributes_of(talk).path_mig_state, IBV_MIG_REARM);
		talk->is_up = 1;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		talk->is_over = 1;
		break;
	default:
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
		_exit(1);
	}
}

static void handle_event(struct talk *talk)
{
	struct rdma_cm_event *event;
	CHECK_INT(rdma_get_cm_event(talk->channel, &event), 0);
	on_event(talk, event);
	CHECK_INT(rdma_ack_cm_event(event), 0);
}

static void post(struct talk *talk)
{
	CHECK_INT(rdma_post_recv(talk->id, NULL, talk->buffer[1], sizeof(talk->buffer[1]), talk->mr),
		  0);
}

/* Waits for this number of sent and received messages. A reply may arrive before the request is
 * acknowledged. */
static void await(struct talk *talk, int sent, int received)
{
	while (talk->sent < sent || talk->received < received) {
		struct ibv_wc wc = next_completion(talk->cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV) {
			CHECK_INT(wc.byte_len, sizeof(talk->buffer[1]));
			talk->received++;
		} else {
			talk->sent++;
		}
	}
}

static void say(struct talk *talk, int number)
{
	memset(talk->buffer[0], number, sizeof(talk->buffer[0]));
	CHECK_INT(rdma_post_send(talk->id, NULL, talk->buffer[0], sizeof(talk->buffer[0]), talk->mr, 0),
		  0);
	await(talk, talk->sent + 1, 0);
}

static void hear(struct talk *talk, int number)
{
	await(talk, 0, ++talk->heard);
	for (size_t i = 0; i < sizeof(talk->buffer[1]); i++)
		CHECK_INT(talk->buffer[1][i], (char)number);
}

static void leave(struct talk *talk)
{
	CHECK_INT(talk->migrations, 1);
	CHECK(!is_readable(talk->id->verbs->async_fd));
	struct ibv_qp_attr attr = attributes_of(talk);
	CHECK_INT(attr.path_mig_state, IBV_MIG_MIGRATED);
	CHECK_INT(attr.ah_attr.port_num, 2);
	CHECK_INT(rdma_disconnect(talk->id), 0);
	while (!talk->is_over)
		handle_event(talk);
	rdma_destroy_qp(talk->id);
	CHECK_INT(rdma_dereg_mr(talk->mr), 0);
	CHECK_INT(ibv_destroy_cq(talk->cq), 0);
	CHECK_INT(rdma_destroy_id(talk->id), 0);
}

static void serve(int to_client)
{
	be(SERVER);
	struct talk talk = { .channel = rdma_create_event_channel() };
	struct rdma_cm_id *listener;
	struct sockaddr_in addr = at_port(0);
	CHECK_INT(rdma_create_id(talk.channel, &listener, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_bind_addr(listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(listener, 1), 0);
	int port = ntohs(rdma_get_src_port(listener));
	CHECK_INT(write(to_client, &port, sizeof(port)), sizeof(port));
	while (!talk.is_up)
		handle_event(&talk);
	post(&talk);
	/* The reply tells the client that this end is ready. */
	say(&talk, 1);
	hear(&talk, 2);
	CHECK_INT(attributes_of(&talk).path_mig_state, IBV_MIG_ARMED);
	post(&talk);
	say(&talk, 3);
	/* A message on the alternate path makes this end migrate, too. */
	hear(&talk, 4);
	hear_device(&talk);
	say(&talk, 5);
	while (!talk.is_over)
		handle_event(&talk);
	leave(&talk);
	CHECK_INT(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(talk.channel);
}

static void ask(int from_server)
{
	be(CLIENT);
	struct talk talk = { .channel = rdma_create_event_channel() };
	struct sockaddr_in own = { .sin_family = AF_INET };
	int port;
	CHECK_INT(read(from_server, &port, sizeof(port)), sizeof(port));
	struct sockaddr_in addr = at_port(port);
	CHECK_INT(inet_pton(AF_INET, ip_of[CLIENT][0], &own.sin_addr), 1);
	CHECK_INT(rdma_create_id(talk.channel, &talk.id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_resolve_addr(talk.id, (struct sockaddr *)&own, (struct sockaddr *)&addr, 2000),
		  0);
	while (!talk.is_up)
		handle_event(&talk);
	post(&talk);
	hear(&talk, 1);
	post(&talk);
	say(&talk, 2);
	hear(&talk, 3);
	post(&talk);
	CHECK_INT(attributes_of(&talk).path_mig_state, IBV_MIG_ARMED);
	struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_MIGRATED };
	CHECK_INT(ibv_modify_qp(talk.id->qp, &attr, IBV_QP_PATH_MIG_STATE), 0);
	hear_device(&talk);
	say(&talk, 4);
	hear(&talk, 5);
	/* The connection manager reports no event of the migration. */
	no_event(talk.channel);
	leave(&talk);
	rdma_destroy_event_channel(talk.channel);
}

static void two_processes(const char *link)
{
	int ends[2], status;
	choose_addresses();
	CHECK_INT(setenv("ROCADE_LINK", link, 1), 0);
	CHECK_INT(pipe(ends), 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		alarm(DEADLINE);
		serve(ends[1]);
		_exit(0);
	}
	ask(ends[0]);
	CHECK_INT(waitpid(pid, &status, 0), pid);
	CHECK_INT(status, 0);
}

static void two_processes_by_udp(void)
{
	two_processes("udp");
}

static void two_processes_by_shm(void)
{
	two_processes("auto");
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "two_processes_by_udp", two_processes_by_udp },
		{ "two_processes_by_shm", two_processes_by_shm },
		{ 0 },
	};
	return run_cm_case(cases, argc, argv);
}
