/* Waiting for events behaves like read(2) of the descriptor (CQ-08, CQ-14, AEV-12). */
#include "rig.h"

/* A QP in ERR completes a receive at once, so that an armed CQ has its event when this returns. */
static void make_cq_event(struct rig *r)
{
	CHECK_INT(ibv_req_notify_cq(r->cq, 0), 0);
	post_receive(r, 1);
	CHECK_INT(next_completion(r->cq).status, IBV_WC_WR_FLUSH_ERR);
}

/* An empty send queue is drained as soon as it enters SQD. */
static void make_async_event(struct rig *r)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	CHECK_INT(ibv_modify_qp(r->a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_INT(ibv_modify_qp(r->a, &attr, IBV_QP_STATE), 0);
}

static struct rig open_in_error(void)
{
	struct rig r = rig_open();
	to_error(r.b);
	return r;
}

static int get_cq_event(struct rig *r)
{
	struct ibv_cq *cq;
	void *cookie;
	int status = ibv_get_cq_event(r->channel, &cq, &cookie);
	if (status == 0) {
		CHECK(cq == r->cq);
		ibv_ack_cq_events(cq, 1);
	}
	return status;
}

static int get_async_event(struct rig *r)
{
	struct ibv_async_event event;
	int status = ibv_get_async_event(r->context, &event);
	if (status == 0) {
		CHECK_INT(event.event_type, IBV_EVENT_SQ_DRAINED);
		CHECK(event.element.qp == r->a);
		ibv_ack_async_event(&event);
	}
	return status;
}

/* The two kinds of events: CQ and asynchronous. */
struct kind {
	void (*make)(struct rig *r);
	int (*get)(struct rig *r);
};

static const struct kind kinds[] = { { make_cq_event, get_cq_event },
				     { make_async_event, get_async_event } };

static int descriptor(struct rig *r, const struct kind *kind)
{
	return kind->get == get_cq_event ? r->channel->fd : r->context->async_fd;
}

static volatile sig_atomic_t handled;

static void handler(int signal)
{
	(void)signal;
	handled++;
}

static void handle_sigusr1(int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	handled = 0;
	CHECK_INT(sigaction(SIGUSR1, &action, NULL), 0);
}

struct waiter {
	struct rig *rig;
	const struct kind *kind;
	volatile pid_t tid;
	int status, error;
	volatile int done;
	pthread_t thread;
};

static void *wait_for_event(void *argument)
{
	struct waiter *waiter = argument;
	waiter->tid = syscall(SYS_gettid);
	waiter->status = waiter->kind->get(waiter->rig);
	waiter->error = errno;
	waiter->done = 1;
	return NULL;
}

/* Returns when the thread sleeps in its verb. */
static void start_waiter(struct waiter *waiter, struct rig *r, const struct kind *kind)
{
	*waiter = (struct waiter){ .rig = r, .kind = kind };
	CHECK_INT(pthread_create(&waiter->thread, NULL, wait_for_event, waiter), 0);
	while (!waiter->tid)
		usleep(100);
	wait_until_asleep(waiter->tid);
}

/* With SA_RESTART the verb keeps waiting after each signal. */
static void restarts_after_a_signal(void)
{
	struct rig r = open_in_error();
	handle_sigusr1(SA_RESTART);
	for (int i = 0; i < 2; i++) {
		struct waiter waiter;
		start_waiter(&waiter, &r, &kinds[i]);
		for (int signals = 0; signals < 20; signals++) {
			int before = handled;
			CHECK_INT(pthread_kill(waiter.thread, SIGUSR1), 0);
			while (handled == before)
				usleep(100);
			/* Fails if the thread is gone. */
			wait_until_asleep(waiter.tid);
		}
		kinds[i].make(&r);
		CHECK_INT(pthread_join(waiter.thread, NULL), 0);
		CHECK_INT(waiter.status, 0);
	}
	rig_close(&r);
}

/* Without SA_RESTART it fails with EINTR, and no event is lost. */
static void fails_after_a_signal_without_restart(void)
{
	struct rig r = open_in_error();
	handle_sigusr1(0);
	for (int i = 0; i < 2; i++) {
		struct waiter waiter;
		start_waiter(&waiter, &r, &kinds[i]);
		/* The first signal may come before the verb waits. */
		while (!waiter.done) {
			pthread_kill(waiter.thread, SIGUSR1);
			usleep(1000);
		}
		CHECK_INT(pthread_join(waiter.thread, NULL), 0);
		CHECK_INT(waiter.status, -1);
		CHECK_INT(waiter.error, EINTR);
		start_waiter(&waiter, &r, &kinds[i]);
		kinds[i].make(&r);
		CHECK_INT(pthread_join(waiter.thread, NULL), 0);
		CHECK_INT(waiter.status, 0);
	}
	rig_close(&r);
}

/* If a program has handlers of both kinds, each keeps its effect. */
static void each_handler_has_its_effect(void)
{
	struct rig r = open_in_error();
	handle_sigusr1(SA_RESTART);
	struct sigaction action = { .sa_handler = handler };
	CHECK_INT(sigaction(SIGUSR2, &action, NULL), 0);
	for (int i = 0; i < 2; i++) {
		struct waiter waiter;
		start_waiter(&waiter, &r, &kinds[i]);
		for (int signals = 0; signals < 20; signals++) {
			int before = handled;
			CHECK_INT(pthread_kill(waiter.thread, SIGUSR1), 0);
			while (handled == before)
				usleep(100);
			wait_until_asleep(waiter.tid);
		}
		CHECK_INT(waiter.done, 0);
		CHECK_INT(pthread_kill(waiter.thread, SIGUSR2), 0);
		CHECK_INT(pthread_join(waiter.thread, NULL), 0);
		CHECK_INT(waiter.status, -1);
		CHECK_INT(waiter.error, EINTR);
	}
	rig_close(&r);
}

/* Each event is an edge, whether or not the previous event was read. */
static void each_event_is_an_edge(void)
{
	struct rig r = open_in_error();
	for (int i = 0; i < 2; i++) {
		int fd = descriptor(&r, &kinds[i]);
		int epoll = epoll_create1(EPOLL_CLOEXEC);
		struct epoll_event wanted = { .events = EPOLLIN | EPOLLET }, got;
		CHECK_INT(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &wanted), 0);
		for (int events = 0; events < 5; events++) {
			CHECK_INT(epoll_wait(epoll, &got, 1, 0), 0);
			kinds[i].make(&r);
			CHECK_INT(epoll_wait(epoll, &got, 1, 0), 1);
			CHECK(got.events & EPOLLIN);
			CHECK(is_readable(fd));
		}
		set_nonblocking(fd);
		for (int events = 0; events < 5; events++) {
			CHECK(is_readable(fd));
			CHECK_INT(kinds[i].get(&r), 0);
		}
		CHECK(!is_readable(fd));
		CHECK_INT(kinds[i].get(&r), -1);
		CHECK_INT(errno, EAGAIN);
		CHECK_INT(epoll_wait(epoll, &got, 1, 0), 0);
		kinds[i].make(&r);
		CHECK_INT(epoll_wait(epoll, &got, 1, 0), 1);
		CHECK_INT(kinds[i].get(&r), 0);
		CHECK_INT(epoll_wait(epoll, &got, 1, 0), 0);
		close(epoll);
	}
	rig_close(&r);
}

/* O_NONBLOCK belongs to the open file description, so a duplicate descriptor sets and clears it
 * too. */
static void a_copy_sets_the_mode(void)
{
	struct rig r = open_in_error();
	for (int i = 0; i < 2; i++) {
		int copy = dup(descriptor(&r, &kinds[i]));
		set_nonblocking(copy);
		CHECK_INT(kinds[i].get(&r), -1);
		CHECK_INT(errno, EAGAIN);
		CHECK_INT(fcntl(copy, F_SETFL, fcntl(copy, F_GETFL) & ~O_NONBLOCK), 0);
		close(copy);
		struct waiter waiter;
		start_waiter(&waiter, &r, &kinds[i]);
		kinds[i].make(&r);
		CHECK_INT(pthread_join(waiter.thread, NULL), 0);
		CHECK_INT(waiter.status, 0);
	}
	rig_close(&r);
}

/* Threads that wait at the same time get one event each, and so do threads that start waiting
 * later. */
static void every_waiter_gets_its_event(void)
{
	enum { WAITERS = 4, ROUNDS = 50 };
	struct rig r = open_in_error();
	for (int i = 0; i < 2; i++) {
		struct waiter waiters[WAITERS];
		for (int round = 0; round < ROUNDS; round++) {
			for (int w = 0; w < WAITERS; w++)
				start_waiter(&waiters[w], &r, &kinds[i]);
			for (int w = 0; w <= WAITERS; w++)
				kinds[i].make(&r);
			CHECK_INT(kinds[i].get(&r), 0);
			for (int w = 0; w < WAITERS; w++) {
				CHECK_INT(pthread_join(waiters[w].thread, NULL), 0);
				CHECK_INT(waiters[w].status, 0);
			}
			CHECK(!is_readable(descriptor(&r, &kinds[i])));
		}
	}
	rig_close(&r);
}

/* The events of a destroyed CQ are discarded, and wake no thread. */
static void events_go_with_their_cq(void)
{
	struct rig r = open_in_error();
	struct ibv_cq *cq = ibv_create_cq(r.context, 16, NULL, r.channel, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = small_qp(cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	to_init(qp);
	to_error(qp);
	struct ibv_recv_wr wr = { 0 }, *bad;
	for (int events = 0; events < 3; events++) {
		CHECK_INT(ibv_req_notify_cq(cq, 0), 0);
		CHECK_INT(ibv_post_recv(qp, &wr, &bad), 0);
	}
	CHECK(is_readable(r.channel->fd));
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	CHECK(!is_readable(r.channel->fd));
	struct waiter waiter;
	start_waiter(&waiter, &r, &kinds[0]);
	make_cq_event(&r);
	CHECK_INT(pthread_join(waiter.thread, NULL), 0);
	CHECK_INT(waiter.status, 0);
	rig_close(&r);
}

/* A program that reads the descriptor itself takes no event, and blocks no thread. That of a CQ's
 * channel cannot be read, and the other one is not readable any more. */
static void reading_the_descriptor_does_no_harm(void)
{
	struct rig r = open_in_error();
	for (int i = 0; i < 2; i++) {
		uint64_t value;
		for (int round = 0; round < 3; round++) {
			kinds[i].make(&r);
			if (kinds[i].get == get_cq_event) {
				CHECK_INT(read(descriptor(&r, &kinds[i]), &value, 8), -1);
				CHECK_INT(errno, EINVAL);
			} else {
				CHECK_INT(read(descriptor(&r, &kinds[i]), &value, 8), 8);
			}
			CHECK_INT(kinds[i].get(&r), 0);
		}
		kinds[i].make(&r);
		CHECK(is_readable(descriptor(&r, &kinds[i])));
		CHECK_INT(kinds[i].get(&r), 0);
		CHECK(!is_readable(descriptor(&r, &kinds[i])));
	}
	rig_close(&r);
}

/* A thread that waits for the next event and never returns. */
struct late_call {
	struct ibv_comp_channel *channel;
	struct ibv_context *context;
	volatile pid_t tid;
};

static void *call_for_good(void *argument)
{
	struct late_call *call = argument;
	call->tid = syscall(SYS_gettid);
	struct ibv_async_event event;
	struct ibv_cq *cq;
	void *cookie;
	int status = call->channel ? ibv_get_cq_event(call->channel, &cq, &cookie) :
				     ibv_get_async_event(call->context, &event);
	fprintf(stderr, "came back with %d, errno %d\n", status, errno);
	_exit(1);
}

/* Overwrites freed memory. */
static void use_freed_memory(void)
{
	for (int i = 0; i < 4096; i++) {
		size_t length = 8 + i % 2048;
		memset(malloc(length), 0xff, length);
	}
}

static void start_late_call(struct late_call *call)
{
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, call_for_good, call), 0);
}

static struct late_call something_to_wait_at(struct ibv_context *context, int of_device)
{
	struct late_call call = { 0 };
	if (of_device)
		call.context = open_device();
	else
		call.channel = ibv_create_comp_channel(context);
	CHECK(call.context || call.channel);
	return call;
}

static void end_it(const struct late_call *call)
{
	CHECK_INT(call->channel ? ibv_destroy_comp_channel(call->channel) :
				  ibv_close_device(call->context), 0);
}

/* A late call sleeps, as in read(2) from a descriptor that another thread closes. If the descriptor
 * is non-blocking, the call fails. */
static void a_call_comes_too_late(void)
{
	struct ibv_context *context = open_device();
	for (int of_device = 0; of_device < 2; of_device++) {
		static struct late_call sleeps[2];
		sleeps[of_device] = something_to_wait_at(context, of_device);
		end_it(&sleeps[of_device]);
		use_freed_memory();
		start_late_call(&sleeps[of_device]);
		while (!sleeps[of_device].tid)
			sched_yield();
		wait_until_asleep(sleeps[of_device].tid);

		struct late_call fails = something_to_wait_at(context, of_device);
		set_nonblocking(of_device ? fails.context->async_fd : fails.channel->fd);
		end_it(&fails);
		use_freed_memory();
		struct ibv_async_event event;
		struct ibv_cq *cq;
		void *cookie;
		CHECK_INT(of_device ? ibv_get_async_event(fails.context, &event) :
				      ibv_get_cq_event(fails.channel, &cq, &cookie), -1);
		CHECK_INT(errno, EBADF);
		/* The next object has another address. */
		struct late_call next = something_to_wait_at(context, of_device);
		CHECK(next.context != fails.context || next.channel != fails.channel);
		end_it(&next);
		wait_until_asleep(sleeps[of_device].tid);
	}
	CHECK_INT(ibv_close_device(context), 0);
}

/* The destroy runs at the same time as the call, or while the call sleeps. */
static void the_end_comes_while_a_call_begins(void)
{
	enum { ROUNDS = 100 };
	static struct late_call calls[2][ROUNDS];
	struct ibv_context *context = open_device();
	for (int of_device = 0; of_device < 2; of_device++)
		for (int round = 0; round < ROUNDS; round++) {
			struct late_call *call = &calls[of_device][round];
			*call = something_to_wait_at(context, of_device);
			start_late_call(call);
			while (!call->tid)
				;
			for (volatile int wait = 0; wait < round * 40; wait++)
				;
			if (round == ROUNDS - 1)
				wait_until_asleep(call->tid);
			end_it(call);
			wait_until_asleep(call->tid);
		}
	CHECK_INT(ibv_close_device(context), 0);
}

/* A call that sleeps at an object that has ended goes on sleeping, however many others end before
 * it wakes up. */
static void a_sleeping_call_outlives_many_others(void)
{
	struct ibv_context *context = open_device();
	handle_sigusr1(SA_RESTART);
	for (int of_device = 0; of_device < 2; of_device++) {
		static struct late_call sleeps[2];
		struct late_call *call = &sleeps[of_device];
		*call = something_to_wait_at(context, of_device);
		start_late_call(call);
		while (!call->tid)
			sched_yield();
		wait_until_asleep(call->tid);
		/* All are made first, so that none has the address of the one that ended. */
		struct late_call others[80];
		for (int i = 0; i < 80; i++)
			others[i] = something_to_wait_at(context, of_device);
		end_it(call);
		for (int i = 0; i < 80; i++)
			end_it(&others[i]);
		use_freed_memory();
		for (int signals = 0; signals < 20; signals++) {
			CHECK_INT(syscall(SYS_tgkill, getpid(), call->tid, SIGUSR1), 0);
			wait_until_asleep(call->tid);
		}
	}
	CHECK_INT(ibv_close_device(context), 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "restarts_after_a_signal", restarts_after_a_signal },
		{ "fails_after_a_signal_without_restart", fails_after_a_signal_without_restart },
		{ "each_handler_has_its_effect", each_handler_has_its_effect },
		{ "each_event_is_an_edge", each_event_is_an_edge },
		{ "a_copy_sets_the_mode", a_copy_sets_the_mode },
		{ "every_waiter_gets_its_event", every_waiter_gets_its_event },
		{ "events_go_with_their_cq", events_go_with_their_cq },
		{ "reading_the_descriptor_does_no_harm", reading_the_descriptor_does_no_harm },
		{ "a_call_comes_too_late", a_call_comes_too_late },
		{ "the_end_comes_while_a_call_begins", the_end_comes_while_a_call_begins },
		{ "a_sleeping_call_outlives_many_others", a_sleeping_call_outlives_many_others },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
