/* Several threads of a process, each with a connection and a completion queue of its own, send to
 * their peers in turn. */
#include "processes.h"

#include <stdbool.h>
#include <time.h>

enum { MOST_THREADS = 8, LENGTH = 64 };

struct shared {
	pthread_barrier_t barrier;
	uint32_t qp_num[2][MOST_THREADS];
};

struct worker {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char buffer[2 * LENGTH];
	int self;
	pthread_t thread;
};

static int thread_count;
static bool waits;

/* Messages of each thread. */
static int rounds(void)
{
	const char *wanted = getenv("ROCADE_TEST_ROUNDS");
	return wanted ? atoi(wanted) : 200;
}

static void receive_next(struct worker *w)
{
	struct ibv_sge sge = { (uintptr_t)w->buffer, LENGTH, w->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(w->qp, &wr, &bad), 0);
}

static void send_next(struct worker *w)
{
	struct ibv_sge sge = { (uintptr_t)w->buffer + LENGTH, LENGTH, w->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK_INT(ibv_post_send(w->qp, &wr, &bad), 0);
}

static void wait_for_event(struct worker *w)
{
	struct ibv_cq *cq;
	void *context;
	CHECK_INT(ibv_get_cq_event(w->channel, &cq, &context), 0);
	CHECK(cq == w->cq);
	ibv_ack_cq_events(cq, 1);
	CHECK_INT(ibv_req_notify_cq(w->cq, 0), 0);
}

static void *work(void *argument)
{
	struct worker *w = argument;
	int received = 0, sent = 0, all = rounds();
	CHECK_INT(ibv_req_notify_cq(w->cq, 0), 0);
	if (!w->self)
		send_next(w);
	while (received < all || sent < all) {
		struct ibv_wc wc;
		int count = ibv_poll_cq(w->cq, 1, &wc);
		CHECK(count >= 0);
		if (!count && waits)
			wait_for_event(w);
		if (!count)
			continue;
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode != IBV_WC_RECV) {
			sent++;
			continue;
		}
		receive_next(w);
		received++;
		if (w->self || received < all)
			send_next(w);
	}
	return NULL;
}

static void open_worker(struct worker *w, struct ibv_context *context, struct ibv_pd *pd)
{
	w->channel = ibv_create_comp_channel(context);
	CHECK(w->channel);
	w->cq = ibv_create_cq(context, 64, NULL, w->channel, 0);
	CHECK(w->cq);
	struct ibv_qp_init_attr init = small_qp(w->cq);
	w->qp = ibv_create_qp(pd, &init);
	w->mr = ibv_reg_mr(pd, w->buffer, sizeof(w->buffer), IBV_ACCESS_LOCAL_WRITE);
	CHECK(w->qp && w->mr);
}

static double now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void process(void *memory, int self)
{
	struct shared *shared = memory;
	struct worker *workers = calloc(thread_count, sizeof(*workers));
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(workers && pd);
	for (int i = 0; i < thread_count; i++) {
		workers[i].self = self;
		open_worker(&workers[i], context, pd);
		shared->qp_num[self][i] = workers[i].qp->qp_num;
	}
	pthread_barrier_wait(&shared->barrier);
	for (int i = 0; i < thread_count; i++) {
		connect_qp(workers[i].qp, shared->qp_num[!self][i]);
		for (int n = 0; n < 4; n++)
			receive_next(&workers[i]);
	}
	pthread_barrier_wait(&shared->barrier);
	double begin = now_us();
	for (int i = 0; i < thread_count; i++)
		CHECK_INT(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	for (int i = 0; i < thread_count; i++)
		CHECK_INT(pthread_join(workers[i].thread, NULL), 0);
	double took = now_us() - begin;
	if (!self && getenv("ROCADE_TEST_ROUNDS"))
		printf("%d threads %s: %.1f us for a message of each\n", thread_count,
		       waits ? "wait" : "poll", took / rounds() / 2);
	pthread_barrier_wait(&shared->barrier);
}

static void run(const char *link, bool wait)
{
	waits = wait;
	for (thread_count = 1; thread_count <= MOST_THREADS; thread_count *= 2)
		in_processes(2, link, sizeof(struct shared), process);
}

static void polling_by_udp(void) { run("udp", false); }
static void polling_by_shm(void) { run("shm", false); }
static void waiting_by_udp(void) { run("udp", true); }
static void waiting_by_shm(void) { run("shm", true); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "polling_by_udp", polling_by_udp },
		{ "polling_by_shm", polling_by_shm },
		{ "waiting_by_udp", waiting_by_udp },
		{ "waiting_by_shm", waiting_by_shm },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
