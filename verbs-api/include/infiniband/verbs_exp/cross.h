/* Rocade: experimental verbs. Cross-channel: QPs that wait for each other without the program.
 *
 * A master is a QP created with IBV_EXP_QP_CREATE_CROSS_CHANNEL. It accepts three additional kinds
 * of work requests:
 *
 *     IBV_EXP_WR_CQE_WAIT     blocks its send queue until a CQ has had cq_count completions, polled
 *                             or not
 *     IBV_EXP_WR_SEND_ENABLE  releases work requests of a send queue that was created with
 *                             IBV_EXP_QP_CREATE_MANAGED_SEND
 *     IBV_EXP_WR_RECV_ENABLE  releases work requests of a receive queue that was created with
 *                             IBV_EXP_QP_CREATE_MANAGED_RECV
 *
 * cq_count and wqe_count are relative to a base, which is initially 0. Each CQ and each managed
 * queue has one. Only a request with IBV_EXP_SEND_WAIT_EN_LAST advances the base, by the greatest
 * count since the last advance. For example, two waits on a new CQ for 1 and 2 end with its first
 * and second completion. If the first wait has LAST, they end with the first and the third
 * completion. A wqe_count of 0 releases all requests that are in the queue when it is posted.
 *
 * A send or write with IBV_EXP_SEND_WITH_CALC sends one element. It is computed from all elements
 * that its list names. Elements and result have 8 bytes each, big-endian.
 */
#ifndef ROCADE_VERBS_EXP_CROSS_H
#define ROCADE_VERBS_EXP_CROSS_H

#include <infiniband/verbs_exp/base.h>
#include <infiniband/verbs_exp/send.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ibv_exp_cq_init_attr_mask {
	IBV_EXP_CQ_INIT_ATTR_FLAGS = 1 << 0,
};

enum ibv_exp_cq_create_flags {
	/* Work requests may wait for completions of this CQ. */
	IBV_EXP_CQ_CREATE_CROSS_CHANNEL = 1 << 0,
};

struct ibv_exp_cq_init_attr {
	uint32_t comp_mask; /* enum ibv_exp_cq_init_attr_mask */
	uint32_t flags; /* enum ibv_exp_cq_create_flags */
};

/* The attributes that ibv_exp_modify_cq changes: its mask. */
enum ibv_exp_cq_attr_mask {
	IBV_EXP_CQ_MODERATION = 1 << 0,
	IBV_EXP_CQ_CAP_FLAGS = 1 << 1,
};
#define IBV_EXP_CQ_ATTR_MODERATION IBV_EXP_CQ_MODERATION

/* struct ibv_exp_cq_attr.comp_mask */
enum ibv_exp_cq_attr_comp_mask {
	IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS = 1 << 1,
};

enum ibv_exp_cq_cap_flags {
	/* If the CQ is full, a completion overwrites the oldest one. For a CQ that only wait
	 * requests consume. */
	IBV_EXP_CQ_IGNORE_OVERRUN = 1 << 0,
};

struct ibv_exp_cq_attr {
	uint32_t comp_mask; /* enum ibv_exp_cq_attr_comp_mask */
	struct {
		uint16_t cq_count;
		uint16_t cq_period; /* microseconds */
	} moderation;
	uint32_t cq_cap_flags; /* enum ibv_exp_cq_cap_flags */
};

enum ibv_exp_task_type {
	IBV_EXP_TASK_SEND = 0,
	IBV_EXP_TASK_RECV = 1,
};

/* Work requests for one queue. */
struct ibv_exp_task {
	enum ibv_exp_task_type task_type;
	struct {
		struct ibv_qp *qp;
		union {
			struct ibv_exp_send_wr *send_wr;
			struct ibv_recv_wr *recv_wr;
		};
	} item;
	struct ibv_exp_task *next;
	uint32_t comp_mask; /* 0 */
};

/* Like ibv_create_cq. attr may be NULL. */
struct ibv_cq *ibv_exp_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				 struct ibv_comp_channel *channel, int comp_vector,
				 struct ibv_exp_cq_init_attr *attr);

/* Ignoring overruns requires three bits: IBV_EXP_CQ_CAP_FLAGS in cq_attr_mask,
 * IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS in comp_mask, and IBV_EXP_CQ_IGNORE_OVERRUN in cq_cap_flags. It
 * cannot be undone. */
int ibv_exp_modify_cq(struct ibv_cq *cq, struct ibv_exp_cq_attr *cq_attr, int cq_attr_mask);

/* Posts a list of tasks in order to queues of one device. Tasks of different lists do not
 * interleave. On failure *bad is the task that failed. The tasks before it stay posted, and so do
 * the requests of the task before the wrong one. */
int ibv_exp_post_task(struct ibv_context *context, struct ibv_exp_task *task,
		      struct ibv_exp_task **bad);

#ifdef __cplusplus
}
#endif

#endif
