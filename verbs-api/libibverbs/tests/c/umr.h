/* Helpers for programs with indirect memory keys: a rig whose QPs may change keys, and requests. */
#ifndef ROCADE_TESTS_UMR_H
#define ROCADE_TESTS_UMR_H

#include "rig.h"

#include <infiniband/verbs_exp.h>

#define ALL_RIGHTS                                                                                  \
	(IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_WRITE | IBV_EXP_ACCESS_REMOTE_READ |     \
	 IBV_EXP_ACCESS_REMOTE_ATOMIC)

/* Like rig_open, but the QPs may change keys, with inline lists of up to 4 entries. */
static inline struct rig umr_open(void)
{
	struct rig r = rig_open();
	struct ibv_qp **both[] = { &r.a, &r.b };
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr small = small_qp(r.cq);
		struct ibv_exp_qp_init_attr init = {
			.send_cq = r.cq, .recv_cq = r.cq, .cap = small.cap, .qp_type = IBV_QPT_RC,
			.pd = r.pd, .exp_create_flags = IBV_EXP_QP_CREATE_UMR,
			.max_inl_send_klms = 4,
			.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS |
				     IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS,
		};
		CHECK_INT(ibv_destroy_qp(*both[i]), 0);
		*both[i] = ibv_exp_create_qp(r.context, &init);
		CHECK(*both[i]);
		CHECK(init.cap.max_send_wr >= small.cap.max_send_wr);
	}
	connect_qp(r.a, r.b->qp_num);
	connect_qp(r.b, r.a->qp_num);
	for (int i = 0; i < BUFFER_LEN; i++)
		r.buffer[i] = (char)(i * 7 + i / 256);
	return r;
}

static inline struct ibv_mr *new_key(struct rig *r, uint32_t entries)
{
	struct ibv_exp_create_mr_in in = {
		.pd = r->pd,
		.attr = { .max_klm_list_size = entries, .create_flags = IBV_EXP_MR_INDIRECT_KLMS,
			  .exp_access_flags = ALL_RIGHTS },
	};
	struct ibv_mr *key = ibv_exp_create_mr(&in);
	CHECK(key && key->lkey && key->rkey);
	CHECK(!key->addr && !key->length);
	struct ibv_exp_mkey_attr attr = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_query_mkey(key, &attr), 0);
	CHECK(attr.max_klm_list_size >= entries);
	CHECK_INT(attr.n_mkey_entries, attr.max_klm_list_size);
	return key;
}

static inline struct ibv_exp_mem_region piece(struct rig *r, size_t offset, size_t length)
{
	struct ibv_exp_mem_region entry = { (uintptr_t)r->buffer + offset, r->mr, length };
	return entry;
}

static inline struct ibv_exp_send_wr fill(struct ibv_mr *key, uint64_t base, uint32_t count,
				   struct ibv_exp_mem_region *list)
{
	struct ibv_exp_send_wr wr = {
		.wr_id = 77, .exp_opcode = IBV_EXP_WR_UMR_FILL,
		.exp_send_flags = IBV_EXP_SEND_INLINE | IBV_EXP_SEND_SIGNALED,
	};
	wr.ext_op.umr.umr_type = IBV_EXP_UMR_MR_LIST;
	wr.ext_op.umr.exp_access = ALL_RIGHTS;
	wr.ext_op.umr.modified_mr = key;
	wr.ext_op.umr.base_addr = base;
	wr.ext_op.umr.num_mrs = count;
	wr.ext_op.umr.mem_list.mem_reg_list = list;
	return wr;
}

static inline struct ibv_exp_wc next_exp(struct rig *r)
{
	struct ibv_exp_wc wc;
	int polled;
	while ((polled = ibv_exp_poll_cq(r->cq, 1, &wc, sizeof(wc))) == 0)
		;
	CHECK_INT(polled, 1);
	return wc;
}

static inline void execute(struct rig *r, struct ibv_qp *qp, struct ibv_exp_send_wr *wr,
		    enum ibv_exp_wc_opcode opcode)
{
	struct ibv_exp_send_wr *bad;
	CHECK_INT(ibv_exp_post_send(qp, wr, &bad), 0);
	struct ibv_exp_wc wc = next_exp(r);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.exp_opcode, opcode);
	CHECK_INT(wc.wr_id, wr->wr_id);
	CHECK_INT(wc.qp_num, qp->qp_num);
	CHECK(wc.exp_wc_flags & IBV_EXP_WC_WITH_TIMESTAMP);
}

/* Transfers between an address of a key and the end of the buffer. */
static inline struct ibv_exp_send_wr rdma(enum ibv_exp_wr_opcode opcode, struct ibv_sge *sge, uint64_t addr,
				   uint32_t rkey)
{
	struct ibv_exp_send_wr wr = {
		.wr_id = 78, .sg_list = sge, .num_sge = 1, .exp_opcode = opcode,
		.exp_send_flags = IBV_EXP_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	};
	return wr;
}

#endif
