/* Helpers for cross-channel programs: QPs and CQs for it, requests, and a rig of them. */
#ifndef ROCADE_TESTS_CROSS_H
#define ROCADE_TESTS_CROSS_H

#include "rig.h"

#include <endian.h>
#include <infiniband/verbs_exp.h>

#define MASTER IBV_EXP_QP_CREATE_CROSS_CHANNEL
#define MANAGED_SEND IBV_EXP_QP_CREATE_MANAGED_SEND
#define MANAGED_RECV IBV_EXP_QP_CREATE_MANAGED_RECV
#define LAST IBV_EXP_SEND_WAIT_EN_LAST
#define SIGNALED IBV_EXP_SEND_SIGNALED

static inline struct ibv_cq *waitable_cq(struct ibv_context *context, struct ibv_comp_channel *channel)
{
	struct ibv_exp_cq_init_attr attr = { .comp_mask = IBV_EXP_CQ_INIT_ATTR_FLAGS,
					     .flags = IBV_EXP_CQ_CREATE_CROSS_CHANNEL };
	struct ibv_cq *cq = ibv_exp_create_cq(context, 64, NULL, channel, 0, &attr);
	CHECK(cq);
	return cq;
}

static inline struct ibv_qp *cross_qp(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq,
			       uint32_t flags)
{
	struct ibv_qp_init_attr small = small_qp(send_cq);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .cap = small.cap, .qp_type = IBV_QPT_RC,
		.pd = pd, .exp_create_flags = flags,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS,
	};
	struct ibv_qp *qp = ibv_exp_create_qp(pd->context, &init);
	CHECK(qp);
	struct ibv_exp_qp_attr attr;
	struct ibv_exp_qp_init_attr got;
	CHECK_INT(ibv_exp_query_qp(qp, &attr, 0, &got), 0);
	CHECK_INT(got.exp_create_flags, flags);
	return qp;
}

/* Receives of `r->b` complete to `recv_cq`. The master is connected to itself. */
struct cross {
	struct rig r;
	struct ibv_cq *recv_cq, *master_cq;
	struct ibv_qp *master;
};

static inline struct cross cross_open(uint32_t a_flags, uint32_t b_flags)
{
	struct cross c = { .r = rig_open() };
	c.recv_cq = waitable_cq(c.r.context, NULL);
	c.master_cq = waitable_cq(c.r.context, c.r.channel);
	CHECK_INT(ibv_destroy_qp(c.r.a), 0);
	CHECK_INT(ibv_destroy_qp(c.r.b), 0);
	c.r.a = cross_qp(c.r.pd, c.r.cq, c.r.cq, a_flags);
	c.r.b = cross_qp(c.r.pd, c.r.cq, c.recv_cq, b_flags);
	c.master = cross_qp(c.r.pd, c.master_cq, c.master_cq, MASTER);
	connect_qp(c.r.a, c.r.b->qp_num);
	connect_qp(c.r.b, c.r.a->qp_num);
	connect_qp(c.master, c.master->qp_num);
	return c;
}

static inline void cross_close(struct cross *c)
{
	CHECK_INT(ibv_destroy_qp(c->master), 0);
	CHECK_INT(ibv_destroy_qp(c->r.a), 0);
	CHECK_INT(ibv_destroy_qp(c->r.b), 0);
	CHECK_INT(ibv_destroy_cq(c->master_cq), 0);
	CHECK_INT(ibv_destroy_cq(c->recv_cq), 0);
	struct ibv_qp_init_attr init = small_qp(c->r.cq);
	c->r.a = ibv_create_qp(c->r.pd, &init);
	c->r.b = ibv_create_qp(c->r.pd, &init);
	rig_close(&c->r);
}

static inline struct ibv_exp_send_wr wait_for(struct ibv_cq *cq, int count, uint64_t flags, uint64_t wr_id)
{
	struct ibv_exp_send_wr wr = { .wr_id = wr_id, .exp_opcode = IBV_EXP_WR_CQE_WAIT,
				      .exp_send_flags = flags };
	wr.task.cqe_wait.cq = cq;
	wr.task.cqe_wait.cq_count = count;
	return wr;
}

static inline struct ibv_exp_send_wr enable(enum ibv_exp_wr_opcode opcode, struct ibv_qp *qp, int count,
				     uint64_t flags)
{
	struct ibv_exp_send_wr wr = { .wr_id = 7, .exp_opcode = opcode, .exp_send_flags = flags };
	wr.task.wqe_enable.qp = qp;
	wr.task.wqe_enable.wqe_count = count;
	return wr;
}

static inline int post(struct ibv_qp *qp, struct ibv_exp_send_wr wr)
{
	struct ibv_exp_send_wr *bad = NULL;
	int result = ibv_exp_post_send(qp, &wr, &bad);
	CHECK(!result == !bad);
	return result;
}

static inline void expect(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc = next_completion(cq);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.wr_id, wr_id);
}

static inline struct ibv_exp_send_wr calc(struct ibv_sge *list, int count, enum ibv_exp_calc_op op,
				   enum ibv_exp_calc_data_type type)
{
	struct ibv_exp_send_wr wr = { .wr_id = 5, .sg_list = list, .num_sge = count,
				      .exp_opcode = IBV_EXP_WR_SEND,
				      .exp_send_flags = IBV_EXP_SEND_WITH_CALC | SIGNALED };
	wr.op.calc.calc_op = op;
	wr.op.calc.data_type = type;
	return wr;
}

#endif
