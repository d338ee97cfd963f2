//! Parts of registered memory that keep their region alive.

use std::ops::RangeBounds;
use std::sync::Arc;

use rocade_emulator::Sge;

use crate::endpoint::RemoteMemory;
use crate::error::{RangeError, Result};
use crate::memory::MemoryRegion;
use crate::range::resolve;

/// A part of a registered region, which stays registered as long as the part exists.
///
/// Futures of operations hold the slices that they access until the operation has completed, even
/// if the future is dropped or forgotten before. A slice gives copies of the bytes, as its region.
///
/// ```
/// use std::sync::Arc;
///
/// use rocade_verbs::{AccessFlags, Config, DeviceList};
///
/// let domain = DeviceList::new(Config::simulated(1))?.open("a")?.protection_domain()?;
/// let memory = Arc::new(domain.register(4096, AccessFlags::LOCAL_WRITE)?);
/// let header = memory.slice(..16)?;
/// header.write(b"hello")?;
/// drop(memory);
/// assert_eq!(&header.to_vec()?[..5], b"hello");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MemorySlice {
    region: Arc<MemoryRegion>,
    start: usize,
    len: usize,
}

impl MemoryRegion {
    /// Returns a part of the region that keeps it alive. `..` is the whole region.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the region, or is
    /// longer than a scatter/gather entry can be (4 GiB - 1).
    pub fn slice(
        self: &Arc<Self>,
        range: impl RangeBounds<usize>,
    ) -> Result<MemorySlice, RangeError> {
        let (start, len) = resolve(&range, self.len())?;
        self.sge(start..start + len)?;
        let region = Arc::clone(self);
        Ok(MemorySlice { region, start, len })
    }
}

impl MemorySlice {
    /// Returns the region.
    #[must_use]
    pub const fn region(&self) -> &Arc<MemoryRegion> {
        &self.region
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the scatter/gather entry of the slice.
    #[must_use]
    pub fn sge(&self) -> Sge {
        let whole = Sge::from(&*self.region);
        Sge {
            addr: whole.addr + self.start as u64,
            // The length was checked when the slice was made.
            len: u32::try_from(self.len).unwrap_or(u32::MAX),
            lkey: whole.lkey,
        }
    }

    /// Returns the address, length and remote key that the peer needs for RDMA on the slice.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            len: self.len as u64,
            ..self.region.remote().at(self.start as u64)
        }
    }

    /// Copies `data` to the first bytes.
    ///
    /// # Errors
    /// [`RangeError`] if `data` is longer than the slice. Nothing
    /// is written then.
    pub fn write(&self, data: &[u8]) -> Result<(), RangeError> {
        resolve(&(..data.len()), self.len)?;
        self.region.write(self.start, data)
    }

    /// Returns a copy of the bytes.
    ///
    /// # Errors
    /// None, because a slice is inside its region. The type is that of
    /// [`MemoryRegion::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<u8>, RangeError> {
        self.region.to_vec(self.start..self.start + self.len)
    }

    /// Returns a part of the slice.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, RangeError> {
        let (start, len) = resolve(&range, self.len)?;
        Ok(Self {
            region: Arc::clone(&self.region),
            start: self.start + start,
            len,
        })
    }
}

/// The slices of an operation: one, several or none.
///
/// Made from a [`MemorySlice`], an array or a vector of slices, a region, or an [`Arc`] of a
/// region. Regions of more than 4 GiB - 1 are cut to this length.
#[derive(Debug, Clone, Default)]
pub struct Slices(Held);

#[derive(Debug, Clone, Default)]
enum Held {
    #[default]
    None,
    One(MemorySlice),
    Many(Vec<MemorySlice>),
}

impl Slices {
    fn all(&self) -> &[MemorySlice] {
        match &self.0 {
            Held::None => &[],
            Held::One(slice) => std::slice::from_ref(slice),
            Held::Many(slices) => slices,
        }
    }

    /// Calls `f` with the scatter/gather entries.
    pub(crate) fn with_sges<T>(&self, f: impl FnOnce(&[Sge]) -> T) -> T {
        match self.all() {
            [] => f(&[]),
            [slice] => f(&[slice.sge()]),
            slices => f(&slices.iter().map(MemorySlice::sge).collect::<Vec<_>>()),
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        matches!(self.0, Held::None)
    }

    pub(crate) fn extend(&mut self, more: Self) {
        let mut all: Vec<_> = match std::mem::take(&mut self.0) {
            Held::None => {
                *self = more;
                return;
            }
            Held::One(slice) => vec![slice],
            Held::Many(slices) => slices,
        };
        all.extend_from_slice(more.all());
        self.0 = Held::Many(all);
    }
}

impl From<MemorySlice> for Slices {
    fn from(slice: MemorySlice) -> Self {
        Self(Held::One(slice))
    }
}

impl From<&MemorySlice> for Slices {
    fn from(slice: &MemorySlice) -> Self {
        slice.clone().into()
    }
}

impl From<Arc<MemoryRegion>> for Slices {
    fn from(region: Arc<MemoryRegion>) -> Self {
        let len = region.len().min(u32::MAX as usize);
        MemorySlice {
            region,
            start: 0,
            len,
        }
        .into()
    }
}

impl From<&Arc<MemoryRegion>> for Slices {
    fn from(region: &Arc<MemoryRegion>) -> Self {
        Arc::clone(region).into()
    }
}

impl From<MemoryRegion> for Slices {
    fn from(region: MemoryRegion) -> Self {
        Arc::new(region).into()
    }
}

impl From<Vec<MemorySlice>> for Slices {
    fn from(slices: Vec<MemorySlice>) -> Self {
        Self(Held::Many(slices))
    }
}

impl<const N: usize> From<[MemorySlice; N]> for Slices {
    fn from(slices: [MemorySlice; N]) -> Self {
        Vec::from(slices).into()
    }
}
