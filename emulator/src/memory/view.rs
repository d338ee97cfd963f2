//! Accesses: from key, right and range to a copy.

use rocade_transport::{
    AccessError, AccessFlags, Accessor, AtomicOp, Bind, BindError, Extent, LocalAccess, Memory,
    RemoteAccess, Sge, Source,
};
use rocade_wire::{Lkey, Rkey};

use super::access::{self, Readable, Span};
use super::guard::{Fault, Way};
use super::table::{MemGuard, Region};

//= ODP-02
//= ODP-04
impl From<Fault> for AccessError {
    fn from(Fault: Fault) -> Self {
        Self::Fault
    }
}

impl Region {
    /// The span of an access, if domain, rights and range allow it (MR-11…13).
    #[inline]
    fn span(
        &self,
        (who, way): (Accessor, Way),
        va: u64,
        len: u64,
        right: AccessFlags,
    ) -> Result<Span, AccessError> {
        //= PD-01
        //= PD-03
        if self.pd != who.pd {
            return Err(AccessError::WrongPd);
        }
        if !self.access.contains(right) {
            return Err(AccessError::Permission);
        }
        self.part(way, va, len)
    }

    /// A part of it. To be used while the table is locked.
    //= MR-11
    #[inline]
    fn part(&self, way: Way, va: u64, len: u64) -> Result<Span, AccessError> {
        let offset = va.checked_sub(self.iova).ok_or(AccessError::OutOfRange)?;
        let end = offset.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if end > self.len {
            return Err(AccessError::OutOfRange);
        }
        let offset = usize::try_from(offset).map_err(|_| AccessError::OutOfRange)?;
        let len = usize::try_from(len).map_err(|_| AccessError::OutOfRange)?;
        // SAFETY: inside the region, which `Pd::reg_mr`'s caller has given us until it is
        // deregistered; regions are borrowed from the guard that holds deregistration off.
        Ok(unsafe { Span::new(self.addr + offset, len, way) })
    }
}

impl MemGuard<'_> {
    /// The payload of a packet, whose key, rights and range the transport has checked under this guard; to
    /// find that it is gone is left to the copy. `None` where it has not.
    #[inline]
    pub(crate) fn source(&self, source: Source) -> Option<Readable<'_>> {
        let (key, va, len) = match source {
            Source::Local(Sge { addr, len, lkey }) => (lkey.get(), addr, len),
            Source::Remote { rkey, va, len, .. } => (rkey.get(), va, len),
        };
        let regions = &*self.regions;
        let span = regions.region(key)?.part(self.way, va, u64::from(len));
        Some(Readable::new(span.ok()?, regions))
    }

    /// Where a local access goes; `None` to nowhere, if memory has been promised that is not there.
    #[inline]
    fn local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<Option<Span>, AccessError> {
        let right = match access {
            //= MR-03
            LocalAccess::Read => AccessFlags::empty(),
            //= MR-12
            LocalAccess::Write => AccessFlags::LOCAL_WRITE,
        };
        match self.regions.region(lkey.get()) {
            Some(region) => region.span((who, self.way), addr, len, right).map(Some),
            None => self.null(who, lkey).map(|()| None),
        }
    }

    //= NUL-01
    #[cold]
    fn null(&self, who: Accessor, lkey: Lkey) -> Result<(), AccessError> {
        //= KEY-05
        let pd = self.regions.null(lkey.get()).ok_or(AccessError::BadKey)?;
        if pd == who.pd {
            Ok(())
        } else {
            Err(AccessError::WrongPd)
        }
    }

    /// Does something at the place that a remote access goes to.
    //= MR-13
    #[inline]
    fn remote<R>(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
        f: impl FnOnce(Span) -> Result<R, AccessError>,
    ) -> Result<R, AccessError> {
        match self.regions.region(rkey.get()) {
            Some(region) => f(region.span((who, self.way), va, len, access.right())?),
            None => self.through_window(who, rkey, va, len, access, f),
        }
    }

    /// Likewise, through a window. It stays as it is until that is done: who invalidates it waits.
    #[cold]
    fn through_window<R>(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
        f: impl FnOnce(Span) -> Result<R, AccessError>,
    ) -> Result<R, AccessError> {
        let window = self.regions.window(rkey.get());
        let window = window.ok_or(AccessError::BadKey)?.read();
        //= MW-08
        let (lkey, va) = window.resolve(who, rkey, va, len, access)?;
        let region = self.regions.region(lkey.get());
        f(region.ok_or(AccessError::BadKey)?.part(self.way, va, len)?)
    }
}

impl Memory for MemGuard<'_> {
    #[inline]
    fn check_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<Extent, AccessError> {
        Ok(match self.local(who, lkey, addr, len, access)? {
            Some(_) => Extent::One,
            None => Extent::Pieces,
        })
    }

    #[inline]
    fn check_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Extent, AccessError> {
        match self.regions.region(rkey.get()) {
            Some(region) => region
                .span((who, self.way), va, len, access.right())
                .map(|_| Extent::One),
            None => self.through_window(who, rkey, va, len, access, |_| Ok(Extent::Pieces)),
        }
    }

    fn read_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        match self.local(who, lkey, addr, dst.len() as u64, LocalAccess::Read)? {
            Some(span) => access::read(span, dst)?,
            None => dst.fill(0),
        }
        Ok(())
    }

    fn write_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        match self.local(who, lkey, addr, src.len() as u64, LocalAccess::Write)? {
            Some(span) => Ok(access::write(span, src)?),
            None => Ok(()),
        }
    }

    fn read_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        self.remote(who, rkey, va, len, RemoteAccess::Read, |span| {
            Ok(access::read(span, dst)?)
        })
    }

    fn write_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let len = src.len() as u64;
        self.remote(who, rkey, va, len, RemoteAccess::Write, |span| {
            Ok(access::write(span, src)?)
        })
    }

    fn atomic_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        self.remote(who, rkey, va, 8, RemoteAccess::Atomic, |span| {
            Ok(access::atomic(span, op).ok_or(AccessError::OutOfRange)??)
        })
    }

    fn bind(&self, who: Accessor, bind: &Bind) -> Result<(), BindError> {
        self.regions.bind(who, bind)
    }

    fn invalidate(&self, who: Accessor, rkey: Rkey, remotely: bool) -> Result<(), AccessError> {
        self.regions.invalidate(who, rkey, remotely)
    }
}
