//! Dynamic connections: one initiator and many targets, many initiators and one target, and whatever goes wrong.

use alloc::vec::Vec;
use core::net::IpAddr;
use std::vec;

use rocade_wire::{
    Aeth, AtomicEth, Bth, DcEth, DcHello, DcRespEth, Headers, Msn, NakCode, Opcode, Operation,
    Pkey, Psn, Qpn, Reth, Service, Syndrome,
};

use crate::attr::QpState;
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::DropReason;
use crate::dc::{DciStreams, SESSION_IDLE_NS, SESSION_MEMORY_NS};
use crate::error::PostError;
use crate::event::QpEvent;
use crate::testing::{Fabric, Fate, NodeId, Region};
use crate::wr::{AccessFlags, DcDestination, SendFlags, SendOp, SendWr};

const KEY: u64 = 0x8123_4567_89ab_cdef;
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);
const MS: u64 = 1_000_000;

fn region(fabric: &Fabric, id: NodeId, len: u32) -> Region {
    fabric.node(id).mem.register(len, ALL)
}

fn write(region: &Region, offset: u64) -> SendOp {
    SendOp::Write {
        va: region.sge().addr + offset,
        rkey: region.rkey,
        imm: None,
    }
}

fn statuses(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|c| (c.wr_id, c.status)).collect()
}

fn count(fabric: &Fabric, what: &str) -> usize {
    fabric
        .trace()
        .iter()
        .filter(|line| line.contains(what))
        .count()
}

/// One initiator on host 1 and targets on hosts 2, 3, …
fn star(targets: u8) -> (Fabric, NodeId, Vec<NodeId>) {
    let mut fabric = Fabric::default();
    let dci = fabric.add_initiator(1, None, |_| {});
    let dcts = (0..targets)
        .map(|n| fabric.add_target(2 + n, KEY + u64::from(n), |_| {}))
        .collect();
    (fabric, dci, dcts)
}

//= DC-01 DC-03 DC-04 DC-10 DC-11 DC-13 DCW-01 DCW-08 DCW-18 type=test
#[test]
fn every_operation_reaches_its_target() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let (a, b) = (region(&fabric, dci, 8192), region(&fabric, dct, 8192));
    let pattern: Vec<u8> = (0..8192u32).map(|n| n.to_le_bytes()[0] ^ 0x5a).collect();
    fabric.node(dci).mem.fill(&a, 0, &pattern);
    let to = fabric.to(dci, dct, KEY);
    fabric.recv(dct, 70, &[b.part(0, 4096)]);
    fabric.recv(dct, 71, &[b.part(4096, 1)]);
    let imm = Some([1, 2, 3, 4]);
    fabric.post(dci, to, 1, SendOp::Send { imm }, &[a.part(0, 3000)]);
    fabric.post(dci, to, 2, write(&b, 4096), &[a.part(100, 2500)]);
    let (va, rkey) = (b.addr, b.rkey);
    let with_imm = SendOp::Write { va, rkey, imm };
    fabric.post(dci, to, 3, with_imm, &[]);
    let read = SendOp::Read {
        va: va + 4096,
        rkey,
    };
    fabric.post(dci, to, 4, read, &[a.part(4000, 2500)]);
    let add = SendOp::FetchAdd {
        va: va + 8000,
        rkey,
        add: 7,
    };
    fabric.post(dci, to, 5, add, &[a.part(8000, 8)]);
    let swap = SendOp::CmpSwap {
        va: va + 8000,
        rkey,
        compare: 7,
        swap: 9,
    };
    fabric.post(dci, to, 6, swap, &[a.part(8008, 8)]);
    fabric.run();

    let sent = fabric.take_completions(dci);
    let opcodes: Vec<_> = sent.iter().map(|c| (c.status, c.opcode)).collect();
    use WcOpcode::{CompSwap, FetchAdd, RdmaRead, RdmaWrite, Send};
    let expected = [Send, RdmaWrite, RdmaWrite, RdmaRead, FetchAdd, CompSwap];
    assert_eq!(opcodes, expected.map(|opcode| (WcStatus::Success, opcode)));
    assert!(
        sent.iter()
            .all(|c| c.qp_num == fabric.node(dci).qp.qp_num())
    );
    let received = fabric.take_completions(dct);
    let numbers = |c: &Completion| (c.wr_id, c.opcode, c.byte_len, c.qp_num, c.src_qp);
    let own = fabric.node(dct).qp.qp_num();
    let from = fabric.node(dci).qp.qp_num();
    assert_eq!(
        received.iter().map(numbers).collect::<Vec<_>>(),
        [
            (70, WcOpcode::Recv, 3000, own, from),
            (71, WcOpcode::RecvRdmaWithImm, 0, own, from)
        ]
    );
    let memory = &fabric.node(dct).mem;
    assert_eq!(memory.bytes(&b, 0..3000), pattern[..3000]);
    assert_eq!(memory.bytes(&b, 4096..6596), pattern[100..2600]);
    assert_eq!(memory.bytes(&b, 8000..8008), 9u64.to_ne_bytes());
    let memory = &fabric.node(dci).mem;
    assert_eq!(memory.bytes(&a, 4000..6500), pattern[100..2600]);
    assert_eq!(memory.bytes(&a, 8000..8008), 0u64.to_ne_bytes());
    assert_eq!(memory.bytes(&a, 8008..8016), 7u64.to_ne_bytes());

    // A question and its answer come first, then one START, and in the end one DISCONNECT.
    let trace = fabric.trace();
    assert!(trace[0].starts_with("UD SEND_ONLY") && trace[1].starts_with("UD SEND_ONLY"));
    assert!(trace[2].contains("DC SEND_FIRST") && trace[2].contains("START mtu=3"));
    assert!(trace[2..].iter().all(|line| line.starts_with("DC ")));
    assert_eq!(
        (count(&fabric, "START"), count(&fabric, "DISCONNECT")),
        (1, 1)
    );
    assert!(
        trace
            .last()
            .is_some_and(|line| line.starts_with("DC DISCONNECT"))
    );
}

/// Requests go out in order, each target's when everything before is acknowledged, without help of the user.
//= DC-06 DC-07 DCW-12 DCW-13 type=test
#[test]
fn the_next_target_waits_for_the_last() {
    let (mut fabric, dci, dcts) = star(3);
    let a = region(&fabric, dci, 64);
    let to: Vec<_> = (0..3)
        .map(|n| (dcts[n], region(&fabric, dcts[n], 64)))
        .collect();
    // The first round introduces them.
    for round in 0..2u64 {
        fabric.clear_trace();
        for (n, (dct, b)) in (0u64..).zip(&to) {
            for twice in 0..2 {
                let wr_id = round * 100 + n * 10 + twice;
                let to = fabric.to(dci, *dct, KEY + n);
                fabric.post(dci, to, wr_id, write(b, wr_id % 50), &[a.part(0, 4)]);
            }
        }
        assert_eq!(fabric.node(dci).qp.send_queue_len(), 6);
        fabric.run();
        let done = fabric.take_completions(dci);
        let ids: Vec<_> = done.iter().map(|c| c.wr_id % 100).collect();
        assert_eq!(ids, [0, 1, 10, 11, 20, 21]);
        assert!(done.iter().all(|c| c.status == WcStatus::Success));
    }
    let short: Vec<_> = fabric
        .trace()
        .iter()
        .map(|line| line.split_whitespace().nth(1).unwrap_or_default())
        .collect();
    let both = [
        "RDMA_WRITE_ONLY",
        "RDMA_WRITE_ONLY",
        "ACKNOWLEDGE",
        "ACKNOWLEDGE",
        "DISCONNECT",
    ];
    let first = [
        "RDMA_WRITE_ONLY",
        "ACKNOWLEDGE",
        "RDMA_WRITE_ONLY",
        "ACKNOWLEDGE",
        "DISCONNECT",
    ];
    let _ = first;
    assert_eq!(
        short.iter().filter(|name| **name == "DISCONNECT").count(),
        3
    );
    assert_eq!(count(&fabric, "START"), 3);
    // No packet to the next target before the last acknowledgement of the one before.
    let position = |what: &str| fabric.trace().iter().position(|line| line.contains(what));
    let last_ack = |trace: &[&str]| trace.iter().rposition(|name| *name == "ACKNOWLEDGE");
    let second_start = fabric
        .trace()
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains("START"))
        .map(|(at, _)| at)
        .nth(1)
        .unwrap();
    let acked = short[..second_start]
        .iter()
        .filter(|name| **name == "ACKNOWLEDGE")
        .count();
    assert!(
        acked >= 1 && position("START") == Some(0),
        "{short:?} {both:?}"
    );
    assert!(last_ack(&short) > Some(second_start));
}

//= DC-01 DC-02 type=test
#[test]
fn many_initiators_share_a_target() {
    let mut fabric = Fabric::default();
    let dct = fabric.add_target(1, KEY, |_| {});
    let dcis: Vec<_> = (0..20)
        .map(|n| fabric.add_initiator(2 + n % 7, None, |_| {}))
        .collect();
    let b = region(&fabric, dct, 8);
    let inbox = region(&fabric, dct, 4096);
    for n in 0..60u64 {
        fabric.recv(dct, n, &[inbox.part(n * 64, 64)]);
    }
    for round in 0..3 {
        for &dci in &dcis {
            let a = region(&fabric, dci, 64);
            let to = fabric.to(dci, dct, KEY);
            let (va, rkey) = (b.addr, b.rkey);
            let add = SendOp::FetchAdd { va, rkey, add: 1 };
            fabric.post(dci, to, round, add, &[a.part(0, 8)]);
            fabric.post(
                dci,
                to,
                round + 10,
                SendOp::Send { imm: None },
                &[a.part(8, 16)],
            );
        }
    }
    fabric.run_for(50 * MS);
    let status = fabric.node(dct).qp.target_status().unwrap();
    assert_eq!((status.sessions, status.key_violations), (20, 0));
    assert_eq!(fabric.node(dct).mem.bytes(&b, 0..8), 60u64.to_ne_bytes());
    let received = fabric.take_completions(dct);
    assert_eq!(received.len(), 60);
    for &dci in &dcis {
        let number = fabric.node(dci).qp.qp_num();
        assert_eq!(received.iter().filter(|c| c.src_qp == number).count(), 3);
        let done = fabric.take_completions(dci);
        assert!(done.len() == 6 && done.iter().all(|c| c.status == WcStatus::Success));
    }
    // Those that have nothing to do leave.
    fabric.run();
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 0);
}

//= DCK-01 DCK-03 DCK-04 DCK-05 DCK-07 DC-09 DCT-08 type=test
#[test]
fn a_forged_key_is_dropped_and_counted() {
    let (mut fabric, dci, dcts) = star(2);
    let dct = dcts[0];
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dct, 64));
    fabric.node(dci).mem.fill(&a, 0, &[7; 64]);
    fabric.recv(dct, 1, &[b.part(0, 64)]);
    let violations = |fabric: &Fabric| fabric.node(dct).qp.target_status().unwrap().key_violations;
    let mut before = 0;
    for (round, armed) in [false, true, false, true].into_iter().enumerate() {
        if armed {
            fabric.node_mut(dct).qp.arm();
            fabric.node_mut(dct).qp.arm();
        }
        let forged = fabric.to(dci, dct, KEY ^ 1 << (round * 13));
        let good = fabric.to(dci, dcts[1], KEY + 1);
        fabric.post(dci, forged, 1, write(&b, 0), &[a.part(0, 8)]);
        fabric.post(dci, forged, 2, SendOp::Send { imm: None }, &[a.part(0, 8)]);
        fabric.post(dci, good, 3, SendOp::Send { imm: None }, &[a.part(0, 8)]);
        fabric.run();
        // What was for others is flushed, too.
        assert_eq!(
            statuses(&fabric.take_completions(dci)),
            [
                (1, WcStatus::RetryExcErr),
                (2, WcStatus::WrFlushErr),
                (3, WcStatus::WrFlushErr)
            ]
        );
        assert_eq!(fabric.node(dci).qp.state(), QpState::Err);
        assert!(violations(&fabric) > before);
        before = violations(&fabric);
        let expected = if armed {
            vec![QpEvent::DctKeyViolation]
        } else {
            vec![]
        };
        assert_eq!(core::mem::take(&mut fabric.node_mut(dct).events), expected);
        recover(&mut fabric, dci);
    }
    assert_eq!(fabric.node(dct).mem.all(&b), [0; 64]);
    assert!(fabric.take_completions(dct).is_empty());
    let dropped = fabric.node(dct).qp.counters().dropped(DropReason::BadDcKey);
    assert_eq!(dropped, u64::from(before));
    // The receive is still there.
    let good = fabric.to(dci, dct, KEY);
    fabric.post(dci, good, 9, SendOp::Send { imm: None }, &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(9, WcStatus::Success)]
    );
    assert_eq!(fabric.take_completions(dct).len(), 1);
}

/// From ERR through RESET to RTS, by the table of upstream.
fn recover(fabric: &mut Fabric, dci: NodeId) {
    use crate::attr::{QpAttr, QpAttrMask};
    let (now, ip) = (fabric.now(), fabric.node(dci).ip);
    let setup = crate::testing::Setup::new(0, ip, 0, ip);
    let qp = &mut fabric.node_mut(dci).qp;
    for next in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
        let rule = crate::qp::transition_rule(qp.config().qp_type, qp.state(), next).unwrap();
        let attr = QpAttr {
            qp_state: next.code(),
            ..setup.attr
        };
        let mask = QpAttrMask::STATE | rule.required;
        let context = crate::testing::context(ip);
        qp.modify(now, &attr, mask, &context).unwrap();
    }
}

//= DC-14 type=test
#[test]
fn without_receives_the_initiator_waits_or_gives_up() {
    for retries in [7, 2] {
        let mut fabric = Fabric::default();
        let dci = fabric.add_initiator(1, None, |setup| setup.attr.rnr_retry = retries);
        let dct = fabric.add_target(2, KEY, |setup| setup.attr.min_rnr_timer = 12);
        let (a, b) = (region(&fabric, dci, 64), region(&fabric, dct, 64));
        let to = fabric.to(dci, dct, KEY);
        fabric.post(dci, to, 1, SendOp::Send { imm: None }, &[a.part(0, 8)]);
        fabric.run_for(10 * MS);
        assert!(count(&fabric, "RNR_NAK timer=640us") >= 2);
        fabric.recv(dct, 5, &[b.part(0, 64)]);
        fabric.run();
        let expected = if retries == 7 {
            WcStatus::Success
        } else {
            WcStatus::RnrRetryExcErr
        };
        assert_eq!(statuses(&fabric.take_completions(dci)), [(1, expected)]);
    }
}

/// A request that is refused ends its session, and nothing else of the target.
//= DC-09 DC-13 type=test
#[test]
fn a_refused_request_concerns_its_initiator_alone() {
    let mut fabric = Fabric::default();
    let dct = fabric.add_target(1, KEY, |_| {});
    let (bad, good) = (
        fabric.add_initiator(2, None, |_| {}),
        fabric.add_initiator(3, None, |_| {}),
    );
    let b = region(&fabric, dct, 64);
    let (a, c) = (region(&fabric, bad, 64), region(&fabric, good, 64));
    let to = fabric.to(good, dct, KEY);
    fabric.post(good, to, 1, write(&b, 0), &[c.part(0, 8)]);
    let wrong = SendOp::Write {
        va: b.addr + 60,
        rkey: b.rkey,
        imm: None,
    };
    let to_bad = fabric.to(bad, dct, KEY);
    fabric.post(bad, to_bad, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.post(bad, to_bad, 2, wrong, &[a.part(0, 8)]);
    fabric.post(bad, to_bad, 3, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(20 * MS);
    fabric.post(good, to, 2, write(&b, 8), &[c.part(0, 8)]);
    fabric.run();
    assert_eq!(
        statuses(&fabric.take_completions(bad)),
        [
            (1, WcStatus::Success),
            (2, WcStatus::RemAccessErr),
            (3, WcStatus::WrFlushErr)
        ]
    );
    let ok = WcStatus::Success;
    assert_eq!(statuses(&fabric.take_completions(good)), [(1, ok), (2, ok)]);
    assert_eq!(fabric.node(dct).qp.state(), QpState::Rtr);
    assert_eq!(fabric.node(dct).events, [QpEvent::AccessErr]);
    recover(&mut fabric, bad);
    fabric.post(bad, to_bad, 4, write(&b, 0), &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(statuses(&fabric.take_completions(bad)), [(4, ok)]);
}

/// Nothing but ordinary datagrams goes to an address where nobody has said that it is Rocade.
//= DCW-18 RXE-115 type=test
#[test]
fn strangers_never_get_a_packet_of_ours() {
    let (mut fabric, dci, dcts) = star(2);
    let a = region(&fabric, dci, 64);
    let b = region(&fabric, dcts[1], 64);
    fabric.node_mut(dcts[0]).is_dead = true;
    let to = fabric.to(dci, dcts[0], KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::RetryExcErr)]
    );
    assert_eq!(fabric.trace().len(), 8);
    assert!(
        fabric
            .trace()
            .iter()
            .all(|line| line.starts_with("UD SEND_ONLY"))
    );
    // An answer that nobody has asked for, or of somebody else, shows nothing.
    recover(&mut fabric, dci);
    fabric.post(dci, to, 2, write(&b, 0), &[a.part(0, 8)]);
    let dci_num = fabric.node(dci).qp.qp_num();
    let answer = hello_bytes(dci_num, Qpn::new(9), DcHello::Answer);
    let other = IpAddr::from([10, 0, 0, 77]);
    fabric.inject(other, dci, &answer);
    let ask = hello_bytes(dci_num, Qpn::new(9), DcHello::Ask);
    fabric.inject(to.remote, dci, &ask);
    fabric.run_for(MS);
    assert_eq!(count(&fabric, "DC "), 0);
    assert_eq!(
        fabric
            .node(dci)
            .qp
            .counters()
            .dropped(DropReason::WrongService),
        2
    );
    fabric.inject(to.remote, dci, &answer);
    assert_eq!(count(&fabric, "DC RDMA_WRITE_ONLY"), 1);
}

fn hello_bytes(to: Qpn, from: Qpn, hello: DcHello) -> Vec<u8> {
    let opcode = Opcode::of(Service::Ud, Operation::SendOnly).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, to, Psn::new(0)));
    headers.deth = Some(rocade_wire::Deth {
        qkey: rocade_wire::Qkey::new(DcHello::QKEY),
        resv: 0,
        src_qp: from,
    });
    packet(&headers, &hello.to_bytes())
}

fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut headers = *headers;
    headers.bth.pad_count = Bth::pad_for(payload.len());
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    let pad = usize::from(headers.bth.pad_count);
    bytes.resize(bytes.len() + pad + Fabric::ICRC_LEN, 0);
    bytes
}

/// A START that is lost: the packet behind it is refused, and the initiator goes back, once.
//= DCW-09 DCW-10 DCW-11 type=test
#[test]
fn a_lost_start_is_repeated_at_once() {
    let (mut fabric, dci, dcts) = star(1);
    let (a, b) = (region(&fabric, dci, 8192), region(&fabric, dcts[0], 8192));
    let mut lost = false;
    fabric.set_network(move |trip| {
        let is_start = trip.packet.headers().dceth.is_some_and(|eth| eth.start);
        if is_start && !lost {
            lost = true;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    let to = fabric.to(dci, dcts[0], KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8192)]);
    fabric.run_for(MS);
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::Success)]
    );
    assert_eq!(count(&fabric, "START"), 2);
    assert_eq!(count(&fabric, "NO_SESSION"), 7);
    assert_eq!(fabric.node(dci).qp.counters().timeouts, 0);
}

/// A target that has lost its memory is no target any more: what was on its way may have been executed.
//= DCW-10 type=test
#[test]
fn a_session_that_is_forgotten_fails() {
    let mut fabric = Fabric::default();
    let dci = fabric.add_initiator(1, None, |_| {});
    let dct = fabric.add_target(2, KEY, |_| {});
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dct, 64));
    let to = fabric.to(dci, dct, KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(MS);
    let (number, ip) = (fabric.node(dct).qp.qp_num(), fabric.node(dct).ip);
    fabric.node_mut(dct).is_dead = true;
    let reborn = fabric.add_target(2, KEY, |setup| setup.config.qp_num = number);
    assert_eq!(fabric.node(reborn).ip, ip);
    fabric.post(dci, to, 2, write(&b, 0), &[a.part(0, 8)]);
    fabric.run();
    let ok = WcStatus::Success;
    let expected = [(1, ok), (2, WcStatus::RetryExcErr)];
    assert_eq!(statuses(&fabric.take_completions(dci)), expected);
}

/// What is repeated after the end of a session is acknowledged and not executed; the memory of it lasts a minute.
//= DCW-12 DCW-14 DCW-15 type=test
#[test]
fn the_end_of_a_session_is_remembered() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dct, 64));
    let to = fabric.to(dci, dct, KEY);
    let (va, rkey) = (b.addr, b.rkey);
    let add = SendOp::FetchAdd { va, rkey, add: 1 };
    fabric.post(dci, to, 1, add, &[a.part(0, 8)]);
    fabric.run();
    let ip = fabric.node(dci).ip;
    let start = start_packet(&fabric, dci, dct, u32::MAX - 2, 0xff_fff0, |headers| {
        headers.bth.opcode = Opcode::of(Service::Dc, Operation::FetchAdd).unwrap();
        headers.reth = None;
        headers.atomic = Some(AtomicEth {
            va,
            rkey,
            swap_add: 1,
            compare: 0,
        });
    });
    let bytes = packet(&start, &[]);
    fabric.clear_trace();
    fabric.inject(ip, dct, &bytes);
    assert_eq!(fabric.node(dct).mem.atomics(), 1);
    assert!(
        fabric.trace()[0].contains("DC ACKNOWLEDGE"),
        "{:?}",
        fabric.trace()
    );
    assert!(
        fabric.trace()[0].contains("psn=0xfffff0") && fabric.trace()[0].contains(" ACK msn=1"),
        "{:?}",
        fabric.trace()
    );
    // One that was never begun has nothing to say, and neither has the end of none.
    for end in [false, true] {
        let mut other = start;
        if let Some(eth) = &mut other.dceth {
            eth.session = u32::MAX - 3;
        }
        if end {
            other.bth.opcode = Opcode::of(Service::Dc, Operation::Disconnect).unwrap();
            other.atomic = None;
        }
        fabric.clear_trace();
        fabric.inject(ip, dct, &packet(&other, &[]));
        assert!(fabric.trace().is_empty());
    }
    // After a minute in which nothing was heard, somebody else's first packet clears it away.
    fabric.run_for(SESSION_MEMORY_NS + MS);
    let other = fabric.add_initiator(9, None, |_| {});
    let c = region(&fabric, other, 64);
    let to = fabric.to(other, dct, KEY);
    fabric.post(other, to, 1, write(&b, 8), &[c.part(0, 8)]);
    fabric.run();
    fabric.clear_trace();
    let mut late = start;
    if let Some(eth) = &mut late.dceth {
        eth.start = false;
    }
    fabric.inject(ip, dct, &packet(&late, &[]));
    assert!(fabric.trace()[0].contains("NO_SESSION"));
}

/// The first packet of a session as somebody might forge it: a WRITE of 8 bytes.
fn start_packet(
    fabric: &Fabric,
    dci: NodeId,
    dct: NodeId,
    session: u32,
    psn: u32,
    edit: impl FnOnce(&mut Headers),
) -> Headers {
    let opcode = Opcode::of(Service::Dc, Operation::WriteOnly).unwrap();
    let to = fabric.node(dct).qp.qp_num();
    let mut headers = Headers::new(Bth::new(opcode, to, Psn::new(psn)));
    headers.bth.ack_req = true;
    headers.bth.pkey = Pkey::DEFAULT;
    headers.dceth = Some(DcEth {
        key: KEY,
        start: true,
        pmtu: 3,
        lane: 0,
        dci: fabric.node(dci).qp.qp_num(),
        session,
    });
    headers.reth = Some(Reth::default());
    edit(&mut headers);
    headers
}

//= DCW-17 DCT-04 DCT-05 DCW-09 DCW-06 DCW-07 type=test
#[test]
fn hostile_packets_have_no_effect() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    let ip = fabric.node(dci).ip;
    let reth = Reth {
        va: b.addr,
        rkey: b.rkey,
        dma_len: 8,
    };
    let good = start_packet(&fabric, dci, dct, 100, 5, |headers| {
        headers.reth = Some(reth)
    });
    type Edit = fn(&mut Headers);
    let cases: [(Edit, Option<DropReason>, &str); 8] = [
        (
            |h| h.bth.pkey = Pkey::new(0x8001),
            Some(DropReason::BadPkey),
            "",
        ),
        (
            |h| h.bth.opcode = Opcode::of(Service::Rc, Operation::WriteOnly).unwrap(),
            Some(DropReason::WrongService),
            "",
        ),
        (
            |h| h.bth.opcode = Opcode::new(0xdf),
            Some(DropReason::Reserved),
            "",
        ),
        (
            |h| h.dceth.as_mut().unwrap().key ^= 1 << 63,
            Some(DropReason::BadDcKey),
            "",
        ),
        (
            |h| h.dceth.as_mut().unwrap().start = false,
            Some(DropReason::NoSession),
            "NO_SESSION",
        ),
        (
            |h| h.dceth.as_mut().unwrap().pmtu = 0,
            None,
            "INVALID_REQUEST",
        ),
        (
            |h| h.dceth.as_mut().unwrap().pmtu = 4,
            None,
            "INVALID_REQUEST",
        ),
        (
            |h| h.dceth.as_mut().unwrap().pmtu = 7,
            None,
            "INVALID_REQUEST",
        ),
    ];
    for (edit, reason, answer) in cases {
        let mut headers = good;
        edit(&mut headers);
        let mut bytes = packet(&headers, &[9; 8]);
        if headers.bth.opcode.service() == Service::Rc {
            bytes = packet(
                &Headers {
                    dceth: None,
                    ..headers
                },
                &[9; 8],
            );
        }
        let before = reason.map(|reason| fabric.node(dct).qp.counters().dropped(reason));
        fabric.clear_trace();
        fabric.inject(ip, dct, &bytes);
        let after = reason.map(|reason| fabric.node(dct).qp.counters().dropped(reason));
        assert_eq!(after, before.map(|n| n + 1), "{headers}");
        match fabric.trace() {
            [] => assert_eq!(answer, "", "{headers}"),
            [line] => assert!(!answer.is_empty() && line.contains(answer), "{line}"),
            _ => panic!("{:?}", fabric.trace()),
        }
    }
    assert_eq!(fabric.node(dct).mem.all(&b), [0; 64]);
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 0);
    // The good one, and then one of a session before it.
    fabric.inject(ip, dct, &packet(&good, &[9; 8]));
    assert_eq!(fabric.node(dct).mem.bytes(&b, 0..8), [9; 8]);
    let mut older = good;
    older.dceth.as_mut().unwrap().session = 99;
    fabric.clear_trace();
    fabric.inject(ip, dct, &packet(&older, &[1; 8]));
    assert!(fabric.trace().is_empty());
    // A repeated START is a duplicate like any other.
    fabric.inject(ip, dct, &packet(&good, &[2; 8]));
    assert!(fabric.trace()[0].contains("ACKNOWLEDGE"));
    assert_eq!(fabric.node(dct).mem.bytes(&b, 0..8), [9; 8]);
    // From another address it is another session.
    fabric.inject(IpAddr::from([10, 0, 0, 50]), dct, &packet(&older, &[3; 8]));
    assert_eq!(fabric.node(dct).mem.bytes(&b, 0..8), [3; 8]);
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 2);

    // Responses that are not of the session, or not of its target.
    let a = region(&fabric, dci, 64);
    let to = fabric.to(dci, dct, KEY);
    fabric.set_network(|trip| {
        let is_ack = trip.packet.headers().aeth.is_some();
        if is_ack { Fate::Drop } else { Fate::Deliver }
    });
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(MS);
    let number = fabric.node(dci).qp.qp_num();
    let ack = |session, psn, code| {
        let opcode = Opcode::of(Service::Dc, Operation::Acknowledge).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, number, Psn::new(psn)));
        headers.dcreth = Some(DcRespEth { session });
        headers.aeth = Some(Aeth {
            syndrome: Syndrome::from_code(code),
            msn: Msn::new(1),
        });
        packet(&headers, &[])
    };
    let no_session = 0x60 | DcRespEth::NAK_NO_SESSION;
    let id = u32::MAX - 2;
    let psn = 0xff_fff0;
    for (source, bytes) in [
        (to.remote, ack(id + 1, psn, 0x1f)),
        (to.remote, ack(id + 1, psn, no_session)),
        (IpAddr::from([10, 0, 0, 50]), ack(id, psn, 0x1f)),
        (to.remote, ack(id, psn + 1, 0x1f)),
        (to.remote, ack(id, psn - 1, no_session)),
        (to.remote, ack(id, psn, 0x60 | NakCode::Reserved(9).code())),
    ] {
        fabric.inject(source, dci, &bytes);
        assert!(fabric.take_completions(dci).is_empty());
        assert_eq!(fabric.node(dci).qp.state(), QpState::Rts);
    }
    fabric.inject(to.remote, dci, &ack(id, psn, 0x1f));
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::Success)]
    );
}

/// A message that never ends gives its receive back when its session does.
//= DCW-09 type=test
#[test]
fn half_a_message_ends_with_its_session() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 4096);
    let ip = fabric.node(dci).ip;
    fabric.recv(dct, 1, &[b.part(0, 4096)]);
    let first = |fabric: &Fabric, session| {
        let first = Opcode::of(Service::Dc, Operation::SendFirst).unwrap();
        start_packet(fabric, dci, dct, session, 5, |h| {
            h.reth = None;
            h.bth.opcode = first;
        })
    };
    let (one, two) = (
        packet(&first(&fabric, 1), &[1; 1024]),
        packet(&first(&fabric, 2), &[2; 1024]),
    );
    fabric.inject(ip, dct, &one);
    assert!(fabric.take_completions(dct).is_empty());
    fabric.recv(dct, 2, &[b.part(0, 4096)]);
    fabric.inject(ip, dct, &two);
    assert_eq!(
        statuses(&fabric.take_completions(dct)),
        [(1, WcStatus::WrFlushErr)]
    );
    let mut end = first(&fabric, 2);
    end.bth.opcode = Opcode::of(Service::Dc, Operation::Disconnect).unwrap();
    end.bth.psn = Psn::new(6);
    end.dceth.as_mut().unwrap().start = false;
    fabric.inject(ip, dct, &packet(&end, &[]));
    assert_eq!(
        statuses(&fabric.take_completions(dct)),
        [(2, WcStatus::WrFlushErr)]
    );
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 0);
}

//= DCT-09 DCW-16 type=test
#[test]
fn a_draining_target_serves_its_sessions_and_takes_no_others() {
    let mut fabric = Fabric::default();
    let dct = fabric.add_target(1, KEY, |_| {});
    let (one, two) = (
        fabric.add_initiator(2, None, |_| {}),
        fabric.add_initiator(3, None, |_| {}),
    );
    let b = region(&fabric, dct, 64);
    let (a, c) = (region(&fabric, one, 64), region(&fabric, two, 64));
    let to = fabric.to(one, dct, KEY);
    fabric.post(one, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(MS);
    fabric.node_mut(dct).qp.drain_sessions();
    fabric.post(one, to, 2, write(&b, 0), &[a.part(0, 8)]);
    let other = fabric.to(two, dct, KEY);
    fabric.post(two, other, 3, write(&b, 0), &[c.part(0, 8)]);
    fabric.run_for(SESSION_IDLE_NS / 2);
    let ok = WcStatus::Success;
    assert_eq!(statuses(&fabric.take_completions(one)), [(1, ok), (2, ok)]);
    let status = fabric.node(dct).qp.target_status().unwrap();
    assert!(status.is_draining && status.sessions == 1);
    fabric.run();
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 0);
    assert_eq!(
        statuses(&fabric.take_completions(two)),
        [(3, WcStatus::RetryExcErr)]
    );
}

//= DC-12 type=test
#[test]
fn receive_buffers_are_of_the_targets_domain() {
    let mut fabric = Fabric::default();
    let dci = fabric.add_initiator(1, None, |_| {});
    // The queue belongs to another domain than the target.
    let dct = fabric.add_target(2, KEY, |setup| {
        setup.srq = Some(std::sync::Arc::new(crate::testing::TestSrq::new(
            crate::memory::PdTag(77),
            16,
        )));
    });
    let a = region(&fabric, dci, 64);
    let own = region(&fabric, dct, 64);
    let to = fabric.to(dci, dct, KEY);
    fabric.recv(dct, 1, &[own.part(0, 64)]);
    fabric.post(dci, to, 1, SendOp::Send { imm: None }, &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(
        statuses(&fabric.take_completions(dct)),
        [(1, WcStatus::Success)]
    );
    let foreign = fabric.node(dct).mem.register_foreign(64, ALL);
    fabric.recv(dct, 2, &[foreign.part(0, 64)]);
    fabric.post(dci, to, 2, SendOp::Send { imm: None }, &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(
        statuses(&fabric.take_completions(dct)),
        [(2, WcStatus::LocProtErr)]
    );
}

//= DC-05 DCU-06 DCU-07 DCS-09 PST-11 type=test
#[test]
fn what_cannot_be_posted() {
    let (mut fabric, dci, dcts) = star(1);
    let a = region(&fabric, dci, 64);
    let to = fabric.to(dci, dcts[0], KEY);
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        sges: &[a.part(0, 8)],
    };
    let now = fabric.now();
    let qp = &mut fabric.node_mut(dci).qp;
    assert_eq!(qp.post_send(now, &wr, None), Err(PostError::NoDestination));
    assert_eq!(qp.post_recv(now, 1, &[]), Err(PostError::InvalidState));
    let stream = DcDestination { stream: 1, ..to };
    assert_eq!(qp.post_dynamic(now, &wr, stream, None), Ok(()));
    for _ in 0..63 {
        assert_eq!(qp.post_dynamic(now, &wr, to, None), Ok(()));
    }
    assert_eq!(
        qp.post_dynamic(now, &wr, to, None),
        Err(PostError::QueueFull)
    );
    qp.unpost_send(60);
    assert_eq!(qp.send_queue_len(), 4);
    qp.unpost_send(4);
    assert_eq!(qp.send_queue_len(), 0);
    fabric.run();
    assert!(fabric.trace().is_empty());
    let dct = &mut fabric.node_mut(dcts[0]).qp;
    assert_eq!(
        dct.post_dynamic(now, &wr, to, None),
        Err(PostError::NoDestination)
    );
    assert_eq!(dct.post_send(now, &wr, None), Err(PostError::InvalidState));
}

/// An unsignaled request frees its slot with the next signaled one, whichever target that goes to.
#[test]
fn slots_are_those_of_the_whole_queue() {
    let (mut fabric, dci, dcts) = star(2);
    let a = region(&fabric, dci, 64);
    let (b, c) = (region(&fabric, dcts[0], 64), region(&fabric, dcts[1], 64));
    let (to_b, to_c) = (
        fabric.to(dci, dcts[0], KEY),
        fabric.to(dci, dcts[1], KEY + 1),
    );
    let mut unsignaled = crate::testing::Setup::new(0x500, fabric.node(dci).ip, 0, to_b.remote);
    unsignaled.config.qp_type = crate::attr::QpType::DcInitiator;
    unsignaled.config.sq_sig_all = false;
    fabric.node_mut(dci).qp = unsignaled.build(QpState::Rts);
    for round in 0..200u64 {
        let (to, op, flags) = match round % 2 {
            0 => (to_b, write(&b, 0), SendFlags::empty()),
            _ => (to_c, write(&c, 0), SendFlags::SIGNALED),
        };
        let wr = SendWr {
            wr_id: round,
            op,
            flags,
            sges: &[a.part(0, 8)],
        };
        let now = fabric.now();
        fabric
            .node_mut(dci)
            .qp
            .post_dynamic(now, &wr, to, None)
            .unwrap();
        fabric.drain(dci);
        fabric.run_for(MS);
        let done = fabric.take_completions(dci);
        match round % 2 {
            0 => assert!(done.is_empty()),
            _ => assert_eq!(done[0].slots, 2),
        }
    }
}

fn with_streams(log_concurrent: u8, log_errored: u8) -> (Fabric, NodeId, Vec<NodeId>) {
    let mut fabric = Fabric::default();
    let streams = DciStreams {
        log_concurrent,
        log_errored,
    };
    let dci = fabric.add_initiator(1, Some(streams), |_| {});
    let dcts = (0..4)
        .map(|n| fabric.add_target(2 + n, KEY + u64::from(n), |_| {}))
        .collect();
    (fabric, dci, dcts)
}

/// A stream whose target does not answer holds up nobody else.
//= DC-40 type=test
#[test]
fn streams_go_on_side_by_side() {
    let (mut fabric, dci, dcts) = with_streams(2, 2);
    let a = region(&fabric, dci, 64);
    let regions: Vec<_> = dcts.iter().map(|dct| region(&fabric, *dct, 64)).collect();
    fabric.node_mut(dcts[1]).is_dead = true;
    for wr_id in 0..12u64 {
        let n = usize::try_from(wr_id % 4).unwrap();
        let stream = u16::try_from(wr_id % 4).unwrap();
        let to = fabric.to(dci, dcts[n], KEY + wr_id % 4);
        let to = DcDestination { stream, ..to };
        fabric.post(dci, to, wr_id, write(&regions[n], 0), &[a.part(0, 8)]);
    }
    fabric.run_for(MS);
    let mut done = statuses(&fabric.take_completions(dci));
    done.sort_by_key(|(wr_id, _)| *wr_id);
    let expected: Vec<_> = (0..12)
        .filter(|n| n % 4 != 1)
        .map(|n| (n, WcStatus::Success))
        .collect();
    assert_eq!(done, expected);
    fabric.run();
    // The stream is in error, the initiator is not.
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::RetryExcErr), (5, flushed), (9, flushed)]
    );
    assert_eq!(fabric.node(dci).qp.state(), QpState::Rts);
    let to = DcDestination {
        stream: 1,
        ..fabric.to(dci, dcts[0], KEY)
    };
    fabric.post(dci, to, 20, write(&regions[0], 0), &[a.part(0, 8)]);
    let same_lane = DcDestination { stream: 5, ..to };
    fabric.post(dci, same_lane, 21, write(&regions[0], 0), &[a.part(0, 8)]);
    fabric.run();
    let ok = WcStatus::Success;
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(20, flushed), (21, ok)]
    );
    assert!(!fabric.node_mut(dci).qp.reset_stream(2));
    assert!(fabric.node_mut(dci).qp.reset_stream(1));
    fabric.post(dci, to, 22, write(&regions[0], 0), &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(statuses(&fabric.take_completions(dci)), [(22, ok)]);
}

//= DC-40 type=test
#[test]
fn too_many_streams_in_error_are_the_end() {
    let (mut fabric, dci, dcts) = with_streams(1, 1);
    let a = region(&fabric, dci, 64);
    let b = region(&fabric, dcts[0], 64);
    let bad = SendOp::Write {
        va: b.addr,
        rkey: a.rkey,
        imm: None,
    };
    for stream in 1..3 {
        assert_eq!(fabric.node(dci).qp.state(), QpState::Rts);
        let to = DcDestination {
            stream,
            ..fabric.to(dci, dcts[0], KEY)
        };
        let beyond = SendOp::Write {
            va: b.addr + 60,
            rkey: b.rkey,
            imm: None,
        };
        let op = if stream == 1 {
            beyond
        } else {
            SendOp::Write {
                va: 1,
                rkey: b.rkey,
                imm: None,
            }
        };
        let _ = bad;
        fabric.post(dci, to, stream.into(), op, &[a.part(0, 8)]);
        fabric.run();
        let expected = [(u64::from(stream), WcStatus::RemAccessErr)];
        assert_eq!(statuses(&fabric.take_completions(dci)), expected);
    }
    assert_eq!(fabric.node(dci).qp.state(), QpState::Err);
    let (mut fabric, dci, _) = star(1);
    assert!(!fabric.node_mut(dci).qp.reset_stream(1));
}

/// Sessions between the same two ends in several lanes are different ones.
//= DC-40 type=test
#[test]
fn streams_to_one_target_do_not_mix() {
    let (mut fabric, dci, dcts) = with_streams(2, 2);
    let a = region(&fabric, dci, 64);
    let b = region(&fabric, dcts[0], 8);
    let (va, rkey) = (b.addr, b.rkey);
    for n in 0..40u16 {
        let to = DcDestination {
            stream: n % 7,
            ..fabric.to(dci, dcts[0], KEY)
        };
        let add = SendOp::FetchAdd { va, rkey, add: 1 };
        fabric.post(dci, to, n.into(), add, &[a.part(0, 8)]);
    }
    fabric.run();
    let done = fabric.take_completions(dci);
    assert!(done.len() == 40 && done.iter().all(|c| c.status == WcStatus::Success));
    assert_eq!(
        fabric.node(dct_memory(&dcts)).mem.bytes(&b, 0..8),
        40u64.to_ne_bytes()
    );
}

fn dct_memory(dcts: &[NodeId]) -> NodeId {
    dcts[0]
}

/// Memory that goes while it is on its way, on either side.
#[test]
fn payload_that_is_gone() {
    let (mut fabric, dci, dcts) = star(2);
    let (a, b) = (region(&fabric, dci, 4096), region(&fabric, dcts[0], 4096));
    let c = region(&fabric, dcts[1], 4096);
    let to = fabric.to(dci, dcts[0], KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(MS);
    fabric.node(dcts[0]).mem.unmap(&b, 2048);
    let read = SendOp::Read {
        va: b.addr,
        rkey: b.rkey,
    };
    fabric.post(dci, to, 2, read, &[a.part(0, 4096)]);
    fabric.run();
    let ok = WcStatus::Success;
    let expected = [(1, ok), (2, WcStatus::RemAccessErr)];
    assert_eq!(statuses(&fabric.take_completions(dci)), expected);
    recover(&mut fabric, dci);
    fabric.node(dci).mem.unmap(&a, 2048);
    let to = fabric.to(dci, dcts[1], KEY + 1);
    fabric.post(dci, to, 3, write(&c, 0), &[a.part(0, 1024)]);
    fabric.post(dci, to, 4, write(&c, 0), &[a.part(1024, 2048)]);
    fabric.run();
    let expected = [(3, ok), (4, WcStatus::LocProtErr)];
    assert_eq!(statuses(&fabric.take_completions(dci)), expected);
}

/// Resources end: an initiator that finds no room waits, as for a receive.
//= DCW-11 type=test
#[test]
fn no_resources_is_a_reason_to_wait() {
    let (mut fabric, dci, dcts) = star(1);
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dcts[0], 64));
    let mut refusals = 3;
    fabric.set_network(move |trip| {
        let headers = trip.packet.headers();
        if headers.aeth.is_none() || refusals == 0 {
            return Fate::Deliver;
        }
        refusals -= 1;
        let mut nak = *headers;
        nak.aeth = Some(Aeth {
            syndrome: Syndrome::Nak(NakCode::Reserved(DcRespEth::NAK_NO_RESOURCES)),
            msn: Msn::new(0),
        });
        Fate::Replace(packet(&nak, &[]))
    });
    let to = fabric.to(dci, dcts[0], KEY);
    let before = fabric.now();
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    while fabric.node(dci).completions.is_empty() {
        assert!(fabric.step(before.plus_ns(100 * MS)));
    }
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::Success)]
    );
    assert!(fabric.now().ns_since(before) > 3 * 1_280_000);
    assert_eq!(count(&fabric, "DC RDMA_WRITE_ONLY"), 4);
}

/// Sessions are bounded; those of a flood leave in a minute.
//= DCW-11 DCW-15 type=test
#[test]
fn a_flood_of_sessions_is_bounded() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    let reth = Reth {
        va: b.addr,
        rkey: b.rkey,
        dma_len: 0,
    };
    let good = start_packet(&fabric, dci, dct, 100, 5, |headers| {
        headers.reth = Some(reth)
    });
    let ip = IpAddr::from([10, 0, 9, 9]);
    let max = u32::try_from(crate::dc::MAX_SESSIONS).unwrap();
    let flood = |fabric: &mut Fabric, from: u32, count: u32| {
        for n in from..from + count {
            let mut headers = good;
            headers.dceth.as_mut().unwrap().dci = Qpn::new(n);
            fabric.inject(ip, dct, &packet(&headers, &[]));
        }
    };
    flood(&mut fabric, 0, max);
    let sessions = |fabric: &Fabric| fabric.node(dct).qp.target_status().unwrap().sessions;
    assert_eq!(sessions(&fabric), max as usize);
    fabric.clear_trace();
    flood(&mut fabric, max, 1);
    assert!(fabric.trace()[0].contains("NO_RESOURCES"));
    assert_eq!(sessions(&fabric), max as usize);
    fabric.run_for(SESSION_MEMORY_NS);
    flood(&mut fabric, max, 1);
    assert_eq!(sessions(&fabric), 1);
}
