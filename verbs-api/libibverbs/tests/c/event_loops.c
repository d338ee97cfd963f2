/* Programs that wait for the descriptor of a channel with the calls of the system. */
#include "event_loop.h"

#include <linux/io_uring.h>
#include <sys/prctl.h>
#include <sys/select.h>

enum { WRITES = 300, SKIPPED = 77 };

static void by_poll(struct side *side)
{
	while (!is_over(side)) {
		struct pollfd fd = { .fd = fd_of(side), .events = POLLIN };
		CHECK_INT(poll(&fd, 1, -1), 1);
		on_readable(side);
	}
}

static void by_select(struct side *side)
{
	while (!is_over(side)) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd_of(side), &set);
		CHECK_INT(select(fd_of(side) + 1, &set, NULL, NULL, NULL), 1);
		on_readable(side);
	}
}

static void by_epoll(struct side *side, uint32_t events)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = events };
	CHECK(epoll >= 0);
	CHECK_INT(epoll_ctl(epoll, EPOLL_CTL_ADD, fd_of(side), &event), 0);
	while (!is_over(side)) {
		CHECK_INT(epoll_wait(epoll, &event, 1, -1), 1);
		on_readable(side);
	}
	CHECK_INT(close(epoll), 0);
}

static void by_level(struct side *side) { by_epoll(side, EPOLLIN); }
static void by_edge(struct side *side) { by_epoll(side, EPOLLIN | EPOLLET); }

/* One event follows each request for one, so that this program need not look for a second one. */
static void by_edge_once(struct side *side)
{
	side->once = true;
	by_epoll(side, EPOLLIN | EPOLLET);
}

static void by_one_shot(struct side *side)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT };
	CHECK_INT(epoll_ctl(epoll, EPOLL_CTL_ADD, fd_of(side), &event), 0);
	while (!is_over(side)) {
		struct epoll_event ready;
		CHECK_INT(epoll_wait(epoll, &ready, 1, -1), 1);
		on_readable(side);
		CHECK_INT(epoll_ctl(epoll, EPOLL_CTL_MOD, fd_of(side), &event), 0);
	}
	CHECK_INT(close(epoll), 0);
}

/* A ring of io_uring with one entry at a time. */
struct uring {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail;
	struct io_uring_sqe *sqes;
};

static void *map_ring(int fd, size_t size, off_t offset)
{
	void *ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
	CHECK(ring != MAP_FAILED);
	return ring;
}

static struct uring open_uring(void)
{
	struct io_uring_params p = { 0 };
	struct uring ring = { .fd = syscall(SYS_io_uring_setup, 4, &p) };
	if (ring.fd < 0 && (errno == ENOSYS || errno == EPERM)) {
		fprintf(stderr, "the system does not allow io_uring\n");
		_exit(SKIPPED);
	}
	CHECK(ring.fd >= 0);
	char *sq = map_ring(ring.fd, p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	char *cq = map_ring(ring.fd, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe),
			    IORING_OFF_CQ_RING);
	ring.sqes = map_ring(ring.fd, p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
	ring.sq_tail = (unsigned *)(sq + p.sq_off.tail);
	ring.sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
	ring.sq_array = (unsigned *)(sq + p.sq_off.array);
	ring.cq_head = (unsigned *)(cq + p.cq_off.head);
	ring.cq_tail = (unsigned *)(cq + p.cq_off.tail);
	return ring;
}

static void by_io_uring(struct side *side)
{
	struct uring ring = open_uring();
	while (!is_over(side)) {
		unsigned index = *ring.sq_tail & *ring.sq_mask;
		ring.sqes[index] = (struct io_uring_sqe){ .opcode = IORING_OP_POLL_ADD,
							   .fd = fd_of(side),
							   .poll32_events = POLLIN };
		ring.sq_array[index] = index;
		__atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
		CHECK_INT(syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
		CHECK_INT(__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) - *ring.cq_head, 1);
		__atomic_store_n(ring.cq_head, *ring.cq_head + 1, __ATOMIC_RELEASE);
		on_readable(side);
	}
	CHECK_INT(close(ring.fd), 0);
}

/* A child has copies of all descriptors. It closes some, and lives until the parent has ended. */
static void across_fork(struct side *side)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK_INT(close(fd_of(side)), 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	by_level(side);
	CHECK_INT(kill(child, SIGKILL), 0);
	CHECK_INT(waitpid(child, NULL, 0), child);
}

static void write_to_peer(struct side *side)
{
	for (int i = 0; i < WRITES; i++) {
		struct ibv_sge sge = { (uintptr_t)side->r.buffer, 64, side->r.mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		wr.wr.rdma.remote_addr = side->shared->address[!side->self] + 4096;
		wr.wr.rdma.rkey = side->shared->rkey[!side->self];
		CHECK_INT(ibv_post_send(side->r.a, &wr, &bad), 0);
		CHECK_INT(next_completion(side->r.cq).status, IBV_WC_SUCCESS);
	}
	atomic_store(&side->shared->over, true);
}

/* Packets that bring no event make a descriptor readable only where the program can be told so. */
static void (*prepare)(struct side *);

static void written_to(void *memory, int self)
{
	struct side side = open_side(memory, self);
	if (!self)
		prepare(&side);
	pthread_barrier_wait(&side.shared->barrier);
	if (self)
		write_to_peer(&side);
	else
		while (!atomic_load(&side.shared->over))
			CHECK(!is_readable(fd_of(&side)));
	pthread_barrier_wait(&side.shared->barrier);
}

static void be_blocking(struct side *side)
{
	set_blocking(fd_of(side), true);
	CHECK_INT(ibv_req_notify_cq(side->r.cq, 0), 0);
}

static void be_blocking_again(struct side *side)
{
	CHECK_INT(ibv_req_notify_cq(side->r.cq, 0), 0);
	CHECK(!take_event(side));
	be_blocking(side);
}

static void be_unarmed(struct side *side)
{
	CHECK(!take_event(side));
}

static void never_readable(void (*way)(struct side *))
{
	prepare = way;
	in_processes(2, "udp", sizeof(struct shared), written_to);
	in_processes(2, "shm", sizeof(struct shared), written_to);
}

static void poll_waits(void) { on_both_links(by_poll); }
static void select_waits(void) { on_both_links(by_select); }
static void epoll_waits_by_level(void) { on_both_links(by_level); }
static void epoll_waits_by_edge(void) { on_both_links(by_edge); }
static void epoll_waits_by_edge_for_one_event(void) { on_both_links(by_edge_once); }
static void epoll_waits_once(void) { on_both_links(by_one_shot); }
static void io_uring_waits(void) { on_both_links(by_io_uring); }
static void a_child_has_copies(void) { on_both_links(across_fork); }
static void a_blocking_channel_is_readable_with_events_only(void) { never_readable(be_blocking); }
static void a_channel_that_blocks_again(void) { never_readable(be_blocking_again); }
static void a_channel_without_a_request(void) { never_readable(be_unarmed); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "poll_waits", poll_waits },
		{ "select_waits", select_waits },
		{ "epoll_waits_by_level", epoll_waits_by_level },
		{ "epoll_waits_by_edge", epoll_waits_by_edge },
		{ "epoll_waits_by_edge_for_one_event", epoll_waits_by_edge_for_one_event },
		{ "epoll_waits_once", epoll_waits_once },
		{ "io_uring_waits", io_uring_waits },
		{ "a_child_has_copies", a_child_has_copies },
		{ "a_blocking_channel_is_readable_with_events_only",
		  a_blocking_channel_is_readable_with_events_only },
		{ "a_channel_that_blocks_again", a_channel_that_blocks_again },
		{ "a_channel_without_a_request", a_channel_without_a_request },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
