/* Rocade: experimental verbs. Memory regions, and indirect memory keys, which map to pieces of
 * other keys (UMR).
 *
 * An indirect key is created without memory. A work request of opcode IBV_EXP_WR_UMR_FILL gives it
 * a layout, which is a list of pieces or a repeated pattern. The request needs a QP created with
 * IBV_EXP_QP_CREATE_UMR. The filled key is used like any other key, locally and by peers. Later
 * work requests on the same QP find the key filled. Others must wait for the completion,
 * IBV_EXP_WC_UMR. A key may be filled again at any time.
 *
 * The keys of a layout are checked when the request is executed. If a key is of another PD, or does
 * not cover its piece, the request completes with IBV_WC_MW_BIND_ERR.
 *
 *     struct ibv_exp_create_mr_in in = { .pd = pd, .attr = { .max_klm_list_size = 2,
 *         .create_flags = IBV_EXP_MR_INDIRECT_KLMS,
 *         .exp_access_flags = IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_READ } };
 *     struct ibv_mr *both = ibv_exp_create_mr(&in);
 *     struct ibv_exp_mem_region list[] = { { (uintptr_t)head, head_mr, 40 },
 *                                          { (uintptr_t)body, body_mr, 1000 } };
 *     struct ibv_exp_send_wr wr = { .exp_opcode = IBV_EXP_WR_UMR_FILL,
 *         .exp_send_flags = IBV_EXP_SEND_INLINE | IBV_EXP_SEND_SIGNALED };
 *     wr.ext_op.umr.modified_mr = both;
 *     wr.ext_op.umr.exp_access = IBV_EXP_ACCESS_REMOTE_READ;
 *     wr.ext_op.umr.num_mrs = 2;
 *     wr.ext_op.umr.mem_list.mem_reg_list = list;
 *
 * After ibv_exp_post_send, addresses 0 to 1039 of both->rkey map to head and body.
 */
#ifndef ROCADE_VERBS_EXP_UMR_H
#define ROCADE_VERBS_EXP_UMR_H

#include <infiniband/verbs_exp/base.h>
#include <infiniband/verbs_exp/send.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ibv_exp_reg_mr_in_comp_mask {
	IBV_EXP_REG_MR_CREATE_FLAGS = 1 << 0,
};

struct ibv_exp_reg_mr_in {
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint64_t exp_access; /* enum ibv_exp_access_flags */
	uint32_t comp_mask; /* enum ibv_exp_reg_mr_in_comp_mask */
	uint32_t create_flags; /* 0: no flags are defined */
};

/* Like ibv_reg_mr, with 64-bit access rights. */
struct ibv_mr *ibv_exp_reg_mr(struct ibv_exp_reg_mr_in *in);

enum ibv_exp_mr_create_flags {
	/* Signatures: EOPNOTSUPP. */
	IBV_EXP_MR_SIGNATURE_EN = 1 << 0,
	/* A key that maps to pieces of other keys. */
	IBV_EXP_MR_INDIRECT_KLMS = 1 << 1,
	/* An indirect key for pieces of equal length. Rocade treats it like
	 * IBV_EXP_MR_INDIRECT_KLMS. */
	IBV_EXP_MR_FIXED_BUFFER_SIZE = 1 << 2,
};

struct ibv_exp_mr_init_attr {
	uint32_t max_klm_list_size; /* entries, from 1 to the device's limit */
	uint32_t create_flags; /* enum ibv_exp_mr_create_flags */
	uint64_t exp_access_flags; /* the most rights that it can ever have */
};

struct ibv_exp_create_mr_in {
	struct ibv_pd *pd;
	struct ibv_exp_mr_init_attr attr;
	uint32_t comp_mask; /* 0 */
};

/* Creates a key without memory. Destroy it with ibv_dereg_mr. The program may set its addr and
 * length. */
struct ibv_mr *ibv_exp_create_mr(struct ibv_exp_create_mr_in *in);

struct ibv_exp_mkey_attr {
	union {
		uint32_t max_klm_list_size;
		uint32_t n_mkey_entries;
	};
	uint32_t comp_mask; /* 0 */
};

/* Returns the number of entries that a key has room for. */
int ibv_exp_query_mkey(struct ibv_mr *mr, struct ibv_exp_mkey_attr *mkey_attr);

enum ibv_exp_mkey_list_type {
	IBV_EXP_MKEY_LIST_TYPE_INDIRECT_MR,
};

enum ibv_exp_alloc_mkey_list_comp_mask {
	IBV_EXP_MKEY_LIST_CONTAINER_RESERVED = 1 << 0,
};

struct ibv_exp_mkey_list_container_attr {
	struct ibv_pd *pd;
	uint32_t mkey_list_type; /* enum ibv_exp_mkey_list_type */
	uint32_t max_klm_list_size;
	uint32_t comp_mask; /* 0 */
};

/* Memory for lists that are too long to be inline. It serves one request at a time, until that
 * request completes. */
struct ibv_exp_mkey_list_container *
ibv_exp_alloc_mkey_list_memory(struct ibv_exp_mkey_list_container_attr *attr);
int ibv_exp_dealloc_mkey_list_memory(struct ibv_exp_mkey_list_container *mem);

#ifdef __cplusplus
}
#endif

#endif
