/* Rocade: the XRC calls of older libraries.
 *
 * Extensions of <infiniband/verbs.h>, whose structures are unchanged. Only Rocade's libibverbs has
 * them, so name that library when linking:
 *
 *     cc program.c -I PREFIX/include PREFIX/lib/rocade/libibverbs.so.1
 *
 * A receive QP has no structure: programs refer to it by its number. Each process of the domain
 * that wants to keep the QP alive registers with it. The QP is destroyed when the last registered
 * process has unregistered or exited. Functions that return an int return 0 or a positive errno
 * (and set errno). Functions that return a pointer return NULL and set errno on failure.
 *
 * A program written for the structures of older libraries defines ROCADE_XRC_LEGACY before it
 * includes this header. MACROS THEN REPLACE, in everything that follows:
 *
 *     struct ibv_qp_init_attr  has a member xrc_domain. It is struct ibv_xrc_qp_init_attr, which
 *                              ibv_create_qp and ibv_query_qp convert. Convert it for others.
 *     IBV_QPT_XRC              is IBV_QPT_XRC_SEND: such a QP sends, and does not receive
 *     xrc_remote_srq_num       is qp_type.xrc.remote_srqn, a member of struct ibv_send_wr
 *     xrc_srq_num              is handle, the member of struct ibv_srq with the number
 *     xrc_qp_num               is port_num, in the element of an event with IBV_XRC_QP_EVENT_FLAG
 *
 * The members xrc_domain and xrc_cq of struct ibv_srq have no replacement.
 */
#ifndef ROCADE_VERBS_XRC_H
#define ROCADE_VERBS_XRC_H

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The flag in event_type of an asynchronous event of a receive QP. The QP number is in
 * element.port_num. Acknowledge the event with ibv_ack_async_event. */
#define IBV_XRC_QP_EVENT_FLAG 0x80000000u

struct ibv_xrc_domain {
	struct ibv_context *context;
	uint64_t handle;
};

/* struct ibv_qp_init_attr and the XRC domain. */
struct ibv_xrc_qp_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
	struct ibv_xrc_domain *xrc_domain;
};

/* Opens the domain of the inode behind fd, shared with all processes of the user that name the same
 * inode. With fd -1, opens a private domain and ignores oflag. The descriptor may be closed
 * afterwards. Values of oflag: 0 (EAGAIN if the inode has no domain), O_CREAT, or O_CREAT | O_EXCL
 * (EINVAL if it has one). */
struct ibv_xrc_domain *ibv_open_xrc_domain(struct ibv_context *context, int fd, int oflag);

/* Fails with EBUSY while the domain has SRQs, or receive QPs that this process created or
 * registered with. */
int ibv_close_xrc_domain(struct ibv_xrc_domain *domain);

/* Initiators name the SRQ by srq->handle, which ibv_get_srq_num returns too. */
struct ibv_srq *ibv_create_xrc_srq(struct ibv_pd *pd, struct ibv_xrc_domain *domain,
				   struct ibv_cq *cq, struct ibv_srq_init_attr *attr);

/* Uses only xrc_domain and qp_context of init_attr. Registers the process with the new QP. */
int ibv_create_xrc_rcv_qp(struct ibv_xrc_qp_init_attr *init_attr, uint32_t *xrc_rcv_qpn);

/* Fails with EINVAL if this process is not registered with the QP, or if the QP is of another
 * domain. */
int ibv_modify_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t xrc_qp_number,
			  struct ibv_qp_attr *attr, int attr_mask);
int ibv_query_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t xrc_qp_number,
			 struct ibv_qp_attr *attr, int attr_mask,
			 struct ibv_qp_init_attr *init_attr);

/* Fails with EINVAL if the domain has no such QP. Registering again, or after creating the QP,
 * succeeds without effect. */
int ibv_reg_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t xrc_qp_number);

/* Waits until all delivered events of the QP are acknowledged. */
int ibv_unreg_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t xrc_qp_number);

/* Conversions for programs that define ROCADE_XRC_LEGACY. */
static inline struct ibv_qp_init_attr
ibv_xrc_plain_init_attr(const struct ibv_xrc_qp_init_attr *attr)
{
	struct ibv_qp_init_attr plain;
	plain.qp_context = attr->qp_context;
	plain.send_cq = attr->send_cq;
	plain.recv_cq = attr->recv_cq;
	plain.srq = attr->srq;
	plain.cap = attr->cap;
	plain.qp_type = attr->qp_type;
	plain.sq_sig_all = attr->sq_sig_all;
	return plain;
}

static inline void ibv_xrc_take_init_attr(struct ibv_xrc_qp_init_attr *attr,
					  const struct ibv_qp_init_attr *plain)
{
	attr->qp_context = plain->qp_context;
	attr->send_cq = plain->send_cq;
	attr->recv_cq = plain->recv_cq;
	attr->srq = plain->srq;
	attr->cap = plain->cap;
	attr->qp_type = plain->qp_type;
	attr->sq_sig_all = plain->sq_sig_all;
}

static inline struct ibv_qp *ibv_xrc_create_qp(struct ibv_pd *pd,
					       struct ibv_xrc_qp_init_attr *attr)
{
	struct ibv_qp_init_attr plain = ibv_xrc_plain_init_attr(attr);
	struct ibv_qp *qp;
	/* An initiator receives nothing. Old programs pass a receive CQ anyway, which ibv_create_qp
	 * ignores. */
	qp = ibv_create_qp(pd, &plain);
	if (qp)
		attr->cap = plain.cap;
	return qp;
}

static inline int ibv_xrc_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
				   struct ibv_xrc_qp_init_attr *init_attr)
{
	struct ibv_qp_init_attr plain;
	int error = ibv_query_qp(qp, attr, attr_mask, &plain);
	if (!error)
		ibv_xrc_take_init_attr(init_attr, &plain);
	return error;
}

static inline int ibv_xrc_query_rcv_qp(struct ibv_xrc_domain *domain, uint32_t number,
				       struct ibv_qp_attr *attr, int attr_mask,
				       struct ibv_xrc_qp_init_attr *init_attr)
{
	struct ibv_qp_init_attr plain;
	int error = ibv_query_xrc_rcv_qp(domain, number, attr, attr_mask, &plain);
	if (!error) {
		ibv_xrc_take_init_attr(init_attr, &plain);
		init_attr->xrc_domain = domain;
	}
	return error;
}

#ifdef __cplusplus
}
#endif

#ifdef ROCADE_XRC_LEGACY
#define ibv_qp_init_attr ibv_xrc_qp_init_attr
#define ibv_create_qp ibv_xrc_create_qp
#define ibv_query_qp ibv_xrc_query_qp
#define ibv_query_xrc_rcv_qp ibv_xrc_query_rcv_qp
#define IBV_QPT_XRC IBV_QPT_XRC_SEND
#define xrc_remote_srq_num qp_type.xrc.remote_srqn
#define xrc_srq_num handle
#define xrc_qp_num port_num
#endif

#endif
