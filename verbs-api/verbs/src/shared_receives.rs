//! Shared receive queues.

use std::sync::Arc;

use rocade_emulator::{Sge, Srq, SrqInitAttr};

use crate::device::ProtectionDomain;
use crate::error::{Result, VerbsError};
use crate::events::ObjectId;
use crate::shared_futures::SharedReceives;
use crate::slots::check_wr_id;

/// A shared receive queue (SRQ): each message to one of its queue pairs consumes the oldest
/// receive.
///
/// [`QueuePairBuilder::shared_receives`](crate::QueuePairBuilder::shared_receives) attaches queue
/// pairs. The receives name memory of the SRQ's protection domain, which may differ from that of
/// the queue pairs.
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
/// // Two connections take their receives from the queue.
/// for text in [b"first ", b"second"] {
///     let from = a.queue_pair(&a_cq).build()?;
///     let to = b.queue_pair(&b_cq).shared_receives(&receives).build()?;
///     let (from_end, to_end) = (from.endpoint(), to.endpoint());
///     let from = from.connect(to_end, &ConnectOptions::default())?;
///     let _to = to.connect(from_end, &ConnectOptions::default())?;
///     from.post_send(&SendRequest::send_inline(text))?;
///     b_cq.wait(Duration::from_secs(1))?;
/// }
/// assert_eq!(memory.to_vec(64..70)?, b"second");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    srq: Srq,
    id: ObjectId,
    receives: Arc<SharedReceives>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        depth: u32,
        max_sges: u32,
    ) -> Result<Self, VerbsError> {
        let id = ObjectId::next();
        let srq = pd.raw().create_srq(SrqInitAttr {
            max_wr: depth,
            max_sge: max_sges,
            cookie: id.cookie(),
        })?;
        Ok(Self::from_raw(srq, id))
    }

    pub(crate) fn from_raw(srq: Srq, id: ObjectId) -> Self {
        let receives = SharedReceives::new();
        Self { srq, id, receives }
    }

    /// Returns the receives that futures wait for.
    pub(crate) const fn receives(&self) -> &Arc<SharedReceives> {
        &self.receives
    }

    pub(crate) fn post_own(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        Ok(self.srq.recv_queue().push(wr_id, sges)?)
    }

    /// Returns the SRQ number, 24 bits. XRC initiators name a queue of an [XRC
    /// domain](crate::XrcDomain) by it.
    #[must_use]
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> u32 {
        self.srq.number()
    }

    pub(crate) const fn raw(&self) -> &Srq {
        &self.srq
    }

    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, or if there are too many
    /// entries. There is room again after completions of its receives have been polled.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        check_wr_id(wr_id)?;
        self.post_own(wr_id, sges)
    }

    /// Returns the capacity in receives.
    #[must_use]
    #[doc(alias = "ibv_query_srq")]
    pub fn depth(&self) -> u32 {
        self.srq.query().max_wr
    }

    /// Returns the maximum number of scatter/gather entries of a receive.
    #[must_use]
    #[doc(alias = "ibv_query_srq")]
    //= SRQ-08
    pub fn max_sges(&self) -> u32 {
        self.srq.query().max_sge
    }

    /// Changes the capacity to `depth` receives.
    ///
    /// # Errors
    /// [`VerbsError`]:
    /// - More than `depth` receives are in use.
    /// - `depth` is 0, above the device's limit, or below the [limit](Self::limit).
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, depth: u32) -> Result<(), VerbsError> {
        Ok(self.srq.modify(Some(depth), None)?)
    }

    /// Arms the SRQ limit. [`limit_reached`](Self::limit_reached) turns true when a message leaves
    /// fewer than `receives` receives in the queue. The context then also reports the event
    /// [`SrqLimitReached`](crate::AsyncEventKind::SrqLimitReached). 0 disarms the limit.
    ///
    /// # Errors
    /// [`VerbsError`] if `receives` is above the capacity.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn arm_limit(&self, receives: u32) -> Result<(), VerbsError> {
        Ok(self.srq.modify(None, Some(receives))?)
    }

    /// Returns the armed limit, or 0 if it was reached or never armed.
    #[must_use]
    #[doc(alias = "ibv_query_srq")]
    //= SRQ-04
    pub fn limit(&self) -> u32 {
        self.srq.query().srq_limit
    }

    /// Returns true if the limit of [`arm_limit`](Self::arm_limit) was reached, or if no limit is
    /// armed.
    #[must_use]
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    pub fn limit_reached(&self) -> bool {
        self.srq.query().srq_limit == 0
    }
}

/// Futures that wait for receives of the queue end with
/// [`OperationError::Dropped`](crate::OperationError::Dropped).
impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        self.receives.close();
    }
}
