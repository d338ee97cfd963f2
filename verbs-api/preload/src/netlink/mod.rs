//! `NETLINK_RDMA`: the requests that iproute2's `rdma` sends to the kernel.
//!
//! A socket for `NETLINK_RDMA` is in fact one for `NETLINK_USERSOCK`, which connects processes. The
//! kernel binds and names it, and delivers to it, as to any netlink socket. Messages of the program
//! to the kernel are answered within the call, from the files of the view. Only these answers
//! allocate. In a program without such a socket, a send call only checks a flag.

mod abi;
mod answer;
mod devices;
mod entries;
mod message;
mod resources;

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{msghdr, sockaddr, sockaddr_nl, socklen_t, ssize_t};

use crate::paths::PATH_MAX;
use answer::{Caller, answer};

/// The time limit for a program to read the rest of a long answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum length of a program's request.
const REQUEST_MAX: usize = 1 << 16;
const ADDRESS_LEN: socklen_t = 12;
const _: () = assert!(size_of::<sockaddr_nl>() == ADDRESS_LEN as usize);

/// The directory of the devices, which is set once before `main`.
struct Devices {
    bytes: UnsafeCell<[u8; PATH_MAX]>,
    len: AtomicUsize,
}

// SAFETY: the bytes are written before `len` is set, by the only thread during the initialisation
// of libraries, and never again.
unsafe impl Sync for Devices {}

static DEVICES: Devices = Devices {
    bytes: UnsafeCell::new([0; PATH_MAX]),
    len: AtomicUsize::new(0),
};
/// Returns true if this process has made a socket that is answered here.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Stores the directory, because the program may change its environment later.
extern "C" fn initialise() {
    // SAFETY: the name is terminated, and no other thread changes the environment now.
    let value = unsafe { libc::getenv(c"ROCADE_VIEW_COUNTERS".as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: not NULL, so a terminated string.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    if value.first() == Some(&b'/') && value.len() < PATH_MAX {
        // SAFETY: `len` is still 0, so that no thread reads the bytes. The value fits.
        unsafe {
            std::ptr::copy_nonoverlapping(value.as_ptr(), DEVICES.bytes.get().cast(), value.len());
        }
        DEVICES.len.store(value.len(), Ordering::Release);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn() = initialise;

/// Returns the directory of the devices, or an empty path without a view.
fn devices_dir() -> &'static Path {
    let len = DEVICES.len.load(Ordering::Acquire);
    // SAFETY: the first `len` bytes were written before `len`, and do not change.
    let bytes = unsafe { std::slice::from_raw_parts(DEVICES.bytes.get().cast::<u8>(), len) };
    Path::new(OsStr::from_bytes(bytes))
}

/// Returns the index of a network interface, or `None` if this network namespace has none of this
/// name.
fn interface_index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a terminated string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    crate::next!(socket: fn(c_int, c_int, c_int) -> c_int, next, -1);
    let is_ours = domain == libc::AF_NETLINK && protocol == abi::NETLINK_RDMA;
    if is_ours && !devices_dir().as_os_str().is_empty() {
        IS_USED.store(true, Ordering::Relaxed);
        // SAFETY: the arguments contain no pointers.
        return unsafe { next(domain, kind, libc::NETLINK_USERSOCK) };
    }
    // SAFETY: as above.
    unsafe { next(domain, kind, protocol) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn send(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    crate::next!(send: fn(c_int, *const c_void, usize, c_int) -> ssize_t, next, -1);
    if IS_USED.load(Ordering::Relaxed) && is_answered(fd) {
        // SAFETY: the caller's contract: `len` bytes that can be read.
        return unsafe { take(fd, &[part(bytes, len)]) };
    }
    // SAFETY: the caller's contract is the same.
    unsafe { next(fd, bytes, len, flags) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    crate::next!(sendto: fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> ssize_t, next, -1);
    // SAFETY: the caller's contract: an address of `to_len` bytes, and `len` bytes, that can be
    // read.
    unsafe {
        if IS_USED.load(Ordering::Relaxed) && is_answered(fd) && is_kernel(to.cast(), to_len) {
            return take(fd, &[part(bytes, len)]);
        }
        next(fd, bytes, len, flags, to, to_len)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    crate::next!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t, next, -1);
    // SAFETY: the caller's contract: a message whose address and parts can be read.
    unsafe {
        if IS_USED.load(Ordering::Relaxed)
            && is_answered(fd)
            && !message.is_null()
            && is_kernel((*message).msg_name, (*message).msg_namelen)
        {
            let message = &*message;
            let parts = if message.msg_iov.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen)
            };
            return take(fd, parts);
        }
        next(fd, message, flags)
    }
}

fn part(bytes: *const c_void, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.cast_mut(),
        iov_len: len,
    }
}

/// Returns the length of an option's value.
fn length_of<T>(value: &T) -> socklen_t {
    socklen_t::try_from(size_of_val(value)).unwrap_or(0)
}

/// Returns a numeric option of a socket.
fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = length_of(&value);
    // SAFETY: `value` has room for `len` bytes.
    let result =
        unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (result == 0).then_some(value)
}

/// Returns true if `socket` created the socket for `NETLINK_RDMA`. Keeps `errno`.
#[cold]
fn is_answered(fd: c_int) -> bool {
    let errno = errno();
    let is = option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_NETLINK)
        && option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::NETLINK_USERSOCK);
    set_errno(errno);
    is
}

/// Returns true if the message is addressed to the kernel. A message without an address is, because
/// these sockets are not connected.
///
/// # Safety
/// `address` must be NULL or point to `len` bytes.
unsafe fn is_kernel(address: *const c_void, len: socklen_t) -> bool {
    if address.is_null() || len < ADDRESS_LEN {
        return true;
    }
    // SAFETY: long enough, by contract.
    let address = unsafe { std::ptr::read_unaligned(address.cast::<sockaddr_nl>()) };
    address.nl_pid == 0 && address.nl_groups == 0
}

fn errno() -> c_int {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Answers a message to the kernel. Returns the number of bytes sent, or -1 with errno set.
///
/// # Safety
/// `parts` must point to memory that can be read.
#[cold]
unsafe fn take(fd: c_int, parts: &[libc::iovec]) -> ssize_t {
    let mut request = Vec::new();
    for part in parts {
        if part.iov_len > REQUEST_MAX || request.len() + part.iov_len > REQUEST_MAX {
            set_errno(libc::EMSGSIZE);
            return -1;
        }
        if part.iov_base.is_null() && part.iov_len > 0 {
            set_errno(libc::EFAULT);
            return -1;
        }
        if part.iov_len > 0 {
            // SAFETY: by contract readable, and neither NULL nor empty.
            let bytes = unsafe { std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) };
            request.extend_from_slice(bytes);
        }
    }
    let errno = errno();
    match reply(fd, &request) {
        Ok(()) => {
            set_errno(errno);
            ssize_t::try_from(request.len()).unwrap_or(ssize_t::MAX)
        }
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Delivers the answers to the program's socket.
fn reply(fd: c_int, request: &[u8]) -> Result<(), c_int> {
    let port_id = port_id(fd)?;
    let caller = Caller {
        port_id,
        takes_words: option(fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK) == Some(1),
    };
    let source = devices::Files { dir: devices_dir() };
    let answers = answer(request, caller, &source);
    let Some(sender) = sender() else {
        return Err(errno());
    };
    hand_over(sender, port_id, answers);
    Ok(())
}

/// Sends the datagrams in order. A thread sends those for which there is no room yet.
fn hand_over(sender: OwnedFd, port_id: u32, answers: Vec<Vec<u8>>) {
    let mut left = answers;
    let sent = left
        .iter()
        .take_while(|datagram| deliver(&sender, port_id, datagram, libc::MSG_DONTWAIT))
        .count();
    let rest = left.split_off(sent);
    if !rest.is_empty() {
        send_later(sender, port_id, rest);
    }
}

/// Returns the netlink port of a socket, and binds the socket if necessary.
fn port_id(fd: c_int) -> Result<u32, c_int> {
    let mut address = address(0);
    for _ in 0..2 {
        let mut len = ADDRESS_LEN;
        // SAFETY: `address` has room for `len` bytes.
        let result = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
        if result != 0 {
            return Err(errno());
        }
        if address.nl_pid != 0 {
            return Ok(address.nl_pid);
        }
        // SAFETY: an address of this length.
        let result = unsafe { libc::bind(fd, (&raw const address).cast(), ADDRESS_LEN) };
        if result != 0 {
            return Err(errno());
        }
    }
    Err(libc::ENOTCONN)
}

fn address(port_id: u32) -> sockaddr_nl {
    // SAFETY: all zeroes are a valid structure of numbers.
    let mut address: sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or(0);
    address.nl_pid = port_id;
    address
}

/// Creates a socket of the same kind, which sends the answers.
fn sender() -> Option<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the arguments contain no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
    // SAFETY: a new descriptor with no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends one datagram, and returns false if that failed.
fn deliver(sender: &OwnedFd, port_id: u32, datagram: &[u8], flags: c_int) -> bool {
    let to = address(port_id);
    crate::next!(sendto: fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> ssize_t, next, false);
    // SAFETY: the bytes and the address live across the call.
    let sent = unsafe {
        next(
            sender.as_raw_fd(),
            datagram.as_ptr().cast(),
            datagram.len(),
            flags,
            (&raw const to).cast(),
            ADDRESS_LEN,
        )
    };
    sent >= 0
}

/// Starts a thread that sends the datagrams without room in the program's receive buffer while the
/// program reads.
fn send_later(sender: OwnedFd, port_id: u32, rest: Vec<Vec<u8>>) {
    let patience = libc::timeval {
        tv_sec: PATIENCE.as_secs().cast_signed(),
        tv_usec: 0,
    };
    let len = length_of(&patience);
    // SAFETY: an option of this type and length.
    unsafe {
        libc::setsockopt(
            sender.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw const patience).cast(),
            len,
        );
    }
    // Without the thread the dump has no end, as if the kernel had lost a message.
    let _ = std::thread::Builder::new().spawn(move || {
        rest.iter()
            .all(|datagram| deliver(&sender, port_id, datagram, 0))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer is much larger than the reader's buffer.
    #[test]
    fn a_long_answer_arrives_in_order() {
        let reader = sender().expect("a netlink socket");
        let port_id = port_id(reader.as_raw_fd()).expect("it can be bound");
        let patience = libc::timeval {
            tv_sec: 30,
            tv_usec: 0,
        };
        // SAFETY: an option of this type and length.
        let result = unsafe {
            libc::setsockopt(
                reader.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const patience).cast(),
                length_of(&patience),
            )
        };
        assert_eq!(result, 0);
        let answers = (0..2_000_u32).map(|number| number.to_ne_bytes().repeat(900));
        hand_over(sender().expect("another one"), port_id, answers.collect());
        for expected in 0..2_000_u32 {
            let mut buffer = [0_u8; 4096];
            // SAFETY: the buffer is writable for its length.
            let len = unsafe {
                libc::recv(
                    reader.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    0,
                )
            };
            assert_eq!(len, 3600, "{expected}");
            assert_eq!(buffer[..4], expected.to_ne_bytes());
        }
    }
}
