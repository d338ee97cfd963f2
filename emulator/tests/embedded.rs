//! Several HCAs inside one process, without a broker: every operation over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::mem_forget,
    reason = "tests: a failure may panic, sizes are small, a region is leaked on purpose"
)]

mod common;

use common::{Side, connect, engine, pair, pattern};
use rocade_emulator::{ImmOrInv, SendOp, WcOpcode, WcStatus};

#[test]
fn send_arrives_intact_for_all_sizes() {
    let (a, b) = pair("127.1.0.1", "127.1.0.2", 3 << 20);
    for (wr_id, len) in (0..).zip([0, 1, 3, 1023, 1024, 1025, 4096, 70_000, 1 << 20]) {
        let data = pattern(len, len);
        a.fill(0, &data);
        b.qp.recv_queue()
            .push(wr_id, &[b.sge(1 << 20, len.max(1))])
            .unwrap();
        a.send(
            wr_id,
            SendOp::Send {
                imm: Some([1, 2, 3, 4]),
            },
            &[a.sge(0, len)],
        );
        let received = b.completion();
        assert_eq!(received.status, WcStatus::Success);
        assert_eq!(received.opcode, WcOpcode::Recv);
        assert_eq!((received.wr_id, received.byte_len as usize), (wr_id, len));
        assert_eq!(received.imm_or_inv, ImmOrInv::Imm([1, 2, 3, 4]));
        assert_eq!(b.bytes(1 << 20, len), data);
        let sent = a.completion();
        assert_eq!((sent.wr_id, sent.status), (wr_id, WcStatus::Success));
    }
}

#[test]
fn one_sided_operations_over_ipv4() {
    let (a, b) = pair("127.1.0.3", "127.1.0.4", 2 << 20);
    one_sided(&a, &b);
}

#[test]
fn one_sided_operations_over_ipv6_on_one_device() {
    let engine = engine("::1");
    let (a, b) = (Side::on(engine.clone(), 2 << 20), Side::on(engine, 2 << 20));
    connect(&a, &b);
    one_sided(&a, &b);
}

fn one_sided(a: &Side, b: &Side) {
    let data = pattern(600_000, 5);
    a.fill(0, &data);
    let rkey = b.mr.rkey();
    a.send(
        1,
        SendOp::Write {
            va: b.addr(100),
            rkey,
            imm: None,
        },
        &[a.sge(0, data.len())],
    );
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(b.bytes(100, data.len()), data);

    a.send(
        2,
        SendOp::Read {
            va: b.addr(100),
            rkey,
        },
        &[a.sge(1 << 20, data.len())],
    );
    let read = a.completion();
    assert_eq!(
        (read.opcode, read.byte_len as usize),
        (WcOpcode::RdmaRead, data.len())
    );
    assert_eq!(a.bytes(1 << 20, data.len()), data);

    b.fill(0, &41u64.to_ne_bytes());
    a.send(
        3,
        SendOp::FetchAdd {
            va: b.addr(0),
            rkey,
            add: 1,
        },
        &[a.sge(0, 8)],
    );
    assert_eq!(a.completion().opcode, WcOpcode::FetchAdd);
    assert_eq!(a.bytes(0, 8), 41u64.to_ne_bytes());
    let op = SendOp::CmpSwap {
        va: b.addr(0),
        rkey,
        compare: 42,
        swap: 7,
    };
    a.send(4, op, &[a.sge(0, 8)]);
    assert_eq!(a.completion().opcode, WcOpcode::CompSwap);
    assert_eq!(a.bytes(0, 8), 42u64.to_ne_bytes());
    assert_eq!(b.bytes(0, 8), 7u64.to_ne_bytes());
}

#[test]
fn a_sleeping_target_is_served_and_events_arrive() {
    let (a, b) = pair("127.1.0.5", "127.1.0.6", 1 << 16);
    b.qp.recv_queue().push(5, &[b.sge(0, 100)]).unwrap();
    b.cq.req_notify(false).unwrap();
    let waiting = {
        let (channel, cq) = (b.channel.clone(), b.cq.clone());
        std::thread::spawn(move || {
            let cookie = channel.get_event().unwrap();
            cq.ack_events(1);
            cookie
        })
    };
    a.send(1, SendOp::Send { imm: None }, &[a.sge(0, 64)]);
    assert_eq!(waiting.join().unwrap(), 7);
    assert_eq!(b.completion().wr_id, 5);
    // `a` waits for its completion without polling, too.
    a.cq.req_notify(false).unwrap();
    if a.cq.poll_one().is_none() {
        assert_eq!(a.channel.get_event().unwrap(), 7);
        a.cq.ack_events(1);
        assert_eq!(a.completion().status, WcStatus::Success);
    }
}
