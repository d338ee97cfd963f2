//! The small error types of single functions. Each is a part of [`Error`].

use std::fmt;
use std::io;

use rocade_emulator::VerbsError as RawError;
use rocade_emulator::config::ConfigError;
use rocade_wire::mad::RejReason;

use super::{Error, SharedError, VerbsError};
use crate::completion::Completion;

/// Defines enums whose variants are some of those of [`Error`], with the same texts.
macro_rules! parts {
    ($(
        $(#[$doc:meta])*
        $name:ident {
            $(
                $(#[$variant_doc:meta])*
                $variant:ident
                    $(($inner:ident: $inner_type:ty))?
                    $({ $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })?,
            )*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $(
                $(#[$variant_doc])*
                $variant $(($inner_type))? $({ $($(#[$field_doc])* $field: $type,)* })?,
            )*
        }

        impl From<$name> for Error {
            fn from(error: $name) -> Self {
                match error {
                    $(
                        $name::$variant $(($inner))? $({ $($field,)* })? =>
                            Self::$variant $(($inner))? $({ $($field,)* })?,
                    )*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Error::from(self.clone()).fmt(f)
            }
        }

        /// The text includes that of the inner error, which therefore is no `source`.
        impl std::error::Error for $name {}
    )*};
}

parts! {
    /// The error of access to an 8-byte value of a region.
    WordError {
        /// The 8 bytes are not inside the region.
        OutOfRange(range: RangeError),
        /// The address is not a multiple of 8.
        Misaligned {
            /// The offset in bytes from the start of the region.
            offset: usize,
        },
    }

    /// The error of a verb that also takes a part of a region.
    RegionError {
        /// The part is not inside the region.
        OutOfRange(range: RangeError),
        /// The verb failed.
        Verbs(error: VerbsError),
    }

    /// The error of making a queue pair or an address handle.
    BuildError {
        /// The port has no GID with this index, or none of the wanted IP version.
        NoGid(index: u32),
        /// A verb failed.
        Verbs(error: VerbsError),
    }

    /// The error of a wait for a completion.
    WaitError {
        /// The time limit expired before a completion.
        TimedOut,
        /// The work request failed. The queue pair with its number is in the error state.
        Completion(completion: Completion),
        /// The process could not wait.
        Verbs(error: VerbsError),
    }

    /// The error of an [`Operation`](crate::Operation), or of a wait for a completion as a future.
    OperationError {
        /// The operation could not be posted, or the process could not wait.
        Verbs(error: VerbsError),
        /// The operation failed. The queue pair with its number is in the error state.
        Completion(completion: Completion),
        /// The queue pair, the queue of receives or the completion queue was dropped before.
        Dropped,
    }

    /// The error of a wait for an event.
    EventError {
        /// The event did not occur in time.
        TimedOut,
        /// The process could not wait, or the event could not be handled.
        Verbs(error: VerbsError),
    }

    /// The error of a route to a peer.
    RouteError {
        /// No device has a route to the peer.
        Unreachable,
        /// A verb failed.
        Verbs(error: VerbsError),
    }

    /// The error of an attempt to connect or to accept.
    ConnectError {
        /// The peer rejected the connection.
        Rejected {
            /// The reason. `RejReason::Consumer` means that the peer's program rejected it.
            reason: RejReason,
            /// The private data of the reject message: 148 bytes, padded with zeros.
            private_data: Vec<u8>,
        },
        /// The peer does not answer.
        Unreachable,
        /// The peer has ended the connection meanwhile.
        Disconnected,
        /// The time limit expired. Futures have none.
        TimedOut,
        /// A verb failed.
        Verbs(error: VerbsError),
    }

    /// The error of opening a device.
    OpenError {
        /// There is no device with this name. An empty name means that there is no device at all.
        NoDevice(name: String),
        /// A verb failed.
        Verbs(error: VerbsError),
    }

    /// The error of [`DeviceList::from_env`](crate::DeviceList::from_env).
    DeviceListError {
        /// A setting is wrong. The text is meant for the user.
        Config(error: SharedError<ConfigError>),
        /// The engine rejects the configuration.
        Verbs(error: VerbsError),
    }

    /// The error of making two connected hosts.
    PairError {
        /// The network is real.
        NotSimulated,
        /// The network lacks this device.
        NoDevice(name: String),
        /// A device has no GID with this index, because a fault rule has removed it.
        NoGid(index: u32),
        /// A verb failed.
        Verbs(error: VerbsError),
    }

    /// The error of [`Simulation::block_on`](crate::Simulation::block_on).
    BlockOnError {
        /// All tasks wait, and nothing is going to happen in the network.
        Stalled,
        /// The simulation runs already.
        Running,
    }

    /// The error of an exchange of endpoints.
    ExchangeError {
        /// The stream failed.
        Io(error: SharedError<io::Error>),
        /// The peer has not sent an endpoint. The text names the field.
        Malformed(what: &'static str),
    }
}

/// Defines errors with one cause, which is a variant of [`Error`] without data.
macro_rules! single_errors {
    ($($(#[$doc:meta])* $name:ident = $variant:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name;

        impl From<$name> for Error {
            fn from($name: $name) -> Self {
                Self::$variant
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Error::from(*self).fmt(f)
            }
        }

        impl std::error::Error for $name {}
    )*};
}

single_errors! {
    /// The time limit expired.
    TimedOut = TimedOut;
    /// The network is real, and the call is for simulated ones.
    NotSimulated = NotSimulated;
    /// The connection or listener is not bound to an address, or has none of a peer.
    NoAddress = Unreachable;
}

/// A range that is not inside its region, or longer than a scatter/gather entry can be (4 GiB - 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeError {
    /// The start of the range, in bytes from the start of the region.
    pub offset: u64,
    /// The length of the range in bytes.
    pub len: u64,
    /// The length of the region in bytes.
    pub region_len: u64,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            len,
            region_len,
        } = self;
        write!(
            f,
            "{len} bytes at offset {offset} are not inside the region of {region_len} bytes"
        )
    }
}

impl std::error::Error for RangeError {}

/// Bytes that do not encode what they should. The text names the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedError(pub &'static str);

impl fmt::Display for MalformedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Error::from(*self).fmt(f)
    }
}

impl std::error::Error for MalformedError {}

/// A work request that completed with an error: the completion has the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionError(pub Completion);

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Error::from(*self).fmt(f)
    }
}

impl std::error::Error for CompletionError {}

/// The error of one task of [`post_tasks`](crate::post_tasks). The tasks before it stay posted.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskError {
    /// The index of the task, from 0.
    pub index: usize,
    /// The reason.
    pub error: VerbsError,
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}: {}", self.index, self.error)
    }
}

impl std::error::Error for TaskError {}

/// The error of [`register_vec`](crate::ProtectionDomain::register_vec), with the bytes that were
/// not registered.
#[derive(Debug, Clone, PartialEq)]
pub struct RegisterError {
    /// The bytes, as they were passed.
    pub bytes: Vec<u8>,
    /// The reason.
    pub error: VerbsError,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RegisterError {}

/// Implements conversions.
macro_rules! conversions {
    ($($from:ty => $to:ident: |$error:pat_param| $result:expr;)*) => {$(
        impl From<$from> for $to {
            fn from($error: $from) -> Self {
                $result
            }
        }
    )*};
}

/// Implements the conversions from the error of a verb.
macro_rules! verbs_conversions {
    ($($to:ident)*) => {$(
        conversions! {
            VerbsError => $to: |error| Self::Verbs(error);
            RawError => $to: |error| Self::Verbs(error.into());
        }
    )*};
}

verbs_conversions! {
    RegionError BuildError WaitError OperationError EventError RouteError ConnectError OpenError
    DeviceListError PairError
}

conversions! {
    RangeError => Error: |error| Self::OutOfRange(error);
    RangeError => WordError: |error| Self::OutOfRange(error);
    RangeError => RegionError: |error| Self::OutOfRange(error);
    MalformedError => Error: |MalformedError(what)| Self::Malformed(what);
    MalformedError => ExchangeError: |MalformedError(what)| Self::Malformed(what);
    io::Error => ExchangeError: |error| Self::Io(error.into());
    CompletionError => Error: |CompletionError(completion)| Self::Completion(completion);
    CompletionError => WaitError: |CompletionError(completion)| Self::Completion(completion);
    CompletionError => OperationError: |CompletionError(completion)| Self::Completion(completion);
    TaskError => Error: |error| Self::Verbs(error.error);
    RegisterError => Error: |error| Self::Verbs(error.error);
    TimedOut => WaitError: |TimedOut| Self::TimedOut;
    TimedOut => EventError: |TimedOut| Self::TimedOut;
    TimedOut => ConnectError: |TimedOut| Self::TimedOut;
    SharedError<ConfigError> => DeviceListError: |error| Self::Config(error);
    NotSimulated => PairError: |NotSimulated| Self::NotSimulated;
}

impl From<OpenError> for PairError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NoDevice(name) => Self::NoDevice(name),
            OpenError::Verbs(error) => Self::Verbs(error),
        }
    }
}

impl From<BuildError> for PairError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::NoGid(index) => Self::NoGid(index),
            BuildError::Verbs(error) => Self::Verbs(error),
        }
    }
}
