//! Dynamic connections: an initiator talks to many targets, one after another, and a target to many initiators.
//!
//! A *session* is the reliable connection between the two, made of the same parts as one of RC: a
//! [`Requester`](crate::requester::Requester) here and a [`Responder`](crate::responder::Responder) there. It begins with the first packet to a
//! target, which says START, and ends when the initiator turns to another one. What goes over the wire is in docs/dc.md.

mod initiator;
mod lane;
mod session;
mod target;

use core::net::IpAddr;

use rocade_wire::Qpn;

pub(crate) use initiator::Initiator;
pub(crate) use target::Target;

/// So long an initiator that has nothing to send keeps the session to its last target.
//= DCW-12
pub const SESSION_IDLE_NS: u64 = 100_000_000;

/// So long a target remembers a session of which it hears nothing, ended or not: longer than any packet of it may be repeated.
//= DCW-14 DCW-15
pub const SESSION_MEMORY_NS: u64 = 60_000_000_000;

/// Sessions that a target remembers at a time.
pub const MAX_SESSIONS: usize = 16_384;

/// Most concurrent sessions of an initiator, as a power of two (`max_log_num_concurent`).
pub const MAX_LOG_STREAMS: u8 = 4;

/// Most streams of an initiator that may be in error at a time, as a power of two (`max_log_num_errored`).
pub const MAX_LOG_ERRORED: u8 = 7;

/// Streams of an initiator (`mlx5dv_dci_streams`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DciStreams {
    /// So many sessions at a time, as a power of two; at most [`MAX_LOG_STREAMS`].
    pub log_concurrent: u8,
    /// So many streams in error move the initiator to ERR, as a power of two; at most [`MAX_LOG_ERRORED`].
    pub log_errored: u8,
}

/// What the owner of a target may ask about it (`ibv_exp_query_dct`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DctStatus {
    /// The access key.
    pub key: u64,
    /// Packets with another one since the target was made (DCK-03).
    pub key_violations: u32,
    /// Sessions that are open.
    pub sessions: usize,
    /// It takes no new ones.
    pub is_draining: bool,
}

/// Where an answer of a target goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerRoute {
    /// The own address.
    pub local: IpAddr,
    /// The address of the initiator.
    pub remote: IpAddr,
    /// Its number.
    pub dest: Qpn,
}
