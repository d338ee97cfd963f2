//! The broker lets several processes of a user share UDP port 4791 of an address.
//!
//! There is one broker per user and network namespace, started on first use
//! ([`BrokerClient::connect_or_start`]). It leases a process slot ([`ProcessSlot`]) to each process
//! and passes it the socket of that slot. For each address it creates the `SO_REUSEPORT` group and
//! attaches the steering program. The broker is on the data path only where the kernel does not
//! steer (`relay.rs`). Processes keep running when the broker is killed.
//!
//! # The group invariant
//!
//! The steering program returns a slot, which the kernel uses as the index into the group. The
//! socket of slot *n* must therefore be at index *n*. The kernel appends new sockets at the end.
//! When a socket is closed for good, the kernel moves the last one into the gap. Therefore:
//!
//! - The sockets of an address are created in slot order, 0 first, and never closed individually.
//! - Each client keeps copies of the sockets 0 up to its own. After the death of the broker, the
//!   living clients therefore still hold a prefix of the group without gaps.
//! - Each client holds the lock of its slot's lock file. A new broker sees from the locks which
//!   clients live, and adds to a group only after they have handed back their sockets.
//! - The first user of an address locks it in the network namespace (`link/address_lock.rs`), so
//!   that no other broker adds to its group.
//! - Before and after a broker adds to a group, it compares the kernel's list of sockets on the
//!   address with its own. It adds nothing while there are foreign ones.
//!
//! # Isolation
//!
//! The data path never waits for the broker. The broker never waits for a client. It disconnects a
//! client that stays silent or does not read, and it sends only a few descriptors at a time
//! (`server/connections.rs`).

use core::fmt;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rocade_wire::mad::ServiceId;

pub use crate::config::BrokerConfig;
use crate::config::{ENV_BROKER, ENV_RUNTIME_DIR};
use crate::failure;
use crate::link::LocalAddr;
pub use crate::link::SharedSocket;
use crate::steering::ProcessSlot;

mod client;
mod disconnect_notifier;
mod fault_reports;
mod faults;
mod group;
mod gsi;
#[cfg(all(test, not(loom)))]
mod hostsim;
mod identity;
mod link;
mod machine;
mod paths;
mod protocol;
mod relay;
mod server;
mod service;
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
pub(crate) mod simulated;
mod slots;
mod start;
mod statistics;
mod sys;
#[cfg(all(test, not(loom)))]
#[expect(
    clippy::unwrap_used,
    reason = "in helpers of tests a panic is the report"
)]
mod tests;

pub use client::{BrokerClient, ServiceOutcome, StopOutcome, status, stop};
pub use fault_reports::{
    FaultReports, MAX_ENDED_REPORTS, ProcessReport, ReportedState, fault_reports,
};
pub use faults::{add_fault, clear_faults, faults};
pub(crate) use link::BrokerLink;
pub(crate) use protocol::TargetEvent;
#[cfg(any(fuzzing, all(test, not(loom))))]
pub use protocol::fuzz_messages;
pub use protocol::{
    FaultList, FaultyProcess, MAX_RULE_LEN, NumberedRule, ProtocolError, RefusalCode,
    RuleInProcess, VERSION as PROTOCOL_VERSION,
};
pub use server::serve;
pub use statistics::{ProcessStatistics, statistics};

/// Status of a broker. `Display` prints it for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerStatus {
    /// Its process id.
    pub pid: u32,
    /// Version of the program.
    pub version: String,
    /// Time since the start of the broker.
    pub uptime: Duration,
    /// Datagrams that arrived for slot 0.
    pub gsi_datagrams: u64,
    /// The addresses in use.
    pub addresses: Vec<AddressStatus>,
    /// The slots in use, lowest first.
    pub slots: Vec<SlotStatus>,
    /// The connection manager's services that have a listener, lowest first.
    pub services: Vec<ServiceStatus>,
}

/// A service of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// Port space and port.
    pub service: ServiceId,
    /// Slot of the listening process.
    pub slot: ProcessSlot,
}

/// An address that the broker manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressStatus {
    /// The address.
    pub local: LocalAddr,
    /// Number of sockets in the address's group.
    pub sockets: u16,
    /// Number of clients that use the address.
    pub users: u16,
}

/// A slot that is leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// The slot.
    pub slot: ProcessSlot,
    /// The client's process ID, 0 if unknown.
    pub pid: u32,
    /// Name of the client's program.
    pub name: String,
    /// False if the client lives but is not connected. Either it has not noticed yet that the
    /// broker was replaced, or it has ended and a child process still holds the slot.
    pub connected: bool,
}

impl fmt::Display for BrokerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uptime = self.uptime.as_secs();
        writeln!(
            f,
            "broker   pid {}, version {}, up {uptime} s",
            self.pid, self.version
        )?;
        for address in &self.addresses {
            let AddressStatus {
                local,
                sockets,
                users,
            } = address;
            writeln!(f, "address  {local}: {users} clients, {sockets} sockets")?;
        }
        for slot in &self.slots {
            let note = if slot.connected {
                ""
            } else {
                " (not connected)"
            };
            writeln!(
                f,
                "slot {:3} pid {}, {}{note}",
                slot.slot, slot.pid, slot.name
            )?;
        }
        for ServiceStatus { service, slot } in &self.services {
            let (space, port) = (service.get() >> 16, service.get() & 0xffff);
            writeln!(
                f,
                "service  port space {space:#06x}, port {port}: slot {slot}"
            )?;
        }
        Ok(())
    }
}

/// Reasons why the broker cannot be used.
#[derive(Debug)]
pub enum BrokerError {
    /// The runtime directory cannot be used.
    RuntimeDir {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// There is no program to start.
    NoProgram {
        /// The places that were searched.
        tried: Vec<PathBuf>,
    },
    /// The broker was started and did not come up.
    Start {
        /// The reason.
        reason: String,
        /// The end of its log.
        log: String,
        /// The remedy for the user, or an empty text.
        remedy: &'static str,
    },
    /// No broker is running.
    NotRunning,
    /// Another broker is running already.
    AlreadyRunning,
    /// A broker of another user listens on this user's socket.
    ForeignBroker {
        /// User ID of its owner.
        uid: u32,
    },
    /// The broker refused a request.
    Refused {
        /// The reason, for programs.
        code: RefusalCode,
        /// The reason, for people.
        text: String,
    },
    /// The broker sent an invalid message.
    Protocol(ProtocolError),
    /// The broker is of another version.
    OtherVersion {
        /// Its process ID, 0 if unknown.
        pid: u32,
        /// Its version of the protocol.
        version: u16,
    },
    /// The connection to the broker was closed.
    Lost,
    /// The broker does not respond.
    Silent {
        /// Its process ID, 0 if unknown.
        pid: u32,
    },
    /// The handle belongs to the parent process, from before fork.
    Forked,
    /// A system call failed.
    System {
        /// The failure, as "failed to ...".
        failure: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl BrokerError {
    /// Returns a function that wraps the error of a system call, described as "failed to ...".
    fn failure(failure: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { failure, source }
    }

    /// Returns what the user can do about the error, or an empty text.
    #[must_use]
    pub fn remedy(&self) -> String {
        let text = match self {
            Self::NoProgram { .. } => {
                "start the program with `rocade run`, or set ROCADE_BROKER to the path of `rocade`"
            }
            Self::RuntimeDir { path, .. } if path.as_os_str().len() > paths::LONGEST_DIR => {
                return format!(
                    "set {ENV_RUNTIME_DIR} to a path of at most {} bytes",
                    paths::LONGEST_DIR
                );
            }
            Self::RuntimeDir { .. } | Self::ForeignBroker { .. } => {
                "set ROCADE_RUNTIME_DIR to a directory that only you can write to. One program per \
                 address needs none: ROCADE_BROKER=embedded"
            }
            Self::Start { remedy, .. } => remedy,
            // Requests of this process are never malformed.
            Self::Refused {
                code: RefusalCode::Malformed,
                ..
            }
            | Self::Protocol(ProtocolError::Magic) => failure::CLOSED,
            Self::Refused {
                code: RefusalCode::NoSlot | RefusalCode::NotAllowed | RefusalCode::Other(_),
                ..
            }
            | Self::Protocol(_)
            | Self::Lost => {
                "`rocade broker status` shows which process uses which address. \
                 `rocade broker stop` stops an old broker"
            }
            Self::System { failure, source } => failure::remedy_of(failure, source),
            _ => "",
        };
        text.to_owned()
    }

    /// Returns true if another attempt with a new connection may succeed.
    const fn is_transient(&self) -> bool {
        matches!(self, Self::Lost | Self::Silent { .. })
    }

    /// Returns true if the connection cannot be used any longer.
    const fn ends_connection(&self) -> bool {
        self.is_transient() || matches!(self, Self::Protocol(_) | Self::OtherVersion { .. })
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RuntimeDir { path, reason } => {
                write!(
                    f,
                    "the runtime directory {} cannot be used: {reason}",
                    path.display()
                )
            }
            Self::NoProgram { tried } => {
                write!(
                    f,
                    "no `rocade` program to start as broker. Set {ENV_BROKER}. Tried:"
                )?;
                tried
                    .iter()
                    .try_for_each(|path| write!(f, " {}", path.display()))
            }
            Self::Start { reason, log, .. } if log.is_empty() => {
                write!(f, "the broker did not start: {reason}")
            }
            Self::Start { reason, log, .. } => {
                write!(
                    f,
                    "the broker did not start: {reason}. Its log ends with:\n{log}"
                )
            }
            Self::NotRunning => write!(f, "no broker is running"),
            Self::AlreadyRunning => write!(f, "a broker is running already"),
            Self::ForeignBroker { uid } => write!(f, "the broker belongs to user {uid}"),
            Self::Refused {
                code: RefusalCode::Malformed,
                text,
            } => write!(
                f,
                "the connection to the broker was disturbed: it received something else than a \
                 request ({text})"
            ),
            Self::Refused { text, .. } => write!(f, "the broker refused: {text}"),
            Self::Protocol(error) => write!(f, "the broker sent an invalid message: {error}"),
            Self::OtherVersion { pid, version } => write!(
                f,
                "the broker, process {pid}, is of another version (protocol {version}) than this \
                 program (protocol {}). When the programs that use it have ended, `rocade broker \
                 stop` makes room for one of this version",
                protocol::VERSION
            ),
            Self::Lost => write!(f, "the connection to the broker was lost"),
            Self::Silent { pid } => write!(
                f,
                "the broker, process {pid}, does not answer. If it was stopped (SIGSTOP), resume \
                 it (SIGCONT) or kill it. Running programs keep their traffic either way"
            ),
            Self::Forked => write!(f, "this broker connection belongs to the parent process"),
            Self::System { failure, source } => write!(f, "{failure}: {source}"),
        }
    }
}

impl Error for BrokerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Protocol(error) => Some(error),
            Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<ProtocolError> for BrokerError {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl From<BrokerError> for io::Error {
    /// Keeps the error kind where one fits.
    fn from(error: BrokerError) -> Self {
        let kind = match &error {
            BrokerError::Refused {
                code: RefusalCode::AddressInUse,
                ..
            } => io::ErrorKind::AddrInUse,
            BrokerError::Refused {
                code: RefusalCode::AddressUnusable,
                ..
            } => io::ErrorKind::AddrNotAvailable,
            BrokerError::NoProgram { .. } | BrokerError::NotRunning => io::ErrorKind::NotFound,
            BrokerError::RuntimeDir { .. } | BrokerError::ForeignBroker { .. } => {
                io::ErrorKind::PermissionDenied
            }
            BrokerError::System { source, .. } => source.kind(),
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
