//! Multicast groups of UD queue pairs. The groups have the IP version of the peer's address.
//!
//! The device may receive packets to groups at another place than others, so a packet that must be
//! dropped is followed by one to the same group that must arrive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rocade_wire::{Opcode, Operation, Qkey, Qpn, Service};

use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    case::{equal, fail},
    peer::{Buffer, QKEY, Status},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("MC-03", "a-member-gets-its-copy", one),
    Case::responder("MC-03", "immediate-data", immediate),
    Case::responder("MC-03", "each-member-gets-a-copy", each),
    Case::responder("MC-03", "another-q-key", |b| {
        dropped(b, |packet| {
            packet.edit(|headers| {
                if let Some(deth) = &mut headers.deth {
                    deth.qkey = Qkey::new(QKEY ^ 1);
                }
            })
        })
    })
    .also(&["UD-05"]),
    Case::responder("MC-03", "another-group", other_group),
    Case::responder("MC-03", "unknown-opcode", |b| other_opcode(b, 0xff)).also(&["BTH-15"]),
    Case::responder("MC-03", "reserved-datagram", |b| other_opcode(b, 0x7f)).also(&["BTH-15"]),
    Case::responder("MC-03", "rc-send", |b| other_opcode(b, 0x04)).also(&["BTH-15"]),
    Case::responder("MC-03", "rc-read", |b| other_opcode(b, 0x0c)).also(&["BTH-15"]),
    Case::responder("ICRC-11", "bad-multicast", |b| {
        dropped(b, |packet| packet.wrong_icrc(1))
    }),
    Case::responder("MC-01", "who-joins-twice-gets-one-copy", twice),
    Case::responder("MC-02", "who-left-gets-nothing", left),
    Case::responder("MC-08", "a-member-without-a-receive", without_receive),
];

const GRH_LEN: usize = 40;
const RECEIVE: Buffer = Buffer::new(0, 256);

/// Returns a group of the site. The numbers of different groups differ.
fn group(bench: &Bench<'_>, number: u8) -> IpAddr {
    if bench.rig().local().is_ipv4() {
        Ipv4Addr::new(239, 255, 77, number).into()
    } else {
        // Transient, with the scope of a site.
        Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x4d, number.into()).into()
    }
}

/// Returns the group of all cases.
fn main_group(bench: &Bench<'_>) -> IpAddr {
    group(bench, 1)
}

/// Returns a UD queue pair with receives, and the rig's side of it.
fn connect<'b>(bench: &'b Bench<'b>, receives: usize) -> CaseResult<Conn<'b>> {
    let receive = |number| Buffer {
        offset: 256 * number,
        ..RECEIVE
    };
    bench.connect(QpSpec {
        service: Service::Ud,
        receives: (0..receives).map(receive).collect(),
        ..QpSpec::default()
    })
}

fn member<'b>(bench: &'b Bench<'b>, receives: usize) -> CaseResult<Conn<'b>> {
    let conn = connect(bench, receives)?;
    conn.join(main_group(bench))?;
    Ok(conn)
}

/// Returns a member of the group that is there before the members of the case, once a packet has
/// reached it. Before that, the filters of the network and of the device may drop packets.
fn scout<'b>(bench: &'b Bench<'b>, group: IpAddr) -> CaseResult<Conn<'b>> {
    const PROBES: usize = 15;
    let scout = connect(bench, PROBES + 1)?;
    scout.join(group)?;
    for _ in 0..PROBES {
        scout.send(&datagram(&scout, group, b"probe"))?;
        for _ in 0..100 {
            if scout.qp().poll_completion().is_some() {
                return no_more_probes(scout, group);
            }
            scout.poll_receive()?;
        }
    }
    fail(format!("no packet to {group} arrives"))
}

/// Waits until no probe is on its way.
fn no_more_probes<'b>(scout: Conn<'b>, group: IpAddr) -> CaseResult<Conn<'b>> {
    scout.send(&datagram(&scout, group, b"end"))?;
    loop {
        let id = scout.completion()?.id;
        let offset = 256 * usize::try_from(id).unwrap_or(0) + GRH_LEN;
        if scout.qp().read_memory(0, offset, 3) == b"end" {
            return Ok(scout);
        }
    }
}

/// Returns a datagram to a group.
fn datagram(conn: &Conn<'_>, group: IpAddr, payload: &[u8]) -> PacketBuilder {
    let packet = conn.request(Operation::SendOnly, 0).payload(payload);
    packet
        .edit(|headers| headers.bth.dest_qp = Qpn::MULTICAST)
        .to_group(group)
}

/// Expects that receive `id` has this message.
fn expect(conn: &Conn<'_>, id: u64, payload: &[u8]) -> CaseResult {
    let completion = conn.expect_completion(id, Status::Success)?;
    let len = usize::try_from(completion.byte_len).unwrap_or(0);
    equal(len, GRH_LEN + payload.len(), "byte_len")?;
    let offset = 256 * usize::try_from(id).unwrap_or(0);
    conn.expect_memory(offset + GRH_LEN, payload)
}

//= MC-03 MC-04 type=test
fn one(bench: &Bench<'_>) -> CaseResult {
    let group = main_group(bench);
    let _scout = scout(bench, group)?;
    let conn = member(bench, 1)?;
    conn.send(&datagram(&conn, group, b"message"))?;
    expect(&conn, 0, b"message")?;
    // The buffer begins with the network header, whose last bytes are the group.
    match group {
        IpAddr::V4(group) => conn.expect_memory(GRH_LEN - 4, &group.octets()),
        IpAddr::V6(group) => conn.expect_memory(GRH_LEN - 16, &group.octets()),
    }
}

//= MC-03 type=test
fn immediate(bench: &Bench<'_>) -> CaseResult {
    let group = main_group(bench);
    let _scout = scout(bench, group)?;
    let conn = member(bench, 1)?;
    let packet = datagram(&conn, group, b"message").imm(*b"1234");
    let opcode = Opcode::of(Service::Ud, Operation::SendOnlyImm);
    conn.send(&packet.edit(|headers| {
        headers.bth.opcode = opcode.unwrap_or(headers.bth.opcode);
    }))?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.imm, Some(*b"1234"), "immediate data")
}

//= MC-03 type=test
fn each(bench: &Bench<'_>) -> CaseResult {
    let group = main_group(bench);
    let _scout = scout(bench, group)?;
    let members = [member(bench, 1)?, member(bench, 1)?, member(bench, 1)?];
    members[0].send(&datagram(&members[0], group, b"message"))?;
    for member in &members {
        expect(member, 0, b"message")?;
    }
    Ok(())
}

/// Sends a datagram that must be dropped, and then one that must arrive.
//= MC-03 ICRC-11 UD-05 type=test
fn dropped(bench: &Bench<'_>, spoil: impl Fn(PacketBuilder) -> PacketBuilder) -> CaseResult {
    let group = main_group(bench);
    let _scout = scout(bench, group)?;
    let conn = member(bench, 2)?;
    conn.send(&spoil(datagram(&conn, group, b"bad data")))?;
    conn.send(&datagram(&conn, group, b"good"))?;
    expect(&conn, 0, b"good")?;
    conn.expect_no_completion()?;
    conn.expect_silence()
}

//= MC-03 BTH-15 type=test
fn other_opcode(bench: &Bench<'_>, code: u8) -> CaseResult {
    dropped(bench, |packet| {
        let packet = packet.payload(&[0xbd; 64]);
        packet.edit(|headers| {
            headers.deth = None;
            headers.bth.opcode = Opcode::new(code);
        })
    })
}

//= MC-03 type=test
fn other_group(bench: &Bench<'_>) -> CaseResult {
    let [group, other_group] = [1, 2].map(|number| group(bench, number));
    let _scouts = [scout(bench, group)?, scout(bench, other_group)?];
    let conn = member(bench, 2)?;
    let other = connect(bench, 1)?;
    other.join(other_group)?;
    conn.send(&datagram(&conn, other_group, b"for others"))?;
    expect(&other, 0, b"for others")?;
    conn.send(&datagram(&conn, group, b"message"))?;
    expect(&conn, 0, b"message")?;
    other.expect_no_completion()
}

//= MC-01 type=test
fn twice(bench: &Bench<'_>) -> CaseResult {
    let group = main_group(bench);
    let _scout = scout(bench, group)?;
    let conn = member(bench, 3)?;
    conn.join(group)?;
    conn.send(&datagram(&conn, group, b"one"))?;
    conn.send(&datagram(&conn, group, b"two"))?;
    expect(&conn, 0, b"one")?;
    expect(&conn, 1, b"two")
}

//= MC-02 type=test
fn left(bench: &Bench<'_>) -> CaseResult {
    let group = main_group(bench);
    let _scout = scout(bench, group)?;
    let (conn, former) = (member(bench, 1)?, member(bench, 1)?);
    former.leave(group)?;
    conn.send(&datagram(&conn, group, b"message"))?;
    expect(&conn, 0, b"message")?;
    former.expect_no_completion()
}

//= MC-08 type=test
fn without_receive(bench: &Bench<'_>) -> CaseResult {
    let group = main_group(bench);
    let _scout = scout(bench, group)?;
    let (conn, poor) = (member(bench, 2)?, member(bench, 0)?);
    conn.send(&datagram(&conn, group, b"one"))?;
    expect(&conn, 0, b"one")?;
    poor.post_recv(0, RECEIVE)?;
    conn.send(&datagram(&conn, group, b"two"))?;
    expect(&poor, 0, b"two")?;
    expect(&conn, 1, b"two")
}
