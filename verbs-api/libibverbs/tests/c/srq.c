/* Shared receive queues. */
#include "rig.h"

static struct ibv_srq *create(struct rig *r, uint32_t max_wr)
{
	struct ibv_srq_init_attr init = { .srq_context = r,
					  .attr = { .max_wr = max_wr, .max_sge = 2,
						    .srq_limit = 99 } };
	struct ibv_srq *srq = ibv_create_srq(r->pd, &init);
	CHECK(srq);
	CHECK(init.attr.max_wr >= max_wr && init.attr.max_sge >= 2);
	CHECK(srq->context == r->context && srq->pd == r->pd && srq->srq_context == r);
	return srq;
}

/* Creates a QP with this SRQ, connected to itself. */
static struct ibv_qp *taker(struct rig *r, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = small_qp(r->cq);
	init.srq = srq;
	init.cap.max_recv_wr = 1u << 31;
	struct ibv_qp *qp = ibv_create_qp(r->pd, &init);
	CHECK(qp && qp->srq == srq);
	/* SRQ-09 */
	CHECK_INT(init.cap.max_recv_wr, 0);
	CHECK_INT(init.cap.max_recv_sge, 0);
	connect_qp(qp, qp->qp_num);
	return qp;
}

static int post(struct rig *r, struct ibv_srq *srq, uint64_t wr_id)
{
	struct ibv_sge sge = sge_at(r, 4096, 64);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_srq_recv(srq, &wr, &bad);
}

/* Sends a message and waits for both completions. Returns that of the receive. */
static struct ibv_wc exchange(struct rig *r, struct ibv_qp *qp)
{
	enum { SENT = 1000 };
	struct ibv_sge sge = sge_at(r, 0, 16);
	struct ibv_send_wr wr = { .wr_id = SENT, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
	struct ibv_wc one = next_completion(r->cq), other = next_completion(r->cq);
	CHECK((one.wr_id == SENT) != (other.wr_id == SENT));
	return one.wr_id == SENT ? other : one;
}

static struct ibv_srq_attr attr_of(struct ibv_srq *srq)
{
	struct ibv_srq_attr attr;
	CHECK_INT(ibv_query_srq(srq, &attr), 0);
	return attr;
}

/* Sizes, and the valid attributes (SRQ-01, SRQ-02, SRQ-03, SRQ-08). */
static void sizes_and_limits(void)
{
	struct rig r = rig_open();
	struct ibv_device_attr device;
	CHECK_INT(ibv_query_device(r.context, &device), 0);
	CHECK(device.max_srq > 0 && device.max_srq_wr >= 4096 && device.max_srq_sge >= 2);
	CHECK(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	const struct { uint32_t max_wr, max_sge; } rows[] = {
		{ device.max_srq_wr + 1, 1 }, { 1, device.max_srq_sge + 1 },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ibv_srq_init_attr init = { .attr = { .max_wr = rows[i].max_wr,
							    .max_sge = rows[i].max_sge } };
		CHECK(!ibv_create_srq(r.pd, &init));
		CHECK_INT(errno, EINVAL);
	}
	CHECK(!ibv_create_srq(r.pd, NULL) && errno == EINVAL);
	CHECK(!ibv_create_srq(NULL, &(struct ibv_srq_init_attr){ .attr = { 1, 1, 0 } }));

	/* An SRQ of size 0 accepts no receives. */
	struct ibv_srq *none = create(&r, 0);
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad = NULL;
	CHECK_INT(attr_of(none).max_wr, 0);
	CHECK_INT(ibv_post_srq_recv(none, &wr, &bad), ENOMEM);
	CHECK(bad == &wr);
	CHECK_INT(ibv_destroy_srq(none), 0);

	struct ibv_srq *srq = create(&r, 8);
	CHECK_INT(attr_of(srq).srq_limit, 0);
	struct ibv_srq_attr attr = { .max_wr = 4, .max_sge = 77, .srq_limit = 9 };
	CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR), EINVAL);
	CHECK_INT(ibv_modify_srq(srq, &attr, 4), EINVAL);
	CHECK_INT(ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT), EINVAL);
	CHECK_INT(attr_of(srq).max_wr, 8);
	CHECK_INT(attr_of(srq).srq_limit, 0);
	CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
	attr.srq_limit = 4;
	CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	CHECK_INT(attr_of(srq).max_wr, 4);
	CHECK_INT(attr_of(srq).max_sge, 2);
	CHECK_INT(attr_of(srq).srq_limit, 4);
	CHECK_INT(ibv_query_srq(srq, NULL), EINVAL);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

/* Chains stop at the first receive that does not fit (SRQ-06, PST-09). */
static void chains_of_receives(void)
{
	struct rig r = rig_open();
	struct ibv_srq *srq = create(&r, 3);
	struct ibv_qp *qp = taker(&r, srq);
	struct ibv_sge sges[3] = { sge_at(&r, 0, 8), sge_at(&r, 8, 8), sge_at(&r, 16, 8) };
	struct ibv_recv_wr third = { .wr_id = 3, .sg_list = sges, .num_sge = 3 };
	struct ibv_recv_wr second = { .wr_id = 2, .sg_list = sges, .num_sge = 2, .next = &third };
	struct ibv_recv_wr first = { .wr_id = 1, .sg_list = sges, .num_sge = 1, .next = &second };
	struct ibv_recv_wr *bad = NULL;
	CHECK_INT(ibv_post_srq_recv(srq, &first, &bad), EINVAL);
	CHECK(bad == &third);
	third.num_sge = 0;
	CHECK_INT(ibv_post_srq_recv(srq, &first, &bad), ENOMEM);
	CHECK(bad == &second);
	/* The QP has no receive queue of its own (PST-08). */
	CHECK_INT(ibv_post_recv(qp, &first, &bad), EINVAL);
	CHECK(bad == &first);
	struct ibv_wc wc = exchange(&r, qp);
	CHECK_INT(wc.status, IBV_WC_LOC_LEN_ERR);
	CHECK_INT(wc.wr_id, 1);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

/* Objects that use the SRQ keep it (DST-01, DST-03). */
static void in_use_is_busy(void)
{
	struct rig r = rig_open();
	struct ibv_srq *srq = create(&r, 4);
	struct ibv_qp *qp = taker(&r, srq), *other = taker(&r, srq);
	CHECK_INT(ibv_destroy_srq(srq), EBUSY);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_srq(srq), EBUSY);
	CHECK_INT(ibv_dealloc_pd(r.pd), EBUSY);
	CHECK_INT(post(&r, srq, 5), 0);
	struct ibv_wc wc = exchange(&r, other);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.wr_id, 5);
	CHECK_INT(wc.qp_num, other->qp_num);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK_INT(ibv_query_qp(other, &attr, IBV_QP_CAP, &init), 0);
	CHECK(init.srq == srq && attr.cap.max_recv_wr == 0 && init.cap.max_recv_wr == 0);
	CHECK_INT(ibv_destroy_qp(other), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

static void expect(struct rig *r, enum ibv_event_type type, void *element)
{
	struct ibv_async_event event;
	CHECK_INT(ibv_get_async_event(r->context, &event), 0);
	CHECK_INT(event.event_type, type);
	CHECK(event.element.srq == element);
	ibv_ack_async_event(&event);
}

/* The limit event and the last WQE event (SRQ-04, RC-STA-08, AEV-12). */
static void events_name_their_object(void)
{
	struct rig r = rig_open();
	struct ibv_srq *srq = create(&r, 4);
	struct ibv_qp *qp = taker(&r, srq);
	struct ibv_srq_attr attr = { .srq_limit = 2 };
	for (uint64_t wr_id = 1; wr_id <= 3; wr_id++)
		CHECK_INT(post(&r, srq, wr_id), 0);
	CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	CHECK_INT(exchange(&r, qp).wr_id, 1);
	CHECK(!is_readable(r.context->async_fd));
	CHECK_INT(exchange(&r, qp).wr_id, 2);
	expect(&r, IBV_EVENT_SRQ_LIMIT_REACHED, srq);
	CHECK_INT(attr_of(srq).srq_limit, 0);
	to_error(qp);
	expect(&r, IBV_EVENT_QP_LAST_WQE_REACHED, qp);
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);

	/* An unread event is discarded with its object. A read event keeps the object until it is
	 * acknowledged. */
	struct ibv_qp *second = taker(&r, srq);
	attr.srq_limit = 4;
	CHECK_INT(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	CHECK_INT(exchange(&r, second).wr_id, 3);
	CHECK(is_readable(r.context->async_fd));
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_qp(second), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	CHECK(!is_readable(r.context->async_fd));
	rig_close(&r);
}

/* Extended creation, and the SRQ number (SRQ-10). */
static void extended_creation(void)
{
	static const struct { uint32_t mask; enum ibv_srq_type type; int error; } rows[] = {
		{ IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, EINVAL },
		{ IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ, IBV_SRQT_BASIC, 0 },
		{ IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, 0 },
		{ IBV_SRQ_INIT_ATTR_PD, IBV_SRQT_TM, 0 },
		{ IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE, 7, EINVAL },
		{ IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_TM, EOPNOTSUPP },
		{ IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_RESERVED, IBV_SRQT_BASIC, EINVAL },
	};
	struct rig r = rig_open();
	uint32_t numbers[3];
	size_t made = 0;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 2, .max_sge = 1 },
						     .comp_mask = rows[i].mask,
						     .srq_type = rows[i].type, .pd = r.pd };
		errno = 0;
		struct ibv_srq *srq = ibv_create_srq_ex(r.context, &init);
		CHECK_INT(errno, rows[i].error);
		CHECK(!srq == !!rows[i].error);
		if (srq) {
			CHECK_INT(ibv_get_srq_num(srq, &numbers[made]), 0);
			CHECK_INT(numbers[made] >> 24, 0);
			CHECK_INT(ibv_get_srq_num(srq, NULL), EINVAL);
			CHECK_INT(post(&r, srq, 1), 0);
			CHECK_INT(ibv_destroy_srq(srq), 0);
			made++;
		}
	}
	CHECK_INT(made, 3);
	CHECK(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "sizes_and_limits", sizes_and_limits },
		{ "chains_of_receives", chains_of_receives },
		{ "in_use_is_busy", in_use_is_busy },
		{ "events_name_their_object", events_name_their_object },
		{ "extended_creation", extended_creation },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
