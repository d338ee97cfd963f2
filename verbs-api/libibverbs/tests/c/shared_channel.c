/* A program whose two completion queues share a channel, and that polls once after each event, as
 * ib_send_lat does. An ACK precedes the reply to its message on hardware, so that the first event
 * after a post tells of the send. */
#include "processes.h"

enum { LENGTH = 64, MOST_LENGTH = 6000 };

struct shared {
	pthread_barrier_t barrier;
	uint32_t qp_num[2];
};

static int length;

struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char buffer[2 * MOST_LENGTH];
};

static int rounds(void)
{
	const char *wanted = getenv("ROCADE_TEST_ROUNDS");
	return wanted ? atoi(wanted) : 20000;
}

static void receive_next(struct end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->buffer, MOST_LENGTH, e->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(e->qp, &wr, &bad), 0);
}

static void next_event(struct end *e)
{
	struct ibv_cq *cq;
	void *context;
	CHECK_INT(ibv_get_cq_event(e->channel, &cq, &context), 0);
	ibv_ack_cq_events(cq, 1);
	CHECK_INT(ibv_req_notify_cq(cq, 0), 0);
}

/* Polls once after an event. */
static void complete(struct end *e, struct ibv_cq *cq)
{
	struct ibv_wc wc;
	next_event(e);
	CHECK_INT(ibv_poll_cq(cq, 1, &wc), 1);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
}

static void send_and_complete(struct end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->buffer + MOST_LENGTH, length, e->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK_INT(ibv_post_send(e->qp, &wr, &bad), 0);
	complete(e, e->send_cq);
}

static void open_end(struct end *e, struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	e->channel = ibv_create_comp_channel(context);
	CHECK(pd && e->channel);
	e->send_cq = ibv_create_cq(context, 64, NULL, e->channel, 0);
	e->recv_cq = ibv_create_cq(context, 64, NULL, e->channel, 0);
	CHECK(e->send_cq && e->recv_cq);
	struct ibv_qp_init_attr init = small_qp(e->send_cq);
	init.recv_cq = e->recv_cq;
	e->qp = ibv_create_qp(pd, &init);
	e->mr = ibv_reg_mr(pd, e->buffer, sizeof(e->buffer), IBV_ACCESS_LOCAL_WRITE);
	CHECK(e->qp && e->mr);
}

static void process(void *memory, int self)
{
	struct shared *shared = memory;
	static struct end e;
	open_end(&e, open_device());
	shared->qp_num[self] = e.qp->qp_num;
	pthread_barrier_wait(&shared->barrier);
	connect_qp(e.qp, shared->qp_num[!self]);
	for (int n = 0; n < 4; n++)
		receive_next(&e);
	CHECK_INT(ibv_req_notify_cq(e.send_cq, 0), 0);
	CHECK_INT(ibv_req_notify_cq(e.recv_cq, 0), 0);
	pthread_barrier_wait(&shared->barrier);
	for (int left = rounds(); left; left--) {
		if (!self)
			send_and_complete(&e);
		complete(&e, e.recv_cq);
		receive_next(&e);
		if (self)
			send_and_complete(&e);
	}
	pthread_barrier_wait(&shared->barrier);
}

static void run(const char *link, int bytes)
{
	length = bytes;
	in_processes(2, link, sizeof(struct shared), process);
}

static void sends_complete_before_replies_by_udp(void) { run("udp", LENGTH); }
static void sends_complete_before_replies_by_shm(void) { run("shm", LENGTH); }
static void sends_complete_before_long_replies(void) { run("udp", MOST_LENGTH); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "sends_complete_before_replies_by_udp", sends_complete_before_replies_by_udp },
		{ "sends_complete_before_replies_by_shm", sends_complete_before_replies_by_shm },
		{ "sends_complete_before_long_replies", sends_complete_before_long_replies },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
