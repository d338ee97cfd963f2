//! XRC: one connection serves many shared receive queues.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use rocade_emulator::{AccessFlags, FileId, Qp, Qpn, SrqInitAttr, Xrcd, XrcdInitAttr};

use crate::completion::CompletionQueue;
use crate::device::{Context, ProtectionDomain};
use crate::error::{BuildError, Result, VerbsError};
use crate::events::ObjectId;
use crate::operation::Ends;
use crate::queue_pair::UnconnectedQueuePair;
use crate::shared_receives::SharedReceiveQueue;

/// An XRC domain: shared receive queues, and the target queue pairs that receive for them. The
/// example `xrc` shares one between processes.
///
/// Each request of an [initiator](crate::QueuePairBuilder::xrc_initiator) names one of the queues
/// with [`SendRequest::to_queue`](crate::SendRequest::to_queue). Its message consumes a receive of
/// that queue and completes in that queue's completion queue. Memory that the initiator reads or
/// writes has to belong to the protection domain of that queue.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let cq = a.context().completion_queue(16)?;
/// let domain = b.context().xrc_domain()?;
/// let target = domain.target(AccessFlags::empty())?;
/// let initiator = a.queue_pair(&cq).xrc_initiator().build()?;
/// let (target_end, initiator_end) = (target.endpoint(), initiator.endpoint());
/// let _target = target.connect(initiator_end, &ConnectOptions::default())?;
/// let initiator = initiator.connect(target_end, &ConnectOptions::default())?;
///
/// // Two queues behind one connection, each with its own completion queue.
/// let memory = b.register(64, AccessFlags::LOCAL_WRITE)?;
/// for (place, text) in [(0, b"to the first"), (32, b"to another.."),] {
///     let received = b.context().completion_queue(4)?;
///     let queue = domain.shared_receive_queue(&b, &received, 4, 1)?;
///     queue.post_recv(7, &[memory.sge(place..place + 32)?])?;
///     initiator.post_send(&SendRequest::send_inline(text).to_queue(queue.number()))?;
///     assert_eq!(received.wait(Duration::from_secs(5))?.wr_id, 7);
///     assert_eq!(memory.to_vec(place..place + text.len())?, text);
/// }
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_xrcd")]
pub struct XrcDomain {
    context: Context,
    xrcd: Xrcd,
}

impl XrcDomain {
    pub(crate) fn new(context: &Context) -> Result<Self, VerbsError> {
        Self::open(context, None)
    }

    pub(crate) fn of_file(context: &Context, file: &File) -> Result<Self, VerbsError> {
        let about = file.metadata().map_err(VerbsError::io)?;
        let id = FileId {
            device: about.dev(),
            inode: about.ino(),
        };
        Self::open(context, Some(id))
    }

    fn open(context: &Context, file: Option<FileId>) -> Result<Self, VerbsError> {
        let xrcd = context.raw().open_xrcd(XrcdInitAttr {
            file,
            create: true,
            exclusive: false,
        })?;
        Ok(Self {
            context: context.clone(),
            xrcd,
        })
    }

    /// Creates a shared receive queue in the domain. Its receives name memory of `pd` and complete
    /// in `cq`.
    ///
    /// # Errors
    /// [`VerbsError`] if a size is 0 or above the device's limit, or if `pd`
    /// or `cq` belongs to another device.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn shared_receive_queue(
        &self,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        depth: u32,
        max_sges: u32,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let id = ObjectId::next();
        let init = SrqInitAttr {
            max_wr: depth,
            max_sge: max_sges,
            cookie: id.cookie(),
        };
        let srq = self.xrcd.create_srq(pd.raw(), cq.raw(), init)?;
        let queue = SharedReceiveQueue::from_raw(srq, id);
        queue.receives().attach(cq)?;
        Ok(queue)
    }

    /// Opens a target of the domain, which another process may have created. The target lives until
    /// its last handle is dropped.
    ///
    /// # Errors
    /// [`VerbsError`] if the domain has no target with this number.
    //= XRC-11
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, number: Qpn) -> Result<XrcTarget, VerbsError> {
        let id = ObjectId::next();
        let qp = self.xrcd.open_target(number, id.cookie())?;
        Ok(XrcTarget { qp, id })
    }

    /// Creates a target on the first address of the device. It receives for the domain's shared
    /// receive queues, and sends no requests. `access` sets the rights of its peer.
    ///
    /// # Errors
    /// - [`BuildError::NoGid`] if the device has no address.
    /// - [`BuildError::Verbs`] if the local address cannot be used.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn target(&self, access: AccessFlags) -> Result<UnconnectedQueuePair, BuildError> {
        let id = ObjectId::next();
        let qp = self.xrcd.create_target(id.cookie())?;
        UnconnectedQueuePair::new(&self.context, (qp, Ends::none(id)), id, 0, (access, None))
    }
}

/// A handle from [`XrcDomain::open_target`] that keeps an XRC target alive.
#[derive(Debug)]
pub struct XrcTarget {
    qp: Qp,
    id: ObjectId,
}

impl XrcTarget {
    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the number of the target.
    #[must_use]
    pub fn qp_num(&self) -> Qpn {
        self.qp.qp_num()
    }
}
