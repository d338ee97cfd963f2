/* Helpers for the C programs: checks, an open device, and two connected QPs.
 *
 * A program has cases, selected by its first argument. It exits with 0 if the case holds. */
#ifndef ROCADE_TESTS_RIG_H
#define ROCADE_TESTS_RIG_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__,       \
				#condition, errno);                                                 \
			_exit(1);                                                                   \
		}                                                                                   \
	} while (0)

/* Compares two numbers, and prints both if they differ. */
#define CHECK_INT(got, wanted)                                                                      \
	do {                                                                                        \
		long got_ = (long)(got), wanted_ = (long)(wanted);                                  \
		if (got_ != wanted_) {                                                              \
			fprintf(stderr, "%s:%d: %s is %ld, not %ld\n", __FILE__, __LINE__, #got,    \
				got_, wanted_);                                                     \
			_exit(1);                                                                   \
		}                                                                                   \
	} while (0)

struct test_case {
	const char *name;
	void (*run)(void);
};

/* A hanging program is killed after this many seconds. Each case takes a few seconds, but the
 * machine may be busy. */
#define DEADLINE 180

/* Runs the named case. */
static inline int run_case(const struct test_case *cases, int argc, char **argv)
{
	alarm(DEADLINE);
	for (; argc > 1 && cases->name; cases++)
		if (!strcmp(cases->name, argv[1])) {
			cases->run();
			return 0;
		}
	fprintf(stderr, "no such case\n");
	return 2;
}

#define BUFFER_LEN 8192

struct rig {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
	char *buffer;
};

/* Opens the first device. */
static inline struct ibv_context *open_device(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count > 0);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static inline struct ibv_qp_init_attr small_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 256, .max_send_sge = 2,
			 .max_recv_sge = 2, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};
	return init;
}

static inline struct ibv_qp_ex *create_qp_ex(struct ibv_context *context, struct ibv_pd *pd,
					     struct ibv_cq *cq, uint64_t operations)
{
	struct ibv_qp_init_attr small = small_qp(cq);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = small.cap,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = operations,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp);
	return ibv_qp_to_qp_ex(qp);
}

static inline void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS), 0);
}

static inline struct ibv_ah_attr path_to_self(struct ibv_context *context)
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	CHECK_INT(ibv_query_gid(context, 1, 0, &ah.grh.dgid), 0);
	return ah;
}

static inline void to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.rq_psn = 0x123,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = path_to_self(qp->context),
	};
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
}

static inline void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = 0x123,
		/* At least 0.27 s, because on a busy machine a thread may be delayed. */
		.timeout = 16,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static inline void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
	to_init(qp);
	to_rtr(qp, peer);
	to_rts(qp);
}

static inline void to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

/* Opens a device and creates a CQ with a channel, registered memory and two connected QPs. */
static inline struct rig rig_open(void)
{
	struct rig r = { .context = open_device() };
	r.pd = ibv_alloc_pd(r.context);
	r.channel = ibv_create_comp_channel(r.context);
	CHECK(r.pd && r.channel);
	r.cq = ibv_create_cq(r.context, 512, &r, r.channel, 0);
	CHECK(r.cq);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	r.a = ibv_create_qp(r.pd, &init);
	r.b = ibv_create_qp(r.pd, &init);
	CHECK(r.a && r.b);
	r.buffer = calloc(1, BUFFER_LEN);
	r.mr = ibv_reg_mr(r.pd, r.buffer, BUFFER_LEN,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(r.mr);
	connect_qp(r.a, r.b->qp_num);
	connect_qp(r.b, r.a->qp_num);
	return r;
}

/* Destroys everything. Fails if an object is in use, and hangs if an event is unacknowledged. */
static inline void rig_close(struct rig *r)
{
	CHECK_INT(ibv_destroy_qp(r->a), 0);
	CHECK_INT(ibv_destroy_qp(r->b), 0);
	CHECK_INT(ibv_destroy_cq(r->cq), 0);
	CHECK_INT(ibv_destroy_comp_channel(r->channel), 0);
	CHECK_INT(ibv_dereg_mr(r->mr), 0);
	CHECK_INT(ibv_dealloc_pd(r->pd), 0);
	CHECK_INT(ibv_close_device(r->context), 0);
	free(r->buffer);
}

static inline struct ibv_sge sge_at(struct rig *r, size_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)r->buffer + offset, length, r->mr->lkey };
	return sge;
}

static inline void post_receive(struct rig *r, uint64_t wr_id)
{
	struct ibv_sge sge = sge_at(r, 4096, 64);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(r->b, &wr, &bad), 0);
}

static inline void post_send(struct rig *r, uint64_t wr_id)
{
	struct ibv_sge sge = sge_at(r, 0, 16);
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK_INT(ibv_post_send(r->a, &wr, &bad), 0);
}

/* Polls until a completion comes. */
static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int polled;
	while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK_INT(polled, 1);
	return wc;
}

static inline int is_readable(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	int ready = poll(&entry, 1, 0);
	CHECK(ready >= 0);
	return ready > 0 && entry.revents & POLLIN;
}

static inline void wait_readable(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	while (poll(&entry, 1, -1) < 0)
		CHECK_INT(errno, EINTR);
	CHECK_INT(entry.revents, POLLIN);
}

static inline void set_nonblocking(int fd)
{
	CHECK_INT(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

/* Returns when the thread `tid` of this process sleeps in the kernel. */
static inline void wait_until_asleep(pid_t tid)
{
	char path[64], line[256];
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	for (;;) {
		FILE *file = fopen(path, "r");
		CHECK(file && fgets(line, sizeof(line), file));
		fclose(file);
		char *state = strrchr(line, ')');
		CHECK(state);
		if (state[2] == 'S')
			return;
		usleep(1000);
	}
}

#endif
