//! What may sit between the engine and any of its links, in both directions: captures and faults.
//!
//! Where nobody asks for either, sending and receiving look at one word. Faults take packets one by one, so
//! runs are short then.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rocade_transport::{PacketMeta, Time};
use rocade_wire::{ICRC_LEN, Packet, Qpn};

use super::EngineInner;
use super::dispatch::{Dispatch, Origin, Verdict};
use super::handover::Driver;
use super::transmit::Run;
use crate::broker::{FaultNews, WhichRule, Will};
use crate::cells::{Path, TxState, Uplink};
use crate::config::EngineConfig;
use crate::link::capture::{Capture, Medium, Seen};
use crate::link::fault::{self, Direction, Effect, Ends, Faults, Held, Rule};
use crate::link::shm::ShmChannel;
use crate::link::{Inbound, Segments};

/// The bits of TOS or traffic class that say: congestion experienced.
const ECN_CE: u8 = 0b11;

/// Captures and faults of an engine.
#[derive(Debug)]
pub(super) struct Tap {
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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    /// Who is told what the rules have hit.
    counts: Option<Arc<Will>>,
    leaving: Held<Leaving>,
    arriving: Held<Arriving>,
}

/// A packet that leaves late.
#[derive(Debug)]
struct Leaving {
    uplink: Arc<Uplink>,
    path: Path,
    bytes: Vec<u8>,
    copies: u32,
}

/// A packet that arrives late.
#[derive(Debug)]
struct Arriving {
    meta: PacketMeta,
    bytes: Vec<u8>,
    via: Via,
    copies: u32,
}

/// Where a packet came from whose ICRC has been checked.
#[derive(Clone, Debug)]
pub(super) enum Via {
    /// A socket; its source port, its Identification and its TOS.
    Udp(u16, u16, u8),
    /// A channel.
    Channel(Arc<ShmChannel>),
}

impl Origin for Via {
    fn is_intact<'p>(&mut self, _: impl FnOnce() -> (&'p [u8], [u8; ICRC_LEN])) -> bool {
        true
    }

    fn is_heard(&self, tx: &mut TxState) -> bool {
        match self {
            Self::Udp(..) => !tx.refuses_udp(),
            Self::Channel(channel) => tx.hears_from(channel),
        }
    }

    fn via(&self) -> Self {
        self.clone()
    }
}

impl State {
    /// What happens to a packet.
    fn decide(&mut self, direction: Direction, ends: Ends, packet: &[u8]) -> Effect {
        let effect = self.faults.decide(direction, ends, packet);
        if !effect.is_none()
            && let Some(counts) = &self.counts
        {
            for (index, (_, hits)) in self.faults.rules().enumerate() {
                counts.count(index, hits);
            }
        }
        effect
    }
}

impl Tap {
    pub(super) fn new(config: &EngineConfig, now: Time) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix = unix.ok().filter(|_| config.simulation.is_none());
        let unix_ns = unix.map_or(0, |unix| u64::try_from(unix.as_nanos()).unwrap_or(0));
        let tap = Self {
            on: AtomicBool::new(false),
            faulty: AtomicBool::new(false),
            own: config.faults.clone(),
            path: config.capture.clone(),
            capture: OnceLock::new(),
            origin_ns: unix_ns.saturating_sub(now.as_ns()),
            medium: if config.simulation.is_some() {
                Medium::Sim
            } else {
                Medium::Udp
            },
            state: Mutex::default(),
        };
        let seed = config.simulation.map_or(0, |simulation| simulation.seed);
        tap.state.lock().faults = Faults::with_seed(seed);
        tap.set_rules(&config.faults);
        tap
    }

    /// Is there anything to do?
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Do packets have to come one by one?
    pub(super) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Relaxed)
    }

    /// The rules that the process was started with, as text.
    pub(super) fn own_rules(&self) -> Vec<String> {
        self.own.iter().map(Rule::to_string).collect()
    }

    /// The rules that the broker says, from now on; what they hit is counted in `counts`.
    pub(super) fn obey(&self, news: &FaultNews, counts: Option<Arc<Will>>) {
        let rule = |which: &WhichRule| match which {
            WhichRule::Own(index) => self.own.get(usize::from(*index)).cloned(),
            WhichRule::Text(text) => Rule::parse(text).ok(),
        };
        let known = news.rules.iter();
        let known = known.filter_map(|of| Some((of.id, rule(&of.which)?)));
        let (ids, rules): (Vec<_>, Vec<_>) = known.unzip();
        tracing::info!(rules = rules.len(), "faults");
        let mut state = self.state.lock();
        self.replace(&mut state, &rules);
        if let Some(counts) = &counts {
            let hits = state.faults.rules().map(|(_, hits)| hits);
            counts.count_anew(news.generation, ids.into_iter().zip(hits));
        }
        state.counts = counts;
    }

    /// These rules from now on.
    pub(super) fn set_rules(&self, rules: &[Rule]) {
        self.replace(&mut self.state.lock(), rules);
    }

    fn replace(&self, state: &mut State, rules: &[Rule]) {
        state.faults.replace(rules);
        self.faulty.store(!rules.is_empty(), Ordering::Relaxed);
        let late = state.leaving.next_due().is_some() || state.arriving.next_due().is_some();
        let on = !rules.is_empty() || late || self.capture.get().is_some();
        self.on.store(on, Ordering::Relaxed);
    }

    /// The process is going to have packets.
    pub(super) fn start(&self) {
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
    pub(super) fn flush(&self) {
        if let Some(capture) = self.capture.get() {
            capture.flush();
        }
    }

    /// When something that is late goes on.
    pub(super) fn next_due(&self) -> Option<Time> {
        if !self.is_on() {
            return None;
        }
        let state = self.state.lock();
        let both = [state.leaving.next_due(), state.arriving.next_due()];
        both.into_iter().flatten().min()
    }

    fn record(&self, now: Time, direction: Direction, way: &Way, payload: &[u8], note: &str) {
        if let Some(capture) = self.capture.get() {
            capture.record(&Seen {
                medium: if way.udp.is_some() {
                    self.medium
                } else {
                    Medium::Shared
                },
                direction,
                unix_ns: self.origin_ns + now.as_ns(),
                source: way.meta.source,
                destination: way.meta.destination,
                udp: way.udp,
                tos: way.tos,
                payload,
                note,
            });
        }
    }
}

/// What is around a packet.
struct Way {
    meta: PacketMeta,
    udp: Option<(u16, u16)>,
    tos: u8,
}

impl Way {
    fn out(uplink: &Uplink, path: &Path) -> Self {
        let shared = path.live_channel().is_some();
        Self {
            meta: PacketMeta {
                source: uplink.link.local(),
                destination: path.to,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
            },
            udp: (!shared).then_some((path.tx.source_port, 0)),
            tos: path.traffic_class,
        }
    }

    const fn ends(&self) -> Ends {
        (self.meta.source, self.meta.destination)
    }

    fn back(meta: PacketMeta, via: &Via) -> Self {
        let (udp, tos) = match *via {
            Via::Udp(port, ip_id, tos) => (Some((port, ip_id)), tos),
            Via::Channel(_) => (None, meta.traffic_class),
        };
        Self { meta, udp, tos }
    }
}

impl EngineInner {
    /// Sends a run that is complete and sealed, unless something happens to it. False where there is no room.
    #[cold]
    pub(super) fn send_tapped(
        &self,
        uplink: &Arc<Uplink>,
        path: &Path,
        enters: &mut bool,
        run: Run<'_>,
        driver: Driver,
    ) -> bool {
        let now = self.now();
        let mut way = Way::out(uplink, path);
        let single = run.bytes.len() <= run.segment_len;
        let effect = if single && self.tap.is_faulty() {
            let mut state = self.tap.state.lock();
            state.decide(Direction::Tx, way.ends(), run.bytes)
        } else {
            Effect::NONE
        };
        if effect.is_none() {
            for (id, segment) in (0..).zip(Segments::new(run.bytes, run.segment_len)) {
                way.udp = way.udp.map(|(port, _)| (port, id));
                self.tap.record(now, Direction::Tx, &way, segment, "");
            }
            let sent = self.put(uplink, path, enters, run, driver);
            self.passed(driver);
            return sent;
        }
        let (mut path, mut bytes) = (path.clone(), run.bytes.to_vec());
        if effect.ecn {
            path.traffic_class |= ECN_CE;
            way.tos |= ECN_CE;
        }
        let mut copies = effect.copies;
        if let Some(random) = effect.corrupt {
            fault::corrupt(&mut bytes, random);
            if way.udp.is_none() {
                // Nobody checks an ICRC there: it is lost, as it would be when that had been done.
                copies = 0;
            }
        }
        self.tap
            .record(now, Direction::Tx, &way, &bytes, &effect.note);
        if !effect.is_late() {
            let run = Run {
                bytes: &bytes,
                ..run
            };
            let sent = (0..copies).map(|_| self.put(uplink, &path, enters, run, driver));
            // What there is no room for of this is lost as well.
            let _ = sent.filter(|sent| *sent).count();
            self.passed(driver);
            return true;
        }
        let leaving = Leaving {
            uplink: Arc::clone(uplink),
            path,
            bytes,
            copies,
        };
        let due = now.plus_ns(effect.wait_ns());
        let held = self
            .tap
            .state
            .lock()
            .leaving
            .hold(due, effect.behind, leaving);
        if let Err(leaving) = held {
            self.leave(&leaving, driver);
        }
        self.agenda.call_before(due);
        true
    }

    /// Sends a packet that is no QP's, complete and sealed. What there is no room for is lost.
    pub(crate) fn send_datagram(&self, uplink: &Arc<Uplink>, path: &Path, bytes: &[u8]) {
        let run = Run {
            bytes,
            segment_len: bytes.len(),
            promise: false,
        };
        let driver = Driver::Application;
        if self.tap.is_on() {
            self.send_tapped(uplink, path, &mut false, run, driver);
        } else {
            self.put(uplink, path, &mut false, run, driver);
        }
    }

    /// A packet has left: others may have waited for that.
    fn passed(&self, driver: Driver) {
        if self.tap.is_faulty() {
            self.tap.state.lock().leaving.pass();
            self.release_leaving(driver);
        }
    }

    fn release_leaving(&self, driver: Driver) {
        let now = self.now();
        loop {
            let leaving = self.tap.state.lock().leaving.take(now);
            let Some(leaving) = leaving else { return };
            self.leave(&leaving, driver);
        }
    }

    fn leave(&self, leaving: &Leaving, driver: Driver) {
        let Leaving {
            uplink,
            path,
            bytes,
            copies,
        } = leaving;
        let run = Run {
            bytes,
            segment_len: bytes.len(),
            promise: false,
        };
        for _ in 0..*copies {
            // What there is no room for is lost.
            self.put(uplink, path, &mut false, run, driver);
        }
    }

    /// Lets go on what has been late for long enough.
    #[cold]
    pub(super) fn release_late(&self, driver: Driver) {
        self.release_leaving(driver);
        loop {
            let now = self.now();
            let arriving = self.tap.state.lock().arriving.take(now);
            let Some(mut arriving) = arriving else { return };
            let qps = self.qps.read();
            let mem = self.regions().read(now);
            let mut dispatch = Dispatch::new(self, &qps, &mem, now, driver);
            let verdict = dispatch.arrive(&mut arriving, None);
            dispatch.let_go(None);
            if verdict == Verdict::UnknownQp(Qpn::GSI) {
                let Arriving { meta, bytes, .. } = arriving;
                let uplinks = self.uplinks.read();
                let mut uplinks = uplinks.iter();
                let here = uplinks.find(|uplink| uplink.link.local() == meta.destination);
                // It was for this process when it came.
                if let Some(uplink) = here {
                    self.to_gsi(uplink, meta.source, &bytes, true);
                }
            }
        }
    }
}

impl Dispatch<'_> {
    /// [`Dispatch::packet`] where packets are captured, or something happens to them.
    #[cold]
    pub(super) fn tapped_packet<'p>(
        &mut self,
        meta: &PacketMeta,
        packet: impl Inbound<'p>,
        origin: &mut impl Origin,
        mut later: Option<&mut Vec<Qpn>>,
    ) -> Verdict {
        // Not the time of the batch: its later packets may have left after that.
        let (tap, now) = (&self.engine.tap, self.engine.now());
        let bytes = packet.copied();
        let is_packet = Packet::parse(&bytes).is_ok();
        let is_intact = is_packet
            && origin.is_intact(|| match bytes.split_last_chunk() {
                Some((covered, icrc)) => (covered, *icrc),
                None => (&[], [0; ICRC_LEN]),
            });
        let via = origin.via();
        let way = Way::back(*meta, &via);
        let mut effect = Effect::NONE;
        if is_intact && tap.is_faulty() {
            let mut state = tap.state.lock();
            effect = state.decide(Direction::Rx, way.ends(), &bytes);
        }
        let note = match (is_packet, is_intact) {
            (false, _) => "no RoCEv2 packet",
            (true, false) => "wrong ICRC",
            (true, true) => &effect.note,
        };
        tap.record(now, Direction::Rx, &way, &bytes, note);
        if !is_packet {
            return Verdict::Malformed;
        }
        if !is_intact || effect.corrupt.is_some() {
            return Verdict::BadIcrc;
        }
        let mut arriving = Arriving {
            meta: *meta,
            bytes,
            via,
            copies: effect.copies,
        };
        if effect.is_late() {
            let due = now.plus_ns(effect.wait_ns());
            let held = tap.state.lock().arriving.hold(due, effect.behind, arriving);
            let Err(given_back) = held else {
                self.engine.agenda.call_before(due);
                return Verdict::Taken;
            };
            arriving = given_back;
        }
        let verdict = self.arrive(&mut arriving, later.as_deref_mut());
        if tap.is_faulty() {
            tap.state.lock().arriving.pass();
            loop {
                let next = tap.state.lock().arriving.take(now);
                let Some(mut next) = next else { break };
                self.arrive(&mut next, later.as_deref_mut());
            }
        }
        verdict
    }

    fn arrive(&mut self, arriving: &mut Arriving, mut later: Option<&mut Vec<Qpn>>) -> Verdict {
        let mut verdict = Verdict::Taken;
        for _ in 0..arriving.copies {
            let Arriving {
                meta, bytes, via, ..
            } = &mut *arriving;
            verdict = self.hand_over(meta, &**bytes, via, later.as_deref_mut());
        }
        verdict
    }
}
