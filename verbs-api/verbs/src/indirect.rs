//! Indirect keys (UMR): one key for segments of other keys.

use std::ops::RangeBounds;

use rocade_emulator::{
    AccessFlags, Block, Layout, Mr, Operands, Remap, Sge, VerbsError as RawError,
};

use crate::device::ProtectionDomain;
use crate::endpoint::RemoteMemory;
use crate::error::{RangeError, Result, VerbsError};
use crate::range::resolve_u64;
use crate::request::SendRequest;

/// A key that maps scattered segments of memory to one contiguous range (UMR). They are parts
/// of regions in any order, or parts that repeat at a distance, such as the column of a matrix.
///
/// A work request sets the mapping, without a new registration. The first byte of the range then
/// has the address 0, locally and for peers.
///
/// The mapping takes effect before later requests of the same queue pair. The request completes
/// with [`WcStatus::WindowBindError`](crate::WcStatus::WindowBindError) if a segment does not
/// exist. Once the region of a segment is deregistered, accesses to that segment fail.
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
/// # let all = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
/// let (matrix, column) = (a.register(64, all)?, b.register(8, all)?);
/// matrix.write(0, &std::array::from_fn::<u8, 64, _>(|index| index as u8))?;
///
/// // Column 2, counted from 0, of a matrix of 8 rows with 8 bytes each.
/// let key = a.indirect_key(1, all)?;
/// let third = key.repeated(&[(matrix.sge(2..3)?, 8)], 8)?;
/// a_qp.post_send(&SendRequest::map_key(&third).unsignaled())?;
/// a_qp.post_send(&SendRequest::write(&[key.sge(..8)?], column.remote()))?;
/// a_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(column.to_vec(..8)?, [2, 10, 18, 26, 34, 42, 50, 58]);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
pub struct IndirectKey {
    mr: Mr,
    rights: AccessFlags,
}

/// A new mapping of an [`IndirectKey`], for [`SendRequest::map_key`].
#[derive(Debug, Clone)]
pub struct KeyMapping(pub(crate) Operands);

impl IndirectKey {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        entries: u32,
        rights: AccessFlags,
    ) -> Result<Self, VerbsError> {
        let mr = pd.raw().create_indirect(entries, rights)?;
        Ok(Self { mr, rights })
    }

    /// Maps the key to `sges`, one after the other.
    ///
    /// # Errors
    /// [`VerbsError`] if `sges` is empty, or longer than the key has room for.
    pub fn list(&self, sges: &[Sge]) -> Result<KeyMapping, VerbsError> {
        let strided: Vec<_> = sges.iter().map(|sge| (*sge, 0)).collect();
        self.repeated(&strided, 1)
    }

    /// Maps the key to all `sges` in order, repeated `count` times. The number with each entry is
    /// its stride: the distance in bytes between the starts of two repetitions.
    ///
    /// # Errors
    /// [`VerbsError`] if `sges` is empty, or longer than the key has room for, or if an address
    /// or the total length exceeds 64 bits.
    pub fn repeated(&self, sges: &[(Sge, u64)], count: u64) -> Result<KeyMapping, VerbsError> {
        let blocks = sges.iter().map(|(sge, stride)| Block {
            lkey: sge.lkey,
            addr: sge.addr,
            len: u64::from(sge.len),
            stride: *stride,
        });
        let too_long = |_| RawError::InvalidArgument("sges: more than 2^64 bytes");
        let layout = Layout::repeated(blocks, count).map_err(too_long)?;
        let remap = Remap::To { base: 0, layout };
        Ok(KeyMapping(self.mr.change(
            Some(self.rights),
            remap,
            false,
        )?))
    }

    /// Removes the mapping, so that all accesses through the key fail.
    ///
    /// # Errors
    /// None at present.
    pub fn free(&self) -> Result<KeyMapping, VerbsError> {
        Ok(KeyMapping(self.mr.change(None, Remap::Free, false)?))
    }

    /// Returns a part of the range as a scatter/gather entry. The key's mapping at the time of
    /// execution decides which memory it names, so the range needs an end.
    ///
    /// # Errors
    /// [`RangeError`] if the range has no end, ends before its start, or is longer than an entry
    /// can be (4 GiB - 1).
    pub fn sge(&self, range: impl RangeBounds<u64>) -> Result<Sge, RangeError> {
        let (addr, len) = resolve_u64(&range, u64::MAX)?;
        let too_long = |_| RangeError {
            offset: addr,
            len,
            region_len: u32::MAX.into(),
        };
        Ok(Sge {
            addr,
            len: u32::try_from(len).map_err(too_long)?,
            lkey: self.mr.lkey(),
        })
    }

    /// Returns a part of the range as remote memory for peers. The key's mapping at the time of
    /// access decides which memory it names.
    ///
    /// # Errors
    /// [`RangeError`] if the range ends before its start.
    pub fn remote(&self, range: impl RangeBounds<u64>) -> Result<RemoteMemory, RangeError> {
        let (addr, len) = resolve_u64(&range, u64::MAX)?;
        Ok(RemoteMemory {
            addr,
            rkey: self.mr.rkey(),
            len,
        })
    }
}

impl Drop for IndirectKey {
    fn drop(&mut self) {
        self.mr.revoke();
    }
}

impl<'a> SendRequest<'a> {
    /// A request that changes the mapping of a local [`IndirectKey`], before any later request
    /// starts.
    pub const fn map_key(mapping: &'a KeyMapping) -> Self {
        Self::with_operands(rocade_emulator::SendOp::Fill, &[], &mapping.0)
    }
}
