/* A program, or a library of it, that defines functions of libc for its own sockets, as
 * librspreload does. The system calls of Rocade do not come here. */
#define _GNU_SOURCE
#include "cm_rig.h"

#include <dlfcn.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static char foreign[32];

/* Records the name of a function that a library of Rocade has called. */
static int from_rocade(const void *caller, const char *name)
{
	Dl_info info;
	if (!dladdr(caller, &info) || !info.dli_fname)
		return 0;
	if (!strstr(info.dli_fname, "libibverbs") && !strstr(info.dli_fname, "librdmacm"))
		return 0;
	if (!foreign[0])
		strncpy(foreign, name, sizeof(foreign) - 1);
	return 1;
}

#define TAKE_OVER(type, name, number, parameters, ...)                                              \
	type name parameters                                                                        \
	{                                                                                           \
		if (from_rocade(__builtin_return_address(0), #name)) {                              \
			errno = EIO;                                                                \
			return -1;                                                                  \
		}                                                                                   \
		return syscall(number, __VA_ARGS__);                                                \
	}

TAKE_OVER(int, socket, SYS_socket, (int domain, int type, int protocol), domain, type, protocol)
TAKE_OVER(int, bind, SYS_bind, (int fd, const struct sockaddr *to, socklen_t len), fd, to, len)
TAKE_OVER(int, connect, SYS_connect, (int fd, const struct sockaddr *to, socklen_t len), fd, to, len)
TAKE_OVER(int, shutdown, SYS_shutdown, (int fd, int how), fd, how)
TAKE_OVER(int, close, SYS_close, (int fd), fd)
TAKE_OVER(ssize_t, read, SYS_read, (int fd, void *to, size_t len), fd, to, len)
TAKE_OVER(ssize_t, write, SYS_write, (int fd, const void *from, size_t len), fd, from, len)
TAKE_OVER(ssize_t, send, SYS_sendto, (int fd, const void *from, size_t len, int flags), fd, from, len,
	  flags, NULL, 0)
TAKE_OVER(ssize_t, recv, SYS_recvfrom, (int fd, void *to, size_t len, int flags), fd, to, len, flags,
	  NULL, NULL)
TAKE_OVER(ssize_t, sendmsg, SYS_sendmsg, (int fd, const struct msghdr *m, int flags), fd, m, flags)
TAKE_OVER(ssize_t, recvmsg, SYS_recvmsg, (int fd, struct msghdr *m, int flags), fd, m, flags)
TAKE_OVER(int, fcntl, SYS_fcntl, (int fd, int command, ...), fd, command, 0)
TAKE_OVER(int, eventfd, SYS_eventfd2, (unsigned int count, int flags), count, flags)
TAKE_OVER(int, epoll_create1, SYS_epoll_create1, (int flags), flags)
TAKE_OVER(int, epoll_ctl, SYS_epoll_ctl, (int set, int what, int fd, struct epoll_event *event), set,
	  what, fd, event)

static int listener;

static void *serve(void *unused)
{
	char message[64];
	int fd = raccept(listener, NULL, NULL);
	CHECK(fd >= 0);
	CHECK_INT(rrecv(fd, message, sizeof(message), MSG_WAITALL), sizeof(message));
	CHECK_INT(rsend(fd, message, sizeof(message), 0), sizeof(message));
	CHECK_INT(rclose(fd), 0);
	return unused;
}

static void system_calls_of_rocade_are_its_own(void)
{
	struct sockaddr_in at = at_port(7471);
	char sent[64], received[64];
	memset(sent, 'x', sizeof(sent));
	CHECK((listener = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK_INT(rbind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	CHECK_INT(rlisten(listener, 1), 0);
	pthread_t server;
	CHECK_INT(pthread_create(&server, NULL, serve, NULL), 0);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	CHECK_INT(rconnect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	CHECK_INT(rsend(fd, sent, sizeof(sent), 0), sizeof(sent));
	CHECK_INT(rrecv(fd, received, sizeof(received), MSG_WAITALL), sizeof(received));
	CHECK(!memcmp(sent, received, sizeof(sent)));
	pthread_join(server, NULL);
	CHECK_INT(rclose(fd), 0);
	CHECK_INT(rclose(listener), 0);

	/* These functions are really in the way of libraries. */
	int (*found)(int) = dlsym(RTLD_DEFAULT, "close");
	CHECK(found == close);
	if (foreign[0])
		fprintf(stderr, "Rocade calls %s of the program\n", foreign);
	CHECK(!foreign[0]);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "system_calls_of_rocade_are_its_own", system_calls_of_rocade_are_its_own },
		{ 0 },
	};
	return run_cm_case(cases, argc, argv);
}
