//! Tests of raw packets: frames are sent and received unmodified.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::states::setup;
use super::{pattern, statuses};
use crate::testing::{Region, Setup, TestMemory, TestSrq, context};
use crate::{
    AccessFlags, AckPlacement, Completion, DropReason, Frame, FrameOrder, ImmOrInv, MAX_TSO,
    MAX_TSO_HEADER, PostError, Qp, QpAttr, QpAttrMask, QpEvent, QpState, QpType, SendFlags, SendOp,
    SendWr, Sge, Time, Tso, TxBuffer, WcFlags, WcOpcode, WcStatus,
};

const NOW: Time = Time::from_ns(7);
const LONGEST: usize = 1514;

struct Rig {
    qp: Qp,
    mem: TestMemory,
    src: Region,
}

fn raw() -> Setup {
    let mut setup = setup();
    setup.config.qp_type = QpType::RawPacket;
    setup.config.sq_sig_all = false;
    setup.config.cap.max_send_wr = 3;
    setup.config.cap.max_recv_wr = 2;
    setup
}

fn rig(state: QpState) -> Rig {
    let mem = TestMemory::new();
    let src = mem.register(1 << 19, AccessFlags::LOCAL_WRITE);
    mem.fill(&src, 0, &pattern(2000, 1));
    let qp = raw().build(state);
    Rig { qp, mem, src }
}

fn wr(wr_id: u64, flags: SendFlags, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op: SendOp::Send { imm: None },
        flags,
        sges,
    }
}

impl Rig {
    fn post(&mut self, wr_id: u64, len: u32) -> Result<(), PostError> {
        let sges = [self.src.part(0, len)];
        self.qp
            .post_send(NOW, &wr(wr_id, SendFlags::SIGNALED, &sges), None)
    }

    fn next(&mut self) -> Option<(FrameOrder, Vec<u8>)> {
        let mut frame = vec![0xee; 3];
        let order = self.qp.next_frame(NOW, &self.mem, LONGEST, &mut frame);
        order.map(|order| (order, frame))
    }

    fn take(&mut self, bytes: &[u8], checksums_ok: bool) {
        let frame = Frame {
            bytes,
            checksums_ok,
            flow_tag: 0xabc,
        };
        self.qp.handle_frame(NOW, &self.mem, &frame);
    }

    fn completions(&mut self) -> Vec<Completion> {
        core::iter::from_fn(|| self.qp.poll_completion()).collect()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.qp.counters().dropped(reason)
    }
}

const PLAIN: FrameOrder = FrameOrder {
    segments: None,
    checksums: false,
};

#[test]
fn a_frame_is_complete_when_it_has_left() {
    let mut rig = rig(QpState::Rts);
    let sges = [rig.src.part(0, 10), rig.src.part(10, 90)];
    let checksums = SendFlags::SIGNALED | SendFlags::IP_CSUM;
    rig.qp
        .post_send(NOW, &wr(1, checksums, &sges), None)
        .unwrap();
    rig.qp
        .post_send(NOW, &wr(2, SendFlags::empty(), &[]), Some(&[9; 14]))
        .unwrap();
    rig.post(3, 60).unwrap();
    let (order, frame) = rig.next().expect("the first");
    assert!(order.checksums && order.segments.is_none());
    assert_eq!(frame, pattern(2000, 1)[..100]);
    assert!(rig.next().is_none(), "one at a time");
    assert!(rig.completions().is_empty());
    rig.qp.frames_sent(NOW, 1);
    assert_eq!(statuses(&rig.completions()), [(1, WcStatus::Success)]);
    assert_eq!(rig.next(), Some((PLAIN, vec![9; 14])));
    rig.qp.frames_sent(NOW, 1);
    rig.qp.frames_sent(NOW, 1);
    assert!(rig.completions().is_empty(), "not asked for");
    assert!(rig.next().is_some());
    rig.qp.frames_sent(NOW, 1);
    let done = rig.completions();
    assert_eq!((done[0].wr_id, done[0].opcode), (3, WcOpcode::Send));
    //= RC-WQE-03 type=test
    assert_eq!(done[0].freed_wqes, 2, "with the unsignaled WQE");
    assert_eq!(rig.qp.counters().tx_packets, 3);
    assert!(rig.next().is_none() && rig.qp.send_queue_len() == 0);
}

//= PST-10 type=test
#[test]
fn what_can_be_posted() {
    let mut rig = rig(QpState::Rts);
    let sge = rig.src.part(0, 20);
    let too_many = [sge; 9];
    let signaled = SendFlags::SIGNALED;
    let read = super::read(&rig.src);
    let mut post = |op, sges: &[Sge], inline: Option<&[u8]>| {
        let wr = SendWr {
            op,
            ..wr(1, signaled, sges)
        };
        rig.qp.post_send(NOW, &wr, inline)
    };
    let send = SendOp::Send { imm: None };
    let unsupported = Err(PostError::UnsupportedOpcode);
    assert_eq!(
        post(SendOp::Send { imm: Some([1; 4]) }, &[sge], None),
        unsupported
    );
    assert_eq!(post(read, &[sge], None), unsupported);
    assert_eq!(post(send, &too_many, None), Err(PostError::TooManySges));
    assert_eq!(post(send, &[], Some(&[0; 257])), Err(PostError::BadInline));
    let tso = |header: usize, mss| {
        let bytes = vec![0; header];
        let tso = Tso {
            header: &bytes,
            mss,
        };
        let mut qp = raw().build(QpState::Rts);
        qp.post_tso(NOW, &wr(1, signaled, &[sge]), tso, None)
    };
    let bad = Err(PostError::BadSegmentation);
    let most = usize::from(MAX_TSO_HEADER);
    assert_eq!(
        (tso(13, 100), tso(14, 0), tso(most + 1, 1)),
        (bad, bad, bad)
    );
    assert_eq!((tso(14, 1), tso(most, 1)), (Ok(()), Ok(())));
    let mut rc = setup().build(QpState::Rts);
    let tso = Tso {
        header: &[0; 54],
        mss: 1,
    };
    assert_eq!(
        rc.post_tso(NOW, &wr(1, signaled, &[]), tso, None),
        unsupported
    );
    for wr_id in 0..3 {
        rig.post(wr_id, 20).unwrap();
    }
    assert_eq!(rig.post(3, 20), Err(PostError::QueueFull));
    rig.qp.unpost_send(2);
    assert_eq!(rig.qp.send_queue_len(), 1);
    rig.post(4, 20).unwrap();
    assert!(rig.next().is_some());
    rig.qp.unpost_send(2);
    assert_eq!(rig.qp.send_queue_len(), 1, "a started request stays");
}

#[test]
fn what_is_to_be_cut_has_its_header_in_front() {
    let mut rig = rig(QpState::Rts);
    let header = [5; 54];
    let tso = Tso {
        header: &header,
        mss: 700,
    };
    let sges = [rig.src.part(0, 2000)];
    let request = wr(1, SendFlags::SIGNALED, &sges);
    rig.qp.post_tso(NOW, &request, tso, None).unwrap();
    let (order, frame) = rig.next().unwrap();
    assert_eq!(order.segments, Some((54, 700)));
    assert_eq!(
        (&frame[..54], &frame[54..]),
        (&header[..], &*pattern(2000, 1))
    );
    rig.qp.frames_sent(NOW, 3);
    assert_eq!(rig.completions()[0].opcode, WcOpcode::Tso);
    assert_eq!(rig.qp.counters().tx_packets, 3);
    // Only the header, and the largest allowed size.
    let none = wr(2, SendFlags::SIGNALED, &[]);
    rig.qp.post_tso(NOW, &none, tso, None).unwrap();
    assert_eq!(rig.next().unwrap().1, header);
    rig.qp.frames_sent(NOW, 1);
    let most = [rig.src.part(0, MAX_TSO)];
    let most = wr(3, SendFlags::SIGNALED, &most);
    rig.qp.post_tso(NOW, &most, tso, None).unwrap();
    assert_eq!(rig.next().unwrap().1.len(), 54 + MAX_TSO as usize);
    rig.qp.frames_sent(NOW, 1);
    rig.completions();
    rig.qp.free_wqes(true, 3);
    let more = [rig.src.part(0, MAX_TSO + 1)];
    let more = wr(4, SendFlags::SIGNALED, &more);
    rig.qp.post_tso(NOW, &more, tso, None).unwrap();
    assert!(rig.next().is_none());
    assert_eq!(statuses(&rig.completions()), [(4, WcStatus::LocLenErr)]);
}

//= WCS-01 type=test
//= RC-STA-05 type=test
#[test]
fn what_cannot_be_sent_ends_the_send_queue() {
    let longest = u32::try_from(LONGEST).unwrap();
    for (len, status) in [
        (13, Some(WcStatus::LocLenErr)),
        (14, None),
        (longest, None),
        (longest + 1, Some(WcStatus::LocLenErr)),
    ] {
        let mut rig = rig(QpState::Rts);
        rig.post(1, len).unwrap();
        rig.post(2, 60).unwrap();
        let Some(status) = status else {
            assert!(rig.next().is_some(), "{len}");
            continue;
        };
        assert!(rig.next().is_none(), "{len}");
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(statuses(&rig.completions()), [(1, status), (2, flushed)]);
        assert_eq!(rig.qp.state(), QpState::Sqe);
        rig.post(3, 60).unwrap();
        assert_eq!(statuses(&rig.completions()), [(3, flushed)]);
    }
    let mut rig = rig(QpState::Rts);
    rig.mem.deregister(&rig.src);
    rig.post(1, 60).unwrap();
    assert!(rig.next().is_none());
    assert_eq!(statuses(&rig.completions()), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn what_the_link_refuses_fails() {
    let mut rig = rig(QpState::Rts);
    rig.post(1, 60).unwrap();
    rig.next().unwrap();
    rig.qp.frames_failed(NOW, WcStatus::LocLenErr);
    assert_eq!(statuses(&rig.completions()), [(1, WcStatus::LocLenErr)]);
    assert_eq!(rig.qp.state(), QpState::Sqe);
    rig.qp.frames_sent(NOW, 1);
    assert!(rig.completions().is_empty(), "no frame was in flight");
}

fn to(qp: &mut Qp, state: QpState) {
    let attr = QpAttr {
        qp_state: state.code(),
        ..QpAttr::default()
    };
    let context = context(setup().local);
    qp.modify(NOW, &attr, QpAttrMask::STATE, &context).unwrap();
}

//= QPT-33 type=test
#[test]
fn a_queue_that_drains_finishes_what_it_has_begun() {
    let mut rig = rig(QpState::Rts);
    rig.post(1, 60).unwrap();
    rig.post(2, 60).unwrap();
    rig.next().unwrap();
    to(&mut rig.qp, QpState::Sqd);
    assert!(rig.qp.query().sq_draining && rig.next().is_none());
    rig.qp.frames_sent(NOW, 1);
    assert!(!rig.qp.query().sq_draining && rig.next().is_none());
    to(&mut rig.qp, QpState::Rts);
    assert!(rig.next().is_some(), "the second");
    to(&mut rig.qp, QpState::Err);
    let done = statuses(&rig.completions());
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::WrFlushErr)]);
    to(&mut rig.qp, QpState::Reset);
    assert_eq!(rig.post(3, 60), Err(PostError::InvalidState));
}

#[test]
fn each_frame_takes_a_receive() {
    let mut rig = rig(QpState::Rtr);
    let dst = rig.mem.register(200, AccessFlags::LOCAL_WRITE);
    rig.take(&[1; 60], true);
    assert_eq!(rig.dropped(DropReason::NoReceive), 1);
    rig.qp
        .post_recv(NOW, 1, &[dst.part(0, 10), dst.part(10, 90)])
        .unwrap();
    rig.qp.post_recv(NOW, 2, &[dst.part(100, 60)]).unwrap();
    assert_eq!(rig.qp.post_recv(NOW, 3, &[]), Err(PostError::QueueFull));
    rig.take(&[2; 101], true);
    assert_eq!(rig.dropped(DropReason::TooLong), 1);
    assert_eq!(rig.qp.recv_queue_len(), 2, "the next frame uses it");
    rig.take(&pattern(100, 3), true);
    rig.take(&pattern(60, 4), false);
    let done = rig.completions();
    assert_eq!(
        statuses(&done),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    let lens: Vec<_> = done.iter().map(|done| done.byte_len).collect();
    assert_eq!(lens, [100, 60]);
    assert_eq!(done[0].wc_flags, WcFlags::IP_CSUM_OK);
    assert_eq!(done[1].wc_flags, WcFlags::empty());
    assert_eq!(done[0].imm_or_inv, ImmOrInv::FlowTag(0xabc));
    assert_eq!((done[0].opcode, done[0].is_send()), (WcOpcode::Recv, false));
    let bytes = rig.mem.all(&dst);
    assert_eq!(bytes[..160], [pattern(100, 3), pattern(60, 4)].concat());
    assert_eq!(rig.qp.counters().rx_packets, 2);
}

#[test]
fn states_decide_what_becomes_of_a_frame() {
    for state in [QpState::Reset, QpState::Init, QpState::Err] {
        let mut rig = rig(state);
        rig.take(&[1; 60], true);
        assert_eq!(rig.dropped(DropReason::State), 1, "{state:?}");
    }
    let mut rc = setup().build(QpState::Rts);
    let frame = Frame {
        bytes: &[1; 60],
        checksums_ok: true,
        flow_tag: 0,
    };
    rc.handle_frame(NOW, &TestMemory::new(), &frame);
    assert_eq!(rc.counters().dropped(DropReason::WrongService), 1);
}

//= RC-RSP-12 type=test
#[test]
fn memory_that_may_not_be_written_ends_the_queue_pair() {
    let mut rig = rig(QpState::Rts);
    let read_only = rig.mem.register(100, AccessFlags::empty());
    for wr_id in 1..=2 {
        rig.qp.post_recv(NOW, wr_id, &[read_only.sge()]).unwrap();
    }
    rig.take(&[1; 60], true);
    let done = statuses(&rig.completions());
    assert_eq!(done, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(rig.qp.state(), QpState::Err);
}

#[test]
fn receives_may_be_shared() {
    let mut rig = rig(QpState::Reset);
    let srq = Arc::new(TestSrq::new(TestMemory::PD, 4));
    let mut setup = raw();
    setup.srq = Some(Arc::clone(&srq));
    rig.qp = setup.build(QpState::Rts);
    let dst = rig.mem.register(60, AccessFlags::LOCAL_WRITE);
    srq.with(|srq| srq.post(9, &[dst.sge()])).unwrap();
    rig.take(&[3; 60], false);
    assert_eq!(statuses(&rig.completions()), [(9, WcStatus::Success)]);
    to(&mut rig.qp, QpState::Err);
    assert_eq!(rig.qp.poll_event(), Some(QpEvent::LastWqeReached));
}

#[test]
fn packets_of_other_services_are_not_for_it() {
    let mut rig = rig(QpState::Rts);
    rig.qp.post_recv(NOW, 1, &[]).unwrap();
    for opcode in 0..=u8::MAX {
        let mut bytes = [0; 64];
        (bytes[0], bytes[2], bytes[3], bytes[7]) = (opcode, 0xff, 0xff, 0x11);
        let Ok(packet) = rocade_wire::Packet::parse(&bytes) else {
            continue;
        };
        let meta = crate::PacketMeta {
            source: [0, 0, 0, 0].into(),
            destination: [0, 0, 0, 0].into(),
            traffic_class: 0,
            hop_limit: 1,
        };
        rig.qp.handle_packet(NOW, &meta, &packet, &rig.mem);
    }
    assert!(rig.completions().is_empty());
    let mut tx = TxBuffer::new(4096, 8);
    rig.post(1, 60).unwrap();
    assert!(!rig.qp.has_work_to_send(AckPlacement::First));
    rig.qp
        .poll_transmit(NOW, &rig.mem, AckPlacement::First, &mut tx);
    assert!(tx.is_empty(), "next_frame returns frames");
}
