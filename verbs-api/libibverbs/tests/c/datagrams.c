/* Datagrams: address handles, the GRH, multicast groups. */
#include "rig.h"

#include <arpa/inet.h>

#define QKEY 0x1234
#define GRH 40

static struct ibv_qp *ud_in_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(qp);
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	CHECK_INT(ibv_query_qp(qp, &attr, IBV_QP_QKEY, &(struct ibv_qp_init_attr){ 0 }), 0);
	CHECK_INT(attr.qkey, QKEY);
	return qp;
}

static struct ibv_qp *create_ud(struct rig *r)
{
	struct ibv_qp_init_attr init = small_qp(r->cq);
	init.qp_type = IBV_QPT_UD;
	return ud_in_rts(ibv_create_qp(r->pd, &init));
}

static struct ibv_ah *to_self(struct rig *r)
{
	struct ibv_ah_attr attr = path_to_self(r->context);
	struct ibv_ah *ah = ibv_create_ah(r->pd, &attr);
	CHECK(ah);
	CHECK(ah->context == r->context && ah->pd == r->pd);
	return ah;
}

static void receive_at(struct rig *r, struct ibv_qp *qp, uint64_t wr_id, size_t offset, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)r->buffer + offset, len, r->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(qp, &wr, &bad), 0);
}

static int send_to(struct rig *r, struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)r->buffer, len, r->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
				  .imm_data = htonl(0x01020304) }, *bad = NULL;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = QKEY;
	int status = ibv_post_send(qp, &wr, &bad);
	CHECK((bad == &wr) == (status != 0));
	return status;
}

/* Takes the completions of a send and a receive. Returns that of the receive. */
static struct ibv_wc sent_and_received(struct rig *r)
{
	struct ibv_wc received = { 0 };
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_completion(r->cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV)
			received = wc;
		else
			CHECK_INT(wc.opcode, IBV_WC_SEND);
	}
	CHECK_INT(received.opcode, IBV_WC_RECV);
	return received;
}

/* The receiver replies to the sender's address. */
/*= UD-14 GRH-05 type=test */
static void an_answer_finds_its_way(void)
{
	struct rig r = rig_open();
	struct ibv_qp *a = create_ud(&r), *b = create_ud(&r);
	struct ibv_ah *ah = to_self(&r);
	strcpy(r.buffer, "ping");
	receive_at(&r, b, 2, 1000, 100);
	CHECK_INT(send_to(&r, a, ah, b->qp_num, 5), 0);
	struct ibv_wc wc = sent_and_received(&r);
	CHECK_INT(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
	CHECK_INT(ntohl(wc.imm_data), 0x01020304);
	CHECK_INT(wc.byte_len, GRH + 5);
	CHECK_INT(wc.src_qp, a->qp_num);
	CHECK_INT(wc.pkey_index | wc.slid | wc.dlid_path_bits, 0);
	/* RoCEv2 over IPv4, in the form of mlx5, which UCX expects. */
	CHECK_INT(wc.sl, 0xa);
	CHECK(!strcmp(r.buffer + 1000 + GRH, "ping"));

	struct ibv_grh *grh = (struct ibv_grh *)(r.buffer + 1000);
	struct ibv_ah_attr attr;
	memset(&attr, 0xee, sizeof(attr));
	CHECK_INT(ibv_init_ah_from_wc(r.context, 1, &wc, grh, &attr), 0);
	struct ibv_ah_attr self = path_to_self(r.context);
	CHECK(!memcmp(&attr.grh.dgid, &self.grh.dgid, 16));
	CHECK_INT(attr.grh.sgid_index, 0);
	CHECK_INT(attr.is_global, 1);
	CHECK_INT(attr.port_num, 1);
	struct ibv_ah *back = ibv_create_ah_from_wc(r.pd, &wc, grh, 1);
	CHECK(back);
	receive_at(&r, a, 3, 2000, 100);
	CHECK_INT(send_to(&r, b, back, wc.src_qp, 5), 0);
	CHECK_INT(sent_and_received(&r).src_qp, b->qp_num);

	/* Malformed headers, and completions that are no datagrams. */
	CHECK_INT(ibv_init_ah_from_wc(r.context, 2, &wc, grh, &attr), -1);
	memset(grh, 0, GRH);
	CHECK_INT(ibv_init_ah_from_wc(r.context, 1, &wc, grh, &attr), -1);
	CHECK_INT(errno, EPROTONOSUPPORT);
	wc.wc_flags = 0;
	CHECK_INT(ibv_init_ah_from_wc(r.context, 1, &wc, grh, &attr), -1);
	CHECK(!ibv_create_ah_from_wc(r.pd, &wc, grh, 1));

	CHECK_INT(ibv_destroy_ah(back), 0);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	CHECK_INT(ibv_destroy_qp(a), 0);
	CHECK_INT(ibv_destroy_qp(b), 0);
	rig_close(&r);
}

/* An IPv6 header, as in the 40 bytes of the GRH. */
/*= GRH-03 GRH-04 GRH-05 type=test */
static void a_header_of_ipv6_is_read(void)
{
	struct rig r = rig_open();
	struct ibv_grh grh = { .version_tclass_flow = htonl(6u << 28 | 0x12 << 20 | 0x34567),
			       .paylen = htons(100), .next_hdr = 17, .hop_limit = 9 };
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_ah_attr attr;
	CHECK_INT(inet_pton(AF_INET6, "2001:db8::7", grh.sgid.raw), 1);
	/* The destination is none of the device's addresses. */
	CHECK_INT(inet_pton(AF_INET6, "2001:db8::8", grh.dgid.raw), 1);
	CHECK_INT(ibv_init_ah_from_wc(r.context, 1, &wc, &grh, &attr), -1);
	CHECK_INT(errno, EINVAL);
	CHECK_INT(ibv_query_gid(r.context, 1, 0, &grh.dgid), 0);
	CHECK_INT(ibv_init_ah_from_wc(r.context, 1, &wc, &grh, &attr), 0);
	CHECK(!memcmp(&attr.grh.dgid, &grh.sgid, 16));
	CHECK_INT(attr.grh.traffic_class, 0x12);
	CHECK_INT(attr.grh.flow_label, 0x34567);
	CHECK_INT(attr.grh.hop_limit, 9);
	rig_close(&r);
}

/*= UD-03 PST-10 type=test */
static void address_handles_are_checked(void)
{
	struct rig r = rig_open();
	struct ibv_qp *qp = create_ud(&r);
	struct ibv_ah_attr attr = path_to_self(r.context);
	attr.is_global = 0;
	CHECK(!ibv_create_ah(r.pd, &attr));
	CHECK_INT(errno, EINVAL);
	attr.is_global = 1;
	attr.grh.sgid_index = 200;
	CHECK(!ibv_create_ah(r.pd, &attr));
	CHECK(!ibv_create_ah(r.pd, NULL));
	/* An IPv6 group, with an IPv4 source address. */
	struct ibv_ah_attr group = path_to_self(r.context);
	CHECK_INT(inet_pton(AF_INET6, "ff0e::9", group.grh.dgid.raw), 1);
	errno = 0;
	CHECK(!ibv_create_ah(r.pd, &group));
	CHECK_INT(errno, EINVAL);
	CHECK_INT(send_to(&r, qp, NULL, qp->qp_num, 4), EINVAL);
	struct ibv_pd *other = ibv_alloc_pd(r.context);
	attr.grh.sgid_index = 0;
	struct ibv_ah *foreign = ibv_create_ah(other, &attr);
	CHECK(foreign);
	CHECK_INT(send_to(&r, qp, foreign, qp->qp_num, 4), EINVAL);
	CHECK_INT(ibv_dealloc_pd(other), EBUSY);
	CHECK_INT(ibv_destroy_ah(foreign), 0);
	CHECK_INT(ibv_dealloc_pd(other), 0);
	/* An operation that UD does not have. */
	struct ibv_ah *ah = to_self(&r);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *bad;
	wr.wr.ud.ah = ah;
	CHECK_INT(ibv_post_send(qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

/* Requests of a batch go to their own addresses, and so do those of ibv_post_send between
 * batches. */
/*= WRX-01 WRX-04 type=test */
static void batches_of_datagrams(void)
{
	struct rig r = rig_open();
	struct ibv_qp_init_attr_ex init = {
		.send_cq = r.cq, .recv_cq = r.cq, .cap = small_qp(r.cq).cap,
		.qp_type = IBV_QPT_UD, .pd = r.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	CHECK(!ibv_create_qp_ex(r.context, &init));
	CHECK_INT(errno, EOPNOTSUPP);
	init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	struct ibv_qp *qp = ud_in_rts(ibv_create_qp_ex(r.context, &init));
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_qp *peers[2] = { create_ud(&r), create_ud(&r) };
	struct ibv_ah *ah = to_self(&r);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2; i++) {
			receive_at(&r, peers[i], 10 + i, 1000 + 100 * i, 100);
			receive_at(&r, peers[i], 20 + i, 1000 + 100 * i, 100);
		}
		ibv_wr_start(ex);
		ex->wr_flags = 0;
		for (int i = 0; i < 2; i++) {
			ex->wr_id = i;
			ibv_wr_send_imm(ex, htonl(i));
			ibv_wr_set_ud_addr(ex, ah, peers[i]->qp_num, QKEY);
			ibv_wr_set_inline_data(ex, "abc" + i, 3 - i);
		}
		CHECK_INT(ibv_wr_complete(ex), 0);
		for (int i = 0; i < 2; i++) {
			struct ibv_wc wc = next_completion(r.cq);
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			CHECK_INT(wc.wr_id, 10 + ntohl(wc.imm_data));
			CHECK_INT(wc.byte_len, GRH + 3 - ntohl(wc.imm_data));
		}
		for (int i = 0; i < 2; i++) {
			CHECK_INT(send_to(&r, qp, ah, peers[i]->qp_num, 8), 0);
			CHECK_INT(sent_and_received(&r).wr_id, 20 + i);
		}
		/* A request without an address fails the whole batch. */
		ibv_wr_start(ex);
		ibv_wr_send(ex);
		ibv_wr_set_ud_addr(ex, ah, peers[0]->qp_num, QKEY);
		ibv_wr_send(ex);
		CHECK_INT(ibv_wr_complete(ex), EINVAL);
	}
	CHECK_INT(ibv_destroy_ah(ah), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	for (int i = 0; i < 2; i++)
		CHECK_INT(ibv_destroy_qp(peers[i]), 0);
	rig_close(&r);
}

/*= MC-01 MC-02 MC-03 type=test */
static void groups_are_joined_and_left(void)
{
	struct rig r = rig_open();
	struct ibv_qp *a = create_ud(&r), *b = create_ud(&r);
	union ibv_gid group = { 0 };
	struct ibv_ah_attr attr = path_to_self(r.context);
	CHECK_INT(ibv_attach_mcast(a, &attr.grh.dgid, 0), EINVAL);
	CHECK_INT(inet_pton(AF_INET6, "::ffff:239.9.9.9", group.raw), 1);
	CHECK_INT(ibv_attach_mcast(r.a, &group, 0), EINVAL);
	CHECK_INT(ibv_detach_mcast(b, &group, 0), EINVAL);
	CHECK_INT(ibv_attach_mcast(b, &group, 0xc001), 0);
	CHECK_INT(ibv_attach_mcast(b, &group, 0), 0);
	attr.grh.dgid = group;
	struct ibv_ah *ah = ibv_create_ah(r.pd, &attr);
	CHECK(ah);
	receive_at(&r, b, 5, 1000, 100);
	CHECK_INT(send_to(&r, a, ah, 0xffffff, 4), 0);
	struct ibv_wc wc = sent_and_received(&r);
	CHECK_INT(wc.src_qp, a->qp_num);
	CHECK_INT(wc.qp_num, b->qp_num);
	/* The reply to a group message comes from an address of the device. */
	struct ibv_ah_attr back;
	CHECK_INT(ibv_init_ah_from_wc(r.context, 1, &wc, (void *)(r.buffer + 1000), &back), 0);
	CHECK_INT(back.grh.sgid_index, 0);
	CHECK_INT(ibv_destroy_qp(b), EBUSY);
	CHECK_INT(ibv_detach_mcast(b, &group, 0), 0);
	CHECK_INT(ibv_detach_mcast(b, &group, 0), EINVAL);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	CHECK_INT(ibv_destroy_qp(a), 0);
	CHECK_INT(ibv_destroy_qp(b), 0);
	rig_close(&r);
}

/* With loopback blocked, own datagrams do not come back. Groups of both IP versions. */
/*= MC-04 MC-07 type=test */
static void own_datagrams_can_be_kept_out(void)
{
	struct rig r = rig_open();
	struct ibv_qp_init_attr_ex init = {
		.send_cq = r.cq, .recv_cq = r.cq, .cap = small_qp(r.cq).cap, .qp_type = IBV_QPT_UD, .pd = r.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	};
	struct ibv_qp *quiet = ud_in_rts(ibv_create_qp_ex(r.context, &init)), *other = create_ud(&r);
	union ibv_gid group = { 0 };
	CHECK_INT(inet_pton(AF_INET6, "::ffff:239.9.9.10", group.raw), 1);
	CHECK_INT(ibv_attach_mcast(quiet, &group, 0), 0);
	CHECK_INT(ibv_attach_mcast(other, &group, 0), 0);
	struct ibv_ah_attr attr = path_to_self(r.context);
	attr.grh.dgid = group;
	attr.grh.traffic_class = 0x68;
	attr.grh.hop_limit = 3;
	struct ibv_ah *ah = ibv_create_ah(r.pd, &attr);
	CHECK(ah);
	receive_at(&r, quiet, 5, 1000, 100);
	receive_at(&r, other, 6, 2000, 100);
	CHECK_INT(send_to(&r, quiet, ah, 0xffffff, 4), 0);
	CHECK_INT(sent_and_received(&r).wr_id, 6);
	/* The IPv4 header: type of service, time to live, destination. */
	unsigned char *ip = (unsigned char *)r.buffer + 2000 + 20;
	CHECK_INT(ip[1], 0x68);
	CHECK_INT(ip[8], 3);
	CHECK(!memcmp(ip + 16, group.raw + 12, 4));
	receive_at(&r, other, 7, 2000, 100);
	CHECK_INT(send_to(&r, other, ah, 0xffffff, 4), 0);
	uint64_t seen = 0;
	for (int i = 0; i < 3; i++)
		seen |= 1ull << next_completion(r.cq).wr_id;
	CHECK_INT(seen, 1 << 5 | 1 << 7 | 1 << 1);
	CHECK_INT(ibv_detach_mcast(quiet, &group, 0), 0);
	CHECK_INT(ibv_detach_mcast(other, &group, 0), 0);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	CHECK_INT(ibv_destroy_qp(quiet), 0);
	CHECK_INT(ibv_destroy_qp(other), 0);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "an_answer_finds_its_way", an_answer_finds_its_way },
		{ "a_header_of_ipv6_is_read", a_header_of_ipv6_is_read },
		{ "address_handles_are_checked", address_handles_are_checked },
		{ "batches_of_datagrams", batches_of_datagrams },
		{ "groups_are_joined_and_left", groups_are_joined_and_left },
		{ "own_datagrams_can_be_kept_out", own_datagrams_can_be_kept_out },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
