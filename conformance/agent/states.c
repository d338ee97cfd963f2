/*
 * The states of the agent's queue pairs.
 */
#include "agent.h"

#include <errno.h>

static int change(struct end *end, enum ibv_qp_state state, struct ibv_qp_attr *attr, int mask)
{
	attr->qp_state = state;
	errno = ibv_modify_qp(end->qp, attr, IBV_QP_STATE | mask);
	return errno;
}

int to_init(struct end *end, struct ibv_qp_attr *attr)
{
	int is_ud = end->qp->qp_type == IBV_QPT_UD;
	return change(end, IBV_QPS_INIT, attr,
		      IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

int to_rtr(struct end *end, struct ibv_qp_attr *attr)
{
	enum ibv_qp_type type = end->qp->qp_type;
	int mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return change(end, IBV_QPS_RTR, attr, type == IBV_QPT_UD ? 0 : mask);
}

int to_rts(struct end *end, struct ibv_qp_attr *attr)
{
	enum ibv_qp_type type = end->qp->qp_type;
	int mask = IBV_QP_SQ_PSN;
	if (type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_TIMEOUT;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return change(end, IBV_QPS_RTS, attr, mask);
}

int state(struct end *end)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (!end->qp || (errno = ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init)))
		return unable("ibv_query_qp");
	return answer("ok %d", attr.qp_state);
}

int to_error(struct end *end)
{
	struct ibv_qp_attr attr = {0};
	return !end->qp || change(end, IBV_QPS_ERR, &attr, 0) ? unable("ibv_modify_qp to ERR") : answer("ok");
}

/* reset HANDLE: leaves the queue pair in RTS. */
int reset(struct end *end)
{
	struct ibv_qp_attr attr = end->attr;
	if (!end->qp || change(end, IBV_QPS_RESET, &attr, 0) || to_init(end, &attr) || to_rtr(end, &attr) ||
	    to_rts(end, &attr))
		return unable("ibv_modify_qp from RESET");
	return answer("ok");
}

/* drain HANDLE NOTIFY: moves the queue pair to SQD, and asks for SQ_DRAINED or not. */
int drain(struct end *end)
{
	struct ibv_qp_attr attr = {.en_sqd_async_notify = number()};
	int mask = attr.en_sqd_async_notify ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0;
	return !end->qp || change(end, IBV_QPS_SQD, &attr, mask) ? unable("ibv_modify_qp to SQD") : answer("ok");
}

/* resume HANDLE: moves the queue pair from SQD or SQE back to RTS. */
int resume(struct end *end)
{
	struct ibv_qp_attr attr = {0};
	return !end->qp || change(end, IBV_QPS_RTS, &attr, 0) ? unable("ibv_modify_qp to RTS") : answer("ok");
}
