//! The order of checks: of two faults in a packet, the answer shows the one that is checked first.

use alloc::vec::Vec;
use core::net::IpAddr;

use rocade_wire::{Deth, Opcode, Operation, Packet, Pkey, Qkey, Rkey, Service};

use super::responder::{answer, target, target_with, write_only};
use super::{PMTU, Request, register, statuses};
use crate::testing::{Pair, Setup, Side};
use crate::{AccessFlags, Counters, DropReason, PacketMeta, QpState, QpType, WcStatus};

use Operation::{
    FetchAdd, ReadRequest, SendFirst, SendMiddle, SendOnly, WriteFirst, WriteLastImm, WriteOnly,
    WriteOnlyImm,
};

const REASONS: [DropReason; 16] = [
    DropReason::State,
    DropReason::WrongService,
    DropReason::WrongAddress,
    DropReason::BadPkey,
    DropReason::BadQkey,
    DropReason::OutOfSequence,
    DropReason::Duplicate,
    DropReason::FutureResponse,
    DropReason::GhostResponse,
    DropReason::Reserved,
    DropReason::Malformed,
    DropReason::NoReceive,
    DropReason::TooLong,
    DropReason::Access,
    DropReason::BadDcKey,
    DropReason::NoSession,
];

/// Returns the reason of each packet that was dropped between two readings of the counters.
pub(super) fn new_drops(before: &Counters, after: &Counters) -> Vec<DropReason> {
    let count = |reason: &DropReason| after.dropped(*reason) - before.dropped(*reason);
    let times = |reason| (0..count(&reason)).map(move |_| reason);
    REASONS.into_iter().flat_map(times).collect()
}

/// Faults of a packet to a connected queue pair that are checked before the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    State,
    Service,
    Address,
    Pkey,
}

impl Fault {
    const ALL: [Self; 4] = [Self::State, Self::Service, Self::Address, Self::Pkey];

    const fn reason(self) -> DropReason {
        match self {
            Self::State => DropReason::State,
            Self::Service => DropReason::WrongService,
            Self::Address => DropReason::WrongAddress,
            Self::Pkey => DropReason::BadPkey,
        }
    }
}

/// Delivers a WRITE with these faults to a queue pair of this type, and returns why it was dropped.
fn drops_of(qp_type: QpType, faults: &[Fault]) -> Vec<DropReason> {
    let state = if faults.contains(&Fault::State) {
        QpState::Err
    } else {
        QpState::Rts
    };
    let mut pair = Pair::in_states(QpState::Rts, state, |_, setup: &mut Setup| {
        setup.config.qp_type = qp_type;
    });
    let region = register(&pair, Side::B, 8);
    let mut request = write_only(0, &region, 1);
    let is_uc = (qp_type == QpType::Uc) != faults.contains(&Fault::Service);
    let service = if is_uc { Service::Uc } else { Service::Rc };
    request.headers.bth.opcode = Opcode::of(service, WriteOnly).unwrap();
    if faults.contains(&Fault::Pkey) {
        request.headers.bth.pkey = Pkey::new(0x8001);
    }
    let third_host = IpAddr::from([10, 0, 0, 3]);
    let mut drops = Vec::new();
    for ends in [[true, false], [false, true]] {
        let bytes = request.bytes();
        let now = pair.now();
        let node = pair.node_mut(Side::B);
        let [source, destination] =
            ends.map(|is_wrong| is_wrong && faults.contains(&Fault::Address));
        let meta = PacketMeta {
            source: if source { third_host } else { node.qp.remote() },
            destination: if destination {
                third_host
            } else {
                node.qp.local()
            },
            traffic_class: 0,
            hop_limit: 64,
        };
        let before = node.qp.counters();
        let packet = Packet::parse(&bytes).unwrap();
        node.qp.handle_packet(now, &meta, &packet, &node.mem);
        drops.extend(new_drops(&before, &node.qp.counters()));
        assert_eq!(node.mem.writes(), 0);
    }
    drops
}

/// Checks the order state, service, address, P_Key.
//= BTH-14 type=test
#[test]
fn a_packet_counts_for_the_first_of_its_faults() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for first in Fault::ALL {
            for second in Fault::ALL.into_iter().filter(|other| *other >= first) {
                let drops = drops_of(qp_type, &[first, second]);
                let expected = [first.reason(); 2];
                assert_eq!(drops, expected, "{qp_type:?} {first:?} {second:?}");
            }
        }
    }
}

const INVALID: &str = "NAK INVALID_REQUEST psn=0 msn=0";
const ACCESS: &str = "NAK REMOTE_ACCESS psn=0 msn=0";
const RNR: &str = "RNR_NAK timer=640us psn=0 msn=0";
const GAP: &str = "NAK PSN_SEQUENCE psn=0 msn=0";

/// Checks the order PSN, opcode sequence, rights, resources, receive, length, key, alignment.
///
/// There is no receive, and each packet has one fault and the next one or a later one.
//= RC-RSP-02 RC-RSP-03 RC-RSP-04 type=test
//= RC-RSP-05 RC-RSP-06 RC-RSP-07 type=test
//= RC-RSP-08 RC-RSP-09 RC-RSP-11 type=test
#[test]
fn a_request_is_refused_for_the_first_of_its_faults() {
    type Adapt = fn(&mut Setup);
    let as_usual: Adapt = |_| {};
    let no_rights: Adapt = |setup| setup.attr.qp_access_flags = AccessFlags::empty();
    let no_resources: Adapt = |setup| setup.attr.max_dest_rd_atomic = 0;
    let long = [0; PMTU as usize + 4];
    let bad = Rkey::new(0x1234_5678);
    let request = Request::new;
    let cases: [(&str, Adapt, Request, &str); 11] = [
        (
            "a gap, and an invalid opcode sequence",
            as_usual,
            request(SendMiddle, 1),
            GAP,
        ),
        ("a gap, and no receive", as_usual, request(SendOnly, 1), GAP),
        (
            "a gap, and no rights",
            no_rights,
            request(WriteOnly, 1).reth(0, bad, 0),
            GAP,
        ),
        (
            "an invalid opcode sequence, and no receive",
            as_usual,
            request(WriteLastImm, 0).imm([1; 4]).payload(&[1]),
            INVALID,
        ),
        (
            "no rights, and no receive",
            no_rights,
            request(WriteOnlyImm, 0).reth(0, bad, 0).imm([1; 4]),
            INVALID,
        ),
        (
            "no rights, and a wrong key",
            no_rights,
            request(WriteOnly, 0).reth(0, bad, 1).payload(&[1]),
            INVALID,
        ),
        (
            "no resources, and a wrong key",
            no_resources,
            request(ReadRequest, 0).reth(0, bad, 8),
            INVALID,
        ),
        (
            "no receive, and a wrong length",
            as_usual,
            request(SendFirst, 0).payload(&[1; 4]),
            RNR,
        ),
        (
            "no receive, and a wrong key",
            as_usual,
            request(WriteOnlyImm, 0)
                .reth(0, bad, 1)
                .imm([1; 4])
                .payload(&[1]),
            RNR,
        ),
        (
            "a wrong length, and a wrong key",
            as_usual,
            request(WriteFirst, 0)
                .reth(0, bad, 2 * PMTU + 4)
                .payload(&long),
            INVALID,
        ),
        (
            "a wrong key, and more bytes than announced",
            as_usual,
            request(WriteOnly, 0).reth(0, bad, 1).payload(&[1; 4]),
            ACCESS,
        ),
    ];
    for (what, adapt, request, expected) in cases {
        let (mut pair, _) = target_with(adapt);
        assert_eq!(answer(&mut pair, &request), [expected], "{what}");
    }
    // The order of the last two is not specified. Rocade checks the key first, as rxe does.
    let (mut pair, region) = target();
    let add = request(FetchAdd, 0).atomic(region.addr + 1, bad, 1, 0);
    assert_eq!(answer(&mut pair, &add), [ACCESS]);
}

/// Checks packets that rxe sends differently: without migration bit, and with AckReq for an
/// unreliable service.
//= RXE-112 UC-01 UD-01 type=test
#[test]
fn neither_a_migration_bit_nor_a_useless_request_for_an_answer_matters() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut pair = Pair::new(|_, setup| {
            setup.config.qp_type = qp_type;
            setup.attr.qkey = 7;
        });
        let region = register(&pair, Side::B, 64);
        pair.recv(Side::B, 1, &[region.sge()]);
        let mut request = Request::new(SendOnly, 0).payload(b"rxe!");
        let headers = &mut request.headers;
        let service = match qp_type {
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            _ => Service::Rc,
        };
        headers.bth.opcode = Opcode::of(service, SendOnly).unwrap();
        (headers.bth.migreq, headers.bth.ack_req) = (false, true);
        headers.deth = (qp_type == QpType::Ud).then_some(Deth {
            qkey: Qkey::new(7),
            ..Deth::default()
        });
        let answers = answer(&mut pair, &request);
        assert_eq!(answers.len(), usize::from(qp_type == QpType::Rc));
        let received = pair.take_completions(Side::B);
        assert_eq!(statuses(&received), [(1, WcStatus::Success)], "{qp_type:?}");
    }
}
