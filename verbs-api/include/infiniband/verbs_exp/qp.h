/* Rocade: experimental verbs. Queue pairs. */
#ifndef ROCADE_VERBS_EXP_QP_H
#define ROCADE_VERBS_EXP_QP_H

#include <infiniband/verbs_exp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The type of a DC initiator, which enum ibv_qp_type of <infiniband/verbs.h> does not have. */
#define IBV_EXP_QPT_DC_INI ((enum ibv_qp_type)32)

enum ibv_exp_qp_init_attr_comp_mask {
	IBV_EXP_QP_INIT_ATTR_PD = 1 << 0,
	IBV_EXP_QP_INIT_ATTR_XRCD = 1 << 1,
	IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
	IBV_EXP_QP_INIT_ATTR_INL_RECV = 1 << 3,
	IBV_EXP_QP_INIT_ATTR_QPG = 1 << 4,
	IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG = 1 << 5,
	IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS = 1 << 6,
};

enum ibv_exp_qp_create_flags {
	/* Accepts CQE_WAIT, SEND_ENABLE, RECV_ENABLE and sends that compute. */
	IBV_EXP_QP_CREATE_CROSS_CHANNEL = 1 << 2,
	/* Executes only enabled work requests of its send queue, or of its receive queue. */
	IBV_EXP_QP_CREATE_MANAGED_SEND = 1 << 3,
	IBV_EXP_QP_CREATE_MANAGED_RECV = 1 << 4,
	/* The queue is not checked for overflow. */
	IBV_EXP_QP_CREATE_IGNORE_SQ_OVERFLOW = 1 << 6,
	IBV_EXP_QP_CREATE_IGNORE_RQ_OVERFLOW = 1 << 7,
	/* Atomics return big-endian results. */
	IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY = 1 << 8,
	/* Accepts UMR_FILL and UMR_INVALIDATE. */
	IBV_EXP_QP_CREATE_UMR = 1 << 9,
};

/* Groups of QPs that share packets. Not supported: all but IBV_EXP_QPG_NONE fail with
 * EOPNOTSUPP. */
enum ibv_exp_qpg_type {
	IBV_EXP_QPG_NONE = 0,
	IBV_EXP_QPG_PARENT = 1 << 0,
	IBV_EXP_QPG_CHILD_RX = 1 << 1,
	IBV_EXP_QPG_CHILD_TX = 1 << 2,
};

struct ibv_exp_qpg_init_attrib {
	uint32_t tss_child_count;
	uint32_t rss_child_count;
};

struct ibv_exp_qpg {
	uint32_t qpg_type; /* enum ibv_exp_qpg_type */
	union {
		struct ibv_qp *qpg_parent;
		struct ibv_exp_qpg_init_attrib parent_attrib;
	};
};

/* Like struct ibv_qp_init_attr up to sq_sig_all. */
struct ibv_exp_qp_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;

	uint32_t comp_mask; /* enum ibv_exp_qp_init_attr_comp_mask */
	struct ibv_pd *pd;
	struct ibv_xrcd *xrcd;
	uint32_t exp_create_flags; /* enum ibv_exp_qp_create_flags */
	uint32_t max_inl_recv; /* a hint: 0 is granted */
	struct ibv_exp_qpg qpg;
	uint32_t max_atomic_arg; /* longest operand of masked atomics, in bytes */
	uint32_t max_inl_send_klms; /* longest list of memory keys in a work request */
};

/* The mask of ibv_exp_modify_qp: like that of ibv_modify_qp, and the key of a DC initiator. */
enum ibv_exp_qp_attr_mask {
	IBV_EXP_QP_STATE = IBV_QP_STATE,
	IBV_EXP_QP_CUR_STATE = IBV_QP_CUR_STATE,
	IBV_EXP_QP_EN_SQD_ASYNC_NOTIFY = IBV_QP_EN_SQD_ASYNC_NOTIFY,
	IBV_EXP_QP_ACCESS_FLAGS = IBV_QP_ACCESS_FLAGS,
	IBV_EXP_QP_PKEY_INDEX = IBV_QP_PKEY_INDEX,
	IBV_EXP_QP_PORT = IBV_QP_PORT,
	IBV_EXP_QP_QKEY = IBV_QP_QKEY,
	IBV_EXP_QP_AV = IBV_QP_AV,
	IBV_EXP_QP_PATH_MTU = IBV_QP_PATH_MTU,
	IBV_EXP_QP_TIMEOUT = IBV_QP_TIMEOUT,
	IBV_EXP_QP_RETRY_CNT = IBV_QP_RETRY_CNT,
	IBV_EXP_QP_RNR_RETRY = IBV_QP_RNR_RETRY,
	IBV_EXP_QP_RQ_PSN = IBV_QP_RQ_PSN,
	IBV_EXP_QP_MAX_QP_RD_ATOMIC = IBV_QP_MAX_QP_RD_ATOMIC,
	IBV_EXP_QP_ALT_PATH = IBV_QP_ALT_PATH,
	IBV_EXP_QP_MIN_RNR_TIMER = IBV_QP_MIN_RNR_TIMER,
	IBV_EXP_QP_SQ_PSN = IBV_QP_SQ_PSN,
	IBV_EXP_QP_MAX_DEST_RD_ATOMIC = IBV_QP_MAX_DEST_RD_ATOMIC,
	IBV_EXP_QP_PATH_MIG_STATE = IBV_QP_PATH_MIG_STATE,
	IBV_EXP_QP_CAP = IBV_QP_CAP,
	IBV_EXP_QP_DEST_QPN = IBV_QP_DEST_QPN,
	IBV_EXP_QP_RATE_LIMIT = IBV_QP_RATE_LIMIT,
};
#define IBV_EXP_QP_DC_KEY (IBV_EXP_START_FLAG << 22)
#define IBV_QP_DC_KEY IBV_EXP_QP_DC_KEY

/* Like struct ibv_qp_attr up to alt_timeout. */
struct ibv_exp_qp_attr {
	enum ibv_qp_state qp_state;
	enum ibv_qp_state cur_qp_state;
	enum ibv_mtu path_mtu;
	enum ibv_mig_state path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	int qp_access_flags;
	struct ibv_qp_cap cap;
	struct ibv_ah_attr ah_attr;
	struct ibv_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint64_t dct_key;
	uint32_t comp_mask; /* 0 */
};

/* Needs a PD (IBV_EXP_QP_INIT_ATTR_PD) or, for an XRC target, an XRC domain
 * (IBV_EXP_QP_INIT_ATTR_XRCD). Writes the granted sizes back. */
struct ibv_qp *ibv_exp_create_qp(struct ibv_context *context,
				 struct ibv_exp_qp_init_attr *qp_init_attr);

/* exp_attr_mask: enum ibv_qp_attr_mask, and IBV_EXP_QP_DC_KEY for a DC initiator. */
int ibv_exp_modify_qp(struct ibv_qp *qp, struct ibv_exp_qp_attr *attr, uint64_t exp_attr_mask);

/* Returns all attributes, whatever the mask. init_attr may be NULL. */
int ibv_exp_query_qp(struct ibv_qp *qp, struct ibv_exp_qp_attr *attr, uint64_t exp_attr_mask,
		     struct ibv_exp_qp_init_attr *init_attr);

#ifdef __cplusplus
}
#endif

#endif
