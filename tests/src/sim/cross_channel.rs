//! Cross-channel operations over a bad network: A's releases drive B's send queue, and A echoes
//! what it has received, without posts on the way.
//!
//! All work is posted in advance. For each message A waits for the receive completion and releases
//! a receive of B. A then sends the buffer (or a sum over it) back, and releases B's next message.
//! Without the wait, A would echo an empty buffer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rocade_transport::testing::{Pair, Region, Side};
use rocade_transport::{
    AccessFlags, Calc, CalcOp, Completion, Condition, Gate, ImmOrInv, Managed, Operands, QpAttr,
    QpAttrMask, QpState, Release, SendFlags, SendOp, SendWr, Sge, WcStatus, has_reached,
};
use rocade_wire::{Psn, Qpn};

use super::flow::Kind;
use super::network::{Faults, SimNetwork};
use super::queue::Queue;
use super::rng::{Rng, payload};
use super::scenario::Scenario;

const MAX_LEN: u32 = 3000;

/// The configuration that a seed determines.
#[derive(Clone, Debug)]
pub struct CrossChannelPlan {
    /// The network and the QP attributes.
    pub scenario: Scenario,
    /// The number of messages in each direction.
    pub messages: u32,
    /// Every request is signaled, instead of only the last.
    pub signaled: bool,
    /// The echo is the sum of the 64-bit numbers in the message.
    pub sums: bool,
    /// B's receive queue is managed too, and A releases one receive per echo.
    pub receives_are_managed: bool,
    /// The side that is put into ERR, and the virtual time in nanoseconds.
    pub stop: Option<(Side, u64)>,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Messages that A has received and echoed.
    pub echoed: u32,
    /// Requests that were flushed or failed.
    pub ended: usize,
    /// Retransmitted packets.
    pub repeated: u64,
}

/// A condition that holds when the CQ of A's receives has had `value` completions.
#[derive(Debug)]
struct Received {
    count: Arc<AtomicU32>,
    value: u32,
}

impl Condition for Received {
    fn holds_for(&self, _: Qpn) -> bool {
        has_reached(self.count.load(Ordering::Relaxed), self.value)
    }
}

/// A's requests per message: a wait, the release of a receive, an echo, the release of a message.
const STEPS: u64 = 4;

/// Releases a queue of B up to this position, and records that.
#[derive(Debug)]
struct Next(Arc<Gate>, Arc<AtomicU32>, u32);

impl Release for Next {
    fn release(&self) {
        self.0.release_to(self.2);
        self.1.fetch_max(self.2, Ordering::Relaxed);
    }
}

struct Run<'r> {
    plan: &'r CrossChannelPlan,
    pair: Pair,
    received: Arc<AtomicU32>,
    released: Arc<AtomicU32>,
    gate: Arc<Gate>,
    /// The counter and the gate of B's receive queue, if that queue is managed.
    receivable: Arc<AtomicU32>,
    recv_gate: Arc<Gate>,
    /// The send queues of A and B.
    queues: [Queue; 2],
    /// The numbers of completed receives of A and B.
    taken: [u32; 2],
    sources: Vec<Region>,
    relayed: Vec<Region>,
    sinks: Vec<Region>,
}

impl CrossChannelPlan {
    /// Draws a random configuration.
    #[must_use]
    pub fn swarm(seed: u64, stops: bool) -> Self {
        let mut rng = Rng::new(seed, 41);
        let messages = rng.range_u32(1, 40);
        let mut scenario = Scenario::hostile(seed, &[Kind::Send], 1);
        scenario.work[0].window = STEPS * 40;
        scenario.work[0].receives = 40;
        scenario.work.push(scenario.work[0].clone());
        // A longer timeout would take seconds to exhaust the retries.
        scenario.timeout = if stops { 10 } else { scenario.timeout };
        let at_ns = rng.below(2 * u64::from(messages) * scenario.latency_ns);
        Self {
            scenario,
            messages,
            signaled: rng.chance(500),
            sums: rng.chance(500),
            receives_are_managed: rng.chance(500),
            stop: stops.then(|| (rng.pick(&Side::BOTH), at_ns)),
        }
    }

    /// Runs it.
    ///
    /// # Panics
    /// If any guarantee is violated.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let mut run = Run::new(self);
        run.post_everything();
        let Some((victim, at_ns)) = self.stop else {
            run.until(None);
            return run.finish();
        };
        run.until(Some(at_ns));
        run.break_down(victim);
        run.until(None);
        // The other side may wait forever for a completion or a release.
        run.break_down(victim.other());
        run.until(None);
        run.finish()
    }
}

impl<'r> Run<'r> {
    fn new(plan: &'r CrossChannelPlan) -> Self {
        let scenario = &plan.scenario;
        let mut pair = scenario.pair();
        let faults = Rc::new(RefCell::new(Faults {
            loss: scenario.faults.loss.min(20),
            ..scenario.faults
        }));
        let first_psns = scenario.first_psns.map(Psn::new);
        let pmtu = 128 << scenario.pmtu;
        let mut network = SimNetwork::new(scenario.seed, faults, pmtu, first_psns);
        let released = Arc::new(AtomicU32::new(1));
        let allowed = Arc::clone(&released);
        pair.set_network(move |event| {
            if let Some(number) = event.packet.headers().imm
                && event.from == Side::B
            {
                let number = u32::from_be_bytes(number.0);
                assert!(number < allowed.load(Ordering::Relaxed), "not released yet");
            }
            network.decide(event)
        });
        let gate = Arc::new(Gate::default());
        let recv_gate = Arc::new(Gate::default());
        pair.node_mut(Side::B).qp.manage(Managed {
            send: Some(Arc::clone(&gate)),
            recv: plan.receives_are_managed.then(|| Arc::clone(&recv_gate)),
            ..Managed::default()
        });
        // A needs cross-channel support to compute, but its own queues are not managed.
        pair.node_mut(Side::A).qp.manage(Managed::default());
        let regions = |side: Side| -> Vec<Region> {
            let mem = &pair.node(side).mem;
            (0..plan.messages)
                .map(|_| mem.register(MAX_LEN, AccessFlags::LOCAL_WRITE))
                .collect()
        };
        let (sources, relayed, sinks) = (regions(Side::B), regions(Side::A), regions(Side::B));
        Self {
            plan,
            received: Arc::default(),
            released,
            gate,
            receivable: Arc::default(),
            recv_gate,
            queues: [Queue::default(), Queue::default()],
            taken: [0; 2],
            sources,
            relayed,
            sinks,
            pair,
        }
    }

    fn len(&self, message: u32) -> u32 {
        let mut rng = Rng::new(self.plan.scenario.seed ^ u64::from(message), 42);
        let longest = rng.pick(&[0, 64, MAX_LEN]);
        let len = rng.range_u32(0, longest);
        if self.plan.sums {
            // At least one whole number.
            (len / 8 * 8).max(8)
        } else {
            len
        }
    }

    /// Returns the expected echo of a message.
    fn echo(&self, message: u32) -> Vec<u8> {
        let bytes = self.bytes(message);
        if !self.plan.sums {
            return bytes;
        }
        let numbers = bytes.as_chunks::<8>().0.iter();
        let add = |sum: u64, number: &[u8; 8]| sum.wrapping_add(u64::from_be_bytes(*number));
        numbers.fold(0, add).to_be_bytes().to_vec()
    }

    fn bytes(&self, message: u32) -> Vec<u8> {
        payload(self.plan.scenario.seed, message.into(), self.len(message))
    }

    fn post(&mut self, side: Side, op: SendOp, sge: Option<Sge>, operands: Option<Operands>) {
        let queue = &mut self.queues[side as usize];
        let wr_id = queue.posted.len() as u64;
        // The last request is always signaled, so that all requests are accounted for.
        let steps = if side == Side::A { STEPS } else { 1 };
        let total = steps * u64::from(self.plan.messages);
        let signaled = self.plan.signaled || wr_id + 1 == total;
        queue.posted.push(signaled);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        let sges = sge.as_slice();
        let wr = SendWr {
            wr_id,
            op,
            flags,
            sges,
        };
        self.pair.try_send(side, &wr).expect("there is room");
        if let Some(operands) = operands {
            self.pair.node_mut(side).qp.set_operands(operands);
        }
    }

    fn post_everything(&mut self) {
        for message in 0..self.plan.messages {
            let index = message as usize;
            let (there, back) = (self.relayed[index], self.sinks[index]);
            self.pair.recv(Side::A, message.into(), &[there.sge()]);
            self.pair.recv(Side::B, message.into(), &[back.sge()]);
            let (len, source) = (self.len(message), self.sources[index]);
            let bytes = self.bytes(message);
            self.pair.node(Side::B).mem.fill(&source, 0, &bytes);
            let send = SendOp::Send {
                imm: Some(message.to_be_bytes()),
            };
            self.post(Side::B, send, Some(source.part(0, len)), None);
            let until = Received {
                count: Arc::clone(&self.received),
                value: message + 1,
            };
            let wait = Operands::Wait(Arc::new(until));
            self.post(Side::A, SendOp::Wait, None, Some(wait));
            let (gate, released) = (Arc::clone(&self.recv_gate), Arc::clone(&self.receivable));
            let receive = Operands::Enable(Arc::new(Next(gate, released, message + 1)));
            self.post(Side::A, SendOp::Enable, None, Some(receive));
            let sum = Operands::Calc(Calc {
                op: CalcOp::Add,
                located: false,
            });
            let sum = self.plan.sums.then_some(sum);
            self.post(Side::A, send, Some(there.part(0, len)), sum);
            let (gate, released) = (Arc::clone(&self.gate), Arc::clone(&self.released));
            let next = Next(gate, released, message + 2);
            let enable = Operands::Enable(Arc::new(next));
            self.post(Side::A, SendOp::Enable, None, Some(enable));
        }
        self.gate.release_to(1);
        self.pair.node_mut(Side::B);
    }

    /// Steps until this time, or until no event is pending.
    fn until(&mut self, at_ns: Option<u64>) {
        loop {
            let before = self.released.load(Ordering::Relaxed);
            self.pair.drain_both();
            // A completion or a release may have satisfied a wait.
            let is_woken = self.collect();
            if is_woken || self.released.load(Ordering::Relaxed) != before {
                for side in Side::BOTH {
                    self.pair.node_mut(side);
                }
                continue;
            }
            let next = self.pair.next_event();
            if next.is_none_or(|next| at_ns.is_some_and(|at| next.as_ns() > at)) {
                return;
            }
            self.pair.step();
        }
    }

    fn collect(&mut self) -> bool {
        let mut any = false;
        for side in Side::BOTH {
            for completion in self.pair.take_completions(side) {
                any = true;
                if completion.is_send() {
                    self.queues[side as usize].end(&completion);
                } else {
                    self.take(side, &completion);
                }
            }
        }
        any
    }

    fn take(&mut self, side: Side, completion: &Completion) {
        let message = self.taken[side as usize];
        assert_eq!(completion.wr_id, u64::from(message), "each once, in order");
        self.taken[side as usize] += 1;
        if completion.status != WcStatus::Success {
            assert_eq!(completion.status, WcStatus::WrFlushErr);
            return;
        }
        let imm = ImmOrInv::Imm(message.to_be_bytes());
        assert_eq!(completion.imm_or_inv, imm);
        let expected_len = match side {
            Side::A => self.len(message),
            Side::B if self.plan.sums => 8,
            Side::B => self.len(message),
        };
        assert_eq!(completion.byte_len, expected_len);
        let regions = match side {
            Side::A => &self.relayed,
            Side::B => &self.sinks,
        };
        let expected = match side {
            Side::A => self.bytes(message),
            Side::B => self.echo(message),
        };
        let memory = &self.pair.node(side).mem;
        let found = memory.bytes(&regions[message as usize], 0..expected.len());
        assert!(found == expected, "message {message} at {side:?}");
        let is_early = self.receivable.load(Ordering::Relaxed) <= message;
        assert!(
            side == Side::A || !is_early,
            "a receive that has not been released"
        );
        if side == Side::A {
            self.received.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn break_down(&mut self, side: Side) {
        if self.pair.node(side).qp.state() != QpState::Err {
            let attr = QpAttr::default();
            let none = QpAttrMask::empty();
            self.pair.modify(side, QpState::Err, none, &attr);
        }
    }

    fn finish(self) -> Outcome {
        let total = self.plan.messages;
        let mut outcome = Outcome::default();
        for side in Side::BOTH {
            let queue = &self.queues[side as usize];
            assert_eq!(
                queue.ended,
                queue.posted.len(),
                "{side:?}: requests without a completion"
            );
            assert_eq!(
                self.taken[side as usize], total,
                "{side:?}: receives without a completion"
            );
            outcome.ended += queue.flushed;
            let counters = self.pair.node(side).qp.counters();
            outcome.repeated += counters.retransmitted_packets;
        }
        outcome.echoed = self.received.load(Ordering::Relaxed);
        let whole = self.plan.stop.is_none();
        assert!(
            !whole || (outcome.echoed == total && outcome.ended == 0),
            "{outcome:?}"
        );
        outcome
    }
}
