//! From packets to conversations: which QP talks to which, and what became of each packet.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use rocade_wire::{Operation, Psn, Syndrome};

use super::read::{Seen, Way};

/// The same packet is seen leaving and arriving within this time, or it is not the same.
const FLIGHT: Duration = Duration::from_secs(2);
/// So much may the clocks of two captures differ.
const SKEW: Duration = Duration::from_millis(2);

/// One end: an address and the number of its QP, if anything came for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct End {
    pub(super) address: IpAddr,
    pub(super) qpn: Option<u32>,
}

/// What is special about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// The capture says so, or nobody has seen it arrive.
    pub(super) lost: bool,
    /// The same request, or a response with the same number, went before.
    pub(super) again: bool,
    pub(super) nak: bool,
    pub(super) rnr: bool,
    /// Wrong ICRC, or the comment says that it is damaged.
    pub(super) damaged: bool,
    /// Any other comment.
    pub(super) noted: bool,
    pub(super) marked: bool,
}

impl Marks {
    /// Is it worth a look?
    pub(super) const fn is_incident(self) -> bool {
        self.lost || self.again || self.nak || self.rnr || self.damaged || self.noted
    }
}

/// A packet that travels.
#[derive(Clone, Debug)]
pub(super) struct Arrow {
    pub(super) seen: Seen,
    /// From the first end to the second.
    pub(super) forward: bool,
    pub(super) left: Option<Duration>,
    pub(super) arrived: Option<Duration>,
    pub(super) marks: Marks,
}

impl Arrow {
    /// When it was seen first.
    pub(super) fn time(&self) -> Duration {
        self.left.or(self.arrived).unwrap_or(self.seen.time)
    }
}

/// Two ends and what goes between them.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) ends: [End; 2],
    pub(super) arrows: Vec<Arrow>,
}

/// A packet, when it left and when it arrived.
type Flight = (Seen, Option<Duration>, Option<Duration>);

/// A direction: from an address to a QP.
type Flow = (IpAddr, IpAddr, u32);

/// Sorts packets into conversations; those with the most packets first. Only where the capture `is_whole` is a packet
/// lost that nobody has seen arrive.
pub(super) fn conversations(packets: Vec<Seen>, is_whole: bool) -> Vec<Conversation> {
    let peers = peers(&packets);
    let flights = flights(packets, is_whole);
    let mut all: BTreeMap<[End; 2], Vec<Arrow>> = BTreeMap::new();
    for (seen, left, arrived) in flights {
        let qpn = seen.headers.bth.dest_qp.get();
        let to = End {
            address: seen.destination,
            qpn: Some(qpn),
        };
        let own = peers.get(&(seen.source, seen.destination, qpn)).copied();
        let from = End {
            address: seen.source,
            qpn: own,
        };
        // The end that is known as an initiator of requests is on the left: decided below.
        let forward = from <= to;
        let ends = if forward { [from, to] } else { [to, from] };
        all.entry(ends).or_default().push(Arrow {
            seen,
            forward,
            left,
            arrived,
            marks: Marks::default(),
        });
    }
    let mut conversations: Vec<_> = all
        .into_iter()
        .map(|(ends, arrows)| Conversation { ends, arrows })
        .collect();
    for conversation in &mut conversations {
        conversation.arrows.sort_by_key(Arrow::time);
        conversation.turn();
        conversation.mark();
    }
    conversations.sort_by_key(|conversation| std::cmp::Reverse(conversation.arrows.len()));
    conversations
}

/// For each flow the QP that sends it. A packet names only its destination; but a response has the PSN of a
/// request, so who gets responses to the requests of a flow is who sends it.
fn peers(packets: &[Seen]) -> HashMap<Flow, u32> {
    let mut asked: HashMap<(IpAddr, IpAddr, u32), Vec<u32>> = HashMap::new();
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

/// Joins what left with what came. Who captures at one end only sees each packet once.
fn flights(packets: Vec<Seen>, is_whole: bool) -> Vec<Flight> {
    // Addresses whose arrivals are in the capture.
    let captured: HashSet<(IpAddr, u32)> = packets
        .iter()
        .filter(|seen| seen.way == Way::Came)
        .map(|seen| (seen.destination, seen.headers.bth.dest_qp.get()))
        .collect();
    let mut flights: Vec<Flight> = Vec::new();
    let mut flying: HashMap<(IpAddr, IpAddr, u64), VecDeque<usize>> = HashMap::new();
    let mut early: HashMap<(IpAddr, IpAddr, u64), VecDeque<usize>> = HashMap::new();
    let mut over: HashSet<(IpAddr, IpAddr, u64)> = HashSet::new();
    for mut seen in packets {
        let key = (seen.source, seen.destination, seen.fingerprint);
        let time = seen.time;
        match seen.way {
            Way::Unknown => flights.push((seen, Some(time), Some(time))),
            Way::Went => {
                // Clocks differ: it may have come before it left.
                let early = early.get_mut(&key).and_then(VecDeque::pop_front);
                if let Some(index) = early
                    && time.saturating_sub(flights[index].0.time) <= SKEW
                {
                    flights[index].1 = Some(flights[index].0.time);
                    flights[index].0.note = seen.note;
                    continue;
                }
                flying.entry(key).or_default().push_back(flights.len());
                let is_captured =
                    captured.contains(&(seen.destination, seen.headers.bth.dest_qp.get()));
                let arrived = (!is_captured || !is_whole).then_some(time);
                flights.push((seen, Some(time), arrived));
            }
            Way::Came => {
                let waiting = flying.entry(key).or_default();
                let mut joined = None;
                while let Some(index) = waiting.pop_front() {
                    let left = &flights[index].0;
                    if !is_lost_by_note(&left.note) && time.saturating_sub(left.time) <= FLIGHT {
                        joined = Some(index);
                        break;
                    }
                }
                if let Some(index) = joined {
                    let flight = &mut flights[index];
                    flight.2 = Some(time);
                    if flight.0.note.is_empty() {
                        flight.0.note = seen.note;
                    }
                    over.insert(key);
                    continue;
                }
                if over.contains(&key) && seen.note.is_empty() {
                    seen.note = "arrives once more".to_owned();
                }
                early.entry(key).or_default().push_back(flights.len());
                flights.push((seen, None, Some(time)));
            }
        }
    }
    flights
}

fn is_lost_by_note(note: &str) -> bool {
    note.starts_with("lost") || note.contains("; lost")
}

impl Conversation {
    /// Who asks is on the left: the end that sends more requests.
    fn turn(&mut self) {
        let requests = |forward| {
            let is_request = |arrow: &&Arrow| {
                let operation = arrow.seen.headers.bth.opcode.operation();
                arrow.forward == forward && operation.is_some_and(Operation::is_request)
            };
            self.arrows.iter().filter(is_request).count()
        };
        if requests(false) > requests(true) {
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
            // Requests leave in the order of their numbers, and a number is answered once with data; which packet of
            // a message it is may change. Numbers start again after 2^24 packets: only the newest count.
            let lane = (arrow.forward, is_request);
            let newest = newest_of.entry(lane).or_insert_with(|| bth.psn.sub(1));
            let ahead = bth.psn.diff(*newest);
            if ahead > 0 {
                *newest = bth.psn;
            }
            // A READ takes as many numbers as it has responses.
            if !is_request
                && let Some(asked) = newest_of.get_mut(&(!arrow.forward, true))
                && bth.psn.diff(*asked) > 0
            {
                *asked = bth.psn;
            }
            let is_new = is_ack || is_request || before.insert((arrow.forward, bth.psn.get()));
            let again = match is_request {
                _ if is_ack => false,
                true => ahead <= 0,
                false => !is_new && ahead > -(1 << 22),
            };
            arrow.marks = Marks {
                lost: is_lost_by_note(note) || arrow.arrived.is_none(),
                again,
                nak: matches!(syndrome, Some(Syndrome::Nak(_))),
                rnr: matches!(syndrome, Some(Syndrome::RnrNak(_))),
                damaged: seen.bad_icrc || note.contains("damaged"),
                noted: !note.is_empty(),
                marked: seen.marked,
            };
        }
    }

    /// How many packets are so.
    pub(super) fn count(&self, is_so: impl Fn(Marks) -> bool) -> usize {
        self.arrows
            .iter()
            .filter(|arrow| is_so(arrow.marks))
            .count()
    }
}
