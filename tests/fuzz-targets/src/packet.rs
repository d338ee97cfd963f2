//! Bytes as they arrive from the network, through all functions of `rocade-wire`.
//!
//! The input is a UDP payload if its first byte is even, and otherwise a datagram from the IP
//! header on. The first byte itself is not part of either.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rocade_wire::icrc::{self, IcrcCheck, IcrcFlow};
use rocade_wire::ip::Datagram;
use rocade_wire::{Packet, PrettyDatagram};

/// Runs one input.
pub fn run(input: &[u8]) {
    match input.split_first() {
        Some((first, udp_payload)) if first % 2 == 0 => packet(udp_payload),
        Some((_, ip_datagram)) => datagram(ip_datagram),
        None => {}
    }
}

/// Parses, prints, and writes again.
fn packet(udp_payload: &[u8]) {
    let Ok(packet) = Packet::parse(udp_payload) else {
        return;
    };
    assert!(!packet.to_string().contains('\n'));
    assert!(packet.headers().agrees_with_opcode());

    let mut again = vec![0; packet.headers().len()];
    let headers_len = packet
        .headers()
        .emit(&mut again)
        .expect("the buffer is long enough");
    assert_eq!(headers_len, again.len());
    again.extend(packet.payload());
    again.extend(packet.pad());
    assert_eq!(again, packet.covered());
    again.extend(packet.icrc_bytes());
    assert_eq!(again, udp_payload);

    checksum(&packet);
}

/// Checks that an ICRC that is accepted is correct, and that a computed ICRC is accepted.
fn checksum(packet: &Packet<'_>) {
    let covered = packet.covered();
    let guess = u16::from_be_bytes([covered[9], covered[10]]);
    for (src, dst) in [
        (
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V4(Ipv4Addr::BROADCAST),
        ),
        (
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        ),
    ] {
        let flow = IcrcFlow::new(src, dst, 0xc000).expect("both are of one family");
        if let IcrcCheck::Ok { ip_id } = flow.check(guess, covered, packet.icrc_bytes()) {
            assert_eq!(
                flow.compute(ip_id, covered).to_le_bytes(),
                packet.icrc_bytes()
            );
        }
        let ip_id = if src.is_ipv4() { 0x1234 } else { guess };
        let icrc = flow.compute(ip_id, covered).to_le_bytes();
        assert_eq!(flow.check(guess, covered, icrc), IcrcCheck::Ok { ip_id });
    }
}

fn datagram(bytes: &[u8]) {
    assert!(!PrettyDatagram(bytes).to_string().contains('\n'));
    let whole = icrc::datagram(bytes);
    let Ok(datagram) = Datagram::parse(bytes) else {
        return;
    };
    let mut again = vec![0; datagram.len()];
    assert_eq!(datagram.emit(&mut again), Ok(again.len()));
    assert_eq!(again, bytes[..again.len()]);
    let _ = (datagram.udp_checksum_is_valid(), datagram.grh());

    let Some((covered, _)) = datagram.udp_payload.split_last_chunk::<4>() else {
        return;
    };
    let flow = IcrcFlow::new(datagram.src, datagram.dst, datagram.src_port);
    if let Some(flow) = flow
        && covered.len() >= 12
        && datagram.is_roce()
        && datagram.dont_fragment
        // A mapped address makes the flow IPv4, even if the datagram is IPv6.
        && datagram.src.to_canonical() == datagram.src
    {
        assert_eq!(whole, Some(flow.compute(datagram.ip_id, covered)));
    }
    packet(datagram.udp_payload);
}
