//! UC and UD: lost packets, and requests without a response.

use rocade_wire::{Operation, Qkey, Qpn, Rkey, Service};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    case::{equal, fail},
    peer::{Buffer, QKEY, State, Status, Work, WorkOp},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("UC-01", "send-of-three-packets", uc_send),
    Case::responder("UC-01", "write-with-immediate", uc_write_imm),
    Case::responder("UC-03", "a-gap-abandons-the-message", uc_gap),
    Case::responder("UC-04", "an-old-psn-begins-a-message", uc_old_psn),
    Case::responder("UC-05", "a-middle-begins-nothing", uc_middle),
    Case::responder("UC-05", "a-first-ends-what-was-before", uc_first_again),
    Case::responder("UC-07", "no-receive", uc_no_receive),
    Case::responder("UC-08", "write-with-a-wrong-key", uc_wrong_key),
    Case::responder("UC-09", "longer-than-the-receive", uc_too_long),
    Case::requester("UC-02", "complete-without-an-answer", uc_requester),
    Case::responder("UD-05", "wrong-q-key", ud_wrong_qkey),
    Case::responder("UD-08", "network-header-in-front", ud_header),
    Case::responder("UD-09", "no-receive", ud_no_receive),
    Case::responder("UD-10", "longer-than-the-receive", ud_too_long),
    Case::responder("UD-11", "any-psn", ud_any_psn),
    Case::requester("UD-07", "says-who-sends", ud_requester),
];

const BUFFER: Buffer = Buffer::new(2048, 1024);
const GRH_LEN: usize = 40;

fn uc(receives: Vec<Buffer>) -> QpSpec {
    QpSpec {
        service: Service::Uc,
        receives,
        ..QpSpec::default()
    }
}

fn ud(receives: Vec<Buffer>) -> QpSpec {
    QpSpec {
        service: Service::Ud,
        receives,
        ..QpSpec::default()
    }
}

/// Returns a datagram with this Q_Key.
fn datagram(conn: &Conn<'_>, index: i32, qkey: u32, payload: &[u8]) -> PacketBuilder {
    let packet = conn.request(Operation::SendOnly, index).payload(payload);
    packet.edit(|headers| {
        if let Some(deth) = &mut headers.deth {
            deth.qkey = Qkey::new(qkey);
        }
    })
}

//= UC-01 type=test
fn uc_send(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(vec![BUFFER]))?;
    let data = pattern(600);
    conn.send(&conn.request(Operation::SendFirst, 0).payload(&data[..256]))?;
    conn.send(
        &conn
            .request(Operation::SendMiddle, 1)
            .payload(&data[256..512]),
    )?;
    // AckReq causes no acknowledgement.
    let last = conn.request(Operation::SendLast, 2).payload(&data[512..]);
    conn.send(&last.ack_req())?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.byte_len, 600, "byte_len")?;
    conn.expect_memory(BUFFER.offset, &data)?;
    conn.expect_silence()
}

//= UC-01 type=test
fn uc_write_imm(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(vec![BUFFER]))?;
    let (data, region) = (pattern(300), conn.region());
    let first = conn.request(Operation::WriteFirst, 0).payload(&data[..256]);
    conn.send(&first.reth(region.va + 16, region.rkey, 300))?;
    let last = conn
        .request(Operation::WriteLastImm, 1)
        .payload(&data[256..]);
    conn.send(&last.imm([1, 2, 3, 4]))?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.imm, Some([1, 2, 3, 4]), "immediate data")?;
    conn.expect_memory(16, &data)?;
    conn.expect_silence()
}

//= UC-03 type=test
//= UC-06 type=test
fn uc_gap(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(vec![BUFFER]))?;
    let data = pattern(256);
    conn.send(&conn.request(Operation::SendFirst, 0).payload(&data))?;
    // One packet is lost.
    conn.send(&conn.request(Operation::SendMiddle, 2).payload(&data))?;
    conn.send(&conn.request(Operation::SendLast, 3).payload(b"end"))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.send(&conn.request(Operation::SendOnly, 4).payload(b"next"))?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.byte_len, 4, "byte_len")?;
    conn.expect_memory(BUFFER.offset, b"next")
}

//= UC-04 type=test
fn uc_old_psn(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(vec![BUFFER, Buffer::new(3072, 64)]))?;
    conn.send(&conn.request(Operation::SendOnly, 5).payload(b"one"))?;
    conn.expect_completion(0, Status::Success)?;
    conn.send(&conn.request(Operation::SendOnly, -7).payload(b"two"))?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(3072, b"two")
}

//= UC-05 type=test
fn uc_middle(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(vec![BUFFER]))?;
    conn.send(
        &conn
            .request(Operation::SendMiddle, 0)
            .payload(&pattern(256)),
    )?;
    conn.send(&conn.request(Operation::SendLast, 1).payload(b"end"))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_state(State::Rts)
}

//= UC-05 type=test
fn uc_first_again(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(vec![BUFFER]))?;
    conn.send(&conn.request(Operation::SendFirst, 0).payload(&[1; 256]))?;
    conn.send(&conn.request(Operation::SendFirst, 1).payload(&[2; 256]))?;
    conn.send(&conn.request(Operation::SendLast, 2).payload(&[3; 4]))?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.byte_len, 260, "byte_len")?;
    conn.expect_memory(BUFFER.offset, &[[2; 256].as_slice(), &[3; 4]].concat())
}

//= UC-07 type=test
fn uc_no_receive(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(Vec::new()))?;
    conn.send(&conn.request(Operation::SendOnly, 0).payload(b"lost"))?;
    conn.expect_silence()?;
    conn.expect_state(State::Rts)?;
    conn.post_recv(7, BUFFER)?;
    conn.send(&conn.request(Operation::SendOnly, 1).payload(b"found"))?;
    conn.expect_completion(7, Status::Success)?;
    conn.expect_memory(BUFFER.offset, b"found")
}

//= UC-08 type=test
fn uc_wrong_key(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(Vec::new()))?;
    let region = conn.region();
    let wrong = Rkey::new(region.rkey.get() ^ 0x00ff_0001);
    let write = |index, rkey, data: &[u8]| {
        let packet = conn.request(Operation::WriteOnly, index).payload(data);
        packet.reth(region.va, rkey, u32::try_from(data.len()).unwrap_or(0))
    };
    conn.send(&write(0, wrong, b"wrong"))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 5])?;
    conn.expect_no_event()?;
    conn.expect_state(State::Rts)?;
    conn.send(&write(1, region.rkey, b"right"))?;
    conn.expect_silence()?;
    conn.expect_memory(0, b"right")
}

//= UC-09 type=test
fn uc_too_long(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(vec![Buffer::new(2048, 8)]))?;
    conn.send(&conn.request(Operation::SendOnly, 0).payload(b"more than 8"))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.send(&conn.request(Operation::SendOnly, 1).payload(b"fits"))?;
    conn.expect_completion(0, Status::Success)?;
    conn.expect_state(State::Rts)
}

//= UC-02 type=test
fn uc_requester(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(uc(Vec::new()))?;
    let data = pattern(300);
    conn.qp().write_memory(0, 0, &data);
    let send = WorkOp::Send { imm: None };
    conn.post_send(&Work::new(9, send, Buffer::new(0, 300)))?;
    let first = conn.expect_request(Operation::SendFirst, 0)?;
    let last = conn.expect_request(Operation::SendLast, 1)?;
    for packet in [&first, &last] {
        equal(packet.headers.bth.opcode.service(), Service::Uc, "service")?;
        equal(packet.headers.bth.ack_req, false, "AckReq")?;
    }
    conn.expect_completion(9, Status::Success)?;
    conn.expect_silence()
}

//= UD-05 type=test
fn ud_wrong_qkey(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(ud(vec![BUFFER]))?;
    conn.send(&datagram(&conn, 0, QKEY ^ 1, b"who"))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_no_event()?;
    conn.send(&datagram(&conn, 1, QKEY, b"me"))?;
    conn.expect_completion(0, Status::Success).map(drop)
}

//= UD-08 type=test
//= GRH-01 type=test
//= GRH-02 type=test
fn ud_header(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(ud(vec![BUFFER]))?;
    conn.send(&datagram(&conn, 0, QKEY, b"message"))?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.byte_len, 47, "byte_len")?;
    conn.expect_memory(BUFFER.offset + GRH_LEN, b"message")?;
    let header = conn.qp().read_memory(0, BUFFER.offset, GRH_LEN);
    if bench.rig().local().is_ipv4() {
        equal(&header[..20], &[0; 20], "the first 20 bytes")?;
        equal(header[20], 0x45, "version and length")?;
        equal(header[29], 17, "protocol")?;
        // IP, UDP, BTH, DETH, seven bytes and a pad, and ICRC.
        equal(
            u16::from_be_bytes([header[22], header[23]]),
            60,
            "total length",
        )
    } else {
        equal(header[0] >> 4, 6, "version")
    }
}

//= UD-09 type=test
fn ud_no_receive(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(ud(Vec::new()))?;
    conn.send(&datagram(&conn, 0, QKEY, b"lost"))?;
    conn.expect_silence()?;
    conn.expect_state(State::Rts)?;
    conn.post_recv(3, BUFFER)?;
    conn.send(&datagram(&conn, 1, QKEY, b"found"))?;
    conn.expect_completion(3, Status::Success)?;
    conn.expect_memory(BUFFER.offset + GRH_LEN, b"found")
}

/// Hardware completes the receive with an error, and other devices keep it. Both are allowed.
//= UD-10 type=test
fn ud_too_long(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(ud(vec![Buffer::new(2048, 44), BUFFER]))?;
    conn.send(&datagram(&conn, 0, QKEY, b"12345"))?;
    conn.expect_silence()?;
    conn.expect_memory(2048 + GRH_LEN, &[0; 4])?;
    if conn.qp().state() == State::Err {
        return conn.expect_completion(0, Status::LocLenErr).map(drop);
    }
    conn.send(&datagram(&conn, 1, QKEY, b"1234"))?;
    let completion = conn.completion()?;
    match completion.id {
        0 | 1 => equal(completion.status, Status::Success, "status"),
        other => fail(format!("completion of {other}")),
    }
}

//= UD-11 type=test
fn ud_any_psn(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(ud(vec![BUFFER, BUFFER, BUFFER]))?;
    for (id, index) in (0..).zip([1000, -5, -5]) {
        conn.send(&datagram(&conn, index, QKEY, b"any"))?;
        conn.expect_completion(id, Status::Success)?;
    }
    Ok(())
}

//= UD-07 type=test
//= UD-01 type=test
fn ud_requester(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(ud(Vec::new()))?;
    conn.qp().write_memory(0, 0, b"datagram");
    let send = WorkOp::Send { imm: Some([9; 4]) };
    conn.post_send(&Work::new(4, send, Buffer::new(0, 8)))?;
    let packet = conn.expect_request(Operation::SendOnlyImm, 0)?;
    equal(packet.headers.bth.opcode.service(), Service::Ud, "service")?;
    let source = packet.headers.deth.map(|deth| (deth.qkey, deth.src_qp));
    let own: Qpn = conn.qp().qpn();
    equal(source, Some((Qkey::new(QKEY), own)), "DETH")?;
    conn.expect_completion(4, Status::Success)?;
    conn.expect_silence()
}
