/* Helpers for DC programs: an initiator and a target in one process. */
#ifndef ROCADE_TESTS_DC_H
#define ROCADE_TESTS_DC_H

#include "rig.h"

#include <infiniband/verbs_exp.h>

enum { KEY = 0x1d, ROOM = 64, RECEIVES = 64 };

#define RIGHTS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* An initiator, a target, and memory. */
struct ends {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq, *dct_cq;
	struct ibv_srq *srq;
	struct ibv_exp_dct *dct;
	struct ibv_qp *dci;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	char *buffer;
};

static inline struct ibv_exp_dct_init_attr target_attr(struct ends *e)
{
	struct ibv_exp_dct_init_attr attr = {
		.pd = e->pd, .cq = e->dct_cq, .srq = e->srq, .dc_key = KEY, .port = 1,
		.access_flags = RIGHTS, .min_rnr_timer = 2, .tclass = 4, .flow_label = 5,
		.mtu = IBV_MTU_1024, .pkey_index = 0, .gid_index = 0, .hop_limit = 9,
	};
	return attr;
}

static inline void receive(struct ends *e, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)e->buffer + 4096, ROOM, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_srq_recv(e->srq, &wr, &bad), 0);
}

/* ACK timeout of initiators: 4.096 microseconds * 2^timeout. */
static uint8_t dci_timeout __attribute__((unused)) = 14;

/* Brings the initiator from RESET to RTS, by the transition table of the experimental verbs. */
static inline void start(struct ends *e, uint64_t own_key)
{
	struct ibv_exp_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .dct_key = own_key };
	uint64_t init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, init), EINVAL);
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, init | IBV_EXP_QP_DC_KEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.ah_attr = path_to_self(e->context);
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, IBV_QP_STATE | IBV_QP_AV), EINVAL);
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 16;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	uint64_t rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		       IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, rts | IBV_QP_SQ_PSN), EINVAL);
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, rts), 0);
	struct ibv_exp_qp_attr now;
	CHECK_INT(ibv_exp_query_qp(e->dci, &now, 0, NULL), 0);
	CHECK_INT(now.qp_state, IBV_QPS_RTS);
	CHECK(now.dct_key == own_key);
}

/* `flags` are creation flags of cross-channel and UMR. */
static inline struct ends ends_open_with(uint32_t flags)
{
	struct ends e = { .context = open_device() };
	e.pd = ibv_alloc_pd(e.context);
	e.cq = ibv_create_cq(e.context, 512, NULL, NULL, 0);
	e.dct_cq = ibv_create_cq(e.context, 512, NULL, NULL, 0);
	CHECK(e.pd && e.cq && e.dct_cq);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	e.srq = ibv_create_srq(e.pd, &srq);
	CHECK(e.srq);
	struct ibv_exp_dct_init_attr attr = target_attr(&e);
	e.dct = ibv_exp_create_dct(e.context, &attr);
	CHECK(e.dct && e.dct->dct_num && e.dct->context == e.context && e.dct->srq == e.srq);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = e.cq, .recv_cq = e.cq, .pd = e.pd, .qp_type = IBV_EXP_QPT_DC_INI,
		.cap = { .max_send_wr = 64, .max_send_sge = 2, .max_inline_data = 64 },
		.sq_sig_all = 1, .exp_create_flags = flags, .max_inl_send_klms = 4,
		.max_atomic_arg = 32,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS |
			     IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG | IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS,
	};
	e.dci = ibv_exp_create_qp(e.context, &init);
	CHECK(e.dci);
	start(&e, KEY + 1);
	e.buffer = calloc(1, BUFFER_LEN);
	e.mr = ibv_reg_mr(e.pd, e.buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE | RIGHTS);
	struct ibv_ah_attr self = path_to_self(e.context);
	e.ah = ibv_create_ah(e.pd, &self);
	CHECK(e.mr && e.ah);
	return e;
}

static inline struct ends ends_open(void)
{
	return ends_open_with(0);
}

static inline void ends_close(struct ends *e)
{
	CHECK_INT(ibv_destroy_qp(e->dci), 0);
	if (e->dct)
		CHECK_INT(ibv_exp_destroy_dct(e->dct), 0);
	CHECK_INT(ibv_destroy_ah(e->ah), 0);
	CHECK_INT(ibv_destroy_srq(e->srq), 0);
	CHECK_INT(ibv_destroy_cq(e->cq), 0);
	CHECK_INT(ibv_destroy_cq(e->dct_cq), 0);
	CHECK_INT(ibv_dereg_mr(e->mr), 0);
	CHECK_INT(ibv_dealloc_pd(e->pd), 0);
	CHECK_INT(ibv_close_device(e->context), 0);
	free(e->buffer);
}

static inline struct ibv_exp_send_wr to_target(struct ends *e, uint64_t wr_id, uint32_t dct, uint64_t key)
{
	struct ibv_exp_send_wr wr = {
		.wr_id = wr_id, .exp_opcode = IBV_EXP_WR_SEND, .exp_send_flags = IBV_EXP_SEND_SIGNALED,
		.dc = { .ah = e->ah, .dct_access_key = key, .dct_number = dct },
	};
	return wr;
}

static inline int post(struct ends *e, struct ibv_exp_send_wr *wr)
{
	struct ibv_exp_send_wr *bad = NULL;
	return ibv_exp_post_send(e->dci, wr, &bad);
}

static inline struct ibv_exp_wc next_exp(struct ibv_cq *cq)
{
	struct ibv_exp_wc wc;
	int polled;
	while ((polled = ibv_exp_poll_cq(cq, 1, &wc, sizeof(wc))) == 0)
		;
	CHECK_INT(polled, 1);
	return wc;
}

#endif
