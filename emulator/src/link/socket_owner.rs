//! Finds the owner of UDP port 4791 of an address, for error messages, and for the broker's check
//! that a group contains only known sockets.

use core::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use super::{LocalAddr, ROCE_PORT};

/// The owner of a port that cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketOwner {
    /// A process whose /proc entries this user may read.
    Process {
        /// Its process id.
        pid: u32,
        /// Its command name.
        name: String,
    },
    /// A broker of this user that has another runtime directory.
    Broker {
        /// Its process ID in its own PID namespace.
        pid: u32,
        /// Its runtime directory in its own mount namespace.
        dir: PathBuf,
    },
    /// Most likely the kernel's own RoCE driver (rdma_rxe), because the module is loaded and no
    /// process has the socket.
    KernelRxe,
    /// A process of another user.
    OtherUser {
        /// The user ID.
        uid: u32,
    },
    /// A process of a user without an ID in this user namespace.
    UnmappedUser {
        /// The overflow ID, which stands for all such users.
        uid: u32,
    },
    /// The owner is unknown.
    Unknown,
}

impl fmt::Display for SocketOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Broker { pid, dir } => write!(
                f,
                "a broker of this user, process {pid}, with the runtime directory {}",
                dir.display()
            ),
            Self::KernelRxe => write!(f, "the kernel's software RoCE driver"),
            Self::OtherUser { uid } => write!(f, "a process of user {uid}"),
            Self::UnmappedUser { uid } => write!(
                f,
                "a process of a user outside of this user namespace (shown as {uid}, the overflow \
                 id)"
            ),
            Self::Unknown => write!(f, "a process that this user cannot see"),
        }
    }
}

impl SocketOwner {
    /// Returns what the user can do if this owner has port 4791 of `local`.
    #[must_use]
    pub fn remedy(&self, local: LocalAddr) -> String {
        let sockets = bound_sockets().unwrap_or_default();
        let has_all = sockets.iter().any(|socket| socket.ip.is_unspecified());
        self.remedy_with(local, has_all)
    }

    /// Returns the remedy. `has_all` tells that a socket is bound to all addresses.
    fn remedy_with(&self, local: LocalAddr, has_all: bool) -> String {
        let elsewhere = match (has_all, local.ip()) {
            // Then port 4791 of no address is free.
            (true, _) => "a network namespace of its own (unshare --net)".to_owned(),
            (false, IpAddr::V4(ip)) if ip.is_loopback() => {
                let other = if ip == Ipv4Addr::new(127, 0, 0, 2) {
                    3
                } else {
                    2
                };
                format!("another address (--ip 127.0.0.{other})")
            }
            (false, _) => "another address (--ip ADDRESS)".to_owned(),
        };
        match self {
            Self::Process { .. } => format!(
                "End it, or use {elsewhere}. A program with Rocade shares its addresses if it uses \
                 the broker, too"
            ),
            Self::Broker { dir, .. } => format!(
                "Programs share an address if all of them use the broker, and the same one: set \
                 ROCADE_RUNTIME_DIR={} for all of them (in containers, a directory that all of \
                 them mount)",
                dir.display()
            ),
            Self::KernelRxe => {
                "Unload it (`modprobe -r rdma_rxe`), or use a network namespace".to_owned()
            }
            Self::OtherUser { .. } | Self::UnmappedUser { .. } => {
                format!("Users cannot share an address: use {elsewhere}")
            }
            Self::Unknown => format!("Use {elsewhere}, or look for it as root: ss -aunp"),
        }
    }
}

/// A bound UDP socket as /proc/net lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundSocket {
    pub(crate) ip: IpAddr,
    pub(crate) uid: u32,
    /// The inode of the socket, equal to that of fstat(2) of its fd.
    pub(crate) inode: u64,
}

/// Returns all sockets of this network namespace that are bound to port 4791.
///
/// # Errors
/// Errors of reading /proc.
pub(crate) fn bound_sockets() -> io::Result<Vec<BoundSocket>> {
    let v4 = fs::read_to_string("/proc/thread-self/net/udp")?;
    // Absent without IPv6.
    let v6 = fs::read_to_string("/proc/thread-self/net/udp6").unwrap_or_default();
    Ok(v4
        .lines()
        .chain(v6.lines())
        .filter_map(parse_line)
        .collect())
}

/// Finds the owner of port 4791 of the address, as far as this user can see it.
pub(crate) fn find(local: LocalAddr) -> SocketOwner {
    holder(local).unwrap_or(SocketOwner::Unknown)
}

/// Returns the owner of the socket that has port 4791 of the address, or `None` if the system lists
/// no such socket.
pub(crate) fn holder(local: LocalAddr) -> Option<SocketOwner> {
    let sockets = bound_sockets().ok()?;
    let holds = |s: &&BoundSocket| s.ip == local.ip() || s.ip.is_unspecified();
    sockets.iter().find(holds).map(of)
}

/// Finds the owner of an address that process `pid` (0: unknown) has locked. The process may also
/// have port 4791 of it.
pub(crate) fn find_or_process(local: LocalAddr, pid: u32) -> SocketOwner {
    match find(local) {
        SocketOwner::Unknown if pid != 0 => SocketOwner::Process {
            pid,
            name: process_name(pid).unwrap_or_else(|| "?".to_owned()),
        },
        owner => owner,
    }
}

/// Finds the owner of this socket, as far as this user can see it.
pub(crate) fn of(socket: &BoundSocket) -> SocketOwner {
    if let Some(owner) = process_of(socket.inode) {
        return owner;
    }
    if socket.uid == 0 && Path::new("/sys/module/rdma_rxe").exists() {
        return SocketOwner::KernelRxe;
    }
    if socket.uid == crate::sys::effective_uid() {
        return SocketOwner::Unknown;
    }
    let uid = socket.uid;
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if Some(uid) == overflow && !is_mapped(&map, uid) {
        return SocketOwner::UnmappedUser { uid };
    }
    SocketOwner::OtherUser { uid }
}

/// Returns true if a user namespace with this `uid_map` has the user. Without a map it has all
/// users.
fn is_mapped(map: &str, uid: u32) -> bool {
    let mut lines = map.lines().peekable();
    let is_there = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let first: u32 = fields.next()?.parse().ok()?;
        let count: u32 = fields.nth(1)?.parse().ok()?;
        Some(uid.checked_sub(first)? < count)
    };
    lines.peek().is_none() || lines.any(|line| is_there(line) == Some(true))
}

/// Returns the process that has an fd of this socket open, if this user may see it.
fn process_of(inode: u64) -> Option<SocketOwner> {
    let wanted = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(fds) = fs::read_dir(entry.path().join("fd")) else {
            continue;
        };
        let found = fds
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|target| target.as_os_str() == wanted.as_str());
        if found {
            let name = process_name(pid).unwrap_or_else(|| "?".to_owned());
            return Some(SocketOwner::Process { pid, name });
        }
    }
    None
}

/// Returns the command name of a process.
pub(crate) fn process_name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Parses a line of /proc/net/udp or udp6. Returns `None` for the heading, other ports and invalid
/// lines.
fn parse_line(line: &str) -> Option<BoundSocket> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != ROCE_PORT {
        return None;
    }
    // The fields after the local address: remote address, state, queues, timer, retransmits, uid.
    let uid = fields.nth(5)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(BoundSocket {
        ip: parse_ip(ip)?,
        uid,
        inode,
    })
}

/// Parses 1 or 4 words in hexadecimal, each in this machine's byte order.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for (at, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(octets).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn parses_the_kernels_lists() {
        let v4 = " 8135: 0200007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                  1000        0 22338 2 00000000b6d7bb39 0";
        let expected = BoundSocket {
            ip: Ipv4Addr::new(127, 0, 0, 2).into(),
            uid: 1000,
            inode: 22338,
        };
        assert_eq!(parse_line(v4), Some(expected));
        let v6 = "  1: 00000000000000000000000001000000:12B7 \
                  00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000 \
                  0 0 77 2 0 0";
        let expected = BoundSocket {
            ip: Ipv6Addr::LOCALHOST.into(),
            uid: 0,
            inode: 77,
        };
        assert_eq!(parse_line(v6), Some(expected));
    }

    /// In a user namespace, the overflow ID stands for every user without an ID there.
    #[test]
    fn users_outside_of_a_namespace_are_no_users_of_it() {
        let host = "         0          0 4294967295\n";
        assert!(is_mapped(host, 65534));
        let one = "         0       1000          1\n";
        assert!(is_mapped(one, 0) && !is_mapped(one, 65534));
        let two = "0 1000 1\n1 100000 65536\n";
        assert!(is_mapped(two, 65534) && !is_mapped(two, 65537));
        assert!(is_mapped("", 65534), "no map means no namespace");
        let text = SocketOwner::UnmappedUser { uid: 65534 }.to_string();
        assert!(text.contains("outside of this user namespace"), "{text}");
    }

    #[test]
    fn the_remedy_is_one_that_helps() {
        let local = |text: &str| LocalAddr::from(text.parse::<IpAddr>().unwrap());
        let python = SocketOwner::Process {
            pid: 7,
            name: "python3".to_owned(),
        };
        let other_user = SocketOwner::OtherUser { uid: 1000 };
        for owner in [&python, &other_user, &SocketOwner::Unknown] {
            let text = owner.remedy_with(local("127.0.0.1"), false);
            assert!(text.contains("--ip 127.0.0.2"), "{text}");
            let text = owner.remedy_with(local("127.0.0.2"), false);
            assert!(text.contains("--ip 127.0.0.3"), "{text}");
            // A socket of 0.0.0.0 has the port of every address.
            let text = owner.remedy_with(local("127.0.0.1"), true);
            assert!(
                !text.contains("--ip") && text.contains("namespace"),
                "{text}"
            );
        }
        let text = other_user.remedy_with(local("::1"), false);
        assert!(text.contains("Users cannot share"), "{text}");
    }

    #[test]
    fn other_ports_and_nonsense_are_skipped() {
        let other = "1: 0200007F:12B8 00000000:0000 07 0:0 00:0 0 1000 0 22338 2 0 0";
        for line in [
            other,
            "sl  local_address rem_address",
            "",
            ": :12B7",
            "1: zz:12B7 a b c d e",
        ] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }
}
