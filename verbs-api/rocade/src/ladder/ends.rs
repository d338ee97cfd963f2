//! Finds the sender and the receiver of a packet: addresses, QPs and processes.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use rocade_wire::Qpn;
use rocade_wire::mad::{CmMessage, TransportType};

use super::read::{PacketDirection, Seen};

/// One end: an address, and QP number and process if they are known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct End {
    pub(super) address: IpAddr,
    pub(super) qpn: Option<u32>,
    /// The name and the PID.
    pub(super) process: Option<Arc<str>>,
}

/// A direction: source address, destination address and destination QP.
type Flow = (IpAddr, IpAddr, u32);

/// The knowledge about the ends of packets from the whole capture.
pub(super) struct Directory {
    /// The QP that sends a flow.
    senders: HashMap<Flow, u32>,
    /// The processes that have a QP. All processes at an address share its QP 1.
    processes: HashMap<(IpAddr, u32), BTreeSet<Arc<str>>>,
}

impl Directory {
    pub(super) fn new(packets: &[Seen]) -> Self {
        let mut senders = peers(packets);
        senders.extend(connections(packets));
        let mut directory = Self {
            senders,
            processes: HashMap::new(),
        };
        for seen in packets {
            let Some(process) = &seen.process else {
                continue;
            };
            let place = match seen.direction {
                PacketDirection::Sent => directory.sender(seen).map(|qpn| (seen.source, qpn)),
                PacketDirection::Received => {
                    Some((seen.destination, seen.headers.bth.dest_qp.get()))
                }
                PacketDirection::Unknown => None,
            };
            if let Some(place) = place {
                let known = directory.processes.entry(place).or_default();
                known.insert(Arc::clone(process));
            }
        }
        directory
    }

    /// Returns the QP that sends a packet. Datagrams and DC requests name it.
    fn sender(&self, seen: &Seen) -> Option<u32> {
        let headers = &seen.headers;
        let named = headers.deth.map(|deth| deth.src_qp);
        let named = named.or_else(|| headers.dceth.map(|dc| dc.dci));
        let flow = (seen.source, seen.destination, headers.bth.dest_qp.get());
        named
            .map(Qpn::get)
            .or_else(|| self.senders.get(&flow).copied())
    }

    /// Returns the sending and the receiving end of a packet. `sender` and `receiver` are the
    /// processes that captured it. Only ends with QP 1 get a process here, because all processes
    /// share QP 1. [`name_process`](Self::name_process) sets the others.
    pub(super) fn ends(
        &self,
        seen: &Seen,
        sender: Option<Arc<str>>,
        receiver: Option<Arc<str>>,
    ) -> (End, End) {
        let mut from = End {
            address: seen.source,
            qpn: self.sender(seen),
            process: None,
        };
        let mut to = End {
            address: seen.destination,
            qpn: Some(seen.headers.bth.dest_qp.get()),
            process: None,
        };
        let is_one_place = from == to;
        let other_than = |other: &Option<Arc<str>>| other.clone().filter(|_| is_one_place);
        let is_shared = |end: &End| end.qpn == Some(Qpn::GSI.get());
        if is_shared(&from) {
            let process = sender.clone();
            from.process = process.or_else(|| self.only(&from, other_than(&receiver)));
        }
        if is_shared(&to) {
            to.process = receiver.or_else(|| self.only(&to, other_than(&sender)));
        }
        (from, to)
    }

    /// Returns the process of an end if only one is possible, without the process `but`.
    fn only(&self, end: &End, but: Option<Arc<str>>) -> Option<Arc<str>> {
        let known = self.processes.get(&(end.address, end.qpn?))?;
        let mut others = known
            .iter()
            .filter(|process| Some(*process) != but.as_ref());
        let first = others.next()?;
        others.next().is_none().then(|| Arc::clone(first))
    }

    /// Sets the process of an end, or the processes that have used the same QP number.
    pub(super) fn name_process(&self, end: &mut End) {
        let Some(qpn) = end.qpn.filter(|qpn| *qpn != Qpn::GSI.get()) else {
            return;
        };
        if let Some(known) = self.processes.get(&(end.address, qpn)) {
            let names: Vec<&str> = known.iter().map(|name| &**name).collect();
            end.process = Some(names.join(", ").into());
        }
    }
}

/// Returns the QPs of connections that the connection manager established. REQ and REP each name
/// the QP of their sender.
fn connections(packets: &[Seen]) -> HashMap<Flow, u32> {
    let mut asked = HashMap::new();
    let mut flows = HashMap::new();
    for seen in packets {
        let (source, destination) = (seen.source, seen.destination);
        match seen.message.as_deref() {
            Some(CmMessage::Req(m)) if m.transport != TransportType::Xrc => {
                asked.insert((source, m.local_id), m.qpn.get());
            }
            Some(CmMessage::Rep(m)) => {
                if let Some(&active) = asked.get(&(destination, m.remote_id)) {
                    let passive = m.qpn.get();
                    flows.insert((destination, source, passive), active);
                    flows.insert((source, destination, active), passive);
                }
            }
            _ => {}
        }
    }
    flows
}

/// Returns the QP that sends each flow. A packet names only its destination QP, but a response has
/// the PSN of its request. So the QP that gets the responses sends the requests.
fn peers(packets: &[Seen]) -> HashMap<Flow, u32> {
    let mut asked: HashMap<Flow, Vec<u32>> = HashMap::new();
    let mut votes: HashMap<Flow, HashMap<u32, u64>> = HashMap::new();
    for seen in packets {
        let bth = &seen.headers.bth;
        let Some(operation) = bth.opcode.operation() else {
            continue;
        };
        let (qpn, psn) = (bth.dest_qp.get(), bth.psn.get());
        if operation.is_request() {
            let flows = asked
                .entry((seen.source, seen.destination, psn))
                .or_default();
            if !flows.contains(&qpn) && flows.len() < 64 {
                flows.push(qpn);
            }
        } else if let Some(flows) = asked.get(&(seen.destination, seen.source, psn)) {
            // The fewer flows match, the more weight a response has.
            let weight = 64 / flows.len() as u64;
            for &asked in flows {
                if seen.source == seen.destination && asked == qpn {
                    continue;
                }
                let flow = (seen.destination, seen.source, asked);
                *votes.entry(flow).or_default().entry(qpn).or_default() += weight;
                let back = (seen.source, seen.destination, qpn);
                *votes.entry(back).or_default().entry(asked).or_default() += weight;
            }
        }
    }
    let best = |(flow, votes): (Flow, HashMap<u32, u64>)| {
        let most = votes.into_iter().max_by_key(|&(qpn, count)| (count, qpn));
        most.map(|(qpn, _)| (flow, qpn))
    };
    votes.into_iter().filter_map(best).collect()
}
