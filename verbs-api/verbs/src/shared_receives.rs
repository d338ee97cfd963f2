//! Shared receive queues.

use rocade_emulator::{Sge, Srq, SrqInitAttr};

use crate::device::ProtectionDomain;
use crate::error::Result;
use crate::events::ObjectId;

/// Receives that several queue pairs take: each message of any of them the oldest one.
///
/// Queue pairs are built with [`QueuePairBuilder::shared_receives`](crate::QueuePairBuilder::shared_receives). The
/// memory of its receives is that of its own protection domain, which need not be the queue pairs'.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// let receives = b.shared_receive_queue(16, 1)?;
/// let memory = b.register(128, AccessFlags::LOCAL_WRITE)?;
/// receives.post_recv(1, &[memory.sge(..64)?])?;
/// receives.post_recv(2, &[memory.sge(64..)?])?;
///
/// // Two connections take their receives from it.
/// for text in [b"first ", b"second"] {
///     let from = a.queue_pair(&a_cq).build()?;
///     let to = b.queue_pair(&b_cq).shared_receives(&receives).build()?;
///     let (from_end, to_end) = (from.endpoint(), to.endpoint());
///     let from = from.connect(to_end, &ConnectOptions::default())?;
///     let _to = to.connect(from_end, &ConnectOptions::default())?;
///     from.post_send(&SendRequest::send_inline(text))?;
///     b_cq.wait(Duration::from_secs(1))?;
/// }
/// assert_eq!(memory.to_vec(64, 6)?, b"second");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    srq: Srq,
    id: ObjectId,
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &ProtectionDomain, depth: u32, max_sges: u32) -> Result<Self> {
        let id = ObjectId::next();
        let srq = pd.raw().create_srq(SrqInitAttr {
            max_wr: depth,
            max_sge: max_sges,
            cookie: id.cookie(),
        })?;
        Ok(Self { srq, id })
    }

    pub(crate) const fn from_raw(srq: Srq, id: ObjectId) -> Self {
        Self { srq, id }
    }

    /// Its number, 24 bits: how initiators name it, where it is one of an [XRC domain](crate::XrcDomain).
    #[must_use]
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> u32 {
        self.srq.number()
    }

    pub(crate) const fn raw(&self) -> &Srq {
        &self.srq
    }

    /// Its name in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if the queue is full or there are too many entries. There is room
    /// again when completions of its receives have been taken.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        Ok(self.srq.recv_queue().push(wr_id, sges)?)
    }

    /// Room for so many receives.
    #[must_use]
    #[doc(alias = "ibv_query_srq")]
    pub fn depth(&self) -> u32 {
        self.srq.query().max_wr
    }

    /// Scatter/gather entries that a receive may have.
    #[must_use]
    #[doc(alias = "ibv_query_srq")]
    //= SRQ-08
    pub fn max_sges(&self) -> u32 {
        self.srq.query().max_sge
    }

    /// Changes the room to `depth` receives.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if more than that are in use, if `depth` is 0 or above the limit of the
    /// device, or below what [`warn_below`](Self::warn_below) was told.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, depth: u32) -> Result<()> {
        Ok(self.srq.modify(Some(depth), None)?)
    }

    /// Asks to be told, by [`runs_low`](Self::runs_low), once a message leaves fewer than `receives` behind; 0 to
    /// take that back.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if that is more than there is room for.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn warn_below(&self, receives: u32) -> Result<()> {
        Ok(self.srq.modify(None, Some(receives))?)
    }

    /// What [`warn_below`](Self::warn_below) was told, or 0 where it has come to that since.
    #[must_use]
    #[doc(alias = "ibv_query_srq")]
    //= SRQ-04
    pub fn limit(&self) -> u32 {
        self.srq.query().srq_limit
    }

    /// Whether that has happened since, or was never asked for.
    #[must_use]
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    pub fn runs_low(&self) -> bool {
        self.srq.query().srq_limit == 0
    }
}
