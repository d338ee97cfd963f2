//! What an access through an indirect key touches.

use std::ops::Range;

use rocade_transport::{AccessError, AccessFlags, Accessor, Indirect};
use rocade_wire::Lkey;

use super::access::Span;
use super::table::MemGuard;
use crate::sync::RwLockReadGuard;

/// All places of an access, and the locks under which they stay what they are: who changes a key, listed by
/// another or not, waits until the access is done.
pub(super) struct Pieces<'a> {
    /// With their lengths; nowhere where memory has been promised that is not there.
    spans: Vec<(Option<Span>, usize)>,
    held: Vec<RwLockReadGuard<'a, Indirect>>,
    /// No more than so many are looked at.
    most: usize,
}

impl Pieces<'_> {
    /// Does something to each, with its part of the access.
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
    /// The pieces of an access through an indirect key, each of which is there and may be accessed so; all of them
    /// where `most` are enough.
    //= UMR-24
    pub(super) fn pieces(
        &self,
        who: Accessor,
        key: u32,
        range: (u64, u64),
        right: AccessFlags,
        most: usize,
    ) -> Result<Pieces<'_>, AccessError> {
        let mut pieces = Pieces {
            spans: Vec::with_capacity(16),
            held: Vec::with_capacity(1),
            most,
        };
        match self.collect((who, right), key, range, 0, &mut pieces) {
            Err(Stop::Enough) | Ok(()) => Ok(pieces),
            Err(Stop::Refused(error)) => Err(error),
        }
    }

    /// Adds those of one key, which is `level` keys below the one that was named.
    fn collect<'a>(
        &'a self,
        access: (Accessor, AccessFlags),
        key: u32,
        range: (u64, u64),
        level: u8,
        pieces: &mut Pieces<'a>,
    ) -> Result<(), Stop> {
        let indirect = self.regions.indirect(key).ok_or(AccessError::BadKey)?;
        //= UMR-03
        if level > Indirect::MAX_DEPTH {
            return Err(AccessError::BadKey.into());
        }
        let indirect = indirect.read_recursive();
        indirect.pieces(access.0, range, access.1, |lkey, addr, len| {
            self.collect_one(access, (lkey, addr, len), level, pieces)
        })?;
        pieces.held.push(indirect);
        Ok(())
    }

    fn collect_one<'a>(
        &'a self,
        (who, right): (Accessor, AccessFlags),
        (lkey, addr, len): (Lkey, u64, u64),
        level: u8,
        pieces: &mut Pieces<'a>,
    ) -> Result<(), Stop> {
        if pieces.spans.len() >= pieces.most {
            return Err(Stop::Enough);
        }
        let span = if let Some(region) = self.regions.region(lkey.get()) {
            //= UMR-13
            Some(region.span((who, self.way), addr, len, right)?)
        } else if let Some(pd) = self.regions.null(lkey.get()) {
            if pd != who.pd {
                return Err(AccessError::WrongPd.into());
            }
            None
        } else {
            //= UMR-08
            return self.collect((who, right), lkey.get(), (addr, len), level + 1, pieces);
        };
        let len = usize::try_from(len).map_err(|_| AccessError::OutOfRange)?;
        pieces.spans.push((span, len));
        Ok(())
    }
}

/// Why no more pieces are looked at.
enum Stop {
    Enough,
    Refused(AccessError),
}

impl From<AccessError> for Stop {
    fn from(error: AccessError) -> Self {
        Self::Refused(error)
    }
}
