//! XRC: an initiator names a shared receive queue with each request, and the target has no queue of
//! its own.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{CreditCode, MaskedEth, Opcode, Operation, Rkey, Service, Syndrome, XrcEth};

use super::responder::answer;
use super::single::feed;
use super::states::NO_MORE;
use super::{
    ALL, PMTU, PSN, Request, operations, pattern, read, register, register_filled, send, statuses,
    write,
};
use crate::testing::{Delivery, Pair, Region, Side, TestDomain, TestMemory, TestSrq};
use crate::{
    CompleteTo, DropReason, PdTag, PostError, QpAttr, QpEvent, QpState, QpType, SendOp, SendWr,
    Srqn, Time, WcOpcode, WcStatus,
};

use Operation::{FetchAdd, ReadRequest, SendFirst, SendLast, SendOnly, WriteFirst, WriteLast};

/// The SRQs of the tests, and the protection domains of their receives: neither is that of a QP.
const ONE: Srqn = TestDomain::FIRST;
const OTHER: Srqn = Srqn::new(0x01_0002);
const NO_QUEUE: Srqn = Srqn::new(0x01_0003);
const PD_ONE: PdTag = PdTag(TestMemory::PD.0 + 1);

/// An initiator (A), a target (B) and two SRQs of its domain.
struct Rig {
    pair: Pair,
    domain: Arc<TestDomain>,
    srqs: [Arc<TestSrq>; 2],
    /// Memory in the protection domain of the first SRQ.
    region: Region,
}

fn rig_in(target: QpState) -> Rig {
    let domain = Arc::new(TestDomain::default());
    let srqs = [PD_ONE, PdTag(77)].map(|pd| Arc::new(TestSrq::new(pd, 8)));
    domain.set(ONE, Some(&srqs[0]));
    domain.set(OTHER, Some(&srqs[1]));
    let pair = Pair::in_states(QpState::Rts, target, |side, setup| {
        setup.config.qp_type = match side {
            Side::A => QpType::XrcSend,
            Side::B => QpType::XrcRecv,
        };
        if side == Side::B {
            setup.config.pd = PdTag(0);
            setup.domain = Some(Arc::clone(&domain));
        }
    });
    let region = pair.node(Side::B).mem.register_foreign(8 * PMTU, ALL);
    Rig {
        pair,
        domain,
        srqs,
        region,
    }
}

fn rig() -> Rig {
    rig_in(QpState::Rtr)
}

impl Rig {
    fn post(&self, srq: usize, wr_id: u64) {
        let sge = self.region.sge();
        self.srqs[srq]
            .with(|srq| srq.post(wr_id, &[sge]))
            .expect("there is room");
    }

    fn left(&self) -> [usize; 2] {
        self.srqs.each_ref().map(|srq| srq.with(|srq| srq.queued()))
    }

    fn answer(&mut self, request: Request, srqn: Srqn) -> Vec<alloc::string::String> {
        answer(&mut self.pair, &request.to(srqn))
    }
}

impl Request {
    /// Converts a request into one of an XRC initiator.
    fn to(mut self, srqn: Srqn) -> Self {
        let operation = self.headers.bth.opcode.operation().unwrap();
        self.headers.bth.opcode = Opcode::of(Service::Xrc, operation).unwrap();
        self.headers.xrceth = Some(XrcEth {
            resv: 0,
            srqn: srqn.get(),
        });
        self
    }
}

//= XRC-02 type=test
//= XRC-03 type=test
//= XRC-05 type=test
//= XRC-08 type=test
//= XRC-10 type=test
#[test]
fn messages_of_all_kinds_go_to_the_queue_they_name() {
    for target in [QpState::Rtr, QpState::Rts] {
        let mut rig = rig_in(target);
        let src = register_filled(&rig.pair, Side::A, 5 * PMTU + 3, 7);
        let back = register(&rig.pair, Side::A, 5 * PMTU + 3);
        let result = register(&rig.pair, Side::A, 8);
        for wr_id in 1..=2 {
            rig.post(0, wr_id);
        }
        rig.srqs[1].with(|srq| srq.post(3, &[])).unwrap();
        let Rig { pair, region, .. } = &mut rig;
        let with_imm = SendOp::Write {
            va: region.addr,
            rkey: region.rkey,
            imm: Some([1, 2, 3, 4]),
        };
        pair.send_to(Side::A, ONE, 10, send(), &[src.sge()]);
        pair.send_to(Side::A, OTHER, 11, send(), &[]);
        pair.send_to(Side::A, ONE, 12, write(region), &[src.sge()]);
        pair.send_to(Side::A, ONE, 13, with_imm, &[src.sge()]);
        pair.send_to(Side::A, ONE, 14, read(region), &[back.sge()]);
        // At another address, because a READ reads its data when it is answered.
        let add = SendOp::FetchAdd {
            va: region.addr + u64::from(7 * PMTU),
            rkey: region.rkey,
            add: 1,
        };
        pair.send_to(Side::A, ONE, 15, add, &[result.sge()]);
        pair.run();
        let sent: Vec<_> = (10..=15).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(statuses(&pair.take_completions(Side::A)), sent);
        let received = pair.take_completions(Side::B);
        let found: Vec<_> = received
            .iter()
            .map(|c| (c.wr_id, c.srqn, c.to, c.opcode, c.qp_num.get()))
            .collect();
        let to = CompleteTo::SrqCq;
        assert_eq!(
            found,
            [
                (1, ONE, to, WcOpcode::Recv, 0x22),
                (3, OTHER, to, WcOpcode::Recv, 0x22),
                (2, ONE, to, WcOpcode::RecvRdmaWithImm, 0x22),
            ]
        );
        let len = 5 * PMTU as usize + 3;
        assert!(pair.node(Side::A).mem.bytes(&back, 0..len) == pattern(5 * PMTU + 3, 7));
        assert_eq!(pair.node(Side::B).mem.atomics(), 1);
        // Every packet of every request names its queue, and no response does.
        for traced in pair.trace() {
            let packet = traced.packet();
            assert_eq!(packet.bth().opcode.service(), Service::Xrc);
            let named = packet.headers().xrceth.map(|eth| eth.srqn);
            match traced.from {
                Side::A => assert!([Some(ONE.get()), Some(OTHER.get())].contains(&named)),
                Side::B => {
                    assert_eq!(named, None);
                    if let Some(aeth) = packet.headers().aeth {
                        assert_eq!(aeth.syndrome, Syndrome::Ack(CreditCode::INVALID));
                    }
                }
            }
        }
        assert_eq!(pair.take_events(Side::A), []);
    }
}

/// Checks long READs and WRITEs, with copied and deferred payloads, with losses.
//= XRC-13 type=test
#[test]
fn loss_is_repaired() {
    for seed in 0..30 {
        let mut rig = rig();
        let len = 7 * PMTU + 1;
        let src = register_filled(&rig.pair, Side::A, len, 3);
        let back = register(&rig.pair, Side::A, len);
        for wr_id in 0..3 {
            rig.post(0, wr_id);
        }
        let Rig { pair, region, .. } = &mut rig;
        pair.set_network(move |event| match (event.index * 7 + seed) % 11 {
            0 => Delivery::Drop,
            1 => Delivery::Copies(vec![0, 90_000]),
            _ => Delivery::Deliver,
        });
        for n in 0..3 {
            pair.send_to(Side::A, ONE, n * 3, send(), &[src.sge()]);
            pair.send_to(Side::A, ONE, n * 3 + 1, write(region), &[src.sge()]);
            pair.send_to(Side::A, ONE, n * 3 + 2, read(region), &[back.sge()]);
        }
        pair.run();
        let sent: Vec<_> = (0..9).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(statuses(&pair.take_completions(Side::A)), sent, "{seed}");
        let received: Vec<_> = (0..3).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(
            statuses(&pair.take_completions(Side::B)),
            received,
            "{seed}"
        );
        assert!(pair.node(Side::A).mem.all(&back) == pattern(len, 3));
        assert_eq!(rig.left(), [0, 0]);
    }
}

//= XRC-04 type=test
#[test]
fn keys_are_those_of_the_domain_of_the_queue() {
    for operation in [Operation::WriteOnly, ReadRequest, FetchAdd] {
        let request = |region: &Region| {
            let request = Request::new(operation, 0);
            match operation {
                FetchAdd => request.atomic(region.addr, region.rkey, 1, 0),
                Operation::WriteOnly => request.reth(region.addr, region.rkey, 1).payload(&[1]),
                _ => request.reth(region.addr, region.rkey, 1),
            }
        };
        let mut good = rig();
        let region = good.region;
        let answers = good.answer(request(&region), ONE);
        assert!(answers[0].contains("ACK psn=0 msn=1") && answers.len() == 1);
        // The same keys through another queue, and the keys of the protection domain of the tests'
        // QPs.
        for own in [false, true] {
            let mut rig = rig();
            let region = match own {
                true => register(&rig.pair, Side::B, PMTU),
                false => rig.region,
            };
            let srqn = if own { ONE } else { OTHER };
            assert_eq!(
                rig.answer(request(&region), srqn),
                ["NAK REMOTE_ACCESS psn=0 msn=0"],
                "{operation:?} {own}"
            );
            assert_eq!(
                rig.pair.take_events(Side::B),
                [
                    QpEvent::CommEst,
                    QpEvent::AccessErr,
                    QpEvent::LastWqeReached
                ]
            );
        }
    }
}

/// Checks that a duplicate READ is answered from the protection domain of the first one, whatever
/// came between.
#[test]
fn a_repeated_read_keeps_its_domain() {
    let mut rig = rig();
    let read = |region: &Region| Request::new(ReadRequest, 0).reth(region.addr, region.rkey, 8);
    let region = rig.region;
    let first = rig.answer(read(&region), ONE);
    let other = Request::new(SendOnly, 1);
    rig.srqs[1].with(|srq| srq.post(1, &[])).unwrap();
    assert_eq!(rig.answer(other, OTHER), ["ACK psn=1 msn=2"]);
    rig.domain.set(ONE, None);
    let again = rig.answer(read(&region), ONE);
    assert_eq!(first, ["ReadResponseOnly ACK psn=0 msn=1"]);
    assert_eq!(again, ["ReadResponseOnly ACK psn=0 msn=2"]);
}

//= XRC-06 type=test
#[test]
fn a_queue_that_is_not_of_the_domain_is_refused() {
    for operation in [SendOnly, Operation::WriteOnly, ReadRequest, FetchAdd] {
        let mut rig = rig();
        let request = match operation {
            FetchAdd => Request::new(operation, 0).atomic(0, Rkey::new(0), 0, 0),
            SendOnly => Request::new(operation, 0),
            // Without data no key is checked, but the queue is.
            _ => Request::new(operation, 0).reth(0, Rkey::new(0), 0),
        };
        assert_eq!(
            rig.answer(request, NO_QUEUE),
            ["NAK REMOTE_ACCESS psn=0 msn=0"],
            "{operation:?}"
        );
        assert_eq!(rig.pair.node(Side::B).qp.state(), QpState::Err);
        assert_eq!(
            rig.pair.take_events(Side::B),
            [
                QpEvent::CommEst,
                QpEvent::AccessErr,
                QpEvent::LastWqeReached
            ]
        );
        assert_eq!(rig.pair.take_completions(Side::B), []);
    }
}

/// Checks that the requester gets the error, too.
//= XRC-06 type=test
#[test]
fn the_initiator_gets_a_remote_access_error() {
    let mut rig = rig();
    rig.pair.send_to(Side::A, NO_QUEUE, 1, send(), &[]);
    rig.pair.run();
    assert_eq!(
        statuses(&rig.pair.take_completions(Side::A)),
        [(1, WcStatus::RemAccessErr)]
    );
}

//= XRC-03 type=test
#[test]
fn a_message_names_one_queue() {
    let full = [1; PMTU as usize];
    for (first, last) in [(SendFirst, SendLast), (WriteFirst, WriteLast)] {
        let mut rig = rig();
        rig.post(0, 1);
        let region = rig.region;
        let begin = Request::new(first, 0).payload(&full);
        let begin = match first {
            WriteFirst => begin.reth(region.addr, region.rkey, PMTU + 4),
            _ => begin,
        };
        assert_eq!(rig.answer(begin, ONE), ["ACK psn=0 msn=0"]);
        let end = Request::new(last, 1).payload(&[1; 4]);
        assert_eq!(
            rig.answer(end, OTHER),
            ["NAK INVALID_REQUEST psn=1 msn=0"],
            "{first:?}"
        );
        let receives = match first {
            SendFirst => vec![(1, WcStatus::RemInvReqErr)],
            _ => vec![],
        };
        let completions = rig.pair.take_completions(Side::B);
        assert_eq!(statuses(&completions), receives);
        assert!(completions.iter().all(|c| c.srqn == ONE));
    }
}

/// Checks a queue that is destroyed in the middle of a message. A receive that it gave is filled,
/// and it gives no further ones.
#[test]
fn a_queue_may_go_away() {
    let full = [1; PMTU as usize];
    let mut rig = rig();
    rig.post(0, 1);
    let begin = Request::new(SendFirst, 0).payload(&full);
    assert_eq!(rig.answer(begin, ONE), ["ACK psn=0 msn=0"]);
    rig.domain.set(ONE, None);
    let end = Request::new(SendLast, 1).payload(&[1; 4]);
    assert_eq!(rig.answer(end, ONE), ["ACK psn=1 msn=1"]);
    assert_eq!(
        statuses(&rig.pair.take_completions(Side::B)),
        [(1, WcStatus::Success)]
    );
    rig.domain.set(ONE, Some(&rig.srqs[0].clone()));
    let region = rig.region;
    let begin = Request::new(WriteFirst, 2)
        .reth(region.addr, region.rkey, PMTU + 4)
        .payload(&full);
    assert_eq!(rig.answer(begin, ONE), ["ACK psn=2 msn=1"]);
    rig.domain.set(ONE, None);
    let end = Request::new(Operation::WriteLastImm, 3)
        .imm([0; 4])
        .payload(&[1; 4]);
    assert_eq!(rig.answer(end, ONE), ["NAK REMOTE_ACCESS psn=3 msn=1"]);
}

//= XRC-07 type=test
#[test]
fn an_empty_queue_is_a_receiver_that_is_not_ready() {
    let mut rig = rig();
    let src = register_filled(&rig.pair, Side::A, 3 * PMTU, 3);
    rig.pair.send_to(Side::A, ONE, 1, send(), &[src.sge()]);
    // The other queue is not used.
    rig.srqs[1].with(|srq| srq.post(9, &[])).unwrap();
    rig.pair.run_for(2_000_000);
    assert!(rig.pair.node(Side::B).qp.counters().rnr_naks_sent > 0);
    rig.post(0, 2);
    rig.pair.run();
    assert_eq!(
        statuses(&rig.pair.take_completions(Side::B)),
        [(2, WcStatus::Success)]
    );
    assert_eq!(rig.left(), [0, 1]);
}

//= XRC-12 type=test
//= PST-08 type=test
#[test]
fn each_end_has_one_side_only() {
    let mut rig = rig_in(QpState::Rts);
    for side in Side::BOTH {
        let qp = &mut rig.pair.node_mut(side).qp;
        let posted = qp.post_recv(Time::ZERO, 1, &[]);
        assert!(posted.is_err(), "{side:?}");
        assert_eq!(qp.recv_queue_len(), 0);
    }
    let wr = SendWr {
        wr_id: 1,
        op: send(),
        flags: crate::SendFlags::SIGNALED,
        sges: &[],
    };
    assert_eq!(
        rig.pair.try_send(Side::B, &wr),
        Err(PostError::InvalidState)
    );
    // A request to the initiator, and a response to the target, are dropped.
    let mut request = Request::new(SendOnly, 0).to(ONE);
    request.headers.bth.dest_qp = rocade_wire::Qpn::new(0x11);
    rig.pair.inject(Side::A, &request.bytes());
    let dropped = |pair: &Pair, side, reason| pair.node(side).qp.counters().dropped(reason);
    let wrong = DropReason::WrongService;
    assert_eq!(dropped(&rig.pair, Side::A, wrong), 1);
    let mut ack = Request::new(Operation::Acknowledge, 0);
    ack.headers.bth.opcode = Opcode::of(Service::Xrc, Operation::Acknowledge).unwrap();
    ack.headers.aeth = Some(rocade_wire::Aeth {
        syndrome: Syndrome::Ack(CreditCode::INVALID),
        msn: rocade_wire::Msn::new(0),
    });
    rig.pair.inject(Side::B, &ack.bytes());
    assert_eq!(dropped(&rig.pair, Side::B, DropReason::Reserved), 1);
    //= BTH-15 type=test
    // A request of another service is dropped.
    rig.pair.inject(Side::B, &Request::new(SendOnly, 0).bytes());
    assert_eq!(dropped(&rig.pair, Side::B, wrong), 1);
    assert_eq!(operations(&rig.pair, Side::B), []);
    assert!(
        rig.pair
            .trace()
            .iter()
            .all(|t| t.packet().bth().psn.sub(PSN).get() == 0)
    );
}

//= XRC-09 type=test
//= XRC-16 type=test
//= RC-STA-09 type=test
#[test]
fn in_error_the_receives_stay_in_their_queue() {
    let full = [1; PMTU as usize];
    let mut rig = rig();
    rig.post(0, 1);
    rig.post(0, 2);
    let begin = Request::new(SendFirst, 0).payload(&full);
    assert_eq!(rig.answer(begin, ONE), ["ACK psn=0 msn=0"]);
    rig.pair.take_events(Side::B);
    rig.pair
        .modify(Side::B, QpState::Err, NO_MORE, &QpAttr::default());
    rig.pair.drain_both();
    let flushed = rig.pair.take_completions(Side::B);
    assert_eq!(statuses(&flushed), [(1, WcStatus::WrFlushErr)]);
    assert_eq!((flushed[0].to, flushed[0].srqn), (CompleteTo::SrqCq, ONE));
    assert_eq!(rig.pair.take_events(Side::B), [QpEvent::LastWqeReached]);
    assert_eq!(rig.left(), [1, 0]);
}

//= RC-STA-04 type=test
#[test]
fn what_ends_without_a_completion_gives_its_slot_back() {
    let full = [1; PMTU as usize];
    let mut rig = rig();
    for wr_id in 0..8 {
        rig.post(0, wr_id);
    }
    let begin = Request::new(SendFirst, 0).payload(&full);
    assert_eq!(rig.answer(begin, ONE), ["ACK psn=0 msn=0"]);
    let post = |rig: &Rig| rig.srqs[0].with(|srq| srq.post(9, &[]));
    assert_eq!(post(&rig), Err(PostError::QueueFull));
    rig.pair.node_mut(Side::B).qp.abandon();
    assert_eq!(post(&rig), Ok(()));
    assert_eq!(post(&rig), Err(PostError::QueueFull));
    assert_eq!(rig.pair.take_completions(Side::B), []);
}

/// Checks that the first packet of a message for a queue of another process has no effect. That
/// process handles it.
#[test]
fn a_message_for_a_queue_elsewhere_leaves_no_trace() {
    let mut rig = rig();
    let region = rig.region;
    rig.domain.set_in_other_process(NO_QUEUE);
    let at_rest = |rig: &Rig| {
        let snapshot = rig.pair.node(Side::B).qp.snapshot();
        snapshot.map(|snapshot| (snapshot.epsn, snapshot.msn))
    };
    let before = at_rest(&rig);
    for operation in [SendOnly, SendFirst, WriteFirst, ReadRequest, FetchAdd] {
        let full = [1; PMTU as usize];
        let request = Request::new(operation, 0);
        let request = match operation {
            SendFirst => request.payload(&full),
            WriteFirst => request
                .reth(region.addr, region.rkey, 2 * PMTU)
                .payload(&full),
            ReadRequest => request.reth(region.addr, region.rkey, 8),
            FetchAdd => request.atomic(region.addr, region.rkey, 1, 0),
            _ => request,
        };
        assert!(rig.answer(request, NO_QUEUE).is_empty(), "{operation:?}");
        let qp = &mut rig.pair.node_mut(Side::B).qp;
        assert!(qp.take_misrouted(), "{operation:?}");
        assert!(!qp.take_misrouted(), "reported once");
        assert!(before.is_some() && at_rest(&rig) == before, "{operation:?}");
    }
    // In the middle of a message, a different number is an error, even for a queue of another
    // process.
    rig.post(0, 1);
    let begin = Request::new(SendFirst, 0).payload(&[1; PMTU as usize]);
    assert_eq!(rig.answer(begin, ONE), ["ACK psn=0 msn=0"]);
    assert_eq!(at_rest(&rig), None);
    let end = Request::new(SendLast, 1).payload(&[1; 4]);
    assert_eq!(
        rig.answer(end, NO_QUEUE),
        ["NAK INVALID_REQUEST psn=1 msn=0"]
    );
    assert!(!rig.pair.node_mut(Side::B).qp.take_misrouted());
}

/// Checks that another process replays what the first one has executed, and does not execute it
/// again.
//= RC-DUP-03 type=test
//= RC-DUP-04 type=test
#[test]
fn another_goes_on_where_one_has_stopped() {
    let mut one = rig();
    let region = one.region;
    let add =
        |region: &Region, psn| Request::new(FetchAdd, psn).atomic(region.addr, region.rkey, 5, 0);
    let read =
        |region: &Region, psn| Request::new(ReadRequest, psn).reth(region.addr, region.rkey, 8);
    let added = one.answer(add(&region, 0), ONE);
    assert_eq!(
        one.answer(read(&region, 1), ONE),
        ["ReadResponseOnly ACK psn=1 msn=2"]
    );
    let (snapshot, replay_entries) = {
        let qp = &one.pair.node(Side::B).qp;
        (
            qp.snapshot().unwrap(),
            qp.replay_entries().collect::<Vec<_>>(),
        )
    };
    assert_eq!(replay_entries.len(), 2);

    let mut other = rig();
    let region = other.region;
    let qp = &mut other.pair.node_mut(Side::B).qp;
    qp.restore(snapshot, replay_entries.iter().copied());
    assert_eq!(qp.snapshot(), Some(snapshot));
    assert_eq!(qp.replay_entries().collect::<Vec<_>>(), replay_entries);
    let again = other.answer(add(&region, 0), ONE);
    assert_eq!(added.len(), 1);
    assert_eq!(added[0].replace("msn=1", "msn=2"), again[0]);
    // The protection domain is that of the queue in the request: the key of the first process is
    // not valid here.
    other.post(0, 1);
    assert_eq!(
        other.answer(Request::new(SendOnly, 2), ONE),
        ["ACK psn=2 msn=3"]
    );
    assert_eq!(
        other.answer(Request::new(SendOnly, 0), ONE).len(),
        1,
        "a duplicate"
    );
}

/// Checks that a process that exits after it has executed a request, and before it has answered,
/// leaves all state that another one needs.
//= XRC-11 type=test
#[test]
fn another_answers_what_one_has_not() {
    let (mut one, mut other) = (rig(), rig());
    let add = |region: &Region| Request::new(FetchAdd, 0).atomic(region.addr, region.rkey, 5, 0);
    feed(&mut one.pair, &add(&one.region).to(ONE));
    let qp = &one.pair.node(Side::B).qp;
    assert_eq!(qp.snapshot(), None, "the result is pending");
    let (snapshot, replay_entries) = (qp.resumable_snapshot().unwrap(), qp.replay_entries());
    let here = &mut other.pair.node_mut(Side::B).qp;
    here.restore(snapshot, replay_entries);
    let before = other.pair.node(Side::B).mem.all(&other.region);
    let again = add(&other.region);
    assert_eq!(
        other.answer(again, ONE),
        ["AtomicAcknowledge ACK psn=0 msn=1"]
    );
    let memory = &other.pair.node(Side::B).mem;
    assert_eq!((memory.all(&other.region), memory.atomics()), (before, 0));
    // In the middle of a message the state cannot be taken over.
    let begin = Request::new(SendFirst, 1).payload(&[1; PMTU as usize]);
    other.post(0, 1);
    assert_eq!(other.answer(begin, ONE), ["ACK psn=1 msn=1"]);
    assert_eq!(other.pair.node(Side::B).qp.resumable_snapshot(), None);
}

/// Checks that a process can take over again, and keeps no state of its earlier ownership.
//= XRC-11 RC-RSP-20 type=test
#[test]
fn what_one_knew_before_does_not_matter() {
    let (mut one, mut here) = (rig(), rig());
    let add =
        |region: &Region, psn| Request::new(FetchAdd, psn).atomic(region.addr, region.rkey, 5, 0);
    let early = |psn| Request::new(SendOnly, psn);
    one.answer(add(&one.region, 0), ONE);
    one.answer(add(&one.region, 1), ONE);
    // In this process a request was executed, a NAK was sent, and an ACK was not.
    here.answer(add(&here.region, 0), ONE);
    assert_eq!(here.answer(early(5), ONE).len(), 1, "a NAK");
    assert_eq!(here.answer(early(5), ONE).len(), 0, "no other NAK");
    let qp = &here.pair.node(Side::B).qp;
    assert!(qp.is_idle());
    let begin = Request::new(WriteFirst, 1).reth(here.region.addr, here.region.rkey, 2 * PMTU);
    feed(&mut here.pair, &begin.payload(&[1; PMTU as usize]).to(ONE));
    feed(
        &mut here.pair,
        &Request::new(WriteLast, 2)
            .payload(&[1; PMTU as usize])
            .to(ONE),
    );
    assert!(
        !here.pair.node(Side::B).qp.is_idle(),
        "an answer is pending"
    );
    feed(&mut here.pair, &early(9).to(ONE));

    let qp = &one.pair.node(Side::B).qp;
    let (snapshot, replay_entries) = (
        qp.snapshot().unwrap(),
        qp.replay_entries().collect::<Vec<_>>(),
    );
    let qp = &mut here.pair.node_mut(Side::B).qp;
    qp.restore(snapshot, replay_entries.iter().copied());
    assert!(qp.is_idle());
    assert_eq!(qp.replay_entries().collect::<Vec<_>>(), replay_entries);
    here.pair.drain_both();
    assert_eq!(super::answers(&mut here.pair), [""; 0]);
    assert_eq!(here.answer(early(9), ONE), ["NAK PSN_SEQUENCE psn=2 msn=2"]);
    here.post(0, 1);
    feed(&mut here.pair, &early(2).to(ONE));
    assert!(!here.pair.node(Side::B).qp.is_idle(), "a completion");
    here.pair.drain_both();
    assert!(here.pair.node(Side::B).qp.is_idle());
}

/// Checks the same for responses that differ from those to READs and atomics of the standard. A
/// duplicate without an answer would end the connection.
//= RC-DUP-04 XAW-07 type=test
#[test]
fn another_answers_again_what_only_some_peers_send() {
    let masked = |region: &Region, log_size: u8| {
        let operands = vec![1; 2 * 8.max(1 << log_size)];
        let mut request = Request::new(SendOnly, 0).payload(&operands);
        let operation = Operation::XrcMaskedFetchAdd;
        request.headers.bth.opcode = Opcode::of(Service::Manufacturer, operation).unwrap();
        request.headers.masked = Some(MaskedEth {
            va: region.addr,
            rkey: region.rkey,
            log_size,
            resv: [0; 3],
        });
        request.headers.xrceth = Some(XrcEth {
            resv: 0,
            srqn: ONE.get(),
        });
        request
    };
    let store = |region: &Region| {
        let request = Request::new(Operation::AtomicWrite, 0);
        let request = request.reth(region.addr, region.rkey, 8).payload(&[7; 8]);
        request.to(ONE)
    };
    type Make<'a> = &'a dyn Fn(&Region) -> Request;
    let kinds: [(&str, Make<'_>); 4] = [
        ("ReadResponseOnly", &store),
        ("AtomicAcknowledge", &|region| masked(region, 2)),
        ("AtomicAcknowledge", &|region| masked(region, 3)),
        ("WideAtomicAcknowledge", &|region| masked(region, 5)),
    ];
    for (response, make) in kinds {
        let (mut one, mut other) = (rig(), rig());
        let request = make(&one.region);
        let first = answer(&mut one.pair, &request);
        assert_eq!(first, [alloc::format!("{response} ACK psn=0 msn=1")]);
        let qp = &one.pair.node(Side::B).qp;
        let (snapshot, replay_entries) = (qp.snapshot().unwrap(), qp.replay_entries());
        let here = &mut other.pair.node_mut(Side::B).qp;
        here.restore(snapshot, replay_entries);
        let before = other.pair.node(Side::B).mem.all(&other.region);
        let request = make(&other.region);
        assert_eq!(answer(&mut other.pair, &request), first);
        let memory = &other.pair.node(Side::B).mem;
        assert_eq!(memory.all(&other.region), before, "{response}");
        assert_eq!(memory.atomics(), 0, "{response}");
    }
}
