/* Two processes that send to each other in turn, and wait for the descriptor of a channel in an
 * event loop of their own. */
#ifndef ROCADE_TESTS_EVENT_LOOP_H
#define ROCADE_TESTS_EVENT_LOOP_H

#include "processes.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { ROUNDS = 300 };

struct shared {
	pthread_barrier_t barrier;
	uint32_t qp_num[2], rkey[2];
	uint64_t address[2];
	atomic_bool over;
};

struct side {
	struct rig r;
	struct shared *shared;
	int self, received, sent;
	/* Calls for one event only, and does not look for the next one. */
	bool once;
};

static inline void set_blocking(int fd, bool blocking)
{
	int flags = fcntl(fd, F_GETFL);
	CHECK(flags >= 0);
	CHECK_INT(fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK), 0);
}

static void post_one(struct side *side)
{
	struct ibv_sge sge = { (uintptr_t)side->r.buffer, 64, side->r.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(side->r.a, &wr, &bad), 0);
}

static struct side open_side(struct shared *shared, int self)
{
	struct side side = { .r.context = open_device(), .shared = shared, .self = self };
	struct rig *r = &side.r;
	r->pd = ibv_alloc_pd(r->context);
	r->channel = ibv_create_comp_channel(r->context);
	CHECK(r->pd && r->channel);
	r->cq = ibv_create_cq(r->context, 64, NULL, r->channel, 0);
	CHECK(r->cq);
	struct ibv_qp_init_attr init = small_qp(r->cq);
	r->a = ibv_create_qp(r->pd, &init);
	r->buffer = calloc(1, BUFFER_LEN);
	r->mr = ibv_reg_mr(r->pd, r->buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(r->a && r->mr);
	shared->qp_num[self] = r->a->qp_num;
	shared->rkey[self] = r->mr->rkey;
	shared->address[self] = (uintptr_t)r->buffer;
	pthread_barrier_wait(&shared->barrier);
	connect_qp(r->a, shared->qp_num[!self]);
	for (int i = 0; i < 8; i++)
		post_one(&side);
	set_blocking(r->channel->fd, false);
	pthread_barrier_wait(&shared->barrier);
	return side;
}

static void send_one(struct side *side)
{
	struct ibv_sge sge = { (uintptr_t)side->r.buffer + 4096, 64, side->r.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK_INT(ibv_post_send(side->r.a, &wr, &bad), 0);
}

static void take_completions(struct side *side)
{
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(side->r.cq, 1, &wc)) > 0) {
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode != IBV_WC_RECV) {
			side->sent++;
			continue;
		}
		post_one(side);
		side->received++;
		if (side->self || side->received < ROUNDS)
			send_one(side);
	}
	CHECK_INT(count, 0);
}

/* Takes the event, if there is one. */
static bool take_event(struct side *side)
{
	struct ibv_cq *cq;
	void *cookie;
	if (ibv_get_cq_event(side->r.channel, &cq, &cookie)) {
		CHECK_INT(errno, EAGAIN);
		return false;
	}
	CHECK(cq == side->r.cq);
	ibv_ack_cq_events(cq, 1);
	return true;
}

static void on_readable(struct side *side)
{
	bool any = take_event(side);
	while (any && !side->once && take_event(side))
		;
	if (!any)
		return;
	CHECK_INT(ibv_req_notify_cq(side->r.cq, 0), 0);
	take_completions(side);
}

static bool is_over(const struct side *side)
{
	return side->received == ROUNDS && side->sent == ROUNDS;
}

static void begin(struct side *side)
{
	CHECK_INT(ibv_req_notify_cq(side->r.cq, 0), 0);
	take_completions(side);
	if (!side->self)
		send_one(side);
}

static int fd_of(const struct side *side)
{
	return side->r.channel->fd;
}

static void (*waits)(struct side *);

static void ping_pong(void *memory, int self)
{
	struct side side = open_side(memory, self);
	begin(&side);
	waits(&side);
	pthread_barrier_wait(&side.shared->barrier);
}

static inline void on_both_links(void (*way)(struct side *))
{
	waits = way;
	in_processes(2, "udp", sizeof(struct shared), ping_pong);
	in_processes(2, "shm", sizeof(struct shared), ping_pong);
}

#endif
