/* pthread_cancel(3): verbs that wait for an event are cancellation points, and no other verbs are
 * (CQ-14). */
#include "rig.h"

/* Exported, but not declared in verbs.h. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

/* A QP in ERR completes a receive at once, so that an armed CQ has its event when this returns. */
static void make_event(struct rig *r)
{
	CHECK_INT(ibv_req_notify_cq(r->cq, 0), 0);
	post_receive(r, 1);
	CHECK_INT(next_completion(r->cq).status, IBV_WC_WR_FLUSH_ERR);
}

/* A thread to cancel, and its state. */
struct victim {
	struct rig *rig;
	pthread_t thread;
	volatile pid_t tid;
	volatile int events, unwound;
	volatile unsigned long turns;
};

static void unwind(void *argument)
{
	((struct victim *)argument)->unwound = 1;
}

static void start(struct victim *victim, struct rig *r, void *(*run)(void *))
{
	*victim = (struct victim){ .rig = r };
	CHECK_INT(pthread_create(&victim->thread, NULL, run, victim), 0);
	while (!victim->tid)
		usleep(50);
}

/* Checks that the thread was cancelled, and that its frames were unwound. */
static void expect_cancelled(struct victim *victim)
{
	void *result;
	CHECK_INT(pthread_join(victim->thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK(victim->unwound);
}

static void *wait_for_cq_events(void *argument)
{
	struct victim *victim = argument;
	pthread_cleanup_push(unwind, victim);
	victim->tid = syscall(SYS_gettid);
	for (;;) {
		struct ibv_cq *cq;
		void *cookie;
		CHECK_INT(ibv_get_cq_event(victim->rig->channel, &cq, &cookie), 0);
		victim->events++;
		ibv_ack_cq_events(cq, 1);
	}
	pthread_cleanup_pop(1);
	return NULL;
}

static void *wait_for_cq_events_asynchronously(void *argument)
{
	int old;
	CHECK_INT(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old), 0);
	return wait_for_cq_events(argument);
}

static void *wait_for_async_events(void *argument)
{
	struct victim *victim = argument;
	pthread_cleanup_push(unwind, victim);
	victim->tid = syscall(SYS_gettid);
	for (;;) {
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(victim->rig->context, &event), 0);
		ibv_ack_async_event(&event);
	}
	pthread_cleanup_pop(1);
	return NULL;
}

static void cancel_waiters(void *(*run)(void *))
{
	struct rig r = rig_open();
	struct victim victim;
	for (int round = 0; round < 100; round++) {
		start(&victim, &r, run);
		if (round % 2)
			wait_until_asleep(victim.tid);
		CHECK_INT(pthread_cancel(victim.thread), 0);
		expect_cancelled(&victim);
	}
	/* The device works, and no thread holds the queues' locks. */
	post_receive(&r, 1);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	to_error(r.b);
	make_event(&r);
	struct ibv_cq *cq;
	void *cookie;
	CHECK_INT(ibv_get_cq_event(r.channel, &cq, &cookie), 0);
	ibv_ack_cq_events(cq, 1);
	rig_close(&r);
}

static void waiting_for_a_completion_event(void)
{
	cancel_waiters(wait_for_cq_events);
}

static void waiting_for_an_asynchronous_event(void)
{
	cancel_waiters(wait_for_async_events);
}

static void waiting_with_asynchronous_type(void)
{
	cancel_waiters(wait_for_cq_events_asynchronously);
}

/* An event that comes together with the cancellation is delivered to the thread, or stays in the
 * queue. */
static void no_event_is_lost(void)
{
	struct rig r = rig_open();
	struct victim victim;
	unsigned seed = (unsigned)getpid();
	fprintf(stderr, "seed %u\n", seed);
	to_error(r.b);
	for (int round = 0; round < 1000; round++) {
		start(&victim, &r, wait_for_cq_events);
		if (rand_r(&seed) % 2)
			wait_until_asleep(victim.tid);
		int cancel_first = rand_r(&seed) % 2;
		if (cancel_first)
			CHECK_INT(pthread_cancel(victim.thread), 0);
		make_event(&r);
		if (!cancel_first)
			CHECK_INT(pthread_cancel(victim.thread), 0);
		expect_cancelled(&victim);
		CHECK_INT(is_readable(r.channel->fd), !victim.events);
		if (!victim.events) {
			struct ibv_cq *cq;
			void *cookie;
			CHECK_INT(ibv_get_cq_event(r.channel, &cq, &cookie), 0);
			ibv_ack_cq_events(cq, 1);
		}
	}
	rig_close(&r);
}

/* The usual loop: arm, post, poll. The thread can be cancelled where the program allows it. */
static void *work(void *argument)
{
	struct victim *victim = argument;
	struct rig *r = victim->rig;
	pthread_cleanup_push(unwind, victim);
	victim->tid = syscall(SYS_gettid);
	for (;; victim->turns++) {
		struct ibv_wc wc;
		CHECK_INT(ibv_req_notify_cq(r->cq, 0), 0);
		post_receive(r, 1);
		post_send(r, 2);
		for (int completions = 0; completions < 2;) {
			int polled = ibv_poll_cq(r->cq, 1, &wc);
			CHECK(polled >= 0);
			completions += polled;
			CHECK(!polled || wc.status == IBV_WC_SUCCESS);
		}
		pthread_testcancel();
	}
	pthread_cleanup_pop(1);
	return NULL;
}

/* Takes all events, so that the next one wakes a thread again. */
static void drain_events(struct rig *r)
{
	struct ibv_cq *cq;
	void *cookie;
	while (ibv_get_cq_event(r->channel, &cq, &cookie) == 0)
		ibv_ack_cq_events(cq, 1);
	CHECK_INT(errno, EAGAIN);
}

static void posting_and_polling(void)
{
	struct rig r = rig_open();
	struct victim victim;
	set_nonblocking(r.channel->fd);
	for (int round = 0; round < 200; round++) {
		start(&victim, &r, work);
		while (victim.turns < (unsigned long)round % 20)
			drain_events(&r);
		CHECK_INT(pthread_cancel(victim.thread), 0);
		drain_events(&r);
		expect_cancelled(&victim);
		drain_events(&r);
	}
	rig_close(&r);
}

/* Sends one message with the builders and polls with the extended CQ. */
static void use_the_extended_interface(struct rig *r)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN,
					       .channel = r->channel };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(r->context, &cq_init);
	CHECK(cq);
	struct ibv_qp_ex *ex = create_qp_ex(r->context, r->pd, ibv_cq_ex_to_cq(cq),
					    IBV_QP_EX_WITH_RDMA_WRITE);
	connect_qp(&ex->qp_base, ex->qp_base.qp_num);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, r->mr->rkey, (uintptr_t)r->buffer);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, r->mr->rkey, (uintptr_t)r->buffer);
	ibv_wr_set_inline_data(ex, "text", 4);
	CHECK_INT(ibv_wr_complete(ex), 0);
	struct ibv_poll_cq_attr attr = { 0 };
	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
	CHECK_INT(cq->status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_next_poll(cq), ENOENT);
	ibv_end_poll(cq);
	CHECK_INT(ibv_destroy_qp(&ex->qp_base), 0);
	CHECK_INT(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

static void use_the_tables(struct rig *r)
{
	struct ibv_device_attr_ex device;
	struct ibv_port_attr port;
	struct ibv_gid_entry gid;
	union ibv_gid raw;
	uint16_t pkey;
	char text[64];
	CHECK_INT(ibv_query_device_ex(r->context, NULL, &device), 0);
	CHECK_INT(ibv_query_port(r->context, 1, &port), 0);
	CHECK_INT(ibv_query_gid_ex(r->context, 1, 0, &gid, 0), 0);
	CHECK_INT(ibv_query_gid(r->context, 1, 99, &raw), -1);
	CHECK_INT(ibv_query_pkey(r->context, 1, 0, &pkey), 0);
	CHECK(!ibv_reg_mr(r->pd, (void *)4096, 16, 0));
	CHECK(ibv_read_sysfs_file("/proc/self", "comm", text, sizeof(text)) >= 0);
	struct ibv_td_init_attr td_init = { 0 };
	struct ibv_td *td = ibv_alloc_td(r->context, &td_init);
	CHECK_INT(ibv_dealloc_td(td), 0);
}

/* With a cancellation pending, the first cancellation point ends the thread. */
static void *live_on(void *argument)
{
	struct victim *victim = argument;
	pthread_cleanup_push(unwind, victim);
	victim->tid = syscall(SYS_gettid);
	CHECK_INT(pthread_cancel(pthread_self()), 0);
	struct rig r = rig_open();
	for (int turn = 0; turn < 500; turn++) {
		CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
		post_receive(&r, 1);
		post_send(&r, 2);
		next_completion(r.cq);
		next_completion(r.cq);
	}
	/* Polls an empty CQ for a while. */
	for (int turn = 0; turn < 2000; turn++) {
		struct ibv_wc wc;
		CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
	}
	use_the_extended_interface(&r);
	use_the_tables(&r);
	CHECK_INT(ibv_resize_cq(r.cq, 600), 0);
	struct ibv_send_wr wrong = { .opcode = 99 }, *bad;
	CHECK_INT(ibv_post_send(r.a, &wrong, &bad), EINVAL);
	to_error(r.b);
	rig_close(&r);

	/* A verb that may wait is a cancellation point even if its event is there. */
	struct rig waiting = rig_open();
	*victim->rig = waiting;
	to_error(waiting.b);
	make_event(&waiting);
	victim->turns = 1;
	struct ibv_cq *cq;
	void *cookie;
	ibv_get_cq_event(waiting.channel, &cq, &cookie);
	CHECK(!"a cancellation point");
	pthread_cleanup_pop(1);
	return NULL;
}

static void other_verbs_are_no_cancellation_points(void)
{
	struct rig r;
	struct victim victim;
	start(&victim, &r, live_on);
	expect_cancelled(&victim);
	CHECK_INT(victim.turns, 1);
	struct ibv_cq *cq;
	void *cookie;
	CHECK_INT(ibv_get_cq_event(r.channel, &cq, &cookie), 0);
	ibv_ack_cq_events(cq, 1);
	rig_close(&r);
}

/* The log uses write(2), which is a cancellation point. */
static void nor_are_they_where_they_log(void)
{
	setenv("ROCADE_LOG", "trace", 1);
	other_verbs_are_no_cancellation_points();
}

/* A thread with cancellation disabled is not cancelled, and its settings stay unchanged. */
static void *refuse(void *argument)
{
	struct victim *victim = argument;
	struct ibv_cq *cq;
	void *cookie;
	int old;
	CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old), 0);
	CHECK_INT(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old), 0);
	victim->tid = syscall(SYS_gettid);
	CHECK_INT(ibv_get_cq_event(victim->rig->channel, &cq, &cookie), 0);
	ibv_ack_cq_events(cq, 1);
	CHECK(!ibv_alloc_pd(NULL));
	CHECK_INT(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old), 0);
	CHECK_INT(old, PTHREAD_CANCEL_ASYNCHRONOUS);
	CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old), 0);
	CHECK_INT(old, PTHREAD_CANCEL_DISABLE);
	return argument;
}

static void a_thread_may_refuse(void)
{
	struct rig r = rig_open();
	struct victim victim;
	void *result;
	to_error(r.b);
	start(&victim, &r, refuse);
	wait_until_asleep(victim.tid);
	CHECK_INT(pthread_cancel(victim.thread), 0);
	make_event(&r);
	CHECK_INT(pthread_join(victim.thread, &result), 0);
	CHECK(result == &victim);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "waiting_for_a_completion_event", waiting_for_a_completion_event },
		{ "waiting_for_an_asynchronous_event", waiting_for_an_asynchronous_event },
		{ "waiting_with_asynchronous_type", waiting_with_asynchronous_type },
		{ "no_event_is_lost", no_event_is_lost },
		{ "posting_and_polling", posting_and_polling },
		{ "other_verbs_are_no_cancellation_points", other_verbs_are_no_cancellation_points },
		{ "nor_are_they_where_they_log", nor_are_they_where_they_log },
		{ "a_thread_may_refuse", a_thread_may_refuse },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
