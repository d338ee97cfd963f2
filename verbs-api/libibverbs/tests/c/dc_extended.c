/* Operations of DC initiators beyond the InfiniBand specification. */
#include "dc.h"

#include <endian.h>

static void expect(struct ibv_cq *cq, uint64_t wr_id, int status, int opcode)
{
	struct ibv_exp_wc wc = next_exp(cq);
	CHECK_INT(wc.wr_id, wr_id);
	CHECK_INT(wc.status, status);
	if (status == IBV_WC_SUCCESS)
		CHECK_INT(wc.exp_opcode, opcode);
}

/* A masked atomic on offset `place` of the buffer. Its result is stored at offset 64. */
static struct ibv_exp_send_wr add_to(struct ends *e, uint32_t dct, size_t place, uint32_t log_size,
				     struct ibv_sge *result)
{
	*result = (struct ibv_sge){ (uintptr_t)e->buffer + 64, 32, e->mr->lkey };
	struct ibv_exp_send_wr wr = to_target(e, 1, dct, KEY);
	wr.exp_opcode = IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD;
	wr.exp_send_flags |= IBV_EXP_SEND_EXT_ATOMIC_INLINE;
	wr.sg_list = result;
	wr.num_sge = 1;
	wr.ext_op.masked_atomics.log_arg_sz = log_size;
	wr.ext_op.masked_atomics.remote_addr = (uintptr_t)e->buffer + place;
	wr.ext_op.masked_atomics.rkey = e->mr->rkey;
	return wr;
}

static void masked_atomics(void)
{
	struct ends e = ends_open();
	uint64_t words[4] = { 0xff, 0xff, 0xff, 0xff }, ones[4] = { 1, 1, 1, 1 }, ends[4] = { 0x80, 0x80, 0, 0x80 };
	uint64_t *there = (uint64_t *)(((uintptr_t)e.buffer + 1024 + 31) / 32 * 32);
	size_t place = (uintptr_t)there - (uintptr_t)e.buffer;
	struct ibv_sge result;
	for (uint32_t log_size = 2; log_size <= 5; log_size++) {
		memcpy(there, words, sizeof(words));
		memset(e.buffer + 64, 0, 32);
		struct ibv_exp_send_wr wr = add_to(&e, e.dct->dct_num, place, log_size, &result);
		struct ibv_exp_fetch_add *add = &wr.ext_op.masked_atomics.wr_data.inline_data.op.fetch_add;
		add->add_val = log_size > 3 ? (uintptr_t)ones : 1;
		add->field_boundary = log_size > 3 ? (uintptr_t)ends : 0x80;
		CHECK_INT(post(&e, &wr), 0);
		expect(e.cq, 1, IBV_WC_SUCCESS, IBV_EXP_WC_MASKED_FETCH_ADD);
		for (int i = 0; i < 4; i++) {
			uint64_t touched = i < (log_size > 3 ? 1 << (log_size - 3) : 1);
			CHECK_INT(there[i], touched ? (ends[i] ? 0 : 0x100) : 0xff);
			CHECK_INT(((uint64_t *)(e.buffer + 64))[i], touched ? 0xff : 0);
		}
	}
	struct ibv_exp_send_wr wr = add_to(&e, e.dct->dct_num, place + 4, 3, &result);
	CHECK_INT(post(&e, &wr), 0);
	expect(e.cq, 1, IBV_WC_REM_INV_REQ_ERR, 0);
	wr.dc.ah = NULL;
	CHECK_INT(post(&e, &wr), EINVAL);
	ends_close(&e);
}

/* NOPs, and an indirect key that is filled, used at once, and invalidated. */
static void operations_of_this_side(void)
{
	struct ends e = ends_open_with(IBV_EXP_QP_CREATE_UMR);
	struct ibv_exp_create_mr_in in = {
		.pd = e.pd,
		.attr = { .max_klm_list_size = 4, .create_flags = IBV_EXP_MR_INDIRECT_KLMS,
			  .exp_access_flags = IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_WRITE },
	};
	struct ibv_mr *key = ibv_exp_create_mr(&in);
	CHECK(key);
	memcpy(e.buffer, "to be exchanged ", 16);
	struct ibv_exp_mem_region list[2] = {
		{ (uintptr_t)e.buffer + 8, e.mr, 8 },
		{ (uintptr_t)e.buffer, e.mr, 8 },
	};
	struct ibv_exp_send_wr nop = { .wr_id = 1, .exp_opcode = IBV_EXP_WR_NOP };
	struct ibv_exp_send_wr fill = { .wr_id = 2, .exp_opcode = IBV_EXP_WR_UMR_FILL,
					.exp_send_flags = IBV_EXP_SEND_INLINE };
	fill.ext_op.umr.umr_type = IBV_EXP_UMR_MR_LIST;
	fill.ext_op.umr.exp_access = in.attr.exp_access_flags;
	fill.ext_op.umr.modified_mr = key;
	fill.ext_op.umr.base_addr = 0x1000;
	fill.ext_op.umr.num_mrs = 2;
	fill.ext_op.umr.mem_list.mem_reg_list = list;
	struct ibv_sge all = { 0x1000, 16, key->lkey };
	struct ibv_exp_send_wr write = to_target(&e, 3, e.dct->dct_num, KEY);
	write.exp_opcode = IBV_EXP_WR_RDMA_WRITE;
	write.sg_list = &all;
	write.num_sge = 1;
	write.wr.rdma.remote_addr = (uintptr_t)e.buffer + 1024;
	write.wr.rdma.rkey = e.mr->rkey;
	/* A write into the key by the other side. */
	struct ibv_sge plain = { (uintptr_t)e.buffer + 1024, 16, e.mr->lkey };
	struct ibv_exp_send_wr back = write;
	back.wr_id = 4;
	back.sg_list = &plain;
	back.wr.rdma.remote_addr = 0x1000;
	back.wr.rdma.rkey = key->rkey;
	struct ibv_exp_send_wr end = { .wr_id = 5, .exp_opcode = IBV_EXP_WR_UMR_INVALIDATE,
				       .exp_send_flags = IBV_EXP_SEND_INLINE };
	end.ext_op.umr.modified_mr = key;
	nop.next = &fill;
	fill.next = &write;
	CHECK_INT(post(&e, &nop), 0);
	expect(e.cq, 1, IBV_WC_SUCCESS, IBV_EXP_WC_SEND);
	expect(e.cq, 2, IBV_WC_SUCCESS, IBV_EXP_WC_UMR);
	expect(e.cq, 3, IBV_WC_SUCCESS, IBV_EXP_WC_RDMA_WRITE);
	CHECK(!memcmp(e.buffer + 1024, "changed to be ex", 16));
	CHECK_INT(post(&e, &back), 0);
	expect(e.cq, 4, IBV_WC_SUCCESS, IBV_EXP_WC_RDMA_WRITE);
	CHECK(!memcmp(e.buffer, "to be ex", 8) && !memcmp(e.buffer + 8, "changed ", 8));
	CHECK_INT(post(&e, &end), 0);
	expect(e.cq, 5, IBV_WC_SUCCESS, IBV_EXP_WC_UMR);
	write.wr_id = 6;
	CHECK_INT(post(&e, &write), 0);
	expect(e.cq, 6, IBV_WC_LOC_PROT_ERR, 0);
	CHECK_INT(ibv_dereg_mr(key), 0);
	ends_close(&e);
}

static struct ibv_exp_send_wr wait_for(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_exp_send_wr wr = { .wr_id = wr_id, .exp_opcode = IBV_EXP_WR_CQE_WAIT,
				      .exp_send_flags = IBV_EXP_SEND_WAIT_EN_LAST };
	wr.task.cqe_wait.cq = cq;
	wr.task.cqe_wait.cq_count = 1;
	return wr;
}

/* A managed initiator that waits, computes in both directions, and is enabled by another one. */
static void initiators_take_part(void)
{
	struct ends e = ends_open_with(IBV_EXP_QP_CREATE_CROSS_CHANNEL | IBV_EXP_QP_CREATE_MANAGED_SEND);
	struct ends other = ends_open_with(IBV_EXP_QP_CREATE_CROSS_CHANNEL);
	struct ibv_exp_cq_init_attr attr = { .comp_mask = IBV_EXP_CQ_INIT_ATTR_FLAGS,
					     .flags = IBV_EXP_CQ_CREATE_CROSS_CHANNEL };
	struct ibv_cq *watched = ibv_exp_create_cq(e.context, 16, NULL, NULL, 0, &attr);
	CHECK(watched);
	struct ibv_exp_dct_init_attr init = target_attr(&e);
	init.cq = watched;
	struct ibv_exp_dct *second = ibv_exp_create_dct(e.context, &init);
	CHECK(second);
	struct ibv_exp_wc wc;
	uint64_t *numbers = (uint64_t *)e.buffer;
	numbers[0] = htobe64(5), numbers[1] = htobe64(37);
	struct ibv_sge two = { (uintptr_t)e.buffer, 16, e.mr->lkey };
	struct ibv_sge room = { (uintptr_t)e.buffer + 64, 16, e.mr->lkey };
	/* Sends a sum to one target and waits for its arrival. Then a READ sums up at the other
	 * target. */
	struct ibv_exp_send_wr send = to_target(&e, 1, second->dct_num, KEY);
	send.exp_send_flags = IBV_EXP_SEND_WITH_CALC;
	send.op.calc.data_type = IBV_EXP_CALC_DATA_TYPE_UINT;
	send.sg_list = &two;
	send.num_sge = 1;
	struct ibv_exp_send_wr read = send;
	read.wr_id = 3;
	read.exp_opcode = IBV_EXP_WR_RDMA_READ;
	read.dc.dct_number = e.dct->dct_num;
	read.sg_list = &room;
	read.wr.rdma.remote_addr = (uintptr_t)e.buffer;
	read.wr.rdma.rkey = e.mr->rkey;
	struct ibv_exp_send_wr wait = wait_for(watched, 2);
	receive(&e, 70);
	send.next = &wait;
	wait.next = &read;
	CHECK_INT(post(&e, &send), 0);
	CHECK_INT(ibv_exp_poll_cq(e.cq, 1, &wc, sizeof(wc)), 0);
	struct ibv_exp_send_wr open = { .wr_id = 9, .exp_opcode = IBV_EXP_WR_SEND_ENABLE,
					.exp_send_flags = IBV_EXP_SEND_WAIT_EN_LAST };
	open.task.wqe_enable.qp = e.dci;
	open.task.wqe_enable.wqe_count = 2;
	CHECK_INT(post(&other, &open), 0);
	expect(other.cq, 9, IBV_WC_SUCCESS, IBV_EXP_WC_SEND);
	expect(e.cq, 1, IBV_WC_SUCCESS, IBV_EXP_WC_SEND);
	expect(e.cq, 2, IBV_WC_SUCCESS, IBV_EXP_WC_SEND);
	CHECK_INT(ibv_exp_poll_cq(e.cq, 1, &wc, sizeof(wc)), 0);
	wc = next_exp(watched);
	CHECK_INT(wc.byte_len, 8);
	CHECK(wc.dct == second);
	CHECK_INT(be64toh(*(uint64_t *)(e.buffer + 4096)), 42);
	open.task.wqe_enable.wqe_count = 0;
	CHECK_INT(post(&other, &open), 0);
	expect(e.cq, 3, IBV_WC_SUCCESS, IBV_EXP_WC_RDMA_READ);
	expect(other.cq, 9, IBV_WC_SUCCESS, IBV_EXP_WC_SEND);
	CHECK_INT(be64toh(*(uint64_t *)(e.buffer + 64)), 42);
	CHECK_INT(*(uint64_t *)(e.buffer + 72), 0);
	/* It has no receives to enable. */
	open.exp_opcode = IBV_EXP_WR_RECV_ENABLE;
	CHECK_INT(post(&other, &open), EINVAL);
	CHECK_INT(ibv_exp_destroy_dct(second), 0);
	CHECK_INT(ibv_destroy_cq(watched), 0);
	ends_close(&other);
	ends_close(&e);
}

/* A missing target, and a target that is destroyed during requests to it. The retries run out, the
 * other requests are flushed, and the initiator can be used again. */
static void targets_that_are_gone(void)
{
	struct ends e = ends_open();
	struct ibv_sge sge = { (uintptr_t)e.buffer, 16, e.mr->lkey };
	for (int round = 0; round < 2; round++) {
		struct ibv_exp_dct_init_attr attr = target_attr(&e);
		struct ibv_exp_dct *short_lived = ibv_exp_create_dct(e.context, &attr);
		CHECK(short_lived);
		uint32_t number = short_lived->dct_num;
		if (round == 0)
			CHECK_INT(ibv_exp_destroy_dct(short_lived), 0);
		struct ibv_exp_send_wr send = to_target(&e, 1, number, KEY);
		send.sg_list = &sge;
		send.num_sge = 1;
		struct ibv_exp_send_wr healthy = to_target(&e, 2, e.dct->dct_num, KEY);
		healthy.exp_opcode = IBV_EXP_WR_RDMA_WRITE;
		healthy.wr.rdma.rkey = e.mr->rkey;
		send.next = &healthy;
		CHECK_INT(post(&e, &send), 0);
		/* In the second round there is no receive, so that the request is retried. */
		if (round == 1)
			CHECK_INT(ibv_exp_destroy_dct(short_lived), 0);
		expect(e.cq, 1, IBV_WC_RETRY_EXC_ERR, 0);
		expect(e.cq, 2, IBV_WC_WR_FLUSH_ERR, 0);
		struct ibv_exp_qp_attr again = { .qp_state = IBV_QPS_RESET };
		CHECK_INT(ibv_exp_modify_qp(e.dci, &again, IBV_QP_STATE), 0);
		start(&e, KEY);
		CHECK_INT(post(&e, &healthy), 0);
		expect(e.cq, 2, IBV_WC_SUCCESS, IBV_EXP_WC_RDMA_WRITE);
	}
	ends_close(&e);
}

static const struct test_case cases[] = {
	{ "masked_atomics", masked_atomics },
	{ "operations_of_this_side", operations_of_this_side },
	{ "initiators_take_part", initiators_take_part },
	{ "targets_that_are_gone", targets_that_are_gone },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_case(cases, argc, argv);
}
