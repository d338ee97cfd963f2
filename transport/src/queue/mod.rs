//! Queues of work requests.

mod lazy;
mod recv;
mod send;
mod source;
mod srq;

pub(crate) use lazy::LazyDeque;
pub(crate) use recv::RecvLimits;
pub use recv::RecvWqe;
pub(crate) use send::SendLimits;
pub use source::Receives;
pub(crate) use source::{RecvSource, SrqLookupError};
pub use srq::{ReceiveDomain, SharedReceives, Srq, SrqAttr, SrqError, Srqn, Taken};
