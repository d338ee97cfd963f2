//! Receives packets from the links and hands them to the QPs.

use std::sync::atomic::Ordering;

use rocade_transport::Time;

use super::Nic;
use super::cx::Cx;
use super::dispatch::{Flush, trigger_of};
use super::pending::ServiceContext;
use super::thread_polls::ThreadPolls;
use crate::link::Link as _;
use crate::link::peer_link::PeerLink as _;
use crate::state::{Caller, CqInner, LocalEndpoint, RxState};
use crate::tuning::{
    BULK_SEGMENT, BUSY_POLL, LONG_BATCH, MAX_BATCHES, MORE_NS, POLLED_SOCKET_INTERVAL,
};

impl Nic {
    /// Drives all links on behalf of a thread that polls the empty CQ `cq` (`None` in a
    /// simulation). Returns false if nothing was received.
    #[inline]
    pub(crate) fn progress_inline(&self, cq: Option<&CqInner>) -> bool {
        self.serve(ServiceContext::Poll);
        if self.links.hooks.is_active() {
            self.release_delayed(Caller::Application);
        }
        if self.faults.plan.next_due().is_some() {
            self.execute_due_faults();
        }
        let shared = self.progress_shared(cq);
        if !shared.sockets {
            return shared.found;
        }
        let packets = self.receive_from_sockets(Caller::Application, 0);
        if packets == 0 && self.host.sim.is_some() {
            return self.advance() || shared.found;
        }
        if packets == 0 {
            return self.note_empty_poll(cq) || shared.found;
        }
        ThreadPolls::note_packets();
        true
    }

    #[inline]
    pub(super) fn receive_from_sockets(&self, caller: Caller, stalled_ns: u64) -> u64 {
        let mut packets = self.receive_frames(caller);
        for endpoint in self.links.endpoints.read().iter() {
            // The thread that holds the lock is receiving already.
            if let Some(mut rx) = endpoint.try_lock_rx(stalled_ns) {
                packets += self.receive(endpoint, &mut rx, caller).packets;
            }
        }
        self.cm.serve(self);
        packets
    }

    /// Receives from all links that no other thread receives from, or has received from for
    /// `stalled_ns` without going on. Returns true if there were packets.
    pub(super) fn receive_unlocked(&self, caller: Caller, stalled_ns: u64) -> bool {
        let found = self.receive_from_links(caller);
        let packets = self.receive_from_sockets(caller, stalled_ns);
        if packets > 0 {
            ThreadPolls::note_packets();
        }
        found || packets > 0
    }

    /// Receives from the shared memory links that no other thread receives from, on behalf of the
    /// application. Returns true if there were packets.
    pub(super) fn receive_from_shm(&self) -> bool {
        self.links.peer_link_count.load(Ordering::Acquire) > 0
            && self.receive_from_links(Caller::Application)
    }

    fn receive_from_links(&self, caller: Caller) -> bool {
        let peer_links = self.links.peer_links.read();
        let mut packets = 0;
        for peer_link in peer_links
            .iter()
            .filter(|peer_link| peer_link.has_packets())
        {
            if let Some(mut receiver) = peer_link.try_receiver() {
                packets += self.receive_from(peer_link, &mut receiver, caller);
            }
        }
        if packets > 0 {
            ThreadPolls::note_packets();
        }
        packets > 0
    }

    /// Handles an empty poll. Returns true if packets came while it waited.
    #[inline]
    fn note_empty_poll(&self, cq: Option<&CqInner>) -> bool {
        // Only every few polls: reading the clock takes a tenth of a poll.
        if !ThreadPolls::with(ThreadPolls::count_empty_poll)
            && !self.scheduler.idle_polls.are_short()
        {
            return false;
        }
        let now = self.host.now().as_ns();
        self.scheduler.arbiter.note_empty_poll(now);
        let Some(idle_ns) = ThreadPolls::with(|own| own.idle_ns(self, now)) else {
            return false;
        };
        idle_ns >= self.scheduler.idle_polls.idle_poll_ns()
            && self.yield_or_sleep(cq, idle_ns, Time::from_ns(now))
    }

    /// Receives from the shared memory links.
    #[inline]
    fn progress_shared(&self, cq: Option<&CqInner>) -> ShmPoll {
        if self.links.peer_link_count.load(Ordering::Acquire) == 0 {
            return ShmPoll {
                found: false,
                sockets: true,
            };
        }
        let peer_links = self.links.peer_links.read();
        let mut found = self.receive_shared(&peer_links, Caller::Application) > 0;
        drop(peer_links);
        let before = self.scheduler.polls.shared.load(Ordering::Relaxed);
        let polls = before.wrapping_add(if found { BUSY_POLL } else { 1 });
        self.scheduler.polls.shared.store(polls, Ordering::Relaxed);
        let sockets = polls / POLLED_SOCKET_INTERVAL != before / POLLED_SOCKET_INTERVAL;
        if found {
            ThreadPolls::note_packets();
        } else if !sockets {
            found = self.note_empty_poll(cq);
        }
        ShmPoll { found, sockets }
    }

    /// Receives from a link until it is empty, a short batch came, or the batch limit is reached.
    /// After long batches the outputs of all QPs are flushed together, so that one ACK covers many
    /// packets. In the middle of a message this polls for a little longer, because the rest is on
    /// its way.
    ///
    /// Datagrams to QP 1 are only queued: `CmHost::serve` follows when the caller holds no lock.
    pub(super) fn receive(
        &self,
        endpoint: &LocalEndpoint,
        rx: &mut RxState,
        caller: Caller,
    ) -> Received {
        let RxState {
            buffer,
            flows,
            deferred_qps,
        } = rx;
        let mut received = Received {
            packets: 0,
            more: false,
        };
        let (mut batches, mut look_until) = (0, None);
        while batches < MAX_BATCHES {
            match endpoint.link.recv(buffer) {
                Ok(Some(batch)) => {
                    let is_short =
                        batch.data.len() < LONG_BATCH || batch.segment_len < BULK_SEGMENT;
                    let flush = if is_short && deferred_qps.is_empty() {
                        Flush::Now
                    } else {
                        Flush::Later(deferred_qps)
                    };
                    let delivered = self.deliver(endpoint, flows, &batch, flush, caller);
                    received.packets += delivered.packets;
                    received.more = true;
                    // The application waits for completions, perhaps to post new receives.
                    if is_short || delivered.completes {
                        break;
                    }
                    batches += 1;
                    // Simulated time does not advance meanwhile.
                    let looks = delivered.mid_message && self.host.sim.is_none();
                    look_until = looks.then(|| self.host.now().plus_ns(MORE_NS));
                }
                Ok(None) if look_until.is_some_and(|until| self.host.now() < until) => {}
                Ok(None) => {
                    received.more = false;
                    break;
                }
                Err(error) => {
                    tracing::debug!(%error, local = %endpoint.link.local_addr(), "failed to receive");
                    received.more = false;
                    break;
                }
            }
        }
        for qpn in deferred_qps.drain(..) {
            self.with_qp(qpn, |inner, core, mem| {
                let trigger = trigger_of(core);
                let now = self.host.now();
                self.flush_outputs(inner, core, trigger, Cx { now, caller, mem });
            });
        }
        received
    }
}

/// The result of polling shared memory.
#[derive(Clone, Copy, Debug)]
struct ShmPoll {
    /// Packets were received.
    found: bool,
    /// The sockets are to be polled now, which takes much longer.
    sockets: bool,
}

/// The result of one call of `receive`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Number of packets handed to QPs.
    pub(super) packets: u64,
    /// There may be more.
    pub(super) more: bool,
}
