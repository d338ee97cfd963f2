/* Rocade: the XRC calls of older libraries.
 *
 * On top of <infiniband/verbs.h>, whose structures are untouched. All of it is of Rocade's libibverbs and of no other, so
 * name that library when linking:
 *
 *     cc program.c -I PREFIX/include PREFIX/lib/rocade/libibverbs.so.1
 *
 * A receive queue pair has no structure: it is known by its number, and each process of the domain that wants to keep it
 * registers with it. It lives until the last one has unregistered, or ended. Functions that return an int return 0 or a
 * positive errno (and set errno); those that return a pointer return NULL and set errno.
 *
 * A program that was written for the structures of those days defines ROCADE_XRC_LEGACY before it includes this header.
 * MACROS THEN REPLACE, in everything that follows:
 *
 *     struct ibv_qp_init_attr   has a member xrc_domain (it is struct ibv_xrc_qp_init_attr; ibv_create_qp and
 *                               ibv_query_qp convert, and so must whoever passes one to other functions)
 *     IBV_QPT_XRC               is IBV_QPT_XRC_SEND: such a queue pair sends, and does not receive
 *     xrc_remote_srq_num        is qp_type.xrc.remote_srqn, a member of struct ibv_send_wr
 *     xrc_srq_num               is handle, a member of struct ibv_srq where Rocade has the number
 *     xrc_qp_num                is port_num, in the element of an event with IBV_XRC_QP_EVENT_FLAG
 *
 * There is nothing for the members xrc_domain and xrc_cq of struct ibv_srq.
 */
#ifndef ROCADE_VERBS_XRC_H
#define ROCADE_VERBS_XRC_H

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Or-ed into event_type where an asynchronous event is about a receive queue pair, whose number is in element.port_num
 * then. Acknowledge it with ibv_ack_async_event, as others. */
#define IBV_XRC_QP_EVENT_FLAG 0x80000000u

struct ibv_xrc_domain {
	struct ibv_context *context;
	uint64_t handle;
};

/* struct ibv_qp_init_attr, and the domain. */
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

/* The domain of the file behind fd, shared with all processes of the user that name the file; -1: one of its own, oflag does
 * not count. oflag: 0 (EAGAIN where the file has no domain), O_CREAT, O_CREAT | O_EXCL (EINVAL where it has one). The
 * descriptor may be closed afterwards. */
struct ibv_xrc_domain *ibv_open_xrc_domain(struct ibv_context *context, int fd, int oflag);

/* EBUSY while there are shared receive queues made, or receive queue pairs made or registered through it. */
int ibv_close_xrc_domain(struct ibv_xrc_domain *domain);

/* The number that initiators name is srq->handle, or that of ibv_get_srq_num. */
struct ibv_srq *ibv_create_xrc_srq(struct ibv_pd *pd, struct ibv_xrc_domain *domain,
				   struct ibv_cq *cq, struct ibv_srq_init_attr *attr);

/* Of init_attr only xrc_domain and qp_context count. The process is registered with the new queue pair. */
int ibv_create_xrc_rcv_qp(struct ibv_xrc_qp_init_attr *init_attr, uint32_t *xrc_rcv_qpn);

/* EINVAL where this process is not registered with the queue pair, or that is of another domain. */
int ibv_modify_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t xrc_qp_number,
			  struct ibv_qp_attr *attr, int attr_mask);
int ibv_query_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t xrc_qp_number,
			 struct ibv_qp_attr *attr, int attr_mask,
			 struct ibv_qp_init_attr *init_attr);

/* EINVAL where the domain has no such queue pair. Who has made it, or registered before, may call it, and has one registration
 * all the same. */
int ibv_reg_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t xrc_qp_number);

/* Waits until events of the queue pair that were delivered are acknowledged. */
int ibv_unreg_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t xrc_qp_number);

/* What converts for programs of those days. */
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
	/* An initiator receives nothing, and a creator of those days gave it a CQ for that. */
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
