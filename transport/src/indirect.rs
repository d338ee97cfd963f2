//! Indirect memory keys (UMR): a contiguous range that is composed of segments of other keys.
//!
//! Like a window, such a key is a pure value. The owner of the key table locks it, and looks up the
//! keys that it lists.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rocade_wire::{Lkey, Rkey};

use crate::memory::{AccessError, Accessor, PdTag};
use crate::window::BindError;
use crate::wr::AccessFlags;

/// A segment of another key's memory, which may be repeated at a stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The key: of a region, or an indirect one.
    pub lkey: Lkey,
    /// Address of the first byte, in the addresses of that key.
    pub addr: u64,
    /// Length in bytes. A block of length 0 is ignored.
    pub len: u64,
    /// Distance from the start of one segment to that of the next in bytes, if the layout is
    /// repeated.
    pub stride: u64,
}

impl Block {
    /// Returns the distance from the first byte of the first segment to the end of the last.
    fn span(&self, repeats: u64) -> Option<u64> {
        let last = self.stride.checked_mul(repeats.checked_sub(1)?)?;
        let len = last.checked_add(self.len)?;
        self.addr.checked_add(len).map(|_| len)
    }
}

/// Sequence of segments: all blocks in order, `repeats` times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    blocks: Box<[Block]>,
    /// End of each block within one repetition.
    ends: Box<[u64]>,
    repeats: u64,
    entries: u32,
}

impl Layout {
    /// Creates a list of segments, one after another.
    ///
    /// # Errors
    /// [`BindError::OutOfRange`]: it is longer than the address space.
    pub fn list(blocks: impl IntoIterator<Item = Block>) -> Result<Self, BindError> {
        Self::repeated(blocks, 1)
    }

    /// Creates an interleaved layout: each repetition takes the next segment of every block.
    ///
    /// # Errors
    /// [`BindError::OutOfRange`]: addresses or lengths wrap around.
    //= UMR-20
    //= UMR-30
    pub fn repeated(
        blocks: impl IntoIterator<Item = Block>,
        repeats: u64,
    ) -> Result<Self, BindError> {
        let mut entries = 0u32;
        let mut kept = Vec::new();
        let mut ends = Vec::new();
        let mut end = 0u64;
        for block in blocks {
            entries = entries.checked_add(1).ok_or(BindError::OutOfRange)?;
            //= UMR-21
            if block.len == 0 || repeats == 0 {
                continue;
            }
            block.span(repeats).ok_or(BindError::OutOfRange)?;
            end = end.checked_add(block.len).ok_or(BindError::OutOfRange)?;
            kept.push(block);
            ends.push(end);
        }
        end.checked_mul(repeats).ok_or(BindError::OutOfRange)?;
        Ok(Self {
            blocks: kept.into(),
            ends: ends.into(),
            repeats,
            entries,
        })
    }

    /// Returns the number of entries, including those of length 0.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.period() * self.repeats
    }

    /// Returns true if the layout has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn period(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Calls `f(key, address, length)` for each segment of `len` bytes from `offset`, until it
    /// fails. The range must lie inside the layout.
    //= UMR-20
    //= UMR-22..23
    //= UMR-31 UMR-32 UMR-33
    //= UMR-34 UMR-35
    fn segments<E>(
        &self,
        offset: u64,
        len: u64,
        mut f: impl FnMut(Lkey, u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let period = self.period();
        if period == 0 {
            return Ok(());
        }
        let (mut repeat, within) = (offset / period, offset % period);
        let mut index = self.ends.partition_point(|end| *end <= within);
        let mut skip = within
            - self
                .ends
                .get(index)
                .map_or(0, |end| end - self.blocks[index].len);
        let mut left = len;
        while left > 0 {
            let Some(block) = self.blocks.get(index) else {
                (repeat, index) = (repeat + 1, 0);
                continue;
            };
            let segment = (block.len - skip).min(left);
            f(
                block.lkey,
                block.addr + repeat * block.stride + skip,
                segment,
            )?;
            left -= segment;
            (index, skip) = (index + 1, 0);
        }
        Ok(())
    }
}

/// Change of a key's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remap {
    /// The memory stays as it is.
    Keep,
    /// The memory is removed, and the key cannot be used.
    Free,
    /// The memory is replaced.
    To {
        /// The address of the first byte that work requests and peers use.
        base: u64,
        /// The segments.
        layout: Layout,
    },
}

/// A change of an indirect key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The key, which does not change.
    pub key: Rkey,
    /// The key has to be free.
    pub if_free: bool,
    /// New access rights, within those that the key was created with.
    pub access: Option<AccessFlags>,
    /// New memory.
    pub remap: Remap,
}

/// Properties of a listed key that filling an indirect key needs.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Its protection domain.
    pub pd: PdTag,
    /// Address of its first byte, and its length in bytes.
    pub start: u64,
    #[allow(missing_docs, reason = "as above")]
    pub len: u64,
    /// Number of indirect keys on the longest path below it, including itself. 0 for a region.
    pub depth: u8,
}

#[derive(Clone, Debug)]
struct Mapping {
    base: u64,
    layout: Layout,
    depth: u8,
}

/// An indirect memory key.
//= UMR-01
#[derive(Clone, Debug)]
pub struct Indirect {
    pd: PdTag,
    key: Rkey,
    capacity: u32,
    /// The most rights that the key may ever grant.
    rights: AccessFlags,
    /// The rights that the key grants.
    access: AccessFlags,
    mapping: Option<Mapping>,
}

impl Indirect {
    /// Most levels of indirect keys below another one. A key that lists keys of regions only counts
    /// as one level.
    pub const MAX_DEPTH: u8 = 4;

    /// Access rights that have a meaning for an indirect key.
    pub const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE
        .union(AccessFlags::REMOTE_WRITE)
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC);

    /// Creates a free key with room for `capacity` entries.
    //= UMR-05
    #[must_use]
    pub const fn new(pd: PdTag, key: Rkey, capacity: u32, rights: AccessFlags) -> Self {
        Self {
            pd,
            key,
            capacity,
            rights: rights.intersection(Self::RIGHTS),
            access: AccessFlags::empty(),
            mapping: None,
        }
    }

    /// Returns its properties for a key that lists it. `None` while it is free.
    #[must_use]
    pub fn listed(&self) -> Option<Listed> {
        let mapping = self.mapping.as_ref()?;
        Some(Listed {
            pd: self.pd,
            start: mapping.base,
            len: mapping.layout.len(),
            depth: mapping.depth + 1,
        })
    }

    /// Checks a change, and returns how many levels of indirect keys will be below the key. `find`
    /// looks up a listed key.
    ///
    /// The caller checks before it locks the key against accesses, because `find` reads other keys.
    ///
    /// # Errors
    /// [`BindError`] if the list names a key that cannot be in it, exceeds the capacity of the key,
    /// or nests too deeply.
    //= UMR-12
    pub fn check(
        pd: PdTag,
        fill: &Fill,
        find: impl Fn(Lkey) -> Option<Listed>,
    ) -> Result<u8, BindError> {
        let Remap::To { base, layout } = &fill.remap else {
            return Ok(0);
        };
        if base.checked_add(layout.len()).is_none() {
            return Err(BindError::OutOfRange);
        }
        let mut depth = 0;
        for block in &layout.blocks {
            let listed = find(block.lkey).ok_or(BindError::NoRegion)?;
            if listed.pd != pd {
                return Err(BindError::WrongPd);
            }
            //= UMR-36
            let offset = block.addr.checked_sub(listed.start);
            let end = offset.and_then(|offset| offset.checked_add(block.span(layout.repeats)?));
            if end.is_none_or(|end| end > listed.len) {
                return Err(BindError::OutOfRange);
            }
            depth = depth.max(listed.depth);
        }
        //= UMR-03
        if depth > Self::MAX_DEPTH {
            return Err(BindError::TooDeep);
        }
        Ok(depth)
    }

    /// Changes the key. `depth` is the result of [`check`](Self::check).
    ///
    /// # Errors
    /// [`BindError`] if the key is not free, belongs to another protection domain, or cannot have
    /// the rights or so many entries. The key stays as it is.
    pub fn fill(&mut self, who: Accessor, fill: Fill, depth: u8) -> Result<(), BindError> {
        if self.pd != who.pd {
            return Err(BindError::WrongPd);
        }
        //= XDEC-14
        if !self.allows(fill.access) {
            return Err(BindError::BadRights);
        }
        //= UMU-05
        if fill.if_free && self.mapping.is_some() {
            return Err(BindError::Bound);
        }
        match fill.remap {
            Remap::Keep => {}
            //= UMR-18
            Remap::Free => self.mapping = None,
            Remap::To { layout, .. } if layout.entries > self.capacity => {
                return Err(BindError::OutOfRange);
            }
            //= UMR-14
            //= UMR-17
            Remap::To { base, layout } => {
                self.mapping = Some(Mapping {
                    base,
                    layout,
                    depth,
                });
            }
        }
        //= UMR-13
        if let Some(access) = fill.access {
            self.access = access.intersection(Self::RIGHTS);
        }
        Ok(())
    }

    /// Returns true if the key was created with all of these rights.
    #[must_use]
    pub fn allows(&self, access: Option<AccessFlags>) -> bool {
        let asked = access.unwrap_or_default().intersection(Self::RIGHTS);
        self.rights.contains(asked)
    }

    /// Frees the key, because a QP or its peer has invalidated it.
    ///
    /// # Errors
    /// [`AccessError::WrongPd`] if the key belongs to another protection domain,
    /// [`AccessError::BadKey`] if it is free already. The key stays as it is.
    //= INV-01
    pub fn invalidate(&mut self, who: Accessor) -> Result<(), AccessError> {
        if self.pd != who.pd {
            return Err(AccessError::WrongPd);
        }
        //= INV-04
        self.mapping.take().map(|_| ()).ok_or(AccessError::BadKey)
    }

    /// Calls `f(key, address, length)` for each segment that an access touches, until it fails.
    ///
    /// # Errors
    /// [`AccessError`] if the key is free, or does not allow this access. The first error of `f`.
    pub fn segments<E: From<AccessError>>(
        &self,
        who: Accessor,
        (va, len): (u64, u64),
        right: AccessFlags,
        f: impl FnMut(Lkey, u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        //= UMR-05
        //= UMR-15
        let mapping = self.mapping.as_ref().ok_or(AccessError::BadKey)?;
        if self.pd != who.pd {
            return Err(AccessError::WrongPd.into());
        }
        //= UMR-13
        if !self.access.contains(right) {
            return Err(AccessError::Permission.into());
        }
        let offset = va
            .checked_sub(mapping.base)
            .ok_or(AccessError::OutOfRange)?;
        let end = offset.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if end > mapping.layout.len() {
            return Err(AccessError::OutOfRange.into());
        }
        mapping.layout.segments(offset, len, f)
    }

    /// Returns the protection domain.
    #[must_use]
    pub const fn pd(&self) -> PdTag {
        self.pd
    }

    /// Returns the key.
    #[must_use]
    pub const fn key(&self) -> Rkey {
        self.key
    }
}

#[cfg(test)]
mod tests;
