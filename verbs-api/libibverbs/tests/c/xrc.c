/* XRC: domains, targets, initiators, and shared receive queues with a CQ of their own. */
#include "rig.h"

static struct ibv_xrcd *open_domain(struct ibv_context *context, int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD |
							IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = fd, .oflags = oflags };
	return ibv_open_xrcd(context, &init);
}

static struct ibv_srq *create_srq(struct rig *r, struct ibv_xrcd *xrcd, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex init = {
		.srq_context = r,
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = r->pd,
		.xrcd = xrcd,
		.cq = cq,
	};
	return ibv_create_srq_ex(r->context, &init);
}

static struct ibv_qp *create_target(struct rig *r, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex init = { .qp_context = r,
					    .cap = { .max_send_wr = 5, .max_recv_wr = 5 },
					    .qp_type = IBV_QPT_XRC_RECV,
					    .comp_mask = IBV_QP_INIT_ATTR_XRCD,
					    .xrcd = xrcd };
	struct ibv_qp *qp = ibv_create_qp_ex(r->context, &init);
	CHECK(!qp || (init.cap.max_send_wr == 0 && init.cap.max_recv_wr == 0));
	return qp;
}

static struct ibv_qp *open_target(struct rig *r, struct ibv_xrcd *xrcd, uint32_t number)
{
	struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM |
						      IBV_QP_OPEN_ATTR_XRCD |
						      IBV_QP_OPEN_ATTR_TYPE |
						      IBV_QP_OPEN_ATTR_CONTEXT,
					 .qp_num = number,
					 .xrcd = xrcd,
					 .qp_context = &attr,
					 .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp *qp = ibv_open_qp(r->context, &attr);
	CHECK(!qp || qp->qp_context == &attr);
	return qp;
}

/* Creates an initiator, with or without the builders. */
static struct ibv_qp *create_initiator(struct rig *r, uint64_t operations)
{
	struct ibv_qp_init_attr small = small_qp(r->cq);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = r->cq,
		.cap = small.cap,
		.qp_type = IBV_QPT_XRC_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     (operations ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = r->pd,
		.send_ops_flags = operations,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(r->context, &init);
	CHECK(qp);
	CHECK_INT(init.cap.max_recv_wr, 0);
	return qp;
}

static int post_recv(struct rig *r, struct ibv_srq *srq, uint64_t wr_id)
{
	struct ibv_sge sge = sge_at(r, 4096, 64);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_srq_recv(srq, &wr, &bad);
}

static uint32_t number_of(struct ibv_srq *srq)
{
	uint32_t number = 0;
	CHECK_INT(ibv_get_srq_num(srq, &number), 0);
	CHECK(number && !(number >> 24));
	return number;
}

/* XRCL-02 to XRCL-05, DST-05. */
static void domains_and_files(void)
{
	struct rig r = rig_open();
	struct ibv_device_attr device;
	CHECK_INT(ibv_query_device(r.context, &device), 0);
	CHECK(device.device_cap_flags & IBV_DEVICE_XRC);
	char path[] = "/tmp/rocade-xrc-XXXXXX";
	int fd = mkstemp(path), same = open(path, O_RDONLY);
	CHECK(fd >= 0 && same >= 0);
	CHECK_INT(unlink(path), 0);
	static const struct { int comp_mask, fd, oflags, error; } rows[] = {
		{ 0, -1, O_CREAT, EINVAL },
		{ IBV_XRCD_INIT_ATTR_FD, -1, O_CREAT, EINVAL },
		{ IBV_XRCD_INIT_ATTR_OFLAGS, -1, O_CREAT, EINVAL },
		{ IBV_XRCD_INIT_ATTR_RESERVED | 3, -1, O_CREAT, EINVAL },
		{ 3, 9999, O_CREAT, EBADF },
		{ 3, -7, O_CREAT, EBADF },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ibv_xrcd_init_attr init = { .comp_mask = rows[i].comp_mask,
						   .fd = rows[i].fd, .oflags = rows[i].oflags };
		CHECK(!ibv_open_xrcd(r.context, &init));
		CHECK_INT(errno, rows[i].error);
	}
	CHECK(!open_domain(r.context, fd, 0) && errno == EAGAIN);
	CHECK(!open_domain(r.context, fd, O_EXCL) && errno == EAGAIN);
	struct ibv_xrcd *one = open_domain(r.context, fd, O_CREAT | O_EXCL);
	CHECK(one && one->context == r.context);
	CHECK(!open_domain(r.context, same, O_CREAT | O_EXCL) && errno == EINVAL);
	struct ibv_xrcd *other = open_domain(r.context, same, 0);
	CHECK(other);
	close(fd);
	struct ibv_qp *target = create_target(&r, one);
	struct ibv_qp *opened = open_target(&r, other, target->qp_num);
	CHECK(target && opened && opened != target && opened->qp_num == target->qp_num);
	CHECK_INT(ibv_close_xrcd(one), EBUSY);
	CHECK_INT(ibv_destroy_qp(target), 0);
	CHECK_INT(ibv_close_xrcd(one), 0);
	CHECK_INT(ibv_close_xrcd(other), EBUSY);
	CHECK_INT(ibv_destroy_qp(opened), 0);
	CHECK_INT(ibv_close_xrcd(other), 0);
	CHECK(!open_domain(r.context, same, 0) && errno == EAGAIN);
	close(same);

	/* Private domains share nothing. */
	one = open_domain(r.context, -1, O_CREAT);
	other = open_domain(r.context, -1, O_CREAT);
	CHECK(one && other);
	target = create_target(&r, one);
	CHECK(!open_target(&r, other, target->qp_num) && errno == EINVAL);
	CHECK(!open_target(&r, one, r.a->qp_num) && errno == EINVAL);
	CHECK_INT(ibv_destroy_qp(target), 0);
	CHECK(!open_target(&r, one, 0x123456) && errno == EINVAL);
	CHECK_INT(ibv_close_xrcd(one), 0);
	CHECK_INT(ibv_close_xrcd(other), 0);
	rig_close(&r);
}

/* Messages, posted with both interfaces, to two SRQs (XRC-01, XRC-05, XRC-12). */
static void messages_go_to_the_queue_they_name(void)
{
	struct rig r = rig_open();
	struct ibv_xrcd *xrcd = open_domain(r.context, -1, O_CREAT);
	CHECK(xrcd);
	struct ibv_cq *cqs[2];
	struct ibv_srq *srqs[2];
	for (int i = 0; i < 2; i++) {
		cqs[i] = ibv_create_cq(r.context, 16, NULL, NULL, 0);
		srqs[i] = create_srq(&r, xrcd, cqs[i]);
		CHECK(srqs[i] && srqs[i]->pd == r.pd && srqs[i]->srq_context == &r);
	}
	struct ibv_qp *target = create_target(&r, xrcd);
	CHECK(target && !target->pd && !target->send_cq && !target->recv_cq && !target->srq);
	CHECK_INT(target->qp_type, IBV_QPT_XRC_RECV);
	struct ibv_qp *plain = create_initiator(&r, 0);
	to_init(target);
	to_init(plain);
	to_rtr(target, plain->qp_num);
	to_rtr(plain, target->qp_num);
	to_rts(plain);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
	CHECK_INT(ibv_post_recv(plain, &recv, &bad_recv), EINVAL);
	CHECK_INT(ibv_post_recv(target, &recv, &bad_recv), EINVAL);
	strcpy(r.buffer, "to a queue");
	for (int i = 0; i < 2; i++) {
		CHECK_INT(post_recv(&r, srqs[i], 40 + i), 0);
		struct ibv_sge sge = sge_at(&r, 0, 16);
		struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1,
					  .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 5,
					  .send_flags = IBV_SEND_SIGNALED | (i ? IBV_SEND_INLINE : 0),
					  .qp_type.xrc.remote_srqn = number_of(srqs[i]) }, *bad;
		CHECK_INT(ibv_post_send(target, &wr, &bad), EINVAL);
		CHECK_INT(ibv_post_send(plain, &wr, &bad), 0);
		struct ibv_wc wc = next_completion(cqs[i]);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.wr_id, 40 + i);
		CHECK_INT(wc.qp_num, target->qp_num);
		CHECK_INT(wc.opcode, IBV_WC_RECV);
		CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 5);
		CHECK_INT(strcmp(r.buffer + 4096, "to a queue"), 0);
		CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	}
	CHECK_INT(ibv_destroy_qp(plain), 0);
	CHECK_INT(ibv_destroy_qp(target), 0);

	/* The builders, and an initiator created with ibv_create_qp. */
	target = create_target(&r, xrcd);
	struct ibv_qp *qp = create_initiator(&r, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex && !ibv_qp_to_qp_ex(target));
	to_init(target);
	to_init(qp);
	to_rtr(target, qp->qp_num);
	to_rtr(qp, target->qp_num);
	to_rts(qp);
	CHECK_INT(post_recv(&r, srqs[1], 50), 0);
	ibv_wr_start(ex);
	ex->wr_id = 8;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, number_of(srqs[1]));
	ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer, 8);
	ex->wr_id = 9;
	ibv_wr_rdma_read(ex, r.mr->rkey, (uintptr_t)r.buffer);
	ibv_wr_set_xrc_srqn(ex, number_of(srqs[0]));
	ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer + 100, 10);
	CHECK_INT(ibv_wr_complete(ex), 0);
	CHECK_INT(next_completion(cqs[1]).wr_id, 50);
	for (uint64_t id = 8; id <= 9; id++) {
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.wr_id, id);
	}
	CHECK_INT(strcmp(r.buffer + 100, "to a queue"), 0);
	ibv_wr_start(ex);
	ibv_wr_set_xrc_srqn(ex, 1);
	CHECK_INT(ibv_wr_complete(ex), EINVAL);
	/* The second request of a batch names no SRQ: nothing of the batch is sent. */
	CHECK_INT(post_recv(&r, srqs[1], 51), 0);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, number_of(srqs[1]));
	ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer, 8);
	ibv_wr_rdma_read(ex, r.mr->rkey, (uintptr_t)r.buffer);
	ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer + 100, 10);
	CHECK_INT(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	ex->wr_id = 10;
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, number_of(srqs[1]));
	ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer, 8);
	CHECK_INT(ibv_wr_complete(ex), 0);
	CHECK_INT(next_completion(cqs[1]).wr_id, 51);
	CHECK_INT(next_completion(r.cq).wr_id, 10);
	struct ibv_qp_init_attr older = small_qp(r.cq);
	older.qp_type = IBV_QPT_XRC_SEND;
	older.recv_cq = NULL;
	struct ibv_qp *third = ibv_create_qp(r.pd, &older);
	CHECK(third);
	CHECK_INT(ibv_destroy_qp(third), 0);

	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_close_xrcd(xrcd), EBUSY);
	CHECK_INT(ibv_destroy_qp(target), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(ibv_destroy_cq(cqs[i]), EBUSY);
		CHECK_INT(ibv_close_xrcd(xrcd), EBUSY);
		CHECK_INT(ibv_destroy_srq(srqs[i]), 0);
		CHECK_INT(ibv_destroy_cq(cqs[i]), 0);
	}
	CHECK_INT(ibv_close_xrcd(xrcd), 0);
	rig_close(&r);
}

/* Combinations that are invalid. */
static void mistakes_are_refused(void)
{
	struct rig r = rig_open();
	struct ibv_xrcd *xrcd = open_domain(r.context, -1, O_CREAT);
	struct ibv_srq *srq = create_srq(&r, xrcd, r.cq);
	CHECK(srq);
	CHECK(!create_srq(&r, NULL, r.cq) && errno == EINVAL);
	CHECK(!create_srq(&r, xrcd, NULL) && errno == EINVAL);
	CHECK(!create_target(&r, NULL) && errno == EINVAL);
	struct ibv_qp_init_attr_ex ex = { .send_cq = r.cq, .recv_cq = r.cq, .pd = r.pd,
					  .qp_type = IBV_QPT_XRC_RECV,
					  .comp_mask = IBV_QP_INIT_ATTR_PD };
	CHECK(!ibv_create_qp_ex(r.context, &ex) && errno == EINVAL);
	ex.comp_mask = IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	ex.xrcd = xrcd;
	ex.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(!ibv_create_qp_ex(r.context, &ex) && errno == EOPNOTSUPP);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	init.srq = srq;
	CHECK(!ibv_create_qp(r.pd, &init) && errno == EINVAL);
	init.qp_type = IBV_QPT_XRC_SEND;
	CHECK(!ibv_create_qp(r.pd, &init) && errno == EINVAL);
	struct ibv_qp *target = create_target(&r, xrcd);
	struct ibv_qp_open_attr attr = { .comp_mask = 11, .qp_num = target->qp_num, .xrcd = xrcd,
					 .qp_type = IBV_QPT_XRC_RECV };
	static const uint32_t masks[] = { 0, 3, 9, 10, 16 | 11 };
	for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
		attr.comp_mask = masks[i];
		CHECK(!ibv_open_qp(r.context, &attr) && errno == EINVAL);
	}
	attr.comp_mask = 11;
	attr.qp_type = IBV_QPT_RC;
	CHECK(!ibv_open_qp(r.context, &attr) && errno == EINVAL);
	CHECK_INT(ibv_destroy_qp(target), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	CHECK_INT(ibv_close_xrcd(xrcd), 0);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "domains_and_files", domains_and_files },
		{ "messages_go_to_the_queue_they_name", messages_go_to_the_queue_they_name },
		{ "mistakes_are_refused", mistakes_are_refused },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
