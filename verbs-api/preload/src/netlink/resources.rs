//! The objects that processes have on their devices, as reported by their engines.
//!
//! An engine listens at `rocade/resources/UID/PID-CHANCE` in the abstract namespace. It sends a
//! memory file with a line for each object: `KIND NAME=VALUE ...`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

/// The time limit for the answers of all processes. A stopped process does not answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum length of a report, which suffices for a million objects.
const REPORT_MAX: u64 = 1 << 28;

/// An object of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) pid: u32,
    line: String,
}

impl Resource {
    pub(super) fn new(pid: u32, line: &str) -> Self {
        let line = line.to_owned();
        Self { pid, line }
    }

    /// Returns the kind: `qp`, `mr` and so on.
    pub(super) fn kind(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// Returns the text of a field.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let mut fields = self.line.split(' ').skip(1);
        fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns a numeric field, if it is in the range of the type.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    /// Returns the GUID of the object's device.
    pub(super) fn guid(&self) -> Option<u64> {
        u64::from_str_radix(self.text("guid")?, 16).ok()
    }
}

/// Returns the objects of all processes of this user in this network namespace, by process.
pub(super) fn all() -> Vec<Resource> {
    // SAFETY: cannot fail, and touches no memory.
    let uid = unsafe { libc::geteuid() };
    let table = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let connections: Vec<(u32, UnixStream)> = names(&table, uid)
        .iter()
        .filter_map(|name| connect(name, uid).ok().flatten())
        .collect();
    let deadline = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    for (pid, connection) in connections {
        match report(&connection, deadline) {
            Ok(text) => found.extend(text.lines().map(|line| Resource::new(pid, line))),
            // The process is ending or stopped.
            Err(_) => continue,
        }
    }
    found.sort_by_key(|resource| resource.pid);
    found
}

/// Returns the names at which engines of this user listen, from the kernel's table of Unix sockets.
fn names(table: &str, uid: u32) -> BTreeSet<&str> {
    let prefix = format!("rocade/resources/{uid}/");
    let last_words = table.lines().filter_map(|line| line.rsplit(' ').next());
    last_words
        .filter_map(|word| word.strip_prefix('@'))
        .filter(|name| name.starts_with(&prefix))
        .collect()
}

/// Connects to an engine. Returns `None` if another user's process listens at the name, or if the
/// engine has ended and only a child has the socket.
fn connect(name: &str, uid: u32) -> io::Result<Option<(u32, UnixStream)>> {
    let connection = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    // SAFETY: all zeroes are a valid structure of numbers.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = super::length_of(&peer);
    // SAFETY: `peer` has room for `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = u32::try_from(peer.pid).unwrap_or(0);
    let lives = fs::metadata(format!("/proc/{pid}")).is_ok();
    Ok((peer.uid == uid && lives).then_some((pid, connection)))
}

/// Returns the report of an engine.
fn report(connection: &UnixStream, deadline: Instant) -> io::Result<String> {
    let left = deadline.saturating_duration_since(Instant::now());
    connection.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
    let file = File::from(receive_file(connection)?);
    let data = file.metadata()?;
    if !data.is_file() || data.len() > REPORT_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; usize::try_from(data.len()).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// A buffer for the control message of one descriptor.
#[repr(C, align(8))]
struct CmsgBuf([u8; 64]);

/// Receives the descriptor that comes with a byte.
fn receive_file(connection: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = 0_u8;
    let mut part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = CmsgBuf([0; 64]);
    // SAFETY: all zeroes are a valid structure of numbers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<CmsgBuf>();
    // SAFETY: the message names one writable byte and the whole of `control`.
    let received = unsafe {
        libc::recvmsg(
            connection.as_raw_fd(),
            &raw mut message,
            libc::MSG_CMSG_CLOEXEC,
        )
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled the message in.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: NULL or a header within `control`, which is aligned for it.
    let Some(header) = (unsafe { header.as_ref() }) else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    // SAFETY: computes a length only.
    let least = unsafe { libc::CMSG_LEN(4) } as usize;
    let is_file = header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS;
    if !is_file || header.cmsg_len < least {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the data of the header are at least one descriptor, which may be unaligned.
    let fd = unsafe { libc::CMSG_DATA(header).cast::<i32>().read_unaligned() };
    // SAFETY: a new descriptor with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_user() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 42 @rocade/resources/7/12-0a\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 43 @rocade/resources/7/12-0a\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 44 @rocade/resources/77/13-0b\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 45 /tmp/rocade/resources/7/1\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 46\n";
        assert_eq!(
            names(table, 7),
            BTreeSet::from(["rocade/resources/7/12-0a"])
        );
    }

    #[test]
    fn lines_have_fields() {
        let qp = Resource::new(3, "qp port=1 lqpn=16777216 sq_psn=5 guid=00ff");
        assert_eq!((qp.kind(), qp.guid()), ("qp", Some(255)));
        assert_eq!(qp.number::<u32>("lqpn"), Some(16_777_216));
        assert_eq!(qp.number::<u8>("lqpn"), None);
        assert_eq!(qp.number::<u32>("psn"), None);
        assert_eq!(qp.text("port"), Some("1"));
        assert_eq!(Resource::new(3, "").kind(), "");
    }
}
