//! Registered memory that belongs to the program.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use rocade_verbs::{AccessFlags, SendRequest, WordError, simulated_pair};

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
