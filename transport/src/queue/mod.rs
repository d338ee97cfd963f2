//! Queues of work requests that wait for their turn.

mod recv;

pub(crate) use recv::{RecvLimits, RecvQueue, RecvWqe};
