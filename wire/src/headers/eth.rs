//! Extension headers of requests: RETH, AtomicETH, DETH, XRCETH, RDETH, FETH, ImmDt, IETH.
//!
//! All fields are big-endian on the wire and in host order here, except [`ImmDt`].

use crate::{Qkey, Qpn, Rkey};

/// Reads a big-endian `u32` at `at`. The callers' offsets are constants inside the array.
#[inline]
const fn be32<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Reads a big-endian `u64` at `at`.
#[inline]
pub(super) const fn be64<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    (be32(b, at) as u64) << 32 | be32(b, at + 4) as u64
}

/// RDMA extended transport header: the memory that a WRITE, READ, FLUSH or ATOMIC WRITE addresses.
//= ETH-01
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Reth {
    /// Virtual address in the responder's memory region.
    pub va: u64,
    /// The region's remote key.
    pub rkey: Rkey,
    /// Length of the whole message in bytes, at most 2^31.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            va: be64(b, 0),
            rkey: Rkey::new(be32(b, 8)),
            dma_len: be32(b, 12),
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.get().to_be_bytes());
        out[12..].copy_from_slice(&self.dma_len.to_be_bytes());
        out
    }
}

/// Operands of CmpSwap and FetchAdd.
//= ETH-02
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct AtomicEth {
    /// Virtual address of the 8 bytes.
    pub va: u64,
    /// The region's remote key.
    pub rkey: Rkey,
    /// New value (CmpSwap) or addend (FetchAdd).
    pub swap_add: u64,
    /// Value to compare with (CmpSwap). Sent as 0 and ignored in FetchAdd.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            va: be64(b, 0),
            rkey: Rkey::new(be32(b, 8)),
            swap_add: be64(b, 12),
            compare: be64(b, 20),
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.get().to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        out[20..].copy_from_slice(&self.compare.to_be_bytes());
        out
    }
}

/// Address and size of a masked atomic. Its operands follow: words of 8 bytes, lowest address
/// first.
//= XAW-03
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct MaskedEth {
    /// Virtual address of the operand.
    pub va: u64,
    /// The region's remote key.
    pub rkey: Rkey,
    /// Size of the operand: 2 to the power of this many bytes.
    pub log_size: u8,
    /// Sent as zeros, ignored.
    pub resv: [u8; 3],
}

impl MaskedEth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;
    /// Bytes on the wire of NVIDIA's format.
    pub const SHORT_LEN: usize = 12;
    /// Size of the operands in NVIDIA's format, as in [`Self::log_size`].
    pub const SHORT_LOG_SIZE: u8 = 3;

    /// Reads the header in NVIDIA's format, which has no size, because operands have 8 bytes.
    //= HW-11
    #[must_use]
    pub const fn from_short(b: &[u8; Self::SHORT_LEN]) -> Self {
        Self {
            va: be64(b, 0),
            rkey: Rkey::new(be32(b, 8)),
            log_size: Self::SHORT_LOG_SIZE,
            resv: [0; 3],
        }
    }

    /// Writes the header in NVIDIA's format.
    //= HW-11
    #[must_use]
    pub fn to_short(&self) -> [u8; Self::SHORT_LEN] {
        let mut out = [0; Self::SHORT_LEN];
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..].copy_from_slice(&self.rkey.get().to_be_bytes());
        out
    }

    /// Reads the header.
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            va: be64(b, 0),
            rkey: Rkey::new(be32(b, 8)),
            log_size: b[12],
            resv: [b[13], b[14], b[15]],
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.get().to_be_bytes());
        out[12] = self.log_size;
        out[13..].copy_from_slice(&self.resv);
        out
    }
}

/// Datagram extended transport header.
//= ETH-05
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Deth {
    /// Queue key that the destination must hold.
    pub qkey: Qkey,
    /// Reserved byte, sent as 0.
    pub resv: u8,
    /// Number of the sending queue pair.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            qkey: Qkey::new(be32(b, 0)),
            resv: b[4],
            src_qp: Qpn::new(be32(b, 4)),
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [k0, k1, k2, k3] = self.qkey.get().to_be_bytes();
        let [_, q0, q1, q2] = self.src_qp.get().to_be_bytes();
        [k0, k1, k2, k3, self.resv, q0, q1, q2]
    }
}

/// Encodes a reserved byte and a number of 24 bits, the layout that XRCETH and RDETH share.
#[inline]
const fn resv_and_24_bits(resv: u8, number: u32) -> [u8; 4] {
    let [_, n0, n1, n2] = number.to_be_bytes();
    [resv, n0, n1, n2]
}

/// XRC extended transport header: the shared receive queue of the message.
//= ETH-08
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct XrcEth {
    /// Reserved byte, sent as 0.
    pub resv: u8,
    /// Number of the XRC SRQ, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            resv: b[0],
            srqn: be32(b, 0) & 0x00ff_ffff,
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        resv_and_24_bits(self.resv, self.srqn)
    }
}

/// Reliable datagram extended transport header.
//= ETH-10
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Rdeth {
    /// Reserved byte, sent as 0.
    pub resv: u8,
    /// End-to-end context, 24 bits.
    pub ee_context: u32,
}

impl Rdeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            resv: b[0],
            ee_context: be32(b, 0) & 0x00ff_ffff,
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        resv_and_24_bits(self.resv, self.ee_context)
    }
}

bitflags::bitflags! {
    /// The guarantees of a FLUSH. Bits 2 and 3 are reserved and kept as received.
    #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
    pub struct Placement: u8 {
        /// Visible to all accesses at the responder.
        const GLOBAL_VISIBILITY = 1 << 0;
        /// Survives a loss of power.
        const PERSISTENCE = 1 << 1;
        const _ = 0x0f;
    }
}

/// The memory that a FLUSH covers.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Selectivity {
    /// The range of the RETH.
    Range,
    /// The whole memory region. Address and length are ignored.
    MemoryRegion,
    /// A reserved value, 2 or 3.
    Reserved(u8),
}

/// FLUSH extended transport header: a word of 32 bits, the upper 26 reserved.
//= ETH-09
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Feth(u32);

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Creates a header for a placement and a selectivity, reserved bits zero.
    #[must_use]
    pub const fn new(placement: Placement, selectivity: Selectivity) -> Self {
        let sel = match selectivity {
            Selectivity::Range => 0,
            Selectivity::MemoryRegion => 1,
            Selectivity::Reserved(value) => value & 3,
        };
        Self((sel as u32) << 4 | placement.bits() as u32 & 0x0f)
    }

    /// Creates a header with these 32 bits (host order).
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// All 32 bits (host order).
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Bits 3:0.
    #[must_use]
    pub const fn placement(self) -> Placement {
        Placement::from_bits_retain(self.0.to_le_bytes()[0] & 0x0f)
    }

    /// Bits 5:4.
    #[must_use]
    pub const fn selectivity(self) -> Selectivity {
        match self.0.to_le_bytes()[0] >> 4 & 3 {
            0 => Selectivity::Range,
            1 => Selectivity::MemoryRegion,
            reserved => Selectivity::Reserved(reserved),
        }
    }

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self(u32::from_be_bytes(*b))
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }
}

/// Immediate data: four bytes that are delivered unchanged, in network order.
//= ETH-06
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
}

/// Invalidate extended transport header: the key to invalidate at the responder.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Ieth(pub Rkey);

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
}
