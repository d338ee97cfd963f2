/*
 * A matrix of ours, some columns of which are one memory key (UMR), and a peer that knows nothing of that: WRITEs gather the columns into
 * its memory, READs scatter over them, and so does what the peer does by the key. Every byte is looked at.
 *
 *	rdma-matrix requests|responds|masked DEVICE GID_INDEX PORT [HOST]
 *
 * The other side is rdma-data, as responder or, of the responder here, as `requests-part`. With `masked` a masked atomic is
 * tried, which a plain peer must not get to see.
 */
#define main rdma_data
#include "rdma-data.c"
#undef main

#include <infiniband/verbs_exp.h>

/* Rows of 1 KiB, of which 16 bytes from byte 48 on belong to the key. */
enum { ROWS = 1024, ROW = 1024, COLUMN = 48, WIDTH = 16, KEY_LEN = ROWS * WIDTH };
#define KEY_BASE 0x7000000000ull

static struct ibv_mr *matrix;

static uint8_t *element(uint64_t at)
{
	return buffer + at / WIDTH * ROW + COLUMN + at % WIDTH;
}

/* The elements hold the pattern in one range, and nothing else does. */
static void check_matrix(const char *what, uint32_t seed, uint64_t offset, uint64_t len)
{
	for (uint64_t i = 0; i < BUFFER; i++) {
		uint64_t row = i / ROW, column = i % ROW;
		int is_element = row < ROWS && column >= COLUMN && column < COLUMN + WIDTH;
		uint64_t at = row * WIDTH + column - COLUMN;
		int inside = is_element && at >= offset && at < offset + len;
		uint8_t expected = inside ? pattern(seed, at) : IDLE;
		if (buffer[i] != expected)
			fail("%s of %lu bytes at %lu: byte %lu is %02x, not %02x", what, (long)len, (long)offset,
			     (long)i, buffer[i], expected);
	}
}

static void fill_matrix(uint32_t seed)
{
	memset(buffer, IDLE, BUFFER);
	for (uint64_t at = 0; at < KEY_LEN; at++)
		*element(at) = pattern(seed, at);
}

/* The queue pair, made again: one that may change keys, and has masked atomics. */
static void renew_qp(void)
{
	struct ibv_exp_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .pd = pd,
		.cap = { .max_send_wr = 32, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.exp_create_flags = IBV_EXP_QP_CREATE_UMR, .max_inl_send_klms = 1, .max_atomic_arg = 8,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS |
			     IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG,
	};
	errno = ibv_destroy_qp(qp);
	if (errno)
		fail("destroy");
	qp = need(ibv_exp_create_qp(context, &init), "QP with UMR");
	struct ibv_exp_create_mr_in in = {
		.pd = pd,
		.attr = { .max_klm_list_size = 1, .create_flags = IBV_EXP_MR_INDIRECT_KLMS,
			  .exp_access_flags = IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_WRITE |
					      IBV_EXP_ACCESS_REMOTE_READ | IBV_EXP_ACCESS_REMOTE_ATOMIC },
	};
	matrix = need(ibv_exp_create_mr(&in), "key");
}

static void post_exp(struct ibv_exp_send_wr wr)
{
	struct ibv_exp_send_wr *bad;
	errno = ibv_exp_post_send(qp, &wr, &bad);
	if (errno)
		fail("post of opcode %x", wr.exp_opcode);
}

static void make_key(void)
{
	size_t repeat = ROWS, width = WIDTH, stride = ROW;
	struct ibv_exp_mem_repeat_block block = { (uintptr_t)element(0), mr, &width, &stride };
	struct ibv_exp_send_wr wr = { .exp_opcode = IBV_EXP_WR_UMR_FILL,
				      .exp_send_flags = IBV_EXP_SEND_INLINE | IBV_EXP_SEND_SIGNALED };
	wr.ext_op.umr.umr_type = IBV_EXP_UMR_REPEAT;
	wr.ext_op.umr.exp_access = IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_WRITE |
				   IBV_EXP_ACCESS_REMOTE_READ | IBV_EXP_ACCESS_REMOTE_ATOMIC;
	wr.ext_op.umr.modified_mr = matrix;
	wr.ext_op.umr.base_addr = KEY_BASE;
	wr.ext_op.umr.num_mrs = 1;
	wr.ext_op.umr.mem_list.rb.mem_repeat_block_list = &block;
	wr.ext_op.umr.mem_list.rb.repeat_count = &repeat;
	wr.ext_op.umr.mem_list.rb.stride_dim = 1;
	post_exp(wr);
	wait_for(1);
}

/* As connect_qp, but the peer is told of the key instead of the buffer. */
static void connect_matrix(int gid_index)
{
	struct ibv_mr *whole = mr;
	uint8_t *memory = buffer;
	buffer = (uint8_t *)(uintptr_t)KEY_BASE;
	mr = matrix;
	connect_qp(gid_index);
	buffer = memory;
	mr = whole;
	make_key();
}

static void transfer(enum ibv_wr_opcode opcode, uint64_t offset, uint32_t len)
{
	struct ibv_sge sge = { .addr = KEY_BASE + offset, .length = len, .lkey = matrix->lkey };
	struct ibv_send_wr wr = at(offset), *bad;
	wr.opcode = opcode;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	errno = ibv_post_send(qp, &wr, &bad);
	if (errno)
		fail("post");
	wait_for(1);
	operations++;
	bytes += len;
}

static void request_matrix(void)
{
	static const struct { uint64_t offset; uint32_t len; } parts[] = {
		{ 0, KEY_LEN }, { 0, 1 }, { 15, 2 }, { 16, 1024 }, { 5, 4097 }, { KEY_LEN - 17, 17 },
	};
	for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		ask((struct order){ .what = CLEAR });
		fill_matrix(i);
		transfer(IBV_WR_RDMA_WRITE, parts[i].offset, parts[i].len);
		ask((struct order){ .what = CHECK, .seed = i, .offset = parts[i].offset, .len = parts[i].len });
		ask((struct order){ .what = FILL, .seed = ~i });
		memset(buffer, IDLE, BUFFER);
		transfer(IBV_WR_RDMA_READ, parts[i].offset, parts[i].len);
		check_matrix("READ", ~i, parts[i].offset, parts[i].len);
	}
	ask((struct order){ .what = END });
}

static void respond_matrix(void)
{
	struct order order = { 0 };
	while (order.what != END) {
		get(&order, sizeof order);
		switch (order.what) {
		case CLEAR:
			memset(buffer, IDLE, BUFFER);
			break;
		case FILL:
			fill_matrix(order.seed);
			break;
		case CHECK:
			check_matrix("WRITE", order.seed, order.offset, order.len);
			operations++;
			bytes += order.len;
			break;
		case SET:
			memcpy(element(COUNTER), &order.value, 8);
			break;
		case GET:
			memcpy(&order.value, element(COUNTER), 8);
			break;
		}
		put(&order, sizeof order);
	}
}

/* The peer does not answer the question whether it knows masked atomics, and gets none. */
static void try_masked(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_exp_send_wr wr = { .exp_opcode = IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD,
				      .exp_send_flags = IBV_EXP_SEND_EXT_ATOMIC_INLINE,
				      .sg_list = &sge, .num_sge = 1 };
	struct ibv_wc wc;
	wr.ext_op.masked_atomics.log_arg_sz = 3;
	wr.ext_op.masked_atomics.remote_addr = theirs.addr;
	wr.ext_op.masked_atomics.rkey = theirs.rkey;
	wr.ext_op.masked_atomics.wr_data.inline_data.op.fetch_add.add_val = 1;
	ask((struct order){ .what = CLEAR });
	post_exp(wr);
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	if (wc.status != IBV_WC_RETRY_EXC_ERR)
		fail("a masked atomic to a plain peer: %s", ibv_wc_status_str(wc.status));
	operations++;
	/* Nothing was written there. */
	ask((struct order){ .what = CHECK });
	ask((struct order){ .what = END });
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage: %s requests|responds|masked DEVICE GID_INDEX PORT [HOST]\n", argv[0]);
		return 2;
	}
	open_device(argv[2]);
	renew_qp();
	connect_tcp(argv[4], argv[5]);
	if (!strcmp(argv[1], "requests")) {
		connect_qp(atoi(argv[3]));
		make_key();
		request_matrix();
	} else if (!strcmp(argv[1], "masked")) {
		connect_qp(atoi(argv[3]));
		try_masked();
	} else {
		connect_matrix(atoi(argv[3]));
		respond_matrix();
	}
	printf("verified %lu operations, %lu bytes\n", operations, bytes);
	(void)rdma_data;
	return 0;
}
