/* Rocade: experimental verbs. Cross-channel: queue pairs that wait for each other without the program.
 *
 * A master, made with IBV_EXP_QP_CREATE_CROSS_CHANNEL, carries three kinds of work requests besides the usual ones:
 *
 *   IBV_EXP_WR_CQE_WAIT     holds up its send queue until a CQ has had so many completions, polled or not.
 *   IBV_EXP_WR_SEND_ENABLE  releases work requests of a send queue that was made with IBV_EXP_QP_CREATE_MANAGED_SEND,
 *   IBV_EXP_WR_RECV_ENABLE  of a receive queue that was made with IBV_EXP_QP_CREATE_MANAGED_RECV.
 *
 * Counts (cq_count, wqe_count) go from a base that each CQ and each managed queue has, 0 at first, and that only
 * IBV_EXP_SEND_WAIT_EN_LAST moves: by the greatest count since it last moved. Two waits on a new CQ for 1 and 2 are over
 * with its first and its second completion; if the first of them says LAST, they are over with the first and the third.
 * A wqe_count of 0 releases all that is in the queue when the request is posted.
 *
 * A send or write with IBV_EXP_SEND_WITH_CALC sends one element, which is computed of all those that its list names:
 * 8 bytes each, big-endian, as is the result.
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
	/* Requests may wait for its completions. */
	IBV_EXP_CQ_CREATE_CROSS_CHANNEL = 1 << 0,
};

struct ibv_exp_cq_init_attr {
	uint32_t comp_mask; /* enum ibv_exp_cq_init_attr_mask */
	uint32_t flags; /* enum ibv_exp_cq_create_flags */
};

/* What ibv_exp_modify_cq changes: its mask. */
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
	/* A completion that finds no room takes that of the oldest: for a CQ that only waits consume. */
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

/* As ibv_create_cq; attr may be NULL. */
struct ibv_cq *ibv_exp_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				 struct ibv_comp_channel *channel, int comp_vector,
				 struct ibv_exp_cq_init_attr *attr);

/* Ignoring overruns takes three bits: IBV_EXP_CQ_CAP_FLAGS in cq_attr_mask, IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS in comp_mask,
 * IBV_EXP_CQ_IGNORE_OVERRUN in cq_cap_flags. It cannot be taken back. */
int ibv_exp_modify_cq(struct ibv_cq *cq, struct ibv_exp_cq_attr *cq_attr, int cq_attr_mask);

/* Posts a list of tasks, in order, to queues of one device; no task of another list comes in between. On failure *bad
 * is the task in which it happened: those before it, and in it the requests before the wrong one, stay posted. */
int ibv_exp_post_task(struct ibv_context *context, struct ibv_exp_task *task,
		      struct ibv_exp_task **bad);

#ifdef __cplusplus
}
#endif

#endif
