//! Tests of every operation in every size class, and of its packets.

use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{Operation, Packet, Psn};

use super::{
    PMTU, Request, operations, pattern, read, register, register_filled, send, statuses, write,
};
use crate::testing::{Pair, Setup, Side, TestMemory};
use crate::{
    AccessFlags, AckPlacement, Deferred, Extent, ImmOrInv, PacketMeta, PostError, Qp, QpState,
    SendFlags, SendOp, SendWr, Sge, Source, Time, TxBuffer, WcFlags, WcOpcode, WcStatus,
};

const SIZES: [u32; 9] = [
    0,
    1,
    3,
    PMTU - 1,
    PMTU,
    PMTU + 1,
    2 * PMTU,
    5 * PMTU - 1,
    70_000,
];

//= RC-SEG-01 type=test
//= RC-WQE-07 type=test
//= WCO-01, WCO-02 type=test
//= RC-RSP-26 type=test
#[test]
fn send_arrives_in_every_size() {
    for len in SIZES {
        for imm in [None, Some([1, 2, 3, 4])] {
            let mut pair = Pair::default();
            let src = register_filled(&pair, Side::A, len, len);
            let dst = register(&pair, Side::B, len + 1);
            pair.recv(Side::B, 7, &[dst.sge()]);
            pair.send(Side::A, 9, SendOp::Send { imm }, &[src.sge()]);
            pair.run();
            let sent = pair.take_completions(Side::A);
            assert_eq!(statuses(&sent), [(9, WcStatus::Success)]);
            assert_eq!((sent[0].opcode, sent[0].is_send()), (WcOpcode::Send, true));
            let received = pair.take_completions(Side::B);
            assert_eq!(statuses(&received), [(7, WcStatus::Success)], "{len}");
            assert_eq!(
                (received[0].opcode, received[0].byte_len),
                (WcOpcode::Recv, len)
            );
            assert_eq!(
                received[0].imm_or_inv,
                imm.map_or(ImmOrInv::None, ImmOrInv::Imm)
            );
            assert_eq!(
                received[0].wc_flags.contains(WcFlags::WITH_IMM),
                imm.is_some()
            );
            let mem = &pair.node(Side::B).mem;
            assert_eq!(mem.bytes(&dst, 0..len as usize), pattern(len, len));
            assert_eq!(mem.bytes(&dst, len as usize..len as usize + 1), [0]);
        }
    }
}

//= RC-SEG-02 type=test
#[test]
fn write_arrives_in_every_size() {
    for len in SIZES {
        for imm in [None, Some([1, 2, 3, 4])] {
            let mut pair = Pair::default();
            let src = register_filled(&pair, Side::A, len, len);
            let dst = register(&pair, Side::B, len + 1);
            if imm.is_some() {
                pair.recv(Side::B, 7, &[]);
            }
            pair.send(
                Side::A,
                9,
                SendOp::Write {
                    va: dst.addr,
                    rkey: dst.rkey,
                    imm,
                },
                &[src.sge()],
            );
            pair.run();
            let sent = pair.take_completions(Side::A);
            assert_eq!(statuses(&sent), [(9, WcStatus::Success)]);
            assert_eq!(sent[0].opcode, WcOpcode::RdmaWrite);
            let received = pair.take_completions(Side::B);
            if imm.is_some() {
                assert_eq!(statuses(&received), [(7, WcStatus::Success)]);
                assert_eq!(received[0].opcode, WcOpcode::RecvRdmaWithImm);
                assert_eq!(received[0].byte_len, len);
                assert_eq!(received[0].imm_or_inv, ImmOrInv::Imm([1, 2, 3, 4]));
            } else {
                assert_eq!(received, []);
            }
            let mem = &pair.node(Side::B).mem;
            assert_eq!(mem.bytes(&dst, 0..len as usize), pattern(len, len));
            assert_eq!(mem.bytes(&dst, len as usize..len as usize + 1), [0]);
        }
    }
}

#[test]
fn read_arrives_in_every_size() {
    for len in SIZES {
        let mut pair = Pair::default();
        let src = register_filled(&pair, Side::B, len, len);
        let dst = register(&pair, Side::A, len + 1);
        pair.send(Side::A, 9, read(&src), &[dst.part(0, len)]);
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(9, WcStatus::Success)]);
        assert_eq!(
            (done[0].opcode, done[0].byte_len),
            (WcOpcode::RdmaRead, len)
        );
        assert_eq!(pair.take_completions(Side::B), []);
        let mem = &pair.node(Side::A).mem;
        assert_eq!(mem.bytes(&dst, 0..len as usize), pattern(len, len));
        assert_eq!(mem.bytes(&dst, len as usize..len as usize + 1), [0]);
    }
}

//= RC-SEG-01, RC-SEG-03 type=test
//= RC-ACK-05 type=test
#[test]
fn segmentation_has_the_right_opcodes_and_flags() {
    // No round-trip time is needed.
    let mut pair = Pair::new(|_, setup| setup.attr.timeout = 0);
    let src = register(&pair, Side::A, 4 * PMTU);
    let dst = register(&pair, Side::B, 4 * PMTU);
    for len in [2 * PMTU, 3 * PMTU - 5] {
        pair.send(Side::A, 1, write(&dst), &[src.part(0, len)]);
    }
    pair.recv(Side::B, 1, &[dst.sge()]);
    let sges = [src.part(0, PMTU + 1)];
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send { imm: Some([0; 4]) },
        flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
        sges: &sges,
    };
    pair.try_send(Side::A, &wr).unwrap();
    pair.run();
    use Operation::{SendFirst, SendLastImm, WriteFirst, WriteLast, WriteMiddle};
    assert_eq!(
        operations(&pair, Side::A),
        [
            (WriteFirst, 0),
            (WriteLast, 1),
            (WriteFirst, 2),
            (WriteMiddle, 3),
            (WriteLast, 4),
            (SendFirst, 5),
            (SendLastImm, 6)
        ]
    );
    let sent: Vec<_> = pair.trace().iter().filter(|t| t.from == Side::A).collect();
    let flags: Vec<_> = sent.iter().map(|t| t.packet().bth().ack_req).collect();
    assert_eq!(flags, [false, true, false, false, true, false, true]);
    //= RC-WQE-08 type=test
    let solicited: Vec<_> = sent.iter().map(|t| t.packet().bth().solicited).collect();
    assert_eq!(solicited, [false, false, false, false, false, false, true]);
    let dma_lens: Vec<_> = sent
        .iter()
        .filter_map(|t| t.packet().headers().reth.map(|r| r.dma_len))
        .collect();
    assert_eq!(dma_lens, [2 * PMTU, 3 * PMTU - 5]);
    let received = pair.take_completions(Side::B);
    assert!(received[0].solicited);
    //= RC-ACK-02, RC-RSP-24 type=test
    // One batch, one ACK for all three messages.
    let acks: Vec<_> = pair.trace().iter().filter(|t| t.from == Side::B).collect();
    assert_eq!(acks.len(), 1);
    assert_eq!(acks[0].packet().bth().psn, Psn::new(super::PSN + 6));
    assert_eq!(acks[0].packet().headers().aeth.unwrap().msn.get(), 3);
}

//= RC-WQE-11 type=test
#[test]
fn scatter_gather_lists_are_walked_in_order() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::A, 10_000, 3);
    let dst = register(&pair, Side::B, 10_000);
    let gather = [
        src.part(5000, 1),
        src.part(9, 0),
        src.part(100, 3000),
        src.part(0, 7),
    ];
    let scatter = [
        dst.part(8000, 1000),
        dst.part(0, 0),
        dst.part(3000, 2),
        dst.part(10, 2500),
    ];
    pair.recv(Side::B, 1, &scatter);
    pair.send(Side::A, 2, send(), &gather);
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(1, WcStatus::Success)]
    );
    let bytes = pattern(10_000, 3);
    let message = [&bytes[5000..5001], &bytes[100..3100], &bytes[0..7]].concat();
    let mem = &pair.node(Side::B).mem;
    let placed = [
        mem.bytes(&dst, 8000..9000),
        mem.bytes(&dst, 3000..3002),
        mem.bytes(&dst, 10..10 + 3008 - 1002),
    ]
    .concat();
    assert_eq!(placed, message);
    assert_eq!(
        mem.bytes(&dst, 10 + 3008 - 1002..3000),
        vec![0; 3000 - 2016]
    );
}

//= RC-WQE-06 type=test
#[test]
fn inline_data_is_that_of_post_time() {
    let mut pair = Pair::default();
    let dst = register(&pair, Side::B, 300);
    let wr = |op| SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED | SendFlags::INLINE,
        sges: &[],
    };
    let now = pair.now();
    let qp = &mut pair.node_mut(Side::A).qp;
    qp.post_send(now, &wr(write(&dst)), Some(&[5; 256]))
        .unwrap();
    assert_eq!(
        qp.post_send(now, &wr(write(&dst)), Some(&[5; 257])),
        Err(PostError::BadInline)
    );
    assert_eq!(
        qp.post_send(now, &wr(read(&dst)), Some(&[])),
        Err(PostError::BadInline)
    );
    qp.post_send(now, &wr(write(&dst)), Some(&[])).unwrap();
    pair.run();
    assert_eq!(pair.take_completions(Side::A).len(), 2);
    assert_eq!(
        pair.node(Side::B).mem.all(&dst),
        [vec![5; 256], vec![0; 44]].concat()
    );
}

//= RC-PSN-05, RC-PSN-06 type=test
//= RC-LIM-01 RXE-113 type=test
#[test]
fn a_long_read_goes_out_in_chunks_within_the_limit() {
    for limit in [1, 2, 16] {
        let mut pair = Pair::new(|_, setup| setup.attr.max_rd_atomic = limit);
        let len = 300_000;
        let src = register_filled(&pair, Side::B, len, 1);
        let dst = register(&pair, Side::A, len);
        pair.send(Side::A, 1, read(&src), &[dst.sge()]);
        pair.send(Side::A, 2, write(&src), &[]);
        let mut outstanding = 0;
        let mut most = 0;
        pair.run();
        assert_eq!(pair.node(Side::A).mem.all(&dst), pattern(len, 1));
        assert_eq!(
            statuses(&pair.take_completions(Side::A)),
            [1, 2].map(|id| (id, WcStatus::Success))
        );
        let mut requests = Vec::new();
        for traced in pair.trace() {
            let packet = traced.packet();
            match packet.bth().opcode.operation().unwrap() {
                Operation::ReadRequest => {
                    outstanding += 1;
                    most = most.max(outstanding);
                    let reth = packet.headers().reth.unwrap();
                    requests.push((packet.bth().psn.sub(super::PSN).get(), reth.dma_len));
                }
                Operation::ReadResponseLast => outstanding -= 1,
                _ => {}
            }
        }
        assert_eq!(requests, [(0, 131_072), (128, 131_072), (256, 37_856)]);
        assert!(most <= i32::from(limit), "{most}");
        let last = pair.trace().iter().rfind(|t| t.from == Side::A).unwrap();
        assert_eq!(last.packet().bth().psn, Psn::new(super::PSN + 256 + 37));
    }
}

//= RC-WQE-10, ATM-02, ATM-06 type=test
#[test]
fn atomics_return_the_original_value() {
    let mut pair = Pair::default();
    let target = register(&pair, Side::B, 16);
    let result = register(&pair, Side::A, 24);
    pair.node(Side::B).mem.fill(&target, 8, &5u64.to_ne_bytes());
    let (va, rkey) = (target.addr + 8, target.rkey);
    let ops = [
        SendOp::FetchAdd {
            va,
            rkey,
            add: u64::MAX,
        },
        SendOp::CmpSwap {
            va,
            rkey,
            compare: 4,
            swap: 77,
        },
        SendOp::CmpSwap {
            va,
            rkey,
            compare: 4,
            swap: 78,
        },
    ];
    for (i, op) in ops.into_iter().enumerate() {
        pair.send(Side::A, i as u64, op, &[result.part(i as u64 * 8, 8)]);
    }
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [0, 1, 2].map(|id| (id, WcStatus::Success)));
    assert_eq!(done[0].opcode, WcOpcode::FetchAdd);
    assert_eq!(done[1].opcode, WcOpcode::CompSwap);
    assert_eq!(done[1].byte_len, 8);
    let originals: Vec<u8> = [5u64, 4, 77].iter().flat_map(|v| v.to_ne_bytes()).collect();
    assert_eq!(pair.node(Side::A).mem.all(&result), originals);
    assert_eq!(
        pair.node(Side::B).mem.bytes(&target, 8..16),
        77u64.to_ne_bytes()
    );
    assert_eq!(pair.node(Side::B).mem.atomics(), 3);
}

//= RC-WQE-01, RC-WQE-02 type=test
//= RC-PSN-01 type=test
#[test]
fn sequence_numbers_wrap_and_completions_stay_in_order() {
    let mut pair = Pair::new(|_, setup| {
        setup.attr.sq_psn = 0x01ff_fffb; // bits above the 24th are ignored
        setup.attr.rq_psn = 0xff_fffb;
        setup.config.sq_sig_all = false;
    });
    let src = register_filled(&pair, Side::A, 9000, 4);
    let dst = register(&pair, Side::B, 9000);
    let back = register(&pair, Side::A, 9000);
    pair.recv(Side::B, 50, &[dst.sge()]);
    let wr = |wr_id, op, flags, sges: &[Sge], pair: &mut Pair| {
        pair.try_send(
            Side::A,
            &SendWr {
                wr_id,
                op,
                flags,
                sges,
            },
        )
        .unwrap();
    };
    wr(1, write(&dst), SendFlags::SIGNALED, &[src.sge()], &mut pair);
    wr(2, read(&dst), SendFlags::empty(), &[back.sge()], &mut pair);
    wr(3, send(), SendFlags::SIGNALED, &[src.sge()], &mut pair);
    wr(
        4,
        read(&dst),
        SendFlags::SIGNALED | SendFlags::FENCE,
        &[back.sge()],
        &mut pair,
    );
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [1, 3, 4].map(|id| (id, WcStatus::Success))
    );
    assert_eq!(pair.node(Side::A).mem.all(&back), pattern(9000, 4));
    assert_eq!(pair.node(Side::B).mem.all(&dst), pattern(9000, 4));
    assert_eq!(pair.node(Side::A).qp.counters().retransmitted_packets, 0);
}

//= RC-WQE-04 type=test
#[test]
fn a_fence_waits_for_reads_but_not_for_writes() {
    let mut pair = Pair::default();
    let src = register(&pair, Side::B, 100);
    let dst = register(&pair, Side::A, 100);
    let fenced = SendWr {
        wr_id: 3,
        op: write(&src),
        flags: SendFlags::FENCE,
        sges: &[],
    };
    pair.send(Side::A, 1, write(&src), &[]);
    pair.try_send(Side::A, &fenced).unwrap();
    pair.drain_both();
    assert_eq!(operations(&pair, Side::A).len(), 2);
    pair.send(Side::A, 2, read(&src), &[dst.sge()]);
    pair.try_send(Side::A, &fenced).unwrap();
    pair.drain_both();
    assert_eq!(operations(&pair, Side::A).len(), 3);
    pair.run();
    assert_eq!(pair.take_completions(Side::A).len(), 4);
}

//= RC-ACK-08 type=test
//= RC-ACK-05 type=test
#[test]
fn a_long_message_asks_for_acknowledgements_on_its_way() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::A, 1_000_000, 1);
    let dst = register(&pair, Side::B, 1_000_000);
    pair.set_gap(1000);
    pair.send(Side::A, 1, write(&dst), &[src.sge()]);
    pair.run();
    assert_eq!(pair.node(Side::B).mem.all(&dst), pattern(1_000_000, 1));
    let mut since = 0;
    for traced in pair.trace().iter().filter(|t| t.from == Side::A) {
        since = if traced.packet().bth().ack_req {
            0
        } else {
            since + 1
        };
        assert!(since < 16);
    }
    assert_eq!(pair.node(Side::A).qp.counters().retransmitted_packets, 0);
    assert!(pair.node(Side::B).qp.counters().acks_sent > 20);
    assert_eq!(pair.node(Side::A).qp.next_timeout(), None);
}

/// Checks both directions at once, on one QP.
#[test]
fn both_sides_send() {
    let mut pair = Pair::default();
    let regions = Side::BOTH.map(|side| {
        (
            register_filled(&pair, side, 50_000, side as u32),
            register(&pair, side, 50_000),
        )
    });
    for side in Side::BOTH {
        pair.send(
            side,
            1,
            write(&regions[side.other() as usize].1),
            &[regions[side as usize].0.sge()],
        );
        pair.send(
            side,
            2,
            read(&regions[side.other() as usize].0),
            &[regions[side as usize].1.sge()],
        );
    }
    pair.run();
    for side in Side::BOTH {
        assert_eq!(
            statuses(&pair.take_completions(side)),
            [1, 2].map(|id| (id, WcStatus::Success))
        );
        let copied = pair.node(side).mem.all(&regions[side as usize].1);
        assert_eq!(copied, pattern(50_000, side.other() as u32));
    }
}

//= RC-ACK-01, RC-ACK-02 type=test
#[test]
fn an_acknowledgement_may_wait_for_the_answer() {
    let mut pair = Pair::default();
    pair.set_ack_delay(1_000_000);
    let (here, there) = (register(&pair, Side::A, 8), register(&pair, Side::B, 8));
    pair.recv(Side::B, 1, &[there.sge()]);
    pair.recv(Side::A, 2, &[here.sge()]);
    pair.send(Side::A, 3, send(), &[here.sge()]);
    pair.run_for(10_000);
    assert_eq!(pair.take_completions(Side::B).len(), 1);
    assert_eq!(operations(&pair, Side::B), []);
    pair.send(Side::B, 4, send(), &[there.sge()]);
    pair.run();
    assert_eq!(
        operations(&pair, Side::B),
        [(Operation::SendOnly, 0), (Operation::Acknowledge, 0)]
    );
    assert_eq!(statuses(&pair.take_completions(Side::A)).len(), 2);
    assert_eq!(statuses(&pair.take_completions(Side::B)).len(), 1);
    assert_eq!(pair.now().as_ns() / 1000, 10 + 5 + 1000 + 5);
}

/// Creates a QP with an ACK to send.
fn owing(mem: &TestMemory) -> Qp {
    let (own, peer) = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
    let mut qp = Setup::new(0x22, own, 0x11, peer).build(QpState::Rts);
    let bytes = Request::new(Operation::SendOnly, 0).bytes();
    qp.post_recv(Time::ZERO, 1, &[]).unwrap();
    let meta = PacketMeta {
        source: peer,
        destination: own,
        traffic_class: 0,
        hop_limit: 64,
    };
    qp.handle_packet(Time::ZERO, &meta, &Packet::parse(&bytes).unwrap(), mem);
    qp
}

/// Returns the runs of a QP with an ACK and a SEND to transmit.
fn runs(timing: AckPlacement, payload_len: u32) -> Vec<Vec<Operation>> {
    let mem = TestMemory::new();
    let region = mem.register(payload_len.max(8), AccessFlags::all());
    let mut qp = owing(&mem);
    let wr = SendWr {
        wr_id: 2,
        op: send(),
        flags: SendFlags::empty(),
        sges: &[region.part(0, payload_len)],
    };
    qp.post_send(Time::ZERO, &wr, None).unwrap();
    let mut tx = TxBuffer::new(9000, 9);
    let mut runs = Vec::new();
    loop {
        tx.clear();
        qp.poll_transmit(Time::ZERO, &mem, timing, &mut tx);
        if tx.is_empty() {
            return runs;
        }
        let operation = |bytes| Packet::parse(bytes).unwrap().bth().opcode.operation();
        let segments = tx.bytes().chunks(tx.segment_len());
        runs.push(segments.map(|bytes| operation(bytes).unwrap()).collect());
    }
}

/// Returns the first of the runs.
fn first_run(timing: AckPlacement, payload_len: u32) -> Vec<Operation> {
    runs(timing, payload_len).swap_remove(0)
}

/// Checks that either call returns the same ACK packet, which is counted once.
//= RC-ACK-07 type=test
#[test]
fn a_lone_acknowledgement_can_be_taken() {
    let mem = TestMemory::new();
    let (mut taken, mut polled) = (owing(&mem), owing(&mem));
    let mut tx = TxBuffer::new(9000, 9);
    polled.poll_transmit(Time::ZERO, &mem, AckPlacement::First, &mut tx);
    let ack = taken.take_lone_ack().unwrap();
    assert_eq!(&ack, tx.bytes());
    assert_eq!(taken.counters(), polled.counters());
    assert_eq!(taken.take_lone_ack(), None);
    assert_eq!(taken.lone_ack(), None);
    assert!(!taken.has_work_to_send(AckPlacement::First));
}

//= RC-ACK-01 type=test
#[test]
fn an_acknowledgement_leaves_in_one_run_with_the_answer() {
    let (ack, only) = (Operation::Acknowledge, Operation::SendOnly);
    assert_eq!(
        first_run(AckPlacement::First, 8),
        [ack],
        "a longer segment cannot follow"
    );
    assert_eq!(first_run(AckPlacement::First, 4), [ack, only]);
    assert_eq!(first_run(AckPlacement::AfterFirst, 8), [only, ack]);
    assert_eq!(first_run(AckPlacement::Defer, 8), [only, ack]);
    assert_eq!(
        first_run(AckPlacement::AfterFirst, 0),
        [only],
        "the ACK is longer"
    );
    assert_eq!(first_run(AckPlacement::AfterLast, 8), [only, ack]);
}

//= RC-ACK-01 type=test
#[test]
fn an_acknowledgement_leaves_behind_the_whole_answer() {
    let ack_in = |timing, payload_len| {
        let runs = runs(timing, payload_len);
        let place = |run: &Vec<_>| run.iter().position(|&op| op == Operation::Acknowledge);
        runs.iter().map(place).collect::<Vec<_>>()
    };
    assert_eq!(
        ack_in(AckPlacement::AfterLast, 20 * PMTU),
        [None, None, Some(4)]
    );
    assert_eq!(
        ack_in(AckPlacement::AfterFirst, 20 * PMTU),
        [Some(8), None, None]
    );
    // A shorter packet at the end would end the run.
    assert_eq!(
        ack_in(AckPlacement::AfterLast, 2 * PMTU + 4),
        [None, Some(1)]
    );
    assert_eq!(
        ack_in(AckPlacement::AfterFirst, 2 * PMTU + 4),
        [None, Some(0)]
    );
}

#[test]
fn long_payloads_are_left_to_the_caller() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::A, 3 * PMTU, 1);
    let node = pair.node_mut(Side::A);
    let halves = [
        src.part(0, PMTU + 1),
        src.part(u64::from(PMTU) + 1, 2 * PMTU - 1),
    ];
    for sges in [&[src.sge()][..], &halves] {
        let wr = SendWr {
            wr_id: 1,
            op: send(),
            flags: SendFlags::empty(),
            sges,
        };
        node.qp.post_send(Time::ZERO, &wr, None).unwrap();
    }
    let mut tx = TxBuffer::new(9000, 8);
    tx.defer_longer_than(PMTU as usize - 1);
    node.qp
        .poll_transmit(Time::ZERO, &node.mem, AckPlacement::First, &mut tx);
    // The second message comes from two entries.
    let pmtu = PMTU as usize;
    let segment_len = pmtu + 16;
    assert_eq!((tx.segments(), tx.segment_len()), (6, segment_len));
    let expected = [0, 1, 2].map(|n: u32| Deferred {
        at: n as usize * segment_len + 12,
        source: Source::Local(src.part(u64::from(n * PMTU), PMTU)),
    });
    assert_eq!(tx.deferred(), expected);
    let mut seen = Vec::new();
    tx.for_each_segment(|segment, deferred| {
        let copied = segment[12..12 + pmtu].iter().any(|&byte| byte != 0);
        seen.push((segment.len(), copied, deferred.map(|deferred| deferred.at)));
    });
    assert_eq!(seen[..3], [(segment_len, false, Some(12)); 3]);
    assert_eq!(seen[3..], [(segment_len, true, None); 3]);
}

/// Checks that memory in segments, or that may change at any time, is copied by its own calls. The
/// packets are the same.
#[test]
fn memory_in_segments_is_not_left_to_the_caller() {
    let traffic = |extent| {
        let mut pair = Pair::default();
        let src = register_filled(&pair, Side::A, 20 * PMTU, 1);
        let dst = register(&pair, Side::B, 20 * PMTU);
        for side in [Side::A, Side::B] {
            pair.node(side).mem.set_extent(extent);
        }
        pair.recv(Side::B, 1, &[dst.sge()]);
        pair.send(Side::A, 1, send(), &[src.sge()]);
        pair.send(Side::A, 2, write(&dst), &[src.sge()]);
        let back = register(&pair, Side::A, 20 * PMTU);
        pair.send(Side::A, 3, read(&dst), &[back.sge()]);
        pair.run();
        assert_eq!(pair.node(Side::A).mem.all(&back), pattern(20 * PMTU, 1));
        pair.trace_text()
    };
    assert_eq!(traffic(Extent::One), traffic(Extent::Segments));

    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::A, 5 * PMTU, 1);
    let dst = register(&pair, Side::B, 5 * PMTU);
    pair.node(Side::A).mem.set_extent(Extent::Segments);
    let node = pair.node_mut(Side::A);
    let wr = SendWr {
        wr_id: 1,
        op: write(&dst),
        flags: SendFlags::empty(),
        sges: &[src.sge()],
    };
    node.qp.post_send(Time::ZERO, &wr, None).unwrap();
    let mut tx = TxBuffer::new(9000, 8);
    tx.defer_longer_than(0);
    node.qp
        .poll_transmit(Time::ZERO, &node.mem, AckPlacement::First, &mut tx);
    assert!(!tx.is_empty());
    assert_eq!(tx.deferred(), []);
}
