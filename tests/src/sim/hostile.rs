//! Hostile packets to working QPs: recorded packets are modified and delivered again.
//!
//! *Noise* consists of packets that a QP must drop, or answer without effect: the connection must
//! go on undisturbed. *Forgeries* may be indistinguishable from packets of the peer, and may end
//! the connection. Even then the transport must not hang, panic or touch memory without remote
//! access rights. Every request completes once, and the QP works after it is connected again.

use std::sync::Arc;

use rocade_transport::testing::{Pair, Region, Setup, Side, TestSrq, Traced};
use rocade_transport::{
    AccessFlags, Completion, QpAttr, QpAttrMask, QpState, SendFlags, SendOp, SendWr, WcStatus,
};
use rocade_wire::{Packet, Psn};

use super::kinds::{Kind, RIGHTS};
use super::request_log::RequestLog;
use super::rng::{Rng, payload};
use super::scenario::Receives;
use super::state_changes::share;

const NO_MORE: QpAttrMask = QpAttrMask::empty();
const LEN: u32 = 3000;
/// The bytes of memory that the peer may not change.
const SECRET: u8 = 0xa5;

/// The configuration that a seed determines.
#[derive(Clone, Debug)]
pub struct Attack {
    /// The seed.
    pub seed: u64,
    /// The source of the receives, and the transport service of the connection.
    pub receives: Receives,
    /// The path MTU code.
    pub pmtu: u32,
    /// The number of hostile packets.
    pub packets: u32,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Harm {
    /// Hostile packets that were delivered.
    pub sent: u32,
    /// QPs that ended in ERR.
    pub ended: u32,
}

impl Attack {
    /// Draws a random attack.
    #[must_use]
    pub fn swarm(seed: u64, receives: Receives) -> Self {
        let mut rng = Rng::new(seed, 51);
        Self {
            seed,
            receives,
            pmtu: rng.range_u32(1, 3),
            packets: rng.range_u32(20, 300),
        }
    }

    fn pair(&self) -> (Pair, [Setup; 2], [Option<Arc<TestSrq>>; 2]) {
        let (mut setups, mut shared) = (Vec::new(), [None, None]);
        let mut pair = Pair::new(|side, setup| {
            setup.attr.path_mtu = self.pmtu;
            setup.attr.timeout = 10;
            setup.attr.rnr_retry = 3;
            setup.attr.min_rnr_timer = 1;
            setup.attr.qp_access_flags |= AccessFlags::FLUSH_GLOBAL;
            shared[side as usize] = share(self.receives, side, setup);
            setups.push(setup.clone());
        });
        for side in Side::BOTH {
            pair.node_mut(side).qp.set_vendor_ops(true);
        }
        let setups = setups.try_into().expect("two sides");
        (pair, setups, shared)
    }

    fn senders(&self) -> &'static [Side] {
        match self.receives {
            Receives::Xrc => &[Side::A],
            _ => &Side::BOTH,
        }
    }

    /// Runs the attack with noise.
    ///
    /// # Panics
    /// If a request fails, or a QP leaves RTS or reports an event.
    #[must_use]
    pub fn make_noise(&self) -> Harm {
        let mut rng = Rng::new(self.seed, 52);
        let (mut pair, ..) = self.pair();
        let count = |side| match self.senders().contains(&side) {
            true => [25, 0],
            false => [0; 2],
        };
        let mut request_logs =
            Side::BOTH.map(|side| RequestLog::new(self.seed, side, count(side), &pair));
        for side in Side::BOTH {
            request_logs[side as usize].post_receives(&mut pair);
            request_logs[side as usize].post_batch(&mut pair);
        }
        let mut harm = Harm::default();
        loop {
            pair.drain_both();
            for side in Side::BOTH {
                for completion in pair.take_completions(side) {
                    if completion.is_send() {
                        request_logs[side as usize].sent(&pair, &completion);
                    } else {
                        request_logs[side.other() as usize].received(&pair, &completion);
                    }
                }
            }
            for _ in 0..rng.below(20) {
                if harm.sent < self.packets
                    && let Some(traced) = draw(&mut rng, &pair)
                {
                    harm.sent += u32::from(noise(&mut rng, &mut pair, &traced, self.receives));
                }
            }
            if !pair.step() {
                break;
            }
        }
        for (from, request_log) in Side::BOTH.into_iter().zip(&request_logs) {
            let (_, cut_off) = request_log.judge(&pair, 0);
            assert_eq!(cut_off, 0, "{from:?}: incomplete messages");
            assert_eq!(pair.take_events(from), []);
            assert_eq!(pair.node(from).qp.state(), QpState::Rts);
        }
        harm
    }

    /// Runs the attack with forgeries.
    ///
    /// # Panics
    /// If a guarantee that forgeries cannot suspend is violated.
    #[must_use]
    pub fn forge(&self) -> Harm {
        let mut run = Forgery::new(self);
        for _ in 0..self.packets {
            run.act();
        }
        run.finish()
    }
}

/// Returns a random packet of the trace.
fn draw(rng: &mut Rng, pair: &Pair) -> Option<Traced> {
    let count = pair.trace().len() as u64;
    let index = usize::try_from(rng.below(count.max(1))).ok()?;
    pair.trace().get(index).cloned()
}

fn set_psn(bytes: &mut [u8], psn: Psn) {
    bytes[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
}

fn deliver(pair: &mut Pair, to: Side, bytes: &[u8], from_third_host: bool) -> bool {
    if Packet::parse(bytes).is_err() {
        return false;
    }
    if from_third_host {
        pair.inject_from(to, [10, 0, 0, 99].into(), to.ip(), bytes);
    } else {
        pair.inject(to, bytes);
    }
    true
}

/// Delivers a packet that must be dropped, or is a duplicate, or lies outside the expected PSNs.
fn noise(rng: &mut Rng, pair: &mut Pair, traced: &Traced, receives: Receives) -> bool {
    let mut bytes = traced.bytes.clone();
    let psn = traced.packet().bth().psn;
    let mut from_third_host = false;
    match rng.below(7) {
        0 => {
            let others: &[u8] = match receives {
                Receives::Xrc => &[0x00, 0x20, 0x40, 0x60, 0xc0],
                _ => &[0x20, 0x40, 0x60, 0xa0, 0xc0],
            };
            bytes[0] = bytes[0] & 0x1f | rng.pick(others);
        }
        1 => bytes[3] ^= 1 << rng.below(7),
        2 => bytes[1] |= rng.range_u8(1, 15),
        3 => from_third_host = true,
        // An invalid opcode with a PSN from long ago. With the expected PSN the responder would NAK
        // it.
        4 => {
            bytes[0] = bytes[0] & 0xe0 | 0x1f;
            set_psn(&mut bytes, psn.sub(0x10_0000));
        }
        // A PSN far ahead of the packets in flight, or far behind.
        5 => {
            let far = rng.range_u32(0x10_0000, 0x70_0000);
            set_psn(&mut bytes, psn.add(far));
        }
        // An unchanged duplicate.
        _ => {}
    }
    deliver(pair, traced.from.other(), &bytes, from_third_host)
}

/// Request counts of one side.
#[derive(Debug, Default)]
struct Count {
    posted: u64,
    ended: u64,
}

impl Count {
    fn end(&mut self, completion: &Completion) {
        assert_eq!(completion.wr_id, self.ended, "each once, in order");
        self.ended += 1;
        assert!(self.ended <= self.posted, "{completion:?}");
    }
}

struct Forgery<'a> {
    attack: &'a Attack,
    rng: Rng,
    pair: Pair,
    setups: [Setup; 2],
    shared: [Option<Arc<TestSrq>>; 2],
    /// The memory of A and B that the peer may access, and the memory that it may not.
    open: [Region; 2],
    secrets: [[Region; 2]; 2],
    sends: [Count; 2],
    receives: [Count; 2],
    harm: Harm,
}

impl<'a> Forgery<'a> {
    fn new(attack: &'a Attack) -> Self {
        let (pair, setups, shared) = attack.pair();
        let open = Side::BOTH.map(|side| pair.node(side).mem.register(2 * LEN, RIGHTS));
        let secrets = Side::BOTH.map(|side| {
            let mem = &pair.node(side).mem;
            let regions = [
                mem.register(LEN, AccessFlags::LOCAL_WRITE),
                mem.register_foreign(LEN, RIGHTS),
            ];
            for region in &regions {
                mem.fill(region, 0, &[SECRET; LEN as usize]);
            }
            regions
        });
        Self {
            attack,
            rng: Rng::new(attack.seed, 53),
            pair,
            setups,
            shared,
            open,
            secrets,
            sends: Default::default(),
            receives: Default::default(),
            harm: Harm::default(),
        }
    }

    fn act(&mut self) {
        match self.rng.below(8) {
            0 | 1 => self.post(),
            2 => self.post_recv(),
            3 => {
                let ns = self.rng.below(100_000);
                self.pair.run_for(ns);
            }
            _ => self.strike(),
        }
        self.reap();
    }

    fn post(&mut self) {
        let senders = self.attack.senders();
        let side = self.rng.pick(senders);
        let count = &mut self.sends[side as usize];
        if count.posted - count.ended >= 32 {
            return;
        }
        let kinds = [
            Kind::Send,
            Kind::Write,
            Kind::WriteImm,
            Kind::Read,
            Kind::Add,
            Kind::AddFields,
            Kind::Store,
            Kind::Flush,
        ];
        let kind = self.rng.pick(&kinds);
        let len = kind.len(self.rng.range_u32(0, LEN));
        let there = self.open[side.other() as usize];
        let wr = SendWr {
            wr_id: count.posted,
            op: kind.op((there.addr, there.rkey), len),
            flags: SendFlags::SIGNALED,
            sges: &[self.open[side as usize].part(LEN.into(), len)]
                [usize::from(kind == Kind::Flush)..],
        };
        if self.pair.try_send(side, &wr).is_ok() {
            count.posted += 1;
            if let Some(operands) = kind.operands() {
                self.pair.node_mut(side).qp.set_operands(operands);
            }
        }
    }

    fn post_recv(&mut self) {
        let senders = self.attack.senders();
        let side = self.rng.pick(senders).other();
        let count = &mut self.receives[side as usize];
        if count.posted - count.ended < 32 {
            let sge = self.open[side as usize].part(0, LEN);
            self.pair.recv(side, count.posted, &[sge]);
            count.posted += 1;
        }
    }

    /// Delivers a modified copy of a recorded packet to either side.
    fn strike(&mut self) {
        let Some(traced) = draw(&mut self.rng, &self.pair) else {
            return;
        };
        let rng = &mut self.rng;
        let mut bytes = traced.bytes.clone();
        let psn = traced.packet().bth().psn;
        for _ in 0..rng.range(1, 3) {
            match rng.below(8) {
                0 => bytes[0] = bytes[0] & 0xe0 | rng.range_u8(0, 31),
                1 => bytes[0] = rng.range_u8(0, 255),
                2 => bytes[1] ^= 1 << rng.below(8),
                3..5 => {
                    let near = Psn::new(psn.get()).add(rng.range_u32(0, 40));
                    set_psn(&mut bytes, near.sub(rng.range_u32(0, 8)));
                }
                5 => {
                    // A byte after the BTH.
                    let at = 12 + usize::try_from(rng.below(32)).unwrap_or(0);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << rng.below(8);
                    }
                }
                6 => {
                    let len = usize::try_from(rng.below(bytes.len() as u64 + 1)).unwrap_or(0);
                    bytes.truncate(len.max(16));
                }
                _ => {
                    let more = usize::try_from(rng.below(600)).unwrap_or(0);
                    bytes.extend(vec![rng.range_u8(0, 255); more]);
                }
            }
        }
        let to = match rng.below(10) {
            0 => traced.from,
            _ => traced.from.other(),
        };
        self.harm.sent += u32::from(deliver(&mut self.pair, to, &bytes, false));
    }

    fn reap(&mut self) {
        self.pair.drain_both();
        for side in Side::BOTH {
            for completion in self.pair.take_completions(side) {
                let counts = if completion.is_send() {
                    &mut self.sends
                } else {
                    &mut self.receives
                };
                counts[side as usize].end(&completion);
            }
        }
    }

    fn finish(mut self) -> Harm {
        self.pair.run();
        self.reap();
        for side in Side::BOTH {
            let (sends, receives) = (&self.sends[side as usize], &self.receives[side as usize]);
            let state = self.pair.node(side).qp.state();
            assert!(matches!(state, QpState::Rts | QpState::Err), "{state:?}");
            // Each request completes: with a response, or after the retries are exhausted.
            assert_eq!(sends.ended, sends.posted, "{side:?} in {state:?}");
            if state == QpState::Err {
                self.harm.ended += 1;
                let left = self.shared[side as usize]
                    .as_ref()
                    .map_or(0, |srq| srq.with(|srq| srq.queued() as u64));
                assert_eq!(receives.ended + left, receives.posted, "{side:?}");
            }
            let mem = &self.pair.node(side).mem;
            for region in &self.secrets[side as usize] {
                assert!(mem.all(region) == [SECRET; LEN as usize], "{side:?}");
            }
        }
        let harm = self.harm;
        self.start_again();
        harm
    }

    /// Connects both QPs again and checks that they work.
    fn start_again(mut self) {
        for side in Side::BOTH {
            let attr = self.setups[side as usize].attr;
            self.pair
                .modify(side, QpState::Reset, NO_MORE, &QpAttr::default());
            if let Some(srq) = &self.shared[side as usize] {
                srq.with(|srq| {
                    while srq.take().is_some() {
                        srq.free_wqes(1);
                    }
                });
            }
            for (next, mask) in Setup::PATH_TO_RTS {
                self.pair.modify(side, next, mask, &attr);
            }
        }
        self.pair.drain_both();
        for side in Side::BOTH {
            self.pair.take_completions(side);
            self.pair.take_events(side);
        }
        for &side in self.attack.senders() {
            let (here, there) = (self.open[side as usize], self.open[side.other() as usize]);
            let data = payload(self.attack.seed, 1, LEN);
            self.pair.node(side).mem.fill(&here, LEN as usize, &data);
            self.pair.recv(side.other(), 7, &[there.part(0, LEN)]);
            let send = SendOp::Send { imm: None };
            self.pair.send(side, 8, send, &[here.part(LEN.into(), LEN)]);
            self.pair.run();
            let sent = self.pair.take_completions(side);
            let received = self.pair.take_completions(side.other());
            for (done, wr_id) in [(sent, 8), (received, 7)] {
                let [done] = &done[..] else {
                    panic!("{done:?}");
                };
                assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::Success));
            }
            let found = self
                .pair
                .node(side.other())
                .mem
                .bytes(&there, 0..LEN as usize);
            assert!(found == data, "the received data differs");
        }
    }
}
