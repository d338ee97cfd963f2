//! UC and UD over a bad network: what arrives is whole and true, and every work request ends once.

use std::collections::BTreeSet;

use rocade_transport::testing::{Fate, Pair, Region, Setup, Side, Transit};
use rocade_transport::{
    AccessFlags, Completion, Destination, ImmOrInv, QpAttr, QpAttrMask, QpState, QpType, RouteTag,
    SendFlags, SendOp, SendWr, WcFlags, WcStatus, transition_rule,
};
use rocade_wire::{Qkey, Qpn};

use super::rng::{Rng, payload};

const QKEY: u32 = 0x1234;
const GRH_LEN: u32 = 40;
/// Room for a message; some are longer.
const SLOT: u32 = 20_000;
const SLOTS: u64 = 8;

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// UC or UD.
    pub qp_type: QpType,
    /// Messages that A sends.
    pub messages: u64,
    /// Packets of 1000 that are lost, come twice, or come late.
    pub faults: [u64; 3],
    /// Times in 1000 steps that a queue pair is drained, put into ERR or reset.
    pub upheavals: u64,
}

/// What a run was like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages sent.
    pub sent: u64,
    /// Messages received, some of them twice.
    pub received: u64,
    /// Work requests that were flushed.
    pub flushed: u64,
}

impl Plan {
    /// A random configuration.
    #[must_use]
    pub fn swarm(seed: u64, qp_type: QpType, messages: u64) -> Self {
        let mut rng = Rng::new(seed, 11);
        Self {
            seed,
            qp_type,
            messages,
            faults: [
                rng.pick(&[0, 10, 100]),
                rng.pick(&[0, 50]),
                rng.pick(&[0, 50]),
            ],
            upheavals: rng.pick(&[0, 0, 20]),
        }
    }

    /// Runs it.
    ///
    /// # Panics
    /// Where anything is wrong.
    #[must_use]
    pub fn run(&self) -> Report {
        Run::new(self).go()
    }
}

struct Run<'p> {
    plan: &'p Plan,
    rng: Rng,
    pair: Pair,
    setups: [Setup; 2],
    source: Region,
    target: Region,
    /// Work requests of A's send queue and B's receive queue that have not ended.
    open: [BTreeSet<u64>; 2],
    next: [u64; 2],
    report: Report,
}

impl<'p> Run<'p> {
    fn new(plan: &'p Plan) -> Self {
        let mut setups = Vec::new();
        let mut pair = Pair::new(|_, setup| {
            setup.config.qp_type = plan.qp_type;
            setup.attr.qkey = QKEY;
            if plan.qp_type == QpType::Ud {
                setup.attr.path_mtu = 5;
            }
            setups.push(setup.clone());
        });
        pair.stop_tracing();
        let [lost, twice, late] = plan.faults;
        let mut faults = Rng::new(plan.seed, 12);
        pair.set_network(move |_: &Transit<'_>| {
            if faults.chance(lost) {
                Fate::Drop
            } else if faults.chance(twice) {
                Fate::Copies(vec![0, faults.below(200_000)])
            } else if faults.chance(late) {
                Fate::Copies(vec![faults.below(200_000)])
            } else {
                Fate::Deliver
            }
        });
        let source = pair
            .node(Side::A)
            .mem
            .register(2 * SLOT, AccessFlags::empty());
        let slots = u32::try_from(SLOTS).expect("few");
        let target = pair
            .node(Side::B)
            .mem
            .register(slots * SLOT, AccessFlags::LOCAL_WRITE);
        let setups = setups.try_into().expect("two");
        Self {
            plan,
            rng: Rng::new(plan.seed, 13),
            pair,
            setups,
            source,
            target,
            open: [BTreeSet::new(), BTreeSet::new()],
            next: [0; 2],
            report: Report::default(),
        }
    }

    const fn header(&self) -> u32 {
        match self.plan.qp_type {
            QpType::Ud => GRH_LEN,
            _ => 0,
        }
    }

    /// The length of a message, which its number decides.
    fn len_of(&self, message: u64) -> u32 {
        let longest = if self.plan.qp_type == QpType::Ud {
            4096
        } else {
            SLOT + 500
        };
        let mut rng = Rng::new(self.plan.seed, message.wrapping_add(1 << 20));
        let most = rng.pick(&[1, 900, longest, longest]);
        rng.range_u32(0, most)
    }

    fn go(mut self) -> Report {
        while self.next[0] < self.plan.messages {
            match self.rng.below(4) {
                0 | 1 => self.receive(),
                2 => self.send(),
                _ => {
                    let ns = self.rng.below(30_000);
                    self.pair.run_for(ns);
                }
            }
            if self.rng.chance(self.plan.upheavals) {
                self.upheave();
            }
            self.settle();
        }
        self.pair.run();
        self.settle();
        assert!(
            self.open[0].is_empty(),
            "sends without end: {:?}",
            self.open[0]
        );
        self.break_down(Side::B);
        self.settle();
        assert!(
            self.open[1].is_empty(),
            "receives without end: {:?}",
            self.open[1]
        );
        self.report
    }

    fn state(&self, side: Side) -> QpState {
        self.pair.node(side).qp.state()
    }

    fn receive(&mut self) {
        if self.open[1].len() as u64 >= SLOTS {
            return;
        }
        let wr_id = self.next[1];
        self.next[1] += 1;
        let at = wr_id % SLOTS * u64::from(SLOT);
        let sge = self.target.part(at, SLOT);
        let now = self.pair.now();
        let qp = &mut self.pair.node_mut(Side::B).qp;
        qp.post_recv(now, wr_id, &[sge]).expect("there is room");
        self.open[1].insert(wr_id);
    }

    fn send(&mut self) {
        if self.open[0].len() >= 32 {
            return;
        }
        let message = self.next[0];
        self.next[0] += 1;
        let len = self.len_of(message);
        // Its bytes are read when it leaves: nothing else may be there then.
        self.pair.run();
        self.settle();
        let bytes = payload(self.plan.seed, message, len);
        self.pair.node(Side::A).mem.fill(&self.source, 0, &bytes);
        let imm = u32::try_from(message).expect("few").to_be_bytes();
        let wr = SendWr {
            wr_id: message,
            op: SendOp::Send { imm: Some(imm) },
            flags: SendFlags::SIGNALED,
            sges: &[self.source.part(0, len)],
        };
        let now = self.pair.now();
        let qp = &mut self.pair.node_mut(Side::A).qp;
        let posted = match self.plan.qp_type {
            QpType::Ud => {
                let to = Destination {
                    route: RouteTag(1),
                    dest_qp: Qpn::new(0x22),
                    qkey: Qkey::new(QKEY),
                };
                qp.post_datagram(now, &wr, to, None)
            }
            _ => qp.post_send(now, &wr, None),
        };
        posted.expect("there is room");
        self.open[0].insert(message);
        self.report.sent += 1;
    }

    /// Takes the completions of both sides.
    fn settle(&mut self) {
        self.pair.drain_both();
        for completion in self.pair.take_completions(Side::A) {
            self.end(0, &completion);
        }
        for completion in self.pair.take_completions(Side::B) {
            self.end(1, &completion);
            if completion.status == WcStatus::Success {
                self.check(&completion);
            }
        }
    }

    fn end(&mut self, side: usize, completion: &Completion) {
        let wr_id = completion.wr_id;
        assert!(self.open[side].remove(&wr_id), "{completion:?} ends twice");
        match completion.status {
            WcStatus::Success => {}
            WcStatus::WrFlushErr => self.report.flushed += 1,
            status => panic!("{status:?}"),
        }
    }

    /// A message is one that was sent, and all of it.
    fn check(&mut self, completion: &Completion) {
        let ImmOrInv::Imm(imm) = completion.imm_or_inv else {
            panic!("no immediate data: {completion:?}");
        };
        let message = u64::from(u32::from_be_bytes(imm));
        assert!(message < self.next[0], "message {message} was never sent");
        let (len, header) = (self.len_of(message), self.header());
        assert_eq!(completion.byte_len, header + len, "message {message}");
        let is_ud = self.plan.qp_type == QpType::Ud;
        assert_eq!(completion.wc_flags.contains(WcFlags::GRH), is_ud);
        assert_eq!(completion.src_qp.get(), if is_ud { 0x11 } else { 0 });
        let at = usize::try_from(completion.wr_id % SLOTS * u64::from(SLOT)).expect("small");
        let begin = at + header as usize;
        let range = begin..begin + len as usize;
        let bytes = self.pair.node(Side::B).mem.bytes(&self.target, range);
        assert!(
            bytes == payload(self.plan.seed, message, len),
            "message {message}"
        );
        self.report.received += 1;
    }

    fn break_down(&mut self, side: Side) {
        if self.state(side) != QpState::Err {
            let attr = QpAttr::default();
            self.pair
                .modify(side, QpState::Err, QpAttrMask::empty(), &attr);
        }
    }

    fn upheave(&mut self) {
        let side = self.rng.pick(&Side::BOTH);
        match self.rng.below(3) {
            0 => {
                let attr = QpAttr::default();
                self.pair
                    .modify(side, QpState::Sqd, QpAttrMask::empty(), &attr);
                let ns = self.rng.below(30_000);
                self.pair.run_for(ns);
                self.settle();
                self.pair
                    .modify(side, QpState::Rts, QpAttrMask::empty(), &attr);
            }
            1 => {
                self.break_down(side);
                self.settle();
                assert!(self.open[side as usize].is_empty(), "all is flushed in ERR");
                self.connect_anew(side);
            }
            _ => self.connect_anew(side),
        }
    }

    /// By way of RESET, which forgets what has not ended.
    fn connect_anew(&mut self, side: Side) {
        self.settle();
        let none = QpAttr::default();
        self.pair
            .modify(side, QpState::Reset, QpAttrMask::empty(), &none);
        self.open[side as usize].clear();
        // What is on its way belongs to the former connection.
        self.pair.run();
        self.settle();
        let attr = QpAttr {
            sq_psn: self.rng.range_u32(0, 0xff_ffff),
            ..self.setups[side as usize].attr
        };
        for next in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let rule = transition_rule(self.plan.qp_type, self.state(side), next);
            let required = rule.expect("a way to RTS").required;
            self.pair.modify(side, next, required, &attr);
        }
    }
}
