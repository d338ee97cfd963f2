//! `rocade explain`: explains the packets of a capture by what real NICs are known to send.
//!
//! Every field of every packet gives a finding: a rule (`docs/hardware.md`), a habit of some
//! implementation, or something that neither explains.

mod fields;
mod messages;
mod senders;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;

use serde_json::json;

use crate::cli::ExplainArgs;
use crate::error::CliError;
use crate::ladder::read::{self, Seen};
use crate::ladder::{Facts, counted};
use crate::output;

/// The explanation of a finding. The order is that of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Basis {
    /// A rule, by its ID.
    Rule(&'static str),
    /// The standard, or a habit of implementations other than the NICs of the rules.
    Habit,
    /// Neither of them.
    Unknown,
}

impl Basis {
    const fn name(self) -> &'static str {
        match self {
            Self::Rule(id) => id,
            Self::Habit => "habit",
            Self::Unknown => "?",
        }
    }
}

/// An observation at a field, or at a sequence of packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) basis: Basis,
    pub(super) text: String,
}

impl Finding {
    pub(super) fn new(basis: Basis, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { basis, text }
    }
}

/// The findings of a sender, each with the numbers of its packets, from 1. Those of sequences have
/// none.
pub(super) type Findings = BTreeMap<Finding, Vec<usize>>;

/// Returns the findings of all senders, and those of each packet.
pub(super) fn explain(packets: &[Seen]) -> (BTreeMap<IpAddr, Findings>, Vec<Vec<Finding>>) {
    let mut of_senders: BTreeMap<IpAddr, Findings> = BTreeMap::new();
    let of_packets: Vec<Vec<Finding>> = packets.iter().map(fields::findings).collect();
    for (index, (seen, findings)) in packets.iter().zip(&of_packets).enumerate() {
        let of = of_senders.entry(seen.source).or_default();
        for finding in findings {
            of.entry(finding.clone()).or_default().push(index + 1);
        }
    }
    for (&sender, of) in &mut of_senders {
        for finding in senders::findings(packets, sender) {
            of.entry(finding).or_default();
        }
    }
    (of_senders, of_packets)
}

pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let capture = read::read(&args.file)?;
    let facts = Facts::of(&args.file, &capture);
    if capture.packets.is_empty() {
        return Err(facts.explain_nothing());
    }
    let (of_senders, of_packets) = explain(&capture.packets);
    if args.json {
        output::json(&as_json(&capture.packets, &of_senders, &facts))?;
    } else {
        let mut text = String::new();
        let list = args.packets.then_some(&of_packets[..]);
        write_all(&mut text, &capture.packets, (&of_senders, list), &facts);
        output::print(text)?;
    }
    let has_unknown = of_senders
        .values()
        .flat_map(BTreeMap::keys)
        .any(|finding| finding.basis == Basis::Unknown);
    Ok(ExitCode::from(u8::from(has_unknown)))
}

fn write_all(
    text: &mut String,
    packets: &[Seen],
    (of_senders, list): (&BTreeMap<IpAddr, Findings>, Option<&[Vec<Finding>]>),
    facts: &Facts,
) {
    // Writing to a string does not fail.
    for line in facts.lines() {
        let _ = writeln!(text, "{line}");
    }
    for (sender, findings) in of_senders {
        let count = packets.iter().filter(|seen| seen.source == *sender).count();
        let _ = writeln!(text, "{sender}: {}", counted(count, "packet"));
        for (finding, of) in findings {
            let _ = write!(text, "  {:<6} {}", finding.basis.name(), finding.text);
            let _ = match of.as_slice() {
                [] => writeln!(text),
                all if all.len() == count => writeln!(text, " (all)"),
                all if finding.basis == Basis::Unknown => writeln!(text, " ({})", places(all)),
                all => writeln!(text, " ({})", all.len()),
            };
        }
    }
    let (Some(list), Some(first)) = (list, packets.first()) else {
        return;
    };
    for (index, (seen, findings)) in packets.iter().zip(list).enumerate() {
        let ms = seen.time.saturating_sub(first.time).as_secs_f64() * 1e3;
        let (number, opcode) = (index + 1, seen.headers.bth.opcode);
        let (from, to, psn) = (seen.source, seen.destination, seen.headers.bth.psn);
        let _ = writeln!(text, "{number} {ms:.3} ms {from} > {to} {opcode} psn={psn}");
        for Finding { basis, text: words } in findings {
            let _ = writeln!(text, "  {:<6} {words}", basis.name());
        }
    }
}

/// Returns the numbers of the first packets.
fn places(all: &[usize]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = all.iter().take(SHOWN).map(usize::to_string).collect();
    let more = match all.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let noun = if all.len() == 1 { "packet" } else { "packets" };
    format!("{noun} {}{more}", shown.join(", "))
}

fn as_json(
    packets: &[Seen],
    of_senders: &BTreeMap<IpAddr, Findings>,
    facts: &Facts,
) -> serde_json::Value {
    let senders = of_senders.iter().map(|(sender, findings)| {
        let findings = findings.iter().map(|(finding, of)| {
            json!({ "basis": finding.basis.name(), "text": finding.text, "packets": of })
        });
        let count = packets.iter().filter(|seen| seen.source == *sender).count();
        json!({
            "sender": sender.to_string(),
            "packets": count,
            "findings": findings.collect::<Vec<_>>(),
        })
    });
    json!({ "notes": facts.lines(), "senders": senders.collect::<Vec<_>>() })
}
