/* Rocade: experimental verbs. Send work requests. */
#ifndef ROCADE_VERBS_EXP_SEND_H
#define ROCADE_VERBS_EXP_SEND_H

#include <infiniband/verbs_exp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ibv_exp_wr_opcode {
	IBV_EXP_WR_RDMA_WRITE = IBV_WR_RDMA_WRITE,
	IBV_EXP_WR_RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM,
	IBV_EXP_WR_SEND = IBV_WR_SEND,
	IBV_EXP_WR_SEND_WITH_IMM = IBV_WR_SEND_WITH_IMM,
	IBV_EXP_WR_RDMA_READ = IBV_WR_RDMA_READ,
	IBV_EXP_WR_ATOMIC_CMP_AND_SWP = IBV_WR_ATOMIC_CMP_AND_SWP,
	IBV_EXP_WR_ATOMIC_FETCH_AND_ADD = IBV_WR_ATOMIC_FETCH_AND_ADD,
	IBV_EXP_WR_LOCAL_INV = IBV_WR_LOCAL_INV,
	IBV_EXP_WR_BIND_MW = IBV_WR_BIND_MW,
	IBV_EXP_WR_SEND_WITH_INV = IBV_WR_SEND_WITH_INV,

	IBV_EXP_WR_TSO = IBV_EXP_START_ENUM + 0x0f,
	IBV_EXP_WR_SEND_ENABLE = IBV_EXP_START_ENUM + 0x20,
	IBV_EXP_WR_RECV_ENABLE,
	IBV_EXP_WR_CQE_WAIT,
	IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP,
	IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD,
	IBV_EXP_WR_NOP,
	IBV_EXP_WR_UMR_FILL,
	IBV_EXP_WR_UMR_INVALIDATE,
};

__extension__ enum ibv_exp_send_flags {
	IBV_EXP_SEND_FENCE = IBV_SEND_FENCE,
	IBV_EXP_SEND_SIGNALED = IBV_SEND_SIGNALED,
	IBV_EXP_SEND_SOLICITED = IBV_SEND_SOLICITED,
	IBV_EXP_SEND_INLINE = IBV_SEND_INLINE,

	IBV_EXP_SEND_IP_CSUM = IBV_EXP_START_FLAG << 0,
	IBV_EXP_SEND_WITH_CALC = IBV_EXP_START_FLAG << 1,
	IBV_EXP_SEND_WAIT_EN_LAST = IBV_EXP_START_FLAG << 2,
	IBV_EXP_SEND_EXT_ATOMIC_INLINE = IBV_EXP_START_FLAG << 3,
};

/* The computations of a send with IBV_EXP_SEND_WITH_CALC. */
enum ibv_exp_calc_op {
	IBV_EXP_CALC_OP_ADD = 0,
	IBV_EXP_CALC_OP_MAXLOC,
	IBV_EXP_CALC_OP_BAND,
	IBV_EXP_CALC_OP_BXOR,
	IBV_EXP_CALC_OP_BOR,
	IBV_EXP_CALC_OP_NUMBER,
};

enum ibv_exp_calc_data_type {
	IBV_EXP_CALC_DATA_TYPE_INT = 0,
	IBV_EXP_CALC_DATA_TYPE_UINT,
	IBV_EXP_CALC_DATA_TYPE_FLOAT,
	IBV_EXP_CALC_DATA_TYPE_NUMBER,
};

#define ibv_exp_data_size ibv_exp_calc_data_size
enum ibv_exp_calc_data_size {
	IBV_EXP_CALC_DATA_SIZE_64_BIT = 0,
	IBV_EXP_CALC_DATA_SIZE_NUMBER,
	/* Rocade only: elements of 16 bytes, a 64-bit value and a 64-bit location.
	 * IBV_EXP_CALC_OP_MAXLOC sends the greatest value with its location. Other operations send
	 * the result with the location of the first element. */
	IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC = 0x100,
};

/* The layout that a UMR_FILL gives to a memory key. */
enum ibv_exp_umr_wr_type {
	IBV_EXP_UMR_MR_LIST = 0,
	IBV_EXP_UMR_REPEAT,
	/* Like a list, with entries of equal length. */
	IBV_EXP_UMR_MR_LIST_FIXED_SIZE,
};

/* An entry of a list: `length` bytes at `base_addr` of the address space of `mr`, which may be an
 * indirect key itself. */
struct ibv_exp_mem_region {
	uint64_t base_addr;
	struct ibv_mr *mr;
	size_t length;
};

/* An entry of a repeated pattern: `byte_count[d]` bytes at `base_addr`. Each repetition starts
 * `stride[d]` bytes after the start of the previous one. There is one dimension, d = 0. */
struct ibv_exp_mem_repeat_block {
	uint64_t base_addr;
	struct ibv_mr *mr;
	size_t *byte_count;
	size_t *stride;
};

/* Memory for a list that is not inline in the work request, see umr.h. */
struct ibv_exp_mkey_list_container {
	uint32_t max_klm_list_size;
	struct ibv_context *context;
};

/* Masked compare-and-swap: if (*va ^ compare_val) & compare_mask is 0, sets the bits of swap_mask
 * to those of swap_val. */
struct ibv_exp_cmp_swap {
	uint64_t compare_mask;
	uint64_t compare_val;
	uint64_t swap_val;
	uint64_t swap_mask;
};

/* Fetch-and-add on several fields: each bit of field_boundary marks the highest bit of a field.
 * Carries do not leave a field. */
struct ibv_exp_fetch_add {
	uint64_t add_val;
	uint64_t field_boundary;
};

/* Like struct ibv_mw_bind_info, with 64-bit access rights (enum ibv_exp_access_flags). */
struct ibv_exp_mw_bind_info {
	struct ibv_mr *mr;
	uint64_t addr;
	uint64_t length;
	uint64_t exp_mw_access_flags;
};

struct ibv_exp_send_wr {
	uint64_t wr_id;
	struct ibv_exp_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
	enum ibv_exp_wr_opcode exp_opcode;
	int reserved;
	union {
		__be32 imm_data;
		uint32_t invalidate_rkey;
	} ex;
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
		struct {
			struct ibv_ah *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey;
		} ud;
	} wr;
	union {
		union {
			struct {
				uint32_t remote_srqn;
			} xrc;
		} qp_type;
		uint32_t xrc_remote_srq_num;
	};
	union {
		/* Both unused: wr.rdma and wr.atomic have the operands. */
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
		/* IBV_EXP_WR_CQE_WAIT */
		struct {
			struct ibv_cq *cq;
			int32_t cq_count;
		} cqe_wait;
		/* IBV_EXP_WR_SEND_ENABLE, IBV_EXP_WR_RECV_ENABLE */
		struct {
			struct ibv_qp *qp;
			int32_t wqe_count;
		} wqe_enable;
	} task;
	union {
		struct {
			enum ibv_exp_calc_op calc_op;
			enum ibv_exp_calc_data_type data_type;
			enum ibv_exp_calc_data_size data_size;
		} calc;
	} op;
	/* The target of a DC initiator's work request. */
	struct {
		struct ibv_ah *ah;
		uint64_t dct_access_key;
		uint32_t dct_number;
	} dc;
	union {
		struct {
			struct ibv_mw *mw;
			uint32_t rkey;
			struct ibv_exp_mw_bind_info bind_info;
		} bind_mw;
		struct {
			void *hdr;
			uint16_t hdr_sz;
			uint16_t mss;
		} tso;
	};
	uint64_t exp_send_flags; /* enum ibv_exp_send_flags */
	uint32_t comp_mask; /* 0 */
	union {
		/* IBV_EXP_WR_UMR_FILL, IBV_EXP_WR_UMR_INVALIDATE */
		struct {
			uint32_t umr_type; /* enum ibv_exp_umr_wr_type */
			/* Holds the list until the request completes. Unused with
			 * IBV_EXP_SEND_INLINE. */
			struct ibv_exp_mkey_list_container *memory_objects;
			/* Access rights, a subset of those of the key's creation (enum
			 * ibv_exp_access_flags). */
			uint64_t exp_access;
			struct ibv_mr *modified_mr;
			/* The address of the key's first byte, for work requests and peers. */
			uint64_t base_addr;
			uint32_t num_mrs;
			union {
				struct ibv_exp_mem_region *mem_reg_list; /* num_mrs entries */
				struct {
					struct ibv_exp_mem_repeat_block *mem_repeat_block_list; /* num_mrs entries */
					size_t *repeat_count; /* one per dimension */
					uint32_t stride_dim; /* 1 */
				} rb;
			} mem_list;
		} umr;
		/* IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP,
		 * IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD.
		 *
		 * Operands have 2^log_arg_sz bytes. Operands below 8 bytes are in the low bits of
		 * the members of `op`. With 8 bytes and IBV_EXP_SEND_EXT_ATOMIC_INLINE in
		 * exp_send_flags, the members are the operands. Otherwise each member is the
		 * address of an operand: 8-byte words in host byte order, the least significant
		 * word first. Such operands are read when the request is posted. */
		struct {
			uint32_t log_arg_sz;
			uint64_t remote_addr;
			uint32_t rkey;
			union {
				struct {
					union {
						struct ibv_exp_cmp_swap cmp_swap;
						struct ibv_exp_fetch_add fetch_add;
					} op;
				} inline_data;
			} wr_data;
		} masked_atomics;
	} ext_op;
};

/* Like ibv_post_send, with all its operations. */
int ibv_exp_post_send(struct ibv_qp *qp, struct ibv_exp_send_wr *wr,
		      struct ibv_exp_send_wr **bad_wr);

#ifdef __cplusplus
}
#endif

#endif
