/* Work requests built by function calls (ibv_wr_*): batches, and how they end. */
#include "rig.h"

#define OPERATIONS                                                                                  \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |           \
	 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |                            \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

/* Returns an extended QP, which replaces the rig's requester. */
static struct ibv_qp_ex *extended(struct rig *r, uint64_t operations)
{
	CHECK_INT(ibv_destroy_qp(r->a), 0);
	CHECK_INT(ibv_destroy_qp(r->b), 0);
	struct ibv_qp_init_attr init = small_qp(r->cq);
	struct ibv_qp_ex *ex = create_qp_ex(r->context, r->pd, r->cq, operations);
	CHECK(ex);
	r->a = &ex->qp_base;
	r->b = ibv_create_qp(r->pd, &init);
	CHECK(r->b);
	connect_qp(r->a, r->b->qp_num);
	connect_qp(r->b, r->a->qp_num);
	return ex;
}

static uint64_t word(struct rig *r, size_t offset)
{
	uint64_t value;
	memcpy(&value, r->buffer + offset, sizeof(value));
	return value;
}

static void set_word(struct rig *r, size_t offset, uint64_t value)
{
	memcpy(r->buffer + offset, &value, sizeof(value));
}

static uint64_t at(struct rig *r, size_t offset)
{
	return (uintptr_t)r->buffer + offset;
}

static void expect(struct rig *r, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = next_completion(r->cq);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.wr_id, wr_id);
	CHECK_INT(wc.opcode, opcode);
}

static void expect_nothing(struct rig *r)
{
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(r->cq, 1, &wc), 0);
}

/* wr_id and wr_flags apply to a request if they are set before it begins. */
/*= WRX-01 WRX-02 type=test */
static void every_operation_in_one_batch(void)
{
	struct rig r = rig_open();
	struct ibv_qp_ex *ex = extended(&r, OPERATIONS);
	uint32_t rkey = r.mr->rkey, lkey = r.mr->lkey;
	for (uint64_t i = 0; i < 3; i++)
		post_receive(&r, 100 + i);
	set_word(&r, 0, 11);
	set_word(&r, 1024, 5);
	set_word(&r, 1032, 7);

	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 1;
	ibv_wr_rdma_write(ex, rkey, at(&r, 2048));
	ex->wr_id = 99; /* too late for the previous request */
	ibv_wr_set_sge(ex, lkey, at(&r, 0), 8);
	ex->wr_id = 2;
	ibv_wr_atomic_fetch_add(ex, rkey, at(&r, 1024), 3);
	ibv_wr_set_sge(ex, lkey, at(&r, 512), 8);
	ex->wr_id = 3;
	ibv_wr_atomic_cmp_swp(ex, rkey, at(&r, 1032), 7, 8);
	ibv_wr_set_sge(ex, lkey, at(&r, 520), 8);
	ex->wr_id = 4;
	ibv_wr_rdma_read(ex, rkey, at(&r, 2048));
	struct ibv_sge parts[2] = { sge_at(&r, 528, 3), sge_at(&r, 531, 5) };
	ibv_wr_set_sge_list(ex, 2, parts);
	ex->wr_flags = 0; /* stays 0 from here on */
	ex->wr_id = 5;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, lkey, at(&r, 0), 8);
	ex->wr_id = 6;
	ibv_wr_send_imm(ex, htobe32(77));
	ibv_wr_set_inline_data(ex, "inline", 6);
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	ex->wr_id = 7;
	ibv_wr_rdma_write_imm(ex, rkey, at(&r, 2056), htobe32(78));
	struct ibv_data_buf texts[2] = { { "in", 2 }, { "line", 4 } };
	ibv_wr_set_inline_data_list(ex, 2, texts);
	expect_nothing(&r);
	CHECK_INT(ibv_wr_complete(ex), 0);

	/* Both QPs complete into one CQ. Only the order within each QP is fixed. */
	uint64_t sent = 0, received = 100;
	static const int opcodes[] = { 0, IBV_WC_RDMA_WRITE, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP,
				       IBV_WC_RDMA_READ, -1, -1, IBV_WC_RDMA_WRITE };
	while (sent < 7 || received < 103) {
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (wc.qp_num == r.a->qp_num) {
			CHECK_INT(wc.wr_id, sent == 4 ? 7 : sent + 1);
			CHECK_INT(wc.opcode, opcodes[wc.wr_id]);
			sent = wc.wr_id;
		} else {
			CHECK_INT(wc.wr_id, received++);
			CHECK_INT(wc.opcode, wc.wr_id == 102 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
			CHECK_INT(wc.byte_len, wc.wr_id == 100 ? 8 : 6);
			if (wc.wr_id > 100)
				CHECK_INT(be32toh(wc.imm_data), wc.wr_id == 101 ? 77 : 78);
		}
	}
	CHECK_INT(word(&r, 512), 5);
	CHECK_INT(word(&r, 1024), 8);
	CHECK_INT(word(&r, 520), 7);
	CHECK_INT(word(&r, 1032), 8);
	CHECK_INT(word(&r, 528), 11);
	CHECK(!memcmp(r.buffer + 2056, "inline", 6));
	rig_close(&r);
}

/* A request without data is sent empty. */
/*= WRX-04 type=test */
static void a_request_without_data_is_empty(void)
{
	struct rig r = rig_open();
	struct ibv_qp_ex *ex = extended(&r, OPERATIONS);
	post_receive(&r, 2);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 1;
	ibv_wr_rdma_write(ex, 0, 0);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 0, NULL);
	CHECK_INT(ibv_wr_complete(ex), 0);
	for (int left = 3; left; left--) {
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (wc.wr_id == 2)
			CHECK_INT(wc.byte_len, 0);
	}
	rig_close(&r);
}

/* Inline data is copied at once, and only SEND and WRITE have it. */
/*= WRX-05 type=test */
static void inline_data_is_copied_at_once(void)
{
	struct rig r = rig_open();
	struct ibv_qp_ex *ex = extended(&r, OPERATIONS);
	char text[] = "before";
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 1;
	ibv_wr_rdma_write(ex, r.mr->rkey, at(&r, 2048));
	ibv_wr_set_inline_data(ex, text, sizeof(text));
	memcpy(text, "behind", sizeof(text));
	CHECK_INT(ibv_wr_complete(ex), 0);
	expect(&r, 1, IBV_WC_RDMA_WRITE);
	CHECK(!strcmp(r.buffer + 2048, "before"));

	ibv_wr_start(ex);
	ibv_wr_rdma_read(ex, r.mr->rkey, at(&r, 2048));
	ibv_wr_set_inline_data(ex, text, sizeof(text));
	CHECK_INT(ibv_wr_complete(ex), EINVAL);
	char long_text[65] = { 0 };
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, r.mr->rkey, at(&r, 2048));
	ibv_wr_set_inline_data(ex, long_text, sizeof(long_text));
	CHECK_INT(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	struct ibv_data_buf list[2] = { { long_text, 33 }, { long_text, 32 } };
	ibv_wr_rdma_write(ex, r.mr->rkey, at(&r, 2048));
	ibv_wr_set_inline_data_list(ex, 2, list);
	CHECK_INT(ibv_wr_complete(ex), EINVAL);
	expect_nothing(&r);
	rig_close(&r);
}

static int write_word(struct rig *r, struct ibv_qp_ex *ex, uint64_t wr_id, int count)
{
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	for (int i = 0; i < count; i++) {
		ex->wr_id = wr_id + i;
		ibv_wr_rdma_write(ex, r->mr->rkey, at(r, 2048));
		ibv_wr_set_sge(ex, r->mr->lkey, at(r, 0), 8);
	}
	return ibv_wr_complete(ex);
}

/* An aborted batch leaves nothing behind, and the next batch may begin. */
/*= WRX-06 WRX-07 WRX-13 type=test */
static void an_aborted_batch_leaves_nothing(void)
{
	struct rig r = rig_open();
	/* SEND works although it was not requested. */
	struct ibv_qp_ex *ex = extended(&r, IBV_QP_EX_WITH_RDMA_WRITE);
	for (int round = 0; round < 40; round++) {
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(ex);
		ibv_wr_set_inline_data(ex, "lost", 4);
		ibv_wr_set_sge_list(ex, 99, NULL); /* abort discards an error too */
		ibv_wr_abort(ex);
	}
	CHECK_INT(write_word(&r, ex, 5, 1), 0);
	expect(&r, 5, IBV_WC_RDMA_WRITE);
	expect_nothing(&r);
	rig_close(&r);
}

/* A batch is accepted in the states in which ibv_post_send is, and flushed in the same states. */
/*= WRX-08 type=test */
static void states_decide_about_batches(void)
{
	struct rig r = rig_open();
	struct ibv_qp_ex *ex = create_qp_ex(r.context, r.pd, r.cq, OPERATIONS);
	struct ibv_qp *qp = &ex->qp_base;
	CHECK_INT(write_word(&r, ex, 1, 1), EINVAL);
	to_init(qp);
	CHECK_INT(write_word(&r, ex, 1, 1), EINVAL);
	to_rtr(qp, r.b->qp_num);
	CHECK_INT(write_word(&r, ex, 1, 1), EINVAL);
	to_rts(qp);
	to_error(qp);
	CHECK_INT(write_word(&r, ex, 1, 2), 0);
	for (uint64_t wr_id = 1; wr_id <= 2; wr_id++) {
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
		CHECK_INT(wc.wr_id, wr_id);
	}
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

/* A batch that does not fit into the queue is refused as a whole. */
/*= WRX-09 type=test */
static void a_batch_that_is_too_long_is_refused(void)
{
	struct rig r = rig_open();
	struct ibv_qp_ex *ex = extended(&r, OPERATIONS);
	CHECK_INT(write_word(&r, ex, 1, 17), ENOMEM);
	expect_nothing(&r);
	CHECK_INT(write_word(&r, ex, 1, 10), 0);
	CHECK_INT(write_word(&r, ex, 11, 7), ENOMEM);
	CHECK_INT(write_word(&r, ex, 11, 6), 0);
	for (uint64_t wr_id = 1; wr_id <= 16; wr_id++)
		expect(&r, wr_id, IBV_WC_RDMA_WRITE);
	expect_nothing(&r);
	CHECK_INT(write_word(&r, ex, 20, 16), 0);
	for (uint64_t wr_id = 20; wr_id < 36; wr_id++)
		expect(&r, wr_id, IBV_WC_RDMA_WRITE);
	rig_close(&r);
}

#define THREADS 4
#define ROUNDS 500

struct poster {
	struct rig *r;
	struct ibv_qp_ex *ex;
	uint64_t number;
	pthread_barrier_t *turn;
};

/* Posts batches of three and, alternately, chains of two with ibv_post_send. */
static void *post_both_ways(void *argument)
{
	struct poster *poster = argument;
	struct rig *r = poster->r;
	for (uint64_t round = 0; round < ROUNDS; round++) {
		uint64_t wr_id = poster->number << 32 | round << 8;
		pthread_barrier_wait(poster->turn);
		if ((round + poster->number) % 2) {
			CHECK_INT(write_word(r, poster->ex, wr_id, 3), 0);
		} else {
			struct ibv_sge sge = sge_at(r, 0, 8);
			struct ibv_send_wr *bad, wr[2] = { 0 };
			for (int i = 0; i < 2; i++) {
				wr[i].wr_id = wr_id + i;
				wr[i].sg_list = &sge;
				wr[i].num_sge = 1;
				wr[i].opcode = IBV_WR_RDMA_WRITE;
				wr[i].send_flags = IBV_SEND_SIGNALED;
				wr[i].wr.rdma.remote_addr = at(r, 2048);
				wr[i].wr.rdma.rkey = r->mr->rkey;
			}
			wr[0].next = &wr[1];
			CHECK_INT(ibv_post_send(r->a, wr, &bad), 0);
		}
	}
	return NULL;
}

/* Batches and chains of several threads do not interleave. */
/*= WRX-11 type=test */
static void threads_post_both_ways(void)
{
	struct rig r = rig_open();
	struct ibv_qp_ex *ex = extended(&r, OPERATIONS);
	pthread_barrier_t turn;
	pthread_t threads[THREADS];
	struct poster posters[THREADS];
	CHECK_INT(pthread_barrier_init(&turn, NULL, THREADS + 1), 0);
	for (uint64_t i = 0; i < THREADS; i++) {
		posters[i] = (struct poster){ &r, ex, i, &turn };
		CHECK_INT(pthread_create(&threads[i], NULL, post_both_ways, &posters[i]), 0);
	}
	for (uint64_t round = 0; round < ROUNDS; round++) {
		pthread_barrier_wait(&turn);
		/* Ten requests per round, which fit into the queue. */
		uint64_t expected = 0, left = 0;
		for (int i = 0; i < THREADS / 2 * 5; i++) {
			struct ibv_wc wc = next_completion(r.cq);
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			if (left) {
				CHECK_INT(wc.wr_id, expected);
			} else {
				CHECK_INT(wc.wr_id & 0xff, 0);
				CHECK_INT(wc.wr_id >> 8 & 0xffffff, round);
				left = (round + (wc.wr_id >> 32)) % 2 ? 3 : 2;
			}
			expected = wc.wr_id + 1;
			left--;
		}
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_INT(pthread_join(threads[i], NULL), 0);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "every_operation_in_one_batch", every_operation_in_one_batch },
		{ "a_request_without_data_is_empty", a_request_without_data_is_empty },
		{ "inline_data_is_copied_at_once", inline_data_is_copied_at_once },
		{ "an_aborted_batch_leaves_nothing", an_aborted_batch_leaves_nothing },
		{ "states_decide_about_batches", states_decide_about_batches },
		{ "a_batch_that_is_too_long_is_refused", a_batch_that_is_too_long_is_refused },
		{ "threads_post_both_ways", threads_post_both_ways },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
