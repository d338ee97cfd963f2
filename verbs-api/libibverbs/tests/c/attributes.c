/* Attributes of a device, its port and its QPs, and their configuration. */
#include "rig.h"

#include <endian.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <sys/shm.h>

/*= QPS-05 type=test */
static void rates_are_noted(void)
{
	struct rig r = rig_open();
	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 4000000 };
	CHECK_INT(ibv_modify_qp_rate_limit(qp, &rate), EINVAL);
	to_init(qp);
	CHECK_INT(ibv_modify_qp_rate_limit(qp, &rate), EINVAL);
	to_rtr(qp, r.b->qp_num);
	to_rts(qp);
	CHECK_INT(ibv_modify_qp_rate_limit(qp, &rate), 0);
	struct ibv_qp_attr attr;
	CHECK_INT(ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &init), 0);
	CHECK_INT(attr.rate_limit, 4000000);
	rate.comp_mask = 1;
	CHECK_INT(ibv_modify_qp_rate_limit(qp, &rate), EINVAL);
	struct ibv_qp_rate_limit_attr hints = { .max_burst_sz = 4096 };
	CHECK_INT(ibv_modify_qp_rate_limit(qp, &hints), EINVAL);
	struct ibv_qp_rate_limit_attr none = { 0 };
	CHECK_INT(ibv_modify_qp_rate_limit(qp, &none), 0);
	CHECK_INT(ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &init), 0);
	CHECK_INT(attr.rate_limit, 0);

	/* A mask alone may set the rate only where the transition table allows it: on raw packet
	 * QPs. */
	attr.rate_limit = 7;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_RATE_LIMIT), EINVAL);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

/* The static rate of a path has no effect, but is stored. */
static void a_static_rate_reads_back(void)
{
	struct rig r = rig_open();
	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	to_init(qp);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = r.b->qp_num,
		.max_dest_rd_atomic = 1, .ah_attr = path_to_self(r.context),
	};
	attr.ah_attr.static_rate = IBV_RATE_40_GBPS;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
						   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
						   IBV_QP_MIN_RNR_TIMER), 0);
	struct ibv_qp_attr got = { 0 };
	CHECK_INT(ibv_query_qp(qp, &got, IBV_QP_AV, &init), 0);
	CHECK_INT(got.ah_attr.static_rate, IBV_RATE_40_GBPS);
	to_rts(qp);
	got.ah_attr.static_rate = 0;
	CHECK_INT(ibv_query_qp(qp, &got, IBV_QP_AV, &init), 0);
	CHECK_INT(got.ah_attr.static_rate, IBV_RATE_40_GBPS);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

static void enhancements_are_none(void)
{
	struct rig r = rig_open();
	struct ibv_device_attr device;
	CHECK_INT(ibv_query_device(r.context, &device), 0);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	struct ibv_ece ece = { 1, 2, 3 };
	CHECK_INT(ibv_query_ece(qp, &ece), 0);
	CHECK_INT(ece.vendor_id, device.vendor_id);
	CHECK_INT(ece.options, 0);
	CHECK_INT(ece.comp_mask, 0);
	/* A peer of another vendor may offer any options. */
	struct ibv_ece other = { .vendor_id = 0x123456, .options = 7 };
	CHECK_INT(ibv_set_ece(qp, &other), 0);
	CHECK_INT(ibv_query_ece(qp, &ece), 0);
	CHECK_INT(ece.options, 0);
	other.comp_mask = 1;
	CHECK_INT(ibv_set_ece(qp, &other), EINVAL);
	/* For another connection, on a QP in operation. */
	CHECK_INT(ibv_set_ece(r.a, &ece), 0);
	ece.vendor_id = 0;
	CHECK_INT(ibv_set_ece(r.a, &ece), EOPNOTSUPP);
	CHECK_INT(ibv_query_qp_data_in_order(r.a, IBV_WR_RDMA_WRITE, 0), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

/* The GID table, through each of the query functions. */
/*= ERN-02 ERN-03 type=test */
static void the_gid_table_has_an_end(void)
{
	struct ibv_context *context = open_device();
	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(context, 1, &port), 0);
	union ibv_gid gid;
	struct ibv_gid_entry entry, table[64];
	ssize_t count = ibv_query_gid_table(context, table, 64, 0);
	CHECK(count > 0 && count <= port.gid_tbl_len);
	for (ssize_t i = 0; i < count; i++) {
		CHECK_INT(ibv_query_gid_ex(context, 1, table[i].gid_index, &entry, 0), 0);
		CHECK_INT(ibv_query_gid(context, 1, table[i].gid_index, &gid), 0);
		CHECK(!memcmp(&gid, &entry.gid, sizeof(gid)));
		CHECK(!memcmp(&gid, &table[i].gid, sizeof(gid)));
		CHECK_INT(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
		CHECK_INT(entry.port_num, 1);
		CHECK_INT(entry.ndev_ifindex, table[i].ndev_ifindex);
	}
	CHECK_INT(ibv_query_gid(context, 1, port.gid_tbl_len, &gid), -1);
	CHECK_INT(ibv_query_gid(context, 1, -1, &gid), -1);
	CHECK_INT(ibv_query_gid(context, 3, 0, &gid), -1);
	CHECK_INT(ibv_query_gid_ex(context, 1, port.gid_tbl_len, &entry, 0), EINVAL);
	CHECK_INT(ibv_query_gid_ex(context, 3, 0, &entry, 0), EINVAL);
	CHECK_INT(ibv_query_gid_ex(context, 1, 0, &entry, 1), EOPNOTSUPP);
	CHECK_INT(ibv_query_gid_table(context, table, 64, 1), -EOPNOTSUPP);
	CHECK_INT(ibv_query_gid_table(context, table, 0, 0), -EINVAL);
	CHECK_INT(ibv_close_device(context), 0);
}

static void to_init_in(struct ibv_qp *qp, uint16_t pkey_index, int status)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .pkey_index = pkey_index };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS), status);
}

/* Sends a message from one entry of the P_Key table to another, and expects `status`. */
static void send_between(struct rig *r, uint16_t from, uint16_t to, enum ibv_wc_status status)
{
	struct ibv_qp_init_attr init = small_qp(r->cq);
	struct ibv_qp *a = ibv_create_qp(r->pd, &init), *b = ibv_create_qp(r->pd, &init);
	CHECK(a && b);
	to_init_in(a, from, 0);
	to_init_in(b, to, 0);
	to_rtr(a, b->qp_num);
	to_rtr(b, a->qp_num);
	/* A long timeout, so that the ACK is in time even on a busy machine. */
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = 0x123,
				    .timeout = status == IBV_WC_SUCCESS ? 18 : 8,
				    .retry_cnt = 1, .rnr_retry = 7 };
	CHECK_INT(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					      IBV_QP_MAX_QP_RD_ATOMIC), 0);
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
	CHECK_INT(ibv_post_recv(b, &receive, &bad_receive), 0);
	struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK_INT(ibv_post_send(a, &wr, &bad), 0);
	struct ibv_wc wc;
	do {
		wc = next_completion(r->cq);
	} while (wc.wr_id == 1);
	CHECK_INT(wc.status, status);
	CHECK_INT(ibv_destroy_qp(a), 0);
	CHECK_INT(ibv_destroy_qp(b), 0);
}

/* A P_Key table with several configured entries. */
/*= ERN-04 BTH-06 type=test */
static void partitions_are_apart(void)
{
	setenv("ROCADE_PKEYS", "0xffff,0x8001,0x0002", 1);
	struct rig r = rig_open();
	struct ibv_port_attr port;
	struct ibv_device_attr device;
	CHECK_INT(ibv_query_port(r.context, 1, &port), 0);
	CHECK_INT(port.pkey_tbl_len, 3);
	CHECK_INT(ibv_query_device(r.context, &device), 0);
	CHECK_INT(device.max_pkeys, 3);
	static const uint16_t table[] = { 0xffff, 0x8001, 0x0002 };
	for (int i = 0; i < 3; i++) {
		__be16 pkey;
		CHECK_INT(ibv_query_pkey(r.context, 1, i, &pkey), 0);
		CHECK_INT(be16toh(pkey), table[i]);
		CHECK_INT(ibv_get_pkey_index(r.context, 1, pkey), i);
	}
	__be16 none;
	CHECK_INT(ibv_query_pkey(r.context, 1, 3, &none), -1);
	CHECK_INT(ibv_query_pkey(r.context, 1, -1, &none), -1);
	CHECK_INT(ibv_query_pkey(r.context, 3, 0, &none), -1);
	CHECK_INT(ibv_get_pkey_index(r.context, 1, htobe16(0x8003)), -1);

	send_between(&r, 1, 1, IBV_WC_SUCCESS);
	send_between(&r, 0, 0, IBV_WC_SUCCESS);
	CHECK_INT(ibv_query_port(r.context, 1, &port), 0);
	CHECK_INT(port.bad_pkey_cntr, 0);
	CHECK_INT(port.qkey_viol_cntr, 0);
	send_between(&r, 0, 1, IBV_WC_RETRY_EXC_ERR);
	/* The port counts the packets that it drops. */
	do {
		struct ibv_wc wc;
		CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
		CHECK_INT(ibv_query_port(r.context, 1, &port), 0);
	} while (port.bad_pkey_cntr == 0);
	CHECK_INT(port.qkey_viol_cntr, 0);
	/* Limited members cannot communicate with each other. */
	send_between(&r, 2, 2, IBV_WC_RETRY_EXC_ERR);

	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	to_init_in(qp, 3, EINVAL);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

/* A device with the identity of another one. */
static void the_identity_is_configured(void)
{
	setenv("ROCADE_IDENTITY", "0x02c9:0x1017", 1);
	struct ibv_context *context = open_device();
	struct ibv_device_attr attr;
	CHECK_INT(ibv_query_device(context, &attr), 0);
	CHECK_INT(attr.vendor_id, 0x02c9);
	CHECK_INT(attr.vendor_part_id, 4119);
	CHECK_INT(ibv_close_device(context), 0);
}

/* A device configured like the kernel's rxe: the attributes that programs rely on. */
static void a_device_is_like_rxe(void)
{
	setenv("ROCADE_LIKE", "rxe", 1);
	struct rig r = rig_open();
	CHECK(!strcmp(ibv_get_device_name(r.context->device), "rxe0"));
	struct ibv_device_attr_ex attr;
	CHECK_INT(ibv_query_device_ex(r.context, NULL, &attr), 0);
	CHECK(!strcmp(attr.orig_attr.fw_ver, "0.0.0"));
	CHECK_INT(attr.orig_attr.vendor_id, 0xffffff);
	CHECK_INT(attr.orig_attr.vendor_part_id, 0);
	CHECK_INT(attr.orig_attr.hw_ver, 0);
	CHECK_INT(attr.orig_attr.device_cap_flags, 0x01223c76);
	CHECK_INT(attr.orig_attr.max_srq_sge, 27);
	CHECK_INT(attr.orig_attr.max_cqe, 32767);
	CHECK_INT(attr.orig_attr.atomic_cap, IBV_ATOMIC_HCA);
	CHECK_INT(attr.odp_caps.general_caps, 0);
	CHECK_INT(attr.tso_caps.max_tso, 0);
	CHECK_INT(attr.completion_timestamp_mask, 0);
	CHECK_INT((be64toh(attr.orig_attr.node_guid) >> 24 & 0xffff), 0xfffe);

	struct ibv_qp_init_attr init = small_qp(r.cq);
	init.cap.max_send_sge = 3;
	init.cap.max_inline_data = 0;
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	CHECK_INT(init.cap.max_inline_data, 48);
	CHECK_INT(ibv_destroy_qp(qp), 0);

	/* Every successful receive has the flag, and no other completion has it. */
	struct ibv_sge sge = sge_at(&r, 0, 16);
	struct ibv_recv_wr receives[2] = {
		{ .wr_id = 1, .sg_list = &sge, .num_sge = 1, .next = &receives[1] },
		{ .wr_id = 2, .sg_list = &sge, .num_sge = 1 },
	};
	struct ibv_recv_wr *bad_receive;
	CHECK_INT(ibv_post_recv(r.b, receives, &bad_receive), 0);
	struct ibv_send_wr send = { .wr_id = 3, .sg_list = &sge, .num_sge = 1,
				    .opcode = IBV_WR_SEND_WITH_IMM,
				    .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	CHECK_INT(ibv_post_send(r.a, &send, &bad), 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.wc_flags, wc.wr_id == 3 ? 0 : IBV_WC_GRH | IBV_WC_WITH_IMM);
	}
	to_error(r.b);
	struct ibv_wc wc = next_completion(r.cq);
	CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK_INT(wc.wc_flags, 0);
	rig_close(&r);
}

/* A device configured like an mlx5 one. */
static void a_device_is_like_mlx5(void)
{
	setenv("ROCADE_LIKE", "mlx5", 1);
	struct rig r = rig_open();
	CHECK(!strcmp(ibv_get_device_name(r.context->device), "mlx5_0"));
	struct ibv_device_attr attr;
	CHECK_INT(ibv_query_device(r.context, &attr), 0);
	CHECK_INT(attr.vendor_id, 0x02c9);
	CHECK_INT(attr.vendor_part_id, 4119);
	CHECK_INT(attr.max_sge, 30);
	CHECK_INT(attr.max_qp_rd_atom, 16);
	CHECK_INT(attr.max_qp_init_rd_atom, 16);
	CHECK(!strcmp(attr.fw_ver, "16.35.4030"));
	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(r.context, 1, &port), 0);
	CHECK_INT(port.max_msg_sz, 1 << 30);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	init.cap.max_send_sge = 1;
	init.cap.max_inline_data = 220;
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	CHECK_INT(init.cap.max_inline_data, 252);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

/* The attributes that `libmlx5` returns for a device with an mlx5 identity. Newer headers have
 * `max_dc_rd_atom` and `max_dc_init_rd_atom` at offsets 152 and 160 of `struct mlx5dv_context`.
 * They are written only if requested. */
static void limits_of_dynamic_connections(void)
{
	enum { COMP_MASK = 16, DC_ODP_CAPS = 84, MAX_DC_RD_ATOM = 152, MAX_DC_INIT_RD_ATOM = 160, END = 168 };
	struct mlx5_ops {
		uint32_t version;
		void *unsupported, *is_supported, *open_device;
		int (*query_device)(struct ibv_context *, void *);
	};
	setenv("ROCADE_IDENTITY", "0x02c9:0x1017", 1);
	struct ibv_context *context = open_device();
	void *symbol = dlsym(RTLD_DEFAULT, "rocade_mlx5");
	CHECK(symbol);
	const struct mlx5_ops *ops = ((const struct mlx5_ops *(*)(void))symbol)();
	for (int asked = 0; asked < 2; asked++) {
		uint64_t words[32], mask = 1 << 7 | asked << 14;
		memset(words, 0xee, sizeof words);
		words[COMP_MASK / 8] = mask;
		CHECK_INT(ops->query_device(context, words), 0);
		CHECK_INT(words[COMP_MASK / 8], mask);
		uint32_t odp;
		memcpy(&odp, (char *)words + DC_ODP_CAPS, 4);
		/* Neither FLUSH nor ATOMIC WRITE. */
		CHECK_INT(odp, IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
				       IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV);
		uint64_t untouched = 0xeeeeeeeeeeeeeeee;
		/* As ConnectX reports it, although the device could do more. */
		CHECK_INT(words[MAX_DC_RD_ATOM / 8], asked ? 16 : untouched);
		CHECK_INT(words[MAX_DC_INIT_RD_ATOM / 8], asked ? 16 : untouched);
		CHECK_INT(words[END / 8], untouched);
	}
	CHECK_INT(ibv_close_device(context), 0);
}

/* Returns true if this process gets a huge page. */
static bool has_huge_page(void)
{
	int segment = shmget(IPC_PRIVATE, 1, SHM_HUGETLB | IPC_CREAT | 0600);
	if (segment >= 0)
		CHECK_INT(shmctl(segment, IPC_RMID, NULL), 0);
	return segment >= 0;
}

/* Creates a CQ, a QP and an SRQ. All succeed, or all fail with ENOMEM. */
static void create_each(struct rig *r, bool succeeds)
{
	struct ibv_qp_init_attr init = small_qp(r->cq);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_cq *cq = ibv_create_cq(r->context, 4, NULL, NULL, 0);
	CHECK(succeeds ? cq != NULL : !cq && errno == ENOMEM);
	struct ibv_qp *qp = ibv_create_qp(r->pd, &init);
	CHECK(succeeds ? qp != NULL : !qp && errno == ENOMEM);
	struct ibv_srq *srq = ibv_create_srq(r->pd, &shared);
	CHECK(succeeds ? srq != NULL : !srq && errno == ENOMEM);
	if (succeeds) {
		CHECK_INT(ibv_destroy_cq(cq), 0);
		CHECK_INT(ibv_destroy_qp(qp), 0);
		CHECK_INT(ibv_destroy_srq(srq), 0);
	}
}

static void ask_for_pages(const char *kind)
{
	setenv("MLX_CQ_ALLOC_TYPE", kind, 1);
	setenv("MLX_QP_ALLOC_TYPE", kind, 1);
	setenv("MLX_SRQ_ALLOC_TYPE", kind, 1);
}

/* On an mlx5 device, objects that must be in huge pages fail if there are none. */
static void huge_pages_that_are_not_there(void)
{
	setenv("ROCADE_LIKE", "mlx5", 1);
	struct rig r = rig_open();
	ask_for_pages("PREFER_HUGE");
	create_each(&r, true);
	ask_for_pages("HUGE");
	create_each(&r, has_huge_page());
	rig_close(&r);
}

/* Other devices do not know these variables. */
static void huge_pages_of_other_devices(void)
{
	ask_for_pages("HUGE");
	struct rig r = rig_open();
	create_each(&r, true);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "rates_are_noted", rates_are_noted },
		{ "a_static_rate_reads_back", a_static_rate_reads_back },
		{ "enhancements_are_none", enhancements_are_none },
		{ "the_gid_table_has_an_end", the_gid_table_has_an_end },
		{ "partitions_are_apart", partitions_are_apart },
		{ "the_identity_is_configured", the_identity_is_configured },
		{ "a_device_is_like_rxe", a_device_is_like_rxe },
		{ "a_device_is_like_mlx5", a_device_is_like_mlx5 },
		{ "limits_of_dynamic_connections", limits_of_dynamic_connections },
		{ "huge_pages_that_are_not_there", huge_pages_that_are_not_there },
		{ "huge_pages_of_other_devices", huge_pages_of_other_devices },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
