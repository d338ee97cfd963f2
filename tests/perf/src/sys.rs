//! The system calls that the standard library lacks, and a copy with checksum. All unsafe code of
//! this package is here.

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

/// Lets the kernel split the data of one call into datagrams of this length (`UDP_SEGMENT`).
pub(crate) fn segment_sends(socket: &UdpSocket, segment_len: u16) -> io::Result<()> {
    set(
        socket,
        libc::SOL_UDP,
        libc::UDP_SEGMENT,
        c_int::from(segment_len),
    )
}

/// Lets one receive return several merged datagrams (`UDP_GRO`).
pub(crate) fn merge_receives(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Requests socket buffers of this many bytes. The kernel may grant less.
pub(crate) fn large_buffers(socket: &UdpSocket, bytes: c_int) -> io::Result<()> {
    let forced = set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes);
    if forced.is_err() {
        set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    }
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)
}

fn set(socket: &UdpSocket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    const LEN: libc::socklen_t = 4;
    // SAFETY: The descriptor is open while `socket` is borrowed, and the pointer is to `LEN`
    // readable bytes.
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

/// Copies between slices of equal length. Returns the CRC of `head` and the copied bytes.
pub(crate) fn copy_and_sum(backend: Backend, head: &[u8], from: &[u8], to: &mut [u8]) -> u32 {
    assert_eq!(from.len(), to.len());
    // SAFETY: `from` is readable and as long as `to`, and a mutable slice overlaps with no other
    // slice.
    unsafe { backend.copy(0, head, from.as_ptr(), to) }
}

/// Returns the numbers of the processors that this thread may use.
pub(crate) fn processors() -> Vec<usize> {
    // SAFETY: The type is plain data, for which zeros are valid: the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and has the given length.
    let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if failed != 0 {
        return Vec::new();
    }
    let all = 0..8 * size_of_val(&set);
    // SAFETY: The numbers are below the number of bits of a set.
    all.filter(|&number| unsafe { libc::CPU_ISSET(number, &set) })
        .collect()
}

/// Pins the calling thread to one of the [`processors`].
pub(crate) fn pin(processor: usize) -> io::Result<()> {
    // SAFETY: The type is plain data, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    assert!(processor < 8 * size_of_val(&set), "processor {processor}");
    // SAFETY: The number is below the number of bits of a set, as asserted.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: `set` is readable and has the given length.
    let failed = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A shared mapping of a file, through which processes that map the same file exchange data.
///
/// The first page contains counters, one per cache line. The rest is data.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    data_len: usize,
}

/// The length of the page with the counters.
const COUNTERS_LEN: usize = 4096;

impl SharedMemory {
    /// Extends `file` to the counters and `data_len` bytes of data, and maps it with all pages
    /// populated.
    pub(crate) fn map(file: &File, data_len: usize) -> io::Result<Self> {
        let len = COUNTERS_LEN + data_len;
        let file_len = u64::try_from(len).map_err(io::Error::other)?;
        if file.metadata()?.len() < file_len {
            file.set_len(file_len)?;
        }
        // SAFETY: A new mapping at an address chosen by the kernel. The open file is `len` bytes
        // long, and no process shortens it.
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

    /// Returns the counter `index`. Each counter has its own cache line.
    pub(crate) fn counter(&self, index: usize) -> &AtomicU64 {
        let offset = index * 64;
        assert!(offset < COUNTERS_LEN, "counter {index}");
        // SAFETY: The address is inside the mapping (asserted) and aligned (the mapping to pages,
        // the offset to 64). The mapping lives while `self` is borrowed, and every process accesses
        // the counter only as an atomic.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Copies `data` to the shared data at `offset`. The counters determine which process may
    /// access it.
    pub(crate) fn copy_in(&self, offset: usize, data: &[u8]) {
        let at = self.data_at(offset, data.len());
        // SAFETY: `at` has `data.len()` bytes in the mapping, and no Rust reference to that data
        // ever exists.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) }
    }

    /// Copies from the shared data at `offset`.
    pub(crate) fn copy_out(&self, offset: usize, data: &mut [u8]) {
        let at = self.data_at(offset, data.len());
        // SAFETY: `at` has `data.len()` bytes in the mapping, and no Rust reference to that data
        // ever exists.
        unsafe { ptr::copy_nonoverlapping(at, data.as_mut_ptr(), data.len()) }
    }

    fn data_at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.data_len),
            "{len} bytes at {offset}"
        );
        // SAFETY: The offset is inside the mapping, as asserted.
        unsafe { self.start.as_ptr().add(COUNTERS_LEN + offset) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: This is the whole mapping of `map`, and no borrow of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), COUNTERS_LEN + self.data_len) };
    }
}
