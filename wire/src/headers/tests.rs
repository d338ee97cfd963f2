use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{Msn, Operation, Qkey, Service};

/// Generates any headers of any opcode, with all bits that the wire has.
fn any_headers() -> impl Strategy<Value = Headers> {
    (
        any::<u8>(),
        prop::collection::vec(any::<u8>(), MAX_HEADERS_LEN),
    )
        .prop_map(|(opcode, mut bytes)| {
            bytes[0] = opcode;
            Headers::parse(&bytes).unwrap().0
        })
}

#[test]
//= BTH-02 type=test
//= BTH-03 type=test
//= BTH-04 type=test
//= BTH-05 type=test
//= BTH-07 type=test
//= BTH-08 type=test
//= BTH-11 type=test
fn each_bth_field_has_its_bits() {
    let zero = Bth {
        migreq: false,
        pkey: Pkey::new(0),
        ..Bth::new(Opcode::new(0), Qpn::new(0), Psn::new(0))
    };
    assert_eq!(zero.to_bytes(), [0; 12]);
    type Change = fn(&mut Bth);
    let cases: [(Change, usize, &[u8]); 13] = [
        (|b| b.opcode = Opcode::new(0xff), 0, &[0xff]),
        (|b| b.solicited = true, 1, &[0x80]),
        (|b| b.migreq = true, 1, &[0x40]),
        (|b| b.pad_count = 3, 1, &[0x30]),
        (|b| b.tver = 15, 1, &[0x0f]),
        (|b| b.pkey = Pkey::new(0x1234), 2, &[0x12, 0x34]),
        (|b| b.fecn = true, 4, &[0x80]),
        (|b| b.becn = true, 4, &[0x40]),
        (|b| b.resv6 = 0x3f, 4, &[0x3f]),
        (|b| b.dest_qp = Qpn::new(0x12_3456), 5, &[0x12, 0x34, 0x56]),
        (|b| b.ack_req = true, 8, &[0x80]),
        (|b| b.resv7 = 0x7f, 8, &[0x7f]),
        (|b| b.psn = Psn::new(0x12_3456), 9, &[0x12, 0x34, 0x56]),
    ];
    for (change, at, field) in cases {
        let mut bth = zero;
        change(&mut bth);
        let mut expected = [0; 12];
        expected[at..at + field.len()].copy_from_slice(field);
        assert_eq!(bth.to_bytes(), expected);
        assert_eq!(Bth::from_bytes(&expected), bth);
    }
}

#[test]
fn values_too_large_for_their_field_do_not_spill() {
    let mut bth = Bth::new(Opcode::new(4), Qpn::new(1), Psn::new(2));
    let good = bth.to_bytes();
    bth.pad_count = 0xfc;
    bth.tver = 0xf0;
    bth.resv6 = 0xc0;
    bth.resv7 = 0x80;
    assert_eq!(bth.to_bytes(), good);
}

#[test]
//= BTH-04 type=test
fn pad_makes_a_multiple_of_four() {
    for len in 0..64 {
        let pad = Bth::pad_for(len);
        assert!(
            pad < 4 && (len + usize::from(pad)).is_multiple_of(4),
            "{len}"
        );
    }
}

#[test]
//= ETH-01 type=test
//= ETH-02 type=test
//= ETH-03 type=test
//= ETH-04 type=test
//= ETH-05 type=test
//= ETH-08 type=test
//= ETH-10 type=test
fn layouts() {
    let count_up = |len: usize| (1u8..).take(len).collect::<Vec<u8>>();
    let bytes = count_up(16);
    let reth = Reth {
        va: 0x0102_0304_0506_0708,
        rkey: Rkey::new(0x090a_0b0c),
        dma_len: 0x0d0e_0f10,
    };
    assert_eq!(reth.to_bytes().as_slice(), bytes);
    let bytes = count_up(28);
    let atomic = AtomicEth {
        va: 0x0102_0304_0506_0708,
        rkey: Rkey::new(0x090a_0b0c),
        swap_add: 0x0d0e_0f10_1112_1314,
        compare: 0x1516_1718_191a_1b1c,
    };
    assert_eq!(atomic.to_bytes().as_slice(), bytes);
    //= XAW-03 type=test
    let bytes = count_up(16);
    let masked = MaskedEth {
        va: 0x0102_0304_0506_0708,
        rkey: Rkey::new(0x090a_0b0c),
        log_size: 13,
        resv: [14, 15, 16],
    };
    assert_eq!(MaskedEth::from_bytes(bytes.first_chunk().unwrap()), masked);
    assert_eq!(masked.to_bytes().as_slice(), bytes);
    let deth = Deth {
        qkey: Qkey::new(0x0102_0304),
        resv: 5,
        src_qp: Qpn::new(0x06_0708),
    };
    assert_eq!(deth.to_bytes().as_slice(), count_up(8));
    assert_eq!(
        XrcEth {
            resv: 1,
            srqn: 0x02_0304
        }
        .to_bytes(),
        [1, 2, 3, 4]
    );
    assert_eq!(
        Rdeth {
            resv: 1,
            ee_context: 0x02_0304
        }
        .to_bytes(),
        [1, 2, 3, 4]
    );
    let aeth = Aeth {
        syndrome: Syndrome::from_code(0x2e),
        msn: Msn::new(0x02_0304),
    };
    assert_eq!(aeth.to_bytes(), [0x2e, 2, 3, 4]);
    let ack = AtomicAckEth {
        original: 0x0102_0304_0506_0708,
    };
    assert_eq!(ack.to_bytes().as_slice(), count_up(8));
}

#[test]
fn numbers_of_24_bits_do_not_spill_into_the_reserved_byte() {
    assert_eq!(
        XrcEth {
            resv: 0,
            srqn: u32::MAX
        }
        .to_bytes(),
        [0, 0xff, 0xff, 0xff]
    );
    assert_eq!(
        Rdeth {
            resv: 0,
            ee_context: u32::MAX
        }
        .to_bytes(),
        [0, 0xff, 0xff, 0xff]
    );
}

#[test]
//= ETH-09 type=test
fn flush_fields() {
    let both = Placement::GLOBAL_VISIBILITY | Placement::PERSISTENCE;
    assert_eq!(Feth::new(both, Selectivity::MemoryRegion).raw(), 0x13);
    assert_eq!(
        Feth::new(Placement::PERSISTENCE, Selectivity::Range).raw(),
        0x02
    );
    for raw in 0..=0xff {
        let feth = Feth::from_raw(raw | 0xabcd_ef00);
        let again = Feth::new(feth.placement(), feth.selectivity());
        assert_eq!(again.raw(), raw & 0x3f);
        assert_eq!(Feth::from_bytes(&feth.to_bytes()), feth);
    }
}

#[test]
//= AETH-01 type=test
//= AETH-02 type=test
//= AETH-03 type=test
//= AETH-04 type=test
//= AETH-05 type=test
//= AETH-06 type=test
//= AETH-07 type=test
//= AETH-08 type=test
//= AETH-09 type=test
//= AETH-10 type=test
fn all_256_syndromes() {
    for code in 0..=u8::MAX {
        let syndrome = Syndrome::from_code(code);
        assert_eq!(syndrome.code(), code);
        match (code, syndrome) {
            (0x00..=0x1f, Syndrome::Ack(credits)) => assert_eq!(credits.code(), code),
            (0x20..=0x3f, Syndrome::RnrNak(timer)) => assert_eq!(timer.code(), code & 0x1f),
            (0x60, Syndrome::Nak(NakCode::PsnSequence))
            | (0x61, Syndrome::Nak(NakCode::InvalidRequest))
            | (0x62, Syndrome::Nak(NakCode::RemoteAccess))
            | (0x63, Syndrome::Nak(NakCode::RemoteOperational))
            | (0x64, Syndrome::Nak(NakCode::InvalidRdRequest)) => {}
            (0x65..=0x7f, Syndrome::Nak(NakCode::Reserved(low))) => assert_eq!(low, code & 0x1f),
            (0x40..=0x5f | 0x80..=0xff, Syndrome::Reserved(byte)) => assert_eq!(byte, code),
            _ => panic!("{code:#04x} became {syndrome:?}"),
        }
    }
    for code in 0..=u8::MAX {
        assert_eq!(NakCode::from_code(code).code(), code & 0x1f);
    }
}

#[test]
//= DCW-04 type=test
fn dc_headers() {
    let bytes: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 0xb6, 9, 10, 11, 12, 13, 14, 15];
    let eth = DcEth {
        key: 0x0102_0304_0506_0708,
        start: true,
        pmtu: 3,
        stream_channel: 6,
        dci: Qpn::new(0x09_0a0b),
        session: 0x0c0d_0e0f,
    };
    assert_eq!(eth.to_bytes(), bytes);
    assert_eq!(DcEth::from_bytes(&bytes), eth);
    let wide = DcEth {
        start: false,
        pmtu: 0xf8,
        stream_channel: 0xf0,
        ..eth
    };
    assert_eq!(wide.to_bytes()[8], 0);
    let response = DcRespEth {
        session: 0x0102_0304,
    };
    assert_eq!(response.to_bytes(), [1, 2, 3, 4]);

    let opcode = Opcode::of(Service::Dc, Operation::WriteOnlyImm).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), Psn::new(2)));
    headers.dceth = Some(eth);
    headers.reth = Some(Reth::default());
    headers.imm = Some(ImmDt(*b"imm."));
    assert!(headers.agrees_with_opcode());
    let mut out = [0; 64];
    assert_eq!(headers.emit(&mut out), Ok(48));
    assert_eq!(out[12..28], bytes);
    assert_eq!(&out[44..48], b"imm.");
    let text = std::format!("{headers}");
    assert!(
        text.contains("dci=0x090a0b session=0xc0d0e0f START mtu=3 stream_channel=6"),
        "{text}"
    );
}

#[test]
//= DCW-11 type=test
fn dc_naks_have_names() {
    for (code, name) in [
        (0x1e, "NO_SESSION"),
        (0x1d, "NO_RESOURCES"),
        (0x1c, "RESERVED(28)"),
    ] {
        let opcode = Opcode::of(Service::Dc, Operation::Acknowledge).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), Psn::new(2)));
        headers.dcreth = Some(DcRespEth { session: 7 });
        headers.aeth = Some(Aeth {
            syndrome: Syndrome::from_code(0x60 | code),
            msn: Msn::new(0),
        });
        let text = std::format!("{headers}");
        assert!(
            text.contains(&std::format!("session=0x7 NAK {name} msn=")),
            "{text}"
        );
    }
}

#[test]
//= DCW-18 type=test
fn hello_is_nothing_else() {
    for probe in [RocadeProbe::Request, RocadeProbe::Reply] {
        let bytes = probe.to_bytes();
        assert_eq!(RocadeProbe::from_payload(&bytes), Some(probe));
        for at in 0..bytes.len() {
            let mut other = bytes;
            other[at] ^= 0x42;
            assert_eq!(RocadeProbe::from_payload(&other), None);
            assert_eq!(RocadeProbe::from_payload(&bytes[..at]), None);
        }
    }
    assert_eq!(RocadeProbe::from_payload(b"RocDC\x01\0\0\0"), None);
    assert_ne!(RocadeProbe::QKEY & 1 << 31, 0);
}

#[test]
//= OPC-35 type=test
fn order_of_the_headers() {
    let opcode = Opcode::of(Service::Xrc, Operation::WriteOnlyImm).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), Psn::new(2)));
    headers.imm = Some(ImmDt(*b"imm."));
    headers.reth = Some(Reth {
        va: 7,
        rkey: Rkey::new(8),
        dma_len: 9,
    });
    headers.xrceth = Some(XrcEth { resv: 0, srqn: 5 });
    assert!(headers.agrees_with_opcode());
    let mut out = [0; 64];
    let len = headers.emit(&mut out).unwrap();
    assert_eq!((len, headers.len()), (36, 36));
    assert_eq!(out[12..16], [0, 0, 0, 5]);
    assert_eq!(out[23], 7);
    assert_eq!(&out[32..36], b"imm.");

    let opcode = Opcode::of(Service::Xrc, Operation::Flush).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), Psn::new(2)));
    headers.reth = Some(Reth {
        va: 7,
        rkey: Rkey::new(8),
        dma_len: 9,
    });
    headers.feth = Some(Feth::from_raw(0x11));
    headers.xrceth = Some(XrcEth { resv: 0, srqn: 5 });
    assert!(headers.agrees_with_opcode());
    let len = headers.emit(&mut out).unwrap();
    assert_eq!(out[12..20], [0, 0, 0, 5, 0, 0, 0, 0x11]);
    assert_eq!(len, 36);
}

//= ETH-07 type=test
#[test]
fn the_key_to_invalidate_is_four_bytes_in_network_order() {
    let opcode = Opcode::of(Service::Rc, Operation::SendOnlyInv).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), Psn::new(2)));
    headers.ieth = Some(Ieth(Rkey::new(0x0102_0304)));
    let mut out = [0; 16];
    assert_eq!(headers.emit(&mut out), Ok(16));
    assert_eq!(out[12..], [1, 2, 3, 4]);
    let (parsed, rest) = Headers::parse(&out).unwrap();
    assert_eq!((parsed.ieth, rest.len()), (headers.ieth, 0));
}

#[test]
fn headers_that_do_not_belong_are_noticed() {
    let opcode = Opcode::of(Service::Rc, Operation::SendOnly).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), Psn::new(2)));
    assert!(headers.agrees_with_opcode());
    headers.ieth = Some(Ieth(Rkey::new(1)));
    assert!(!headers.agrees_with_opcode());
    assert_eq!(headers.len(), 16);
}

//= ETH-11 type=test
#[test]
//= CNP-01 type=test
fn congestion_notification() {
    let headers = Headers::cnp(Qpn::new(0x118), Pkey::DEFAULT);
    let mut out = [0; 12];
    assert_eq!(headers.emit(&mut out), Ok(12));
    assert_eq!(out, [0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
}

#[test]
fn every_code_at_every_length() {
    let bytes = [0x5a; MAX_HEADERS_LEN];
    for opcode in 0..=u8::MAX {
        let mut bytes = bytes;
        bytes[0] = opcode;
        let ext = Opcode::new(opcode).ext().unwrap_or(ExtHeaders::empty());
        let needed_len = Bth::LEN + ext.len_bytes();
        assert!(needed_len <= MAX_HEADERS_LEN);
        for actual_len in 0..bytes.len() {
            match Headers::parse(&bytes[..actual_len]) {
                Ok((headers, rest)) => {
                    assert_eq!(rest.len(), actual_len - needed_len);
                    assert_eq!(headers.len(), needed_len);
                    assert!(headers.agrees_with_opcode());
                }
                Err(error) => {
                    assert!(actual_len < needed_len);
                    assert_eq!(error.actual_len, actual_len);
                    assert!((actual_len + 1..=needed_len).contains(&error.needed_len));
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn parse_then_emit_gives_the_same_bytes(opcode: u8, mut bytes in prop::collection::vec(any::<u8>(), MAX_HEADERS_LEN)) {
        bytes[0] = opcode;
        let (headers, rest) = Headers::parse(&bytes).unwrap();
        let mut out = vec![0; bytes.len()];
        let len = headers.emit(&mut out).unwrap();
        prop_assert_eq!(len, headers.len());
        prop_assert_eq!(&out[..len], &bytes[..bytes.len() - rest.len()]);
    }

    #[test]
    fn emit_then_parse_gives_the_same_headers(headers in any_headers()) {
        let mut out = [0xee; MAX_HEADERS_LEN + 8];
        let len = headers.emit(&mut out).unwrap();
        prop_assert!(out[len..].iter().all(|&byte| byte == 0xee));
        let (again, rest) = Headers::parse(&out[..len]).unwrap();
        prop_assert_eq!(again, headers);
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn emit_says_how_much_room_it_needs(headers in any_headers()) {
        let needed_len = headers.len();
        for actual_len in 0..needed_len {
            let error = headers.emit(&mut vec![0; actual_len]).unwrap_err();
            prop_assert_eq!(error, Truncated { needed_len, actual_len });
        }
    }
}
