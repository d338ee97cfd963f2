//! Accesses: from key, right and range to a copy.

use std::ops::Range;

use rocade_transport::{
    AccessError, AccessFlags, Accessor, AtomicOp, Bind, BindError, Extent, Fill, LocalAccess,
    MaskedOp, Memory, RemoteAccess, Sge, Source, Words,
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
    pub(super) fn span(
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

    /// Returns true if the kernel copies: then [`copy_all`](Self::copy_all) makes a run cost as much as a packet.
    #[inline]
    pub(crate) fn is_by_kernel(&self) -> bool {
        self.way == Way::Kernel
    }

    /// Copies payloads of packets, as [`source`](Self::source) has them, to where they belong.
    ///
    /// # Errors
    /// [`Fault`] where one is gone, or was not checked; all places then hold anything.
    pub(crate) fn copy_all(&self, payloads: Vec<(Source, &mut [u8])>) -> Result<(), Fault> {
        let places = payloads.into_iter().map(|(source, place)| {
            let readable = self.source(source).ok_or(Fault)?;
            Ok((readable.span(), place))
        });
        access::read_all(&mut places.collect::<Result<Vec<_>, _>>()?)
    }

    /// Does something at the place that an access goes to: to each piece of it, which is nowhere where memory
    /// has been promised that is not there.
    //= MR-13
    #[inline]
    fn reach(
        &self,
        who: Accessor,
        key: u32,
        (va, len): (u64, u64),
        asked: Asked,
        mut f: impl FnMut(Option<Span>, Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        match self.regions.region(key) {
            Some(region) => {
                let span = region.span((who, self.way), va, len, asked.right())?;
                f(Some(span), 0..span.len())
            }
            None => self.elsewhere(who, key, (va, len), asked, usize::MAX, f),
        }
    }

    /// Likewise, where the key is no region's. A window or an indirect key stays as it is until that is done: who
    /// changes it waits. So many pieces are looked at, at most.
    #[cold]
    fn elsewhere(
        &self,
        who: Accessor,
        key: u32,
        (va, len): (u64, u64),
        asked: Asked,
        most: usize,
        mut f: impl FnMut(Option<Span>, Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        //= NUL-01
        if matches!(asked, Asked::Local(_))
            && let Some(pd) = self.regions.null(key)
        {
            if pd != who.pd {
                return Err(AccessError::WrongPd);
            }
            return f(None, 0..usize::try_from(len).unwrap_or(usize::MAX));
        }
        //= KEY-05
        if let Asked::Remote(access) = asked
            && let Some(window) = self.regions.window(key)
        {
            let window = window.read();
            //= MW-08
            let (lkey, va) = window.resolve(who, Rkey::new(key), va, len, access)?;
            let region = self.regions.region(lkey.get());
            let span = region.ok_or(AccessError::BadKey)?.part(self.way, va, len)?;
            return f(Some(span), 0..span.len());
        }
        let pieces = self.pieces(who, key, (va, len), asked.right(), most)?;
        pieces.each(f)
    }

    /// May memory be accessed so?
    #[inline]
    fn check(
        &self,
        who: Accessor,
        key: u32,
        (va, len): (u64, u64),
        asked: Asked,
    ) -> Result<Extent, AccessError> {
        match self.regions.region(key) {
            Some(region) => {
                region.span((who, self.way), va, len, asked.right())?;
                Ok(Extent::One)
            }
            None => {
                self.elsewhere(who, key, (va, len), asked, CHECKED_PIECES, |_, _| Ok(()))?;
                Ok(Extent::Pieces)
            }
        }
    }
}

/// What is asked of a key, and by whom: some keys are only for one of them.
#[derive(Clone, Copy)]
enum Asked {
    Local(LocalAccess),
    Remote(RemoteAccess),
}

impl Asked {
    /// The right that it needs.
    #[inline]
    const fn right(self) -> AccessFlags {
        match self {
            //= MR-03
            Self::Local(LocalAccess::Read) => AccessFlags::empty(),
            //= MR-12
            Self::Local(LocalAccess::Write) => AccessFlags::LOCAL_WRITE,
            Self::Remote(access) => access.right(),
        }
    }
}

/// So many pieces of an indirect key a check looks at; the accesses look at all of theirs. A message may have a piece
/// for each of its bytes, and nobody shall wait for that.
const CHECKED_PIECES: usize = 1 << 14;

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
        self.check(who, lkey.get(), (addr, len), Asked::Local(access))
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
        self.check(who, rkey.get(), (va, len), Asked::Remote(access))
    }

    fn check_region(
        &self,
        who: Accessor,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessError> {
        let region = self.regions.region(rkey.get());
        let region = region.ok_or(AccessError::BadKey)?;
        let whole = (region.iova, region.len);
        region.span((who, self.way), whole.0, whole.1, access.right())?;
        Ok(())
    }

    fn store_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        bytes: [u8; 8],
    ) -> Result<(), AccessError> {
        let asked = Asked::Remote(RemoteAccess::Write);
        self.reach(who, rkey.get(), (va, 8), asked, |span, _| {
            let done = span.and_then(|span| access::store(span, bytes));
            done.ok_or(AccessError::OutOfRange)??;
            Ok(())
        })
    }

    fn read_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        let asked = Asked::Local(LocalAccess::Read);
        self.reach(who, lkey.get(), (addr, len), asked, |span, range| {
            read(span, &mut dst[range])
        })
    }

    fn write_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let len = src.len() as u64;
        let asked = Asked::Local(LocalAccess::Write);
        self.reach(who, lkey.get(), (addr, len), asked, |span, range| {
            write(span, &src[range])
        })
    }

    fn read_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        let asked = Asked::Remote(RemoteAccess::Read);
        self.reach(who, rkey.get(), (va, len), asked, |span, range| {
            read(span, &mut dst[range])
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
        let asked = Asked::Remote(RemoteAccess::Write);
        self.reach(who, rkey.get(), (va, len), asked, |span, range| {
            write(span, &src[range])
        })
    }

    fn atomic_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        let mut original = 0;
        let asked = Asked::Remote(RemoteAccess::Atomic);
        self.reach(who, rkey.get(), (va, 8), asked, |span, _| {
            //= UMR-24
            let done = span.and_then(|span| access::atomic(span, op));
            original = done.ok_or(AccessError::OutOfRange)??;
            Ok(())
        })?;
        Ok(original)
    }

    //= XAT-23
    fn masked_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        log_size: u8,
        op: &MaskedOp,
    ) -> Result<Words, AccessError> {
        let mut original = [0; 4];
        let len = 1 << log_size;
        let asked = Asked::Remote(RemoteAccess::Atomic);
        self.reach(who, rkey.get(), (va, len), asked, |span, _| {
            //= UMR-24
            let done = span.and_then(|span| access::masked(span, log_size, op));
            original = done.ok_or(AccessError::OutOfRange)??;
            Ok(())
        })?;
        Ok(original)
    }

    fn bind(&self, who: Accessor, bind: &Bind) -> Result<(), BindError> {
        self.regions.bind(who, bind)
    }

    fn fill(&self, who: Accessor, fill: Fill) -> Result<(), BindError> {
        self.regions.fill(who, fill)
    }

    fn invalidate(&self, who: Accessor, rkey: Rkey, remotely: bool) -> Result<(), AccessError> {
        self.regions.invalidate(who, rkey, remotely)
    }
}

/// Copies from a place, which has zeros where there is none.
#[inline]
fn read(span: Option<Span>, dst: &mut [u8]) -> Result<(), AccessError> {
    match span {
        Some(span) => Ok(access::read(span, dst)?),
        None => {
            dst.fill(0);
            Ok(())
        }
    }
}

/// Copies to a place, or to nowhere.
#[inline]
fn write(span: Option<Span>, src: &[u8]) -> Result<(), AccessError> {
    match span {
        Some(span) => Ok(access::write(span, src)?),
        None => Ok(()),
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
