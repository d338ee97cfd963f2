/*
 * Calls of each family of verbs beyond the plain ones. The first argument chooses the family:
 * cross-channel, masked, umr, dct, xrc, mlx5 or efa.
 */
#include "cross_channel.h"

#include <dlfcn.h>
#include <infiniband/efadv.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs_xrc.h>

enum { KEY = 0x1d };

#define RIGHTS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Waits, releases, computing sends, and a task list. */
static void cross_channel(void)
{
	struct cross c = cross_open(MASTER | MANAGED_SEND, 0);
	post_receive(&c.r, 10);
	post_send(&c.r, 11);
	CHECK_INT(post(c.master, enable(IBV_EXP_WR_SEND_ENABLE, c.r.a, 1, LAST)), 0);
	CHECK_INT(post(c.master, wait_for(c.recv_cq, 1, SIGNALED, 12)), 0);
	expect(c.master_cq, 12);
	expect(c.r.cq, 11);
	struct ibv_sge numbers = sge_at(&c.r, 0, 16);
	struct ibv_exp_send_wr sum =
		calc(&numbers, 1, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_UINT);
	sum.exp_opcode = IBV_EXP_WR_RDMA_WRITE;
	sum.wr.rdma.remote_addr = (uintptr_t)c.r.buffer + 4096;
	sum.wr.rdma.rkey = c.r.mr->rkey;
	CHECK_INT(post(c.master, sum), 0);
	expect(c.master_cq, 5);
	struct ibv_exp_send_wr nop = { .wr_id = 13, .exp_opcode = IBV_EXP_WR_NOP,
				       .exp_send_flags = SIGNALED };
	struct ibv_exp_task task = { .task_type = IBV_EXP_TASK_SEND,
				     .item = { .qp = c.master, .send_wr = &nop } }, *bad;
	CHECK_INT(ibv_exp_post_task(c.r.context, &task, &bad), 0);
	expect(c.master_cq, 13);
	cross_close(&c);
}

/* Replaces the first queue pair by one with masked atomics and memory keys, and connects it. */
static struct rig experimental_rig(void)
{
	struct rig r = rig_open();
	CHECK_INT(ibv_destroy_qp(r.a), 0);
	struct ibv_qp_init_attr small = small_qp(r.cq);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = r.cq, .recv_cq = r.cq, .cap = small.cap, .qp_type = IBV_QPT_RC,
		.pd = r.pd, .exp_create_flags = IBV_EXP_QP_CREATE_UMR, .max_inl_send_klms = 4,
		.max_atomic_arg = 32,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS |
			     IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG,
	};
	r.a = ibv_exp_create_qp(r.context, &init);
	CHECK(r.a);
	connect_qp(r.a, r.a->qp_num);
	return r;
}

static void complete(struct rig *r, struct ibv_exp_send_wr wr)
{
	wr.exp_send_flags |= SIGNALED;
	CHECK_INT(post(r->a, wr), 0);
	struct ibv_exp_wc wc;
	int polled;
	while ((polled = ibv_exp_poll_cq(r->cq, 1, &wc, sizeof(wc))) == 0)
		;
	CHECK_INT(polled, 1);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
}

static void masked(void)
{
	struct rig r = experimental_rig();
	struct ibv_sge result = sge_at(&r, 4096, 8);
	struct ibv_exp_send_wr wr = { .wr_id = 21, .sg_list = &result, .num_sge = 1,
				      .exp_opcode = IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD,
				      .exp_send_flags = IBV_EXP_SEND_EXT_ATOMIC_INLINE };
	wr.ext_op.masked_atomics.log_arg_sz = 3;
	wr.ext_op.masked_atomics.remote_addr = (uintptr_t)r.buffer;
	wr.ext_op.masked_atomics.rkey = r.mr->rkey;
	wr.ext_op.masked_atomics.wr_data.inline_data.op.fetch_add.add_val = 0x77;
	wr.ext_op.masked_atomics.wr_data.inline_data.op.fetch_add.field_boundary = 0x8000;
	complete(&r, wr);
	wr.wr_id = 22;
	wr.exp_opcode = IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP;
	struct ibv_exp_cmp_swap *swap = &wr.ext_op.masked_atomics.wr_data.inline_data.op.cmp_swap;
	*swap = (struct ibv_exp_cmp_swap){ .compare_mask = 0xff, .compare_val = 0x77,
					   .swap_val = 0x99, .swap_mask = 0xff };
	complete(&r, wr);
	rig_close(&r);
}

static void umr(void)
{
	struct rig r = experimental_rig();
	struct ibv_exp_create_mr_in in = {
		.pd = r.pd,
		.attr = { .max_klm_list_size = 4, .create_flags = IBV_EXP_MR_INDIRECT_KLMS,
			  .exp_access_flags = IBV_EXP_ACCESS_LOCAL_WRITE },
	};
	struct ibv_mr *key = ibv_exp_create_mr(&in);
	CHECK(key);
	struct ibv_exp_mem_region list[] = { { (uintptr_t)r.buffer + 8, r.mr, 8 },
					     { (uintptr_t)r.buffer, r.mr, 8 } };
	struct ibv_exp_send_wr wr = { .wr_id = 31, .exp_opcode = IBV_EXP_WR_UMR_FILL,
				      .exp_send_flags = IBV_EXP_SEND_INLINE };
	wr.ext_op.umr.umr_type = IBV_EXP_UMR_MR_LIST;
	wr.ext_op.umr.exp_access = IBV_EXP_ACCESS_LOCAL_WRITE;
	wr.ext_op.umr.modified_mr = key;
	wr.ext_op.umr.base_addr = 0x1000;
	wr.ext_op.umr.num_mrs = 2;
	wr.ext_op.umr.mem_list.mem_reg_list = list;
	complete(&r, wr);
	wr.wr_id = 32;
	wr.exp_opcode = IBV_EXP_WR_UMR_INVALIDATE;
	complete(&r, wr);
	CHECK_INT(ibv_dereg_mr(key), 0);
	rig_close(&r);
}

/* A target and an initiator of the experimental verbs. The initiator is not started. */
static void dct(void)
{
	struct rig r = rig_open();
	struct ibv_srq_init_attr room = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(r.pd, &room);
	CHECK(srq);
	struct ibv_exp_dct_init_attr attr = {
		.pd = r.pd, .cq = r.cq, .srq = srq, .dc_key = KEY, .port = 1,
		.access_flags = RIGHTS, .min_rnr_timer = 2, .mtu = IBV_MTU_1024, .hop_limit = 9,
	};
	struct ibv_exp_dct *target = ibv_exp_create_dct(r.context, &attr);
	CHECK(target);
	struct ibv_exp_dct_attr now = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_query_dct(target, &now), 0);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = r.cq, .recv_cq = r.cq, .pd = r.pd, .qp_type = IBV_EXP_QPT_DC_INI,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD,
	};
	struct ibv_qp *dci = ibv_exp_create_qp(r.context, &init);
	CHECK(dci);
	struct ibv_exp_qp_attr start = { .qp_state = IBV_QPS_INIT, .port_num = 1, .dct_key = KEY };
	uint64_t mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	CHECK_INT(ibv_exp_modify_qp(dci, &start, mask | IBV_EXP_QP_DC_KEY), 0);
	struct ibv_ah_attr self = path_to_self(r.context);
	struct ibv_ah *ah = ibv_create_ah(r.pd, &self);
	CHECK(ah);
	struct ibv_exp_send_wr wr = { .wr_id = 41, .exp_opcode = IBV_EXP_WR_SEND,
				      .dc = { ah, KEY, target->dct_num } };
	CHECK_INT(post(dci, wr), EINVAL);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	CHECK_INT(ibv_destroy_qp(dci), 0);
	CHECK_INT(ibv_exp_destroy_dct(target), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

/* The older calls for XRC. */
static void xrc(void)
{
	struct rig r = rig_open();
	struct ibv_xrc_domain *domain = ibv_open_xrc_domain(r.context, -1, O_CREAT);
	CHECK(domain);
	uint32_t number = 0;
	struct ibv_xrc_qp_init_attr init = { .xrc_domain = domain };
	CHECK_INT(ibv_create_xrc_rcv_qp(&init, &number), 0);
	CHECK_INT(ibv_reg_xrc_rcv_qp(domain, number ^ 1), EINVAL);
	CHECK_INT(ibv_unreg_xrc_rcv_qp(domain, number), 0);
	CHECK_INT(ibv_close_xrc_domain(domain), 0);
	rig_close(&r);
}

static struct ibv_qp *direct_qp(struct rig *r, struct ibv_srq *srq, enum mlx5dv_dc_type type)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_DRIVER, .send_cq = r->cq, .recv_cq = r->cq,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = r->pd,
	};
	struct mlx5dv_qp_init_attr dv = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
					  .dc_init_attr = { .dc_type = type } };
	if (type == MLX5DV_DCTYPE_DCT) {
		init.srq = srq;
		dv.dc_init_attr.dct_access_key = KEY;
	} else {
		init.cap.max_send_wr = 16;
		init.cap.max_send_sge = 1;
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	}
	struct ibv_qp *qp = mlx5dv_create_qp(r->context, &init, &dv);
	CHECK(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	int target = type == MLX5DV_DCTYPE_DCT;
	CHECK_INT(ibv_modify_qp(qp, &attr, mask | (target ? IBV_QP_ACCESS_FLAGS : 0)), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.min_rnr_timer = 12;
	attr.ah_attr = path_to_self(r->context);
	mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU;
	CHECK_INT(ibv_modify_qp(qp, &attr, mask | (target ? IBV_QP_MIN_RNR_TIMER : 0)), 0);
	return qp;
}

/* A memory key of a list, and a queue pair that configures it. */
static void mlx5_keys(struct rig *r)
{
	struct ibv_qp_init_attr small = small_qp(r->cq);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = r->cq, .recv_cq = r->cq, .cap = small.cap, .qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = r->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
		.send_ops_flags = MLX5DV_QP_EX_WITH_MR_LIST,
	};
	struct ibv_qp *qp = mlx5dv_create_qp(r->context, &init, &dv);
	CHECK(qp);
	connect_qp(qp, qp->qp_num);
	struct mlx5dv_mkey_init_attr asked = { .pd = r->pd, .max_entries = 4,
					       .create_flags = MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT };
	struct mlx5dv_mkey *mkey = mlx5dv_create_mkey(&asked);
	CHECK(mkey);
	struct ibv_sge list[] = { sge_at(r, 64, 16), sge_at(r, 0, 16) };
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct mlx5dv_qp_ex *direct = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	ibv_wr_start(ex);
	ex->wr_id = 61;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	mlx5dv_wr_mr_list(direct, mkey, IBV_ACCESS_LOCAL_WRITE, 2, list);
	CHECK_INT(ibv_wr_complete(ex), 0);
	expect(r->cq, 61);
	CHECK_INT(mlx5dv_destroy_mkey(mkey), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
}

/* Dynamic connections, memory keys, and a function that Rocade does not have. */
static void mlx5(void)
{
	struct rig r = rig_open();
	CHECK(mlx5dv_is_supported(r.context->device));
	struct ibv_srq_init_attr room = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(r.pd, &room);
	CHECK(srq);
	struct ibv_qp *dci = direct_qp(&r, srq, MLX5DV_DCTYPE_DCI);
	struct ibv_qp *target = direct_qp(&r, srq, MLX5DV_DCTYPE_DCT);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7,
				    .rnr_retry = 7 };
	CHECK_INT(ibv_modify_qp(dci, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						    IBV_QP_MAX_QP_RD_ATOMIC), 0);
	struct ibv_ah_attr self = path_to_self(r.context);
	struct ibv_ah *ah = ibv_create_ah(r.pd, &self);
	CHECK(ah);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(dci);
	ibv_wr_start(ex);
	ex->wr_id = 51;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, r.mr->rkey, (uintptr_t)r.buffer + 4096);
	mlx5dv_wr_set_dc_addr(mlx5dv_qp_ex_from_ibv_qp_ex(ex), ah, target->qp_num, KEY);
	ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer, 16);
	CHECK_INT(ibv_wr_complete(ex), 0);
	expect(r.cq, 51);
	mlx5_keys(&r);
	CHECK(!mlx5dv_devx_obj_create(r.context, NULL, 0, NULL, 0));
	CHECK_INT(errno, EOPNOTSUPP);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	CHECK_INT(ibv_destroy_qp(dci), 0);
	CHECK_INT(ibv_destroy_qp(target), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

/* A completion counter of efadv, with an attribute that it refuses, and a function without EFA. */
static void efa(void)
{
	struct rig r = rig_open();
	void *(*create)(struct ibv_context *, void *, void *, uint32_t) =
		dlvsym(RTLD_DEFAULT, "efadv_create_comp_cntr", "EFA_1.7");
	CHECK(create);
	uint64_t of[4] = { 0 }, none[32] = { 0 };
	CHECK(!create(r.context, of, none, 1));
	struct efadv_device_attr attr;
	CHECK_INT(efadv_query_device(r.context, &attr, sizeof attr), EOPNOTSUPP);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case families[] = {
		{ "cross-channel", cross_channel }, { "masked", masked }, { "umr", umr },
		{ "dct", dct }, { "xrc", xrc }, { "mlx5", mlx5 }, { "efa", efa }, { NULL, NULL },
	};
	return run_case(families, argc, argv);
}
