/* Cross-channel on other transports and requests than RC sends, and its errors. */
#include "cross_channel.h"

#include <limits.h>

static struct ibv_qp *unreliable(struct rig *r, struct ibv_cq *send_cq, struct ibv_cq *recv_cq,
				 uint32_t flags)
{
	struct ibv_exp_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .cap = small_qp(send_cq).cap,
		.qp_type = IBV_QPT_UC, .pd = r->pd, .exp_create_flags = flags,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS,
	};
	struct ibv_qp *qp = ibv_exp_create_qp(r->context, &init);
	CHECK(qp);
	return qp;
}

static void connect_unreliable(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .ah_attr = path_to_self(qp->context),
	};
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN), 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

/* A master, a managed send queue and a managed receive queue, all of them UC. */
static void unreliable_queues_take_part(void)
{
	struct cross c = cross_open(0, 0);
	struct rig *r = &c.r;
	struct ibv_wc wc;
	struct ibv_qp *from = unreliable(r, r->cq, r->cq, MASTER | MANAGED_SEND);
	struct ibv_qp *to = unreliable(r, r->cq, c.recv_cq, MANAGED_RECV);
	struct ibv_qp *master = unreliable(r, c.master_cq, c.master_cq, MASTER);
	connect_unreliable(from, to->qp_num);
	connect_unreliable(to, from->qp_num);
	connect_unreliable(master, master->qp_num);
	uint64_t *numbers = (uint64_t *)r->buffer, *result = (uint64_t *)(r->buffer + 4096);
	for (int turn = 1; turn <= 20; turn++) {
		numbers[0] = htobe64(40), numbers[1] = htobe64(turn);
		struct ibv_sge in = sge_at(r, 0, 16), out = sge_at(r, 4096, 64);
		struct ibv_recv_wr recv = { .wr_id = 9, .sg_list = &out, .num_sge = 1 }, *bad;
		CHECK_INT(ibv_post_recv(to, &recv, &bad), 0);
		struct ibv_exp_send_wr sum =
			calc(&in, 1, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_UINT);
		CHECK_INT(post(from, sum), 0);
		CHECK_INT(ibv_poll_cq(r->cq, 1, &wc), 0);
		CHECK_INT(post(master, enable(IBV_EXP_WR_RECV_ENABLE, to, 0, LAST)), 0);
		CHECK_INT(post(master, enable(IBV_EXP_WR_SEND_ENABLE, from, 0, LAST)), 0);
		CHECK_INT(post(master, wait_for(c.recv_cq, 1, LAST | SIGNALED, turn)), 0);
		expect(c.master_cq, turn);
		wc = next_completion(c.recv_cq);
		CHECK_INT(wc.byte_len, 8);
		CHECK_INT(be64toh(*result), 40 + turn);
		expect(r->cq, 5);
	}
	/* UC accepts NOPs, but no requests that need a response. */
	struct ibv_exp_send_wr wr = { .wr_id = 3, .exp_opcode = IBV_EXP_WR_NOP, .exp_send_flags = SIGNALED };
	CHECK_INT(post(master, wr), 0);
	expect(c.master_cq, 3);
	struct ibv_sge in = sge_at(r, 0, 16);
	wr = calc(&in, 1, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_UINT);
	wr.exp_opcode = IBV_EXP_WR_RDMA_READ;
	CHECK_INT(post(master, wr), EINVAL);
	/* A wait that never ends is removed with its QP. */
	CHECK_INT(post(master, wait_for(c.recv_cq, 1, 0, 4)), 0);
	CHECK_INT(ibv_destroy_cq(c.recv_cq), EBUSY);
	to_error(master);
	wc = next_completion(c.master_cq);
	CHECK_INT(wc.wr_id, 4);
	CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK_INT(ibv_destroy_qp(from), 0);
	CHECK_INT(ibv_destroy_qp(to), 0);
	CHECK_INT(ibv_destroy_qp(master), 0);
	cross_close(&c);
}

/* A READ computes too: it reads as many elements as its list has room for, and writes their sum or
 * maximum. */
static void reads_compute(void)
{
	struct cross c = cross_open(MASTER, 0);
	struct rig *r = &c.r;
	uint64_t *there = (uint64_t *)(r->buffer + 4096), *here = (uint64_t *)r->buffer;
	struct ibv_sge list[2] = { sge_at(r, 0, 8), sge_at(r, 64, 40) };
	struct ibv_exp_send_wr wr = calc(list, 2, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_UINT);
	wr.exp_opcode = IBV_EXP_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)there;
	wr.wr.rdma.rkey = r->mr->rkey;
	for (int i = 0; i < 6; i++)
		there[i] = htobe64(100 + i), here[8 + i] = 0x5555;
	CHECK_INT(post(r->a, wr), 0);
	struct ibv_wc wc = next_completion(r->cq);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.opcode, IBV_WC_RDMA_READ);
	CHECK_INT(wc.byte_len, 8);
	CHECK_INT(be64toh(here[0]), 615);
	for (int i = 1; i < 5; i++)
		CHECK_INT(here[7 + i], 0x5555);
	/* With locations: three elements. The second is the greatest. */
	there[2] = htobe64(999);
	wr.op.calc.calc_op = IBV_EXP_CALC_OP_MAXLOC;
	wr.op.calc.data_size = IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC;
	CHECK_INT(post(r->a, wr), 0);
	wc = next_completion(r->cq);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.byte_len, 16);
	CHECK_INT(be64toh(here[0]), 999);
	CHECK_INT(be64toh(here[8]), 103);
	CHECK_INT(here[9], 0x5555);
	/* Doubles, and a READ of several packets. */
	double half = 0.5;
	uint64_t bits;
	memcpy(&bits, &half, 8);
	for (int i = 0; i < 512; i++)
		there[i] = htobe64(bits);
	list[0] = sge_at(r, 0, 4096);
	wr = calc(list, 1, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_FLOAT);
	wr.exp_opcode = IBV_EXP_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)there;
	wr.wr.rdma.rkey = r->mr->rkey;
	CHECK_INT(post(r->a, wr), 0);
	expect(r->cq, 5);
	bits = be64toh(here[0]);
	double sum;
	memcpy(&sum, &bits, 8);
	CHECK(sum == 256);
	/* Partial elements, empty lists and other operations fail without effect. */
	list[0].length = 4092;
	CHECK_INT(post(r->a, wr), EINVAL);
	wr.num_sge = 0;
	CHECK_INT(post(r->a, wr), EINVAL);
	list[0].length = 8, wr.num_sge = 1;
	wr.exp_opcode = IBV_EXP_WR_RDMA_WRITE_WITH_IMM;
	CHECK_INT(post(r->a, wr), EINVAL);
	wr.exp_opcode = IBV_EXP_WR_ATOMIC_FETCH_AND_ADD;
	CHECK_INT(post(r->a, wr), EINVAL);
	wr.exp_opcode = IBV_EXP_WR_RDMA_READ;
	wr.exp_send_flags |= IBV_EXP_SEND_INLINE;
	CHECK_INT(post(r->a, wr), EINVAL);
	/* Memory without read access is refused as usual. */
	wr.exp_send_flags &= ~(uint64_t)IBV_EXP_SEND_INLINE;
	wr.wr.rdma.rkey ^= 0x1234500;
	here[0] = 0x7777;
	CHECK_INT(post(r->a, wr), 0);
	CHECK_INT(next_completion(r->cq).status, IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(here[0], 0x7777);
	cross_close(&c);
}

static struct ibv_exp_send_wr nop(uint64_t wr_id, struct ibv_exp_send_wr *next)
{
	struct ibv_exp_send_wr wr = { .wr_id = wr_id, .next = next, .exp_opcode = IBV_EXP_WR_NOP,
				      .exp_send_flags = SIGNALED };
	return wr;
}

/* A list for several queues with an error in the middle: the requests before the error stay posted,
 * also in the wrong task. */
static void a_list_with_a_mistake(void)
{
	struct cross c = cross_open(MASTER, 0);
	struct rig *r = &c.r;
	struct ibv_exp_send_wr second = nop(2, NULL), first = nop(1, &second);
	struct ibv_exp_send_wr after = nop(5, NULL), wrong = nop(4, &after), third = nop(3, &wrong);
	wrong.exp_opcode = (enum ibv_exp_wr_opcode)0x99;
	struct ibv_exp_send_wr last = nop(6, NULL);
	struct ibv_sge sge = sge_at(r, 4096, 64);
	struct ibv_recv_wr recv = { .wr_id = 70, .sg_list = &sge, .num_sge = 1 };
	struct ibv_exp_task tasks[4] = {
		{ IBV_EXP_TASK_SEND, { .qp = c.master, { .send_wr = &first } }, tasks + 1, 0 },
		{ IBV_EXP_TASK_RECV, { .qp = r->b, { .recv_wr = &recv } }, tasks + 2, 0 },
		{ IBV_EXP_TASK_SEND, { .qp = r->a, { .send_wr = &third } }, tasks + 3, 0 },
		{ IBV_EXP_TASK_SEND, { .qp = c.master, { .send_wr = &last } }, NULL, 0 },
	}, *bad = NULL;
	CHECK_INT(ibv_exp_post_task(r->context, tasks, &bad), EINVAL);
	CHECK(bad == tasks + 2);
	expect(c.master_cq, 1);
	expect(c.master_cq, 2);
	expect(r->cq, 3);
	post_send(r, 20);
	expect(c.recv_cq, 70);
	expect(r->cq, 20);
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(c.master_cq, 1, &wc), 0);
	CHECK_INT(ibv_poll_cq(r->cq, 1, &wc), 0);
	/* Only posted requests move counters: of the two waits the second is refused. */
	struct ibv_exp_send_wr refused = wait_for(r->cq, 1, LAST, 8);
	struct ibv_exp_send_wr taken = wait_for(c.recv_cq, 1, LAST | SIGNALED, 7);
	taken.next = &refused;
	tasks[0].item.send_wr = &taken;
	CHECK_INT(ibv_exp_post_task(r->context, tasks, &bad), EINVAL);
	CHECK(bad == tasks);
	/* One completion was there before. */
	expect(c.master_cq, 7);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 1, LAST | SIGNALED, 9)), 0);
	CHECK_INT(ibv_poll_cq(c.master_cq, 1, &wc), 0);
	post_receive(r, 71);
	post_send(r, 21);
	expect(c.master_cq, 9);
	/* An empty list, a NULL QP, and a QP of another context. */
	CHECK_INT(ibv_exp_post_task(r->context, NULL, &bad), 0);
	tasks[0].item.qp = NULL;
	CHECK_INT(ibv_exp_post_task(r->context, tasks, &bad), EINVAL);
	tasks[0].item.qp = c.master;
	struct ibv_context *other = open_device();
	CHECK_INT(ibv_exp_post_task(other, tasks, &bad), EINVAL);
	CHECK_INT(ibv_close_device(other), 0);
	cross_close(&c);
}

enum { THREADS = 4, LISTS = 5 };

struct lister {
	struct cross *c;
	struct ibv_qp *masters[2];
	pthread_t thread;
	int number;
};

static void *post_lists(void *argument)
{
	struct lister *lister = argument;
	for (int list = 0; list < LISTS; list++) {
		struct ibv_exp_send_wr waits[2];
		struct ibv_exp_task tasks[2], *bad;
		for (int i = 0; i < 2; i++) {
			waits[i] = wait_for(lister->c->recv_cq, 1, LAST | SIGNALED,
					    (lister->number * LISTS + list) * 2 + i);
			tasks[i] = (struct ibv_exp_task){ IBV_EXP_TASK_SEND, { .qp = lister->masters[i] }, NULL, 0 };
			tasks[i].item.send_wr = waits + i;
		}
		tasks[0].next = tasks + 1;
		CHECK_INT(ibv_exp_post_task(lister->c->r.context, tasks, &bad), 0);
	}
	return NULL;
}

/* Several threads post lists to their own queues, which wait for one CQ. The counts of a list do
 * not mix with other lists. */
static void lists_are_posted_as_a_whole(void)
{
	struct cross c = cross_open(0, 0);
	struct lister listers[THREADS];
	for (int i = 0; i < THREADS; i++) {
		listers[i] = (struct lister){ .c = &c, .number = i };
		for (int m = 0; m < 2; m++) {
			struct ibv_qp *qp = cross_qp(c.r.pd, c.master_cq, c.master_cq, MASTER);
			connect_qp(qp, qp->qp_num);
			listers[i].masters[m] = qp;
		}
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_INT(pthread_create(&listers[i].thread, NULL, post_lists, listers + i), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_INT(pthread_join(listers[i].thread, NULL), 0);
	for (int pair = 0; pair < THREADS * LISTS; pair++) {
		uint64_t ids[2];
		for (int i = 0; i < 2; i++) {
			struct ibv_wc wc;
			CHECK_INT(ibv_poll_cq(c.master_cq, 1, &wc), 0);
			post_receive(&c.r, 1);
			post_send(&c.r, 2);
			wc = next_completion(c.master_cq);
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			ids[i] = wc.wr_id;
			expect(c.r.cq, 2);
			expect(c.recv_cq, 1);
		}
		CHECK_INT(ids[0] / 2, ids[1] / 2);
		CHECK_INT(ids[0] % 2, 0);
		CHECK_INT(ids[1] % 2, 1);
	}
	for (int i = 0; i < THREADS; i++)
		for (int m = 0; m < 2; m++)
			CHECK_INT(ibv_destroy_qp(listers[i].masters[m]), 0);
	cross_close(&c);
}

/* Queues that wait forever are flushed and destroyed like any others. */
static void deadlocks_are_the_programs_own(void)
{
	struct cross c = cross_open(0, 0);
	struct rig *r = &c.r;
	struct ibv_wc wc;
	/* The queue would have to execute the request that enables its own execution. */
	struct ibv_qp *self = cross_qp(r->pd, c.master_cq, c.master_cq, MASTER | MANAGED_SEND);
	connect_qp(self, self->qp_num);
	CHECK_INT(post(self, nop(1, NULL)), 0);
	CHECK_INT(post(self, enable(IBV_EXP_WR_SEND_ENABLE, self, 0, LAST)), 0);
	/* Two QPs that wait for each other. */
	struct ibv_cq *left_cq = waitable_cq(r->context, NULL), *right_cq = waitable_cq(r->context, NULL);
	struct ibv_qp *left = cross_qp(r->pd, left_cq, left_cq, MASTER);
	struct ibv_qp *right = cross_qp(r->pd, right_cq, right_cq, MASTER);
	connect_qp(left, left->qp_num);
	connect_qp(right, right->qp_num);
	CHECK_INT(post(left, wait_for(right_cq, 1, SIGNALED | LAST, 2)), 0);
	CHECK_INT(post(right, wait_for(left_cq, 1, SIGNALED | LAST, 3)), 0);
	/* A wait for the present count ends at once. A wait for more than ever comes does not
	 * end. */
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 0, SIGNALED, 4)), 0);
	expect(c.master_cq, 4);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, INT_MAX, SIGNALED, 5)), 0);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, INT_MIN, SIGNALED, 6)), EINVAL);
	post_receive(r, 10);
	post_send(r, 11);
	expect(r->cq, 11);
	CHECK_INT(ibv_poll_cq(c.master_cq, 1, &wc), 0);
	CHECK_INT(ibv_poll_cq(left_cq, 1, &wc), 0);
	CHECK_INT(ibv_poll_cq(right_cq, 1, &wc), 0);
	/* A CQ with waits cannot be destroyed. An error of one QP ends the other's wait. */
	CHECK_INT(ibv_destroy_cq(left_cq), EBUSY);
	to_error(left);
	wc = next_completion(left_cq);
	CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
	expect(right_cq, 3);
	to_error(self);
	for (int i = 0; i < 2; i++)
		CHECK_INT(next_completion(c.master_cq).status, IBV_WC_WR_FLUSH_ERR);
	/* Destroying a waiting QP releases the CQ. */
	struct ibv_cq *watched = waitable_cq(r->context, NULL);
	struct ibv_qp *waiting = cross_qp(r->pd, c.master_cq, c.master_cq, MASTER);
	connect_qp(waiting, waiting->qp_num);
	CHECK_INT(post(waiting, wait_for(watched, 1, 0, 7)), 0);
	CHECK_INT(ibv_destroy_cq(watched), EBUSY);
	CHECK_INT(ibv_destroy_qp(waiting), 0);
	CHECK_INT(ibv_destroy_cq(watched), 0);
	CHECK_INT(ibv_destroy_qp(self), 0);
	CHECK_INT(ibv_destroy_qp(left), 0);
	CHECK_INT(ibv_destroy_qp(right), 0);
	CHECK_INT(ibv_destroy_cq(left_cq), 0);
	CHECK_INT(ibv_destroy_cq(right_cq), 0);
	cross_close(&c);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "unreliable_queues_take_part", unreliable_queues_take_part },
		{ "reads_compute", reads_compute },
		{ "a_list_with_a_mistake", a_list_with_a_mistake },
		{ "lists_are_posted_as_a_whole", lists_are_posted_as_a_whole },
		{ "deadlocks_are_the_programs_own", deadlocks_are_the_programs_own },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
