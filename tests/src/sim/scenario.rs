//! A complete run: configuration, traffic, faults and final checks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rocade_transport::testing::{Delivery, Pair, Setup, Side, TestDomain, TestMemory, TestSrq};
use rocade_transport::{DELAYED_ACK_NS, QpType, Time};
use rocade_wire::Psn;

use super::flow::{Flow, Kind, MAX_LEN, Work};
use super::network::{Faults, ProcessingDelay, SimNetwork};
use super::paths::Paths;
use super::rng::Rng;

/// The maximum virtual time of a run.
const LIMIT: Time = Time::from_ns(3_600_000_000_000);

/// The configuration that a seed determines.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// The path MTU code.
    pub pmtu: u32,
    /// The maximum number of outstanding READs and atomics.
    pub max_rd_atomic: u8,
    /// The responder resources, at least `max_rd_atomic`.
    pub max_dest_rd_atomic: u8,
    /// The ACK timeout code.
    pub timeout: u8,
    /// The RNR timer code.
    pub min_rnr_timer: u8,
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
    /// The retry count.
    pub retry_cnt: u8,
    /// The processing time of B.
    pub processing_delay: ProcessingDelay,
    /// The network faults.
    pub faults: Faults,
    /// Additional fault rules in the users' syntax.
    pub rules: &'static str,
    /// The traffic of A, and of B if there is any.
    pub work: Vec<Work>,
    /// All packets take the slow path.
    pub long_way: bool,
    /// With two paths, the maximum number of messages until the path in use fails or is left. 0 for
    /// a single path.
    pub path_changes: u64,
    /// The source of the receives, and the transport service of the connection.
    pub receives: Receives,
}

/// The source of the receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receives {
    /// Receive queues of the QPs.
    #[default]
    Own,
    /// Shared receive queues on both sides.
    Shared,
    /// The shared receive queue of an XRC domain: A is an initiator, B a target, and only A sends
    /// requests.
    Xrc,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages sent.
    pub messages: u64,
    /// Packets sent by both sides.
    pub packets: u64,
    /// Retransmitted request packets.
    pub retransmitted: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
    /// Duplicate requests received.
    pub duplicates: u64,
    /// Packets that took the fast path.
    pub fast_path_packets: u64,
    /// ACKs that were delayed for a reply of the application.
    pub held_acks: u64,
    /// Posts that were delayed for batching.
    pub waiting_posts: u64,
    /// The number of migrations, counted per side.
    pub migrations: u64,
    /// The virtual time.
    pub time_ns: u64,
}

impl Report {
    /// Adds the result of another run.
    pub const fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.packets += other.packets;
        self.retransmitted += other.retransmitted;
        self.timeouts += other.timeouts;
        self.rnr_naks += other.rnr_naks;
        self.duplicates += other.duplicates;
        self.fast_path_packets += other.fast_path_packets;
        self.held_acks += other.held_acks;
        self.waiting_posts += other.waiting_posts;
        self.migrations += other.migrations;
        self.time_ns += other.time_ns;
    }
}

impl Scenario {
    /// Draws a random configuration for `messages` messages of these kinds.
    #[must_use]
    pub fn swarm(seed: u64, kinds: &[Kind], messages: u64) -> Self {
        let mut rng = Rng::new(seed, 1);
        let max_rd_atomic = rng.range_u8(1, 16);
        // Half of the PSNs are close to the wrap.
        let mut first_psn = || {
            if rng.chance(500) {
                rng.range_u32(0xff_ff00, 0xff_ffff)
            } else {
                rng.range_u32(0, 0xff_ffff)
            }
        };
        let first_psns = [first_psn(), first_psn()];
        let max_len = rng.pick(&[1, 300, 5000, MAX_LEN, MAX_LEN]);
        let mut work = || {
            let receives = rng.range(1, 32);
            Work {
                kinds: kinds.to_vec(),
                messages,
                max_len,
                window: rng.range(1, 32),
                receives,
                receive_batch: rng.pick(&[1, 1, receives]),
                receive_lag_ns: rng.pick(&[0, 0, 2_000_000]),
                unsignaled: rng.pick(&[0, 300, 900]),
                fenced: rng.pick(&[0, 0, 200]),
            }
        };
        let work = vec![work(), work()];
        let one_way = rng.chance(500);
        let timeout = rng.range_u8(12, 15);
        Self {
            receives: Receives::Own,
            path_changes: 0,
            long_way: false,
            seed,
            pmtu: rng.range_u32(1, 5),
            max_rd_atomic,
            max_dest_rd_atomic: max_rd_atomic + rng.range_u8(0, 4),
            timeout,
            min_rnr_timer: rng.range_u8(1, 14),
            first_psns,
            latency_ns: rng.range(500, 200_000),
            gap_ns: rng.pick(&[0, 20, 300]),
            ack_delay_ns: rng.pick(&[0, 100, 50_000]),
            hold_ns: Rng::new(seed, 6).pick(&[0, 0, 15_000, DELAYED_ACK_NS]),
            retry_cnt: 7,
            processing_delay: ProcessingDelay::default(),
            faults: Faults {
                loss: rng.pick(&[0, 10, 50, 50]),
                duplication: rng.pick(&[0, 10, 50, 50]),
                reorder: rng.pick(&[0, 20, 100]),
                reorder_ns: rng.range(100, 300_000),
                late: rng.pick(&[0, 0, 5]),
                late_ns: 3 * (4096 << timeout),
                blackout_ns: 0,
            },
            rules: "",
            work: work.into_iter().take(if one_way { 1 } else { 2 }).collect(),
        }
    }

    /// Like [`swarm`](Self::swarm), but in one direction, with messages of up to 70 000 bytes and 5
    /// % loss, duplication and reordering.
    #[must_use]
    pub fn hostile(seed: u64, kinds: &[Kind], messages: u64) -> Self {
        let mut scenario = Self::swarm(seed, kinds, messages);
        scenario.faults = Faults {
            loss: 50,
            duplication: 50,
            reorder: 50,
            reorder_ns: 100_000,
            late: 2,
            late_ns: 3 * (4096 << scenario.timeout),
            blackout_ns: 0,
        };
        scenario.work.truncate(1);
        scenario.work[0].max_len = MAX_LEN;
        scenario
    }

    /// Draws a configuration with one message at a time in both directions, each soon after the
    /// peer's message. ACKs are delayed, and each side may wait for an ACK that the other side
    /// delays.
    #[must_use]
    pub fn conversation(seed: u64, messages: u64) -> Self {
        let mut scenario = Self::swarm(seed, &[Kind::Send, Kind::Write], messages);
        let mut rng = Rng::new(seed, 7);
        scenario.hold_ns = rng.pick(&[15_000, DELAYED_ACK_NS]);
        scenario.latency_ns = rng.range(500, 25_000);
        scenario.faults.loss = rng.pick(&[0, 0, 10]);
        scenario.faults.duplication = rng.pick(&[0, 10]);
        scenario.faults.reorder = 0;
        scenario.work.truncate(1);
        scenario.work[0].window = 1;
        scenario.work[0].max_len = rng.pick(&[1, 300]);
        scenario.work[0].receive_lag_ns = 0;
        scenario.work.push(scenario.work[0].clone());
        scenario
    }

    /// Draws a configuration with a perfect network and traffic from A to B. B is slow: a full
    /// packet takes `load` per mille of the ACK timeout.
    #[must_use]
    pub fn slow(seed: u64, kinds: &[Kind], messages: u64, load: u64) -> Self {
        let mut scenario = Self::swarm(seed, kinds, messages);
        let mut rng = Rng::new(seed, 4);
        scenario.faults = Faults::NONE;
        scenario.work.truncate(1);
        scenario.work[0].max_len = rng.pick(&[5000, MAX_LEN]);
        scenario.work[0].receive_lag_ns = 0;
        scenario.gap_ns = 0;
        scenario.ack_delay_ns = 0;
        scenario.hold_ns = 0;
        scenario.timeout = rng.range_u8(8, 18);
        scenario.retry_cnt = rng.range_u8(0, 7);
        scenario.latency_ns = scenario.latency_ns.min(scenario.timeout_ns() / 20);
        scenario.processing_delay.packet_ns = scenario.timeout_ns() * load / 1000;
        scenario
    }

    /// Like [`slow`](Self::slow), but B also stalls now and then, for `per_mille` of the time until
    /// the requester's retries are exhausted.
    #[must_use]
    pub fn stalling(seed: u64, kinds: &[Kind], messages: u64, load: u64, per_mille: u64) -> Self {
        let mut scenario = Self::slow(seed, kinds, messages, load);
        let mut rng = Rng::new(seed, 5);
        //= RC-TMR-06
        let waits: u64 = match scenario.retry_cnt {
            0 => 4,
            1 => 1 + 4,
            more => 1 + 2 + 4 * (u64::from(more) - 1),
        };
        scenario.processing_delay.stall_ns = waits * scenario.timeout_ns() * per_mille / 1000;
        let busy_ns = scenario.processing_delay.packet_ns * rng.range(20, 2000);
        scenario.processing_delay.busy_ns = busy_ns.max(scenario.timeout_ns());
        scenario
    }

    /// Returns the ACK timeout, at least a millisecond.
    fn timeout_ns(&self) -> u64 {
        (4096 << self.timeout).max(1_000_000)
    }

    /// Returns the maximum time that a packet is in flight.
    const fn lifetime_ns(&self) -> u64 {
        let late_ns = if self.faults.late > 0 {
            self.faults.late_ns
        } else {
            0
        };
        self.latency_ns + self.faults.reorder_ns + late_ns
    }

    /// Runs it. The network faults end when nine tenths of the messages have completed, and the
    /// rest must then complete.
    ///
    /// # Panics
    /// If any guarantee is violated.
    #[must_use]
    pub fn run(&self) -> Report {
        let mut pair = self.pair();
        let pmtu = 128 << self.pmtu;
        let faults = Rc::new(RefCell::new(self.faults));
        let first_psns = self.first_psns.map(Psn::new);
        let mut network = SimNetwork::new(self.seed, Rc::clone(&faults), pmtu, first_psns);
        network.set_processing_delay(self.processing_delay);
        network.set_rules(self.rules);
        let mut paths = (self.path_changes > 0).then(|| {
            let lifetime_ns = self.lifetime_ns();
            Paths::new(self.seed, self.path_changes, lifetime_ns, &mut pair)
        });
        let dead = paths.as_ref().map(Paths::dead).unwrap_or_default();
        pair.set_network(move |event| {
            let delivery = network.decide(event);
            let (from, to) = event.path;
            match dead.get() {
                Some(dead) if dead == from || dead == to => Delivery::Drop,
                _ => delivery,
            }
        });
        let mut flows: Vec<Flow> = Side::BOTH
            .into_iter()
            .zip(&self.work)
            .map(|(from, work)| Flow::new(self.seed, from, work.clone(), &pair))
            .collect();
        let total: u64 = self.work.iter().map(|work| work.messages).sum();
        while !flows.iter().all(Flow::is_done) {
            for flow in &mut flows {
                flow.post(&mut pair);
            }
            pair.drain_both();
            let idle = Side::BOTH.map(|side| pair.node(side).completions.is_empty());
            if idle == [true, true] {
                let lagging = flows.iter().filter_map(Flow::receives_due).min();
                match lagging {
                    Some(due) if pair.next_event().is_none_or(|next| due < next) => {
                        pair.run_for(due.ns_since(pair.now()));
                    }
                    _ => assert!(pair.step(), "nothing is pending, work is left: {flows:?}"),
                }
            }
            assert!(pair.now() < LIMIT, "no progress");
            deliver(&mut pair, &mut flows);
            let completed: u64 = flows.iter().map(Flow::completed).sum();
            if let Some(paths) = &mut paths {
                paths.step(&mut pair, completed, total * 8 / 10);
            }
            if completed * 10 >= total * 9 {
                *faults.borrow_mut() = Faults::NONE;
            }
        }
        // Late packets and timers must not have any effect.
        pair.run();
        deliver(&mut pair, &mut flows);
        for flow in &flows {
            flow.check_end(&pair);
        }
        let mut report = Report {
            messages: total,
            time_ns: pair.now().as_ns(),
            ..Report::default()
        };
        report.held_acks = pair.coalesce_counts().acks;
        report.waiting_posts = pair.coalesce_counts().posts;
        if let Some(paths) = &mut paths {
            paths.step(&mut pair, total, 0);
            report.migrations = paths.migrations;
        }
        for side in Side::BOTH {
            assert_eq!(pair.take_events(side), []);
            let counters = pair.node(side).qp.counters();
            report.packets += counters.tx_packets;
            report.retransmitted += counters.retransmitted_packets;
            report.timeouts += counters.timeouts;
            report.rnr_naks += counters.rnr_naks_received;
            report.duplicates += counters.duplicate_requests;
            report.fast_path_packets += counters.fast_path_packets;
        }
        report
    }

    fn queue_len(&self, from: Side, of: impl Fn(&Work) -> u64) -> u32 {
        let len = self.work.get(from as usize).map_or(0, of);
        u32::try_from(len).expect("a short queue")
    }

    fn share(&self, side: Side, setup: &mut Setup) {
        let receives = setup.config.cap.max_recv_wr;
        let srq = || Arc::new(TestSrq::new(TestMemory::PD, receives));
        match (self.receives, side) {
            (Receives::Own, _) => {}
            (Receives::Shared, _) => setup.srq = Some(srq()),
            (Receives::Xrc, Side::A) => setup.config.qp_type = QpType::XrcSend,
            (Receives::Xrc, Side::B) => {
                let domain = TestDomain::default();
                domain.set(TestDomain::FIRST, Some(&srq()));
                setup.config.qp_type = QpType::XrcRecv;
                setup.domain = Some(Arc::new(domain));
            }
        }
    }

    pub(super) fn pair(&self) -> Pair {
        let mut pair = Pair::new(|side, setup| {
            let [a, b] = self.first_psns;
            let (sq_psn, rq_psn) = if side == Side::A { (a, b) } else { (b, a) };
            setup.attr.sq_psn = sq_psn;
            setup.attr.rq_psn = rq_psn;
            setup.attr.path_mtu = self.pmtu;
            setup.attr.max_rd_atomic = self.max_rd_atomic;
            setup.attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
            setup.attr.timeout = self.timeout;
            setup.attr.retry_cnt = self.retry_cnt;
            setup.attr.min_rnr_timer = self.min_rnr_timer;
            setup.config.sq_sig_all = false;
            Paths::prepare(setup);
            // The queues are just long enough, so that an entry that is not freed in time makes a
            // post fail.
            setup.config.cap.max_send_wr = self.queue_len(side, |work| work.window);
            setup.config.cap.max_recv_wr = self.queue_len(side.other(), |work| work.receives);
            self.share(side, setup);
        });
        pair.stop_tracing();
        pair.set_latency(self.latency_ns);
        pair.set_gap(self.gap_ns);
        if self.long_way {
            pair.take_slow_path();
        }
        if self.hold_ns > 0 {
            pair.set_coalescing(self.hold_ns);
        } else if self.ack_delay_ns > 0 {
            pair.set_ack_delay(self.ack_delay_ns);
        }
        pair
    }
}

/// Passes completions to the flows, receives first.
fn deliver(pair: &mut Pair, flows: &mut [Flow]) {
    let completions = Side::BOTH.map(|side| pair.take_completions(side));
    for side in Side::BOTH {
        for completion in completions[side as usize].iter().filter(|c| !c.is_send()) {
            let flow = flows.iter_mut().find(|f| f.from() == side.other());
            flow.expect("receives belong to a flow")
                .received(pair, completion);
        }
    }
    for side in Side::BOTH {
        for completion in completions[side as usize].iter().filter(|c| c.is_send()) {
            let flow = flows.iter_mut().find(|f| f.from() == side);
            flow.expect("sends belong to a flow").sent(pair, completion);
        }
    }
}
