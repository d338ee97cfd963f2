//! A peer that sends what it must not: broken packets of every kind, ranges that overflow, requests
//! without the right, and packets after an error. The device drops or refuses them, and its memory
//! stays as it was.

pub(super) mod after_errors;
pub(super) mod packets;
pub(super) mod ranges;
pub(super) mod rights;

use rocade_wire::{Ieth, Operation};

use crate::{
    Conn, PacketBuilder, QpSpec,
    peer::{Buffer, RegionSpec, Rights},
};

/// A request that a responder checks in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    SendFirst,
    SendImm,
    SendInv,
    Write,
    WriteFirst,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
}

impl Kind {
    const fn operation(self) -> Operation {
        match self {
            Self::Send => Operation::SendOnly,
            Self::SendFirst => Operation::SendFirst,
            Self::SendImm => Operation::SendOnlyImm,
            Self::SendInv => Operation::SendOnlyInv,
            Self::Write => Operation::WriteOnly,
            Self::WriteFirst => Operation::WriteFirst,
            Self::WriteImm => Operation::WriteOnlyImm,
            Self::Read => Operation::ReadRequest,
            Self::CmpSwap => Operation::CmpSwap,
            Self::FetchAdd => Operation::FetchAdd,
            Self::AtomicWrite => Operation::AtomicWrite,
            Self::Flush => Operation::Flush,
        }
    }

    /// Returns the rights without those that the operation needs.
    const fn other_rights(self) -> Rights {
        let all = Rights::ALL;
        match self {
            Self::Read => Rights { read: false, ..all },
            Self::CmpSwap | Self::FetchAdd => Rights {
                atomic: false,
                ..all
            },
            Self::Flush => Rights {
                flush: false,
                ..all
            },
            _ => Rights {
                write: false,
                ..all
            },
        }
    }

    /// Returns request packet `index` for `len` bytes at an address, with a payload that its
    /// operation allows. Requests without an address ignore it.
    fn request(self, conn: &Conn<'_>, index: i32, at: Target) -> PacketBuilder {
        let Target { va, rkey, len } = at;
        let packet = conn.request(self.operation(), index).ack_req();
        match self {
            Self::Send => packet.payload(&BAD),
            Self::SendImm => packet.payload(&BAD).imm(*b"imm!"),
            Self::SendInv => {
                let packet = packet.payload(&BAD);
                packet.edit(|headers| headers.ieth = Some(Ieth(rkey)))
            }
            Self::SendFirst => packet.payload(&[0xbd; 256]),
            Self::Write | Self::AtomicWrite => packet.reth(va, rkey, len).payload(&BAD),
            Self::WriteImm => {
                let packet = packet.reth(va, rkey, len).payload(&BAD);
                packet.imm(*b"imm!")
            }
            Self::WriteFirst => packet.reth(va, rkey, len.max(512)).payload(&[0xbd; 256]),
            Self::Read => packet.reth(va, rkey, len),
            Self::Flush => packet.reth(va, rkey, len).edit(|headers| {
                use rocade_wire::{Feth, Placement, Selectivity};
                let feth = Feth::new(Placement::GLOBAL_VISIBILITY, Selectivity::Range);
                headers.feth = Some(feth);
            }),
            Self::CmpSwap => packet.atomic(va, rkey, u64::MAX, 0),
            Self::FetchAdd => packet.atomic(va, rkey, 1, 0),
        }
    }
}

/// The memory that a request names.
#[derive(Clone, Copy, Debug)]
struct Target {
    va: u64,
    rkey: rocade_wire::Rkey,
    len: u32,
}

/// Returns the first 8 bytes of the first region.
fn start(conn: &Conn<'_>) -> Target {
    let region = conn.region();
    Target {
        va: region.va,
        rkey: region.rkey,
        len: 8,
    }
}

/// Bytes that must not arrive.
const BAD: [u8; 8] = [0xbd; 8];

/// The receive of cases with messages.
const RECEIVE: Buffer = Buffer::new(2048, 1024);

/// Returns a queue pair with a region of these rights, and a receive.
fn spec(rights: Rights) -> QpSpec {
    QpSpec {
        regions: vec![RegionSpec {
            rights,
            ..RegionSpec::new(4096)
        }],
        receives: vec![RECEIVE],
        ..QpSpec::default()
    }
}
