//! DC of the safe API: cross-channel operations of initiators, and streams. The network is
//! simulated, so no result depends on timing.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod common;

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, AddressHandle, Calc, CalcOp, Completion, CompletionQueue, Config, ConnectOptions,
    CrossChannel, DciStreams, DeviceList, DynamicInitiator, DynamicTarget, ManagedQueue,
    MemoryRegion, ProtectionDomain, QpState, RemoteMemory, Rkey, SendRequest, SharedReceiveQueue,
    Task, TaskGroup, WaitError, WcStatus, post_tasks,
};

use common::errno;

/// A minute of virtual time.
const MINUTE: Duration = Duration::from_secs(60);

const MASTER: CrossChannel = CrossChannel {
    is_master: true,
    managed_send: false,
    managed_recv: false,
    sends_untaken: false,
    receives_untaken: false,
};
const MANAGED: CrossChannel = CrossChannel {
    managed_send: true,
    ..MASTER
};
const SUM: Calc = Calc {
    op: CalcOp::Add,
    located: false,
};

/// Protection domain `a` for initiators, and a target of `b` with four receives of 64 bytes.
struct Pair {
    a: ProtectionDomain,
    b: ProtectionDomain,
    sends: CompletionQueue,
    memory: MemoryRegion,
    way: AddressHandle,
    target: DynamicTarget,
    arrivals: CompletionQueue,
    there: MemoryRegion,
    _receives: SharedReceiveQueue,
}

impl Pair {
    fn new() -> Self {
        let list = DeviceList::new(Config::simulated(7)).unwrap();
        let domain = |name| list.open(name).unwrap().protection_domain().unwrap();
        let (a, b) = (domain("a"), domain("b"));
        let rights = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let there = b.register(4096, rights | AccessFlags::LOCAL_WRITE).unwrap();
        let arrivals = b.context().completion_queue(16).unwrap();
        let receives = b.shared_receive_queue(4, 1).unwrap();
        for n in 0..4 {
            let sges = [there.sge(64 * n..64 * (n + 1)).unwrap()];
            receives.post_recv(n as u64, &sges).unwrap();
        }
        let target = b.dynamic_target(&arrivals, &receives, rights, 11).unwrap();
        let sends = a.context().completion_queue(16).unwrap();
        sends.allow_waits();
        Self {
            way: a.address(target.address().gid).unwrap(),
            memory: a.register(4096, AccessFlags::LOCAL_WRITE).unwrap(),
            a,
            b,
            sends,
            target,
            arrivals,
            there,
            _receives: receives,
        }
    }

    fn initiator(&self, cq: &CompletionQueue, how: CrossChannel) -> DynamicInitiator {
        let builder = self.a.dynamic_initiator_builder(cq).cross_channel(how);
        builder.build().unwrap()
    }

    fn send(&self, from: &DynamicInitiator, text: &[u8]) {
        let request = SendRequest::send_inline(text);
        from.post_send(&request, &self.way, &self.target.address())
            .unwrap();
    }

    /// Returns the next message.
    fn heard(&self) -> Vec<u8> {
        let received = self.arrivals.wait(MINUTE).unwrap();
        let place = usize::try_from(received.wr_id).unwrap() * 64;
        self.there
            .to_vec(place..place + received.byte_len as usize)
            .unwrap()
    }

    /// Writes big-endian numbers to the start of the memory.
    fn put(&self, numbers: &[u64]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
        self.memory.write(0, &bytes).unwrap();
    }
}

/// A managed initiator sends only after a master, which waits for a completion, releases it.
//= XCH-02 XCW-01 XCE-01 type=test
#[test]
fn an_initiator_waits_and_releases_another() {
    let pair = Pair::new();
    let decisions = pair.a.context().completion_queue(16).unwrap();
    let held = pair.initiator(&pair.sends, MANAGED);
    let master = pair.initiator(&decisions, MASTER);
    let free = pair.a.dynamic_initiator(&pair.sends).unwrap();

    pair.send(&held, b"second");
    master
        .post_wait(3, &pair.sends, 1, TaskGroup::Last)
        .unwrap();
    master
        .post_enable(&held, ManagedQueue::Send, 0, TaskGroup::Last)
        .unwrap();
    assert!(matches!(decisions.wait(MINUTE), Err(WaitError::TimedOut)));
    assert!(pair.arrivals.poll().is_none() && pair.sends.poll().is_none());
    pair.send(&free, b"first");
    assert_eq!(pair.heard(), b"first");
    assert_eq!(pair.heard(), b"second");
    assert_eq!(decisions.wait(MINUTE).unwrap().wr_id, 3);
}

/// Task lists accept initiators and queue pairs. An initiator releases receives of a queue pair.
//= XCT-01 XDEC-09 XCC-01 type=test
#[test]
fn initiators_in_lists_of_tasks() {
    let pair = Pair::new();
    let decisions = pair.a.context().completion_queue(16).unwrap();
    let held = pair.initiator(&pair.sends, MANAGED);
    let master = pair.initiator(&decisions, MASTER);
    let receives = CrossChannel {
        managed_send: false,
        managed_recv: true,
        ..MANAGED
    };
    let (a_cq, b_cq) = (
        pair.a.context().completion_queue(4).unwrap(),
        pair.b.context().completion_queue(4).unwrap(),
    );
    let here = pair.a.queue_pair(&a_cq).cross_channel(receives);
    let (here, there) = (here.build().unwrap(), pair.b.queue_pair(&b_cq));
    let there = there.build().unwrap();
    let ends = (here.endpoint(), there.endpoint());
    let options = ConnectOptions::default();
    let here = here.connect(ends.1, &options).unwrap();
    let there = there.connect(ends.0, &options).unwrap();

    pair.put(&[5, 60, 700]);
    let (numbers, room) = (
        [pair.memory.sge(0..24).unwrap()],
        [pair.memory.sge(64..128).unwrap()],
    );
    let (address, to) = (&pair.way, &pair.target.address());
    let release = |of, which| Task::Enable {
        master: &master,
        of,
        which,
        count: 1,
        group: TaskGroup::Last,
    };
    let list = [
        Task::CalcTo {
            from: &held,
            request: &SendRequest::send(&numbers),
            calc: SUM,
            address,
            to,
        },
        Task::SendTo {
            from: &held,
            request: &SendRequest::send_inline(b"not yet"),
            address,
            to,
        },
        Task::Recv(&here, 9, &room),
        release(&held, ManagedQueue::Send),
        Task::Wait {
            master: &master,
            wr_id: 4,
            cq: &pair.sends,
            count: 1,
            group: TaskGroup::Last,
        },
        release(&here, ManagedQueue::Recv),
    ];
    there
        .post_send(&SendRequest::send_inline(b"waits for its receive"))
        .unwrap();
    post_tasks(&list).unwrap();
    assert_eq!(pair.heard(), 765_u64.to_be_bytes());
    assert_eq!(a_cq.wait(MINUTE).unwrap().wr_id, 9);
    assert!(pair.arrivals.poll().is_none(), "only one send was released");
    // One more request can be released, and then none.
    post_tasks(&list[3..4]).unwrap();
    assert_eq!(pair.heard(), b"not yet");
    assert_eq!(post_tasks(&list[3..4]).unwrap_err().index, 0);
}

/// A READ of several elements writes the result of their calculation.
//= XCC-01 XCC-04 type=test
#[test]
fn an_initiator_computes() {
    let pair = Pair::new();
    let master = pair.initiator(&pair.sends, MASTER);
    let (address, to) = (&pair.way, &pair.target.address());
    for (at, number) in [(1024, 6_u64), (1032, 3), (1040, 8)] {
        pair.there.write(at, &number.to_be_bytes()).unwrap();
    }
    pair.put(&[1, 1, 1]);
    let sges = [pair.memory.sge(0..24).unwrap()];
    let xor = Calc {
        op: CalcOp::Xor,
        located: false,
    };
    let read = SendRequest::read(&sges, pair.there.remote().at(1024));
    master.post_calc(&read, xor, address, to).unwrap();
    pair.sends.wait(MINUTE).unwrap();
    let numbers = [6 ^ 3 ^ 8, 1, 1].map(u64::to_be_bytes).concat();
    assert_eq!(pair.memory.to_vec(..24).unwrap(), numbers);

    // Rejects half an element, an address handle of another GID, and an initiator that is not a
    // master.
    let half = [pair.memory.sge(0..12).unwrap()];
    let refused = master.post_calc(&SendRequest::send(&half), SUM, address, to);
    assert_eq!(errno(refused), libc::EINVAL);
    let mut elsewhere = *to;
    elsewhere.gid = pair.a.context().gids()[0].gid;
    assert_eq!(
        errno(master.post_calc(&read, SUM, address, &elsewhere)),
        libc::EINVAL
    );
    let plain = pair.a.dynamic_initiator(&pair.sends).unwrap();
    assert_eq!(
        errno(plain.post_calc(&read, SUM, address, to)),
        libc::EINVAL
    );
}

//= XCH-02 XCH-03 XCE-01 type=test
#[test]
fn who_may_not_take_part() {
    let pair = Pair::new();
    let builder = || pair.a.dynamic_initiator_builder(&pair.sends);
    let streams = DciStreams {
        log_concurrent: 1,
        log_errored: 1,
    };
    let both = builder().streams(streams).cross_channel(MASTER);
    assert_eq!(
        errno(both.build()),
        libc::EINVAL,
        "streams exclude cross-channel operations"
    );
    let receives = CrossChannel {
        managed_recv: true,
        ..MASTER
    };
    let none = builder().cross_channel(receives);
    assert_eq!(
        errno(none.build()),
        libc::EINVAL,
        "an initiator has no receives"
    );
    assert_eq!(errno(builder().depth(u32::MAX, 1).build()), libc::EINVAL);
    let many = DciStreams {
        log_concurrent: 5,
        ..streams
    };
    assert_eq!(errno(builder().streams(many).build()), libc::EINVAL);

    let (plain, master) = (
        builder().build().unwrap(),
        builder().cross_channel(MASTER).build().unwrap(),
    );
    let wait = |by: &DynamicInitiator, cq| errno(by.post_wait(1, cq, 1, TaskGroup::Last));
    assert_eq!(wait(&plain, &pair.sends), libc::EINVAL);
    assert_eq!(wait(&master, &pair.arrivals), libc::EINVAL);
    for of in [&plain, &master] {
        let release = master.post_enable(of, ManagedQueue::Send, 1, TaskGroup::Last);
        assert_eq!(errno(release), libc::EINVAL, "the queue is not managed");
    }
}

/// An error on a stream does not affect other streams.
//= DC-40 type=test
#[test]
fn a_stream_fails_alone_and_comes_back() {
    let pair = Pair::new();
    let streams = DciStreams {
        log_concurrent: 2,
        log_errored: 2,
    };
    let builder = pair.a.dynamic_initiator_builder(&pair.sends);
    let initiator = builder.streams(streams).build().unwrap();
    let (address, to) = (&pair.way, &pair.target.address());
    let closed = RemoteMemory {
        rkey: Rkey::new(1),
        ..pair.there.remote()
    };
    let status = |stream, request: SendRequest<'_>| {
        initiator
            .post_send_on(stream, &request, address, to)
            .unwrap();
        match pair.sends.wait(MINUTE) {
            Ok(_) => WcStatus::Success,
            Err(WaitError::Completion(Completion { status, .. })) => status,
            Err(other) => panic!("{other}"),
        }
    };
    let bad = SendRequest::write_inline(b"?", closed);
    let good = SendRequest::write_inline(b"!", pair.there.remote().at(2048));
    assert_eq!(errno(initiator.reset_stream(1)), libc::EINVAL);
    assert_eq!(status(1, bad), WcStatus::RemoteAccessError);
    assert_eq!(status(1, good), WcStatus::Flushed);
    assert_eq!(status(2, good), WcStatus::Success);
    assert_eq!(initiator.state(), QpState::Rts);
    initiator.reset_stream(1).unwrap();
    assert_eq!(status(1, good), WcStatus::Success);
    assert_eq!(pair.there.to_vec(2048..2049).unwrap(), b"!");
}

/// Objects may be dropped in any order.
#[test]
fn parts_end_in_any_order() {
    let Pair {
        a,
        sends,
        way,
        target,
        arrivals,
        there,
        memory,
        ..
    } = Pair::new();
    let master = a.dynamic_initiator_builder(&sends).cross_channel(MASTER);
    let master = master.build().unwrap();
    let held = a.dynamic_initiator_builder(&sends).cross_channel(MANAGED);
    let held = held.build().unwrap();
    let (to, text) = (target.address(), SendRequest::send_inline(b"never"));
    held.post_send(&text, &way, &to).unwrap();
    master.post_wait(1, &sends, 1, TaskGroup::Last).unwrap();
    master
        .post_enable(&held, ManagedQueue::Send, 0, TaskGroup::Last)
        .unwrap();
    drop((a, way, held));
    // The master waits for a completion of its own queue, which the program has dropped.
    assert!(matches!(sends.wait(MINUTE), Err(WaitError::TimedOut)));
    drop(sends);
    drop(master);
    drop((target, there, memory));
    assert!(arrivals.poll().is_none());
}
