//! Memory windows.

use std::ops::RangeBounds;
use std::sync::atomic::{AtomicU32, Ordering};

use rocade_emulator::{
    AccessFlags, Bind, Lkey, Mw, Rkey, SendFlags, VerbsError as RawError, WindowKind,
};

use crate::device::ProtectionDomain;
use crate::endpoint::RemoteMemory;
use crate::error::{RangeError, RegionError, Result, VerbsError};
use crate::memory::MemoryRegion;
use crate::queue_pair::QueuePair;
use crate::request::SendRequest;

/// A type 2 memory window. While it is bound, it grants the peer of one queue pair access to a part
/// of a region. Either side can invalidate it, without a new registration.
///
/// The region has to be registered with [`AccessFlags::MW_BIND`]. It needs no remote rights, so
/// peers can access it only through windows.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// # let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
/// # let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
/// # let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
/// let memory = a.register(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND)?;
/// let window = a.memory_window()?;
/// let (bind, lent) = window.bind_request(&memory, 1024..2048, AccessFlags::REMOTE_WRITE)?;
/// a_qp.post_send(&bind)?;
/// a_cq.wait(Duration::from_secs(1))?;
///
/// b_qp.post_send(&SendRequest::write_inline(b"inside", lent))?;
/// b_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(memory.to_vec(1024..1030)?, b"inside");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_mw")]
#[doc(alias = "IBV_MW_TYPE_2")]
pub struct MemoryWindow {
    mw: Mw,
    last: AtomicU32,
}

impl MemoryWindow {
    pub(crate) fn new(pd: &ProtectionDomain) -> Result<Self, VerbsError> {
        let mw = pd.raw().alloc_mw(WindowKind::Type2)?;
        let last = AtomicU32::new(mw.rkey().get());
        Ok(Self { mw, last })
    }

    /// Returns the request that binds the window to a part of `region`, and the remote memory to
    /// send to the peer.
    ///
    /// The binding holds for the queue pair to which the request is posted, and for its peer. The
    /// program may send the remote memory in a later message of the same queue pair. Every call
    /// uses a new key. The request completes with
    /// [`WcStatus::WindowBindError`](crate::WcStatus::WindowBindError) if the window is already
    /// bound, or if the region does not allow the access.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the region.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind_request(
        &self,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        access: AccessFlags,
    ) -> Result<(SendRequest<'static>, RemoteMemory), RangeError> {
        let sge = region.sge(range)?;
        let next = |rkey| Some(Rkey::new(rkey).with_next_tag().get());
        let last = self
            .last
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        let rkey = Rkey::new(last.unwrap_or_else(|last| last)).with_next_tag();
        let len = u64::from(sge.len);
        let request = SendRequest::bind(Bind {
            rkey,
            lkey: sge.lkey,
            va: sge.addr,
            len,
            access,
        });
        let remote = RemoteMemory {
            addr: sge.addr,
            rkey,
            len,
        };
        Ok((request, remote))
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // If the window is bound, the peer loses access.
        let _ = self.mw.destroy();
    }
}

/// A type 1 memory window. While it is bound, it grants the peers of all queue pairs of its
/// protection domain access to a part of a region. It cannot be invalidated, only
/// [unbound](QueuePair::unbind) or bound again.
///
/// The region has to be registered with [`AccessFlags::MW_BIND`].
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// # let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
/// # let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
/// # let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
/// let memory = a.register(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND)?;
/// let window = a.type1_window()?;
/// let lent = a_qp.bind(1, &window, (&memory, ..1024), AccessFlags::REMOTE_WRITE)?;
/// a_cq.wait(Duration::from_secs(1))?;
///
/// b_qp.post_send(&SendRequest::write_inline(b"inside", lent))?;
/// b_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(memory.to_vec(..6)?, b"inside");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_mw")]
#[doc(alias = "IBV_MW_TYPE_1")]
pub struct Type1Window {
    mw: Mw,
}

impl Type1Window {
    pub(crate) fn new(pd: &ProtectionDomain) -> Result<Self, VerbsError> {
        let mw = pd.raw().alloc_mw(WindowKind::Type1)?;
        Ok(Self { mw })
    }
}

impl QueuePair {
    /// Posts a request that binds the window to a part of `region` and removes its previous
    /// binding.
    ///
    /// The window gets a new key. Peers may use the key once the request has completed. The program
    /// may also send it in a later message of this queue pair at once. The request completes with
    /// [`WcStatus::WindowBindError`](crate::WcStatus::WindowBindError) if the region does not allow
    /// the access.
    ///
    /// # Errors
    /// - [`RegionError::OutOfRange`] if the range is not inside the region.
    /// - [`RegionError::Verbs`] with EPERM if region and window belong to different
    ///   protection domains.
    /// - [`RegionError::Verbs`] if `access` contains `ZERO_BASED`, or if the send
    ///   queue is full.
    #[doc(alias = "ibv_bind_mw")]
    //= MW-01 MW-05
    pub fn bind(
        &self,
        wr_id: u64,
        window: &Type1Window,
        (region, range): (&MemoryRegion, impl RangeBounds<usize>),
        access: AccessFlags,
    ) -> Result<RemoteMemory, RegionError> {
        if access.contains(AccessFlags::ZERO_BASED) {
            return Err(
                RawError::InvalidArgument("access: a type 1 window cannot be zero-based").into(),
            );
        }
        if !region.raw().is_of(&window.mw.pd()) {
            return Err(
                RawError::NotPermitted("the window belongs to another protection domain").into(),
            );
        }
        let sge = region.sge(range)?;
        let bind = Bind {
            rkey: Rkey::new(0),
            lkey: sge.lkey,
            va: sge.addr,
            len: u64::from(sge.len),
            access,
        };
        let flags = SendFlags::SIGNALED;
        let rkey = self.raw().bind_mw(&window.mw, wr_id, flags, bind)?;
        Ok(RemoteMemory {
            addr: bind.va,
            rkey,
            len: bind.len,
        })
    }

    /// Posts a request that removes the window's binding.
    ///
    /// # Errors
    /// [`VerbsError`] if the send queue is full.
    #[doc(alias = "ibv_bind_mw")]
    //= MW-01
    pub fn unbind(&self, wr_id: u64, window: &Type1Window) -> Result<(), VerbsError> {
        let nothing = Bind {
            rkey: Rkey::new(0),
            lkey: Lkey::new(0),
            va: 0,
            len: 0,
            access: AccessFlags::empty(),
        };
        let flags = SendFlags::SIGNALED;
        self.raw().bind_mw(&window.mw, wr_id, flags, nothing)?;
        Ok(())
    }
}

impl Drop for Type1Window {
    fn drop(&mut self) {
        // If the window is bound, peers lose access.
        let _ = self.mw.destroy();
    }
}
