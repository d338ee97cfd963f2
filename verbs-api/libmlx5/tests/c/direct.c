/* Functions of libmlx5 on a device like mlx5. */
#include "../../../libibverbs/tests/c/comp_cntr.h"

#include <infiniband/mlx5dv.h>
#include <sys/mman.h>

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |         \
		IBV_ACCESS_REMOTE_ATOMIC)

enum { KEY = 0x1d, DATA_DIRECT = 1 };

static void *mlx5_call(const char *name, const char *node)
{
	void *found = dlvsym(RTLD_DEFAULT, name, node);
	CHECK(found);
	return found;
}

typedef struct ibv_mr *(*reg_dmabuf_fn)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int);

static int two_pages(void)
{
	int fd = memfd_create("dmabuf", 0);
	CHECK(fd >= 0);
	CHECK_INT(ftruncate(fd, 2 * sysconf(_SC_PAGESIZE)), 0);
	return fd;
}

static void a_device_of_another_kind_refuses(void)
{
	reg_dmabuf_fn reg_dmabuf = (reg_dmabuf_fn)mlx5_call("mlx5dv_reg_dmabuf_mr", "MLX5_1.25");
	struct rig r = rig_open();
	errno = 0;
	CHECK(!reg_dmabuf(r.pd, 0, 8, 0, two_pages(), ACCESS, 0));
	CHECK_INT(errno, EOPNOTSUPP);
	rig_close(&r);
}

static void a_region_of_a_descriptor(void)
{
	reg_dmabuf_fn reg_dmabuf = (reg_dmabuf_fn)mlx5_call("mlx5dv_reg_dmabuf_mr", "MLX5_1.25");
	const size_t page = sysconf(_SC_PAGESIZE);
	int fd = two_pages();
	setenv("ROCADE_LIKE", "mlx5", 1);
	struct rig r = rig_open();
	static const struct { int flags, error; } refused[] = { { DATA_DIRECT, EOPNOTSUPP },
								{ 2, EINVAL }, { -1, EINVAL } };
	for (int i = 0; i < 3; i++) {
		errno = 0;
		CHECK(!reg_dmabuf(r.pd, 0, page, 0, fd, ACCESS, refused[i].flags));
		CHECK_INT(errno, refused[i].error);
	}
	errno = 0;
	CHECK(!reg_dmabuf(NULL, 0, page, 0, fd, ACCESS, 0));
	CHECK_INT(errno, EINVAL);
	errno = 0;
	CHECK(!reg_dmabuf(r.pd, 0, page, 0, -1, ACCESS, 0));
	CHECK_INT(errno, EBADF);
	struct ibv_mr *mr = reg_dmabuf(r.pd, page, 64, 8 * page, fd, ACCESS, 0);
	CHECK(mr);
	memcpy(r.buffer, "by the device!", 15);
	struct ibv_sge sge = sge_at(&r, 0, 15);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = 8 * page;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK_INT(ibv_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	char seen[15];
	CHECK_INT(pread(fd, seen, 15, page), 15);
	CHECK(!memcmp(seen, "by the device!", 15));
	CHECK_INT(ibv_dereg_mr(mr), 0);
	rig_close(&r);
}

/* An initiator and a target of dynamic connections, in one process. */
struct ends {
	struct rig r;
	struct ibv_srq *srq;
	struct ibv_qp *dci, *dct;
	struct ibv_ah *ah;
};

static struct ibv_qp *create(struct ends *e, enum mlx5dv_dc_type type, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_DRIVER, .send_cq = e->r.cq, .recv_cq = e->r.cq,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = e->r.pd,
	};
	struct mlx5dv_qp_init_attr dv = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
					  .dc_init_attr = { .dc_type = type } };
	if (type == MLX5DV_DCTYPE_DCT) {
		init.srq = e->srq;
		dv.dc_init_attr.dct_access_key = KEY;
	} else {
		init.cap.max_send_wr = 16;
		init.cap.max_send_sge = 1;
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = operations;
	}
	struct ibv_qp *qp = mlx5dv_create_qp(e->r.context, &init, &dv);
	CHECK(qp);
	return qp;
}

static struct ends ends_open(uint64_t operations)
{
	setenv("ROCADE_LIKE", "mlx5", 1);
	struct ends e = { .r = rig_open() };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 8, .max_sge = 1 } };
	e.srq = ibv_create_srq(e.r.pd, &srq);
	CHECK(e.srq);
	e.dci = create(&e, MLX5DV_DCTYPE_DCI, operations);
	e.dct = create(&e, MLX5DV_DCTYPE_DCT, 0);
	struct ibv_ah_attr path = path_to_self(e.r.context);
	e.ah = ibv_create_ah(e.r.pd, &path);
	CHECK(e.ah);
	return e;
}

/* `max_rd_atomic` stays 0, as in programs that do not care. */
static void start(struct ends *e)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = ACCESS };
	int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	CHECK_INT(ibv_modify_qp(e->dci, &attr, init), 0);
	CHECK_INT(ibv_modify_qp(e->dct, &attr, init | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.min_rnr_timer = 12;
	attr.ah_attr = path_to_self(e->r.context);
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU;
	CHECK_INT(ibv_modify_qp(e->dci, &attr, rtr), 0);
	CHECK_INT(ibv_modify_qp(e->dct, &attr, rtr | IBV_QP_MIN_RNR_TIMER), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 16;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	CHECK_INT(ibv_modify_qp(e->dci, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						       IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static void ends_close(struct ends *e)
{
	CHECK_INT(ibv_destroy_qp(e->dci), 0);
	CHECK_INT(ibv_destroy_qp(e->dct), 0);
	CHECK_INT(ibv_destroy_ah(e->ah), 0);
	CHECK_INT(ibv_destroy_srq(e->srq), 0);
	rig_close(&e->r);
}

static void to_target(struct ends *e, size_t offset, uint32_t length)
{
	struct mlx5dv_qp_ex *dv = mlx5dv_qp_ex_from_ibv_qp_ex(ibv_qp_to_qp_ex(e->dci));
	mlx5dv_wr_set_dc_addr(dv, e->ah, e->dct->qp_num, KEY);
	ibv_wr_set_sge(ibv_qp_to_qp_ex(e->dci), e->r.mr->lkey, (uintptr_t)e->r.buffer + offset, length);
}

/* READs and atomics work, one after the other. */
static void a_read_without_a_limit(void)
{
	struct ends e = ends_open(IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
	start(&e);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(e.dci);
	uint64_t there = (uintptr_t)e.r.buffer + 4096, *value = (uint64_t *)(e.r.buffer + 4096);
	*value = 40;
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	for (ex->wr_id = 0; ex->wr_id < 4; ex->wr_id++) {
		if (ex->wr_id % 2)
			ibv_wr_rdma_read(ex, e.r.mr->rkey, there);
		else
			ibv_wr_atomic_fetch_add(ex, e.r.mr->rkey, there, 1);
		to_target(&e, 8 * ex->wr_id, 8);
	}
	CHECK_INT(ibv_wr_complete(ex), 0);
	for (int i = 0; i < 4; i++) {
		struct ibv_wc wc = next_completion(e.r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.wr_id, i);
	}
	static const uint64_t results[] = { 40, 41, 41, 42 };
	CHECK(!memcmp(e.r.buffer, results, sizeof(results)));
	ends_close(&e);
}

/* Completion counters of both ends. */
static void dynamic_connections_count(void)
{
	struct ends e = ends_open(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_RDMA_READ);
	struct counter *mine[OPERATIONS], *peers[OPERATIONS];
	count_each(e.dci, OF_BYTES, mine);
	count_each(e.dct, OF_BYTES, peers);
	start(&e);
	struct ibv_sge place = sge_at(&e.r, 4096, 2048);
	struct ibv_recv_wr recv = { .sg_list = &place, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_srq_recv(e.srq, &recv, &bad), 0);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(e.dci);
	ibv_wr_start(ex);
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	to_target(&e, 0, 100);
	ibv_wr_rdma_write(ex, e.r.mr->rkey, (uintptr_t)e.r.buffer + 2048);
	to_target(&e, 0, 1500);
	ibv_wr_rdma_read(ex, e.r.mr->rkey, (uintptr_t)e.r.buffer + 4096);
	to_target(&e, 0, 2000);
	CHECK_INT(ibv_wr_complete(ex), 0);
	wait_for(mine[SEND], 100, 0);
	wait_for(mine[WRITE], 1500, 0);
	wait_for(mine[READ], 2000, 0);
	wait_for(peers[RECV], 100, 0);
	wait_for(peers[REMOTE_WRITE], 1500, 0);
	wait_for(peers[REMOTE_READ], 2000, 0);
	/* The target refuses a WRITE, and goes on. */
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, e.r.mr->rkey ^ 0x5500, (uintptr_t)e.r.buffer);
	to_target(&e, 0, 8);
	CHECK_INT(ibv_wr_complete(ex), 0);
	wait_for(mine[WRITE], 1500, 1);
	wait_for(peers[REMOTE_WRITE], 1500, 1);
	CHECK_INT(destroy_counter(mine[SEND]), EBUSY);
	CHECK_INT(destroy_counter(peers[RECV]), EBUSY);
	ends_close(&e);
	destroy_each(mine);
	destroy_each(peers);
}

static void sizes_and_failures_of_later_releases(void)
{
	void (*sizes)(void *, size_t) =
		(void (*)(void *, size_t))mlx5_call("_mlx5dv_get_export_sizes", "MLX5_1.27");
	uint64_t words[4] = { 7, 7, 7, 7 };
	sizes(words, 24);
	CHECK(!words[0] && !words[1] && !words[2] && words[3] == 7);
	int (*export_uar)(void *) =
		(int (*)(void *))mlx5_call("mlx5dv_devx_uar_export_dmabuf_fd", "MLX5_1.26");
	errno = 0;
	CHECK_INT(export_uar(NULL), -1);
	CHECK_INT(errno, EOPNOTSUPP);
	int (*cancel)(void *, uint64_t) =
		(int (*)(void *, uint64_t))mlx5_call("mlx5dv_qp_cancel_posted_send_wrs", "MLX5_1.20");
	CHECK_INT(cancel(NULL, 0), -EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_device_of_another_kind_refuses", a_device_of_another_kind_refuses },
		{ "a_region_of_a_descriptor", a_region_of_a_descriptor },
		{ "a_read_without_a_limit", a_read_without_a_limit },
		{ "dynamic_connections_count", dynamic_connections_count },
		{ "sizes_and_failures_of_later_releases", sizes_and_failures_of_later_releases },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
