/* The experimental verbs of Rocade's header. */
#include "rig.h"

#include <infiniband/verbs_exp.h>

static void a_device_says_what_it_can_do(void)
{
	struct rig r = rig_open();
	struct ibv_device_attr plain;
	CHECK_INT(ibv_query_device(r.context, &plain), 0);

	struct ibv_exp_device_attr attr;
	memset(&attr, 0xff, sizeof(attr));
	attr.comp_mask = 0;
	CHECK_INT(ibv_exp_query_device(r.context, &attr), 0);
	CHECK_INT(attr.comp_mask, 0);
	CHECK(!strcmp(attr.fw_ver, plain.fw_ver));
	CHECK(attr.node_guid == plain.node_guid && attr.max_mr_size == plain.max_mr_size);
	CHECK_INT(attr.vendor_id, plain.vendor_id);
	CHECK_INT(attr.vendor_part_id, plain.vendor_part_id);
	CHECK_INT(attr.max_qp, plain.max_qp);
	CHECK_INT(attr.max_qp_wr, plain.max_qp_wr);
	CHECK_INT(attr.max_sge, plain.max_sge);
	CHECK_INT(attr.max_cqe, plain.max_cqe);
	CHECK_INT(attr.max_mr, plain.max_mr);
	CHECK_INT(attr.max_mw, plain.max_mw);
	CHECK_INT(attr.max_ah, plain.max_ah);
	CHECK_INT(attr.max_srq_sge, plain.max_srq_sge);
	CHECK_INT(attr.max_mcast_grp, plain.max_mcast_grp);
	CHECK_INT(attr.max_qp_rd_atom, plain.max_qp_rd_atom);
	CHECK_INT(attr.exp_atomic_cap, plain.atomic_cap);
	CHECK_INT(attr.max_pkeys, plain.max_pkeys);
	CHECK_INT(attr.phys_port_cnt, plain.phys_port_cnt);
	CHECK_INT(attr.exp_device_cap_flags, 0);
	CHECK_INT(attr.device_cap_flags, plain.device_cap_flags);
	CHECK_INT(attr.reserved, plain.device_cap_flags);
	CHECK_INT(attr.timestamp_mask, 0);
	CHECK_INT(attr.odp_caps.general_odp_caps, 0);

	/* Unknown bits are cleared without an error. */
	attr.comp_mask = UINT32_MAX;
	CHECK_INT(ibv_exp_query_device(r.context, &attr), 0);
	uint32_t always = IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS | IBV_EXP_DEVICE_ATTR_ODP |
			  IBV_EXP_DEVICE_ATTR_WITH_TIMESTAMP_MASK |
			  IBV_EXP_DEVICE_ATTR_WITH_HCA_CORE_CLOCK | IBV_EXP_DEVICE_ATTR_INLINE_RECV_SZ;
	CHECK_INT(attr.comp_mask & always, always);
	CHECK(!(attr.comp_mask & 1u << 31));
	CHECK_INT((uint32_t)attr.exp_device_cap_flags, plain.device_cap_flags);
	uint64_t flags = IBV_EXP_DEVICE_ODP | IBV_EXP_DEVICE_MW_TYPE_2B;
	CHECK((attr.exp_device_cap_flags & flags) == flags);
	CHECK(!(attr.exp_device_cap_flags & IBV_EXP_DEVICE_MW_TYPE_2A));
	CHECK(attr.odp_caps.general_odp_caps & IBV_ODP_SUPPORT);
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC);
	CHECK(!(attr.odp_caps.per_transport_caps.ud_odp_caps & IBV_ODP_SUPPORT_WRITE));
	CHECK_INT(attr.inline_recv_sz, 0);
	CHECK(attr.hca_core_clock && attr.timestamp_mask);

	/* Each bit alone. */
	for (int bit = 0; bit < 32; bit++) {
		struct ibv_exp_device_attr one = { .comp_mask = 1u << bit };
		CHECK_INT(ibv_exp_query_device(r.context, &one), 0);
		CHECK_INT(one.comp_mask, attr.comp_mask & 1u << bit);
	}
	CHECK_INT(ibv_exp_query_device(NULL, &attr), EINVAL);
	CHECK_INT(ibv_exp_query_device(r.context, NULL), EINVAL);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_device_says_what_it_can_do", a_device_says_what_it_can_do },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
