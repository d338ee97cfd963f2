/*
 * A matrix, some columns of which form one memory key (UMR), and a peer without UMR. WRITEs gather
 * the columns into the peer's memory, and READs scatter its data over them. The peer does the
 * reverse with the key. Every byte is verified.
 *
 * 	rdma-matrix requests|responds|masked DEVICE GID_INDEX PORT [HOST]
 *
 * The other side is rdma-data: `responds` for the requester here, `requests-part` for the responder
 * here. With `masked` this program posts a masked atomic, which must not be sent to a peer without
 * vendor opcodes.
 */
#define main rdma_data
#include "rdma-data.c"
#undef main

#include <infiniband/verbs_exp.h>

/* Rows of 1 KiB, of each of which 16 bytes from byte 48 on belong to the key. */
enum { ROWS = 1024, ROW = 1024, COLUMN = 48, WIDTH = 16, KEY_LEN = ROWS * WIDTH };
#define KEY_BASE 0x7000000000ull

static struct ibv_mr *matrix;

/* Creates a QP with UMR and masked atomics, and the key, which a work request fills later. */
static void make_matrix_qp(void)
{
	struct ibv_exp_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .pd = pd,
		.cap = { .max_send_wr = 32, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.exp_create_flags = IBV_EXP_QP_CREATE_UMR, .max_inl_send_klms = 1, .max_atomic_arg = 8,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS |
			     IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG,
	};
	qp = need(ibv_exp_create_qp(context, &init), "QP with UMR");
	struct ibv_exp_create_mr_in in = {
		.pd = pd,
		.attr = { .max_klm_list_size = 1, .create_flags = IBV_EXP_MR_INDIRECT_KLMS,
			  .exp_access_flags = IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_WRITE |
					      IBV_EXP_ACCESS_REMOTE_READ | IBV_EXP_ACCESS_REMOTE_ATOMIC },
	};
	matrix = need(ibv_exp_create_mr(&in), "key");
	opened.addr = KEY_BASE;
	opened.first = COLUMN;
	opened.width = WIDTH;
	opened.stride = ROW;
	opened.len = KEY_LEN;
	opened.lkey = matrix->lkey;
	opened.rkey = matrix->rkey;
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
	struct ibv_exp_mem_repeat_block block = { (uintptr_t)buffer + COLUMN, mr, &width, &stride };
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

static void request_matrix(void)
{
	static const struct { uint64_t offset; uint32_t len; } parts[] = {
		{ 0, KEY_LEN }, { 0, 1 }, { 15, 2 }, { 16, 1024 }, { 5, 4097 }, { KEY_LEN - 17, 17 },
	};
	for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++)
		write_and_read(i, parts[i].offset, parts[i].len);
	ask((struct order){ .what = END });
}

/* The peer ignores the probe for vendor opcodes, so Rocade must not send the masked atomic. */
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
	/* The peer's memory is unchanged. */
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
	make_matrix_qp();
	connect_tcp(argv[4], argv[5]);
	connect_qp(atoi(argv[3]));
	if (!strcmp(argv[1], "masked")) {
		try_masked();
	} else {
		make_key();
		if (!strcmp(argv[1], "requests"))
			request_matrix();
		else
			respond();
	}
	printf("verified %lu operations, %lu bytes\n", operations, bytes);
	(void)rdma_data;
	return 0;
}
