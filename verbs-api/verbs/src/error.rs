//! The errors of this crate.
//!
//! Each function returns a small type that enumerates what can happen there. `?` converts all of
//! them to [`Error`], so that a program can use one type throughout.

mod parts;
mod verbs;

use std::fmt;
use std::io;

use rocade_emulator::VerbsError as RawError;
use rocade_emulator::config::ConfigError;
use rocade_emulator::link::fault::RuleError;
use rocade_wire::mad::RejReason;

pub use self::parts::{
    BlockOnError, BuildError, CompletionError, ConnectError, DeviceListError, EventError,
    ExchangeError, MalformedError, NoAddress, NotSimulated, OpenError, OperationError, PairError,
    RangeError, RegionError, RegisterError, RouteError, TaskError, TimedOut, WaitError, WordError,
};
pub use self::verbs::{SharedError, VerbsError, VerbsErrorKind};
use crate::completion::Completion;

/// Any error of this crate, for programs that do not need the small types of the functions.
///
/// `?` converts each of those to this type. The text includes that of the inner error, which
/// therefore is no `source`.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::{Result, SendRequest, WaitError, simulated_pair};
///
/// fn example() -> Result<()> {
///     let (a, _b) = simulated_pair(1)?; // may be a PairError,
///     a.qp.post_send(&SendRequest::nop())?; // a VerbsError,
///     a.cq.wait(Duration::from_secs(1))?; // or a WaitError
///     let nothing = a.cq.wait(Duration::from_secs(1));
///     assert_eq!(nothing, Err(WaitError::TimedOut));
///     Ok(())
/// }
/// # example().unwrap();
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed.
    Verbs(VerbsError),
    /// The configuration of this process's devices is wrong.
    Config(SharedError<ConfigError>),
    /// A fault rule cannot be parsed.
    Fault(RuleError),
    /// An I/O operation outside the verbs failed, such as an endpoint exchange.
    Io(SharedError<io::Error>),
    /// A range is not inside the memory region.
    OutOfRange(RangeError),
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
    /// The simulation runs already.
    Running,
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

/// The result type of programs that use one type of error throughout.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::Fault(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::OutOfRange(error) => error.fmt(f),
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
            Self::Running => f.write_str("the simulation runs already"),
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

impl From<VerbsError> for Error {
    fn from(error: VerbsError) -> Self {
        Self::Verbs(error)
    }
}

impl From<RawError> for Error {
    fn from(error: RawError) -> Self {
        Self::Verbs(error.into())
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.into())
    }
}

impl From<SharedError<ConfigError>> for Error {
    fn from(error: SharedError<ConfigError>) -> Self {
        Self::Config(error)
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
