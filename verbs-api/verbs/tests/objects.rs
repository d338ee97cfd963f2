//! Errors and counters of device memory, null regions, FLUSH, rate limits and other rare features.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::time::{Duration, Instant};

use rocade_verbs::{
    AccessFlags, Completion, CompletionQueue, Config, ConnectOptions, DeviceList, MemoryRegion,
    MigrationState, ProtectionDomain, QueuePair, Rate, SendRequest, UdAddress, WaitError, WcOpcode,
    WcStatus,
};

/// A time limit that is long enough for any machine.
const LONG: Duration = Duration::from_secs(20);

fn domains(a: &str, b: &str) -> (ProtectionDomain, ProtectionDomain) {
    let specs = [format!("a={a}"), format!("b={b}")];
    let config = Config::from_specs(&specs).unwrap();
    let list = DeviceList::new(config).unwrap();
    let domain = |name| list.open(name).unwrap().protection_domain().unwrap();
    (domain("a"), domain("b"))
}

/// A requester with completion queue, memory and a passive peer.
struct Requester {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    _peer: (QueuePair, CompletionQueue),
}

impl Requester {
    fn new(a: &ProtectionDomain, b: &ProtectionDomain) -> Self {
        let cq = a.context().completion_queue(16).unwrap();
        let peer_cq = b.context().completion_queue(16).unwrap();
        let (here, there) = (
            a.queue_pair(&cq).build().unwrap(),
            b.queue_pair(&peer_cq).build().unwrap(),
        );
        let (here_end, there_end) = (here.endpoint(), there.endpoint());
        let options = ConnectOptions::default();
        Self {
            qp: here.connect(there_end, &options).unwrap(),
            _peer: (there.connect(here_end, &options).unwrap(), peer_cq),
            memory: a.register(1 << 20, AccessFlags::LOCAL_WRITE).unwrap(),
            cq,
        }
    }

    fn outcome(&self, request: &SendRequest<'_>) -> Result<WcOpcode, WcStatus> {
        self.qp.post_send(request).unwrap();
        match self.cq.wait(LONG) {
            Ok(done) => Ok(done.opcode),
            Err(WaitError::Completion(Completion { status, .. })) => Err(status),
            Err(other) => panic!("{other}"),
        }
    }
}

//= WRX-12 type=test
#[test]
fn a_flush_needs_its_right_and_a_length() {
    let (a, b) = domains("127.0.0.119", "127.0.0.120");
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let open = b
        .register(4096, writable | AccessFlags::FLUSH_GLOBAL)
        .unwrap();
    let closed = b.register(4096, writable).unwrap();
    let outcome = |request: SendRequest<'_>| Requester::new(&a, &b).outcome(&request);
    assert_eq!(
        outcome(SendRequest::flush(open.remote())),
        Ok(WcOpcode::Flush)
    );
    assert_eq!(
        outcome(SendRequest::flush_region(open.remote().at(4000))),
        Ok(WcOpcode::Flush)
    );
    let refused = Err(WcStatus::RemoteAccessError);
    assert_eq!(outcome(SendRequest::flush(closed.remote())), refused);
    assert_eq!(outcome(SendRequest::flush_region(closed.remote())), refused);
    let mut beyond = open.remote();
    beyond.len += 1;
    assert_eq!(outcome(SendRequest::flush(beyond)), refused);
    for len in [1 << 31, 1 << 40] {
        beyond.len = len;
        let invalid = Err(WcStatus::RemoteInvalidRequest);
        assert_eq!(outcome(SendRequest::flush(beyond)), invalid, "{len}");
    }
    // ATOMIC WRITE with and without the right, at an unaligned address and beyond the end.
    let data = 7_u64.to_ne_bytes();
    let write = |at| SendRequest::atomic_write(&data, at);
    assert_eq!(outcome(write(open.remote())), Ok(WcOpcode::AtomicWrite));
    assert_eq!(open.load_u64(0).unwrap(), 7);
    assert_eq!(
        outcome(write(open.remote().at(3))),
        Err(WcStatus::RemoteInvalidRequest)
    );
    assert_eq!(outcome(write(open.remote().at(4096))), refused);
    let read_only = b.register(4096, AccessFlags::REMOTE_READ).unwrap();
    assert_eq!(outcome(write(read_only.remote())), refused);
    assert_eq!(read_only.load_u64(0).unwrap(), 0);
}

//= DM-02 DM-03 NUL-01 type=test
#[test]
fn memory_that_is_not_our_own() {
    let (a, b) = domains("127.0.0.121", "127.0.0.122");
    let ours = a.context().device_memory(100).unwrap();
    assert_eq!((ours.len(), ours.is_empty()), (100, false));
    assert!(a.context().device_memory(0).is_err());
    assert!(ours.write(96, &[1; 8]).is_err(), "beyond the end");
    assert!(ours.write(2, &[1; 4]).is_err(), "misaligned");
    ours.write(96, &[1; 4]).unwrap();
    let access = AccessFlags::LOCAL_WRITE;
    assert!(a.register_device_memory(&ours, 0..101, access).is_err());
    let backwards = std::ops::Range { start: 8, end: 4 };
    assert!(a.register_device_memory(&ours, backwards, access).is_err());
    assert!(b.register_device_memory(&ours, 0..100, access).is_err());
    let region = a.register_device_memory(&ours, 92..100, access).unwrap();
    assert!(region.sge(0..9).is_err());
    assert!(region.sge(std::ops::Range { start: 4, end: 2 }).is_err());

    // A WRITE sends the bytes of device memory. Bytes read into a null region are discarded.
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let there = b.register(64, rights).unwrap();
    let requester = Requester::new(&a, &b);
    let sges = [region.sge(4..8).unwrap(), a.null_region().unwrap().sge(4)];
    let missing = requester.outcome(&SendRequest::write(&sges, there.remote()));
    assert_eq!(
        missing,
        Err(WcStatus::LocalProtectionError),
        "the null region was dropped"
    );
    let requester = Requester::new(&a, &b);
    let null = a.null_region().unwrap();
    there.write(0, &[9; 64]).unwrap();
    let sges = [region.sge(4..8).unwrap(), null.sge(4)];
    let wrote = requester.outcome(&SendRequest::write(&sges, there.remote()));
    assert_eq!(wrote, Ok(WcOpcode::RdmaWrite));
    assert_eq!(there.to_vec(..9).unwrap(), [1, 1, 1, 1, 0, 0, 0, 0, 9]);
    let sges = [null.sge(8), requester.memory.sge(..1).unwrap()];
    let read = requester.outcome(&SendRequest::read(&sges, there.remote()));
    assert_eq!(read, Ok(WcOpcode::RdmaRead));
    assert_eq!(requester.memory.to_vec(..1).unwrap(), [9]);
}

//= QPS-05 type=test
#[test]
fn a_rate_takes_its_time() {
    let (a, b) = domains("127.0.0.123", "127.0.0.124");
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let there = b.register(1 << 20, rights).unwrap();
    let requester = Requester::new(&a, &b);
    // At 80 Mbit/s a MiB takes 0.1 s.
    requester.qp.set_rate_limit(Rate::from_mbps(80)).unwrap();
    let sges = [requester.memory.sge(..).unwrap()];
    let begin = Instant::now();
    let wrote = requester.outcome(&SendRequest::write(&sges, there.remote()));
    assert_eq!(wrote, Ok(WcOpcode::RdmaWrite));
    assert!(begin.elapsed() >= Duration::from_millis(100));
    // A device with one port has no alternate path.
    let qp = &requester.qp;
    assert_eq!(
        (qp.migration_state(), qp.path_port()),
        (MigrationState::Migrated, 1)
    );
    assert!(qp.set_alternate_path(2, qp.peer().gid).is_err());
    assert!(a.context().gids_of(2).is_err() && a.context().port_at(2).is_err());
}

//= UD-05 type=test
#[test]
fn a_port_counts_wrong_keys() {
    let (a, b) = domains("127.0.0.125", "127.0.0.126");
    let (a_cq, b_cq) = (
        a.context().completion_queue(16).unwrap(),
        b.context().completion_queue(16).unwrap(),
    );
    let from = a.datagram_queue_pair(&a_cq, 7).unwrap();
    let to = b.datagram_queue_pair(&b_cq, 7).unwrap();
    let address = a.address(to.address().gid).unwrap();
    let wrong = UdAddress {
        qkey: 8,
        ..to.address()
    };
    let port = || b.context().port().unwrap();
    assert_eq!((port().qkey_viol_cntr, port().bad_pkey_cntr), (0, 0));
    let deadline = Instant::now() + LONG;
    while port().qkey_viol_cntr == 0 {
        from.post_send(&SendRequest::send_inline(b"hello"), &address, &wrong)
            .unwrap();
        a_cq.wait(LONG).unwrap();
        assert!(Instant::now() < deadline);
    }
    assert_eq!(port().bad_pkey_cntr, 0);
}
