//! Packet hooks between the engine and its links: capture and fault injection, in both directions.
//!
//! Without either, sending and receiving only test one flag. Fault rules apply to single packets,
//! so batches have one segment then. The hooks decide and store. The caller sends and delivers.

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sync::{Mutex, rank};
use rocade_transport::{PacketMeta, Time};
use rocade_wire::Bth;

use super::capture::{Capture, CapturedPacket, Medium};
use super::fault::{self, DelayQueue, Effect, Ends, Faults, PacketDirection, Rule};
use super::peer_link::AnyPeerLink;
use super::{Segments, Simulation};
use crate::faults::{RuleKey, Subject, Tally};
use crate::trace;

/// The ECN bits of TOS or traffic class for congestion experienced (CE).
pub(crate) const ECN_CE: u8 = 0b11;

/// Capture and fault rules of an engine. `W` is the route of a delayed packet.
#[derive(Debug)]
pub(crate) struct PacketHooks<W> {
    /// True if there is anything to do.
    is_active: AtomicBool,
    /// True if packets must be sent one by one.
    has_fault_rules: AtomicBool,
    has_blocked: AtomicBool,
    /// The record of what the rules have done.
    tally: Arc<Tally>,
    path: Option<PathBuf>,
    capture: OnceLock<Capture>,
    /// The transport of packets that do not use shared memory.
    medium: Medium,
    /// The engine's time 0, in nanoseconds since 1970.
    origin_ns: u64,
    state: Mutex<HookState<W>, rank::FaultRules>,
}

/// An own address that no packet leaves or reaches, and the reason.
#[derive(Clone, Debug)]
pub(crate) struct Blocked {
    pub(crate) address: IpAddr,
    pub(crate) why: String,
}

#[derive(Debug)]
struct HookState<W> {
    faults: Faults,
    blocked: Vec<Blocked>,
    /// One of the rules of `faults` applies at present.
    is_open: bool,
    /// The rules of `faults`, in the same order.
    keys: Vec<RuleKey>,
    delayed_tx: DelayQueue<DelayedTx<W>>,
    delayed_rx: DelayQueue<DelayedRx>,
}

/// A rule for packets, and whether it applies at present.
#[derive(Clone, Debug)]
pub(crate) struct ScheduledRule {
    pub(crate) key: RuleKey,
    pub(crate) rule: Rule,
    pub(crate) is_open: bool,
}

/// A packet to be sent, possibly delayed.
#[derive(Debug)]
pub(crate) struct DelayedTx<W> {
    pub(crate) tx_route: W,
    pub(crate) bytes: Vec<u8>,
    pub(crate) copies: u32,
}

/// A packet to be delivered, possibly delayed.
#[derive(Debug)]
pub(crate) struct DelayedRx {
    pub(crate) meta: PacketMeta,
    pub(crate) bytes: Vec<u8>,
    pub(crate) ingress: Ingress,
    pub(crate) copies: u32,
}

/// The source of a packet whose ICRC was verified.
#[derive(Clone, Debug)]
pub(crate) enum Ingress {
    /// A socket: the source port, Identification and TOS.
    Udp(u16, u16, u8),
    /// A shared-memory link.
    Shm(Arc<AnyPeerLink>),
}

/// The hooks' decision on a batch to be sent.
#[derive(Debug)]
pub(crate) enum TxVerdict<W> {
    /// Send the batch unchanged.
    Pass,
    /// Send this packet instead.
    Modified(DelayedTx<W>),
    /// The packet is delayed until this time at the latest.
    Delayed(Time),
}

/// The hooks' decision on a received packet.
#[derive(Debug)]
pub(crate) enum RxVerdict {
    /// Deliver the packet now.
    Pass(DelayedRx),
    /// Drop the packet, because it was corrupted.
    Damaged,
    /// The packet is delayed until this time at the latest.
    Delayed(Time),
}

/// The addresses and header fields of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketInfo {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// UDP source port and IPv4 Identification, for packets over UDP.
    pub(crate) udp: Option<(u16, u16)>,
    pub(crate) tos: u8,
}

impl PacketInfo {
    /// Returns the information of a received packet.
    pub(crate) const fn of(meta: &PacketMeta, ingress: &Ingress) -> Self {
        let (udp, tos) = match *ingress {
            Ingress::Udp(port, ip_id, tos) => (Some((port, ip_id)), tos),
            Ingress::Shm(_) => (None, meta.traffic_class),
        };
        Self {
            source: meta.source,
            destination: meta.destination,
            udp,
            tos,
        }
    }

    const fn ends(&self) -> Ends {
        (self.source, self.destination)
    }
}

impl<W> Default for HookState<W> {
    fn default() -> Self {
        Self {
            faults: Faults::default(),
            blocked: Vec::new(),
            is_open: false,
            keys: Vec::new(),
            delayed_tx: DelayQueue::default(),
            delayed_rx: DelayQueue::default(),
        }
    }
}

impl<W> HookState<W> {
    /// Applies the rules to a packet and records the hits.
    fn decide(
        &mut self,
        tally: &Tally,
        now: Time,
        direction: PacketDirection,
        ends: Ends,
        packet: &[u8],
    ) -> Effect {
        let own = match direction {
            PacketDirection::Tx => ends.0,
            PacketDirection::Rx => ends.1,
        };
        if let Some(blocked) = self.blocked.iter().find(|one| one.address == own) {
            return Effect {
                copies: 0,
                note: format!("lost ({})", blocked.why),
                ..Effect::NONE
            };
        }
        let effect = self.faults.decide(now, direction, ends, packet);
        if !effect.is_none()
            && let Some(bth) = packet.first_chunk()
        {
            let subject = Subject::Packet {
                sent: direction == PacketDirection::Tx,
                dest: Bth::from_bytes(bth).dest_qp,
            };
            let keys = effect
                .rules
                .iter()
                .filter_map(|index| self.keys.get(*index));
            keys.for_each(|key| tally.hit(*key, now, subject.clone()));
        }
        effect
    }
}

impl<W> PacketHooks<W> {
    /// Creates hooks with these rules. Capturing into the file begins with [`PacketHooks::start`].
    /// `unix_origin_ns` is the time of day at time 0 of the engine, in nanoseconds since 1970.
    pub(crate) fn new(
        rules: Vec<ScheduledRule>,
        tally: Arc<Tally>,
        capture: Option<PathBuf>,
        simulation: Option<Simulation>,
        unix_origin_ns: u64,
    ) -> Self {
        let hooks = Self {
            is_active: AtomicBool::new(false),
            has_fault_rules: AtomicBool::new(false),
            has_blocked: AtomicBool::new(false),
            tally,
            path: capture,
            capture: OnceLock::new(),
            origin_ns: if simulation.is_none() {
                unix_origin_ns
            } else {
                0
            },
            medium: if simulation.is_some() {
                Medium::Sim
            } else {
                Medium::Udp
            },
            state: Mutex::default(),
        };
        let seed = simulation.map_or(0, |simulation| simulation.seed);
        let mut state = hooks.state.lock();
        state.faults = Faults::with_seed(seed);
        hooks.replace(&mut state, rules);
        drop(state);
        hooks
    }

    /// Returns true if there is anything to do.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Returns true if packets must be sent one by one.
    pub(crate) fn has_faults(&self) -> bool {
        self.has_fault_rules.load(Ordering::Relaxed)
    }

    /// Installs these rules.
    pub(crate) fn set_rules(&self, rules: Vec<ScheduledRule>) {
        let mut state = self.state.lock();
        self.replace(&mut state, rules);
    }

    fn replace(&self, state: &mut HookState<W>, rules: Vec<ScheduledRule>) {
        state.is_open = rules.iter().any(|rule| rule.is_open);
        state.keys = rules.iter().map(|rule| rule.key).collect();
        let rules: Vec<_> = rules
            .into_iter()
            .map(|one| (one.rule, one.is_open))
            .collect();
        state.faults.replace_scheduled(&rules);
        self.note_work(state);
    }

    /// Lets no packet leave or reach these addresses of this process.
    pub(crate) fn block(&self, blocked: Vec<Blocked>) {
        let mut state = self.state.lock();
        self.has_blocked
            .store(!blocked.is_empty(), Ordering::Relaxed);
        state.blocked = blocked;
        self.note_work(&state);
    }

    /// Returns true if there are addresses that packets do not leave or reach.
    pub(crate) fn has_blocked(&self) -> bool {
        self.has_blocked.load(Ordering::Relaxed)
    }

    fn note_work(&self, state: &HookState<W>) {
        let is_open = state.is_open || !state.blocked.is_empty();
        self.has_fault_rules.store(is_open, Ordering::Relaxed);
        let late = state.delayed_tx.next_due().is_some() || state.delayed_rx.next_due().is_some();
        let is_active = is_open || late || self.capture.get().is_some();
        self.is_active.store(is_active, Ordering::Relaxed);
    }

    /// Starts the capture. Must be called before the process has packets.
    pub(crate) fn start(&self) {
        let Some(path) = &self.path else { return };
        match Capture::start(path) {
            Ok(capture) => {
                // Set only once, because an engine is attached only once.
                let _ = self.capture.set(capture);
                self.is_active.store(true, Ordering::Relaxed);
            }
            Err(error) => tracing::error!("failed to capture into {}: {error}", path.display()),
        }
    }

    /// Writes all captured packets to the file before it returns.
    pub(crate) fn flush(&self) {
        if let Some(capture) = self.capture.get() {
            capture.flush();
        }
    }

    /// Returns the time of the next delayed packet.
    pub(crate) fn next_due(&self) -> Option<Time> {
        if !self.is_active() {
            return None;
        }
        let state = self.state.lock();
        let both = [state.delayed_tx.next_due(), state.delayed_rx.next_due()];
        both.into_iter().flatten().min()
    }

    /// Captures a complete and sealed batch that is to be sent now, and returns the decision on it.
    /// `tx_route` returns the route, with or without ECN mark. A remark that is not empty is a
    /// comment of the packets.
    pub(crate) fn on_tx(
        &self,
        now: Time,
        mut packet_info: PacketInfo,
        (batch, remark): (Segments<'_>, &str),
        tx_route: impl FnOnce(bool) -> W,
    ) -> TxVerdict<W> {
        let only = batch.clone().next().unwrap_or_default();
        let effect = if self.has_faults() && batch.len() == 1 {
            let mut state = self.state.lock();
            state.decide(
                &self.tally,
                now,
                PacketDirection::Tx,
                packet_info.ends(),
                only,
            )
        } else {
            Effect::NONE
        };
        if effect.is_none() {
            for (id, segment) in (0..).zip(batch) {
                packet_info.udp = packet_info.udp.map(|(port, _)| (port, id));
                self.record(now, PacketDirection::Tx, &packet_info, segment, remark);
            }
            return TxVerdict::Pass;
        }
        let mut delayed_tx = DelayedTx {
            tx_route: tx_route(effect.ecn),
            bytes: only.to_vec(),
            copies: effect.copies,
        };
        if effect.ecn {
            packet_info.tos |= ECN_CE;
        }
        if let Some(random) = effect.corrupt {
            fault::corrupt(&mut delayed_tx.bytes, random);
            if packet_info.udp.is_none() {
                // Shared memory has no ICRC to verify, so the packet is dropped here instead of by
                // the receiver.
                delayed_tx.copies = 0;
            }
        }
        self.record(
            now,
            PacketDirection::Tx,
            &packet_info,
            &delayed_tx.bytes,
            &with_remark(&effect.note, remark),
        );
        self.end_process(&effect);
        if !effect.is_late() || effect.copies == 0 {
            return TxVerdict::Modified(delayed_tx);
        }
        let due = now.plus_ns(effect.wait_ns());
        let mut state = self.state.lock();
        match state.delayed_tx.hold(due, effect.overtaken_by, delayed_tx) {
            Ok(()) => TxVerdict::Delayed(due),
            Err(mut delayed_tx) => {
                if effect.is_queued {
                    delayed_tx.copies = 0;
                }
                TxVerdict::Modified(delayed_tx)
            }
        }
    }

    /// Captures a received packet, and returns the decision on it.
    pub(crate) fn on_rx(
        &self,
        now: Time,
        meta: &PacketMeta,
        bytes: Vec<u8>,
        ingress: Ingress,
    ) -> RxVerdict {
        let packet_info = PacketInfo::of(meta, &ingress);
        let mut effect = Effect::NONE;
        if self.has_faults() {
            let mut state = self.state.lock();
            effect = state.decide(
                &self.tally,
                now,
                PacketDirection::Rx,
                packet_info.ends(),
                &bytes,
            );
        }
        self.record(now, PacketDirection::Rx, &packet_info, &bytes, &effect.note);
        self.end_process(&effect);
        if effect.corrupt.is_some() {
            return RxVerdict::Damaged;
        }
        let delayed_rx = DelayedRx {
            meta: *meta,
            bytes,
            ingress,
            copies: effect.copies,
        };
        if !effect.is_late() || effect.copies == 0 {
            return RxVerdict::Pass(delayed_rx);
        }
        let due = now.plus_ns(effect.wait_ns());
        let mut state = self.state.lock();
        match state.delayed_rx.hold(due, effect.overtaken_by, delayed_rx) {
            Ok(()) => RxVerdict::Delayed(due),
            Err(mut delayed_rx) => {
                if effect.is_queued {
                    delayed_rx.copies = 0;
                }
                RxVerdict::Pass(delayed_rx)
            }
        }
    }

    /// Ends or stops the process if a rule demands. The capture has all packets before.
    fn end_process(&self, effect: &Effect) {
        if let Some(ending) = effect.ending {
            self.flush();
            ending.execute();
        }
    }

    /// Captures a received packet that is dropped.
    pub(crate) fn record_dropped(
        &self,
        now: Time,
        meta: &PacketMeta,
        bytes: &[u8],
        ingress: &Ingress,
        why: &str,
    ) {
        self.record(
            now,
            PacketDirection::Rx,
            &PacketInfo::of(meta, ingress),
            bytes,
            why,
        );
    }

    /// Notes that a packet was sent, for packets to be reordered behind it.
    pub(crate) fn note_tx(&self) {
        self.state.lock().delayed_tx.pass();
    }

    /// Notes that a packet was delivered, for packets to be reordered behind it.
    pub(crate) fn note_rx(&self) {
        self.state.lock().delayed_rx.pass();
    }

    /// Takes the next delayed packet that is to be sent now.
    pub(crate) fn take_delayed_tx(&self, now: Time) -> Option<DelayedTx<W>> {
        self.state.lock().delayed_tx.take(now)
    }

    /// Takes the next delayed packet that is to be delivered now.
    pub(crate) fn take_delayed_rx(&self, now: Time) -> Option<DelayedRx> {
        self.state.lock().delayed_rx.take(now)
    }

    fn record(
        &self,
        now: Time,
        direction: PacketDirection,
        packet_info: &PacketInfo,
        payload: &[u8],
        note: &str,
    ) {
        if trace::is_on() && !note.is_empty() {
            let is_received = direction == PacketDirection::Rx;
            trace::note(payload, is_received, packet_info.destination, note);
        }
        if let Some(capture) = self.capture.get() {
            capture.record(&CapturedPacket {
                medium: if packet_info.udp.is_some() {
                    self.medium
                } else {
                    Medium::Shared
                },
                direction,
                unix_ns: self.origin_ns + now.as_ns(),
                source: packet_info.source,
                destination: packet_info.destination,
                udp: packet_info.udp,
                tos: packet_info.tos,
                payload,
                note,
            });
        }
    }
}

/// Returns the comment of a packet with an effect: the effect, and the remark behind it.
fn with_remark<'n>(note: &'n str, remark: &str) -> Cow<'n, str> {
    if remark.is_empty() {
        Cow::Borrowed(note)
    } else {
        Cow::Owned(format!("{note}; {remark}"))
    }
}
