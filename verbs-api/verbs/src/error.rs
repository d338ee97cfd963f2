//! The error type of this crate.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use rocade_emulator::VerbsError as RawError;
use rocade_emulator::config::ConfigError;
use rocade_emulator::link::fault::RuleError;
use rocade_transport::PostError;
use rocade_wire::mad::RejReason;

use crate::completion::Completion;

/// The error of a failed call or work request.
///
/// Its text includes that of the inner error, which therefore is no `source`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed.
    Verbs(VerbsError),
    /// The configuration of this process's devices is wrong.
    Config(SharedError<ConfigError>),
    /// A fault rule cannot be parsed.
    Fault(RuleError),
    /// An I/O operation outside the verbs failed, such as an endpoint exchange or a wait for a
    /// descriptor.
    Io(SharedError<io::Error>),
    /// A range is not inside the memory region.
    OutOfRange {
        /// The start of the range, in bytes from the start of the region.
        offset: usize,
        /// The length of the range in bytes.
        len: usize,
        /// The length of the region in bytes.
        region_len: usize,
    },
    /// The offset of an 8-byte value is not a multiple of 8.
    Misaligned {
        /// The offset in bytes from the start of the region.
        offset: usize,
    },
    /// The time limit expired before the operation completed.
    TimedOut,
    /// A work request completed with an error, of which the completion has the status. The queue
    /// pair with its number is in the error state.
    Completion(Completion),
    /// The queue pair or the completion queue of an operation was dropped before it completed.
    Dropped,
    /// All tasks of a simulation wait, and nothing is going to happen in its network.
    Stalled,
    /// The network is real, and the call is for simulated ones.
    NotSimulated,
    /// The peer rejected the connection.
    Rejected {
        /// The reason. `RejReason::Consumer` means that the peer's program rejected it.
        reason: RejReason,
        /// The private data of the reject message: 148 bytes, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The peer does not answer, or no device has a route to it.
    Unreachable,
    /// The connection has ended.
    Disconnected,
    /// There is no device with this name. An empty name means that there is no device at all.
    NoDevice(String),
    /// The port has no GID with this index.
    NoGid(u32),
    /// The bytes of an [`Endpoint`](crate::Endpoint) or [`RemoteMemory`](crate::RemoteMemory), or
    /// an argument, are invalid. The text names the field.
    Malformed(&'static str),
}

/// The error of a failed verb: its kind, its errno value and a text.
///
/// ```
/// use rocade_verbs::{Config, DeviceList, Error, VerbsErrorKind};
///
/// let context = DeviceList::new(Config::simulated(1))?.open("a")?;
/// let Err(Error::Verbs(error)) = context.completion_queue(0) else { panic!("0 entries") };
/// assert_eq!((error.kind(), error.errno()), (VerbsErrorKind::InvalidArgument, 22));
/// assert_eq!(error.to_string(), "invalid argument: cqe");
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct VerbsError(SharedError<RawError>);

impl VerbsError {
    /// Returns the errno value that a C program gets.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.0.errno()
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> VerbsErrorKind {
        match &*self.0 {
            RawError::InvalidArgument(_) => VerbsErrorKind::InvalidArgument,
            RawError::Post(PostError::QueueFull) | RawError::NoMemory(_) => VerbsErrorKind::NoRoom,
            RawError::Post(_) | RawError::Modify(_) | RawError::Srq(_) => VerbsErrorKind::Refused,
            RawError::NotSupported(_) => VerbsErrorKind::NotSupported,
            RawError::NotPermitted(_) => VerbsErrorKind::NotPermitted,
            RawError::Busy(_) => VerbsErrorKind::Busy,
            RawError::NotFound(_) => VerbsErrorKind::NotFound,
            RawError::Fault => VerbsErrorKind::Fault,
            RawError::NoDevice => VerbsErrorKind::NoDevice,
            RawError::NoData => VerbsErrorKind::NoData,
            RawError::WouldBlock => VerbsErrorKind::WouldBlock,
            RawError::PeerRefused(_) => VerbsErrorKind::PeerRefused,
            RawError::Unreachable { .. } => VerbsErrorKind::Unreachable,
            RawError::Link(_) => VerbsErrorKind::Address,
            RawError::Broker(_) => VerbsErrorKind::Broker,
            RawError::Io(_) => VerbsErrorKind::Io,
            RawError::Removed { .. } => VerbsErrorKind::Removed,
            RawError::Injected { .. } => VerbsErrorKind::Injected,
        }
    }
}

impl VerbsError {
    /// Returns what the user can do about the error, or an empty text.
    #[must_use]
    pub fn remedy(&self) -> String {
        self.0.remedy()
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for VerbsError {}

/// The kinds of errors of verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VerbsErrorKind {
    /// EINVAL: an argument is invalid. The text names it.
    InvalidArgument,
    /// EINVAL: the state or the attributes of the object do not allow the call.
    Refused,
    /// ENOMEM: a queue is full, or a limit is reached.
    NoRoom,
    /// EOPNOTSUPP: the device does not support this.
    NotSupported,
    /// EPERM: the caller may not do this.
    NotPermitted,
    /// EBUSY: the object is still in use. The text names the user.
    Busy,
    /// ENOENT: the object does not exist.
    NotFound,
    /// EFAULT: memory is not mapped, or not writable.
    Fault,
    /// ENODEV: there is no such device.
    NoDevice,
    /// ENODATA: the entry of the GID table is empty.
    NoData,
    /// EAGAIN: there is nothing to get now.
    WouldBlock,
    /// EACCES: `ROCADE_PEERS` does not allow this address as a peer.
    PeerRefused,
    /// ENETUNREACH or EHOSTUNREACH without a route to the peer, ETIMEDOUT if its network does not
    /// answer.
    Unreachable,
    /// The address or port 4791 cannot be used: EADDRINUSE, EADDRNOTAVAIL or EIO.
    Address,
    /// EIO: the broker cannot be reached, or refused.
    Broker,
    /// A system call failed.
    Io,
    /// EIO: the device was removed since it was opened. What remains is to drop its objects.
    Removed,
    /// A fault rule lets the verb fail, with the errno value that the rule gives.
    Injected,
}

/// The result type of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::Fault(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::OutOfRange {
                offset,
                len,
                region_len,
            } => {
                write!(
                    f,
                    "{len} bytes at offset {offset} are not inside the region of {region_len} bytes"
                )
            }
            Self::Misaligned { offset } => {
                write!(
                    f,
                    "offset {offset} of an 8-byte value is not a multiple of 8"
                )
            }
            Self::TimedOut => f.write_str("the time limit expired"),
            Self::Completion(completion) => write!(
                f,
                "work request {} of queue pair {} completed with an error: {}",
                completion.wr_id, completion.qp_num, completion.status
            ),
            Self::Dropped => {
                f.write_str("the queue pair or completion queue was dropped before the completion")
            }
            Self::Stalled => {
                f.write_str("all tasks wait, and nothing is going to happen in the network")
            }
            Self::NotSimulated => f.write_str("the network is not a simulated one"),
            Self::NoDevice(name) if name.is_empty() => f.write_str("there is no device"),
            Self::NoDevice(name) => write!(f, "there is no device named {name}"),
            Self::Rejected { reason, .. } => write!(f, "rejected by the peer: {reason}"),
            Self::Unreachable => f.write_str("no answer from the peer, or no route to it"),
            Self::Disconnected => f.write_str("the connection has ended"),
            Self::NoGid(index) => write!(f, "the port has no GID with index {index}"),
            Self::Malformed(what) => write!(f, "malformed {what}"),
        }
    }
}

impl std::error::Error for Error {}

/// An error of a lower layer, of which copies share one value. Two of them are equal if their texts
/// are.
#[derive(Debug)]
pub struct SharedError<E>(Arc<E>);

impl<E> Clone for SharedError<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> Deref for SharedError<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.0
    }
}

impl<E: fmt::Display> PartialEq for SharedError<E> {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl<E: fmt::Display> fmt::Display for SharedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E> From<E> for SharedError<E> {
    fn from(error: E) -> Self {
        Self(Arc::new(error))
    }
}

impl From<RawError> for Error {
    fn from(error: RawError) -> Self {
        Self::Verbs(VerbsError(error.into()))
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.into())
    }
}

impl From<RuleError> for Error {
    fn from(error: RuleError) -> Self {
        Self::Fault(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error.into())
    }
}
