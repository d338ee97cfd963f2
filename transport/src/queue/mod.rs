//! Queues of work requests that wait for their turn.

mod recv;
mod send;
mod source;
mod srq;

pub use recv::RecvWqe;
pub(crate) use recv::{RecvLimits, RecvQueue};
pub(crate) use send::SendLimits;
pub(crate) use source::RecvSource;
pub use srq::{SharedReceives, Srq, SrqAttr, SrqError, Taken};
