//! UC and UD over a bad network: received messages are complete and unmodified, and every work
//! request completes once.
//!
//! A UC QP sends, writes with and without immediate data, and binds and invalidates a window of its
//! own. Each written message has its own place in B's memory, in which the part of each packet is
//! either untouched or completely written.

use std::collections::BTreeSet;

use rocade_transport::testing::{Delivery, PacketEvent, Pair, Region, Setup, Side};
use rocade_transport::{
    AccessFlags, Bind, Completion, Destination, ImmOrInv, QpAttr, QpAttrMask, QpState, QpType,
    RouteTag, SendFlags, SendOp, SendWr, Sge, WcFlags, WcOpcode, WcStatus, WindowKind,
    transition_rule,
};
use rocade_wire::{Qkey, Qpn, Rkey};

use super::rng::{Rng, payload};

const QKEY: u32 = 0x1234;
const GRH_LEN: u32 = 40;
/// The size of a receive buffer. Some UC messages are longer.
const SLOT: u32 = 20_000;
const SLOTS: u64 = 8;
/// The longest UC message in bytes.
const LONGEST: u32 = SLOT + 500;
/// The maximum number of messages in flight.
const SOURCES: u64 = 16;
/// The payload of a full UC packet.
const PMTU: usize = 1024;
/// The first id of work requests that send no packet.
const LOCAL: u64 = 1 << 32;

/// The configuration that a seed determines.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The transport service: UC or UD.
    pub qp_type: QpType,
    /// The number of messages that A sends.
    pub messages: u64,
    /// Packets per 1000 that are lost, duplicated, or delayed.
    pub faults: [u64; 3],
    /// Steps per 1000 after which a QP is drained (SQD), put into ERR or reset.
    pub upheavals: u64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages sent.
    pub sent: u64,
    /// Messages received, including duplicates.
    pub received: u64,
    /// Received WRITEs with immediate data.
    pub written: u64,
    /// WRITEs to the region in which they fail midway.
    pub refused: u64,
    /// Binds and invalidations of the window.
    pub windows: u64,
    /// Work requests that were flushed.
    pub flushed: u64,
}

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    WriteImm,
    /// A WRITE with immediate data to memory that is unmapped behind the first packet.
    Refused,
}

impl Plan {
    /// Draws a random configuration.
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
    /// If a guarantee is violated.
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
    /// B's memory, with a place for each written message.
    board: Region,
    /// The region in which WRITEs fail midway.
    trap: Region,
    /// A's memory behind the window, and the window's key.
    lent: Region,
    window: Rkey,
    /// The outstanding work requests of A's send queue and B's receive queue.
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
        pair.set_network(move |_: &PacketEvent<'_>| {
            if faults.chance(lost) {
                Delivery::Drop
            } else if faults.chance(twice) {
                Delivery::Copies(vec![0, faults.below(200_000)])
            } else if faults.chance(late) {
                Delivery::Copies(vec![faults.below(200_000)])
            } else {
                Delivery::Deliver
            }
        });
        let [sources, slots, messages] =
            [SOURCES, SLOTS, plan.messages].map(|n| u32::try_from(n).expect("few"));
        let (local, remote) = (
            AccessFlags::LOCAL_WRITE,
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
        );
        let a = &pair.node(Side::A).mem;
        let source = a.register(sources * LONGEST, AccessFlags::empty());
        let lent = a.register(64, remote | AccessFlags::MW_BIND);
        let window = a.alloc_window(WindowKind::Type2);
        let b = &pair.node(Side::B).mem;
        let target = b.register(slots * SLOT, local);
        let board = b.register(messages * LONGEST, remote);
        let trap = b.register(LONGEST, remote);
        b.unmap(&trap, PMTU);
        let setups = setups.try_into().expect("two");
        Self {
            plan,
            rng: Rng::new(plan.seed, 13),
            pair,
            setups,
            source,
            target,
            board,
            trap,
            lent,
            window,
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

    /// Returns the length of a message, which is determined by its number.
    fn len_of(&self, message: u64) -> u32 {
        let mut rng = Rng::new(self.plan.seed, message.wrapping_add(1 << 20));
        if self.plan.qp_type == QpType::Ud {
            let most = rng.pick(&[1, 900, 4096, 4096]);
            return rng.range_u32(0, most);
        }
        let packets = rng.pick(&[2, 3]) * u32::try_from(PMTU).expect("small");
        if self.kind_of(message) == Kind::Refused {
            return packets;
        }
        // Messages of equal packet counts: after a loss, packets of the next message often have the
        // expected opcode.
        let most = rng.pick(&[1, 900, LONGEST, packets, packets, packets]);
        if most == packets {
            packets
        } else {
            rng.range_u32(0, most)
        }
    }

    /// Returns the kind of a message, which is determined by its number.
    fn kind_of(&self, message: u64) -> Kind {
        if self.plan.qp_type == QpType::Ud {
            return Kind::Send;
        }
        let mut rng = Rng::new(self.plan.seed, message.wrapping_add(1 << 21));
        rng.pick(&[
            Kind::Send,
            Kind::Send,
            Kind::Send,
            Kind::WriteImm,
            Kind::WriteImm,
            Kind::Write,
            Kind::Write,
            Kind::Refused,
        ])
    }

    const fn is_uc(&self) -> bool {
        matches!(self.plan.qp_type, QpType::Uc)
    }

    fn go(mut self) -> Report {
        while self.next[0] < self.plan.messages {
            match self.rng.below(4) {
                0 | 1 => self.receive(),
                2 if self.is_uc() && self.rng.chance(100) => self.use_window(),
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
            "sends without a completion: {:?}",
            self.open[0]
        );
        self.break_down(Side::B);
        self.settle();
        assert!(
            self.open[1].is_empty(),
            "receives without a completion: {:?}",
            self.open[1]
        );
        self.check_board();
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
        if self.open[0].len() as u64 >= SOURCES {
            return;
        }
        let message = self.next[0];
        self.next[0] += 1;
        let len = self.len_of(message);
        // The bytes are read when the message is transmitted. The previous message of this buffer
        // has been transmitted.
        let at = message % SOURCES * u64::from(LONGEST);
        let bytes = payload(self.plan.seed, message, len);
        let begin = usize::try_from(at).expect("small");
        self.pair
            .node(Side::A)
            .mem
            .fill(&self.source, begin, &bytes);
        let imm = Some(u32::try_from(message).expect("few").to_be_bytes());
        let (board, trap) = (self.board, self.trap);
        let place = board.addr + message * u64::from(LONGEST);
        let write = |va, rkey, imm| SendOp::Write { va, rkey, imm };
        let op = match self.kind_of(message) {
            Kind::Send => SendOp::Send { imm },
            Kind::Write => write(place, board.rkey, None),
            Kind::WriteImm => write(place, board.rkey, imm),
            Kind::Refused => write(trap.addr, trap.rkey, imm),
        };
        self.post(message, op, &[self.source.part(at, len)]);
        self.report.sent += 1;
    }

    fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            sges,
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
        self.open[0].insert(wr_id);
    }

    /// Posts a bind or an invalidation of A's window, between two messages.
    fn use_window(&mut self) {
        if self.open[0].last().is_some_and(|last| *last >= LOCAL) {
            return;
        }
        let op = if self.is_bound() {
            SendOp::Invalidate { rkey: self.window }
        } else {
            SendOp::Bind(Bind {
                rkey: self.window.with_next_tag(),
                lkey: self.lent.lkey,
                va: self.lent.addr,
                len: u64::from(self.lent.len),
                access: AccessFlags::REMOTE_WRITE,
            })
        };
        let wr_id = LOCAL + u64::from(self.is_bound());
        self.post(wr_id, op, &[]);
    }

    fn is_bound(&self) -> bool {
        self.pair.node(Side::A).mem.is_bound(self.window)
    }

    /// Checks that the state of the window matches the completed request.
    fn end_local(&mut self, completion: &Completion) {
        let was_bound = completion.wr_id > LOCAL;
        if completion.status != WcStatus::Success {
            assert_eq!(self.is_bound(), was_bound, "{completion:?}");
            return;
        }
        let opcode = if was_bound {
            WcOpcode::LocalInv
        } else {
            self.window = self.window.with_next_tag();
            WcOpcode::BindMw
        };
        assert_eq!(completion.opcode, opcode);
        assert_ne!(self.is_bound(), was_bound, "{completion:?}");
        self.report.windows += 1;
    }

    /// Processes the completions of both sides.
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
        assert!(
            self.open[side].remove(&wr_id),
            "{completion:?} completes twice"
        );
        match completion.status {
            WcStatus::Success => {}
            WcStatus::WrFlushErr => self.report.flushed += 1,
            status => panic!("{status:?}"),
        }
        if wr_id >= LOCAL {
            self.end_local(completion);
        }
    }

    /// Checks that a received message is one that was sent, and complete.
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
        let (opcode, region, at) = match self.kind_of(message) {
            Kind::Send => (
                WcOpcode::Recv,
                &self.target,
                completion.wr_id % SLOTS * u64::from(SLOT) + u64::from(header),
            ),
            Kind::WriteImm => (
                WcOpcode::RecvRdmaWithImm,
                &self.board,
                message * u64::from(LONGEST),
            ),
            kind => panic!("a receive for message {message}: {kind:?}"),
        };
        assert_eq!(completion.opcode, opcode, "message {message}");
        let begin = usize::try_from(at).expect("small");
        let range = begin..begin + len as usize;
        let bytes = self.pair.node(Side::B).mem.bytes(region, range);
        assert!(
            bytes == payload(self.plan.seed, message, len),
            "message {message}"
        );
        self.report.received += 1;
        self.report.written += u64::from(opcode == WcOpcode::RecvRdmaWithImm);
    }

    /// Checks that each packet's part of a written message is either untouched or complete.
    fn check_board(&mut self) {
        for message in 0..self.next[0] {
            let kind = self.kind_of(message);
            self.report.refused += u64::from(kind == Kind::Refused);
            let sent = match kind {
                Kind::Write | Kind::WriteImm => {
                    payload(self.plan.seed, message, self.len_of(message))
                }
                Kind::Send | Kind::Refused => Vec::new(),
            };
            let begin = usize::try_from(message).expect("few") * LONGEST as usize;
            let range = begin..begin + LONGEST as usize;
            let found = self.pair.node(Side::B).mem.bytes(&self.board, range);
            let (found, rest) = found.split_at(sent.len());
            assert!(rest.iter().all(|byte| *byte == 0), "behind {message}");
            for (packet, (found, sent)) in found.chunks(PMTU).zip(sent.chunks(PMTU)).enumerate() {
                let is_untouched = found.iter().all(|byte| *byte == 0);
                assert!(
                    is_untouched || found == sent,
                    "packet {packet} of {message}"
                );
            }
        }
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
                assert!(
                    self.open[side as usize].is_empty(),
                    "ERR flushes all requests"
                );
                self.connect_anew(side);
            }
            _ => self.connect_anew(side),
        }
    }

    /// Connects a QP again through RESET, which drops outstanding work requests.
    fn connect_anew(&mut self, side: Side) {
        self.settle();
        let none = QpAttr::default();
        self.pair
            .modify(side, QpState::Reset, QpAttrMask::empty(), &none);
        self.open[side as usize].clear();
        // The packets in flight belong to the previous connection.
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
