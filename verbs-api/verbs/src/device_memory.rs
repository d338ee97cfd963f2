//! Device memory and null memory regions.

use std::ops::RangeBounds;

use rocade_emulator::{AccessFlags, Dm, Mr, Sge};

use crate::device::{Context, ProtectionDomain};
use crate::endpoint::RemoteMemory;
use crate::error::{RangeError, RegionError, Result, VerbsError};
use crate::range::resolve;

/// On-device memory. The program copies to and from it. Work requests and peers access the parts
/// that are [registered](ProtectionDomain::register_device_memory).
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// # let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
/// # let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
/// # let _b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
/// let counters = b.context().device_memory(64)?;
/// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
/// let second_half = b.register_device_memory(&counters, 32..64, access)?;
///
/// // The peer addresses the registered part from 0 on.
/// let to = second_half.remote().at(8);
/// a_qp.post_send(&SendRequest::write_inline(b"onboard!", to))?;
/// a_cq.wait(Duration::from_secs(5))?;
/// let mut text = [0; 8];
/// counters.read(40, &mut text)?;
/// assert_eq!(&text, b"onboard!");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone)]
#[doc(alias = "ibv_dm")]
pub struct DeviceMemory {
    dm: Dm,
}

impl DeviceMemory {
    /// The alignment of copies: offsets and lengths are multiples of it.
    pub const ALIGN: usize = Dm::ALIGN;

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.dm.len()
    }

    /// Returns false: device memory is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Copies `data` to the bytes at `offset`.
    ///
    /// # Errors
    /// [`VerbsError`] if the range exceeds the memory, or is not [aligned](Self::ALIGN). Nothing
    /// is written then.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), VerbsError> {
        Ok(self.dm.write(offset as u64, data)?)
    }

    /// Copies the bytes at `offset` to `data`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: usize, data: &mut [u8]) -> Result<(), VerbsError> {
        Ok(self.dm.read(offset as u64, data)?)
    }
}

/// A registered part of device memory. Its addresses start at 0.
#[derive(Debug)]
pub struct DeviceRegion {
    mr: Mr,
    len: usize,
}

impl DeviceRegion {
    /// Returns the address, length and remote key that the peer needs for RDMA on this region.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            addr: 0,
            rkey: self.mr.rkey(),
            len: self.len as u64,
        }
    }

    /// Returns a part of the region as a scatter/gather entry.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the region.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, RangeError> {
        let (offset, len) = resolve(&range, self.len)?;
        let too_long = |_| RangeError {
            offset: offset as u64,
            len: len as u64,
            region_len: self.len as u64,
        };
        Ok(Sge {
            addr: offset as u64,
            len: u32::try_from(len).map_err(too_long)?,
            lkey: self.mr.lkey(),
        })
    }
}

/// A null memory region: writes to it are discarded, and reads return zeros. It stands for the
/// parts of a message that the program does not need. Peers cannot access it.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// # let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
/// # let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
/// # let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
/// let (memory, nothing) = (b.register(4, AccessFlags::LOCAL_WRITE)?, b.null_region()?);
/// // The program needs only the last 4 of the 12 bytes.
/// b_qp.post_recv(1, &[nothing.sge(8), memory.sge(..)?])?;
/// a_qp.post_send(&SendRequest::send_inline(b"headers:body"))?;
/// assert_eq!(b_cq.wait(Duration::from_secs(5))?.byte_len, 12);
/// assert_eq!(memory.to_vec(..4)?, b"body");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_alloc_null_mr")]
pub struct NullRegion {
    mr: Mr,
}

impl NullRegion {
    /// Returns a scatter/gather entry of `len` bytes.
    #[must_use]
    pub fn sge(&self, len: u32) -> Sge {
        Sge {
            addr: 0,
            len,
            lkey: self.mr.lkey(),
        }
    }
}

impl Context {
    /// Allocates `len` zero bytes of on-device memory.
    ///
    /// # Errors
    /// [`VerbsError`] if `len` is 0, or more than the device has free.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn device_memory(&self, len: usize) -> Result<DeviceMemory, VerbsError> {
        let dm = self.raw().alloc_dm(len)?;
        Ok(DeviceMemory { dm })
    }
}

impl ProtectionDomain {
    /// Registers a part of device memory.
    ///
    /// # Errors
    /// - [`RegionError::OutOfRange`] if the range exceeds the memory.
    /// - [`RegionError::Verbs`] if the memory belongs to another [`Context`], or if the rights
    ///   contradict each other.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_device_memory(
        &self,
        memory: &DeviceMemory,
        range: impl RangeBounds<usize>,
        access: AccessFlags,
    ) -> Result<DeviceRegion, RegionError> {
        let (start, len) = resolve(&range, memory.len())?;
        let access = access | AccessFlags::ZERO_BASED;
        let mr = self
            .raw()
            .reg_dm_mr(&memory.dm, start as u64, len, access)?;
        Ok(DeviceRegion { mr, len })
    }

    /// Allocates a null memory region.
    ///
    /// # Errors
    /// [`VerbsError`] if no key is free.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null_region(&self) -> Result<NullRegion, VerbsError> {
        let mr = self.raw().alloc_null_mr()?;
        Ok(NullRegion { mr })
    }
}
