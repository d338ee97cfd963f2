//! Receive side scaling (RSS): frames distributed over several receive queues.

use rocade_emulator::{Qp, QpAttr, QpAttrMask, QpState, Qpn, RSS_KEY_LEN, RxHash, Sge, Wq};

use crate::completion::{Completion, CompletionQueue};
use crate::device::{PORT, ProtectionDomain};
use crate::error::{Result, VerbsError};
use crate::flow::{Flow, FlowAttr};
use crate::slots::check_wr_id;

/// A receive work queue. It receives a share of the frames of a [`RssQueuePair`].
#[derive(Debug)]
#[doc(alias = "ibv_wq")]
pub struct WorkQueue {
    wq: Wq,
}

/// The state of a receive work queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wq_state")]
pub enum WqState {
    /// The queue is empty and receives nothing.
    Reset,
    /// The queue receives.
    Rdy,
    /// The queue has flushed its receives.
    Err,
}

impl WqState {
    const fn of(raw: rocade_emulator::WqState) -> Self {
        match raw {
            rocade_emulator::WqState::Reset => Self::Reset,
            rocade_emulator::WqState::Rdy => Self::Rdy,
            rocade_emulator::WqState::Err => Self::Err,
        }
    }

    const fn raw(self) -> rocade_emulator::WqState {
        match self {
            Self::Reset => rocade_emulator::WqState::Reset,
            Self::Rdy => rocade_emulator::WqState::Rdy,
            Self::Err => rocade_emulator::WqState::Err,
        }
    }
}

impl WorkQueue {
    /// Returns the number of the queue, which its completions carry as `qp_num`.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.wq.number()
    }

    /// Returns the state. A new queue is ready (`Rdy`).
    #[must_use]
    pub fn state(&self) -> WqState {
        WqState::of(self.wq.state())
    }

    /// Posts a receive for one frame.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, or if there are too many
    /// entries.
    #[doc(alias = "ibv_post_wq_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        check_wr_id(wr_id)?;
        Ok(self.wq.post(wr_id, sges)?)
    }

    /// Changes the state. `Err` flushes all receives, `Reset` empties the queue, and `Rdy` makes it
    /// ready again after `Reset`.
    ///
    /// # Errors
    /// [`VerbsError`] for any other transition.
    #[doc(alias = "ibv_modify_wq")]
    pub fn set_state(&self, to: WqState) -> Result<(), VerbsError> {
        Ok(self.wq.modify(to.raw())?)
    }

    /// Returns true if the completion belongs to this queue. Several queues can share a completion
    /// queue.
    #[must_use]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.qp_num == self.number()
    }
}

/// The hash that selects the queue of a frame: a Toeplitz hash of the chosen fields that the frame
/// has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_rx_hash_conf")]
pub struct RssHash {
    /// The key of the hash.
    pub key: [u8; RSS_KEY_LEN],
    /// Includes source and destination addresses of IPv4 and IPv6.
    pub addresses: bool,
    /// Includes source and destination ports of TCP.
    pub tcp_ports: bool,
    /// Includes source and destination ports of UDP.
    pub udp_ports: bool,
}

impl Default for RssHash {
    /// Returns a hash of all fields, with the default key of most drivers.
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

impl RssHash {
    /// Returns the fields as `ibv_rx_hash_fields` bits.
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

/// An RSS queue pair: it distributes the frames that match its [flows](Self::flow) over work
/// queues. All frames of a TCP or UDP connection reach the same queue.
///
/// ```no_run
/// use rocade_verbs::flow::FlowAttr;
/// use rocade_verbs::{Config, DeviceList, RssHash};
///
/// let list = DeviceList::new(Config::from_specs(&["dev=eth0"])?)?;
/// let domain = list.open("dev")?.protection_domain()?;
/// let cq = domain.context().completion_queue(64)?;
/// let (one, two) = (domain.work_queue(&cq, 64, 1)?, domain.work_queue(&cq, 64, 1)?);
/// let both = domain.rss_queue_pair(&[&one, &two], &RssHash::default())?;
/// let _all = both.flow(FlowAttr::sniffer())?;
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_rwq_ind_table")]
pub struct RssQueuePair {
    qp: Qp,
    /// The work queues, kept alive as long as the queue pair.
    _queues: Vec<Wq>,
}

impl RssQueuePair {
    /// Steers the matching frames to this queue pair until the returned flow is dropped.
    ///
    /// # Errors
    /// [`VerbsError`] if the device does not support the specification.
    #[doc(alias = "ibv_create_flow")]
    pub fn flow(&self, attr: FlowAttr) -> Result<Flow, VerbsError> {
        Flow::new(&self.qp, attr)
    }
}

impl ProtectionDomain {
    /// Creates a work queue for `depth` receives of up to `max_sges` scatter/gather entries, ready
    /// for receives to be posted.
    ///
    /// # Errors
    /// [`VerbsError`]:
    /// - A size is above the device's limit.
    /// - The process lacks `CAP_NET_RAW`
    ///   ([`VerbsErrorKind::NotPermitted`](crate::VerbsErrorKind::NotPermitted)).
    #[doc(alias = "ibv_create_wq")]
    pub fn work_queue(
        &self,
        cq: &CompletionQueue,
        depth: u32,
        max_sges: u32,
    ) -> Result<WorkQueue, VerbsError> {
        let wq = self.raw().create_wq(cq.raw(), depth, max_sges)?;
        wq.modify(WqState::Rdy.raw())?;
        Ok(WorkQueue { wq })
    }

    /// Creates a queue pair that distributes frames over `queues`. A queue may occur several times.
    ///
    /// # Errors
    /// [`VerbsError`] if the number of queues is not a power of two.
    #[doc(alias = "ibv_create_rwq_ind_table")]
    pub fn rss_queue_pair(
        &self,
        queues: &[&WorkQueue],
        how: &RssHash,
    ) -> Result<RssQueuePair, VerbsError> {
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
        Ok(RssQueuePair {
            qp,
            _queues: queues,
        })
    }
}
