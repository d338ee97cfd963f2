use core::net::{Ipv4Addr, Ipv6Addr};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::ip::Datagram;
use crate::packet::tests::unhex;

/// Computes the CRC-32 bit by bit, from the definition.
fn bitwise_crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 != 0 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

/// Computes the ICRC from the text of the rules, without any code of the module.
fn naive(datagram: &[u8]) -> u32 {
    let mut masked = datagram[..datagram.len() - 4].to_vec();
    let ip_len = if masked[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            masked[at] = 0xff;
        }
        20
    } else {
        masked[0] |= 0x0f;
        for at in [1, 2, 3, 7] {
            masked[at] = 0xff;
        }
        40
    };
    masked[ip_len + 6] = 0xff;
    masked[ip_len + 7] = 0xff;
    masked[ip_len + 8 + 4] = 0xff;
    let mut covered = vec![0xff; 8];
    covered.extend(masked);
    bitwise_crc(&covered)
}

const EX_1: &str = "45c2003c718c4000401191610a0011010a001201 000012b700280000 8100ffff4000011800000000 \
                    00000000000000000000000000000000 82fd002a";
const EX_2: &str = "45010040047840004011b4d5c0a80007c0a80007 c00012b7002caca2 2460ffff000000d300cf1710 \
                    4630818be28935d90e9a95505401be885e50 0000 78f353f3";
const EX_3: &str = "6681234500301140 fd000000000000000000000000000001 fd000000000000000000000000000002 \
                    c12312b700300000 0a70ffff0000012380abcdef 0000123456789000 00001234 00000005 \
                    68656c6c6f 000000 b5ad3c43";
const EX_4: &str = "4502003000004000401126b90a0000010a000002 c00112b7001c0000 1140ffff0000001100000010 \
                    1f000001 bc0a3601";

#[test]
//= ICRC-01 type=test
//= ICRC-02 type=test
//= ICRC-03 type=test
//= ICRC-04 type=test
//= ICRC-05 type=test
//= ICRC-06 type=test
//= ICRC-07 type=test
//= ICRC-08 type=test
//= ICRC-12 type=test
fn worked_examples() {
    for example in [EX_1, EX_2, EX_3, EX_4] {
        let bytes = unhex(example);
        let wire: [u8; 4] = *bytes.last_chunk().unwrap();
        assert_eq!(naive(&bytes).to_le_bytes(), wire);
        assert_eq!(datagram(&bytes).map(u32::to_le_bytes), Some(wire));

        let parsed = Datagram::parse(&bytes).unwrap();
        let covered = &parsed.udp_payload[..parsed.udp_payload.len() - 4];
        let flow = IcrcFlow::new(parsed.src, parsed.dst, parsed.src_port).unwrap();
        assert_eq!(flow.compute(parsed.ip_id, covered).to_le_bytes(), wire);
        assert_eq!(
            flow.check(parsed.ip_id, covered, wire),
            IcrcCheck::Ok {
                ip_id: parsed.ip_id
            }
        );

        let mut again = vec![0; bytes.len()];
        assert_eq!(parsed.emit(&mut again), Ok(bytes.len()));
        assert_eq!(again, bytes);
    }
}

//= EX-1 EX-2 EX-3 type=test
//= EX-4 type=test
#[test]
fn worked_examples_are_what_they_seem() {
    let line = |example| std::format!("{}", crate::PrettyDatagram(&unhex(example)));
    assert_eq!(
        line(EX_1),
        "10.0.17.1:0x0000 > 10.0.18.1 id=0x718c tos=0xc2 CNP qp=0x000118 psn=0x000000 BECN len=16"
    );
    assert_eq!(
        line(EX_2),
        "192.168.0.7:0xc000 > 192.168.0.7 id=0x0478 tos=0x01 UC SEND_ONLY qp=0x0000d3 psn=0xcf1710 \
         M len=18 pad=2"
    );
    assert_eq!(
        line(EX_3),
        "fd00::1:0xc123 > fd00::2 tos=0x68 RC RDMA_WRITE_ONLY qp=0x000123 psn=0xabcdef A M \
         va=0x123456789000 rkey=0x00001234 dma_len=5 len=5 pad=3"
    );
    assert_eq!(
        line(EX_4),
        "10.0.0.1:0xc001 > 10.0.0.2 id=0x0000 tos=0x02 RC ACKNOWLEDGE qp=0x000011 psn=0x000010 M \
         ACK msn=1 len=0"
    );
}

#[test]
//= ICRC-09 type=test
fn crc_of_the_dummy_lrh() {
    assert_eq!(bitwise_crc(&[0xff; 8]), 0x2144_df1c);
    assert_eq!(!bitwise_crc(&[0xff; 8]), 0xdebb_20e3);
    assert_eq!(crc::update(0, &[0xff; 8]), 0x2144_df1c);
}

#[test]
//= ICRC-11 type=test
fn every_bit_of_the_packet_counts() {
    // The Identification is left out: a flip there is another valid packet.
    let bytes = unhex(EX_3);
    let parsed = Datagram::parse(&bytes).unwrap();
    let flow = IcrcFlow::new(parsed.src, parsed.dst, parsed.src_port).unwrap();
    let (covered, icrc) = parsed.udp_payload.split_last_chunk().unwrap();
    for bit in 0..8 * covered.len() {
        let mut damaged = covered.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let expected =
            //= ICRC-06 type=test
            if bit / 8 == 4 { IcrcCheck::Ok { ip_id: 0 } } else { IcrcCheck::Bad };
        assert_eq!(flow.check(0, &damaged, *icrc), expected, "bit {bit}");
    }
}

#[test]
fn a_damaged_ipv4_packet_is_bad_whatever_the_prediction() {
    let bytes = unhex(EX_2);
    let parsed = Datagram::parse(&bytes).unwrap();
    let flow = IcrcFlow::new(parsed.src, parsed.dst, parsed.src_port).unwrap();
    let (covered, icrc) = parsed.udp_payload.split_last_chunk().unwrap();
    for bit in (0..8 * covered.len()).filter(|bit| bit / 8 != 4) {
        let mut damaged = covered.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(flow.check(0, &damaged, *icrc), IcrcCheck::Bad, "bit {bit}");
    }
}

#[test]
fn addresses_of_two_families_make_no_flow() {
    let v4 = IpAddr::from([10, 0, 0, 1]);
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    assert_eq!(IcrcFlow::new(v4, v6, 1), None);
    assert_eq!(IcrcFlow::new(v6, v4, 1), None);
    let mapped = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
    assert_eq!(IcrcFlow::new(v4, mapped, 1), IcrcFlow::new(v4, v4, 1));
    assert!(IcrcFlow::new(v4, mapped, 1).is_some());
}

#[test]
fn multiplying_and_dividing_by_x_are_inverse() {
    let mut a = ONE;
    for _ in 0..1_000 {
        let b = times_x(a);
        assert_eq!(over_x(b), a);
        assert_eq!(product(a, ONE), a);
        a = b;
    }
    for byte_count in [0, 1, 2, 255, 65_535, 131_071] {
        let forward = (0..8 * byte_count).fold(0x1234_5678, |a, _| times_x(a));
        assert_eq!(back(forward, byte_count), 0x1234_5678, "{byte_count} bytes");
    }
}

#[test]
fn tables_are_small() {
    let tables = [
        &UDP_LENGTH,
        &IPV4_TOTAL_LENGTH,
        &IPV4_ID,
        &IPV6_PAYLOAD_LENGTH,
    ];
    let bytes: usize = tables.iter().map(|table| size_of_val(*table)).sum();
    assert!(bytes + size_of_val(&X_BACK) <= 8 << 10);
}

#[test]
fn lengths_that_are_no_packets_do_not_panic() {
    let flow = IcrcFlow::new([1, 1, 1, 1].into(), [2, 2, 2, 2].into(), 3).unwrap();
    for len in [0, 1, 4, 5, 11, 65_535, 65_536, 70_000] {
        let covered = vec![0; len];
        let _ = flow.compute(1, &covered);
        let _ = flow.check(1, &covered, [0; 4]);
    }
    let bytes = unhex(EX_1);
    for len in 0..bytes.len() {
        assert_eq!(datagram(&bytes[..len]), None);
    }
}

fn any_covered() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 12..80),
        prop::collection::vec(any::<u8>(), 1000..1100),
        prop::collection::vec(any::<u8>(), 4096..4200),
    ]
}

fn any_flow() -> impl Strategy<Value = (IpAddr, IpAddr, u16)> {
    prop_oneof![
        any::<(Ipv4Addr, Ipv4Addr, u16)>().prop_map(|(s, d, port)| (s.into(), d.into(), port)),
        any::<(Ipv6Addr, Ipv6Addr, u16)>().prop_filter_map("mapped", |(s, d, port)| {
            let (s, d) = (IpAddr::from(s), IpAddr::from(d));
            (s.to_canonical().is_ipv6() && d.to_canonical().is_ipv6()).then_some((s, d, port))
        }),
    ]
}

/// Returns the datagram of a flow with arbitrary values in the fields that the ICRC leaves out.
fn datagram_of(
    (src, dst, src_port): (IpAddr, IpAddr, u16),
    ip_id: u16,
    payload: &[u8],
    rest: u8,
) -> Vec<u8> {
    let v4 = src.is_ipv4();
    let parsed = Datagram {
        src,
        dst,
        ip_id: if v4 { ip_id } else { 0 },
        dont_fragment: true,
        flow_label: if v4 { 0 } else { u32::from(rest) },
        tos: rest,
        ttl: rest,
        src_port,
        dst_port: ROCE_UDP_PORT,
        udp_checksum: rest.into(),
        udp_payload: payload,
    };
    let mut bytes = vec![0; parsed.len()];
    parsed.emit(&mut bytes).unwrap();
    bytes
}

proptest! {
    #[test]
    fn flow_agrees_with_the_datagram_and_with_the_rules(
        flow in any_flow(), ip_id: u16, covered in any_covered(), rest: u8,
    ) {
        let mut payload = covered.clone();
        payload.extend([0; 4]);
        let bytes = datagram_of(flow, ip_id, &payload, rest);
        let expected = naive(&bytes);
        prop_assert_eq!(datagram(&bytes), Some(expected));
        let flow = IcrcFlow::new(flow.0, flow.1, flow.2).unwrap();
        prop_assert_eq!(flow.compute(ip_id, &covered), expected);
    }

    #[test]
    fn filled_in_on_the_way_it_is_the_same_icrc(
        flow in any_flow(), ip_id: u16, covered in any_covered(), a: prop::sample::Index, b: prop::sample::Index,
    ) {
        let flow = IcrcFlow::new(flow.0, flow.1, flow.2).unwrap();
        let start = 12 + a.index(covered.len() - 11);
        let payload = start..start + b.index(covered.len() - start + 1);
        let mut filled = covered.clone();
        filled[payload.clone()].fill(0);
        let icrc = flow.of_len(covered.len()).compute_filling(ip_id, &mut filled, payload.clone(), |crc, head, room| {
            room.copy_from_slice(&covered[payload]);
            crc::update(crc::update(crc, head), room)
        });
        prop_assert_eq!(icrc, flow.compute(ip_id, &covered));
        prop_assert_eq!(filled, covered);
    }

    #[test]
    fn any_identification_is_found(
        flow in any::<(Ipv4Addr, Ipv4Addr, u16)>(), ip_id: u16, predicted: u16, covered in any_covered(),
    ) {
        let flow = IcrcFlow::new(flow.0.into(), flow.1.into(), flow.2).unwrap();
        let icrc = flow.compute(ip_id, &covered).to_le_bytes();
        prop_assert_eq!(flow.check(predicted, &covered, icrc), IcrcCheck::Ok { ip_id });
    }

    #[test]
    fn what_is_accepted_is_right(
        flow in any::<(Ipv4Addr, Ipv4Addr, u16)>(), predicted: u16, covered in any_covered(), icrc: [u8; 4],
    ) {
        let flow = IcrcFlow::new(flow.0.into(), flow.1.into(), flow.2).unwrap();
        if let IcrcCheck::Ok { ip_id } = flow.check(predicted, &covered, icrc) {
            prop_assert_eq!(flow.compute(ip_id, &covered).to_le_bytes(), icrc);
        }
    }
}

#[test]
fn all_65536_identifications_are_found() {
    let flow = IcrcFlow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc001).unwrap();
    let covered: Vec<u8> = (0u8..=99).collect();
    for ip_id in 0..=u16::MAX {
        let icrc = flow.compute(ip_id, &covered).to_le_bytes();
        assert_eq!(flow.check(0x5a5a, &covered, icrc), IcrcCheck::Ok { ip_id });
    }
}

#[test]
fn one_random_value_in_65536_passes() {
    // Of 2^32 values, 2^16 are the ICRC of some Identification. They are counted in a uniform
    // sample.
    let flow = IcrcFlow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc001).unwrap();
    let covered = [0x5a; 40];
    let samples = (0..1u32 << 18).map(|n| n.wrapping_mul(0x9e37_79b1));
    let passed = samples
        .filter(|icrc| flow.check(0, &covered, icrc.to_le_bytes()) != IcrcCheck::Bad)
        .count();
    assert!(passed < 24, "{passed} of 2^18 passed, 4 expected");
}
