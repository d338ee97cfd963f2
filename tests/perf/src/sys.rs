//! The system calls that the standard library lacks, and a copy. All unsafe code of this package is here.

use std::{
    ffi::c_int,
    fs::File,
    io,
    net::UdpSocket,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::AtomicU64,
};

use rocade_wire::crc::Backend;

/// Cuts what is sent in one call into datagrams of this length (`UDP_SEGMENT`).
pub(crate) fn segment_sends(socket: &UdpSocket, segment_len: u16) -> io::Result<()> {
    set(
        socket,
        libc::SOL_UDP,
        libc::UDP_SEGMENT,
        c_int::from(segment_len),
    )
}

/// Lets one receive take a run of datagrams (`UDP_GRO`).
pub(crate) fn merge_receives(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Asks for socket buffers of this many bytes; the kernel may give less.
pub(crate) fn large_buffers(socket: &UdpSocket, bytes: c_int) -> io::Result<()> {
    let forced = set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes);
    if forced.is_err() {
        set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    }
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)
}

fn set(socket: &UdpSocket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    const LEN: libc::socklen_t = 4;
    // SAFETY: the descriptor is open while `socket` is borrowed; the pointer is to `LEN` readable bytes.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            LEN,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Copies between slices of one length; the CRC of `head` and what has been copied.
pub(crate) fn copy_and_sum(backend: Backend, head: &[u8], from: &[u8], to: &mut [u8]) -> u32 {
    assert_eq!(from.len(), to.len());
    // SAFETY: `from` is readable and has the length of `to`; a slice that may be written overlaps with none.
    unsafe { backend.copy(0, head, from.as_ptr(), to) }
}

/// The processors that this thread may use, by number.
pub(crate) fn processors() -> Vec<usize> {
    // SAFETY: plain data, for which zeros are valid: the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and as long as said.
    let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if failed != 0 {
        return Vec::new();
    }
    let all = 0..8 * size_of_val(&set);
    // SAFETY: the numbers are below the number of bits of a set.
    all.filter(|&number| unsafe { libc::CPU_ISSET(number, &set) })
        .collect()
}

/// Keeps the calling thread on one processor, one of [`processors`].
pub(crate) fn pin(processor: usize) -> io::Result<()> {
    // SAFETY: as in `processors`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    assert!(processor < 8 * size_of_val(&set), "processor {processor}");
    // SAFETY: below the number of bits of a set, as asserted.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: `set` is readable and as long as said.
    let failed = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A file mapped shared into this process: what a peer process that maps it too can see.
///
/// The first page holds counters, one per cache line; the rest is data.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    data_len: usize,
}

/// Length of the page with the counters.
const COUNTERS_LEN: usize = 4096;

impl SharedMemory {
    /// Makes `file` long enough for `data_len` bytes of data and maps it; every page is touched.
    pub(crate) fn map(file: &File, data_len: usize) -> io::Result<Self> {
        let len = COUNTERS_LEN + data_len;
        let file_len = u64::try_from(len).map_err(io::Error::other)?;
        if file.metadata()?.len() < file_len {
            file.set_len(file_len)?;
        }
        // SAFETY: a new mapping at an address of the kernel's choice, of an open file that is `len` bytes long; nobody
        // shortens it.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { start, data_len })
    }

    /// Counter `index`, each on its own cache line.
    pub(crate) fn counter(&self, index: usize) -> &AtomicU64 {
        let offset = index * 64;
        assert!(offset < COUNTERS_LEN, "counter {index}");
        // SAFETY: inside the mapping (asserted), aligned (the mapping to pages, the offset to 64), alive while `self` is
        // borrowed, and accessed in every process as an atomic only.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Copies `data` to the shared data at `offset`. The counters say whose turn it is to touch it.
    pub(crate) fn copy_in(&self, offset: usize, data: &[u8]) {
        let at = self.data_at(offset, data.len());
        // SAFETY: `at` has `data.len()` bytes in the mapping; no Rust reference to that data ever exists.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) }
    }

    /// Copies from the shared data at `offset`.
    pub(crate) fn copy_out(&self, offset: usize, data: &mut [u8]) {
        let at = self.data_at(offset, data.len());
        // SAFETY: as in `copy_in`.
        unsafe { ptr::copy_nonoverlapping(at, data.as_mut_ptr(), data.len()) }
    }

    fn data_at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.data_len),
            "{len} bytes at {offset}"
        );
        // SAFETY: inside the mapping, as asserted.
        unsafe { self.start.as_ptr().add(COUNTERS_LEN + offset) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the whole mapping of `map`, which nothing borrows any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), COUNTERS_LEN + self.data_len) };
    }
}
