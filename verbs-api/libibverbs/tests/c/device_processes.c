/* Fault rules for the device or the port of one of two processes, which exchange packets over UDP
 * or through shared memory. The rules are those of the first process, and the second one sends to
 * it. */
#include "groups.h"
#include "processes.h"

#include <stdbool.h>

#define QKEY 0x1234
#define GRH 40

/* Long enough for the processes to connect and to exchange messages on a busy machine. */
#define BEGINS "at=5s"

struct shared {
	pthread_barrier_t barrier;
	uint32_t qpns[2];
};

static const char *rules;
static int event_type;
/* The rule ends before the sender's retries do. */
static bool comes_back;

static struct ibv_qp *create_member(struct rig *r, union ibv_gid *group)
{
	struct ibv_qp_init_attr init = small_qp(r->cq);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(r->pd, &init);
	CHECK(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	*group = own_group();
	return qp;
}

static void send_to_group(struct rig *r, struct ibv_qp *qp, const union ibv_gid *group)
{
	struct ibv_ah_attr attr = path_to_self(r->context);
	attr.grh.dgid = *group;
	struct ibv_ah *ah = ibv_create_ah(r->pd, &attr);
	CHECK(ah);
	struct ibv_sge sge = sge_at(r, 0, 16);
	struct ibv_send_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = QKEY;
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
	CHECK_INT(next_completion(r->cq).status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_destroy_ah(ah), 0);
}

static void meet(struct shared *shared)
{
	int result = pthread_barrier_wait(&shared->barrier);
	CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
}

static void await_event(struct ibv_context *context, int type)
{
	struct ibv_async_event event;
	CHECK_INT(ibv_get_async_event(context, &event), 0);
	CHECK_INT(event.event_type, type);
	ibv_ack_async_event(&event);
}

static void receive_member(struct rig *r, struct ibv_qp *member)
{
	struct ibv_sge sge = sge_at(r, 1024, 16 + GRH);
	struct ibv_recv_wr wr = { .wr_id = 8, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(member, &wr, &bad), 0);
}

static void receiver(struct shared *shared, struct rig *r, struct ibv_qp *member,
		     const union ibv_gid *group)
{
	CHECK_INT(ibv_attach_mcast(member, group, 0), 0);
	for (int i = 0; i < 2; i++) {
		post_receive(r, 7);
		receive_member(r, member);
	}
	meet(shared);
	/* Both messages come while the device is there. */
	for (int i = 0; i < 2; i++)
		CHECK_INT(next_completion(r->cq).status, IBV_WC_SUCCESS);
	CHECK(!is_readable(r->context->async_fd));
	await_event(r->context, event_type);
	meet(shared);
	if (comes_back) {
		await_event(r->context, IBV_EVENT_PORT_ACTIVE);
		CHECK_INT(next_completion(r->cq).wr_id, 7);
	}
	meet(shared);
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(r->cq, 1, &wc), 0);
	if (event_type == IBV_EVENT_DEVICE_FATAL) {
		int count = -1;
		struct ibv_device **list = ibv_get_device_list(&count);
		CHECK(list);
		CHECK_INT(count, 0);
		ibv_free_device_list(list);
	} else {
		CHECK_INT(ibv_detach_mcast(member, group, 0), 0);
	}
}

static void sender(struct shared *shared, struct rig *r, struct ibv_qp *member,
		   const union ibv_gid *group)
{
	meet(shared);
	send_to_group(r, member, group);
	post_send(r, 1);
	CHECK_INT(next_completion(r->cq).status, IBV_WC_SUCCESS);
	meet(shared);
	/* The datagram is lost, and its sender does not know. */
	send_to_group(r, member, group);
	post_send(r, 2);
	int status = next_completion(r->cq).status;
	CHECK_INT(status, comes_back ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR);
	CHECK(!is_readable(r->context->async_fd));
	meet(shared);
}

static void process(void *memory, int self)
{
	struct shared *shared = memory;
	if (!self)
		CHECK_INT(setenv("ROCADE_FAULT", rules, 1), 0);
	struct rig r = { .context = open_device() };
	r.pd = ibv_alloc_pd(r.context);
	r.cq = ibv_create_cq(r.context, 64, NULL, NULL, 0);
	r.buffer = calloc(1, BUFFER_LEN);
	CHECK(r.pd && r.cq && r.buffer);
	r.mr = ibv_reg_mr(r.pd, r.buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	r.a = r.b = ibv_create_qp(r.pd, &init);
	CHECK(r.mr && r.a);
	shared->qpns[self] = r.a->qp_num;
	meet(shared);
	connect_qp(r.a, shared->qpns[!self]);
	union ibv_gid group = { 0 };
	struct ibv_qp *member = create_member(&r, &group);
	(self ? sender : receiver)(shared, &r, member, &group);
	CHECK_INT(ibv_destroy_qp(member), 0);
	CHECK_INT(ibv_destroy_qp(r.a), 0);
	CHECK_INT(ibv_destroy_cq(r.cq), 0);
	CHECK_INT(ibv_dereg_mr(r.mr), 0);
	CHECK_INT(ibv_dealloc_pd(r.pd), 0);
	CHECK_INT(ibv_close_device(r.context), 0);
	free(r.buffer);
}

static void run(const char *link, const char *with, int type)
{
	rules = with;
	event_type = type;
	in_processes(2, link, sizeof(struct shared), process);
}

static void a_port_down_stops_udp(void)
{
	run("udp", "port-down " BEGINS, IBV_EVENT_PORT_ERR);
}

static void a_port_down_stops_shm(void)
{
	run("shm", "port-down " BEGINS, IBV_EVENT_PORT_ERR);
}

static void a_port_comes_back_by_shm(void)
{
	comes_back = true;
	run("shm", "port-down " BEGINS " for=500ms", IBV_EVENT_PORT_ERR);
}

static void a_removed_device_is_silent_by_udp(void)
{
	run("udp", "device-remove " BEGINS, IBV_EVENT_DEVICE_FATAL);
}

static void a_removed_device_is_silent_by_shm(void)
{
	run("shm", "device-remove " BEGINS, IBV_EVENT_DEVICE_FATAL);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_port_down_stops_udp", a_port_down_stops_udp },
		{ "a_port_down_stops_shm", a_port_down_stops_shm },
		{ "a_port_comes_back_by_shm", a_port_comes_back_by_shm },
		{ "a_removed_device_is_silent_by_udp", a_removed_device_is_silent_by_udp },
		{ "a_removed_device_is_silent_by_shm", a_removed_device_is_silent_by_shm },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
