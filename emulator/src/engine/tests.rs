//! Tests of interactions between the engine's threads and queue pairs that the sockets alone do not
//! show.

use std::iter;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Barrier, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rocade_transport::{
    AccessFlags, AddressVector, PacketMeta, QpAttr, QpAttrMask, QpCap, QpState, QpType, SendFlags,
    SendOp, SendWr, Sge, WcOpcode, WcStatus, transition_rule,
};
use rocade_wire::{Bth, Opcode, Packet, Psn};

use super::ack_durability;
use crate::config::{BrokerMode, EngineConfig, LinkMode};
use crate::link::LocalAddr;
use crate::link::peer_link::{AnyPeerLink, Fragment, PeerLink as _, SendOutcome, Sending};
use crate::memory::KERNEL_CALLS;
use crate::state::ServiceReason;
use crate::steering::ProcessSlot;
use crate::{
    Connection, Context, Cq, DctInitAttr, Engine, Gid, Mr, Pd, Qp, QpInitAttr, SrqInitAttr, ToDct,
};

mod blocked_acks;

/// Half a second: on a busy machine a process may not be scheduled for longer than usual timeouts.
const TIMEOUT: u8 = 17;
const QPS: usize = 2;
const MEMORY_LEN: usize = 4096;

struct Host {
    engine: Engine,
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
}

fn host(address: &str) -> Host {
    let spec = format!("dev={address}");
    let config = EngineConfig::from_specs(&[spec], BrokerMode::Embedded).expect("a device");
    host_on(&Engine::new(config).expect("an engine"), "dev")
}

/// Makes an engine whose devices reach each other by shared memory only.
fn shared_memory_engine(specs: &[&str]) -> Engine {
    let specs: Vec<_> = specs.iter().map(|spec| (*spec).to_owned()).collect();
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).expect("devices");
    let link = LinkMode::Shm;
    Engine::new(EngineConfig { link, ..config }).expect("an engine")
}

fn host_on(engine: &Engine, device: &str) -> Host {
    let context = engine.open_device(device).expect("the device exists");
    let pd = context.alloc_pd().expect("a PD");
    let cq = context.create_cq(4096, None, 0, 0).expect("a CQ");
    let memory: &'static [AtomicU8] =
        Vec::leak((0..MEMORY_LEN).map(|_| AtomicU8::new(0)).collect());
    let addr = memory.as_ptr().expose_provenance() as u64;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    // SAFETY: leaked memory, accessed through atomics only.
    let mr = unsafe { pd.reg_mr(addr, memory.len(), addr, access) }.expect("registered");
    let cap = QpCap {
        max_send_wr: 64,
        max_recv_wr: 8,
        max_send_sge: 1,
        ..QpCap::default()
    };
    let init = || QpInitAttr {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
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
        pd,
        cq,
        mr,
        qps,
    }
}

fn connect(qp: &Qp, peer: &Qp, to: &Host) {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let connection = Connection {
        timeout: TIMEOUT,
        ..Connection::to(to.context.gid_entries()[0].gid, peer.qp_num())
    };
    qp.connect(access, &connection).expect("connected");
}

/// Blocks SIGSEGV and SIGBUS in this thread, so that the kernel copies.
fn block_faults() {
    // SAFETY: a sigset is plain data that sigfillset initialises.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// A thread that blocks SIGSEGV and SIGBUS: the kernel copies the data that it receives, a whole
/// batch per call.
#[test]
fn a_batch_whose_data_the_kernel_copies_costs_a_few_calls() {
    const LEN: usize = 60 << 10;
    const SMALL: usize = 100;
    let received = thread::spawn(|| {
        block_faults();
        let (a, b) = (host("127.4.0.10"), host("127.4.0.11"));
        connect(&a.qps[0], &b.qps[0], &b);
        connect(&b.qps[0], &a.qps[0], &a);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let register = |pd: &Pd, byte| {
            let memory: &'static [AtomicU8] =
                Vec::leak((0..LEN).map(|_| AtomicU8::new(byte)).collect());
            let addr = memory.as_ptr().expose_provenance() as u64;
            // SAFETY: leaked memory, accessed through atomics only.
            let mr = unsafe { pd.reg_mr(addr, LEN, addr, access) }.expect("registered");
            (memory, mr)
        };
        let (_, source) = register(&a.pd, 7);
        let (target, to) = register(&b.pd, 0);
        let write = |wr_id, at: usize, len: usize, queue: &mut crate::SendPoster<'_>| {
            let sge = Sge {
                addr: source.addr() + at as u64,
                len: u32::try_from(len).expect("small"),
                lkey: source.lkey(),
            };
            let op = SendOp::Write {
                va: to.addr() + at as u64,
                rkey: to.rkey(),
                imm: None,
            };
            let wr = SendWr {
                wr_id,
                op,
                flags: SendFlags::SIGNALED,
                sges: &[sge],
            };
            queue.push(&wr).expect("posted");
        };
        // One long message, and many short ones. The background thread may receive some of them.
        [1, 16].map(|messages: usize| {
            let (mut most, mut rounds) = (0, 0);
            let len = if messages == 1 { LEN } else { SMALL };
            let deadline = Instant::now() + Duration::from_secs(60);
            while rounds < 40 || most == 0 {
                a.qps[0].post_sends(|queue| {
                    for index in 0..messages {
                        write(index as u64, index * len, len, queue);
                    }
                });
                let before = KERNEL_CALLS.get();
                b.engine.inner().receive_all();
                most = most.max(KERNEL_CALLS.get() - before);
                let mut done = 0;
                while done < messages {
                    if let Some(completion) = a.cq.poll_one() {
                        assert_eq!(completion.status, WcStatus::Success);
                        done += 1;
                    }
                    assert!(Instant::now() < deadline, "no completion");
                }
                let written = &target[..messages * len];
                assert!(
                    written
                        .iter()
                        .all(|byte| byte.swap(0, Ordering::Relaxed) == 7)
                );
                rounds += 1;
            }
            most
        })
    });
    // 60 packets, and 16. Some are the first of a message or of a batch.
    let [long, short] = received.join().expect("no panic");
    assert!((1..=12).contains(&long), "{long} system calls");
    assert!((1..=8).contains(&short), "{short} system calls");
}

/// A thread that blocks SIGSEGV and SIGBUS: the kernel copies the data that it sends, a whole run
/// per call.
#[test]
fn a_run_whose_data_the_kernel_copies_costs_one_call() {
    const LEN: usize = 60 << 10;
    let sent = thread::spawn(|| {
        block_faults();
        let (a, b) = (host("127.4.0.8"), host("127.4.0.9"));
        connect(&a.qps[0], &b.qps[0], &b);
        connect(&b.qps[0], &a.qps[0], &a);
        let memory: &'static [AtomicU8] = Vec::leak((0..LEN).map(|_| AtomicU8::new(7)).collect());
        let addr = memory.as_ptr().expose_provenance() as u64;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        // SAFETY: leaked memory, accessed through atomics only.
        let source = unsafe { a.pd.reg_mr(addr, LEN, addr, access) }.expect("registered");
        let target: &'static [AtomicU8] = Vec::leak((0..LEN).map(|_| AtomicU8::new(0)).collect());
        let va = target.as_ptr().expose_provenance() as u64;
        // SAFETY: leaked memory, accessed through atomics only.
        let to = unsafe { b.pd.reg_mr(va, LEN, va, access) }.expect("registered");
        let sge = Sge {
            addr,
            len: u32::try_from(LEN).expect("small"),
            lkey: source.lkey(),
        };
        let op = SendOp::Write {
            va,
            rkey: to.rkey(),
            imm: None,
        };
        let mut most = 0;
        for wr_id in 0..3 {
            let wr = SendWr {
                wr_id,
                op,
                flags: SendFlags::SIGNALED,
                sges: &[sge],
            };
            let before = KERNEL_CALLS.get();
            a.qps[0]
                .post_sends(|queue| queue.push(&wr))
                .expect("posted");
            most = most.max(KERNEL_CALLS.get() - before);
            let deadline = Instant::now() + Duration::from_secs(60);
            let done = loop {
                if let Some(done) = a.cq.poll_one() {
                    break done;
                }
                assert!(Instant::now() < deadline, "no completion");
            };
            assert_eq!(done.status, WcStatus::Success);
        }
        assert!(target.iter().all(|byte| byte.load(Ordering::Relaxed) == 7));
        most
    });
    let most = sent.join().expect("no panic");
    // 60 packets in a run or two, and a query of the process ID.
    assert!((1..=4).contains(&most), "{most} system calls");
}

/// Two threads make the shared memory link between two addresses of their process at the same time.
/// The link of the second thread must not be used, because no thread receives from it.
#[test]
fn a_second_channel_of_ones_own_is_not_used() {
    let (near, far) = ("127.4.0.5", "127.4.0.6");
    let specs = [format!("near={near}"), format!("far={far}")];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).expect("devices");
    let link = LinkMode::Shm;
    let engine = Engine::new(EngineConfig { link, ..config }).expect("an engine");
    let (a, b) = (host_on(&engine, "near"), host_on(&engine, "far"));
    // The other address is not in use yet, so there is no link.
    connect(&a.qps[0], &b.qps[0], &b);
    let inner = &engine.inner;
    assert_eq!(inner.links.peer_links.read().len(), 0);

    let local = |address: &str| LocalAddr::from(address.parse::<IpAddr>().expect("an address"));
    let (from, to) = (local(near), local(far));
    let ends = || {
        let ends = AnyPeerLink::within(
            from,
            to,
            ProcessSlot::EMBEDDED,
            inner.scheduler.peer_wake_fd.as_fd(),
        );
        ends.expect("memory").map(Arc::new)
    };
    // The first thread has added its link to the list, and has not moved the queue pairs.
    let first = ends();
    inner.links.peer_links.write().extend(first.iter().cloned());
    inner.links.peer_link_count.store(2, Ordering::Release);
    inner.add_own_peer_link(from, to, ProcessSlot::EMBEDDED, &ends());
    assert_eq!(inner.links.peer_links.read().len(), 2);

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
    a.qps[0]
        .post_sends(|queue| queue.push(&wr))
        .expect("posted");
    let deadline = Instant::now() + Duration::from_secs(60);
    let completion = loop {
        if let Some(completion) = a.cq.poll_one() {
            break completion;
        }
        assert!(Instant::now() < deadline, "no thread receives");
    };
    assert_eq!(completion.status, WcStatus::Success);
}

#[test]
fn only_the_process_that_made_an_engine_flushes_it_at_exit() {
    let (engine, own) = (host("127.4.0.7").engine, std::process::id());
    let is_this = |other: &Weak<_>| Weak::ptr_eq(other, &Arc::downgrade(&engine.inner));
    assert!(ack_durability::engines_of(own).iter().any(is_this));
    assert!(
        !ack_durability::engines_of(own + 1).iter().any(is_this),
        "a child"
    );
}

/// A message has come to a queue pair, whose outputs are not flushed yet, when the CQ of its sends
/// is overrun. If its completion is seen, it is acknowledged.
//= RC-ACK-20 type=test
#[test]
fn a_cq_that_is_overrun_costs_no_acknowledgement_of_what_another_reports() {
    let (a, b) = (host("127.4.0.8"), host("127.4.0.9"));
    let full = a.context.create_cq(1, None, 0, 0).expect("a CQ");
    let init = |recv_cq: &Cq| QpInitAttr {
        send_cq: full.clone(),
        recv_cq: recv_cq.clone(),
        srq: None,
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
    let qp = a.pd.create_qp(init(&a.cq)).expect("a QP");
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
        let mem = engine.tables.regions().read(engine.host.now());
        let mut core = inner.lock();
        let meta = PacketMeta {
            source: core.qp.remote(),
            destination: core.qp.local(),
            traffic_class: 0,
            hop_limit: 64,
        };
        core.qp
            .handle_packet(engine.host.now(), &meta, &packet, &mem);
        assert_eq!(core.qp.pending_completions().len(), 1);
    }

    let other = a.pd.create_qp(init(&full)).expect("a QP");
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
        other.post_sends(|queue| queue.push(&wr)).expect("posted");
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

/// Two threads may find at the same time that a queue pair needs no more service. Only one of them
/// removes it from the list. The other would remove an entry that was enqueued again meanwhile, and
/// the QP would never be served.
#[test]
fn a_queue_pair_is_taken_off_a_list_once() {
    let host = host("127.4.0.10");
    connect(&host.qps[0], &host.qps[1], &host);
    let engine = &host.engine.inner;
    let (service_queue, qpn) = (engine.scheduler.service_queue(), host.qps[0].qp_num());
    // Another thread has served it, and is about to remove it.
    service_queue.enqueue(qpn, ServiceReason::TxBlocked, engine.host.now());
    assert!(host.cq.poll_one().is_none());
    assert_eq!(service_queue.count(ServiceReason::TxBlocked), 1);
    service_queue.remove_qp(qpn, ServiceReason::TxBlocked);
    assert_eq!(service_queue.count(ServiceReason::TxBlocked), 0);
}

/// A peer ends a connection by a DREQ, which comes through a socket. The ACK of its last message is
/// in shared memory, perhaps unpublished. An application that closes the QP when it is told of the
/// DREQ has the completion.
//= RC-ACK-20 type=test
#[test]
fn a_datagram_to_qp_1_does_not_overtake_an_ack_in_shared_memory() {
    let engine = shared_memory_engine(&["dev=127.4.0.11"]);
    let host = host_on(&engine, "dev");
    let (a, b) = (&host.qps[0], &host.qps[1]);
    connect(a, b, &host);
    connect(b, a, &host);
    let inner = &engine.inner;
    let address: IpAddr = "127.4.0.11".parse().expect("an address");
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut seen = 0;
    while seen < 3 {
        assert!(Instant::now() < deadline, "no ACK was delayed");
        b.recv_queue().push(1, &[]).expect("posted");
        let wr = SendWr {
            wr_id: 2,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            sges: &[],
        };
        a.post_sends(|queue| queue.push(&wr)).expect("posted");
        let mut completions = 0;
        while completions < 2 {
            completions += host.cq.poll_one().is_some() as u32;
            if completions == 1 && a.inner().lock().qp.awaits_acknowledgements() {
                inner.cm.put(address, address, &[0; 256]);
                inner.cm.serve(&**inner);
                assert!(!a.inner().lock().qp.awaits_acknowledgements());
                seen += 1;
            }
            assert!(Instant::now() < deadline, "no completion");
        }
    }
}

/// An ACK behind responses of READs is delayed, too. In shared memory it is in the ring before its
/// completion is seen, although another process can only read it there.
//= RC-ACK-20 type=test
#[test]
fn an_ack_that_is_delayed_behind_other_responses_is_in_the_ring() {
    let engine = shared_memory_engine(&["dev=127.4.0.12"]);
    let host = host_on(&engine, "dev");
    let (a, b) = (&host.qps[0], &host.qps[1]);
    connect(a, b, &host);
    connect(b, a, &host);
    let deadline = Instant::now() + Duration::from_secs(60);
    let received = |qp: &Qp| {
        loop {
            assert!(Instant::now() < deadline, "no ACK was delayed");
            let completion = host.cq.poll_one();
            if let Some(completion) = completion {
                assert_eq!(completion.status, WcStatus::Success);
                if completion.opcode == WcOpcode::Recv && completion.qp_num == qp.qp_num() {
                    return;
                }
            }
        }
    };
    let region = host.mr.clone();
    let sge = |len| Sge {
        addr: region.addr(),
        len,
        lkey: region.lkey(),
    };
    let read = SendOp::Read {
        va: region.addr(),
        rkey: region.rkey(),
    };
    let send = SendOp::Send { imm: None };
    // The response of the second is as short as an ACK and shorter than the first: it ends a batch.
    let with_reads = [(read, sge(8)), (read, sge(0)), (send, sge(0))];
    // More than one, so that the credits allow a SEND at any time.
    for _ in 0..3 {
        b.recv_queue().push(1, &[]).expect("posted");
    }
    let mut delayed = 0;
    while delayed < 3 {
        for message in [&with_reads[2..], &with_reads] {
            b.recv_queue().push(1, &[]).expect("posted");
            a.recv_queue().push(1, &[]).expect("posted");
            a.post_sends(|queue| {
                for (op, sge) in message {
                    let wr = SendWr {
                        wr_id: 2,
                        op: *op,
                        flags: SendFlags::SIGNALED,
                        sges: &[*sge],
                    };
                    queue.push(&wr).expect("posted");
                }
            });
            received(b);
            {
                let core = b.inner().lock();
                assert!(!core.tx.uses_socket());
                assert_eq!(core.qp.lone_ack(), None);
                delayed += u32::from(message.len() > 1 && core.tx.unpublished_ack.is_some());
            }
            let answer = SendWr {
                wr_id: 3,
                op: send,
                flags: SendFlags::SIGNALED,
                sges: &[],
            };
            b.post_sends(|queue| queue.push(&answer)).expect("posted");
            received(a);
        }
    }
}

/// Datagrams to QP 1 that wait for a thread are dropped beyond a bound. Their senders repeat them.
#[test]
fn a_flood_to_qp_1_is_bounded() {
    let engine = Engine::new(EngineConfig::simulated(1)).expect("an engine");
    let _host = host_on(&engine, "a");
    let inner = &engine.inner;
    let address = IpAddr::from([10, 0, 0, 1]);
    for _ in 0..5_000 {
        inner.cm.put(address, address, &[0; 256]);
    }
    assert!(inner.cm.has_arrived());
    inner.cm.serve(&**inner);
    assert!(!inner.cm.has_arrived());
    assert_eq!(inner.cm.counters().rx_malformed, 4_096);
    inner.cm.put(address, address, &[0; 256]);
    inner.cm.serve(&**inner);
    assert_eq!(inner.cm.counters().rx_malformed, 4_097);
}
