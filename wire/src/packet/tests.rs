use std::format;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{AtomicEth, ExtHeaders, Opcode, Pkey, Psn, Qpn, Rdeth};

/// Returns the bytes of a packet with this length of headers and `tail_len` bytes after them,
/// without ICRC.
fn bytes_of(opcode: u8, pad_count: u8, tail_len: usize) -> Vec<u8> {
    let ext = Opcode::new(opcode).ext().unwrap_or(ExtHeaders::empty());
    let mut bytes = vec![0; Bth::LEN + ext.len_bytes() + tail_len];
    bytes[0] = opcode;
    bytes[1] = pad_count << 4;
    bytes.extend(b"icrc");
    bytes
}

#[test]
//= ENC-16 type=test
fn shortest_packet_of_each_code() {
    for opcode in 0..=u8::MAX {
        let tail_len = if opcode == 0x81 { 16 } else { 0 };
        let bytes = bytes_of(opcode, 0, tail_len);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.payload().len(), tail_len);
        assert_eq!(packet.icrc_bytes(), *b"icrc");
        assert_eq!(packet.covered(), &bytes[..bytes.len() - 4]);
        assert_eq!(packet.as_bytes(), bytes);
        for len in 0..bytes.len() {
            let error = Packet::parse(&bytes[..len]).unwrap_err();
            let expected = if len < 16 {
                PacketError::TooShort
            } else {
                PacketError::HeadersTruncated
            };
            assert_eq!(error, expected, "opcode {opcode:#04x} length {len}");
        }
    }
}

#[test]
//= BTH-04 type=test
//= ENC-16 type=test
fn pad_is_no_payload() {
    for pad_count in 0..4u8 {
        for tail_len in 0..8 {
            let bytes = bytes_of(0x04, pad_count, tail_len);
            match Packet::parse(&bytes) {
                Ok(packet) => {
                    assert_eq!(packet.pad().len(), usize::from(pad_count));
                    assert_eq!(packet.payload().len(), tail_len - packet.pad().len());
                }
                Err(error) => {
                    assert_eq!(error, PacketError::PadTruncated);
                    assert!(tail_len < usize::from(pad_count));
                }
            }
        }
    }
}

#[test]
//= BTH-05 type=test
fn other_versions_are_refused() {
    for version in 1..16 {
        let mut bytes = bytes_of(0x04, 0, 0);
        bytes[1] |= version;
        assert_eq!(
            Packet::parse(&bytes).unwrap_err(),
            PacketError::TransportVersion(version)
        );
    }
}

#[test]
fn reserved_codes_have_no_extension_headers() {
    for opcode in [0x15, 0x1f, 0x36, 0x66, 0x80, 0xde, 0xff] {
        let bytes = bytes_of(opcode, 1, 9);
        let packet = Packet::parse(&bytes).unwrap();
        assert!(packet.headers().ext().is_empty());
        assert_eq!(packet.payload().len(), 8);
    }
}

#[test]
fn printed_in_one_line() {
    let hex = "0a70ffff0000012380abcdef00001234567890000000123400000005 68656c6c6f000000b5ad3c43";
    let packet_bytes = unhex(hex);
    let packet = Packet::parse(&packet_bytes).unwrap();
    assert_eq!(
        format!("{packet}"),
        "RC RDMA_WRITE_ONLY qp=0x000123 psn=0xabcdef A M va=0x123456789000 rkey=0x00001234 \
         dma_len=5 len=5 pad=3"
    );
}

#[test]
fn everything_unusual_is_printed() {
    let mut headers = Headers::cnp(Qpn::new(0x118), Pkey::new(0x8001));
    headers.bth.solicited = true;
    headers.bth.fecn = true;
    headers.bth.resv7 = 1;
    assert_eq!(
        format!("{headers}"),
        "CNP qp=0x000118 psn=0x000000 SE FECN BECN pkey=0x8001 tver=0 resv=0x0,0x1"
    );
    let mut headers = Headers::new(Bth::new(Opcode::new(0x53), Qpn::new(2), Psn::new(3)));
    headers.rdeth = Some(Rdeth {
        resv: 0,
        ee_context: 4,
    });
    headers.atomic = Some(AtomicEth::default());
    assert_eq!(
        format!("{headers}"),
        "RD CMP_SWAP qp=0x000002 psn=0x000003 M ee=0x000004 va=0x0 rkey=0x00000000 swap_add=0x0 \
         compare=0x0"
    );
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| u8::try_from(digit).unwrap())
        .collect();
    digits
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[high, low]| high << 4 | low)
        .collect()
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            let printed = format!("{packet}");
            prop_assert!(!printed.contains('\n'));
        }
    }

    #[test]
    fn the_parts_add_up(opcode: u8, flags in 0u8..16, bytes in prop::collection::vec(any::<u8>(), 90)) {
        let mut bytes = bytes;
        bytes[0] = opcode;
        bytes[1] = flags << 4;
        let packet = Packet::parse(&bytes).unwrap();
        let mut again = vec![0; packet.headers().len()];
        packet.headers().emit(&mut again).unwrap();
        again.extend(packet.payload());
        again.extend(packet.pad());
        prop_assert_eq!(again.as_slice(), packet.covered());
        again.extend(packet.icrc_bytes());
        prop_assert_eq!(again, bytes);
    }
}
