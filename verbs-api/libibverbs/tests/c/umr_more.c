/* Edge cases of indirect memory keys: empty and overlapping layouts, keys of keys, and changes
 * while a key is in use. */
#include "umr.h"

#include <sched.h>

/* Reads `length` bytes at `addr` of a key to the end of the buffer. Returns the status. */
static enum ibv_wc_status read_through(struct rig *r, struct ibv_mr *key, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = sge_at(r, 4096, length);
	struct ibv_exp_send_wr wr = rdma(IBV_EXP_WR_RDMA_READ, &sge, addr, key->rkey), *bad;
	memset(r->buffer + 4096, 0x55, length);
	CHECK_INT(ibv_exp_post_send(r->a, &wr, &bad), 0);
	return next_exp(r).status;
}

static void to_reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

static void start_again(struct rig *r)
{
	to_reset(r->a);
	to_reset(r->b);
	connect_qp(r->a, r->b->qp_num);
	connect_qp(r->b, r->a->qp_num);
}

static struct ibv_exp_send_wr pattern(struct ibv_mr *key, uint64_t base, uint32_t count,
				      struct ibv_exp_mem_repeat_block *blocks, size_t *repeats)
{
	struct ibv_exp_send_wr wr = fill(key, base, count, NULL);
	wr.ext_op.umr.umr_type = IBV_EXP_UMR_REPEAT;
	wr.ext_op.umr.mem_list.rb.mem_repeat_block_list = blocks;
	wr.ext_op.umr.mem_list.rb.repeat_count = repeats;
	wr.ext_op.umr.mem_list.rb.stride_dim = 1;
	return wr;
}

static void layouts_of_nothing_and_of_overlaps(void)
{
	struct rig r = umr_open();
	struct ibv_mr *key = new_key(&r, 4);
	char *buffer = r.buffer;
	/* Empty entries, and two that overlap. */
	struct ibv_exp_mem_region list[] = { piece(&r, 90, 0), piece(&r, 200, 10), piece(&r, 100, 0),
					     piece(&r, 205, 3) };
	struct ibv_exp_send_wr wr = fill(key, 1000, 4, list);
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	CHECK_INT(read_through(&r, key, 1000, 13), IBV_WC_SUCCESS);
	CHECK(!memcmp(buffer + 4096, buffer + 200, 10) && !memcmp(buffer + 4106, buffer + 205, 3));
	/* Blocks that overlap, blocks with stride 0, and empty blocks. */
	size_t six[] = { 6 }, two[] = { 2 }, none[] = { 0 }, one[] = { 1 }, three[] = { 3 };
	struct ibv_exp_mem_repeat_block blocks[] = {
		{ (uintptr_t)buffer + 300, r.mr, six, two },
		{ (uintptr_t)buffer + 400, r.mr, one, none },
		{ (uintptr_t)buffer + 500, r.mr, none, six },
	};
	wr = pattern(key, 0, 3, blocks, three);
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	CHECK_INT(read_through(&r, key, 0, 21), IBV_WC_SUCCESS);
	for (int repeat = 0; repeat < 3; repeat++) {
		CHECK(!memcmp(buffer + 4096 + 7 * repeat, buffer + 300 + 2 * repeat, 6));
		CHECK_INT(buffer[4096 + 7 * repeat + 6], buffer[400]);
	}
	CHECK_INT(read_through(&r, key, 0, 22), IBV_WC_REM_ACCESS_ERR);
	start_again(&r);
	/* A write fills the pieces in order: the last write to overlapping bytes wins. */
	memset(buffer + 4096, 1, 7);
	memset(buffer + 4103, 2, 14);
	struct ibv_sge sge = sge_at(&r, 4096, 21);
	wr = rdma(IBV_EXP_WR_RDMA_WRITE, &sge, 0, key->rkey);
	execute(&r, r.a, &wr, IBV_EXP_WC_RDMA_WRITE);
	static const char overlapped[] = { 1, 1, 2, 2, 2, 2, 2, 2, 2, 2 };
	CHECK(!memcmp(buffer + 300, overlapped, 10));
	/* An empty layout: a valid key of length 0. */
	for (int way = 0; way < 2; way++) {
		size_t *repeats = way ? none : three;
		blocks[0].byte_count = way ? six : none;
		wr = pattern(key, 50, 1, blocks, repeats);
		execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
		CHECK_INT(read_through(&r, key, 50, 1), IBV_WC_REM_ACCESS_ERR);
		start_again(&r);
	}
	/* Lengths and addresses that wrap around. */
	struct ibv_exp_send_wr *bad;
	size_t huge[] = { SIZE_MAX / 2 };
	blocks[0] = (struct ibv_exp_mem_repeat_block){ (uintptr_t)buffer, r.mr, six, huge };
	wr = pattern(key, 0, 1, blocks, three);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	blocks[0].stride = none;
	wr = pattern(key, 0, 1, blocks, huge);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	list[0].base_addr = UINT64_MAX, list[0].length = 2;
	wr = fill(key, 0, 1, list);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), EINVAL);
	list[0] = piece(&r, 0, 2);
	wr = fill(key, UINT64_MAX, 1, list);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_exp(&r).status, IBV_WC_MW_BIND_ERR);
	CHECK_INT(ibv_dereg_mr(key), 0);
	rig_close(&r);
}

/* Each key swaps the halves of the one below. */
static void keys_of_keys_down_to_the_last(void)
{
	struct rig r = umr_open();
	struct ibv_exp_device_attr device = { .comp_mask = IBV_EXP_DEVICE_ATTR_UMR };
	CHECK_INT(ibv_exp_query_device(r.context, &device), 0);
	int depth = device.umr_caps.max_umr_recursion_depth;
	CHECK(depth >= 1 && depth <= 16);
	struct ibv_mr *keys[18];
	struct ibv_exp_mem_region list[] = { piece(&r, 32, 32), piece(&r, 0, 32) };
	struct ibv_exp_send_wr wr, *bad;
	for (int level = 0; level <= depth + 1; level++) {
		keys[level] = new_key(&r, 2);
		wr = fill(keys[level], 0, 2, list);
		if (level <= depth) {
			execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
			CHECK_INT(read_through(&r, keys[level], 0, 64), IBV_WC_SUCCESS);
			int exchanged = level % 2 == 0;
			CHECK(!memcmp(r.buffer + 4096, r.buffer + 32 * exchanged, 32));
			CHECK(!memcmp(r.buffer + 4128, r.buffer + 32 * !exchanged, 32));
		} else {
			CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
			CHECK_INT(next_exp(&r).status, IBV_WC_MW_BIND_ERR);
			start_again(&r);
			CHECK_INT(read_through(&r, keys[level], 0, 1), IBV_WC_REM_ACCESS_ERR);
			start_again(&r);
		}
		list[0] = (struct ibv_exp_mem_region){ 32, keys[level], 32 };
		list[1] = (struct ibv_exp_mem_region){ 0, keys[level], 32 };
	}
	/* A cycle of keys, and a key that lists itself: any status is valid, but the request must
	 * end. */
	list[0] = (struct ibv_exp_mem_region){ 0, keys[1], 64 };
	wr = fill(keys[0], 0, 1, list);
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	CHECK_INT(read_through(&r, keys[0], 0, 64), IBV_WC_REM_ACCESS_ERR);
	start_again(&r);
	list[0] = piece(&r, 0, 64);
	wr = fill(keys[0], 0, 1, list);
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	list[0] = (struct ibv_exp_mem_region){ 0, keys[0], 64 };
	wr = fill(keys[0], 0, 1, list);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	struct ibv_exp_wc wc = next_exp(&r);
	CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_MW_BIND_ERR);
	if (wc.status == IBV_WC_SUCCESS)
		CHECK_INT(read_through(&r, keys[0], 0, 64), IBV_WC_REM_ACCESS_ERR);
	for (int level = 0; level <= depth + 1; level++)
		CHECK_INT(ibv_dereg_mr(keys[level]), 0);
	rig_close(&r);
}

/* Listed keys may be of another PD, or be deregistered first. */
static void keys_of_what_is_not_ours(void)
{
	struct rig r = umr_open();
	struct ibv_mr *key = new_key(&r, 2);
	struct ibv_pd *other = ibv_alloc_pd(r.context);
	struct ibv_mr *foreign = ibv_reg_mr(other, r.buffer, 64, IBV_ACCESS_LOCAL_WRITE);
	CHECK(other && foreign);
	struct ibv_exp_mem_region list[] = { piece(&r, 0, 8), { (uintptr_t)r.buffer, foreign, 8 } };
	struct ibv_exp_send_wr wr = fill(key, 0, 2, list), *bad;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_exp(&r).status, IBV_WC_MW_BIND_ERR);
	start_again(&r);
	CHECK_INT(ibv_dereg_mr(foreign), 0);
	CHECK_INT(ibv_dealloc_pd(other), 0);
	/* A piece has only the rights that both keys have: the MR does not allow writes. */
	struct ibv_mr *readable = ibv_reg_mr(r.pd, r.buffer, 64, IBV_ACCESS_REMOTE_READ);
	CHECK(readable);
	list[1] = (struct ibv_exp_mem_region){ (uintptr_t)r.buffer + 8, readable, 8 };
	wr = fill(key, 0, 2, list);
	execute(&r, r.a, &wr, IBV_EXP_WC_UMR);
	CHECK_INT(read_through(&r, key, 0, 16), IBV_WC_SUCCESS);
	struct ibv_sge sge = sge_at(&r, 4096, 9);
	wr = rdma(IBV_EXP_WR_RDMA_WRITE, &sge, 0, key->rkey);
	char before[16];
	memcpy(before, r.buffer, 16);
	memset(r.buffer + 4096, 0x33, 16);
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_exp(&r).status, IBV_WC_REM_ACCESS_ERR);
	CHECK(!memcmp(before, r.buffer, 16));
	start_again(&r);
	/* The listed MR is deregistered. Accesses to the other pieces still work. */
	CHECK_INT(ibv_dereg_mr(readable), 0);
	CHECK_INT(read_through(&r, key, 0, 8), IBV_WC_SUCCESS);
	CHECK_INT(read_through(&r, key, 0, 9), IBV_WC_REM_ACCESS_ERR);
	start_again(&r);
	CHECK_INT(ibv_dereg_mr(key), 0);
	rig_close(&r);
}

enum { READ_LEN = 2048, CHANGES = 40 };

struct reader {
	struct rig *r;
	struct ibv_mr *key;
	pthread_t thread;
	int stop, whole, refused;
};

/* Reads from the key: the data is of one of the two layouts, or the read is refused. */
static void *read_on(void *argument)
{
	struct reader *reader = argument;
	struct rig *r = reader->r;
	while (!__atomic_load_n(&reader->stop, __ATOMIC_SEQ_CST)) {
		enum ibv_wc_status status = read_through(r, reader->key, 0, READ_LEN);
		if (status == IBV_WC_SUCCESS) {
			/* Checked per packet, of which there are two. */
			for (int packet = 0; packet < READ_LEN / 1024; packet++) {
				char *got = r->buffer + 4096 + 1024 * packet;
				CHECK(*got == 1 || *got == 2);
				for (int i = 1; i < 1024; i++)
					CHECK_INT(got[i], *got);
			}
			__atomic_add_fetch(&reader->whole, 1, __ATOMIC_SEQ_CST);
		} else {
			CHECK_INT(status, IBV_WC_REM_ACCESS_ERR);
			__atomic_add_fetch(&reader->refused, 1, __ATOMIC_SEQ_CST);
			start_again(r);
		}
	}
	return NULL;
}

/* The owner of a key refills and invalidates it while a peer reads through it. */
static void changes_under_a_reader(void)
{
	struct rig r = umr_open();
	/* The owner's own QP and CQ. */
	struct ibv_cq *cq = ibv_create_cq(r.context, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_exp_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = small_qp(cq).cap, .qp_type = IBV_QPT_RC,
		.pd = r.pd, .exp_create_flags = IBV_EXP_QP_CREATE_UMR, .max_inl_send_klms = 4,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS |
			     IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS,
	};
	struct ibv_qp *qp = ibv_exp_create_qp(r.context, &init);
	CHECK(qp);
	connect_qp(qp, qp->qp_num);
	struct ibv_mr *key = new_key(&r, 2);
	char *memory = malloc(2 * READ_LEN);
	memset(memory, 1, READ_LEN);
	memset(memory + READ_LEN, 2, READ_LEN);
	struct ibv_mr *mr = ibv_reg_mr(r.pd, memory, 2 * READ_LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	struct reader reader = { .r = &r, .key = key };
	CHECK_INT(pthread_create(&reader.thread, NULL, read_on, &reader), 0);
	for (int change = 0; change < CHANGES; change++) {
		struct ibv_exp_mem_region list[] = {
			{ (uintptr_t)memory + change % 2 * READ_LEN, mr, READ_LEN - 100 },
			{ (uintptr_t)memory + change % 2 * READ_LEN, mr, 100 },
		};
		struct ibv_exp_send_wr wr = fill(key, 0, 2, list), *bad;
		int invalidates = change % 4 == 3;
		if (invalidates)
			wr.exp_opcode = IBV_EXP_WR_UMR_INVALIDATE;
		/* Waits until the reader has seen the last change. */
		int *counter = invalidates ? &reader.refused : &reader.whole;
		int before = __atomic_load_n(counter, __ATOMIC_SEQ_CST);
		CHECK_INT(ibv_exp_post_send(qp, &wr, &bad), 0);
		struct ibv_wc wc = next_completion(cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		while (__atomic_load_n(counter, __ATOMIC_SEQ_CST) < before + 2)
			sched_yield();
		/* After two refusals no read may succeed: the second one began after the
		 * invalidation, and so did all later ones. */
		int whole = __atomic_load_n(&reader.whole, __ATOMIC_SEQ_CST);
		while (invalidates && __atomic_load_n(counter, __ATOMIC_SEQ_CST) < before + 4)
			CHECK_INT(__atomic_load_n(&reader.whole, __ATOMIC_SEQ_CST), whole);
	}
	__atomic_store_n(&reader.stop, 1, __ATOMIC_SEQ_CST);
	CHECK_INT(pthread_join(reader.thread, NULL), 0);
	/* The key is deregistered while it may be in use: accesses are refused as for any unknown
	 * key. */
	uint32_t gone = key->rkey;
	CHECK_INT(ibv_dereg_mr(key), 0);
	struct ibv_sge sge = sge_at(&r, 4096, 8);
	struct ibv_exp_send_wr wr = rdma(IBV_EXP_WR_RDMA_READ, &sge, 0, gone), *bad;
	CHECK_INT(ibv_exp_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_exp(&r).status, IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	free(memory);
	rig_close(&r);
}

/* The list is read when the request is posted. Later changes of the list or its memory have no
 * effect. */
static void lists_are_taken_at_once(void)
{
	struct rig r = umr_open();
	struct ibv_mr *first = new_key(&r, 8), *second = new_key(&r, 8);
	struct ibv_exp_mkey_list_container_attr attr = { .pd = r.pd, .max_klm_list_size = 8 };
	struct ibv_exp_mkey_list_container *memory = ibv_exp_alloc_mkey_list_memory(&attr);
	CHECK(memory);
	struct ibv_exp_mem_region list[8];
	for (int i = 0; i < 8; i++)
		list[i] = piece(&r, 100 * i, 8);
	struct ibv_exp_send_wr to_second = fill(second, 0, 8, list), *bad;
	to_second.exp_send_flags &= ~(uint64_t)IBV_EXP_SEND_INLINE;
	to_second.ext_op.umr.memory_objects = memory;
	struct ibv_exp_send_wr to_first = to_second;
	to_first.wr_id = 76;
	to_first.ext_op.umr.modified_mr = first;
	to_first.next = &to_second;
	CHECK_INT(ibv_exp_post_send(r.a, &to_first, &bad), 0);
	memset(list, 0xff, sizeof(list));
	CHECK_INT(next_exp(&r).wr_id, 76);
	CHECK_INT(next_exp(&r).wr_id, 77);
	CHECK_INT(ibv_exp_dealloc_mkey_list_memory(memory), 0);
	struct ibv_mr *both[] = { first, second };
	for (int k = 0; k < 2; k++) {
		CHECK_INT(read_through(&r, both[k], 0, 64), IBV_WC_SUCCESS);
		for (int i = 0; i < 8; i++)
			CHECK(!memcmp(r.buffer + 4096 + 8 * i, r.buffer + 100 * i, 8));
		CHECK_INT(ibv_dereg_mr(both[k]), 0);
	}
	/* A longer list than the device supports. */
	struct ibv_exp_device_attr device = { .comp_mask = IBV_EXP_DEVICE_ATTR_UMR };
	CHECK_INT(ibv_exp_query_device(r.context, &device), 0);
	attr.max_klm_list_size = device.umr_caps.max_klm_list_size + 1;
	CHECK(!ibv_exp_alloc_mkey_list_memory(&attr) && errno == EINVAL);
	attr.max_klm_list_size = 0;
	CHECK(!ibv_exp_alloc_mkey_list_memory(&attr) && errno == EINVAL);
	CHECK(!ibv_exp_alloc_mkey_list_memory(NULL) && errno == EINVAL);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "layouts_of_nothing_and_of_overlaps", layouts_of_nothing_and_of_overlaps },
		{ "keys_of_keys_down_to_the_last", keys_of_keys_down_to_the_last },
		{ "keys_of_what_is_not_ours", keys_of_what_is_not_ours },
		{ "changes_under_a_reader", changes_under_a_reader },
		{ "lists_are_taken_at_once", lists_are_taken_at_once },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
