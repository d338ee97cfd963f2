//! Many queue pairs with a small receive buffer, which most hosts have.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::fs;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use common::{ALL_ACCESS, Side, engine, pattern};
use rocade_emulator::link::ROCE_PORT;
use rocade_emulator::{Connection, Mtu, Rkey, SendOp, WcStatus};
use socket2::SockRef;

/// The buffer of an unprivileged process if `net.core.rmem_max` has its default.
const SMALL_BUFFER: usize = 212_992;
/// Half a second: on a busy machine a process may not be scheduled for longer than usual timeouts,
/// and seven of those are over soon. The test does not depend on it.
const TIMEOUT: u8 = 17;
const QPS: usize = 8;
const MESSAGE_LEN: usize = 512 * 1024;
const MESSAGES: usize = 16;

fn host(address: &str) -> Vec<Side> {
    let engine = engine(address);
    let side = |_| Side::on(engine.clone(), MESSAGE_LEN);
    (0..QPS).map(side).collect()
}

fn connect(side: &Side, peer: &Side) {
    let connection = Connection {
        timeout: TIMEOUT,
        path_mtu: Mtu::Mtu4096,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        ..side.connection(peer.qp.qp_num().get(), peer.gid())
    };
    side.qp.connect(ALL_ACCESS, &connection).unwrap();
}

/// Shrinks the buffers of this process's sockets that receive RoCEv2 packets. Returns their number.
fn shrink_receive_buffers() -> usize {
    let numbers = fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number| {
            // SAFETY: these sockets stay open as long as their engines. If another descriptor is
            // closed meanwhile, it is not used.
            let fd = unsafe { BorrowedFd::borrow_raw(*number) };
            let socket = SockRef::from(&fd);
            let address = socket.local_addr().ok().and_then(|addr| addr.as_socket());
            let receives = address.is_some_and(|address| address.port() == ROCE_PORT);
            receives && socket.set_recv_buffer_size(SMALL_BUFFER).is_ok()
        })
        .count()
}

/// Eight QPs send at once into a process whose socket holds 208 KiB, then eight READs respond at
/// once. Overflows cost time, but never data.
#[test]
fn incast_into_a_small_receive_buffer() {
    let (a, b) = (host("127.4.0.1"), host("127.4.0.2"));
    for (a, b) in a.iter().zip(&b) {
        connect(a, b);
        connect(b, a);
    }
    assert_eq!(shrink_receive_buffers(), 2, "one socket per address");
    for (index, side) in a.iter().enumerate() {
        side.fill(0, &pattern(MESSAGE_LEN, index));
    }
    run(&a, &b, |va, rkey| SendOp::Write {
        va,
        rkey,
        imm: None,
    });
    for (index, side) in b.iter().enumerate() {
        let arrived = side.bytes(0, MESSAGE_LEN) == pattern(MESSAGE_LEN, index);
        assert!(arrived, "written data differs");
    }
    for side in &a {
        side.fill(0, &[0; MESSAGE_LEN]);
    }
    run(&a, &b, |va, rkey| SendOp::Read { va, rkey });
    for (index, side) in a.iter().enumerate() {
        let arrived = side.bytes(0, MESSAGE_LEN) == pattern(MESSAGE_LEN, index);
        assert!(arrived, "read data differs");
    }
}

/// Posts all messages of all queue pairs at once.
fn run(a: &[Side], b: &[Side], op: impl Fn(u64, Rkey) -> SendOp) {
    for _ in 0..MESSAGES {
        for (a, b) in a.iter().zip(b) {
            a.send(1, op(b.addr(0), b.mr.rkey()), &[a.sge(0, MESSAGE_LEN)]);
        }
    }
    let mut progress = Instant::now();
    let mut done = 0;
    while done < MESSAGES * QPS {
        for completion in a.iter().filter_map(|side| side.cq.poll_one()) {
            assert_eq!(completion.status, WcStatus::Success);
            done += 1;
            progress = Instant::now();
        }
        assert!(
            progress.elapsed() < Duration::from_secs(60),
            "{done} done: {:?}",
            a[0].qp.counters()
        );
    }
}
