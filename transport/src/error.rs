//! Errors of calls by the application.

use core::fmt;

/// The reason why a work request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PostError {
    /// The QP's state does not accept this kind of work request (EINVAL).
    InvalidState,
    /// The queue already holds `max_send_wr` or `max_recv_wr` requests (ENOMEM).
    QueueFull,
    /// More scatter/gather entries than the QP was created with (EINVAL).
    TooManySges,
    /// Inline data longer than `max_inline_data`, or inline with an operation that does not support
    /// it (EINVAL).
    BadInline,
    /// The QP takes its receives from a shared receive queue, so they have to be posted there
    /// (EINVAL).
    SharedReceives,
    /// The operation is not defined for this QP type (EINVAL).
    UnsupportedOpcode,
    /// A datagram or DC request without address handle, or an address handle for a connected QP
    /// (EINVAL).
    NoDestination,
    /// A segmentation request without header or MSS, or with too long a header (EINVAL).
    BadSegmentation,
    /// The local buffer of an atomic is shorter than 8 bytes (EINVAL).
    AtomicBuffer,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidState => "the QP's state does not accept this work request",
            Self::QueueFull => "the work queue is full",
            Self::TooManySges => "more scatter/gather entries than the QP allows",
            Self::BadInline => "inline data too long or not allowed with this operation",
            Self::SharedReceives => "the QP takes its receives from a shared receive queue",
            Self::UnsupportedOpcode => "operation not supported by this QP type",
            Self::NoDestination => {
                "a datagram or DC request needs an address handle, and no other request accepts one"
            }
            Self::BadSegmentation => "segmentation needs an MSS and a header of 14 to 1024 bytes",
            Self::AtomicBuffer => "the local buffer of an atomic needs 8 bytes",
        })
    }
}

/// The reason why `modify_qp` was refused. No attribute has changed. All of these are EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModifyError {
    /// The state table has no such transition for this QP type.
    NoTransition,
    /// A required attribute is missing from the mask.
    MissingAttr,
    /// The mask names an attribute that this transition does not accept.
    UnexpectedAttr,
    /// `cur_qp_state` differs from the real state, or is a state that may not be named.
    WrongCurrentState,
    /// An attribute's value is out of range. The string names the `ibv_qp_attr` field.
    BadValue(&'static str),
    /// Attributes can change in SQD only once the send queue has drained.
    NotDrained,
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTransition => f.write_str("no such state transition for this QP type"),
            Self::MissingAttr => f.write_str("a required attribute is missing from the mask"),
            Self::UnexpectedAttr => {
                f.write_str("the mask names an attribute that this transition does not accept")
            }
            Self::WrongCurrentState => f.write_str("cur_qp_state is not the QP's state"),
            Self::BadValue(field) => write!(f, "{field} is out of range"),
            Self::NotDrained => f.write_str("the send queue has not drained yet"),
        }
    }
}
