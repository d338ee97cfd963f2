/* The environment of a program: libraries that interpose functions of the C library, denied system
 * calls, limits, and the resulting messages on standard error. */
#include "rig.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* Interposes the C library's functions, like librspreload. Rocade's own calls must not come here:
 * such a library turns them into RDMA sockets, which call Rocade. */
static volatile int sockets, binds;

int socket(int domain, int type, int protocol)
{
	sockets++;
	return syscall(SYS_socket, domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t len)
{
	binds++;
	return syscall(SYS_bind, fd, address, len);
}

/* The GID of 127.0.0.2: an address of this host, but not of the device. */
static union ibv_gid other_address(void)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 2 } };
	return gid;
}

static void sockets_are_made_without_the_c_library(void)
{
	struct rig r = rig_open();
	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	to_init(qp);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = 0x11,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.dgid = other_address() },
	};
	attr.ah_attr.grh.hop_limit = 64;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	struct ibv_ah *ah = ibv_create_ah(r.pd, &attr.ah_attr);
	CHECK(ah);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	/* Needs the right to open raw sockets, so both results are valid here. */
	init.qp_type = IBV_QPT_RAW_PACKET;
	struct ibv_qp *raw = ibv_create_qp(r.pd, &init);
	if (raw)
		CHECK_INT(ibv_destroy_qp(raw), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
	CHECK_INT(sockets, 0);
	CHECK_INT(binds, 0);
}

/* Records standard error. */
struct listener {
	int old, pipe[2];
	char text[8192];
	size_t len;
};

static void listen_to(struct listener *l)
{
	l->len = 0;
	CHECK_INT(pipe2(l->pipe, O_CLOEXEC | O_NONBLOCK), 0);
	CHECK((l->old = fcntl(2, F_DUPFD_CLOEXEC, 10)) >= 0);
	CHECK_INT(dup2(l->pipe[1], 2), 2);
}

static int is_said(struct listener *l, const char *words)
{
	ssize_t len = read(l->pipe[0], l->text + l->len, sizeof(l->text) - 1 - l->len);
	l->len += len > 0 ? len : 0;
	l->text[l->len] = 0;
	return strstr(l->text, words) != NULL;
}

static void expect_said(struct listener *l, const char *words)
{
	if (is_said(l, words))
		return;
	dprintf(l->old, "\"%s\" is not in:\n%s", words, l->text);
	_exit(1);
}

static void hear_no_more(struct listener *l)
{
	CHECK_INT(dup2(l->old, 2), 2);
	close(l->old);
	close(l->pipe[0]);
	close(l->pipe[1]);
}

/* From now on this system call fails with EPERM. */
static void deny(int number)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = 4, .filter = filter };
	CHECK_INT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	CHECK_INT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static void a_denied_timer_is_called_a_timer(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(pd && cq);
	deny(SYS_timerfd_create);
	struct listener l;
	listen_to(&l);
	struct ibv_qp_init_attr init = small_qp(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	expect_said(&l, "timerfd_create");
	hear_no_more(&l);
	CHECK(!qp && !strstr(l.text, "epoll"));
}

/* Sends messages from one QP to the other. Each must arrive. */
static void exchange(struct rig *r, int count)
{
	for (int i = 0; i < count; i++) {
		post_receive(r, 1);
		post_send(r, 2);
		for (int j = 0; j < 2; j++)
			CHECK_INT(next_completion(r->cq).status, IBV_WC_SUCCESS);
	}
}

static void on_fault(int signal)
{
	(void)signal;
	_exit(3);
}

/* A program that handles SIGBUS is told, once and without any setting, that the kernel copies. */
static void a_handler_of_faults_costs_speed(void)
{
	struct rig r = rig_open();
	struct listener l;
	const char *words = "handles or blocks SIGSEGV or SIGBUS";
	listen_to(&l);
	CHECK(signal(SIGBUS, on_fault) != SIG_ERR);
	while (!is_said(&l, words))
		exchange(&r, 1);
	strcpy(r.buffer, "the kernel");
	exchange(&r, 100);
	CHECK_INT(strcmp(r.buffer + 4096, "the kernel"), 0);
	expect_said(&l, words);
	hear_no_more(&l);
	CHECK(!strstr(strstr(l.text, words) + 1, words));
	rig_close(&r);
}

/* Rocade's memory files exceed the limit, but no signal kills the program. */
static void files_may_not_grow(void)
{
	struct rlimit limit = { .rlim_cur = 0, .rlim_max = 0 };
	CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK_INT(setenv("ROCADE_LOG", "warn", 1), 0);
	struct listener l;
	listen_to(&l);
	struct rig r = rig_open();
	exchange(&r, 4);
	expect_said(&l, "ulimit -f");
	hear_no_more(&l);
	rig_close(&r);
}

/* A capture that reaches the limit ends with a message, and the program keeps running. */
static void a_capture_may_not_grow(void)
{
	char file[64], path[] = "/tmp/rocade-test-XXXXXX";
	CHECK(mkdtemp(path));
	snprintf(file, sizeof(file), "%s/x.pcapng", path);
	struct rlimit limit = { .rlim_cur = 8192, .rlim_max = 8192 };
	CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK_INT(setenv("ROCADE_CAPTURE", file, 1), 0);
	struct listener l;
	listen_to(&l);
	struct rig r = rig_open();
	while (!is_said(&l, "the capture"))
		exchange(&r, 16);
	expect_said(&l, "ulimit -f");
	exchange(&r, 16);
	hear_no_more(&l);
	rig_close(&r);
	CHECK_INT(unlink(file), 0);
	CHECK_INT(rmdir(path), 0);
}

static void what_is_busy_names_its_users(void)
{
	struct rig r = rig_open();
	struct listener l;
	char words[256];
	listen_to(&l);
	CHECK_INT(ibv_destroy_cq(r.cq), EBUSY);
	snprintf(words, sizeof(words), "completion queue, by QP 0x%06x and QP 0x%06x",
		 r.a->qp_num < r.b->qp_num ? r.a->qp_num : r.b->qp_num,
		 r.a->qp_num < r.b->qp_num ? r.b->qp_num : r.a->qp_num);
	expect_said(&l, words);
	CHECK_INT(ibv_destroy_comp_channel(r.channel), EBUSY);
	expect_said(&l, "completion channel, by a CQ");

	struct ibv_pd *pd = ibv_alloc_pd(r.context);
	struct ibv_mr *mr = ibv_reg_mr(pd, r.buffer, BUFFER_LEN,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(pd && mr);
	CHECK_INT(ibv_dealloc_pd(pd), EBUSY);
	snprintf(words, sizeof(words), "protection domain, by the MR with lkey %#x", mr->lkey);
	expect_said(&l, words);

	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	CHECK(srq);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	init.srq = srq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	CHECK_INT(ibv_destroy_srq(srq), EBUSY);
	snprintf(words, sizeof(words), "shared receive queue, by QP 0x%06x", qp->qp_num);
	expect_said(&l, words);

	/* A bound window keeps its MR. */
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(mw);
	connect_qp(qp, qp->qp_num);
	struct ibv_mw_bind bind = {
		.bind_info = { .mr = mr, .addr = (uintptr_t)r.buffer, .length = 64 },
		.send_flags = IBV_SEND_SIGNALED,
	};
	uint32_t first = mw->rkey;
	CHECK_INT(ibv_bind_mw(qp, mw, &bind), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_dereg_mr(mr), EBUSY);
	expect_said(&l, "memory region, by the memory window with rkey 0x");
	CHECK(first >> 8 == mw->rkey >> 8);
	hear_no_more(&l);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "sockets_are_made_without_the_c_library", sockets_are_made_without_the_c_library },
		{ "a_denied_timer_is_called_a_timer", a_denied_timer_is_called_a_timer },
		{ "a_handler_of_faults_costs_speed", a_handler_of_faults_costs_speed },
		{ "files_may_not_grow", files_may_not_grow },
		{ "a_capture_may_not_grow", a_capture_may_not_grow },
		{ "what_is_busy_names_its_users", what_is_busy_names_its_users },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
