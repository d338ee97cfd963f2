//! Work requests as posted, and their stored form.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::IpAddr;

use bitflags::bitflags;
use rocade_wire::{Feth, Lkey, Qkey, Qpn, Rkey};

use crate::cross_channel::{Calc, Condition, Reduction, Release};
use crate::indirect::Fill;
use crate::masked::MaskedOp;
use crate::memory::{AccessError, Accessor, Memory};
use crate::window::Bind;

bitflags! {
    //= MR-01
    /// Access rights of a memory region, and of a QP for its peer (`ibv_access_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AccessFlags: u32 {
        /// The device may write the region on behalf of its owner.
        const LOCAL_WRITE = 1;
        /// The peer may RDMA WRITE.
        const REMOTE_WRITE = 2;
        /// The peer may RDMA READ.
        const REMOTE_READ = 4;
        /// The peer may execute atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to the region.
        const MW_BIND = 16;
        /// Addresses start from 0 instead of the virtual address.
        const ZERO_BASED = 32;
        /// On-demand paging.
        const ON_DEMAND = 64;
        /// Backed by huge pages.
        const HUGETLB = 128;
        /// FLUSH to global visibility.
        const FLUSH_GLOBAL = 256;
        /// FLUSH to persistence.
        const FLUSH_PERSISTENT = 512;
        /// Writes may be reordered.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// Per-request flags (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics.
        const FENCE = 1;
        /// Generate a completion even on success.
        const SIGNALED = 2;
        /// Set the solicited-event bit in the last packet of the message.
        const SOLICITED = 4;
        /// The data was copied at post time.
        const INLINE = 8;
        /// Checksum offload. Accepted and ignored.
        const IP_CSUM = 16;
    }
}

/// A scatter/gather entry: `len` bytes at address `addr` of the region with key `lkey`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address in the region's own address space (virtual address, or offset if zero based).
    pub addr: u64,
    /// Length in bytes. Entries of length 0 are skipped.
    pub len: u32,
    /// Local key.
    pub lkey: Lkey,
}

/// Operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, optionally with immediate data (network byte order, verbatim).
    Send {
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// SEND that invalidates a key of the peer.
    SendInv {
        /// The key of a type 2 window, or an indirect key.
        rkey: Rkey,
    },
    /// RDMA WRITE, optionally with immediate data.
    Write {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ.
    Read {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
    },
    /// Atomic compare and swap of 8 bytes.
    CmpSwap {
        /// Remote address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Value to compare with.
        compare: u64,
        /// Value to store on equality.
        swap: u64,
    },
    /// Atomic fetch and add on 8 bytes, modulo 2^64.
    FetchAdd {
        /// Remote address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Value to add.
        add: u64,
    },
    /// Atomic write of 8 bytes, which become visible all at once and after all earlier writes.
    AtomicWrite {
        /// Remote address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: Rkey,
    },
    /// FLUSH: completes when all earlier writes to the memory have reached the placement of `feth`.
    /// Without data.
    Flush {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Length in bytes, below 2^31.
        len: u32,
        /// Placement, and whether the whole region is flushed.
        feth: Feth,
    },
    /// Bind a memory window. Without data and flags other than `SIGNALED` and `FENCE`.
    Bind(Bind),
    /// Invalidates a local key, once everything before it is complete. Without data and flags other
    /// than `SIGNALED` and `FENCE`.
    Invalidate {
        /// The key of a type 2 window, or an indirect key.
        rkey: Rkey,
    },
    /// No operation.
    Nop,
    /// Starts no later work request until [`Operands::Wait`] holds. Without data.
    Wait,
    /// Releases work requests of another queue, as in [`Operands::Enable`]. Without data.
    Enable,
    /// Masked atomic, as in [`Operands::Masked`]. The local buffer receives the original value.
    ///
    /// A compare-and-swap of 8 bytes on RC or XRC is sent in the format of NVIDIA's NICs. For all
    /// others, a peer that is not known to support them
    /// ([`Qp::set_vendor_ops`](crate::Qp::set_vendor_ops)) is probed first. Without an answer, the
    /// request fails with `RETRY_EXC_ERR`.
    Masked {
        /// Remote address, a multiple of the size.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Size of the operand: 2 to the power of this many bytes. 2 to 5.
        log_size: u8,
    },
    /// Changes an indirect memory key, as in [`Operands::Fill`]. Without data and flags other than
    /// `SIGNALED` and `FENCE`.
    Fill,
}

/// Additional operands of rarely used operations, see
/// [`Qp::set_operands`](crate::Qp::set_operands).
#[derive(Clone, Debug)]
pub enum Operands {
    /// The condition of a [`SendOp::Wait`].
    Wait(Arc<dyn Condition>),
    /// The release of a [`SendOp::Enable`].
    Enable(Arc<dyn Release>),
    /// A calculation: a SEND or WRITE sends the result over the elements of its data. The length of
    /// the data is a multiple of the element length.
    Calc(Calc),
    /// A calculation over the elements that a READ reads. The result is stored at the start of its
    /// buffers, and the rest of them is unchanged.
    ///
    /// The length of the buffers is the length that is read, a multiple of the element length.
    Reduce(Reduction),
    /// The change of a [`SendOp::Fill`].
    Fill(Fill),
    /// The operation of a [`SendOp::Masked`].
    Masked(MaskedOp),
}

/// A send work request as posted.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Operation and its remote operands.
    pub op: SendOp,
    /// Flags.
    pub flags: SendFlags,
    /// Local buffers, in order.
    pub sges: &'a [Sge],
}

/// A route of datagrams: the caller's name for a combination of addresses, traffic class and link.
/// All content of a [`TxBuffer`](crate::TxBuffer) has one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RouteTag(pub u64);

impl RouteTag {
    /// The route to the peer that the QP is connected to.
    pub const OWN: Self = Self(0);
}

/// Destination of a datagram (`ibv_send_wr.wr.ud`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The route of the address handle. Not [`RouteTag::OWN`].
    pub route: RouteTag,
    /// The peer's QP.
    pub dest_qp: Qpn,
    /// Q_Key of the peer. With the highest bit set, the sender's own is sent instead.
    pub qkey: Qkey,
}

/// Destination of a request of a DC initiator (`mlx5dv_wr_set_dc_addr`, `ibv_exp_send_wr.dc`).
///
/// Consecutive requests with the same destination are sent without a pause. Any other request waits
/// until they are acknowledged.
//= DC-07
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcDestination {
    /// The route of the address handle. Not [`RouteTag::OWN`].
    pub route: RouteTag,
    /// The address in the handle.
    pub remote: IpAddr,
    /// The local source address.
    pub local: IpAddr,
    /// QP number of the target.
    pub dct: Qpn,
    /// The access key to send.
    pub key: u64,
    /// The stream. An initiator without streams ignores it.
    pub stream: u16,
}

/// Local buffers of a stored work request.
#[derive(Debug)]
pub(crate) enum LocalData {
    /// Up to two entries without an allocation.
    Few { count: u8, entries: [Sge; 2] },
    /// More entries.
    Many(Box<[Sge]>),
    /// Inline data, copied at post time.
    Inline(Box<[u8]>),
    /// Inline data that fits without an allocation.
    ShortInline { len: u8, bytes: [u8; SHORT_INLINE] },
}

/// Largest size that does not enlarge [`LocalData`].
const SHORT_INLINE: usize = 38;

impl LocalData {
    /// No data.
    pub(crate) const EMPTY: Self = Self::Few {
        count: 0,
        entries: [Sge {
            addr: 0,
            len: 0,
            lkey: Lkey::new(0),
        }; 2],
    };

    /// Stores the data of a work request, `inline` if given. Only for a value that is
    /// [`LocalData::EMPTY`].
    #[inline]
    pub(crate) fn set(&mut self, wr: &SendWr<'_>, inline: Option<&[u8]>) {
        match inline {
            _ if wr.op.is_local() => {}
            None => self.set_sges(wr.sges),
            Some(data) => self.set_inline(data),
        }
    }

    /// Stores the buffers of a work request. Only for a value that is [`LocalData::EMPTY`].
    #[inline(always)]
    pub(crate) fn set_sges(&mut self, sges: &[Sge]) {
        match (self, sges) {
            (Self::Few { count, entries }, &[a]) => {
                *count = 1;
                entries[0] = a;
            }
            (this, sges) => this.set_all(sges),
        }
    }

    /// Stores any number of buffers. Only for a value that is [`LocalData::EMPTY`].
    fn set_all(&mut self, sges: &[Sge]) {
        match (self, sges) {
            (_, []) => {}
            (Self::Few { count, entries }, &[a, b]) => {
                *count = 2;
                *entries = [a, b];
            }
            (this, _) => *this = Self::Many(sges.into()),
        }
    }

    /// Stores a copy of inline data.
    pub(crate) fn set_inline(&mut self, data: &[u8]) {
        let mut bytes = [0; SHORT_INLINE];
        *self = match (bytes.get_mut(..data.len()), u8::try_from(data.len())) {
            (Some(room), Ok(len)) => {
                room.copy_from_slice(data);
                Self::ShortInline { len, bytes }
            }
            _ => Self::Inline(data.into()),
        };
    }

    pub(crate) fn sges(&self) -> &[Sge] {
        match self {
            Self::Few { count, entries } => &entries[..usize::from(*count)],
            Self::Many(entries) => entries,
            Self::Inline(_) | Self::ShortInline { .. } => &[],
        }
    }

    fn inline(&self) -> Option<&[u8]> {
        match self {
            Self::Inline(data) => Some(data),
            Self::ShortInline { len, bytes } => Some(&bytes[..usize::from(*len)]),
            Self::Few { .. } | Self::Many(_) => None,
        }
    }

    /// Returns the total length in bytes. Entries may add up to more than a message can hold.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self.inline() {
            Some(data) => data.len() as u64,
            None => total_len(self.sges()),
        }
    }

    /// Returns the location of `len` bytes from offset `offset` of the message, if there is only
    /// one entry. That is the usual case.
    #[inline]
    pub(crate) fn in_one(&self, offset: u32, len: usize) -> Option<(Lkey, u64)> {
        match self {
            Self::Few {
                count: 1,
                entries: [sge, _],
            } if u64::from(offset) + len as u64 <= u64::from(sge.len) => {
                Some((sge.lkey, sge.addr.checked_add(u64::from(offset))?))
            }
            Self::Few { .. } | Self::Many(_) | Self::Inline(_) | Self::ShortInline { .. } => None,
        }
    }

    /// Copies `dst.len()` bytes from offset `offset` of the message into `dst`.
    #[inline]
    pub(crate) fn gather(
        &self,
        (mem, who): (&impl Memory, Accessor),
        offset: u32,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        if let Some((lkey, addr)) = self.in_one(offset, dst.len()) {
            return mem.read_local(who, lkey, addr, dst);
        }
        self.gather_rest((mem, who), offset, dst)
    }

    /// Copies `dst.len()` bytes from offset `offset` of the message into `dst`, in the general
    /// case.
    //= RC-WQE-11
    fn gather_rest(
        &self,
        (mem, who): (&impl Memory, Accessor),
        offset: u32,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        if let Some(data) = self.inline() {
            let start = offset as usize;
            let src = start
                .checked_add(dst.len())
                .and_then(|end| data.get(start..end))
                .ok_or(AccessError::OutOfRange)?;
            dst.copy_from_slice(src);
            return Ok(());
        }
        for_each_sge(self.sges(), offset, dst.len(), |sge_addr, lkey, range| {
            mem.read_local(who, lkey, sge_addr, &mut dst[range])
        })
    }

    /// Copies `src` to offset `offset` of the message's local buffers.
    #[inline]
    pub(crate) fn scatter(
        &self,
        (mem, who): (&impl Memory, Accessor),
        offset: u32,
        src: &[u8],
    ) -> Result<(), AccessError> {
        if let Some((lkey, addr)) = self.in_one(offset, src.len()) {
            return mem.write_local(who, lkey, addr, src);
        }
        self.scatter_rest((mem, who), offset, src)
    }

    /// Copies `src` to offset `offset` of the message's local buffers, in the general case.
    fn scatter_rest(
        &self,
        (mem, who): (&impl Memory, Accessor),
        offset: u32,
        src: &[u8],
    ) -> Result<(), AccessError> {
        for_each_sge(self.sges(), offset, src.len(), |sge_addr, lkey, range| {
            mem.write_local(who, lkey, sge_addr, &src[range])
        })
    }
}

/// Returns the total length of these buffers, which may be more than a message can hold.
#[inline]
pub(crate) fn total_len(sges: &[Sge]) -> u64 {
    match sges {
        [sge] => u64::from(sge.len),
        _ => sges.iter().map(|sge| u64::from(sge.len)).sum(),
    }
}

/// Calls `f(address, lkey, range of the caller's buffer)` for each entry of the scatter/gather
/// list that covers `len` bytes from message offset `offset`.
fn for_each_sge(
    sges: &[Sge],
    offset: u32,
    len: usize,
    mut f: impl FnMut(u64, Lkey, core::ops::Range<usize>) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let mut skip = offset as usize;
    let mut done = 0;
    for sge in sges {
        if done == len {
            break;
        }
        let sge_len = sge.len as usize;
        if skip >= sge_len {
            skip -= sge_len;
            continue;
        }
        let n = (sge_len - skip).min(len - done);
        let addr = sge
            .addr
            .checked_add(skip as u64)
            .ok_or(AccessError::OutOfRange)?;
        f(addr, sge.lkey, done..done + n)?;
        done += n;
        skip = 0;
    }
    if done == len {
        Ok(())
    } else {
        Err(AccessError::OutOfRange)
    }
}
