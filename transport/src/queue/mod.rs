//! Queues of work requests that wait for their turn.

mod recv;
mod source;
mod srq;

pub use recv::RecvWqe;
pub(crate) use recv::{RecvLimits, RecvQueue};
pub(crate) use source::RecvSource;
pub use srq::{SharedReceives, Srq, SrqAttr, SrqError, Taken};
