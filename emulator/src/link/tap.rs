//! Packet hooks between the engine and its links: capture and fault injection, in both directions.
//!
//! Without either, sending and receiving only test one flag. Fault rules apply to single packets,
//! so runs have one segment then. The hooks decide and store. The caller sends and delivers.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rocade_transport::{PacketMeta, Time};

use super::capture::{Capture, Medium, Seen};
use super::fault::{self, Direction, Effect, Ends, Faults, Held, Rule};
use super::shm::ShmLink;
use super::{Segments, Simulation};

/// The ECN bits of TOS or traffic class for congestion experienced (CE).
pub(crate) const ECN_CE: u8 = 0b11;

/// Capture and fault rules of an engine. `W` is the route of a delayed packet.
#[derive(Debug)]
pub(crate) struct Tap<W> {
    /// True if there is anything to do.
    on: AtomicBool,
    /// True if packets must be sent one by one.
    faulty: AtomicBool,
    /// The rules that the process was started with.
    own: Vec<Rule>,
    path: Option<PathBuf>,
    capture: OnceLock<Capture>,
    /// The transport of packets that do not use shared memory.
    medium: Medium,
    /// The engine's time 0, in nanoseconds since 1970.
    origin_ns: u64,
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    faults: Faults,
    tally: Option<Box<dyn Tally>>,
    leaving: Held<Leaving<W>>,
    arriving: Held<Arriving>,
}

/// A receiver of the rules' hit counts.
pub(crate) trait Tally: fmt::Debug + Send {
    /// Starts counting for a list of rules, with the present counts.
    fn begin(&self, hits: &mut dyn Iterator<Item = u64>);

    /// Sets the count of the rule at `index`.
    fn count(&self, index: usize, hits: u64);
}

/// A packet to be sent, possibly delayed.
#[derive(Debug)]
pub(crate) struct Leaving<W> {
    pub(crate) tx_route: W,
    pub(crate) bytes: Vec<u8>,
    pub(crate) copies: u32,
}

/// A packet to be delivered, possibly delayed.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) meta: PacketMeta,
    pub(crate) bytes: Vec<u8>,
    pub(crate) via: Via,
    pub(crate) copies: u32,
}

/// The source of a packet whose ICRC was verified.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    /// A socket: the source port, Identification and TOS.
    Udp(u16, u16, u8),
    /// A shared-memory link.
    Shm(Arc<ShmLink>),
}

/// The hooks' decision on a run to be sent.
#[derive(Debug)]
pub(crate) enum Departure<W> {
    /// Send the run unchanged.
    Free,
    /// Send this packet instead.
    Changed(Leaving<W>),
    /// The packet is delayed until this time at the latest.
    Late(Time),
}

/// The hooks' decision on a received packet.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Deliver the packet now.
    Now(Arriving),
    /// Drop the packet, because it was corrupted.
    Damaged,
    /// The packet is delayed until this time at the latest.
    Late(Time),
}

/// The addresses and header fields of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// UDP source port and IPv4 Identification, for packets over UDP.
    pub(crate) udp: Option<(u16, u16)>,
    pub(crate) tos: u8,
}

impl Envelope {
    /// Returns the information of a received packet.
    pub(crate) const fn of(meta: &PacketMeta, via: &Via) -> Self {
        let (udp, tos) = match *via {
            Via::Udp(port, ip_id, tos) => (Some((port, ip_id)), tos),
            Via::Shm(_) => (None, meta.traffic_class),
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

impl<W> Default for State<W> {
    fn default() -> Self {
        Self {
            faults: Faults::default(),
            tally: None,
            leaving: Held::default(),
            arriving: Held::default(),
        }
    }
}

impl<W> State<W> {
    /// Applies the rules to a packet and reports the hits.
    fn decide(&mut self, direction: Direction, ends: Ends, packet: &[u8]) -> Effect {
        let effect = self.faults.decide(direction, ends, packet);
        if !effect.is_none()
            && let Some(tally) = &self.tally
        {
            for (index, (_, hits)) in self.faults.rules().enumerate() {
                tally.count(index, hits);
            }
        }
        effect
    }
}

impl<W> Tap<W> {
    /// Creates hooks with these rules. Capturing into the file begins with [`Tap::start`].
    pub(crate) fn new(
        rules: &[Rule],
        capture: Option<PathBuf>,
        simulation: Option<Simulation>,
        now: Time,
    ) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix = unix.ok().filter(|_| simulation.is_none());
        let unix_ns = unix.map_or(0, |unix| u64::try_from(unix.as_nanos()).unwrap_or(0));
        let tap = Self {
            on: AtomicBool::new(false),
            faulty: AtomicBool::new(false),
            own: rules.to_vec(),
            path: capture,
            capture: OnceLock::new(),
            origin_ns: unix_ns.saturating_sub(now.as_ns()),
            medium: if simulation.is_some() {
                Medium::Sim
            } else {
                Medium::Udp
            },
            state: Mutex::default(),
        };
        let seed = simulation.map_or(0, |simulation| simulation.seed);
        let mut state = tap.state.lock();
        state.faults = Faults::with_seed(seed);
        tap.replace(&mut state, rules);
        drop(state);
        tap
    }

    /// Returns true if there is anything to do.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Returns true if packets must be sent one by one.
    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Relaxed)
    }

    /// Returns the rules that the process was started with.
    pub(crate) fn own_rules(&self) -> &[Rule] {
        &self.own
    }

    /// Installs these rules, whose hits are reported to `tally`.
    pub(crate) fn obey(&self, rules: &[Rule], tally: Option<Box<dyn Tally>>) {
        tracing::info!(rules = rules.len(), "installing fault rules");
        let mut state = self.state.lock();
        self.replace(&mut state, rules);
        if let Some(tally) = &tally {
            tally.begin(&mut state.faults.rules().map(|(_, hits)| hits));
        }
        state.tally = tally;
    }

    fn replace(&self, state: &mut State<W>, rules: &[Rule]) {
        state.faults.replace(rules);
        self.faulty.store(!rules.is_empty(), Ordering::Relaxed);
        let late = state.leaving.next_due().is_some() || state.arriving.next_due().is_some();
        let on = !rules.is_empty() || late || self.capture.get().is_some();
        self.on.store(on, Ordering::Relaxed);
    }

    /// Starts the capture. Must be called before the process has packets.
    pub(crate) fn start(&self) {
        let Some(path) = &self.path else { return };
        match Capture::start(path) {
            Ok(capture) => {
                // Set only once, because an engine is attached only once.
                let _ = self.capture.set(capture);
                self.on.store(true, Ordering::Relaxed);
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
        if !self.is_on() {
            return None;
        }
        let state = self.state.lock();
        let both = [state.leaving.next_due(), state.arriving.next_due()];
        both.into_iter().flatten().min()
    }

    /// Captures a complete and sealed run that is to be sent now, and returns the decision on it.
    /// `tx_route` returns the route, with or without ECN mark.
    pub(crate) fn depart(
        &self,
        now: Time,
        mut envelope: Envelope,
        run: Segments<'_>,
        tx_route: impl FnOnce(bool) -> W,
    ) -> Departure<W> {
        let only = run.clone().next().unwrap_or_default();
        let effect = if self.is_faulty() && run.len() == 1 {
            let mut state = self.state.lock();
            state.decide(Direction::Tx, envelope.ends(), only)
        } else {
            Effect::NONE
        };
        if effect.is_none() {
            for (id, segment) in (0..).zip(run) {
                envelope.udp = envelope.udp.map(|(port, _)| (port, id));
                self.record(now, Direction::Tx, &envelope, segment, "");
            }
            return Departure::Free;
        }
        let mut leaving = Leaving {
            tx_route: tx_route(effect.ecn),
            bytes: only.to_vec(),
            copies: effect.copies,
        };
        if effect.ecn {
            envelope.tos |= ECN_CE;
        }
        if let Some(random) = effect.corrupt {
            fault::corrupt(&mut leaving.bytes, random);
            if envelope.udp.is_none() {
                // Shared memory has no ICRC to verify, so the packet is dropped here instead of by the receiver.
                leaving.copies = 0;
            }
        }
        self.record(now, Direction::Tx, &envelope, &leaving.bytes, &effect.note);
        if !effect.is_late() {
            return Departure::Changed(leaving);
        }
        let due = now.plus_ns(effect.wait_ns());
        let mut state = self.state.lock();
        match state.leaving.hold(due, effect.behind, leaving) {
            Ok(()) => Departure::Late(due),
            Err(leaving) => Departure::Changed(leaving),
        }
    }

    /// Captures a received packet, and returns the decision on it.
    pub(crate) fn arrive(&self, now: Time, meta: &PacketMeta, bytes: Vec<u8>, via: Via) -> Arrived {
        let envelope = Envelope::of(meta, &via);
        let mut effect = Effect::NONE;
        if self.is_faulty() {
            let mut state = self.state.lock();
            effect = state.decide(Direction::Rx, envelope.ends(), &bytes);
        }
        self.record(now, Direction::Rx, &envelope, &bytes, &effect.note);
        if effect.corrupt.is_some() {
            return Arrived::Damaged;
        }
        let arriving = Arriving {
            meta: *meta,
            bytes,
            via,
            copies: effect.copies,
        };
        if !effect.is_late() {
            return Arrived::Now(arriving);
        }
        let due = now.plus_ns(effect.wait_ns());
        let mut state = self.state.lock();
        match state.arriving.hold(due, effect.behind, arriving) {
            Ok(()) => Arrived::Late(due),
            Err(arriving) => Arrived::Now(arriving),
        }
    }

    /// Captures a received packet that is dropped.
    pub(crate) fn refuse(&self, now: Time, meta: &PacketMeta, bytes: &[u8], via: &Via, why: &str) {
        self.record(now, Direction::Rx, &Envelope::of(meta, via), bytes, why);
    }

    /// Notes that a packet was sent, for packets to be reordered behind it.
    pub(crate) fn has_left(&self) {
        self.state.lock().leaving.pass();
    }

    /// Notes that a packet was delivered, for packets to be reordered behind it.
    pub(crate) fn has_arrived(&self) {
        self.state.lock().arriving.pass();
    }

    /// Takes the next delayed packet that is to be sent now.
    pub(crate) fn take_leaving(&self, now: Time) -> Option<Leaving<W>> {
        self.state.lock().leaving.take(now)
    }

    /// Takes the next delayed packet that is to be delivered now.
    pub(crate) fn take_arriving(&self, now: Time) -> Option<Arriving> {
        self.state.lock().arriving.take(now)
    }

    fn record(
        &self,
        now: Time,
        direction: Direction,
        envelope: &Envelope,
        payload: &[u8],
        note: &str,
    ) {
        if let Some(capture) = self.capture.get() {
            capture.record(&Seen {
                medium: if envelope.udp.is_some() {
                    self.medium
                } else {
                    Medium::Shared
                },
                direction,
                unix_ns: self.origin_ns + now.as_ns(),
                source: envelope.source,
                destination: envelope.destination,
                udp: envelope.udp,
                tos: envelope.tos,
                payload,
                note,
            });
        }
    }
}
