//! Accesses to unmapped memory by both methods. The processes of `tests/shm/gone.rs` show the
//! consequences.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rocade_transport::{AtomicOp, Time};
use rocade_wire::crc;

use super::super::access::{self, Readable, Span};
use super::{CACHE_MAX_NS, CACHE_NS, CopyMethod, Fault, cache_time, copy_method, install, kernel};

const PAGE: usize = 4096;

/// The initial content of the memory.
fn byte(at: usize) -> u8 {
    (at % 251).to_le_bytes()[0]
}

/// Three pages: the middle one is `middle`, the others may be read and written.
struct Pages(NonNull<u8>);

#[derive(Clone, Copy, Debug)]
enum Middle {
    Hole,
    Inaccessible,
    ReadOnly,
}

impl Pages {
    fn new(middle: Middle) -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), 3 * PAGE, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = NonNull::new(start.cast::<u8>()).expect("not null");
        start.as_ptr().expose_provenance();
        for at in 0..3 * PAGE {
            // SAFETY: inside the mapping.
            unsafe { start.add(at).write(byte(at)) };
        }
        // SAFETY: inside the mapping.
        let page = unsafe { start.add(PAGE) }.as_ptr().cast();
        // SAFETY: a page of this mapping.
        let changed = unsafe {
            match middle {
                Middle::Hole => libc::munmap(page, PAGE),
                Middle::Inaccessible => libc::mprotect(page, PAGE, libc::PROT_NONE),
                Middle::ReadOnly => libc::mprotect(page, PAGE, libc::PROT_READ),
            }
        };
        assert_eq!(changed, 0);
        Self(start)
    }

    fn span(&self, at: usize, len: usize, method: CopyMethod) -> Span {
        // SAFETY: inside the mapping, which no other code uses.
        unsafe { Span::new(self.0.as_ptr().addr() + at, len, method) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this mapping. A hole in it does not matter.
        unsafe { libc::munmap(self.0.as_ptr().cast(), 3 * PAGE) };
    }
}

/// Ranges, and whether they reach into the middle page.
fn ranges() -> Vec<(usize, usize, bool)> {
    let mut ranges = Vec::new();
    for len in [1, 3, 8, 15, 64, 100, 255, 256, 1000, 1024, 4000, PAGE] {
        ranges.extend([
            (0, len, false),
            (PAGE - len, len, false),
            (PAGE - len + 1, len, true),
            (PAGE - len / 2, len, len > 1),
            (PAGE, len, true),
            (2 * PAGE, len, false),
        ]);
        ranges.push((2 * PAGE - 1, len, true));
    }
    ranges.push((0, 3 * PAGE, true));
    ranges.retain(|(at, len, _)| at + len <= 3 * PAGE);
    for (at, len, hit) in &mut ranges {
        *hit = *at < 2 * PAGE && *at + *len > PAGE;
    }
    ranges
}

fn expected(hit: bool) -> Result<(), Fault> {
    if hit { Err(Fault) } else { Ok(()) }
}

/// An error of the kernel's copies that may pass does not switch them off.
#[test]
fn one_failed_copy_is_made_by_this_process() {
    install();
    let pages = Pages::new(Middle::ReadOnly);
    let span = pages.span(0, 100, CopyMethod::Kernel);
    let mut copy = [0; 100];
    for error in [libc::EAGAIN, libc::ENOMEM, libc::ESRCH, libc::EINTR] {
        kernel::FAILS_WITH.set(Some(error));
        access::write(span, &[1; 100]).expect("written by this process");
        access::read(span, &mut copy).expect("read by this process");
        assert_eq!(copy, [1; 100]);
        let calls = kernel::CALLS.get();
        access::read(span, &mut copy).expect("read by this process");
        assert_eq!(kernel::CALLS.get() - calls, 1, "the kernel is asked again");
    }
    kernel::FAILS_WITH.set(None);
    access::write(span, &[2; 100]).expect("written by the kernel");
}

//= ODP-04 type=test
#[test]
fn reading() {
    install();
    for method in [CopyMethod::Section, CopyMethod::Kernel] {
        for middle in [Middle::Hole, Middle::Inaccessible, Middle::ReadOnly] {
            let pages = Pages::new(middle);
            for (at, len, hit) in ranges() {
                let expected = expected(hit && !matches!(middle, Middle::ReadOnly));
                let what = format!("{method:?} {middle:?} {len} bytes at {at}");
                let mut copy = vec![0; len];
                let span = pages.span(at, len, method);
                assert_eq!(access::read(span, &mut copy), expected, "{what}");
                let mut summed = vec![0; len];
                let head = [7; 20];
                let sum = Readable::new(span, &()).copy_and_sum(5, &head, &mut summed);
                assert_eq!(sum.map(drop), expected, "{what}");
                if let Ok(sum) = sum {
                    let there: Vec<_> = (at..at + len).map(byte).collect();
                    assert_eq!(copy, there, "{what}");
                    assert_eq!(summed, there, "{what}");
                    assert_eq!(sum, crc::update(crc::update(5, &head), &there), "{what}");
                }
            }
        }
    }
}

//= ODP-04 type=test
#[test]
fn writing() {
    install();
    for method in [CopyMethod::Section, CopyMethod::Kernel] {
        for middle in [Middle::Hole, Middle::Inaccessible, Middle::ReadOnly] {
            let pages = Pages::new(middle);
            for (at, len, hit) in ranges() {
                let what = format!("{method:?} {middle:?} {len} bytes at {at}");
                let data: Vec<_> = (0..len).map(|n| byte(n * 3)).collect();
                let written = access::write(pages.span(at, len, method), &data);
                assert_eq!(written, expected(hit), "{what}");
                if !hit {
                    let mut copy = vec![0; len];
                    assert_eq!(access::read(pages.span(at, len, method), &mut copy), Ok(()));
                    assert_eq!(copy, data, "{what}");
                }
            }
        }
    }
}

/// Applications poll on the last byte. Where the bytes before it cannot be stored, it is not stored
/// either.
#[test]
fn the_last_byte_is_not_stored_before_the_others() {
    install();
    for method in [CopyMethod::Section, CopyMethod::Kernel] {
        for middle in [Middle::Hole, Middle::Inaccessible, Middle::ReadOnly] {
            let pages = Pages::new(middle);
            let last = || pages.span(2 * PAGE, 1, method);
            for len in [2, 9, 100, 4000, PAGE + 1, 2 * PAGE] {
                let what = format!("{method:?} {middle:?} {len} bytes");
                let span = pages.span(2 * PAGE + 1 - len, len, method);
                assert_eq!(access::write(span, &vec![0xee; len]), Err(Fault), "{what}");
                let mut byte_there = [0];
                assert_eq!(access::read(last(), &mut byte_there), Ok(()));
                assert_eq!(byte_there, [byte(2 * PAGE)], "{what}");
            }
        }
    }
}

/// Returns the number of system calls that `f` makes in this thread to copy.
fn calls(f: impl FnOnce()) -> u32 {
    let before = kernel::CALLS.get();
    f();
    kernel::CALLS.get() - before
}

#[test]
fn the_kernel_copies_a_run_at_once() {
    const COUNT: usize = 60;
    const LEN: usize = 100;
    install();
    let pages = Pages::new(Middle::Hole);
    let span = |at, len| pages.span(at, len, CopyMethod::Kernel);
    // Lets the process ID be read and cached.
    access::read(span(0, 8), &mut [0; 8]).expect("mapped memory");
    let mut run = vec![0; COUNT * LEN];
    // The places are not in the order of the pages. In the second round the last one is unmapped.
    for gone in [false, true] {
        let at = |n: usize| match n {
            _ if gone && n == COUNT - 1 => PAGE,
            _ if n.is_multiple_of(2) => n * LEN / 2,
            _ => 2 * PAGE + n * LEN / 2,
        };
        let places = run.chunks_mut(LEN).enumerate();
        let mut places: Vec<_> = places.map(|(n, place)| (span(at(n), LEN), place)).collect();
        let made = calls(|| assert_eq!(access::read_all(&mut places), expected(gone)));
        assert_eq!(made, 1);
        if !gone {
            let there = |n: usize| (at(n)..at(n) + LEN).map(byte);
            assert_eq!(run, (0..COUNT).flat_map(there).collect::<Vec<_>>());
        }
    }
    let most = if cfg!(target_arch = "x86_64") { 1 } else { 2 };
    let made = calls(|| assert_eq!(access::write(span(0, LEN), &[1; LEN]), Ok(())));
    assert!(made <= most, "{made} for a packet");
    let made = calls(|| assert_eq!(access::write(span(8, 8), &[1; 8]), Ok(())));
    assert_eq!(made, 1);
}

/// With the ID of its parent, a child would read the parent's memory.
#[test]
fn a_child_copies_its_own_memory() {
    install();
    let pages = Pages::new(Middle::ReadOnly);
    let span = pages.span(100, 1, CopyMethod::Kernel);
    let mut copy = [0];
    access::read(span, &mut copy).expect("mapped memory");
    assert_ne!(copy, [77]);
    // SAFETY: the child stores, copies and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: inside the mapping, of which the child has a copy, and the end of the process.
        unsafe {
            pages.0.add(100).write(77);
            let read = access::read(span, &mut copy);
            libc::_exit(i32::from(read.is_err() || copy != [77]));
        }
    }
    let mut status = -1;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    access::read(span, &mut copy).expect("mapped memory");
    assert_ne!(copy, [77]);
}

//= ODP-04 type=test
#[test]
fn atomics() {
    install();
    let add = AtomicOp::FetchAdd { add: 3 };
    let swap = AtomicOp::CmpSwap {
        compare: 1,
        swap: 2,
    };
    for method in [CopyMethod::Section, CopyMethod::Kernel] {
        for middle in [Middle::Hole, Middle::Inaccessible, Middle::ReadOnly] {
            let pages = Pages::new(middle);
            for op in [add, swap] {
                let gone = access::atomic(pages.span(PAGE, 8, method), op);
                assert_eq!(gone, Some(Err(Fault)), "{method:?} {middle:?}");
            }
            let there = pages.span(0, 8, method);
            assert_eq!(access::write(there, &7u64.to_ne_bytes()), Ok(()));
            assert_eq!(access::atomic(there, add), Some(Ok(7)));
            assert_eq!(access::atomic(there, add), Some(Ok(10)));
        }
    }
}

#[test]
fn a_truncated_file() {
    install();
    let file = tempfile::tempfile().expect("a file");
    file.set_len(2 * PAGE as u64).expect("extended");
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let start = unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        libc::mmap(
            std::ptr::null_mut(),
            2 * PAGE,
            rights,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    start.expose_provenance();
    file.set_len(PAGE as u64).expect("truncated");
    for method in [CopyMethod::Section, CopyMethod::Kernel] {
        // SAFETY: mapped above.
        let span = |at| unsafe { Span::new(start.addr() + at, 100, method) };
        assert_eq!(access::read(span(0), &mut [0; 100]), Ok(()));
        assert_eq!(access::read(span(PAGE), &mut [0; 100]), Err(Fault));
        assert_eq!(access::write(span(PAGE - 50), &[0; 100]), Err(Fault));
    }
    // SAFETY: this mapping, which is not used any more.
    unsafe { libc::munmap(start, 2 * PAGE) };
}

/// Sections restore registers and stack, also when they are nested.
#[test]
fn the_thread_goes_on_as_if_nothing_had_been() {
    install();
    let pages = Pages::new(Middle::Hole);
    let numbers: Vec<u64> = (1..=12).collect();
    let [a, b, c, d, e, f, g, h, i, j, k, l] = numbers[..] else {
        unreachable!("twelve")
    };
    let [x, y] = [a as f64 * 0.5, b as f64 * 0.25];
    let mut faults = 0;
    for round in 0..1000 {
        let at = PAGE + round;
        if access::read(pages.span(at, 64, CopyMethod::Section), &mut [0; 64]) == Err(Fault) {
            faults += a + b + c + d + e + f + g + h + i + j + k + l;
        }
        assert_eq!((x, y), (0.5, 0.5));
    }
    assert_eq!(faults, 1000 * 78);
}

#[test]
fn threads_have_sections_of_their_own() {
    install();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let pages = Pages::new(Middle::Hole);
                for at in 0..2000 {
                    let gone =
                        access::read(pages.span(PAGE + at, 64, CopyMethod::Section), &mut [0; 64]);
                    assert_eq!(gone, Err(Fault));
                    assert_eq!(
                        access::read(pages.span(at, 64, CopyMethod::Section), &mut [0; 64]),
                        Ok(())
                    );
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), 4);
}

#[test]
fn a_thread_that_blocks_the_signals_goes_the_kernels_way() {
    install();
    let methods = std::thread::spawn(|| {
        let first = copy_method(Time::ZERO);
        crate::sys::block_all_signals();
        let background = copy_method(Time::from_ns(10_000_000));
        // SAFETY: a sigset is plain data that sigfillset initialises.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        }
        (first, background, copy_method(Time::from_ns(20_000_000)))
    });
    let expected = (CopyMethod::Section, CopyMethod::Section, CopyMethod::Kernel);
    assert_eq!(methods.join().expect("no panic"), expected);
}

#[test]
fn slow_detection_is_cached_longer() {
    for (took_ns, counts_ns) in [
        (0, CACHE_NS),
        (200, CACHE_NS),
        (1_000, 100_000),
        (20_000, CACHE_MAX_NS),
        (u64::MAX, CACHE_MAX_NS),
    ] {
        assert_eq!(cache_time(Duration::from_nanos(took_ns)), counts_ns);
    }
}
