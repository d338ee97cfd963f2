//! Constants of `linux/netlink.h` and `rdma/rdma_netlink.h`.

/// The protocol of the kernel's RDMA subsystem.
pub(super) const NETLINK_RDMA: i32 = 20;

pub(super) const NLM_F_REQUEST: u16 = 0x1;
pub(super) const NLM_F_MULTI: u16 = 0x2;
pub(super) const NLM_F_ACK: u16 = 0x4;
/// `NLM_F_ROOT | NLM_F_MATCH`.
pub(super) const NLM_F_DUMP: u16 = 0x300;
/// The error contains only the header of the request.
pub(super) const NLM_F_CAPPED: u16 = 0x100;
/// The error has attributes.
pub(super) const NLM_F_ACK_TLVS: u16 = 0x200;

pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
/// The first message type that is not a control message of netlink.
pub(super) const NLMSG_MIN_TYPE: u16 = 16;

/// The text of an error.
pub(super) const NLMSGERR_ATTR_MSG: u16 = 1;

/// `RDMA_NL_NLDEV`, in the upper six bits of a type.
const NLDEV: u16 = 5;

/// Returns the command of a message type, if the type is one of `RDMA_NL_NLDEV`.
pub(super) const fn command(kind: u16) -> Option<u16> {
    if kind >> 10 == NLDEV {
        Some(kind & 0x3ff)
    } else {
        None
    }
}

/// Returns the message type of a command.
pub(super) const fn kind(command: u16) -> u16 {
    (NLDEV << 10) + command
}

/// `RDMA_NLDEV_CMD_*`.
pub(super) mod cmd {
    pub(crate) const GET: u16 = 1;
    pub(crate) const SET: u16 = 2;
    pub(crate) const NEWLINK: u16 = 3;
    pub(crate) const DELLINK: u16 = 4;
    pub(crate) const PORT_GET: u16 = 5;
    pub(crate) const SYS_GET: u16 = 6;
    pub(crate) const SYS_SET: u16 = 7;
    pub(crate) const RES_GET: u16 = 9;
    pub(crate) const RES_QP_GET: u16 = 10;
    pub(crate) const RES_CM_ID_GET: u16 = 11;
    pub(crate) const RES_CQ_GET: u16 = 12;
    pub(crate) const RES_MR_GET: u16 = 13;
    pub(crate) const RES_PD_GET: u16 = 14;
    pub(crate) const STAT_SET: u16 = 16;
    pub(crate) const STAT_GET: u16 = 17;
    pub(crate) const STAT_DEL: u16 = 18;
    pub(crate) const RES_CTX_GET: u16 = 22;
    pub(crate) const RES_SRQ_GET: u16 = 23;
}

/// `RDMA_NLDEV_ATTR_*`, `RDMA_NLDEV_SYS_ATTR_*`.
pub(super) mod attr {
    pub(crate) const DEV_INDEX: u16 = 1;
    pub(crate) const DEV_NAME: u16 = 2;
    pub(crate) const PORT_INDEX: u16 = 3;
    pub(crate) const FW_VERSION: u16 = 5;
    pub(crate) const NODE_GUID: u16 = 6;
    pub(crate) const SYS_IMAGE_GUID: u16 = 7;
    pub(crate) const PORT_STATE: u16 = 12;
    pub(crate) const PORT_PHYS_STATE: u16 = 13;
    pub(crate) const DEV_NODE_TYPE: u16 = 14;
    pub(crate) const RES_SUMMARY: u16 = 15;
    pub(crate) const RES_SUMMARY_ENTRY: u16 = 16;
    pub(crate) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub(crate) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    /// The number of a table's entry attribute is that of the table plus one.
    pub(crate) const RES_QP: u16 = 19;
    pub(crate) const RES_LQPN: u16 = 21;
    pub(crate) const RES_RQPN: u16 = 22;
    pub(crate) const RES_RQ_PSN: u16 = 23;
    pub(crate) const RES_SQ_PSN: u16 = 24;
    pub(crate) const RES_PATH_MIG_STATE: u16 = 25;
    pub(crate) const RES_TYPE: u16 = 26;
    pub(crate) const RES_STATE: u16 = 27;
    pub(crate) const RES_PID: u16 = 28;
    pub(crate) const RES_CM_ID: u16 = 30;
    pub(crate) const RES_PS: u16 = 32;
    pub(crate) const RES_SRC_ADDR: u16 = 33;
    pub(crate) const RES_DST_ADDR: u16 = 34;
    pub(crate) const RES_CQ: u16 = 35;
    pub(crate) const RES_CQE: u16 = 37;
    pub(crate) const RES_USECNT: u16 = 38;
    pub(crate) const RES_MR: u16 = 40;
    pub(crate) const RES_IOVA: u16 = 44;
    pub(crate) const RES_MRLEN: u16 = 45;
    pub(crate) const RES_PD: u16 = 46;
    pub(crate) const NDEV_INDEX: u16 = 50;
    pub(crate) const NDEV_NAME: u16 = 51;
    pub(crate) const RES_PDN: u16 = 60;
    pub(crate) const RES_CQN: u16 = 61;
    pub(crate) const RES_MRN: u16 = 62;
    pub(crate) const RES_CM_IDN: u16 = 63;
    pub(crate) const RES_CTXN: u16 = 64;
    pub(crate) const SYS_NETNS_MODE: u16 = 66;
    pub(crate) const DEV_PROTOCOL: u16 = 67;
    pub(crate) const STAT_MODE: u16 = 74;
    pub(crate) const STAT_RES: u16 = 75;
    pub(crate) const STAT_HWCOUNTERS: u16 = 80;
    pub(crate) const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub(crate) const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub(crate) const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub(crate) const RES_CTX: u16 = 86;
    pub(crate) const RES_SRQ: u16 = 88;
    pub(crate) const RES_SRQN: u16 = 90;
    pub(crate) const SYS_COPY_ON_FORK: u16 = 93;
}
