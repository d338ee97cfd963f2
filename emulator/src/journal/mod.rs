//! Memory that a process shares with the broker, and that the broker reads after its death.
//!
//! Each process has a *journal*, a memory file of five parts. They hold the acknowledgements that
//! it has not sent yet ([`ack`]), the hits of its fault rules ([`report`]), the connections whose
//! peers learn of its death ([`connections`]), and what its fault rules have done
//! ([`fault_report`]). The last part are its statistics ([`statistics`]). The processes of a shared
//! XRC domain have the records of its targets in common ([`targets`]).
//!
//! Other processes write all of this memory, so that readers check what they find.

#![deny(clippy::disallowed_methods)]

mod ack;
mod connections;
mod fault_report;
mod report;
mod shm_words;
mod statistics;
mod targets;

pub(crate) use ack::{AckDestination, AckJournal, JournalSlot, PendingAck, read as read_acks};
pub(crate) use connections::{ConnectionJournal, read as read_conn_records};
pub(crate) use fault_report::{FaultJournal, read as read_fault_report};
pub(crate) use report::{HitTally, Report, read as read_report};
pub(crate) use statistics::{STATISTICS_WORDS, read as read_statistics};
pub(crate) use targets::{DomainKey, DomainMemory, TargetRecord};

/// Offset of the fault counters in a journal, behind the entries of ACKs.
const REPORT_AT: usize = ack::LEN;
/// Offset of the connections, behind the counters, in pages of their own.
const CONNECTIONS_AT: usize = (REPORT_AT + report::LEN).next_multiple_of(4096);
/// Offset of the report of the fault rules, behind the connections.
const FAULT_REPORT_AT: usize = (CONNECTIONS_AT + connections::LEN).next_multiple_of(4096);
/// Offset of the statistics, behind that report.
const STATISTICS_AT: usize = (FAULT_REPORT_AT + fault_report::LEN).next_multiple_of(4096);
