//! A thread that waits for a connection manager event and receives itself at first.
//!
//! Connection setup and teardown take a handful of messages, and each is answered at once. If the
//! background thread received each message and then woke the waiting thread, two threads would wake
//! up where one is enough. The waiting thread therefore polls the sockets itself for a moment. It
//! counts as polling meanwhile, so that the background thread backs off (`driver_arbiter.rs`).
//! After a few packets for other purposes it leaves the sockets to other threads.

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use super::Nic;
use crate::link::Link as _;
use crate::state::Caller;
use crate::sys;
use crate::tuning::{CM_EMPTY_POLLS, CM_POLL_NS};

impl Nic {
    /// Waits until `fd` is readable, which it is when the event `is_there`, or until `timeout` is
    /// over. Returns false after a timeout.
    pub(crate) fn wait_polling(
        &self,
        fd: RawFd,
        is_there: impl Fn() -> bool,
        timeout: Duration,
    ) -> io::Result<bool> {
        let mut now = self.host.now();
        let until = now.plus_ns(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let polls_until = until.min(now.plus_ns(CM_POLL_NS));
        let mut empty_polls = 0;
        while empty_polls < CM_EMPTY_POLLS && now < polls_until {
            let left = polls_until.ns_since(now);
            let mut set = sys::PollSet::default();
            let own = set.add(fd);
            let endpoints = self.links.endpoints.read().clone();
            for socket in endpoints
                .iter()
                .filter_map(|endpoint| endpoint.link.rx_fd())
            {
                set.add(socket.as_raw_fd());
            }
            self.scheduler.arbiter.note_poll();
            self.scheduler.arbiter.note_empty_poll(now.as_ns());
            set.wait(Some(Duration::from_nanos(left)))?;
            if set.is_ready(own) {
                return Ok(true);
            }
            now = self.host.now();
            if !set.any_ready_from(own + 1) {
                continue;
            }
            self.scheduler.arbiter.note_poll();
            for endpoint in &endpoints {
                // The thread that holds the lock is receiving already.
                if let Some(mut rx) = endpoint.rx.try_lock() {
                    self.receive(endpoint, &mut rx, Caller::Application);
                }
            }
            self.cm.serve(self);
            if is_there() {
                return Ok(true);
            }
            empty_polls += 1;
        }
        self.leave_inline();
        let mut set = sys::PollSet::default();
        set.add(fd);
        set.wait(Some(Duration::from_nanos(until.ns_since(self.host.now()))))?;
        Ok(set.is_ready(0))
    }
}
