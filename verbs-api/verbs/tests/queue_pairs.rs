//! Attributes, state changes and events of queue pairs, in a simulated network.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod common;

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, AckTimeout, AsyncEventKind, Completion, CompletionQueue, Config, ConnectOptions,
    Context, DeviceList, Ece, Event, EventSource, MemoryRegion, Pkey, ProtectionDomain, Psn,
    QpState, QueuePair, Rate, RnrRetry, RnrTimer, SendRequest, UnconnectedQueuePair, WaitError,
    WcStatus,
};

use common::errno;

/// A minute of virtual time.
const MINUTE: Duration = Duration::from_secs(60);
const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ);

struct Node {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Node {
    fn context(&self) -> &Context {
        self.pd.context()
    }

    fn queue_pair(&self) -> UnconnectedQueuePair {
        self.pd.queue_pair(&self.cq).build().unwrap()
    }

    /// Waits for the next completion and returns its status.
    fn status(&self) -> WcStatus {
        match self.cq.wait(MINUTE) {
            Ok(_) => WcStatus::Success,
            Err(WaitError::Completion(Completion { status, .. })) => status,
            Err(other) => panic!("{other}"),
        }
    }
}

fn nodes(config: Config) -> (Node, Node) {
    let list = DeviceList::new(config).unwrap();
    let node = |name| {
        let pd = list.open(name).unwrap().protection_domain().unwrap();
        Node {
            cq: pd.context().completion_queue(16).unwrap(),
            memory: pd.register(1 << 20, RIGHTS).unwrap(),
            pd,
        }
    };
    (node("a"), node("b"))
}

fn connect(a: UnconnectedQueuePair, b: UnconnectedQueuePair) -> (QueuePair, QueuePair) {
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let options = ConnectOptions::default();
    (
        a.connect(b_end, &options).unwrap(),
        b.connect(a_end, &options).unwrap(),
    )
}

//= QPS-06 QPT-16 type=test
#[test]
fn attributes_are_those_asked_for_and_change() {
    let (a, b) = nodes(Config::simulated(1));
    let options = ConnectOptions {
        timeout: AckTimeout::at_least(Duration::from_millis(130)),
        retry_cnt: 3,
        rnr_retry: RnrRetry::Times(2),
        min_rnr_timer: RnrTimer::at_least(Duration::from_micros(240)),
        max_rd_atomic: 4,
        traffic_class: 0x20,
        hop_limit: 7,
    };
    let builder = a.pd.queue_pair(&a.cq).depth(5, 6).max_sges(2);
    let builder = builder.max_inline(32).psn(Psn::new(77)).access(RIGHTS);
    let (a_qp, b_qp) = (builder.build().unwrap(), b.queue_pair());
    let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
    let a_qp = a_qp.connect(b_end, &options).unwrap();
    let b_qp = b_qp.connect(a_end, &options).unwrap();
    let now = a_qp.attributes();
    assert_eq!((now.state, now.is_draining), (QpState::Rts, false));
    assert_eq!((now.options, now.max_dest_rd_atomic), (options, 4));
    assert_eq!((now.mtu, now.access), (a_end.mtu, RIGHTS));
    assert_eq!((now.send_psn, now.recv_psn), (Psn::new(77), b_end.psn));
    assert_eq!((now.port, now.gid_index, now.pkey_index), (1, 0, 0));
    let (cap, limit) = (now.capacity, now.rate_limit);
    assert_eq!((cap.max_send_wr, cap.max_recv_wr, limit), (5, 6, None));
    assert_eq!((cap.max_send_sge, cap.max_inline_data), (2, 32));

    a_qp.set_rate_limit(Rate::from_mbps(9)).unwrap();
    let slow = RnrTimer::at_least(Duration::from_millis(490));
    a_qp.set_min_rnr_timer(slow).unwrap();
    let now = a_qp.attributes();
    assert_eq!(now.rate_limit.map(Rate::kbps), Some(9000));
    assert_eq!(now.options.min_rnr_timer, slow);

    // A WRITE fails after the right has been removed.
    let write = SendRequest::write_inline(b"!", a.memory.remote());
    b_qp.post_send(&write).unwrap();
    assert_eq!(b.status(), WcStatus::Success);
    a_qp.set_access(AccessFlags::REMOTE_READ).unwrap();
    assert_eq!(a_qp.attributes().access, AccessFlags::REMOTE_READ);
    b_qp.post_send(&write).unwrap();
    assert_eq!(b.status(), WcStatus::RemoteInvalidRequest);
}

//= RC-STA-06 PST-05 AEV-05 type=test
#[test]
fn a_paused_queue_pair_ends_what_it_has_begun() {
    let (a, b) = nodes(Config::simulated(2));
    let (a_qp, b_qp) = connect(a.queue_pair(), b.queue_pair());
    assert_eq!(errno(a_qp.resume()), 0, "RTS to RTS");
    a_qp.post_send(&SendRequest::write(
        &[a.memory.sge(..100_000).unwrap()],
        b.memory.remote(),
    ))
    .unwrap();
    a_qp.pause().unwrap();
    assert_eq!(a_qp.state(), QpState::Sqd);
    assert!(a_qp.attributes().is_draining);
    assert_eq!(a.context().poll_event().unwrap(), None);
    assert_eq!(a.status(), WcStatus::Success);
    assert!(!a_qp.attributes().is_draining);
    let drained = Event {
        kind: AsyncEventKind::SqDrained,
        source: EventSource::QueuePair(a_qp.id()),
    };
    assert_eq!(a.context().poll_event().unwrap(), Some(drained));
    assert_eq!(errno(a_qp.pause()), libc::EINVAL);

    // Posted requests wait, but the peer is still served.
    let write = SendRequest::write_inline(b"later", b.memory.remote().at(500));
    a_qp.post_send(&write).unwrap();
    b_qp.post_send(&SendRequest::write_inline(b"now", a.memory.remote()))
        .unwrap();
    assert_eq!(b.status(), WcStatus::Success);
    assert_eq!(a.memory.to_vec(..3).unwrap(), b"now");
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    assert_eq!(b.memory.to_vec(500..505).unwrap(), [0; 5]);
    a_qp.resume().unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    assert_eq!(b.memory.to_vec(500..505).unwrap(), b"later");
    assert_eq!(a.context().poll_event().unwrap(), None);
}

//= PST-07 type=test
#[test]
fn a_stopped_queue_pair_flushes() {
    let (a, b) = nodes(Config::simulated(3));
    let (a_qp, _b_qp) = connect(a.queue_pair(), b.queue_pair());
    let sges = [a.memory.sge(..64).unwrap()];
    a_qp.post_recv(1, &sges).unwrap();
    a_qp.set_error().unwrap();
    assert_eq!(a_qp.state(), QpState::Err);
    assert_eq!(a.status(), WcStatus::Flushed);
    a_qp.post_recv(2, &sges).unwrap();
    a_qp.post_send(&SendRequest::send_inline(b"?")).unwrap();
    for _ in 0..2 {
        assert_eq!(a.status(), WcStatus::Flushed);
    }
    for refused in [a_qp.pause(), a_qp.resume(), a_qp.set_access(RIGHTS)] {
        assert_eq!(errno(refused), libc::EINVAL);
    }
    a_qp.set_error().unwrap();
}

//= ERN-02 type=test
#[test]
fn there_is_nothing_to_agree_on_beside_the_standard() {
    let (a, b) = nodes(Config::simulated(4));
    let (a_qp, b_qp) = (a.queue_pair(), b.queue_pair());
    let vendor_id = a.context().attributes().vendor_id;
    assert_eq!(
        a_qp.ece(),
        Ece {
            vendor_id,
            options: 0
        }
    );
    a_qp.set_ece(b_qp.ece()).unwrap();
    let foreign = Ece {
        vendor_id: 0x1234,
        options: u32::MAX,
    };
    a_qp.set_ece(foreign).unwrap();
    assert_eq!(errno(a_qp.set_ece(Ece::NONE)), libc::EOPNOTSUPP);
    let (a_qp, _b_qp) = connect(a_qp, b_qp);
    assert_eq!(
        a_qp.ece(),
        Ece {
            vendor_id,
            options: 0
        }
    );
}

/// Queue pairs of one partition reach each other, and no others.
//= QPT-05 type=test
#[test]
fn partitions_are_kept_apart() {
    let table = vec![Pkey::DEFAULT, Pkey::new(0x8001)];
    let config = Config::simulated(5);
    assert!(config.clone().with_pkeys(&[]).is_err());
    let (a, b) = nodes(config.with_pkeys(&table).unwrap());
    assert_eq!(a.context().pkeys(), table);
    let pair = |pkeys: [u16; 2]| {
        let (a_qp, b_qp) = (a.queue_pair(), b.queue_pair());
        a_qp.set_pkey_index(pkeys[0]).unwrap();
        b_qp.set_pkey_index(pkeys[1]).unwrap();
        connect(a_qp, b_qp)
    };
    let write = SendRequest::write_inline(b"!", b.memory.remote());
    let (a_qp, _b_qp) = pair([1, 1]);
    assert_eq!(a_qp.attributes().pkey_index, 1);
    a_qp.post_send(&write).unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    assert_eq!(b.context().port().unwrap().bad_pkey_cntr, 0);
    let (a_qp, _b_qp) = pair([1, 0]);
    a_qp.post_send(&write).unwrap();
    assert_eq!(a.status(), WcStatus::RetryExceeded);
    assert!(b.context().port().unwrap().bad_pkey_cntr > 0);
    assert_eq!(errno(a.queue_pair().set_pkey_index(2)), libc::EINVAL);
    let other = a.pd.datagram_queue_pair_builder(&a.cq, 7).pkey_index(2);
    assert_eq!(errno(other.build()), libc::EINVAL);
}

/// Each event names its object, among several.
//= AEV-00 AEV-09 SRQ-04 type=test
//= SRQ-08 CQ-15 type=test
#[test]
fn events_name_their_objects() {
    let (a, b) = nodes(Config::simulated(6));
    let others = b.pd.shared_receive_queue(4, 1).unwrap();
    let receives = b.pd.shared_receive_queue(4, 1).unwrap();
    assert_ne!(others.id(), receives.id());
    let small = b.context().completion_queue(1).unwrap();
    let builder = b.pd.queue_pair(&b.cq).recv_cq(&small);
    let b_qp = builder.shared_receives(&receives).build().unwrap();
    let (a_qp, b_qp) = connect(a.queue_pair(), b_qp);
    for n in 0..4 {
        let sges = [b.memory.sge(64 * n..64 * (n + 1)).unwrap()];
        receives.post_recv(n as u64, &sges).unwrap();
    }
    assert_eq!((receives.max_sges(), receives.limit()), (1, 0));
    receives.arm_limit(4).unwrap();
    assert_eq!(receives.limit(), 4);
    a_qp.post_send(&SendRequest::send_inline(b"one")).unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    let next = || b.context().poll_event().unwrap();
    let low = Event {
        kind: AsyncEventKind::SrqLimitReached,
        source: EventSource::SharedReceiveQueue(receives.id()),
    };
    assert_eq!((next(), next()), (Some(low), None));
    assert_eq!(receives.limit(), 0);

    // The queue has space for one completion only, and the test polls none.
    a_qp.post_send(&SendRequest::send_inline(b"two")).unwrap();
    assert_ne!(a.status(), WcStatus::Success);
    let mut seen = Vec::new();
    while let Some(event) = next() {
        seen.push((event.kind, event.source));
    }
    let overrun = (
        AsyncEventKind::CqErr,
        EventSource::CompletionQueue(small.id()),
    );
    let broken = (AsyncEventKind::QpFatal, EventSource::QueuePair(b_qp.id()));
    assert!(
        seen.contains(&overrun) && seen.contains(&broken),
        "{seen:?}"
    );
}

/// A batch is posted as a whole. A batch with an invalid request posts nothing.
//= WRX-06 NOP-01 type=test
#[test]
fn a_batch_is_whole_or_nothing() {
    let (a, b) = nodes(Config::simulated(8));
    let a_qp = a.pd.queue_pair(&a.cq).depth(3, 1).build().unwrap();
    let (a_qp, _b_qp) = connect(a_qp, b.queue_pair());
    let write = |text, at| SendRequest::write_inline(text, b.memory.remote().at(at));
    let too_long = [7; 65];
    let bad = [write(b"no", 0), write(&too_long, 0)];
    assert_eq!(errno(a_qp.post_batch(&bad)), libc::EINVAL);
    let many = [SendRequest::nop(); 4];
    assert_eq!(errno(a_qp.post_batch(&many)), libc::ENOMEM);
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    assert_eq!(b.memory.to_vec(..2).unwrap(), [0; 2]);
    // The whole queue is free.
    let good = [
        write(b"one", 0).unsignaled(),
        write(b"two", 3).wr_id(2),
        SendRequest::nop().fence().wr_id(3),
    ];
    a_qp.post_batch(&good).unwrap();
    for wr_id in [2, 3] {
        assert_eq!(a.cq.wait(MINUTE).unwrap().wr_id, wr_id);
    }
    assert_eq!(b.memory.to_vec(..6).unwrap(), b"onetwo");
}
