//! Errors of verbs, and their errno values for C programs.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::IpAddr;

use rocade_transport::{ModifyError, PostError, SrqError};

use crate::broker::BrokerError;
use crate::failure;
use crate::link::LinkError;

/// Reasons why a verb failed.
#[derive(Debug)]
pub enum VerbsError {
    /// EINVAL: the named argument is invalid.
    InvalidArgument(&'static str),
    /// ENOMEM: the named queue is full, or the named limit is reached.
    NoMemory(&'static str),
    /// EOPNOTSUPP: the device does not support this.
    NotSupported(&'static str),
    /// EPERM: the caller may not do the named operation.
    NotPermitted(&'static str),
    /// EBUSY: the named object is still in use by the named user.
    Busy(String),
    /// ENOENT: the named object does not exist.
    NotFound(&'static str),
    /// EFAULT: memory is not mapped, or not writable.
    Fault,
    /// ENODEV: no such device.
    NoDevice,
    /// ENODATA: an empty GID table entry.
    NoData,
    /// EAGAIN: there is nothing to get, and the descriptor is non-blocking.
    WouldBlock,
    /// EINVAL: `post_send`/`post_recv` refused. ENOMEM if the queue is full.
    Post(PostError),
    /// EINVAL: `modify_qp` refused.
    Modify(ModifyError),
    /// EINVAL: `modify_srq` refused.
    Srq(SrqError),
    /// EACCES: `ROCADE_PEERS` does not allow this address as a peer.
    PeerRefused(IpAddr),
    /// ENETUNREACH or EHOSTUNREACH without a route, ETIMEDOUT if the next station does not answer.
    Unreachable {
        /// The local address.
        from: IpAddr,
        /// The address of the peer.
        peer: IpAddr,
        /// The reason.
        error: io::Error,
    },
    /// The address or port 4791 cannot be used.
    Link(LinkError),
    /// The broker cannot be reached or refused.
    Broker(BrokerError),
    /// A system call failed.
    Io(io::Error),
    /// EIO: a fault rule has removed the device since the object was made.
    Removed {
        /// The name of the device.
        device: String,
    },
    /// A fault rule lets the verb fail.
    Injected {
        /// The errno value.
        errno: i32,
        /// The text of the rule.
        rule: String,
    },
}

impl VerbsError {
    /// Returns the errno value.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::InvalidArgument(_) | Self::Modify(_) | Self::Srq(_) => libc::EINVAL,
            Self::Injected { errno, .. } => *errno,
            Self::NoMemory(_) | Self::Post(PostError::QueueFull) => libc::ENOMEM,
            Self::Post(_) => libc::EINVAL,
            Self::NotSupported(_) => libc::EOPNOTSUPP,
            Self::NotPermitted(_) => libc::EPERM,
            Self::Busy(_) => libc::EBUSY,
            Self::NotFound(_) => libc::ENOENT,
            Self::Fault => libc::EFAULT,
            Self::PeerRefused(_) => libc::EACCES,
            Self::NoDevice => libc::ENODEV,
            Self::NoData => libc::ENODATA,
            Self::WouldBlock => libc::EAGAIN,
            Self::Link(LinkError::InUse { .. }) => libc::EADDRINUSE,
            Self::Link(LinkError::NotLocal { .. }) => libc::EADDRNOTAVAIL,
            Self::Link(_) | Self::Broker(_) | Self::Removed { .. } => libc::EIO,
            Self::Io(error) | Self::Unreachable { error, .. } => {
                failure::code(error).unwrap_or(libc::EIO)
            }
        }
    }
}

impl VerbsError {
    /// Returns what the user can do about the error, or an empty text.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Link(error) => error.remedy(),
            Self::Broker(error) => error.remedy(),
            Self::Io(error) => failure::remedy(error).to_owned(),
            Self::Unreachable { error, .. } => match failure::code(error) {
                Some(libc::ETIMEDOUT) => {
                    "`ip neigh` shows the answers of the network; compare the address with those \
                     of the peer's `rocade devices`"
                }
                _ => {
                    "`ip route get ADDRESS` shows the system's route; compare the address with \
                     those of the peer's `rocade devices`"
                }
            }
            .to_owned(),
            Self::Removed { .. } => {
                "destroy its objects and close it; `ibv_get_device_list` has it again when it is \
                 back"
            }
            .to_owned(),
            _ => String::new(),
        }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument(what) => write!(f, "invalid argument: {what}"),
            Self::NoMemory(what) => write!(f, "no room: {what}"),
            Self::NotSupported(what) => write!(f, "not supported: {what}"),
            Self::NotPermitted(what) => write!(f, "not permitted: {what}"),
            Self::Busy(what) => write!(f, "still in use: {what}"),
            Self::NotFound(what) => write!(f, "there is no such {what}"),
            Self::Fault => f.write_str("memory is not mapped with the requested rights"),
            Self::NoDevice => f.write_str("no such device"),
            Self::NoData => f.write_str("the GID table entry is empty"),
            Self::WouldBlock => f.write_str("nothing to get, and the descriptor is non-blocking"),
            Self::Post(error) => error.fmt(f),
            Self::Modify(error) => error.fmt(f),
            Self::Srq(error) => error.fmt(f),
            Self::PeerRefused(peer) => write!(
                f,
                "the peer {peer} is not among those that ROCADE_PEERS (peers in rocade.toml) allows"
            ),
            Self::Unreachable { from, peer, error } => match failure::code(error) {
                Some(libc::ETIMEDOUT) => write!(
                    f,
                    "no host of the network of {from} answers for the address {peer}: {error}"
                ),
                _ => write!(f, "there is no route from {from} to {peer}: {error}"),
            },
            Self::Link(error) => error.fmt(f),
            Self::Broker(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Removed { device } => {
                write!(f, "the device {device} was removed by a fault rule")
            }
            Self::Injected { rule, .. } => write!(f, "by the fault rule `{rule}`"),
        }
    }
}

impl Error for VerbsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Link(error) => Some(error),
            Self::Broker(error) => Some(error),
            Self::Io(error) | Self::Unreachable { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<PostError> for VerbsError {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

impl From<ModifyError> for VerbsError {
    fn from(error: ModifyError) -> Self {
        Self::Modify(error)
    }
}

impl From<SrqError> for VerbsError {
    fn from(error: SrqError) -> Self {
        Self::Srq(error)
    }
}

impl From<LinkError> for VerbsError {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl From<BrokerError> for VerbsError {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error)
    }
}

impl From<io::Error> for VerbsError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
