//! The private interface of `libibverbs.so.1`, which holds the engine, for `librdmacm.so.1`,
//! `libmlx5.so.1` and `libefa.so.1`: function tables in place of system calls.
//!
//! All of these libraries are from one build. Unless stated otherwise, functions return 0 or a
//! positive errno value.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use libc::{pollfd, sockaddr, sockaddr_storage};

use crate::mlx5::{
    mlx5dv_context, mlx5dv_context_attr, mlx5dv_mkey, mlx5dv_mkey_init_attr, mlx5dv_qp_ex,
    mlx5dv_qp_init_attr,
};
use crate::{
    efadv_comp_cntr_init_attr, ibv_ah, ibv_ah_attr, ibv_comp_cntr, ibv_comp_cntr_init_attr,
    ibv_context, ibv_cq, ibv_device, ibv_ece, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex,
    ibv_qp_init_attr_ex, rdma_conn_param,
};

/// Version of [`rocade_cm_ops`]. Every change of the table increments it.
pub const ROCADE_CM_VERSION: u32 = 11;
/// The longest private data of an event in bytes.
pub const ROCADE_CM_PRIVATE_LEN: usize = 232;

/// An event channel of the engine, in memory of `librdmacm.so.1`. A thread may call with it after
/// its destruction, so the memory must stay valid.
#[derive(Debug, Default)]
#[repr(C)]
pub struct rocade_cm_channel {
    /// The engine's channel, or NULL after its destruction.
    pub channel: AtomicPtr<c_void>,
    /// The number of calls that use the channel and do not sleep.
    pub active_calls: AtomicU32,
    /// The number of calls that wait for an event, asleep or not. While it is not 0, the memory
    /// stays valid. A cancelled thread counts for good.
    pub waiting_calls: AtomicU32,
    /// The generation of the process that created it.
    pub generation: AtomicU32,
    /// True if late calls fail instead of sleeping, because the descriptor was non-blocking.
    pub nonblocking: AtomicBool,
}

/// A connection or listener of the engine.
#[derive(Debug)]
#[repr(C)]
pub struct rocade_cm_id {
    #[doc(hidden)]
    pub _opaque: [u8; 0],
}

/// Address family of InfiniBand addresses.
pub const AF_IB: c_int = 27;

/// An InfiniBand address (`rdma/ib.h`). The service ID is in network byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as in rdma/ib.h")]
pub struct sockaddr_ib {
    pub sib_family: u16,
    pub sib_pkey: u16,
    pub sib_flowinfo: u32,
    pub sib_addr: [u8; 16],
    pub sib_sid: u64,
    pub sib_sid_mask: u64,
    pub sib_scope_id: u64,
}

/// A path as in `RDMA_OPTION_IB_PATH` (`infiniband/sa.h`). All members but the flags are in network
/// byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as in infiniband/sa.h")]
pub struct ibv_path_data {
    pub flags: u32,
    pub reserved: u32,
    pub service_id: u64,
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub flowlabel_hoplimit: u32,
    pub tclass: u8,
    pub reversible_numpath: u8,
    pub pkey: u16,
    pub qosclass_sl: u16,
    pub mtu: u8,
    pub rate: u8,
    pub packetlifetime: u8,
    pub preference: u8,
    pub reserved_too: [u8; 6],
}

/// A connection manager event.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "as in rdma_cm_event")]
pub struct rocade_cm_event {
    pub kind: u32,
    pub status: c_int,
    /// The cookie of the ID, or of the listener for a connection request.
    pub cookie: u64,
    /// The new ID of a connection request. The receiver owns it.
    pub new_id: *mut rocade_cm_id,
    /// True if the members below are those of `rdma_ud_param` instead of `rdma_conn_param`.
    pub is_ud: bool,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
    pub qkey: u32,
    /// The argument of an event that the program has written.
    pub argument: u64,
    pub ah_attr: ibv_ah_attr,
    pub private_data: [u8; ROCADE_CM_PRIVATE_LEN],
}

impl core::fmt::Debug for rocade_cm_event {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("rocade_cm_event").finish_non_exhaustive()
    }
}

/// The route of a connection.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "as in rdma_route and ibv_sa_path_rec")]
pub struct rocade_cm_route {
    pub src: sockaddr_storage,
    pub dst: sockaddr_storage,
    /// Index in the device list, or -1 for none.
    pub device: c_int,
    /// Port of the device, from 1.
    pub port_num: u8,
    pub mtu: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub packet_life_time: u8,
    pub flow_label: u32,
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
}

impl core::fmt::Debug for rocade_cm_route {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("rocade_cm_route").finish_non_exhaustive()
    }
}

/// The functions for `librdmacm.so.1`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "as the rdma_cm functions of these names")]
pub struct rocade_cm_ops {
    /// Equal to [`ROCADE_CM_VERSION`].
    pub version: u32,
    /// Returns a number that changes with each `fork`. Objects of an earlier generation must not be
    /// used.
    pub generation: extern "C" fn() -> u32,
    /// Returns true if the device was removed since this context was opened.
    pub is_removed: unsafe extern "C" fn(*mut ibv_context) -> bool,
    /// Gives the calling thread, which serves the whole program, the processors and the priority of
    /// the program.
    pub settle_thread: extern "C" fn(),
    /// Returns true if the process is traced. Decides it in the first call.
    pub trace_is_on: extern "C" fn() -> bool,
    /// Records the begin of a call: its name, a tab and its arguments.
    pub trace_begin: unsafe extern "C" fn(*const u8, usize),
    /// Records the end of the thread's last call: failed, errno, and the result.
    pub trace_end: unsafe extern "C" fn(bool, c_int, *const u8, usize),
    /// Waits for descriptors like ppoll(2), and receives packets meanwhile. Takes the time limit in
    /// nanoseconds, negative for none. Returns the number of ready descriptors, or a negative errno
    /// value. No cancellation point.
    pub poll: unsafe extern "C" fn(*mut pollfd, usize, i64) -> c_int,
    /// Requests the event of the next completion, for a thread that then waits for it in `poll`.
    pub req_notify_to_poll: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    /// Creates a channel. Stores its descriptor in the last argument.
    pub channel_new: unsafe extern "C" fn(*const rocade_cm_channel, *mut c_int) -> c_int,
    /// Destroys a channel. Waits for the calls that use it.
    pub channel_free: unsafe extern "C" fn(*const rocade_cm_channel),
    /// Waits for the next event. Returns 0, or -1 and errno. A cancellation point, like read(2).
    pub channel_get_event:
        unsafe extern "C-unwind" fn(*const rocade_cm_channel, *mut rocade_cm_event) -> c_int,
    /// Creates an ID from channel, port space, QP type and cookie.
    pub id_new: unsafe extern "C" fn(
        *const rocade_cm_channel,
        u32,
        u32,
        u64,
        *mut *mut rocade_cm_id,
    ) -> c_int,
    /// Destroys the ID without freeing it. Returns how many of its events were delivered.
    pub id_destroy: unsafe extern "C" fn(*mut rocade_cm_id) -> u64,
    /// Frees a destroyed ID.
    pub id_free: unsafe extern "C" fn(*mut rocade_cm_id),
    pub id_bind: unsafe extern "C" fn(*mut rocade_cm_id, *const sockaddr) -> c_int,
    /// Takes the source (may be NULL), the destination, and the time limit in milliseconds. A
    /// negative one is none.
    pub id_resolve_addr:
        unsafe extern "C" fn(*mut rocade_cm_id, *const sockaddr, *const sockaddr, c_int) -> c_int,
    pub id_resolve_route: unsafe extern "C" fn(*mut rocade_cm_id) -> c_int,
    pub id_listen: unsafe extern "C" fn(*mut rocade_cm_id, c_int) -> c_int,
    pub id_connect: unsafe extern "C" fn(*mut rocade_cm_id, *const rdma_conn_param) -> c_int,
    pub id_establish: unsafe extern "C" fn(*mut rocade_cm_id) -> c_int,
    /// Accepts a request. Its later events have the given cookie.
    pub id_accept: unsafe extern "C" fn(*mut rocade_cm_id, u64, *const rdma_conn_param) -> c_int,
    /// Takes the reason, the private data and its length.
    pub id_reject: unsafe extern "C" fn(*mut rocade_cm_id, u16, *const c_void, u8) -> c_int,
    pub id_disconnect: unsafe extern "C" fn(*mut rocade_cm_id) -> c_int,
    pub id_notify: unsafe extern "C" fn(*mut rocade_cm_id) -> c_int,
    /// Takes the kind of event, its status and its argument.
    pub id_write_event: unsafe extern "C" fn(*mut rocade_cm_id, u32, c_int, u64) -> c_int,
    /// Returns the attributes for the state in `qp_state`. Stores the mask in the last argument.
    pub id_qp_attr: unsafe extern "C" fn(*mut rocade_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int,
    /// Takes level, name, value and length.
    pub id_set_option:
        unsafe extern "C" fn(*mut rocade_cm_id, c_int, c_int, *const c_void, usize) -> c_int,
    pub id_set_ece: unsafe extern "C" fn(*mut rocade_cm_id, *const ibv_ece) -> c_int,
    pub id_remote_ece: unsafe extern "C" fn(*mut rocade_cm_id, *mut ibv_ece) -> c_int,
    /// Returns in the last argument how many events were delivered.
    pub id_migrate:
        unsafe extern "C" fn(*mut rocade_cm_id, *const rocade_cm_channel, *mut u64) -> c_int,
    /// Joins a multicast group. The resulting event has the 8 bytes of the token as private data.
    pub id_join: unsafe extern "C" fn(*mut rocade_cm_id, *const sockaddr, u64) -> c_int,
    pub id_leave: unsafe extern "C" fn(*mut rocade_cm_id, u64) -> c_int,
    pub id_route: unsafe extern "C" fn(*mut rocade_cm_id, *mut rocade_cm_route) -> c_int,
}

impl core::fmt::Debug for rocade_cm_ops {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("rocade_cm_ops")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Version of [`rocade_mlx5_ops`]. Every change of the table increments it.
pub const ROCADE_MLX5_VERSION: u32 = 5;

/// The functions for `libmlx5.so.1`, like the functions of `mlx5dv.h` with these names.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "as the mlx5dv functions of these names")]
pub struct rocade_mlx5_ops {
    /// Equal to [`ROCADE_MLX5_VERSION`].
    pub version: u32,
    /// Records a call of a function that Rocade does not offer, if the process is traced.
    pub unsupported: unsafe extern "C" fn(*const u8, usize),
    pub is_supported: unsafe extern "C" fn(*mut ibv_device) -> bool,
    pub open_device:
        unsafe extern "C" fn(*mut ibv_device, *mut mlx5dv_context_attr) -> *mut ibv_context,
    pub query_device: unsafe extern "C" fn(*mut ibv_context, *mut mlx5dv_context) -> c_int,
    pub create_qp: unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_qp_init_attr_ex,
        *mut mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp,
    pub qp_ex_from_ibv_qp_ex: unsafe extern "C" fn(*mut ibv_qp_ex) -> *mut mlx5dv_qp_ex,
    pub dci_stream_id_reset: unsafe extern "C" fn(*mut ibv_qp, u16) -> c_int,
    pub map_ah_to_qp: unsafe extern "C" fn(*mut ibv_ah, u32) -> c_int,
    pub create_mkey: unsafe extern "C" fn(*mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey,
    pub destroy_mkey: unsafe extern "C" fn(*mut mlx5dv_mkey) -> c_int,
    pub reserved_qpn_alloc: unsafe extern "C" fn(*mut ibv_context, *mut u32) -> c_int,
    pub reserved_qpn_dealloc: unsafe extern "C" fn(*mut ibv_context, u32) -> c_int,
    pub reg_dmabuf_mr:
        unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int, c_int) -> *mut ibv_mr,
}

impl core::fmt::Debug for rocade_mlx5_ops {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("rocade_mlx5_ops")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Version of [`rocade_efa_ops`]. Every change of the table increments it.
pub const ROCADE_EFA_VERSION: u32 = 2;

/// The functions for `libefa.so.1`, like the functions of `efadv.h` with these names.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "as the efadv functions of these names")]
pub struct rocade_efa_ops {
    /// Equal to [`ROCADE_EFA_VERSION`].
    pub version: u32,
    /// Records a call of a function that Rocade does not offer, if the process is traced.
    pub unsupported: unsafe extern "C" fn(*const u8, usize),
    pub create_comp_cntr: unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_comp_cntr_init_attr,
        *mut efadv_comp_cntr_init_attr,
        u32,
    ) -> *mut ibv_comp_cntr,
}

impl core::fmt::Debug for rocade_efa_ops {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("rocade_efa_ops")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
