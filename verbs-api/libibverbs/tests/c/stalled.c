/* A thread of the responder polls its CQ and then does not go on, at any point of a poll. Requests
 * of the peer are answered all the same. */
#include "processes.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <time.h>

enum { ROUNDS = 20, BUSY = 3 };

struct shared {
	pthread_barrier_t barrier;
	uint32_t qp_num[2], rkey;
	uint64_t address;
	pid_t poller;
	atomic_int turns;
	atomic_bool over;
};

/* Both processes have a QP, and wait for each other. */
static struct rig open_side(struct shared *shared, int self)
{
	struct rig r = { .context = open_device() };
	r.pd = ibv_alloc_pd(r.context);
	r.cq = ibv_create_cq(r.context, 64, NULL, NULL, 0);
	CHECK(r.pd && r.cq);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	r.a = ibv_create_qp(r.pd, &init);
	r.buffer = calloc(1, BUFFER_LEN);
	r.mr = ibv_reg_mr(r.pd, r.buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(r.a && r.mr);
	shared->qp_num[self] = r.a->qp_num;
	if (!self) {
		shared->rkey = r.mr->rkey;
		shared->address = (uintptr_t)r.buffer;
	}
	pthread_barrier_wait(&shared->barrier);
	connect_qp(r.a, shared->qp_num[!self]);
	pthread_barrier_wait(&shared->barrier);
	return r;
}

static struct shared *of_handler;
static atomic_bool in_handler;

/* Lasts until the peer has got its answers. */
static void last(int signal)
{
	(void)signal;
	atomic_store(&in_handler, true);
	while (!atomic_load(&of_handler->over))
		usleep(100);
}

static void poll_until(struct rig *r, struct shared *shared)
{
	shared->poller = gettid();
	while (!atomic_load(&shared->over)) {
		struct ibv_wc wc;
		CHECK_INT(ibv_poll_cq(r->cq, 1, &wc), 0);
		atomic_fetch_add(&shared->turns, 1);
	}
}

struct poller {
	struct rig *r;
	struct shared *shared;
};

static void *poll_in_thread(void *argument)
{
	struct poller *poller = argument;
	poll_until(poller->r, poller->shared);
	return NULL;
}

static void read_from_peer(struct rig *r, struct shared *shared, int times)
{
	for (int i = 0; i < times; i++) {
		struct ibv_sge sge = { (uintptr_t)r->buffer, 8, r->mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		wr.wr.rdma.remote_addr = shared->address;
		wr.wr.rdma.rkey = shared->rkey;
		CHECK_INT(ibv_post_send(r->a, &wr, &bad), 0);
		CHECK_INT(next_completion(r->cq).status, IBV_WC_SUCCESS);
	}
}

static void wait_for_turns(struct shared *shared, int more)
{
	int begin = atomic_load(&shared->turns);
	while (atomic_load(&shared->turns) - begin < more)
		usleep(100);
}

/* A signal arrives while the thread polls, and its handler lasts. */
static void handler_process(void *memory, int self)
{
	struct shared *shared = memory;
	struct rig r = open_side(shared, self);
	if (self) {
		pthread_barrier_wait(&shared->barrier);
		read_from_peer(&r, shared, ROUNDS);
		atomic_store(&shared->over, true);
		return;
	}
	of_handler = shared;
	struct sigaction action = { .sa_handler = last };
	CHECK_INT(sigaction(SIGUSR1, &action, NULL), 0);
	struct poller poller = { &r, shared };
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, poll_in_thread, &poller), 0);
	wait_for_turns(shared, 1000);
	CHECK_INT(pthread_kill(thread, SIGUSR1), 0);
	while (!atomic_load(&in_handler))
		usleep(100);
	pthread_barrier_wait(&shared->barrier);
	CHECK_INT(pthread_join(thread, NULL), 0);
}

/* A debugger stops the thread. */
static void ptrace_process(void *memory, int self)
{
	struct shared *shared = memory;
	/* Lets a sibling trace where only ancestors may. Fails where there is no such limit. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	struct rig r = open_side(shared, self);
	if (!self) {
		struct poller poller = { &r, shared };
		pthread_t thread;
		CHECK_INT(pthread_create(&thread, NULL, poll_in_thread, &poller), 0);
		CHECK_INT(pthread_join(thread, NULL), 0);
		return;
	}
	for (int round = 0; round < ROUNDS; round++) {
		int status;
		wait_for_turns(shared, 100);
		CHECK_INT(ptrace(PTRACE_SEIZE, shared->poller, NULL, NULL), 0);
		CHECK_INT(ptrace(PTRACE_INTERRUPT, shared->poller, NULL, NULL), 0);
		CHECK_INT(waitpid(shared->poller, &status, __WALL), shared->poller);
		read_from_peer(&r, shared, 2);
		CHECK_INT(ptrace(PTRACE_DETACH, shared->poller, NULL, NULL), 0);
	}
	atomic_store(&shared->over, true);
}

static void *be_busy(void *argument)
{
	struct shared *shared = argument;
	while (!atomic_load(&shared->over))
		;
	return NULL;
}

/* The thread has the policy SCHED_IDLE, beside threads that leave it no processor. */
static void idle_class_process(void *memory, int self)
{
	struct shared *shared = memory;
	struct rig r = open_side(shared, self);
	if (self) {
		pthread_t busy[BUSY];
		for (int i = 0; i < BUSY; i++)
			CHECK_INT(pthread_create(&busy[i], NULL, be_busy, shared), 0);
		pthread_barrier_wait(&shared->barrier);
		read_from_peer(&r, shared, ROUNDS);
		atomic_store(&shared->over, true);
		for (int i = 0; i < BUSY; i++)
			CHECK_INT(pthread_join(busy[i], NULL), 0);
		return;
	}
	pthread_barrier_wait(&shared->barrier);
	struct sched_param none = { 0 };
	CHECK_INT(pthread_setschedparam(pthread_self(), SCHED_IDLE, &none), 0);
	poll_until(&r, shared);
}

static void run(const char *link, void (*process)(void *, int))
{
	in_processes(2, link, sizeof(struct shared), process);
}

static void a_handler_that_lasts_by_udp(void) { run("udp", handler_process); }
static void a_handler_that_lasts_by_shm(void) { run("shm", handler_process); }
static void a_debugger_by_udp(void) { run("udp", ptrace_process); }
static void a_debugger_by_shm(void) { run("shm", ptrace_process); }
static void no_processor_by_udp(void) { run("udp", idle_class_process); }
static void no_processor_by_shm(void) { run("shm", idle_class_process); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_handler_that_lasts_by_udp", a_handler_that_lasts_by_udp },
		{ "a_handler_that_lasts_by_shm", a_handler_that_lasts_by_shm },
		{ "a_debugger_by_udp", a_debugger_by_udp },
		{ "a_debugger_by_shm", a_debugger_by_shm },
		{ "no_processor_by_udp", no_processor_by_udp },
		{ "no_processor_by_shm", no_processor_by_shm },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
