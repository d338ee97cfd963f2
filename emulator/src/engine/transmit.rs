//! From a QP's outputs to the link, the CQs and the timers.

use std::cell::{Cell, RefCell};
use std::io;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocade_transport::{AckTiming, Source, Time, TxBuffer};

use super::EngineInner;
use super::ack_hold::{AckHold, Cause};
use super::doorbell::Doorbell;
use super::port::{Icrcs, Path, Port};
use crate::config::LinkMode;
use crate::link::shm::{Piece, ShmChannel, ShmSent};
use crate::memory::{MemGuard, PdMemory, Readable};
use crate::objects::{QpCore, QpInner};

/// One segmented send: what the link takes in one call.
const MAX_BYTES: usize = 65_000;
const MAX_SEGMENTS: usize = 64;
const ICRC_LEN: usize = 4;
/// Longer payloads are copied here, not by the transport: for UDP summed up in the same pass, for a
/// channel right into its ring.
const LONGEST_COPY: usize = 256;
/// An acknowledgement waits for so many bytes of an answer at most: a slow peer needs milliseconds for
/// more, and would take it for lost.
const LONG_ANSWER: usize = 128 << 10;
/// A run of so many bytes takes long enough to look at the clock again.
const LONG_RUN: usize = 8_192;

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
    static TX_BUFFER: RefCell<TxBuffer> = RefCell::new(TxBuffer::new(MAX_BYTES, MAX_SEGMENTS));
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
    hold: AckHold,
    doorbell: Doorbell,
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

    /// Forgets route, unsent packets and habits.
    pub(crate) fn reset(&mut self) {
        self.route = None;
        self.blocked = None;
        self.hold = AckHold::default();
        self.doorbell.rung();
    }

    pub(super) const fn take_timer(&mut self) {
        self.timer = None;
    }

    pub(super) const fn hold(&mut self) -> &mut AckHold {
        &mut self.hold
    }

    pub(super) const fn doorbell(&mut self) -> &mut Doorbell {
        &mut self.doorbell
    }

    /// Is sending a system call?
    pub(super) fn uses_socket(&self) -> bool {
        self.route
            .as_ref()
            .is_some_and(|(_, path)| path.channel.is_none())
    }
}

/// What this thread sends is not the application's activity.
pub(super) fn this_is_the_background_thread() {
    IS_BACKGROUND.set(true);
}

impl EngineInner {
    /// Drains a QP after a mutation at `now`: transmits, completes, raises, arms. The transport's rule of
    /// one mutation, then all outputs, is kept here.
    ///
    /// The order matters. An acknowledgement leaves before its completion can be seen, because the
    /// application may end the process on seeing it (one that is held leaves when the process exits:
    /// see [`super::ack_hold`]); and room for the completion is reserved
    /// before that, because a message whose completion is lost must not be acknowledged
    /// (RC-ERR-G).
    pub(crate) fn drain(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        mem: &MemGuard<'_>,
        cause: Cause,
        now: Time,
    ) {
        let reserved = if self.wants_to_transmit(core, cause) {
            self.reserve(inner, core)
        } else {
            // Nothing is acknowledged: a completion that is lost will not be, either.
            0
        };
        self.transmit(inner, core, mem, cause, now);
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
        let waiting = core.qp.pending_completions();
        let total = waiting.len();
        if total == 0 {
            return 0;
        }
        let reserved = inner.reserve(waiting);
        if reserved < total {
            core.qp.set_fatal(self.now());
        }
        reserved
    }

    /// Hands out completions, the first `reserved` of which have room, and events.
    fn report(&self, inner: &QpInner, core: &mut QpCore, mut reserved: usize) {
        while core.qp.pending_completions().len() > 0 {
            let lost = inner.complete(core.qp.pending_completions(), &mut reserved);
            core.qp.forget_completions();
            if lost > 0 {
                core.qp.set_fatal(self.now());
            }
        }
        while let Some(event) = core.qp.poll_event() {
            inner.raise(event);
        }
    }

    fn wants_to_transmit(&self, core: &QpCore, cause: Cause) -> bool {
        let acks = core.tx.hold.timing(cause, self.may_hold(&core.tx.hold));
        core.qp.wants_to_transmit(acks)
    }

    /// Sends what the QP has to send, but for an acknowledgement that is held back.
    pub(super) fn transmit(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        mem: &MemGuard<'_>,
        cause: Cause,
        now: Time,
    ) {
        core.tx.doorbell.rung();
        if core.tx.route.is_none() || !self.send_blocked(&mut core.tx) {
            return;
        }
        if !self.wants_to_transmit(core, cause) {
            let held = core.qp.lone_ack();
            if core.tx.hold.transmitted(cause, now, false, held) {
                self.look_after(inner.qp_num());
            }
            return;
        }
        let acks_before = core.qp.counters().acks_sent;
        let with_buffer = TX_BUFFER.try_with(|buffer| {
            self.transmit_through(inner, core, mem, (cause, now), &mut buffer.borrow_mut());
        });
        if with_buffer.is_err() {
            // The thread is about to end.
            let mut buffer = TxBuffer::new(MAX_BYTES, MAX_SEGMENTS);
            self.transmit_through(inner, core, mem, (cause, now), &mut buffer);
        }
        let QpCore { qp, tx } = core;
        let acked = qp.counters().acks_sent != acks_before;
        if tx.hold.transmitted(cause, now, acked, qp.lone_ack()) {
            self.look_after(inner.qp_num());
        }
    }

    fn transmit_through(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        mem: &MemGuard<'_>,
        (cause, mut now): (Cause, Time),
        buffer: &mut TxBuffer,
    ) {
        let QpCore { qp, tx } = core;
        let memory = mem.view(inner.pd_id());
        let mut acks = tx.hold.timing(cause, self.may_hold(&tx.hold));
        let mut answered = 0;
        loop {
            let Some((port, path)) = &mut tx.route else {
                return;
            };
            let channel = path
                .channel
                .as_deref()
                .filter(|channel| !channel.has_ended());
            let many = channel.is_some() || port.link.gso();
            buffer.clear();
            buffer.defer_longer_than(LONGEST_COPY);
            buffer.set_max_segments(if many { MAX_SEGMENTS } else { 1 });
            qp.poll_transmit(now, &memory, acks, buffer);
            if buffer.is_empty() {
                return;
            }
            answered += buffer.bytes().len();
            if acks == AckTiming::Behind || answered > LONG_ANSWER {
                acks = AckTiming::Now;
            }
            let sent = match channel {
                // A channel that has just ended: lost on the way.
                Some(channel) => {
                    let (len, segment_len) = (buffer.bytes().len(), buffer.segment_len());
                    let pieces = pieces(buffer, &memory);
                    send_shared(channel, &mut tx.enters_channel, pieces, len, segment_len)
                }
                None => {
                    seal(&mut path.icrc, buffer, &memory);
                    self.send(port, path, buffer.bytes(), buffer.segment_len())
                }
            };
            let count = buffer.segments() as u64;
            let shared = channel.is_some();
            inner
                .hca()
                .traffic
                .sent(count, buffer.bytes().len(), shared);
            self.count_traffic();
            if !IS_BACKGROUND.get() {
                self.handover.sent();
            }
            if !sent {
                let sealed = channel.is_none();
                if !sealed {
                    fill(buffer, &memory);
                }
                tx.blocked = Some(Blocked {
                    bytes: buffer.bytes().into(),
                    segment_len: buffer.segment_len(),
                    sealed,
                });
                self.note_blocked(inner.qp_num(), IS_BACKGROUND.get());
                return;
            }
            if buffer.bytes().len() >= LONG_RUN {
                now = self.now();
            }
        }
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
                Some(channel) => {
                    let pieces = iter::once(Piece::Bytes(bytes));
                    let enters = &mut tx.enters_channel;
                    send_shared(channel, enters, pieces, bytes.len(), *segment_len)
                }
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
    fn send(&self, port: &Port, path: &Path, run: &[u8], segment_len: usize) -> bool {
        if self.link_mode == LinkMode::Shm {
            self.counters.tx_errors.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let sent = port
            .link
            .send(path.tx, path.to, path.traffic_class, run, segment_len);
        match sent {
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

    /// Tries again to send what there was no room for, then goes on.
    pub(super) fn resend_blocked(&self, inner: &QpInner, core: &mut QpCore, mem: &MemGuard<'_>) {
        if core.tx.blocked.is_some() {
            if self.send_blocked(&mut core.tx) {
                self.drain(inner, core, mem, Cause::Other, self.now());
            } else {
                self.note_blocked(inner.qp_num(), IS_BACKGROUND.get());
            }
        }
    }
}

/// False where the channel has no room. `enters` as in [`TxState`], the rest as for [`ShmChannel::send`].
#[inline]
fn send_shared<'a>(
    channel: &ShmChannel,
    enters: &mut bool,
    run: impl Iterator<Item = Piece<'a>>,
    run_len: usize,
    segment_len: usize,
) -> bool {
    let sent = channel.send(run, run_len, segment_len, *enters, IS_BACKGROUND.get());
    *enters &= sent == ShmSent::Full;
    sent != ShmSent::Full
}

/// Copies the payloads that are not there yet, and fills in the ICRC of each segment. Under
/// segmentation offload the kernel numbers the segments' IPv4 Identifications from 0.
//= ICRC-07
fn seal(icrcs: &mut Icrcs, buffer: &mut TxBuffer, memory: &PdMemory<'_>) {
    let run = icrcs.of_len(buffer.segment_len() - ICRC_LEN);
    let mut id = 0;
    buffer.for_each_segment(|segment, deferred| {
        let (covered, icrc) = segment.split_at_mut(segment.len() - ICRC_LEN);
        let of_len = if covered.len() == run.covered_len() {
            run
        } else {
            icrcs.of_len(covered.len())
        };
        //= ICRC-08
        let crc = match deferred {
            Some(payload) => {
                of_len.compute_filling(id, covered, payload.range(), |crc, head, room| {
                    registered(memory, payload.source).copy_and_sum(crc, head, room)
                })
            }
            None => of_len.compute(id, covered),
        };
        icrc.copy_from_slice(&crc.to_le_bytes());
        id += 1;
    });
}

/// Copies the payloads that are not there yet.
fn fill(buffer: &mut TxBuffer, memory: &PdMemory<'_>) {
    buffer.for_each_segment(|segment, deferred| {
        if let Some(payload) = deferred {
            registered(memory, payload.source).copy(&mut segment[payload.range()]);
        }
    });
}

/// A run in order, from the buffer and from registered memory.
fn pieces<'a>(buffer: &'a TxBuffer, memory: &PdMemory<'a>) -> impl Iterator<Item = Piece<'a>> {
    let bytes = buffer.bytes();
    let mut at = 0;
    let deferred = buffer.deferred().iter().flat_map(move |deferred| {
        let before = &bytes[at..deferred.at];
        at = deferred.range().end;
        let payload = registered(memory, deferred.source);
        [Piece::Bytes(before), Piece::Registered(payload)]
    });
    let end = buffer
        .deferred()
        .last()
        .map_or(0, |deferred| deferred.range().end);
    deferred.chain(iter::once(Piece::Bytes(&bytes[end..])))
}

fn registered<'a>(memory: &PdMemory<'a>, source: Source) -> Readable<'a> {
    memory
        .source(source)
        .expect("the transport has checked it under the same guard")
}
