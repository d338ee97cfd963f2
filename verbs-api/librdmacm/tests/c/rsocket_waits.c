/* Threads that wait in RDMA sockets receive by themselves: the thread of the engine, which receives
 * while no other thread does, need not wake. A server process waits, and its client looks. */
#include "cm_rig.h"

#include <dirent.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <rdma/rsocket.h>

/* Rounds in which the server's engine thread has not run. There may be any number of others,
 * because it looks after a waiting thread at intervals. */
#define ROUNDS 20
/* More rounds than any machine needs. */
#define MOST_ROUNDS 100000

/* The server, as its client sees it. */
struct server {
	pid_t pid, waiting[2], engine;
	int port;
};

enum way { RECV, POLL, SELECT, WAYS };

/* The ends of pipes from server to client, and back. */
static int told[2], released[2];

static pid_t own_tid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

/* Finds the engine's thread in this process, or returns 0. */
static pid_t named_thread(void)
{
	pid_t found = 0;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *entry; (entry = readdir(tasks));) {
		char path[300], name[32] = "";
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = fopen(path, "r");
		if (!file)
			continue;
		if (fgets(name, sizeof(name), file) && !strcmp(name, "rocade\n"))
			found = atoi(entry->d_name);
		fclose(file);
	}
	closedir(tasks);
	return found;
}

/* A thread names itself, so that one without a processor has no name yet. */
static pid_t engine_thread(void)
{
	pid_t found;
	while (!(found = named_thread()))
		sched_yield();
	return found;
}

/* Returns how often a thread of the server has got a processor. */
static unsigned long runs_of(const struct server *server, pid_t tid)
{
	char path[64];
	unsigned long runs;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", server->pid, tid);
	FILE *file = fopen(path, "r");
	CHECK(file);
	CHECK_INT(fscanf(file, "%*u %*u %lu", &runs), 1);
	fclose(file);
	return runs;
}

/* Looks without a pause, in which the background thread of the server would run. */
static void wait_until_server_sleeps(const struct server *server, pid_t tid)
{
	char path[64], line[256];
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", server->pid, tid);
	for (;;) {
		FILE *file = fopen(path, "r");
		CHECK(file && fgets(line, sizeof(line), file));
		fclose(file);
		char *state = strrchr(line, ')');
		CHECK(state);
		if (state[2] == 'S')
			return;
		sched_yield();
	}
}

/* Receives a byte after a wait. Returns -1 at the end of the stream. */
static int await_byte(int fd, enum way way, int pipe_fd)
{
	char byte;
	struct pollfd fds[2] = { { .fd = pipe_fd, .events = POLLIN }, { .fd = fd, .events = POLLIN } };
	struct timeval long_time = { .tv_sec = DEADLINE };
	fd_set set;
	if (way == POLL) {
		CHECK_INT(rpoll(fds, 2, DEADLINE * 1000), 1);
		CHECK_INT(fds[0].revents, 0);
		CHECK_INT(fds[1].revents & POLLIN, POLLIN);
	} else if (way == SELECT) {
		FD_ZERO(&set);
		FD_SET(fd, &set);
		FD_SET(pipe_fd, &set);
		CHECK_INT(rselect((fd > pipe_fd ? fd : pipe_fd) + 1, &set, NULL, NULL, &long_time), 1);
		CHECK(FD_ISSET(fd, &set) && !FD_ISSET(pipe_fd, &set));
	}
	ssize_t got = rrecv(fd, &byte, 1, 0);
	CHECK(got >= 0);
	return got ? byte : -1;
}

static int listening(int *port)
{
	struct sockaddr_in addr = at_port(0);
	socklen_t len = sizeof(addr);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	CHECK_INT(rbind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_INT(rlisten(fd, 4), 0);
	CHECK_INT(rgetsockname(fd, (struct sockaddr *)&addr, &len), 0);
	*port = ntohs(addr.sin_port);
	return fd;
}

static int connected_to(const struct server *server)
{
	struct sockaddr_in addr = at_port(server->port);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	CHECK_INT(rconnect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return fd;
}

static void tell(struct server *server)
{
	server->pid = getpid();
	server->engine = engine_thread();
	CHECK_INT(write(told[1], server, sizeof(*server)), sizeof(*server));
}

static struct server hear(void)
{
	struct server server;
	CHECK_INT(read(told[0], &server, sizeof(server)), sizeof(server));
	return server;
}

/* Runs `serve` in another process. Devices are opened after this only. */
static pid_t start(void (*serve)(void), const char *link)
{
	CHECK_INT(setenv("ROCADE_LINK", link, 1), 0);
	CHECK_INT(pipe(told), 0);
	CHECK_INT(pipe(released), 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		alarm(DEADLINE);
		serve();
		_exit(0);
	}
	return pid;
}

static void finish_server(pid_t pid)
{
	int status;
	CHECK_INT(waitpid(pid, &status, 0), pid);
	CHECK_INT(status, 0);
}

/* Answers each byte of the client, in all ways of waiting. */
static void serve_one(void)
{
	struct server server = { .waiting = { own_tid() } };
	int listener = listening(&server.port);
	tell(&server);
	int fd = raccept(listener, NULL, NULL), byte;
	CHECK(fd >= 0);
	for (int round = 0; (byte = await_byte(fd, round % WAYS, released[0])) >= 0; round++) {
		char answer = byte;
		CHECK_INT(rsend(fd, &answer, 1, 0), 1);
	}
	CHECK_INT(rclose(fd), 0);
	CHECK_INT(rclose(listener), 0);
}

/* Sends a byte to the server, whose thread `tid` waits, and gets the answer. Returns true if the
 * thread of the server's engine has not run meanwhile. */
static int exchange(const struct server *server, int fd, pid_t tid)
{
	char byte = 'x';
	wait_until_server_sleeps(server, tid);
	wait_until_server_sleeps(server, server->engine);
	unsigned long before = runs_of(server, server->engine);
	CHECK_INT(rsend(fd, &byte, 1, 0), 1);
	CHECK_INT(rrecv(fd, &byte, 1, 0), 1);
	CHECK_INT(byte, 'x');
	return runs_of(server, server->engine) == before;
}

static void a_blocked_thread(const char *link)
{
	pid_t pid = start(serve_one, link);
	struct server server = hear();
	int fd = connected_to(&server), by_itself[WAYS] = { 0 }, round = 0;
	for (; by_itself[RECV] < ROUNDS || by_itself[POLL] < ROUNDS || by_itself[SELECT] < ROUNDS;
	     round++) {
		CHECK(round < MOST_ROUNDS);
		by_itself[round % WAYS] += exchange(&server, fd, server.waiting[0]);
	}
	CHECK_INT(rclose(fd), 0);
	finish_server(pid);
}

static void a_blocked_thread_receives_by_udp(void)
{
	a_blocked_thread("udp");
}

static void a_blocked_thread_receives_by_shm(void)
{
	a_blocked_thread("auto");
}

static int sockets[2];
static pid_t tids[2];
static pthread_barrier_t all_known;

/* Answers each byte. The first thread then does something else, until it is released. */
static void *answer_all(void *argument)
{
	int own = *(int *)argument, fd = sockets[own], byte;
	char answer, go;
	tids[own] = own_tid();
	pthread_barrier_wait(&all_known);
	while ((byte = await_byte(fd, RECV, -1)) >= 0) {
		answer = byte;
		CHECK_INT(rsend(fd, &answer, 1, 0), 1);
		if (own == 0)
			CHECK_INT(read(released[0], &go, 1), 1);
	}
	CHECK_INT(rclose(fd), 0);
	return NULL;
}

static void serve_two(void)
{
	struct server server = { .port = 0 };
	int listener = listening(&server.port), numbers[2] = { 0, 1 };
	pthread_t threads[2];
	tell(&server);
	CHECK_INT(pthread_barrier_init(&all_known, NULL, 3), 0);
	for (int at = 0; at < 2; at++) {
		sockets[at] = raccept(listener, NULL, NULL);
		CHECK(sockets[at] >= 0);
		CHECK_INT(pthread_create(&threads[at], NULL, answer_all, &numbers[at]), 0);
	}
	pthread_barrier_wait(&all_known);
	memcpy(server.waiting, tids, sizeof(tids));
	tell(&server);
	for (int at = 0; at < 2; at++)
		CHECK_INT(pthread_join(threads[at], NULL), 0);
	CHECK_INT(rclose(listener), 0);
}

/* Two threads wait. One gets a message and does something else. The other one then receives its
 * message by itself. */
static void two_blocked_threads_take_turns(void)
{
	pid_t pid = start(serve_two, "auto");
	struct server server = hear();
	int one = connected_to(&server), other = connected_to(&server), by_itself = 0;
	server = hear();
	for (int round = 0; by_itself < ROUNDS; round++) {
		CHECK(round < MOST_ROUNDS);
		wait_until_server_sleeps(&server, server.waiting[1]);
		exchange(&server, one, server.waiting[0]);
		by_itself += exchange(&server, other, server.waiting[1]);
		CHECK_INT(write(released[1], "x", 1), 1);
	}
	CHECK_INT(rclose(one), 0);
	CHECK_INT(rclose(other), 0);
	finish_server(pid);
}

static void ignore(int signal)
{
	(void)signal;
}

static void *wait_for_signal(void *argument)
{
	int own = *(int *)argument;
	char byte;
	tids[own] = own_tid();
	pthread_barrier_wait(&all_known);
	errno = 0;
	ssize_t got = rrecv(sockets[own], &byte, 1, 0);
	CHECK_INT(got, -1);
	CHECK_INT(errno, EINTR);
	return NULL;
}

/* A signal interrupts each of several waiting threads, even if its handler restarts system calls. A
 * wait that ends in time does so while another one goes on. */
static void waits_end_by_signals_and_in_time(void)
{
	struct server server;
	int listener = listening(&server.port), passive[2], numbers[2] = { 0, 1 };
	pthread_t threads[2];
	struct sigaction action = { .sa_handler = ignore, .sa_flags = SA_RESTART };
	CHECK_INT(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_INT(pthread_barrier_init(&all_known, NULL, 3), 0);
	for (int at = 0; at < 2; at++) {
		sockets[at] = connected_to(&server);
		passive[at] = raccept(listener, NULL, NULL);
		CHECK(passive[at] >= 0);
		CHECK_INT(pthread_create(&threads[at], NULL, wait_for_signal, &numbers[at]), 0);
	}
	pthread_barrier_wait(&all_known);
	for (int at = 0; at < 2; at++)
		wait_until_asleep(tids[at]);
	struct timespec begin, end;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	struct pollfd fd = { .fd = passive[0], .events = POLLIN };
	CHECK_INT(rpoll(&fd, 1, 30), 0);
	clock_gettime(CLOCK_MONOTONIC, &end);
	CHECK((end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec >= 30000000);
	for (int at = 0; at < 2; at++) {
		wait_until_asleep(tids[at]);
		/* It may have slept elsewhere. */
		while (pthread_tryjoin_np(threads[at], NULL)) {
			CHECK_INT(pthread_kill(threads[at], SIGUSR1), 0);
			sched_yield();
		}
	}
	for (int at = 0; at < 2; at++) {
		CHECK_INT(rclose(sockets[at]), 0);
		CHECK_INT(rclose(passive[at]), 0);
	}
	CHECK_INT(rclose(listener), 0);
}

static const struct test_case cases[] = {
	{ "a_blocked_thread_receives_by_udp", a_blocked_thread_receives_by_udp },
	{ "a_blocked_thread_receives_by_shm", a_blocked_thread_receives_by_shm },
	{ "two_blocked_threads_take_turns", two_blocked_threads_take_turns },
	{ "waits_end_by_signals_and_in_time", waits_end_by_signals_and_in_time },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	return run_cm_case(cases, argc, argv);
}
