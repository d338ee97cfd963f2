//! Memory windows for single messages: B binds a window and sends its key to A. A writes through
//! the window and reads the data back. Then one of the two invalidates the key, and the next round
//! begins. Until the next bind nothing may be written, whatever packets the network duplicates.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use rocade_transport::testing::{Pair, Region, Side};
use rocade_transport::{
    AccessFlags, Bind, Completion, ImmOrInv, QpAttr, QpAttrMask, QpState, SendFlags, SendOp,
    SendWr, Time, WcOpcode, WcStatus, WindowKind,
};
use rocade_wire::{Psn, Rkey};

use super::flow::Kind;
use super::network::{Faults, SimNetwork};
use super::queue::Queue;
use super::rng::{Rng, payload};
use super::scenario::Scenario;
use super::state_changes::StateChange;

/// The value of every byte of an unbound buffer.
const IDLE: u8 = 0xee;
const MAX_LEN: u32 = 9000;
/// The length of each queue, which is longer than a run ever needs.
const QUEUE: u64 = 256;
/// The configuration that a seed determines.
#[derive(Clone, Debug)]
pub struct MemoryWindows {
    /// The network and the QP attributes.
    pub scenario: Scenario,
    /// The number of windows.
    pub windows: u8,
    /// The number of rounds per window.
    pub rounds: u64,
    /// The side that is stopped during the run, with the virtual time in nanoseconds and the state
    /// change.
    pub stop: Option<(Side, u64, StateChange)>,
}

/// A window of B, with the memory region behind it.
#[derive(Debug)]
struct Place {
    region: Region,
    rkey: Rkey,
    round: u64,
    /// The window is bound, as far as B can tell.
    lent: bool,
    /// A reads the data back in this round.
    read: bool,
}

#[derive(Debug)]
struct Run {
    seed: u64,
    rng: Rng,
    places: Vec<Place>,
    /// A buffer of A per window, into which A reads the data back.
    back: Vec<Region>,
    /// The send queues of A and B.
    queues: [Queue; 2],
    opcodes: [Vec<WcOpcode>; 2],
    /// Windows whose invalidation B has posted, in order.
    invalidated: VecDeque<u8>,
    rounds_left: u64,
    is_stopped: bool,
}

impl MemoryWindows {
    /// Draws a random configuration.
    #[must_use]
    pub fn swarm(seed: u64, rounds: u64) -> Self {
        let mut rng = Rng::new(seed, 31);
        let mut scenario = Scenario::hostile(seed, &[Kind::Send], 1);
        scenario.work[0].window = QUEUE;
        scenario.work[0].receives = QUEUE;
        scenario.work.push(scenario.work[0].clone());
        Self {
            scenario,
            windows: rng.range_u8(1, 12),
            rounds,
            stop: None,
        }
    }

    /// Draws a configuration in which one side is stopped during the run.
    #[must_use]
    pub fn stopping(seed: u64) -> Self {
        let mut memory_windows = Self::swarm(seed, 20);
        let mut rng = Rng::new(seed, 34);
        memory_windows.scenario.timeout = 10;
        let at_ns = rng.below(100 * memory_windows.scenario.latency_ns);
        let how = rng.pick(&[StateChange::Error, StateChange::Destroy]);
        memory_windows.stop = Some((rng.pick(&Side::BOTH), at_ns, how));
        memory_windows
    }

    /// Runs it, and returns the number of retransmitted packets.
    ///
    /// # Panics
    /// If any guarantee is violated.
    #[must_use]
    pub fn run(&self) -> u64 {
        let seed = self.scenario.seed;
        let mut pair = self.scenario.pair();
        let faults = Rc::new(RefCell::new(self.scenario.faults));
        let first_psns = self.scenario.first_psns.map(Psn::new);
        let pmtu = 128 << self.scenario.pmtu;
        let mut network = SimNetwork::new(seed, Rc::clone(&faults), pmtu, first_psns);
        pair.set_network(move |event| network.decide(event));
        let mut run = Run::new(seed, self.windows, &pair);
        for side in Side::BOTH {
            for wr_id in 0..QUEUE {
                pair.recv(side, wr_id, &[]);
            }
        }
        let total = self.rounds * u64::from(self.windows);
        run.rounds_left = total;
        for window in 0..self.windows {
            run.lend(&mut pair, window);
        }
        let end = self.stop.map(|(_, at_ns, _)| Time::from_ns(at_ns));
        while run.places.iter().any(|place| place.lent) {
            pair.drain_both();
            if pair.next_event() > end && end.is_some() {
                break;
            }
            assert!(pair.step(), "nothing is pending, work is left: {run:?}");
            run.deliver(&mut pair);
            if run.rounds_left * 10 <= total {
                *faults.borrow_mut() = Faults::NONE;
            }
        }
        if let Some(stop) = self.stop {
            run.stop(&mut pair, stop);
        }
        pair.run();
        run.deliver(&mut pair);
        let mut repeated = 0;
        for side in Side::BOTH {
            let is_gone = pair.node(side).qp.state() == QpState::Reset;
            let queue = &run.queues[side as usize];
            assert!(is_gone || queue.is_accounted_for(), "{side:?}: {queue:?}");
            assert_eq!(pair.take_events(side), []);
            repeated += pair.node(side).qp.counters().retransmitted_packets;
        }
        for window in 0..self.windows {
            run.check_end(&pair, window);
        }
        repeated
    }
}

impl Place {
    fn check_idle(&self, pair: &Pair) {
        let mem = &pair.node(Side::B).mem;
        assert!(!mem.is_bound(self.rkey));
        let bytes = mem.all(&self.region);
        let idle = bytes.iter().all(|byte| *byte == IDLE);
        assert!(idle, "written after the invalidation: {self:?}");
    }
}

impl Run {
    fn new(seed: u64, windows: u8, pair: &Pair) -> Self {
        let (a, b) = (&pair.node(Side::A).mem, &pair.node(Side::B).mem);
        let own = AccessFlags::LOCAL_WRITE;
        let places = (0..windows).map(|_| {
            // The region itself grants the peer no access.
            let region = b.register(MAX_LEN, own | AccessFlags::MW_BIND);
            b.fill(&region, 0, &vec![IDLE; MAX_LEN as usize]);
            Place {
                region,
                rkey: b.alloc_window(WindowKind::Type2),
                round: 0,
                lent: false,
                read: false,
            }
        });
        Self {
            seed,
            rng: Rng::new(seed, 32),
            places: places.collect(),
            back: (0..windows).map(|_| a.register(MAX_LEN, own)).collect(),
            queues: [Queue::default(), Queue::default()],
            opcodes: [Vec::new(), Vec::new()],
            invalidated: VecDeque::new(),
            rounds_left: 0,
            is_stopped: false,
        }
    }

    fn post(&mut self, pair: &mut Pair, side: Side, op: SendOp, part: Option<(Region, u32)>) {
        let wr_id = self.queues[side as usize].posted.len() as u64;
        // Often enough that the queue's entries are freed in time.
        let signaled = self.rng.chance(700)
            || wr_id.is_multiple_of(8)
            || matches!(op, SendOp::Invalidate { .. });
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        // A key may be invalidated only after the data read through it has arrived, because the
        // READ may have to be repeated.
        let is_message = matches!(op, SendOp::Send { .. } | SendOp::SendInv { .. });
        flags.set(SendFlags::FENCE, is_message || self.rng.chance(100));
        self.queues[side as usize].posted.push(signaled);
        self.opcodes[side as usize].push(match op {
            SendOp::Write { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::Bind(_) => WcOpcode::BindMw,
            SendOp::Invalidate { .. } => WcOpcode::LocalInv,
            _ => WcOpcode::Send,
        });
        let sge = part.map(|(region, len)| region.part(0, len));
        let wr = SendWr {
            wr_id,
            op,
            flags,
            sges: sge.as_slice(),
        };
        pair.try_send(side, &wr).expect("there is room");
    }

    fn len(&self, window: u8) -> u32 {
        let round = self.places[usize::from(window)].round;
        let mut rng = Rng::new(self.seed ^ round << 8 ^ u64::from(window), 33);
        let longest = rng.pick(&[64, 2000, MAX_LEN]);
        rng.range_u32(1, longest)
    }

    fn bytes(&self, window: u8) -> Vec<u8> {
        let index = self.places[usize::from(window)].round << 8 | u64::from(window);
        payload(self.seed, index, self.len(window))
    }

    /// Binds a window, and sends its number to A.
    fn lend(&mut self, pair: &mut Pair, window: u8) {
        if self.is_stopped {
            return;
        }
        let place = &mut self.places[usize::from(window)];
        place.check_idle(pair);
        place.rkey = place.rkey.with_next_tag();
        place.lent = true;
        let (rkey, region) = (place.rkey, place.region);
        let bind = Bind {
            rkey,
            lkey: region.lkey,
            va: region.addr,
            len: u64::from(self.len(window)),
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        };
        self.post(pair, Side::B, SendOp::Bind(bind), None);
        let imm = Some([window, 0, 0, 0]);
        self.post(pair, Side::B, SendOp::Send { imm }, None);
    }

    /// Lets A use the window, and then invalidate it (SEND with Invalidate) or ask B to do so.
    fn work(&mut self, pair: &mut Pair, window: u8) {
        if self.is_stopped {
            return;
        }
        let index = usize::from(window);
        let (bytes, len) = (self.bytes(window), self.len(window));
        let back = self.back[index];
        // Each WRITE has a buffer of its own, because B may start the next round before A has the
        // completion.
        let data = pair.node(Side::A).mem.register(len, AccessFlags::empty());
        pair.node(Side::A).mem.fill(&data, 0, &bytes);
        pair.node(Side::A).mem.fill(&back, 0, &vec![0; bytes.len()]);
        let reads = self.rng.chance(500);
        let place = &mut self.places[index];
        place.read = reads;
        let (va, rkey) = (place.region.addr, place.rkey);
        let write = SendOp::Write {
            va,
            rkey,
            imm: None,
        };
        self.post(pair, Side::A, write, Some((data, len)));
        if reads {
            self.post(pair, Side::A, SendOp::Read { va, rkey }, Some((back, len)));
        }
        if self.rng.chance(500) {
            self.post(pair, Side::A, SendOp::SendInv { rkey }, None);
        } else {
            let imm = Some([window, 0, 0, 0]);
            self.post(pair, Side::A, SendOp::Send { imm }, None);
        }
    }

    /// Checks after the invalidation that all of the data has arrived, and starts the next round.
    fn taken_back(&mut self, pair: &mut Pair, window: u8) {
        let bytes = self.bytes(window);
        let place = &mut self.places[usize::from(window)];
        let mem = &pair.node(Side::B).mem;
        assert!(!mem.is_bound(place.rkey));
        assert!(
            mem.bytes(&place.region, 0..bytes.len()) == bytes,
            "{place:?}"
        );
        mem.fill(&place.region, 0, &vec![IDLE; bytes.len()]);
        if place.read {
            let back = self.back[usize::from(window)];
            assert!(pair.node(Side::A).mem.bytes(&back, 0..bytes.len()) == bytes);
        }
        place.round += 1;
        place.lent = false;
        self.rounds_left -= 1;
        let lent = self.places.iter().filter(|place| place.lent).count();
        if self.rounds_left > lent as u64 {
            self.lend(pair, window);
        }
    }

    fn deliver(&mut self, pair: &mut Pair) {
        for side in Side::BOTH {
            for completion in pair.take_completions(side) {
                if completion.is_send() {
                    self.sent(pair, side, &completion);
                } else if completion.status == WcStatus::Success {
                    if !self.is_stopped {
                        pair.recv(side, 0, &[]);
                    }
                    self.received(pair, side, &completion);
                } else {
                    assert!(self.is_stopped, "{completion:?}");
                    assert_eq!(completion.status, WcStatus::WrFlushErr);
                }
            }
        }
    }

    /// Puts a side into ERR, or destroys its QP.
    fn stop(&mut self, pair: &mut Pair, (side, _, how): (Side, u64, StateChange)) {
        self.deliver(pair);
        self.is_stopped = true;
        if how == StateChange::Destroy {
            pair.node_mut(side).qp.abandon();
        } else {
            let attr = QpAttr::default();
            pair.modify(side, QpState::Err, QpAttrMask::empty(), &attr);
        }
        self.deliver(pair);
        let before = pair.node(side).mem.writes();
        pair.run();
        assert_eq!(
            pair.node(side).mem.writes(),
            before,
            "a write after the QP has stopped"
        );
    }

    /// Checks that a bound window contains a prefix of its data, and that an unbound one is
    /// untouched.
    fn check_end(&self, pair: &Pair, window: u8) {
        let place = &self.places[usize::from(window)];
        if !place.lent {
            return place.check_idle(pair);
        }
        let found = pair.node(Side::B).mem.all(&place.region);
        let data = self.bytes(window);
        let written = found.iter().zip(&data).take_while(|(a, b)| a == b).count();
        let rest = found[written..].iter().all(|byte| *byte == IDLE);
        assert!(rest, "something else than its data: {place:?}");
    }

    fn sent(&mut self, pair: &mut Pair, side: Side, completion: &Completion) {
        self.queues[side as usize].end(completion);
        if completion.status != WcStatus::Success {
            assert!(self.is_stopped, "{completion:?}");
            return;
        }
        let index = usize::try_from(completion.wr_id).expect("few requests");
        assert_eq!(completion.opcode, self.opcodes[side as usize][index]);
        if completion.opcode == WcOpcode::LocalInv {
            let window = self
                .invalidated
                .pop_front()
                .expect("the invalidation was posted");
            self.taken_back(pair, window);
        }
    }

    fn received(&mut self, pair: &mut Pair, side: Side, completion: &Completion) {
        match (side, completion.imm_or_inv) {
            (Side::A, ImmOrInv::Imm([window, ..])) => self.work(pair, window),
            (Side::B, ImmOrInv::Inv(rkey)) => {
                let lent = |place: &Place| place.lent && place.rkey == rkey;
                let window = self
                    .places
                    .iter()
                    .position(lent)
                    .expect("the window is bound");
                self.taken_back(pair, u8::try_from(window).expect("few windows"));
            }
            (Side::B, ImmOrInv::Imm(_)) if self.is_stopped => {}
            (Side::B, ImmOrInv::Imm([window, ..])) => {
                let rkey = self.places[usize::from(window)].rkey;
                self.post(pair, Side::B, SendOp::Invalidate { rkey }, None);
                self.invalidated.push_back(window);
            }
            (_, other) => panic!("{other:?}"),
        }
    }
}
