use std::collections::HashSet;
use std::format;

use super::{ExtHeaders, Opcode, Operation, PayloadRule, Service};

const SERVICES: [Service; 8] = [
    Service::Rc,
    Service::Uc,
    Service::Rd,
    Service::Ud,
    Service::Cnp,
    Service::Xrc,
    Service::Dc,
    Service::Manufacturer,
];

/// Header lengths after the BTH in the RC form, by bits 4:0. `None` if reserved.
//= OPC-00 type=test
//= OPC-21 type=test
//= OPC-24 type=test
//= OPC-27 type=test
const RC_EXT_LEN: [Option<usize>; 32] = [
    Some(0),
    Some(0),
    Some(0),
    Some(4),
    Some(0),
    Some(4), // SEND
    Some(16),
    Some(0),
    Some(0),
    Some(4),
    Some(16),
    Some(20), // WRITE
    Some(16),
    Some(4),
    Some(0),
    Some(4),
    Some(4), // READ
    Some(4),
    Some(12),
    Some(28),
    Some(28),
    None, // ACK, atomics
    Some(4),
    Some(4), // SEND with invalidate
    None,
    None,
    None,
    None,
    Some(20),
    Some(16), // FLUSH, ATOMIC WRITE
    None,
    None,
];

/// Returns the length of the extension headers that each opcode must have, derived from the rules
/// without the table under test.
fn expected_ext_len(opcode: u8) -> Option<usize> {
    let low = usize::from(opcode & 0x1f);
    let is_response = (0x0d..=0x12).contains(&low);
    match opcode >> 5 {
        //= HW-11 HW-12 XAW-10 type=test
        0 if matches!(low, 0x18 | 0x19) => Some(12),
        5 if matches!(low, 0x18 | 0x19) => Some(16),
        0 => RC_EXT_LEN[low],
        //= OPC-30 type=test
        1 if low <= 0x0b => RC_EXT_LEN[low],
        //= OPC-34 type=test
        2 if low == 0x15 => Some(12),
        2 if low <= 0x14 => RC_EXT_LEN[low].map(|len| len + if is_response { 4 } else { 12 }),
        //= OPC-31 type=test
        3 if low == 4 => Some(8),
        3 if low == 5 => Some(12),
        //= OPC-33 type=test
        4 if low == 1 => Some(0),
        //= OPC-32 type=test
        5 => RC_EXT_LEN[low].map(|len| len + if is_response { 0 } else { 4 }),
        //= DCW-02 DCW-03 type=test
        6 if low == 0x1a => Some(16),
        //= XAW-02 type=test
        //= XAW-06 type=test
        6 if matches!(low, 0x18 | 0x19) => Some(32),
        6 if low == 0x1f => Some(8),
        6 if low < 0x1c => RC_EXT_LEN[low].map(|len| len + if is_response { 4 } else { 16 }),
        //= XAW-02 type=test
        //= XAW-06 type=test
        7 if low == 0x12 => Some(4),
        7 if matches!(low, 0x18 | 0x19) => Some(16),
        7 if matches!(low, 0x1a | 0x1b) => Some(20),
        _ => None,
    }
}

//= OPC-01 OPC-03 OPC-05 type=test
//= OPC-06 OPC-07 OPC-08 type=test
//= OPC-09 OPC-10 OPC-11 type=test
//= OPC-13 OPC-14 OPC-15 type=test
//= OPC-16 OPC-17 OPC-18 type=test
//= OPC-19 OPC-20 OPC-22 type=test
//= OPC-23 OPC-25 type=test
#[test]
//= BTH-01 type=test
fn all_256_codes() {
    for byte in 0..=u8::MAX {
        let opcode = Opcode::new(byte);
        assert_eq!(opcode.get(), byte);
        let ext_len = opcode.ext().map(ExtHeaders::len_bytes);
        assert_eq!(ext_len, expected_ext_len(byte), "{opcode:?}");
        assert_eq!(
            SERVICES
                .map(|s| s == opcode.service())
                .iter()
                .filter(|&&is| is)
                .count(),
            1
        );
        match opcode.operation() {
            Some(operation) => {
                assert_eq!(Opcode::of(opcode.service(), operation), Some(opcode));
                if byte != 0xdf {
                    assert_eq!(operation.low_bits(), byte & 0x1f);
                }
                assert!(opcode.name().ends_with(operation.name()));
                assert_eq!(opcode.payload_rule(), Some(operation.payload_rule()));
            }
            None => {
                assert!(opcode.ext().is_none() || byte == 0x55, "{opcode:?}");
                assert_eq!(opcode.payload_rule(), None);
            }
        }
    }
}

#[test]
fn number_of_defined_codes_per_service() {
    let defined = |service| {
        let codes = (0..=u8::MAX).map(Opcode::new);
        codes
            .filter(|code| code.service() == service && code.operation().is_some())
            .count()
    };
    assert_eq!(SERVICES.map(defined), [27, 12, 21, 2, 1, 27, 27, 5]);
}

#[test]
fn code_of_an_operation_is_in_its_service() {
    for service in SERVICES {
        for &operation in Operation::ALL {
            if let Some(opcode) = Opcode::of(service, operation) {
                assert_eq!(opcode.service(), service);
                assert_eq!(opcode.operation(), Some(operation));
            }
        }
    }
    assert_eq!(Opcode::of(Service::Uc, Operation::SendOnlyInv), None);
    assert_eq!(Opcode::of(Service::Ud, Operation::WriteOnly), None);
    assert_eq!(Opcode::of(Service::Rc, Operation::Cnp), None);
    assert_eq!(Opcode::of(Service::Cnp, Operation::Cnp), Some(Opcode::CNP));
}

#[test]
fn spot_checks_against_the_published_numbers() {
    let cases = [
        (0x04, "RC SEND_ONLY", ExtHeaders::empty()),
        (0x05, "RC SEND_ONLY_IMM", ExtHeaders::IMM_DT),
        (
            0x0b,
            "RC RDMA_WRITE_ONLY_IMM",
            ExtHeaders::RETH.union(ExtHeaders::IMM_DT),
        ),
        (0x11, "RC ACKNOWLEDGE", ExtHeaders::AETH),
        (
            0x12,
            "RC ATOMIC_ACKNOWLEDGE",
            ExtHeaders::AETH.union(ExtHeaders::ATOMIC_ACK_ETH),
        ),
        (0x1c, "RC FLUSH", ExtHeaders::FETH.union(ExtHeaders::RETH)),
        (0x2a, "UC RDMA_WRITE_ONLY", ExtHeaders::RETH),
        (
            0x65,
            "UD SEND_ONLY_IMM",
            ExtHeaders::DETH.union(ExtHeaders::IMM_DT),
        ),
        (0x81, "CNP", ExtHeaders::empty()),
        (
            0xac,
            "XRC RDMA_READ_REQUEST",
            ExtHeaders::XRCETH.union(ExtHeaders::RETH),
        ),
        (0xae, "XRC RDMA_READ_RESPONSE_MIDDLE", ExtHeaders::empty()),
        (
            0xb7,
            "XRC SEND_ONLY_INV",
            ExtHeaders::XRCETH.union(ExtHeaders::IETH),
        ),
        //= DCW-01 type=test
        (0xc4, "DC SEND_ONLY", ExtHeaders::DCETH),
        (
            0xd1,
            "DC ACKNOWLEDGE",
            ExtHeaders::DCRETH.union(ExtHeaders::AETH),
        ),
        (0xda, "DC DISCONNECT", ExtHeaders::DCETH),
    ];
    for (byte, name, ext) in cases {
        let opcode = Opcode::new(byte);
        assert_eq!((opcode.name(), opcode.ext()), (name, Some(ext)));
    }
}

#[test]
fn names_are_distinct() {
    let mut seen = HashSet::new();
    for opcode in (0..=u8::MAX).map(Opcode::new) {
        assert!(seen.insert(format!("{opcode}")), "{opcode}");
    }
    assert_eq!(format!("{}", Opcode::new(0x1a)), "RC RESERVED 0x1a");
    assert_eq!(format!("{:?}", Opcode::CNP), "Opcode(0x81 CNP)");
}

#[test]
fn every_operation_has_one_place_in_its_message_and_one_direction() {
    for &operation in Operation::ALL {
        let places = [
            operation.is_first(),
            operation.is_middle(),
            operation.is_last(),
            operation.is_only(),
        ];
        assert_eq!(places.iter().filter(|&&is| is).count(), 1, "{operation}");
        let directions = [
            operation.is_request(),
            operation.is_response(),
            operation == Operation::Cnp,
        ];
        assert_eq!(
            directions.iter().filter(|&&is| is).count(),
            1,
            "{operation}"
        );
        assert!(!(operation.is_send() && operation.is_write()));
        let name = operation.name();
        assert_eq!(operation.is_first(), name.ends_with("_FIRST"));
        assert_eq!(operation.is_middle(), name.ends_with("_MIDDLE"));
        assert_eq!(operation.is_last(), name.contains("_LAST"));
        assert_eq!(operation.has_imm(), name.ends_with("_IMM"));
        assert_eq!(operation.has_inv(), name.ends_with("_INV"));
        assert_eq!(operation.is_send(), name.starts_with("SEND_"));
        assert_eq!(operation.is_write(), name.starts_with("RDMA_WRITE_"));
        assert_eq!(
            operation.is_read_response(),
            name.starts_with("RDMA_READ_RESPONSE_")
        );
        assert_eq!(
            operation.is_response(),
            name.contains("RESPONSE") || name.contains("ACK")
        );
    }
}

//= ETH-06 type=test
#[test]
fn immediate_and_invalidate_come_with_their_header() {
    for opcode in (0..=u8::MAX).map(Opcode::new) {
        let (Some(operation), Some(ext)) = (opcode.operation(), opcode.ext()) else {
            continue;
        };
        assert_eq!(
            operation.has_imm(),
            ext.contains(ExtHeaders::IMM_DT),
            "{opcode}"
        );
        assert_eq!(
            operation.has_inv(),
            ext.contains(ExtHeaders::IETH),
            "{opcode}"
        );
        assert_eq!(
            operation.is_atomic(),
            ext.contains(ExtHeaders::ATOMIC_ETH),
            "{opcode}"
        );
    }
}

#[test]
fn payload_rules() {
    let allowed = |operation: Operation| {
        [0, 1, 8, 16, 255, 256, 257].map(|len| operation.payload_rule().allows(len, 256))
    };
    let full = [false, false, false, false, false, true, false];
    let some = [false, true, true, true, true, true, false];
    let any = [true, true, true, true, true, true, false];
    let none = [true, false, false, false, false, false, false];
    //= OPC-00 type=test
    assert_eq!(allowed(Operation::SendFirst), full);
    assert_eq!(allowed(Operation::WriteMiddle), full);
    assert_eq!(allowed(Operation::ReadResponseFirst), full);
    //= OPC-02 type=test
    assert_eq!(allowed(Operation::SendLastInv), some);
    assert_eq!(allowed(Operation::WriteLastImm), some);
    assert_eq!(allowed(Operation::ReadResponseLast), some);
    //= OPC-04 type=test
    assert_eq!(allowed(Operation::SendOnly), any);
    assert_eq!(allowed(Operation::ReadResponseOnly), any);
    //= OPC-12 type=test
    assert_eq!(allowed(Operation::ReadRequest), none);
    assert_eq!(allowed(Operation::Acknowledge), none);
    assert_eq!(allowed(Operation::Flush), none);
    //= OPC-26 type=test
    assert_eq!(
        Operation::AtomicWrite.payload_rule(),
        PayloadRule::Exactly(8)
    );
    assert_eq!(
        allowed(Operation::AtomicWrite),
        [false, false, true, false, false, false, false]
    );
    assert_eq!(
        allowed(Operation::Cnp),
        [false, false, false, true, false, false, false]
    );
}
