//! Counters: every dropped packet has a reason.

use alloc::boxed::Box;

/// Why a packet was dropped without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// The QP's state takes no such packet (RC-RSP-01, RC-STA-03).
    State = 0,
    /// The opcode's service is not that of the QP (BTH-15).
    WrongService,
    /// Source or destination address differs from the QP's address vector (RC-LIM-05).
    WrongAddress,
    /// P_Key mismatch (BTH-06).
    BadPkey,
    /// Q_Key mismatch (UD-05).
    BadQkey,
    /// Behind a sequence gap that was NAKed already (RC-RSP-20, RC-RSP-21).
    OutOfSequence,
    /// A duplicate that cannot be answered (RC-DUP-03…07).
    Duplicate,
    /// A response to a packet that was never sent (RC-REQ-01).
    FutureResponse,
    /// A response to something acknowledged already (RC-REQ-02, RC-REQ-19).
    GhostResponse,
    /// A reserved response opcode or AETH code (OPC-36, RC-REQ-15).
    Reserved,
    /// Malformed (payload rules of the opcode).
    Malformed,
    /// No receive work request (UD-09, UC-07).
    NoReceive,
    /// Longer than the receive work request (UD-10, UC-09).
    TooLong,
    /// Memory that may not be written (UC-08).
    Access,
    /// Not the access key of the DC target (DCK-03).
    BadDcKey,
    /// Of a DC session that is over, or that there never was (DCW-09).
    NoSession,
}

/// Number of [`DropReason`]s.
const DROP_REASONS: usize = 16;

/// Statistics of a QP; all values count from the creation of the QP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed out for transmission.
    pub tx_packets: u64,
    /// Packets accepted for processing.
    pub rx_packets: u64,
    /// Packets that [`Qp::handle_short`](crate::Qp::handle_short) took.
    pub short_packets: u64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
    /// ACK timer expiries.
    pub timeouts: u64,
    /// Sequence NAKs sent.
    pub seq_naks_sent: u64,
    /// Sequence NAKs received, implied ones included.
    pub seq_naks_received: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// Duplicate requests received.
    pub duplicate_requests: u64,
    /// Fatal NAKs sent (invalid request, access, operational).
    pub fatal_naks_sent: u64,
    /// Acknowledge packets sent.
    pub acks_sent: u64,
    /// Packets received that were marked on the way (ECN).
    pub marked_packets: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// Congestion notifications received.
    pub cnps_received: u64,
    drops: [u64; DROP_REASONS],
}

impl Counters {
    /// Packets dropped for this reason.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}

/// Packets with a key that is not the QP's: its port counts them, whichever QP they are for.
//= BTH-06 UD-05
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// With another P_Key.
    pub pkey: u32,
    /// With another Q_Key.
    pub qkey: u32,
}

/// How a QP keeps its [`Counters`]: what is rare takes no room before it happens.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) tx_packets: u64,
    pub(crate) rx_packets: u64,
    pub(crate) short_packets: u64,
    pub(crate) acks_sent: u64,
    /// The others.
    rare: Option<Box<Rare>>,
}

#[derive(Debug, Default)]
struct Rare {
    counters: Counters,
    /// Those that the port does not know of.
    violations: Violations,
}

impl Tally {
    /// The counters that are not counted here.
    #[cold]
    pub(crate) fn rare(&mut self) -> &mut Counters {
        &mut self.rare.get_or_insert_default().counters
    }

    pub(crate) fn drop_packet(&mut self, reason: DropReason) {
        let rare = self.rare.get_or_insert_default();
        rare.counters.drops[reason as usize] += 1;
        let violated = match reason {
            DropReason::BadPkey => &mut rare.violations.pkey,
            DropReason::BadQkey => &mut rare.violations.qkey,
            _ => return,
        };
        *violated = violated.saturating_add(1);
    }

    /// The violations since the last call, where there are any.
    #[inline]
    pub(crate) fn take_violations(&mut self) -> Option<Violations> {
        let violations = &mut self.rare.as_deref_mut()?.violations;
        let new = core::mem::take(violations);
        (new != Violations::default()).then_some(new)
    }

    /// All of them.
    pub(crate) fn all(&self) -> Counters {
        let rare = self.rare.as_deref().map(|rare| rare.counters.clone());
        Counters {
            tx_packets: self.tx_packets,
            rx_packets: self.rx_packets,
            short_packets: self.short_packets,
            acks_sent: self.acks_sent,
            ..rare.unwrap_or_default()
        }
    }
}
