/* RDMA sockets, with the behaviour that TCP programs expect. */
#include "cm_rig.h"

#include <dirent.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <rdma/rsocket.h>

/* A connection: the listener and the two ends. */
struct pair {
	int listener, active, passive;
	struct sockaddr_in addr;
};

static unsigned char pattern(size_t at)
{
	return (at * 2654435761u) >> 13;
}

static int listening(struct sockaddr_in *addr, int backlog)
{
	socklen_t len = sizeof(*addr);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	*addr = at_port(0);
	CHECK_INT(rbind(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	CHECK_INT(rlisten(fd, backlog), 0);
	CHECK_INT(rgetsockname(fd, (struct sockaddr *)addr, &len), 0);
	CHECK_INT(len, sizeof(*addr));
	CHECK(addr->sin_port != 0);
	return fd;
}

static int connected_to(struct sockaddr_in *addr)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	CHECK(fd >= 0);
	CHECK_INT(rconnect(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	return fd;
}

/* Connects in one thread, because a connection is established before it is accepted. */
static struct pair make_pair(void)
{
	struct pair pair = { .listener = -1 };
	pair.listener = listening(&pair.addr, 4);
	pair.active = connected_to(&pair.addr);
	pair.passive = raccept(pair.listener, NULL, NULL);
	CHECK(pair.passive >= 0);
	return pair;
}

static void end_pair(struct pair *pair)
{
	CHECK_INT(rclose(pair->active), 0);
	CHECK_INT(rclose(pair->passive), 0);
	CHECK_INT(rclose(pair->listener), 0);
}

static void do_not_wait(int fd)
{
	int flags = rfcntl(fd, F_GETFL);
	CHECK_INT(flags & O_NONBLOCK, 0);
	CHECK_INT(rfcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
	CHECK_INT(rfcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
}

struct stream {
	int fd;
	size_t len;
};

static void *send_all(void *argument)
{
	struct stream *stream = argument;
	char *bytes = malloc(stream->len);
	for (size_t at = 0; at < stream->len; at++)
		bytes[at] = pattern(at);
	for (size_t sent = 0; sent < stream->len;) {
		size_t now = (sent * 7919 + 1) % 100000 + 1;
		if (now > stream->len - sent)
			now = stream->len - sent;
		CHECK_INT(rsend(stream->fd, bytes + sent, now, 0), now);
		sent += now;
	}
	free(bytes);
	return NULL;
}

static void receive_all(int fd, size_t len)
{
	static __thread unsigned char bytes[70000];
	for (size_t got = 0; got < len;) {
		size_t most = (got * 31 + 5) % sizeof(bytes) + 1;
		ssize_t now = rrecv(fd, bytes, most < len - got ? most : len - got, 0);
		CHECK(now > 0);
		for (ssize_t at = 0; at < now; at++)
			CHECK_INT(bytes[at], pattern(got + at));
		got += now;
	}
}

static void *receive_stream(void *argument)
{
	struct stream *stream = argument;
	receive_all(stream->fd, stream->len);
	return NULL;
}

static pthread_t begin(void *(*run)(void *), void *argument)
{
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, run, argument), 0);
	return thread;
}

static void *send_and_close(void *argument)
{
	struct stream *stream = argument;
	send_all(stream);
	CHECK_INT(rclose(stream->fd), 0);
	return NULL;
}

/* Data written before closing arrive, followed by the end of the stream. Large data arrive in
 * pieces that fill all buffers. */
static void what_was_written_arrives(void)
{
	for (size_t len = 1; len < 4000000; len = len * 13 + 1) {
		struct pair pair = make_pair();
		struct stream stream = { pair.active, len };
		pthread_t thread = begin(send_and_close, &stream);
		receive_all(pair.passive, len);
		char byte;
		/* The end of the stream is no error, and keeps errno. */
		errno = 0;
		CHECK_INT(rrecv(pair.passive, &byte, 1, 0), 0);
		CHECK_INT(rrecv(pair.passive, &byte, 1, 0), 0);
		CHECK_INT(errno, 0);
		CHECK_FAILS(rsend(pair.passive, &byte, 1, MSG_NOSIGNAL), ECONNRESET);
		CHECK_INT(pthread_join(thread, NULL), 0);
		CHECK_INT(rclose(pair.passive), 0);
		CHECK_INT(rclose(pair.listener), 0);
	}
}

/* One side shuts down sending and continues to receive. */
static void half_of_it_is_closed(void)
{
	struct pair pair = make_pair();
	char bytes[16];
	CHECK_INT(rsend(pair.active, "question", 8, 0), 8);
	CHECK_INT(rshutdown(pair.active, SHUT_WR), 0);
	CHECK_FAILS(rsend(pair.active, "?", 1, MSG_NOSIGNAL), EPIPE);
	CHECK_INT(rrecv(pair.passive, bytes, 8, MSG_WAITALL), 8);
	CHECK_INT(rrecv(pair.passive, bytes, 8, 0), 0);
	struct stream answer = { pair.passive, 300000 };
	pthread_t thread = begin(send_and_close, &answer);
	receive_all(pair.active, answer.len);
	CHECK_INT(rrecv(pair.active, bytes, 8, 0), 0);
	CHECK_INT(pthread_join(thread, NULL), 0);
	CHECK_INT(rclose(pair.active), 0);
	CHECK_INT(rclose(pair.listener), 0);
}

/* Two threads send and two receive, on both ends of one connection. */
static void threads_share_a_socket(void)
{
	struct pair pair = make_pair();
	struct stream ends[2] = { { pair.active, 6000000 }, { pair.passive, 6000000 } };
	pthread_t threads[4];
	for (int end = 0; end < 2; end++) {
		threads[end] = begin(send_all, &ends[end]);
		threads[2 + end] = begin(receive_stream, &ends[end]);
	}
	for (int thread = 0; thread < 4; thread++)
		CHECK_INT(pthread_join(threads[thread], NULL), 0);
	end_pair(&pair);
}

static void errors_are_those_of_tcp(void)
{
	struct sockaddr_in addr, other;
	struct sockaddr_in6 addr6 = { .sin6_family = AF_INET6 };
	socklen_t len = sizeof(other);
	char byte = 0;
	CHECK_FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	CHECK_FAILS(rsocket(AF_INET, SOCK_RAW, 0), ESOCKTNOSUPPORT);
	CHECK_FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
	CHECK_FAILS(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EPROTONOSUPPORT);
	CHECK_FAILS(rrecv(-1, &byte, 1, 0), EBADF);
	CHECK_FAILS(rsend(99999, &byte, 1, 0), EBADF);
	CHECK_FAILS(rclose(0), EBADF);

	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK_FAILS(rrecv(fd, &byte, 1, 0), ENOTCONN);
	CHECK_FAILS(rsend(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
	CHECK_FAILS(rshutdown(fd, SHUT_WR), ENOTCONN);
	CHECK_FAILS(rshutdown(fd, 17), EINVAL);
	CHECK_FAILS(rgetpeername(fd, (struct sockaddr *)&other, &len), ENOTCONN);
	CHECK_FAILS(raccept(fd, NULL, NULL), EINVAL);
	CHECK_FAILS(rbind(fd, (struct sockaddr *)&addr6, sizeof(addr6)), EAFNOSUPPORT);
	CHECK_FAILS(rconnect(fd, NULL, 16), EFAULT);
	addr = at_port(1);
	CHECK_FAILS(rconnect(fd, (struct sockaddr *)&addr, 4), EINVAL);

	/* The port has no listener. The socket can connect again. */
	int listener = listening(&addr, 1);
	other = addr;
	other.sin_port = htons(1);
	CHECK_FAILS(rconnect(fd, (struct sockaddr *)&other, sizeof(other)), ECONNREFUSED);
	CHECK_INT(rconnect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_FAILS(rconnect(fd, (struct sockaddr *)&addr, sizeof(addr)), EISCONN);
	CHECK_INT(rgetpeername(fd, (struct sockaddr *)&other, &len), 0);
	CHECK_INT(other.sin_port, addr.sin_port);
	CHECK_FAILS(rrecv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
	CHECK_FAILS(rrecv(fd, &byte, 1, MSG_OOB), EOPNOTSUPP);
	CHECK_FAILS(rrecv(fd, NULL, 1, 0), EFAULT);
	CHECK_INT(rrecv(fd, &byte, 0, 0), 0);
	CHECK_INT(rclose(fd), 0);
	CHECK_FAILS(rclose(fd), EBADF);

	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK_FAILS(rbind(fd, (struct sockaddr *)&addr, sizeof(addr)), EADDRINUSE);
	CHECK_INT(inet_pton(AF_INET, "192.0.2.1", &other.sin_addr), 1);
	other.sin_port = 0;
	CHECK_FAILS(rbind(fd, (struct sockaddr *)&other, sizeof(other)), EADDRNOTAVAIL);
	CHECK_INT(rclose(fd), 0);
	CHECK_INT(rclose(listener), 0);
}

/* A socket with AF_IB addresses. On RoCE a GID is an IP address, so that both kinds of sockets can
 * connect. */
static void gids_are_addresses(void)
{
	struct rdma_addrinfo *info, hints = { .ai_flags = RAI_NUMERICHOST | RAI_FAMILY | RAI_PASSIVE,
					      .ai_family = AF_IB, .ai_port_space = RDMA_PS_TCP };
	struct sockaddr_ib own = { 0 }, active_name, peer;
	socklen_t len = sizeof(own);
	char gid[64], port[16], byte = 0;
	CHECK_FAILS(rsocket(AF_IB, SOCK_DGRAM, 0), EAFNOSUPPORT);
	snprintf(gid, sizeof(gid), "::ffff:%s", own_ip);
	CHECK_INT(rdma_getaddrinfo(gid, NULL, &hints, &info), 0);
	int listener = rsocket(info->ai_family, SOCK_STREAM, 0);
	CHECK(listener >= 0);
	CHECK_INT(rgetsockname(listener, (struct sockaddr *)&own, &len), 0);
	CHECK(own.sib_family == AF_IB && !own.sib_addr.sib_raw[11]);
	CHECK_INT(rbind(listener, info->ai_src_addr, info->ai_src_len), 0);
	CHECK_INT(rlisten(listener, 2), 0);
	CHECK_INT(rgetsockname(listener, (struct sockaddr *)&own, &len), 0);
	CHECK_INT(len, sizeof(own));
	CHECK(!memcmp(&own.sib_addr, &((struct sockaddr_ib *)info->ai_src_addr)->sib_addr, 16));
	rdma_freeaddrinfo(info);
	CHECK_INT(be64toh(own.sib_sid) >> 16, RDMA_PS_TCP);
	int number = be64toh(own.sib_sid) & 0xffff;
	CHECK(number);

	snprintf(port, sizeof(port), "%d", number);
	hints.ai_flags &= ~RAI_PASSIVE;
	CHECK_INT(rdma_getaddrinfo(gid, port, &hints, &info), 0);
	int active = rsocket(AF_IB, SOCK_STREAM, 0);
	struct sockaddr_in addr = at_port(number);
	CHECK_FAILS(rconnect(active, (struct sockaddr *)&addr, sizeof(addr)), EAFNOSUPPORT);
	CHECK_FAILS(rconnect(active, info->ai_dst_addr, info->ai_dst_len - 1), EINVAL);
	CHECK_INT(rconnect(active, info->ai_dst_addr, info->ai_dst_len), 0);
	rdma_freeaddrinfo(info);
	int passive = raccept(listener, (struct sockaddr *)&peer, &len);
	CHECK(passive >= 0);
	CHECK_INT(len, sizeof(peer));
	CHECK_INT(rgetsockname(active, (struct sockaddr *)&active_name, &len), 0);
	CHECK(!memcmp(&peer, &active_name, sizeof(peer)));
	CHECK_INT(rgetpeername(active, (struct sockaddr *)&peer, &len), 0);
	CHECK(!memcmp(&peer, &own, sizeof(peer)));
	CHECK_INT(rsend(active, "g", 1, 0), 1);
	CHECK_INT(rrecv(passive, &byte, 1, 0), 1);
	CHECK_INT(byte, 'g');
	CHECK_INT(rclose(active), 0);
	CHECK_INT(rclose(passive), 0);

	active = connected_to(&addr);
	passive = raccept(listener, NULL, NULL);
	CHECK_INT(rsend(passive, "h", 1, 0), 1);
	CHECK_INT(rrecv(active, &byte, 1, 0), 1);
	CHECK_INT(byte, 'h');
	CHECK_INT(rclose(active), 0);
	CHECK_INT(rclose(passive), 0);
	CHECK_INT(rclose(listener), 0);
}

static short polled(int fd, short events, int limit)
{
	struct pollfd poll = { .fd = fd, .events = events };
	int count = rpoll(&poll, 1, limit);
	CHECK(count >= 0);
	CHECK_INT(count, poll.revents != 0);
	return poll.revents;
}

static void no_call_has_to_wait(void)
{
	struct sockaddr_in addr, from;
	socklen_t len = sizeof(from);
	int error, listener = listening(&addr, 2);
	do_not_wait(listener);
	CHECK_FAILS(raccept(listener, NULL, NULL), EAGAIN);
	CHECK_INT(polled(listener, POLLIN, 0), 0);

	int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK_FAILS(rconnect(fd, (struct sockaddr *)&addr, sizeof(addr)), EINPROGRESS);
	CHECK_INT(polled(fd, POLLOUT, 10000), POLLOUT);
	socklen_t size = sizeof(error);
	CHECK_INT(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size), 0);
	CHECK_INT(error, 0);
	CHECK_INT(polled(listener, POLLIN, 10000), POLLIN);
	int passive = raccept(listener, (struct sockaddr *)&from, &len);
	CHECK(passive >= 0);
	CHECK_INT(from.sin_addr.s_addr, addr.sin_addr.s_addr);
	/* As on Linux, the accepted socket does not inherit the flag. */
	CHECK_INT(rfcntl(passive, F_GETFL) & O_NONBLOCK, 0);

	/* Sends until the buffers are full, and continues when there is room again. */
	static char bytes[100000];
	ssize_t sent, total = 0;
	do {
		while ((sent = rsend(fd, bytes, sizeof(bytes), 0)) > 0)
			total += sent;
		CHECK_INT(errno, EAGAIN);
		/* There is room again as soon as the peer has confirmed what it has room for. */
	} while (polled(fd, POLLOUT, 100));
	CHECK(total >= 100000);
	for (ssize_t got = 0; got < total;) {
		ssize_t now = rrecv(passive, bytes, sizeof(bytes), 0);
		CHECK(now > 0);
		got += now;
	}
	CHECK_INT(polled(fd, POLLIN | POLLOUT, 10000), POLLOUT);

	CHECK_INT(rclose(passive), 0);
	CHECK_INT(polled(fd, POLLIN, 10000) & POLLIN, POLLIN);
	CHECK_INT(rrecv(fd, bytes, 1, 0), 0);
	CHECK_INT(polled(fd, 0, 10000), POLLHUP);
	CHECK_INT(rclose(fd), 0);

	/* There is no listener any more. */
	CHECK_INT(rclose(listener), 0);
	fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK_FAILS(rconnect(fd, (struct sockaddr *)&addr, sizeof(addr)), EINPROGRESS);
	CHECK(polled(fd, POLLOUT, 10000) & POLLERR);
	CHECK_INT(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size), 0);
	CHECK_INT(error, ECONNREFUSED);
	CHECK_INT(rclose(fd), 0);
}

struct later {
	int fd, is_rsocket;
};

/* Wakes the main thread once it sleeps. */
static void *write_later(void *argument)
{
	struct later *later = argument;
	wait_until_asleep(getpid());
	if (later->is_rsocket)
		CHECK_INT(rsend(later->fd, "x", 1, 0), 1);
	else
		CHECK_INT(write(later->fd, "x", 1), 1);
	return NULL;
}

/* RDMA sockets of both kinds, other descriptors and an invalid one in one list. */
static void all_kinds_are_polled_together(void)
{
	struct pair pair = make_pair();
	int pipes[2];
	char byte;
	CHECK_INT(pipe(pipes), 0);
	struct pollfd fds[4] = {
		{ .fd = pair.passive, .events = POLLIN },
		{ .fd = -1, .events = POLLIN },
		{ .fd = pipes[0], .events = POLLIN },
		{ .fd = pair.active, .events = POLLIN },
	};
	CHECK_INT(rpoll(fds, 4, 0), 0);
	CHECK_INT(rpoll(fds, 4, 20), 0);
	for (int round = 0; round < 6; round++) {
		struct later later = { pair.active, 1 };
		if (round % 3 == 1)
			later = (struct later){ pipes[1], 0 };
		if (round % 3 == 2)
			later = (struct later){ pair.passive, 1 };
		int which = round % 3 == 0 ? 0 : round % 3 == 1 ? 2 : 3;
		pthread_t thread = begin(write_later, &later);
		if (round < 3) {
			CHECK_INT(rpoll(fds, 4, -1), 1);
			for (int at = 0; at < 4; at++)
				CHECK_INT(fds[at].revents, at == which ? POLLIN : 0);
		} else {
			fd_set set;
			FD_ZERO(&set);
			for (int at = 0; at < 4; at++)
				if (at != 1)
					FD_SET(fds[at].fd, &set);
			CHECK_INT(rselect(FD_SETSIZE, &set, NULL, NULL, NULL), 1);
			CHECK(FD_ISSET(fds[which].fd, &set));
		}
		CHECK_INT(pthread_join(thread, NULL), 0);
		if (which == 2)
			CHECK_INT(read(pipes[0], &byte, 1), 1);
		else
			CHECK_INT(rread(fds[which].fd, &byte, 1), 1);
	}
	struct timeval soon = { .tv_usec = 1000 };
	fd_set set;
	FD_ZERO(&set);
	FD_SET(pair.passive, &set);
	CHECK_INT(rselect(pair.passive + 1, &set, NULL, NULL, &soon), 0);
	CHECK(!FD_ISSET(pair.passive, &set));
	FD_SET(pair.passive, &set);
	CHECK_INT(rselect(pair.passive + 1, NULL, &set, NULL, NULL), 1);
	end_pair(&pair);
	fds[0].fd = pair.passive;
	CHECK_INT(rpoll(fds, 1, 0), 1);
	CHECK_INT(fds[0].revents, POLLNVAL);
}

static volatile pid_t waits_as;

/* A waiting thread returns if another thread closes its socket. */
static void *wait_in_vain(void *argument)
{
	char byte;
	int fd = *(int *)argument;
	waits_as = (pid_t)syscall(SYS_gettid);
	ssize_t got = rrecv(fd, &byte, 1, 0);
	CHECK(got == 0 || (got == -1 && errno == EBADF));
	return NULL;
}

static void who_waits_hears_of_the_end(void)
{
	struct pair pair = make_pair();
	pthread_t thread = begin(wait_in_vain, &pair.passive);
	while (!waits_as)
		sched_yield();
	wait_until_asleep(waits_as);
	int passive = pair.passive;
	/* The thread may also see the end of the stream. Both results are right, but it must not
	 * wait for ever. */
	CHECK_INT(rclose(passive), 0);
	CHECK_INT(pthread_join(thread, NULL), 0);
	CHECK_INT(rclose(pair.active), 0);
	CHECK_INT(rclose(pair.listener), 0);
}

static void pieces_and_peeks(void)
{
	struct pair pair = make_pair();
	char a[3], b[5], c[32];
	struct iovec out[3] = { { "abc", 3 }, { NULL, 0 }, { "defgh", 5 } };
	struct iovec in[2] = { { a, 3 }, { b, 5 } };
	CHECK_INT(rwritev(pair.active, out, 3), 8);
	CHECK_INT(polled(pair.passive, POLLIN, 10000), POLLIN);
	CHECK_INT(rrecv(pair.passive, c, sizeof(c), MSG_PEEK), 8);
	CHECK(!memcmp(c, "abcdefgh", 8));
	CHECK_INT(rreadv(pair.passive, in, 2), 8);
	CHECK(!memcmp(a, "abc", 3) && !memcmp(b, "defgh", 5));
	struct msghdr msg = { .msg_iov = out, .msg_iovlen = 3 };
	CHECK_INT(rsendmsg(pair.passive, &msg, 0), 8);
	msg.msg_iov = in;
	msg.msg_iovlen = 2;
	CHECK_INT(rrecvmsg(pair.active, &msg, MSG_WAITALL), 8);
	CHECK(!memcmp(a, "abc", 3) && !memcmp(b, "defgh", 5));
	CHECK_FAILS(rreadv(pair.active, in, -1), EINVAL);
	end_pair(&pair);
}

static int get_option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);
	CHECK_INT(rgetsockopt(fd, level, name, &value, &len), 0);
	CHECK_INT(len, sizeof(value));
	return value;
}

static void set_option(int fd, int level, int name, int value)
{
	CHECK_INT(rsetsockopt(fd, level, name, &value, sizeof(value)), 0);
}

static void options_are_kept(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), one = 1;
	CHECK_INT(get_option(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
	set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	CHECK_INT(get_option(fd, SOL_SOCKET, SO_REUSEADDR), 1);
	set_option(fd, SOL_SOCKET, SO_SNDBUF, 50000);
	CHECK_INT(get_option(fd, SOL_SOCKET, SO_SNDBUF), 100000);
	set_option(fd, SOL_SOCKET, SO_RCVBUF, 30000);
	CHECK_INT(get_option(fd, SOL_SOCKET, SO_RCVBUF), 60000);
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	CHECK_INT(get_option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
	set_option(fd, SOL_RDMA, RDMA_SQSIZE, 100);
	CHECK_INT(get_option(fd, SOL_RDMA, RDMA_SQSIZE), 100);
	set_option(fd, SOL_RDMA, RDMA_RQSIZE, 50);
	CHECK_INT(get_option(fd, SOL_RDMA, RDMA_RQSIZE), 50);
	set_option(fd, SOL_RDMA, RDMA_INLINE, 0);
	CHECK_INT(get_option(fd, SOL_RDMA, RDMA_INLINE), 0);
	set_option(fd, SOL_RDMA, RDMA_IOMAPSIZE, 300);
	CHECK_INT(get_option(fd, SOL_RDMA, RDMA_IOMAPSIZE), 256);
	CHECK_FAILS(rsetsockopt(fd, SOL_RDMA, 99, &one, sizeof(one)), ENOPROTOOPT);
	CHECK_FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, 1), EINVAL);
	CHECK_FAILS(rsetsockopt(fd, 77, 0, &one, sizeof(one)), ENOPROTOOPT);

	/* Data arrive with small queues and buffers and without inline data, too. */
	struct sockaddr_in addr;
	int listener = listening(&addr, 1);
	set_option(listener, SOL_RDMA, RDMA_RQSIZE, 1);
	CHECK_INT(rconnect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &one, sizeof(one)), EINVAL);
	int passive = raccept(listener, NULL, NULL);
	struct stream stream = { fd, 500000 };
	pthread_t thread = begin(send_all, &stream);
	receive_all(passive, stream.len);
	CHECK_INT(pthread_join(thread, NULL), 0);
	char path[512];
	socklen_t len = sizeof(path);
	CHECK_INT(rgetsockopt(fd, SOL_RDMA, RDMA_ROUTE, path, &len), 0);
	CHECK_INT(len, 72);

	/* The call fails after the time limit. */
	struct timeval limit = { .tv_usec = 20000 };
	CHECK_INT(rsetsockopt(passive, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	CHECK_FAILS(rrecv(passive, path, 1, 0), EAGAIN);
	CHECK_INT(rclose(fd), 0);
	CHECK_INT(rclose(passive), 0);
	CHECK_INT(rclose(listener), 0);
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* A thread opens some descriptors when it first waits for another one, which may be late. A leak
 * would be of one for each connection. */
#define A_FEW 12

static long resident_kb(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long size, resident;
	CHECK_INT(fscanf(file, "%ld %ld", &size, &resident), 2);
	fclose(file);
	return resident * 4;
}

/* Thousands of successive connections leave no resources behind. */
static void connections_leave_nothing(void)
{
	struct sockaddr_in addr;
	int listener = listening(&addr, 4), before = 0;
	long resident = 0;
	char byte;
	for (int round = 0; round < 2000; round++) {
		int active = connected_to(&addr);
		int passive = raccept(listener, NULL, NULL);
		CHECK(passive >= 0);
		CHECK_INT(rsend(active, "x", 1, 0), 1);
		CHECK_INT(rrecv(passive, &byte, 1, 0), 1);
		CHECK_INT(rclose(round % 2 ? active : passive), 0);
		CHECK_INT(rclose(round % 2 ? passive : active), 0);
		if (round == 500) {
			before = descriptors();
			resident = resident_kb();
		}
	}
	CHECK(descriptors() < before + A_FEW);
	/* Less than a kilobyte per connection. */
	CHECK(resident_kb() - resident < 2000);
	CHECK_INT(rclose(listener), 0);
}

/* More simultaneous connections than the backlog: all of them are established in the end. */
static void a_backlog_is_no_limit(void)
{
	enum { COUNT = 20 };
	struct sockaddr_in addr;
	int active[COUNT], passive[COUNT], listener = listening(&addr, 2);
	for (int at = 0; at < COUNT; at++) {
		active[at] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK_FAILS(rconnect(active[at], (struct sockaddr *)&addr, sizeof(addr)), EINPROGRESS);
	}
	for (int at = 0; at < COUNT; at++)
		CHECK((passive[at] = raccept(listener, NULL, NULL)) >= 0);
	for (int at = 0; at < COUNT; at++) {
		CHECK_INT(polled(active[at], POLLOUT, 10000), POLLOUT);
		CHECK_INT(rsend(active[at], "x", 1, 0), 1);
	}
	for (int at = 0; at < COUNT; at++) {
		char byte;
		CHECK_INT(rrecv(passive[at], &byte, 1, 0), 1);
		CHECK_INT(rclose(passive[at]), 0);
		CHECK_INT(rclose(active[at]), 0);
	}

	/* Connections that were not accepted end with the listener. */
	int lonely = connected_to(&addr);
	CHECK_INT(rclose(listener), 0);
	char byte;
	CHECK_INT(rrecv(lonely, &byte, 1, 0), 0);
	CHECK_INT(rclose(lonely), 0);
}

static void *accept_one(void *listener)
{
	int fd = raccept(*(int *)listener, NULL, NULL);
	CHECK(fd >= 0);
	return NULL;
}

/* A thread that waits for connections can be cancelled, as in accept(2), and leaves no resources
 * behind. */
static void who_accepts_is_cancelled(void)
{
	struct sockaddr_in addr;
	int listener = listening(&addr, 4), before = 0;
	void *ended;
	for (int round = 0; round < 50; round++) {
		pthread_t thread = begin(accept_one, &listener);
		/* Some threads are cancelled before they wait, most while they wait. */
		if (round % 5)
			usleep(2000);
		CHECK_INT(pthread_cancel(thread), 0);
		CHECK_INT(pthread_join(thread, &ended), 0);
		CHECK(ended == PTHREAD_CANCELED);
		if (round == 10)
			before = descriptors();
	}
	CHECK(descriptors() < before + A_FEW);
	/* The listener still works. */
	int active = connected_to(&addr), passive = raccept(listener, NULL, NULL);
	CHECK(passive >= 0);
	pthread_t thread = begin(accept_one, &listener);
	int second = connected_to(&addr);
	CHECK_INT(pthread_join(thread, &ended), 0);
	CHECK(!ended);
	CHECK_INT(rclose(active), 0);
	CHECK_INT(rclose(passive), 0);
	CHECK_INT(rclose(second), 0);
	CHECK_INT(rclose(listener), 0);
}

static void memory_is_written_directly(void)
{
	struct sockaddr_in addr;
	int listener = listening(&addr, 1);
	int active = rsocket(AF_INET, SOCK_STREAM, 0);
	set_option(active, SOL_RDMA, RDMA_IOMAPSIZE, 2);
	CHECK_INT(rconnect(active, (struct sockaddr *)&addr, sizeof(addr)), 0);
	int passive = raccept(listener, NULL, NULL);
	static char target[200000], bytes[100000];
	memset(bytes, 7, sizeof(bytes));
	/* The iomap list of the connecting side has two entries, and that of the other side has
	 * none. */
	CHECK_FAILS(riomap(active, target, 100, PROT_WRITE, 0, 0), ENOMEM);
	CHECK_FAILS(riomap(passive, target, 100, PROT_READ, 0, 0), EINVAL);
	CHECK_INT(riomap(passive, target, 150000, PROT_WRITE, 0, 4096), 4096);
	CHECK_INT(riomap(passive, target + 150000, 50000, PROT_WRITE, 0, -1),
		  (long)(target + 150000));
	CHECK_FAILS(riomap(passive, target, 10, PROT_WRITE, 0, 0), ENOMEM);
	CHECK_INT(rsend(passive, "mapped", 6, 0), 6);
	CHECK_INT(rrecv(active, bytes, 6, MSG_WAITALL), 6);
	memset(bytes, 7, sizeof(bytes));
	CHECK_INT(riowrite(active, bytes, sizeof(bytes), 4096 + 10, 0), sizeof(bytes));
	CHECK_INT(riowrite(active, bytes, 10, 0, 0), 0);
	/* A write ends at the end of the range. */
	CHECK_INT(riowrite(active, bytes, 100, 4096 + 150000 - 40, 0), 40);
	CHECK_INT(riowrite(active, bytes, 50, (long)(target + 150000), 0), 50);
	CHECK_INT(rsend(active, "done", 4, 0), 4);
	CHECK_INT(rrecv(passive, bytes, 4, MSG_WAITALL), 4);
	for (int at = 0; at < (int)sizeof(target); at++) {
		int written = (at >= 10 && at < 100010) || (at >= 150000 - 40 && at < 150050);
		CHECK_INT(target[at], written ? 7 : 0);
	}
	CHECK_INT(riounmap(passive, target, 150000), 0);
	CHECK_FAILS(riounmap(passive, target, 150000), EINVAL);
	CHECK_INT(riomap(passive, target, 10, PROT_WRITE, 0, 0), 0);
	CHECK_INT(rclose(active), 0);
	CHECK_INT(rclose(passive), 0);
	CHECK_INT(rclose(listener), 0);
}

/* A peer that uses the connection manager, but not the protocol. */
static struct rdma_cm_id *foreign_id(struct sockaddr_in *addr, const void *data, int len, int expected)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .private_data = data, .private_data_len = len,
					 .retry_count = 7, .rnr_retry_count = 7 };
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	struct rdma_cm_id *id;
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)addr, 2000), 0);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_INT(rdma_resolve_route(id, 2000), 0);
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
	CHECK_INT(rdma_connect(id, &param), 0);
	pass(channel, expected);
	return id;
}

static void end_foreign_id(struct rdma_cm_id *id)
{
	struct rdma_event_channel *channel = id->channel;
	rdma_destroy_qp(id);
	CHECK_INT(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

/* Private data of the protocol, for memory that is never written. */
static void private_data(unsigned char *data)
{
	memset(data, 0, 40);
	data[0] = 1;
	data[3] = 16;
	data[8 + 15] = 2;
	data[24 + 13] = 1;
}

/* Invalid peers are rejected or end their own connection. Other connections are not affected. */
static void foreign_connections_do_no_harm(void)
{
	struct pair pair = make_pair();
	unsigned char data[56];
	char byte;
	private_data(data);
	int lengths[] = { 0, 8, 20 };
	for (int at = 0; at < 3; at++)
		end_foreign_id(foreign_id(&pair.addr, data, lengths[at], RDMA_CM_EVENT_REJECTED));
	data[0] = 2;
	end_foreign_id(foreign_id(&pair.addr, data, 40, RDMA_CM_EVENT_REJECTED));

	/* More data than granted, more credits than receives, and a list entry that does not exist.
	 */
	uint32_t wrong[] = { 0x1fffffff, 0x80004000, 0xc0000005 };
	for (int at = 0; at < 3; at++) {
		private_data(data);
		struct rdma_cm_id *id = foreign_id(&pair.addr, data, 40, RDMA_CM_EVENT_ESTABLISHED);
		int victim = raccept(pair.listener, NULL, NULL);
		CHECK(victim >= 0);
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
					  .imm_data = htonl(wrong[at]) }, *bad;
		CHECK_INT(ibv_post_send(id->qp, &wr, &bad), 0);
		CHECK_FAILS(rrecv(victim, &byte, 1, 0), ECONNRESET);
		CHECK_INT(rrecv(victim, &byte, 1, 0), 0);
		CHECK_INT(rclose(victim), 0);
		end_foreign_id(id);
	}
	CHECK_INT(rsend(pair.active, "x", 1, 0), 1);
	CHECK_INT(rrecv(pair.passive, &byte, 1, 0), 1);
	end_pair(&pair);
}

static int bound_datagrams(struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(fd >= 0);
	*addr = at_port(0);
	CHECK_INT(rbind(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	CHECK_INT(rgetsockname(fd, (struct sockaddr *)addr, &len), 0);
	return fd;
}

/* Datagrams arrive whole, with the address of their sender. The first ones go over UDP, and the
 * others over queue pairs. */
static void datagrams_arrive_whole(void)
{
	struct sockaddr_in a, b, from;
	int one = bound_datagrams(&a), other = bound_datagrams(&b);
	static char out[3000], in[3000];
	socklen_t len;
	CHECK_FAILS(rrecv(one, in, 10, MSG_DONTWAIT), EAGAIN);
	CHECK_FAILS(rsend(one, out, 10, 0), EDESTADDRREQ);
	CHECK_FAILS(rsendto(one, out, 2500, 0, (struct sockaddr *)&b, sizeof(b)), EMSGSIZE);
	for (int round = 0; round < 200; round++) {
		int size = round * 7 % 1500;
		memset(out, round, size);
		CHECK_INT(rsendto(one, out, size, 0, (struct sockaddr *)&b, sizeof(b)), size);
		CHECK_INT(polled(other, POLLIN, 10000), POLLIN);
		len = sizeof(from);
		memset(in, ~round, sizeof(in));
		CHECK_INT(rrecvfrom(other, in, sizeof(in), 0, (struct sockaddr *)&from, &len), size);
		CHECK(!memcmp(in, out, size));
		CHECK_INT(from.sin_port, a.sin_port);
		CHECK_INT(from.sin_addr.s_addr, a.sin_addr.s_addr);
		CHECK_INT(rsendto(other, out, size, 0, (struct sockaddr *)&from, len), size);
		CHECK_INT(rrecv(one, in, sizeof(in), 0), size);
	}
	/* Bytes beyond the buffer are lost. */
	CHECK_INT(rconnect(one, (struct sockaddr *)&b, sizeof(b)), 0);
	CHECK_INT(rsend(one, "abcdef", 6, 0), 6);
	CHECK_INT(rrecv(other, in, 3, MSG_PEEK), 3);
	CHECK_INT(rrecv(other, in, 3, 0), 3);
	CHECK_FAILS(rrecv(other, in, 3, MSG_DONTWAIT), EAGAIN);
	CHECK_INT(rclose(one), 0);
	CHECK_INT(rclose(other), 0);
}

/* Invalid packets on the UDP socket are ignored. */
static void datagrams_of_others_are_ignored(void)
{
	struct sockaddr_in a, b;
	int one = bound_datagrams(&a), other = bound_datagrams(&b);
	int plain = socket(AF_INET, SOCK_DGRAM, 0);
	unsigned char bytes[64];
	for (int round = 0; round < 300; round++) {
		for (int at = 0; at < 64; at++)
			bytes[at] = rand();
		if (round % 2)
			memcpy(bytes, "UUUU\x04\x00\x10", 7);
		if (round % 4 == 3)
			bytes[5] = 7;
		CHECK(sendto(plain, bytes, round % 64, 0, (struct sockaddr *)&b, sizeof(b)) >= 0);
	}
	/* The flood may have filled the socket, so the datagram is sent again if it is lost. */
	char in[4096];
	struct sockaddr_in from = { .sin_port = 0 };
	while (from.sin_port != a.sin_port) {
		socklen_t len = sizeof(from);
		CHECK_INT(rsendto(one, "x", 1, 0, (struct sockaddr *)&b, sizeof(b)), 1);
		if (polled(other, POLLIN, 100))
			CHECK(rrecvfrom(other, in, sizeof(in), 0, (struct sockaddr *)&from, &len) >= 0);
	}
	CHECK_INT(in[0], 'x');
	close(plain);
	CHECK_INT(rclose(one), 0);
	CHECK_INT(rclose(other), 0);
}

static const struct test_case cases[] = {
	{ "what_was_written_arrives", what_was_written_arrives },
	{ "half_of_it_is_closed", half_of_it_is_closed },
	{ "threads_share_a_socket", threads_share_a_socket },
	{ "errors_are_those_of_tcp", errors_are_those_of_tcp },
	{ "gids_are_addresses", gids_are_addresses },
	{ "no_call_has_to_wait", no_call_has_to_wait },
	{ "all_kinds_are_polled_together", all_kinds_are_polled_together },
	{ "who_waits_hears_of_the_end", who_waits_hears_of_the_end },
	{ "pieces_and_peeks", pieces_and_peeks },
	{ "options_are_kept", options_are_kept },
	{ "connections_leave_nothing", connections_leave_nothing },
	{ "a_backlog_is_no_limit", a_backlog_is_no_limit },
	{ "who_accepts_is_cancelled", who_accepts_is_cancelled },
	{ "memory_is_written_directly", memory_is_written_directly },
	{ "foreign_connections_do_no_harm", foreign_connections_do_no_harm },
	{ "datagrams_arrive_whole", datagrams_arrive_whole },
	{ "datagrams_of_others_are_ignored", datagrams_of_others_are_ignored },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	return run_cm_case(cases, argc, argv);
}
