/* Indirect memory keys, which map to pieces of other keys. */
#include "umr.h"

static void a_list_in_every_operation(void)
{
	struct rig r = umr_open();
	struct ibv_mr *key = new_key(&r, 3);
	uint64_t base = 0x40000000;
	struct ibv_exp_mem_region list[] = { piece(&r, 1000, 100), piece(&r, 40, 28),
					     piece(&r, 2000, 64) };
	char pieces[192], *buffer = r.buffer;
	memcpy(pieces, buffer + 1000, 100);
	memcpy(pieces + 100, buffer + 40, 28);
	memcpy(pieces + 128, buffer + 2000, 64);
	struct ibv_exp_send_wr wr = fill(key, base, 3, list);
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);

	/* Gather at the sender, gather at the receiver, gather in the peer's memory, scatter. */
	struct ibv_sge gather = { base, 192, key->lkey }, plain = sge_at(&r, 4096, 192);
	wr = rdma(IBV_EXP_WR_RDMA_WRITE, &gather, (uintptr_t)buffer + 4096, r.mr->rkey);
	execute(&r, r.a, &wr, IBV_EXP_WC_RDMA_WRITE);
	CHECK(!memcmp(buffer + 4096, pieces, 192));
	memset(buffer + 4096, 0, 192);
	wr = rdma(IBV_EXP_WR_RDMA_READ, &plain, base, key->rkey);
	execute(&r, r.a, &wr, IBV_EXP_WC_RDMA_READ);
	CHECK(!memcmp(buffer + 4096, pieces, 192));
	for (int i = 0; i < 192; i++)
		buffer[4096 + i] = (char)~pieces[i];
	struct ibv_sge part = sge_at(&r, 4096 + 98, 40);
	wr = rdma(IBV_EXP_WR_RDMA_WRITE, &part, base + 98, key->rkey);
	execute(&r, r.a, &wr, IBV_EXP_WC_RDMA_WRITE);
	CHECK(!memcmp(buffer + 1000, pieces, 98) && !memcmp(buffer + 1098, buffer + 4194, 2));
	CHECK(!memcmp(buffer + 40, buffer + 4196, 28) && !memcmp(buffer + 2000, buffer + 4224, 10));
	CHECK(!memcmp(buffer + 2010, pieces + 138, 54));
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &gather, .num_sge = 1 }, *bad_receive;
	CHECK_INT(ibv_post_recv(r.b, &receive, &bad_receive), 0);
	wr = rdma(IBV_EXP_WR_SEND, &plain, 0, 0);
	struct ibv_exp_send_wr *bad;
	wr.exp_send_flags = 0;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	struct ibv_exp_wc wc = next_exp(&r);
	CHECK_INT(wc.exp_opcode, IBV_EXP_WC_RECV);
	CHECK_INT(wc.byte_len, 192);
	CHECK(!memcmp(buffer + 1000, buffer + 4096, 100) && !memcmp(buffer + 40, buffer + 4196, 28));
	CHECK(!memcmp(buffer + 2000, buffer + 4224, 64));
	uint64_t before, after;
	memcpy(&before, buffer + 1008, 8);
	struct ibv_sge result = sge_at(&r, 5000, 8);
	wr = rdma(IBV_EXP_WR_ATOMIC_FETCH_AND_ADD, &result, 0, 0);
	wr.wr.atomic.remote_addr = base + 8;
	wr.wr.atomic.compare_add = 5;
	wr.wr.atomic.rkey = key->rkey;
	execute(&r, r.a, &wr, IBV_EXP_WC_FETCH_ADD);
	memcpy(&after, buffer + 1008, 8);
	CHECK(after == before + 5 && !memcmp(buffer + 5000, &before, 8));

	/* One byte beyond the end. */
	gather.length = 193;
	wr = rdma(IBV_EXP_WR_RDMA_WRITE, &gather, (uintptr_t)buffer + 4096, r.mr->rkey);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_exp(&r).status, IBV_WC_LOC_PROT_ERR);
	CHECK_INT(ibv_dereg_mr(key), 0);
	rig_close(&r);
}

static void a_column_of_a_matrix(void)
{
	struct rig r = umr_open();
	struct ibv_mr *key = new_key(&r, 2);
	/* Columns 5 and 2 of a matrix of 8 rows of 16 numbers. */
	size_t count[] = { 4 }, stride[] = { 64 }, rows[] = { 8 };
	struct ibv_exp_mem_repeat_block blocks[] = {
		{ (uintptr_t)r.buffer + 20, r.mr, count, stride },
		{ (uintptr_t)r.buffer + 8, r.mr, count, stride },
	};
	struct ibv_exp_send_wr wr = fill(key, 0, 2, NULL);
	wr.ext_op.umr.umr_type = IBV_EXP_UMR_REPEAT;
	wr.ext_op.umr.mem_list.rb.mem_repeat_block_list = blocks;
	wr.ext_op.umr.mem_list.rb.repeat_count = rows;
	wr.ext_op.umr.mem_list.rb.stride_dim = 1;
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	struct ibv_sge columns = { 0, 64, key->lkey };
	wr = rdma(IBV_EXP_WR_RDMA_WRITE, &columns, (uintptr_t)r.buffer + 4096, r.mr->rkey);
	execute(&r, r.a, &wr, IBV_EXP_WC_RDMA_WRITE);
	for (int row = 0; row < 8; row++) {
		CHECK(!memcmp(r.buffer + 4096 + 8 * row, r.buffer + 64 * row + 20, 4));
		CHECK(!memcmp(r.buffer + 4100 + 8 * row, r.buffer + 64 * row + 8, 4));
	}
	CHECK_INT(ibv_dereg_mr(key), 0);
	rig_close(&r);
}

/* A list that is too long to be inline uses a list container. */
static void lists_beyond_the_request(void)
{
	struct rig r = umr_open();
	struct ibv_mr *key = new_key(&r, 100);
	struct ibv_exp_mkey_list_container_attr attr = {
		.pd = r.pd, .mkey_list_type = IBV_EXP_MKEY_LIST_TYPE_INDIRECT_MR,
		.max_klm_list_size = 64,
	};
	struct ibv_exp_mkey_list_container *memory = ibv_exp_alloc_mkey_list_memory(&attr);
	CHECK(memory && memory->context == r.context);
	CHECK_INT(memory->max_klm_list_size, 64);
	struct ibv_exp_mem_region list[65];
	for (int i = 0; i < 65; i++)
		list[i] = piece(&r, 4000 - 50 * i, 1 + i % 3);
	struct ibv_exp_send_wr wr = fill(key, 0, 64, list), *bad;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), ENOMEM);
	CHECK(bad == &wr);
	wr.exp_send_flags &= ~IBV_EXP_SEND_INLINE;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr.ext_op.umr.memory_objects = memory;
	wr.ext_op.umr.num_mrs = 65;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr.ext_op.umr.num_mrs = 64;
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	struct ibv_sge all = { 0, 127, key->lkey };
	wr = rdma(IBV_EXP_WR_RDMA_WRITE, &all, (uintptr_t)r.buffer + 4096, r.mr->rkey);
	execute(&r, r.a, &wr, IBV_EXP_WC_RDMA_WRITE);
	for (int i = 0, at = 4096; i < 64; at += 1 + i++ % 3)
		CHECK(!memcmp(r.buffer + at, r.buffer + 4000 - 50 * i, 1 + i % 3));
	CHECK_INT(ibv_exp_dealloc_mkey_list_memory(memory), 0);
	CHECK_INT(ibv_exp_dealloc_mkey_list_memory(NULL), EINVAL);
	attr.comp_mask = 1;
	CHECK(!ibv_exp_alloc_mkey_list_memory(&attr) && errno == EINVAL);
	attr.comp_mask = 0, attr.mkey_list_type = 1;
	CHECK(!ibv_exp_alloc_mkey_list_memory(&attr) && errno == EINVAL);
	CHECK_INT(ibv_dereg_mr(key), 0);
	rig_close(&r);
}

static void mistakes_are_refused(void)
{
	struct rig r = umr_open();
	struct ibv_exp_device_attr device = { .comp_mask = IBV_EXP_DEVICE_ATTR_UMR |
							    IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS };
	CHECK_INT(ibv_exp_query_device(r.context, &device), 0);
	CHECK(device.exp_device_cap_flags & IBV_EXP_DEVICE_UMR);
	CHECK(device.umr_caps.max_umr_recursion_depth >= 1);
	CHECK_INT(device.umr_caps.max_umr_stride_dimension, 1);
	CHECK(device.umr_caps.max_send_wqe_inline_klms >= 4);

	struct ibv_exp_create_mr_in good = {
		.pd = r.pd,
		.attr = { .max_klm_list_size = device.umr_caps.max_klm_list_size,
			  .create_flags = IBV_EXP_MR_INDIRECT_KLMS,
			  .exp_access_flags = IBV_EXP_ACCESS_REMOTE_READ },
	}, in = good;
	struct ibv_mr *key = ibv_exp_create_mr(&in);
	CHECK(key);
	in.attr.max_klm_list_size++;
	CHECK(!ibv_exp_create_mr(&in) && errno == EINVAL);
	in = good, in.attr.max_klm_list_size = 0;
	CHECK(!ibv_exp_create_mr(&in) && errno == EINVAL);
	in = good, in.comp_mask = 1;
	CHECK(!ibv_exp_create_mr(&in) && errno == EINVAL);
	in = good, in.attr.create_flags = 0;
	CHECK(!ibv_exp_create_mr(&in) && errno == EINVAL);
	in = good, in.attr.create_flags |= 1 << 7;
	CHECK(!ibv_exp_create_mr(&in) && errno == EINVAL);
	in = good, in.attr.create_flags = IBV_EXP_MR_SIGNATURE_EN;
	CHECK(!ibv_exp_create_mr(&in) && errno == EOPNOTSUPP);
	in = good, in.attr.exp_access_flags |= IBV_EXP_ACCESS_NO_RDMA;
	CHECK(!ibv_exp_create_mr(&in) && errno == EOPNOTSUPP);
	in = good, in.attr.exp_access_flags |= 1ULL << 63;
	CHECK(!ibv_exp_create_mr(&in) && errno == EINVAL);
	CHECK(!ibv_exp_create_mr(NULL) && errno == EINVAL);
	struct ibv_exp_mkey_attr attr = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_query_mkey(r.mr, &attr), EINVAL);
	CHECK_INT(ibv_exp_query_mkey(key, NULL), EINVAL);
	attr.comp_mask = 1;
	CHECK_INT(ibv_exp_query_mkey(key, &attr), EINVAL);

	struct ibv_exp_mem_region list[5];
	for (int i = 0; i < 5; i++)
		list[i] = piece(&r, 0, 8);
	struct ibv_exp_send_wr wr = fill(key, 0, 1, list), *bad;
	/* More rights than at creation are refused, and fewer are valid. */
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr.ext_op.umr.exp_access = IBV_EXP_ACCESS_REMOTE_READ;
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	wr.ext_op.umr.num_mrs = 0;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr.ext_op.umr.num_mrs = 5;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), ENOMEM);
	wr.ext_op.umr.num_mrs = 1;
	wr.ext_op.umr.umr_type = 3;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr.ext_op.umr.umr_type = IBV_EXP_UMR_REPEAT;
	size_t one[] = { 1 };
	struct ibv_exp_mem_repeat_block block = { (uintptr_t)r.buffer, r.mr, one, one };
	wr.ext_op.umr.mem_list.rb.mem_repeat_block_list = &block;
	wr.ext_op.umr.mem_list.rb.repeat_count = one;
	wr.ext_op.umr.mem_list.rb.stride_dim = 2;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr.ext_op.umr.mem_list.rb.stride_dim = 1;
	wr.ext_op.umr.mem_list.rb.repeat_count = NULL;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr = fill(key, 0, 2, list);
	wr.ext_op.umr.exp_access = 0;
	wr.ext_op.umr.umr_type = IBV_EXP_UMR_MR_LIST_FIXED_SIZE;
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	list[1].length = 7;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	list[1].mr = NULL;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr.ext_op.umr.modified_mr = r.mr;
	list[1] = list[0];
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr.ext_op.umr.modified_mr = key;
	wr.comp_mask = 1;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	wr.comp_mask = 0;

	/* On a QP without the UMR flag. */
	struct ibv_qp_init_attr plain = small_qp(r.cq);
	struct ibv_qp *other = ibv_create_qp(r.pd, &plain);
	CHECK(other);
	connect_qp(other, other->qp_num);
	CHECK_INT(ibv_exp_post_send(other, &wr, &bad), EINVAL);
	CHECK_INT(ibv_destroy_qp(other), 0);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = r.cq, .recv_cq = r.cq, .cap = plain.cap, .qp_type = IBV_QPT_RC, .pd = r.pd,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS,
		.max_inl_send_klms = device.umr_caps.max_send_wqe_inline_klms + 1,
	};
	CHECK(!ibv_exp_create_qp(r.context, &init) && errno == EINVAL);
	init.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | 1u << 31;
	CHECK(!ibv_exp_create_qp(r.context, &init) && errno == EINVAL);
	init.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_QPG;
	init.qpg.qpg_type = IBV_EXP_QPG_PARENT;
	CHECK(!ibv_exp_create_qp(r.context, &init) && errno == EOPNOTSUPP);

	/* Errors that execution detects. */
	wr.ext_op.umr.umr_type = IBV_EXP_UMR_MR_LIST;
	list[0].length = BUFFER_LEN + 1;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	struct ibv_exp_wc wc = next_exp(&r);
	CHECK_INT(wc.status, IBV_WC_MW_BIND_ERR);
	struct ibv_exp_qp_attr state;
	struct ibv_exp_qp_init_attr made;
	CHECK_INT(ibv_exp_query_qp(r.a, &state, 0, &made), 0);
	CHECK_INT(state.qp_state, IBV_QPS_ERR);
	CHECK_INT(made.exp_create_flags, IBV_EXP_QP_CREATE_UMR);
	CHECK_INT(made.max_inl_send_klms, 4);
	CHECK(made.pd == r.pd && made.send_cq == r.cq);
	memset(&state, 0, sizeof(state));
	CHECK_INT(ibv_exp_modify_qp(r.a, &state, IBV_QP_STATE), 0);
	CHECK_INT(ibv_exp_query_qp(r.a, &state, 0, NULL), 0);
	CHECK_INT(state.qp_state, IBV_QPS_RESET);
	CHECK_INT(ibv_exp_modify_qp(r.a, &state, IBV_EXP_QP_DC_KEY), EINVAL);
	state.comp_mask = 1;
	CHECK_INT(ibv_exp_modify_qp(r.a, &state, IBV_QP_STATE), EINVAL);
	CHECK_INT(ibv_dereg_mr(key), 0);
	rig_close(&r);
}

static void keys_end_and_are_invalidated(void)
{
	struct rig r = umr_open();
	struct ibv_mr *key = new_key(&r, 2), *outer = new_key(&r, 2);
	struct ibv_exp_mem_region list[] = { piece(&r, 100, 50), piece(&r, 0, 50) };
	struct ibv_exp_send_wr wr = fill(key, 1000, 2, list), *bad;
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	struct ibv_exp_mem_region nested[] = { { 1050, key, 50 }, { 1000, key, 50 } };
	wr = fill(outer, 0, 2, nested);
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	struct ibv_sge sge = sge_at(&r, 4096, 100);
	wr = rdma(IBV_EXP_WR_RDMA_READ, &sge, 0, outer->rkey);
	execute(&r, r.a, &wr, IBV_EXP_WC_RDMA_READ);
	CHECK(!memcmp(r.buffer + 4096, r.buffer, 50) && !memcmp(r.buffer + 4146, r.buffer + 100, 50));
	/* Invalidated twice. The peer, and a key that maps to this one, get access errors. */
	struct ibv_exp_send_wr free_it = { .wr_id = 5, .exp_opcode = IBV_EXP_WR_UMR_INVALIDATE,
					   .exp_send_flags = IBV_EXP_SEND_INLINE |
							     IBV_EXP_SEND_SIGNALED };
	free_it.ext_op.umr.modified_mr = key;
	execute(&r, r.b, &free_it, IBV_EXP_WC_UMR);
	execute(&r, r.b, &free_it, IBV_EXP_WC_UMR);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_exp(&r).status, IBV_WC_REM_ACCESS_ERR);
	/* Polling writes only as many bytes of a completion as the program requests. */
	struct ibv_exp_wc flushed[2];
	memset(flushed, 0x55, sizeof(flushed));
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	int polled;
	while ((polled = ibv_exp_poll_cq(r.cq, 2, flushed, 16)) == 0)
		;
	CHECK_INT(polled, 1);
	CHECK_INT(flushed[0].status, IBV_WC_WR_FLUSH_ERR);
	CHECK_INT(flushed[0].vendor_err, 0x55555555);
	CHECK_INT(ibv_dealloc_pd(r.pd), EBUSY);
	CHECK_INT(ibv_dereg_mr(key), 0);
	CHECK_INT(ibv_dereg_mr(outer), 0);
	rig_close(&r);
}

/* A window bound by the experimental verbs also has 64-bit rights. */
static void windows_have_them(struct rig *r)
{
	struct ibv_mr *region = ibv_reg_mr(r->pd, r->buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(r->pd, IBV_MW_TYPE_2);
	CHECK(region && mw);
	struct ibv_exp_send_wr bind = { .wr_id = 5, .exp_opcode = IBV_EXP_WR_BIND_MW,
					.exp_send_flags = IBV_EXP_SEND_SIGNALED };
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	bind.bind_mw.bind_info.mr = region;
	bind.bind_mw.bind_info.addr = (uintptr_t)r->buffer + 64;
	bind.bind_mw.bind_info.length = 64;
	bind.bind_mw.bind_info.exp_mw_access_flags = IBV_EXP_ACCESS_REMOTE_WRITE | IBV_EXP_ACCESS_MW_ZERO_BASED;
	execute(r, r->b, &bind, (enum ibv_exp_wc_opcode)IBV_WC_BIND_MW);
	memset(r->buffer + 64, 0, 64);
	memcpy(r->buffer, "zero-based", 10);
	struct ibv_sge sge = sge_at(r, 0, 10);
	struct ibv_exp_send_wr write = rdma(IBV_EXP_WR_RDMA_WRITE, &sge, 16, bind.bind_mw.rkey);
	execute(r, r->a, &write, IBV_EXP_WC_RDMA_WRITE);
	CHECK(!memcmp(r->buffer + 80, "zero-based", 10));
	struct ibv_exp_send_wr *bad;
	bind.bind_mw.rkey = ibv_inc_rkey(bind.bind_mw.rkey);
	bind.bind_mw.bind_info.exp_mw_access_flags = IBV_EXP_ACCESS_PHYSICAL_ADDR;
	CHECK_INT(ibv_exp_post_send(r->b, &bind, &bad), EOPNOTSUPP);
	bind.bind_mw.bind_info.exp_mw_access_flags = 1ULL << 60;
	CHECK_INT(ibv_exp_post_send(r->b, &bind, &bad), EINVAL);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(ibv_dereg_mr(region), 0);
}

static void rights_of_64_bits(void)
{
	struct rig r = umr_open();
	windows_have_them(&r);
	struct ibv_exp_reg_mr_in in = { .pd = r.pd, .addr = r.buffer, .length = 100,
					.exp_access = ALL_RIGHTS | IBV_EXP_ACCESS_RELAXED };
	struct ibv_mr *mr = ibv_exp_reg_mr(&in);
	CHECK(mr && mr->addr == r.buffer && mr->length == 100);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	in.exp_access = IBV_EXP_ACCESS_ON_DEMAND | IBV_EXP_ACCESS_LOCAL_WRITE;
	mr = ibv_exp_reg_mr(&in);
	CHECK(mr);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	in.exp_access = IBV_EXP_ACCESS_REMOTE_WRITE;
	CHECK(!ibv_exp_reg_mr(&in) && errno == EINVAL);
	for (int bit = 37; bit <= 44; bit++) {
		in.exp_access = 1ULL << bit;
		CHECK(!ibv_exp_reg_mr(&in) && errno == EOPNOTSUPP);
	}
	in.exp_access = 1ULL << 50;
	CHECK(!ibv_exp_reg_mr(&in) && errno == EINVAL);
	in.exp_access = 0, in.comp_mask = 2;
	CHECK(!ibv_exp_reg_mr(&in) && errno == EINVAL);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_list_in_every_operation", a_list_in_every_operation },
		{ "a_column_of_a_matrix", a_column_of_a_matrix },
		{ "lists_beyond_the_request", lists_beyond_the_request },
		{ "mistakes_are_refused", mistakes_are_refused },
		{ "keys_end_and_are_invalidated", keys_end_and_are_invalidated },
		{ "rights_of_64_bits", rights_of_64_bits },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
