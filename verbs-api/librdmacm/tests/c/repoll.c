/* epoll for rsockets, of rdma-core 65: repoll_create, repoll_ctl and repoll_wait. */
#include "cm_rig.h"

#include <dlfcn.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

static int (*repoll_create)(int flags);
static int (*repoll_ctl)(int set, int operation, int fd, struct epoll_event *event);
static int (*repoll_wait)(int set, struct epoll_event *events, int most, int limit);

static int new_set(void)
{
	repoll_create = dlvsym(RTLD_DEFAULT, "repoll_create", "RDMACM_1.5");
	repoll_ctl = dlvsym(RTLD_DEFAULT, "repoll_ctl", "RDMACM_1.5");
	repoll_wait = dlvsym(RTLD_DEFAULT, "repoll_wait", "RDMACM_1.5");
	CHECK(repoll_create && repoll_ctl && repoll_wait);
	int set = repoll_create(O_CLOEXEC);
	CHECK(set >= 0);
	CHECK(fcntl(set, F_GETFD) == FD_CLOEXEC);
	return set;
}

static void change(int set, int operation, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };
	CHECK_INT(repoll_ctl(set, operation, fd, &event), 0);
}

/* Checks that a set has this one event, and no other. */
static void expect_event(int set, uint32_t events, uint64_t data)
{
	struct epoll_event got[4];
	CHECK_INT(repoll_wait(set, got, 4, -1), 1);
	CHECK_INT(got[0].events, events);
	CHECK_INT(got[0].data.u64, data);
}

static void expect_none(int set)
{
	struct epoll_event got[4];
	CHECK_INT(repoll_wait(set, got, 4, 0), 0);
}

struct pair {
	int listener, active, passive;
};

static struct pair make_pair(int set)
{
	struct sockaddr_in addr = at_port(0);
	socklen_t len = sizeof(addr);
	struct pair pair = { .listener = rsocket(AF_INET, SOCK_STREAM, 0),
			     .active = rsocket(AF_INET, SOCK_STREAM, 0) };
	CHECK(pair.listener >= 0 && pair.active >= 0);
	CHECK_INT(rbind(pair.listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_INT(rlisten(pair.listener, 4), 0);
	CHECK_INT(rgetsockname(pair.listener, (struct sockaddr *)&addr, &len), 0);
	change(set, EPOLL_CTL_ADD, pair.listener, EPOLLIN, 1);
	expect_none(set);
	CHECK_INT(rconnect(pair.active, (struct sockaddr *)&addr, sizeof(addr)), 0);
	expect_event(set, EPOLLIN, 1);
	pair.passive = raccept(pair.listener, NULL, NULL);
	CHECK(pair.passive >= 0);
	expect_none(set);
	return pair;
}

static void end_pair(struct pair *pair)
{
	CHECK_INT(rclose(pair->active), 0);
	CHECK_INT(rclose(pair->passive), 0);
	CHECK_INT(rclose(pair->listener), 0);
}

static void put(int fd) { CHECK_INT(rsend(fd, "x", 1, 0), 1); }

static void get(int fd)
{
	char byte;
	CHECK_INT(rrecv(fd, &byte, 1, 0), 1);
}

static void levels_and_edges(void)
{
	int set = new_set();
	struct pair pair = make_pair(set);
	change(set, EPOLL_CTL_ADD, pair.passive, EPOLLIN, 2);
	expect_none(set);
	put(pair.active);
	/* A level is reported until the byte is read. */
	expect_event(set, EPOLLIN, 2);
	expect_event(set, EPOLLIN, 2);
	get(pair.passive);
	expect_none(set);

	/* An edge is reported once, and again for the next byte, though the first was not read. */
	change(set, EPOLL_CTL_MOD, pair.passive, EPOLLIN | EPOLLET, 3);
	put(pair.active);
	expect_event(set, EPOLLIN, 3);
	expect_none(set);
	put(pair.active);
	expect_event(set, EPOLLIN, 3);
	expect_none(set);
	get(pair.passive);
	get(pair.passive);
	expect_none(set);
	for (int round = 0; round < 200; round++) {
		put(pair.active);
		expect_event(set, EPOLLIN, 3);
		get(pair.passive);
	}

	/* A one-shot entry waits for a change. */
	change(set, EPOLL_CTL_MOD, pair.passive, EPOLLIN | EPOLLONESHOT, 4);
	put(pair.active);
	expect_event(set, EPOLLIN, 4);
	expect_none(set);
	change(set, EPOLL_CTL_MOD, pair.passive, EPOLLIN | EPOLLOUT, 5);
	expect_event(set, EPOLLIN | EPOLLOUT, 5);
	get(pair.passive);

	change(set, EPOLL_CTL_MOD, pair.passive, EPOLLIN | EPOLLRDHUP, 6);
	CHECK_INT(rshutdown(pair.active, SHUT_WR), 0);
	expect_event(set, EPOLLIN | EPOLLRDHUP, 6);
	end_pair(&pair);
	/* Closed sockets are in no set. */
	expect_none(set);
	CHECK_INT(rclose(set), 0);
	CHECK_FAILS(rclose(set), EBADF);
}

static void all_kinds_in_one_set(void)
{
	int set = new_set(), event = eventfd(0, EFD_NONBLOCK);
	struct pair pair = make_pair(set);
	struct sockaddr_in addr = at_port(0), any = at_port(0);
	socklen_t len = sizeof(addr);
	int datagrams = rsocket(AF_INET, SOCK_DGRAM, 0), sender = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(event >= 0 && datagrams >= 0 && sender >= 0);
	CHECK_INT(rbind(datagrams, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_INT(rbind(sender, (struct sockaddr *)&any, sizeof(any)), 0);
	CHECK_INT(rgetsockname(datagrams, (struct sockaddr *)&addr, &len), 0);
	change(set, EPOLL_CTL_ADD, event, EPOLLIN, 11);
	change(set, EPOLL_CTL_ADD, datagrams, EPOLLIN, 12);
	change(set, EPOLL_CTL_ADD, pair.passive, EPOLLIN, 13);
	expect_none(set);
	CHECK_INT(eventfd_write(event, 1), 0);
	expect_event(set, EPOLLIN, 11);
	CHECK_INT(rsendto(sender, "y", 1, 0, (struct sockaddr *)&addr, sizeof(addr)), 1);
	put(pair.active);
	/* With room for one event, each kind has its turn. */
	unsigned int seen = 0;
	for (int calls = 0; seen != 0x3800 && calls < 100000; calls++) {
		struct epoll_event got;
		CHECK_INT(repoll_wait(set, &got, 1, -1), 1);
		seen |= 1u << got.data.u64;
	}
	CHECK_INT(seen, 0x3800);
	struct epoll_event got[4];
	CHECK_INT(repoll_wait(set, got, 4, -1), 3);
	change(set, EPOLL_CTL_DEL, event, 0, 0);
	change(set, EPOLL_CTL_DEL, pair.passive, 0, 0);
	expect_event(set, EPOLLIN, 12);
	CHECK_INT(rclose(datagrams), 0);
	CHECK_INT(rclose(sender), 0);
	end_pair(&pair);
	close(event);
	CHECK_INT(rclose(set), 0);
}

static void errors_are_those_of_epoll(void)
{
	int set = new_set(), fd = rsocket(AF_INET, SOCK_STREAM, 0), event = eventfd(0, 0);
	struct epoll_event got, wanted = { .events = EPOLLIN };
	CHECK_FAILS(repoll_ctl(set, EPOLL_CTL_MOD, fd, &wanted), ENOENT);
	CHECK_FAILS(repoll_ctl(set, EPOLL_CTL_DEL, fd, &wanted), ENOENT);
	CHECK_FAILS(repoll_ctl(set, EPOLL_CTL_ADD, fd, NULL), EFAULT);
	CHECK_FAILS(repoll_ctl(set, 77, fd, &wanted), EINVAL);
	CHECK_INT(repoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted), 0);
	CHECK_FAILS(repoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted), EEXIST);
	CHECK_INT(repoll_ctl(set, EPOLL_CTL_ADD, event, &wanted), 0);
	CHECK_FAILS(repoll_ctl(set, EPOLL_CTL_ADD, event, &wanted), EEXIST);
	CHECK_FAILS(repoll_ctl(set, EPOLL_CTL_ADD, set, &wanted), EINVAL);
	CHECK_FAILS(repoll_ctl(set, EPOLL_CTL_ADD, 9999, &wanted), EBADF);
	CHECK_FAILS(repoll_ctl(event, EPOLL_CTL_ADD, fd, &wanted), EINVAL);
	CHECK_FAILS(repoll_ctl(9999, EPOLL_CTL_ADD, fd, &wanted), EBADF);
	CHECK_FAILS(repoll_wait(event, &got, 1, 0), EINVAL);
	CHECK_FAILS(repoll_wait(9999, &got, 1, 0), EBADF);
	CHECK_FAILS(repoll_wait(set, &got, 0, 0), EINVAL);
	CHECK_FAILS(repoll_wait(set, &got, -1, 0), EINVAL);
	CHECK_FAILS(repoll_wait(set, NULL, 1, 0), EFAULT);
	CHECK_INT(rclose(fd), 0);
	/* The number may belong to another socket now, which is not in the set. */
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK_FAILS(repoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), ENOENT);
	CHECK_INT(repoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted), 0);
	CHECK_INT(rclose(fd), 0);
	CHECK_INT(rclose(set), 0);
	close(event);
}

static int waited_for;

static void *wait_for_one(void *data)
{
	struct epoll_event got;
	CHECK_INT(repoll_wait(waited_for, &got, 1, -1), 1);
	CHECK_INT(got.events, EPOLLIN);
	CHECK_INT(got.data.u64, (uintptr_t)data);
	return NULL;
}

/* Waits until a thread of this process other than the caller sleeps in ppoll(2). */
static void until_it_sleeps(pthread_t thread)
{
	while (pthread_tryjoin_np(thread, NULL) == EBUSY) {
		char path[64], line[256];
		for (int tid = getpid() + 1; tid < getpid() + 64; tid++) {
			snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
			FILE *file = fopen(path, "r");
			long number = -1;
			if (file && fgets(line, sizeof(line), file))
				number = atol(line);
			if (file)
				fclose(file);
			if (number == SYS_ppoll)
				return;
		}
	}
	CHECK(!"it does not wait");
}

/* A thread that waits for a set learns of sockets that another thread adds. */
static void sets_change_under_a_waiter(void)
{
	int set = waited_for = new_set();
	struct pair pair = make_pair(set);
	for (uintptr_t round = 20; round < 60; round++) {
		pthread_t thread;
		CHECK_INT(pthread_create(&thread, NULL, wait_for_one, (void *)round), 0);
		if (round % 2)
			until_it_sleeps(thread);
		change(set, EPOLL_CTL_ADD, pair.passive, EPOLLIN, round);
		put(pair.active);
		CHECK_INT(pthread_join(thread, NULL), 0);
		get(pair.passive);
		change(set, EPOLL_CTL_DEL, pair.passive, 0, 0);
	}
	end_pair(&pair);
	CHECK_INT(rclose(set), 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "levels_and_edges", levels_and_edges },
		{ "all_kinds_in_one_set", all_kinds_in_one_set },
		{ "errors_are_those_of_epoll", errors_are_those_of_epoll },
		{ "sets_change_under_a_waiter", sets_change_under_a_waiter },
		{ 0 },
	};
	return run_cm_case(cases, argc, argv);
}
