//! The device under test, as the suite sees it.
//!
//! A [`Peer`] makes connected RC queue pairs on demand and tells afterwards what it saw:
//! completions, asynchronous events, the contents of its memory. All values are those of the verbs
//! API; nothing says how the device is driven.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use crate::case::Feature;
use rocade_wire::{AckTimeout, Mtu, Psn, Qpn, Rkey, RnrTimer, Service};

/// The RNR timer with this code.
#[must_use]
pub const fn rnr_timer(code: u8) -> RnrTimer {
    match RnrTimer::new(code & 31) {
        Some(timer) => timer,
        None => RnrTimer::LONGEST,
    }
}

/// The ACK timeout with this code.
#[must_use]
pub const fn ack_timeout(code: u8) -> AckTimeout {
    match AckTimeout::new(code & 31) {
        Some(timeout) => timeout,
        None => AckTimeout::DISABLED,
    }
}

/// Access that a peer may have, from a queue pair or to a memory region.
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
    /// All of them.
    pub const ALL: Self = Self {
        write: true,
        read: true,
        atomic: true,
        flush: true,
    };
    /// None.
    pub const NONE: Self = Self {
        write: false,
        read: false,
        atomic: false,
        flush: false,
    };
}

/// A memory region to register, zeroed, writable by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Size in bytes.
    pub len: usize,
    /// What the rig may do with it.
    pub rights: Rights,
    /// Register it in a protection domain other than the queue pair's: that of the shared receive queue, where
    /// there is one.
    pub foreign_pd: bool,
    /// Memory windows may be bound to it.
    pub bindable: bool,
}

impl RegionSpec {
    /// A region with all rights in the queue pair's protection domain.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        Self {
            len,
            rights: Rights::ALL,
            foreign_pd: false,
            bindable: false,
        }
    }
}

/// Where a registered region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Remote address of its first byte, a multiple of 8.
    pub va: u64,
    /// Its remote key.
    pub rkey: Rkey,
    /// Size in bytes.
    pub len: usize,
}

/// A piece of a region, as local buffer of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Index of the region in [`QpSpec::regions`].
    pub region: usize,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: u32,
    /// Name it by a local key that does not exist.
    pub bad_key: bool,
}

impl Buffer {
    /// `len` bytes from `offset` of region 0.
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

/// The Q_Key of datagram queue pairs, the peer's and the rig's.
pub const QKEY: u32 = 0x1bad_cafe;

/// The number of the rig's shared receive queue, which XRC initiators name.
pub const RIG_SRQN: u32 = 0x00c0_ffee;

/// The access key of DC targets.
pub const DC_KEY: u64 = 0xfeed_0123_4567_beef;

/// Where a queue pair takes its receives from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceivesFrom {
    /// A queue of its own.
    #[default]
    Own,
    /// A shared receive queue, which has a protection domain of its own.
    Shared,
    /// The same of an XRC domain: the queue pair is an XRC target.
    Xrc,
}

/// A queue pair that the suite asks for. [`Default`] is what most cases want.
#[derive(Clone, Debug)]
pub struct QpSpec {
    /// Its transport service: RC, UC or UD; XRC is an initiator, DC a target. A datagram queue pair sends to the rig.
    pub service: Service,
    /// A DC initiator instead, which sends to targets of the rig.
    pub initiates: bool,
    /// The rig's address. Filled in by the bench.
    pub rig_addr: IpAddr,
    /// The rig's queue pair number. Filled in by the bench.
    pub rig_qpn: Qpn,
    /// PSN of the rig's first request.
    pub rq_psn: Psn,
    /// PSN of the peer's first request.
    pub sq_psn: Psn,
    /// Path MTU.
    pub pmtu: Mtu,
    /// `qp_access_flags`.
    pub rights: Rights,
    /// READs and atomics that the peer answers.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding.
    pub max_rd_atomic: u8,
    /// What the peer puts into RNR NAKs.
    pub min_rnr_timer: RnrTimer,
    /// Local ACK timeout; 0, the default, is none.
    pub ack_timeout: AckTimeout,
    /// Retries on timeouts and sequence errors.
    pub retry_cnt: u8,
    /// Retries on RNR NAKs.
    pub rnr_retry: u8,
    /// Go to RTS, not only to RTR.
    pub ready_to_send: bool,
    /// Memory to register.
    pub regions: Vec<RegionSpec>,
    /// Where receives go.
    pub receives_from: ReceivesFrom,
    /// Receives to post before the first packet comes; their ids are 0, 1, 2, …
    pub receives: Vec<Buffer>,
}

impl QpSpec {
    /// Of which service its packets are.
    #[must_use]
    pub const fn of_service(&self) -> Service {
        match self.receives_from {
            ReceivesFrom::Xrc => Service::Xrc,
            ReceivesFrom::Own | ReceivesFrom::Shared => self.service,
        }
    }
}

impl Default for QpSpec {
    /// PSNs that wrap within a few packets, the smallest path MTU, all rights, 4 KiB of memory, no
    /// receive, no ACK timer.
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
            ready_to_send: true,
            regions: vec![RegionSpec::new(4096)],
            receives_from: ReceivesFrom::Own,
            receives: Vec::new(),
        }
    }
}

/// A type 2 memory window's new binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBind {
    /// The key that it has, and will have.
    pub rkey: Rkey,
    /// Index of the region in [`QpSpec::regions`].
    pub region: usize,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// What the rig may do through it.
    pub rights: Rights,
    /// Remote addresses count from its start.
    pub zero_based: bool,
}

/// What a masked atomic does. Operands are words of 8 bytes, that of the lowest address first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskedWork {
    /// Compares and swaps the bits of masks.
    CmpSwap {
        /// New value.
        swap: [u64; 4],
        /// Expected value.
        compare: [u64; 4],
        /// Bits of the new value that count.
        swap_mask: [u64; 4],
        /// Bits of the expected value that count.
        compare_mask: [u64; 4],
    },
    /// Adds in fields.
    FetchAdd {
        /// Addend.
        add: [u64; 4],
        /// The highest bit of each field.
        boundary: [u64; 4],
    },
}

/// What the peer's requester is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkOp {
    /// SEND.
    Send {
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// SEND with Invalidate.
    SendInv {
        /// The rig's key.
        rkey: Rkey,
    },
    /// Bind a memory window; the buffer does not count.
    Bind(WindowBind),
    /// Make a key of the peer invalid, likewise.
    Invalidate {
        /// The key.
        rkey: Rkey,
    },
    /// RDMA WRITE.
    Write {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ.
    Read {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
    },
    /// Compare and swap.
    CmpSwap {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Value to add.
        add: u64,
    },
    /// A masked atomic.
    Masked {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// The operand has 2 to the power of this bytes.
        log_size: u8,
        /// What it does.
        op: MaskedWork,
    },
    /// FLUSH of a range, for visibility; the buffer does not count.
    Flush {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Bytes.
        len: u32,
    },
    /// ATOMIC WRITE.
    AtomicWrite {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
    },
}

/// A send work request; it asks for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub op: WorkOp,
    /// Data to send, or where the result goes.
    pub buffer: Buffer,
    /// Raise a solicited event at the receiver.
    pub solicited: bool,
    /// Wait for earlier READs and atomics.
    pub fence: bool,
    /// The rig's target that a DC initiator sends it to; that of the connection if none is named.
    pub target: Option<Qpn>,
}

impl Work {
    /// A work request without flags.
    #[must_use]
    pub const fn new(id: u64, op: WorkOp, buffer: Buffer) -> Self {
        Self {
            id,
            op,
            buffer,
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
            /// From the value that the verbs API defines.
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
    /// Status of a completion (`ibv_wc_status`).
    Status {
        Success = 0,
        LocLenErr = 1,
        LocQpOpErr = 2,
        LocProtErr = 4,
        WrFlushErr = 5,
        MwBindErr = 6,
        BadRespErr = 7,
        RemInvReqErr = 9,
        RemAccessErr = 10,
        RemOpErr = 11,
        RetryExcErr = 12,
        RnrRetryExcErr = 13,
    }
}

codes! {
    /// Asynchronous event (`ibv_event_type`).
    Event {
        CqErr = 0,
        QpFatal = 1,
        QpReqErr = 2,
        QpAccessErr = 3,
        CommEst = 4,
        SqDrained = 5,
        PathMig = 6,
        LastWqeReached = 16,
    }
}

codes! {
    /// State of a queue pair (`ibv_qp_state`).
    State {
        Reset = 0,
        Init = 1,
        Rtr = 2,
        Rts = 3,
        Sqd = 4,
        Err = 6,
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Id of the work request.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// Of the receive queue.
    pub receive: bool,
    /// Bytes received; meaningful for receives that succeeded.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<[u8; 4]>,
    /// The key that the message has made invalid.
    pub invalidated: Option<Rkey>,
}

/// A peer cannot do what it was asked for.
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
    /// Its name, that of its file of expectations.
    fn name(&self) -> &str;

    /// Its address.
    fn address(&self) -> IpAddr;

    /// Whether it has this. Otherwise the cases that need it are skipped.
    ///
    /// Without an implementation, everything but the deviation [`Feature::RxeFlush`].
    fn can(&self, feature: Feature) -> bool {
        feature != Feature::RxeFlush
    }

    /// Makes a queue pair and connects it to the rig.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn open(&self, spec: &QpSpec) -> Result<Box<dyn PeerQp>, Unable>;

    /// A user of its connection manager.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn manager(&self) -> Result<Box<dyn PeerManager>, Unable> {
        Err(Unable("no connection manager".to_owned()))
    }
}

/// What the owner of a connection, or service, hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerEvent {
    /// The number of its kind (`rdma_cm_event_type`).
    pub kind: u32,
    /// 0, a negative errno value, or the reason of a rejection.
    pub status: i32,
    /// What comes with it of the other side's program.
    pub private_data: Vec<u8>,
}

/// A user of the connection manager of the device under test, who deals with one connection at a time: that of the last
/// request, in either direction. Dropping it ends all it has.
pub trait PeerManager {
    /// Listens at a free port, for connections or for datagrams. The port.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn listen(&self, datagrams: bool) -> Result<u16, Unable>;

    /// Asks for a connection of a queue pair.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn connect(&self, to: SocketAddr, qpn: Qpn, private_data: &[u8]) -> Result<(), Unable>;

    /// Accepts, with a queue pair.
    ///
    /// # Errors
    /// There is nothing to accept.
    fn accept(&self, qpn: Qpn, private_data: &[u8]) -> Result<(), Unable>;

    /// The peer has accepted, and may send.
    ///
    /// # Errors
    /// It has not.
    fn establish(&self) -> Result<(), Unable>;

    /// Rejects.
    ///
    /// # Errors
    /// There is nothing to reject.
    fn reject(&self, private_data: &[u8]) -> Result<(), Unable>;

    /// Disconnects, or answers the peer that does.
    ///
    /// # Errors
    /// There is no connection.
    fn disconnect(&self) -> Result<(), Unable>;

    /// The next event, if there is one.
    fn poll_event(&self) -> Option<ManagerEvent>;
}

/// A queue pair of the device under test. Dropping it destroys it.
pub trait PeerQp {
    /// Its number.
    fn qpn(&self) -> Qpn;

    /// The number of the XRC SRQ that its receives come from ([`ReceivesFrom::Xrc`]); 0 of any other.
    fn srqn(&self) -> u32;

    /// Region `index` of the specification.
    ///
    /// # Panics
    /// If there is no such region.
    fn region(&self, index: usize) -> Region;

    /// `len` bytes from `offset` of a region.
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
    /// [`Unable`] makes the case a skipped one.
    fn deregister(&self, region: usize) -> Result<(), Unable>;

    /// A type 2 memory window of the queue pair's protection domain, which lives as long as the queue pair: its key.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn window(&self) -> Result<Rkey, Unable>;

    /// An indirect key of these pieces, one behind the other, whose addresses count from 0. It lives as long as the
    /// queue pair.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn indirect(&self, pieces: &[Buffer], rights: Rights) -> Result<Rkey, Unable> {
        let _ = (pieces, rights);
        Err(Unable("no indirect keys".to_owned()))
    }

    /// Loads the path to this address of the rig as the alternate one, and moves to REARM.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn rearm(&self, to: IpAddr) -> Result<(), Unable> {
        let _ = to;
        Err(Unable("no path migration".to_owned()))
    }

    /// Destroys it; memory and completions stay.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn destroy(&self) -> Result<(), Unable> {
        Err(Unable("it cannot be destroyed by itself".to_owned()))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn post_recv(&self, id: u64, buffer: Buffer) -> Result<(), Unable>;

    /// Posts a send work request.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn post_send(&self, work: &Work) -> Result<(), Unable>;

    /// The next completion, if there is one.
    fn poll_completion(&self) -> Option<Completion>;

    /// The next asynchronous event of this queue pair, if there is one.
    fn poll_event(&self) -> Option<Event>;

    /// Its state.
    fn state(&self) -> State;

    /// Moves it to ERR.
    ///
    /// # Errors
    /// [`Unable`] makes the case a skipped one.
    fn to_error(&self) -> Result<(), Unable>;
}
