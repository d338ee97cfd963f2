//! Counters. Every dropped packet is counted under a reason.

use alloc::boxed::Box;

/// The reason why a packet was dropped without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// The QP's state accepts no such packet.
    State = 0,
    /// The opcode's service is not that of the QP.
    WrongService,
    /// Source or destination address differs from the QP's address vector.
    WrongAddress,
    /// P_Key mismatch.
    BadPkey,
    /// Q_Key mismatch.
    BadQkey,
    /// Behind a sequence gap that was already NAKed.
    OutOfSequence,
    /// A duplicate that cannot be answered.
    Duplicate,
    /// A response to a packet that was never sent.
    FutureResponse,
    /// A response to a packet that is already acknowledged.
    GhostResponse,
    /// A reserved response opcode or AETH code.
    Reserved,
    /// Malformed: the payload does not fit the opcode.
    Malformed,
    /// No receive work request.
    NoReceive,
    /// Longer than the receive work request.
    TooLong,
    /// The memory may not be written.
    Access,
    /// The access key differs from that of the DC target.
    BadDcKey,
    /// The DC session has ended, or never existed.
    NoSession,
}

/// Number of [`DropReason`]s.
const DROP_REASONS: usize = 16;

/// Statistics of a QP, counted from its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed out for transmission.
    pub tx_packets: u64,
    /// Packets accepted for processing.
    pub rx_packets: u64,
    /// Bytes sent, from BTH to ICRC ([`Qp::note_sent`](crate::Qp::note_sent)).
    pub tx_bytes: u64,
    /// Packets handed to the QP, acknowledgements and dropped ones too
    /// ([`Qp::note_received`](crate::Qp::note_received)).
    pub arrived_packets: u64,
    /// Bytes of these packets, from BTH to ICRC (as above).
    pub rx_bytes: u64,
    /// Send work requests that have succeeded.
    pub tx_messages: u64,
    /// Messages and requests received completely.
    pub rx_messages: u64,
    /// Packets that [`Qp::handle_fast`](crate::Qp::handle_fast) handled on the fast path.
    pub fast_path_packets: u64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
    /// ACK timer expiries.
    pub timeouts: u64,
    /// Requests that failed because all retries were used up.
    pub retry_exceeded: u64,
    /// Sequence NAKs sent.
    pub seq_naks_sent: u64,
    /// Sequence NAKs received, including implied ones.
    pub seq_naks_received: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// Duplicate requests received.
    pub duplicate_requests: u64,
    /// Fatal NAKs sent (invalid request, access, operational).
    pub fatal_naks_sent: u64,
    /// ACKs sent.
    pub acks_sent: u64,
    /// Packets received with an ECN congestion mark.
    pub marked_packets: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// Congestion notifications received.
    pub cnps_received: u64,
    drops: [u64; DROP_REASONS],
}

impl Counters {
    /// Returns the number of packets dropped for this reason.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}

/// Packets whose key differs from that of the QP. The port counts them for all its QPs.
//= BTH-06 UD-05
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// P_Key violations.
    pub pkey: u32,
    /// Q_Key violations.
    pub qkey: u32,
}

/// The internal form of [`Counters`], allocated on first use: an idle QP has none.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    traffic: Option<Box<Traffic>>,
    /// The rarely used counters.
    rare: Option<Box<RareCounters>>,
}

/// The counters that most packets change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) tx_packets: u64,
    pub(crate) rx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) arrived_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_messages: u64,
    pub(crate) rx_messages: u64,
    pub(crate) fast_path_packets: u64,
    pub(crate) acks_sent: u64,
}

#[derive(Debug, Default)]
struct RareCounters {
    counters: Counters,
    /// Violations that were not yet reported to the port.
    violations: Violations,
}

#[cold]
fn first_traffic() -> Box<Traffic> {
    Box::default()
}

impl Tally {
    /// Returns the counters that most packets change.
    #[inline]
    pub(crate) fn traffic(&mut self) -> &mut Traffic {
        self.traffic.get_or_insert_with(first_traffic)
    }

    /// Returns the number of ACKs sent.
    pub(crate) fn acks_sent(&self) -> u64 {
        self.traffic
            .as_deref()
            .map_or(0, |traffic| traffic.acks_sent)
    }

    /// Returns the rarely used counters.
    #[cold]
    pub(crate) fn rare(&mut self) -> &mut Counters {
        &mut self.rare.get_or_insert_default().counters
    }

    pub(crate) fn drop_packet(&mut self, reason: DropReason) {
        let rare = self.rare.get_or_insert_default();
        rare.counters.drops[reason as usize] += 1;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "`ibv_query_port` counts two of the reasons"
        )]
        let violated = match reason {
            DropReason::BadPkey => &mut rare.violations.pkey,
            DropReason::BadQkey => &mut rare.violations.qkey,
            _ => return,
        };
        *violated = violated.saturating_add(1);
    }

    /// Returns the violations since the last call, if there were any.
    #[inline]
    pub(crate) fn take_violations(&mut self) -> Option<Violations> {
        let violations = &mut self.rare.as_deref_mut()?.violations;
        let new = core::mem::take(violations);
        (new != Violations::default()).then_some(new)
    }

    /// Returns all counters.
    pub(crate) fn all(&self) -> Counters {
        let rare = self.rare.as_deref().map(|rare| rare.counters.clone());
        let traffic = self.traffic.as_deref().cloned().unwrap_or_default();
        Counters {
            tx_packets: traffic.tx_packets,
            rx_packets: traffic.rx_packets,
            tx_bytes: traffic.tx_bytes,
            arrived_packets: traffic.arrived_packets,
            rx_bytes: traffic.rx_bytes,
            tx_messages: traffic.tx_messages,
            rx_messages: traffic.rx_messages,
            fast_path_packets: traffic.fast_path_packets,
            acks_sent: traffic.acks_sent,
            ..rare.unwrap_or_default()
        }
    }
}
