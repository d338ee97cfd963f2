/* Processes that synchronize with features that no other software NIC has. One case is a barrier of
 * cross-channel tasks. The other is a lock by masked atomics, around a counter in the memory of a
 * process that does not count. */
#include "cross_channel.h"
#include "processes.h"

#include <sched.h>

enum { PROCESSES = 8, ROUNDS = 3, TURNS = 16, COUNTS = 20 };

/* Shared memory of the processes. */
struct meeting {
	pthread_barrier_t barrier;
	/* The barrier: the QP numbers to send to and to receive from, in each round. */
	uint32_t to[PROCESSES][ROUNDS], from[PROCESSES][ROUNDS];
	int entered[TURNS], left[TURNS];
	/* The lock: the QP numbers of its owner and of the contenders, and its key and address. */
	uint32_t owner[PROCESSES], contender[PROCESSES], rkey;
	uint64_t lock;
};

static int fetch(int *counter)
{
	return __atomic_load_n(counter, __ATOMIC_SEQ_CST);
}

static int add_one(int *counter)
{
	return __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
}

/* A process of the barrier. In each round it notifies the process 2^round further that all before
 * it have arrived. It posts everything at once, then sleeps until the last wait ends. */
static void meet(void *shared, int self)
{
	struct meeting *meeting = shared;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(pd && channel);
	struct ibv_cq *send_cq = waitable_cq(context, NULL), *recv_cq[ROUNDS];
	struct ibv_cq *master_cq = waitable_cq(context, channel);
	struct ibv_qp *to[ROUNDS], *from[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		recv_cq[round] = waitable_cq(context, NULL);
		to[round] = cross_qp(pd, send_cq, send_cq, MANAGED_SEND);
		from[round] = cross_qp(pd, send_cq, recv_cq[round], 0);
		meeting->to[self][round] = to[round]->qp_num;
		meeting->from[self][round] = from[round]->qp_num;
	}
	struct ibv_qp *master = cross_qp(pd, master_cq, master_cq, MASTER);
	connect_qp(master, master->qp_num);
	pthread_barrier_wait(&meeting->barrier);
	for (int round = 0; round < ROUNDS; round++) {
		connect_qp(to[round], meeting->from[(self + (1 << round)) % PROCESSES][round]);
		connect_qp(from[round],
			   meeting->to[(self + PROCESSES - (1 << round)) % PROCESSES][round]);
	}
	pthread_barrier_wait(&meeting->barrier);
	for (int turn = 0; turn < TURNS; turn++) {
		struct ibv_recv_wr receive = { .wr_id = 3 };
		struct ibv_exp_send_wr send = { .wr_id = 4, .exp_opcode = IBV_EXP_WR_SEND,
						.exp_send_flags = SIGNALED };
		struct ibv_exp_send_wr enables[ROUNDS], waits[ROUNDS];
		struct ibv_exp_task tasks[4 * ROUNDS], *next = tasks, *bad = NULL;
		for (int round = 0; round < ROUNDS; round++) {
			enables[round] = enable(IBV_EXP_WR_SEND_ENABLE, to[round], 0, LAST);
			waits[round] = wait_for(recv_cq[round], 1,
						round == ROUNDS - 1 ? LAST | SIGNALED : LAST, turn);
			*next = (struct ibv_exp_task){ IBV_EXP_TASK_RECV, { .qp = from[round] }, next + 1, 0 };
			next++->item.recv_wr = &receive;
			*next = (struct ibv_exp_task){ IBV_EXP_TASK_SEND, { .qp = to[round] }, next + 1, 0 };
			next++->item.send_wr = &send;
			*next = (struct ibv_exp_task){ IBV_EXP_TASK_SEND, { .qp = master }, next + 1, 0 };
			next++->item.send_wr = enables + round;
			*next = (struct ibv_exp_task){ IBV_EXP_TASK_SEND, { .qp = master }, next + 1, 0 };
			next++->item.send_wr = waits + round;
		}
		next[-1].next = NULL;
		/* Each process is late once: all others have entered, and none has left. */
		if (turn % PROCESSES == self) {
			while (fetch(&meeting->entered[turn]) < PROCESSES - 1)
				sched_yield();
			CHECK_INT(fetch(&meeting->left[turn]), 0);
		}
		CHECK_INT(ibv_req_notify_cq(master_cq, 0), 0);
		add_one(&meeting->entered[turn]);
		CHECK_INT(ibv_exp_post_task(context, tasks, &bad), 0);
		struct ibv_cq *cq;
		void *unused;
		CHECK_INT(ibv_get_cq_event(channel, &cq, &unused), 0);
		ibv_ack_cq_events(cq, 1);
		add_one(&meeting->left[turn]);
		CHECK_INT(fetch(&meeting->entered[turn]), PROCESSES);
		expect(master_cq, turn);
		for (int round = 0; round < ROUNDS; round++) {
			expect(recv_cq[round], 3);
			expect(send_cq, 4);
		}
	}
	pthread_barrier_wait(&meeting->barrier);
	CHECK_INT(ibv_destroy_qp(master), 0);
	for (int round = 0; round < ROUNDS; round++) {
		CHECK_INT(ibv_destroy_qp(to[round]), 0);
		CHECK_INT(ibv_destroy_qp(from[round]), 0);
		CHECK_INT(ibv_destroy_cq(recv_cq[round]), 0);
	}
	CHECK_INT(ibv_destroy_cq(master_cq), 0);
	CHECK_INT(ibv_destroy_cq(send_cq), 0);
	CHECK_INT(ibv_destroy_comp_channel(channel), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK_INT(ibv_close_device(context), 0);
}

/* The lock is bit 0 of a word. Bits 8 to 15 have the holder's number, and the bits above belong to
 * other users. At offset GUARDED is the counter that the lock guards, which is read and then
 * written. */
#define HELD 1ULL
#define HOLDER 0xff00ULL
#define OTHERS 0xabcdef0000000000ULL

enum { GUARDED = 64 };

static struct ibv_qp *masked_qp(struct rig *r)
{
	struct ibv_exp_qp_init_attr init = {
		.send_cq = r->cq, .recv_cq = r->cq, .cap = small_qp(r->cq).cap, .qp_type = IBV_QPT_RC,
		.pd = r->pd, .max_atomic_arg = 8,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG,
	};
	struct ibv_qp *qp = ibv_exp_create_qp(r->context, &init);
	CHECK(qp);
	return qp;
}

/* The owner of the memory, which does not take the lock. */
static void own(struct meeting *meeting)
{
	struct rig r = rig_open();
	uint64_t *words = (uint64_t *)r.buffer;
	struct ibv_qp *qps[PROCESSES];
	words[0] = OTHERS;
	meeting->lock = (uintptr_t)r.buffer;
	meeting->rkey = r.mr->rkey;
	for (int i = 0; i < PROCESSES; i++) {
		qps[i] = masked_qp(&r);
		meeting->owner[i] = qps[i]->qp_num;
	}
	pthread_barrier_wait(&meeting->barrier);
	for (int i = 0; i < PROCESSES; i++)
		connect_qp(qps[i], meeting->contender[i]);
	pthread_barrier_wait(&meeting->barrier);
	/* The contenders count. */
	pthread_barrier_wait(&meeting->barrier);
	CHECK_INT(words[GUARDED / 8], PROCESSES * COUNTS);
	CHECK((words[0] & ~HOLDER) == OTHERS);
	for (int i = 0; i < PROCESSES; i++)
		CHECK_INT(ibv_destroy_qp(qps[i]), 0);
	rig_close(&r);
}

/* Executes a request whose data or result are the first 8 bytes of the buffer. Returns these bytes
 * afterwards. */
static uint64_t carry_out(struct rig *r, struct ibv_qp *qp, struct ibv_exp_send_wr wr)
{
	struct ibv_sge sge = sge_at(r, 0, 8);
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.exp_send_flags |= SIGNALED;
	CHECK_INT(post(qp, wr), 0);
	CHECK_INT(next_completion(r->cq).status, IBV_WC_SUCCESS);
	return *(uint64_t *)r->buffer;
}

static uint64_t swap(struct rig *r, struct ibv_qp *qp, struct meeting *meeting, struct ibv_exp_cmp_swap operands)
{
	struct ibv_exp_send_wr wr = { .exp_opcode = IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP,
				      .exp_send_flags = IBV_EXP_SEND_EXT_ATOMIC_INLINE };
	wr.ext_op.masked_atomics.log_arg_sz = 3;
	wr.ext_op.masked_atomics.remote_addr = meeting->lock;
	wr.ext_op.masked_atomics.rkey = meeting->rkey;
	wr.ext_op.masked_atomics.wr_data.inline_data.op.cmp_swap = operands;
	return carry_out(r, qp, wr);
}

static void contend(struct meeting *meeting, int self)
{
	struct rig r = rig_open();
	struct ibv_qp *qp = masked_qp(&r);
	meeting->contender[self] = qp->qp_num;
	pthread_barrier_wait(&meeting->barrier);
	connect_qp(qp, meeting->owner[self]);
	pthread_barrier_wait(&meeting->barrier);
	uint64_t name = (uint64_t)(self + 1) << 8;
	struct ibv_exp_cmp_swap take = { .compare_mask = HELD, .compare_val = 0, .swap_val = HELD | name,
					 .swap_mask = HELD | HOLDER };
	/* Only the holder can release the lock. */
	struct ibv_exp_cmp_swap give = { .compare_mask = HELD | HOLDER, .compare_val = HELD | name,
					 .swap_val = 0, .swap_mask = HELD };
	struct ibv_exp_send_wr guarded = {
		.wr.rdma = { .remote_addr = meeting->lock + GUARDED, .rkey = meeting->rkey },
	};
	for (int count = 0; count < COUNTS; count++) {
		while (swap(&r, qp, meeting, take) & HELD)
			sched_yield();
		guarded.exp_opcode = IBV_EXP_WR_RDMA_READ;
		uint64_t counter = carry_out(&r, qp, guarded);
		*(uint64_t *)r.buffer = counter + 1;
		guarded.exp_opcode = IBV_EXP_WR_RDMA_WRITE;
		carry_out(&r, qp, guarded);
		uint64_t before = swap(&r, qp, meeting, give);
		CHECK((before & (HELD | HOLDER)) == (HELD | name));
		CHECK((before & ~(HELD | HOLDER)) == OTHERS);
	}
	pthread_barrier_wait(&meeting->barrier);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

static void play_a_part(void *meeting, int self)
{
	if (self == PROCESSES)
		own(meeting);
	else
		contend(meeting, self);
}

static void a_barrier_of_eight_by_udp(void)
{
	in_processes(PROCESSES, "udp", sizeof(struct meeting), meet);
}

static void a_barrier_of_eight_by_shm(void)
{
	in_processes(PROCESSES, "shm", sizeof(struct meeting), meet);
}

static void a_lock_of_eight_by_udp(void)
{
	in_processes(PROCESSES + 1, "udp", sizeof(struct meeting), play_a_part);
}

static void a_lock_of_eight_by_shm(void)
{
	in_processes(PROCESSES + 1, "shm", sizeof(struct meeting), play_a_part);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_barrier_of_eight_by_udp", a_barrier_of_eight_by_udp },
		{ "a_barrier_of_eight_by_shm", a_barrier_of_eight_by_shm },
		{ "a_lock_of_eight_by_udp", a_lock_of_eight_by_udp },
		{ "a_lock_of_eight_by_shm", a_lock_of_eight_by_shm },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
