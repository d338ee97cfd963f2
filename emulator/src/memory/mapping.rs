//! Finds out whether a range of this process's memory is mapped, and with which rights.
//!
//! This is checked at every registration. The check must not take longer the more mappings a
//! process has, and must not touch or change pages. Linux 6.11 reports one mapping at a time. Older
//! kernels only have a text file of all mappings, of which as little as possible is read.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

use super::guard::kernel;

/// The addresses of application memory. Rust does not follow pointers to the lowest page. Beyond
/// the top an access causes a fault without an address, which is indistinguishable from a fault of
/// Rocade's own.
pub(crate) const ADDRESSES: Range<u64> = if cfg!(target_arch = "x86_64") {
    4096..(1 << 47) - 4096
} else {
    4096..1 << 48
};

const MAPS: &str = "/proc/self/maps";

/// Checks that every page of `addr..addr+len` is mapped readable, and writable if `write`.
pub(crate) fn is_mapped(addr: u64, len: u64, write: bool) -> bool {
    let Some(end) = addr.checked_add(len) else {
        return false;
    };
    let range = addr..end;
    let maps = File::open(MAPS).ok();
    if let Some(maps) = &maps
        && let Ok(answer) = ask(maps, &range, write)
    {
        return answer;
    }
    // If something is not mapped, this is much faster than reading the text.
    if !has_no_hole(&range) {
        return false;
    }
    let text = maps.map(|maps| covers(BufReader::with_capacity(1 << 16, maps), &range, write));
    match text {
        Some(Ok(answer)) => answer,
        // Without /proc the kernel does not tell whether memory is writable. An access that fails
        // will.
        _ => is_readable(addr) && is_readable(end.saturating_sub(1)),
    }
}

/// Populates the pages of a range outside null regions, for writing if `write`. Returns false if
/// one of them is not mapped with these rights.
pub(crate) fn populate(addr: usize, len: usize, write: bool) -> bool {
    const MADV_POPULATE_READ: libc::c_int = 22;
    const MADV_POPULATE_WRITE: libc::c_int = 23;
    if !is_mapped(addr as u64, len as u64, write) {
        return false;
    }
    // SAFETY: no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1 << 12);
    let start = addr / page * page;
    let advice = if write {
        MADV_POPULATE_WRITE
    } else {
        MADV_POPULATE_READ
    };
    // Linux before 5.14 does not support this advice, which is only an optimization.
    // SAFETY: the pages are touched, which changes nothing that the application can see.
    unsafe {
        libc::madvise(
            ptr::without_provenance_mut(start),
            addr + len - start,
            advice,
        )
    };
    true
}

/// A mapping. `query_addr` is the address to look up.
#[derive(Debug, Default)]
#[repr(C)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev: [u32; 2],
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
/// The ioctl number: reads and writes, the size of the structure, group `f`, number 17.
const PROCMAP_QUERY: u64 =
    3 << 30 | (size_of::<ProcmapQuery>() as u64) << 16 | (b'f' as u64) << 8 | 17;
const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// Queries the mappings of a range one by one.
///
/// # Errors
/// Those of ioctl(2): the kernel may not support this ioctl.
fn ask(maps: &File, range: &Range<u64>, write: bool) -> io::Result<bool> {
    let needed = rights(write);
    let mut need = range.start;
    while need < range.end {
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_addr: need,
            ..ProcmapQuery::default()
        };
        // SAFETY: the ioctl reads and writes this structure, whose addresses are null and sizes 0.
        let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(false),
                _ => Err(error),
            };
        }
        if query.vma_flags & needed != needed || query.vma_start > need || query.vma_end <= need {
            return Ok(false);
        }
        need = query.vma_end;
    }
    Ok(true)
}

const fn rights(write: bool) -> u64 {
    if write { READABLE | WRITABLE } else { READABLE }
}

/// Returns true if every page is mapped, with any rights.
fn has_no_hole(range: &Range<u64>) -> bool {
    // SAFETY: no pointers.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1 << 12);
    let start = range.start / page * page;
    let (Ok(addr), Ok(len)) = (
        usize::try_from(start),
        usize::try_from(range.end.saturating_sub(start)),
    ) else {
        return false;
    };
    // SAFETY: asynchronous msync(2) writes nothing and starts nothing. It only looks for holes.
    let result = unsafe { libc::msync(ptr::without_provenance_mut(addr), len, libc::MS_ASYNC) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
}

fn is_readable(addr: u64) -> bool {
    let mut byte = 0u8;
    // SAFETY: `byte` is a local variable.
    usize::try_from(addr)
        .is_ok_and(|addr| unsafe { kernel::read(addr, NonNull::from(&mut byte), 1).is_ok() })
}

/// Checks that the mappings of a `maps` file cover a range. The file lists them in ascending order,
/// a line each: `start-end perms ...`, and perhaps a path of any bytes. Reads no more than
/// necessary.
///
/// # Errors
/// Those of reading, and `InvalidData` for a malformed line.
fn covers(mut maps: impl BufRead, range: &Range<u64>, write: bool) -> io::Result<bool> {
    let needed = rights(write);
    let mut need = range.start;
    let mut line = Vec::new();
    loop {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            return Ok(false);
        }
        let (mapped, allowed) = parse(&line).ok_or(io::ErrorKind::InvalidData)?;
        if mapped.end <= need {
            continue;
        }
        if mapped.start > need || allowed & needed != needed {
            return Ok(false);
        }
        need = mapped.end;
        if need >= range.end {
            return Ok(true);
        }
    }
}

fn parse(line: &[u8]) -> Option<(Range<u64>, u64)> {
    let mut words = line.split(|byte| *byte == b' ');
    let range = str::from_utf8(words.next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let [r, w, ..] = words.next()? else {
        return None;
    };
    let mut allowed = 0;
    if *r == b'r' {
        allowed |= READABLE;
    }
    if *w == b'w' {
        allowed |= WRITABLE;
    }
    Some((range, allowed))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    const LINES: &[u8] = b"\
1000-3000 rw-p 00000000 00:00 0
3000-4000 r--p 00000000 00:00 0 [x]
4000-5000 ---p 00000000 00:00 0 /a b\xff\xfe c
6000-7000 rw-p 00000000 00:00 0 \xff
8000-9000 -w-p 00000000 00:00 0
";

    //= MR-08 type=test
    #[test]
    fn ranges_must_be_covered_without_a_hole() {
        let covers = |start, len, write| covers(LINES, &(start..start + len), write).unwrap();
        assert!(covers(0x1000, 0x2000, true));
        assert!(covers(0x2fff, 2, false));
        assert!(!covers(0x2fff, 2, true), "the second page is read-only");
        assert!(!covers(0x3fff, 2, false), "the page after has no rights");
        assert!(!covers(0x0fff, 2, false), "the page before is not mapped");
        assert!(!covers(0x5000, 0x1800, false));
        assert!(covers(0x6000, 0x1000, true));
        assert!(!covers(0x6000, 0x1001, true));
        assert!(!covers(0x8000, 1, true), "write-only");
        assert!(!covers(0x9000, 1, true));
    }

    #[test]
    fn no_more_is_read_than_necessary() {
        let endless = LINES.chain(BufReader::new(io::repeat(b'1')));
        assert!(covers(endless, &(0x1000..0x2000), true).unwrap());
        let endless = LINES.chain(BufReader::new(io::repeat(b'1')));
        assert!(!covers(endless, &(0x500..0x2000), true).unwrap());
        assert!(covers(&b"no maps\n"[..], &(1..2), false).is_err());
    }

    /// Pages of this process, and the results of all methods for ranges of them.
    struct Pages(u64);

    const PAGE: u64 = 4096;
    const PAGE_LEN: usize = 4096;

    impl Pages {
        /// Maps eight pages: 0 writable, 1 read-only, 2 without rights, 3 unmapped, 4 to 7
        /// writable, 6 a file with an odd name.
        fn new() -> Self {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let len = 8 * PAGE_LEN;
            // SAFETY: a new mapping.
            let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            let page = |n: usize| ptr::without_provenance_mut(start.addr() + n * PAGE_LEN);
            let dir = tempfile::tempdir().unwrap();
            let file = File::create_new(dir.path().join(OsStr::from_bytes(b"\xff\n\xfe"))).unwrap();
            file.set_len(PAGE).unwrap();
            // SAFETY: pages of that mapping.
            unsafe {
                assert_eq!(libc::mprotect(page(1), PAGE_LEN, libc::PROT_READ), 0);
                assert_eq!(libc::mprotect(page(2), PAGE_LEN, libc::PROT_NONE), 0);
                assert_eq!(libc::munmap(page(3), PAGE_LEN), 0);
                let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
                let file = file.as_raw_fd();
                let mapped = libc::mmap(page(6), PAGE_LEN, libc::PROT_READ, flags, file, 0);
                assert_ne!(mapped, libc::MAP_FAILED);
            }
            Self(start.addr() as u64)
        }

        fn check(&self, from: u64, len: u64, write: bool, expected: bool) {
            let range = self.0 + from..self.0 + from + len;
            let what = format!("{len} bytes from {from}, write: {write}");
            assert_eq!(is_mapped(range.start, len, write), expected, "{what}");
            let maps = || File::open(MAPS).unwrap();
            let text = covers(BufReader::new(maps()), &range, write).unwrap();
            assert_eq!(text, expected, "the text: {what}");
            match ask(&maps(), &range, write) {
                Ok(answer) => assert_eq!(answer, expected, "the kernel: {what}"),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{what}"),
            }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            let start = ptr::without_provenance_mut(usize::try_from(self.0).unwrap());
            // SAFETY: this mapping. A hole in it does not matter.
            unsafe { libc::munmap(start, 8 * PAGE_LEN) };
        }
    }

    /// Returns the CPU time of this thread in ns.
    fn processor_time() -> i64 {
        // SAFETY: plain data, written by the call.
        let time = unsafe {
            let mut time = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
            time
        };
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    }

    /// Reading the text of all mappings would take milliseconds each time.
    #[test]
    fn many_mappings_make_no_difference() {
        const PAGES: usize = 20_000;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), PAGES * PAGE_LEN, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let page = |n: usize| ptr::without_provenance_mut(start.addr() + n * PAGE_LEN);
        for n in (1..PAGES).step_by(2) {
            // SAFETY: a page of that mapping.
            let result = unsafe { libc::mprotect(page(n), PAGE_LEN, libc::PROT_READ) };
            assert_eq!(result, 0);
        }
        let last = start.addr() as u64 + (PAGES as u64 - 2) * PAGE;
        // Linux before 6.11 only has the text.
        let tells = ask(&File::open(MAPS).unwrap(), &(last..last + 1), true).is_ok();
        let before = processor_time();
        for _ in 0..if tells { 500 } else { 1 } {
            assert!(is_mapped(last, PAGE, true));
            assert!(!is_mapped(last, 2 * PAGE, true));
            assert!(is_mapped(last, 2 * PAGE, false));
        }
        let took = processor_time() - before;
        assert!(!tells || took < 500_000_000, "1500 questions: {took} ns");
        // SAFETY: that mapping.
        unsafe { libc::munmap(start, PAGES * PAGE_LEN) };
    }

    //= MR-08 type=test
    #[test]
    fn own_memory() {
        let pages = Pages::new();
        for write in [false, true] {
            pages.check(0, PAGE, write, true);
            pages.check(PAGE, 1, write, !write);
            pages.check(PAGE - 1, 2, write, !write);
            pages.check(PAGE, PAGE + 1, write, false);
            pages.check(2 * PAGE, 1, write, false);
            pages.check(3 * PAGE, 1, write, false);
            pages.check(0, 8 * PAGE, write, false);
            pages.check(4 * PAGE, 2 * PAGE, write, true);
            pages.check(4 * PAGE, 4 * PAGE, write, !write);
            pages.check(7 * PAGE - 1, 2, write, !write);
        }
        assert!(!is_mapped(8, 64, false));
        assert!(!is_mapped(u64::MAX - 1, 4, false), "wraps");
        assert!(!is_mapped(u64::MAX - 10, 10, false), "not the user's");
        assert!(has_no_hole(&(pages.0 + 1..pages.0 + 3 * PAGE)));
        assert!(!has_no_hole(&(pages.0 + 1..pages.0 + 3 * PAGE + 1)));
        assert!(!has_no_hole(&(u64::MAX - 10..u64::MAX)));
        assert!(is_readable(pages.0) && is_readable(pages.0 + PAGE));
        assert!(!is_readable(pages.0 + 2 * PAGE) && !is_readable(pages.0 + 3 * PAGE));
    }

    /// A check of a large untouched range does not touch it.
    #[test]
    fn nothing_is_touched() {
        let len = 1usize << 36;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let range = start.addr() as u64..(start.addr() + len) as u64;
        assert!(is_mapped(range.start, len as u64, true));
        assert!(has_no_hole(&range));
        let text = covers(BufReader::new(File::open(MAPS).unwrap()), &range, true);
        assert!(text.unwrap());
        let mut resident = vec![0u8; 1 << 16];
        // SAFETY: there is a byte for each of the pages.
        let asked = unsafe { libc::mincore(start, resident.len() << 12, resident.as_mut_ptr()) };
        assert_eq!(asked, 0);
        assert!(resident.iter().all(|page| page & 1 == 0));
        // SAFETY: this mapping.
        unsafe { libc::munmap(start, len) };
    }
}
