//! Pollers, sleepers, event loops and the background thread: those that drive the engine.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam::utils::CachePadded;

use crate::engine::event_loop::EventLoops;
use crate::engine::event_wait::EventWaits;
use crate::engine::idle_poll::IdlePolls;
use crate::engine::thread_polls::Polls;
use crate::link::shm;
use crate::state::{DriverArbiter, ServiceQueue};
use crate::sync::{Mutex, rank};

/// The threads of the process that drive the engine, and what waits for them.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(in crate::engine) service_queue: Arc<ServiceQueue>,
    /// The background thread was started.
    pub(in crate::engine) has_background: Mutex<bool, rank::Background>,
    pub(in crate::engine) arbiter: DriverArbiter,
    /// Written with polls, and therefore on its own cache line.
    pub(in crate::engine) polls: CachePadded<Polls>,
    pub(in crate::engine) idle_polls: IdlePolls,
    pub(in crate::engine) event_waits: EventWaits,
    pub(in crate::engine) event_loops: EventLoops,
    /// The eventfd by which peers of shared memory links wake the thread that waits for packets.
    pub(in crate::engine) peer_wake_fd: Arc<OwnedFd>,
}

impl Scheduler {
    /// Makes a scheduler without threads.
    ///
    /// # Errors
    /// Those of eventfd(2), where file descriptors are exhausted.
    pub(in crate::engine) fn new() -> io::Result<Self> {
        Ok(Self {
            service_queue: Arc::new(ServiceQueue::new(Arc::new(shm::wake_fd()?))),
            has_background: Mutex::new(false),
            arbiter: DriverArbiter::new(),
            polls: CachePadded::default(),
            idle_polls: IdlePolls::default(),
            event_waits: EventWaits::default(),
            event_loops: EventLoops::default(),
            peer_wake_fd: Arc::new(shm::wake_fd()?),
        })
    }
}
