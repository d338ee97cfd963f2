//! The InfiniBand transport as pure state machines.
//!
//! A [`Qp`] holds the requester and the responder of one queue pair. It does no I/O, reads no
//! clock, owns no thread and allocates nothing per packet. Its input is commands and packets. Its
//! output is packets, completions and events.
//!
//! # Call order
//! The caller makes one mutating call ([`Qp::post_send`], [`Qp::post_recv`], [`Qp::modify`],
//! [`Qp::handle_packet`] or [`Qp::handle_timeout`]). Before the next one it polls all outputs
//! ([`Qp::poll_transmit`], [`Qp::poll_completion`], [`Qp::poll_event`]) until each returns nothing.
//! Several packets of one receive batch may be handled before the outputs are polled, which
//! coalesces ACKs. [`Qp::next_timeout`] returns when [`Qp::handle_timeout`] is due.
//!
//! Registered memory is accessed through the [`Memory`] trait only.
//!
//! # Inside
//! Each line uses those below it:
//!
//! ```text
//! qp                      entry points, states, modify
//! dc                      dynamic connections: initiator and target
//! requester   responder   the two sides, which do not use each other
//! cx                      context of a call: time, peer, memory, outputs
//! peer        outputs     the remote QP; completions, events and counters
//!             op_count    counters of operations that are attached to a QP
//! transmit    congestion  the caller's transmit buffer; the congestion window
//! coalescer                    coalescing: delayed ACKs and batched posts
//! raw                     the queues of raw packet QPs
//! rate                    the send rate, by attribute and by congestion notifications
//! queue                   queues of work requests
//! attr wr memory window indirect masked completion event counters error time
//! ```
//!
//! The files of a folder use each other: they hold the methods of the type that its `mod.rs`
//! defines.
//!
//! [`cm`] establishes and ends connections. It is independent of the queue pairs and uses `time`
//! alone.
//!
//! Outside of this crate are sockets, the ICRC, key tables, completion queues and locking.

#![deny(clippy::disallowed_methods)]
// A new service or operation is asked for in each place that depends on it.
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "test-utils"))]
extern crate std;

mod attr;
#[cfg_attr(
    not(test),
    expect(
        clippy::wildcard_enum_match_arm,
        reason = "each message is for some states of a connection, and unsolicited in all others"
    )
)]
pub mod cm;
mod coalesce;
mod completion;
mod congestion;
mod counters;
mod cross_channel;
mod cx;
mod dc;
mod error;
mod event;
mod failure;
mod indirect;
mod masked;
mod memory;
mod op_count;
mod outputs;
mod peer;
mod placement;
mod qp;
mod queue;
mod rate;
mod raw;
mod requester;
mod responder;
mod rocade_probe;
mod segment;
mod send_ops;
mod send_queue;
mod service;
#[cfg(any(test, feature = "test-utils"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod time;
mod transmit;
mod unreliable;
mod window;
mod wr;

pub use attr::{AddressVector, QpAttr, QpAttrMask, QpCap, QpState, QpType};
pub use coalesce::{
    AckPlacement, BATCH_DELAY_NS, Coalescer, DELAYED_ACK_NS, RESPONSE_WINDOW_NS, TransmitTrigger,
};
pub use completion::{CompleteTo, Completion, ImmOrInv, WcFlags, WcOpcode, WcStatus};
pub use counters::{Counters, DropReason, Violations};
pub use cross_channel::{Calc, CalcOp, Condition, Gate, Managed, Reduction, Release, has_reached};
pub use dc::{
    DciStreams, DctStatus, MAX_LOG_ERRORED, MAX_LOG_STREAMS, MAX_SESSIONS, ResponseRoute,
    SESSION_IDLE_NS, SESSION_MEMORY_NS,
};
pub use error::{ModifyError, PostError};
pub use event::QpEvent;
pub use failure::{FailedSend, Failure, ReceiveBuffers, RefusedRequest, RemoteRange};
pub use indirect::{Block, Fill, Indirect, Layout, Listed, Remap};
pub use masked::{MASKED_SIZES, MaskedOp, WideOperand};
pub use memory::{
    AccessError, Accessor, AtomicOp, Extent, LocalAccess, Memory, PdTag, RemoteAccess,
};
pub use op_count::{CountedOps, OpCounter};
pub use peer::PacketMeta;
pub use placement::{Placement, PlacementKey};
pub use qp::{
    AckTerms, AlternateContext, ModifyContext, Qp, QpConfig, QpLimits, TransitionRule,
    experimental_rule, transition_rule,
};
pub use queue::{
    ReceiveDomain, Receives, RecvWqe, SharedReceives, Srq, SrqAttr, SrqError, Srqn, Taken,
};
pub use raw::{Frame, FrameOrder, MAX_TSO, MAX_TSO_HEADER, Tso};
pub use requester::MIN_ACK_TIMEOUT_NS;
pub use responder::{ReplayEntry, ResponderSnapshot};
pub use service::{CrossChannelQueues, ServiceTraits};
pub use time::Time;
pub use transmit::{ACK_LEN, Deferred, Source, TxBuffer};
pub use window::{Bind, BindError, Bindable, Window, WindowKind};
pub use wr::{
    AccessFlags, DcDestination, Destination, Operands, RouteTag, SendFlags, SendOp, SendWr, Sge,
};
