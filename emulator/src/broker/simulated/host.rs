//! State that all processes of a simulated host share.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rocade_transport::Time;

use super::identity::Processes;
use crate::sync::Mutex;

/// State that all processes of a host share.
#[derive(Debug, Default)]
pub(in crate::broker) struct Host {
    pub(in crate::broker) now_ns: Arc<AtomicU64>,
    /// Brokers that clients have started: the ends of their liveness sockets, and the directory.
    pub(in crate::broker) started: Mutex<Vec<(OwnedFd, u8)>>,
    pub(in crate::broker) processes: Mutex<Processes>,
    /// Numbers given to processes, brokers, connections and targets so far.
    given: AtomicU32,
}

impl Host {
    pub(in crate::broker) fn now(&self) -> Time {
        Time::from_ns(self.now_ns.load(Ordering::Relaxed))
    }

    /// Returns a number that no other has.
    pub(in crate::broker) fn number(&self) -> u32 {
        1 + self.given.fetch_add(1, Ordering::Relaxed)
    }
}
