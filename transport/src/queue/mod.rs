//! Queues of work requests that wait for their turn.

mod recv;
mod send;

pub(crate) use recv::{RecvLimits, RecvQueue, RecvWqe};
pub(crate) use send::SendLimits;
