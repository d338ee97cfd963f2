/* What real devices accept and report, and what devices like them do. */
#include "rig.h"

#include <endian.h>
#include <sched.h>
#include <infiniband/verbs_exp.h>

/* Writes to a key that opens nothing, with immediate data, and returns the completion of the
 * receive. */
static struct ibv_wc refused_receive(struct rig *r)
{
	post_receive(r, 1);
	struct ibv_sge sge = sge_at(r, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)r->buffer + 4096;
	wr.wr.rdma.rkey = r->mr->rkey ^ 1;
	CHECK_INT(ibv_post_send(r->a, &wr, &bad), 0);
	struct ibv_wc receive = { 0 };
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_completion(r->cq);
		if (wc.wr_id == 1)
			receive = wc;
		else
			CHECK_INT(wc.status, IBV_WC_REM_ACCESS_ERR);
	}
	CHECK_INT(receive.wr_id, 1);
	return receive;
}

/* The receive of a refused WRITE with immediate has the status of the responder's own error. rxe
 * reports the requester's. */
/*= WCS-08 type=test */
static void a_refused_write_ends_its_receive(void)
{
	struct rig r = rig_open();
	CHECK_INT(refused_receive(&r).status, IBV_WC_LOC_ACCESS_ERR);
	rig_close(&r);
}

/*= RXE-58 type=test */
static void a_refused_write_as_rxe_reports_it(void)
{
	setenv("ROCADE_LIKE", "rxe", 1);
	struct rig r = rig_open();
	CHECK_INT(refused_receive(&r).status, IBV_WC_REM_ACCESS_ERR);
	rig_close(&r);
}

/* Posts a request and returns its completion. */
static struct ibv_wc done(struct rig *r, struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	wr->wr_id = 77;
	wr->send_flags |= IBV_SEND_SIGNALED;
	CHECK_INT(ibv_post_send(qp, wr, &bad), 0);
	struct ibv_wc wc = next_completion(r->cq);
	CHECK_INT(wc.wr_id, 77);
	return wc;
}

static struct ibv_send_wr bind_of(struct rig *r, struct ibv_mw *mw, struct ibv_mr *region, uint32_t rkey)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info.mr = region;
	wr.bind_mw.bind_info.addr = (uintptr_t)r->buffer + 4096;
	wr.bind_mw.bind_info.length = 64;
	wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	return wr;
}

static struct ibv_wc write_through(struct rig *r, uint32_t rkey, const char *text)
{
	strcpy(r->buffer, text);
	struct ibv_sge sge = sge_at(r, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)r->buffer + 4096;
	wr.wr.rdma.rkey = rkey;
	return done(r, r->a, &wr);
}

static struct ibv_mr *bindable(struct rig *r)
{
	struct ibv_mr *mr = ibv_reg_mr(r->pd, r->buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	return mr;
}

/* A type 2 bind takes the low byte of its key, whatever the other bits are. */
/*= KEY-04 type=test */
static void a_bind_takes_the_tag_alone(void)
{
	struct rig r = rig_open();
	struct ibv_mr *region = bindable(&r);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	CHECK(mw);
	uint32_t tag = (mw->rkey + 5) & 0xff, rkey = (mw->rkey & ~0xffu) | tag;
	const uint32_t given[] = { tag, rkey, 0xabcdef00 | tag };
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr bind = bind_of(&r, mw, region, given[i]);
		CHECK_INT(done(&r, r.b, &bind).status, IBV_WC_SUCCESS);
		char text[8] = "window0";
		text[6] += i;
		CHECK_INT(write_through(&r, rkey, text).status, IBV_WC_SUCCESS);
		CHECK(!memcmp(r.buffer + 4096, text, 8));
		struct ibv_send_wr free_it = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey };
		CHECK_INT(done(&r, r.b, &free_it).status, IBV_WC_SUCCESS);
	}
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(ibv_dereg_mr(region), 0);
	rig_close(&r);
}

/* The reasons are in the standard error, which the Rust test compares. */
static void a_wrong_bind_is_explained(void)
{
	struct rig r = rig_open();
	int pipes[2];
	CHECK_INT(pipe(pipes), 0);
	int saved = dup(2);
	CHECK(saved >= 0 && dup2(pipes[1], 2) == 2);
	struct ibv_mr *region = bindable(&r);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_1);
	struct ibv_send_wr bind = bind_of(&r, mw, region, 1), *bad;
	int first = ibv_post_send(r.b, &bind, &bad);
	bind.bind_mw.mw = NULL;
	int second = ibv_post_send(r.b, &bind, &bad);
	CHECK(dup2(saved, 2) == 2);
	CHECK_INT(first, EINVAL);
	CHECK_INT(second, EINVAL);
	close(pipes[1]);
	char text[4096] = { 0 };
	for (size_t had = 0; had < sizeof(text) - 1;) {
		ssize_t got = read(pipes[0], text + had, sizeof(text) - 1 - had);
		if (got <= 0)
			break;
		had += got;
	}
	CHECK(strstr(text, "type 1 window") && strstr(text, "ibv_bind_mw") && strstr(text, "bind_mw.mw is NULL"));
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(ibv_dereg_mr(region), 0);
	rig_close(&r);
}

/* Only the queue pair that a window is bound on can invalidate it. */
/*= MW-02 type=test */
static void windows_end_on_their_own_queue_pair(void)
{
	struct rig r = rig_open();
	struct ibv_mr *region = bindable(&r);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *other = ibv_create_qp(r.pd, &init);
	CHECK(mw && other);
	connect_qp(other, other->qp_num);
	struct ibv_send_wr bind = bind_of(&r, mw, region, ibv_inc_rkey(mw->rkey));
	CHECK_INT(done(&r, r.b, &bind).status, IBV_WC_SUCCESS);
	struct ibv_send_wr free_it = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = bind.bind_mw.rkey };
	CHECK_INT(done(&r, other, &free_it).status, IBV_WC_MW_BIND_ERR);
	CHECK_INT(write_through(&r, bind.bind_mw.rkey, "still on").status, IBV_WC_SUCCESS);
	CHECK_INT(done(&r, r.b, &free_it).status, IBV_WC_SUCCESS);
	CHECK_INT(write_through(&r, bind.bind_mw.rkey, "it ended").status, IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(ibv_destroy_qp(other), 0);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(ibv_dereg_mr(region), 0);
	rig_close(&r);
}

static struct ibv_srq *srq_of(struct rig *r, uint32_t max_wr, uint32_t max_sge, int extended)
{
	if (!extended) {
		struct ibv_srq_init_attr init = { .attr = { .max_wr = max_wr, .max_sge = max_sge } };
		return ibv_create_srq(r->pd, &init);
	}
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = max_wr, .max_sge = max_sge },
					     .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = r->pd };
	return ibv_create_srq_ex(r->context, &init);
}

/* A shared receive queue may have no entries, or entries without elements. */
/*= SRQ-01 type=test */
static void shared_queues_of_nothing(void)
{
	struct rig r = rig_open();
	for (int extended = 0; extended < 2; extended++) {
		struct ibv_srq *srq = srq_of(&r, 0, 0, extended);
		CHECK(srq);
		struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
		struct ibv_srq_attr attr = { .max_wr = 1 };
		CHECK_INT(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
		CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
		CHECK_INT(ibv_post_srq_recv(srq, &wr, &bad), 0);
		CHECK_INT(ibv_query_srq(srq, &attr), 0);
		CHECK_INT(attr.max_wr, 1);
		CHECK_INT(attr.max_sge, 0);
		CHECK_INT(ibv_destroy_srq(srq), 0);
		srq = srq_of(&r, 4, 1, extended);
		attr.max_wr = 0;
		CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
		CHECK_INT(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
		CHECK_INT(ibv_destroy_srq(srq), 0);
	}
	rig_close(&r);
}

/* Queue pairs send data with WRITE and immediate, as some programs
 * do. All their receives come from a queue whose entries have no elements. */
/*= SRQ-01 RC-WQE-07 type=test */
static void immediates_need_no_elements(void)
{
	enum { PAIRS = 3, TURNS = 200, LEN = 32, DEPTH = 16 };
	struct rig r = rig_open();
	struct ibv_srq *srq = srq_of(&r, DEPTH, 0, 0);
	CHECK(srq);
	struct ibv_recv_wr receive = { .wr_id = 5 }, *bad_receive;
	for (int i = 0; i < DEPTH; i++)
		CHECK_INT(ibv_post_srq_recv(srq, &receive, &bad_receive), 0);
	CHECK_INT(ibv_post_srq_recv(srq, &receive, &bad_receive), ENOMEM);
	struct ibv_qp *pairs[PAIRS][2];
	for (int i = 0; i < PAIRS; i++) {
		for (int side = 0; side < 2; side++) {
			struct ibv_qp_init_attr init = small_qp(r.cq);
			init.srq = srq;
			pairs[i][side] = ibv_create_qp(r.pd, &init);
			CHECK(pairs[i][side]);
		}
		for (int side = 0; side < 2; side++)
			connect_qp(pairs[i][side], pairs[i][!side]->qp_num);
	}
	for (int turn = 0; turn < TURNS; turn++) {
		struct ibv_qp *from = pairs[turn % PAIRS][turn & 1], *to = pairs[turn % PAIRS][!(turn & 1)];
		memset(r.buffer, turn, LEN);
		struct ibv_sge sge = sge_at(&r, 0, LEN);
		struct ibv_send_wr wr = { .wr_id = 6, .sg_list = &sge, .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
					  .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(turn) }, *bad;
		wr.wr.rdma.remote_addr = (uintptr_t)r.buffer + 4096;
		wr.wr.rdma.rkey = r.mr->rkey;
		CHECK_INT(ibv_post_send(from, &wr, &bad), 0);
		for (int i = 0; i < 2; i++) {
			struct ibv_wc wc = next_completion(r.cq);
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			if (wc.wr_id == 6)
				continue;
			CHECK_INT(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
			CHECK_INT(wc.byte_len, LEN);
			CHECK_INT(wc.qp_num, to->qp_num);
			CHECK_INT(be32toh(wc.imm_data), turn);
		}
		CHECK(!memcmp(r.buffer, r.buffer + 4096, LEN));
		CHECK_INT(ibv_post_srq_recv(srq, &receive, &bad_receive), 0);
	}
	for (int i = 0; i < PAIRS; i++)
		for (int side = 0; side < 2; side++)
			CHECK_INT(ibv_destroy_qp(pairs[i][side]), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

/* A poll that can return nothing is no mistake. */
/*= CQ-03 type=test */
static void polls_for_nothing(void)
{
	struct rig r = rig_open();
	struct ibv_wc wc = { .wr_id = 4 };
	struct ibv_exp_wc exp_wc = { .wr_id = 4 };
	for (int is_full = 0; is_full < 2; is_full++) {
		CHECK_INT(ibv_poll_cq(r.cq, -1, &wc), 0);
		CHECK_INT(ibv_poll_cq(r.cq, -1, NULL), 0);
		CHECK_INT(ibv_poll_cq(r.cq, 0, &wc), 0);
		CHECK_INT(ibv_poll_cq(r.cq, 0, NULL), 0);
		CHECK_INT(ibv_exp_poll_cq(r.cq, -1, &exp_wc, sizeof(exp_wc)), 0);
		CHECK_INT(ibv_exp_poll_cq(r.cq, 0, NULL, sizeof(exp_wc)), 0);
		int result = ibv_poll_cq(r.cq, 1, NULL);
		CHECK(is_full ? result < 0 : result == 0);
		result = ibv_exp_poll_cq(r.cq, 1, NULL, sizeof(exp_wc));
		CHECK(is_full ? result < 0 : result == 0);
		CHECK_INT(wc.wr_id, 4);
		if (is_full)
			break;
		CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
		post_receive(&r, 1);
		to_error(r.b);
		wait_readable(r.channel->fd);
		struct ibv_cq *cq;
		void *of;
		CHECK_INT(ibv_get_cq_event(r.channel, &cq, &of), 0);
		ibv_ack_cq_events(cq, 1);
	}
	CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 1);
	CHECK_INT(wc.wr_id, 1);
	rig_close(&r);
}

/* A region of 0 bytes is a region, which opens nothing. */
/*= MR-06 MR-11 type=test */
static void regions_of_no_bytes(void)
{
	struct rig r = rig_open();
	char *page = r.buffer + 4096 - ((uintptr_t)r.buffer & 4095);
	for (int i = 0; i < 2; i++) {
		struct ibv_mr *mr = ibv_reg_mr(r.pd, page + 16 * i, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		CHECK(mr && mr->length == 0);
		struct ibv_sge sge = { (uintptr_t)mr->addr, 0, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
		wr.wr.rdma.remote_addr = (uintptr_t)mr->addr;
		wr.wr.rdma.rkey = mr->rkey;
		CHECK_INT(done(&r, r.a, &wr).status, IBV_WC_SUCCESS);
		if (i == 1) {
			sge = sge_at(&r, 0, 1);
			CHECK_INT(done(&r, r.a, &wr).status, IBV_WC_REM_ACCESS_ERR);
		}
		CHECK_INT(ibv_dereg_mr(mr), 0);
	}
	rig_close(&r);
}

#define GARBAGE(variable) memset(&(variable), 0xee, sizeof(variable))

/* Members that no mask names may have any value. */
/*= XDEC-12 XCON-20 XST-17 type=test */
static void only_valid_members_are_read(void)
{
	struct rig r = rig_open();
	struct ibv_exp_reg_mr_in reg;
	GARBAGE(reg);
	reg.pd = r.pd, reg.addr = r.buffer, reg.length = 64, reg.exp_access = 0, reg.comp_mask = 0;
	struct ibv_mr *mr = ibv_exp_reg_mr(&reg);
	CHECK(mr);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	reg.comp_mask = IBV_EXP_REG_MR_CREATE_FLAGS;
	CHECK(!ibv_exp_reg_mr(&reg) && errno == EINVAL);
	reg.create_flags = 0;
	mr = ibv_exp_reg_mr(&reg);
	CHECK(mr);
	CHECK_INT(ibv_dereg_mr(mr), 0);

	struct ibv_exp_cq_init_attr cq_init;
	GARBAGE(cq_init);
	cq_init.comp_mask = 0;
	struct ibv_cq *cq = ibv_exp_create_cq(r.context, 8, NULL, NULL, 0, &cq_init);
	CHECK(cq);
	struct ibv_exp_cq_attr change;
	GARBAGE(change);
	change.comp_mask = 0;
	CHECK_INT(ibv_exp_modify_cq(cq, &change, IBV_EXP_CQ_MODERATION), 0);
	/* The flags are named once, but not valid. */
	CHECK_INT(ibv_exp_modify_cq(cq, &change, IBV_EXP_CQ_CAP_FLAGS), EINVAL);
	change.cq_cap_flags = 0;
	CHECK_INT(ibv_exp_modify_cq(cq, &change, IBV_EXP_CQ_CAP_FLAGS), EINVAL);
	change.comp_mask = IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS;
	GARBAGE(change.cq_cap_flags);
	CHECK_INT(ibv_exp_modify_cq(cq, &change, IBV_EXP_CQ_MODERATION), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);

	struct ibv_exp_qp_init_attr init;
	GARBAGE(init);
	init.qp_context = NULL, init.send_cq = init.recv_cq = r.cq, init.srq = NULL;
	init.cap = small_qp(r.cq).cap, init.qp_type = IBV_QPT_RC, init.sq_sig_all = 0;
	init.comp_mask = IBV_EXP_QP_INIT_ATTR_PD, init.pd = r.pd;
	struct ibv_qp *qp = ibv_exp_create_qp(r.context, &init);
	CHECK(qp);
	CHECK_INT(init.max_inl_recv, 0xeeeeeeee);
	struct ibv_exp_qp_attr attr;
	GARBAGE(attr);
	attr.qp_state = IBV_QPS_INIT, attr.pkey_index = 0, attr.port_num = 1, attr.qp_access_flags = 0;
	attr.comp_mask = 0;
	CHECK_INT(ibv_exp_modify_qp(qp, &attr, IBV_EXP_QP_STATE | IBV_EXP_QP_PKEY_INDEX | IBV_EXP_QP_PORT |
						       IBV_EXP_QP_ACCESS_FLAGS), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);

	struct ibv_exp_device_attr device;
	GARBAGE(device);
	device.comp_mask = 0;
	CHECK_INT(ibv_exp_query_device(r.context, &device), 0);
	CHECK_INT(device.comp_mask, 0);
	CHECK_INT(device.max_dct, 0);

	struct ibv_exp_mkey_list_container_attr list_attr = { .pd = r.pd, .max_klm_list_size = 2 };
	struct ibv_exp_mkey_list_container *list = ibv_exp_alloc_mkey_list_memory(&list_attr);
	CHECK(list);
	CHECK_INT(ibv_exp_dealloc_mkey_list_memory(list), 0);

	/* The other members of a send are for other operations. */
	struct ibv_exp_send_wr wr, *bad;
	GARBAGE(wr);
	struct ibv_sge sge = sge_at(&r, 0, 16);
	wr.wr_id = 9, wr.next = NULL, wr.sg_list = &sge, wr.num_sge = 1, wr.comp_mask = 0;
	wr.exp_opcode = IBV_EXP_WR_SEND, wr.exp_send_flags = IBV_EXP_SEND_SIGNALED;
	post_receive(&r, 8);
	struct ibv_exp_task task;
	GARBAGE(task);
	task.task_type = IBV_EXP_TASK_SEND, task.item.qp = r.a, task.item.send_wr = &wr;
	task.next = NULL, task.comp_mask = 0;
	struct ibv_exp_task *bad_task;
	CHECK_INT(ibv_exp_post_task(r.context, &task, &bad_task), 0);
	for (int i = 0; i < 2; i++)
		CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	post_receive(&r, 8);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	for (int i = 0; i < 2; i++)
		CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	rig_close(&r);
}

/* The limits of a likeness, at which everything is accepted, and above which nothing is. */
static void check_limits(int max_sge, int max_srq_sge, int max_cqe, int max_rd_atom)
{
	struct rig r = rig_open();
	struct ibv_device_attr attr;
	CHECK_INT(ibv_query_device(r.context, &attr), 0);
	CHECK_INT(attr.max_sge, max_sge);
	CHECK_INT(attr.max_srq_sge, max_srq_sge);
	CHECK_INT(attr.max_cqe, max_cqe);
	CHECK_INT(attr.max_qp_rd_atom, max_rd_atom);
	CHECK_INT(attr.max_qp_init_rd_atom, max_rd_atom);
	for (int above = 0; above < 2; above++) {
		struct ibv_qp_init_attr send = small_qp(r.cq), receive = send;
		send.cap.max_send_sge = max_sge + above;
		receive.cap.max_recv_sge = max_sge + above;
		struct ibv_qp *qps[] = { ibv_create_qp(r.pd, &send), ibv_create_qp(r.pd, &receive) };
		struct ibv_srq *srq = srq_of(&r, 1, max_srq_sge + above, 0);
		struct ibv_cq *cq = ibv_create_cq(r.context, max_cqe + above, NULL, NULL, 0);
		CHECK((qps[0] == NULL) == above && (qps[1] == NULL) == above);
		CHECK((srq == NULL) == above && (cq == NULL) == above);
		if (!above) {
			CHECK(send.cap.max_send_sge <= (uint32_t)max_sge);
			CHECK_INT(ibv_destroy_qp(qps[0]), 0);
			CHECK_INT(ibv_destroy_qp(qps[1]), 0);
			CHECK_INT(ibv_destroy_srq(srq), 0);
			CHECK_INT(ibv_resize_cq(cq, max_cqe + 1), EINVAL);
			CHECK_INT(ibv_destroy_cq(cq), 0);
		}
	}
	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	to_init(qp);
	to_rtr(qp, qp->qp_num);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .max_rd_atomic = max_rd_atom + 1 };
	int mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		   IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK_INT(ibv_modify_qp(qp, &rts, mask), EINVAL);
	rts.max_rd_atomic = max_rd_atom;
	CHECK_INT(ibv_modify_qp(qp, &rts, mask), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

static void limits_of_rocade(void)
{
	check_limits(32, 32, 1 << 22, 128);
}

/*= RXE-21 SRQ-01 type=test */
static void limits_like_rxe(void)
{
	setenv("ROCADE_LIKE", "rxe", 1);
	check_limits(32, 27, 32767, 128);
	struct rig r = rig_open();
	CHECK(!srq_of(&r, 0, 1, 0) && errno == EINVAL);
	struct ibv_srq *srq = srq_of(&r, 1, 0, 0);
	CHECK(srq);
	struct ibv_srq_attr attr;
	CHECK_INT(ibv_query_srq(srq, &attr), 0);
	CHECK_INT(attr.max_sge, 1);
	attr.max_wr = 0;
	CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

static void limits_like_mlx5(void)
{
	setenv("ROCADE_LIKE", "mlx5", 1);
	check_limits(30, 31, 1 << 22, 16);
}

static void take_event(struct rig *r)
{
	struct ibv_cq *cq;
	void *of;
	CHECK_INT(ibv_get_cq_event(r->channel, &cq, &of), 0);
	CHECK(cq == r->cq);
	ibv_ack_cq_events(cq, 1);
}

/* Sends a message whose receive has the only completion, with an event if the CQ is armed. */
static void send_unsignaled(struct rig *r, unsigned flags)
{
	post_receive(r, 1);
	struct ibv_sge sge = sge_at(r, 0, 16);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = flags }, *bad;
	CHECK_INT(ibv_post_send(r->a, &wr, &bad), 0);
}

/* Waits until there is a completion, and leaves it there. */
static void wait_completed(struct rig *r)
{
	while (ibv_poll_cq(r->cq, 1, NULL) == 0)
		sched_yield();
}

/* A CQ is armed while a completion lies in it. */
static struct rig armed_late(void)
{
	struct rig r = rig_open();
	send_unsignaled(&r, 0);
	wait_completed(&r);
	CHECK_INT(ibv_req_notify_cq(r.cq, 1), 0);
	CHECK(!is_readable(r.channel->fd));
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	return r;
}

/*= CQ-07 type=test */
static void events_are_for_later_completions(void)
{
	struct rig r = armed_late();
	CHECK(!is_readable(r.channel->fd));
	CHECK_INT(next_completion(r.cq).wr_id, 1);
	send_unsignaled(&r, 0);
	wait_readable(r.channel->fd);
	take_event(&r);
	rig_close(&r);
}

/* mlx5 compares the program's position in the CQ with its own. Each completion has one event. */
static void events_of_mlx5_are_for_earlier_completions(void)
{
	setenv("ROCADE_LIKE", "mlx5", 1);
	struct rig r = armed_late();
	CHECK(is_readable(r.channel->fd));
	/* While the event is unread there is no second one, and afterwards neither. */
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	take_event(&r);
	CHECK(!is_readable(r.channel->fd));
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	CHECK(!is_readable(r.channel->fd));
	/* The last request holds for the next completion. */
	send_unsignaled(&r, 0);
	wait_readable(r.channel->fd);
	take_event(&r);
	CHECK(!is_readable(r.channel->fd));
	for (int i = 0; i < 2; i++)
		CHECK_INT(next_completion(r.cq).wr_id, 1);

	/* A solicited completion that is there counts for a request of solicited events. */
	send_unsignaled(&r, IBV_SEND_SOLICITED);
	wait_completed(&r);
	CHECK(!is_readable(r.channel->fd));
	CHECK_INT(ibv_req_notify_cq(r.cq, 1), 0);
	CHECK(is_readable(r.channel->fd));
	take_event(&r);
	CHECK_INT(ibv_req_notify_cq(r.cq, 1), 0);
	CHECK(!is_readable(r.channel->fd));
	rig_close(&r);
}

/* A thread arms before it polls, as manuals advise, and sees every completion. */
static void no_completion_is_missed_like_mlx5(void)
{
	enum { MESSAGES = 300 };
	setenv("ROCADE_LIKE", "mlx5", 1);
	struct rig r = rig_open();
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	for (int seen = 0, sent = 0; seen < MESSAGES;) {
		for (; sent < seen + 3 && sent < MESSAGES; sent++)
			send_unsignaled(&r, sent % 8 ? 0 : IBV_SEND_SIGNALED);
		wait_readable(r.channel->fd);
		take_event(&r);
		CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
		struct ibv_wc wc;
		while (ibv_poll_cq(r.cq, 1, &wc) == 1) {
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			seen += wc.opcode == IBV_WC_RECV;
		}
	}
	rig_close(&r);
}

/* The table of a device like mlx5 has each address as RoCE v1 and v2. Index 3 is IPv4 as RoCE v2,
 * the default of many programs. Each index can be used. */
/*= ENC-13 type=test */
static void gids_like_mlx5(void)
{
	setenv("ROCADE_LIKE", "mlx5", 1);
	struct rig r = rig_open();
	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(r.context, 1, &port), 0);
	CHECK(port.gid_tbl_len >= 4 && port.gid_tbl_len % 2 == 0);
	for (int index = 0; index < 4; index++) {
		struct ibv_gid_entry entry;
		CHECK_INT(ibv_query_gid_ex(r.context, 1, index, &entry, 0), 0);
		CHECK_INT(entry.gid_type, index % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1);
		static const uint8_t mapped[12] = { [10] = 0xff, 0xff };
		if (index == 3)
			CHECK(!memcmp(entry.gid.raw, mapped, sizeof(mapped)));
		struct ibv_qp_init_attr init = small_qp(r.cq);
		struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
		CHECK(qp);
		to_init(qp);
		struct ibv_qp_attr rtr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
			.rq_psn = 0x123, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
			.ah_attr = { .is_global = 1, .port_num = 1,
				     .grh = { .hop_limit = 64, .sgid_index = index, .dgid = entry.gid } },
		};
		CHECK_INT(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
							  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
							  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
		to_rts(qp);
		r.buffer[0] = 'a' + index;
		struct ibv_sge sge = sge_at(&r, 0, 1);
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
		wr.wr.rdma.remote_addr = (uintptr_t)r.buffer + 4096;
		wr.wr.rdma.rkey = r.mr->rkey;
		CHECK_INT(done(&r, qp, &wr).status, IBV_WC_SUCCESS);
		CHECK_INT(r.buffer[4096], 'a' + index);
		CHECK_INT(ibv_destroy_qp(qp), 0);
	}
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_refused_write_ends_its_receive", a_refused_write_ends_its_receive },
		{ "a_refused_write_as_rxe_reports_it", a_refused_write_as_rxe_reports_it },
		{ "a_bind_takes_the_tag_alone", a_bind_takes_the_tag_alone },
		{ "a_wrong_bind_is_explained", a_wrong_bind_is_explained },
		{ "windows_end_on_their_own_queue_pair", windows_end_on_their_own_queue_pair },
		{ "shared_queues_of_nothing", shared_queues_of_nothing },
		{ "immediates_need_no_elements", immediates_need_no_elements },
		{ "polls_for_nothing", polls_for_nothing },
		{ "regions_of_no_bytes", regions_of_no_bytes },
		{ "only_valid_members_are_read", only_valid_members_are_read },
		{ "limits_of_rocade", limits_of_rocade },
		{ "limits_like_rxe", limits_like_rxe },
		{ "limits_like_mlx5", limits_like_mlx5 },
		{ "events_are_for_later_completions", events_are_for_later_completions },
		{ "events_of_mlx5_are_for_earlier_completions", events_of_mlx5_are_for_earlier_completions },
		{ "no_completion_is_missed_like_mlx5", no_completion_is_missed_like_mlx5 },
		{ "gids_like_mlx5", gids_like_mlx5 },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
