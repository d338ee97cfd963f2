//! Unacknowledged messages: a send side for UC and UD, and a receive side for each.

mod connected;
mod datagram;
mod sender;

pub(crate) use connected::Connected;
pub(crate) use datagram::Datagrams;
pub(crate) use sender::Sender;
