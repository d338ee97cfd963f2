/* Rocade: experimental verbs. Targets of the dynamically connected transport.
 *
 * An initiator is a QP of type IBV_EXP_QPT_DC_INI. Each of its work requests names a target in
 * `dc`: an address handle, a number and an access key. If bit 63 of dct_access_key is set, the
 * request carries the initiator's own key instead (IBV_EXP_QP_DC_KEY).
 */
#ifndef ROCADE_VERBS_EXP_DCT_H
#define ROCADE_VERBS_EXP_DCT_H

#include <pthread.h>

#include <infiniband/verbs_exp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_exp_dct {
	struct ibv_context *context;
	uint32_t handle;
	uint32_t dct_num; /* the number in work requests, and the qp_num of completions */
	struct ibv_pd *pd;
	struct ibv_srq *srq;
	struct ibv_cq *cq;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

#define ibv_dct ibv_exp_dct

enum ibv_exp_dct_create_flags {
	IBV_EXP_DCT_OOO_RW_DATA_PLACEMENT = 1 << 0, /* a hint */
};

struct ibv_exp_dct_init_attr {
	struct ibv_pd *pd; /* also of the receive buffers, whatever the PD of srq is */
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	uint64_t dc_key;
	uint8_t port;
	uint32_t access_flags; /* enum ibv_access_flags: rights of initiators */
	uint8_t min_rnr_timer;
	uint8_t tclass; /* of the target's responses, like flow_label and hop_limit */
	uint32_t flow_label;
	enum ibv_mtu mtu; /* initiators with a larger MTU are refused */
	uint8_t pkey_index;
	uint8_t gid_index; /* the address that initiators must use */
	uint8_t hop_limit;
	uint32_t inline_size; /* a hint */
	uint32_t create_flags; /* enum ibv_exp_dct_create_flags */
	uint32_t comp_mask; /* 0 */
};

enum ibv_exp_dct_state {
	IBV_EXP_DCT_STATE_ACTIVE = 0,
	IBV_EXP_DCT_STATE_DRAINING,
	IBV_EXP_DCT_STATE_DRAINED,
};

struct ibv_exp_dct_attr {
	uint64_t dc_key;
	uint8_t port;
	uint32_t access_flags;
	union {
		uint8_t min_rnr_timer;
		uint8_t min_rnr_flags;
	};
	uint8_t tclass;
	uint32_t flow_label;
	enum ibv_mtu mtu;
	uint8_t pkey_index;
	uint8_t gid_index;
	uint8_t hop_limit;
	uint32_t key_violations; /* packets with a wrong key since creation */
	uint8_t state; /* enum ibv_exp_dct_state */
	struct ibv_srq *srq;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	uint32_t comp_mask; /* 0 */
};

struct ibv_exp_arm_attr {
	uint32_t comp_mask; /* 0 */
};

/* Events of a DC target, in event_type. */
enum ibv_exp_event_type {
	IBV_EXP_EVENT_DCT_KEY_VIOLATION = 32,
	IBV_EXP_EVENT_DCT_ACCESS_ERR,
	IBV_EXP_EVENT_DCT_REQ_ERR,
};

/* Like struct ibv_async_event. */
struct ibv_exp_async_event {
	union {
		struct ibv_cq *cq;
		struct ibv_qp *qp;
		struct ibv_srq *srq;
		struct ibv_exp_dct *dct; /* for the events above */
		int port_num;
	} element;
	int event_type; /* enum ibv_event_type or enum ibv_exp_event_type */
};

struct ibv_exp_dct *ibv_exp_create_dct(struct ibv_context *context, struct ibv_exp_dct_init_attr *attr);
/* Accepts no new initiators, and gives connected ones up to a second to disconnect. Waits until the
 * events of the target are acknowledged. */
int ibv_exp_destroy_dct(struct ibv_exp_dct *dct);
int ibv_exp_query_dct(struct ibv_exp_dct *dct, struct ibv_exp_dct_attr *attr);
/* The next packet with a wrong key raises IBV_EXP_EVENT_DCT_KEY_VIOLATION, once. */
int ibv_exp_arm_dct(struct ibv_exp_dct *dct, struct ibv_exp_arm_attr *attr);

static inline int ibv_exp_get_async_event(struct ibv_context *context, struct ibv_exp_async_event *event)
{
	return ibv_get_async_event(context, (struct ibv_async_event *)(void *)event);
}

static inline void ibv_exp_ack_async_event(struct ibv_exp_async_event *event)
{
	ibv_ack_async_event((struct ibv_async_event *)(void *)event);
}

#ifdef __cplusplus
}
#endif

#endif
