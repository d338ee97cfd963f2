//! Messages with file descriptors over a unix socket (SCM_RIGHTS), and the credentials of its peer.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::socklen_t;

use crate::sync::turn;
use crate::sys::forked;

/// Most file descriptors of a message.
pub(crate) const MAX_FDS: usize = 64;

/// Space for [`MAX_FDS`] descriptors in a control message, headers included.
const CONTROL_LEN: usize = 64 + MAX_FDS * size_of::<RawFd>();

#[repr(C, align(8))]
struct CmsgBuf([u8; CONTROL_LEN]);

/// The process at the other end of a unix connection, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Process ID, 0 if the process is in a PID namespace invisible to this one.
    pub(crate) pid: u32,
    /// Effective user ID at the time of connecting.
    pub(crate) uid: u32,
}

/// Returns the process that connected or listens (SO_PEERCRED).
pub(crate) fn peer(connection: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the pointers are to live objects, and `len` is the size of the first.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zero-initialised plain data.
    let credentials = unsafe { credentials.assume_init() };
    Ok(Peer {
        pid: u32::try_from(credentials.pid).unwrap_or(0),
        uid: credentials.uid,
    })
}

/// Sends one message with descriptors, without blocking.
///
/// # Errors
/// Errors of sendmsg(2), or `InvalidInput` for more than [`MAX_FDS`] descriptors.
pub(super) fn send(
    connection: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if turn::is_dead() {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut control = CmsgBuf([0; CONTROL_LEN]);
    let mut iov = libc::iovec {
        iov_base: message.as_ptr().cast_mut().cast(),
        iov_len: message.len(),
    };
    // SAFETY: msghdr is plain old data for which zero is a valid value.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    if !fds.is_empty() {
        let bytes = u32::try_from(size_of_val(&fds[..])).unwrap_or(u32::MAX);
        // SAFETY: pure computations without access to memory.
        let (space, len) = unsafe { (libc::CMSG_SPACE(bytes), libc::CMSG_LEN(bytes)) };
        debug_assert!(space as usize <= CONTROL_LEN, "room for MAX_FDS");
        msg.msg_control = (&raw mut control).cast();
        msg.msg_controllen = space as _;
        let header = libc::cmsghdr {
            cmsg_len: len as _,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        let start = (&raw mut control).cast::<libc::cmsghdr>();
        // SAFETY: the buffer is aligned for cmsghdr and has CONTROL_LEN >= space bytes.
        unsafe { start.write(header) };
        // SAFETY: the data area begins inside the buffer and has room for MAX_FDS descriptors.
        // Source and destination are distinct objects.
        unsafe {
            libc::CMSG_DATA(start).copy_from_nonoverlapping(fds.as_ptr().cast(), bytes as usize);
        }
    }
    loop {
        // SAFETY: every pointer in `msg` is to a live local or to `message`, with its true length,
        // and sendmsg only reads them.
        let sent = unsafe {
            libc::sendmsg(
                connection.as_raw_fd(),
                &raw const msg,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives one message and its descriptors without blocking. The caller owns the descriptors,
/// which forked children do not keep. Length 0 means that the connection was closed.
///
/// # Errors
/// Errors of recvmsg(2). EMFILE if this process cannot have as many descriptors. `InvalidData` if
/// the message or its descriptors did not fit. The received descriptors are closed then.
pub(crate) fn receive(
    connection: BorrowedFd<'_>,
    buf: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = CmsgBuf([0; CONTROL_LEN]);
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: msghdr is plain old data for which zero is a valid value.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    msg.msg_controllen = CONTROL_LEN as _;
    let len = loop {
        // SAFETY: every pointer in `msg` is to a live local or to `buf`, which is exclusively
        // borrowed, with its true length.
        let received = unsafe {
            libc::recvmsg(
                connection.as_raw_fd(),
                &raw mut msg,
                libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
            )
        };
        if let Ok(len) = usize::try_from(received) {
            break len;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    // Takes ownership of the descriptors before any check can fail.
    let fds = take_fds(&msg);
    let too_long = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    if msg.msg_flags & libc::MSG_CTRUNC == 0 {
        return match msg.msg_flags & libc::MSG_TRUNC {
            0 => Ok((len, fds)),
            _ => too_long("message too long"),
        };
    }
    // The kernel discards descriptors for which this process has no number left, and does not say
    // so. A message has no more of them than fit into the buffer.
    match fds.len() < MAX_FDS {
        true => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        false => too_long("too many descriptors"),
    }
}

fn take_fds(msg: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: `msg` was filled by recvmsg, so msg_control and msg_controllen describe the valid
    // control messages in a live buffer.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !cmsg.is_null() {
        // SAFETY: CMSG_FIRSTHDR/CMSG_NXTHDR return aligned pointers to complete headers.
        let header = unsafe { &*cmsg };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: as above. Computes the address behind the header.
            let data = unsafe { libc::CMSG_DATA(cmsg) };
            let bytes = header.cmsg_len as usize - (data as usize - cmsg as usize);
            for at in 0..bytes / size_of::<RawFd>() {
                // SAFETY: the kernel wrote `bytes` bytes of descriptors at `data`, and the read
                // needs no alignment.
                let fd = unsafe { data.cast::<RawFd>().add(at).read_unaligned() };
                // SAFETY: the kernel has just installed this descriptor, and it has no other owner.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: `cmsg` came from this `msg`.
        cmsg = unsafe { libc::CMSG_NXTHDR(msg, cmsg) };
    }
    fds.iter().for_each(|fd| forked::note(fd.as_fd()));
    fds
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use socket2::{Domain, Socket, Type};

    use super::*;

    fn pair() -> (Socket, Socket) {
        Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap()
    }

    #[test]
    fn descriptors_arrive_in_order() {
        let _no_starts = crate::sys::STARTS.read();
        let (a, b) = pair();
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<_> = (0..MAX_FDS)
            .map(|n| File::create(dir.path().join(n.to_string())).unwrap())
            .collect();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(a.as_fd(), b"hello", &fds).unwrap();
        send(a.as_fd(), b"bare", &[]).unwrap();
        let mut buf = [0; 16];
        let (len, received) = receive(b.as_fd(), &mut buf).unwrap();
        assert_eq!(&buf[..len], b"hello");
        let inode = |file: &File| file.metadata().unwrap().ino();
        let got: Vec<_> = received
            .into_iter()
            .map(|fd| inode(&File::from(fd)))
            .collect();
        assert_eq!(got, files.iter().map(inode).collect::<Vec<_>>());
        let (len, received) = receive(b.as_fd(), &mut buf).unwrap();
        assert_eq!((&buf[..len], received.len()), (&b"bare"[..], 0));
        assert_eq!(
            receive(b.as_fd(), &mut buf).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut buf).unwrap().0, 0);
    }

    #[test]
    fn too_much_is_an_error_and_leaks_nothing() {
        let (a, b) = pair();
        let file = File::open("/dev/null").unwrap();
        let fds = vec![file.as_fd(); MAX_FDS + 1];
        assert_eq!(
            send(a.as_fd(), b"x", &fds).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        let (watch, passed) = std::os::unix::net::UnixStream::pair().unwrap();
        send(a.as_fd(), &[0; 32], &[passed.as_fd()]).unwrap();
        drop(passed);
        let mut buf = [0; 16];
        assert_eq!(
            receive(b.as_fd(), &mut buf).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        // The own end sees that the other one is closed.
        assert_eq!(io::Read::read(&mut &watch, &mut buf).unwrap(), 0);
    }

    #[test]
    fn the_peer_is_this_process() {
        let (a, _b) = pair();
        let peer = peer(a.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, crate::sys::effective_uid());
    }
}
