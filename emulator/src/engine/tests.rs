//! The engine under a small receive buffer, which is what most hosts have, and where its threads meet.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rocade_transport::{
    AccessFlags, AddressVector, PacketMeta, QpAttr, QpAttrMask, QpCap, QpState, QpType, SendFlags,
    SendOp, SendWr, Sge, WcStatus,
};
use rocade_wire::{Bth, Opcode, Packet, Psn};

use super::ack_hold;
use crate::config::{BrokerMode, EngineConfig, LinkMode};
use crate::link::LocalAddr;
use crate::link::shm::ShmChannel;
use crate::steering::Slot;
use crate::{Context, Cq, Engine, Mr, Pd, Qp, QpInitAttr};

/// What an unprivileged process gets where `net.core.rmem_max` is at its default.
const SMALL_BUFFER: usize = 212_992;
/// Half a second: on a busy machine a process may not run for longer than usual timeouts, and seven of those are
/// soon over. What is tested does not depend on it.
const TIMEOUT: u8 = 17;
const QPS: usize = 8;
const MESSAGE_LEN: usize = 512 * 1024;
const MESSAGES: usize = 16;

struct Host {
    engine: Engine,
    context: Context,
    _pd: Pd,
    cq: Cq,
    mr: Mr,
    memory: &'static [AtomicU8],
    qps: Vec<Qp>,
}

fn host(address: &str) -> Host {
    let spec = format!("dev={address}");
    let config = EngineConfig::from_specs(&[spec], BrokerMode::Embedded).expect("a device");
    host_on(&Engine::new(config).expect("an engine"), "dev")
}

fn host_on(engine: &Engine, device: &str) -> Host {
    let context = engine.open_device(device).expect("it is there");
    let pd = context.alloc_pd().expect("a PD");
    let cq = context.create_cq(4096, None, 0, 0).expect("a CQ");
    let memory: &'static [AtomicU8] =
        Vec::leak((0..QPS * MESSAGE_LEN).map(|_| AtomicU8::new(0)).collect());
    let addr = memory.as_ptr().expose_provenance() as u64;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    // SAFETY: leaked memory, accessed through atomics only.
    let mr = unsafe { pd.reg_mr(addr, memory.len(), addr, access) }.expect("registered");
    let cap = QpCap {
        max_send_wr: 64,
        max_recv_wr: 1,
        max_send_sge: 1,
        ..QpCap::default()
    };
    let init = || QpInitAttr {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        cap,
        qp_type: QpType::Rc,
        sq_sig_all: true,
        cookie: 0,
    };
    let qps = (0..QPS)
        .map(|_| pd.create_qp(init()).expect("a QP"))
        .collect();
    Host {
        engine: engine.clone(),
        context,
        _pd: pd,
        cq,
        mr,
        memory,
        qps,
    }
}

fn connect(qp: &Qp, peer: &Qp, to: &Host) {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let init = QpAttr {
        qp_state: QpState::Init.code(),
        port_num: 1,
        qp_access_flags: access,
        ..QpAttr::default()
    };
    let mask =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    qp.modify(&init, mask).expect("INIT");
    let ah_attr = AddressVector {
        dgid: to.context.gid_entries()[0].gid,
        is_global: true,
        port_num: 1,
        ..AddressVector::default()
    };
    let rtr = QpAttr {
        qp_state: QpState::Rtr.code(),
        path_mtu: 5,
        dest_qp_num: peer.qp_num().get(),
        max_dest_rd_atomic: 16,
        ah_attr,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    qp.modify(&rtr, mask).expect("RTR");
    let rts = QpAttr {
        qp_state: QpState::Rts.code(),
        timeout: TIMEOUT,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::SQ_PSN
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    qp.modify(&rts, mask).expect("RTS");
}

/// Eight QPs send at once into a process whose socket holds 208 KiB, then eight READs answer at
/// once: overflows cost time, never data.
#[test]
fn incast_into_a_small_receive_buffer() {
    let (a, b) = (host("127.4.0.1"), host("127.4.0.2"));
    for (qa, qb) in a.qps.iter().zip(&b.qps) {
        connect(qa, qb, &b);
        connect(qb, qa, &a);
    }
    for engine in [&a.engine, &b.engine] {
        for port in engine.inner.ports.read().iter() {
            port.link
                .set_receive_buffer(SMALL_BUFFER)
                .expect("smaller is allowed");
        }
    }
    for (index, cell) in a.memory.iter().enumerate() {
        cell.store(index.wrapping_mul(31).to_le_bytes()[0], Ordering::Relaxed);
    }
    run(&a, &b, |va, rkey| SendOp::Write {
        va,
        rkey,
        imm: None,
    });
    let same = |x: &Host, y: &Host| {
        x.memory
            .iter()
            .zip(y.memory)
            .all(|(x, y)| x.load(Ordering::Relaxed) == y.load(Ordering::Relaxed))
    };
    assert!(same(&a, &b), "what was written is there");
    for cell in a.memory {
        cell.store(0, Ordering::Relaxed);
    }
    run(&a, &b, |va, rkey| SendOp::Read { va, rkey });
    assert!(same(&a, &b), "what was read is there");
}

/// Posts 8-byte WRITEs, the n-th to place n, until one waits for company, and returns its number.
fn post_until_one_waits(a: &Host, b: &Host) -> usize {
    for number in 1..1000 {
        let offset = 8 * number as u64;
        let sge = Sge {
            addr: a.mr.addr() + offset,
            len: 8,
            lkey: a.mr.lkey(),
        };
        let op = SendOp::Write {
            va: b.mr.addr() + offset,
            rkey: b.mr.rkey(),
            imm: None,
        };
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::empty(),
            sges: &[sge],
        };
        let inner = a.qps[0].inner();
        inner.lock().tx.doorbell().do_not_hurry();
        a.qps[0].send_queue().push(&wr).expect("posted");
        if inner.lock().tx.doorbell().waits() {
            return number;
        }
        // Nothing was on its way: room for the next ones.
        while a.cq.poll_one().is_some() {}
    }
    panic!("each was acknowledged at once");
}

/// Posts wait for company where packets are on their way, and leave at the next opportunity: a
/// poll in vain, an application that sleeps or, if it does nothing at all, soon.
#[test]
fn posts_that_wait_leave_whatever_the_application_does() {
    let opportunities: [fn(&Host); 3] = [
        |_| (),
        |a| while a.cq.poll_one().is_some() {},
        |a| a.engine.inner.leave_inline(),
    ];
    for opportunity in opportunities {
        let (a, b) = (host("127.4.0.3"), host("127.4.0.4"));
        connect(&a.qps[0], &b.qps[0], &b);
        connect(&b.qps[0], &a.qps[0], &a);
        for cell in a.memory.iter().take(8 * 1000) {
            cell.store(1, Ordering::Relaxed);
        }
        let number = post_until_one_waits(&a, &b);
        opportunity(&a);
        let deadline = Instant::now() + Duration::from_secs(10);
        while b.memory[8 * number].load(Ordering::Relaxed) == 0 {
            assert!(Instant::now() < deadline, "post {number} is still waiting");
            std::thread::yield_now();
        }
        assert!(!a.qps[0].inner().lock().tx.doorbell().waits());
    }
}

fn run(a: &Host, b: &Host, op: impl Fn(u64, rocade_wire::Rkey) -> SendOp) {
    for _ in 0..MESSAGES {
        for (index, qp) in a.qps.iter().enumerate() {
            let offset = (index * MESSAGE_LEN) as u64;
            let len = u32::try_from(MESSAGE_LEN).expect("small");
            let sge = Sge {
                addr: a.mr.addr() + offset,
                len,
                lkey: a.mr.lkey(),
            };
            let op = op(b.mr.addr() + offset, b.mr.rkey());
            let wr = SendWr {
                wr_id: 1,
                op,
                flags: SendFlags::SIGNALED,
                sges: &[sge],
            };
            qp.send_queue().push(&wr).expect("posted");
        }
    }
    let mut progress = Instant::now();
    let mut done = 0;
    while done < MESSAGES * QPS {
        if let Some(completion) = a.cq.poll_one() {
            assert_eq!(completion.status, WcStatus::Success);
            done += 1;
            progress = Instant::now();
        }
        assert!(
            progress.elapsed() < Duration::from_secs(60),
            "{done} done: {:?}",
            a.qps[0].counters()
        );
    }
}

/// Two threads make the channel between two addresses of their process at the same time: whoever comes
/// second must not lead anybody to a channel from which nobody receives.
#[test]
fn a_second_channel_of_ones_own_is_not_used() {
    let (near, far) = ("127.4.0.5", "127.4.0.6");
    let specs = [format!("near={near}"), format!("far={far}")];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).expect("devices");
    let link = LinkMode::Shm;
    let engine = Engine::new(EngineConfig { link, ..config }).expect("an engine");
    let (a, b) = (host_on(&engine, "near"), host_on(&engine, "far"));
    // The other address is not in use yet, so there is no channel.
    connect(&a.qps[0], &b.qps[0], &b);
    let inner = &engine.inner;
    assert_eq!(inner.channels.read().len(), 0);

    let local = |address: &str| LocalAddr::from(address.parse::<IpAddr>().expect("an address"));
    let (from, to) = (local(near), local(far));
    let ends = || {
        let ends = ShmChannel::own(from, to, Slot::EMBEDDED, inner.wake.as_fd());
        ends.expect("memory").map(Arc::new)
    };
    // The first thread has its channel in the list, and has not moved the queue pairs.
    let first = ends();
    inner.channels.write().extend(first.iter().cloned());
    inner.channel_count.store(2, Ordering::Release);
    inner.adopt(from, to, Slot::EMBEDDED, &ends());
    assert_eq!(inner.channels.read().len(), 2);

    connect(&b.qps[0], &a.qps[0], &a);
    for end in &first {
        inner.move_qps_to(end);
    }
    let sge = Sge {
        addr: a.mr.addr(),
        len: 8,
        lkey: a.mr.lkey(),
    };
    let op = SendOp::Write {
        va: b.mr.addr(),
        rkey: b.mr.rkey(),
        imm: None,
    };
    let wr = SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED,
        sges: &[sge],
    };
    a.qps[0].send_queue().push(&wr).expect("posted");
    let deadline = Instant::now() + Duration::from_secs(60);
    let completion = loop {
        if let Some(completion) = a.cq.poll_one() {
            break completion;
        }
        assert!(Instant::now() < deadline, "nobody receives");
    };
    assert_eq!(completion.status, WcStatus::Success);
}

#[test]
fn only_who_has_made_an_engine_sends_for_it_at_the_exit() {
    let (engine, own) = (host("127.4.0.7").engine, std::process::id());
    let is_this = |other: &Weak<_>| Weak::ptr_eq(other, &Arc::downgrade(&engine.inner));
    assert!(ack_hold::engines_of(own).iter().any(is_this));
    assert!(
        !ack_hold::engines_of(own + 1).iter().any(is_this),
        "a child"
    );
}

/// A message has come to a queue pair that has not been drained yet when the CQ of its sends is overrun: if its
/// completion is seen, it is acknowledged.
//= RC-ACK-20 type=test
#[test]
fn a_cq_that_is_overrun_costs_no_acknowledgement_of_what_another_reports() {
    let (a, b) = (host("127.4.0.8"), host("127.4.0.9"));
    let full = a.context.create_cq(1, None, 0, 0).expect("a CQ");
    let init = |recv_cq: &Cq| QpInitAttr {
        send_cq: full.clone(),
        recv_cq: recv_cq.clone(),
        cap: QpCap {
            max_send_wr: 2,
            max_recv_wr: 1,
            max_recv_sge: 1,
            ..QpCap::default()
        },
        qp_type: QpType::Rc,
        sq_sig_all: true,
        cookie: 0,
    };
    let qp = a._pd.create_qp(init(&a.cq)).expect("a QP");
    connect(&qp, &b.qps[0], &b);
    qp.recv_queue().push(7, &[]).expect("posted");
    let bth = Bth {
        ack_req: true,
        ..Bth::new(Opcode::new(4), qp.qp_num(), Psn::new(0))
    };
    let bytes = [&bth.to_bytes()[..], &[0; 4]].concat();
    let packet = Packet::parse(&bytes).expect("a SEND of nothing");
    {
        let (engine, inner) = (&a.engine.inner, qp.inner());
        let mem = engine.regions().read(engine.now());
        let mut core = inner.lock();
        let meta = PacketMeta {
            source: core.qp.remote(),
            destination: core.qp.local(),
        };
        let memory = mem.view(inner.pd_id());
        core.qp.handle_packet(engine.now(), &meta, &packet, &memory);
        assert_eq!(core.qp.pending_completions().len(), 1);
    }

    let other = a._pd.create_qp(init(&full)).expect("a QP");
    connect(&other, &b.qps[1], &b);
    let err = QpAttr {
        qp_state: QpState::Err.code(),
        ..QpAttr::default()
    };
    other.modify(&err, QpAttrMask::STATE).expect("ERR");
    for wr_id in 0..2 {
        let wr = SendWr {
            wr_id,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            sges: &[],
        };
        other.send_queue().push(&wr).expect("posted");
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let completion = loop {
        if let Some(completion) = a.cq.poll_one() {
            break completion;
        }
        assert!(Instant::now() < deadline, "no completion");
    };
    assert_eq!(
        (completion.wr_id, completion.status),
        (7, WcStatus::Success)
    );
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(qp.counters().acks_sent, 1);
}
