/* Rocade: experimental verbs. Device capabilities. */
#ifndef ROCADE_VERBS_EXP_DEVICE_H
#define ROCADE_VERBS_EXP_DEVICE_H

#include <infiniband/verbs_exp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ibv_exp_atomic_cap {
	IBV_EXP_ATOMIC_NONE = IBV_ATOMIC_NONE,
	IBV_EXP_ATOMIC_HCA = IBV_ATOMIC_HCA,
	IBV_EXP_ATOMIC_GLOB = IBV_ATOMIC_GLOB,
	/* Big-endian results. Rocade never reports it, because its results are in host order. */
	IBV_EXP_ATOMIC_HCA_REPLY_BE = IBV_EXP_START_ENUM,
};

/* ibv_exp_device_attr.exp_device_cap_flags. The lower half is device_cap_flags of struct
 * ibv_device_attr. */
__extension__ enum ibv_exp_device_cap_flags {
	IBV_EXP_DEVICE_DC_TRANSPORT = IBV_EXP_START_FLAG << 0,
	IBV_EXP_DEVICE_EXT_ATOMICS = IBV_EXP_START_FLAG << 4,
	IBV_EXP_DEVICE_NOP = IBV_EXP_START_FLAG << 5,
	IBV_EXP_DEVICE_UMR = IBV_EXP_START_FLAG << 6,
	IBV_EXP_DEVICE_ODP = IBV_EXP_START_FLAG << 7,
	IBV_EXP_DEVICE_EXT_MASKED_ATOMICS = IBV_EXP_START_FLAG << 14,
	IBV_EXP_DEVICE_DC_INFO = IBV_EXP_START_FLAG << 22,
	IBV_EXP_DEVICE_MW_TYPE_2A = IBV_EXP_START_FLAG << 23,
	IBV_EXP_DEVICE_MW_TYPE_2B = IBV_EXP_START_FLAG << 24,
	IBV_EXP_DEVICE_CROSS_CHANNEL = IBV_EXP_START_FLAG << 28,
};

/* ibv_exp_device_attr.comp_mask: the requested members before the call, the valid ones after it. */
enum ibv_exp_device_attr_comp_mask {
	IBV_EXP_DEVICE_ATTR_CALC_CAP = 1 << 0,
	IBV_EXP_DEVICE_ATTR_WITH_TIMESTAMP_MASK = 1 << 1,
	IBV_EXP_DEVICE_ATTR_WITH_HCA_CORE_CLOCK = 1 << 2,
	IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS = 1 << 3,
	IBV_EXP_DEVICE_DC_RD_REQ = 1 << 4,
	IBV_EXP_DEVICE_DC_RD_RES = 1 << 5,
	IBV_EXP_DEVICE_ATTR_INLINE_RECV_SZ = 1 << 6,
	IBV_EXP_DEVICE_ATTR_RSS_TBL_SZ = 1 << 7,
	IBV_EXP_DEVICE_ATTR_EXT_ATOMIC_ARGS = 1 << 8,
	IBV_EXP_DEVICE_ATTR_UMR = 1 << 9,
	IBV_EXP_DEVICE_ATTR_ODP = 1 << 10,
	IBV_EXP_DEVICE_ATTR_MAX_DCT = 1 << 11,
	IBV_EXP_DEVICE_ATTR_MASKED_ATOMICS = 1 << 19,
};

/* The computations of a send with IBV_EXP_SEND_WITH_CALC. Bit n stands for the enumerator with
 * value n. */
struct ibv_exp_device_calc_cap {
	uint64_t data_types;
	uint64_t data_sizes;
	uint64_t int_ops;
	uint64_t uint_ops;
	uint64_t fp_ops;
};

/* Atomics on operands of other sizes than 8 bytes. */
struct ibv_exp_ext_atomics_params {
	/* Bit n: operands of 2^n bytes. */
	union {
		uint64_t log_atomic_arg_sizes;
		uint64_t atomic_arg_sizes;
	};
	/* Largest field of a fetch-and-add: binary logarithm of its size in bytes. */
	uint32_t max_fa_bit_boundary;
	/* Largest operands of a work request, all together: binary logarithm of their size in
	 * bytes. */
	uint32_t log_max_atomic_inline;
};

/* Like struct ibv_exp_ext_atomics_params for masked atomics, by the byte order of the result. */
struct ibv_exp_masked_atomic_params {
	uint32_t max_fa_bit_boundary;
	uint32_t log_max_atomic_inline;
	uint64_t masked_log_atomic_arg_sizes;
	uint64_t masked_log_atomic_arg_sizes_network_endianness;
};

struct ibv_exp_umr_caps {
	/* Entries of a memory key. */
	union {
		uint32_t max_klm_list_size;
		uint32_t max_mkey_klm_list_size;
	};
	/* Entries of a list that is inline in the work request. */
	uint32_t max_send_wqe_inline_klms;
	/* A key whose entries are keys of MRs has depth 1. */
	uint32_t max_umr_recursion_depth;
	uint32_t max_umr_stride_dimension;
};

/* Like struct ibv_odp_caps, with more services. */
struct ibv_exp_odp_caps {
	uint64_t general_odp_caps;
	struct {
		uint32_t rc_odp_caps;
		uint32_t uc_odp_caps;
		uint32_t ud_odp_caps;
		uint32_t dc_odp_caps;
		uint32_t xrc_odp_caps;
		uint32_t raw_eth_odp_caps;
	} per_transport_caps;
};

/* Like struct ibv_device_attr up to phys_port_cnt. The later members are valid as comp_mask says,
 * and 0 otherwise. */
struct ibv_exp_device_attr {
	char fw_ver[64];
	uint64_t node_guid;
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	/* The lower 32 bits of exp_device_cap_flags, as in struct ibv_device_attr. */
	union {
		int reserved;
		int device_cap_flags;
	};
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	enum ibv_exp_atomic_cap exp_atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
	uint32_t comp_mask; /* enum ibv_exp_device_attr_comp_mask */
	struct ibv_exp_device_calc_cap calc_cap;
	uint64_t timestamp_mask;
	uint64_t hca_core_clock; /* kHz */
	uint64_t exp_device_cap_flags; /* enum ibv_exp_device_cap_flags */
	int max_dc_req_rd_atom;
	int max_dc_res_rd_atom;
	int inline_recv_sz;
	uint32_t max_rss_tbl_sz;
	struct ibv_exp_ext_atomics_params ext_atom;
	struct ibv_exp_umr_caps umr_caps;
	struct ibv_exp_odp_caps odp_caps;
	int max_dct;
	struct ibv_exp_masked_atomic_params masked_atomic;
};

/* Always fills in the plain part. Fills in the other members if comp_mask requests them and the
 * device has them. Then comp_mask says which of them are valid. Ignores unknown bits. */
int ibv_exp_query_device(struct ibv_context *context, struct ibv_exp_device_attr *attr);

#ifdef __cplusplus
}
#endif

#endif
