//! The device under test, as used by the suite.
//!
//! A [`Peer`] creates connected RC queue pairs on demand. It then reports completions, asynchronous
//! events and the contents of its memory. All values are those of the verbs API, and the interface
//! does not depend on how the device is driven.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use crate::{case::Feature, report::Device};
use rocade_wire::{AckTimeout, Mtu, Psn, Qpn, Rkey, RnrTimer, Service};

/// Returns the RNR timer with this code.
#[must_use]
pub const fn rnr_timer(code: u8) -> RnrTimer {
    match RnrTimer::new(code & 31) {
        Some(timer) => timer,
        None => RnrTimer::LONGEST,
    }
}

/// Returns the ACK timeout with this code.
#[must_use]
pub const fn ack_timeout(code: u8) -> AckTimeout {
    match AckTimeout::new(code & 31) {
        Some(timeout) => timeout,
        None => AckTimeout::DISABLED,
    }
}

/// Access rights of a queue pair or a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// RDMA WRITE.
    pub write: bool,
    /// RDMA READ.
    pub read: bool,
    /// CmpSwap and FetchAdd.
    pub atomic: bool,
    /// FLUSH, for visibility.
    pub flush: bool,
}

impl Rights {
    /// All rights.
    pub const ALL: Self = Self {
        write: true,
        read: true,
        atomic: true,
        flush: true,
    };
    /// No rights.
    pub const NONE: Self = Self {
        write: false,
        read: false,
        atomic: false,
        flush: false,
    };
}

/// A memory region to register. It is zeroed and writable by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// The size in bytes.
    pub len: usize,
    /// The rights of the rig.
    pub rights: Rights,
    /// Register the region in a protection domain other than the queue pair's. With a shared
    /// receive queue, this is the domain of that queue.
    pub foreign_pd: bool,
    /// Allow memory windows on the region.
    pub bindable: bool,
    /// Register the region without the right of the device to write it for its owner. The region
    /// then has no rights to write for the rig either.
    pub read_only: bool,
}

impl RegionSpec {
    /// Returns a region with all rights in the queue pair's protection domain.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        Self {
            len,
            rights: Rights::ALL,
            foreign_pd: false,
            bindable: false,
            read_only: false,
        }
    }

    /// Returns a region that the device can only read, with the rig's right to read.
    #[must_use]
    pub const fn read_only(len: usize) -> Self {
        let rights = Rights {
            read: true,
            ..Rights::NONE
        };
        Self {
            rights,
            read_only: true,
            ..Self::new(len)
        }
    }
}

/// The location of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The remote address of the first byte, a multiple of 8.
    pub va: u64,
    /// The remote key.
    pub rkey: Rkey,
    /// The size in bytes.
    pub len: usize,
}

/// A part of a region, as local buffer of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The index of the region in [`QpSpec::regions`].
    pub region: usize,
    /// The offset of the first byte.
    pub offset: usize,
    /// The length in bytes.
    pub len: u32,
    /// Use a local key that does not exist.
    pub bad_key: bool,
}

impl Buffer {
    /// Returns `len` bytes from `offset` of region 0.
    #[must_use]
    pub const fn new(offset: usize, len: u32) -> Self {
        Self {
            region: 0,
            offset,
            len,
            bad_key: false,
        }
    }
}

/// The Q_Key of datagram queue pairs of the peer and the rig.
pub const QKEY: u32 = 0x1bad_cafe;

/// The number of the rig's shared receive queue, for XRC initiators.
pub const RIG_SRQN: u32 = 0x00c0_ffee;

/// The access key of DC targets.
pub const DC_KEY: u64 = 0xfeed_0123_4567_beef;

/// The receive queue of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceivesFrom {
    /// The queue pair's own receive queue.
    #[default]
    Own,
    /// A shared receive queue in another protection domain.
    Shared,
    /// A shared receive queue in an XRC domain. The queue pair is an XRC target.
    Xrc,
}

/// The properties of a queue pair. [`Default`] suits most cases.
#[derive(Clone, Debug)]
pub struct QpSpec {
    /// The transport service: RC, UC, UD, XRC for an initiator, or DC for a target. A datagram
    /// queue pair sends to the rig.
    pub service: Service,
    /// Create a DC initiator that sends to targets of the rig, instead of a target.
    pub initiates: bool,
    /// The rig's address. Set by the bench.
    pub rig_addr: IpAddr,
    /// The rig's QP number. Set by the bench.
    pub rig_qpn: Qpn,
    /// The PSN of the rig's first request.
    pub rq_psn: Psn,
    /// The PSN of the peer's first request.
    pub sq_psn: Psn,
    /// The path MTU.
    pub pmtu: Mtu,
    /// The `qp_access_flags`.
    pub rights: Rights,
    /// The number of outstanding READs and atomics of the rig that the peer accepts.
    pub max_dest_rd_atomic: u8,
    /// The number of READs and atomics that the peer may have outstanding.
    pub max_rd_atomic: u8,
    /// The timer in the peer's RNR NAKs.
    pub min_rnr_timer: RnrTimer,
    /// The local ACK timeout. The default of 0 disables it.
    pub ack_timeout: AckTimeout,
    /// The number of retries after timeouts and sequence errors.
    pub retry_cnt: u8,
    /// The number of retries after RNR NAKs.
    pub rnr_retry: u8,
    /// The state to bring the queue pair to: INIT, RTR or RTS.
    pub state: State,
    /// The memory to register.
    pub regions: Vec<RegionSpec>,
    /// The number of entries of the completion queue. The device may have more.
    pub cq_depth: u32,
    /// The receive queue.
    pub receives_from: ReceivesFrom,
    /// The receives to post before the first packet arrives. Their IDs are 0, 1, 2, …
    pub receives: Vec<Buffer>,
}

impl QpSpec {
    /// Returns the transport service of the packets.
    #[must_use]
    pub const fn of_service(&self) -> Service {
        match self.receives_from {
            ReceivesFrom::Xrc => Service::Xrc,
            ReceivesFrom::Own | ReceivesFrom::Shared => self.service,
        }
    }
}

impl Default for QpSpec {
    /// Returns PSNs that wrap within a few packets, the smallest path MTU, all rights, 4 KiB of
    /// memory, no receive and no ACK timer.
    fn default() -> Self {
        Self {
            service: Service::Rc,
            initiates: false,
            rig_addr: IpAddr::from([0, 0, 0, 0]),
            rig_qpn: Qpn::new(0),
            rq_psn: Psn::new(0x00ff_fffe),
            sq_psn: Psn::new(0x00ff_fffd),
            pmtu: Mtu::Mtu256,
            rights: Rights::ALL,
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: rnr_timer(14),
            ack_timeout: AckTimeout::DISABLED,
            retry_cnt: 3,
            rnr_retry: 3,
            state: State::Rts,
            regions: vec![RegionSpec::new(4096)],
            cq_depth: 256,
            receives_from: ReceivesFrom::Own,
            receives: Vec::new(),
        }
    }
}

/// A bind operation of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBind {
    /// The key: that of a type 2 window after the bind, and that of a type 1 window before it.
    pub rkey: Rkey,
    /// The index of the region in [`QpSpec::regions`].
    pub region: usize,
    /// The offset of the first byte.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
    /// The rights of the rig.
    pub rights: Rights,
    /// Remote addresses are relative to the start of the window.
    pub zero_based: bool,
}

/// A masked atomic operation. Operands are 8-byte words, the one at the lowest address first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskedWork {
    /// Compares and swaps the bits in the masks.
    CmpSwap {
        /// The new value.
        swap: [u64; 4],
        /// The expected value.
        compare: [u64; 4],
        /// The bits of the new value that are stored.
        swap_mask: [u64; 4],
        /// The bits of the expected value that are compared.
        compare_mask: [u64; 4],
    },
    /// Adds fields.
    FetchAdd {
        /// The addend.
        add: [u64; 4],
        /// The highest bit of each field.
        boundary: [u64; 4],
    },
}

/// An operation of the peer's requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkOp {
    /// SEND.
    Send {
        /// The immediate data.
        imm: Option<[u8; 4]>,
    },
    /// SEND with Invalidate.
    SendInv {
        /// The rig's key.
        rkey: Rkey,
    },
    /// Binds a memory window. The buffer is ignored.
    Bind(WindowBind),
    /// Invalidates a key of the peer. The buffer is ignored.
    Invalidate {
        /// The key.
        rkey: Rkey,
    },
    /// RDMA WRITE.
    Write {
        /// The remote address.
        va: u64,
        /// The remote key.
        rkey: Rkey,
        /// The immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ.
    Read {
        /// The remote address.
        va: u64,
        /// The remote key.
        rkey: Rkey,
    },
    /// Compare and swap.
    CmpSwap {
        /// The remote address.
        va: u64,
        /// The remote key.
        rkey: Rkey,
        /// The value to compare with.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// The remote address.
        va: u64,
        /// The remote key.
        rkey: Rkey,
        /// The value to add.
        add: u64,
    },
    /// A masked atomic.
    Masked {
        /// The remote address.
        va: u64,
        /// The remote key.
        rkey: Rkey,
        /// The binary logarithm of the operand size in bytes.
        log_size: u8,
        /// The operation.
        op: MaskedWork,
    },
    /// FLUSH of a range, for visibility. The buffer is ignored.
    Flush {
        /// The remote address.
        va: u64,
        /// The remote key.
        rkey: Rkey,
        /// The length in bytes.
        len: u32,
    },
    /// ATOMIC WRITE.
    AtomicWrite {
        /// The remote address.
        va: u64,
        /// The remote key.
        rkey: Rkey,
    },
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The ID in the completion.
    pub id: u64,
    /// The operation.
    pub op: WorkOp,
    /// The data to send, or the buffer of the result.
    pub buffer: Buffer,
    /// Complete the request even if it succeeds.
    pub signaled: bool,
    /// Set the solicited-event bit.
    pub solicited: bool,
    /// Wait for earlier READs and atomics.
    pub fence: bool,
    /// The rig's target of a DC initiator's request. The default is the target of the connection.
    pub target: Option<Qpn>,
}

impl Work {
    /// Creates a signaled work request without other flags.
    #[must_use]
    pub const fn new(id: u64, op: WorkOp, buffer: Buffer) -> Self {
        Self {
            id,
            op,
            buffer,
            signaled: true,
            solicited: false,
            fence: false,
            target: None,
        }
    }
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[allow(missing_docs, reason = "named as in the verbs API")] $variant,)*
            /// Another code of the verbs API.
            Other(u32),
        }

        impl $name {
            /// Converts the value of the verbs API.
            #[must_use]
            pub const fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }
    };
}

codes! {
    /// The status of a completion (`ibv_wc_status`).
    Status {
        Success = 0,
        LocLenErr = 1,
        LocQpOpErr = 2,
        LocProtErr = 4,
        WrFlushErr = 5,
        MwBindErr = 6,
        BadRespErr = 7,
        LocAccessErr = 8,
        RemInvReqErr = 9,
        RemAccessErr = 10,
        RemOpErr = 11,
        RetryExcErr = 12,
        RnrRetryExcErr = 13,
    }
}

codes! {
    /// An asynchronous event (`ibv_event_type`).
    Event {
        CqErr = 0,
        QpFatal = 1,
        QpReqErr = 2,
        QpAccessErr = 3,
        CommEst = 4,
        SqDrained = 5,
        PathMig = 6,
        SrqLimitReached = 15,
        LastWqeReached = 16,
    }
}

codes! {
    /// The state of a queue pair (`ibv_qp_state`).
    State {
        Reset = 0,
        Init = 1,
        Rtr = 2,
        Rts = 3,
        Sqd = 4,
        Sqe = 5,
        Err = 6,
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The ID of the work request.
    pub id: u64,
    /// The status.
    pub status: Status,
    /// Set for completions of receives.
    pub receive: bool,
    /// The number of received bytes, valid for successful receives.
    pub byte_len: u32,
    /// The immediate data.
    pub imm: Option<[u8; 4]>,
    /// The key that the message has invalidated.
    pub invalidated: Option<Rkey>,
}

/// The error that a peer cannot do what was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unable(pub String);

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unable {}

/// A device under test.
pub trait Peer {
    /// Returns the name, which is that of the file of expectations.
    fn name(&self) -> &str;

    /// Returns the address.
    fn address(&self) -> IpAddr;

    /// Returns what is known about the device.
    fn device(&self) -> Device {
        Device {
            address: self.address().to_string(),
            suite: env!("CARGO_PKG_VERSION").to_owned(),
            ..Device::default()
        }
    }

    /// Returns the reason why the peer can no longer be used, if there is one.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Returns true if the peer has the feature. Cases that need a missing feature are skipped.
    ///
    /// The default implementation has every feature but the deviation [`Feature::RxeFlush`].
    fn can(&self, feature: Feature) -> bool {
        feature != Feature::RxeFlush
    }

    /// Creates a queue pair and connects it to the rig.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn open(&self, spec: &QpSpec) -> Result<Box<dyn PeerQp>, Unable>;

    /// Returns a user of the device's connection manager.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn manager(&self) -> Result<Box<dyn PeerManager>, Unable> {
        Err(Unable("no connection manager".to_owned()))
    }
}

/// An event for the owner of a connection or service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerEvent {
    /// The event type (`rdma_cm_event_type`).
    pub kind: u32,
    /// 0, a negative errno value, or the reason of a rejection.
    pub status: i32,
    /// The private data of the other side's program.
    pub private_data: Vec<u8>,
}

/// A user of the device's connection manager. It handles one connection at a time: that of the last
/// request in either direction. The drop releases all its resources.
pub trait PeerManager {
    /// Listens at a free port, for connections or for datagrams. Returns the port.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn listen(&self, datagrams: bool) -> Result<u16, Unable>;

    /// Requests a connection for a queue pair.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn connect(&self, to: SocketAddr, qpn: Qpn, private_data: &[u8]) -> Result<(), Unable>;

    /// Accepts the request, with a queue pair.
    ///
    /// # Errors
    /// There is no request.
    fn accept(&self, qpn: Qpn, private_data: &[u8]) -> Result<(), Unable>;

    /// Confirms a connection that the other side has accepted.
    ///
    /// # Errors
    /// The other side has not accepted.
    fn establish(&self) -> Result<(), Unable>;

    /// Rejects the request.
    ///
    /// # Errors
    /// There is no request.
    fn reject(&self, private_data: &[u8]) -> Result<(), Unable>;

    /// Disconnects, or answers the disconnection of the other side.
    ///
    /// # Errors
    /// There is no connection.
    fn disconnect(&self) -> Result<(), Unable>;

    /// Returns the next event, if there is one.
    fn poll_event(&self) -> Option<ManagerEvent>;
}

/// A queue pair of the device under test, which is destroyed on drop.
pub trait PeerQp {
    /// Returns the QP number.
    fn qpn(&self) -> Qpn;

    /// Returns the number of the XRC SRQ of a queue pair with [`ReceivesFrom::Xrc`], and 0 for
    /// others.
    fn srqn(&self) -> u32;

    /// Returns region `index` of the specification.
    ///
    /// # Panics
    /// If there is no such region.
    fn region(&self, index: usize) -> Region;

    /// Returns `len` bytes from `offset` of a region.
    ///
    /// # Panics
    /// If the range is not inside the region.
    fn read_memory(&self, region: usize, offset: usize, len: usize) -> Vec<u8>;

    /// Stores `data` at `offset` of a region.
    ///
    /// # Panics
    /// If the range is not inside the region.
    fn write_memory(&self, region: usize, offset: usize, data: &[u8]);

    /// Deregisters a region.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn deregister(&self, region: usize) -> Result<(), Unable>;

    /// Allocates a type 2 memory window of the queue pair's protection domain, and returns its key.
    /// The window lives as long as the queue pair.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn window(&self) -> Result<Rkey, Unable>;

    /// Allocates a type 1 memory window of the queue pair's protection domain, and returns its key.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn type_1_window(&self) -> Result<Rkey, Unable> {
        Err(Unable("no memory windows of type 1".to_owned()))
    }

    /// Posts a bind of a type 1 window, and returns its new key. A length of 0 binds the window to
    /// nothing.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn bind_type_1(&self, id: u64, bind: &WindowBind) -> Result<Rkey, Unable> {
        let _ = (id, bind);
        Err(Unable("no memory windows of type 1".to_owned()))
    }

    /// Creates another queue pair with the protection domain, the regions, the windows and the
    /// attributes of this one. It is connected to another number of the rig, has a completion queue
    /// of its own, and shares the asynchronous events. It must be dropped first.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn sibling(&self, rig_qpn: Qpn) -> Result<Box<dyn PeerQp>, Unable> {
        let _ = rig_qpn;
        Err(Unable(
            "no two queue pairs in a protection domain".to_owned(),
        ))
    }

    /// Creates an indirect key of these consecutive segments, with addresses from 0 on. The key
    /// lives as long as the queue pair.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn indirect(&self, segments: &[Buffer], rights: Rights) -> Result<Rkey, Unable> {
        let _ = (segments, rights);
        Err(Unable("no indirect keys".to_owned()))
    }

    /// Loads the path to this address of the rig as the alternate path, and sets the migration
    /// state to REARM.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn rearm(&self, to: IpAddr) -> Result<(), Unable> {
        let _ = to;
        Err(Unable("no path migration".to_owned()))
    }

    /// Attaches a UD queue pair to a multicast group, and joins the group at the IP level.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn join(&self, group: IpAddr) -> Result<(), Unable> {
        let _ = group;
        Err(Unable("no multicast".to_owned()))
    }

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn leave(&self, group: IpAddr) -> Result<(), Unable> {
        let _ = group;
        Err(Unable("no multicast".to_owned()))
    }

    /// Arms the limit of the shared receive queue.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn limit(&self, limit: u32) -> Result<(), Unable> {
        let _ = limit;
        Err(Unable("no limit of a shared receive queue".to_owned()))
    }

    /// Moves the queue pair to RESET, and from there to RTS, with the attributes that it was opened
    /// with.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn reset(&self) -> Result<(), Unable> {
        Err(Unable("it cannot be reset".to_owned()))
    }

    /// Moves the queue pair to SQD. It raises SQ_DRAINED if `notify` is set.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn drain(&self, notify: bool) -> Result<(), Unable> {
        let _ = notify;
        Err(Unable("no state SQD".to_owned()))
    }

    /// Moves the queue pair from SQD or SQE to RTS.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn resume(&self) -> Result<(), Unable> {
        Err(Unable("no way back to RTS".to_owned()))
    }

    /// Destroys the queue pair, but keeps its memory and completions.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn destroy(&self) -> Result<(), Unable> {
        Err(Unable("it cannot be destroyed by itself".to_owned()))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn post_recv(&self, id: u64, buffer: Buffer) -> Result<(), Unable>;

    /// Posts a send work request.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn post_send(&self, work: &Work) -> Result<(), Unable>;

    /// Returns the next completion, if there is one.
    fn poll_completion(&self) -> Option<Completion>;

    /// Returns the next asynchronous event of this queue pair, if there is one.
    fn poll_event(&self) -> Option<Event>;

    /// Returns the state.
    fn state(&self) -> State;

    /// Moves the queue pair to ERR.
    ///
    /// # Errors
    /// [`Unable`], which skips the case.
    fn to_error(&self) -> Result<(), Unable>;
}
