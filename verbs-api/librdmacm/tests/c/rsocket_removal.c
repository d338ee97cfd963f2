/* Sockets whose device is removed while they are in use. rdma-core's rsocket.c gets the error of
 * ibv_get_cq_event (ds_get_cq_event, rs_get_cq_event), which is EIO: ib_uverbs_event_read of the
 * kernel. */
#include "cm_rig.h"

#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <rdma/rsocket.h>

/* Long enough for a connection on a busy machine. */
#ifdef __aarch64__ /* usually emulated */
#define BEGINS "device-remove at=20s"
#else
#define BEGINS "device-remove at=5s"
#endif
/* A wait without an event, which a busy loop would spend on the processor. */
#define WAIT_MS 300

/* Of rdma-core 65, which the installed headers and library may lack. */
static int (*repoll_create)(int flags);
static int (*repoll_ctl)(int set, int operation, int fd, struct epoll_event *event);
static int (*repoll_wait)(int set, struct epoll_event *events, int most, int limit);

static long thread_ms(void)
{
	struct rusage used;
	CHECK_INT(getrusage(RUSAGE_THREAD, &used), 0);
	return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
	       (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

/* The socket has an error for all ways to wait, and none of them is a busy loop. */
static void tells_of_an_error(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	CHECK_INT(rpoll(&entry, 1, -1), 1);
	CHECK_INT(entry.revents & (POLLIN | POLLERR), POLLIN | POLLERR);

	repoll_create = dlvsym(RTLD_DEFAULT, "repoll_create", "RDMACM_1.5");
	repoll_ctl = dlvsym(RTLD_DEFAULT, "repoll_ctl", "RDMACM_1.5");
	repoll_wait = dlvsym(RTLD_DEFAULT, "repoll_wait", "RDMACM_1.5");
	CHECK(repoll_create && repoll_ctl && repoll_wait);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int set = repoll_create(0);
	CHECK(set >= 0);
	CHECK_INT(repoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
	CHECK_INT(repoll_wait(set, &event, 1, -1), 1);
	CHECK_INT(event.events & EPOLLERR, EPOLLERR);
	long before = thread_ms();
	CHECK_INT(repoll_wait(set, &event, 1, WAIT_MS), 0);
	CHECK(thread_ms() - before < WAIT_MS / 2);
	CHECK_INT(rclose(set), 0);
}

static int bound(struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(fd >= 0);
	*addr = at_port(0);
	CHECK_INT(rbind(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	CHECK_INT(rgetsockname(fd, (struct sockaddr *)addr, &len), 0);
	return fd;
}

static void datagram_sockets_tell_that_their_device_is_gone(void)
{
	CHECK_INT(setenv("ROCADE_FAULT", BEGINS, 1), 0);
	struct sockaddr_in a, b;
	int one = bound(&a), other = bound(&b);
	char in[8];
	/* The first ones go over UDP, until both sides know the queue pair of the other. */
	for (int round = 0; round < 20; round++) {
		CHECK_INT(rsendto(one, "to", 2, 0, (struct sockaddr *)&b, sizeof(b)), 2);
		CHECK_INT(rrecv(other, in, sizeof(in), 0), 2);
		CHECK_INT(rsendto(other, "fro", 3, 0, (struct sockaddr *)&a, sizeof(a)), 3);
		CHECK_INT(rrecv(one, in, sizeof(in), 0), 3);
	}
	CHECK_INT(rsendto(one, "last", 4, 0, (struct sockaddr *)&b, sizeof(b)), 4);

	/* A thread that waits is told. */
	CHECK_FAILS(rrecv(one, in, sizeof(in), 0), EIO);
	tells_of_an_error(one);
	/* What had arrived can be read. */
	CHECK_INT(rrecv(other, in, sizeof(in), 0), 4);
	CHECK(!memcmp(in, "last", 4));
	CHECK_FAILS(rrecv(other, in, sizeof(in), 0), EIO);
	tells_of_an_error(other);
	/* Posting works until the queue is full (see docs/faults-device.md). */
	int sent = 0;
	errno = 0;
	while (rsendto(one, "to", 2, 0, (struct sockaddr *)&b, sizeof(b)) == 2)
		CHECK(sent++ < 100000);
	CHECK_INT(errno, EIO);
	CHECK_INT(rclose(one), 0);
	CHECK_INT(rclose(other), 0);
}

static void streams_tell_that_their_device_is_gone(void)
{
	CHECK_INT(setenv("ROCADE_FAULT", BEGINS, 1), 0);
	struct sockaddr_in addr = at_port(0);
	socklen_t len = sizeof(addr);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), active = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listener >= 0 && active >= 0);
	CHECK_INT(rbind(listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_INT(rlisten(listener, 4), 0);
	CHECK_INT(rgetsockname(listener, (struct sockaddr *)&addr, &len), 0);
	CHECK_INT(rconnect(active, (struct sockaddr *)&addr, sizeof(addr)), 0);
	int passive = raccept(listener, NULL, NULL);
	CHECK(passive >= 0);
	char in[8];
	CHECK_INT(rsend(active, "last", 4, 0), 4);
	struct pollfd entry = { .fd = passive, .events = POLLIN };
	CHECK_INT(rpoll(&entry, 1, -1), 1);

	/* A thread that waits is told, and not that the peer has closed the connection. */
	CHECK_FAILS(rrecv(active, in, sizeof(in), 0), EIO);
	tells_of_an_error(active);
	CHECK_FAILS(rsend(active, "x", 1, 0), EPIPE);
	/* What had arrived can be read. */
	CHECK_INT(rrecv(passive, in, sizeof(in), 0), 4);
	CHECK(!memcmp(in, "last", 4));
	CHECK_FAILS(rrecv(passive, in, sizeof(in), 0), EIO);
	tells_of_an_error(passive);
	CHECK_INT(rclose(active), 0);
	CHECK_INT(rclose(passive), 0);
	CHECK_INT(rclose(listener), 0);
}

static const struct test_case cases[] = {
	{ "datagram_sockets_tell_that_their_device_is_gone",
	  datagram_sockets_tell_that_their_device_is_gone },
	{ "streams_tell_that_their_device_is_gone", streams_tell_that_their_device_is_gone },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	return run_cm_case(cases, argc, argv);
}
