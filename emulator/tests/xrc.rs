//! XRC: domains, targets with several handles, and shared receive queues with their own CQ.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use common::{ALL_ACCESS, Side, pattern};
use rocade_emulator::{
    AsyncEventKind, Completion, Cq, EventElement, FileId, Mr, Pd, Qp, QpAttr, QpAttrMask, QpCap,
    QpInitAttr, QpState, QpType, SendFlags, SendOp, SendWr, Sge, Srq, SrqInitAttr, Srqn,
    VerbsError, WcOpcode, WcStatus, Xrcd, XrcdInitAttr, limits,
};

const SEND: SendOp = SendOp::Send { imm: None };
const ROOM: usize = 8192;
const LONG: Duration = Duration::from_secs(20);

fn errno<T: Debug>(result: Result<T, VerbsError>) -> i32 {
    result.unwrap_err().errno()
}

fn init(max_wr: u32, cookie: u64) -> SrqInitAttr {
    SrqInitAttr {
        max_wr,
        max_sge: 1,
        cookie,
    }
}

/// An XRC SRQ with its own CQ and protection domain, in which the memory of `side` is registered.
struct Queue {
    pd: Pd,
    mr: Mr,
    cq: Cq,
    srq: Srq,
}

impl Queue {
    fn new(side: &Side, xrcd: &Xrcd, cqe: u32, cookie: u64) -> Self {
        let pd = side.context.alloc_pd().unwrap();
        let (addr, len) = (side.mr.addr(), side.memory.len());
        // SAFETY: leaked memory, accessed through atomics only.
        let mr = unsafe { pd.reg_mr(addr, len, addr, ALL_ACCESS) }.unwrap();
        let cq = side.context.create_cq(cqe, None, 0, cookie).unwrap();
        let srq = xrcd.create_srq(&pd, &cq, init(8, cookie)).unwrap();
        Self { pd, mr, cq, srq }
    }

    fn post(&self, wr_id: u64) {
        self.try_post(wr_id).unwrap();
    }

    fn try_post(&self, wr_id: u64) -> Result<(), VerbsError> {
        let sge = Sge {
            addr: self.mr.addr() + wr_id * ROOM as u64,
            len: ROOM as u32,
            lkey: self.mr.lkey(),
        };
        self.srq.recv_queue().push(wr_id, &[sge])
    }

    fn srqn(&self) -> Srqn {
        Srqn::new(self.srq.number())
    }

    fn completion(&self) -> Completion {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(completion) = self.cq.poll_one() {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion");
        }
    }

    fn destroy(&self) {
        self.srq.destroy().unwrap();
        self.cq.destroy().unwrap();
        self.mr.destroy().unwrap();
        self.pd.destroy().unwrap();
    }
}

/// A side with another QP.
fn with_qp(of: &Side, qp: Qp) -> Side {
    Side {
        engine: of.engine.clone(),
        context: of.context.clone(),
        pd: of.pd.clone(),
        channel: of.channel.clone(),
        cq: of.cq.clone(),
        qp,
        mr: of.mr.clone(),
        memory: of.memory,
    }
}

fn initiator(of: &Side) -> Side {
    let init = QpInitAttr {
        send_cq: of.cq.clone(),
        recv_cq: of.cq.clone(),
        srq: None,
        cap: QpCap {
            max_send_wr: 64,
            max_recv_wr: 1 << 30,
            max_send_sge: 2,
            max_recv_sge: 1 << 30,
            max_inline_data: 64,
        },
        qp_type: QpType::XrcSend,
        sq_sig_all: true,
        cookie: 3,
    };
    with_qp(of, of.pd.create_qp(init).unwrap())
}

/// Connects an initiator on A and a target on B, which goes no further than RTR.
fn connected(a: &Side, b: &Side, xrcd: &Xrcd) -> (Side, Side) {
    let (from, to) = (initiator(a), with_qp(b, xrcd.create_target(9).unwrap()));
    to.to_rtr(from.qp.qp_num().get(), from.gid());
    from.to_rts(to.qp.qp_num().get(), to.gid());
    (from, to)
}

fn sides(octet: u8) -> (Side, Side) {
    let [a, b] = [octet, octet + 1].map(|octet| format!("127.2.10.{octet}"));
    (Side::new(&a, 16 * ROOM), Side::new(&b, 16 * ROOM))
}

fn post_to(from: &Side, srqn: Srqn, wr_id: u64, op: SendOp, sges: &[Sge]) {
    let wr = SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        sges,
    };
    from.qp.post_sends(|queue| {
        queue.push(&wr).unwrap();
        queue.set_remote_srqn(srqn);
    });
}

fn events(side: &Side) -> Vec<(AsyncEventKind, EventElement)> {
    let take = || side.context.take_async_event().unwrap();
    let taken = std::iter::from_fn(take).inspect(|event| side.context.ack_async_event(event));
    taken.map(|event| (event.kind, event.element)).collect()
}

fn next_event(side: &Side) -> (AsyncEventKind, EventElement) {
    let event = side.context.next_async_event().unwrap();
    side.context.ack_async_event(&event);
    (event.kind, event.element)
}

fn open(side: &Side, file: Option<FileId>, create: bool, exclusive: bool) -> Result<Xrcd, i32> {
    let init = XrcdInitAttr {
        file,
        create,
        exclusive,
    };
    side.context.open_xrcd(init).map_err(|error| error.errno())
}

fn private(side: &Side) -> Xrcd {
    open(side, None, true, false).unwrap()
}

//= XRCL-02 type=test
//= XRCL-03 type=test
//= XRCL-04 type=test
//= XRCL-05 type=test
//= DST-05 type=test
#[test]
fn domains_are_known_by_their_file() {
    let (a, other_device) = sides(1);
    let file = |inode| Some(FileId { device: 1, inode });
    assert_eq!(open(&a, file(7), false, false).err(), Some(libc::EAGAIN));
    let first = open(&a, file(7), true, true).unwrap();
    for create in [false, true] {
        let refused = open(&a, file(7), create, true).err();
        assert_eq!(refused, Some(libc::EINVAL), "{create}");
    }
    let second = open(&a, file(7), false, false).unwrap();
    let third = open(&a, file(7), true, false).unwrap();
    assert_eq!(open(&a, file(8), false, true).err(), Some(libc::EAGAIN));
    let elsewhere = open(&other_device, file(7), false, false).err();
    assert_eq!(elsewhere, Some(libc::EAGAIN), "another device");

    // All handles of a domain find its targets, and a target keeps the handle busy that made or
    // opened it.
    let target = first.create_target(1).unwrap();
    let opened = second.open_target(target.qp_num(), 2).unwrap();
    assert_eq!(opened.qp_num(), target.qp_num());
    for xrcd in [&first, &second] {
        assert_eq!(errno(xrcd.close()), libc::EBUSY);
    }
    third.close().unwrap();
    assert_eq!(errno(third.close()), libc::EINVAL);
    opened.destroy().unwrap();
    second.close().unwrap();
    target.destroy().unwrap();
    let queue = Queue::new(&a, &first, 4, 0);
    assert_eq!(errno(first.close()), libc::EBUSY);
    queue.destroy();
    first.close().unwrap();
    assert_eq!(open(&a, file(7), false, false).err(), Some(libc::EAGAIN));
    // Dropping the last handle closes the domain as well.
    drop(open(&a, file(7), true, true).unwrap());
    drop(open(&a, file(7), true, true).unwrap());

    // Private domains have nothing in common.
    let (one, other) = (private(&a), private(&a));
    let target = one.create_target(1).unwrap();
    let unknown = other.open_target(target.qp_num(), 2);
    assert_eq!(errno(unknown), libc::EINVAL);
}

//= XRC-01 type=test
//= XRC-02 type=test
//= XRC-04 type=test
//= XRC-05 type=test
#[test]
fn one_connection_reaches_all_queues_of_the_domain() {
    let (a, b) = sides(3);
    let xrcd = private(&b);
    let queues = [0, 1, 2].map(|cookie| Queue::new(&b, &xrcd, 64, cookie));
    let (from, to) = connected(&a, &b, &xrcd);
    for round in 0..20 {
        for (n, queue) in queues.iter().enumerate() {
            let len = 1 + (round * 997 + n * 333) % ROOM;
            let data = pattern(len, round + n);
            a.fill(n * ROOM, &data);
            queue.post(n as u64);
            post_to(&from, queue.srqn(), 1, SEND, &[from.sge(n * ROOM, len)]);
            let received = queue.completion();
            assert_eq!(
                (received.wr_id, received.status, received.opcode),
                (n as u64, WcStatus::Success, WcOpcode::Recv)
            );
            assert_eq!(received.byte_len as usize, len);
            assert_eq!(received.qp_num, to.qp.qp_num());
            assert!(b.bytes(n * ROOM, len) == data);
            assert_eq!(from.completion().status, WcStatus::Success);
        }
    }
    // Keys belong to the protection domain of the SRQ that the message names.
    let write = |queue: &Queue| SendOp::Write {
        va: queue.mr.addr(),
        rkey: queue.mr.rkey(),
        imm: Some([7; 4]),
    };
    queues[1].post(5);
    a.fill(0, b"through the second");
    post_to(
        &from,
        queues[1].srqn(),
        2,
        write(&queues[1]),
        &[from.sge(0, 18)],
    );
    let received = queues[1].completion();
    assert_eq!(
        (received.wr_id, received.opcode),
        (5, WcOpcode::RecvRdmaWithImm)
    );
    assert_eq!(b.bytes(0, 18), b"through the second");
    assert_eq!(from.completion().status, WcStatus::Success);
    let read = SendOp::Read {
        va: queues[2].mr.addr(),
        rkey: queues[2].mr.rkey(),
    };
    let place = [from.sge(9 * ROOM, ROOM)];
    post_to(&from, queues[2].srqn(), 3, read, &place);
    assert_eq!(from.completion().status, WcStatus::Success);
    assert!(a.bytes(9 * ROOM, ROOM) == b.bytes(0, ROOM));
    post_to(&from, queues[0].srqn(), 4, read, &place);
    assert_eq!(from.completion().status, WcStatus::RemAccessErr);
    let kinds: Vec<_> = (0..3).map(|_| next_event(&b)).collect();
    let of_target = |kind| (kind, EventElement::Qp(9));
    assert_eq!(
        kinds,
        [
            AsyncEventKind::CommEst,
            AsyncEventKind::QpAccessErr,
            AsyncEventKind::QpLastWqeReached
        ]
        .map(of_target)
    );
}

//= XRC-12 type=test
//= PST-08 type=test
//= DST-02 type=test
#[test]
fn what_does_not_fit_together_is_refused() {
    let (a, b) = sides(5);
    let xrcd = private(&b);
    let queue = Queue::new(&b, &xrcd, 4, 0);
    // Objects that reference each other can be printed.
    assert!(format!("{:?}", queue.srq).starts_with("Srq"));
    let basic = b.pd.create_srq(init(4, 0)).unwrap();
    let other_pd = a.context.alloc_pd().unwrap();
    let foreign = xrcd.create_srq(&other_pd, &queue.cq, init(4, 0));
    assert_eq!(errno(foreign), libc::EINVAL);
    let foreign = xrcd.create_srq(&queue.pd, &a.cq, init(4, 0));
    assert_eq!(errno(foreign), libc::EINVAL);
    let too_large = xrcd.create_srq(&queue.pd, &queue.cq, init(limits::MAX_SRQ_WR + 1, 0));
    assert_eq!(errno(too_large), libc::EINVAL);

    let create = |qp_type, srq: Option<&Srq>| {
        b.pd.create_qp(QpInitAttr {
            send_cq: b.cq.clone(),
            recv_cq: b.cq.clone(),
            srq: srq.cloned(),
            cap: QpCap::default(),
            qp_type,
            sq_sig_all: false,
            cookie: 0,
        })
    };
    assert_eq!(errno(create(QpType::Rc, Some(&queue.srq))), libc::EINVAL);
    assert_eq!(errno(create(QpType::XrcSend, Some(&basic))), libc::EINVAL);
    assert_eq!(errno(create(QpType::XrcRecv, None)), libc::EOPNOTSUPP);

    let (from, to) = connected(&a, &b, &xrcd);
    let cap = from.qp.query().1;
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
    for side in [&from, &to] {
        assert_eq!(errno(side.qp.recv_queue().push(1, &[])), libc::EINVAL);
    }
    let wr = SendWr {
        wr_id: 1,
        op: SEND,
        flags: SendFlags::SIGNALED,
        sges: &[],
    };
    assert_eq!(
        errno(to.qp.post_sends(|queue| queue.push(&wr))),
        libc::EINVAL
    );
    let targets_only = xrcd.open_target(from.qp.qp_num(), 0);
    assert_eq!(errno(targets_only), libc::EINVAL);
    assert_eq!(errno(xrcd.open_target(b.qp.qp_num(), 0)), libc::EINVAL);

    // The queue keeps its CQ and its protection domain busy, but no target keeps the queue busy.
    assert_eq!(errno(queue.cq.destroy()), libc::EBUSY);
    queue.destroy();
}

//= XRC-11 type=test
//= AEV-12 type=test
#[test]
fn a_target_lives_as_long_as_a_process_has_it_open() {
    let (a, b) = sides(7);
    let xrcd = private(&b);
    let queue = Queue::new(&b, &xrcd, 16, 5);
    let (from, to) = connected(&a, &b, &xrcd);
    let number = to.qp.qp_num();
    // The handles of another program.
    let other = b.engine.open_device("dev").unwrap();
    let opened = xrcd.open_target(number, 21).unwrap();
    drop(other);
    queue.post(0);
    post_to(&from, queue.srqn(), 0, SEND, &[]);
    assert_eq!(queue.completion().wr_id, 0);
    let mut established = [next_event(&b), next_event(&b)];
    established.sort_by_key(|(_, element)| format!("{element:?}"));
    let comm_est = |cookie| (AsyncEventKind::CommEst, EventElement::Qp(cookie));
    assert_eq!(established, [comm_est(21), comm_est(9)]);

    // The creator's handle is closed. The others keep the target alive, and can modify it.
    to.qp.destroy().unwrap();
    assert_eq!(errno(to.qp.destroy()), libc::EINVAL);
    queue.post(1);
    post_to(&from, queue.srqn(), 1, SEND, &[]);
    assert_eq!(queue.completion().wr_id, 1);
    assert_eq!(opened.state(), QpState::Rtr);
    let again = xrcd.open_target(number, 22).unwrap();
    opened.destroy().unwrap();
    let attr = QpAttr {
        qp_state: QpState::Err.code(),
        ..QpAttr::default()
    };
    again.modify(&attr, QpAttrMask::STATE).unwrap();
    let last = (AsyncEventKind::QpLastWqeReached, EventElement::Qp(22));
    assert_eq!(next_event(&b), last);
    again.destroy().unwrap();
    assert_eq!(errno(xrcd.open_target(number, 23)), libc::EINVAL);
    assert_eq!(events(&b), []);
    queue.destroy();
    xrcd.close().unwrap();
}

//= XRC-06 type=test
//= XRC-09 type=test
#[test]
fn a_queue_that_is_gone_ends_the_connection() {
    let (a, b) = sides(9);
    let xrcd = private(&b);
    let (gone, stays) = (Queue::new(&b, &xrcd, 16, 5), Queue::new(&b, &xrcd, 16, 6));
    let srqn = gone.srqn();
    let (first, second) = (connected(&a, &b, &xrcd), connected(&a, &b, &xrcd));
    gone.destroy();
    post_to(&first.0, srqn, 1, SEND, &[]);
    assert_eq!(first.0.completion().status, WcStatus::RemAccessErr);
    assert_eq!(first.1.qp.state(), QpState::Err);
    // Other QPs of the domain go on.
    stays.post(0);
    post_to(&second.0, stays.srqn(), 2, SEND, &[]);
    assert_eq!(stays.completion().wr_id, 0);
    assert_eq!(second.0.completion().status, WcStatus::Success);
    // A queue of another domain is unknown to the target.
    let elsewhere = Queue::new(&b, &private(&b), 16, 7);
    elsewhere.post(0);
    post_to(&second.0, elsewhere.srqn(), 3, SEND, &[]);
    assert_eq!(second.0.completion().status, WcStatus::RemAccessErr);
    assert!(elsewhere.cq.poll_one().is_none());
}

/// A queue is destroyed while a message fills one of its receives. The message has no completion,
/// and the connection goes on.
#[test]
fn a_queue_may_go_in_the_middle_of_a_message() {
    let (a, b) = sides(11);
    let xrcd = private(&b);
    let (gone, stays) = (Queue::new(&b, &xrcd, 16, 5), Queue::new(&b, &xrcd, 16, 6));
    let (from, to) = connected(&a, &b, &xrcd);
    gone.post(0);
    // The end of the message is in memory that is not registered.
    let lost = Sge {
        addr: 0,
        ..from.sge(0, 2048)
    };
    post_to(&from, gone.srqn(), 0, SEND, &[from.sge(0, 2048), lost]);
    assert_eq!(from.completion().status, WcStatus::LocProtErr);
    while to.qp.counters().rx_packets == 0 {
        gone.cq.poll_one();
    }
    gone.destroy();
    let attr = QpAttr {
        qp_state: QpState::Err.code(),
        ..QpAttr::default()
    };
    to.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    to.qp.destroy().unwrap();
    // The number of the queue is unused, or that of another queue. New queues and connections work.
    let (from, _to) = connected(&a, &b, &xrcd);
    let new: Vec<_> = (0..20).map(|n| Queue::new(&b, &xrcd, 4, n)).collect();
    for queue in new.iter().chain([&stays]) {
        queue.post(1);
        post_to(&from, queue.srqn(), 1, SEND, &[]);
        assert_eq!(queue.completion().wr_id, 1);
        assert_eq!(from.completion().status, WcStatus::Success);
    }
}

//= RC-WQE-03 type=test
//= SRQ-04 type=test
#[test]
fn slots_and_limits_are_those_of_any_shared_queue() {
    let (a, b) = sides(13);
    let xrcd = private(&b);
    let queue = Queue::new(&b, &xrcd, 16, 5);
    let pairs = [(); 2].map(|()| connected(&a, &b, &xrcd));
    for wr_id in 0..8 {
        queue.post(wr_id);
    }
    queue.srq.modify(None, Some(7)).unwrap();
    for n in 0..8 {
        let (from, _) = &pairs[n % 2];
        post_to(from, queue.srqn(), 0, SEND, &[]);
        from.completion();
    }
    assert_eq!(errno(queue.try_post(8)), libc::ENOMEM);
    for wr_id in 0..8 {
        assert_eq!(queue.completion().wr_id, wr_id);
        queue.post(wr_id);
        assert_eq!(errno(queue.try_post(9)), libc::ENOMEM);
    }
    let limit = (AsyncEventKind::SrqLimitReached, EventElement::Srq(5));
    assert!(events(&b).contains(&limit));
}

//= AEV-09 type=test
//= CQ-02 type=test
#[test]
fn an_overrun_cq_ends_only_the_qps_that_report_there() {
    let (a, b) = sides(15);
    let xrcd = private(&b);
    let (small, large) = (Queue::new(&b, &xrcd, 1, 5), Queue::new(&b, &xrcd, 16, 6));
    let (first, second) = (connected(&a, &b, &xrcd), connected(&a, &b, &xrcd));
    for wr_id in 0..3 {
        small.post(wr_id);
        large.post(wr_id);
    }
    post_to(&first.0, small.srqn(), 0, SEND, &[]);
    assert_eq!(first.0.completion().status, WcStatus::Success);
    post_to(&first.0, small.srqn(), 1, SEND, &[]);
    let mut seen = Vec::new();
    while !seen.contains(&(AsyncEventKind::QpLastWqeReached, EventElement::Qp(9))) {
        seen.push(next_event(&b));
    }
    for event in [
        (AsyncEventKind::CqErr, EventElement::Cq(5)),
        (AsyncEventKind::SrqErr, EventElement::Srq(5)),
        (AsyncEventKind::QpFatal, EventElement::Qp(9)),
    ] {
        let count = seen.iter().filter(|other| **other == event).count();
        assert_eq!(count, 1, "{event:?} in {seen:?}");
    }
    assert_eq!(first.1.qp.state(), QpState::Err);
    post_to(&second.0, large.srqn(), 0, SEND, &[]);
    assert_eq!(large.completion().wr_id, 0);
    assert_eq!(second.0.completion().status, WcStatus::Success);
    first.0.qp.destroy().unwrap();
}
