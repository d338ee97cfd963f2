//! The findings of a sequence: all packets of one sender.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rocade_wire::{Opcode, Operation, Psn, Qpn, Syndrome};

use super::{Basis, Finding};
use crate::ladder::read::Seen;

use Basis::{Habit, Rule, Unknown};

/// Lowest source port of connections.
const FIRST_PORT: u16 = 0xc000;

/// Returns what the packets of a sender show together.
pub(super) fn findings(packets: &[Seen], sender: IpAddr) -> Vec<Finding> {
    let sent: Vec<&Seen> = packets
        .iter()
        .filter(|seen| seen.source == sender)
        .collect();
    let mut all = Vec::new();
    all.extend(ports(packets, &sent));
    all.extend(identifications(&sent));
    all.extend(coalesced(&sent));
    all.extend(repetitions(&sent));
    all.extend(message_psns(&sent));
    all
}

fn is_notification(seen: &Seen) -> bool {
    seen.headers.bth.opcode == Opcode::CNP
}

/// Compares the source ports with the range, with the sender's own QP numbers, and with those of
/// the other direction.
//= HW-03
fn ports(packets: &[Seen], sent: &[&Seen]) -> Vec<Finding> {
    let mut all = Vec::new();
    let others = sent.iter().filter(|seen| !is_notification(seen));
    let others: Vec<&Seen> = others.copied().collect();
    let Some(first) = others.first() else {
        return all;
    };
    let back = |seen: &&Seen| seen.destination == first.source && !is_notification(seen);
    let came: Vec<&Seen> = packets.iter().filter(back).collect();
    let own_qpns: BTreeSet<u32> = came
        .iter()
        .map(|seen| seen.headers.bth.dest_qp.get())
        .collect();
    let is_qpn = |seen: &&Seen| own_qpns.contains(&u32::from(seen.outside.src_port));
    if others
        .iter()
        .all(|seen| seen.outside.src_port >= FIRST_PORT)
    {
        all.push(Finding::new(
            Rule("HW-03"),
            "source ports of 0xc000 and more",
        ));
    } else if others.iter().all(is_qpn) {
        all.push(Finding::new(
            Rule("HW-03"),
            "the source port is the sender's QP number",
        ));
        return all;
    } else {
        all.push(Finding::new(Habit, "source ports below 0xc000"));
    }
    let mut of_qpn: BTreeMap<(IpAddr, Qpn), BTreeSet<u16>> = BTreeMap::new();
    for seen in &others {
        let bth = &seen.headers.bth;
        if bth.dest_qp != Qpn::GSI && !bth.opcode.service().is_datagram() {
            let ports = of_qpn.entry((seen.destination, bth.dest_qp)).or_default();
            ports.insert(seen.outside.src_port);
        }
    }
    if of_qpn.values().any(|ports| ports.len() > 1) {
        all.push(Finding::new(Unknown, "several source ports for one QP"));
    } else if !of_qpn.is_empty() {
        all.push(Finding::new(Rule("HW-03"), "one source port per QP"));
    }
    let ports = |of: &[&Seen]| {
        of.iter()
            .map(|seen| seen.outside.src_port)
            .collect::<BTreeSet<_>>()
    };
    if !came.is_empty() {
        let (ours, theirs) = (ports(&others), ports(&came));
        all.push(if ours == theirs {
            Finding::new(Rule("HW-03"), "the same source ports in both directions")
        } else {
            Finding::new(Habit, "other source ports than the other direction")
        });
    }
    all
}

/// Looks at the sequence of IPv4 Identifications.
//= HW-03
fn identifications(sent: &[&Seen]) -> Option<Finding> {
    let ids: Vec<u16> = sent.iter().filter_map(|seen| seen.outside.ip_id).collect();
    if ids.len() < 2 {
        return None;
    }
    let steps: Vec<u16> = ids
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    let most = steps.len() / 2;
    Some(if ids.iter().all(|&id| id == 0) {
        Finding::new(Rule("HW-03"), "IPv4 Identification always 0")
    } else if steps.iter().all(|&step| step == 1) {
        Finding::new(Rule("HW-03"), "IPv4 Identification counts all packets")
    } else if steps
        .iter()
        .filter(|&&step| (1..256).contains(&step))
        .count()
        > most
    {
        Finding::new(
            Rule("HW-03"),
            "IPv4 Identification counts, with gaps in this capture",
        )
    } else {
        Finding::new(Habit, "IPv4 Identification without a common counter")
    })
}

/// Looks for acknowledgements of several messages, and of the middle of one.
//= HW-07
fn coalesced(sent: &[&Seen]) -> BTreeSet<Finding> {
    let mut last: BTreeMap<(IpAddr, Qpn), (Psn, u32)> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for seen in sent {
        let Some(aeth) = seen.headers.aeth else {
            continue;
        };
        let bth = &seen.headers.bth;
        let is_ack = matches!(aeth.syndrome, Syndrome::Ack(_));
        let (key, msn) = ((seen.destination, bth.dest_qp), aeth.msn.get());
        let before = last.insert(key, (bth.psn, msn));
        let Some((psn, before)) = before.filter(|_| is_ack) else {
            continue;
        };
        if msn.wrapping_sub(before) & 0xff_ffff > 1 && bth.psn.diff(psn) > 0 {
            all.insert(Finding::new(Rule("HW-07"), "one ACK for several messages"));
        }
        if msn == before && bth.psn.diff(psn) > 0 {
            all.insert(Finding::new(
                Rule("HW-07"),
                "an ACK in the middle of a message",
            ));
        }
    }
    all
}

/// Looks at requests that were sent more than once.
//= HW-08
fn repetitions(sent: &[&Seen]) -> Option<Finding> {
    let mut times: BTreeMap<(IpAddr, Qpn, u32, u8), Vec<f64>> = BTreeMap::new();
    for seen in sent {
        let bth = &seen.headers.bth;
        let is_request = bth.opcode.operation().is_some_and(Operation::is_request);
        if is_request && bth.dest_qp != Qpn::GSI && !bth.opcode.service().is_datagram() {
            let key = (
                seen.destination,
                bth.dest_qp,
                bth.psn.get(),
                bth.opcode.get(),
            );
            times
                .entry(key)
                .or_default()
                .push(seen.time.as_secs_f64() * 1e3);
        }
    }
    let longest = times.into_values().max_by_key(Vec::len)?;
    let gaps: Vec<f64> = longest.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let [.., before_last, last] = gaps.as_slice() else {
        let gap = gaps.first()?;
        return Some(Finding::new(
            Habit,
            format!("a request came again after {gap:.1} ms"),
        ));
    };
    let shown: Vec<String> = gaps.iter().map(|gap| format!("{gap:.1}")).collect();
    let shown = shown.join(", ");
    Some(if last > &(1.5 * before_last) {
        let text = format!("a request came again in growing intervals: {shown} ms");
        Finding::new(Rule("HW-08"), text)
    } else {
        Finding::new(
            Habit,
            format!("a request came again in even intervals: {shown} ms"),
        )
    })
}

/// Compares the PSNs of messages of the connection manager.
//= HW-09
fn message_psns(sent: &[&Seen]) -> Option<Finding> {
    let messages = sent.iter().filter(|seen| seen.message.is_some());
    let psns: Vec<Psn> = messages.map(|seen| seen.headers.bth.psn).collect();
    if psns.len() < 2 {
        return None;
    }
    let counts = psns.windows(2).all(|pair| pair[1].diff(pair[0]) == 1);
    Some(if counts {
        Finding::new(Rule("HW-09"), "the PSNs of messages count by 1")
    } else {
        Finding::new(Habit, "the PSNs of messages do not count by 1")
    })
}
