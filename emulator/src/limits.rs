//! Limits of every emulated device.

/// QPs of a process: 16 bits of the QP number, less the few that are never allocated.
pub const MAX_QP: u32 = 65_000;
/// Depth of a send or receive queue.
pub const MAX_QP_WR: u32 = 16_384;
/// Shared receive queues of a process, which are numbered like QPs.
pub const MAX_SRQ: u32 = 65_000;
/// Depth of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 65_536;
/// Scatter/gather entries of a work request.
pub const MAX_SGE: u32 = 32;
/// Longest inline send in bytes.
pub const MAX_INLINE_DATA: u32 = 1_024;
/// Completion queues.
pub const MAX_CQ: u32 = 65_536;
/// Entries of a completion queue.
pub const MAX_CQE: u32 = 1 << 22;
/// Completion counters of a device.
pub const MAX_COMP_COUNTERS: u32 = 65_536;
/// Memory regions: a quarter of the 24 bits of their index, so that a random index is usually free.
pub const MAX_MR: u32 = 1 << 22;
/// Memory windows.
pub const MAX_MW: u32 = 1 << 20;
/// Entries of an indirect memory key.
pub const MAX_INDIRECT_ENTRIES: u32 = 1 << 16;
/// Entries of a list inside a work request.
pub const MAX_INLINE_ENTRIES: u32 = 1 << 8;
/// Device memory of all its contexts, in bytes.
pub const MAX_DM_SIZE: usize = 16 << 20;
/// Protection domains.
pub const MAX_PD: u32 = 1 << 20;
/// Outstanding READs and atomics of a QP, in either role. The kernel's rxe grants as many, so that
/// applications that use the peer's limit for their own connect in both directions.
pub const MAX_RD_ATOM: u8 = 128;
/// Completion vectors.
pub const COMP_VECTORS: u32 = 1;
/// ACK delay of the device: 4.096 µs times 2 to the power of this.
pub const LOCAL_CA_ACK_DELAY: u8 = 15;
/// Multicast groups that QPs of a process may be attached to.
pub const MAX_MCAST_GROUPS: u32 = 1_024;
/// QPs that may be attached to a group.
pub const MAX_MCAST_QP_ATTACH: u32 = 256;
/// Address handles. Memory is the only limit.
pub const MAX_AH: u32 = 1 << 20;
/// Longest message in bytes.
pub const MAX_MSG_SZ: u32 = 1 << 31;
/// Capabilities of `ibv_device_cap_flags`: `BAD_PKEY_CNTR`, `AUTO_PATH_MIG`, `PORT_ACTIVE_EVENT`,
/// `SYS_IMAGE_GUID`, `RC_RNR_NAK_GEN`, `SRQ_RESIZE`, `MEM_WINDOW`, `XRC`, `MEM_MGT_EXTENSIONS`,
/// `MEM_WINDOW_TYPE_2B`, `RAW_IP_CSUM`, `MANAGED_FLOW_STEERING`.
//= XRC-14
pub const DEVICE_CAP_FLAGS: u32 = 1 << 1
    | 1 << 4
    | 1 << 10
    | 1 << 11
    | 1 << 12
    | 1 << 13
    | 1 << 17
    | 1 << 20
    | 1 << 21
    | 1 << 24
    | 1 << 26
    | 1 << 29;
