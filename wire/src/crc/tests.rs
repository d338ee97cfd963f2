use std::println;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// Computes the CRC bit by bit, from the definition.
fn naive(crc: u32, bytes: &[u8]) -> u32 {
    let mut register = !crc;
    for &byte in bytes {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = times_x(register);
        }
    }
    !register
}

/// Returns the naive CRC of each prefix of `bytes`.
fn naive_of_all(crc: u32, bytes: &[u8]) -> Vec<u32> {
    let mut all = vec![crc];
    for byte in bytes {
        all.extend(all.last().map(|&crc| naive(crc, &[*byte])));
    }
    all
}

/// Returns bytes without a pattern.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}

const GUARD: u8 = 0xee;

/// Copies between guard bytes and returns the CRC. The copy and the guards are checked.
fn copy_guarded(backend: Backend, crc: u32, head: &[u8], payload: &[u8], shift: usize) -> u32 {
    let mut room = vec![GUARD; payload.len() + 128];
    let copied = &mut room[shift..shift + payload.len()];
    // SAFETY: `payload` is a slice, which `copied` does not overlap.
    let crc = unsafe { backend.copy(crc, head, payload.as_ptr(), copied) };
    assert!(
        copied == payload,
        "{backend}: {} bytes copied wrong",
        payload.len()
    );
    let (before, rest) = room.split_at(shift);
    let outside = before.iter().chain(&rest[payload.len()..]);
    assert!(
        outside.into_iter().all(|&byte| byte == GUARD),
        "{backend}: written outside of {} bytes at {shift}",
        payload.len()
    );
    crc
}

#[test]
fn the_check_value() {
    assert_eq!(update(0, b"123456789"), 0xcbf4_3926);
    assert_eq!(update(0, b""), 0);
    for backend in Backend::available() {
        assert_eq!(backend.update(0, b"123456789"), 0xcbf4_3926, "{backend}");
        assert_eq!(backend.update(7, b""), 7, "{backend}");
    }
}

/// Checks against the crate that other projects use.
#[test]
fn every_way_agrees_with_another_implementation() {
    let bytes = noise(1 << 20);
    for start in [0, 0x89ab_cdef] {
        let mut theirs = crc32fast::Hasher::new_with_initial(start);
        theirs.update(&bytes);
        let theirs = theirs.finalize();
        for backend in Backend::available() {
            assert_eq!(backend.update(start, &bytes), theirs, "{backend}");
        }
    }
}

/// Checks every length past two turns of the widest loop, and those around packets' and pages'.
#[test]
fn every_way_sums_and_copies_every_length() {
    const MOST: usize = 9000;
    let lengths = [0..1200, 2000..2120, 4060..4230, MOST - 100..MOST + 1];
    let bytes = noise(MOST);
    let crc = 0x0123_4567;
    let expected = naive_of_all(crc, &bytes);
    for backend in Backend::available() {
        println!("{backend}");
        for len in lengths.iter().cloned().flatten() {
            let (bytes, expected) = (&bytes[..len], expected[len]);
            let sum = backend.update(crc, bytes);
            assert_eq!(sum, expected, "{backend}, {len} bytes");
            let copied = copy_guarded(backend, crc, &[], bytes, len % 64);
            assert_eq!(copied, expected, "{backend}, copy of {len} bytes");
        }
    }
}

#[test]
fn every_way_sums_a_head_before_a_copy() {
    let bytes = noise(1300);
    let crc = 0x89ab_cdef;
    let expected = naive_of_all(crc, &bytes);
    for backend in Backend::available() {
        for len in (0..400).chain(1000..1100) {
            for head in (0..=len.min(80)).filter(|head| len % 3 == 0 || head % 4 == 0) {
                let (head, payload) = bytes[..len].split_at(head);
                let crc = copy_guarded(backend, crc, head, payload, 1);
                let lens = (head.len(), payload.len());
                assert_eq!(crc, expected[len], "{backend}, {lens:?} bytes");
            }
        }
    }
}

/// Checks source and destination at each position of a cache line.
#[test]
fn every_way_at_every_alignment() {
    let bytes = noise(1024 + 128);
    for backend in Backend::available() {
        for (from, to) in (0..64).flat_map(|from| (0..64).map(move |to| (from, to))) {
            let bytes = &bytes[from..from + 516];
            let expected = table::update(3, bytes);
            assert_eq!(backend.update(3, bytes), expected, "{backend} at {from}");
            let copied = copy_guarded(backend, 3, &[], bytes, to);
            assert_eq!(copied, expected, "{backend} from {from} to {to}");
        }
    }
}

/// Memory between inaccessible pages.
struct Guarded {
    start: *mut u8,
}

impl Guarded {
    /// Bytes of each part: full pages on every system.
    const PAGE: usize = 64 << 10;

    fn new() -> Self {
        let (whole, pages) = (3 * Self::PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses new addresses.
        let start = unsafe { libc::mmap(null_mut(), whole, libc::PROT_NONE, pages, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = start.cast::<u8>();
        // SAFETY: the range is the middle of the new mapping.
        let failed = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            libc::mprotect(start.add(Self::PAGE).cast(), Self::PAGE, rights)
        };
        assert_eq!(failed, 0);
        Self { start }
    }

    /// Returns the first or the last `len` bytes between the guards.
    fn bytes(&mut self, first: bool, len: usize) -> &mut [u8] {
        assert!(len <= Self::PAGE);
        let at = if first { 0 } else { Self::PAGE - len };
        // SAFETY: the range is inside the middle, which is mapped while `self` lives and borrowed
        // from it.
        unsafe { slice::from_raw_parts_mut(self.start.add(Self::PAGE + at), len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the range is all that `new` has mapped, and no borrow of it is left.
        unsafe { libc::munmap(self.start.cast(), 3 * Self::PAGE) };
    }
}

/// Checks that no byte outside is read or written, which would end the process.
#[test]
fn no_way_touches_what_is_outside() {
    let (mut source, mut room) = (Guarded::new(), Guarded::new());
    for backend in Backend::available() {
        for len in (0..600).chain(4090..4110) {
            for (from_first, to_first) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                let bytes = source.bytes(from_first, len);
                bytes.copy_from_slice(&noise(len));
                let expected = table::update(9, bytes);
                assert_eq!(backend.update(9, bytes), expected, "{backend}, {len} bytes");
                let (head, payload) = bytes.split_at((len % 40).min(len) & !3);
                let copied = room.bytes(to_first, payload.len());
                // SAFETY: `payload` is a slice, which `copied` does not overlap.
                let crc = unsafe { backend.copy(9, head, payload.as_ptr(), copied) };
                assert_eq!(crc, expected, "{backend}, copy of {len} bytes");
            }
        }
    }
}

#[test]
fn names_are_those_of_ways() {
    for backend in Backend::available() {
        assert_eq!(backend.to_string().parse(), Ok(backend));
    }
    assert_eq!("AVX512".parse::<Backend>(), Err(NoBackend::Unknown));
    let elsewhere =
        Backend::names().filter(|name| Backend::available().all(|backend| backend.name() != *name));
    let mut count = 0;
    for name in elsewhere {
        assert_eq!(
            name.parse::<Backend>(),
            Err(NoBackend::Unavailable),
            "{name}"
        );
        count += 1;
    }
    assert_eq!(
        count + Backend::available().count(),
        Backend::names().count()
    );
    assert_eq!(
        Backend::available().last().map(Backend::name),
        Some("table")
    );
}

/// Checks the selection. It is the only test that selects: the others accept any backend.
#[test]
fn what_is_selected_is_used() {
    let best = Backend::current();
    assert_eq!(Backend::available().next(), Some(best));
    for backend in Backend::available() {
        backend.select();
        assert_eq!(Backend::current(), backend);
        assert_eq!(update(0, &noise(100)), table::update(0, &noise(100)));
    }
    best.select();
}

proptest! {
    #[test]
    fn as_defined(
        crc: u32,
        bytes in prop::collection::vec(any::<u8>(), 0..5000),
        skip in 0..64usize,
        cut: prop::sample::Index,
    ) {
        let bytes = &bytes[skip.min(bytes.len())..];
        let expected = naive(crc, bytes);
        let (head, payload) = bytes.split_at(cut.index(bytes.len() + 1));
        for backend in Backend::available() {
            prop_assert_eq!(backend.update(crc, bytes), expected);
            prop_assert_eq!(backend.update(backend.update(crc, head), payload), expected);
            prop_assert_eq!(copy_guarded(backend, crc, head, payload, skip), expected);
        }
    }
}
