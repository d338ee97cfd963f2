//! Protection domains, memory regions and windows of the safe API, in a simulated network.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod common;

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, Advice, Completion, CompletionQueue, Config, ConnectOptions, DeviceList, Lkey,
    MemoryRegion, ProtectionDomain, QueuePair, RegionError, RemoteMemory, SendRequest, Sge,
    WaitError, WcOpcode, WcStatus,
};

use common::errno;

/// A minute of virtual time.
const MINUTE: Duration = Duration::from_secs(60);
const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;
const WRITABLE: AccessFlags = LOCAL.union(AccessFlags::REMOTE_WRITE);

fn domains() -> (ProtectionDomain, ProtectionDomain) {
    let list = DeviceList::new(Config::simulated(5)).unwrap();
    let domain = |name| list.open(name).unwrap().protection_domain().unwrap();
    (domain("a"), domain("b"))
}

/// A connection between two protection domains.
struct Wire {
    here: QueuePair,
    there: QueuePair,
    here_cq: CompletionQueue,
    there_cq: CompletionQueue,
}

impl Wire {
    fn new(a: &ProtectionDomain, b: &ProtectionDomain) -> Self {
        let here_cq = a.context().completion_queue(16).unwrap();
        let there_cq = b.context().completion_queue(16).unwrap();
        let here = a.queue_pair(&here_cq).build().unwrap();
        let there = b.queue_pair(&there_cq).build().unwrap();
        let (here_end, there_end) = (here.endpoint(), there.endpoint());
        let options = ConnectOptions::default();
        Self {
            here: here.connect(there_end, &options).unwrap(),
            there: there.connect(here_end, &options).unwrap(),
            here_cq,
            there_cq,
        }
    }

    fn outcome(&self, request: &SendRequest<'_>) -> WcStatus {
        self.here.post_send(request).unwrap();
        status(&self.here_cq)
    }

    /// Posts a WRITE of one byte and returns its status.
    fn put(&self, to: RemoteMemory) -> WcStatus {
        self.outcome(&SendRequest::write_inline(b"!", to))
    }
}

fn status(cq: &CompletionQueue) -> WcStatus {
    match cq.wait(MINUTE) {
        Ok(_) => WcStatus::Success,
        Err(WaitError::Completion(Completion { status, .. })) => status,
        Err(other) => panic!("{other}"),
    }
}

//= MR-05 type=test
#[test]
fn a_region_is_called_what_it_was_registered_as() {
    let (a, b) = domains();
    let elsewhere = 0xffff_8000_0000_0000;
    let zero = WRITABLE | AccessFlags::ZERO_BASED;
    let mut regions = [
        (b.register_at(4096, elsewhere, WRITABLE).unwrap(), elsewhere),
        (b.register(4096, zero).unwrap(), 0),
        (b.register_at(4096, elsewhere, zero).unwrap(), 0),
    ];
    let wire = Wire::new(&a, &b);
    for (region, address) in &regions {
        assert_eq!(region.remote().addr, *address);
        assert_eq!(region.sge(7..9).unwrap().addr, address + 7);
        assert_eq!(wire.put(region.remote().at(100)), WcStatus::Success);
        assert_eq!(region.to_vec(100..101).unwrap(), b"!");
        let sges = [region.sge(200..210).unwrap()];
        wire.there.post_recv(1, &sges).unwrap();
        let sent = wire.outcome(&SendRequest::send_inline(b"hello"));
        assert_eq!(
            (sent, status(&wire.there_cq)),
            (WcStatus::Success, WcStatus::Success)
        );
        assert_eq!(region.to_vec(200..205).unwrap(), b"hello");
    }
    // The buffer moves, but the addresses of a zero-based region still start at 0.
    let (zero_based, _) = &mut regions[1];
    zero_based.resize(9000).unwrap();
    assert_eq!(zero_based.remote().addr, 0);
    assert_eq!(wire.put(zero_based.remote().at(8999)), WcStatus::Success);
    assert_eq!(zero_based.to_vec(8999..9000).unwrap(), b"!");
    // The same holds after the rights have changed.
    zero_based.set_access(LOCAL).unwrap();
    zero_based.resize(64).unwrap();
    assert_eq!(zero_based.remote().addr, 0);
    assert_eq!(
        errno(b.register_at(4096, u64::MAX - 4094, WRITABLE)),
        libc::EINVAL
    );
}

//= ODP-05 type=test
#[test]
fn advice_is_checked() {
    let (a, _) = domains();
    let paged = a.register(1 << 20, LOCAL | AccessFlags::ON_DEMAND).unwrap();
    let read_only = a.register(4096, AccessFlags::empty()).unwrap();
    paged.write(5000, b"stays").unwrap();
    let parts = [paged.sge(..).unwrap(), read_only.sge(..100).unwrap()];
    for advice in [Advice::Prefetch, Advice::PrefetchNoFault] {
        a.advise(advice, &parts).unwrap();
    }
    a.advise(Advice::PrefetchWrite, &parts[..1]).unwrap();
    assert_eq!(paged.to_vec(5000..5005).unwrap(), b"stays");

    let refused = |pd: &ProtectionDomain, advice, part| errno(pd.advise(advice, &[part]));
    let write = refused(&a, Advice::PrefetchWrite, parts[1]);
    assert_eq!(write, libc::EPERM);
    let other = a.context().protection_domain().unwrap();
    assert_eq!(refused(&other, Advice::Prefetch, parts[0]), libc::ENOENT);
    let beyond = Sge {
        len: parts[0].len + 1,
        ..parts[0]
    };
    let null_sge = Sge {
        lkey: Lkey::new(0),
        ..parts[0]
    };
    for part in [beyond, null_sge] {
        assert_eq!(refused(&a, Advice::Prefetch, part), libc::EFAULT);
    }
    assert_eq!(errno(a.advise(Advice::Prefetch, &[])), libc::EINVAL);
}

/// A region keeps its keys in a new protection domain, whose queue pairs gain access.
//= MR-10 PD-03 type=test
#[test]
fn a_region_goes_to_another_domain() {
    let (a, b) = domains();
    let other = b.context().protection_domain().unwrap();
    let region = b.register(64, WRITABLE).unwrap();
    let remote = region.remote();
    let (of_b, of_other) = (Wire::new(&a, &b), Wire::new(&a, &other));
    assert_eq!(of_b.put(remote), WcStatus::Success);
    region.set_domain(&other).unwrap();
    assert_eq!(region.remote(), remote);
    assert_eq!(of_other.put(remote), WcStatus::Success);
    assert_eq!(of_b.put(remote), WcStatus::RemoteAccessError);
    assert_eq!(errno(region.set_domain(&a)), libc::EINVAL, "another device");
    // Protection domains may be dropped before their objects.
    drop((other, b));
    assert_eq!(of_other.put(remote), WcStatus::Success);
}

//= PD-01 type=test
#[test]
fn a_parent_domain_is_the_domain() {
    let (a, b) = domains();
    let thread = b.context().thread_domain().unwrap();
    assert_eq!(errno(a.parent_domain(Some(&thread))), libc::EINVAL);
    let parent = b.parent_domain(Some(&thread)).unwrap();
    let grandparent = parent.parent_domain(None).unwrap();
    assert!(parent.thread_domain().is_some() && grandparent.thread_domain().is_none());
    let region = b.register(64, WRITABLE).unwrap();
    let of_parent = parent.register(64, WRITABLE).unwrap();
    let wires = [&b, &parent, &grandparent].map(|pd| Wire::new(&a, pd));
    drop((thread, b, parent, grandparent));
    for wire in &wires {
        assert_eq!(wire.put(region.remote()), WcStatus::Success);
        assert_eq!(wire.put(of_parent.remote()), WcStatus::Success);
    }
}

fn window_region(pd: &ProtectionDomain) -> MemoryRegion {
    pd.register(4096, LOCAL | AccessFlags::MW_BIND).unwrap()
}

/// Any queue pair of the domain can bind a type 1 window. Each bind makes a new key and invalidates
/// the old one.
//= MW-01 MW-03 MW-11 type=test
#[test]
fn a_shared_window_is_for_all_peers_and_moves() {
    let (a, b) = domains();
    let wires: Vec<Wire> = (0..6).map(|_| Wire::new(&a, &b)).collect();
    let (region, window) = (window_region(&b), b.type1_window().unwrap());
    let binder = &wires[0];
    let write = AccessFlags::REMOTE_WRITE;
    let bound = || {
        let done = binder.there_cq.wait(MINUTE).unwrap();
        (done.wr_id, done.opcode)
    };
    let first = binder
        .there
        .bind(8, &window, (&region, 100..200), write)
        .unwrap();
    assert_eq!(bound(), (8, WcOpcode::BindMw));
    assert_eq!(first.len, 100);
    for wire in &wires[..2] {
        assert_eq!(wire.put(first.at(99)), WcStatus::Success);
    }
    assert_eq!(region.to_vec(199..200).unwrap(), b"!");
    assert_eq!(wires[1].put(first.at(100)), WcStatus::RemoteAccessError);

    let second = binder
        .there
        .bind(9, &window, (&region, ..50), write)
        .unwrap();
    assert_eq!(bound(), (9, WcOpcode::BindMw));
    assert_eq!(wires[2].put(second), WcStatus::Success);
    assert_eq!(wires[2].put(first), WcStatus::RemoteAccessError);
    binder.there.unbind(10, &window).unwrap();
    assert_eq!(bound(), (10, WcOpcode::BindMw));
    assert_eq!(wires[3].put(second), WcStatus::RemoteAccessError);

    let third = binder.there.bind(11, &window, (&region, ..), write);
    let third = third.unwrap();
    bound();
    assert_eq!(wires[4].put(third), WcStatus::Success);
    drop(window);
    assert_eq!(wires[4].put(third), WcStatus::RemoteAccessError);
    // Deregistering a region invalidates the windows that are bound to it.
    let window = b.type1_window().unwrap();
    let last = binder.there.bind(12, &window, (&region, ..), write);
    let last = last.unwrap();
    bound();
    drop(region);
    assert_eq!(wires[5].put(last), WcStatus::RemoteAccessError);
}

//= MW-04 MW-05 type=test
#[test]
fn what_a_shared_window_cannot_be_bound_to() {
    let (a, b) = domains();
    let other = b.context().protection_domain().unwrap();
    let wire = Wire::new(&a, &b);
    let (region, window) = (window_region(&b), b.type1_window().unwrap());
    let bind =
        |region: &MemoryRegion, access| errno(wire.there.bind(1, &window, (region, ..), access));
    let write = AccessFlags::REMOTE_WRITE;
    assert_eq!(bind(&window_region(&other), write), libc::EPERM);
    let zero_based = write | AccessFlags::ZERO_BASED;
    assert_eq!(bind(&region, zero_based), libc::EINVAL);
    let beyond = wire.there.bind(1, &window, (&region, ..4097), write);
    assert!(matches!(beyond, Err(RegionError::OutOfRange(_))));
    // The region's rights are checked when the request is executed.
    assert_eq!(bind(&b.register(64, LOCAL).unwrap(), write), 0);
    assert_eq!(status(&wire.there_cq), WcStatus::WindowBindError);
}
