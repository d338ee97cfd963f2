//! Groups packets into conversations, and determines what happened to each packet.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rocade_wire::{Operation, Psn, Service, Syndrome};

use super::arrivals::Arrivals;
use super::ends::{Directory, End};
use super::label::{is_refusal, is_reply};
use super::read::{PacketDirection, Seen};

/// The maximum time between departure and arrival of a packet.
const FLIGHT: Duration = Duration::from_secs(2);
/// The maximum difference between the clocks of two captures.
const SKEW: Duration = Duration::from_millis(2);

/// The special properties of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// The capture says that it was lost, or its receiver has not recorded its arrival.
    pub(super) lost: bool,
    /// A copy of the request, or a response with the same PSN, was sent before. Only reliable
    /// services retransmit.
    pub(super) again: bool,
    pub(super) nak: bool,
    pub(super) rnr: bool,
    /// A rejection of the connection manager.
    pub(super) refused: bool,
    /// The ICRC is wrong, or the comment says that the packet is damaged.
    pub(super) damaged: bool,
    /// The packet has any other comment.
    pub(super) noted: bool,
    pub(super) marked: bool,
}

impl Marks {
    /// Returns true if the packet is an incident.
    pub(super) const fn is_incident(self) -> bool {
        let is_refused = self.nak || self.rnr || self.refused;
        self.lost || self.again || is_refused || self.damaged || self.noted
    }
}

/// A packet of a conversation.
#[derive(Clone, Debug)]
pub(super) struct Arrow {
    pub(super) seen: Seen,
    /// The direction from the first end to the second.
    pub(super) forward: bool,
    pub(super) left: Option<Duration>,
    pub(super) arrived: Option<Duration>,
    pub(super) marks: Marks,
}

impl Arrow {
    /// Returns true if only the sender's records are in the capture, and not those of the receiver.
    pub(super) fn is_one_sided(&self) -> bool {
        self.seen.direction == PacketDirection::Sent && self.left == self.arrived
    }

    /// Returns the time of the first record of the packet.
    pub(super) fn time(&self) -> Duration {
        self.left.or(self.arrived).unwrap_or(self.seen.time)
    }
}

/// Two ends and the packets between them.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) ends: [End; 2],
    pub(super) arrows: Vec<Arrow>,
}

/// A packet from one end to the other.
#[derive(Debug)]
struct Flight {
    seen: Seen,
    left: Option<Duration>,
    arrived: Option<Duration>,
    /// The processes that recorded its departure and its arrival.
    sender: Option<Arc<str>>,
    receiver: Option<Arc<str>>,
}

/// Groups packets into conversations, the largest first. A packet without a recorded arrival counts
/// as lost only if the capture `is_whole`.
pub(super) fn conversations(packets: Vec<Seen>, is_whole: bool) -> Vec<Conversation> {
    let directory = Directory::new(&packets);
    let mut all: BTreeMap<[End; 2], Vec<Arrow>> = BTreeMap::new();
    for flight in flights(packets, is_whole) {
        let (from, to) = directory.ends(&flight.seen, flight.sender, flight.receiver);
        // `turn` below puts the requester on the left.
        let is_reply = flight.seen.message.as_deref().is_some_and(is_reply);
        let forward = if from == to { !is_reply } else { from <= to };
        let ends = if forward { [from, to] } else { [to, from] };
        all.entry(ends).or_default().push(Arrow {
            seen: flight.seen,
            forward,
            left: flight.left,
            arrived: flight.arrived,
            marks: Marks::default(),
        });
    }
    let mut conversations: Vec<_> = all
        .into_iter()
        .map(|(ends, arrows)| Conversation { ends, arrows })
        .collect();
    for conversation in &mut conversations {
        let ends = &mut conversation.ends;
        ends.iter_mut().for_each(|end| directory.name_process(end));
        conversation.arrows.sort_by_key(Arrow::time);
        conversation.turn();
        conversation.mark();
    }
    conversations.sort_by_key(|conversation| std::cmp::Reverse(conversation.arrows.len()));
    conversations
}

/// Merges the records of departures and arrivals. A capture at one end has each packet only once.
fn flights(packets: Vec<Seen>, is_whole: bool) -> Vec<Flight> {
    let arrivals = Arrivals::new(&packets);
    let mut flights: Vec<Flight> = Vec::new();
    let mut flying: HashMap<(IpAddr, IpAddr, u64), VecDeque<usize>> = HashMap::new();
    let mut early: HashMap<(IpAddr, IpAddr, u64), VecDeque<usize>> = HashMap::new();
    let mut over: HashSet<(IpAddr, IpAddr, u64)> = HashSet::new();
    for mut seen in packets {
        let key = (seen.source, seen.destination, seen.fingerprint);
        let time = seen.time;
        let process = seen.process.clone();
        match seen.direction {
            PacketDirection::Unknown => flights.push(Flight {
                seen,
                left: Some(time),
                arrived: Some(time),
                sender: None,
                receiver: None,
            }),
            PacketDirection::Sent => {
                // Clocks differ, so an arrival may be recorded before the departure.
                let early = early.get_mut(&key).and_then(VecDeque::pop_front);
                if let Some(index) = early
                    && time.saturating_sub(flights[index].seen.time) <= SKEW
                {
                    let flight = &mut flights[index];
                    flight.left = Some(flight.seen.time);
                    flight.seen.note = seen.note;
                    flight.sender = process;
                    continue;
                }
                flying.entry(key).or_default().push_back(flights.len());
                let is_recorded = arrivals
                    .recorded_until(&seen)
                    .is_some_and(|until| time + SKEW <= until);
                let arrived = (!is_recorded || !is_whole).then_some(time);
                flights.push(Flight {
                    seen,
                    left: Some(time),
                    arrived,
                    sender: process,
                    receiver: None,
                });
            }
            PacketDirection::Received => {
                let waiting = flying.entry(key).or_default();
                let mut joined = None;
                while let Some(index) = waiting.pop_front() {
                    let left = &flights[index].seen;
                    if !is_lost_by_note(&left.note) && time.saturating_sub(left.time) <= FLIGHT {
                        joined = Some(index);
                        break;
                    }
                }
                if let Some(index) = joined {
                    let flight = &mut flights[index];
                    flight.arrived = Some(time);
                    flight.receiver = process;
                    if flight.seen.note.is_empty() {
                        flight.seen.note = seen.note;
                    }
                    over.insert(key);
                    continue;
                }
                // Every member of a group gets its own copy.
                let is_once_more = over.contains(&key) && !seen.destination.is_multicast();
                if is_once_more && seen.note.is_empty() {
                    seen.note = "arrives once more".to_owned();
                }
                early.entry(key).or_default().push_back(flights.len());
                flights.push(Flight {
                    seen,
                    left: None,
                    arrived: Some(time),
                    sender: None,
                    receiver: process,
                });
            }
        }
    }
    flights
}

/// Returns true if requesters of the service retransmit lost packets with the same PSN. The PSNs of
/// datagrams need not be consecutive, in particular if several programs send from one QP 1.
const fn is_reliable(service: Service) -> bool {
    service.is_acknowledged() || matches!(service, Service::Manufacturer)
}

fn is_lost_by_note(note: &str) -> bool {
    note.starts_with("lost") || note.contains("; lost")
}

impl Conversation {
    /// Puts the end that sends more requests on the left.
    fn turn(&mut self) {
        let requests = |forward| {
            let is_request = |arrow: &&Arrow| {
                let operation = arrow.seen.headers.bth.opcode.operation();
                arrow.forward == forward && operation.is_some_and(Operation::is_request)
            };
            self.arrows.iter().filter(is_request).count()
        };
        // With datagrams only, the end that starts is on the left.
        let is_datagram = |arrow: &Arrow| arrow.seen.headers.deth.is_some();
        let is_turned = match self.arrows.first() {
            Some(first) if self.arrows.iter().all(is_datagram) => !first.forward,
            _ => requests(false) > requests(true),
        };
        if is_turned {
            self.ends.swap(0, 1);
            for arrow in &mut self.arrows {
                arrow.forward = !arrow.forward;
            }
        }
    }

    fn mark(&mut self) {
        let mut before: HashSet<(bool, u32)> = HashSet::new();
        let mut newest_of: HashMap<(bool, bool), Psn> = HashMap::new();
        for arrow in &mut self.arrows {
            let seen = &arrow.seen;
            let bth = &seen.headers.bth;
            let note = &seen.note;
            let syndrome = seen.headers.aeth.map(|aeth| aeth.syndrome);
            let operation = bth.opcode.operation();
            let is_ack = operation == Some(Operation::Acknowledge);
            let is_request = operation.is_some_and(Operation::is_request);
            // Requests leave in the order of their PSNs, and each PSN gets one data response. The
            // position within the message may change. PSNs wrap after 2^24 packets, so only the
            // newest ones count.
            let direction = (arrow.forward, is_request);
            let newest = newest_of.entry(direction).or_insert_with(|| bth.psn.sub(1));
            let ahead = bth.psn.diff(*newest);
            if ahead > 0 {
                *newest = bth.psn;
            }
            // A READ uses as many PSNs as it has responses.
            if !is_request
                && let Some(asked) = newest_of.get_mut(&(!arrow.forward, true))
                && bth.psn.diff(*asked) > 0
            {
                *asked = bth.psn;
            }
            let is_new = is_ack || is_request || before.insert((arrow.forward, bth.psn.get()));
            let again = match is_request {
                _ if is_ack || !is_reliable(bth.opcode.service()) => false,
                true => ahead <= 0,
                false => !is_new && ahead > -(1 << 22),
            };
            arrow.marks = Marks {
                lost: is_lost_by_note(note) || arrow.arrived.is_none(),
                again,
                nak: matches!(syndrome, Some(Syndrome::Nak(_))),
                rnr: matches!(syndrome, Some(Syndrome::RnrNak(_))),
                refused: seen.message.as_deref().is_some_and(is_refusal),
                damaged: seen.bad_icrc || note.contains("damaged"),
                noted: !note.is_empty(),
                marked: seen.marked,
            };
        }
    }

    /// Returns the number of packets for which `is_so` returns true.
    pub(super) fn count(&self, is_so: impl Fn(Marks) -> bool) -> usize {
        self.arrows
            .iter()
            .filter(|arrow| is_so(arrow.marks))
            .count()
    }
}
