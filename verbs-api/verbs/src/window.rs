//! Memory windows.

use std::ops::RangeBounds;
use std::sync::atomic::{AtomicU32, Ordering};

use rocade_emulator::{AccessFlags, Bind, Lkey, Mw, Rkey, SendFlags, VerbsError, WindowKind};

use crate::device::ProtectionDomain;
use crate::endpoint::RemoteMemory;
use crate::error::Result;
use crate::memory::MemoryRegion;
use crate::queue_pair::QueuePair;
use crate::request::SendRequest;

/// A key that can be lent: it opens a part of a region to the peer of one queue pair, for as long as it is
/// bound. Then either side takes it back, which costs no registration.
///
/// The region has to be registered with [`AccessFlags::MW_BIND`]; it needs none of the remote rights, and so is
/// closed but for what the window opens.
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
/// let (bind, lent) = window.lend(&memory, 1024..2048, AccessFlags::REMOTE_WRITE)?;
/// a_qp.post_send(&bind)?;
/// a_cq.wait(Duration::from_secs(1))?;
///
/// b_qp.post_send(&SendRequest::write_inline(b"inside", lent))?;
/// b_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(memory.to_vec(1024, 6)?, b"inside");
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
    pub(crate) fn new(pd: &ProtectionDomain) -> Result<Self> {
        let mw = pd.raw().alloc_mw(WindowKind::Type2)?;
        let last = AtomicU32::new(mw.rkey().get());
        Ok(Self { mw, last })
    }

    /// Lends a part of `region`: the request does it, on the queue pair to which it is posted and for its peer only. The peer
    /// gets the other half, in a message behind the request, say. Every call makes a new key.
    ///
    /// The request completes with [`WcStatus::MwBindErr`](crate::WcStatus::MwBindErr) where the window is bound
    /// already, or the region does not allow it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the range is not inside the region.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn lend(
        &self,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        access: AccessFlags,
    ) -> Result<(SendRequest<'static>, RemoteMemory)> {
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
        // Where it is bound, the peer is locked out.
        let _ = self.mw.destroy();
    }
}

/// A key that can be moved: it opens a part of a region to the peers of all queue pairs of its domain, until it is bound
/// to another one. Neither side takes it back by a request; an [unbind](QueuePair::unbind) does.
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
/// let window = a.shared_window()?;
/// let lent = a_qp.bind(1, &window, (&memory, ..1024), AccessFlags::REMOTE_WRITE)?;
/// a_cq.wait(Duration::from_secs(1))?;
///
/// b_qp.post_send(&SendRequest::write_inline(b"inside", lent))?;
/// b_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(memory.to_vec(0, 6)?, b"inside");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_mw")]
#[doc(alias = "IBV_MW_TYPE_1")]
pub struct SharedWindow {
    mw: Mw,
}

impl SharedWindow {
    pub(crate) fn new(pd: &ProtectionDomain) -> Result<Self> {
        let mw = pd.raw().alloc_mw(WindowKind::Type1)?;
        Ok(Self { mw })
    }
}

impl QueuePair {
    /// Posts a request that opens a part of `region`, and closes what the window has opened before. The key is a new one: of use
    /// to peers once the request has completed, or to be sent in a later message of this queue pair.
    ///
    /// It completes with [`WcStatus::MwBindErr`](crate::WcStatus::MwBindErr) where the region does not allow it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the range is not inside the region;
    /// [`Error::Verbs`](crate::Error::Verbs): a region of another domain than the window's (EPERM), `ZERO_BASED`, or the send queue is
    /// full.
    #[doc(alias = "ibv_bind_mw")]
    //= MW-01 MW-05
    pub fn bind(
        &self,
        wr_id: u64,
        window: &SharedWindow,
        (region, range): (&MemoryRegion, impl RangeBounds<usize>),
        access: AccessFlags,
    ) -> Result<RemoteMemory> {
        if access.contains(AccessFlags::ZERO_BASED) {
            return Err(VerbsError::InvalidArgument("access of a window").into());
        }
        if !region.raw().is_of(&window.mw.pd()) {
            return Err(VerbsError::NotPermitted("a window of another domain").into());
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

    /// Posts a request that closes what the window has opened.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if the send queue is full.
    #[doc(alias = "ibv_bind_mw")]
    //= MW-01
    pub fn unbind(&self, wr_id: u64, window: &SharedWindow) -> Result<()> {
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

impl Drop for SharedWindow {
    fn drop(&mut self) {
        // Where it is bound, peers are locked out.
        let _ = self.mw.destroy();
    }
}
