/* Edge cases of cross-channel: which completions count, counter wraparound, self-waits, cycles, and
 * missing objects. */
#include "cross_channel.h"

#include <limits.h>

static struct ibv_exp_send_wr nop(uint64_t wr_id, uint64_t flags)
{
	struct ibv_exp_send_wr wr = { .wr_id = wr_id, .exp_opcode = IBV_EXP_WR_NOP, .exp_send_flags = flags };
	return wr;
}

static struct ibv_qp *another_master(struct cross *c, struct ibv_cq *cq)
{
	struct ibv_qp *qp = cross_qp(c->r.pd, cq, cq, MASTER);
	connect_qp(qp, qp->qp_num);
	return qp;
}

static void expect_nothing(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(cq, 1, &wc), 0);
}

static void expect_flushed(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc = next_completion(cq);
	CHECK_INT(wc.wr_id, wr_id);
	CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
}

/* Sends without a completion do not count, and failed ones do. */
static void what_counts(void)
{
	struct cross c = cross_open(0, 0);
	struct ibv_cq *sends = waitable_cq(c.r.context, NULL);
	struct ibv_qp *sender = another_master(&c, sends);
	CHECK_INT(post(c.master, wait_for(sends, 1, SIGNALED | LAST, 1)), 0);
	CHECK_INT(post(c.master, wait_for(sends, 2, SIGNALED | LAST, 2)), 0);
	for (int i = 0; i < 5; i++)
		CHECK_INT(post(sender, nop(10, 0)), 0);
	expect_nothing(c.master_cq);
	CHECK_INT(post(sender, nop(11, SIGNALED)), 0);
	expect(c.master_cq, 1);
	expect_nothing(c.master_cq);
	expect(sends, 11);
	/* An unsignaled request fails, and the requests after it are flushed: two completions. */
	struct ibv_sge wrong = sge_at(&c.r, 0, 8);
	wrong.lkey ^= 0x100;
	struct ibv_exp_send_wr after = nop(13, 0);
	struct ibv_exp_send_wr fails = { .wr_id = 12, .next = &after, .sg_list = &wrong, .num_sge = 1,
					 .exp_opcode = IBV_EXP_WR_SEND };
	CHECK_INT(post(sender, fails), 0);
	expect(c.master_cq, 2);
	struct ibv_wc wc = next_completion(sends);
	CHECK_INT(wc.wr_id, 12);
	CHECK_INT(wc.status, IBV_WC_LOC_PROT_ERR);
	expect_flushed(sends, 13);
	CHECK_INT(ibv_destroy_qp(sender), 0);
	CHECK_INT(ibv_destroy_cq(sends), 0);
	cross_close(&c);
}

/* Waits after an unacknowledged send. When it completes, the first wait ends and the second
 * continues. */
static void a_wait_behind_a_slow_send(void)
{
	struct cross c = cross_open(MASTER, 0);
	struct ibv_cq *watched = waitable_cq(c.r.context, NULL);
	struct ibv_qp *other = another_master(&c, watched);
	CHECK_INT(post(other, nop(1, SIGNALED)), 0);
	expect(watched, 1);
	/* There is no receive for it yet. */
	post_send(&c.r, 10);
	CHECK_INT(post(c.r.a, wait_for(watched, 1, LAST | SIGNALED, 11)), 0);
	CHECK_INT(post(c.r.a, wait_for(watched, 1, LAST | SIGNALED, 12)), 0);
	expect_nothing(c.r.cq);
	post_receive(&c.r, 20);
	expect(c.recv_cq, 20);
	expect(c.r.cq, 10);
	expect(c.r.cq, 11);
	expect_nothing(c.r.cq);
	CHECK_INT(post(other, nop(2, SIGNALED)), 0);
	expect(c.r.cq, 12);
	CHECK_INT(ibv_destroy_qp(other), 0);
	CHECK_INT(ibv_destroy_cq(watched), 0);
	cross_close(&c);
}

/* A CQ counts modulo 2^32: two advances by the greatest count go past the wraparound. */
static void counts_go_round(void)
{
	struct cross c = cross_open(0, 0);
	struct ibv_cq *cq = waitable_cq(c.r.context, NULL);
	struct ibv_qp *first = another_master(&c, cq);
	/* For 2^31 - 1 completions: not reached. */
	CHECK_INT(post(first, wait_for(c.recv_cq, INT_MAX, SIGNALED | LAST, 1)), 0);
	expect_nothing(cq);
	/* For 2^32 - 2: reached two completions ago. */
	CHECK_INT(post(c.master, wait_for(c.recv_cq, INT_MAX, SIGNALED | LAST, 2)), 0);
	expect(c.master_cq, 2);
	/* For 2^32 + 1, which wraps to 1. */
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 3, SIGNALED | LAST, 3)), 0);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 1, SIGNALED | LAST, 4)), 0);
	expect_nothing(c.master_cq);
	for (int i = 3; i <= 4; i++) {
		post_receive(&c.r, 10);
		post_send(&c.r, 11);
		expect(c.r.cq, 11);
		expect(c.master_cq, i);
		expect_nothing(c.master_cq);
	}
	expect_nothing(cq);
	to_error(first);
	expect_flushed(cq, 1);
	CHECK_INT(ibv_destroy_qp(first), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	cross_close(&c);
}

/* Waits for completions of the queue itself. Earlier ones end the wait, but its own never comes. */
static void waits_for_oneself(void)
{
	struct cross c = cross_open(0, 0);
	struct ibv_cq *cq = waitable_cq(c.r.context, NULL);
	struct ibv_qp *qp = another_master(&c, cq);
	CHECK_INT(post(qp, nop(1, SIGNALED)), 0);
	CHECK_INT(post(qp, wait_for(cq, 1, SIGNALED | LAST, 2)), 0);
	CHECK_INT(post(qp, wait_for(cq, 1, SIGNALED | LAST, 3)), 0);
	for (int i = 1; i <= 3; i++)
		expect(cq, i);
	/* The wait's own completion would be the fourth. */
	CHECK_INT(post(qp, wait_for(cq, 2, SIGNALED | LAST, 4)), 0);
	CHECK_INT(post(qp, nop(5, SIGNALED)), 0);
	expect_nothing(cq);
	CHECK_INT(ibv_destroy_cq(cq), EBUSY);
	to_error(qp);
	expect_flushed(cq, 4);
	expect_flushed(cq, 5);
	/* The QP can be used again. */
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	connect_qp(qp, qp->qp_num);
	CHECK_INT(post(qp, nop(6, SIGNALED)), 0);
	expect(cq, 6);
	/* RESET removes waits like ERR does, but without a completion. */
	CHECK_INT(post(qp, wait_for(cq, 100, SIGNALED | LAST, 7)), 0);
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	expect_nothing(cq);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	cross_close(&c);
}

enum { CIRCLE = 5 };

/* Each QP waits for the next one, in a cycle. When one of them ends, its completion releases the
 * next one, and so on. */
static void chains_in_a_circle(void)
{
	struct cross c = cross_open(0, 0);
	struct ibv_cq *cqs[CIRCLE];
	struct ibv_qp *qps[CIRCLE];
	for (int i = 0; i < CIRCLE; i++) {
		cqs[i] = waitable_cq(c.r.context, NULL);
		qps[i] = another_master(&c, cqs[i]);
	}
	for (int i = 0; i < CIRCLE; i++)
		CHECK_INT(post(qps[i], wait_for(cqs[(i + 1) % CIRCLE], 1, SIGNALED | LAST, i)), 0);
	for (int i = 0; i < CIRCLE; i++) {
		expect_nothing(cqs[i]);
		CHECK_INT(ibv_destroy_cq(cqs[i]), EBUSY);
	}
	to_error(qps[0]);
	expect_flushed(cqs[0], 0);
	for (int i = CIRCLE - 1; i > 0; i--)
		expect(cqs[i], i);
	/* Queues that release each other in a cycle: each holds the request that the other
	 * needs. */
	struct ibv_qp *left = cross_qp(c.r.pd, c.master_cq, c.master_cq, MASTER | MANAGED_SEND);
	struct ibv_qp *right = cross_qp(c.r.pd, c.master_cq, c.master_cq, MASTER | MANAGED_SEND);
	connect_qp(left, left->qp_num);
	connect_qp(right, right->qp_num);
	CHECK_INT(post(left, nop(20, SIGNALED)), 0);
	CHECK_INT(post(right, nop(21, SIGNALED)), 0);
	CHECK_INT(post(left, enable(IBV_EXP_WR_SEND_ENABLE, right, 0, LAST)), 0);
	CHECK_INT(post(right, enable(IBV_EXP_WR_SEND_ENABLE, left, 0, LAST)), 0);
	expect_nothing(c.master_cq);
	/* Another master breaks the cycle: it releases one queue, which releases the other. */
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, left, 0, LAST)), 0);
	expect(c.master_cq, 20);
	expect(c.master_cq, 21);
	/* Destroyed while they hold requests for each other. */
	CHECK_INT(post(left, enable(IBV_EXP_WR_SEND_ENABLE, right, 0, LAST)), 0);
	CHECK_INT(ibv_destroy_qp(right), 0);
	CHECK_INT(ibv_destroy_qp(left), 0);
	for (int i = 0; i < CIRCLE; i++) {
		CHECK_INT(ibv_destroy_qp(qps[i]), 0);
		CHECK_INT(ibv_destroy_cq(cqs[i]), 0);
	}
	cross_close(&c);
}

/* Releasing more than the queue has fails without effect, an empty release does nothing, and RESET
 * restarts from 0. */
static void releases_of_what_is_not_there(void)
{
	struct cross c = cross_open(MANAGED_SEND, MANAGED_RECV);
	struct rig *r = &c.r;
	for (int round = 0; round < 2; round++) {
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_RECV_ENABLE, r->b, 1, LAST)), EINVAL);
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, r->a, INT_MAX, LAST)), EINVAL);
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_RECV_ENABLE, r->b, 0, SIGNALED | LAST)), 0);
		expect(c.master_cq, 7);
		post_receive(r, 10);
		post_receive(r, 11);
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_RECV_ENABLE, r->b, 3, LAST)), EINVAL);
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_RECV_ENABLE, r->b, 1, LAST)), 0);
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_RECV_ENABLE, r->b, 2, LAST)), EINVAL);
		post_send(r, 20);
		post_send(r, 21);
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, r->a, 3, 0)), EINVAL);
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, r->a, 2, LAST)), 0);
		expect(c.recv_cq, 10);
		expect(r->cq, 20);
		/* The second send waits for a receive that is not released yet. */
		expect_nothing(c.recv_cq);
		CHECK_INT(post(c.master, enable(IBV_EXP_WR_RECV_ENABLE, r->b, 1, LAST)), 0);
		expect(c.recv_cq, 11);
		expect(r->cq, 21);
		struct ibv_qp *both[] = { r->a, r->b };
		for (int i = 0; i < 2; i++) {
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
			CHECK_INT(ibv_modify_qp(both[i], &attr, IBV_QP_STATE), 0);
		}
		connect_qp(r->a, r->b->qp_num);
		connect_qp(r->b, r->a->qp_num);
	}
	cross_close(&c);
}

/* The second queue of a list is full: the first queue's requests stay posted, and the unposted ones
 * move no count. */
static void a_queue_that_is_full(void)
{
	struct cross c = cross_open(MASTER, 0);
	struct rig *r = &c.r;
	CHECK_INT(post(r->a, wait_for(c.recv_cq, 5, LAST, 1)), 0);
	int posted = 0;
	while (post(r->a, nop(2, SIGNALED)) == 0)
		CHECK(++posted < 10000);
	struct ibv_exp_send_wr one = nop(3, SIGNALED), two = wait_for(c.recv_cq, 7, LAST, 4), three = nop(5, SIGNALED);
	struct ibv_exp_task tasks[3] = {
		{ IBV_EXP_TASK_SEND, { .qp = c.master, { .send_wr = &one } }, tasks + 1, 0 },
		{ IBV_EXP_TASK_SEND, { .qp = r->a, { .send_wr = &two } }, tasks + 2, 0 },
		{ IBV_EXP_TASK_SEND, { .qp = c.master, { .send_wr = &three } }, NULL, 0 },
	}, *bad = NULL;
	CHECK_INT(ibv_exp_post_task(r->context, tasks, &bad), ENOMEM);
	CHECK(bad == tasks + 1);
	expect(c.master_cq, 3);
	expect_nothing(c.master_cq);
	/* The base is 5, not 12. */
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 1, LAST | SIGNALED, 6)), 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	for (int i = 0; i < 6; i++)
		post_receive(r, 10 + i);
	CHECK_INT(ibv_modify_qp(r->b, &attr, IBV_QP_STATE), 0);
	expect(c.master_cq, 6);
	for (int i = 0; i < posted; i++)
		expect(r->cq, 2);
	cross_close(&c);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "what_counts", what_counts },
		{ "a_wait_behind_a_slow_send", a_wait_behind_a_slow_send },
		{ "counts_go_round", counts_go_round },
		{ "waits_for_oneself", waits_for_oneself },
		{ "chains_in_a_circle", chains_in_a_circle },
		{ "releases_of_what_is_not_there", releases_of_what_is_not_there },
		{ "a_queue_that_is_full", a_queue_that_is_full },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
