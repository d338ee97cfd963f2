//! Packet formats of RoCEv2: the headers of the InfiniBand transport, the IP/UDP encapsulation and
//! the invariant CRC (ICRC).
//!
//! The crate turns bytes into headers and headers into bytes and holds no state: no queue pairs, no
//! timers, no sockets. It neither allocates nor panics, whatever a peer sends.
//!
//! | layer | module | types |
//! |---|---|---|
//! | identifiers and encoded quantities | [`psn`], [`ids`], [`codes`] | [`Psn`], [`Qpn`], [`RnrTimer`], … |
//! | operation codes | [`opcode`] | [`Opcode`], [`Operation`], one const table |
//! | headers | [`headers`] | [`Bth`], [`Reth`], [`Aeth`], …, all of a packet: [`Headers`] |
//! | packets | [`packet`], [`pretty`] | [`Packet`]: a view that is length-checked once |
//! | encapsulation | [`ip`], [`icrc`], [`crc`] | [`ip::Datagram`], [`icrc::IcrcFlow`] |
//! | packets that offloads have joined | [`segments`] | [`segments::Segments`] |
//!
//! All decisions of this crate about a packet depend on that packet alone. Rules that need the
//! state of a queue pair (path MTU, expected PSN, access rights) belong to `rocade-transport`.
//! Comments of the form `//= RULE` name the rule of the specification that the line enforces.
//!
//! # Example
//!
//! ```
//! use rocade_wire::{Aeth, Bth, CreditCode, Headers, Msn, Opcode, Operation, Packet, Psn, Qpn, Service, Syndrome};
//! use rocade_wire::icrc::{IcrcCheck, IcrcFlow};
//!
//! let opcode = Opcode::of(Service::Rc, Operation::Acknowledge).ok_or("no such opcode")?;
//! let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x11), Psn::new(0x10)));
//! headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(CreditCode::INVALID), msn: Msn::new(1) });
//!
//! let mut buffer = [0; 64];
//! let len = headers.emit(&mut buffer)?;
//! let flow = IcrcFlow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc001).ok_or("families differ")?;
//! let icrc = flow.compute(0, &buffer[..len]);
//! buffer[len..len + 4].copy_from_slice(&icrc.to_le_bytes());
//!
//! let packet = Packet::parse(&buffer[..len + 4])?;
//! assert_eq!(packet.headers(), &headers);
//! assert_eq!(flow.check(0, packet.covered(), packet.icrc_bytes()), IcrcCheck::Ok { ip_id: 0 });
//! println!("{packet}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]
#![deny(unsafe_code)]
// A new service or operation is asked for in each place that depends on it.
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod codes;
#[expect(
    unsafe_code,
    reason = "SIMD loads and stores, copies from registered memory"
)]
pub mod crc;
mod fast_path;
pub mod headers;
pub mod icrc;
pub mod ids;
pub mod ip;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod pretty;
pub mod psn;
pub mod segments;

pub use codes::{AckTimeout, CreditCode, Mtu, RnrTimer};
pub use fast_path::FastPathPacket;
pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CNP_BODY_LEN, DcEth, DcRespEth, Deth, Feth, Headers, Ieth,
    ImmDt, MAX_HEADERS_LEN, MaskedEth, NakCode, Placement, Rdeth, Reth, RocadeProbe, Selectivity,
    Syndrome, Truncated, XrcEth,
};
pub use ids::{Gid, Guid, Lkey, Msn, Pkey, Qkey, Qpn, Rkey};
pub use opcode::{ExtHeaders, Opcode, Operation, OperationKind, PayloadRule, Service};
pub use packet::{ICRC_LEN, Packet, PacketError};
pub use pretty::PrettyDatagram;
pub use psn::Psn;

/// UDP destination port of every RoCEv2 packet.
//= ENC-02
pub const ROCE_UDP_PORT: u16 = 4791;
