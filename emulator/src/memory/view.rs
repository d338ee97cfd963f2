//! Accesses: from key, right and range to a copy.

use std::ops::Range;

use rocade_transport::{
    AccessError, AccessFlags, Accessor, AtomicOp, Bind, BindError, Extent, Fill, LocalAccess,
    MaskedOp, Memory, RemoteAccess, Sge, Source, WideOperand,
};
use rocade_wire::{Lkey, Rkey};

use super::access::{self, Readable, Span};
use super::guard::{CopyMethod, Fault};
use super::table::{MemGuard, Region};

//= ODP-02
//= ODP-04
impl From<Fault> for AccessError {
    fn from(Fault: Fault) -> Self {
        Self::Fault
    }
}

impl Region {
    /// Returns the span of an access if domain, rights and range allow it.
    #[inline]
    pub(super) fn span(
        &self,
        (accessor, method): (Accessor, CopyMethod),
        va: u64,
        len: u64,
        right: AccessFlags,
    ) -> Result<Span, AccessError> {
        //= PD-01
        //= PD-03
        if self.pd != accessor.pd {
            return Err(AccessError::WrongPd);
        }
        if !self.access.contains(right) {
            return Err(AccessError::Permission);
        }
        self.part(method, va, len)
    }

    /// Returns the span of a part. To be used while the table is locked.
    //= MR-11
    #[inline]
    fn part(&self, method: CopyMethod, va: u64, len: u64) -> Result<Span, AccessError> {
        let offset = va.checked_sub(self.iova).ok_or(AccessError::OutOfRange)?;
        let end = offset.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if end > self.len {
            return Err(AccessError::OutOfRange);
        }
        let offset = usize::try_from(offset).map_err(|_| AccessError::OutOfRange)?;
        let len = usize::try_from(len).map_err(|_| AccessError::OutOfRange)?;
        // SAFETY: inside the region, which `Pd::reg_mr`'s caller has provided until it is
        // deregistered. Regions are borrowed from the guard that blocks deregistration.
        Ok(unsafe { Span::new(self.addr + offset, len, method) })
    }
}

impl MemGuard<'_> {
    /// Returns the payload of a packet whose key, rights and range the transport has checked under
    /// this guard. Returns `None` if it has not. Only the copy finds out whether the memory is
    /// unmapped.
    #[inline]
    pub(crate) fn source(&self, source: Source) -> Option<Readable<'_>> {
        let (key, va, len) = match source {
            Source::Local(Sge { addr, len, lkey }) => (lkey.get(), addr, len),
            Source::Remote { rkey, va, len, .. } => (rkey.get(), va, len),
        };
        let regions = &*self.regions;
        let span = regions.region(key)?.part(self.method, va, u64::from(len));
        Some(Readable::new(span.ok()?, regions))
    }

    /// Returns address, length and rights of the memory region that has this key.
    pub(crate) fn describe(&self, key: u32) -> Option<(u64, u64, AccessFlags)> {
        let region = self.regions.region(key)?;
        Some((region.iova, region.len, region.access))
    }

    /// Returns true if the kernel copies. Then one call of [`copy_all`](Self::copy_all) for a run
    /// costs as much as the copy of one packet.
    #[inline]
    pub(crate) fn is_by_kernel(&self) -> bool {
        self.method == CopyMethod::Kernel
    }

    /// Copies payloads of packets, as [`source`](Self::source) returns them, to their destinations.
    ///
    /// # Errors
    /// [`Fault`] if one is unmapped or was not checked. The content of all destinations is
    /// undefined then.
    pub(crate) fn copy_all(&self, payloads: Vec<(Source, &mut [u8])>) -> Result<(), Fault> {
        let places = payloads.into_iter().map(|(source, place)| {
            let readable = self.source(source).ok_or(Fault)?;
            Ok((readable.span(), place))
        });
        access::read_all(&mut places.collect::<Result<Vec<_>, _>>()?)
    }

    /// Calls `f` for each segment of an access. The segment is `None` in a null region.
    //= MR-13
    #[inline]
    fn with_segments(
        &self,
        accessor: Accessor,
        key: u32,
        (va, len): (u64, u64),
        asked: RequestedAccess,
        mut f: impl FnMut(Option<Span>, Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        match self.regions.region(key) {
            Some(region) => {
                let span = region.span((accessor, self.method), va, len, asked.right())?;
                f(Some(span), 0..span.len())
            }
            None => self.with_segments_slow(accessor, key, (va, len), asked, usize::MAX, f),
        }
    }

    /// Like `with_segments`, for a key of no region. A window or an indirect key stays unchanged
    /// until the access is done: a thread that changes it waits. Stops after `most` segments.
    #[cold]
    fn with_segments_slow(
        &self,
        accessor: Accessor,
        key: u32,
        (va, len): (u64, u64),
        asked: RequestedAccess,
        most: usize,
        mut f: impl FnMut(Option<Span>, Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        //= NUL-01
        if matches!(asked, RequestedAccess::Local(_))
            && let Some(pd) = self.regions.null(key)
        {
            if pd != accessor.pd {
                return Err(AccessError::WrongPd);
            }
            return f(None, 0..usize::try_from(len).unwrap_or(usize::MAX));
        }
        //= KEY-05
        if let RequestedAccess::Remote(access) = asked
            && let Some(window) = self.regions.window(key)
        {
            let window = window.read();
            //= MW-08
            let (lkey, va) = window.resolve(accessor, Rkey::new(key), va, len, access)?;
            let region = self.regions.region(lkey.get());
            let span = region
                .ok_or(AccessError::BadKey)?
                .part(self.method, va, len)?;
            return f(Some(span), 0..span.len());
        }
        let segments = self.segments(accessor, key, (va, len), asked.right(), most)?;
        segments.each(f)
    }

    /// Checks an access.
    #[inline]
    fn check(
        &self,
        accessor: Accessor,
        key: u32,
        (va, len): (u64, u64),
        asked: RequestedAccess,
    ) -> Result<Extent, AccessError> {
        match self.regions.region(key) {
            Some(region) => {
                region.span((accessor, self.method), va, len, asked.right())?;
                Ok(Extent::One)
            }
            None => {
                self.with_segments_slow(
                    accessor,
                    key,
                    (va, len),
                    asked,
                    CHECKED_SEGMENTS,
                    |_, _| Ok(()),
                )?;
                Ok(Extent::Segments)
            }
        }
    }
}

/// The requested access. Some keys allow only local or only remote access.
#[derive(Clone, Copy)]
enum RequestedAccess {
    Local(LocalAccess),
    Remote(RemoteAccess),
}

impl RequestedAccess {
    /// The right that the access needs.
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

/// Number of segments of an indirect key that a check looks at. The accesses look at all of theirs.
/// A message may have a segment for each of its bytes, and a check of all would take too long.
const CHECKED_SEGMENTS: usize = 1 << 14;

impl Memory for MemGuard<'_> {
    #[inline]
    fn check_local(
        &self,
        accessor: Accessor,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<Extent, AccessError> {
        self.check(
            accessor,
            lkey.get(),
            (addr, len),
            RequestedAccess::Local(access),
        )
    }

    #[inline]
    fn check_remote(
        &self,
        accessor: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Extent, AccessError> {
        self.check(
            accessor,
            rkey.get(),
            (va, len),
            RequestedAccess::Remote(access),
        )
    }

    fn check_region(
        &self,
        accessor: Accessor,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessError> {
        let region = self.regions.region(rkey.get());
        let region = region.ok_or(AccessError::BadKey)?;
        let whole = (region.iova, region.len);
        region.span((accessor, self.method), whole.0, whole.1, access.right())?;
        Ok(())
    }

    fn store_remote(
        &self,
        accessor: Accessor,
        rkey: Rkey,
        va: u64,
        bytes: [u8; 8],
    ) -> Result<(), AccessError> {
        let asked = RequestedAccess::Remote(RemoteAccess::Write);
        self.with_segments(accessor, rkey.get(), (va, 8), asked, |span, _| {
            let done = span.and_then(|span| access::store(span, bytes));
            done.ok_or(AccessError::OutOfRange)??;
            Ok(())
        })
    }

    fn read_local(
        &self,
        accessor: Accessor,
        lkey: Lkey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        let asked = RequestedAccess::Local(LocalAccess::Read);
        self.with_segments(accessor, lkey.get(), (addr, len), asked, |span, range| {
            read(span, &mut dst[range])
        })
    }

    fn write_local(
        &self,
        accessor: Accessor,
        lkey: Lkey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let len = src.len() as u64;
        let asked = RequestedAccess::Local(LocalAccess::Write);
        self.with_segments(accessor, lkey.get(), (addr, len), asked, |span, range| {
            self.write(span, &src[range])
        })
    }

    fn read_remote(
        &self,
        accessor: Accessor,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        let asked = RequestedAccess::Remote(RemoteAccess::Read);
        self.with_segments(accessor, rkey.get(), (va, len), asked, |span, range| {
            read(span, &mut dst[range])
        })
    }

    fn write_remote(
        &self,
        accessor: Accessor,
        rkey: Rkey,
        va: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let len = src.len() as u64;
        let asked = RequestedAccess::Remote(RemoteAccess::Write);
        self.with_segments(accessor, rkey.get(), (va, len), asked, |span, range| {
            self.write(span, &src[range])
        })
    }

    fn atomic_remote(
        &self,
        accessor: Accessor,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        let mut original = 0;
        let asked = RequestedAccess::Remote(RemoteAccess::Atomic);
        self.with_segments(accessor, rkey.get(), (va, 8), asked, |span, _| {
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
        accessor: Accessor,
        rkey: Rkey,
        va: u64,
        log_size: u8,
        op: &MaskedOp,
    ) -> Result<WideOperand, AccessError> {
        let mut original = [0; 4];
        let len = 1 << log_size;
        let asked = RequestedAccess::Remote(RemoteAccess::Atomic);
        self.with_segments(accessor, rkey.get(), (va, len), asked, |span, _| {
            //= UMR-24
            let done = span.and_then(|span| access::masked(span, log_size, op));
            original = done.ok_or(AccessError::OutOfRange)??;
            Ok(())
        })?;
        Ok(original)
    }

    fn bind(&self, accessor: Accessor, bind: &Bind) -> Result<(), BindError> {
        self.regions.bind(accessor, bind)
    }

    fn fill(&self, accessor: Accessor, fill: Fill) -> Result<(), BindError> {
        self.regions.fill(accessor, fill)
    }

    fn invalidate(&self, accessor: Accessor, rkey: Rkey) -> Result<(), AccessError> {
        self.regions.invalidate(accessor, rkey)
    }
}

/// Copies from a segment. A segment of a null region reads as zeros.
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

impl MemGuard<'_> {
    /// Copies to a segment, unless that was done ahead. Writes to a segment of a null region are
    /// dropped.
    #[inline]
    fn write(&self, span: Option<Span>, src: &[u8]) -> Result<(), AccessError> {
        match span {
            Some(span) if self.is_by_kernel() && self.placed.take(span, src) => Ok(()),
            Some(span) => Ok(access::write(span, src)?),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
