//! From a QP's outputs to the link, the CQs and the timers.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocade_transport::{AckTiming, Memory, Qp, Time, TxBuffer};

use super::EngineInner;
use super::port::{Path, Port};
use crate::config::LinkMode;
use crate::link::shm::{ShmChannel, ShmSent, ShmSlot};
use crate::memory::MemGuard;
use crate::objects::{QpCore, QpInner};

/// One segmented send: what the link takes in one call.
const MAX_BYTES: usize = 62_000;
const MAX_SEGMENTS: usize = 60;
/// One run through shared memory.
const SHARED_BYTES: usize = MAX_BYTES;
const ICRC_LEN: usize = 4;
/// A run of so many bytes takes long enough to look at the clock again.
const LONG_RUN: usize = 8_192;

thread_local! {
    static TX_BUFFER: RefCell<TxBuffer<'static>> = RefCell::new(TxBuffer::new(MAX_BYTES, MAX_SEGMENTS));
}

/// The transmit side of a QP.
#[derive(Debug, Default)]
pub(crate) struct TxState {
    route: Option<(Arc<Port>, Path)>,
    /// Nothing has been sent through the channel of the route yet, but perhaps over UDP.
    enters_channel: bool,
    /// When the pending timer entry of this QP is due.
    timer: Option<Time>,
    /// A run of packets that the socket had no room for.
    blocked: Option<Blocked>,
}

#[derive(Debug)]
struct Blocked {
    bytes: Box<[u8]>,
    segment_len: usize,
    /// The ICRCs are there, as UDP needs them.
    sealed: bool,
}

impl TxState {
    pub(crate) fn set_path(&mut self, port: Arc<Port>, path: Path) {
        self.enters_channel = path.channel.is_some();
        self.route = Some((port, path));
    }

    /// Takes a channel that leads where the path does, unless there is one already.
    pub(super) fn offer_channel(&mut self, channel: &Arc<ShmChannel>) {
        if let Some((port, path)) = &mut self.route
            && path.channel.is_none()
            && channel.leads(port.link.local_addr(), path.to, path.slot)
        {
            path.channel = Some(Arc::clone(channel));
            self.enters_channel = true;
        }
    }

    /// Goes back to UDP where the peer is gone.
    pub(super) fn drop_ended_channel(&mut self) {
        if let Some((_, path)) = &mut self.route {
            path.channel.take_if(|channel| channel.has_ended());
        }
    }

    /// Forgets route and unsent packets.
    pub(crate) fn reset(&mut self) {
        self.route = None;
        self.blocked = None;
    }

    pub(super) const fn take_timer(&mut self) {
        self.timer = None;
    }
}

impl EngineInner {
    /// Drains a QP after a mutation: transmits, completes, raises, arms. The transport's rule of
    /// one mutation, then all outputs, is kept here.
    ///
    /// The order matters. An acknowledgement leaves before its completion can be seen, because the
    /// application may end the process on seeing it; and room for the completion is reserved
    /// before that, because a message whose completion is lost must not be acknowledged
    /// (RC-ERR-G).
    pub(crate) fn drain(&self, inner: &QpInner, core: &mut QpCore, mem: &MemGuard<'_>) {
        let reserved = self.reserve(inner, core);
        self.transmit(inner, core, mem);
        self.report(inner, core, reserved);
        if let Some(at) = core.qp.next_timeout()
            && core.tx.timer.is_none_or(|pending| at < pending)
        {
            core.tx.timer = Some(at);
            self.arm_timer(at, inner.qp_num());
        }
    }

    /// Reserves room in the CQs for the completions that wait, and returns for how many.
    fn reserve(&self, inner: &QpInner, core: &mut QpCore) -> usize {
        let mut waiting = core.qp.pending_completions();
        let total = waiting.len();
        let reserved = waiting
            .position(|completion| !inner.reserve(completion))
            .unwrap_or(total);
        drop(waiting);
        if reserved < total {
            core.qp.set_fatal(self.now());
        }
        reserved
    }

    /// Hands out completions, the first `reserved` of which have room, and events.
    fn report(&self, inner: &QpInner, core: &mut QpCore, mut reserved: usize) {
        while let Some(completion) = core.qp.poll_completion() {
            let has_room = reserved > 0;
            reserved = reserved.saturating_sub(1);
            if !inner.complete(completion, has_room) {
                core.qp.set_fatal(self.now());
            }
        }
        while let Some(event) = core.qp.poll_event() {
            inner.raise(event);
        }
    }

    fn transmit(&self, inner: &QpInner, core: &mut QpCore, mem: &MemGuard<'_>) {
        let QpCore { qp, tx } = core;
        if tx.route.is_none() || !self.send_blocked(tx) {
            return;
        }
        let memory = mem.view(inner.pd_id());
        let mut now = self.now();
        TX_BUFFER.with_borrow_mut(|buffer| {
            loop {
                let Some((port, path)) = &tx.route else {
                    return;
                };
                let channel = path
                    .channel
                    .as_deref()
                    .filter(|channel| !channel.has_ended());
                if let Some(channel) = channel
                    && let Some(slot) = channel.reserve(SHARED_BYTES)
                {
                    let len = self.fill(qp, slot, now, &memory, &mut tx.enters_channel);
                    if len == 0 {
                        return;
                    }
                    if len >= LONG_RUN {
                        now = self.now();
                    }
                    continue;
                }
                let many = channel.is_some() || port.link.gso();
                buffer.clear();
                buffer.set_max_segments(if many { MAX_SEGMENTS } else { 1 });
                qp.poll_transmit(now, &memory, AckTiming::Now, buffer);
                if buffer.is_empty() {
                    return;
                }
                let count = buffer.segments() as u64;
                let sealed = channel.is_none();
                let sent = if let Some(channel) = channel {
                    self.counters.tx_shared.fetch_add(count, Ordering::Relaxed);
                    // A channel that has just ended: lost on the way.
                    let segment_len = buffer.segment_len();
                    send_shared(channel, &mut tx.enters_channel, buffer.bytes(), segment_len)
                } else {
                    seal(path, buffer);
                    self.send(port, path, buffer.bytes(), buffer.segment_len())
                };
                self.counters.tx_packets.fetch_add(count, Ordering::Relaxed);
                if buffer.bytes().len() >= LONG_RUN {
                    now = self.now();
                }
                if !sent {
                    tx.blocked = Some(Blocked {
                        bytes: buffer.bytes().into(),
                        segment_len: buffer.segment_len(),
                        sealed,
                    });
                    self.note_blocked(inner.qp_num());
                    return;
                }
            }
        });
    }

    /// Has a QP write a run to where its peer reads it, and returns its length. `enters` as in
    /// [`TxState`].
    fn fill(
        &self,
        qp: &mut Qp,
        mut slot: ShmSlot<'_>,
        now: Time,
        memory: &impl Memory,
        enters: &mut bool,
    ) -> usize {
        let mut buffer = TxBuffer::within(slot.bytes(), MAX_SEGMENTS);
        qp.poll_transmit(now, memory, AckTiming::Now, &mut buffer);
        let (len, segment_len) = (buffer.bytes().len(), buffer.segment_len());
        let count = buffer.segments() as u64;
        if len > 0 {
            slot.commit(len, segment_len, std::mem::take(enters));
            self.counters.tx_shared.fetch_add(count, Ordering::Relaxed);
            self.counters.tx_packets.fetch_add(count, Ordering::Relaxed);
        }
        len
    }

    /// Sends what was left over; false where there is still no room.
    fn send_blocked(&self, tx: &mut TxState) -> bool {
        if let (Some(blocked), Some((port, path))) = (&tx.blocked, &tx.route) {
            let Blocked {
                bytes,
                segment_len,
                sealed,
            } = blocked;
            let sent = match &path.channel {
                Some(channel) => send_shared(channel, &mut tx.enters_channel, bytes, *segment_len),
                None if *sealed => self.send(port, path, bytes, *segment_len),
                // Meant for a channel that has ended: lost on the way.
                None => true,
            };
            if !sent {
                return false;
            }
            tx.blocked = None;
        }
        true
    }

    /// False where the socket has no room. Other failures count as loss on the way: the
    /// transport's retries decide.
    fn send(&self, port: &Port, path: &Path, bytes: &[u8], segment_len: usize) -> bool {
        if self.link_mode == LinkMode::Shm {
            self.counters.tx_errors.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        match port
            .link
            .send(path.tx, path.to, path.traffic_class, bytes, segment_len)
        {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                let errors = self.counters.tx_errors.fetch_add(1, Ordering::Relaxed);
                if errors == 0 {
                    tracing::warn!(%error, to = %path.to, "cannot send");
                }
                true
            }
        }
    }

    /// Tries again to send what the socket had no room for, then goes on.
    pub(super) fn resend_blocked(&self, inner: &QpInner, core: &mut QpCore, mem: &MemGuard<'_>) {
        if core.tx.blocked.is_some() {
            if self.send_blocked(&mut core.tx) {
                self.drain(inner, core, mem);
            } else {
                // The background thread knows: it has just tried.
                self.blocked.lock().push(inner.qp_num());
            }
        }
    }
}

/// False where the channel has no room. `enters` as in [`TxState`].
#[inline]
fn send_shared(channel: &ShmChannel, enters: &mut bool, run: &[u8], segment_len: usize) -> bool {
    let sent = if *enters {
        channel.send_after_udp(run, segment_len)
    } else {
        channel.send(run, segment_len)
    };
    *enters &= sent == ShmSent::Full;
    sent != ShmSent::Full
}

/// Fills in the ICRC of each segment. Under segmentation offload the kernel numbers the segments'
/// IPv4 Identifications from 0.
//= ICRC-07
fn seal(path: &Path, buffer: &mut TxBuffer<'_>) {
    let segment_len = buffer.segment_len();
    for (id, segment) in (0u16..).zip(buffer.bytes_mut().chunks_mut(segment_len)) {
        let (covered, icrc) = segment.split_at_mut(segment.len() - ICRC_LEN);
        //= ICRC-08
        icrc.copy_from_slice(&path.icrc.compute(id, covered).to_le_bytes());
    }
}
