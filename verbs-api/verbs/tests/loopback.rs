//! Two NICs in one process, over real UDP on the loopback interface.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rocade_verbs::{
    AccessFlags, AckTimeout, AsyncEventKind, BuildError, Calc, CalcOp, Completion, CompletionQueue,
    Config, ConnectOptions, CrossChannel, DeviceList, Event, EventError, EventSource, ManagedQueue,
    MaskedAtomic, MemoryRegion, OpenError, ProtectionDomain, QpState, QueuePair, RangeError,
    RemoteMemory, Rkey, SendRequest, Task, TaskGroup, UnconnectedQueuePair, WaitError, WcOpcode,
    WcStatus, WordError, post_tasks,
};

/// A time limit that is long enough for any machine.
const LONG: Duration = Duration::from_secs(20);

fn everything() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
}

struct Node {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Node {
    fn new(list: &DeviceList, name: &str) -> Self {
        let pd = list.open(name).unwrap().protection_domain().unwrap();
        let cq = pd.context().completion_queue(64).unwrap();
        let memory = pd.register(1 << 20, everything()).unwrap();
        Self { pd, cq, memory }
    }

    fn queue_pair(&self) -> UnconnectedQueuePair {
        self.pd.queue_pair(&self.cq).build().unwrap()
    }
}

/// Creates two nodes with one address each. No other test of this program may use the addresses.
fn nodes(a: &str, b: &str) -> (Node, Node) {
    let specs = [format!("a={a}"), format!("b={b}")];
    let config = Config::from_specs(&specs).unwrap();
    let list = DeviceList::new(config).unwrap();
    (Node::new(&list, "a"), Node::new(&list, "b"))
}

fn connect(
    a: UnconnectedQueuePair,
    b: UnconnectedQueuePair,
    options: &ConnectOptions,
) -> (QueuePair, QueuePair) {
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    (
        a.connect(b_end, options).unwrap(),
        b.connect(a_end, options).unwrap(),
    )
}

fn connected(a: &Node, b: &Node) -> (QueuePair, QueuePair) {
    connect(a.queue_pair(), b.queue_pair(), &ConnectOptions::default())
}

/// Returns bytes that differ from place to place.
fn sample(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 7 + at / 251) % 256).unwrap())
        .collect()
}

#[test]
fn first_psns_are_random_in_all_bits() {
    let (a, b) = nodes("127.0.11.31", "127.0.11.32");
    let psns: Vec<u32> = (0..500)
        .map(|n| [&a, &b][n % 2].queue_pair().endpoint().psn.get())
        .collect();
    for bit in 0..24 {
        let ones = psns.iter().filter(|psn| *psn >> bit & 1 == 1).count();
        assert!((150..350).contains(&ones), "bit {bit}: {ones} of 500");
    }
}

#[test]
fn send_carries_data_and_immediate() {
    let (a, b) = nodes("127.0.11.1", "127.0.11.2");
    let (a_qp, b_qp) = connected(&a, &b);
    let data = sample(70_001);
    a.memory.write(3, &data).unwrap();
    b_qp.post_recv(9, &[b.memory.sge(5..100_000).unwrap()])
        .unwrap();
    // Two scatter/gather entries become one message.
    let sges = [
        a.memory.sge(3..1000).unwrap(),
        a.memory.sge(1000..3 + data.len()).unwrap(),
    ];
    a_qp.post_send(&SendRequest::send(&sges).wr_id(7).imm(*b"imm!"))
        .unwrap();

    let received = b.cq.wait(LONG).unwrap();
    assert_eq!((received.wr_id, received.opcode), (9, WcOpcode::Recv));
    assert_eq!(received.byte_len as usize, data.len());
    assert_eq!(received.immediate, Some(*b"imm!"));
    assert!(b_qp.owns(&received) && !a_qp.owns(&received));
    assert_eq!(b.memory.to_vec(5..5 + data.len()).unwrap(), data);
    assert_eq!(a.cq.wait(LONG).unwrap().wr_id, 7);
}

#[test]
fn write_and_read_move_memory() {
    let (a, b) = nodes("127.0.12.1", "127.0.12.2");
    let (a_qp, _b_qp) = connected(&a, &b);
    let data = sample(33_333);
    a.memory.write(0, &data).unwrap();
    let there = b.memory.remote().at(4095);
    let local = [a.memory.sge(..data.len()).unwrap()];
    let back = [a.memory.sge(500_000..500_000 + data.len()).unwrap()];
    a_qp.post_sends(&[
        SendRequest::write(&local, there).unsignaled(),
        SendRequest::write_inline(b"!", there.at(data.len() as u64)).unsignaled(),
        SendRequest::read(&back, there).wr_id(3),
    ])
    .unwrap();
    assert_eq!(a.cq.wait(LONG).unwrap().wr_id, 3);
    assert_eq!(
        a.memory.to_vec(500_000..500_000 + data.len()).unwrap(),
        data
    );
    assert_eq!(b.memory.to_vec(4095..4095 + data.len()).unwrap(), data);
    assert_eq!(
        b.memory
            .to_vec(4095 + data.len()..4095 + data.len() + 2)
            .unwrap(),
        b"!\0"
    );
    assert!(a.cq.poll().is_none() && b.cq.poll().is_none());
}

#[test]
fn atomics_return_the_old_value() {
    let (a, _b) = nodes("127.0.13.1", "127.0.13.2");
    // Both ends are on the same device.
    let (qp, _other) = connected(&a, &a);
    let counter = a.memory.remote().at(64);
    let result = [a.memory.sge(..8).unwrap()];
    let ask = |request: SendRequest<'_>| {
        qp.post_send(&request).unwrap();
        a.cq.wait(LONG).unwrap();
        a.memory.load_u64(0).unwrap()
    };
    assert_eq!(ask(SendRequest::fetch_add(&result, counter, 5)), 0);
    assert_eq!(ask(SendRequest::fetch_add(&result, counter, u64::MAX)), 5);
    assert_eq!(ask(SendRequest::compare_swap(&result, counter, 7, 1)), 4);
    assert_eq!(
        ask(SendRequest::compare_swap(&result, counter, 4, 1 << 60)),
        4
    );
    assert_eq!(a.memory.load_u64(64).unwrap(), 1 << 60);
}

#[test]
fn a_wrong_remote_key_is_a_failed_completion() {
    let (a, b) = nodes("127.0.14.1", "127.0.14.2");
    let (a_qp, b_qp) = connected(&a, &b);
    let mut wrong = b.memory.remote();
    wrong.rkey = Rkey::new(wrong.rkey.get() ^ 0x100);
    a_qp.post_send(&SendRequest::write(&[a.memory.sge(..8).unwrap()], wrong).wr_id(5))
        .unwrap();
    match a.cq.wait(LONG) {
        Err(WaitError::Completion(Completion {
            wr_id: 5,
            status: WcStatus::RemoteAccessError,
            ..
        })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(a_qp.state(), QpState::Err);
    let deadline = Instant::now() + LONG;
    while b_qp.state() != QpState::Err {
        assert!(
            Instant::now() < deadline,
            "the responder does not enter ERR"
        );
        thread::yield_now();
    }
}

#[test]
fn memory_that_is_gone_is_a_failed_completion() {
    let (a, b) = nodes("127.0.15.1", "127.0.15.2");
    let (a_qp, _b_qp) = connected(&a, &b);
    let gone = a.pd.register(100, AccessFlags::empty()).unwrap();
    let sge = gone.sge(..).unwrap();
    drop(gone);
    a_qp.post_send(&SendRequest::write(&[sge], b.memory.remote()))
        .unwrap();
    match a.cq.wait(LONG) {
        Err(WaitError::Completion(Completion {
            status: WcStatus::LocalProtectionError,
            ..
        })) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_is_gone_ends_the_retries() {
    let (a, b) = nodes("127.0.16.1", "127.0.16.2");
    let options = ConnectOptions {
        timeout: AckTimeout::at_least(Duration::from_millis(1)),
        retry_cnt: 2,
        ..ConnectOptions::default()
    };
    let (a_qp, b_qp) = connect(a.queue_pair(), b.queue_pair(), &options);
    drop(b_qp);
    a_qp.post_send(&SendRequest::write_inline(b"?", b.memory.remote()))
        .unwrap();
    match a.cq.wait(LONG) {
        Err(WaitError::Completion(Completion {
            status: WcStatus::RetryExceeded,
            ..
        })) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn waiting_ends_in_time_and_wakes_up() {
    let (a, b) = nodes("127.0.17.1", "127.0.17.2");
    let (a_qp, b_qp) = connected(&a, &b);
    let begin = Instant::now();
    let nothing = b.cq.wait(Duration::from_millis(30));
    assert!(matches!(nothing, Err(WaitError::TimedOut)), "{nothing:?}");
    assert!(begin.elapsed() >= Duration::from_millis(30));

    b_qp.post_recv(1, &[b.memory.sge(..8).unwrap()]).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| b.cq.wait(LONG).map(|completion| completion.wr_id));
        a_qp.post_send(&SendRequest::send_inline(b"wake up!"))
            .unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), 1);
    });
    let _fd = b.cq.as_fd();
}

#[test]
fn mistakes_are_errors() {
    let (a, _b) = nodes("127.0.18.1", "127.0.18.2");
    assert!(matches!(
        a.pd.queue_pair(&a.cq).gid_index(3).build(),
        Err(BuildError::NoGid(3))
    ));
    assert!(matches!(
        a.pd.queue_pair(&a.cq).max_sges(1000).build(),
        Err(BuildError::Verbs(_))
    ));
    assert!(
        a.pd.register(8, AccessFlags::REMOTE_WRITE).is_err(),
        "needs LOCAL_WRITE"
    );
    assert!(a.pd.context().completion_queue(0).is_err());
    let config = Config::from_specs(&["x=127.0.18.3"]).unwrap();
    let list = DeviceList::new(config).unwrap();
    assert!(matches!(list.open("y"), Err(OpenError::NoDevice(name)) if name == "y"));
    assert_eq!(list.open_first().unwrap().device().name, "x");
}

#[test]
fn memory_is_checked_and_copied_at_any_alignment() {
    let (a, _b) = nodes("127.0.19.1", "127.0.19.2");
    let memory = a.pd.register(64, everything()).unwrap();
    let data = sample(64);
    for start in 0..20 {
        for len in 0..=64 - start {
            memory.write(0, &[0xee; 64]).unwrap();
            memory.write(start, &data[..len]).unwrap();
            assert_eq!(memory.to_vec(start..start + len).unwrap(), data[..len]);
            let around = memory.to_vec(..64).unwrap();
            assert!(
                around[..start]
                    .iter()
                    .chain(&around[start + len..])
                    .all(|&b| b == 0xee)
            );
        }
    }
    let value = u64::from_ne_bytes(*b"01234567");
    memory.store_u64(8, value).unwrap();
    assert_eq!(memory.to_vec(8..16).unwrap(), b"01234567");
    assert!(matches!(
        memory.load_u64(4),
        Err(WordError::Misaligned { offset: 4 })
    ));
    assert!(matches!(
        memory.store_u64(64, 0),
        Err(WordError::OutOfRange(_))
    ));
    for refused in [
        memory.write(60, &[0; 5]),
        memory.write(usize::MAX, &[0; 2]),
        memory.read(65, &mut []),
        memory.sge(60..65).map(drop),
        memory.sge(usize::MAX..).map(drop),
    ] {
        assert!(matches!(refused, Err(RangeError { .. })), "{refused:?}");
    }
    assert_eq!(memory.sge(..).unwrap().len, 64);
    assert_eq!(memory.sge(60..).unwrap().len, 4);
    assert_eq!(memory.sge(1..=2).unwrap().len, 2);
}

//= CQ-04 type=test
//= CQ-10 type=test
#[test]
fn a_queue_changes_its_size_and_its_events() {
    let (a, b) = nodes("127.0.20.1", "127.0.20.2");
    let (a_qp, b_qp) = connected(&a, &b);
    for wr_id in 0..10 {
        b_qp.post_recv(wr_id, &[]).unwrap();
        a_qp.post_send(&SendRequest::send(&[])).unwrap();
    }
    b.cq.resize(10).unwrap();
    assert_eq!(b.cq.entries(), 10);
    let order: Vec<_> = b.cq.wait_for(10, LONG).unwrap();
    assert!(order.iter().map(|completion| completion.wr_id).eq(0..10));
    assert!(b.cq.resize(0).is_err());

    assert!(b.cq.moderate(2, Duration::from_millis(66)).is_err());
    b.cq.moderate(1_000, Duration::from_millis(5)).unwrap();
    b.cq.arm_solicited().unwrap();
    b_qp.post_recv(1, &[]).unwrap();
    a_qp.post_send(&SendRequest::send(&[]).solicited()).unwrap();
    b.cq.wait(LONG).unwrap();
}

//= CQX-06 type=test
#[test]
fn a_queue_may_overwrite_its_completions() {
    let (a, b) = nodes("127.0.21.1", "127.0.21.2");
    let cq = b.pd.context().completion_queue_ignoring_overrun(2).unwrap();
    let b_qp = b.pd.queue_pair(&cq).build().unwrap();
    let (a_qp, b_qp) = connect(a.queue_pair(), b_qp, &ConnectOptions::default());
    let before = SystemTime::now();
    for wr_id in 0..9 {
        b_qp.post_recv(wr_id, &[]).unwrap();
        a_qp.post_send(&SendRequest::send(&[])).unwrap();
        a.cq.wait(LONG).unwrap();
    }
    let mut left = vec![cq.wait(LONG).unwrap()];
    while left.last().unwrap().wr_id != 8 {
        left.push(cq.wait(LONG).unwrap());
    }
    // The last completion may have arrived only now.
    assert!(left.len() <= 3, "{left:?}");
    assert!(left.is_sorted_by_key(|completion| completion.wr_id));
    assert_eq!(b_qp.state(), QpState::Rts);
    let second = left.last().unwrap();

    assert!(second.timestamp_ns <= b.pd.context().clock_ns());
    let after = SystemTime::now();
    // The clocks are read one after the other. Other processes may run in between, but not each
    // time.
    let slack = Duration::from_millis(50);
    let received = || b.pd.context().time_of(second.timestamp_ns);
    let fits = |received| before <= received + slack && received <= after + slack;
    assert!((0..100).any(|_| fits(received())), "{:?}", received());
}

//= SRQ-02 type=test
//= SRQ-04 type=test
//= PST-08 type=test
#[test]
fn queue_pairs_share_their_receives() {
    let (a, b) = nodes("127.0.22.1", "127.0.22.2");
    // Memory of the SRQ's own protection domain, which is not that of the queue pairs.
    let other = b.pd.context().protection_domain().unwrap();
    let memory = other.register(64, everything()).unwrap();
    let receives = other.shared_receive_queue(4, 1).unwrap();
    assert!(receives.limit_reached(), "no limit is armed");
    let connected = || {
        let there = b.pd.queue_pair(&b.cq).shared_receives(&receives);
        let there = there.build().unwrap();
        assert!(there.post_recv(1, &[]).is_err());
        connect(a.queue_pair(), there, &ConnectOptions::default())
    };
    let pairs = [connected(), connected()];
    for (wr_id, at) in (0..4).zip((0..).step_by(16)) {
        let sge = memory.sge(at..at + 16).unwrap();
        receives.post_recv(wr_id, &[sge]).unwrap();
    }
    assert!(receives.post_recv(4, &[]).is_err());
    receives.arm_limit(3).unwrap();
    for (n, qp) in [(0, 0), (1, 1), (2, 1), (3, 0)] {
        assert_eq!(receives.limit_reached(), n > 1, "{n}");
        let text = [b'0' + n; 8];
        pairs[qp]
            .0
            .post_send(&SendRequest::send_inline(&text))
            .unwrap();
        let received = b.cq.wait(LONG).unwrap();
        assert_eq!(received.wr_id, u64::from(n));
        assert!(pairs[qp].1.owns(&received));
        assert_eq!(
            memory
                .to_vec(usize::from(n) * 16..usize::from(n) * 16 + 8)
                .unwrap(),
            text
        );
        a.cq.wait(LONG).unwrap();
    }
    assert!(receives.arm_limit(5).is_err());
    receives.resize(8).unwrap();
    assert_eq!(receives.depth(), 8);
    for wr_id in 0..8 {
        receives.post_recv(wr_id, &[]).unwrap();
    }
    assert!(receives.resize(7).is_err());
    assert!(receives.post_recv(8, &[]).is_err());
}

#[test]
fn events_are_waited_for() {
    let (a, b) = nodes("127.0.23.1", "127.0.23.2");
    let context = b.pd.context();
    assert_eq!(context.poll_event().unwrap(), None);
    let nothing = context.wait_event(Duration::from_millis(20));
    assert!(matches!(nothing, Err(EventError::TimedOut)), "{nothing:?}");
    // A WRITE with an invalid key.
    let (a_qp, b_qp) = connected(&a, &b);
    let target = RemoteMemory {
        rkey: Rkey::new(1),
        ..b.memory.remote()
    };
    a_qp.post_send(&SendRequest::write_inline(b"?", target))
        .unwrap();
    assert_eq!(
        context.wait_event(LONG).unwrap(),
        Event {
            kind: AsyncEventKind::QpAccessErr,
            source: EventSource::QueuePair(b_qp.id()),
        }
    );
}

/// Returns the status of a request that fails.
fn failed(cq: &CompletionQueue) -> WcStatus {
    match cq.wait(LONG) {
        Err(WaitError::Completion(Completion { status, .. })) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_window_is_lent_to_one_peer_and_taken_back_by_either_side() {
    let (a, b) = nodes("127.8.40.1", "127.8.40.2");
    let (here, there) = connected(&a, &b);
    let closed = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let region = a.pd.register(1 << 16, closed).unwrap();
    let window = a.pd.memory_window().unwrap();
    let data = sample(1 << 15);
    b.memory.write(0, &data).unwrap();
    let own = b.memory.sge(..1 << 15).unwrap();
    let mut keys = Vec::new();
    for by_peer in [true, false] {
        let part = 4096..4096 + (1 << 15);
        let (bind, lent) = window
            .bind_request(&region, part, AccessFlags::REMOTE_WRITE)
            .unwrap();
        keys.push(lent.rkey);
        here.post_send(&bind.wr_id(1)).unwrap();
        let done = a.cq.wait(LONG).unwrap();
        assert_eq!((done.wr_id, done.opcode), (1, WcOpcode::BindMw));
        there.post_send(&SendRequest::write(&[own], lent)).unwrap();
        b.cq.wait(LONG).unwrap();
        assert_eq!(region.to_vec(4096..4096 + (1 << 15)).unwrap(), data);
        if by_peer {
            here.post_recv(2, &[]).unwrap();
            there
                .post_send(&SendRequest::send_invalidating(&[], lent.rkey))
                .unwrap();
            b.cq.wait(LONG).unwrap();
            assert_eq!(a.cq.wait(LONG).unwrap().invalidated, Some(lent.rkey));
        } else {
            here.post_send(&SendRequest::invalidate(lent.rkey)).unwrap();
            assert_eq!(a.cq.wait(LONG).unwrap().opcode, WcOpcode::LocalInv);
        }
    }
    assert_ne!(keys[0], keys[1]);
    let beyond = window.bind_request(&region, ..=1 << 16, AccessFlags::REMOTE_WRITE);
    assert!(matches!(beyond, Err(RangeError { .. })));
    // Dropping a region invalidates a window that is bound to it.
    let (bind, lent) = window
        .bind_request(&region, .., AccessFlags::REMOTE_WRITE)
        .unwrap();
    here.post_send(&bind).unwrap();
    a.cq.wait(LONG).unwrap();
    drop(region);
    there.post_send(&SendRequest::write(&[own], lent)).unwrap();
    assert_eq!(failed(&b.cq), WcStatus::RemoteAccessError);
}

#[test]
fn a_region_changes_its_rights_and_its_size() {
    let (mut a, b) = nodes("127.8.41.1", "127.8.41.2");
    let data = sample(4096);
    a.memory.write(0, &data).unwrap();
    let old = a.memory.remote();
    a.memory.resize(1 << 21).unwrap();
    let new = a.memory.remote();
    assert_eq!(
        (new.rkey, new.len, a.memory.len()),
        (old.rkey, 1 << 21, 1 << 21)
    );
    assert_eq!(a.memory.to_vec(..4096).unwrap(), data);
    assert_eq!(a.memory.to_vec(1 << 20..(1 << 20) + 8).unwrap(), [0; 8]);
    let (_here, there) = connected(&a, &b);
    b.memory.write(0, b"far away").unwrap();
    let own = b.memory.sge(..8).unwrap();
    there
        .post_send(&SendRequest::write(&[own], new.at((1 << 21) - 8)))
        .unwrap();
    b.cq.wait(LONG).unwrap();
    assert_eq!(
        a.memory.to_vec((1 << 21) - 8..1 << 21).unwrap(),
        b"far away"
    );
    a.memory.resize(64).unwrap();
    assert_eq!(a.memory.to_vec(..64).unwrap(), data[..64]);
    assert!(a.memory.resize(0).is_err());
    assert_eq!(a.memory.len(), 64);
    assert!(a.memory.set_access(AccessFlags::REMOTE_WRITE).is_err());
    a.memory.set_access(AccessFlags::LOCAL_WRITE).unwrap();
    there
        .post_send(&SendRequest::write(&[own], a.memory.remote()))
        .unwrap();
    assert_eq!(failed(&b.cq), WcStatus::RemoteAccessError);
}

//= UMR-03 type=test
//= UMR-16 type=test
//= XAT-17 type=test
#[test]
fn segments_of_regions_are_one_range_and_atomics_have_masks() {
    let (a, b) = nodes("127.3.14.1", "127.3.14.2");
    let (a_qp, b_qp) = connected(&a, &b);
    let data = sample(4096);
    a.memory.write(0, &data).unwrap();
    let key = a.pd.indirect_key(2, everything()).unwrap();
    let sges = [
        a.memory.sge(3000..3100).unwrap(),
        a.memory.sge(7..1000).unwrap(),
    ];
    let change = key.list(&sges).unwrap();
    a_qp.post_sends(&[
        SendRequest::map_key(&change).unsignaled(),
        SendRequest::write(&[key.sge(..1093).unwrap()], b.memory.remote()),
    ])
    .unwrap();
    a.cq.wait(LONG).unwrap();
    let expected = [&data[3000..3100], &data[7..1000]].concat();
    assert_eq!(b.memory.to_vec(..1093).unwrap(), expected);
    // The peer reads every other byte through the key.
    let every_other = key
        .repeated(&[(a.memory.sge(..1).unwrap(), 2)], 50)
        .unwrap();
    a_qp.post_send(&SendRequest::map_key(&every_other)).unwrap();
    let done = a.cq.wait(LONG).unwrap();
    assert_eq!(done.opcode, WcOpcode::Umr);
    let into = [b.memory.sge(..50).unwrap()];
    b_qp.post_send(&SendRequest::read(&into, key.remote(..50).unwrap()))
        .unwrap();
    b.cq.wait(LONG).unwrap();
    let wanted: Vec<u8> = data[..100].iter().step_by(2).copied().collect();
    assert_eq!(b.memory.to_vec(..50).unwrap(), wanted);
    // An atomic on two fields.
    b.memory
        .write(64, &0xffff_ffff_ffff_ffffu64.to_ne_bytes())
        .unwrap();
    let add = MaskedAtomic::fetch_add(1, 1 << 31);
    let mut at = b.memory.remote();
    at.addr += 64;
    let result = [a.memory.sge(..8).unwrap()];
    a_qp.post_send(&SendRequest::masked(&result, at, &add))
        .unwrap();
    assert_eq!(a.cq.wait(LONG).unwrap().opcode, WcOpcode::MaskedFetchAdd);
    let sum = 0xffff_ffff_0000_0000u64.to_ne_bytes();
    assert_eq!(b.memory.to_vec(64..72).unwrap(), sum);
    // Atomics on 4 bytes and on more than 8.
    b.memory.write(64, &[0xff; 32]).unwrap();
    let change = |atomic: &MaskedAtomic, at: RemoteMemory| {
        let result = [a.memory.sge(..atomic.len()).unwrap()];
        let request = SendRequest::masked(&result, at, atomic);
        a_qp.post_send(&request).unwrap();
        let done = a.cq.wait(LONG).unwrap();
        assert_eq!(done.byte_len as usize, atomic.len());
        a.memory.to_vec(..atomic.len()).unwrap()
    };
    let half = MaskedAtomic::fetch_add_u32(0x0001_0001, 0x8000_8000);
    assert_eq!(change(&half, at), [0xff; 4]);
    assert_eq!(b.memory.to_vec(64..68).unwrap(), [0; 4]);
    assert_eq!(b.memory.to_vec(68..72).unwrap(), [0xff; 4]);
    let half = MaskedAtomic::compare_swap_u32(0, u32::MAX, 0x1234_5678, 0xffff);
    assert_eq!(change(&half, at), [0; 4]);
    assert_eq!(b.memory.to_vec(64..68).unwrap(), 0x5678u32.to_ne_bytes());
    // The region may start anywhere, so the operand is aligned to 32 bytes first.
    let up = at.addr.next_multiple_of(32);
    let (offset, at) = (
        64 + usize::try_from(up - at.addr).unwrap(),
        at.at(up - at.addr),
    );
    b.memory.write(offset, &[0; 32]).unwrap();
    let add = MaskedAtomic::fetch_add_words([1, 2, 3, u64::MAX], [0; 4]);
    assert_eq!(change(&add, at), [0; 32]);
    let swap = |expected| {
        MaskedAtomic::compare_swap_words([1, expected], [u64::MAX; 2], [7, 8], [u64::MAX; 2])
    };
    let words = |bytes: Vec<u8>| {
        bytes
            .as_chunks::<8>()
            .0
            .iter()
            .copied()
            .map(u64::from_ne_bytes)
            .collect::<Vec<_>>()
    };
    assert_eq!(words(change(&swap(3), at)), [1, 2]);
    assert_eq!(
        words(b.memory.to_vec(offset..offset + 32).unwrap()),
        [1, 2, 3, u64::MAX]
    );
    assert_eq!(words(change(&swap(2), at)), [1, 2]);
    assert_eq!(
        words(b.memory.to_vec(offset..offset + 32).unwrap()),
        [7, 8, 3, u64::MAX]
    );
    a_qp.post_send(&SendRequest::map_key(&key.free().unwrap()))
        .unwrap();
    a.cq.wait(LONG).unwrap();
    b_qp.post_send(&SendRequest::read(&into, key.remote(..50).unwrap()))
        .unwrap();
    assert_eq!(failed(&b.cq), WcStatus::RemoteAccessError);
    assert!(key.list(&[sges[0]; 3]).is_err() && key.list(&[]).is_err());
}

/// A task list for two queues: executed in order, up to the task that fails.
//= XCT-01 XCT-02 type=test
#[test]
fn tasks_are_posted_in_order_up_to_the_one_that_fails() {
    let (a, b) = nodes("127.3.15.1", "127.3.15.2");
    let role = |managed_send| CrossChannel {
        is_master: true,
        managed_send,
        ..CrossChannel::default()
    };
    let (sends, decisions) = (a.pd.queue_pair(&a.cq), a.pd.context());
    let decisions = decisions.completion_queue(16).unwrap();
    decisions.allow_waits();
    let arrivals = b.pd.context().completion_queue(16).unwrap();
    let sends = sends.cross_channel(role(true)).build().unwrap();
    let master = a.pd.queue_pair(&decisions).cross_channel(role(false));
    let master = master.build().unwrap();
    let receives = b.pd.queue_pair(&b.cq).recv_cq(&arrivals).build().unwrap();
    let ends = (sends.endpoint(), receives.endpoint(), master.endpoint());
    let options = ConnectOptions::default();
    let sends = sends.connect(ends.1, &options).unwrap();
    let receives = receives.connect(ends.0, &options).unwrap();
    let master = master.connect(ends.2, &options).unwrap();
    let (text, room) = ([a.memory.sge(..16).unwrap()], [b.memory.sge(..16).unwrap()]);
    let request = SendRequest::send(&text);
    let release = |count| Task::Enable {
        master: &master,
        of: &sends,
        which: ManagedQueue::Send,
        count,
        group: TaskGroup::Last,
    };
    let failed = post_tasks(&[
        Task::Recv(&receives, 5, &room),
        Task::Send(&sends, &request),
        release(1),
        release(1),
        Task::Send(&sends, &request),
    ]);
    assert_eq!(failed.unwrap_err().index, 3, "only one request is posted");
    assert_eq!(arrivals.wait(LONG).unwrap().wr_id, 5);
    a.cq.wait(LONG).unwrap();
    // The last task was not posted, and the failed one did not change the base of the counts.
    assert_eq!(post_tasks(&[release(1)]).unwrap_err().index, 0);
    let whole = post_tasks(&[
        Task::Recv(&receives, 6, &room),
        Task::Calc(
            &sends,
            &request,
            Calc {
                op: CalcOp::Xor,
                located: false,
            },
        ),
        release(1),
        Task::Wait {
            master: &master,
            wr_id: 9,
            cq: &decisions,
            count: 0,
            group: TaskGroup::Last,
        },
    ]);
    whole.unwrap();
    assert_eq!(arrivals.wait(LONG).unwrap().byte_len, 8);
    assert_eq!(decisions.wait(LONG).unwrap().wr_id, 9);
}
