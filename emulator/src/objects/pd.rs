//! Protection domains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rocade_transport::{AccessFlags, AddressVector, PdTag};

use super::ah::Ah;
use super::context::ContextInner;
use super::mr::Mr;
use super::qp::{Qp, QpInitAttr};
use super::srq::{Srq, SrqInitAttr};
use crate::error::VerbsError;
use crate::memory::{Region, is_mapped};

/// A protection domain (`ibv_pd`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_pd")]
pub struct Pd {
    pub(super) inner: Arc<PdInner>,
}

#[derive(Debug)]
pub(super) struct PdInner {
    pub(super) context: Arc<ContextInner>,
    pub(super) id: PdTag,
    /// Objects that belong to it.
    pub(super) children: AtomicU32,
}

impl Pd {
    pub(super) fn new(context: Arc<ContextInner>) -> Self {
        let id = context.engine.next_pd();
        Self {
            inner: Arc::new(PdInner {
                context,
                id,
                children: AtomicU32::new(0),
            }),
        }
    }

    /// Registers `len` bytes at `addr` of this process; peers and work requests address its first
    /// byte as `iova` (MR-05).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`]: length 0, wrap-around, unknown or contradictory rights
    /// (MR-02, MR-04, MR-06). [`VerbsError::Fault`]: not mapped, or read-only with `LOCAL_WRITE`
    /// (MR-08). [`VerbsError::NotSupported`]: rights that this device does not offer.
    /// [`VerbsError::NoMemory`]: out of keys.
    ///
    /// # Safety
    /// Until the region is deregistered and its last handle gone, peers and work requests read and write
    /// whatever is mapped in the range: it must be the caller's to give, and no Rust reference to it
    /// may be alive meanwhile. Where nothing is mapped, accesses fail (`docs/memory-model.md`).
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_mr(
        &self,
        addr: u64,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr, VerbsError> {
        let len = len as u64;
        //= MR-06
        if len == 0 || addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
            return Err(VerbsError::InvalidArgument("length"));
        }
        check_access(access)?;
        let iova = if access.contains(AccessFlags::ZERO_BASED) {
            0
        } else {
            iova
        };
        //= MR-08
        if !is_mapped(addr, len, access.contains(AccessFlags::LOCAL_WRITE)) {
            return Err(VerbsError::Fault);
        }
        let addr = usize::try_from(addr).map_err(|_| VerbsError::Fault)?;
        let region = Region {
            pd: self.inner.id,
            addr,
            len,
            iova,
            access,
        };
        let key = self
            .inner
            .context
            .engine
            .regions()
            .insert(region)
            .ok_or(VerbsError::NoMemory("memory keys"))?;
        self.inner.children.fetch_add(1, Ordering::AcqRel);
        Ok(Mr::new(Arc::clone(&self.inner), key, region))
    }

    /// A new QP in RESET.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if a queue size is above the limit (QPC-01);
    /// [`VerbsError::NotSupported`] for QP types other than RC; [`VerbsError::Broker`],
    /// [`VerbsError::Link`] if the process cannot join its addresses;
    /// [`VerbsError::NoMemory`] out of QP numbers.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, init: QpInitAttr) -> Result<Qp, VerbsError> {
        Qp::new(Arc::clone(&self.inner), init)
    }

    /// A new address handle: a way for datagrams of QPs of this domain.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for an address that leads nowhere (ENC-14);
    /// [`VerbsError::PeerRefused`] if the peer is not among the allowed ones; [`VerbsError::Link`],
    /// [`VerbsError::Broker`], [`VerbsError::Io`] if the local address cannot be used.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, address: &AddressVector) -> Result<Ah, VerbsError> {
        Ah::new(Arc::clone(&self.inner), address)
    }

    /// A new shared receive queue.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if a size is 0 or above the limit (SRQ-01); [`VerbsError::Broker`] if the
    /// process cannot join its addresses; [`VerbsError::NoMemory`] out of numbers.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, init: SrqInitAttr) -> Result<Srq, VerbsError> {
        Srq::new(Arc::clone(&self.inner), init)
    }

    /// Ends the domain.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while objects belong to it (PD-02).
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        if self.inner.children.load(Ordering::Acquire) > 0 {
            return Err(VerbsError::Busy("protection domain"));
        }
        Ok(())
    }
}

fn check_access(access: AccessFlags) -> Result<(), VerbsError> {
    /// Bits 20 to 29 are optional: a device ignores those it does not know (MR-04).
    const OPTIONAL: u32 = 0x3ff0_0000;
    let known = AccessFlags::all().bits() | OPTIONAL;
    if access.bits() & !known != 0 {
        return Err(VerbsError::InvalidArgument("access"));
    }
    //= MR-02
    let unsupported =
        AccessFlags::ON_DEMAND | AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT;
    if access.intersects(unsupported) {
        return Err(VerbsError::NotSupported("access"));
    }
    let needs_local_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(needs_local_write) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(VerbsError::InvalidArgument(
            "remote write needs local write",
        ));
    }
    Ok(())
}
