//! Completions and ACKs for which there is no space in a ring.

use super::*;

/// Values of `path_mig_state`.
const MIGRATED: u32 = 0;
const REARM: u32 = 1;

/// Sends what is no packet through a link, as long as there is space.
fn fill(link: &AnyPeerLink) {
    for len in [16 << 10, 1] {
        let sending = Sending {
            len,
            segment_len: len,
            traffic_class: 0,
            hop_limit: 64,
            after_udp: false,
            wait: false,
            unpublished: false,
        };
        let nonsense = vec![0; len];
        let fragments = || iter::once(Fragment::Bytes(&nonsense));
        while link.send(fragments(), sending) == SendOutcome::Sent {}
    }
}

/// Runs `f` while the ring from `far` to `near` of their first ports is full, and the thread that
/// has to receive from it makes a pause.
fn while_ring_is_full([near, far]: [&Host; 2], f: impl FnOnce()) {
    let links = near.engine.inner.links.peer_links.read().clone();
    let [near_end, far_end] = [near, far].map(|host| {
        let local = host.context.gid_entries()[0].gid.to_ip();
        let mut ends = links.iter().filter(|end| end.local() == local);
        ends.next().expect("a link")
    });
    let pause = &Barrier::new(2);
    let (over, is_over) = mpsc::channel::<()>();
    let paused = move || {
        let _receiver = near_end.receiver();
        pause.wait();
        let _ = is_over.recv();
    };
    thread::scope(|scope| {
        scope.spawn(paused);
        // The pause ends also if `f` panics.
        let _over = over;
        pause.wait();
        fill(far_end);
        f();
    });
}

/// Fills the ring from `far` to `near`, and checks that the completion of the message that `send`
/// sends is not seen before the ACK has left.
fn completion_waits_for_its_ack([near, far]: [&Host; 2], target: &Qp, send: impl FnOnce()) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while_ring_is_full([near, far], || {
        send();
        while target.inner().lock().qp.completions_waiting() == 0 {
            assert!(far.cq.poll_one().is_none());
            assert!(Instant::now() < deadline, "no message");
        }
        for _ in 0..1000 {
            assert!(far.cq.poll_one().is_none(), "its ACK has not left");
        }
        assert!(near.cq.poll_one().is_none());
    });
    let completion = loop {
        assert!(Instant::now() < deadline, "no completion");
        if let Some(completion) = far.cq.poll_one() {
            break completion;
        }
    };
    assert_eq!(
        (completion.wr_id, completion.status),
        (7, WcStatus::Success)
    );
    assert!(!target.inner().lock().tx.has_unsafe_ack);
}

const SEND: SendWr<'static> = SendWr {
    wr_id: 2,
    op: SendOp::Send { imm: None },
    flags: SendFlags::empty(),
    sges: &[],
};

/// Without a broker no one could send an ACK that there is no space for, should the process end. So
/// the completion is seen when the ACK has left.
//= RC-ACK-20 type=test
#[test]
fn a_completion_waits_for_an_ack_that_there_is_no_space_for() {
    let engine = shared_memory_engine(&["near=127.4.0.13", "far=127.4.0.14"]);
    let (near, far) = (host_on(&engine, "near"), host_on(&engine, "far"));
    let (a, b) = (&near.qps[0], &far.qps[0]);
    connect(a, b, &far);
    connect(b, a, &near);
    b.recv_queue().push(7, &[]).expect("posted");
    completion_waits_for_its_ack([&near, &far], b, || {
        a.post_sends(|queue| queue.push(&SEND)).expect("posted");
    });
}

/// Loads the alternate path of a queue pair over the second ports.
fn load_second_path(qp: &Qp, to: &Host) {
    let gid = to.context.gid_entries_of(2).expect("a port")[0].gid;
    let attr = QpAttr {
        alt_ah_attr: AddressVector {
            dgid: gid,
            hop_limit: 64,
            is_global: true,
            port_num: 2,
            ..AddressVector::default()
        },
        alt_port_num: 2,
        alt_timeout: TIMEOUT,
        path_mig_state: REARM,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE;
    qp.modify(&attr, mask).expect("a second path");
}

/// Checks that an ACK for which there is no space is not lost with its path. The queue pair is
/// destroyed once the completion is seen.
//= RC-ACK-20 RC-APM-06 type=test
#[test]
fn a_blocked_ack_migrates() {
    let specs = ["near=127.4.0.17+127.5.0.17", "far=127.4.0.18+127.5.0.18"];
    let engine = shared_memory_engine(&specs);
    let (near, far) = (host_on(&engine, "near"), host_on(&engine, "far"));
    let (a, b) = (&near.qps[0], &far.qps[0]);
    connect(a, b, &far);
    connect(b, a, &near);
    load_second_path(a, &far);
    load_second_path(b, &near);
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait = |cq: &Cq| loop {
        assert!(Instant::now() < deadline, "no completion");
        if let Some(completion) = cq.poll_one() {
            break (completion.wr_id, completion.status);
        }
    };
    // A message over the first path arms the second one.
    for id in [6, 7] {
        b.recv_queue().push(id, &[]).expect("posted");
    }
    a.post_sends(|queue| queue.push(&SEND)).expect("posted");
    assert_eq!(wait(&far.cq), (6, WcStatus::Success));
    assert_eq!(wait(&near.cq), (SEND.wr_id, WcStatus::Success));
    while_ring_is_full([&near, &far], || {
        a.post_sends(|queue| queue.push(&SEND)).expect("posted");
        while b.inner().lock().qp.completions_waiting() == 0 {
            assert!(far.cq.poll_one().is_none(), "its ACK has not left");
            assert!(Instant::now() < deadline, "no message");
        }
        let attr = QpAttr {
            path_mig_state: MIGRATED,
            ..QpAttr::default()
        };
        b.modify(&attr, QpAttrMask::PATH_MIG_STATE)
            .expect("migrated");
        assert_eq!(wait(&far.cq), (7, WcStatus::Success));
        b.destroy().expect("destroyed");
    });
    assert_eq!(wait(&near.cq), (SEND.wr_id, WcStatus::Success));
}

/// Brings an end of dynamic connections to a state.
fn bring(qp: &Qp, last: QpState, gid: Gid) {
    for next in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let rule = transition_rule(qp.qp_type(), qp.state(), next).expect("a transition");
        let ah_attr = AddressVector {
            dgid: gid,
            is_global: true,
            port_num: 1,
            ..AddressVector::default()
        };
        let attr = QpAttr {
            qp_state: next.code(),
            port_num: 1,
            path_mtu: 3,
            timeout: TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            ah_attr,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | rule.required;
        qp.modify(&attr, mask).expect("the next state");
        if next == last {
            return;
        }
    }
}

/// A message to a target of dynamic connections, without a broker too.
//= RC-ACK-20 type=test
#[test]
fn a_completion_at_a_target_waits_for_its_ack() {
    const KEY: u64 = 5;
    let engine = shared_memory_engine(&["near=127.4.0.15", "far=127.4.0.16"]);
    let (near, far) = (host_on(&engine, "near"), host_on(&engine, "far"));
    let srq = far.pd.create_srq(SrqInitAttr {
        max_wr: 4,
        max_sge: 1,
        cookie: 0,
    });
    let srq = srq.expect("an SRQ");
    let target = far.pd.create_dct(DctInitAttr {
        cq: far.cq.clone(),
        srq: srq.clone(),
        key: KEY,
        cookie: 0,
        has_dct_events: false,
    });
    let target = target.expect("a target");
    let initiator = near.pd.create_qp(QpInitAttr {
        send_cq: near.cq.clone(),
        recv_cq: near.cq.clone(),
        srq: None,
        cap: QpCap {
            max_send_wr: 4,
            ..QpCap::default()
        },
        qp_type: QpType::DcInitiator,
        sq_sig_all: true,
        cookie: 0,
    });
    let initiator = initiator.expect("an initiator");
    let [near_gid, far_gid] = [&near, &far].map(|host| host.context.gid_entries()[0].gid);
    bring(&target, QpState::Rtr, near_gid);
    bring(&initiator, QpState::Rts, far_gid);
    let to_far = AddressVector {
        dgid: far_gid,
        is_global: true,
        port_num: 1,
        ..AddressVector::default()
    };
    let ah = near.pd.create_ah(&to_far).expect("an address handle");
    let send = || {
        let to = ToDct {
            ah: &ah,
            dct: target.qp_num(),
            key: KEY,
            stream: 0,
        };
        srq.recv_queue().push(7, &[]).expect("a receive");
        let posted = initiator.post_sends(|queue| queue.push_dynamic(&SEND, to, None));
        posted.expect("posted");
    };
    // The first message brings the path about.
    send();
    for cq in [&far.cq, &near.cq] {
        let deadline = Instant::now() + Duration::from_secs(60);
        while cq.poll_one().is_none() {
            assert!(Instant::now() < deadline, "no completion");
        }
    }
    completion_waits_for_its_ack([&near, &far], &target, send);
}
