//! The sender and the receiver of a packet: addresses, QPs and processes.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use rocade_wire::Qpn;
use rocade_wire::mad::{CmMessage, TransportType};

use super::read::{Seen, Way};

/// One end: an address, and the number of its QP and its process where they are known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct End {
    pub(super) address: IpAddr,
    pub(super) qpn: Option<u32>,
    /// Name and PID.
    pub(super) process: Option<Arc<str>>,
}

/// A direction: from an address to an address, and a QP there.
type Flow = (IpAddr, IpAddr, u32);

/// What a capture as a whole says of the ends of its packets.
pub(super) struct Directory {
    /// The QP that sends a flow.
    senders: HashMap<Flow, u32>,
    /// The processes that have a QP. QP 1 of an address is of all processes there.
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
            let place = match seen.way {
                Way::Went => directory.sender(seen).map(|qpn| (seen.source, qpn)),
                Way::Came => Some((seen.destination, seen.headers.bth.dest_qp.get())),
                Way::Unknown => None,
            };
            if let Some(place) = place {
                let known = directory.processes.entry(place).or_default();
                known.insert(Arc::clone(process));
            }
        }
        directory
    }

    /// The QP that a packet comes from: datagrams and requests of DC name it.
    fn sender(&self, seen: &Seen) -> Option<u32> {
        let headers = &seen.headers;
        let named = headers.deth.map(|deth| deth.src_qp);
        let named = named.or_else(|| headers.dceth.map(|dc| dc.dci));
        let flow = (seen.source, seen.destination, headers.bth.dest_qp.get());
        named
            .map(Qpn::get)
            .or_else(|| self.senders.get(&flow).copied())
    }

    /// The end that sends a packet, and the one that receives it; each end's process where it has been seen there. Only
    /// those of QP 1 have a process, which tells them apart; [`name_process`](Self::name_process) is for the others.
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

    /// The only process that an end can be of, apart from one.
    fn only(&self, end: &End, but: Option<Arc<str>>) -> Option<Arc<str>> {
        let known = self.processes.get(&(end.address, end.qpn?))?;
        let mut others = known
            .iter()
            .filter(|process| Some(*process) != but.as_ref());
        let first = others.next()?;
        others.next().is_none().then(|| Arc::clone(first))
    }

    /// Fills in the process of an end, or the processes that have shared its number.
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

/// The QPs of connections that the connection manager has made: REQ and REP each name the one of their sender.
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

/// For each flow the QP that sends it. A packet names only its destination; but a response has the PSN of a
/// request, so who gets responses to the requests of a flow is who sends it.
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
            // The fewer might be meant, the more it says.
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
