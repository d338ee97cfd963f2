//! Keys for pieces of other keys.

use rocade_emulator::{AccessFlags, Block, Layout, Mr, Operands, Remap, Sge};

use crate::device::ProtectionDomain;
use crate::endpoint::RemoteMemory;
use crate::error::{Error, Result};
use crate::request::SendRequest;

/// A key under which scattered pieces of memory look like one range (UMR): parts of regions, in any order, or parts that
/// come back at a distance, such as the column of a matrix. A work request fills it, which costs no
/// registration; from then on, here and for peers, its first byte has address 0.
///
/// The request takes effect before those behind it on the same queue pair. It completes with
/// [`WcStatus::MwBindErr`](crate::WcStatus::MwBindErr) where a piece is not there. A region that ends later makes accesses
/// that touch its pieces fail.
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
/// // The third column of a matrix of 8 rows with 8 bytes each.
/// let key = a.indirect_key(1, all)?;
/// let third = key.repeated(&[(matrix.sge(2..3)?, 8)], 8)?;
/// a_qp.post_send(&SendRequest::change_key(&third).unsignaled())?;
/// a_qp.post_send(&SendRequest::write(&[key.sge(0, 8)], column.remote()))?;
/// a_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(column.to_vec(0, 8)?, [2, 10, 18, 26, 34, 42, 50, 58]);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
pub struct IndirectKey {
    mr: Mr,
    rights: AccessFlags,
}

/// A change of an [`IndirectKey`], for [`SendRequest::change_key`].
#[derive(Debug, Clone)]
pub struct KeyChange(pub(crate) Operands);

impl IndirectKey {
    pub(crate) fn new(pd: &ProtectionDomain, entries: u32, rights: AccessFlags) -> Result<Self> {
        let mr = pd.raw().create_indirect(entries, rights)?;
        Ok(Self { mr, rights })
    }

    /// It becomes these pieces, one behind the other.
    ///
    /// # Errors
    /// [`Error::Verbs`] if they are none, or more than the key has room for.
    pub fn list(&self, pieces: &[Sge]) -> Result<KeyChange> {
        let strided: Vec<_> = pieces.iter().map(|piece| (*piece, 0)).collect();
        self.repeated(&strided, 1)
    }

    /// It becomes all these pieces, then all of them again, `count` times in all: each begins so many bytes behind the
    /// place where it has begun the last time.
    ///
    /// # Errors
    /// [`Error::Verbs`] if they are none, more than the key has room for, or too long.
    pub fn repeated(&self, pieces: &[(Sge, u64)], count: u64) -> Result<KeyChange> {
        let blocks = pieces.iter().map(|(piece, stride)| Block {
            lkey: piece.lkey,
            addr: piece.addr,
            len: u64::from(piece.len),
            stride: *stride,
        });
        let layout = Layout::repeated(blocks, count).map_err(|_| Error::OutOfRange {
            offset: 0,
            len: pieces.len(),
            region_len: 0,
        })?;
        let remap = Remap::To { base: 0, layout };
        Ok(KeyChange(self.mr.change(
            Some(self.rights),
            remap,
            false,
        )?))
    }

    /// It becomes nothing.
    ///
    /// # Errors
    /// None so far.
    pub fn free(&self) -> Result<KeyChange> {
        Ok(KeyChange(self.mr.change(None, Remap::Free, false)?))
    }

    /// A part of it as an entry of a work request's scatter/gather list. What it holds is known when the request is
    /// executed.
    #[must_use]
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: offset,
            len,
            lkey: self.mr.lkey(),
        }
    }

    /// A part of it for peers, likewise.
    #[must_use]
    pub fn remote(&self, offset: u64, len: u64) -> RemoteMemory {
        RemoteMemory {
            addr: offset,
            rkey: self.mr.rkey(),
            len,
        }
    }
}

impl Drop for IndirectKey {
    fn drop(&mut self) {
        self.mr.revoke();
    }
}

impl<'a> SendRequest<'a> {
    /// Changes an [`IndirectKey`] of this side, before any later request starts.
    pub const fn change_key(change: &'a KeyChange) -> Self {
        Self::with_operands(rocade_emulator::SendOp::Fill, &[], &change.0)
    }
}
