/* Program errors: destroying in the wrong order, posting in the wrong state, exceeding limits, keys
 * of other objects, messages without a receive. Each error is refused or reported, and everything
 * else keeps working. */
#include "rig.h"

#define ALL_ACCESS                                                                                  \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                \
	 IBV_ACCESS_REMOTE_ATOMIC)
#define QKEY 0x77
#define GRH 40

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int status = ibv_post_send(qp, wr, &bad);
	CHECK((bad == wr) == (status != 0));
	return status;
}

static int receive(struct ibv_qp *qp, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad = NULL;
	int status = ibv_post_recv(qp, wr, &bad);
	CHECK((bad == wr) == (status != 0));
	return status;
}

static struct ibv_qp *create(struct rig *r, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = small_qp(r->cq);
	init.qp_type = type;
	struct ibv_qp *qp = ibv_create_qp(r->pd, &init);
	CHECK(qp);
	return qp;
}

static void to_reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK_INT(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

/* Checks that the PD is in use only by `object`. */
#define KEEPS_PD(pd, object, end)                                                                   \
	do {                                                                                        \
		CHECK(object);                                                                      \
		CHECK_INT(ibv_dealloc_pd(pd), EBUSY);                                               \
		CHECK_INT(end, 0);                                                                  \
	} while (0)

/* Each kind of object keeps its parent in use. Then both are destroyed in the right order. */
/*= DST-01 DST-02 DST-03 type=test */
/*= DST-04 DST-05 DST-06 type=test */
/*= DST-07 DST-10 type=test */
static void what_is_in_use_does_not_end(void)
{
	struct rig r = rig_open();
	struct ibv_pd *pd = ibv_alloc_pd(r.context);
	CHECK(pd);
	/* Objects that belong to a PD. */
	struct ibv_mr *mr = ibv_reg_mr(pd, r.buffer, 4096, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	KEEPS_PD(pd, mr, ibv_dereg_mr(mr));
	for (enum ibv_mw_type type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
		struct ibv_mw *mw = ibv_alloc_mw(pd, type);
		KEEPS_PD(pd, mw, ibv_dealloc_mw(mw));
	}
	struct ibv_ah_attr path = path_to_self(r.context);
	struct ibv_ah *ah = ibv_create_ah(pd, &path);
	KEEPS_PD(pd, ah, ibv_destroy_ah(ah));
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	KEEPS_PD(pd, srq, ibv_destroy_srq(srq));
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	for (size_t i = 0; i < 3; i++) {
		struct ibv_qp_init_attr init = small_qp(r.cq);
		init.qp_type = types[i];
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		KEEPS_PD(pd, qp, ibv_destroy_qp(qp));
	}
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(r.context, &dm_attr);
	CHECK(dm);
	mr = ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
	CHECK(mr);
	CHECK_INT(ibv_free_dm(dm), EBUSY);
	KEEPS_PD(pd, mr, ibv_dereg_mr(mr));
	CHECK_INT(ibv_free_dm(dm), 0);

	/* The send and the receive side of a QP each keep their CQ. The CQ keeps its channel. */
	struct ibv_comp_channel *channel = ibv_create_comp_channel(r.context);
	CHECK(channel);
	struct ibv_cq *cq = ibv_create_cq(r.context, 16, NULL, channel, 0);
	CHECK(cq);
	CHECK_INT(ibv_destroy_comp_channel(channel), EBUSY);
	for (int receives = 0; receives < 2; receives++) {
		struct ibv_qp_init_attr init = small_qp(r.cq);
		*(receives ? &init.recv_cq : &init.send_cq) = cq;
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		CHECK(qp);
		CHECK_INT(ibv_destroy_cq(cq), EBUSY);
		CHECK_INT(ibv_destroy_qp(qp), 0);
	}
	/* QPs keep their SRQ. SRQs and targets keep their XRC domain. An XRC SRQ keeps its CQ and
	 * PD. */
	srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr shared = small_qp(r.cq);
	shared.srq = srq;
	struct ibv_qp *qp = ibv_create_qp(r.pd, &shared);
	CHECK(srq && qp);
	CHECK_INT(ibv_destroy_srq(srq), EBUSY);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD |
							  IBV_XRCD_INIT_ATTR_OFLAGS,
					     .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(r.context, &domain);
	CHECK(xrcd);
	struct ibv_srq_init_attr_ex xrc_init = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
	};
	srq = ibv_create_srq_ex(r.context, &xrc_init);
	CHECK(srq);
	CHECK_INT(ibv_close_xrcd(xrcd), EBUSY);
	CHECK_INT(ibv_destroy_cq(cq), EBUSY);
	KEEPS_PD(pd, srq, ibv_destroy_srq(srq));
	struct ibv_qp_init_attr_ex target_init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
						   .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	qp = ibv_create_qp_ex(r.context, &target_init);
	CHECK(qp);
	CHECK_INT(ibv_close_xrcd(xrcd), EBUSY);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_close_xrcd(xrcd), 0);

	/* A bound window keeps its MR. An attached QP is busy. */
	mr = ibv_reg_mr(r.pd, r.buffer, 4096, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_1);
	CHECK(mr && mw);
	struct ibv_mw_bind bind = { .wr_id = 5, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = mr, .addr = (uintptr_t)mr->addr, .length = 64,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	CHECK_INT(ibv_bind_mw(r.a, mw, &bind), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_dereg_mr(mr), EBUSY);
	CHECK_INT(ibv_dealloc_mw(mw), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	qp = create(&r, IBV_QPT_UD);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_QKEY), 0);
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [15] = 41 } };
	CHECK_INT(ibv_attach_mcast(qp, &group, 0), 0);
	CHECK_INT(ibv_destroy_qp(qp), EBUSY);
	CHECK_INT(ibv_detach_mcast(qp, &group, 0), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);

	CHECK_INT(ibv_destroy_cq(cq), 0);
	CHECK_INT(ibv_destroy_comp_channel(channel), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	/* After all refusals, everything still works. */
	post_receive(&r, 1);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	rig_close(&r);
}

/* A CQ overrun raises an event for the CQ and one for each of its QPs. The QPs are in ERR. */
/*= CQ-02 AEV-01 type=test */
static void an_overrun_ends_all_queues(void)
{
	struct rig r = rig_open();
	struct ibv_cq *small = ibv_create_cq(r.context, 1, NULL, NULL, 0);
	CHECK(small);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	init.send_cq = small;
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init), *peer = create(&r, IBV_QPT_RC);
	CHECK(qp);
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);
	struct ibv_sge sge = sge_at(&r, 0, 8);
	int room = small->cqe;
	for (int i = 0; i < room + 4; i++) {
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED };
		wr.wr.rdma.remote_addr = (uintptr_t)r.buffer + 1024;
		wr.wr.rdma.rkey = r.mr->rkey;
		/* From the overrun on, the QP is in ERR. Posting still succeeds. */
		CHECK_INT(post(qp, &wr), 0);
	}
	int cq_events = 0, qp_events = 0;
	while (cq_events + qp_events < 2) {
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(r.context, &event), 0);
		if (event.event_type == IBV_EVENT_CQ_ERR) {
			CHECK(event.element.cq == small);
			cq_events++;
		} else if (event.event_type == IBV_EVENT_QP_FATAL) {
			CHECK(event.element.qp == qp);
			qp_events++;
		}
		ibv_ack_async_event(&event);
	}
	CHECK_INT(cq_events, 1);
	CHECK_INT(qp_events, 1);
	CHECK_INT(state_of(qp), IBV_QPS_ERR);
	/* Other QPs keep working. */
	post_receive(&r, 1);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_qp(peer), 0);
	CHECK_INT(ibv_destroy_cq(small), 0);
	rig_close(&r);
}

/* The sends and receives that each state accepts. */
/*= PST-01 PST-02 PST-03 type=test */
/*= PST-04 PST-07 type=test */
static void each_state_takes_what_it_should(void)
{
	struct rig r = rig_open();
	struct ibv_qp *qp = create(&r, IBV_QPT_RC), *peer = create(&r, IBV_QPT_RC);
	connect_qp(peer, qp->qp_num);
	struct ibv_sge sge = sge_at(&r, 0, 8);
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED };
	CHECK_INT(post(qp, &send), EINVAL);
	CHECK_INT(receive(qp, &recv), EINVAL);
	to_init(qp);
	CHECK_INT(post(qp, &send), EINVAL);
	CHECK_INT(receive(qp, &recv), 0);
	to_rtr(qp, peer->qp_num);
	CHECK_INT(post(qp, &send), EINVAL);
	CHECK_INT(receive(qp, &recv), 0);
	to_rts(qp);
	struct ibv_recv_wr other = { .wr_id = 3, .sg_list = &sge, .num_sge = 1 };
	CHECK_INT(receive(peer, &other), 0);
	CHECK_INT(post(qp, &send), 0);
	for (int i = 0; i < 2; i++)
		CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	to_error(qp);
	CHECK_INT(post(qp, &send), 0);
	CHECK_INT(receive(qp, &recv), 0);
	/* The two earlier ones, the send and the latest one. */
	int flushed[3] = { 0 };
	for (int i = 0; i < 4; i++) {
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
		CHECK(wc.wr_id <= 2);
		flushed[wc.wr_id]++;
	}
	CHECK(flushed[1] == 3 && flushed[2] == 1);
	to_reset(qp);
	CHECK_INT(post(qp, &send), EINVAL);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_qp(peer), 0);
	rig_close(&r);
}

/* Each reported limit is enforced. A request above it is refused without effect. */
/*= PST-09 ERN-02 type=test */
static void limits_are_kept(void)
{
	struct rig r = rig_open();
	struct ibv_device_attr device;
	CHECK_INT(ibv_query_device(r.context, &device), 0);
	CHECK(!ibv_create_cq(r.context, device.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(r.context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK_INT(ibv_resize_cq(r.cq, device.max_cqe + 1), EINVAL);
	uint32_t max_wr = (uint32_t)device.max_qp_wr, max_sge = (uint32_t)device.max_sge;
	static const struct ibv_qp_cap one = { 1, 1, 1, 1, 0 };
	for (int i = 0; i < 5; i++) {
		struct ibv_qp_init_attr init = { .send_cq = r.cq, .recv_cq = r.cq, .cap = one,
						 .qp_type = IBV_QPT_RC };
		uint32_t *fields[] = { &init.cap.max_send_wr, &init.cap.max_recv_wr,
				       &init.cap.max_send_sge, &init.cap.max_recv_sge,
				       &init.cap.max_inline_data };
		*fields[i] = i < 2 ? max_wr + 1 : i < 4 ? max_sge + 1 : 1u << 30;
		CHECK(!ibv_create_qp(r.pd, &init) && errno == EINVAL);
	}
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = (uint32_t)device.max_srq_wr + 1,
						   .max_sge = 1 } };
	CHECK(!ibv_create_srq(r.pd, &srq) && errno == EINVAL);

	/* A full queue, and lists that are too long: none of the requests is posted. */
	struct ibv_qp_init_attr init = small_qp(r.cq);
	init.cap.max_send_wr = init.cap.max_recv_wr = 3;
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init), *peer = create(&r, IBV_QPT_RC);
	CHECK(qp);
	connect_qp(qp, peer->qp_num);
	struct ibv_sge sges[64];
	CHECK(init.cap.max_send_sge < 64 && init.cap.max_recv_sge < 64);
	for (int i = 0; i < 64; i++)
		sges[i] = sge_at(&r, 0, 1);
	struct ibv_recv_wr recv = { .sg_list = sges, .num_sge = (int)init.cap.max_recv_sge + 1 };
	CHECK_INT(receive(qp, &recv), EINVAL);
	struct ibv_send_wr send = { .sg_list = sges, .num_sge = (int)init.cap.max_send_sge + 1,
				    .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	CHECK_INT(post(qp, &send), EINVAL);
	send.num_sge = -1;
	CHECK_INT(post(qp, &send), EINVAL);
	send.num_sge = 1;
	sges[0].length = init.cap.max_inline_data + 1;
	send.send_flags |= IBV_SEND_INLINE;
	CHECK_INT(post(qp, &send), EINVAL);
	sges[0].length = 1;
	send.send_flags = IBV_SEND_SIGNALED;
	recv.num_sge = 1;
	uint32_t sends = 0, receives = 0;
	int status;
	while ((status = post(qp, &send)) == 0)
		sends++;
	CHECK_INT(status, ENOMEM);
	CHECK_INT(sends, init.cap.max_send_wr);
	while ((status = receive(qp, &recv)) == 0)
		receives++;
	CHECK_INT(status, ENOMEM);
	CHECK_INT(receives, init.cap.max_recv_wr);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_qp(peer), 0);
	rig_close(&r);
}

/* Connects A and B again after an error. */
static void reconnect(struct rig *r)
{
	struct ibv_wc wc;
	to_reset(r->a);
	to_reset(r->b);
	while (ibv_poll_cq(r->cq, 1, &wc) > 0)
		;
	connect_qp(r->a, r->b->qp_num);
	connect_qp(r->b, r->a->qp_num);
}

/* Invalid keys, stale keys, keys of another PD or without the right, and addresses outside of the
 * MR. No byte is transferred, the requester gets the error, and the responder is in ERR. */
/*= MR-13 type=test */
static void keys_of_others_open_nothing(void)
{
	struct rig r = rig_open();
	struct ibv_pd *pd = ibv_alloc_pd(r.context);
	static char secret[64], before[64];
	memset(secret, 0x5a, sizeof(secret));
	memcpy(before, secret, sizeof(secret));
	CHECK(pd);
	struct ibv_mr *foreign = ibv_reg_mr(pd, secret, sizeof(secret), ALL_ACCESS);
	struct ibv_mr *local = ibv_reg_mr(r.pd, secret, sizeof(secret), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *old = ibv_reg_mr(r.pd, secret, sizeof(secret), ALL_ACCESS);
	CHECK(foreign && local && old);
	uint32_t old_rkey = old->rkey, old_lkey = old->lkey;
	CHECK_INT(ibv_dereg_mr(old), 0);
	uint64_t inside = (uintptr_t)secret, ours = (uintptr_t)r.buffer;
	const struct {
		uint64_t addr;
		uint32_t rkey;
	} attempts[] = {
		{ inside, foreign->rkey },
		{ inside, local->rkey },
		{ inside, old_rkey },
		{ inside, r.mr->rkey },
		{ inside, r.mr->rkey ^ 1 },
		{ inside, 0 },
		{ inside, UINT32_MAX },
		{ ours - 8, r.mr->rkey },
		{ ours + BUFFER_LEN - 8, r.mr->rkey },
		{ UINT64_MAX - 3, r.mr->rkey },
	};
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	for (size_t i = 0; i < sizeof(attempts) / sizeof(*attempts); i++)
		for (size_t k = 0; k < 2; k++) {
			struct ibv_sge sge = sge_at(&r, 0, 16);
			struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1,
						  .opcode = opcodes[k],
						  .send_flags = IBV_SEND_SIGNALED };
			wr.wr.rdma.remote_addr = attempts[i].addr;
			wr.wr.rdma.rkey = attempts[i].rkey;
			CHECK_INT(post(r.a, &wr), 0);
			CHECK_INT(next_completion(r.cq).status, IBV_WC_REM_ACCESS_ERR);
			CHECK_INT(state_of(r.a), IBV_QPS_ERR);
			reconnect(&r);
		}
	/* Local keys too. */
	const uint32_t lkeys[] = { foreign->lkey, old_lkey, 0, UINT32_MAX };
	for (size_t i = 0; i < sizeof(lkeys) / sizeof(*lkeys); i++) {
		struct ibv_sge sge = { inside, 16, lkeys[i] };
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1,
					  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
		CHECK_INT(post(r.a, &wr), 0);
		CHECK_INT(next_completion(r.cq).status, IBV_WC_LOC_PROT_ERR);
		reconnect(&r);
	}
	CHECK(!memcmp(secret, before, sizeof(secret)));
	post_receive(&r, 1);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_dereg_mr(foreign), 0);
	CHECK_INT(ibv_dereg_mr(local), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	rig_close(&r);
}

/* Many datagrams for a QP without receives, some with a wrong Q_Key. The sends complete, and the
 * datagrams are dropped. Once there is a receive, the next datagram arrives. The port counts the
 * wrong Q_Keys. */
/*= UD-05 UD-09 type=test */
static void a_flood_without_receiver(void)
{
	struct rig r = rig_open();
	struct ibv_qp *qps[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
		qps[i] = create(&r, IBV_QPT_UD);
		CHECK_INT(ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
							       IBV_QP_PORT | IBV_QP_QKEY), 0);
		attr.qp_state = IBV_QPS_RTR;
		CHECK_INT(ibv_modify_qp(qps[i], &attr, IBV_QP_STATE), 0);
		attr.qp_state = IBV_QPS_RTS;
		CHECK_INT(ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	}
	struct ibv_ah_attr path = path_to_self(r.context);
	struct ibv_ah *ah = ibv_create_ah(r.pd, &path);
	CHECK(ah);
	struct ibv_sge sge = sge_at(&r, 0, 32);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qps[1]->qp_num;
	for (int i = 0; i < 2000; i++) {
		wr.wr_id = i;
		wr.wr.ud.remote_qkey = i % 2 ? QKEY : QKEY + 1;
		CHECK_INT(post(qps[0], &wr), 0);
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.wr_id, i);
	}
	struct ibv_port_attr port;
	do {
		struct ibv_wc wc;
		CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
		CHECK_INT(ibv_query_port(r.context, 1, &port), 0);
	} while (port.qkey_viol_cntr == 0);
	CHECK_INT(port.bad_pkey_cntr, 0);

	/* Datagrams may be lost, so sends until one arrives. */
	struct ibv_sge place = sge_at(&r, 4096, GRH + 32);
	struct ibv_recv_wr recv = { .wr_id = 1 << 20, .sg_list = &place, .num_sge = 1 };
	CHECK_INT(receive(qps[1], &recv), 0);
	wr.wr.ud.remote_qkey = QKEY;
	struct ibv_wc wc;
	do {
		if (state_of(qps[0]) != IBV_QPS_RTS || state_of(qps[1]) != IBV_QPS_RTS)
			CHECK(!"both work");
		CHECK_INT(post(qps[0], &wr), 0);
		wc = next_completion(r.cq);
		if (wc.opcode == IBV_WC_RECV)
			break;
		for (int i = 0; i < 1000 && wc.opcode != IBV_WC_RECV; i++)
			if (ibv_poll_cq(r.cq, 1, &wc) == 0)
				usleep(100);
	} while (wc.opcode != IBV_WC_RECV);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	CHECK_INT(wc.wr_id, 1 << 20);
	CHECK_INT(wc.byte_len, GRH + 32);
	CHECK_INT(ibv_destroy_qp(qps[0]), 0);
	CHECK_INT(ibv_destroy_qp(qps[1]), 0);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "what_is_in_use_does_not_end", what_is_in_use_does_not_end },
		{ "an_overrun_ends_all_queues", an_overrun_ends_all_queues },
		{ "each_state_takes_what_it_should", each_state_takes_what_it_should },
		{ "limits_are_kept", limits_are_kept },
		{ "keys_of_others_open_nothing", keys_of_others_open_nothing },
		{ "a_flood_without_receiver", a_flood_without_receiver },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
