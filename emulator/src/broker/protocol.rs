//! Messages between broker and clients: bytes <-> types, nothing else.
//!
//! A message is one packet on a `SOCK_SEQPACKET` unix socket. All integers are little-endian:
//!
//! ```text
//! 0..4 "RCDB"   4..6 version   6..8 kind   8..12 length of the whole message   12.. body
//! ```
//!
//! Every field is checked on receipt, and nothing may follow the last one.
//!
//! # Stable messages
//! The header and the messages `Stop`, `Stopping` and `Error` are the same in all versions. A
//! broker answers them in the version of the request. So a client can stop a broker of any version,
//! and learns why a broker of another version refuses it.

#![deny(clippy::disallowed_methods)]

mod codec;
mod fault_rules;
mod reports;
mod xrc;

use core::fmt;
use std::error::Error;

use rocade_wire::Qpn;

use super::fault_reports::{ProcessReport, ReportPart, ReportedState};
use super::{AddressStatus, BrokerStatus, ServiceStatus, SlotStatus};
use crate::fdpass::MAX_FDS;
use crate::gsi::services::{Binding, BoundTo, Conflict};
use crate::journal::DomainKey;
use crate::link::{ForwardKey, LocalAddr};
use crate::steering::ProcessSlot;

use codec::{Reader, Writer};
pub use fault_rules::{FaultList, FaultyProcess, MAX_RULE_LEN, NumberedRule, RuleInProcess};
pub(super) use fault_rules::{FaultUpdate, RuleForClient, WhichRule};
pub(crate) use xrc::TargetEvent;
pub(super) use xrc::{DomainOpening, TargetCall};

/// Version of the protocol. A broker and a client of different versions do not work together.
pub const VERSION: u16 = 8;
/// Longest message in bytes.
pub(super) const MAX_LEN: usize = 32 << 10;

/// Most sockets per answer. The kernel limits the descriptors in flight per user, so a client that
/// reads slowly must not hold many.
pub(super) const SOCKETS_AT_ONCE: usize = 16;

/// Descriptors of a shared-memory link: memory, liveness socket, wake eventfd.
const CHANNEL_FDS: usize = 3;

/// The kinds of the messages that are the same in all versions.
const STOP: u16 = 5;
const STOPPING: u16 = 105;
const ERROR: u16 = 199;
const UNCHANGING: [u16; 3] = [STOP, STOPPING, ERROR];

const MAGIC: [u8; 4] = *b"RCDB";
const HEADER_LEN: usize = 12;
/// Longest text in bytes. The sender truncates longer ones.
const MAX_TEXT_LEN: usize = 1024;
/// Longest name of a process in bytes.
const MAX_NAME_LEN: usize = 32;

/// Requests of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The first message of an engine. With `resume`, the client has that slot from an earlier
    /// broker, and sends the slot's lock file as proof.
    Hello {
        /// The slot that the client has, or `None` to get a new one.
        resume: Option<ProcessSlot>,
        /// Name of the program, for people.
        name: String,
        /// Fault rules that the client was started with, as text. Empty where they were cleared.
        faults: Vec<String>,
    },
    /// Requests the sockets of an address up to the client's slot, starting at index `first`.
    Open {
        /// The address.
        local: LocalAddr,
        /// Index of the first one.
        first: u8,
    },
    /// Hands back sockets after a resume, starting at index `first`. The address lock precedes
    /// socket 0.
    Restore {
        /// The address they are bound to.
        local: LocalAddr,
        /// The secret of the address.
        key: ForwardKey,
        /// Group index of the first one.
        first: u8,
    },
    /// Requests a [`BrokerStatus`].
    Status,
    /// Stops the broker.
    Stop,
    /// Ends what a client of an earlier broker hands over.
    Resumed,
    /// Enables shared-memory links. Carries the eventfd that wakes the client.
    RegisterWake,
    /// Requests a shared-memory link to another client.
    ShmLink(Ends),
    /// Carries the client's ACK journal (`journal/ack.rs`).
    AckJournal,
    /// Reserves a port of the connection manager.
    Bind {
        /// The port and address. The service has no port if `any_port` is set.
        binding: Binding,
        /// True if any free port will do.
        any_port: bool,
    },
    /// Routes requests to a reserved port to the client from now on.
    Listen(Binding),
    /// Releases a port.
    Release(Binding),
    /// Opens a shared XRC domain. Carries its memory if the client has it from an earlier broker.
    OpenDomain(DomainOpening),
    /// Closes a domain of the client.
    CloseDomain(DomainKey),
    /// An operation on a target of a domain that the client has open.
    Target(DomainKey, Qpn, TargetCall),
    /// Adds a fault rule for all clients.
    AddFault(String),
    /// Removes the fault rule with that number, or all.
    ClearFaults(Option<u32>),
    /// Requests the fault rules of all clients.
    Faults,
    /// Requests the fault rules of the first client whose slot is not below this one.
    FaultsFrom(u8),
    /// Requests rules of the first report whose number is not below this one.
    FaultReportFrom {
        /// The number, from 1.
        number: u64,
        /// The first rule, if the report has exactly that number.
        rule: u16,
    },
    /// Requests the statistics of the first client whose slot is not below this one.
    StatisticsFrom(u8),
}

/// The ends of a shared-memory link, from the viewpoint of the message's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// The client's address.
    pub(super) local: LocalAddr,
    /// The peer's address.
    pub(super) peer: LocalAddr,
    /// The peer's slot, not 0.
    pub(super) slot: ProcessSlot,
}

/// Answers and unsolicited messages of the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// Answer to `Hello`. Carries the slot's lock file, locked, if the client does not have it.
    Leased {
        /// The client's slot, not 0.
        slot: ProcessSlot,
        /// The broker's process id.
        broker_pid: u32,
        /// True if the broker's resource limits are too small for many clients.
        limits_too_low: bool,
    },
    /// Answer to `Open`. Carries some sockets. The address lock precedes socket 0.
    Sockets {
        /// The address they are bound to.
        local: LocalAddr,
        /// The secret of the address.
        key: ForwardKey,
        /// Group index of the first one.
        first: u8,
        /// Number of sockets for the client, 1 to 256.
        total: u16,
    },
    /// Answer to `Restore`, `RegisterWake`, `AckJournal`, `Resumed`, `Listen` and `Release`.
    Accepted,
    /// Answer to `Status`.
    Status(BrokerStatus),
    /// Answer to `Stop`.
    Stopping {
        /// The broker's process id.
        broker_pid: u32,
        /// Number of clients that were connected.
        clients: u16,
    },
    /// Answer to `ShmLink`. Carries memory, liveness socket and the peer's wake eventfd.
    ShmLink(Ends),
    /// Answer to `ShmLink`: no shared-memory link is possible, now or later.
    NoShmLink,
    /// Answer to `Bind`: the port that the client has reserved.
    Bound(Binding),
    /// Answer to `Bind` and `Listen`: another process has the port.
    PortTaken(Conflict),
    /// Unsolicited: another client has requested a shared-memory link to this one. Carries the same
    /// descriptors as `ShmLink`.
    Offer(Ends),
    /// Answer to `OpenDomain`. Carries the memory.
    Domain,
    /// Answer to `OpenDomain`: the domain exists and should not, or the other way round.
    NoDomain {
        /// True if the domain exists.
        exists: bool,
    },
    /// Answer to `Target`: success.
    Target {
        /// True if no process has the target open any longer, which destroys it.
        is_gone: bool,
    },
    /// Answer to `Target`: there is no target with that number, or no room for one.
    NoTarget,
    /// Unsolicited: an event of a target in a domain that the client has open.
    TargetEvent(Qpn, TargetEvent),
    /// Unsolicited: carries the slot's new lock file, locked, because the previous one was deleted.
    Lock,
    /// Unsolicited: the current fault rules of the client.
    FaultUpdate(FaultUpdate),
    /// Answer to `AddFault`: the number of the rule.
    FaultAdded(u32),
    /// Answer to `ClearFaults`: the number of removed rules.
    FaultsCleared(u16),
    /// Answer to `Faults`.
    FaultRules(Vec<NumberedRule>),
    /// Answer to `FaultsFrom`. `None` if there is no such client.
    FaultsOf(Option<FaultyProcess>),
    /// Answer to `FaultReportFrom`. No part if there is no such report.
    FaultReportPart {
        /// Number of reports that made room for later ones.
        forgotten: u32,
        /// Some rules of the report.
        part: Option<ReportPart>,
    },
    /// Answer to `StatisticsFrom`: slot, process ID and name. Carries the client's journal, for
    /// reading. `None` if there is no such client.
    StatisticsOf(Option<(ProcessSlot, u32, String)>),
    /// The request failed.
    Error {
        /// The reason, for programs.
        code: RefusalCode,
        /// The reason, for people.
        text: String,
    },
}

/// Reasons for which the broker refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// Broker and client are of different versions.
    Version,
    /// The request is invalid.
    Malformed,
    /// All 255 slots are taken.
    NoSlot,
    /// Another process or broker has the address.
    AddressInUse,
    /// The address is not local to this machine, or cannot be the address of a port.
    AddressUnusable,
    /// The client is not entitled to the slot, address or object.
    NotAllowed,
    /// A system call of the broker failed.
    System,
    /// The broker has reached its limit of open files or connections.
    Limit,
    /// A reason that this version does not know.
    Other(u16),
}

impl RefusalCode {
    const fn code(self) -> u16 {
        match self {
            Self::Version => 1,
            Self::Malformed => 2,
            Self::NoSlot => 3,
            Self::AddressInUse => 4,
            Self::AddressUnusable => 5,
            Self::NotAllowed => 6,
            Self::System => 7,
            Self::Limit => 8,
            Self::Other(code) => code,
        }
    }

    const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Malformed,
            3 => Self::NoSlot,
            4 => Self::AddressInUse,
            5 => Self::AddressUnusable,
            6 => Self::NotAllowed,
            7 => Self::System,
            8 => Self::Limit,
            code => Self::Other(code),
        }
    }
}

/// Errors of received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The message is shorter than its header or its fields need.
    Truncated,
    /// The message does not begin with the magic number.
    Magic,
    /// The message is of this other version.
    Version(u16),
    /// The length in the header differs from the length of the message.
    Length,
    /// The kind of request or answer is unknown.
    Kind(u16),
    /// The named field has an invalid value.
    Field(&'static str),
    /// Bytes follow the last field.
    Trailing,
    /// The number of file descriptors is wrong.
    Descriptors,
    /// The answer does not match the request.
    Unexpected,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "message too short"),
            Self::Magic => write!(f, "not a message of the Rocade broker protocol"),
            Self::Version(version) => {
                write!(f, "protocol version {version} instead of {VERSION}")
            }
            Self::Length => write!(f, "wrong length in the header"),
            Self::Kind(kind) => write!(f, "unknown kind of message {kind}"),
            Self::Field(name) => write!(f, "invalid {name}"),
            Self::Trailing => write!(f, "bytes after the end of the message"),
            Self::Descriptors => write!(f, "wrong number of file descriptors"),
            Self::Unexpected => write!(f, "answer does not match the request"),
        }
    }
}

impl Error for ProtocolError {}

/// Returns the version of a message, if it has a header.
pub(super) fn version_of(bytes: &[u8]) -> Option<u16> {
    match Reader::any_version(bytes) {
        Ok((version, ..)) => Some(version),
        Err(_) => None,
    }
}

/// Returns the same message in another version. Only the stable messages are valid there.
pub(super) fn with_version(mut message: Vec<u8>, version: u16) -> Vec<u8> {
    message[4..6].copy_from_slice(&version.to_le_bytes());
    message
}

impl Request {
    /// Returns the message as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello {
                resume,
                name,
                faults,
            } => {
                let mut w = Writer::new(1);
                w.u8(resume.map_or(0, ProcessSlot::get));
                w.text(name, MAX_NAME_LEN);
                w.list(faults, |w, text| w.text(text, MAX_RULE_LEN));
                w.finish()
            }
            Self::Open { local, first } => {
                let mut w = Writer::new(2);
                w.local(*local);
                w.u8(*first);
                w.finish()
            }
            Self::Restore { local, key, first } => {
                let mut w = Writer::new(3);
                w.local(*local);
                w.key(key);
                w.u8(*first);
                w.finish()
            }
            Self::Status => Writer::new(4).finish(),
            Self::Stop => Writer::new(STOP).finish(),
            Self::RegisterWake => Writer::new(6).finish(),
            Self::Resumed => Writer::new(12).finish(),
            Self::ShmLink(ends) => Writer::ends(7, ends),
            Self::AckJournal => Writer::new(8).finish(),
            Self::Bind { binding, any_port } => {
                let mut w = Writer::new(9);
                w.binding(binding);
                w.u8((*any_port).into());
                w.finish()
            }
            Self::Listen(binding) => Writer::of_binding(10, binding),
            Self::Release(binding) => Writer::of_binding(11, binding),
            Self::OpenDomain(opening) => opening.encode(30),
            Self::CloseDomain(key) => {
                let mut w = Writer::new(31);
                w.domain(key);
                w.finish()
            }
            Self::Target(key, qpn, call) => {
                let mut w = Writer::new(32);
                w.domain(key);
                w.u32(qpn.get());
                w.call(*call);
                w.finish()
            }
            Self::AddFault(text) => {
                let mut w = Writer::new(20);
                w.text(text, MAX_TEXT_LEN);
                w.finish()
            }
            Self::ClearFaults(id) => {
                let mut w = Writer::new(21);
                w.u32(id.unwrap_or(0));
                w.finish()
            }
            Self::Faults => Writer::new(22).finish(),
            Self::FaultsFrom(slot) => {
                let mut w = Writer::new(23);
                w.u8(*slot);
                w.finish()
            }
            Self::FaultReportFrom { number, rule } => {
                let mut w = Writer::new(24);
                w.u64(*number);
                w.u16(*rule);
                w.finish()
            }
            Self::StatisticsFrom(slot) => {
                let mut w = Writer::new(25);
                w.u8(*slot);
                w.finish()
            }
        }
    }

    /// Parses a message that arrived with `fds` descriptors.
    pub(super) fn decode(bytes: &[u8], fds: usize) -> Result<Self, ProtocolError> {
        let (kind, mut r) = Reader::new(bytes)?;
        let (request, fds_expected) = match kind {
            1 => {
                let resume = match r.u8()? {
                    0 => None,
                    slot => Some(ProcessSlot::new(slot)),
                };
                let fds = usize::from(resume.is_some());
                (
                    Self::Hello {
                        resume,
                        name: r.text(MAX_NAME_LEN)?,
                        faults: r.list(|r| r.text(MAX_RULE_LEN))?,
                    },
                    fds..=fds,
                )
            }
            2 => (
                Self::Open {
                    local: r.local()?,
                    first: r.u8()?,
                },
                0..=0,
            ),
            3 => (
                Self::Restore {
                    local: r.local()?,
                    key: r.key()?,
                    first: r.u8()?,
                },
                1..=MAX_FDS,
            ),
            4 => (Self::Status, 0..=0),
            STOP => (Self::Stop, 0..=0),
            6 => (Self::RegisterWake, 1..=1),
            12 => (Self::Resumed, 0..=0),
            7 => (Self::ShmLink(r.ends()?), 0..=0),
            8 => (Self::AckJournal, 1..=1),
            9 => (
                Self::Bind {
                    binding: r.binding()?,
                    any_port: r.flag()?,
                },
                0..=0,
            ),
            10 => (Self::Listen(r.binding()?), 0..=0),
            11 => (Self::Release(r.binding()?), 0..=0),
            30 => {
                let opening = r.opening()?;
                let fds = usize::from(opening.resumes);
                (Self::OpenDomain(opening), fds..=fds)
            }
            31 => (Self::CloseDomain(r.domain()?), 0..=0),
            32 => (Self::Target(r.domain()?, r.qpn()?, r.call()?), 0..=0),
            20 => (Self::AddFault(r.text(MAX_TEXT_LEN)?), 0..=0),
            21 => {
                let id = r.u32()?;
                (Self::ClearFaults((id > 0).then_some(id)), 0..=0)
            }
            22 => (Self::Faults, 0..=0),
            23 => (Self::FaultsFrom(r.u8()?), 0..=0),
            24 => (
                Self::FaultReportFrom {
                    number: r.u64()?,
                    rule: r.u16()?,
                },
                0..=0,
            ),
            25 => (Self::StatisticsFrom(r.u8()?), 0..=0),
            other => return Err(ProtocolError::Kind(other)),
        };
        r.finish()?;
        if !fds_expected.contains(&fds) {
            return Err(ProtocolError::Descriptors);
        }
        Ok(request)
    }
}

impl Response {
    /// Returns the message as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Leased {
                slot,
                broker_pid,
                limits_too_low,
            } => {
                let mut w = Writer::new(101);
                w.u8(slot.get());
                w.u32(*broker_pid);
                w.u8((*limits_too_low).into());
                w.finish()
            }
            Self::Sockets {
                local,
                key,
                first,
                total,
            } => {
                let mut w = Writer::new(102);
                w.local(*local);
                w.key(key);
                w.u8(*first);
                w.u16(*total);
                w.finish()
            }
            Self::Accepted => Writer::new(103).finish(),
            Self::Status(status) => {
                let mut w = Writer::new(104);
                w.status(status);
                w.finish()
            }
            Self::Stopping {
                broker_pid,
                clients,
            } => {
                let mut w = Writer::new(STOPPING);
                w.u32(*broker_pid);
                w.u16(*clients);
                w.finish()
            }
            Self::ShmLink(ends) => Writer::ends(106, ends),
            Self::NoShmLink => Writer::new(107).finish(),
            Self::Offer(ends) => Writer::ends(108, ends),
            Self::Lock => Writer::new(109).finish(),
            Self::Bound(binding) => Writer::of_binding(110, binding),
            Self::PortTaken(conflict) => {
                let mut w = Writer::new(111);
                w.u8(u8::from(*conflict == Conflict::Everywhere));
                w.finish()
            }
            Self::Domain => Writer::new(130).finish(),
            Self::NoDomain { exists } => {
                let mut w = Writer::new(131);
                w.u8((*exists).into());
                w.finish()
            }
            Self::Target { is_gone } => {
                let mut w = Writer::new(132);
                w.u8((*is_gone).into());
                w.finish()
            }
            Self::NoTarget => Writer::new(133).finish(),
            Self::TargetEvent(qpn, event) => {
                let mut w = Writer::new(134);
                w.u32(qpn.get());
                w.target_event(*event);
                w.finish()
            }
            Self::FaultUpdate(update) => {
                let mut w = Writer::new(120);
                w.u32(update.generation);
                w.list(&update.rules, Writer::rule_for_client);
                w.finish()
            }
            Self::FaultAdded(id) => {
                let mut w = Writer::new(121);
                w.u32(*id);
                w.finish()
            }
            Self::FaultsCleared(count) => {
                let mut w = Writer::new(122);
                w.u16(*count);
                w.finish()
            }
            Self::FaultRules(rules) => {
                let mut w = Writer::new(123);
                w.list(rules, Writer::rule);
                w.finish()
            }
            Self::FaultsOf(process) => {
                let mut w = Writer::new(124);
                w.list(process.as_slice(), Writer::faulty_process);
                w.finish()
            }
            Self::FaultReportPart { forgotten, part } => {
                let mut w = Writer::new(125);
                w.u32(*forgotten);
                w.list(part.as_slice(), Writer::report_part);
                w.finish()
            }
            Self::StatisticsOf(client) => {
                let mut w = Writer::new(126);
                w.list(client.as_slice(), |w, (slot, pid, name)| {
                    w.u8(slot.get());
                    w.u32(*pid);
                    w.text(name, MAX_NAME_LEN);
                });
                w.finish()
            }
            Self::Error { code, text } => {
                let mut w = Writer::new(ERROR);
                w.u16(code.code());
                w.text(text, MAX_TEXT_LEN);
                w.finish()
            }
        }
    }

    /// Parses a message that arrived with `fds` descriptors.
    pub(super) fn decode(bytes: &[u8], fds: usize) -> Result<Self, ProtocolError> {
        let (kind, mut r) = Reader::new(bytes)?;
        let (response, fds_expected) = match kind {
            101 => {
                let slot = ProcessSlot::new(r.u8()?);
                if slot == ProcessSlot::BROKER {
                    return Err(ProtocolError::Field("slot"));
                }
                (
                    Self::Leased {
                        slot,
                        broker_pid: r.u32()?,
                        limits_too_low: r.flag()?,
                    },
                    0..=1,
                )
            }
            102 => {
                let (local, key, first, total) = (r.local()?, r.key()?, r.u8()?, r.u16()?);
                let sockets = fds.saturating_sub(usize::from(first == 0));
                let end = usize::from(first) + sockets;
                if !(1..=256).contains(&total) || sockets == 0 || end > usize::from(total) {
                    return Err(ProtocolError::Field("number of sockets"));
                }
                (
                    Self::Sockets {
                        local,
                        key,
                        first,
                        total,
                    },
                    1..=MAX_FDS,
                )
            }
            103 => (Self::Accepted, 0..=0),
            104 => (Self::Status(r.status()?), 0..=0),
            STOPPING => (
                Self::Stopping {
                    broker_pid: r.u32()?,
                    clients: r.u16()?,
                },
                0..=0,
            ),
            106 => (Self::ShmLink(r.ends()?), CHANNEL_FDS..=CHANNEL_FDS),
            107 => (Self::NoShmLink, 0..=0),
            108 => (Self::Offer(r.ends()?), CHANNEL_FDS..=CHANNEL_FDS),
            109 => (Self::Lock, 1..=1),
            110 => (Self::Bound(r.binding()?), 0..=0),
            111 => {
                let everywhere = r.u8()? != 0;
                let conflict = if everywhere {
                    Conflict::Everywhere
                } else {
                    Conflict::Here
                };
                (Self::PortTaken(conflict), 0..=0)
            }
            130 => (Self::Domain, 1..=1),
            131 => (Self::NoDomain { exists: r.flag()? }, 0..=0),
            132 => (Self::Target { is_gone: r.flag()? }, 0..=0),
            133 => (Self::NoTarget, 0..=0),
            134 => (Self::TargetEvent(r.qpn()?, r.target_event()?), 0..=0),
            120 => {
                let generation = r.u32()?;
                let rules = r.list(Reader::rule_for_client)?;
                (Self::FaultUpdate(FaultUpdate { generation, rules }), 0..=0)
            }
            121 => (Self::FaultAdded(r.u32()?), 0..=0),
            122 => (Self::FaultsCleared(r.u16()?), 0..=0),
            123 => (Self::FaultRules(r.list(Reader::rule)?), 0..=0),
            124 => {
                let mut processes = r.list(Reader::faulty_process)?;
                let process = processes.pop();
                if !processes.is_empty() {
                    return Err(ProtocolError::Field("process"));
                }
                (Self::FaultsOf(process), 0..=0)
            }
            125 => {
                let forgotten = r.u32()?;
                let mut parts = r.list(Reader::report_part)?;
                let part = parts.pop();
                if !parts.is_empty() {
                    return Err(ProtocolError::Field("report"));
                }
                (Self::FaultReportPart { forgotten, part }, 0..=0)
            }
            126 => {
                let mut clients =
                    r.list(|r| Ok((ProcessSlot::new(r.u8()?), r.u32()?, r.text(MAX_NAME_LEN)?)))?;
                let client = clients.pop();
                if !clients.is_empty() {
                    return Err(ProtocolError::Field("client"));
                }
                let fds = usize::from(client.is_some());
                (Self::StatisticsOf(client), fds..=fds)
            }
            ERROR => {
                let code = RefusalCode::from_code(r.u16()?);
                (
                    Self::Error {
                        code,
                        text: r.text(MAX_TEXT_LEN)?,
                    },
                    0..=0,
                )
            }
            other => return Err(ProtocolError::Kind(other)),
        };
        r.finish()?;
        if !fds_expected.contains(&fds) {
            return Err(ProtocolError::Descriptors);
        }
        Ok(response)
    }
}

/// Parses a message of the other side with `fds` descriptors, and checks that encoding and parsing
/// preserve valid messages.
///
/// # Panics
/// If encoding and parsing change a message.
#[cfg(any(fuzzing, all(test, not(loom))))]
pub fn fuzz_messages(bytes: &[u8], fds: usize) {
    if let Ok(request) = Request::decode(bytes, fds) {
        assert_eq!(Request::decode(&request.encode(), fds), Ok(request));
    }
    if let Ok(response) = Response::decode(bytes, fds) {
        assert_eq!(Response::decode(&response.encode(), fds), Ok(response));
    }
}

#[cfg(test)]
mod tests;
