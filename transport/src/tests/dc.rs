//! Tests of dynamic connections: one initiator and many targets, many initiators and one target,
//! and their failures.

mod ends;
mod extended;
mod sessions;
mod streams;

use alloc::vec::Vec;
use core::net::IpAddr;
use std::vec;

use rocade_wire::{
    Aeth, AtomicEth, Bth, DcEth, DcRespEth, Headers, Msn, NakCode, Opcode, Operation, Pkey, Psn,
    Qpn, Reth, RocadeProbe, Service, Syndrome,
};

use crate::attr::QpState;
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::DropReason;
use crate::dc::{DciStreams, SESSION_IDLE_NS, SESSION_MEMORY_NS};
use crate::error::PostError;
use crate::event::QpEvent;
use crate::testing::{Delivery, Fabric, NodeId, Region};
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

/// Creates one initiator on host 1 and targets on hosts 2, 3, …
fn star(targets: u8) -> (Fabric, NodeId, Vec<NodeId>) {
    let mut fabric = Fabric::default();
    let dci = fabric.add_initiator(1, None, |_| {});
    let dcts = (0..targets)
        .map(|n| fabric.add_target(2 + n, KEY + u64::from(n), |_| {}))
        .collect();
    (fabric, dci, dcts)
}

//= DC-01 DC-03 DC-04 type=test
//= DC-10 DC-11 DC-13 type=test
//= DCW-01 DCW-08 DCW-18 type=test
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

    // A probe and its answer come first, then one START, and finally one DISCONNECT, which is
    // acknowledged.
    let trace = fabric.trace();
    assert!(trace[0].starts_with("UD SEND_ONLY") && trace[1].starts_with("UD SEND_ONLY"));
    assert!(trace[2].contains("DC SEND_FIRST") && trace[2].contains("START mtu=3"));
    assert!(trace[2..].iter().all(|line| line.starts_with("DC ")));
    assert_eq!(
        (count(&fabric, "START"), count(&fabric, "DISCONNECT")),
        (1, 1)
    );
    let [.., end, answer] = trace else {
        panic!("{trace:?}")
    };
    assert!(end.starts_with("DC DISCONNECT") && answer.starts_with("DC ACK"));
}

/// Checks that requests are sent in order. Those to the next target wait until everything before is
/// acknowledged, without action of the user.
//= DC-06 DC-07 DCW-12 type=test
//= DCW-13 type=test
#[test]
fn the_next_target_waits_for_the_last() {
    let (mut fabric, dci, dcts) = star(3);
    let a = region(&fabric, dci, 64);
    let to: Vec<_> = (0..3)
        .map(|n| (dcts[n], region(&fabric, dcts[n], 64)))
        .collect();
    // The first round probes the addresses.
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
    // No packet goes to the next target before the last ACK of the one before.
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
    // Idle sessions end.
    fabric.run();
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 0);
}

//= DCK-01 DCK-03 DCK-04 type=test
//= DCK-05 DCK-07 DC-09 type=test
//= DCT-08 type=test
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
        // Requests to other targets are flushed, too.
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
    // The receive was not consumed.
    let good = fabric.to(dci, dct, KEY);
    fabric.post(dci, good, 9, SendOp::Send { imm: None }, &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(9, WcStatus::Success)]
    );
    assert_eq!(fabric.take_completions(dct).len(), 1);
}

/// Moves an initiator from ERR through RESET to RTS, by the upstream state table.
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

/// Checks that a refused request ends its session, and no other session of the target.
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

//= DC-12 type=test
#[test]
fn receive_buffers_are_of_the_targets_domain() {
    let mut fabric = Fabric::default();
    let dci = fabric.add_initiator(1, None, |_| {});
    // The queue belongs to another protection domain than the target.
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

//= DC-05 DCU-06 DCU-07 type=test
//= DCS-09 PST-11 type=test
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

/// Checks that an unsignaled request frees its WQE with the next signaled one, also if that goes to
/// another target.
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
            _ => assert_eq!(done[0].freed_wqes, 2),
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

/// Checks memory that becomes unreadable while packets are in flight, on either side.
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
