//! The arrivals that a capture must contain.
//!
//! A packet without a recorded arrival is lost only if its receiver recorded its packets then.
//! Otherwise the capture has one end only, and cannot know.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rocade_wire::Qpn;
use rocade_wire::mad::{CmMessage, CommId, ServiceId};

use super::read::{PacketDirection, Seen};

/// A place at an address to which one process belongs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    QueuePair(Qpn),
    /// The receiver of connection requests. All processes of an address share QP 1, so it does not
    /// tell them apart.
    Service(ServiceId),
    /// The owner of an ID of the connection manager.
    Id(CommId),
}

/// The process that recorded a packet, `None` in captures that do not name it.
type Recorder = Option<Arc<str>>;

/// The times until which receivers recorded their packets.
pub(super) struct Arrivals {
    until: HashMap<(IpAddr, Place), Duration>,
}

impl Arrivals {
    pub(super) fn new(packets: &[Seen]) -> Self {
        let mut last: HashMap<&Recorder, Duration> = HashMap::new();
        for seen in packets {
            let until = last.entry(&seen.process).or_default();
            *until = seen.time.max(*until);
        }
        let mut until: HashMap<_, Duration> = HashMap::new();
        for seen in packets {
            let place = match seen.direction {
                PacketDirection::Received => destination(seen),
                PacketDirection::Sent => own_id(seen).map(|id| (seen.source, Place::Id(id))),
                PacketDirection::Unknown => None,
            };
            if let Some(place) = place
                && let Some(last) = last.get(&seen.process)
            {
                let of_place = until.entry(place).or_default();
                *of_place = (*last).max(*of_place);
            }
        }
        Self { until }
    }

    /// Returns the time until which the receiver of a packet recorded arrivals, if it did. The
    /// records of a process end before it does, if it is killed.
    pub(super) fn recorded_until(&self, seen: &Seen) -> Option<Duration> {
        self.until.get(&destination(seen)?).copied()
    }
}

/// Returns the place to which a packet goes, if one process has it.
fn destination(seen: &Seen) -> Option<(IpAddr, Place)> {
    if seen.destination.is_multicast() {
        return None;
    }
    let qpn = seen.headers.bth.dest_qp;
    let place = match seen.message.as_deref() {
        _ if qpn != Qpn::GSI => Place::QueuePair(qpn),
        Some(CmMessage::Req(m)) => Place::Service(m.service_id),
        Some(CmMessage::SidrReq(m)) => Place::Service(m.service_id),
        Some(message) => Place::Id(message.receiver_id()),
        None => return None,
    };
    (place != Place::Id(CommId::new(0))).then_some((seen.destination, place))
}

/// Returns the ID to which the sender of a request or a REP will get answers.
fn own_id(seen: &Seen) -> Option<CommId> {
    match seen.message.as_deref()? {
        CmMessage::Req(m) => Some(m.local_id),
        CmMessage::Rep(m) => Some(m.local_id),
        CmMessage::SidrReq(m) => Some(m.request_id),
        _ => None,
    }
}
