//! The fast path: it is used, and it accepts no packet that the slow path would refuse.

use alloc::vec::Vec;
use core::net::IpAddr;

use rocade_wire::{FastPathPacket, Opcode, Operation, Packet, Pkey, Psn, Reth, Rkey, Service};

use super::responder::{target, target_with};
use super::states::NO_MORE;
use super::{PMTU, Request, pattern, register, register_filled, send, statuses, write};
use crate::testing::{Pair, Region, Setup, Side};
use crate::{AccessFlags, Counters, DropReason, PacketMeta, QpAttr, QpState, WcStatus};

use Operation::{Acknowledge, SendFirst, SendMiddle, SendOnly, WriteFirst, WriteMiddle, WriteOnly};

const THIRD_HOST: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 3));

/// Returns the right addresses for a packet to this side.
fn meta(pair: &Pair, to: Side) -> PacketMeta {
    let qp = &pair.node(to).qp;
    PacketMeta {
        source: qp.remote(),
        destination: qp.local(),
        traffic_class: 0,
        hop_limit: 64,
    }
}

/// Returns the state of a side that is visible to its application and its peer.
fn image(pair: &Pair, side: Side) -> (Counters, usize, usize, usize, u64) {
    let node = pair.node(side);
    let completions = node.qp.completions_waiting();
    (
        node.qp.counters().clone(),
        completions,
        node.qp.send_queue_len(),
        node.qp.recv_queue_len(),
        node.mem.writes(),
    )
}

fn try_short(pair: &mut Pair, to: Side, meta: &PacketMeta, bytes: &[u8]) -> bool {
    let now = pair.now();
    let fast = FastPathPacket::parse(bytes).expect("a packet for the fast path");
    let node = pair.node_mut(to);
    node.qp.handle_fast(now, meta, &fast, &node.mem)
}

/// Offers a packet that must be refused without any change. Then the slow path tells the reason, if
/// it can parse the packet.
fn refused(pair: &mut Pair, to: Side, meta: &PacketMeta, bytes: &[u8], why: DropReason) {
    let before = image(pair, to);
    let text = alloc::format!("{why:?}: {:?}", bytes.first());
    assert!(!try_short(pair, to, meta, bytes), "{text}");
    assert_eq!(image(pair, to), before, "{text}");
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    let now = pair.now();
    let node = pair.node_mut(to);
    node.qp.handle_packet(now, meta, &packet, &node.mem);
    let dropped = node.qp.counters().dropped(why);
    assert_eq!(dropped, before.0.dropped(why) + 1, "{text}");
}

fn with_pkey(bytes: &[u8], pkey: Pkey) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[2..4].copy_from_slice(&pkey.get().to_be_bytes());
    bytes
}

/// Checks that a packet is refused with each single fault that makes it another QP's, and is
/// accepted without.
fn only_ours_is_taken(pair: &mut Pair, to: Side, bytes: &[u8]) {
    let right = meta(pair, to);
    let source = PacketMeta {
        source: THIRD_HOST,
        ..right
    };
    let destination = PacketMeta {
        destination: THIRD_HOST,
        ..right
    };
    refused(pair, to, &source, bytes, DropReason::WrongAddress);
    refused(pair, to, &destination, bytes, DropReason::WrongAddress);
    let alien = with_pkey(bytes, Pkey::new(0x8001));
    refused(pair, to, &right, &alien, DropReason::BadPkey);
    let mut services = 0;
    for code in (0..=u8::MAX).map(Opcode::new) {
        let mut other = bytes.to_vec();
        other[0] = code.get();
        let same_operation = code.operation() == Opcode::new(bytes[0]).operation();
        if same_operation
            && code.service() != Service::Rc
            && FastPathPacket::parse(&other).is_some()
        {
            refused(pair, to, &right, &other, DropReason::WrongService);
            services += 1;
        }
    }
    assert!(services > 0, "this operation has other services too");
    let before = image(pair, to).0.fast_path_packets;
    assert!(try_short(pair, to, &right, bytes));
    assert_eq!(image(pair, to).0.fast_path_packets, before + 1);
}

//= BTH-06 BTH-14 BTH-15 type=test
//= RC-LIM-05 type=test
#[test]
fn a_send_is_taken_only_where_everything_about_it_is_right() {
    let (mut pair, region) = target();
    pair.recv(Side::B, 1, &[region.sge()]);
    let bytes = Request::new(SendOnly, 0).payload(&[7; 8]).bytes();
    only_ours_is_taken(&mut pair, Side::B, &bytes);
    pair.run();
    let completions = pair.take_completions(Side::B);
    assert_eq!(statuses(&completions), [(1, WcStatus::Success)]);
    assert_eq!(pair.node(Side::B).mem.bytes(&region, 0..8), [7; 8]);
}

/// Returns a WRITE of eight bytes.
fn write_of_8(to: &Region, psn: u32) -> Request {
    let reth = Request::new(WriteOnly, psn).reth(to.addr, to.rkey, 8);
    reth.payload(&[7; 8])
}

//= BTH-06 BTH-14 BTH-15 type=test
//= RC-LIM-05 type=test
#[test]
fn a_write_is_taken_only_where_everything_about_it_is_right() {
    let (mut pair, region) = target();
    let bytes = write_of_8(&region, 0).bytes();
    only_ours_is_taken(&mut pair, Side::B, &bytes);
    assert_eq!(pair.node(Side::B).mem.bytes(&region, 0..8), [7; 8]);
    // A WRITE of length 0 may have any address.
    let nothing = Request::new(WriteOnly, 1).reth(0, Rkey::new(0), 0);
    let meta = meta(&pair, Side::B);
    assert!(try_short(&mut pair, Side::B, &meta, &nothing.bytes()));
    assert_eq!(answers_of(&mut pair), ["ACK psn=1 msn=2"]);
}

/// Returns the final answers of B.
fn answers_of(pair: &mut Pair) -> Vec<alloc::string::String> {
    pair.drain_both();
    super::answers(pair)
}

/// Checks that an invalid WRITE is left to the slow path without any change, which tells the
/// reason.
//= RC-RSP-03 RC-RSP-04 RC-RSP-07 type=test
//= RC-RSP-08 RC-RSP-09 type=test
#[test]
fn a_refused_write_takes_the_slow_path() {
    let refused = |(mut pair, region): (Pair, Region), psn, adapt: &dyn Fn(&mut Request), why| {
        let mut request = write_of_8(&region, psn);
        adapt(&mut request);
        let bytes = request.bytes();
        let (meta, before) = (meta(&pair, Side::B), image(&pair, Side::B));
        assert!(!try_short(&mut pair, Side::B, &meta, &bytes), "{why}");
        assert_eq!(image(&pair, Side::B), before, "{why}");
        pair.clear_trace();
        pair.inject(Side::B, &bytes);
        pair.run();
        assert_eq!(super::answers(&mut pair), [why]);
    };
    let reth = |adapt: fn(&mut Reth)| {
        move |request: &mut Request| request.headers.reth.iter_mut().for_each(adapt)
    };
    let access = "NAK REMOTE_ACCESS psn=0 msn=0";
    let invalid = "NAK INVALID_REQUEST psn=0 msn=0";
    let key = reth(|reth| reth.rkey = Rkey::new(reth.rkey.get() ^ 1));
    refused(target(), 0, &key, access);
    let range = reth(|reth| reth.va += u64::from(10 * PMTU));
    refused(target(), 0, &range, access);
    refused(target(), 0, &reth(|reth| reth.dma_len = 9), invalid);
    refused(target(), 0, &reth(|reth| reth.dma_len = 7), invalid);
    let too_long = |request: &mut Request| {
        request.payload = pattern(PMTU + 4, 3);
        reth(|reth| reth.dma_len = PMTU + 4)(request);
    };
    refused(target(), 0, &too_long, invalid);
    let no_writes = target_with(|setup| setup.attr.qp_access_flags = AccessFlags::REMOTE_READ);
    refused(no_writes, 0, &|_| {}, invalid);
    for first in [SendFirst, WriteFirst] {
        let (mut pair, region) = target();
        pair.recv(Side::B, 1, &[region.sge()]);
        let opening = Request::new(first, 0).payload(&pattern(PMTU, 3));
        let opening = if first == WriteFirst {
            opening.reth(region.addr, region.rkey, 3 * PMTU)
        } else {
            opening
        };
        opening.inject(&mut pair);
        pair.run();
        refused(
            (pair, region),
            1,
            &|_| {},
            "NAK INVALID_REQUEST psn=1 msn=0",
        );
    }
}

//= BTH-06 BTH-14 BTH-15 type=test
//= RC-LIM-05 type=test
#[test]
fn middle_packets_are_taken_only_where_everything_about_them_is_right() {
    let payload = pattern(PMTU, 3);
    for first in [SendFirst, WriteFirst] {
        let (mut pair, region) = target();
        pair.recv(Side::B, 1, &[region.sge()]);
        let mut opening = Request::new(first, 0).payload(&payload);
        let middle = if first == WriteFirst {
            opening = opening.reth(region.addr, region.rkey, 3 * PMTU);
            WriteMiddle
        } else {
            SendMiddle
        };
        opening.inject(&mut pair);
        let bytes = Request::new(middle, 1).payload(&payload).bytes();
        only_ours_is_taken(&mut pair, Side::B, &bytes);
        let written = pair.node(Side::B).mem.bytes(&region, 1024..2048);
        assert_eq!(written, payload, "{middle:?}");
    }
}

/// Creates a pair whose A waits for the ACK of one WRITE. Returns it with that ACK.
fn waiting() -> (Pair, Vec<u8>) {
    let mut pair = Pair::default();
    let region = register(&pair, Side::B, 8);
    pair.send(Side::A, 1, write(&region), &[]);
    pair.run_until(|pair| pair.trace().len() == 2);
    let ack = pair.trace()[1].bytes.clone();
    assert_eq!(
        Packet::parse(&ack).unwrap().bth().opcode.operation(),
        Some(Acknowledge)
    );
    (pair, ack)
}

//= BTH-06 BTH-14 BTH-15 type=test
//= RC-LIM-05 type=test
#[test]
fn an_acknowledgement_is_taken_only_where_everything_about_it_is_right() {
    let (mut pair, ack) = waiting();
    only_ours_is_taken(&mut pair, Side::A, &ack);
    pair.drain_both();
    let completions = pair.take_completions(Side::A);
    assert_eq!(statuses(&completions), [(1, WcStatus::Success)]);
}

/// Checks that requests and ACKs are accepted in the same states as on the slow path.
//= RC-RSP-01, RC-REQ-01 type=test
#[test]
fn states_decide_what_goes_the_short_way() {
    let requests = [QpState::Rtr, QpState::Rts, QpState::Sqd];
    let bytes = Request::new(SendOnly, 0).bytes();
    for state in super::states::STATES {
        let mut pair = Pair::in_states(QpState::Rts, state, |_, _| {});
        if state != QpState::Reset {
            pair.recv(Side::B, 1, &[]);
        }
        let meta = meta(&pair, Side::B);
        let taken = try_short(&mut pair, Side::B, &meta, &bytes);
        assert_eq!(taken, requests.contains(&state), "{state:?}");
    }
    // After a reset a QP still has the addresses of its earlier connection, and expects PSN 0 until
    // it is set.
    let mut pair = Pair::default();
    let meta_b = meta(&pair, Side::B);
    let (reset, init) = (QpState::Reset, Setup::PATH_TO_RTS[0]);
    pair.modify(Side::B, reset, NO_MORE, &QpAttr::default());
    pair.modify(Side::B, init.0, init.1, &super::states::setup().attr);
    pair.recv(Side::B, 1, &[]);
    let mut first = Request::new(SendOnly, 0);
    first.headers.bth.psn = Psn::new(0);
    assert!(!try_short(&mut pair, Side::B, &meta_b, &first.bytes()));
    assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 1);
    for state in [QpState::Rts, QpState::Sqd, QpState::Err, QpState::Reset] {
        let (mut pair, ack) = waiting();
        if state != QpState::Rts {
            pair.modify(Side::A, state, NO_MORE, &QpAttr::default());
        }
        let meta = meta(&pair, Side::A);
        let taken = try_short(&mut pair, Side::A, &meta, &ack);
        let expected = matches!(state, QpState::Rts | QpState::Sqd);
        assert_eq!(taken, expected, "{state:?}");
    }
}

fn fast_path_packets(pair: &Pair) -> [u64; 2] {
    Side::BOTH.map(|side| pair.node(side).qp.counters().fast_path_packets)
}

fn filled(pair: &Pair, side: Side, len: u32) -> Region {
    register_filled(pair, side, len, 9)
}

#[test]
fn common_packets_go_the_short_way() {
    let mut pair = Pair::default();
    let (here, there) = (
        filled(&pair, Side::A, 5 * PMTU),
        register(&pair, Side::B, 5 * PMTU),
    );
    pair.recv(Side::B, 1, &[there.sge()]);
    pair.send(Side::A, 1, send(), &[here.part(0, 8)]);
    pair.run();
    assert_eq!(fast_path_packets(&pair), [1, 1], "a SEND and its ACK");
    pair.send(Side::A, 2, write(&there), &[here.sge()]);
    pair.run();
    assert_eq!(
        fast_path_packets(&pair),
        [2, 4],
        "three middles and the ACK"
    );
    pair.recv(Side::B, 2, &[there.sge()]);
    pair.send(Side::A, 3, send(), &[here.sge()]);
    pair.run();
    assert_eq!(fast_path_packets(&pair), [3, 7]);
    pair.send(Side::A, 4, super::read(&there), &[here.sge()]);
    pair.send(Side::A, 5, write(&there), &[here.part(0, 1)]);
    pair.run();
    // The ACK of the WRITE follows the READ's last response, which already acknowledges the WRITE.
    assert_eq!(fast_path_packets(&pair), [4, 7]);
    let mut long = Pair::default();
    long.take_slow_path();
    long.recv(Side::B, 1, &[]);
    long.send(Side::A, 1, send(), &[]);
    long.run();
    assert_eq!(fast_path_packets(&long), [0, 0]);
}
