//! The error of verbs.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use rocade_emulator::VerbsError as RawError;
use rocade_transport::PostError;

/// The error of a failed verb: its kind, its errno value and a text.
///
/// ```
/// use rocade_verbs::{Config, DeviceList, Error, VerbsErrorKind};
///
/// let context = DeviceList::new(Config::simulated(1))?.open("a")?;
/// let Err(error) = context.completion_queue(0) else { panic!("0 entries") };
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
            RawError::Post(PostError::QueueFull) | RawError::NoMemory(_) => {
                VerbsErrorKind::NoMemory
            }
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
    /// Wraps the error of a system call.
    pub(crate) fn io(error: io::Error) -> Self {
        RawError::Io(error).into()
    }

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

/// The text includes that of the inner error, which therefore is no `source`.
impl std::error::Error for VerbsError {}

impl From<RawError> for VerbsError {
    fn from(error: RawError) -> Self {
        Self(error.into())
    }
}

/// The kinds of errors of verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VerbsErrorKind {
    /// EINVAL: an argument is invalid. The text names it.
    InvalidArgument,
    /// EINVAL: the state or the attributes of the object do not allow the call.
    Refused,
    /// ENOMEM: a queue is full, or a limit is reached.
    NoMemory,
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

/// The text includes that of the inner error, which therefore is no `source`.
impl<E: std::error::Error> std::error::Error for SharedError<E> {}

impl<E> From<E> for SharedError<E> {
    fn from(error: E) -> Self {
        Self(Arc::new(error))
    }
}
