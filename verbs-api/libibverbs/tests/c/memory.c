/* Memory regions of all kinds, and memory windows. */
#include "rig.h"

#include <sys/mman.h>
#include <sys/wait.h>

#define ALL_ACCESS                                                                                  \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                \
	 IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge)
{
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = sge, .num_sge = sge ? 1 : 0,
				  .send_flags = IBV_SEND_SIGNALED };
	return wr;
}

/* Posts a request and waits for its completion. */
static struct ibv_wc execute(struct rig *r, struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
	return next_completion(r->cq);
}

/* A WRITE or READ of 8 bytes by A, from the start of the rig's buffer. */
static enum ibv_wc_status rdma(struct rig *r, enum ibv_wr_opcode opcode, uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = sge_at(r, 0, 8);
	struct ibv_send_wr wr = request(opcode, &sge);
	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = rkey;
	return execute(r, r->a, wr).status;
}

static enum ibv_wc_status write_to(struct rig *r, void *remote, uint32_t rkey)
{
	return rdma(r, IBV_WR_RDMA_WRITE, (uintptr_t)remote, rkey);
}

/* Connects A and B again after an error. */
static void reconnect(struct rig *r)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_wc wc;
	CHECK_INT(ibv_modify_qp(r->a, &attr, IBV_QP_STATE), 0);
	CHECK_INT(ibv_modify_qp(r->b, &attr, IBV_QP_STATE), 0);
	while (ibv_poll_cq(r->cq, 1, &wc) > 0)
		;
	connect_qp(r->a, r->b->qp_num);
	connect_qp(r->b, r->a->qp_num);
}

static struct ibv_mr *bindable(struct rig *r)
{
	struct ibv_mr *mr = ibv_reg_mr(r->pd, r->buffer + 1024, 1024,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	return mr;
}

static struct ibv_mw_bind_info bind_info(struct ibv_mr *mr, size_t offset, size_t length)
{
	struct ibv_mw_bind_info info = { .mr = mr, .addr = (uintptr_t)mr->addr + offset,
					 .length = length,
					 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	return info;
}

/* Each ibv_bind_mw returns a new key, and only the last key is valid (MW-01, MW-11, KEY-04). */
static void windows_of_type_1(void)
{
	struct rig r = rig_open();
	struct ibv_mr *mr = bindable(&r);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_1);
	CHECK(mw && mw->type == IBV_MW_TYPE_1 && mw->pd == r.pd && mw->context == r.context);
	CHECK_INT(ibv_dealloc_pd(r.pd), EBUSY);
	char *place = mr->addr;
	memcpy(r.buffer, "through", 8);
	CHECK_INT(write_to(&r, place, mr->rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	struct ibv_mw_bind bind = { .wr_id = 5, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = bind_info(mr, 0, 64) };
	uint32_t first = mw->rkey;
	CHECK_INT(ibv_bind_mw(r.b, mw, &bind), 0);
	CHECK_INT(mw->rkey, ibv_inc_rkey(first));
	struct ibv_wc wc = next_completion(r.cq);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.opcode, IBV_WC_BIND_MW);
	CHECK_INT(wc.wr_id, 5);
	CHECK_INT(wc.qp_num, r.b->qp_num);
	CHECK_INT(write_to(&r, place, mw->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(place, "through", 8));
	CHECK_INT(ibv_dereg_mr(mr), EBUSY);
	uint32_t second = mw->rkey;
	bind.bind_info = bind_info(mr, 128, 64);
	CHECK_INT(ibv_bind_mw(r.b, mw, &bind), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(write_to(&r, place + 128, mw->rkey), IBV_WC_SUCCESS);
	CHECK_INT(write_to(&r, place, second), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	CHECK_INT(rdma(&r, IBV_WR_RDMA_READ, (uintptr_t)place + 128, mw->rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	CHECK_INT(write_to(&r, place + 128, mw->rkey), IBV_WC_SUCCESS);
	/* Type 1 windows cannot be invalidated. */
	struct ibv_send_wr invalidate = request(IBV_WR_LOCAL_INV, NULL);
	invalidate.invalidate_rkey = mw->rkey;
	CHECK_INT(execute(&r, r.b, invalidate).status, IBV_WC_LOC_QP_OP_ERR);
	reconnect(&r);
	/* Length 0 unbinds. */
	bind.bind_info = (struct ibv_mw_bind_info){ .mr = NULL };
	CHECK_INT(ibv_bind_mw(r.b, mw, &bind), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(write_to(&r, place + 128, mw->rkey), IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	rig_close(&r);
}

static struct ibv_send_wr bind_request(struct ibv_mw *mw, uint32_t rkey, struct ibv_mw_bind_info info)
{
	struct ibv_send_wr wr = request(IBV_WR_BIND_MW, NULL);
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = info;
	return wr;
}

/* A type 2 window is bound by a work request while free, for one QP, and freed by either side
 * (MW-02, MW-03, INV-03). */
static void windows_of_type_2(void)
{
	struct rig r = rig_open();
	struct ibv_mr *mr = bindable(&r);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	CHECK(mw);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	char *place = mr->addr;
	struct ibv_send_wr bind = bind_request(mw, rkey, bind_info(mr, 0, 64));
	struct ibv_wc wc = execute(&r, r.b, bind);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.opcode, IBV_WC_BIND_MW);
	CHECK_INT(write_to(&r, place, rkey), IBV_WC_SUCCESS);
	/* The other QP of the connection cannot use it. */
	struct ibv_sge sge = sge_at(&r, 0, 8);
	struct ibv_send_wr write = request(IBV_WR_RDMA_WRITE, &sge);
	write.wr.rdma.remote_addr = (uintptr_t)place;
	write.wr.rdma.rkey = rkey;
	CHECK_INT(execute(&r, r.b, write).status, IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* The window is bound already. */
	CHECK_INT(execute(&r, r.b, bind).status, IBV_WC_MW_BIND_ERR);
	reconnect(&r);
	struct ibv_send_wr invalidate = request(IBV_WR_LOCAL_INV, NULL);
	invalidate.invalidate_rkey = rkey;
	wc = execute(&r, r.b, invalidate);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.opcode, IBV_WC_LOCAL_INV);
	CHECK_INT(write_to(&r, place, rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* The peer frees the window with a SEND. */
	CHECK_INT(execute(&r, r.b, bind).status, IBV_WC_SUCCESS);
	post_receive(&r, 9);
	struct ibv_send_wr send = request(IBV_WR_SEND_WITH_INV, &sge), *bad;
	send.invalidate_rkey = rkey;
	CHECK_INT(ibv_post_send(r.a, &send, &bad), 0);
	for (int i = 0; i < 2; i++) {
		wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV) {
			CHECK_INT(wc.wc_flags, IBV_WC_WITH_INV);
			CHECK_INT(wc.invalidated_rkey, rkey);
			CHECK_INT(wc.byte_len, 8);
			CHECK_INT(wc.wr_id, 9);
		} else {
			CHECK_INT(wc.opcode, IBV_WC_SEND);
		}
	}
	CHECK_INT(write_to(&r, place, rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* Again: the window is free already. */
	post_receive(&r, 10);
	CHECK_INT(ibv_post_send(r.a, &send, &bad), 0);
	for (int i = 0; i < 2; i++)
		CHECK_INT(next_completion(r.cq).status, IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* With offsets as addresses (MW-07). */
	bind.bind_mw.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	CHECK_INT(execute(&r, r.b, bind).status, IBV_WC_SUCCESS);
	CHECK_INT(write_to(&r, (void *)56, rkey), IBV_WC_SUCCESS);
	CHECK_INT(write_to(&r, (void *)57, rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* A bound window may be deallocated, and releases its MR (MW-10). */
	CHECK_INT(ibv_dereg_mr(mr), EBUSY);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(write_to(&r, (void *)8, rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* Destroying the QP releases the MR too. */
	mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	CHECK(mw);
	CHECK_INT(execute(&r, r.b, bind_request(mw, mw->rkey, bind_info(mr, 0, 8))).status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_destroy_qp(r.b), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	r.b = ibv_create_qp(r.pd, &init);
	rig_close(&r);
}

/*= WRX-03 type=test */
/* The same with builders. */
static void windows_by_builders(void)
{
	struct rig r = rig_open();
	struct ibv_qp_ex *a = create_qp_ex(r.context, r.pd, r.cq, IBV_QP_EX_WITH_SEND_WITH_INV);
	struct ibv_qp_ex *b = create_qp_ex(r.context, r.pd, r.cq,
					   IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV);
	connect_qp(&a->qp_base, b->qp_base.qp_num);
	connect_qp(&b->qp_base, a->qp_base.qp_num);
	struct ibv_mr *mr = bindable(&r);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind_info info = bind_info(mr, 0, 64);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	for (int round = 0; round < 3; round++) {
		ibv_wr_start(b);
		b->wr_id = 1;
		b->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_bind_mw(b, mw, rkey, &info);
		b->wr_id = 2;
		ibv_wr_local_inv(b, rkey);
		b->wr_id = 3;
		ibv_wr_bind_mw(b, mw, rkey, &info);
		CHECK_INT(ibv_wr_complete(b), 0);
		for (uint64_t id = 1; id <= 3; id++) {
			struct ibv_wc wc = next_completion(r.cq);
			CHECK_INT(wc.wr_id, id);
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			CHECK_INT(wc.opcode, id == 2 ? IBV_WC_LOCAL_INV : IBV_WC_BIND_MW);
		}
		struct ibv_recv_wr receive = { .wr_id = 7 }, *bad;
		CHECK_INT(ibv_post_recv(&b->qp_base, &receive, &bad), 0);
		ibv_wr_start(a);
		a->wr_id = 4;
		a->wr_flags = 0;
		ibv_wr_send_inv(a, rkey);
		CHECK_INT(ibv_wr_complete(a), 0);
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.opcode, IBV_WC_RECV);
		CHECK_INT(wc.wc_flags, IBV_WC_WITH_INV);
		CHECK_INT(wc.invalidated_rkey, rkey);
	}
	/* A missing window fails the batch. */
	ibv_wr_start(b);
	ibv_wr_bind_mw(b, NULL, rkey, &info);
	CHECK_INT(ibv_wr_complete(b), EINVAL);
	CHECK_INT(ibv_destroy_qp(&a->qp_base), 0);
	CHECK_INT(ibv_destroy_qp(&b->qp_base), 0);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	rig_close(&r);
}

/*= MW-04 MW-05 type=test */
/* Errors of the call, and errors of the bind. */
static void binds_that_fail(void)
{
	struct rig r = rig_open();
	struct ibv_mr *mr = bindable(&r);
	struct ibv_mr *read_only = ibv_reg_mr(r.pd, r.buffer, 64, IBV_ACCESS_MW_BIND);
	struct ibv_mr *null = ibv_alloc_null_mr(r.pd);
	struct ibv_pd *pd = ibv_alloc_pd(r.context);
	struct ibv_mr *foreign = ibv_reg_mr(pd, r.buffer, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *one = ibv_alloc_mw(r.pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	CHECK(read_only && null && pd && foreign && one && two);
	CHECK(!ibv_alloc_mw(r.pd, 3));
	CHECK_INT(errno, EINVAL);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED, .bind_info = bind_info(mr, 0, 64) };
	CHECK_INT(ibv_bind_mw(r.b, two, &bind), EINVAL);
	bind.bind_info.mr = foreign;
	CHECK_INT(ibv_bind_mw(r.b, one, &bind), EPERM);
	bind.bind_info.mr = null;
	CHECK_INT(ibv_bind_mw(r.b, one, &bind), EINVAL);
	bind.bind_info.mr = NULL;
	CHECK_INT(ibv_bind_mw(r.b, one, &bind), EINVAL);
	bind.bind_info = bind_info(mr, 0, 64);
	bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	CHECK_INT(ibv_bind_mw(r.b, one, &bind), EINVAL);
	/* A failed call consumes no key. */
	uint32_t rkey = one->rkey;
	bind.bind_info = bind_info(mr, 0, 64);
	CHECK_INT(ibv_bind_mw(r.b, one, &bind), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(one->rkey, ibv_inc_rkey(rkey));

	struct ibv_send_wr *bad, wr = bind_request(one, one->rkey, bind_info(mr, 0, 64));
	CHECK_INT(ibv_post_send(r.b, &wr, &bad), EINVAL);
	wr = bind_request(NULL, two->rkey, bind_info(mr, 0, 64));
	CHECK_INT(ibv_post_send(r.b, &wr, &bad), EINVAL);
	CHECK(bad == &wr);

	struct ibv_mw_bind_info infos[] = {
		bind_info(mr, 0, 1025), bind_info(mr, 1024, 1), bind_info(mr, 0, 0),
		bind_info(r.mr, 0, 8), bind_info(read_only, 0, 8), bind_info(foreign, 0, 8),
		{ .mr = NULL, .length = 8 },
	};
	for (size_t i = 0; i < sizeof(infos) / sizeof(infos[0]); i++) {
		struct ibv_wc wc = execute(&r, r.b, bind_request(two, two->rkey, infos[i]));
		CHECK_INT(wc.status, IBV_WC_MW_BIND_ERR);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		CHECK_INT(ibv_query_qp(r.b, &attr, IBV_QP_STATE, &init), 0);
		CHECK_INT(attr.qp_state, IBV_QPS_ERR);
		reconnect(&r);
	}
	CHECK_INT(execute(&r, r.b, bind_request(two, two->rkey, bind_info(mr, 0, 1024))).status,
		  IBV_WC_SUCCESS);
	CHECK_INT(ibv_dealloc_mw(one), 0);
	CHECK_INT(ibv_dealloc_mw(two), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK_INT(ibv_dereg_mr(read_only), 0);
	CHECK_INT(ibv_dereg_mr(null), 0);
	CHECK_INT(ibv_dereg_mr(foreign), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	rig_close(&r);
}

/*= MR-10 type=test */
/* The effect of each flag, and each error. */
static void regions_change(void)
{
	struct rig r = rig_open();
	struct ibv_pd *pd = ibv_alloc_pd(r.context);
	struct ibv_mr *mr = ibv_reg_mr(r.pd, r.buffer + 1024, 1024, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *null = ibv_alloc_null_mr(r.pd);
	char *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pd && mr && null && hole != MAP_FAILED);
	static const struct { int flags, access; int has_addr; size_t length; int code, error; } rows[] = {
		{ 8, 0, 1, 64, IBV_REREG_MR_ERR_INPUT, EINVAL },
		{ IBV_REREG_MR_CHANGE_TRANSLATION, 0, 0, 64, IBV_REREG_MR_ERR_INPUT, EINVAL },
		{ IBV_REREG_MR_CHANGE_TRANSLATION, 0, 1, 0, IBV_REREG_MR_ERR_INPUT, EINVAL },
		{ IBV_REREG_MR_CHANGE_TRANSLATION, 1, 1, 64, IBV_REREG_MR_ERR_INPUT, EINVAL },
		{ IBV_REREG_MR_CHANGE_PD, 0, 0, 0, IBV_REREG_MR_ERR_INPUT, EINVAL },
		{ 0, 0, 0, 0, IBV_REREG_MR_ERR_CMD, EINVAL },
		{ IBV_REREG_MR_CHANGE_ACCESS, IBV_ACCESS_REMOTE_WRITE, 0, 0, IBV_REREG_MR_ERR_CMD, EINVAL },
		{ IBV_REREG_MR_CHANGE_ACCESS, 1 << 30, 0, 0, IBV_REREG_MR_ERR_CMD, EINVAL },
		{ IBV_REREG_MR_CHANGE_TRANSLATION, 0, 1, 4096, IBV_REREG_MR_ERR_CMD, EFAULT },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		errno = 0;
		void *addr = rows[i].has_addr ? hole : NULL;
		CHECK_INT(ibv_rereg_mr(mr, rows[i].flags, NULL, addr, rows[i].length, rows[i].access),
			  rows[i].code);
		CHECK_INT(errno, rows[i].error);
	}
	CHECK_INT(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 1), IBV_REREG_MR_ERR_INPUT);
	CHECK_INT(errno, EINVAL);
	CHECK(mr->addr == r.buffer + 1024 && mr->length == 1024 && mr->pd == r.pd);
	/* Access rights. */
	char *place = mr->addr;
	CHECK_INT(write_to(&r, place, mr->rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	CHECK_INT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS), 0);
	CHECK_INT(write_to(&r, place, mr->rkey), IBV_WC_SUCCESS);
	/* Address range. */
	memcpy(r.buffer, "moved to", 8);
	CHECK_INT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, r.buffer + 4096, 8, 0), 0);
	CHECK(mr->addr == r.buffer + 4096 && mr->length == 8);
	CHECK_INT(write_to(&r, r.buffer + 4096, mr->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(r.buffer + 4096, "moved to", 8));
	CHECK_INT(write_to(&r, place, mr->rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* Protection domain. */
	CHECK_INT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0), 0);
	CHECK(mr->pd == pd);
	CHECK_INT(ibv_dealloc_pd(pd), EBUSY);
	CHECK_INT(write_to(&r, r.buffer + 4096, mr->rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* All at once. */
	CHECK_INT(ibv_rereg_mr(mr, IBV_REREG_MR_FLAGS_SUPPORTED, r.pd, place, 1024,
			       ALL_ACCESS | IBV_ACCESS_MW_BIND), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK_INT(write_to(&r, place + 1016, mr->rkey), IBV_WC_SUCCESS);
	/* Fails while a window is bound. */
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	CHECK_INT(execute(&r, r.b, bind_request(mw, mw->rkey, bind_info(mr, 0, 8))).status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_CMD);
	CHECK_INT(errno, EBUSY);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK_INT(ibv_dereg_mr(null), 0);
	CHECK_INT(munmap(hole, 4096), 0);
	rig_close(&r);
}

static struct { struct ibv_mr *mr; char *halves[2]; int stop; unsigned long changes; } moving;

static void *move_about(void *unused)
{
	for (int turn = 0; !__atomic_load_n(&moving.stop, __ATOMIC_ACQUIRE); turn ^= 1) {
		CHECK_INT(ibv_rereg_mr(moving.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
				       ALL_ACCESS | (turn ? IBV_ACCESS_RELAXED_ORDERING : 0)), 0);
		moving.changes++;
	}
	return unused;
}

/* Re-registering an MR between two packets with the same rights does not disturb the traffic. */
static void regions_change_under_traffic(void)
{
	struct rig r = rig_open();
	size_t length = 1 << 20;
	char *from = malloc(length), *to = malloc(length);
	struct ibv_mr *source = ibv_reg_mr(r.pd, from, length, IBV_ACCESS_LOCAL_WRITE);
	moving.mr = ibv_reg_mr(r.pd, to, length, ALL_ACCESS);
	CHECK(from && to && source && moving.mr);
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, move_about, NULL), 0);
	for (int round = 0; round < 20 || moving.changes < 20; round++) {
		memset(from, round + 1, length);
		struct ibv_sge sge = { (uintptr_t)from, length, source->lkey };
		struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
		wr.wr.rdma.remote_addr = (uintptr_t)to;
		wr.wr.rdma.rkey = moving.mr->rkey;
		CHECK_INT(execute(&r, r.a, wr).status, IBV_WC_SUCCESS);
		CHECK(!memcmp(from, to, length));
	}
	__atomic_store_n(&moving.stop, 1, __ATOMIC_RELEASE);
	CHECK_INT(pthread_join(thread, NULL), 0);
	CHECK_INT(ibv_dereg_mr(moving.mr), 0);
	CHECK_INT(ibv_dereg_mr(source), 0);
	free(from);
	free(to);
	rig_close(&r);
}

/*= DM-01 DM-02 DM-03 type=test */
/*= DM-04 DST-10 type=test */
static void device_memory(void)
{
	struct rig r = rig_open();
	struct ibv_device_attr_ex device;
	CHECK_INT(ibv_query_device_ex(r.context, NULL, &device), 0);
	CHECK(device.max_dm_size > 0);
	struct ibv_alloc_dm_attr attr = { .length = device.max_dm_size + 1 };
	CHECK(!ibv_alloc_dm(r.context, &attr));
	CHECK_INT(errno, ENOMEM);
	attr.length = 0;
	CHECK(!ibv_alloc_dm(r.context, &attr));
	CHECK_INT(errno, EINVAL);
	attr.length = 100;
	attr.comp_mask = 1;
	CHECK(!ibv_alloc_dm(r.context, &attr));
	CHECK_INT(errno, EINVAL);
	attr.comp_mask = 0;
	struct ibv_dm *dm = ibv_alloc_dm(r.context, &attr);
	CHECK(dm && dm->context == r.context);
	/* The rest. After that, no device memory is left. */
	attr.length = device.max_dm_size - 104;
	struct ibv_dm *rest = ibv_alloc_dm(r.context, &attr);
	CHECK(rest);
	attr.length = 1;
	CHECK(!ibv_alloc_dm(r.context, &attr));
	CHECK_INT(errno, ENOMEM);
	CHECK_INT(ibv_free_dm(rest), 0);

	char text[8] = "onboard", back[8] = "";
	CHECK_INT(ibv_memcpy_to_dm(dm, 92, text, 8), 0);
	CHECK_INT(ibv_memcpy_from_dm(back, dm, 92, 8), 0);
	CHECK(!memcmp(back, text, 8));
	CHECK_INT(ibv_memcpy_to_dm(dm, 96, text, 8), EFAULT);
	/* The range is checked first, and no memory is read. */
	CHECK_INT(ibv_memcpy_to_dm(dm, 96, NULL, 8), EFAULT);
	CHECK_INT(ibv_memcpy_to_dm(dm, UINT64_MAX - 3, NULL, 8), EFAULT);
	CHECK_INT(ibv_memcpy_from_dm(NULL, dm, 96, 8), EFAULT);
	CHECK_INT(ibv_memcpy_from_dm(back, dm, 104, 4), EFAULT);
	CHECK_INT(ibv_memcpy_from_dm(back, dm, 0, 1 << 30), EFAULT);
	CHECK_INT(ibv_memcpy_to_dm(dm, 2, text, 4), EINVAL);
	CHECK_INT(ibv_memcpy_to_dm(dm, 4, text, 3), EINVAL);

	CHECK(!ibv_reg_dm_mr(r.pd, dm, 0, 100, ALL_ACCESS));
	CHECK_INT(errno, EINVAL);
	CHECK(!ibv_reg_dm_mr(r.pd, dm, 4, 100, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
	CHECK_INT(errno, EINVAL);
	struct ibv_mr *nothing = ibv_reg_dm_mr(r.pd, dm, 4, 0, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
	CHECK(nothing);
	CHECK_INT(ibv_dereg_mr(nothing), 0);
	struct ibv_mr *mr = ibv_reg_dm_mr(r.pd, dm, 92, 8, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
	CHECK(mr && !mr->addr && mr->length == 8);
	CHECK_INT(ibv_free_dm(dm), EBUSY);
	CHECK_INT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 1), IBV_REREG_MR_ERR_INPUT);
	/* The peer accesses it from address 0. */
	CHECK_INT(rdma(&r, IBV_WR_RDMA_READ, 0, mr->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(r.buffer, text, 8));
	memcpy(r.buffer, "written", 8);
	CHECK_INT(rdma(&r, IBV_WR_RDMA_WRITE, 0, mr->rkey), IBV_WC_SUCCESS);
	CHECK_INT(ibv_memcpy_from_dm(back, dm, 92, 8), 0);
	CHECK(!memcmp(back, "written", 8));
	CHECK_INT(rdma(&r, IBV_WR_RDMA_WRITE, 1, mr->rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	/* Local work requests also use offsets. */
	struct ibv_sge sge = { 0, 8, mr->lkey };
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	wr.wr.rdma.remote_addr = (uintptr_t)r.buffer + 64;
	wr.wr.rdma.rkey = r.mr->rkey;
	CHECK_INT(execute(&r, r.a, wr).status, IBV_WC_SUCCESS);
	CHECK(!memcmp(r.buffer + 64, "written", 8));
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK_INT(ibv_free_dm(dm), 0);
	/* A forked child may allocate its own. */
	pid_t child = fork();
	if (child == 0) {
		alarm(DEADLINE);
		attr.length = 4096;
		dm = ibv_alloc_dm(r.context, &attr);
		CHECK(dm);
		CHECK_INT(ibv_memcpy_to_dm(dm, 8, text, 8), 0);
		CHECK_INT(ibv_free_dm(dm), 0);
		_exit(0);
	}
	int status;
	CHECK_INT(waitpid(child, &status, 0), child);
	CHECK_INT(status, 0);
	rig_close(&r);
}

/* Writes to a null MR are discarded, reads return zeros, and peers cannot access it (NUL-01). */
static void null_regions(void)
{
	struct rig r = rig_open();
	struct ibv_mr *null = ibv_alloc_null_mr(r.pd);
	CHECK(null && null->pd == r.pd && null->context == r.context);
	struct ibv_sge sge = { 12345, 64, null->lkey };
	memset(r.buffer, 7, 256);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, &sge);
	wr.wr.rdma.remote_addr = (uintptr_t)r.buffer;
	wr.wr.rdma.rkey = r.mr->rkey;
	CHECK_INT(execute(&r, r.a, wr).status, IBV_WC_SUCCESS);
	wr.opcode = IBV_WR_RDMA_WRITE;
	CHECK_INT(execute(&r, r.a, wr).status, IBV_WC_SUCCESS);
	for (int i = 0; i < 256; i++)
		CHECK_INT(r.buffer[i], i < 64 ? 0 : 7);
	/* The same for full packets. */
	struct ibv_sge long_sge = { 0, 4096, null->lkey };
	memset(r.buffer, 7, 8192);
	wr.sg_list = &long_sge;
	CHECK_INT(execute(&r, r.a, wr).status, IBV_WC_SUCCESS);
	for (int i = 0; i < 8192; i++)
		CHECK_INT(r.buffer[i], i < 4096 ? 0 : 7);
	CHECK_INT(write_to(&r, NULL, null->rkey), IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(ibv_dereg_mr(null), 0);
	/* A null MR does not keep its PD in use. */
	struct ibv_pd *pd = ibv_alloc_pd(r.context);
	struct ibv_mr *left = ibv_alloc_null_mr(pd);
	CHECK(left);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK_INT(ibv_dereg_mr(left), 0);
	rig_close(&r);
}

/* perftest's --use-null-mr: a null MR per queue pair, of which the last is released, and messages
 * at addresses of its buffer. A peer that is told the lkey in place of an rkey is refused
 * (NUL-01). */
static void null_regions_of_a_benchmark(void)
{
	struct rig r = rig_open();
	struct ibv_mr *null = NULL;
	for (int i = 0; i < 4; i++) {
		null = ibv_alloc_null_mr(r.pd);
		CHECK(null);
	}
	struct ibv_sge sge = { (uintptr_t)r.buffer, BUFFER_LEN, null->lkey };
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, &sge);
	wr.wr.rdma.remote_addr = (uintptr_t)r.buffer;
	wr.wr.rdma.rkey = r.mr->rkey;
	memset(r.buffer, 7, BUFFER_LEN);
	for (int i = 0; i < 20; i++)
		CHECK_INT(execute(&r, r.a, wr).status, IBV_WC_SUCCESS);
	for (int i = 0; i < BUFFER_LEN; i++)
		CHECK_INT(r.buffer[i], 7);
	wr.opcode = IBV_WR_RDMA_WRITE;
	for (int i = 0; i < 20; i++)
		CHECK_INT(execute(&r, r.a, wr).status, IBV_WC_SUCCESS);
	for (int i = 0; i < BUFFER_LEN; i++)
		CHECK_INT(r.buffer[i], 0);
	CHECK_INT(write_to(&r, NULL, null->lkey), IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(ibv_dereg_mr(null), 0);
	rig_close(&r);
}

static int advise(struct rig *r, int advice, int flags, uint64_t addr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { addr, length, lkey };
	return ibv_advise_mr(r->pd, advice, flags, &sge, 1);
}

/* On-demand paging: pages may be mapped and unmapped (ODP-01 to ODP-06). */
/*= ODP-01 ODP-03 ODP-05 type=test */
/*= ODP-06 type=test */
static void memory_on_demand(void)
{
	enum { FLUSH = IBV_ADVISE_MR_FLAG_FLUSH };
	struct rig r = rig_open();
	struct ibv_device_attr_ex device;
	CHECK_INT(ibv_query_device_ex(r.context, NULL, &device), 0);
	CHECK_INT(device.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
	CHECK(device.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_WRITE);
	/* FLUSH and ATOMIC WRITE of newer headers. */
	CHECK_INT(device.odp_caps.per_transport_caps.rc_odp_caps & (64 | 128), 64 | 128);
	CHECK_INT(device.xrc_odp_caps & (64 | 128), 64 | 128);
	CHECK_INT(device.odp_caps.per_transport_caps.uc_odp_caps & (64 | 128), 0);
	size_t length = 4 * 4096;
	char *memory = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	CHECK(!ibv_reg_mr(r.pd, memory, length, ALL_ACCESS));
	CHECK_INT(errno, EFAULT);
	struct ibv_mr *mr = ibv_reg_mr(r.pd, memory, length, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	CHECK(mr);
	CHECK_INT(write_to(&r, memory, mr->rkey), IBV_WC_REM_ACCESS_ERR);
	reconnect(&r);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH, FLUSH, (uintptr_t)memory, 8, mr->lkey), EFAULT);
	CHECK_INT(mprotect(memory, length, PROT_READ | PROT_WRITE), 0);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, (uintptr_t)memory + 9, 5000, mr->lkey), 0);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH, FLUSH, (uintptr_t)memory, length, mr->lkey), 0);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, (uintptr_t)memory, 1, mr->lkey), 0);
	CHECK_INT(write_to(&r, memory, mr->rkey), IBV_WC_SUCCESS);
	unsigned char present;
	CHECK(!mincore(memory + 4096, 4096, &present) && (present & 1));

	CHECK_INT(advise(&r, 17, 0, (uintptr_t)memory, 1, mr->lkey), EOPNOTSUPP);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, (uintptr_t)memory, 1, mr->lkey), EINVAL);
	CHECK_INT(ibv_advise_mr(r.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0), EINVAL);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, (uintptr_t)memory, length + 1, mr->lkey), EFAULT);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, (uintptr_t)memory, 1, mr->lkey + 1), EFAULT);
	struct ibv_mr *read_only = ibv_reg_mr(r.pd, memory, length, IBV_ACCESS_ON_DEMAND);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, (uintptr_t)memory, 1, read_only->lkey), EPERM);
	struct ibv_pd *pd = ibv_alloc_pd(r.context);
	struct ibv_mr *foreign = ibv_reg_mr(pd, memory, length, IBV_ACCESS_ON_DEMAND);
	CHECK_INT(advise(&r, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, (uintptr_t)memory, 1, foreign->lkey), ENOENT);

	/* The whole address space. Accesses to unmapped addresses fail (ODP-03). */
	CHECK(!ibv_reg_mr(r.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED));
	CHECK_INT(errno, EINVAL);
	CHECK(!ibv_reg_mr(r.pd, NULL, SIZE_MAX, ALL_ACCESS));
	struct ibv_mr *all = ibv_reg_mr(r.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	CHECK(all);
	memcpy(r.buffer, "anywhere", 8);
	CHECK_INT(write_to(&r, memory + 4096, all->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(memory + 4096, "anywhere", 8));
	static const uint64_t nowhere[] = { 0, 64, 1ull << 47, 1ull << 52, 1ull << 63, -8ull, -4096ull };
	for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
		CHECK_INT(rdma(&r, IBV_WR_RDMA_WRITE, nowhere[i], all->rkey), IBV_WC_REM_ACCESS_ERR);
		reconnect(&r);
		CHECK_INT(rdma(&r, IBV_WR_RDMA_READ, nowhere[i], all->rkey), IBV_WC_REM_ACCESS_ERR);
		reconnect(&r);
	}
	/* No window can be bound to an on-demand MR (ODP-06). */
	struct ibv_mr *odp = ibv_reg_mr(r.pd, memory, length,
					ALL_ACCESS | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	CHECK_INT(execute(&r, r.b, bind_request(mw, mw->rkey, bind_info(odp, 0, 8))).status, IBV_WC_MW_BIND_ERR);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	struct ibv_mr *regions[] = { odp, all, foreign, read_only, mr };
	for (int i = 0; i < 5; i++)
		CHECK_INT(ibv_dereg_mr(regions[i]), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK_INT(munmap(memory, length), 0);
	rig_close(&r);
}

/* The IOVA of an MR, and access flags that this device ignores. */
/*= MR-05 type=test */
static void addresses_of_peers(void)
{
	struct rig r = rig_open();
	memcpy(r.buffer, "by names", 8);
	struct ibv_mr *zero = ibv_reg_mr(r.pd, r.buffer + 64, 8, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
	struct ibv_mr *named = ibv_reg_mr_iova(r.pd, r.buffer + 72, 8, 0xabcdef, ALL_ACCESS);
	struct ibv_mr *other = ibv_reg_mr_iova2(r.pd, r.buffer + 80, 8, 0x7fedcb,
						ALL_ACCESS | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(zero && named && other);
	CHECK_INT(rdma(&r, IBV_WR_RDMA_WRITE, 0, zero->rkey), IBV_WC_SUCCESS);
	CHECK_INT(rdma(&r, IBV_WR_RDMA_WRITE, 0xabcdef, named->rkey), IBV_WC_SUCCESS);
	CHECK_INT(rdma(&r, IBV_WR_RDMA_WRITE, 0x7fedcb, other->rkey), IBV_WC_SUCCESS);
	for (int i = 64; i < 88; i += 8)
		CHECK(!memcmp(r.buffer + i, "by names", 8));
	CHECK_INT(rdma(&r, IBV_WR_RDMA_WRITE, 0xabcdee, named->rkey), IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(ibv_dereg_mr(zero), 0);
	CHECK_INT(ibv_dereg_mr(named), 0);
	CHECK_INT(ibv_dereg_mr(other), 0);
	struct ibv_device_attr device;
	CHECK_INT(ibv_query_device(r.context, &device), 0);
	CHECK(device.max_mw > 0);
	int caps = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
	CHECK_INT(device.device_cap_flags & (caps | IBV_DEVICE_MEM_WINDOW_TYPE_2A), caps);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "windows_of_type_1", windows_of_type_1 },
		{ "windows_of_type_2", windows_of_type_2 },
		{ "windows_by_builders", windows_by_builders },
		{ "binds_that_fail", binds_that_fail },
		{ "regions_change", regions_change },
		{ "regions_change_under_traffic", regions_change_under_traffic },
		{ "device_memory", device_memory },
		{ "null_regions", null_regions },
		{ "null_regions_of_a_benchmark", null_regions_of_a_benchmark },
		{ "memory_on_demand", memory_on_demand },
		{ "addresses_of_peers", addresses_of_peers },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
