//! What may sit between the engine and any of its links, in both directions: captures and faults.
//!
//! Where nobody asks for either, sending and receiving look at one word. Faults take packets one by one, so
//! runs are short then. The tap decides and keeps; sending and handing over is for who asks it.

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
use super::shm::ShmChannel;
use super::{Segments, Simulation};

/// The bits of TOS or traffic class that say: congestion experienced.
pub(crate) const ECN_CE: u8 = 0b11;

/// Captures and faults of an engine; a packet that leaves late remembers its way out, a `W`.
#[derive(Debug)]
pub(crate) struct Tap<W> {
    /// Is there anything to do?
    on: AtomicBool,
    /// Do packets have to come one by one?
    faulty: AtomicBool,
    /// The rules that the process was started with.
    own: Vec<Rule>,
    path: Option<PathBuf>,
    capture: OnceLock<Capture>,
    /// What carries packets that do not go through shared memory.
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

/// Who is told what the rules have hit.
pub(crate) trait Tally: fmt::Debug + Send {
    /// So many packets each of them, when it begins.
    fn begin(&self, hits: &mut dyn Iterator<Item = u64>);

    /// So many packets that one.
    fn count(&self, index: usize, hits: u64);
}

/// A packet that leaves, late perhaps.
#[derive(Debug)]
pub(crate) struct Leaving<W> {
    pub(crate) way: W,
    pub(crate) bytes: Vec<u8>,
    pub(crate) copies: u32,
}

/// A packet that arrives, late perhaps.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) meta: PacketMeta,
    pub(crate) bytes: Vec<u8>,
    pub(crate) via: Via,
    pub(crate) copies: u32,
}

/// Where a packet came from whose ICRC has been checked.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    /// A socket; its source port, its Identification and its TOS.
    Udp(u16, u16, u8),
    /// A channel.
    Channel(Arc<ShmChannel>),
}

/// What becomes of a run that is to leave.
#[derive(Debug)]
pub(crate) enum Departure<W> {
    /// It leaves as it is.
    Free,
    /// This packet in its place, now.
    Changed(Leaving<W>),
    /// It will leave by then.
    Late(Time),
}

/// What becomes of a packet that has come.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// It arrives.
    Now(Arriving),
    /// Nobody gets it: it was damaged.
    Damaged,
    /// It will arrive by then.
    Late(Time),
}

/// What is around a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Source port and Identification, over UDP.
    pub(crate) udp: Option<(u16, u16)>,
    pub(crate) tos: u8,
}

impl Envelope {
    /// Of a packet that came.
    pub(crate) const fn of(meta: &PacketMeta, via: &Via) -> Self {
        let (udp, tos) = match *via {
            Via::Udp(port, ip_id, tos) => (Some((port, ip_id)), tos),
            Via::Channel(_) => (None, meta.traffic_class),
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
    /// What happens to a packet.
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
    /// One with these rules, that captures into a file from [`Tap::start`] on.
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

    /// Is there anything to do?
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Do packets have to come one by one?
    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Relaxed)
    }

    /// The rules that the process was started with.
    pub(crate) fn own_rules(&self) -> &[Rule] {
        &self.own
    }

    /// These rules from now on; what they hit is told to `tally`.
    pub(crate) fn obey(&self, rules: &[Rule], tally: Option<Box<dyn Tally>>) {
        tracing::info!(rules = rules.len(), "faults");
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

    /// The process is going to have packets.
    pub(crate) fn start(&self) {
        let Some(path) = &self.path else { return };
        match Capture::start(path) {
            Ok(capture) => {
                // Once: there is one attachment.
                let _ = self.capture.set(capture);
                self.on.store(true, Ordering::Relaxed);
            }
            Err(error) => tracing::error!("no capture into {}: {error}", path.display()),
        }
    }

    /// What was captured is in the file when this returns.
    pub(crate) fn flush(&self) {
        if let Some(capture) = self.capture.get() {
            capture.flush();
        }
    }

    /// When something that is late goes on.
    pub(crate) fn next_due(&self) -> Option<Time> {
        if !self.is_on() {
            return None;
        }
        let state = self.state.lock();
        let both = [state.leaving.next_due(), state.arriving.next_due()];
        both.into_iter().flatten().min()
    }

    /// Captures a run that is complete and sealed and is to leave now, and says what becomes of it. `way` says where it
    /// leaves, marked or not.
    pub(crate) fn depart(
        &self,
        now: Time,
        mut envelope: Envelope,
        run: Segments<'_>,
        way: impl FnOnce(bool) -> W,
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
            way: way(effect.ecn),
            bytes: only.to_vec(),
            copies: effect.copies,
        };
        if effect.ecn {
            envelope.tos |= ECN_CE;
        }
        if let Some(random) = effect.corrupt {
            fault::corrupt(&mut leaving.bytes, random);
            if envelope.udp.is_none() {
                // Nobody checks an ICRC there: it is lost, as it would be when that had been done.
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

    /// Captures a packet that has come, and says what becomes of it.
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

    /// Captures a packet that has come and that nobody gets.
    pub(crate) fn refuse(&self, now: Time, meta: &PacketMeta, bytes: &[u8], via: &Via, why: &str) {
        self.record(now, Direction::Rx, &Envelope::of(meta, via), bytes, why);
    }

    /// A packet has left: others may have waited for that.
    pub(crate) fn has_left(&self) {
        self.state.lock().leaving.pass();
    }

    /// A packet has arrived.
    pub(crate) fn has_arrived(&self) {
        self.state.lock().arriving.pass();
    }

    /// The next packet that has been late for long enough to leave.
    pub(crate) fn take_leaving(&self, now: Time) -> Option<Leaving<W>> {
        self.state.lock().leaving.take(now)
    }

    /// The next packet that has been late for long enough to arrive.
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
