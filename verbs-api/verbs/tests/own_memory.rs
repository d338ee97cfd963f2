//! Registered memory that belongs to the program.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use rocade_verbs::{AccessFlags, SendRequest, WaitError, WcStatus, WordError, simulated_pair};

const MINUTE: Duration = Duration::from_secs(60);
const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// The peer writes what the program sees in its own bytes, at any alignment.
#[test]
fn the_peer_writes_to_shared_bytes() {
    let (a, b) = simulated_pair(1).unwrap();
    let bytes: Arc<[AtomicU8]> = (0..61).map(|_| AtomicU8::new(b'.')).collect();
    let memory = b
        .domain
        .register_shared(Arc::clone(&bytes), ACCESS)
        .unwrap();
    for offset in 0..16 {
        let text = b"0123456789abcdefghij";
        let to = memory.remote().at(offset);
        a.qp.post_send(&SendRequest::write_inline(text, to))
            .unwrap();
        a.cq.wait(MINUTE).unwrap();
        let at = usize::try_from(offset).unwrap();
        let seen: Vec<_> = bytes
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .collect();
        assert_eq!(seen[at..at + 20], *text);
        assert_eq!(memory.to_vec(at..at + 20).unwrap(), text);
        memory.write(at, &[b'.'; 20]).unwrap();
        assert!(
            bytes
                .iter()
                .all(|byte| byte.load(Ordering::Relaxed) == b'.')
        );
    }
    let aligned = (0..8).filter(|&offset| memory.load_u64(offset).is_ok());
    assert_eq!(aligned.count(), 1);
    let unaligned = (0..8).filter(|&offset| {
        matches!(memory.load_u64(offset), Err(WordError::Misaligned { offset: at }) if at == offset)
    });
    assert_eq!(unaligned.count(), 7);
    assert_eq!(Arc::strong_count(&bytes), 2);
    drop(memory);
    assert_eq!(Arc::strong_count(&bytes), 1);
}

#[test]
fn the_program_may_lend_memory() {
    let (a, b) = simulated_pair(2).unwrap();
    let words: &'static [AtomicU64] = Box::leak((0..8).map(AtomicU64::new).collect());
    let start = NonNull::from(words).cast();
    // SAFETY: the memory is leaked, and the only references to it are to atomics.
    let mut memory = unsafe { b.domain.register_raw(start, 64, ACCESS) }.unwrap();
    let request = SendRequest::write_inline(&[0xff; 8], memory.remote().at(16));
    a.qp.post_send(&request).unwrap();
    a.cq.wait(MINUTE).unwrap();
    assert_eq!(words[2].load(Ordering::Relaxed), u64::MAX);
    assert_eq!(memory.load_u64(16).unwrap(), u64::MAX);
    // A resized region has a buffer of its own, with the same values.
    memory.resize(128).unwrap();
    assert_eq!(memory.load_u64(56).unwrap(), 7);
    memory.store_u64(56, 1).unwrap();
    assert_eq!(words[7].load(Ordering::Relaxed), 7);
}

/// A vector moves into the region, the peer writes to it, and it comes back as it was allocated.
#[test]
fn a_vector_comes_back_without_a_copy() {
    let (a, b) = simulated_pair(3).unwrap();
    let mut bytes = Vec::with_capacity(100);
    bytes.extend_from_slice(&[b'.'; 61]);
    let start = bytes.as_ptr();
    let memory = b.domain.register_vec(bytes, ACCESS).unwrap();
    assert_eq!(memory.to_vec(..).unwrap(), [b'.'; 61]);
    for offset in [0, 1, 30, 57] {
        let to = memory.remote().slice(offset..offset + 4).unwrap();
        a.qp.post_send(&SendRequest::write_inline(b"peer", to))
            .unwrap();
        a.cq.wait(MINUTE).unwrap();
    }
    let remote = memory.remote();
    let back = memory.deregister();
    assert_eq!((back.as_ptr(), back.capacity()), (start, 100));
    assert_eq!(&back[..6], b"ppeer.");
    assert_eq!((&back[30..34], &back[57..]), (&b"peer"[..], &b"peer"[..]));
    // The peer has no access any more.
    a.qp.post_send(&SendRequest::write_inline(b"late", remote))
        .unwrap();
    let Err(WaitError::Completion(failed)) = a.cq.wait(MINUTE) else {
        panic!("the region does not exist");
    };
    assert_eq!(failed.status, WcStatus::RemoteAccessError);
    assert_eq!(&back[..6], b"ppeer.");
}

#[test]
fn bytes_of_any_region_come_back() {
    let (_a, b) = simulated_pair(4).unwrap();
    let boxed: Box<[u8]> = (0..9).collect();
    let start = boxed.as_ptr();
    let mut memory = b.domain.register_vec(boxed, ACCESS).unwrap();
    memory.write(0, &[7]).unwrap();
    // A resized region has a buffer of its own.
    memory.resize(4).unwrap();
    let back = memory.deregister();
    assert_eq!(back, [7, 1, 2, 3]);
    assert_ne!(back.as_ptr(), start);
    let own = b.register(3, ACCESS).unwrap();
    own.write(1, &[5]).unwrap();
    assert_eq!(own.deregister(), [0, 5, 0]);
    let bytes: Arc<[AtomicU8]> = (0..3).map(AtomicU8::new).collect();
    let shared = b.domain.register_shared(Arc::clone(&bytes), ACCESS);
    assert_eq!(shared.unwrap().deregister(), [0, 1, 2]);
    assert_eq!(Arc::strong_count(&bytes), 1);
}

/// Bytes that cannot be registered are not lost.
#[test]
fn refused_bytes_come_back() {
    let (_a, b) = simulated_pair(5).unwrap();
    let bytes = vec![1, 2, 3];
    let start = bytes.as_ptr();
    let refused = b.domain.register_vec(bytes, AccessFlags::REMOTE_WRITE);
    let error = refused.unwrap_err();
    assert_eq!(error.error.errno(), 22, "REMOTE_WRITE needs LOCAL_WRITE");
    assert_eq!(
        (error.bytes.as_ptr(), &error.bytes[..]),
        (start, &[1, 2, 3][..])
    );
    // An empty vector is registered, as an empty buffer is.
    let empty = b.domain.register_vec(Vec::new(), ACCESS).unwrap();
    assert_eq!(empty.deregister(), []);
}

/// A future keeps the vector registered, and the last one lets it go.
#[test]
fn a_vector_that_a_future_uses_comes_back_after_it() {
    let (a, b) = simulated_pair(6).unwrap();
    let memory = Arc::new(b.domain.register_vec(*b"....", ACCESS).unwrap());
    let received = b.qp.recv(&memory);
    let simulation = a.simulation();
    simulation
        .block_on(a.qp.send_inline(b"done"))
        .unwrap()
        .unwrap();
    simulation.block_on(received).unwrap().unwrap();
    let region = Arc::into_inner(memory).unwrap();
    assert_eq!(region.deregister(), b"done");
}
