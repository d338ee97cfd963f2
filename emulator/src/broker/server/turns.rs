//! Questions of the schedule of a simulated host to a broker.

use super::{Input, Server};

impl Input {
    /// Returns true if nothing has come.
    pub(in crate::broker) fn is_empty(&self) -> bool {
        self.fds.iter().all(|entry| entry.revents == 0)
    }
}

impl Server {
    /// Returns true if a process uses the broker, or has a slot without a connection.
    pub(in crate::broker) fn is_used(&self) -> bool {
        self.slots.has_orphans() || self.clients.iter().any(|client| client.slot.is_some())
    }
}
