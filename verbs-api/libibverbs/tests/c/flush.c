/* FLUSH and ATOMIC WRITE. FLUSH uses the members of newer headers. */
#include "rig.h"

#define FLUSH_GLOBAL 256
#define WC_FLUSH 8
#define WR_FLUSH_OPERATION (1 << 11)

/* `ibv_wr_flush` as newer headers define it. */
static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t len, uint8_t type,
		     uint8_t level)
{
	struct newer {
		struct ibv_qp_ex known;
		void (*wr_flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	} *newer = (struct newer *)qp;
	newer->wr_flush(qp, rkey, addr, len, type, level);
}

static struct rig open_flushable(struct ibv_qp_ex **ex, struct ibv_mr **mr)
{
	struct rig r = rig_open();
	*ex = create_qp_ex(r.context, r.pd, r.cq,
			   IBV_QP_EX_WITH_ATOMIC_WRITE | WR_FLUSH_OPERATION | IBV_QP_EX_WITH_RDMA_WRITE);
	*mr = ibv_reg_mr(r.pd, r.buffer, BUFFER_LEN,
			 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | FLUSH_GLOBAL);
	CHECK(*mr);
	/* The QP is connected to itself. */
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | FLUSH_GLOBAL };
	connect_qp(&(*ex)->qp_base, (*ex)->qp_base.qp_num);
	CHECK_INT(ibv_modify_qp(&(*ex)->qp_base, &attr, IBV_QP_ACCESS_FLAGS), 0);
	return r;
}

static void close_flushable(struct rig *r, struct ibv_qp_ex *ex, struct ibv_mr *mr)
{
	CHECK_INT(ibv_destroy_qp(&ex->qp_base), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	rig_close(r);
}

/*= WRX-12 ETH-12 ETH-13 type=test */
static void flushed_and_announced(void)
{
	struct ibv_qp_ex *ex;
	struct ibv_mr *mr;
	struct rig r = open_flushable(&ex, &mr);
	struct ibv_device_attr_ex device;
	CHECK_INT(ibv_query_device_ex(r.context, NULL, &device), 0);
	CHECK(device.device_cap_flags_ex & 1ull << 38);
	CHECK(!(device.device_cap_flags_ex & 1ull << 39));
	CHECK(device.device_cap_flags_ex & 1ull << 40);
	uint64_t flag = 0x0123456789abcdef, at = (uintptr_t)r.buffer + 4096;
	memset(r.buffer, 7, 64);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 1;
	ibv_wr_rdma_write(ex, mr->rkey, at);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)r.buffer, 64);
	ex->wr_id = 2;
	wr_flush(ex, mr->rkey, at, 64, 1, 0);
	ex->wr_id = 3;
	ibv_wr_atomic_write(ex, mr->rkey, at + 64, &flag);
	ex->wr_id = 4;
	wr_flush(ex, mr->rkey, 0, 0, 1, 1);
	flag = 0;
	CHECK_INT(ibv_wr_complete(ex), 0);
	static const int opcodes[] = { IBV_WC_RDMA_WRITE, WC_FLUSH, IBV_WC_ATOMIC_WRITE, WC_FLUSH };
	for (uint64_t id = 1; id <= 4; id++) {
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.wr_id, id);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.opcode, opcodes[id - 1]);
	}
	CHECK(!memcmp(r.buffer + 4096, r.buffer, 64));
	CHECK(*(uint64_t *)(r.buffer + 4096 + 64) == 0x0123456789abcdef);
	/* With ibv_post_send: a scatter/gather entry, or inline data. */
	for (int flags = 0; flags <= IBV_SEND_INLINE; flags += IBV_SEND_INLINE) {
		struct ibv_sge sge = { (uintptr_t)r.buffer, 8, mr->lkey };
		struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_WRITE, .sg_list = &sge, .num_sge = 1,
					  .send_flags = IBV_SEND_SIGNALED | flags,
					  .wr.rdma = { at + 128 + flags, mr->rkey } }, *bad;
		CHECK_INT(ibv_post_send(&ex->qp_base, &wr, &bad), 0);
		CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
		CHECK_INT(r.buffer[4096 + 128 + flags + 7], 7);
		sge.length = 9;
		CHECK_INT(ibv_post_send(&ex->qp_base, &wr, &bad), EINVAL);
	}
	close_flushable(&r, ex, mr);
}

static void what_is_not_allowed(void)
{
	struct ibv_qp_ex *ex;
	struct ibv_mr *mr;
	struct rig r = open_flushable(&ex, &mr);
	/* Rocade has no persistent memory. */
	CHECK(!ibv_reg_mr(r.pd, r.buffer, 64, IBV_ACCESS_LOCAL_WRITE | 512));
	CHECK_INT(errno, EOPNOTSUPP);
	static const struct { size_t len; uint8_t type, level; } wrong[] = {
		{ 8, 0, 0 }, { 8, 4, 0 }, { 8, 1, 2 }, { 1ull << 31, 1, 0 },
	};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		ibv_wr_start(ex);
		wr_flush(ex, mr->rkey, (uintptr_t)r.buffer, wrong[i].len, wrong[i].type, wrong[i].level);
		CHECK_INT(ibv_wr_complete(ex), EINVAL);
	}
	/* The rig's MR may not be flushed. */
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	wr_flush(ex, r.mr->rkey, (uintptr_t)r.buffer, 8, 1, 0);
	CHECK_INT(ibv_wr_complete(ex), 0);
	/* The QP is its own peer, so the error also flushes the request. */
	CHECK_INT(next_completion(r.cq).status, IBV_WC_WR_FLUSH_ERR);
	struct ibv_async_event event;
	CHECK_INT(ibv_get_async_event(r.context, &event), 0);
	CHECK_INT(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
	ibv_ack_async_event(&event);
	close_flushable(&r, ex, mr);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "flushed_and_announced", flushed_and_announced },
		{ "what_is_not_allowed", what_is_not_allowed },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
