//! Kinds of messages whose effects can be told apart in memory, and the memory keys that they use.

use rocade_transport::testing::{Pair, Region, Side, TestMemory};
use rocade_transport::{
    AccessFlags, Accessor, Bind, Block, Fill, Indirect, Layout, MaskedOp, Memory, Operands, Remap,
    SendOp, WcOpcode, WindowKind,
};
use rocade_wire::{Feth, Placement, Rkey, Selectivity};

/// The longest message in bytes.
pub(super) const MAX_LEN: u32 = 6000;
/// The value of every byte that was not written.
pub(super) const IDLE: u8 = 0xee;
/// The length of the segments of an indirect key, which lists them in reverse order.
const SEGMENT: u32 = 500;
/// The initial value of the word with four counters. The second counter overflows, while the others
/// do not.
pub(super) const FIELDS_START: u64 = 0x0003_0000_fffa_1234;
/// Adds 1 to each of the 16-bit fields.
const FIELDS_STEP: u64 = 0x0001_0001_0001_0001;
const FIELDS_BOUNDARY: u64 = 0x8000_8000_8000_8000;

/// The access rights for all memory of this simulation.
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
    /// A WRITE through a memory window over exactly the message.
    WriteWindow,
    /// A WRITE through an indirect key, which reorders the segments.
    WriteIndirect,
    Read,
    /// A READ through an indirect key.
    ReadIndirect,
    /// Adds 1 to a counter that all such messages share, so that its value is the number of
    /// executions.
    Add,
    /// Adds 1 to each of the counters in a word, as a masked atomic.
    AddFields,
    /// ATOMIC WRITE.
    Store,
    /// A FLUSH, which has no effect in memory.
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

    /// Returns the length of a message for which the length `drawn` was drawn.
    pub(super) const fn len(self, drawn: u32) -> u32 {
        match self {
            Self::Add | Self::AddFields | Self::Store => 8,
            // A window of length 0 is not bound.
            Self::WriteWindow if drawn == 0 => 1,
            _ => drawn,
        }
    }

    /// Returns the value of the shared word after `count` messages of this kind.
    pub(super) fn word_after(self, count: u64) -> u64 {
        if self != Self::AddFields {
            return count;
        }
        let field = |n: u32| (FIELDS_START >> (16 * n)).wrapping_add(count) & 0xffff;
        (0..4).map(|n| field(n) << (16 * n)).sum()
    }

    /// Returns the request for `len` bytes at `va`.
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

    /// Returns the operands of a masked atomic, and `None` for other kinds.
    pub(super) fn operands(self) -> Option<Operands> {
        let add = MaskedOp::FetchAdd {
            add: [FIELDS_STEP; 4],
            boundary: [FIELDS_BOUNDARY; 4],
        };
        (self == Self::AddFields).then_some(Operands::Masked(add))
    }

    /// Returns the address and the key under which the peer accesses `len` bytes of `region`, which
    /// is memory of `side`.
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
        let segments = (0..MAX_LEN / SEGMENT).rev().map(|n| Block {
            lkey: region.lkey,
            addr: region.addr + u64::from(n * SEGMENT),
            len: SEGMENT.into(),
            stride: 0,
        });
        let layout = Layout::list(segments).expect("a layout");
        let fill = Fill {
            key,
            if_free: true,
            access: Some(Indirect::RIGHTS),
            remap: Remap::To { base: 0, layout },
        };
        Memory::fill(&node.mem, who, fill).expect("it may be filled");
        (0, key)
    }

    /// Returns a buffer's bytes in the order that the peer sees. An indirect key reverses the
    /// segments, and a second application restores them.
    pub(super) fn seen(self, bytes: Vec<u8>) -> Vec<u8> {
        if self.is_indirect() {
            bytes.rchunks(SEGMENT as usize).flatten().copied().collect()
        } else {
            bytes
        }
    }
}
