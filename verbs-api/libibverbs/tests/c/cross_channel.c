/* QPs that wait for each other: no process posts or polls between the first request and the last
 * completion. */
#include "cross_channel.h"
#include "processes.h"

/* The example in the rules: bases and groups. */
static void waits_count_completions(void)
{
	struct cross c = cross_open(0, 0);
	struct ibv_wc wc;
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 1, SIGNALED, 1)), 0);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 2, SIGNALED, 2)), 0);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 1, SIGNALED | LAST, 3)), 0);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 1, SIGNALED, 4)), 0);
	CHECK_INT(ibv_poll_cq(c.master_cq, 1, &wc), 0);
	CHECK_INT(ibv_destroy_cq(c.recv_cq), EBUSY);
	for (int turn = 0; turn < 3; turn++) {
		post_receive(&c.r, 10);
		post_send(&c.r, 11);
		expect(c.r.cq, 11);
		/* No thread polls the CQ that the wait is for. */
		switch (turn) {
		case 0: expect(c.master_cq, 1); break;
		case 1: expect(c.master_cq, 2); expect(c.master_cq, 3); break;
		case 2: expect(c.master_cq, 4); break;
		}
		CHECK_INT(ibv_poll_cq(c.master_cq, 1, &wc), 0);
	}
	/* Errors complete too. A wait that never ends is removed with its QP. */
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 2, SIGNALED, 5)), 0);
	post_receive(&c.r, 12);
	to_error(c.r.b);
	expect(c.master_cq, 5);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 9, 0, 6)), 0);
	to_error(c.master);
	wc = next_completion(c.master_cq);
	CHECK_INT(wc.wr_id, 6);
	CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
	cross_close(&c);
}

static void managed_queues_execute_what_is_released(void)
{
	struct cross c = cross_open(MANAGED_SEND, MASTER | MANAGED_RECV);
	struct ibv_wc wc;
	for (int i = 0; i < 3; i++) {
		post_receive(&c.r, 10 + i);
		post_send(&c.r, 20 + i);
	}
	CHECK_INT(ibv_poll_cq(c.r.cq, 1, &wc), 0);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_RECV_ENABLE, c.r.b, 3, LAST)), 0);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.a, 2, 0)), 0);
	expect(c.r.cq, 20);
	expect(c.r.cq, 21);
	expect(c.recv_cq, 10);
	expect(c.recv_cq, 11);
	CHECK_INT(ibv_poll_cq(c.r.cq, 1, &wc), 0);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.a, 3, SIGNALED | LAST)), 0);
	expect(c.master_cq, 7);
	expect(c.r.cq, 22);
	/* There are 4 in all, and the base is 3. */
	post_receive(&c.r, 13);
	post_send(&c.r, 23);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.a, 2, 0)), EINVAL);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.a, 0, LAST)), 0);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.a, 1, 0)), EINVAL);
	/* An unreleased receive counts as absent, so the sender waits. */
	expect(c.recv_cq, 12);
	CHECK_INT(ibv_poll_cq(c.recv_cq, 1, &wc), 0);
	/* A QP enables its own receives. */
	CHECK_INT(post(c.r.b, enable(IBV_EXP_WR_RECV_ENABLE, c.r.b, 0, 0)), 0);
	expect(c.recv_cq, 13);
	expect(c.r.cq, 23);
	/* Enabled, but its QP is destroyed. */
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 5, 0, 1)), 0);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.a, 0, SIGNALED)), 0);
	CHECK_INT(ibv_destroy_qp(c.r.a), 0);
	post_receive(&c.r, 14);
	to_error(c.r.b);
	expect(c.master_cq, 7);
	c.r.a = cross_qp(c.r.pd, c.r.cq, c.r.cq, 0);
	cross_close(&c);
}

static void mistakes_are_refused(void)
{
	struct cross c = cross_open(MANAGED_SEND, 0);
	/* No master, no waitable CQ, no managed queue, negative counts. */
	CHECK_INT(post(c.r.a, wait_for(c.recv_cq, 1, 0, 1)), EINVAL);
	CHECK_INT(post(c.master, wait_for(c.r.cq, 1, 0, 1)), EINVAL);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, -1, 0, 1)), EINVAL);
	CHECK_INT(post(c.master, wait_for(NULL, 1, 0, 1)), EINVAL);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_RECV_ENABLE, c.r.b, 0, 0)), EINVAL);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.b, 0, 0)), EINVAL);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.a, -1, 0)), EINVAL);
	struct ibv_exp_cq_init_attr attr = { .comp_mask = 2 };
	CHECK(!ibv_exp_create_cq(c.r.context, 8, NULL, NULL, 0, &attr) && errno == EINVAL);
	attr.comp_mask = IBV_EXP_CQ_INIT_ATTR_FLAGS, attr.flags = 2;
	CHECK(!ibv_exp_create_cq(c.r.context, 8, NULL, NULL, 0, &attr) && errno == EINVAL);
	struct ibv_cq *cq = ibv_exp_create_cq(c.r.context, 8, NULL, NULL, 0, NULL);
	CHECK(cq);
	struct ibv_exp_cq_attr change = { .cq_cap_flags = IBV_EXP_CQ_IGNORE_OVERRUN };
	CHECK_INT(ibv_exp_modify_cq(cq, &change, IBV_EXP_CQ_CAP_FLAGS), EINVAL);
	CHECK_INT(ibv_exp_modify_cq(cq, &change, 4), EINVAL);
	change.comp_mask = IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS;
	CHECK_INT(ibv_exp_modify_cq(cq, &change, IBV_EXP_CQ_CAP_FLAGS), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = c.r.cq, .recv_cq = c.r.cq, .qp_type = IBV_QPT_UD, .pd = c.r.pd,
		.cap = small_qp(c.r.cq).cap, .exp_create_flags = MASTER,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS,
	};
	CHECK(!ibv_exp_create_qp(c.r.context, &init) && errno == EINVAL);
	/* The tasks before a wrong one stay posted. */
	struct ibv_exp_send_wr nop = { .wr_id = 1, .exp_opcode = IBV_EXP_WR_NOP,
				       .exp_send_flags = SIGNALED };
	struct ibv_exp_task tasks[3] = {
		{ .task_type = IBV_EXP_TASK_SEND, .item = { .qp = c.master, .send_wr = &nop }, .next = tasks + 1 },
		{ .task_type = 2, .item = { .qp = c.master, .send_wr = &nop }, .next = tasks + 2 },
		{ .task_type = IBV_EXP_TASK_SEND, .item = { .qp = c.master, .send_wr = &nop } },
	}, *bad = NULL;
	CHECK_INT(ibv_exp_post_task(c.r.context, tasks, &bad), EINVAL);
	CHECK(bad == tasks + 1);
	expect(c.master_cq, 1);
	tasks[1].task_type = IBV_EXP_TASK_SEND, tasks[1].comp_mask = 1;
	CHECK_INT(ibv_exp_post_task(c.r.context, tasks + 1, &bad), EINVAL);
	CHECK(bad == tasks + 1);
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(c.master_cq, 1, &wc), 0);
	cross_close(&c);
}

static void sends_compute(void)
{
	struct cross c = cross_open(MASTER, 0);
	uint64_t *numbers = (uint64_t *)c.r.buffer;
	uint64_t *result = (uint64_t *)(c.r.buffer + 4096);
	static const struct {
		enum ibv_exp_calc_op op;
		enum ibv_exp_calc_data_type type;
		uint64_t result;
	} cases[] = {
		{ IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_UINT, 0xf0 + 0x3c + 0x11 },
		{ IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_INT, 0xf0 + 0x3c + 0x11 },
		{ IBV_EXP_CALC_OP_MAXLOC, IBV_EXP_CALC_DATA_TYPE_UINT, 0xf0 },
		{ IBV_EXP_CALC_OP_BAND, IBV_EXP_CALC_DATA_TYPE_INT, 0xf0 & 0x3c & 0x11 },
		{ IBV_EXP_CALC_OP_BOR, IBV_EXP_CALC_DATA_TYPE_UINT, 0xf0 | 0x3c | 0x11 },
		{ IBV_EXP_CALC_OP_BXOR, IBV_EXP_CALC_DATA_TYPE_FLOAT, 0xf0 ^ 0x3c ^ 0x11 },
	};
	struct ibv_sge list[2] = { sge_at(&c.r, 0, 16), sge_at(&c.r, 32, 8) };
	numbers[0] = htobe64(0xf0), numbers[1] = htobe64(0x3c), numbers[4] = htobe64(0x11);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		post_receive(&c.r, 9);
		CHECK_INT(post(c.r.a, calc(list, 2, cases[i].op, cases[i].type)), 0);
		struct ibv_wc wc = next_completion(c.recv_cq);
		CHECK_INT(wc.byte_len, 8);
		CHECK_INT(be64toh(*result), cases[i].result);
		expect(c.r.cq, 5);
	}
	double halves[3] = { 0.5, -2.25, 100 };
	for (int i = 0; i < 3; i++) {
		uint64_t bits;
		memcpy(&bits, halves + i, 8);
		numbers[i == 2 ? 4 : i] = htobe64(bits);
	}
	post_receive(&c.r, 9);
	CHECK_INT(post(c.r.a, calc(list, 2, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_FLOAT)), 0);
	expect(c.recv_cq, 9);
	expect(c.r.cq, 5);
	uint64_t bits = be64toh(*result);
	double sum;
	memcpy(&sum, &bits, 8);
	CHECK(sum == 98.25);
	/* With a location: the index of the greatest element. */
	for (int i = 0; i < 4; i++)
		numbers[2 * i] = htobe64(i == 2 ? 50 : i), numbers[2 * i + 1] = htobe64(100 + i);
	struct ibv_sge all = sge_at(&c.r, 0, 64);
	struct ibv_exp_send_wr wr = calc(&all, 1, IBV_EXP_CALC_OP_MAXLOC, IBV_EXP_CALC_DATA_TYPE_UINT);
	wr.op.calc.data_size = IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC;
	post_receive(&c.r, 9);
	CHECK_INT(post(c.r.a, wr), 0);
	CHECK_INT(next_completion(c.recv_cq).byte_len, 16);
	expect(c.r.cq, 5);
	CHECK_INT(be64toh(result[0]), 50);
	CHECK_INT(be64toh(result[1]), 102);
	/* Unsupported requests. */
	CHECK_INT(post(c.r.b, calc(list, 2, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_UINT)), EINVAL);
	CHECK_INT(post(c.r.a, calc(list, 2, IBV_EXP_CALC_OP_MAXLOC, IBV_EXP_CALC_DATA_TYPE_INT)), EINVAL);
	CHECK_INT(post(c.r.a, calc(list, 2, IBV_EXP_CALC_OP_NUMBER, IBV_EXP_CALC_DATA_TYPE_INT)), EINVAL);
	list[1].length = 7;
	CHECK_INT(post(c.r.a, calc(list, 2, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_UINT)), EINVAL);
	wr.exp_opcode = IBV_EXP_WR_RDMA_WRITE_WITH_IMM;
	CHECK_INT(post(c.r.a, wr), EINVAL);
	struct ibv_exp_device_attr device = { .comp_mask = IBV_EXP_DEVICE_ATTR_CALC_CAP |
							  IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS };
	CHECK_INT(ibv_exp_query_device(c.r.context, &device), 0);
	CHECK(device.exp_device_cap_flags & IBV_EXP_DEVICE_CROSS_CHANNEL);
	CHECK_INT(device.calc_cap.int_ops, 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4);
	CHECK_INT(device.calc_cap.uint_ops, 31);
	CHECK_INT(device.calc_cap.data_types, 7);
	CHECK_INT(device.calc_cap.data_sizes, 1);
	cross_close(&c);
}

/* A CQ that only waits consume does not overrun, and a queue without polling does not fill up. */
static void without_polling(void)
{
	struct cross c = cross_open(IBV_EXP_QP_CREATE_IGNORE_SQ_OVERFLOW,
				    IBV_EXP_QP_CREATE_IGNORE_RQ_OVERFLOW);
	struct ibv_exp_cq_attr change = { .comp_mask = IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS,
					  .cq_cap_flags = IBV_EXP_CQ_IGNORE_OVERRUN };
	CHECK_INT(ibv_exp_modify_cq(c.recv_cq, &change, IBV_EXP_CQ_CAP_FLAGS), 0);
	CHECK_INT(ibv_exp_modify_cq(c.r.cq, &change, IBV_EXP_CQ_CAP_FLAGS), 0);
	for (int turn = 0; turn < 1000; turn++) {
		post_receive(&c.r, 1);
		post_send(&c.r, 2);
		CHECK_INT(post(c.master, wait_for(c.recv_cq, 1, SIGNALED | LAST, turn)), 0);
		expect(c.master_cq, turn);
	}
	CHECK_INT(c.r.b->state, IBV_QPS_RTS);
	cross_close(&c);
}

enum { PROCESSES = 8, ROUNDS = 3, REPEATS = 20 };

/* Shared memory of the processes: counters, and the numbers of their QPs. */
struct meeting {
	pthread_barrier_t barrier;
	uint32_t qp_num[PROCESSES][ROUNDS];
	int entered[REPEATS];
};

static struct ibv_recv_wr receive_into(struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = { .wr_id = 3, .sg_list = sge, .num_sge = 1 };
	return wr;
}

/* In each round, a process sends to the process whose number differs in that bit. It sends the sum
 * of all earlier rounds, which the send computes. The last send goes to itself. The process posts
 * the requests of all rounds at once, then sleeps. */
static void allreduce(struct meeting *meeting, int self, int is_sum)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(pd && channel);
	uint64_t *memory = calloc(16, 8); /* own value, received value of each round, result */
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 128, IBV_ACCESS_LOCAL_WRITE);
	CHECK(memory && mr);
	struct ibv_cq *send_cq = waitable_cq(context, NULL);
	struct ibv_cq *master_cq = waitable_cq(context, channel);
	struct ibv_cq *recv_cq[ROUNDS + 1];
	struct ibv_qp *qp[ROUNDS + 1];
	for (int round = 0; round <= ROUNDS; round++) {
		recv_cq[round] = waitable_cq(context, NULL);
		qp[round] = cross_qp(pd, send_cq, recv_cq[round], MASTER | MANAGED_SEND);
		if (round < ROUNDS)
			meeting->qp_num[self][round] = qp[round]->qp_num;
	}
	struct ibv_qp *master = cross_qp(pd, master_cq, master_cq, MASTER);
	pthread_barrier_wait(&meeting->barrier);
	for (int round = 0; round < ROUNDS; round++)
		connect_qp(qp[round], meeting->qp_num[self ^ 1 << round][round]);
	connect_qp(qp[ROUNDS], qp[ROUNDS]->qp_num);
	connect_qp(master, master->qp_num);
	pthread_barrier_wait(&meeting->barrier);
	for (int turn = 0; turn < REPEATS; turn++) {
		struct ibv_sge into[ROUNDS + 1], from[ROUNDS + 1];
		struct ibv_recv_wr receives[ROUNDS + 1];
		struct ibv_exp_send_wr sends[ROUNDS + 1], enables[ROUNDS + 1], waits[ROUNDS + 1];
		struct ibv_exp_task tasks[4 * (ROUNDS + 1)], *next = tasks, *bad = NULL;
		memory[0] = htobe64((uint64_t)(self + 1) * (turn + 1));
		for (int round = 0; round <= ROUNDS; round++) {
			into[round] = (struct ibv_sge){ (uintptr_t)(memory + 1 + round), 8, mr->lkey };
			from[round] = (struct ibv_sge){ (uintptr_t)memory, 8 * (round + 1), mr->lkey };
			receives[round] = receive_into(into + round);
			sends[round] = calc(from + round, 1, is_sum ? IBV_EXP_CALC_OP_ADD : IBV_EXP_CALC_OP_MAXLOC,
					    IBV_EXP_CALC_DATA_TYPE_UINT);
			enables[round] = enable(IBV_EXP_WR_SEND_ENABLE, qp[round], 0, LAST);
			waits[round] = wait_for(recv_cq[round], 1,
						round == ROUNDS ? LAST | SIGNALED : LAST, turn);
			*next = (struct ibv_exp_task){ IBV_EXP_TASK_RECV, { .qp = qp[round] }, next + 1, 0 };
			next++->item.recv_wr = receives + round;
			*next = (struct ibv_exp_task){ IBV_EXP_TASK_SEND, { .qp = qp[round] }, next + 1, 0 };
			next++->item.send_wr = sends + round;
			*next = (struct ibv_exp_task){ IBV_EXP_TASK_SEND, { .qp = master }, next + 1, 0 };
			next++->item.send_wr = enables + round;
			*next = (struct ibv_exp_task){ IBV_EXP_TASK_SEND, { .qp = master }, next + 1, 0 };
			next++->item.send_wr = waits + round;
		}
		next[-1].next = NULL;
		CHECK_INT(ibv_req_notify_cq(master_cq, 0), 0);
		__atomic_add_fetch(&meeting->entered[turn], 1, __ATOMIC_SEQ_CST);
		CHECK_INT(ibv_exp_post_task(context, tasks, &bad), 0);
		struct ibv_cq *cq;
		void *unused;
		CHECK_INT(ibv_get_cq_event(channel, &cq, &unused), 0);
		ibv_ack_cq_events(cq, 1);
		expect(master_cq, turn);
		/* No process leaves before all have entered. */
		CHECK_INT(__atomic_load_n(&meeting->entered[turn], __ATOMIC_SEQ_CST), PROCESSES);
		uint64_t all = is_sum ? PROCESSES * (PROCESSES + 1) / 2 : PROCESSES;
		CHECK_INT(be64toh(memory[1 + ROUNDS]), all * (turn + 1));
		/* The memory belongs to the sends until they complete. A process that has received
		 * all may not have sent all. */
		for (int round = 0; round <= ROUNDS; round++) {
			expect(send_cq, 5);
			expect(recv_cq[round], 3);
		}
	}
	pthread_barrier_wait(&meeting->barrier);
	CHECK_INT(ibv_destroy_qp(master), 0);
	for (int round = 0; round <= ROUNDS; round++) {
		CHECK_INT(ibv_destroy_qp(qp[round]), 0);
		CHECK_INT(ibv_destroy_cq(recv_cq[round]), 0);
	}
	CHECK_INT(ibv_destroy_cq(master_cq), 0);
	CHECK_INT(ibv_destroy_cq(send_cq), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK_INT(ibv_destroy_comp_channel(channel), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK_INT(ibv_close_device(context), 0);
	free(memory);
}

static void sum_up(void *meeting, int self)
{
	allreduce(meeting, self, 1);
}

static void find_the_greatest(void *meeting, int self)
{
	allreduce(meeting, self, 0);
}

static void eight_processes_sum_up_by_udp(void)
{
	in_processes(PROCESSES, "udp", sizeof(struct meeting), sum_up);
}

static void eight_processes_sum_up_by_shm(void)
{
	in_processes(PROCESSES, "shm", sizeof(struct meeting), sum_up);
}

static void eight_processes_find_the_greatest(void)
{
	in_processes(PROCESSES, "auto", sizeof(struct meeting), find_the_greatest);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "waits_count_completions", waits_count_completions },
		{ "managed_queues_execute_what_is_released", managed_queues_execute_what_is_released },
		{ "mistakes_are_refused", mistakes_are_refused },
		{ "sends_compute", sends_compute },
		{ "without_polling", without_polling },
		{ "eight_processes_sum_up_by_udp", eight_processes_sum_up_by_udp },
		{ "eight_processes_sum_up_by_shm", eight_processes_sum_up_by_shm },
		{ "eight_processes_find_the_greatest", eight_processes_find_the_greatest },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
