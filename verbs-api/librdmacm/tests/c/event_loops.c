/* A server and a client with several connections. Each waits in one event loop for all its
 * channels: those of the connection manager and those for completions. */
#include "cm_rig.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { CONNECTIONS = 4, MESSAGES = 100, LENGTH = 64, RECEIVES = 4 };

struct connection {
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buffer[LENGTH * 2];
	int received;
};

struct program {
	struct rdma_event_channel *channel;
	int epoll, ended;
	uint32_t events;
	bool is_server;
};

static void watch(struct program *program, int fd, void *data)
{
	struct epoll_event event = { .events = program->events, .data.ptr = data };
	set_nonblocking(fd);
	CHECK_INT(epoll_ctl(program->epoll, EPOLL_CTL_ADD, fd, &event), 0);
}

static void receive_next(struct connection *c)
{
	CHECK_INT(rdma_post_recv(c->id, NULL, c->buffer, LENGTH, c->mr), 0);
}

static void send_next(struct connection *c)
{
	CHECK_INT(rdma_post_send(c->id, NULL, c->buffer + LENGTH, LENGTH, c->mr, IBV_SEND_SIGNALED), 0);
}

static void open_connection(struct program *program, struct rdma_cm_id *id)
{
	struct connection *c = calloc(1, sizeof(*c));
	CHECK(c);
	id->context = c;
	c->id = id;
	c->channel = ibv_create_comp_channel(id->verbs);
	CHECK(c->channel);
	c->cq = ibv_create_cq(id->verbs, 64, NULL, c->channel, 0);
	CHECK(c->cq);
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	attr.send_cq = attr.recv_cq = c->cq;
	CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
	c->mr = rdma_reg_msgs(id, c->buffer, sizeof(c->buffer));
	CHECK(c->mr);
	for (int i = 0; i < RECEIVES; i++)
		receive_next(c);
	watch(program, c->channel->fd, c);
	CHECK_INT(ibv_req_notify_cq(c->cq, 0), 0);
}

static void close_connection(struct connection *c)
{
	rdma_destroy_qp(c->id);
	CHECK_INT(ibv_dereg_mr(c->mr), 0);
	CHECK_INT(ibv_destroy_cq(c->cq), 0);
	CHECK_INT(ibv_destroy_comp_channel(c->channel), 0);
	CHECK_INT(rdma_destroy_id(c->id), 0);
	free(c);
}

static void on_completion(struct program *program, struct connection *c, const struct ibv_wc *wc)
{
	/* The peer disconnects when it has all its answers. */
	if (wc->status == IBV_WC_WR_FLUSH_ERR)
		return;
	CHECK_INT(wc->status, IBV_WC_SUCCESS);
	if (wc->opcode != IBV_WC_RECV)
		return;
	c->received++;
	receive_next(c);
	if (program->is_server || c->received < MESSAGES)
		send_next(c);
	else
		CHECK_INT(rdma_disconnect(c->id), 0);
}

static void on_completions(struct program *program, struct connection *c)
{
	struct ibv_cq *cq;
	void *context;
	bool any = false;
	while (!ibv_get_cq_event(c->channel, &cq, &context)) {
		CHECK(cq == c->cq);
		ibv_ack_cq_events(cq, 1);
		any = true;
	}
	CHECK_INT(errno, EAGAIN);
	if (!any)
		return;
	CHECK_INT(ibv_req_notify_cq(c->cq, 0), 0);
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(c->cq, 1, &wc)) > 0)
		on_completion(program, c, &wc);
	CHECK_INT(count, 0);
}

static void on_cm_event(struct program *program, struct rdma_cm_id *id, enum rdma_cm_event_type kind)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	switch (kind) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		CHECK_INT(rdma_resolve_route(id, 5000), 0);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		open_connection(program, id);
		CHECK_INT(rdma_connect(id, &param), 0);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		open_connection(program, id);
		CHECK_INT(rdma_accept(id, &param), 0);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (!program->is_server)
			send_next(id->context);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		CHECK_INT(((struct connection *)id->context)->received, MESSAGES);
		close_connection(id->context);
		program->ended++;
		break;
	default:
		CHECK_INT(kind, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	}
}

static void on_cm_events(struct program *program)
{
	struct rdma_cm_event *event;
	while (!rdma_get_cm_event(program->channel, &event)) {
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type kind = event->event;
		CHECK_INT(event->status, 0);
		CHECK_INT(rdma_ack_cm_event(event), 0);
		on_cm_event(program, id, kind);
	}
	CHECK_INT(errno, EAGAIN);
}

static void run_loop(struct program *program)
{
	while (program->ended < CONNECTIONS) {
		/* One at a time: a connection may end while others are ready. */
		struct epoll_event event;
		CHECK_INT(epoll_wait(program->epoll, &event, 1, -1), 1);
		if (event.data.ptr)
			on_completions(program, event.data.ptr);
		else
			on_cm_events(program);
	}
	rdma_destroy_event_channel(program->channel);
}

static struct program open_program(uint32_t events, bool is_server)
{
	struct program program = { .channel = rdma_create_event_channel(),
				   .epoll = epoll_create1(EPOLL_CLOEXEC),
				   .events = events, .is_server = is_server };
	CHECK(program.channel && program.epoll >= 0);
	watch(&program, program.channel->fd, NULL);
	return program;
}

static void serve(uint32_t events, volatile int *port)
{
	struct program program = open_program(events, true);
	struct sockaddr_in addr = at_port(0);
	struct rdma_cm_id *listener;
	CHECK_INT(rdma_create_id(program.channel, &listener, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_bind_addr(listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(listener, CONNECTIONS), 0);
	*port = ntohs(rdma_get_src_port(listener));
	run_loop(&program);
}

static void connect_all(uint32_t events, int port)
{
	struct program program = open_program(events, false);
	struct sockaddr_in addr = at_port(port);
	for (int i = 0; i < CONNECTIONS; i++) {
		struct rdma_cm_id *id;
		CHECK_INT(rdma_create_id(program.channel, &id, NULL, RDMA_PS_TCP), 0);
		CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 5000), 0);
	}
	run_loop(&program);
}

static void run(const char *link, uint32_t events)
{
	CHECK_INT(setenv("ROCADE_LINK", link, 1), 0);
	volatile int *port = mmap(NULL, sizeof(*port), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(port != MAP_FAILED);
	pid_t server = fork();
	CHECK(server >= 0);
	if (!server) {
		alarm(DEADLINE);
		serve(events, port);
		exit(0);
	}
	while (!*port) {
		CHECK_INT(waitpid(server, NULL, WNOHANG), 0);
		usleep(1000);
	}
	connect_all(events, *port);
	int status;
	CHECK_INT(waitpid(server, &status, 0), server);
	CHECK_INT(status, 0);
}

static void level_triggered_by_udp(void) { run("udp", EPOLLIN); }
static void level_triggered_by_shm(void) { run("auto", EPOLLIN); }
static void edge_triggered_by_udp(void) { run("udp", EPOLLIN | EPOLLET); }
static void edge_triggered_by_shm(void) { run("auto", EPOLLIN | EPOLLET); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "level_triggered_by_udp", level_triggered_by_udp },
		{ "level_triggered_by_shm", level_triggered_by_shm },
		{ "edge_triggered_by_udp", edge_triggered_by_udp },
		{ "edge_triggered_by_shm", edge_triggered_by_shm },
		{ NULL, NULL },
	};
	return run_cm_case(cases, argc, argv);
}
