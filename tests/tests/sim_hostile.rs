//! Hostile packets to working QPs, in virtual time. See `rocade_tests::sim::hostile`.

use std::cell::RefCell;
use std::rc::Rc;

use rocade_tests::sim::hostile::{Attack, Harm};
use rocade_tests::sim::rng::Rng;
use rocade_tests::sim::scenario::Receives;
use rocade_tests::sim::{are_few, each_seed};
use rocade_transport::testing::{Delivery, Fabric, NodeId, Region};
use rocade_transport::{AccessFlags, QpState, SendOp, WcStatus};
use rocade_wire::Packet;

/// The number of seeds of [`each`].
const COUNT: u64 = 100;

fn each(run: fn(&Attack) -> Harm) -> Harm {
    let mut sum = Harm::default();
    for receives in [Receives::Own, Receives::Shared, Receives::Xrc] {
        let plan = |seed| Attack::swarm(seed, receives);
        each_seed(COUNT, plan, run, |harm| {
            sum.sent += harm.sent;
            sum.ended += harm.ended;
        });
        println!("{receives:?}: {sum:?}");
    }
    sum
}

//= BTH-05 BTH-06 BTH-15 type=test
//= OPC-36 RC-DUP-01 type=test
#[test]
fn a_connection_does_not_notice_noise() {
    let harm = each(Attack::make_noise);
    assert!(are_few(COUNT) || harm.sent > 5000, "{harm:?}");
}

//= BTH-14 RC-STA-01 type=test
#[test]
fn forgeries_do_no_lasting_harm() {
    let harm = each(Attack::forge);
    assert!(are_few(COUNT) || harm.ended > 20, "{harm:?}");
}

const KEY: u64 = 0x5eed_0001_0002_0003;
const OPEN: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);

#[derive(Debug)]
struct HostilePlan {
    seed: u64,
    /// The attacker does not know the DC access key.
    keyless: bool,
}

/// The packets sent, with their senders.
type SentPackets = Rc<RefCell<Vec<(NodeId, Vec<u8>)>>>;

/// An initiator and a target with traffic between them, and an attacker that has recorded their
/// packets.
struct HostileRun {
    fabric: Fabric,
    rng: Rng,
    dci: NodeId,
    dct: NodeId,
    here: Region,
    there: Region,
    /// Memory of the target that no request addresses.
    secret: Region,
    sent_packets: SentPackets,
    posted: u64,
    ended: u64,
    added: u64,
}

impl HostileRun {
    fn new(seed: u64) -> Self {
        let mut fabric = Fabric::default();
        let sent_packets = SentPackets::default();
        let recorded = Rc::clone(&sent_packets);
        fabric.set_network(move |event| {
            let bytes = event.packet.as_bytes().to_vec();
            recorded.borrow_mut().push((event.from, bytes));
            Delivery::Deliver
        });
        let dci = fabric.add_initiator(1, None, |setup| setup.attr.rnr_retry = 3);
        let dct = fabric.add_target(2, KEY, |_| {});
        let here = fabric.node(dci).mem.register(8192, OPEN);
        let there = fabric.node(dct).mem.register(8192, OPEN);
        let secret = fabric.node(dct).mem.register(64, AccessFlags::LOCAL_WRITE);
        Self {
            rng: Rng::new(seed, 61),
            fabric,
            dci,
            dct,
            here,
            there,
            secret,
            sent_packets,
            posted: 0,
            ended: 0,
            added: 0,
        }
    }

    fn post(&mut self) {
        if self.posted - self.ended >= 32 || self.fabric.node(self.dci).qp.state() != QpState::Rts {
            return;
        }
        let (va, rkey) = (self.there.addr, self.there.rkey);
        let len = self.rng.range_u32(0, 4000);
        let (op, sge) = match self.rng.below(3) {
            0 => (SendOp::FetchAdd { va, rkey, add: 1 }, self.here.part(0, 8)),
            1 => (
                SendOp::Write {
                    va: va + 64,
                    rkey,
                    imm: None,
                },
                self.here.part(64, len),
            ),
            _ => (SendOp::Send { imm: None }, self.here.part(64, len)),
        };
        if let SendOp::Send { .. } = op {
            self.fabric
                .recv(self.dct, 1, &[self.there.part(4096, 4096)]);
        }
        self.added += u64::from(matches!(op, SendOp::FetchAdd { .. }));
        let to = self.fabric.to(self.dci, self.dct, KEY);
        self.fabric.post(self.dci, to, self.posted, op, &[sge]);
        self.posted += 1;
    }

    fn strike(&mut self, keyless: bool) {
        let sent_packets = self.sent_packets.borrow();
        if sent_packets.is_empty() {
            return;
        }
        let rng = &mut self.rng;
        let index = usize::try_from(rng.below(sent_packets.len() as u64)).unwrap_or(0);
        let (from, mut bytes) = sent_packets[index].clone();
        drop(sent_packets);
        let is_request = from == self.dci;
        let is_datagram = bytes[0] >> 5 == 3;
        for _ in 0..rng.range(1, 3) {
            match rng.below(6) {
                0 => bytes[0] = bytes[0] & 0xe0 | rng.range_u8(0, 31),
                1 => bytes[1] ^= 1 << rng.below(8),
                2 => bytes[11] = bytes[11].wrapping_add(rng.range_u8(0, 20)),
                3 => {
                    // The DC session and the bytes after it.
                    let at = 20 + usize::try_from(rng.below(32)).unwrap_or(0);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << rng.below(8);
                    }
                }
                4 => bytes.truncate(usize::try_from(rng.range(16, 64)).unwrap_or(16)),
                _ => bytes.extend(vec![rng.range_u8(0, 255); 40]),
            }
        }
        // Only requests with a DCETH carry the key, which is falsified below. Responses and hellos
        // may be accepted without it.
        if keyless && (!is_request || is_datagram) {
            return;
        }
        if keyless && bytes.len() > 20 {
            bytes[12] ^= rng.range_u8(1, 255);
        }
        if Packet::parse(&bytes).is_err() {
            return;
        }
        let (source, to) = if is_request {
            (self.dci, self.dct)
        } else {
            (self.dct, self.dci)
        };
        let source = self.fabric.node(source).ip;
        self.fabric.inject(source, to, &bytes);
    }

    fn reap(&mut self) -> bool {
        let mut whole = true;
        for completion in self.fabric.take_completions(self.dci) {
            assert_eq!(completion.wr_id, self.ended, "each once, in order");
            self.ended += 1;
            whole &= completion.status == WcStatus::Success;
        }
        self.fabric.take_completions(self.dct);
        whole
    }
}

fn run_plan(plan: &HostilePlan) -> u64 {
    let mut run = HostileRun::new(plan.seed);
    let secret = run.fabric.node(run.dct).mem.all(&run.secret);
    let mut is_whole = true;
    for _ in 0..200 {
        match run.rng.below(6) {
            0 | 1 => run.post(),
            2 => {
                let ns = run.rng.below(100_000);
                run.fabric.run_for(ns);
            }
            _ => run.strike(plan.keyless),
        }
        is_whole &= run.reap();
    }
    run.fabric.run();
    is_whole &= run.reap();
    assert_eq!(run.ended, run.posted, "requests without a completion");
    assert_eq!(run.fabric.node(run.dct).mem.all(&run.secret), secret);
    if plan.keyless {
        assert!(is_whole, "who has no key is not noticed");
        let counter = run.fabric.node(run.dct).mem.bytes(&run.there, 0..8);
        assert_eq!(
            counter,
            run.added.to_ne_bytes(),
            "packets without the key execute an atomic"
        );
        assert_eq!(run.fabric.node(run.dci).qp.state(), QpState::Rts);
    }
    // The target serves a new initiator.
    let next = run.fabric.add_initiator(5, None, |_| {});
    let local = run.fabric.node(next).mem.register(64, OPEN);
    run.fabric.node(next).mem.fill(&local, 0, &[0x77; 64]);
    let to = run.fabric.to(next, run.dct, KEY);
    let write = SendOp::Write {
        va: run.there.addr + 128,
        rkey: run.there.rkey,
        imm: None,
    };
    run.fabric.post(next, to, 1, write, &[local.sge()]);
    run.fabric.run();
    let done = run.fabric.take_completions(next);
    assert_eq!((done.len(), done[0].status), (1, WcStatus::Success));
    assert_eq!(
        run.fabric.node(run.dct).mem.bytes(&run.there, 128..192),
        [0x77; 64]
    );
    u64::from(!is_whole)
}

//= DCK-01 DCK-03 DCW-17 type=test
//= DCW-18 type=test
#[test]
fn a_target_serves_on_whatever_comes() {
    for keyless in [true, false] {
        let mut harmed = 0;
        let plan = |seed| HostilePlan { seed, keyless };
        each_seed(150, plan, run_plan, |count| harmed += count);
        println!("without key {keyless}: {harmed} harmed");
        assert!(are_few(150) || (harmed > 0) != keyless, "{harmed}");
    }
}
