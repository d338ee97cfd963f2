//! Tests of what the broker knows of targets, and of what it inherits.

use super::*;

const A: ProcessSlot = ProcessSlot::new(3);
const B: ProcessSlot = ProcessSlot::new(4);

const fn key(inode: u64) -> DomainKey {
    DomainKey {
        guid: 1,
        device: 2,
        inode,
    }
}

fn target(slot: ProcessSlot, number: u32) -> Qpn {
    Qpn::new(u32::from(slot.get()) << 16 | number)
}

fn join(domains: &mut Domains, slot: ProcessSlot, key: DomainKey, memory: Option<OwnedFd>) {
    let opening = DomainOpening {
        key,
        create: true,
        exclusive: false,
        resumes: memory.is_some(),
    };
    let opened = domains.open(slot, opening, memory).expect("memory");
    assert!(opened.is_ok(), "{slot} joins");
}

/// Performs an operation on a target. Returns the answer.
fn call(
    domains: &mut Domains,
    slot: ProcessSlot,
    key: DomainKey,
    qpn: Qpn,
    call: TargetCall,
) -> Response {
    let Domains { all, creators } = domains;
    let domain = all.get_mut(&key).expect("a domain");
    domain.call(slot, qpn, call, creators, |_| true).0
}

#[test]
fn a_creator_is_needed_until_its_last_target_is_gone() {
    let mut domains = Domains::default();
    for inode in [1, 2] {
        join(&mut domains, A, key(inode), None);
        join(&mut domains, B, key(inode), None);
        let qpn = target(A, u32::try_from(inode).unwrap());
        call(&mut domains, A, key(inode), qpn, TargetCall::New);
        call(&mut domains, A, key(inode), qpn, TargetCall::New);
        call(&mut domains, B, key(inode), qpn, TargetCall::Open);
    }
    assert!(domains.needs(A) && !domains.needs(B));
    domains.leave_all(A);
    assert!(domains.needs(A), "another process has both open");
    let closed = call(&mut domains, B, key(1), target(A, 1), TargetCall::Close);
    assert_eq!(closed, Response::Target { is_gone: true });
    let again = call(&mut domains, B, key(1), target(A, 1), TargetCall::Close);
    assert_eq!(again, Response::NoTarget);
    assert!(domains.needs(A), "one is left");
    domains.leave(B, &key(2));
    assert!(!domains.needs(A));
    domains.leave_all(B);
    assert!(domains.all.is_empty());
}

/// Returns what a new broker inherits: one of two members has resumed the domain, and one of its
/// two targets, which the other had created.
fn inherited() -> Domains {
    let mut before = Domains::default();
    join(&mut before, A, key(1), None);
    join(&mut before, B, key(1), None);
    for number in [1, 2] {
        call(&mut before, A, key(1), target(A, number), TargetCall::New);
    }
    let memory = before.all[&key(1)].memory.fd().try_clone_to_owned();
    let mut domains = Domains::default();
    join(&mut domains, B, key(1), Some(memory.expect("a descriptor")));
    let opened = call(&mut domains, B, key(1), target(A, 1), TargetCall::Open);
    assert_eq!(opened, Response::Target { is_gone: false });
    domains
}

fn forget(domains: &mut Domains, may_resume: impl Fn(ProcessSlot) -> bool) {
    let Domains { all, creators } = domains;
    let domain = all.get_mut(&key(1)).expect("a domain");
    domain.forget_unresumed(creators, may_resume);
}

#[test]
fn what_a_late_member_may_have_open_stays() {
    let mut domains = inherited();
    forget(&mut domains, |slot| slot == A);
    let domain = &domains.all[&key(1)];
    assert!(domain.memory.is_member(A));
    assert_eq!(domain.memory.targets().count(), 2);
    join(&mut domains, A, key(1), None);
    let opened = call(&mut domains, A, key(1), target(A, 2), TargetCall::Open);
    assert_eq!(opened, Response::Target { is_gone: false });
    forget(&mut domains, |_| false);
    assert_eq!(domains.all[&key(1)].memory.targets().count(), 2);
}

/// The last process that has resumed a target closes it, or dies, before another one resumes it.
#[test]
fn a_target_is_kept_for_a_late_member() {
    for closes in [true, false] {
        let mut domains = inherited();
        join(&mut domains, ProcessSlot::new(5), key(1), None);
        if closes {
            let closed = call(&mut domains, B, key(1), target(A, 1), TargetCall::Close);
            assert_eq!(closed, Response::Target { is_gone: false });
        } else {
            domains.leave_all(B);
        }
        assert!(domains.needs(A));
        let domain = domains.all.get_mut(&key(1)).unwrap();
        let events = domain.forget_unresumed(&mut domains.creators, |slot| slot == A);
        assert_eq!(events, []);
        join(&mut domains, A, key(1), None);
        let opened = call(&mut domains, A, key(1), target(A, 1), TargetCall::Open);
        assert_eq!(opened, Response::Target { is_gone: false });
        forget(&mut domains, |_| false);
        let closed = call(&mut domains, A, key(1), target(A, 1), TargetCall::Close);
        assert_eq!(closed, Response::Target { is_gone: true });
    }
}

/// A member is told of a target that it has closed if no other process resumes it.
#[test]
fn the_end_of_a_target_that_no_process_resumes_is_told() {
    let mut domains = inherited();
    call(&mut domains, B, key(1), target(A, 1), TargetCall::Close);
    let domain = domains.all.get_mut(&key(1)).unwrap();
    let events = domain.forget_unresumed(&mut domains.creators, |_| false);
    assert_eq!(events, [(B, target(A, 1), TargetEvent::Gone)]);
    assert!(!domains.needs(A));
}

#[test]
fn what_no_process_has_any_longer_goes() {
    let mut domains = inherited();
    forget(&mut domains, |_| false);
    let domain = &domains.all[&key(1)];
    assert_eq!(domain.memory.members().collect::<Vec<_>>(), [B]);
    let left: Vec<_> = domain.memory.targets().collect();
    assert_eq!(left, [target(A, 1)]);
    let owner = domain.targets[&left[0].get()].record.control().owner;
    assert_eq!(owner, None, "the owner is gone");
}
