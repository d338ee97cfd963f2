//! Work requests as the application posts them, and their stored form.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::IpAddr;

use bitflags::bitflags;
use rocade_wire::{Feth, Lkey, Qkey, Qpn, Rkey};

use crate::cross::{Calc, Condition, Reduction, Release};
use crate::indirect::Fill;
use crate::masked::MaskedOp;
use crate::memory::{AccessError, Accessor, Memory};
use crate::window::Bind;

bitflags! {
    //= MR-01
    /// Access rights of a memory region, and of a QP for its peer (`ibv_access_flags`, MR-01).
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
        /// Writes may pass each other.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// Per-request flags (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics (RC-WQE-04).
        const FENCE = 1;
        /// Generate a completion even on success (RC-WQE-02).
        const SIGNALED = 2;
        /// Set the solicited-event bit at the message's end (RC-WQE-08).
        const SOLICITED = 4;
        /// The data was copied at post time (RC-WQE-06).
        const INLINE = 8;
        /// Checksum offload; accepted and ignored.
        const IP_CSUM = 16;
    }
}

/// A scatter/gather entry: `len` bytes at address `addr` of the region with key `lkey`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address in the region's own address space (virtual address, or offset if zero based).
    pub addr: u64,
    /// Length in bytes; entries of length 0 are skipped (RC-WQE-11).
    pub len: u32,
    /// Local key.
    pub lkey: Lkey,
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with immediate data where given (network byte order, verbatim).
    Send {
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// SEND that makes one of the peer's keys invalid (RC-WQE-09).
    SendInv {
        /// The key, which is a type 2 window's or an indirect one.
        rkey: Rkey,
    },
    /// RDMA WRITE, with immediate data where given.
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
        /// Remote address; a multiple of 8.
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
        /// Remote address; a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Value to add.
        add: u64,
    },
    /// Atomic write of 8 bytes: they are there all at once, after all that was sent before.
    AtomicWrite {
        /// Remote address; a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: Rkey,
    },
    /// FLUSH: completes when all that was written to the memory before is where `feth` says. Without data.
    Flush {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// Length in bytes, below 2^31.
        len: u32,
        /// Placement, and whether it is all of the region.
        feth: Feth,
    },
    /// Bind a memory window. Without data and flags other than `SIGNALED` and `FENCE`.
    Bind(Bind),
    /// Make a key of this side invalid, likewise, once everything before it is complete (RC-WQE-05).
    Invalidate {
        /// The key, which is a type 2 window's or an indirect one.
        rkey: Rkey,
    },
    /// Nothing.
    Nop,
    /// Start nothing that was posted later before [`Operands::Wait`] holds (XCW-01). Without data.
    Wait,
    /// Release work requests of another queue, as [`Operands::Enable`] says (XCE-04). Without data.
    Enable,
    /// Masked atomic, as [`Operands::Masked`] says (XAT-10). The local buffer takes the original value. A peer that
    /// is not known to understand it ([`Qp::set_extended`](crate::Qp::set_extended)) is asked first, and where it does not answer, the
    /// request fails with `RETRY_EXC_ERR`.
    Masked {
        /// Remote address; a multiple of the size.
        va: u64,
        /// Remote key.
        rkey: Rkey,
        /// The operand has 2 to the power of this bytes: 2 to 5.
        log_size: u8,
    },
    /// Change an indirect memory key, as [`Operands::Fill`] says (UMR-10). Without data and flags other than `SIGNALED`
    /// and `FENCE`.
    Fill,
}

/// What a rare operation has besides its [`SendOp`]; see [`Qp::equip`](crate::Qp::equip).
#[derive(Clone, Debug)]
pub enum Operands {
    /// Of [`SendOp::Wait`].
    Wait(Arc<dyn Condition>),
    /// Of [`SendOp::Enable`].
    Enable(Arc<dyn Release>),
    /// Of a SEND or WRITE that sends what is computed of its elements, whose length its data has to be a multiple of (XCC-01).
    Calc(Calc),
    /// Of a READ whose buffers take, at their beginning, what is computed of the elements that it reads; the rest of them stays as it
    /// is. Their length, which has to be a multiple of that of an element, says how many are read (XCC-01).
    Reduce(Reduction),
    /// Of [`SendOp::Fill`].
    Fill(Fill),
    /// Of [`SendOp::Masked`].
    Masked(MaskedOp),
}

impl SendOp {
    /// Executed on this side, without a packet.
    #[inline]
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Bind(_)
                | Self::Invalidate { .. }
                | Self::Fill
                | Self::Nop
                | Self::Wait
                | Self::Enable
        )
    }

    /// SENDs and WRITEs, for which most questions have the same answer.
    #[inline]
    pub(crate) const fn is_common(&self) -> bool {
        matches!(
            self,
            Self::Send { .. } | Self::SendInv { .. } | Self::Write { .. }
        )
    }

    /// Answered by a response of its own, counted by `max_rd_atomic`: READ, atomics, ATOMIC WRITE and FLUSH.
    #[must_use]
    pub const fn needs_response_data(&self) -> bool {
        self.has_result() || matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// READ and atomics: the answer has data.
    #[must_use]
    pub const fn has_result(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::CmpSwap { .. } | Self::FetchAdd { .. } | Self::Masked { .. }
        )
    }

    /// Compare-and-swap or fetch-and-add, masked or not.
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        self.atomic_len().is_some()
    }

    /// Bytes of an atomic's operand.
    pub(crate) const fn atomic_len(&self) -> Option<u32> {
        match self {
            Self::CmpSwap { .. } | Self::FetchAdd { .. } => Some(8),
            Self::Masked { log_size, .. } => Some(1 << (*log_size & 7)),
            _ => None,
        }
    }
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

/// A way that datagrams take: the caller's name for a combination of addresses, traffic class and link.
/// What a [`TxBuffer`](crate::TxBuffer) holds takes one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RouteTag(pub u64);

impl RouteTag {
    /// The way to the peer that the QP is connected to.
    pub const OWN: Self = Self(0);
}

/// Where a datagram goes (`ibv_send_wr.wr.ud`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The way, which the address handle stands for; not [`RouteTag::OWN`].
    pub route: RouteTag,
    /// The peer's QP.
    pub dest_qp: Qpn,
    /// Its Q_Key; with the highest bit set, the sender's own is sent instead (UD-04).
    pub qkey: Qkey,
}

/// Where a request of a DC initiator goes (`mlx5dv_wr_set_dc_addr`, `ibv_exp_send_wr.dc`). Requests in a row with the same destination
/// follow each other at once; any other waits until they are acknowledged (DC-06, DC-07).
//= DC-07
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcDestination {
    /// The way, which the address handle stands for; not [`RouteTag::OWN`].
    pub route: RouteTag,
    /// The address that the handle names.
    pub remote: IpAddr,
    /// The own address that it is sent from.
    pub local: IpAddr,
    /// Number of the target.
    pub dct: Qpn,
    /// The access key that is sent.
    pub key: u64,
    /// The stream; an initiator that has none does not look at it (DC-40).
    pub stream: u16,
}

/// The local side of a stored work request.
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

/// As much as does not make [`LocalData`] larger.
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

    /// Takes over the data of a work request, `inline` where that is given; only for what is
    /// [`LocalData::EMPTY`].
    #[inline]
    pub(crate) fn set(&mut self, wr: &SendWr<'_>, inline: Option<&[u8]>) {
        match inline {
            _ if wr.op.is_local() => {}
            None => self.set_sges(wr.sges),
            Some(data) => self.set_inline(data),
        }
    }

    /// Takes over what a work request names; likewise.
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

    /// Likewise, of any number.
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

    /// Takes over a copy of inline data.
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

    /// Total length in bytes; entries may add up to more than a message can hold.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self.inline() {
            Some(data) => data.len() as u64,
            None => total_len(self.sges()),
        }
    }

    /// Where `len` bytes from offset `offset` of the message are, if they are in the only entry: as
    /// they nearly always are.
    #[inline]
    pub(crate) fn in_one(&self, offset: u32, len: usize) -> Option<(Lkey, u64)> {
        match self {
            Self::Few {
                count: 1,
                entries: [sge, _],
            } if u64::from(offset) + len as u64 <= u64::from(sge.len) => {
                Some((sge.lkey, sge.addr.checked_add(u64::from(offset))?))
            }
            _ => None,
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

    /// Likewise, of what is not in one entry.
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
        for_each_piece(self.sges(), offset, dst.len(), |sge_addr, lkey, range| {
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

    /// Likewise, to what is not in one entry.
    fn scatter_rest(
        &self,
        (mem, who): (&impl Memory, Accessor),
        offset: u32,
        src: &[u8],
    ) -> Result<(), AccessError> {
        for_each_piece(self.sges(), offset, src.len(), |sge_addr, lkey, range| {
            mem.write_local(who, lkey, sge_addr, &src[range])
        })
    }
}

/// Length of a message in these buffers, which may be more than a message can have.
#[inline]
pub(crate) fn total_len(sges: &[Sge]) -> u64 {
    match sges {
        [sge] => u64::from(sge.len),
        _ => sges.iter().map(|sge| u64::from(sge.len)).sum(),
    }
}

/// Calls `f(address, lkey, range of the caller's buffer)` for each piece of the scatter/gather
/// list that covers `len` bytes from message offset `offset`.
fn for_each_piece(
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
