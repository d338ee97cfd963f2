//! A PSN that may be absent, in four bytes: a queue pair has to be small.

use rocade_wire::Psn;

/// A PSN, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MaybePsn(u32);

impl MaybePsn {
    /// No PSN: a value that none has, because a PSN has 24 bits.
    pub(super) const NONE: Self = Self(u32::MAX);

    pub(super) const fn new(psn: Psn) -> Self {
        Self(psn.get())
    }

    #[inline]
    pub(super) const fn get(self) -> Option<Psn> {
        if self.0 == Self::NONE.0 {
            None
        } else {
            Some(Psn::new(self.0))
        }
    }
}
