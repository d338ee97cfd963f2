//! Numbers of `linux/netlink.h` and `rdma/rdma_netlink.h`.

/// `NETLINK_RDMA`, the protocol that programs ask for.
pub(super) const NETLINK_RDMA: i32 = 20;

pub(super) const NLM_F_REQUEST: u16 = 0x1;
pub(super) const NLM_F_MULTI: u16 = 0x2;
pub(super) const NLM_F_ACK: u16 = 0x4;
/// `NLM_F_ROOT | NLM_F_MATCH`.
pub(super) const NLM_F_DUMP: u16 = 0x300;
/// The error holds only the header of the request.
pub(super) const NLM_F_CAPPED: u16 = 0x100;
/// The error has attributes.
pub(super) const NLM_F_ACK_TLVS: u16 = 0x200;

pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
/// Smaller types control netlink itself.
pub(super) const NLMSG_MIN_TYPE: u16 = 16;

/// The text of an error.
pub(super) const NLMSGERR_ATTR_MSG: u16 = 1;

/// `RDMA_NL_NLDEV`, in the upper six bits of a type.
const NLDEV: u16 = 5;

/// The command of a type, where the type is one of `RDMA_NL_NLDEV`.
pub(super) const fn command(kind: u16) -> Option<u16> {
    if kind >> 10 == NLDEV {
        Some(kind & 0x3ff)
    } else {
        None
    }
}

/// The type of a command.
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
    pub(crate) const STAT_SET: u16 = 16;
    pub(crate) const STAT_GET: u16 = 17;
    pub(crate) const STAT_DEL: u16 = 18;
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
    pub(crate) const RES_QP: u16 = 19;
    pub(crate) const NDEV_INDEX: u16 = 50;
    pub(crate) const NDEV_NAME: u16 = 51;
    pub(crate) const SYS_NETNS_MODE: u16 = 66;
    pub(crate) const DEV_PROTOCOL: u16 = 67;
    pub(crate) const STAT_MODE: u16 = 74;
    pub(crate) const STAT_RES: u16 = 75;
    pub(crate) const STAT_HWCOUNTERS: u16 = 80;
    pub(crate) const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub(crate) const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub(crate) const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub(crate) const SYS_COPY_ON_FORK: u16 = 93;
}
