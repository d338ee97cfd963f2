/* A server like those of SPDK: one thread, bound to a processor, that never sleeps. */
#include "cm_rig.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define CLIENTS 10
#define BUSY_LOOPS 2
/* Processes of this test: the clients, the loops, and the server. */
#define CHILDREN (CLIENTS + BUSY_LOOPS + 1)

static pid_t children[CHILDREN];
static int started;

/* What the processes share. */
struct shared {
	volatile int port, connected;
	volatile long slowest_us[CLIENTS];
};
static struct shared *shared;

/* Connections of each client. */
static int rounds(void)
{
	const char *wanted = getenv("ROCADE_TEST_ROUNDS");
	return wanted ? atoi(wanted) : 2;
}

static void start(void (*run)(int), int number)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		alarm(DEADLINE);
		run(number);
		_exit(0);
	}
	children[started++] = pid;
}

static void busy_loop(int number)
{
	(void)number;
	for (volatile unsigned turns = 0;; turns++)
		;
}

static void bind_to_first(void)
{
	cpu_set_t all, first;
	CHECK_INT(sched_getaffinity(0, sizeof(all), &all), 0);
	int cpu = 0;
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&first);
	CPU_SET(cpu, &first);
	CHECK_INT(sched_setaffinity(0, sizeof(first), &first), 0);
}

/* The next event of a channel that does not block. The thread spins. */
static struct rdma_cm_event *spin(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	while (rdma_get_cm_event(channel, &event))
		CHECK_INT(errno, EAGAIN);
	return event;
}

static void reactor(int number)
{
	(void)number;
	bind_to_first();
	struct sockaddr_in addr = at_port(0);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	CHECK_INT(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_bind_addr(listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(listener, CLIENTS), 0);
	set_nonblocking(channel->fd);
	shared->port = ntohs(rdma_get_src_port(listener));
	for (;;) {
		struct rdma_cm_event *event = spin(channel);
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type kind = event->event;
		CHECK_INT(rdma_ack_cm_event(event), 0);
		struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
		switch (kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
			CHECK_INT(rdma_accept(id, NULL), 0);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			shared->connected++;
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			CHECK_INT(rdma_disconnect(id), 0);
			rdma_destroy_qp(id);
			CHECK_INT(rdma_destroy_id(id), 0);
			break;
		default:
			CHECK_INT(kind, RDMA_CM_EVENT_TIMEWAIT_EXIT);
		}
	}
}

static long now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void client(int number)
{
	struct sockaddr_in addr = at_port(shared->port);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	for (int round = 0; round < rounds(); round++) {
		long begin = now_us();
		struct rdma_cm_id *id;
		CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
		CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 2000), 0);
		pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK_INT(rdma_resolve_route(id, 2000), 0);
		pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
		struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
		CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
		struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
		long asked = now_us();
		CHECK_INT(rdma_connect(id, &param), 0);
		pass(channel, RDMA_CM_EVENT_ESTABLISHED);
		long took = now_us() - (getenv("ROCADE_TEST_WHOLE") ? begin : asked);
		if (took > shared->slowest_us[number])
			shared->slowest_us[number] = took;
		CHECK_INT(rdma_disconnect(id), 0);
		struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_INT(rdma_ack_cm_event(event), 0);
		rdma_destroy_qp(id);
		CHECK_INT(rdma_destroy_id(id), 0);
	}
}

/* Ten clients connect while the reactor has one of the processors to itself, or shares it. The
 * directory is new, so that the reactor starts the broker. */
static void clients_of_a_bound_reactor(void)
{
	char directory[] = "/tmp/rocade-reactor-XXXXXX";
	CHECK(mkdtemp(directory));
	CHECK_INT(setenv("ROCADE_RUNTIME_DIR", directory, 1), 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	start(reactor, 0);
	while (!shared->port)
		usleep(1000);
	for (int loop = 0; loop < BUSY_LOOPS; loop++)
		start(busy_loop, loop);
	for (int number = 0; number < CLIENTS; number++)
		start(client, number);
	int failed = 0;
	for (int number = 0; number < CLIENTS; number++) {
		int status;
		CHECK(waitpid(children[1 + BUSY_LOOPS + number], &status, 0) > 0);
		failed += status != 0;
	}
	long slowest = 0;
	for (int number = 0; number < CLIENTS; number++)
		if (shared->slowest_us[number] > slowest)
			slowest = shared->slowest_us[number];
	printf("%d connections, %d clients failed, the slowest took %ld us\n", shared->connected, failed,
	       slowest);
	for (int child = 0; child <= BUSY_LOOPS; child++) {
		kill(children[child], SIGKILL);
		waitpid(children[child], NULL, 0);
	}
	char clean_up[512];
	snprintf(clean_up, sizeof(clean_up), "%s broker stop >/dev/null 2>&1; rm -r %s", getenv("ROCADE_BROKER"),
		 directory);
	CHECK_INT(system(clean_up), 0);
	CHECK_INT(failed, 0);
	CHECK_INT(shared->connected, CLIENTS * rounds());
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "clients_of_a_bound_reactor", clients_of_a_bound_reactor },
		{ 0 },
	};
	return run_cm_case(cases, argc, argv);
}
