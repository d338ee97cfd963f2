/* Recipes that end or stop a process, as its peer sees them, over UDP and through shared memory.
 * Packets for a queue pair that is gone are dropped (hdr_check of rxe_recv.c). So the retries of
 * the peer are exhausted (rxe_completer of rxe_comp.c), and its other requests are flushed
 * (rxe_drain_resp_pkts). rxe has no process that could be stopped, and would go on to answer. */
#include "processes.h"

#include <sys/prctl.h>

struct shared {
	pthread_barrier_t barrier;
	uint32_t qpns[2];
};

static void meet(struct shared *shared)
{
	int result = pthread_barrier_wait(&shared->barrier);
	CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
}

/* Opens the device with one queue pair, which is connected to that of the other process. */
static struct rig join(struct shared *shared, int self)
{
	struct rig r = { .context = open_device() };
	r.pd = ibv_alloc_pd(r.context);
	r.cq = ibv_create_cq(r.context, 64, NULL, NULL, 0);
	r.buffer = calloc(1, BUFFER_LEN);
	CHECK(r.pd && r.cq && r.buffer);
	r.mr = ibv_reg_mr(r.pd, r.buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	r.a = r.b = ibv_create_qp(r.pd, &init);
	CHECK(r.mr && r.a);
	shared->qpns[self] = r.a->qp_num;
	meet(shared);
	connect_qp(r.a, shared->qpns[!self]);
	return r;
}

/* Receives two messages, and answers none after the rule has begun. */
static void victim(struct shared *shared, const char *rules)
{
	CHECK_INT(setenv("ROCADE_FAULT", rules, 1), 0);
	struct rig r = join(shared, 1);
	post_receive(&r, 1);
	post_receive(&r, 2);
	meet(shared);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	for (;;)
		pause();
}

/* Runs a process with these rules, and sends to it before and after it has ended or stopped. The
 * status of waitpid(2) is that of `ended`. */
static void send_to_victim(const char *link, const char *rules, int ended)
{
	CHECK_INT(setenv("ROCADE_LINK", link, 1), 0);
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	pthread_barrierattr_t attr;
	CHECK_INT(pthread_barrierattr_init(&attr), 0);
	CHECK_INT(pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED), 0);
	CHECK_INT(pthread_barrier_init(&shared->barrier, &attr, 2), 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		/* A process that is stopped would outlive a check that fails. */
		CHECK_INT(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
		alarm(DEADLINE);
		victim(shared, rules);
	}
	struct rig r = join(shared, 0);
	meet(shared);
	post_send(&r, 3);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	int status;
	CHECK_INT(waitpid(pid, &status, WUNTRACED), pid);
	CHECK_INT(status, ended);

	post_send(&r, 4);
	post_send(&r, 5);
	struct ibv_wc wc = next_completion(r.cq);
	CHECK_INT(wc.wr_id, 4);
	CHECK_INT(wc.status, IBV_WC_RETRY_EXC_ERR);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_WR_FLUSH_ERR);
	struct ibv_qp_attr qp_attr;
	struct ibv_qp_init_attr init;
	CHECK_INT(ibv_query_qp(r.a, &qp_attr, IBV_QP_STATE, &init), 0);
	CHECK_INT(qp_attr.qp_state, IBV_QPS_ERR);
	CHECK(!is_readable(r.context->async_fd));
	if (WIFSTOPPED(status)) {
		CHECK_INT(kill(pid, SIGKILL), 0);
		CHECK_INT(waitpid(pid, &status, 0), pid);
	}
}

/* What waitpid(2) reports of a process that was killed, or stopped. */
#define KILLED SIGKILL
#define STOPPED (SIGSTOP << 8 | 0x7f)

static void a_peer_crashes_by_udp(void)
{
	send_to_victim("udp", "recipe:peer-crash,at=5s", KILLED);
}

static void a_peer_crashes_by_shm(void)
{
	send_to_victim("shm", "recipe:peer-crash,at=5s", KILLED);
}

static void a_peer_hangs_by_udp(void)
{
	send_to_victim("udp", "recipe:peer-hang,at=5s", STOPPED);
}

static void a_peer_hangs_by_shm(void)
{
	send_to_victim("shm", "recipe:peer-hang,at=5s", STOPPED);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_peer_crashes_by_udp", a_peer_crashes_by_udp },
		{ "a_peer_crashes_by_shm", a_peer_crashes_by_shm },
		{ "a_peer_hangs_by_udp", a_peer_hangs_by_udp },
		{ "a_peer_hangs_by_shm", a_peer_hangs_by_shm },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
