//! Frames spread over several receive queues (RSS).

pub use rocade_emulator::WqState;
use rocade_emulator::{
    Flow, FlowAttr, Qp, QpAttr, QpAttrMask, QpState, Qpn, RSS_KEY_LEN, RxHash, Sge, Wq,
};

use crate::completion::{Completion, CompletionQueue};
use crate::device::{PORT, ProtectionDomain};
use crate::error::Result;

/// A receive queue for a part of the frames of a [`SpreadingQueuePair`].
#[derive(Debug)]
#[doc(alias = "ibv_wq")]
pub struct WorkQueue {
    wq: Wq,
}

impl WorkQueue {
    /// Its number, which completions carry.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.wq.number()
    }

    /// Its state: ready when it is made.
    #[must_use]
    pub fn state(&self) -> WqState {
        self.wq.state()
    }

    /// Posts room for a frame.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if the queue is full or there are too many entries.
    #[doc(alias = "ibv_post_wq_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        Ok(self.wq.post(wr_id, sges)?)
    }

    /// Ends it, with what is posted flushed (`Err`), empties it (`Reset`), and makes it ready again from there (`Rdy`).
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) for any other change.
    #[doc(alias = "ibv_modify_wq")]
    pub fn set_state(&self, to: WqState) -> Result<()> {
        Ok(self.wq.modify(to)?)
    }

    /// Whether a completion is one of this queue, where several share a completion queue.
    #[must_use]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.qp_num == self.number()
    }
}

/// What decides which queue a frame is for: the Toeplitz hash of these of its fields, as far as it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_rx_hash_conf")]
pub struct Spreading {
    /// Key of the hash.
    pub key: [u8; RSS_KEY_LEN],
    /// Source and destination addresses of IPv4 and IPv6.
    pub addresses: bool,
    /// Source and destination ports of TCP.
    pub tcp_ports: bool,
    /// Those of UDP.
    pub udp_ports: bool,
}

impl Default for Spreading {
    /// All fields, and the key that most drivers have.
    fn default() -> Self {
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
            0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
            0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        Self {
            key,
            addresses: true,
            tcp_ports: true,
            udp_ports: true,
        }
    }
}

impl Spreading {
    /// `ibv_rx_hash_fields`.
    fn fields(&self) -> u32 {
        let chosen = [
            (self.addresses, 0x0f),
            (self.tcp_ports, 0x30),
            (self.udp_ports, 0xc0),
        ];
        let bits = chosen.iter().filter(|(is_chosen, _)| *is_chosen);
        bits.fold(0, |all, (_, bits)| all | bits)
    }
}

/// A queue pair without queues of its own: frames that [flows](Self::flow) lead to it are spread over work queues,
/// those of one connection to the same one.
///
/// ```no_run
/// use rocade_verbs::flow::{FlowAttr, FlowKind};
/// use rocade_verbs::{Config, DeviceList, Spreading};
///
/// let domain = DeviceList::new(Config::from_specs(&["dev=eth0"])?)?.open("dev")?.protection_domain()?;
/// let cq = domain.context().completion_queue(64)?;
/// let (one, two) = (domain.work_queue(&cq, 64, 1)?, domain.work_queue(&cq, 64, 1)?);
/// let both = domain.spreading_queue_pair(&[&one, &two], &Spreading::default())?;
/// let _all = both.flow(FlowAttr {
///     kind: FlowKind::Sniffer,
///     priority: 0,
///     dont_trap: false,
///     specs: Vec::new(),
/// })?;
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_rwq_ind_table")]
pub struct SpreadingQueuePair {
    qp: Qp,
    /// They live as long as it does.
    _queues: Vec<Wq>,
}

impl SpreadingQueuePair {
    /// Leads the frames that match to the queues, until the flow is dropped.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) for specifications that no device has.
    #[doc(alias = "ibv_create_flow")]
    pub fn flow(&self, attr: FlowAttr) -> Result<Flow> {
        Ok(self.qp.create_flow(attr)?)
    }
}

impl ProtectionDomain {
    /// A new work queue with room for `depth` receives of up to `max_sges` scatter/gather entries, ready to be posted to.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if a size is above the limit, or with
    /// [`VerbsError::NotPermitted`](crate::VerbsError::NotPermitted) without `CAP_NET_RAW`.
    #[doc(alias = "ibv_create_wq")]
    pub fn work_queue(&self, cq: &CompletionQueue, depth: u32, max_sges: u32) -> Result<WorkQueue> {
        let wq = self.raw().create_wq(cq.raw(), depth, max_sges)?;
        wq.modify(WqState::Rdy)?;
        Ok(WorkQueue { wq })
    }

    /// A queue pair that spreads frames over `queues`, some of which may be there several times.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) unless the number of queues is a power of two.
    #[doc(alias = "ibv_create_rwq_ind_table")]
    pub fn spreading_queue_pair(
        &self,
        queues: &[&WorkQueue],
        how: &Spreading,
    ) -> Result<SpreadingQueuePair> {
        let queues: Vec<Wq> = queues.iter().map(|queue| queue.wq.clone()).collect();
        let hash = RxHash {
            key: how.key,
            fields: how.fields(),
        };
        let qp = self.raw().create_rss_qp(&queues, hash, 0)?;
        let none = QpAttrMask::empty();
        for (state, more) in [(QpState::Init, QpAttrMask::PORT), (QpState::Rtr, none)] {
            let attr = QpAttr {
                qp_state: state.code(),
                port_num: PORT,
                ..QpAttr::default()
            };
            qp.modify(&attr, QpAttrMask::STATE | more)?;
        }
        Ok(SpreadingQueuePair {
            qp,
            _queues: queues,
        })
    }
}
