/* Rocade: experimental verbs. Completions. */
#ifndef ROCADE_VERBS_EXP_COMPLETION_H
#define ROCADE_VERBS_EXP_COMPLETION_H

#include <infiniband/verbs_exp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ibv_exp_wc_opcode {
	IBV_EXP_WC_SEND,
	IBV_EXP_WC_RDMA_WRITE,
	IBV_EXP_WC_RDMA_READ,
	IBV_EXP_WC_COMP_SWAP,
	IBV_EXP_WC_FETCH_ADD,
	IBV_EXP_WC_BIND_MW,
	IBV_EXP_WC_LOCAL_INV,
	IBV_EXP_WC_MASKED_COMP_SWAP = 9,
	IBV_EXP_WC_MASKED_FETCH_ADD = 10,
	IBV_EXP_WC_TSO,
	IBV_EXP_WC_UMR = 0x100,
	/* Receive completions: opcode & IBV_EXP_WC_RECV. */
	IBV_EXP_WC_RECV = 1 << 7,
	IBV_EXP_WC_RECV_RDMA_WITH_IMM,
};

__extension__ enum ibv_exp_wc_flags {
	IBV_EXP_WC_GRH = IBV_WC_GRH,
	IBV_EXP_WC_WITH_IMM = IBV_WC_WITH_IMM,
	IBV_EXP_WC_WITH_INV = IBV_WC_WITH_INV,

	/* Flags that mark these members as valid: */
	IBV_EXP_WC_WITH_TIMESTAMP = IBV_EXP_START_FLAG << 6,
	IBV_EXP_WC_QP = IBV_EXP_START_FLAG << 7,
	IBV_EXP_WC_SRQ = IBV_EXP_START_FLAG << 8,
	IBV_EXP_WC_DCT = IBV_EXP_START_FLAG << 9,
};

struct ibv_exp_wc {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_exp_wc_opcode exp_opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	__be32 imm_data; /* or the invalidated key, in host byte order */
	uint32_t qp_num; /* or the number of a DC target */
	uint32_t src_qp;
	int reserved;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
	uint64_t timestamp;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	struct ibv_exp_dct *dct;
	uint64_t exp_wc_flags; /* enum ibv_exp_wc_flags */
	struct ibv_wc_tm_info tm_info; /* 0: Rocade has no tag matching */
};

/* Like ibv_poll_cq. wc_size is the program's sizeof(struct ibv_exp_wc). Writes at most wc_size
 * bytes per completion. */
int ibv_exp_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_exp_wc *wc, uint32_t wc_size);

#ifdef __cplusplus
}
#endif

#endif
