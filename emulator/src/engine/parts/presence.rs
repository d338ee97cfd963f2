//! Sockets, numbers and the journal, which the broker has given to this process.

use std::sync::{Arc, OnceLock};

use crate::broker::BrokerLink;
use crate::journal::AckJournal;
use crate::state::SrqNumbers;
use crate::steering::QpnAllocator;
use crate::sync::{Mutex, rank};

/// The attachment of the process to its addresses, made with the first QP.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(in crate::engine) broker: Option<Arc<BrokerLink>>,
    pub(in crate::engine) qp_numbers: QpnAllocator,
    /// The SRQ numbers, once there is an SRQ.
    pub(in crate::engine) srq_numbers: Option<SrqNumbers>,
}

/// The place of the process among those of its addresses.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    pub(in crate::engine) attachment: Mutex<Option<Attachment>, rank::Attachment>,
    /// The ACK and connection journal that the broker executes when this process has ended.
    pub(in crate::engine) ack_journal: OnceLock<Arc<AckJournal>>,
}
