use std::format;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::PrettyDatagram;

fn any_addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<(Ipv4Addr, Ipv4Addr)>().prop_map(|(src, dst)| (src.into(), dst.into())),
        any::<(Ipv6Addr, Ipv6Addr)>().prop_map(|(src, dst)| (src.into(), dst.into())),
    ]
}

fn example(payload: &[u8]) -> Datagram<'_> {
    Datagram {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        ip_id: 0x1234,
        dont_fragment: true,
        flow_label: 0,
        tos: 2,
        ttl: 64,
        src_port: 0xc001,
        dst_port: ROCE_UDP_PORT,
        udp_checksum: 0,
        udp_payload: payload,
    }
}

fn bytes_of(datagram: &Datagram<'_>) -> Vec<u8> {
    let mut bytes = vec![0; datagram.len()];
    assert_eq!(datagram.emit(&mut bytes), Ok(bytes.len()));
    bytes
}

/// Returns a header with one byte changed and a corrected checksum.
fn altered(at: usize, value: u8) -> Vec<u8> {
    let mut bytes = bytes_of(&example(b"0123456789abcdef"));
    bytes[at] = value;
    bytes[10..12].fill(0);
    let sum = checksum(&bytes[..20]);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
//= ENC-07 type=test
//= ENC-09 type=test
fn what_cannot_be_roce_is_refused() {
    assert_eq!(Datagram::parse(&[]), Err(IpError::Truncated));
    assert_eq!(Datagram::parse(&[0x50; 60]), Err(IpError::Version(5)));
    assert_eq!(Datagram::parse(&altered(0, 0x46)), Err(IpError::Options));
    assert_eq!(Datagram::parse(&altered(6, 0x20)), Err(IpError::Fragment));
    assert_eq!(Datagram::parse(&altered(7, 1)), Err(IpError::Fragment));
    assert_eq!(Datagram::parse(&altered(6, 0xc0)), Err(IpError::Fragment));
    assert_eq!(Datagram::parse(&altered(9, 6)), Err(IpError::Protocol(6)));
    assert_eq!(Datagram::parse(&altered(3, 43)), Err(IpError::UdpLength));
    assert_eq!(Datagram::parse(&altered(3, 45)), Err(IpError::Truncated));
    assert_eq!(Datagram::parse(&altered(3, 27)), Err(IpError::Truncated));
    assert_eq!(Datagram::parse(&altered(3, 0)), Err(IpError::Truncated));
    assert_eq!(Datagram::parse(&altered(25, 23)), Err(IpError::UdpLength));
    let mut bytes = altered(8, 64);
    bytes[8] = 63;
    assert_eq!(Datagram::parse(&bytes), Err(IpError::HeaderChecksum));
    let mut bytes = [0x60; 60];
    bytes[6] = 0;
    assert_eq!(Datagram::parse(&bytes), Err(IpError::Protocol(0)));
    bytes[6] = 17;
    assert_eq!(Datagram::parse(&bytes), Err(IpError::Truncated));
}

#[test]
fn no_prefix_panics() {
    let v4 = example(b"0123456789abcdef");
    let v6 = Datagram {
        src: Ipv6Addr::LOCALHOST.into(),
        dst: Ipv6Addr::LOCALHOST.into(),
        ..v4
    };
    for bytes in [bytes_of(&v4), bytes_of(&v6)] {
        for len in 0..bytes.len() {
            assert_eq!(Datagram::parse(&bytes[..len]), Err(IpError::Truncated));
        }
        assert!(Datagram::parse(&bytes).is_ok());
    }
}

#[test]
//= ENC-16 type=test
fn ethernet_padding_is_ignored() {
    let datagram = example(b"0123456789abcdef");
    let mut bytes = bytes_of(&datagram);
    bytes.extend([0xee; 7]);
    assert_eq!(Datagram::parse(&bytes), Ok(datagram));
}

#[test]
fn what_cannot_be_written_is_refused() {
    let datagram = example(b"0123456789abcdef");
    assert_eq!(
        datagram.emit(&mut [0; 43]),
        Err(EmitError::Truncated(Truncated {
            needed_len: 44,
            actual_len: 43
        }))
    );
    let mixed = Datagram {
        dst: Ipv6Addr::LOCALHOST.into(),
        ..datagram
    };
    assert_eq!(mixed.emit(&mut [0; 100]), Err(EmitError::MixedFamilies));
    assert_eq!(mixed.compute_udp_checksum(), 0);
    assert_eq!(mixed.grh(), [0; GRH_LEN]);

    let payload = vec![0; 65_528];
    let mut out = vec![0; 70_000];
    let v4 = |len| Datagram {
        udp_payload: &payload[..len],
        ..datagram
    };
    let v6 = |len| Datagram {
        src: Ipv6Addr::LOCALHOST.into(),
        dst: Ipv6Addr::LOCALHOST.into(),
        ..v4(len)
    };
    assert_eq!(v4(65_507).emit(&mut out), Ok(65_535));
    assert_eq!(v4(65_508).emit(&mut out), Err(EmitError::TooLong));
    assert_eq!(v6(65_527).emit(&mut out), Ok(65_575));
    assert_eq!(v6(65_528).emit(&mut out), Err(EmitError::TooLong));
}

#[test]
//= GRH-01 type=test
//= GRH-02 type=test
//= GRH-03 type=test
//= GRH-04 type=test
fn network_header_of_a_receive_buffer() {
    let datagram = example(b"0123456789abcdef");
    let grh = datagram.grh();
    assert_eq!(grh[..20], [0; 20]);
    assert_eq!(grh[20..], bytes_of(&datagram)[..20]);
    //= GRH-05 type=test
    assert_eq!(checksum(&grh[20..]), 0);

    let v6 = Datagram {
        src: "fd77::2".parse().unwrap(),
        dst: "fd77::3".parse().unwrap(),
        flow_label: 0x12345,
        tos: 0x68,
        ..datagram
    };
    let grh = v6.grh();
    assert_eq!(grh[..], bytes_of(&v6)[..40]);
    assert_eq!(grh[..8], [0x66, 0x81, 0x23, 0x45, 0, 24, 17, 64]);
}

#[test]
//= ENC-06 type=test
fn udp_checksum() {
    let mut datagram = Datagram {
        src_port: 1,
        dst_port: 2,
        ..example(b"abc")
    };
    assert!(datagram.udp_checksum_is_valid());
    datagram.udp_checksum = datagram.compute_udp_checksum();
    assert!(datagram.udp_checksum_is_valid());
    // Computed by hand: 0a00+0001+0a00+0002 + 0011 + 000b + 0001+0002+000b + 6162+6300 = d88f.
    assert_eq!(datagram.udp_checksum, !0xd88f);
    datagram.udp_checksum ^= 1;
    assert!(!datagram.udp_checksum_is_valid());
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    let payload = [0, 0];
    let mut datagram = example(&payload);
    datagram.udp_payload = &[];
    let missing = datagram.compute_udp_checksum();
    // The payload adds two bytes to both length fields, and so 4 to the sum.
    let payload = (missing - 4).to_be_bytes();
    datagram.udp_payload = &payload;
    assert_eq!(datagram.compute_udp_checksum(), 0xffff);
}

#[test]
//= ENC-04 type=test
//= ENC-05 type=test
fn source_ports() {
    assert_eq!(source_port_of_flow_label(0), 0xc000);
    assert_eq!(
        source_port_of_flow_label(0xf_ffff),
        0xc000 | (0x3fff ^ 0x3f)
    );
    assert_eq!(source_port_of_flow_label(0x1_2345), 0xc000 | (0x2345 ^ 0x4));
    for (one, other) in [(0x59, 0x58), (0x11, 0xff_ffff), (0, 7)] {
        let (one, other) = (Qpn::new(one), Qpn::new(other));
        assert_eq!(
            flow_label_of_qpns(one, other),
            flow_label_of_qpns(other, one)
        );
        assert!(flow_label_of_qpns(one, other) < 1 << 20);
    }
    assert_eq!(flow_label_of_qpns(Qpn::new(0x59), Qpn::new(0x58)), 0x1e98);
    // (2^24-1)^2 = 0xfffffe000001: 0xe000001 ^ 0xfffffe0 in the low 28 bits, then ^ 0xff.
    assert_eq!(flow_label_of_qpns(Qpn::MULTICAST, Qpn::MULTICAST), 0xf_ff1e);
}

#[test]
fn printed_in_one_line() {
    let bytes = bytes_of(&example(b"not a packet"));
    assert_eq!(
        format!("{}", PrettyDatagram(&bytes)),
        "10.0.0.1:0xc001 > 10.0.0.2 id=0x1234 tos=0x02 (shorter than BTH and ICRC) BAD_ICRC"
    );
    assert_eq!(
        format!("{}", PrettyDatagram(&[0; 3])),
        "(IP version 0) 3 bytes"
    );
    let dns = Datagram {
        dst_port: 53,
        ..example(b"x")
    };
    assert_eq!(
        format!("{}", PrettyDatagram(&bytes_of(&dns))),
        "10.0.0.1:0xc001 > 10.0.0.2:53 udp_len=1"
    );
}

proptest! {
    #[test]
    fn emit_then_parse(
        (src, dst) in any_addresses(), ip_id: u16, dont_fragment: bool, flow_label in 0u32..1 << 20,
        tos: u8, ttl: u8, src_port: u16, dst_port: u16, udp_checksum: u16,
        payload in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let v4 = src.is_ipv4();
        let datagram = Datagram {
            src, dst, tos, ttl, src_port, dst_port, udp_checksum,
            ip_id: if v4 { ip_id } else { 0 },
            dont_fragment: dont_fragment || !v4,
            flow_label: if v4 { 0 } else { flow_label },
            udp_payload: &payload,
        };
        let bytes = bytes_of(&datagram);
        prop_assert_eq!(Datagram::parse(&bytes), Ok(datagram));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), first in 0u8..3) {
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() {
            *byte = [0x45, 0x60, *byte][usize::from(first)];
        }
        if let Ok(datagram) = Datagram::parse(&bytes) {
            prop_assert_eq!(&bytes_of(&datagram), &bytes[..datagram.len()]);
        }
        let printed = format!("{}", PrettyDatagram(&bytes));
        prop_assert!(!printed.contains('\n'));
    }
}
