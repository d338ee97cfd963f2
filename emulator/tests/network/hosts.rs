//! Masked atomics between two hosts (two network namespaces). They are sent only to a peer that has
//! shown that it is Rocade.

use std::net::UdpSocket;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::config::HostNetwork;
use rocade_emulator::{
    Gid, MaskedOp, Operands, Qpn, Rkey, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

use super::common::{Side, engine};
use super::ip;
use super::sandbox::own_network;

/// The address of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    qpn: Qpn,
    gid: Gid,
    addr: u64,
    rkey: Rkey,
}

fn place(side: &Side) -> Place {
    Place {
        qpn: side.qp.qp_num(),
        gid: side.gid(),
        addr: side.addr(0),
        rkey: side.mr.rkey(),
    }
}

/// Waits until an interface has a carrier and its address.
pub(super) fn wait_for(interface: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while HostNetwork::discover()
        .unwrap()
        .by_name(interface)
        .is_none()
    {
        assert!(Instant::now() < deadline, "{interface} is not up");
        thread::yield_now();
    }
}

/// Runs `there` on one host, 192.0.2.2, and `here` on another, 192.0.2.1. Returns false without the
/// permission to make them. Both exchange their addresses, and `there` is told when the test is
/// over.
fn on_two_hosts(
    there: impl FnOnce(&Sender<Place>, &Receiver<Place>) + Send + 'static,
    here: impl FnOnce(&Sender<Place>, &Receiver<Place>),
) -> bool {
    if !own_network() {
        return false;
    }
    let (to_there, at_there) = channel();
    let (to_here, at_here) = channel();
    let (say_who, who) = channel();
    let (say_go, go) = channel::<()>();
    let other = thread::spawn(move || {
        assert!(own_network());
        // SAFETY: a system call without arguments.
        say_who.send(unsafe { libc::gettid() }).unwrap();
        go.recv().unwrap();
        ip("link set lo up\naddr add 192.0.2.2/24 dev v1\nlink set v1 up\n");
        wait_for("v1");
        there(&to_here, &at_there);
    });
    let tid = who.recv().unwrap();
    ip(&format!(
        "link set lo up\nlink add v0 type veth peer name v1\nlink set v1 netns {tid}\n\
         addr add 192.0.2.1/24 dev v0\nlink set v0 up\n"
    ));
    say_go.send(()).unwrap();
    wait_for("v0");
    here(&to_there, &at_here);
    drop(to_there);
    other.join().unwrap();
    true
}

fn masked(side: &Side, wr_id: u64, to: Place, log_size: u8) {
    let wr = SendWr {
        wr_id,
        op: SendOp::Masked {
            va: to.addr.next_multiple_of(32),
            rkey: to.rkey,
            log_size,
        },
        flags: SendFlags::SIGNALED,
        sges: &[side.sge(64, 32)],
    };
    let add = Operands::Masked(MaskedOp::FetchAdd {
        add: [1; 4],
        boundary: [0; 4],
    });
    side.qp
        .post_sends(|queue| queue.push_with(&wr, add))
        .unwrap();
}

//= XAW-08 type=test
#[test]
fn masked_atomics_reach_another_host() {
    let made = on_two_hosts(
        |to_here, at_there| {
            let side = Side::on(engine("v1"), 4096);
            to_here.send(place(&side)).unwrap();
            let peer = at_there.recv().unwrap();
            side.to_rts(peer.qpn.get(), peer.gid);
            to_here.send(place(&side)).unwrap();
            // The background thread responds until the other side is done.
            assert!(at_there.recv().is_err());
            let start = side.addr(0).next_multiple_of(32) - side.addr(0);
            let start = usize::try_from(start).unwrap();
            assert_eq!(side.bytes(start, 8), 40u64.to_ne_bytes());
            assert_eq!(side.bytes(start + 24, 8), 10u64.to_ne_bytes());
        },
        |to_there, at_here| {
            let side = Side::on(engine("v0"), 4096);
            let peer = at_here.recv().unwrap();
            side.to_rts(peer.qpn.get(), peer.gid);
            to_there.send(place(&side)).unwrap();
            at_here.recv().unwrap();
            for round in 0..10u64 {
                for log_size in 2..=5 {
                    masked(&side, u64::from(log_size), peer, log_size);
                    let completion = side.completion();
                    assert_eq!(completion.status, WcStatus::Success);
                    assert_eq!(completion.opcode, WcOpcode::MaskedFetchAdd);
                    let before = 4 * round + u64::from(log_size - 2);
                    let value = side.bytes(64, 8);
                    let half = u32::try_from(before).unwrap().to_ne_bytes();
                    if log_size == 2 {
                        assert_eq!(value[..4], half);
                    } else {
                        assert_eq!(value, before.to_ne_bytes());
                    }
                }
            }
        },
    );
    if !made {
        rocade_skip::skip!("cannot make a network namespace");
    }
}

/// A device that is not Rocade never gets an unknown opcode. It only gets datagrams (UD SEND Only).
//= XAW-08 type=test
#[test]
fn a_plain_peer_gets_no_masked_atomic() {
    let made = on_two_hosts(
        |to_here, at_there| {
            let socket = UdpSocket::bind("192.0.2.2:4791").unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            let unknown = Place {
                qpn: Qpn::new(0x1234),
                gid: Gid::from_ip("192.0.2.2".parse().unwrap()),
                addr: 0x10000,
                rkey: Rkey::new(0x4321),
            };
            to_here.send(unknown).unwrap();
            let mut opcodes = Vec::new();
            let mut bytes = [0; 2048];
            loop {
                let is_over = at_there.try_recv() == Err(TryRecvError::Disconnected);
                match socket.recv(&mut bytes) {
                    Ok(_) => opcodes.push(bytes[0]),
                    // Packets that were sent before the end have arrived.
                    Err(_) if is_over => break,
                    Err(_) => {}
                }
            }
            assert_eq!(opcodes, [0x64; 8], "once, and seven times more");
        },
        |_, at_here| {
            let side = Side::on(engine("v0"), 4096);
            let peer = at_here.recv().unwrap();
            side.to_rts_with_timeout(peer.qpn.get(), peer.gid, 12);
            masked(&side, 1, peer, 3);
            side.send(2, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
            let completion = side.completion();
            assert_eq!(
                (completion.wr_id, completion.status),
                (1, WcStatus::RetryExcErr)
            );
            let completion = side.completion();
            assert_eq!(
                (completion.wr_id, completion.status),
                (2, WcStatus::WrFlushErr)
            );
        },
    );
    if !made {
        rocade_skip::skip!("cannot make a network namespace");
    }
}
