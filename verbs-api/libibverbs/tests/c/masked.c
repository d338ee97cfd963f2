/* Masked atomics. */
#include "rig.h"

#include <endian.h>
#include <infiniband/verbs_exp.h>

/* Like rig_open, with masked atomics of up to 32 bytes. */
static struct rig masked_open(void)
{
	struct rig r = rig_open();
	struct ibv_qp **both[] = { &r.a, &r.b };
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr small = small_qp(r.cq);
		struct ibv_exp_qp_init_attr init = {
			.send_cq = r.cq, .recv_cq = r.cq, .cap = small.cap, .qp_type = IBV_QPT_RC,
			.pd = r.pd, .max_atomic_arg = 32,
			.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG,
		};
		CHECK_INT(ibv_destroy_qp(*both[i]), 0);
		*both[i] = ibv_exp_create_qp(r.context, &init);
		CHECK(*both[i]);
	}
	connect_qp(r.a, r.b->qp_num);
	connect_qp(r.b, r.a->qp_num);
	return r;
}

static struct ibv_exp_send_wr request(struct rig *r, enum ibv_exp_wr_opcode opcode, uint32_t log_size,
				      struct ibv_sge *sge)
{
	*sge = sge_at(r, 4096, 64);
	struct ibv_exp_send_wr wr = {
		.wr_id = 9, .sg_list = sge, .num_sge = 1, .exp_opcode = opcode,
		.exp_send_flags = IBV_EXP_SEND_SIGNALED | IBV_EXP_SEND_EXT_ATOMIC_INLINE,
	};
	wr.ext_op.masked_atomics.log_arg_sz = log_size;
	wr.ext_op.masked_atomics.remote_addr = (uintptr_t)r->buffer;
	wr.ext_op.masked_atomics.rkey = r->mr->rkey;
	return wr;
}

static enum ibv_wc_status execute(struct rig *r, struct ibv_qp *qp, struct ibv_exp_send_wr *wr)
{
	struct ibv_exp_send_wr *bad;
	CHECK_INT(ibv_exp_post_send(qp, wr, &bad), 0);
	struct ibv_exp_wc wc;
	int polled;
	while ((polled = ibv_exp_poll_cq(r->cq, 1, &wc, sizeof(wc))) == 0)
		;
	CHECK_INT(polled, 1);
	if (wc.status == IBV_WC_SUCCESS) {
		CHECK_INT(wc.exp_opcode,
			  wr->exp_opcode == IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP ?
				  IBV_EXP_WC_MASKED_COMP_SWAP : IBV_EXP_WC_MASKED_FETCH_ADD);
		CHECK_INT(wc.byte_len, 1 << wr->ext_op.masked_atomics.log_arg_sz);
	}
	return wc.status;
}

static uint64_t word(struct rig *r, size_t offset)
{
	uint64_t value;
	memcpy(&value, r->buffer + offset, 8);
	return value;
}

static void set(struct rig *r, size_t offset, uint64_t value)
{
	memcpy(r->buffer + offset, &value, 8);
}

static void words_and_halves_of_words(void)
{
	struct rig r = masked_open();
	struct ibv_sge sge;
	struct ibv_exp_send_wr wr =
		request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP, 3, &sge);
	struct ibv_exp_cmp_swap *swap = &wr.ext_op.masked_atomics.wr_data.inline_data.op.cmp_swap;
	struct ibv_exp_fetch_add *add = &wr.ext_op.masked_atomics.wr_data.inline_data.op.fetch_add;
	set(&r, 0, 0x1122334455667788);
	swap->compare_val = 0x0000000055660000;
	swap->compare_mask = 0x00000000ffff0000;
	swap->swap_val = 0xaaaaaaaaaaaaaaaa;
	swap->swap_mask = 0x00ff00000000ff00;
	CHECK_INT(execute(&r, r.a, &wr), IBV_WC_SUCCESS);
	CHECK(word(&r, 0) == 0x11aa33445566aa88 && word(&r, 4096) == 0x1122334455667788);
	CHECK(word(&r, 4104) == 0);
	swap->compare_val = 0x0000000055670000;
	CHECK_INT(execute(&r, r.a, &wr), IBV_WC_SUCCESS);
	CHECK(word(&r, 0) == 0x11aa33445566aa88 && word(&r, 4096) == 0x11aa33445566aa88);
	/* The upper half of the word. Bits above 32 are ignored. */
	wr = request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, 2, &sge);
	set(&r, 0, 0xffffffffffffffff);
	set(&r, 4096, 0);
	wr.ext_op.masked_atomics.remote_addr += 4;
	add->add_val = 0x700010001;
	add->field_boundary = 0x80008000;
	CHECK_INT(execute(&r, r.a, &wr), IBV_WC_SUCCESS);
	CHECK(word(&r, 0) == 0x00000000ffffffff && word(&r, 4096) == 0xffffffff);
	/* Operands by address. */
	uint64_t one = 1, boundary = 0x80;
	wr = request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, 3, &sge);
	wr.exp_send_flags = IBV_EXP_SEND_SIGNALED;
	add->add_val = (uintptr_t)&one;
	add->field_boundary = (uintptr_t)&boundary;
	CHECK_INT(execute(&r, r.a, &wr), IBV_WC_SUCCESS);
	CHECK(word(&r, 0) == 0x00000000ffffff00 && word(&r, 4096) == 0xffffffff);
	rig_close(&r);
}

static void operands_of_several_words(void)
{
	struct rig r = masked_open();
	for (int log_size = 4; log_size <= 5; log_size++) {
		int count = 1 << (log_size - 3);
		struct ibv_sge sge;
		struct ibv_exp_send_wr wr =
			request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP, log_size, &sge);
		struct ibv_exp_cmp_swap *swap =
			&wr.ext_op.masked_atomics.wr_data.inline_data.op.cmp_swap;
		uint64_t expected[4] = { 1, 2, 3, 4 }, all[4], fresh[4] = { 11, 12, 13, 14 };
		memset(all, 0xff, sizeof(all));
		for (int i = 0; i < 5; i++)
			set(&r, 8 * i, i + 1);
		/* 32 bytes, aligned. The buffer itself may be unaligned. */
		uint64_t start = ((uintptr_t)r.buffer + 31) / 32 * 32;
		size_t offset = start - (uintptr_t)r.buffer;
		for (int i = 0; i < 5; i++)
			set(&r, offset + 8 * i, i + 1);
		wr.ext_op.masked_atomics.remote_addr = start;
		swap->compare_val = (uintptr_t)expected;
		swap->compare_mask = swap->swap_mask = (uintptr_t)all;
		swap->swap_val = (uintptr_t)fresh;
		expected[count - 1] = 99;
		CHECK_INT(execute(&r, r.a, &wr), IBV_WC_SUCCESS);
		for (int i = 0; i < 5; i++)
			CHECK(word(&r, offset + 8 * i) == (uint64_t)i + 1);
		expected[count - 1] = count;
		CHECK_INT(execute(&r, r.a, &wr), IBV_WC_SUCCESS);
		for (int i = 0; i < count; i++) {
			CHECK(word(&r, offset + 8 * i) == (uint64_t)i + 11);
			CHECK(word(&r, 4096 + 8 * i) == (uint64_t)i + 1);
		}
		CHECK(word(&r, offset + 8 * count) == (uint64_t)count + 1);
	}
	rig_close(&r);
}

static void sizes_and_mistakes(void)
{
	struct rig r = masked_open();
	struct ibv_exp_device_attr attr = { .comp_mask = IBV_EXP_DEVICE_ATTR_EXT_ATOMIC_ARGS |
							  IBV_EXP_DEVICE_ATTR_MASKED_ATOMICS |
							  IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS };
	CHECK_INT(ibv_exp_query_device(r.context, &attr), 0);
	CHECK(attr.exp_device_cap_flags & IBV_EXP_DEVICE_EXT_ATOMICS);
	CHECK(attr.exp_device_cap_flags & IBV_EXP_DEVICE_EXT_MASKED_ATOMICS);
	CHECK_INT(attr.ext_atom.log_atomic_arg_sizes, 0x3c);
	CHECK_INT(attr.ext_atom.atomic_arg_sizes, 0x3c);
	CHECK_INT(attr.ext_atom.max_fa_bit_boundary, 3);
	CHECK_INT(attr.ext_atom.log_max_atomic_inline, 7);
	CHECK_INT(attr.masked_atomic.masked_log_atomic_arg_sizes, 0x3c);
	/* On request, see results_may_be_big_endian. */
	CHECK_INT(attr.masked_atomic.masked_log_atomic_arg_sizes_network_endianness, 0x3c);

	struct ibv_sge sge;
	struct ibv_exp_send_wr *bad;
	for (uint32_t log_size = 0; log_size < 300; log_size = log_size == 8 ? 259 : log_size + 1) {
		if (log_size >= 2 && log_size <= 5)
			continue;
		struct ibv_exp_send_wr wr = request(
			&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, log_size, &sge);
		CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
		CHECK(bad == &wr);
	}
	struct ibv_exp_send_wr wr =
		request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, 4, &sge);
	/* Operands at NULL, and a result buffer that is too short. */
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	wr = request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, 3, &sge);
	sge.length = 7;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	/* A QP created for shorter operands, or without masked atomics. */
	struct ibv_qp_init_attr plain = small_qp(r.cq);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = r.cq, .recv_cq = r.cq, .cap = plain.cap, .qp_type = IBV_QPT_RC, .pd = r.pd,
		.max_atomic_arg = 4,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG,
	};
	struct ibv_qp *less = ibv_exp_create_qp(r.context, &init);
	struct ibv_qp *none = ibv_create_qp(r.pd, &plain);
	CHECK(less && none);
	connect_qp(less, less->qp_num);
	connect_qp(none, none->qp_num);
	wr = request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, 3, &sge);
	CHECK_INT(ibv_exp_post_send(less, &wr, &bad), EINVAL);
	CHECK_INT(ibv_exp_post_send(none, &wr, &bad), EINVAL);
	wr.ext_op.masked_atomics.log_arg_sz = 2;
	CHECK_INT(execute(&r, less, &wr), IBV_WC_SUCCESS);
	CHECK_INT(ibv_destroy_qp(less), 0);
	CHECK_INT(ibv_destroy_qp(none), 0);
	/* The peer refuses unaligned addresses. */
	wr = request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, 3, &sge);
	wr.ext_op.masked_atomics.remote_addr += 4;
	CHECK_INT(execute(&r, r.a, &wr), IBV_WC_REM_INV_REQ_ERR);
	rig_close(&r);
}

/* A lock in bit 0 of a word, by masked compare-and-swap. Its holder may change the guarded word.
 * Each thread has its own QP and CQ. */
struct contender {
	struct rig *r;
	pthread_t thread;
	int rounds;
};

static void masked_swap(struct ibv_qp *qp, struct ibv_cq *cq, struct rig *r, size_t result,
			struct ibv_exp_cmp_swap operands)
{
	struct ibv_sge sge = sge_at(r, result, 8);
	struct ibv_exp_send_wr wr = { .sg_list = &sge, .num_sge = 1,
				      .exp_opcode = IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP,
				      .exp_send_flags = IBV_EXP_SEND_SIGNALED |
							IBV_EXP_SEND_EXT_ATOMIC_INLINE }, *bad;
	wr.ext_op.masked_atomics.log_arg_sz = 3;
	wr.ext_op.masked_atomics.remote_addr = (uintptr_t)r->buffer;
	wr.ext_op.masked_atomics.rkey = r->mr->rkey;
	wr.ext_op.masked_atomics.wr_data.inline_data.op.cmp_swap = operands;
	CHECK_INT(ibv_exp_post_send(qp, &wr, &bad), 0);
	struct ibv_wc wc = next_completion(cq);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.opcode, IBV_WC_COMP_SWAP);
}

static void *contend(void *argument)
{
	struct contender *c = argument;
	struct rig *r = c->r;
	static int places;
	size_t result = 4096 + 8 * __atomic_fetch_add(&places, 1, __ATOMIC_SEQ_CST);
	struct ibv_cq *cq = ibv_create_cq(r->context, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr small = small_qp(cq);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = small.cap, .qp_type = IBV_QPT_RC, .pd = r->pd,
		.max_atomic_arg = 8,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG,
	};
	struct ibv_qp *qp = ibv_exp_create_qp(r->context, &init);
	CHECK(qp);
	connect_qp(qp, qp->qp_num);
	struct ibv_exp_cmp_swap take = { .compare_mask = 1, .compare_val = 0, .swap_val = 1,
					 .swap_mask = 1 };
	struct ibv_exp_cmp_swap give = { .compare_mask = 0, .swap_val = 0, .swap_mask = 1 };
	for (int i = 0; i < c->rounds; i++) {
		do
			masked_swap(qp, cq, r, result, take);
		while (word(r, result) & 1);
		/* Guarded by the lock, so neither atomic nor volatile. */
		set(r, 64, word(r, 64) + 1);
		masked_swap(qp, cq, r, result, give);
		CHECK(word(r, result) & 1);
	}
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	return NULL;
}

static void a_lock(void)
{
	struct rig r = masked_open();
	/* The bits outside of the lock stay unchanged. */
	set(&r, 0, 0xabcdef0000000000);
	struct contender contenders[4];
	for (int i = 0; i < 4; i++) {
		contenders[i] = (struct contender){ .r = &r, .rounds = 50 };
		CHECK_INT(pthread_create(&contenders[i].thread, NULL, contend, &contenders[i]), 0);
	}
	for (int i = 0; i < 4; i++)
		CHECK_INT(pthread_join(contenders[i].thread, NULL), 0);
	CHECK_INT(word(&r, 64), 200);
	CHECK(word(&r, 0) == 0xabcdef0000000000);
	rig_close(&r);
}

/* QPs created with the flag return original values in big-endian order, word by word. Others use
 * host order. */
static void results_may_be_big_endian(void)
{
	struct rig r = masked_open();
	struct ibv_qp_init_attr small = small_qp(r.cq);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = r.cq, .recv_cq = r.cq, .cap = small.cap, .qp_type = IBV_QPT_RC, .pd = r.pd,
		.max_atomic_arg = 16, .exp_create_flags = IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG |
			     IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS,
	};
	struct ibv_qp *qp = ibv_exp_create_qp(r.context, &init);
	CHECK(qp);
	struct ibv_exp_qp_attr now;
	struct ibv_exp_qp_init_attr got;
	CHECK_INT(ibv_exp_query_qp(qp, &now, 0, &got), 0);
	CHECK(got.exp_create_flags & IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY);
	connect_qp(qp, qp->qp_num);
	size_t offset = ((uintptr_t)r.buffer + 15) / 16 * 16 - (uintptr_t)r.buffer;
	uint64_t zeros[2] = { 0, 0 };
	struct ibv_sge sge;
	for (uint32_t log_size = 2; log_size <= 4; log_size++) {
		set(&r, offset, 0x0102030405060708);
		set(&r, offset + 8, 0x1112131415161718);
		memset(r.buffer + 4096, 0, 32);
		struct ibv_exp_send_wr wr =
			request(&r, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, log_size, &sge);
		wr.ext_op.masked_atomics.remote_addr = (uintptr_t)r.buffer + offset;
		struct ibv_exp_fetch_add *add = &wr.ext_op.masked_atomics.wr_data.inline_data.op.fetch_add;
		if (log_size == 4)
			add->add_val = add->field_boundary = (uintptr_t)zeros;
		CHECK_INT(execute(&r, qp, &wr), IBV_WC_SUCCESS);
		uint64_t first = log_size == 2 ? htobe32(0x05060708) : htobe64(0x0102030405060708);
		CHECK(word(&r, 4096) == first);
		CHECK(word(&r, 4104) == (log_size == 4 ? htobe64(0x1112131415161718) : 0));
		/* The words in memory and the operands are in host order in both cases. */
		CHECK(word(&r, offset) == 0x0102030405060708);
		CHECK_INT(execute(&r, r.a, &wr), IBV_WC_SUCCESS);
		CHECK((uint32_t)word(&r, 4096) == 0x05060708);
	}
	/* The standard atomics too. */
	struct ibv_sge result = sge_at(&r, 4096, 8);
	struct ibv_send_wr plain = { .sg_list = &result, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				     .send_flags = IBV_SEND_SIGNALED }, *bad;
	plain.wr.atomic.remote_addr = (uintptr_t)r.buffer + offset;
	plain.wr.atomic.compare_add = 1;
	plain.wr.atomic.rkey = r.mr->rkey;
	CHECK_INT(ibv_post_send(qp, &plain, &bad), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK(word(&r, 4096) == htobe64(0x0102030405060708));
	CHECK(word(&r, offset) == 0x0102030405060709);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "words_and_halves_of_words", words_and_halves_of_words },
		{ "operands_of_several_words", operands_of_several_words },
		{ "sizes_and_mistakes", sizes_and_mistakes },
		{ "a_lock", a_lock },
		{ "results_may_be_big_endian", results_may_be_big_endian },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
