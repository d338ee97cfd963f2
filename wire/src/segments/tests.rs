use core::net::IpAddr;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{Opcode, Operation, Service};

const PORT: u16 = 0xc123;

fn v4() -> [IpAddr; 2] {
    [[127, 0, 0, 1].into(), [127, 0, 0, 2].into()]
}

fn v6() -> [IpAddr; 2] {
    ["fd77::1", "fd77::2"].map(|text| text.parse().unwrap())
}

/// Returns a packet with this many bytes behind its BTH, of a content that depends on `psn`.
fn packet(ends: [IpAddr; 2], operation: Operation, psn: u32, len: usize, ip_id: u16) -> Vec<u8> {
    let opcode = Opcode::of(Service::Rc, operation).unwrap();
    let mut bytes = vec![opcode.get(), 0, 0xff, 0xff, 0, 0, 0, 0x11, 0];
    bytes.extend(&psn.to_be_bytes()[1..]);
    bytes.extend((0..len).map(|n| u8::try_from((n * 7 + n / 256) % 251).unwrap()));
    let flow = IcrcFlow::new(ends[0], ends[1], PORT).unwrap();
    let icrc = flow.compute(ip_id, &bytes).to_le_bytes();
    bytes.extend(icrc);
    bytes
}

fn datagram(ends: [IpAddr; 2], ip_id: u16, udp_payload: &[u8]) -> Datagram<'_> {
    Datagram {
        src: ends[0],
        dst: ends[1],
        ip_id,
        dont_fragment: true,
        flow_label: 0,
        tos: 0,
        ttl: 64,
        src_port: PORT,
        dst_port: 4791,
        udp_checksum: 0,
        udp_payload,
    }
}

/// Joins packets and cuts them again. Returns the ICRC verdicts and the Identifications.
fn cut(ends: [IpAddr; 2], ip_id: u16, packets: &[Vec<u8>]) -> Option<(Vec<bool>, Vec<u16>)> {
    let joined = packets.concat();
    let segments = Segments::of(&datagram(ends, ip_id, &joined))?.collect::<Vec<_>>();
    let parts: Vec<_> = segments.iter().map(|segment| segment.udp_payload).collect();
    assert_eq!(parts, packets);
    Some(
        segments
            .iter()
            .map(|segment| (segment.icrc_is_right, segment.ip_id))
            .unzip(),
    )
}

/// Linux numbers the packets of a run, on IPv4.
#[test]
//= ICRC-08 type=test
fn full_packets_and_a_shorter_last_one() {
    for (ends, step) in [(v4(), 1), (v6(), 0)] {
        for (mtu, count) in [(256, 60), (1024, 56), (4096, 15)] {
            let packets: Vec<_> = (0..count)
                .map(|n: u16| {
                    let is_last = n + 1 == count;
                    let (operation, len) = match is_last {
                        true => (Operation::WriteLast, mtu - 100),
                        false => (Operation::WriteMiddle, mtu),
                    };
                    packet(ends, operation, n.into(), len, n * step)
                })
                .collect();
            let (right, ids) = cut(ends, 0, &packets).unwrap();
            assert_eq!(right, vec![true; usize::from(count)]);
            assert_eq!(ids, (0..count).map(|n| n * step).collect::<Vec<_>>());
        }
    }
}

/// A message, and the ACK behind it.
#[test]
fn short_packets_are_cut_by_their_icrc() {
    for len in [0, 4, 8, 64, 1000, 4096] {
        let message = packet(v4(), Operation::SendOnly, 9, len, 40);
        let ack = packet(v4(), Operation::Acknowledge, 3, 4, 41);
        if ack.len() <= message.len() {
            let expected = Some((vec![true, true], vec![40, 41]));
            assert_eq!(cut(v4(), 40, &[message, ack]), expected, "{len}");
        }
    }
}

/// GRO joins packets of any Identifications, also damaged ones.
#[test]
fn a_damaged_packet_spoils_no_other() {
    let ids = [7, 9000, 3, 3, 12];
    let packets = |bad: usize| -> Vec<_> {
        let of = |(n, id): (usize, &u16)| {
            let psn = u32::try_from(n).unwrap();
            let mut packet = packet(v4(), Operation::ReadResponseMiddle, psn, 1024, *id);
            if n == bad {
                packet[500] ^= 0x10;
            }
            packet
        };
        ids.iter().enumerate().map(of).collect()
    };
    for bad in 0..ids.len() {
        let (right, found) = cut(v4(), ids[0], &packets(bad)).unwrap();
        for n in 0..ids.len() {
            assert_eq!(right[n], n != bad, "{n} of {right:?}");
            assert!(n == bad || found[n] == ids[n], "{found:?}");
        }
    }
}

#[test]
fn one_packet_is_not_cut() {
    let mut one = packet(v4(), Operation::SendOnly, 1, 4000, 5);
    assert!(Segments::of(&datagram(v4(), 5, &one)).is_none());
    one[100] ^= 1;
    assert!(Segments::of(&datagram(v4(), 5, &one)).is_none(), "damaged");
    let two = [
        packet(v4(), Operation::SendOnly, 1, 400, 0),
        packet(v4(), Operation::SendOnly, 2, 400, 1),
    ]
    .concat();
    assert_eq!(Segments::of(&datagram(v4(), 0, &two)).unwrap().count(), 2);
    let with_fragments = Datagram {
        dont_fragment: false,
        ..datagram(v4(), 0, &two)
    };
    assert!(Segments::of(&with_fragments).is_none());
}

proptest! {
    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..3000), id in any::<u16>()) {
        let count = Segments::of(&datagram(v4(), id, &bytes)).map_or(0, Iterator::count);
        prop_assert!(count <= bytes.len() / Packet::MIN_LEN + 1);
    }
}
