//! QP 1, the general service interface: its packets, services and ports.

#![deny(clippy::disallowed_methods)]

pub(crate) mod services;

use rocade_transport::cm::CmRoute;
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::mad::{GSI_QKEY, Mad};
use rocade_wire::{Bth, Deth, Headers, Opcode, Operation, Packet, Psn, Qpn, Service};

/// Length of a packet with a MAD.
const PACKET_LEN: usize = 12 + 8 + Mad::LEN + 4;

/// Returns the MAD in a packet to QP 1 with a right ICRC, or `None` if there is none.
//= MAD-01
//= UD-16
pub(crate) fn mad_of<'p>(packet: &Packet<'p>) -> Option<&'p [u8; Mad::LEN]> {
    let bth = packet.bth();
    let is_ud =
        bth.opcode.service() == Service::Ud && bth.opcode.operation() == Some(Operation::SendOnly);
    let deth = packet.headers().deth?;
    if bth.dest_qp != Qpn::GSI || !is_ud || deth.qkey != GSI_QKEY {
        return None;
    }
    packet.payload().try_into().ok()
}

/// Makes the packet of a MAD from QP 1 to QP 1.
//= MAD-01
pub(crate) fn packet(
    source_port: u16,
    psn: Psn,
    route: CmRoute,
    mad: &[u8; Mad::LEN],
) -> Option<[u8; PACKET_LEN]> {
    let opcode = Opcode::of(Service::Ud, Operation::SendOnly)?;
    let mut headers = Headers::new(Bth {
        //= BTH-03
        migreq: true,
        ..Bth::new(opcode, Qpn::GSI, psn)
    });
    headers.deth = Some(Deth {
        qkey: GSI_QKEY,
        src_qp: Qpn::GSI,
        resv: 0,
    });
    let mut packet = [0; PACKET_LEN];
    let at = headers.emit(&mut packet).ok()?;
    packet[at..at + Mad::LEN].copy_from_slice(mad);
    let CmRoute { local, remote } = route;
    let flow = IcrcFlow::new(local, remote, source_port)?;
    let icrc = flow.compute(0, &packet[..at + Mad::LEN]);
    packet[at + Mad::LEN..].copy_from_slice(&icrc.to_le_bytes());
    Some(packet)
}

/// The system's range of ephemeral ports.
//= CMA-13
pub(crate) fn port_range() -> (u16, u16) {
    const DEFAULT: (u16, u16) = (32_768, 60_999);
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
        let mut words = text.split_whitespace().map(str::parse);
        let range = (words.next()?.ok()?, words.next()?.ok()?);
        (range.0 > 0 && range.0 <= range.1).then_some(range)
    };
    read().unwrap_or(DEFAULT)
}
