//! Kinds of messages whose traces can be told apart afterwards, and the keys that they go through.

use rocade_transport::testing::{Pair, Region, Side, TestMemory};
use rocade_transport::{
    AccessFlags, Accessor, Bind, Block, Fill, Indirect, Layout, MaskedOp, Memory, Operands, Remap,
    SendOp, WcOpcode, WindowKind,
};
use rocade_wire::{Feth, Placement, Rkey, Selectivity};

/// Longest message.
pub(super) const MAX_LEN: u32 = 6000;
/// What a buffer holds where nothing was written.
pub(super) const IDLE: u8 = 0xee;
/// Pieces of this length make up the memory behind indirect keys, the last first.
const PIECE: u32 = 500;
/// Where the word of several counters begins: the second goes round while the others do not.
pub(super) const FIELDS_START: u64 = 0x0003_0000_fffa_1234;
/// One more in each of its fields, which are 16 bits wide.
const FIELDS_STEP: u64 = 0x0001_0001_0001_0001;
const FIELDS_BOUNDARY: u64 = 0x8000_8000_8000_8000;

/// What peers may do with the memory of this simulation.
pub(super) const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::FLUSH_GLOBAL);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Write,
    WriteImm,
    /// WRITE through a memory window that opens just its bytes.
    WriteWindow,
    /// WRITE through an indirect key, of pieces in another order.
    WriteIndirect,
    Read,
    /// READ through an indirect key.
    ReadIndirect,
    /// Adds 1 to the counter that all of them share, so the value tells how many were executed.
    Add,
    /// Adds 1 to each of the counters in a word, masked.
    AddFields,
    /// ATOMIC WRITE.
    Store,
    /// FLUSH, which leaves no trace.
    Flush,
}

impl Kind {
    pub(super) const ALL: [Self; 11] = [
        Self::Send,
        Self::Write,
        Self::WriteImm,
        Self::WriteWindow,
        Self::WriteIndirect,
        Self::Read,
        Self::ReadIndirect,
        Self::Add,
        Self::AddFields,
        Self::Store,
        Self::Flush,
    ];

    pub(super) const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }

    pub(super) const fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadIndirect)
    }

    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::Add | Self::AddFields)
    }

    const fn is_indirect(self) -> bool {
        matches!(self, Self::WriteIndirect | Self::ReadIndirect)
    }

    pub(super) const fn opcode(self) -> WcOpcode {
        match self {
            Self::Send => WcOpcode::Send,
            Self::Write | Self::WriteImm | Self::WriteWindow | Self::WriteIndirect => {
                WcOpcode::RdmaWrite
            }
            Self::Read | Self::ReadIndirect => WcOpcode::RdmaRead,
            Self::Add => WcOpcode::FetchAdd,
            Self::AddFields => WcOpcode::MaskedFetchAdd,
            Self::Store => WcOpcode::AtomicWrite,
            Self::Flush => WcOpcode::Flush,
        }
    }

    /// Bytes of a message for which `drawn` were drawn.
    pub(super) const fn len(self, drawn: u32) -> u32 {
        match self {
            Self::Add | Self::AddFields | Self::Store => 8,
            // A window of nothing is none.
            Self::WriteWindow if drawn == 0 => 1,
            _ => drawn,
        }
    }

    /// What its shared word is after so many of them.
    pub(super) fn word_after(self, count: u64) -> u64 {
        if self != Self::AddFields {
            return count;
        }
        let field = |n: u32| (FIELDS_START >> (16 * n)).wrapping_add(count) & 0xffff;
        (0..4).map(|n| field(n) << (16 * n)).sum()
    }

    /// The request for `len` bytes at `va`.
    pub(super) fn op(self, (va, rkey): (u64, Rkey), len: u32) -> SendOp {
        match self {
            Self::Send => SendOp::Send { imm: None },
            Self::WriteImm => SendOp::Write {
                va,
                rkey,
                imm: Some([7; 4]),
            },
            Self::Write | Self::WriteWindow | Self::WriteIndirect => SendOp::Write {
                va,
                rkey,
                imm: None,
            },
            Self::Read | Self::ReadIndirect => SendOp::Read { va, rkey },
            Self::Add => SendOp::FetchAdd { va, rkey, add: 1 },
            Self::AddFields => SendOp::Masked {
                va,
                rkey,
                log_size: 3,
            },
            Self::Store => SendOp::AtomicWrite { va, rkey },
            Self::Flush => SendOp::Flush {
                va,
                rkey,
                len,
                feth: Feth::new(Placement::GLOBAL_VISIBILITY, Selectivity::Range),
            },
        }
    }

    /// What goes with the request.
    pub(super) fn operands(self) -> Option<Operands> {
        let add = MaskedOp::FetchAdd {
            add: [FIELDS_STEP; 4],
            boundary: [FIELDS_BOUNDARY; 4],
        };
        (self == Self::AddFields).then_some(Operands::Masked(add))
    }

    /// Where the peer finds `len` bytes of `region`, which is memory of `side`.
    pub(super) fn target(self, pair: &Pair, side: Side, region: &Region, len: u32) -> (u64, Rkey) {
        let node = pair.node(side);
        let who = Accessor {
            pd: TestMemory::PD,
            qpn: node.qp.qp_num(),
        };
        if self == Self::WriteWindow {
            let free = node.mem.alloc_window(WindowKind::Type2);
            let bind = Bind {
                rkey: free.with_next_tag(),
                lkey: region.lkey,
                va: region.addr,
                len: len.into(),
                access: AccessFlags::REMOTE_WRITE,
            };
            node.mem.bind(who, &bind).expect("it may be bound");
            return (region.addr, bind.rkey);
        }
        if !self.is_indirect() {
            return (region.addr, region.rkey);
        }
        let key = node.mem.create_indirect(16);
        let pieces = (0..MAX_LEN / PIECE).rev().map(|n| Block {
            lkey: region.lkey,
            addr: region.addr + u64::from(n * PIECE),
            len: PIECE.into(),
            stride: 0,
        });
        let layout = Layout::list(pieces).expect("a layout");
        let fill = Fill {
            key,
            if_free: true,
            access: Some(Indirect::RIGHTS),
            remap: Remap::To { base: 0, layout },
        };
        Memory::fill(&node.mem, who, fill).expect("it may be filled");
        (0, key)
    }

    /// What the peer sees of a buffer: indirect keys turn its pieces round, and back.
    pub(super) fn seen(self, bytes: Vec<u8>) -> Vec<u8> {
        if self.is_indirect() {
            bytes.rchunks(PIECE as usize).flatten().copied().collect()
        } else {
            bytes
        }
    }
}
