//! Dynamic connections (DC): an initiator sends to many targets, one after another, and a target
//! receives from many initiators.
//!
//! A *session* is the reliable connection between the two. It is built from the parts of an RC
//! connection: a [`Requester`](crate::requester::Requester) in the initiator and a
//! [`Responder`](crate::responder::Responder) in the target. It begins with the first packet to a
//! target, which carries START. It ends when the initiator switches to another target. docs/dc.md
//! describes the wire format.

mod initiator;
mod session;
mod stream_channel;
mod target;

use core::net::IpAddr;

use rocade_wire::Qpn;

pub(crate) use initiator::Initiator;
pub(crate) use target::Target;

/// The time for which an idle initiator keeps the session to its last target.
//= DCW-12
pub const SESSION_IDLE_NS: u64 = 100_000_000;

/// The time for which a target remembers a session without traffic, ended or not: longer than any
/// of its packets may be repeated.
//= DCW-14 DCW-15
pub const SESSION_MEMORY_NS: u64 = 60_000_000_000;

/// Most sessions that a target remembers.
pub const MAX_SESSIONS: usize = 16_384;

/// Most concurrent sessions of an initiator, as a power of two (`max_log_num_concurent`).
pub const MAX_LOG_STREAMS: u8 = 4;

/// Most streams of an initiator that may be in error at a time, as a power of two
/// (`max_log_num_errored`).
pub const MAX_LOG_ERRORED: u8 = 7;

/// Streams of an initiator (`mlx5dv_dci_streams`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DciStreams {
    /// Most concurrent sessions, as a power of two. At most [`MAX_LOG_STREAMS`].
    pub log_concurrent: u8,
    /// Number of streams in error that moves the initiator to ERR, as a power of two. At most
    /// [`MAX_LOG_ERRORED`].
    pub log_errored: u8,
}

/// Status of a target (`ibv_exp_query_dct`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DctStatus {
    /// The access key.
    pub key: u64,
    /// Packets with a wrong access key since the target was created.
    pub key_violations: u32,
    /// Sessions that are open.
    pub sessions: usize,
    /// The target accepts no new sessions.
    pub is_draining: bool,
}

/// Destination of an answer of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseRoute {
    /// The local address.
    pub local: IpAddr,
    /// The address of the initiator.
    pub remote: IpAddr,
    /// The QP number of the initiator.
    pub dest: Qpn,
}
