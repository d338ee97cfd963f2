//! The memory that an access through an indirect key touches.

use std::ops::Range;

use rocade_transport::{AccessError, AccessFlags, Accessor, Indirect};
use rocade_wire::Lkey;

use super::access::Span;
use super::table::MemGuard;
use crate::sync::modelled::RwLockReadGuard;

/// All segments of an access, and the locks that keep them unchanged. A thread that changes one of
/// the keys, directly listed or nested, waits until the access is done.
pub(super) struct Segments<'a> {
    /// The segments with their lengths. `None` is a segment of a null region.
    spans: Vec<(Option<Span>, usize)>,
    held: Vec<RwLockReadGuard<'a, Indirect>>,
    /// Maximum number of segments to collect.
    most: usize,
}

impl Segments<'_> {
    /// Calls `f` for each segment, with its range of the access.
    pub(super) fn each(
        &self,
        mut f: impl FnMut(Option<Span>, Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut done = 0;
        for &(span, len) in &self.spans {
            f(span, done..done + len)?;
            done += len;
        }
        Ok(())
    }
}

impl MemGuard<'_> {
    /// Collects the segments of an access through an indirect key, after checking that each exists
    /// and allows the access. Stops after `most` segments.
    //= UMR-24
    pub(super) fn segments(
        &self,
        accessor: Accessor,
        key: u32,
        range: (u64, u64),
        right: AccessFlags,
        most: usize,
    ) -> Result<Segments<'_>, AccessError> {
        let mut segments = Segments {
            spans: Vec::with_capacity(16),
            held: Vec::with_capacity(1),
            most,
        };
        match self.collect((accessor, right), key, range, 0, &mut segments) {
            Err(CollectEnd::Enough) | Ok(()) => Ok(segments),
            Err(CollectEnd::Refused(error)) => Err(error),
        }
    }

    /// Adds the segments of one key, which is `level` levels below the key of the access.
    fn collect<'a>(
        &'a self,
        access: (Accessor, AccessFlags),
        key: u32,
        range: (u64, u64),
        level: u8,
        segments: &mut Segments<'a>,
    ) -> Result<(), CollectEnd> {
        let indirect = self.regions.indirect(key).ok_or(AccessError::BadKey)?;
        //= UMR-03
        if level > Indirect::MAX_DEPTH {
            return Err(AccessError::BadKey.into());
        }
        let indirect = indirect.read_recursive();
        indirect.segments(access.0, range, access.1, |lkey, addr, len| {
            self.collect_one(access, (lkey, addr, len), level, segments)
        })?;
        segments.held.push(indirect);
        Ok(())
    }

    fn collect_one<'a>(
        &'a self,
        (accessor, right): (Accessor, AccessFlags),
        (lkey, addr, len): (Lkey, u64, u64),
        level: u8,
        segments: &mut Segments<'a>,
    ) -> Result<(), CollectEnd> {
        if segments.spans.len() >= segments.most {
            return Err(CollectEnd::Enough);
        }
        let span = if let Some(region) = self.regions.region(lkey.get()) {
            //= UMR-13
            Some(region.span((accessor, self.method), addr, len, right)?)
        } else if let Some(pd) = self.regions.null(lkey.get()) {
            if pd != accessor.pd {
                return Err(AccessError::WrongPd.into());
            }
            None
        } else {
            //= UMR-08
            return self.collect(
                (accessor, right),
                lkey.get(),
                (addr, len),
                level + 1,
                segments,
            );
        };
        let len = usize::try_from(len).map_err(|_| AccessError::OutOfRange)?;
        segments.spans.push((span, len));
        Ok(())
    }
}

/// The reason why no more segments are collected.
enum CollectEnd {
    Enough,
    Refused(AccessError),
}

impl From<AccessError> for CollectEnd {
    fn from(error: AccessError) -> Self {
        Self::Refused(error)
    }
}
