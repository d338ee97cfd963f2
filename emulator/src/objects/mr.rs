//! Memory regions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{Mutex, rank};
use bitflags::bitflags;
use rocade_transport::{AccessError, AccessFlags, Fill, Indirect, Operands, Remap, Sge};
use rocade_wire::{Lkey, Rkey};

use super::dm::{Dm, DmInner};
use super::pd::{Pd, PdInner};
use crate::error::VerbsError;
use crate::faults::{Limit, Verb};
use crate::limits;
use crate::memory::{ADDRESSES, Region, RemoveError, is_mapped, populate};
use crate::state::{User, Users};

bitflags! {
    /// The properties that [`Mr::rereg`] changes (`ibv_rereg_mr_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReregFlags: u32 {
        /// The memory range.
        const TRANSLATION = 1;
        /// The protection domain.
        const PD = 2;
        /// The access rights.
        const ACCESS = 4;
    }
}

/// The new properties of a region. Only those named by `flags` have a meaning.
#[derive(Clone, Debug)]
pub struct Rereg<'a> {
    /// The properties to change.
    pub flags: ReregFlags,
    /// The new protection domain, of the same device.
    pub pd: Option<&'a Pd>,
    /// The new address in this process, which is also the new address for work requests and peers.
    pub addr: u64,
    /// The new length in bytes.
    pub len: usize,
    /// The new access rights.
    pub access: AccessFlags,
}

/// A memory region (`ibv_mr`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mr")]
pub struct Mr {
    inner: Arc<MrInner>,
}

#[derive(Debug)]
struct MrInner {
    key: u32,
    /// Held while the region is changed or deregistered.
    changing: Mutex<(), rank::Region>,
    /// Never locked while a thread waits for the table of regions, because a thread that reads the
    /// table, to post requests, may ask for the address.
    state: Mutex<MrState>,
    /// The device memory that contains it.
    dm: Option<Arc<DmInner>>,
    /// The limits of an indirect key.
    indirect: Option<IndirectLimits>,
    registered: AtomicBool,
    /// The region keeps its protection domain busy. A null region does not, because it contains no
    /// memory, and the application may free the domain first.
    holds_pd: bool,
}

#[derive(Clone, Debug)]
struct MrState {
    pd: Arc<PdInner>,
    /// `None` for a null region and an indirect key.
    region: Option<Region>,
}

#[derive(Clone, Copy, Debug)]
struct IndirectLimits {
    entries: u32,
    rights: AccessFlags,
}

impl Pd {
    /// Registers `len` bytes at `addr` of this process. Peers and work requests address the first
    /// byte as `iova`, or as 0 with `ZERO_BASED`. With `ON_DEMAND` the memory need not be mapped
    /// yet. Address 0 and length `usize::MAX` then mean the whole address space.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a length of 0, wrap-around, and unknown or contradictory
    /// rights. [`VerbsError::Fault`] if the memory is not mapped, or read-only with `LOCAL_WRITE`.
    /// [`VerbsError::NotSupported`] for rights that this device does not offer.
    /// [`VerbsError::NoMemory`] if it is out of keys.
    ///
    /// # Safety
    /// Until the region is deregistered and its last handle is dropped, peers and work requests
    /// read and write whatever is mapped in the range. The caller must be entitled to allow that,
    /// and no Rust reference to the range may be alive meanwhile. Where nothing is mapped, accesses
    /// fail (`docs/memory-model.md`).
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_mr(
        &self,
        addr: u64,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr, VerbsError> {
        let context = &self.inner.context;
        context.enter(Verb::RegMr)?;
        context.engine.check_registration(&context.hca, len)?;
        check_access(access)?;
        //= MR-05
        let iova = if access.contains(AccessFlags::ZERO_BASED) {
            0
        } else {
            iova
        };
        let is_implicit = access.contains(AccessFlags::ON_DEMAND) && addr == 0 && len == usize::MAX;
        let region = Region {
            pd: self.inner.id,
            addr: 0,
            len: 0,
            iova,
            access,
        };
        let region = if is_implicit {
            //= ODP-03
            if access.contains(AccessFlags::ZERO_BASED) || iova != 0 {
                return Err(VerbsError::InvalidArgument("implicit regions start at 0"));
            }
            let Range { start, end } = ADDRESSES;
            let len = usize::try_from(end - start).map_err(|_| VerbsError::Fault)?;
            place(region, start, len, start)?
        } else {
            place(region, addr, len, iova)?
        };
        self.register(region, None)
    }

    /// Registers a null region: writes are dropped, and reads return zeros, at any address. Only
    /// local work requests can use it. The domain may be freed first.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`] if it is out of keys.
    //= NUL-01
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<Mr, VerbsError> {
        self.inner.context.enter(Verb::AllocNullMr)?;
        let regions = self.inner.context.engine.tables.regions();
        let key = regions.insert_null(self.inner.id);
        self.new_mr(key, None, None, None)
    }

    /// Makes an indirect memory key. It has no memory until a work request has filled it
    /// ([`Mr::change`]) with at most `entries` segments of other keys. It never allows more than
    /// `rights`, of which only those of [`Indirect::RIGHTS`] have a meaning.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for no entries or more than
    /// [`limits::MAX_INDIRECT_ENTRIES`]. [`VerbsError::NoMemory`] if it is out of keys.
    //= UMR-05
    //= XDEC-14
    pub fn create_indirect(&self, entries: u32, rights: AccessFlags) -> Result<Mr, VerbsError> {
        if entries == 0 || entries > limits::MAX_INDIRECT_ENTRIES {
            return Err(VerbsError::InvalidArgument("entries of an indirect key"));
        }
        let rights = rights.intersection(Indirect::RIGHTS);
        let regions = self.inner.context.engine.tables.regions();
        let key = regions.insert_indirect(self.inner.id, entries, rights);
        self.new_mr(key, None, None, Some(IndirectLimits { entries, rights }))
    }

    /// Registers a part of device memory, which may be empty. Its first byte has address 0, and
    /// `access` must have `ZERO_BASED`.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it is not zero based, beyond the end, or of another
    /// device, or for contradictory rights. [`VerbsError::NoMemory`] if it is out of keys.
    //= DM-02
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(
        &self,
        dm: &Dm,
        offset: u64,
        len: usize,
        access: AccessFlags,
    ) -> Result<Mr, VerbsError> {
        let context = &self.inner.context;
        context.enter(Verb::RegDmMr)?;
        context.engine.check_count(&context.hca, Limit::MaxMr)?;
        check_access(access)?;
        if !access.contains(AccessFlags::ZERO_BASED) || access.contains(AccessFlags::ON_DEMAND) {
            return Err(VerbsError::InvalidArgument("device memory is zero based"));
        }
        if !dm.is_of(&self.inner.context) {
            return Err(VerbsError::InvalidArgument(
                "device memory of another context",
            ));
        }
        let region = Region {
            pd: self.inner.id,
            addr: dm.place(offset, len)?,
            len: len as u64,
            iova: 0,
            access,
        };
        self.register(region, Some(dm.share()))
    }

    fn register(&self, region: Region, dm: Option<Arc<DmInner>>) -> Result<Mr, VerbsError> {
        let key = self.inner.context.engine.tables.regions().insert(region);
        self.new_mr(key, Some(region), dm, None)
    }

    fn new_mr(
        &self,
        key: Option<u32>,
        region: Option<Region>,
        dm: Option<Arc<DmInner>>,
        indirect: Option<IndirectLimits>,
    ) -> Result<Mr, VerbsError> {
        let key = key.ok_or(VerbsError::NoMemory("memory keys"))?;
        let user = User::Mr(key);
        //= NUL-01
        let holds_pd = region.is_some() || indirect.is_some();
        if holds_pd {
            self.inner.users.add(user);
        }
        if let Some(dm) = &dm {
            dm.users().add(user);
        }
        let pd = Arc::clone(&self.inner);
        Ok(Mr {
            inner: Arc::new(MrInner {
                key,
                changing: Mutex::default(),
                state: Mutex::new(MrState { pd, region }),
                dm,
                indirect,
                registered: AtomicBool::new(true),
                holds_pd,
            }),
        })
    }
}

/// The intended use of memory (`ibv_advise_mr_advice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[doc(alias = "ibv_advise_mr_advice")]
pub enum Advice {
    /// Soon read.
    Prefetch = 0,
    /// Soon written.
    PrefetchWrite = 1,
    /// Soon used as far as it is resident.
    PrefetchNoFault = 2,
}

impl Advice {
    /// Returns the advice of an `ibv_advise_mr_advice` value.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Prefetch),
            1 => Some(Self::PrefetchWrite),
            2 => Some(Self::PrefetchNoFault),
            _ => None,
        }
    }
}

impl Pd {
    /// Populates memory of this domain's regions before it is used.
    ///
    /// # Errors
    /// [`VerbsError::NotFound`] for a region of another domain. [`VerbsError::Fault`] if the key is
    /// of no region, or the range is not inside its region or not mapped.
    /// [`VerbsError::NotPermitted`] if this device may not write the region that is to be written.
    //= ODP-05
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_mr(&self, advice: Advice, sges: &[Sge]) -> Result<(), VerbsError> {
        self.inner.context.enter(Verb::AdviseMr)?;
        let regions = self.inner.context.engine.tables.regions();
        let write = advice == Advice::PrefetchWrite;
        let mut ranges = Vec::new();
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            let place = regions.place_of(self.inner.id, sge, write);
            let addr = place.map_err(|error| match error {
                AccessError::Permission => VerbsError::NotPermitted("the region is read-only"),
                AccessError::WrongPd => VerbsError::NotFound("lkey in this domain"),
                _ => VerbsError::Fault,
            })?;
            ranges.push((addr, sge.len as usize));
        }
        if advice == Advice::PrefetchNoFault {
            return Ok(());
        }
        for (addr, len) in ranges {
            if !populate(addr, len, write) {
                return Err(VerbsError::Fault);
            }
        }
        Ok(())
    }
}

impl Mr {
    /// Returns true if the region belongs to this domain.
    #[must_use]
    pub fn is_of(&self, pd: &Pd) -> bool {
        Arc::ptr_eq(&self.inner.state.lock().pd, &pd.inner)
    }

    /// The lkey, for local work requests.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        Lkey::new(self.inner.key)
    }

    /// The rkey, for peers.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey::new(self.inner.key)
    }

    /// The address in this process. 0 for device memory, a null region and an indirect key, which
    /// are not visible to the application.
    #[must_use]
    pub fn addr(&self) -> u64 {
        match self.inner.state.lock().region {
            Some(region) if self.inner.dm.is_none() => region.addr as u64,
            _ => 0,
        }
    }

    /// Length in bytes. 0 for an indirect key, whose length work requests change.
    #[must_use]
    pub fn len(&self) -> u64 {
        let without_region = if self.inner.indirect.is_some() {
            0
        } else {
            u64::MAX
        };
        let region = self.inner.state.lock().region;
        region.map_or(without_region, |region| region.len)
    }

    /// Returns true if the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of its first byte for work requests and peers.
    #[must_use]
    pub fn iova(&self) -> u64 {
        let region = self.inner.state.lock().region;
        region.map_or(0, |region| region.iova)
    }

    /// The access rights.
    #[must_use]
    pub fn access(&self) -> AccessFlags {
        let region = self.inner.state.lock().region;
        let without_region = match self.inner.indirect {
            Some(limits) => limits.rights,
            None => AccessFlags::LOCAL_WRITE,
        };
        region.map_or(without_region, |region| region.access)
    }

    /// Number of entries that an indirect key has room for. `None` for any other key.
    //= UMR-06
    #[must_use]
    pub fn max_entries(&self) -> Option<u32> {
        self.inner.indirect.map(|limits| limits.entries)
    }

    /// Makes the operands of a work request with [`SendOp::Fill`](rocade_transport::SendOp::Fill)
    /// that changes the rights or the memory of this indirect key. With `if_free` it fails if the
    /// key has memory. All listed keys have to be of the same domain as this one. They are checked
    /// when the request is executed.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if this is no indirect key, for no entries or more than it
    /// has room for, or for rights beyond those given at creation.
    //= UMR-12
    pub fn change(
        &self,
        access: Option<AccessFlags>,
        remap: Remap,
        if_free: bool,
    ) -> Result<Operands, VerbsError> {
        let limits = self.inner.indirect;
        let limits = limits.ok_or(VerbsError::InvalidArgument("not an indirect key"))?;
        if let Remap::To { layout, .. } = &remap
            && !(1..=limits.entries).contains(&layout.entries())
        {
            return Err(VerbsError::InvalidArgument("entries of an indirect key"));
        }
        //= XDEC-14
        let asked = access.unwrap_or_default().intersection(Indirect::RIGHTS);
        if !limits.rights.contains(asked) {
            return Err(VerbsError::InvalidArgument(
                "rights that the key does not allow",
            ));
        }
        Ok(Operands::Fill(Fill {
            key: self.rkey(),
            if_free,
            access,
            remap,
        }))
    }

    /// Returns true if it is memory of the process: neither device memory nor a null region nor an
    /// indirect key.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.inner.dm.is_none() && self.inner.state.lock().region.is_some()
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.inner.state.lock().pd),
        }
    }

    /// Changes memory, domain or rights between two accesses. The keys stay the same. Messages in
    /// flight are checked with each packet.
    ///
    /// # Errors
    /// The region stays as it was. [`VerbsError::InvalidArgument`] if there is nothing to change,
    /// an argument is wrong, or the region is not plain. [`VerbsError::Busy`] if windows are bound
    /// to it. [`VerbsError::Fault`], [`VerbsError::NotSupported`] as [`Pd::reg_mr`].
    ///
    /// # Safety
    /// As for [`Pd::reg_mr`], for the new range.
    //= MR-10
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn rereg(&self, change: &Rereg<'_>) -> Result<(), VerbsError> {
        self.pd().inner.context.enter(Verb::ReregMr)?;
        let _changing = self.inner.changing.lock();
        let state = self.inner.state.lock().clone();
        let (Some(mut region), None) = (state.region, &self.inner.dm) else {
            return Err(VerbsError::InvalidArgument("not a plain region"));
        };
        if !self.inner.registered.load(Ordering::Acquire) {
            return Err(VerbsError::InvalidArgument("already deregistered"));
        }
        if change.flags.is_empty() || !ReregFlags::all().contains(change.flags) {
            return Err(VerbsError::InvalidArgument("flags"));
        }
        let mut pd = Arc::clone(&state.pd);
        if change.flags.contains(ReregFlags::PD) {
            let new = change.pd.ok_or(VerbsError::InvalidArgument("pd"))?;
            if !Arc::ptr_eq(&new.inner.context, &pd.context) {
                return Err(VerbsError::InvalidArgument("pd of another context"));
            }
            pd = Arc::clone(&new.inner);
            region.pd = pd.id;
        }
        if change.flags.contains(ReregFlags::ACCESS) {
            check_access(change.access)?;
            region.access = change.access;
        }
        let (addr, len, iova) = if change.flags.contains(ReregFlags::TRANSLATION) {
            if change.len == 0 {
                return Err(VerbsError::InvalidArgument("length"));
            }
            let is_zero_based = region.access.contains(AccessFlags::ZERO_BASED);
            let iova = if is_zero_based { 0 } else { change.addr };
            (change.addr, change.len as u64, iova)
        } else {
            (region.addr as u64, region.len, region.iova)
        };
        let len = usize::try_from(len).map_err(|_| VerbsError::InvalidArgument("length"))?;
        let region = place(region, addr, len, iova)?;
        pd.context
            .engine
            .tables
            .regions()
            .replace(self.inner.key, region)
            .map_err(|why| self.inner.remove_error(why, &state))?;
        pd.users.add(User::Mr(self.inner.key));
        state.pd.users.remove(User::Mr(self.inner.key));
        *self.inner.state.lock() = MrState {
            pd,
            region: Some(region),
        };
        Ok(())
    }

    /// Deregisters the region. Returns when no access is in flight, and later ones fail.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was already deregistered. [`VerbsError::Busy`] while
    /// windows are bound to it.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.pd().inner.context.enter(Verb::DeregMr)?;
        self.inner.deregister()
    }

    /// Deregisters the region in any case, and frees the windows bound to it. Returns when no
    /// access is in flight.
    pub fn revoke(&self) {
        self.inner.revoke();
    }
}

/// Returns the region with this memory, if it is mapped.
fn place(region: Region, addr: u64, len: usize, iova: u64) -> Result<Region, VerbsError> {
    let len = len as u64;
    // The kernel also registers a range of 0 bytes, though not on a page's border.
    //= MR-06
    if addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
        return Err(VerbsError::InvalidArgument("length"));
    }
    let access = region.access;
    //= MR-08
    let comes_later = access.contains(AccessFlags::ON_DEMAND);
    if len > 0 && !comes_later && !is_mapped(addr, len, access.contains(AccessFlags::LOCAL_WRITE)) {
        return Err(VerbsError::Fault);
    }
    if addr < ADDRESSES.start || addr + len > ADDRESSES.end {
        return Err(VerbsError::Fault);
    }
    Ok(Region {
        addr: usize::try_from(addr).map_err(|_| VerbsError::Fault)?,
        len,
        iova,
        ..region
    })
}

fn check_access(access: AccessFlags) -> Result<(), VerbsError> {
    /// Bits 20 to 29 are optional: a device ignores unknown ones.
    const OPTIONAL: u32 = 0x3ff0_0000;
    //= MR-04
    let known = AccessFlags::all().bits() | OPTIONAL;
    if access.bits() & !known != 0 {
        return Err(VerbsError::InvalidArgument("access"));
    }
    //= MR-02
    // No memory here survives a loss of power.
    if access.contains(AccessFlags::FLUSH_PERSISTENT) {
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

impl MrInner {
    fn deregister(&self) -> Result<(), VerbsError> {
        let _changing = self.changing.lock();
        let state = self.state.lock().clone();
        if !self.registered.load(Ordering::Acquire) {
            return Err(VerbsError::InvalidArgument("already deregistered"));
        }
        let regions = state.pd.context.engine.tables.regions();
        regions
            .remove(self.key)
            .map_err(|why| self.remove_error(why, &state))?;
        self.ended(&state);
        Ok(())
    }

    fn revoke(&self) {
        let _changing = self.changing.lock();
        let state = self.state.lock().clone();
        if self.registered.load(Ordering::Acquire) {
            let regions = state.pd.context.engine.tables.regions();
            regions.remove_with_windows(self.key);
            self.ended(&state);
        }
    }

    /// Returns the error of a region that cannot be removed or changed.
    fn remove_error(&self, why: RemoveError, state: &MrState) -> VerbsError {
        match why {
            RemoveError::Unknown => VerbsError::InvalidArgument("already deregistered"),
            //= DST-07
            RemoveError::Bound => {
                let users = Users::default();
                let windows = state
                    .pd
                    .context
                    .engine
                    .tables
                    .regions()
                    .windows_of(self.key);
                windows.into_iter().for_each(|key| users.add(User::Mw(key)));
                let region = "memory region";
                match users.check(region) {
                    Err(error) => error,
                    // The last window was unbound meanwhile.
                    Ok(()) => VerbsError::Busy(format!("{region}, by a memory window")),
                }
            }
        }
    }

    fn ended(&self, state: &MrState) {
        self.registered.store(false, Ordering::Release);
        let user = User::Mr(self.key);
        if self.holds_pd {
            state.pd.users.remove(user);
        }
        if let Some(dm) = &self.dm {
            dm.users().remove(user);
        }
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        self.revoke();
    }
}
