//! XRC: one connection that reaches many receive queues.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use rocade_emulator::{AccessFlags, FileId, Qp, Qpn, SrqInitAttr, Xrcd, XrcdInitAttr};

use crate::completion::CompletionQueue;
use crate::device::{Context, ProtectionDomain};
use crate::error::Result;
use crate::events::ObjectId;
use crate::queue_pair::UnconnectedQueuePair;
use crate::shared_receives::SharedReceiveQueue;

/// Shared receive queues, and the targets that receive for them (XRC). Between processes: the example `xrc`.
///
/// Each request of an initiator ([`QueuePairBuilder::xrc_initiator`](crate::QueuePairBuilder::xrc_initiator)) names
/// one of the queues ([`SendRequest::to_queue`](crate::SendRequest::to_queue)). Its message takes a receive from there,
/// which completes where that queue says; memory that the initiator reads or writes is of that queue's protection domain.
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
/// // Two queues behind one connection, each with completions of its own.
/// let memory = b.register(64, AccessFlags::LOCAL_WRITE)?;
/// for (place, text) in [(0, b"to the first"), (32, b"to another.."),] {
///     let received = b.context().completion_queue(4)?;
///     let queue = domain.shared_receive_queue(&b, &received, 4, 1)?;
///     queue.post_recv(7, &[memory.sge(place..place + 32)?])?;
///     initiator.post_send(&SendRequest::send_inline(text).to_queue(queue.number()))?;
///     assert_eq!(received.wait(Duration::from_secs(5))?.wr_id, 7);
///     assert_eq!(memory.to_vec(place, text.len())?, text);
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
    pub(crate) fn new(context: &Context) -> Result<Self> {
        Self::open(context, None)
    }

    pub(crate) fn of_file(context: &Context, file: &File) -> Result<Self> {
        let about = file.metadata()?;
        let id = FileId {
            device: about.dev(),
            inode: about.ino(),
        };
        Self::open(context, Some(id))
    }

    fn open(context: &Context, file: Option<FileId>) -> Result<Self> {
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

    /// A new queue of the domain, whose receives name memory of `pd` and complete in `cq`.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if a size is 0 or above the limit, or the three are not of one device.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn shared_receive_queue(
        &self,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        depth: u32,
        max_sges: u32,
    ) -> Result<SharedReceiveQueue> {
        let id = ObjectId::next();
        let init = SrqInitAttr {
            max_wr: depth,
            max_sge: max_sges,
            cookie: id.cookie(),
        };
        let srq = self.xrcd.create_srq(pd.raw(), cq.raw(), init)?;
        Ok(SharedReceiveQueue::from_raw(srq, id))
    }

    /// Keeps a target of the domain alive, which another process may have made: it lives until nobody holds it.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if the domain has no such target.
    //= XRC-11
    #[doc(alias = "ibv_open_qp")]
    pub fn hold_target(&self, number: Qpn) -> Result<TargetHold> {
        let id = ObjectId::next();
        let qp = self.xrcd.open_target(number, id.cookie())?;
        Ok(TargetHold { qp, id })
    }

    /// A new target, on the first address of the device: the end of a connection that receives for the domain's
    /// queues, and sends nothing. Its peer may do what `access` says.
    ///
    /// # Errors
    /// [`Error::NoGid`](crate::Error::NoGid); [`Error::Verbs`](crate::Error::Verbs) if the local address cannot be used.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn target(&self, access: AccessFlags) -> Result<UnconnectedQueuePair> {
        let id = ObjectId::next();
        let qp = self.xrcd.create_target(id.cookie())?;
        UnconnectedQueuePair::new(&self.context, (qp, id), 0, access, None)
    }
}

/// Holds a target of an XRC domain; see [`XrcDomain::hold_target`].
#[derive(Debug)]
pub struct TargetHold {
    qp: Qp,
    id: ObjectId,
}

impl TargetHold {
    /// Its name in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Its number.
    #[must_use]
    pub fn qp_num(&self) -> Qpn {
        self.qp.qp_num()
    }
}
