//! Checks of a poller before it sleeps, and its announcements, in engines without threads. Raw
//! frames, which come through sockets of their own, wake all threads that wait.

use std::os::fd::RawFd;
use std::thread;
use std::time::Instant;

use rocade_skip::skip;
use rocade_transport::{QpAttr, QpAttrMask, QpState, QpType, SendFlags, SendOp, SendWr};
use rocade_wire::Qpn;

use super::super::peer_links::wiring::{engine_with_link, was_woken};
use super::super::pending::common::{self, Side};
use super::*;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::VerbsError;
use crate::link::peer_link::{AnyPeerLink, Fragment, PeerLink as _, SendOutcome, Sending};
use crate::{Cq, Flow, FlowAttr, FlowKind, FlowSpec, Masked, PortFields, Qp, QpCap, QpInitAttr};

const LIMIT_NS: u64 = 60_000_000_000;

fn queue(engine: &Engine) -> Cq {
    let context = engine.open_device("a").expect("the device");
    context.create_cq(4, None, 0, 0).expect("a CQ")
}

/// Returns whether a poller that has found nothing for long may sleep.
fn may_sleep(engine: &Engine, cq: &Cq) -> bool {
    let inner = engine.inner();
    let sleepers = inner.scheduler.service_queue.sleepers();
    let sleeper = sleepers.begin().expect("a descriptor");
    let may = inner.may_sleep(cq.inner(), &sleeper);
    inner.links.announce_awake();
    assert!(sleepers.end(sleeper));
    may
}

fn send(link: &AnyPeerLink) {
    let sending = Sending {
        len: 1,
        segment_len: 1,
        traffic_class: 0,
        hop_limit: 9,
        after_udp: false,
        wait: false,
        unpublished: false,
    };
    let sent = link.send(std::iter::once(Fragment::Bytes(b"x")), sending);
    assert_eq!(sent, SendOutcome::Sent);
}

/// Each kind of work keeps a poller awake: packets that another thread has received, a queue pair
/// that was woken, packets of a link.
#[test]
fn a_poller_with_work_does_not_sleep() {
    let (engine, [near, _]) = engine_with_link(EngineConfig::simulated(1));
    let (inner, cq) = (engine.inner(), queue(&engine));
    ThreadPolls::begin_idle(inner);
    assert!(may_sleep(&engine, &cq));
    inner.scheduler.wake_sleepers();
    assert!(!may_sleep(&engine, &cq), "another thread has received");
    ThreadPolls::begin_idle(inner);
    inner.scheduler.service_queue.wake_qp(Qpn::new(0x77));
    assert!(!may_sleep(&engine, &cq), "a queue pair was woken");
    assert_eq!(
        inner.scheduler.service_queue.take_woken(),
        Some(Qpn::new(0x77))
    );
    assert!(may_sleep(&engine, &cq));
    send(&near);
    assert!(!may_sleep(&engine, &cq), "a packet is there");
}

/// The poller that watches is woken by the peers of its links while it sleeps. Afterwards, no peer
/// makes a system call for it.
#[test]
fn a_watcher_says_when_it_sleeps_and_when_it_is_awake() {
    let (engine, [near, _]) = engine_with_link(EngineConfig::simulated(1));
    let (inner, cq) = (engine.inner(), queue(&engine));
    ThreadPolls::begin_idle(inner);
    let sleepers = inner.scheduler.service_queue.sleepers();
    let sleeper = sleepers.begin().expect("a descriptor");
    assert!(sleeper.watches());
    assert!(inner.may_sleep(cq.inner(), &sleeper));
    send(&near);
    assert!(was_woken(&inner.scheduler.peer_wake_fd), "it sleeps");
    inner.links.announce_awake();
    assert!(sleepers.end(sleeper));
    inner.receive_unlocked(Caller::Application, 0);

    ThreadPolls::begin_idle(inner);
    assert!(!inner.sleep(cq.inner(), 1_000), "nothing has come");
    send(&near);
    assert!(!was_woken(&inner.scheduler.peer_wake_fd), "it is awake");
}

/// A poller does not sleep beyond the time at which a delayed packet is due.
#[test]
fn a_sleep_ends_when_a_delayed_packet_is_due() {
    let config = EngineConfig::simulated(1);
    let config = config.with_faults("delay by=3ms opcode=SEND_ONLY");
    let engine = Engine::new(config.expect("a rule")).expect("an engine");
    let [a, b] = ["a", "b"].map(|name| Side::on_device(engine.clone(), name, 64));
    common::connect(&a, &b);
    let inner = engine.inner();
    assert_eq!(inner.limit_of_sleep(LIMIT_NS), LIMIT_NS);
    a.send(1, SendOp::Send { imm: None }, &[a.sge(0, 8)]);
    assert_eq!(inner.limit_of_sleep(LIMIT_NS), 3_000_000);
    assert_eq!(inner.limit_of_sleep(1_000), 1_000);
    inner.host.move_to(inner.host.now().plus_ns(1_000_000));
    assert_eq!(inner.limit_of_sleep(LIMIT_NS), 2_000_000);
}

/// Returns a flow of UDP datagrams to this port.
fn udp_to(port: u16) -> FlowAttr {
    let fields = |dst_port| PortFields {
        dst_port,
        ..PortFields::default()
    };
    let spec = FlowSpec::Udp(Masked {
        val: fields(port.to_be_bytes()),
        mask: fields([0xff; 2]),
    });
    FlowAttr {
        kind: FlowKind::Normal,
        priority: 0,
        dont_trap: false,
        specs: vec![spec],
    }
}

/// A raw packet QP in RTS, with a side for its memory and its CQ.
struct Raw {
    side: Side,
    qp: Qp,
    sent: Cq,
}

/// Makes a raw packet QP. Returns `None` if the process has no permission.
fn raw(address: &str) -> Option<Raw> {
    let side = Side::new(address, 4096);
    let sent = side.context.create_cq(64, None, 0, 8).expect("a CQ");
    let qp = side.pd.create_qp(QpInitAttr {
        send_cq: sent.clone(),
        recv_cq: side.cq.clone(),
        srq: None,
        cap: QpCap {
            max_send_wr: 16,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        qp_type: QpType::RawPacket,
        sq_sig_all: false,
        cookie: 1,
    });
    let qp = match qp {
        Ok(qp) => qp,
        Err(VerbsError::NotPermitted(_)) => return None,
        Err(error) => panic!("{error}"),
    };
    for (state, more) in [
        (QpState::Init, QpAttrMask::PORT),
        (QpState::Rtr, QpAttrMask::empty()),
        (QpState::Rts, QpAttrMask::empty()),
    ] {
        let attr = QpAttr {
            port_num: 1,
            qp_state: state.code(),
            ..QpAttr::default()
        };
        qp.modify(&attr, QpAttrMask::STATE | more).expect("valid");
    }
    Some(Raw { side, qp, sent })
}

impl Raw {
    /// Receives UDP datagrams to this port.
    fn flow(&self, port: u16) -> Flow {
        self.qp.create_flow(udp_to(port)).expect("a flow")
    }

    fn receive(&self, wr_id: u64) {
        let sges = [self.side.sge(2048, 2048)];
        self.qp.recv_queue().push(wr_id, &sges).expect("room");
    }

    /// Sends a datagram to this port, and waits until it was sent.
    fn send(&self, port: u16) {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 36, 0, 7, 0, 0, 64, 17, 0, 0]);
        frame.extend([198, 51, 100, 1, 198, 51, 100, 2, 0, 9]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 16, 0, 0]);
        frame.extend(b"a frame!");
        self.side.fill(0, &frame);
        let sges = [self.side.sge(0, frame.len())];
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            sges: &sges,
        };
        self.qp.post_sends(|queue| queue.push(&wr)).expect("room");
        let begin = Instant::now();
        while self.sent.poll_one().is_none() {
            assert!(
                begin.elapsed().as_nanos() < u128::from(LIMIT_NS),
                "not sent"
            );
        }
    }
}

fn is_readable(fd: RawFd, limit: Duration) -> bool {
    let mut set = sys::PollSet::default();
    let entry = set.add(fd);
    set.wait_uncancelled(Some(limit)).expect("polled");
    set.is_ready(entry)
}

/// The background thread that sleeps waits for frames as well, also for those of a flow that was
/// made meanwhile.
#[test]
fn a_frame_wakes_the_background_thread() {
    let (Some(a), Some(b)) = (raw("127.4.0.81"), raw("127.4.0.82")) else {
        skip!("no raw packets: needs CAP_NET_RAW")
    };
    let limit = Duration::from_nanos(LIMIT_NS);
    for round in 0..5 {
        a.receive(round);
        a.side.cq.req_notify(false).expect("a channel");
        let falls_asleep = || {
            let begin = Instant::now();
            while !a
                .side
                .engine
                .inner()
                .scheduler
                .service_queue
                .needs_wake(Time::ZERO)
            {
                assert!(begin.elapsed() < limit, "it does not sleep");
                thread::yield_now();
            }
        };
        falls_asleep();
        let _flow = a.flow(7_401);
        if round % 2 == 0 {
            falls_asleep();
        }
        b.send(7_401);
        assert!(is_readable(a.side.channel.fd(), limit), "no event");
        a.side.channel.get_event().expect("an event");
        a.side.cq.ack_events(1);
        assert_eq!(a.side.completion().wr_id, round);
    }
}

/// A poller that sleeps and watches waits for frames as well. No other thread receives here.
#[test]
fn a_frame_wakes_a_poller() {
    let Some(sender) = raw("127.4.0.83") else {
        skip!("no raw packets: needs CAP_NET_RAW")
    };
    let engine = common::engine("127.4.0.84");
    let inner = engine.inner();
    let port = inner.raw_port(&inner.host.hcas[0]).expect("permitted");
    let flow = inner
        .links
        .frames
        .add_flow(&port, Qpn::new(7), udp_to(7_402));
    flow.expect("a flow");
    let sleepers = inner.scheduler.service_queue.sleepers();
    let sleeper = sleepers.begin().expect("a descriptor");
    assert!(sleeper.watches());
    sender.send(7_402);
    let begin = Instant::now();
    inner.wait_for_packets(&sleeper, Duration::from_nanos(LIMIT_NS));
    assert!(begin.elapsed().as_nanos() < u128::from(LIMIT_NS / 2));
    assert!(sleepers.end(sleeper));
}
