/* Rocade: experimental verbs. Memory regions, and memory keys that stand for pieces of other keys (UMR).
 *
 * Such a key is made without memory. A work request of opcode IBV_EXP_WR_UMR_FILL, on a queue pair that was made with
 * IBV_EXP_QP_CREATE_UMR, says what it stands for: a list of pieces, or a pattern that repeats. From then on it is used as
 * any other key, here and by peers. Work requests behind it on the same queue pair find it filled; others have to wait for
 * its completion, IBV_EXP_WC_UMR. It may be filled again at any time. What it does not hold is checked when the request is
 * executed: where a listed key is not of its protection domain, or does not cover the piece, the request completes with
 * IBV_WC_MW_BIND_ERR.
 *
 *     struct ibv_exp_create_mr_in in = { .pd = pd, .attr = { .max_klm_list_size = 2,
 *         .create_flags = IBV_EXP_MR_INDIRECT_KLMS,
 *         .exp_access_flags = IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_READ } };
 *     struct ibv_mr *both = ibv_exp_create_mr(&in);
 *     struct ibv_exp_mem_region list[] = { { (uintptr_t)head, head_mr, 40 }, { (uintptr_t)body, body_mr, 1000 } };
 *     struct ibv_exp_send_wr wr = { .exp_opcode = IBV_EXP_WR_UMR_FILL,
 *         .exp_send_flags = IBV_EXP_SEND_INLINE | IBV_EXP_SEND_SIGNALED };
 *     wr.ext_op.umr.modified_mr = both;
 *     wr.ext_op.umr.exp_access = IBV_EXP_ACCESS_REMOTE_READ;
 *     wr.ext_op.umr.num_mrs = 2;
 *     wr.ext_op.umr.mem_list.mem_reg_list = list;
 *
 * and after ibv_exp_post_send, addresses 0 to 1039 of both->rkey are head and body.
 */
#ifndef ROCADE_VERBS_EXP_UMR_H
#define ROCADE_VERBS_EXP_UMR_H

#include <infiniband/verbs_exp/base.h>
#include <infiniband/verbs_exp/send.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_exp_reg_mr_in {
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint64_t exp_access; /* enum ibv_exp_access_flags */
	uint32_t comp_mask; /* 0 */
	uint32_t create_flags; /* 0 */
};

/* As ibv_reg_mr, with rights of 64 bits. */
struct ibv_mr *ibv_exp_reg_mr(struct ibv_exp_reg_mr_in *in);

enum ibv_exp_mr_create_flags {
	/* Signatures: EOPNOTSUPP. */
	IBV_EXP_MR_SIGNATURE_EN = 1 << 0,
	/* A key that stands for pieces of others. */
	IBV_EXP_MR_INDIRECT_KLMS = 1 << 1,
	/* Such a key for pieces of one length only, which nothing depends on here. */
	IBV_EXP_MR_FIXED_BUFFER_SIZE = 1 << 2,
};

struct ibv_exp_mr_init_attr {
	uint32_t max_klm_list_size; /* entries, 1 to that of the device */
	uint32_t create_flags; /* enum ibv_exp_mr_create_flags */
	uint64_t exp_access_flags; /* the most that it may ever allow */
};

struct ibv_exp_create_mr_in {
	struct ibv_pd *pd;
	struct ibv_exp_mr_init_attr attr;
	uint32_t comp_mask; /* 0 */
};

/* Makes a key without memory, to be ended by ibv_dereg_mr. Its addr and length are the program's to set. */
struct ibv_mr *ibv_exp_create_mr(struct ibv_exp_create_mr_in *in);

struct ibv_exp_mkey_attr {
	union {
		uint32_t max_klm_list_size;
		uint32_t n_mkey_entries;
	};
	uint32_t comp_mask; /* 0 */
};

/* How many entries a key has room for. */
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

/* Memory for lists that are longer than a work request may hold itself: for one request at a time, until that is
 * complete. */
struct ibv_exp_mkey_list_container *
ibv_exp_alloc_mkey_list_memory(struct ibv_exp_mkey_list_container_attr *attr);
int ibv_exp_dealloc_mkey_list_memory(struct ibv_exp_mkey_list_container *mem);

#ifdef __cplusplus
}
#endif

#endif
