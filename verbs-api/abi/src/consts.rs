//! Enumerators of `verbs.h`.

/// Defines constants and the table that the layout test reads.
macro_rules! enumerators {
    ($( $ty:ty, $doc:literal: { $( $name:ident = $value:literal ),+ $(,)? } )+) => {
        $($( #[doc = $doc] pub const $name: $ty = $value; )+)+

        /// All constants of this module that are in the measured headers, as (name, value).
        pub const ENUMERATORS: &[(&str, i64)] = &[$($( (stringify!($name), $value), )+)+];
    };
}

enumerators! {
    u32, "Unit of a completion counter. (`enum ibv_comp_cntr_type`)": {
        IBV_COMP_CNTR_TYPE_WRS = 0,
        IBV_COMP_CNTR_TYPE_BYTES = 1,
    }
    u32, "Operation that a completion counter counts. (`enum ibv_qp_attach_comp_cntr_op`)": {
        IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1,
        IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 2,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 4,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 8,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 16,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 32,
    }
    u64, "Field of `ibv_mr_init_attr` that is set. (`enum ibv_mr_init_attr_mask`)": {
        IBV_REG_MR_MASK_IOVA = 1,
        IBV_REG_MR_MASK_ADDR = 2,
        IBV_REG_MR_MASK_FD = 4,
        IBV_REG_MR_MASK_FD_OFFSET = 8,
        IBV_REG_MR_MASK_DMAH = 16,
        IBV_REG_MR_MASK_BUF = 32,
    }
    u32, "Flag of `mlx5dv_reg_dmabuf_mr`. (`enum mlx5dv_reg_dmabuf_access`)": {
        MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT = 1,
    }
    u8, "Kind of memory for a value of a counter of EFA. (`efadv.h`)": {
        EFADV_MEMORY_LOCATION_VA = 0,
        EFADV_MEMORY_LOCATION_DMABUF = 1,
    }
    u32, "Values of a counter of EFA that are in memory of the program. (`efadv.h`)": {
        EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM = 1,
        EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM = 2,
    }
    u32, "Asynchronous event of later releases. (`enum ibv_event_type`)": {
        IBV_EVENT_DEVICE_SPEED_CHANGE = 20,
    }
    u32, "Work request opcode of later releases. (`enum ibv_wr_opcode`)": {
        IBV_WR_FLUSH = 14,
    }
    u32, "Completion opcode of later releases. (`enum ibv_wc_opcode`)": {
        IBV_WC_FLUSH = 8,
    }
    u32, "Type of a GID table entry. (`enum ibv_gid_type`)": {
        IBV_GID_TYPE_IB = 0,
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
    }
    u32, "Capability of raw packet queue pairs. (`enum ibv_raw_packet_caps`)": {
        IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1,
        IBV_RAW_PACKET_CAP_SCATTER_FCS = 2,
        IBV_RAW_PACKET_CAP_IP_CSUM = 4,
        IBV_RAW_PACKET_CAP_DELAY_DROP = 8,
    }
    u32, "Flag of a flow steering rule. (`enum ibv_flow_flags`)": {
        IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 2,
        IBV_FLOW_ATTR_FLAGS_EGRESS = 4,
    }
    u32, "Type of a flow steering rule. (`enum ibv_flow_attr_type`)": {
        IBV_FLOW_ATTR_NORMAL = 0,
        IBV_FLOW_ATTR_ALL_DEFAULT = 1,
        IBV_FLOW_ATTR_MC_DEFAULT = 2,
        IBV_FLOW_ATTR_SNIFFER = 3,
    }
    u32, "Type of a flow specification. (`enum ibv_flow_spec_type`)": {
        IBV_FLOW_SPEC_ETH = 0x20,
        IBV_FLOW_SPEC_IPV4 = 0x30,
        IBV_FLOW_SPEC_IPV6 = 0x31,
        IBV_FLOW_SPEC_IPV4_EXT = 0x32,
        IBV_FLOW_SPEC_ESP = 0x34,
        IBV_FLOW_SPEC_TCP = 0x40,
        IBV_FLOW_SPEC_UDP = 0x41,
        IBV_FLOW_SPEC_VXLAN_TUNNEL = 0x50,
        IBV_FLOW_SPEC_GRE = 0x51,
        IBV_FLOW_SPEC_MPLS = 0x60,
        IBV_FLOW_SPEC_INNER = 0x100,
        IBV_FLOW_SPEC_ACTION_TAG = 0x1000,
        IBV_FLOW_SPEC_ACTION_DROP = 0x1001,
        IBV_FLOW_SPEC_ACTION_HANDLE = 0x1002,
        IBV_FLOW_SPEC_ACTION_COUNT = 0x1003,
    }
    i32, "Kind of node. (`enum ibv_node_type`)": {
        IBV_NODE_UNKNOWN = -1,
        IBV_NODE_CA = 1,
        IBV_NODE_SWITCH = 2,
        IBV_NODE_ROUTER = 3,
        IBV_NODE_RNIC = 4,
        IBV_NODE_USNIC = 5,
        IBV_NODE_USNIC_UDP = 6,
        IBV_NODE_UNSPECIFIED = 7,
    }
    i32, "Transport of a device. (`enum ibv_transport_type`)": {
        IBV_TRANSPORT_UNKNOWN = -1,
        IBV_TRANSPORT_IB = 0,
        IBV_TRANSPORT_IWARP = 1,
        IBV_TRANSPORT_USNIC = 2,
        IBV_TRANSPORT_USNIC_UDP = 3,
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }
    u32, "Device capability bit. (`enum ibv_device_cap_flags`)": {
        IBV_DEVICE_RESIZE_MAX_WR = 1,
        IBV_DEVICE_BAD_PKEY_CNTR = 2,
        IBV_DEVICE_BAD_QKEY_CNTR = 4,
        IBV_DEVICE_RAW_MULTI = 8,
        IBV_DEVICE_AUTO_PATH_MIG = 16,
        IBV_DEVICE_CHANGE_PHY_PORT = 32,
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 64,
        IBV_DEVICE_CURR_QP_STATE_MOD = 128,
        IBV_DEVICE_SHUTDOWN_PORT = 0x100,
        IBV_DEVICE_INIT_TYPE = 0x200,
        IBV_DEVICE_PORT_ACTIVE_EVENT = 0x400,
        IBV_DEVICE_SYS_IMAGE_GUID = 0x800,
        IBV_DEVICE_RC_RNR_NAK_GEN = 0x1000,
        IBV_DEVICE_SRQ_RESIZE = 0x2000,
        IBV_DEVICE_N_NOTIFY_CQ = 0x4000,
        IBV_DEVICE_MEM_WINDOW = 0x20000,
        IBV_DEVICE_UD_IP_CSUM = 0x40000,
        IBV_DEVICE_XRC = 0x100000,
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 0x200000,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 0x800000,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 0x1000000,
        IBV_DEVICE_RC_IP_CSUM = 0x2000000,
        IBV_DEVICE_RAW_IP_CSUM = 0x4000000,
        IBV_DEVICE_MANAGED_FLOW_STEERING = 0x20000000,
    }
    u32, "Result of `ibv_is_fork_initialized`. (`enum ibv_fork_status`)": {
        IBV_FORK_DISABLED = 0,
        IBV_FORK_ENABLED = 1,
        IBV_FORK_UNNEEDED = 2,
    }
    u32, "Atomicity of a device's atomics. (`enum ibv_atomic_cap`)": {
        IBV_ATOMIC_NONE = 0,
        IBV_ATOMIC_HCA = 1,
        IBV_ATOMIC_GLOB = 2,
    }
    u32, "On-demand paging capability bit per transport. (`enum ibv_odp_transport_cap_bits`)": {
        IBV_ODP_SUPPORT_SEND = 1,
        IBV_ODP_SUPPORT_RECV = 2,
        IBV_ODP_SUPPORT_WRITE = 4,
        IBV_ODP_SUPPORT_READ = 8,
        IBV_ODP_SUPPORT_ATOMIC = 16,
        IBV_ODP_SUPPORT_SRQ_RECV = 32,
    }
    u64, "On-demand paging capability bit. (`enum ibv_odp_general_caps`)": {
        IBV_ODP_SUPPORT = 1,
        IBV_ODP_SUPPORT_IMPLICIT = 2,
    }
    u32, "MTU code. (`enum ibv_mtu`)": {
        IBV_MTU_256 = 1,
        IBV_MTU_512 = 2,
        IBV_MTU_1024 = 3,
        IBV_MTU_2048 = 4,
        IBV_MTU_4096 = 5,
    }
    u32, "Logical port state. (`enum ibv_port_state`)": {
        IBV_PORT_NOP = 0,
        IBV_PORT_DOWN = 1,
        IBV_PORT_INIT = 2,
        IBV_PORT_ARMED = 3,
        IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }
    u32, "Port capability bit. (`enum ibv_port_cap_flags`)": {
        IBV_PORT_SM = 2,
        IBV_PORT_NOTICE_SUP = 4,
        IBV_PORT_TRAP_SUP = 8,
        IBV_PORT_OPT_IPD_SUP = 16,
        IBV_PORT_AUTO_MIGR_SUP = 32,
        IBV_PORT_SL_MAP_SUP = 64,
        IBV_PORT_MKEY_NVRAM = 128,
        IBV_PORT_PKEY_NVRAM = 0x100,
        IBV_PORT_LED_INFO_SUP = 0x200,
        IBV_PORT_SYS_IMAGE_GUID_SUP = 0x800,
        IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 0x1000,
        IBV_PORT_EXTENDED_SPEEDS_SUP = 0x4000,
        IBV_PORT_CAP_MASK2_SUP = 0x8000,
        IBV_PORT_CM_SUP = 0x10000,
        IBV_PORT_SNMP_TUNNEL_SUP = 0x20000,
        IBV_PORT_REINIT_SUP = 0x40000,
        IBV_PORT_DEVICE_MGMT_SUP = 0x80000,
        IBV_PORT_VENDOR_CLASS_SUP = 0x100000,
        IBV_PORT_DR_NOTICE_SUP = 0x200000,
        IBV_PORT_CAP_MASK_NOTICE_SUP = 0x400000,
        IBV_PORT_BOOT_MGMT_SUP = 0x800000,
        IBV_PORT_LINK_LATENCY_SUP = 0x1000000,
        IBV_PORT_CLIENT_REG_SUP = 0x2000000,
        IBV_PORT_IP_BASED_GIDS = 0x4000000,
    }
    u32, "Port capability bit, second word. (`enum ibv_port_cap_flags2`)": {
        IBV_PORT_SET_NODE_DESC_SUP = 1,
        IBV_PORT_INFO_EXT_SUP = 2,
        IBV_PORT_VIRT_SUP = 4,
        IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 8,
        IBV_PORT_LINK_WIDTH_2X_SUP = 16,
        IBV_PORT_LINK_SPEED_HDR_SUP = 32,
        IBV_PORT_LINK_SPEED_NDR_SUP = 0x400,
    }
    u32, "Asynchronous event. (`enum ibv_event_type`)": {
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_SQ_DRAINED = 5,
        IBV_EVENT_PATH_MIG = 6,
        IBV_EVENT_PATH_MIG_ERR = 7,
        IBV_EVENT_DEVICE_FATAL = 8,
        IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10,
        IBV_EVENT_LID_CHANGE = 11,
        IBV_EVENT_PKEY_CHANGE = 12,
        IBV_EVENT_SM_CHANGE = 13,
        IBV_EVENT_SRQ_ERR = 14,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        IBV_EVENT_CLIENT_REREGISTER = 17,
        IBV_EVENT_GID_CHANGE = 18,
        IBV_EVENT_WQ_FATAL = 19,
    }
    u32, "Completion status. (`enum ibv_wc_status`)": {
        IBV_WC_SUCCESS = 0,
        IBV_WC_LOC_LEN_ERR = 1,
        IBV_WC_LOC_QP_OP_ERR = 2,
        IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_MW_BIND_ERR = 6,
        IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12,
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        IBV_WC_REM_ABORT_ERR = 16,
        IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18,
        IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        IBV_WC_GENERAL_ERR = 21,
        IBV_WC_TM_ERR = 22,
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }
    u32, "Completion opcode. (`enum ibv_wc_opcode`)": {
        IBV_WC_SEND = 0,
        IBV_WC_RDMA_WRITE = 1,
        IBV_WC_RDMA_READ = 2,
        IBV_WC_COMP_SWAP = 3,
        IBV_WC_FETCH_ADD = 4,
        IBV_WC_BIND_MW = 5,
        IBV_WC_LOCAL_INV = 6,
        IBV_WC_TSO = 7,
        IBV_WC_ATOMIC_WRITE = 9,
        IBV_WC_RECV = 128,
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
        IBV_WC_TM_ADD = 130,
        IBV_WC_TM_DEL = 131,
        IBV_WC_TM_SYNC = 132,
        IBV_WC_TM_RECV = 133,
        IBV_WC_TM_NO_TAG = 134,
        IBV_WC_DRIVER1 = 135,
        IBV_WC_DRIVER2 = 136,
        IBV_WC_DRIVER3 = 137,
    }
    u64, "Bit of a field that an extended CQ reports. (`enum ibv_create_cq_wc_flags`)": {
        IBV_WC_EX_WITH_BYTE_LEN = 1,
        IBV_WC_EX_WITH_IMM = 2,
        IBV_WC_EX_WITH_QP_NUM = 4,
        IBV_WC_EX_WITH_SRC_QP = 8,
        IBV_WC_EX_WITH_SLID = 16,
        IBV_WC_EX_WITH_SL = 32,
        IBV_WC_EX_WITH_DLID_PATH_BITS = 64,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 128,
        IBV_WC_EX_WITH_CVLAN = 0x100,
        IBV_WC_EX_WITH_FLOW_TAG = 0x200,
        IBV_WC_EX_WITH_TM_INFO = 0x400,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 0x800,
    }
    u32, "Completion flag bit. (`enum ibv_wc_flags`)": {
        IBV_WC_GRH = 1,
        IBV_WC_WITH_IMM = 2,
        IBV_WC_IP_CSUM_OK = 4,
        IBV_WC_WITH_INV = 8,
        IBV_WC_TM_SYNC_REQ = 16,
        IBV_WC_TM_MATCH = 32,
        IBV_WC_TM_DATA_VALID = 64,
    }
    u32, "Access right bit. (`enum ibv_access_flags`)": {
        IBV_ACCESS_LOCAL_WRITE = 1,
        IBV_ACCESS_REMOTE_WRITE = 2,
        IBV_ACCESS_REMOTE_READ = 4,
        IBV_ACCESS_REMOTE_ATOMIC = 8,
        IBV_ACCESS_MW_BIND = 16,
        IBV_ACCESS_ZERO_BASED = 32,
        IBV_ACCESS_ON_DEMAND = 64,
        IBV_ACCESS_HUGETLB = 128,
        IBV_ACCESS_RELAXED_ORDERING = 0x100000,
    }
    u32, "Bit of a valid member of `ibv_xrcd_init_attr`. (`enum ibv_xrcd_init_attr_mask`)": {
        IBV_XRCD_INIT_ATTR_FD = 1,
        IBV_XRCD_INIT_ATTR_OFLAGS = 2,
        IBV_XRCD_INIT_ATTR_RESERVED = 4,
    }
    u32, "Bit of an attribute that `ibv_rereg_mr` changes. (`enum ibv_rereg_mr_flags`)": {
        IBV_REREG_MR_CHANGE_TRANSLATION = 1,
        IBV_REREG_MR_CHANGE_PD = 2,
        IBV_REREG_MR_CHANGE_ACCESS = 4,
        IBV_REREG_MR_FLAGS_SUPPORTED = 7,
    }
    u32, "Type of a memory window. (`enum ibv_mw_type`)": {
        IBV_MW_TYPE_1 = 1,
        IBV_MW_TYPE_2 = 2,
    }
    u32, "Static rate code. (`enum ibv_rate`)": {
        IBV_RATE_MAX = 0,
        IBV_RATE_2_5_GBPS = 2,
        IBV_RATE_5_GBPS = 5,
        IBV_RATE_10_GBPS = 3,
        IBV_RATE_20_GBPS = 6,
        IBV_RATE_30_GBPS = 4,
        IBV_RATE_40_GBPS = 7,
        IBV_RATE_60_GBPS = 8,
        IBV_RATE_80_GBPS = 9,
        IBV_RATE_120_GBPS = 10,
        IBV_RATE_14_GBPS = 11,
        IBV_RATE_56_GBPS = 12,
        IBV_RATE_112_GBPS = 13,
        IBV_RATE_168_GBPS = 14,
        IBV_RATE_25_GBPS = 15,
        IBV_RATE_100_GBPS = 16,
        IBV_RATE_200_GBPS = 17,
        IBV_RATE_300_GBPS = 18,
        IBV_RATE_28_GBPS = 19,
        IBV_RATE_50_GBPS = 20,
        IBV_RATE_400_GBPS = 21,
        IBV_RATE_600_GBPS = 22,
        IBV_RATE_800_GBPS = 23,
        IBV_RATE_1200_GBPS = 24,
    }
    u32, "SRQ attribute bit. (`enum ibv_srq_attr_mask`)": {
        IBV_SRQ_MAX_WR = 1,
        IBV_SRQ_LIMIT = 2,
    }
    u32, "SRQ type. (`enum ibv_srq_type`)": {
        IBV_SRQT_BASIC = 0,
        IBV_SRQT_XRC = 1,
        IBV_SRQT_TM = 2,
    }
    u32, "Bit of a valid member of `ibv_srq_init_attr_ex`. (`enum ibv_srq_init_attr_mask`)": {
        IBV_SRQ_INIT_ATTR_TYPE = 1,
        IBV_SRQ_INIT_ATTR_PD = 2,
        IBV_SRQ_INIT_ATTR_XRCD = 4,
        IBV_SRQ_INIT_ATTR_CQ = 8,
        IBV_SRQ_INIT_ATTR_TM = 16,
        IBV_SRQ_INIT_ATTR_RESERVED = 32,
    }
    u32, "QP type. (`enum ibv_qp_type`)": {
        IBV_QPT_RC = 2,
        IBV_QPT_UC = 3,
        IBV_QPT_UD = 4,
        IBV_QPT_RAW_PACKET = 8,
        IBV_QPT_XRC_SEND = 9,
        IBV_QPT_XRC_RECV = 10,
        IBV_QPT_DRIVER = 255,
    }
    u32, "Bit of a valid member of `ibv_qp_init_attr_ex`. (`enum ibv_qp_init_attr_mask`)": {
        IBV_QP_INIT_ATTR_PD = 1,
        IBV_QP_INIT_ATTR_XRCD = 2,
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 4,
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 8,
        IBV_QP_INIT_ATTR_IND_TABLE = 16,
        IBV_QP_INIT_ATTR_RX_HASH = 32,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64,
    }
    u32, "QP creation flag bit. (`enum ibv_qp_create_flags`)": {
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 2,
        IBV_QP_CREATE_SCATTER_FCS = 0x100,
        IBV_QP_CREATE_CVLAN_STRIPPING = 0x200,
        IBV_QP_CREATE_SOURCE_QPN = 0x400,
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 0x800,
    }
    u64, "Bit of a send operation that an extended QP has. (`enum ibv_qp_create_send_ops_flags`)": {
        IBV_QP_EX_WITH_RDMA_WRITE = 1,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 2,
        IBV_QP_EX_WITH_SEND = 4,
        IBV_QP_EX_WITH_SEND_WITH_IMM = 8,
        IBV_QP_EX_WITH_RDMA_READ = 16,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 32,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 64,
        IBV_QP_EX_WITH_LOCAL_INV = 128,
        IBV_QP_EX_WITH_BIND_MW = 0x100,
        IBV_QP_EX_WITH_SEND_WITH_INV = 0x200,
        IBV_QP_EX_WITH_TSO = 0x400,
        IBV_QP_EX_WITH_ATOMIC_WRITE = 0x1000,
    }
    u32, "Bit of a valid member of `ibv_qp_open_attr`. (`enum ibv_qp_open_attr_mask`)": {
        IBV_QP_OPEN_ATTR_NUM = 1,
        IBV_QP_OPEN_ATTR_XRCD = 2,
        IBV_QP_OPEN_ATTR_CONTEXT = 4,
        IBV_QP_OPEN_ATTR_TYPE = 8,
        IBV_QP_OPEN_ATTR_RESERVED = 16,
    }
    u32, "QP attribute bit. (`enum ibv_qp_attr_mask`)": {
        IBV_QP_STATE = 1,
        IBV_QP_CUR_STATE = 2,
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 4,
        IBV_QP_ACCESS_FLAGS = 8,
        IBV_QP_PKEY_INDEX = 16,
        IBV_QP_PORT = 32,
        IBV_QP_QKEY = 64,
        IBV_QP_AV = 128,
        IBV_QP_PATH_MTU = 0x100,
        IBV_QP_TIMEOUT = 0x200,
        IBV_QP_RETRY_CNT = 0x400,
        IBV_QP_RNR_RETRY = 0x800,
        IBV_QP_RQ_PSN = 0x1000,
        IBV_QP_MAX_QP_RD_ATOMIC = 0x2000,
        IBV_QP_ALT_PATH = 0x4000,
        IBV_QP_MIN_RNR_TIMER = 0x8000,
        IBV_QP_SQ_PSN = 0x10000,
        IBV_QP_MAX_DEST_RD_ATOMIC = 0x20000,
        IBV_QP_PATH_MIG_STATE = 0x40000,
        IBV_QP_CAP = 0x80000,
        IBV_QP_DEST_QPN = 0x100000,
        IBV_QP_RATE_LIMIT = 0x2000000,
    }
    u32, "QP state. (`enum ibv_qp_state`)": {
        IBV_QPS_RESET = 0,
        IBV_QPS_INIT = 1,
        IBV_QPS_RTR = 2,
        IBV_QPS_RTS = 3,
        IBV_QPS_SQD = 4,
        IBV_QPS_SQE = 5,
        IBV_QPS_ERR = 6,
        IBV_QPS_UNKNOWN = 7,
    }
    u32, "Path migration state. (`enum ibv_mig_state`)": {
        IBV_MIG_MIGRATED = 0,
        IBV_MIG_REARM = 1,
        IBV_MIG_ARMED = 2,
    }
    u32, "Work request opcode. (`enum ibv_wr_opcode`)": {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        IBV_WR_LOCAL_INV = 7,
        IBV_WR_BIND_MW = 8,
        IBV_WR_SEND_WITH_INV = 9,
        IBV_WR_TSO = 10,
        IBV_WR_DRIVER1 = 11,
        IBV_WR_ATOMIC_WRITE = 15,
    }
    u32, "Send flag bit. (`enum ibv_send_flags`)": {
        IBV_SEND_FENCE = 1,
        IBV_SEND_SIGNALED = 2,
        IBV_SEND_SOLICITED = 4,
        IBV_SEND_INLINE = 8,
        IBV_SEND_IP_CSUM = 16,
    }
    u32, "CQ attribute bit. (`enum ibv_cq_attr_mask`)": {
        IBV_CQ_ATTR_MODERATE = 1,
        IBV_CQ_ATTR_RESERVED = 2,
    }
    u32, "Bit of a valid member of `ibv_cq_init_attr_ex`. (`enum ibv_cq_init_attr_mask`)": {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1,
        IBV_CQ_INIT_ATTR_MASK_PD = 2,
    }
    u32, "CQ creation flag bit. (`enum ibv_create_cq_attr_flags`)": {
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1,
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 2,
    }
    u32, "Bit of a valid member of `ibv_parent_domain_init_attr`. (`enum ibv_parent_domain_init_attr_mask`)": {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1,
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 2,
    }
    u32, "Run-time value bit. (`enum ibv_values_mask`)": {
        IBV_VALUES_MASK_RAW_CLOCK = 1,
        IBV_VALUES_MASK_RESERVED = 2,
    }
    i32, "Error code of `ibv_rereg_mr`. (`enum ibv_rereg_mr_err_code`)": {
        IBV_REREG_MR_ERR_INPUT = -1,
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        IBV_REREG_MR_ERR_CMD = -4,
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }
    u8, "Link layer of a port.": {
        IBV_LINK_LAYER_UNSPECIFIED = 0,
        IBV_LINK_LAYER_INFINIBAND = 1,
        IBV_LINK_LAYER_ETHERNET = 2,
    }
    u64, "Fields that every CQ can report.": {
        IBV_WC_STANDARD_FLAGS = 127,
    }
    u8, "Port flag: a GRH is required.": {
        IBV_QPF_GRH_REQUIRED = 1,
    }
    u32, "Access bits that a device may ignore.": {
        IBV_ACCESS_OPTIONAL_RANGE = 0x3ff00000,
    }
}

/// Send operation `wr_flush` of an extended QP. Defined by newer headers only.
pub const IBV_QP_EX_WITH_FLUSH: u64 = 0x800;
/// Extended device capability: FLUSH to global visibility.
pub const IBV_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
/// Extended device capability: ATOMIC WRITE.
pub const IBV_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
/// On-demand paging per transport: FLUSH. Defined by newer headers only.
pub const IBV_ODP_SUPPORT_FLUSH: u32 = 64;
/// On-demand paging per transport: ATOMIC WRITE. Defined by newer headers only.
pub const IBV_ODP_SUPPORT_ATOMIC_WRITE: u32 = 128;
