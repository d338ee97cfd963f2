/* Fault rules for verbs, completions, events and the process, as a C program sees them. */
#include "rig.h"

#include <sys/wait.h>
#include <time.h>

/* Sets the rules. Has to come before the first verb of the process. */
static void set_rules(const char *rules)
{
	CHECK_INT(setenv("ROCADE_FAULT", rules, 1), 0);
}

/* rdma-core passes errno values of the kernel through: as the result of verbs that return int, and
 * in errno with NULL for the others (libibverbs/cmd.c). */
static void verbs_fail_with_their_errno(void)
{
	set_rules("fail verb=reg_mr errno=ENOMEM nth=2; fail verb=create_qp errno=ENOSPC nth=3;"
		  "fail verb=modify_qp errno=ETIMEDOUT nth=7; fail verb=dereg_mr errno=EBUSY nth=1;"
		  "fail verb=create_cq errno=EMFILE nth=2; fail verb=alloc_pd errno=EAGAIN nth=2;"
		  "fail verb=create_ah errno=EHOSTUNREACH; fail verb=destroy_qp errno=EIO nth=1;"
		  "fail verb=query_port errno=EIO; fail verb=create_srq errno=ENOMEM;"
		  "fail verb=create_comp_channel errno=EMFILE nth=2");
	struct rig r = rig_open();
	errno = 0;
	CHECK(!ibv_reg_mr(r.pd, r.buffer, 64, IBV_ACCESS_LOCAL_WRITE));
	CHECK_INT(errno, ENOMEM);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	CHECK(!ibv_create_qp(r.pd, &init));
	CHECK_INT(errno, ENOSPC);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK_INT(ibv_modify_qp(r.a, &attr, IBV_QP_STATE), ETIMEDOUT);
	CHECK(!ibv_create_cq(r.context, 8, NULL, NULL, 0));
	CHECK_INT(errno, EMFILE);
	CHECK(!ibv_create_comp_channel(r.context));
	CHECK_INT(errno, EMFILE);
	CHECK(!ibv_alloc_pd(r.context));
	CHECK_INT(errno, EAGAIN);
	struct ibv_ah_attr ah = path_to_self(r.context);
	CHECK(!ibv_create_ah(r.pd, &ah));
	CHECK_INT(errno, EHOSTUNREACH);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	CHECK(!ibv_create_srq(r.pd, &srq));
	CHECK_INT(errno, ENOMEM);
	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(r.context, 1, &port), EIO);
	CHECK_INT(ibv_destroy_qp(r.a), EIO);
	CHECK_INT(ibv_dereg_mr(r.mr), EBUSY);
	/* All of them had no effect. */
	post_receive(&r, 1);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	rig_close(&r);
}

static void posts_fail_and_name_the_request(void)
{
	set_rules("fail verb=post_send errno=ENOMEM nth=2; fail verb=post_recv errno=EINVAL nth=1;"
		  "fail verb=post_srq_recv errno=EIO nth=1");
	struct rig r = rig_open();
	struct ibv_sge sge = sge_at(&r, 4096, 64);
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_receive = NULL;
	CHECK_INT(ibv_post_recv(r.b, &receive, &bad_receive), EINVAL);
	CHECK(bad_receive == &receive);
	post_receive(&r, 2);
	post_send(&r, 3);
	struct ibv_send_wr second = { .wr_id = 5, .sg_list = &sge, .num_sge = 1,
				      .opcode = IBV_WR_SEND };
	struct ibv_send_wr first = second, *bad = NULL;
	first.next = &second;
	CHECK_INT(ibv_post_send(r.a, &first, &bad), ENOMEM);
	CHECK(bad == &first);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.wr_id, wc.opcode == IBV_WC_RECV ? 2 : 3);
	}
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(r.pd, &attr);
	CHECK(srq);
	CHECK_INT(ibv_post_srq_recv(srq, &receive, &bad_receive), EIO);
	CHECK_INT(ibv_post_srq_recv(srq, &receive, &bad_receive), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

static void limits_are_reported_and_kept(void)
{
	set_rules("limit max_qp=2 max_mr=1 max_cq=1 max_pd=1 max_qp_wr=300 max_sge=2 max_srq=0");
	struct rig r = rig_open();
	struct ibv_device_attr attr;
	CHECK_INT(ibv_query_device(r.context, &attr), 0);
	CHECK_INT(attr.max_qp, 2);
	CHECK_INT(attr.max_mr, 1);
	CHECK_INT(attr.max_cq, 1);
	CHECK_INT(attr.max_pd, 1);
	CHECK_INT(attr.max_qp_wr, 300);
	CHECK_INT(attr.max_sge, 2);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	CHECK(!ibv_create_qp(r.pd, &init) && errno == ENOMEM);
	CHECK(!ibv_reg_mr(r.pd, r.buffer, 64, 0) && errno == ENOMEM);
	CHECK(!ibv_create_cq(r.context, 8, NULL, NULL, 0) && errno == ENOMEM);
	CHECK(!ibv_alloc_pd(r.context) && errno == ENOMEM);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	CHECK(!ibv_create_srq(r.pd, &srq) && errno == ENOMEM);
	CHECK_INT(ibv_destroy_qp(r.b), 0);
	init.cap.max_send_wr = 301;
	CHECK(!ibv_create_qp(r.pd, &init) && errno == EINVAL);
	init.cap.max_send_wr = 300;
	init.cap.max_recv_sge = 3;
	CHECK(!ibv_create_qp(r.pd, &init) && errno == EINVAL);
	init.cap.max_recv_sge = 2;
	CHECK(r.b = ibv_create_qp(r.pd, &init));
	rig_close(&r);
}

/* A failed request flushes those behind it, and the QP is in ERR. */
static void a_completion_fails(void)
{
	set_rules("complete status=REM_ACCESS_ERR opcode=SEND nth=2");
	struct rig r = rig_open();
	for (int i = 0; i < 3; i++)
		post_receive(&r, 10 + i);
	for (int i = 0; i < 3; i++)
		post_send(&r, i);
	enum ibv_wc_status statuses[3] = { -1, -1, -1 };
	for (int sends = 0; sends < 3;) {
		struct ibv_wc wc = next_completion(r.cq);
		if (wc.wr_id < 10)
			CHECK_INT(wc.wr_id, sends);
		if (wc.wr_id < 10)
			statuses[sends++] = wc.status;
	}
	CHECK_INT(statuses[0], IBV_WC_SUCCESS);
	CHECK_INT(statuses[1], IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(statuses[2], IBV_WC_WR_FLUSH_ERR);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK_INT(ibv_query_qp(r.a, &attr, IBV_QP_STATE, &init), 0);
	CHECK_INT(attr.qp_state, IBV_QPS_ERR);
	rig_close(&r);
}

/* Only the send queue of an unreliable QP stops: SQE, from which it goes on (IBTA 10.3.1.6). */
static void a_datagram_fails_into_sqe(void)
{
	set_rules("complete status=LOC_QP_OP_ERR nth=1");
	struct rig r = rig_open();
	struct ibv_qp_init_attr init = small_qp(r.cq);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11 };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						   IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	struct ibv_ah_attr to = path_to_self(r.context);
	struct ibv_ah *ah = ibv_create_ah(r.pd, &to);
	CHECK(ah);
	struct ibv_sge sge = sge_at(&r, 0, 16);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = r.a->qp_num;
	wr.wr.ud.remote_qkey = 0x11;
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_LOC_QP_OP_ERR);
	CHECK_INT(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	CHECK_INT(attr.qp_state, IBV_QPS_SQE);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	rig_close(&r);
}

/* A batch is one post, and posts nothing if it fails. */
static void a_batch_fails(void)
{
	set_rules("fail verb=post_send errno=ENOMEM nth=1");
	struct rig r = rig_open();
	struct ibv_qp_ex *ex = create_qp_ex(r.context, r.pd, r.cq, IBV_QP_EX_WITH_RDMA_WRITE);
	connect_qp(&ex->qp_base, r.b->qp_num);
	for (int i = 0; i < 2; i++) {
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		for (int write = 0; write < 2; write++) {
			ex->wr_id = 10 * i + write;
			ibv_wr_rdma_write(ex, r.mr->rkey, (uintptr_t)r.buffer + 4096);
			ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer, 16);
		}
		CHECK_INT(ibv_wr_complete(ex), i ? 0 : ENOMEM);
	}
	to_error(&ex->qp_base);
	CHECK_INT(next_completion(r.cq).wr_id, 10);
	CHECK_INT(next_completion(r.cq).wr_id, 11);
	CHECK_INT(ibv_destroy_qp(&ex->qp_base), 0);
	rig_close(&r);
}

static double seconds(void)
{
	struct timespec now;
	CHECK_INT(clock_gettime(CLOCK_MONOTONIC, &now), 0);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* The event of a completion comes with it, to a program that sleeps. */
static void late_completions_have_late_events(void)
{
	set_rules("late by=300ms opcode=SEND");
	struct rig r = rig_open();
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	post_receive(&r, 1);
	double begin = seconds();
	post_send(&r, 2);
	for (int left = 2; left > 0;) {
		struct ibv_cq *cq;
		void *context;
		struct ibv_wc wc;
		CHECK_INT(ibv_get_cq_event(r.channel, &cq, &context), 0);
		ibv_ack_cq_events(cq, 1);
		CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
		while (ibv_poll_cq(cq, 1, &wc) == 1) {
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			CHECK(wc.wr_id == 1 || seconds() - begin >= 0.3);
			left--;
		}
	}
	rig_close(&r);
}

/* Completions of a QP that is destroyed meanwhile do not come. The data is there nevertheless. */
static void held_completions_go_with_their_qp(void)
{
	set_rules("late by=60s");
	struct rig r = rig_open();
	struct ibv_wc wc;
	memset(r.buffer, 7, 16);
	post_receive(&r, 1);
	post_send(&r, 2);
	while (*(volatile char *)(r.buffer + 4096 + 15) != 7)
		CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
	CHECK_INT(ibv_destroy_qp(r.b), 0);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	CHECK(r.b = ibv_create_qp(r.pd, &init));
	CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
	rig_close(&r);
}

/* Retries go on until the receiver is ready again. */
static void a_receiver_is_not_ready_for_a_time(void)
{
	set_rules("rnr for=500ms");
	double begin = seconds();
	struct rig r = rig_open();
	post_receive(&r, 1);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK(seconds() - begin >= 0.5);
	rig_close(&r);
}

/* The program does nothing but wait for the events. */
static void events_come_to_a_program_that_sleeps(void)
{
	set_rules("event type=PORT_ERR at=100ms; event type=CLIENT_REREGISTER at=200ms;"
		  "event type=QP_FATAL at=300ms; event type=CQ_ERR at=400ms;"
		  "event type=DEVICE_FATAL at=500ms; event type=DEVICE_SPEED_CHANGE at=600ms");
	struct rig r = rig_open();
	/* IBV_EVENT_DEVICE_SPEED_CHANGE is not in older headers. */
	static const int wanted[] = { IBV_EVENT_PORT_ERR,   IBV_EVENT_CLIENT_REREGISTER,
				      IBV_EVENT_QP_FATAL,   IBV_EVENT_QP_FATAL,
				      IBV_EVENT_CQ_ERR,     IBV_EVENT_CQ_ERR,
				      IBV_EVENT_DEVICE_FATAL, 20 };
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(r.context, &event), 0);
		CHECK_INT(event.event_type, wanted[i]);
		if (event.event_type == IBV_EVENT_QP_FATAL)
			CHECK(event.element.qp == r.a || event.element.qp == r.b);
		else if (event.event_type == IBV_EVENT_CQ_ERR)
			CHECK(event.element.cq == r.cq);
		else if (event.event_type != IBV_EVENT_DEVICE_FATAL)
			CHECK_INT(event.element.port_num, 1);
		ibv_ack_async_event(&event);
	}
	rig_close(&r);
}

/* Runs `work` in a child with these rules. Returns the status that waitpid(2) reports first. */
static int status_of(const char *rules, void (*work)(void), pid_t *pid)
{
	int status;
	*pid = fork();
	CHECK(*pid >= 0);
	if (!*pid) {
		set_rules(rules);
		work();
		_exit(0);
	}
	CHECK_INT(waitpid(*pid, &status, WUNTRACED), *pid);
	return status;
}

static void send_three(void)
{
	struct rig r = rig_open();
	for (int i = 0; i < 3; i++) {
		post_receive(&r, i);
		post_send(&r, i);
		next_completion(r.cq);
		next_completion(r.cq);
	}
	rig_close(&r);
}

static void sleep_for_ever(void)
{
	open_device();
	for (;;)
		pause();
}

static void check_killed(const char *rules, void (*work)(void))
{
	pid_t pid;
	int status = status_of(rules, work, &pid);
	CHECK(WIFSIGNALED(status));
	CHECK_INT(WTERMSIG(status), SIGKILL);
}

static void a_process_is_killed(void)
{
	pid_t pid;
	CHECK_INT(status_of("kill verb=post_send nth=4", send_three, &pid), 0);
	check_killed("kill verb=post_send nth=3", send_three);
	check_killed("kill opcode=SEND_ONLY nth=3", send_three);
	check_killed("kill opcode=ACK dir=rx nth=1", send_three);
	check_killed("kill at=50ms", sleep_for_ever);
}

/* A stopped process goes on where it was. */
static void a_process_is_stopped(void)
{
	static const char *const rules[] = { "stop verb=post_send nth=2", "stop opcode=SEND nth=2" };
	for (size_t i = 0; i < 2; i++) {
		pid_t pid;
		int status = status_of(rules[i], send_three, &pid);
		CHECK(WIFSTOPPED(status));
		CHECK_INT(WSTOPSIG(status), SIGSTOP);
		CHECK_INT(kill(pid, SIGCONT), 0);
		CHECK_INT(waitpid(pid, &status, 0), pid);
		CHECK_INT(status, 0);
	}
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "verbs_fail_with_their_errno", verbs_fail_with_their_errno },
		{ "posts_fail_and_name_the_request", posts_fail_and_name_the_request },
		{ "limits_are_reported_and_kept", limits_are_reported_and_kept },
		{ "a_completion_fails", a_completion_fails },
		{ "a_datagram_fails_into_sqe", a_datagram_fails_into_sqe },
		{ "a_batch_fails", a_batch_fails },
		{ "late_completions_have_late_events", late_completions_have_late_events },
		{ "held_completions_go_with_their_qp", held_completions_go_with_their_qp },
		{ "a_receiver_is_not_ready_for_a_time", a_receiver_is_not_ready_for_a_time },
		{ "events_come_to_a_program_that_sleeps", events_come_to_a_program_that_sleeps },
		{ "a_process_is_killed", a_process_is_killed },
		{ "a_process_is_stopped", a_process_is_stopped },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
