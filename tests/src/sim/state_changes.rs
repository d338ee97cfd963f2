//! State changes under traffic: a QP is drained, put into ERR, reset and connected again, or
//! destroyed while both sides have packets in flight.
//!
//! The guarantees are checked outside of the transport (`request_log.rs`). Each request completes
//! once and in order. A successful request has been executed, and executed requests are a prefix of
//! the posted ones. A stopped QP changes no memory.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use rocade_transport::testing::{Delivery, Pair, Setup, Side, TestDomain, TestMemory, TestSrq};
use rocade_transport::{
    AccessFlags, DELAYED_ACK_NS, QpAttr, QpAttrMask, QpEvent, QpState, QpType, Time,
};
use rocade_wire::{Operation, Psn};

use super::network::{Faults, SimNetwork};
use super::paths::{PathChange, PathChangeRun, Paths};
use super::request_log::RequestLog;
use super::rng::Rng;
use super::scenario::Receives;

const NO_MORE: QpAttrMask = QpAttrMask::empty();
/// The maximum virtual time of a run.
const LIMIT: Time = Time::from_ns(600_000_000_000);

/// A state change of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// SQD, an attribute change, and back to RTS.
    Drain,
    /// ERR.
    Error,
    /// RESET, after which both sides are connected again, one after the other.
    Reset,
    /// The QP is destroyed.
    Destroy,
}

impl StateChange {
    /// All state changes.
    pub const ALL: [Self; 4] = [Self::Drain, Self::Error, Self::Reset, Self::Destroy];
}

/// The configuration that a seed determines.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The state change.
    pub state_change: StateChange,
    /// The side whose QP changes state.
    pub victim: Side,
    /// The source of the receives, and the transport service of the connection.
    pub receives: Receives,
    /// The virtual time of the state change.
    pub at_ns: u64,
    /// The delay until the other side is connected again ([`StateChange::Reset`]).
    pub lag_ns: u64,
    /// The numbers of messages of each side, before and after the change.
    pub messages: [usize; 2],
    /// The path MTU code.
    pub pmtu: u32,
    /// The ACK timeout code.
    pub timeout: u8,
    /// The initial PSNs of A and B.
    pub first_psns: [u32; 2],
    /// The one-way latency.
    pub latency_ns: u64,
    /// The time between two packets of one sender.
    pub gap_ns: u64,
    /// The fixed delay of ACKs, or 0 for none.
    pub ack_delay_ns: u64,
    /// The maximum delay of ACKs if ACKs and posts are coalesced adaptively, or 0 for no
    /// coalescing.
    pub hold_ns: u64,
    /// The network faults.
    pub faults: Faults,
    /// A path migration during the run, which then has two paths.
    pub path_change: Option<PathChange>,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Messages that completed.
    pub done: usize,
    /// Messages that did not complete.
    pub cut_off: usize,
    /// Packets that took the fast path.
    pub fast_path_packets: u64,
    /// The number of migrations, counted per side.
    pub migrations: usize,
}

impl Outcome {
    /// Adds the result of another run.
    pub const fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.cut_off += other.cut_off;
        self.fast_path_packets += other.fast_path_packets;
        self.migrations += other.migrations;
    }
}

impl Plan {
    /// Draws a random plan.
    #[must_use]
    pub fn swarm(seed: u64, state_change: StateChange, receives: Receives) -> Self {
        let mut rng = Rng::new(seed, 11);
        let timeout = rng.range_u8(9, 12);
        let timeout_ns = 4096 << timeout;
        let latency_ns = rng.range(500, 50_000);
        Self {
            seed,
            state_change,
            receives,
            victim: rng.pick(&Side::BOTH),
            at_ns: rng.below(40 * latency_ns),
            lag_ns: rng.below(3 * timeout_ns),
            messages: [rng.pick(&[1, 8, 30]), rng.pick(&[0, 8, 30])],
            pmtu: rng.range_u32(1, 4),
            timeout,
            first_psns: [
                rng.range_u32(0, 0xff_ffff),
                rng.range_u32(0xff_ff00, 0xff_ffff),
            ],
            latency_ns,
            gap_ns: rng.pick(&[0, 100, 1000]),
            ack_delay_ns: rng.pick(&[0, 100, 50_000]),
            hold_ns: Rng::new(seed, 6).pick(&[0, 0, 15_000, DELAYED_ACK_NS]),
            faults: Faults {
                loss: rng.pick(&[0, 0, 20]),
                duplication: rng.pick(&[0, 0, 20]),
                reorder: rng.pick(&[0, 50]),
                reorder_ns: rng.range(100, 100_000),
                late: rng.pick(&[0, 0, 10]),
                late_ns: 3 * timeout_ns,
                blackout_ns: 0,
            },
            path_change: None,
        }
    }

    /// Adds a path migration at a random time: before, during or after the state change.
    #[must_use]
    pub fn with_path_change(self) -> Self {
        let path_change = PathChange::swarm(self.seed, 80 * self.latency_ns);
        Self {
            path_change: Some(path_change),
            ..self
        }
    }

    /// Runs it.
    ///
    /// # Panics
    /// If any guarantee is violated.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let mut run = Run::new(self);
        Side::BOTH
            .into_iter()
            .for_each(|side| run.post_receives(side));
        Side::BOTH.into_iter().for_each(|side| run.post_batch(side));
        run.until(Some(Time::from_ns(self.at_ns)));
        match self.state_change {
            StateChange::Drain => run.drain(),
            StateChange::Error => run.stop(false),
            StateChange::Destroy => run.stop(true),
            StateChange::Reset => run.reconnect(),
        }
        run.finish()
    }

    fn setup(&self, side: Side, setup: &mut Setup, life: u32) {
        // PSNs far from those of an earlier connection, so that late packets are not mistaken for
        // new ones.
        let [a, b] = self
            .first_psns
            .map(|psn| (psn + life * 0x40_0000) & 0xff_ffff);
        let (sq_psn, rq_psn) = if side == Side::A { (a, b) } else { (b, a) };
        setup.attr.sq_psn = sq_psn;
        setup.attr.rq_psn = rq_psn;
        setup.attr.path_mtu = self.pmtu;
        setup.attr.timeout = self.timeout;
        setup.attr.min_rnr_timer = 1;
        setup.attr.qp_access_flags |= AccessFlags::FLUSH_GLOBAL;
        if self.path_change.is_some() {
            Paths::prepare(setup);
        }
    }

    /// Returns the numbers of messages that this side sends.
    fn messages_of(&self, side: Side) -> [usize; 2] {
        match (self.receives, side) {
            // An XRC target sends responses only.
            (Receives::Xrc, Side::B) => [0; 2],
            _ => self.messages,
        }
    }
}

/// Returns the shared receive queue of a side, if it has one.
pub(super) fn share(receives: Receives, side: Side, setup: &mut Setup) -> Option<Arc<TestSrq>> {
    let srq = || Arc::new(TestSrq::new(TestMemory::PD, setup.config.cap.max_recv_wr));
    match (receives, side) {
        (Receives::Own, _) => None,
        (Receives::Shared, _) => {
            let srq = srq();
            setup.srq = Some(Arc::clone(&srq));
            Some(srq)
        }
        (Receives::Xrc, Side::A) => {
            setup.config.qp_type = QpType::XrcSend;
            None
        }
        (Receives::Xrc, Side::B) => {
            let (srq, domain) = (srq(), TestDomain::default());
            domain.set(TestDomain::FIRST, Some(&srq));
            setup.config.qp_type = QpType::XrcRecv;
            setup.domain = Some(Arc::new(domain));
            Some(srq)
        }
    }
}

/// The packets that a side may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SendPermission {
    #[default]
    Everything,
    /// The QP is drained.
    Responses,
    /// The QP is in ERR: it acknowledges the executed requests, in one ACK.
    LastAck,
    /// The QP has been destroyed, or has sent its last ACK.
    Nothing,
}

/// A plan in execution.
struct Run<'a> {
    plan: &'a Plan,
    pair: Pair,
    setups: [Setup; 2],
    faults: Rc<RefCell<Faults>>,
    network: Rc<RefCell<SimNetwork>>,
    /// The packets that A and B may send.
    permissions: Rc<[Cell<SendPermission>; 2]>,
    /// The messages of A and B, for each connection.
    request_logs: Vec<[RequestLog; 2]>,
    /// The indices of the connections in which A and B are.
    lives: [usize; 2],
    /// The shared receive queues of A and B.
    shared: [Option<Arc<TestSrq>>; 2],
    path_change_run: Option<PathChangeRun>,
    /// The address whose packets are all lost.
    dead: Rc<Cell<Option<IpAddr>>>,
    migrations: usize,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut setups = None;
        let mut shared = [None, None];
        let mut pair = Pair::new(|side, setup| {
            plan.setup(side, setup, 0);
            shared[side as usize] = share(plan.receives, side, setup);
            setups.get_or_insert_with(|| [setup.clone(), setup.clone()])[side as usize] =
                setup.clone();
        });
        let setups = setups.expect("two sides");
        pair.stop_tracing();
        for side in Side::BOTH {
            pair.node_mut(side).qp.set_vendor_ops(true);
        }
        pair.set_latency(plan.latency_ns);
        pair.set_gap(plan.gap_ns);
        if plan.hold_ns > 0 {
            pair.set_coalescing(plan.hold_ns);
        } else if plan.ack_delay_ns > 0 {
            pair.set_ack_delay(plan.ack_delay_ns);
        }
        let faults = Rc::new(RefCell::new(plan.faults));
        let psns = setups.each_ref().map(|setup| Psn::new(setup.attr.sq_psn));
        let network = SimNetwork::new(plan.seed, Rc::clone(&faults), 128 << plan.pmtu, psns);
        let network = Rc::new(RefCell::new(network));
        let permissions: Rc<[Cell<SendPermission>; 2]> = Rc::default();
        let (decide, allowed) = (Rc::clone(&network), Rc::clone(&permissions));
        let dead: Rc<Cell<Option<IpAddr>>> = Rc::default();
        let is_dead = Rc::clone(&dead);
        let path_change_run = plan
            .path_change
            .map(|path_change| PathChangeRun::new(path_change, &dead, &mut pair));
        pair.set_network(move |event| {
            let operation = event.packet.bth().opcode.operation();
            let (from, packet) = (event.from, &event.packet);
            let may = match allowed[from as usize].get() {
                SendPermission::Everything => true,
                SendPermission::Responses => operation.is_some_and(Operation::is_response),
                SendPermission::LastAck => operation == Some(Operation::Acknowledge),
                SendPermission::Nothing => false,
            };
            if allowed[from as usize].get() == SendPermission::LastAck {
                allowed[from as usize].set(SendPermission::Nothing);
            }
            assert!(may, "{from:?} has stopped, and sends {packet}");
            let delivery = decide.borrow_mut().decide(event);
            let (source, destination) = event.path;
            match is_dead.get() {
                Some(dead) if dead == source || dead == destination => Delivery::Drop,
                _ => delivery,
            }
        });
        let request_logs =
            Side::BOTH.map(|side| RequestLog::new(plan.seed, side, plan.messages_of(side), &pair));
        Self {
            plan,
            pair,
            setups,
            faults,
            network,
            permissions,
            request_logs: vec![request_logs],
            lives: [0; 2],
            shared,
            path_change_run,
            dead,
            migrations: 0,
        }
    }

    /// Returns the messages of `side` in its current connection.
    fn requests_of(&mut self, side: Side) -> &mut RequestLog {
        &mut self.request_logs[self.lives[side as usize]][side as usize]
    }

    fn post_receives(&mut self, side: Side) {
        let life = self.lives[side as usize];
        self.request_logs[life][side.other() as usize].post_receives(&mut self.pair);
    }

    fn post_batch(&mut self, side: Side) {
        let life = self.lives[side as usize];
        self.request_logs[life][side as usize].post_batch(&mut self.pair);
    }

    /// Passes completions to the ledgers of the current connection.
    fn collect(&mut self) {
        self.pair.drain_both();
        for side in Side::BOTH {
            let request_logs = &mut self.request_logs[self.lives[side as usize]];
            for completion in self.pair.take_completions(side) {
                if completion.is_send() {
                    request_logs[side as usize].sent(&self.pair, &completion);
                } else {
                    request_logs[side.other() as usize].received(&self.pair, &completion);
                }
            }
        }
        if let Some(path_change_run) = &mut self.path_change_run {
            path_change_run.step(&mut self.pair);
        }
    }

    /// Returns the asynchronous events of a side, without migrations, which are counted.
    fn events(&mut self, side: Side) -> Vec<QpEvent> {
        let mut events = self.pair.take_events(side);
        let all = events.len();
        events.retain(|event| *event != QpEvent::PathMig);
        self.migrations += all - events.len();
        events
    }

    /// Steps until `end`, or until no event is pending if there is no end.
    fn until(&mut self, end: Option<Time>) {
        self.collect();
        while let Some(next) = self.pair.next_event() {
            if end.is_some_and(|end| next > end) {
                break;
            }
            self.pair.step();
            assert!(self.pair.now() < LIMIT, "no end");
            self.collect();
        }
        if let Some(end) = end {
            self.pair.run_for(end.ns_since(self.pair.now()));
        }
    }

    /// Runs for `lag_ns`, which may span several ACK timeouts.
    fn linger(&mut self) {
        let end = self.pair.now().plus_ns(self.plan.lag_ns);
        self.until(Some(end));
    }

    /// Drains the victim, checks its event and that it sends no requests, changes its ACK timeout,
    /// and resumes it.
    fn drain(&mut self) {
        let victim = self.plan.victim;
        let attr = QpAttr {
            en_sqd_async_notify: true,
            timeout: self.plan.timeout + 1,
            ..QpAttr::default()
        };
        let notify = QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        self.pair.modify(victim, QpState::Sqd, notify, &attr);
        self.collect();
        while self.events(victim) != [QpEvent::SqDrained] {
            assert!(self.pair.step(), "never drained");
            self.collect();
        }
        self.permissions[victim as usize].set(SendPermission::Responses);
        // In SQD the QP accepts new work requests, and still responds to the peer.
        self.post_batch(victim);
        self.linger();
        self.pair
            .modify(victim, QpState::Sqd, QpAttrMask::TIMEOUT, &attr);
        self.permissions[victim as usize].set(SendPermission::Everything);
        self.pair.modify(victim, QpState::Rts, NO_MORE, &attr);
        self.post_batch(victim.other());
        self.linger();
        self.heal();
    }

    /// Stops the victim by the transition to ERR or by destroying it, and runs until no event is
    /// pending.
    fn stop(&mut self, destroy: bool) {
        let victim = self.plan.victim;
        if destroy {
            self.pair.node_mut(victim).qp.abandon();
            for request_log in &mut self.request_logs[0] {
                request_log.close(&self.pair, victim);
            }
        } else {
            let attr = QpAttr::default();
            self.pair.modify(victim, QpState::Err, NO_MORE, &attr);
        }
        let permission = if destroy {
            SendPermission::Nothing
        } else {
            SendPermission::LastAck
        };
        self.permissions[victim as usize].set(permission);
        let writes = self.pair.node(victim).mem.writes();
        self.until(None);
        let after = self.pair.node(victim).mem.writes();
        assert_eq!(after, writes, "a write after the QP has stopped");
    }

    /// Connects the victim again while its peer is still in the old connection, and later the peer.
    fn reconnect(&mut self) {
        let victim = self.plan.victim;
        let plan = self.plan;
        let fresh = Side::BOTH
            .map(|side| RequestLog::new(!plan.seed, side, plan.messages_of(side), &self.pair));
        self.request_logs.push(fresh);
        self.begin_anew(victim);
        let before = self.requests_of(victim).progress();
        self.linger();
        assert_eq!(
            self.requests_of(victim).progress(),
            before,
            "a completion while the peer is in the old connection"
        );
        self.begin_anew(victim.other());
        if let Some(path_change_run) = &mut self.path_change_run {
            path_change_run.begin_anew(&mut self.pair);
        }
        self.linger();
        self.heal();
    }

    fn begin_anew(&mut self, side: Side) {
        for request_log in &mut self.request_logs[0] {
            request_log.close(&self.pair, side);
        }
        self.lives[side as usize] = 1;
        // The new connection starts on the primary path.
        self.dead.set(None);
        let setup = &mut self.setups[side as usize];
        self.plan.setup(side, setup, 1);
        let attr = setup.attr;
        let next = Psn::new(attr.sq_psn);
        self.network.borrow_mut().begin(side, next);
        self.pair.modify(side, QpState::Reset, NO_MORE, &attr);
        self.forget_shared(side);
        for (next, mask) in Setup::PATH_TO_RTS {
            self.pair.modify(side, next, mask, &attr);
        }
        self.pair.node_mut(side).qp.set_vendor_ops(true);
        self.post_receives(side);
        self.post_batch(side);
    }

    /// Returns the number of receives left in a shared receive queue. All other entries must be
    /// free, except for that of an incomplete message.
    fn left(&self, side: Side) -> usize {
        let Some(srq) = &self.shared[side as usize] else {
            return 0;
        };
        srq.with(|srq| {
            let (left, mut room) = (srq.queued(), 0);
            while srq.post(0, &[]).is_ok() {
                room += 1;
            }
            let max_wr = self.setups[side as usize].config.cap.max_recv_wr as usize;
            let in_use = max_wr - room - left;
            let most = usize::from(self.pair.node(side).qp.receives_message());
            assert!(in_use <= most, "{in_use} slots of {side:?}");
            left
        })
    }

    /// Removes the remaining receives of a shared receive queue, as another QP would.
    fn forget_shared(&mut self, side: Side) {
        if let Some(srq) = &self.shared[side as usize] {
            srq.with(|srq| {
                while srq.take().is_some() {
                    srq.free_wqes(1);
                }
            });
        }
    }

    /// Returns the expected events at the end: LAST_WQE_REACHED for a QP in ERR with a shared
    /// receive queue.
    fn last_words(&self, side: Side) -> Vec<QpEvent> {
        let is_over = self.pair.node(side).qp.state() == QpState::Err;
        let shares = self.shared[side as usize].is_some();
        Vec::from_iter((is_over && shares).then_some(QpEvent::LastWqeReached))
    }

    fn heal(&mut self) {
        *self.faults.borrow_mut() = Faults::NONE;
    }

    fn finish(mut self) -> Outcome {
        let lives = matches!(
            self.plan.state_change,
            StateChange::Drain | StateChange::Reset
        );
        if lives {
            Side::BOTH
                .into_iter()
                .for_each(|side| self.post_batch(side));
        }
        self.until(None);
        let last_events = Side::BOTH.map(|side| self.events(side));
        let mut outcome = Outcome {
            migrations: self.migrations,
            ..Outcome::default()
        };
        let (last, earlier) = self.request_logs.split_last().expect("a life");
        for request_log in earlier.iter().flatten() {
            request_log.judge(&self.pair, 0);
            request_log.check_closed(&self.pair);
        }
        for (from, request_log) in Side::BOTH.into_iter().zip(last) {
            let (done, cut_off) = request_log.judge(&self.pair, self.left(from.other()));
            outcome.done += done;
            outcome.cut_off += cut_off;
        }
        assert!(
            !lives || outcome.cut_off == 0,
            "incomplete messages on a working connection: {outcome:?}"
        );
        for side in Side::BOTH {
            assert_eq!(last_events[side as usize], self.last_words(side));
            let qp = &self.pair.node(side).qp;
            assert_eq!(qp.next_timeout(), None);
            outcome.fast_path_packets += qp.counters().fast_path_packets;
        }
        outcome
    }
}
