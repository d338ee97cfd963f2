//! Rules that let verbs, completions and queue pairs fail, in virtual time: errno values, statuses,
//! events and order.

#[path = "common/mod.rs"]
mod common;
#[path = "common/simulated.rs"]
mod simulated;

use std::time::Duration;

use common::errno;
use rocade_verbs::{
    AccessFlags, AsyncEventKind, Completion, CompletionQueue, Config, ConnectOptions, Context,
    DeviceList, EventSource, QpState, Result, SendRequest, VerbsErrorKind, WaitError, WcStatus,
};
use simulated::{End, MINUTE, connect, pair, status, write};

const ENOMEM: i32 = 12;
const ETIMEDOUT: i32 = 110;
const MILLISECOND: u64 = 1_000_000;

fn list(rules: &str) -> Result<DeviceList> {
    Ok(DeviceList::new(Config::simulated(1).with_faults(rules)?)?)
}

/// Polls until a completion comes.
fn next(cq: &CompletionQueue) -> Completion {
    for _ in 0..10_000 {
        if let Some(completion) = cq.poll() {
            return completion;
        }
    }
    panic!("no completion after 10000 polls");
}

/// Posts a WRITE of 8 bytes.
fn post(from: &End, to: &End, wr_id: u64) -> Result<()> {
    let sges = [from.memory.sge(..8)?];
    let request = SendRequest::write(&sges, to.memory.remote()).wr_id(wr_id);
    Ok(from.qp.post_send(&request)?)
}

fn next_event(context: &Context) -> Result<Option<(AsyncEventKind, EventSource)>> {
    let event = context.poll_event()?;
    Ok(event.map(|event| (event.kind, event.source)))
}

#[test]
fn a_verb_fails_with_its_errno_and_has_no_effect() -> Result<()> {
    let list = list("fail verb=reg_mr errno=ENOMEM nth=2; fail verb=create_cq errno=ENOSPC dev=b")?;
    let context = list.open("a")?;
    let pd = context.protection_domain()?;
    let register = || pd.register(64, AccessFlags::LOCAL_WRITE);
    let results = [errno(register()), errno(register()), errno(register())];
    assert_eq!(results, [0, ENOMEM, 0]);
    assert_eq!(errno(context.completion_queue(8)), 0);
    let Err(error) = list.open("b")?.completion_queue(8) else {
        panic!("the rule is for this device");
    };
    assert_eq!(
        (error.kind(), error.errno()),
        (VerbsErrorKind::Injected, 28)
    );
    let text = "by the fault rule `fail verb=create_cq errno=ENOSPC dev=b`";
    assert_eq!(error.to_string(), text);
    Ok(())
}

#[test]
fn a_probability_lets_some_calls_fail_and_a_seed_repeats_it() -> Result<()> {
    let failures = |seed| -> Result<Vec<i32>> {
        let list = list(&format!(
            "fail verb=alloc_pd errno=ENOMEM p=0.3 seed={seed}"
        ))?;
        let context = list.open("a")?;
        Ok((0..100)
            .map(|_| errno(context.protection_domain()))
            .collect())
    };
    let first = failures(7)?;
    let count = first.iter().filter(|errno| **errno == ENOMEM).count();
    assert!((15..45).contains(&count), "{count}");
    assert_eq!(first, failures(7)?);
    assert_ne!(first, failures(8)?);
    Ok(())
}

#[test]
fn a_verb_is_slow_and_a_transition_fails() -> Result<()> {
    let list = list("slow verb=create_cq by=5ms; fail verb=modify_qp errno=ETIMEDOUT nth=1")?;
    let context = list.open("a")?;
    let pd = context.protection_domain()?;
    let before = context.clock_ns();
    let cq = context.completion_queue(8)?;
    assert_eq!(context.clock_ns() - before, 5 * MILLISECOND);
    assert_eq!(errno(pd.queue_pair(&cq).build()), ETIMEDOUT);
    assert_eq!(errno(pd.queue_pair(&cq).build()), 0);
    Ok(())
}

#[test]
fn a_post_fails_and_the_next_one_does_not() -> Result<()> {
    let (a, b, _list) = pair(1, "fail verb=post_send errno=ENOMEM nth=2")?;
    let results = [1, 2, 3].map(|wr_id| errno(post(&a, &b, wr_id)));
    assert_eq!(results, [0, ENOMEM, 0]);
    assert_eq!([next(&a.cq).wr_id, next(&a.cq).wr_id], [1, 3]);
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    Ok(())
}

#[test]
fn limits_are_reported_and_enforced() -> Result<()> {
    let list = list("limit max_qp=2 max_cqe=16 memlock=8K dev=a")?;
    let (a, b) = (list.open("a")?, list.open("b")?);
    assert_eq!((a.attributes().max_qp, a.attributes().max_cqe), (2, 16));
    assert!(b.attributes().max_qp > 2);
    let (pd, cq) = (a.protection_domain()?, a.completion_queue(16)?);
    assert_eq!(errno(a.completion_queue(17)), 22);
    let qps = (pd.queue_pair(&cq).build()?, pd.queue_pair(&cq).build()?);
    assert_eq!(errno(pd.queue_pair(&cq).build()), ENOMEM);
    drop(qps.0);
    assert_eq!(errno(pd.queue_pair(&cq).build()), 0, "one has gone");
    let region = pd.register(8192, AccessFlags::LOCAL_WRITE)?;
    assert_eq!(errno(pd.register(1, AccessFlags::LOCAL_WRITE)), ENOMEM);
    drop(region);
    assert_eq!(errno(pd.register(1, AccessFlags::LOCAL_WRITE)), 0);
    Ok(())
}

/// A send queue that fails flushes what follows, and the QP is in ERR (IBTA 10.7.3.1, 10.8.6). An
/// error that a completion tells has no asynchronous event.
#[test]
fn a_completion_gets_a_status_and_the_rest_is_flushed() -> Result<()> {
    let (a, b, _list) = pair(1, "complete status=RETRY_EXC_ERR opcode=RDMA_WRITE nth=2")?;
    for wr_id in 1..=4 {
        post(&a, &b, wr_id)?;
    }
    let got = [0; 4]
        .map(|_| next(&a.cq))
        .map(|one| (one.wr_id, one.status));
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::RetryExceeded),
        (3, WcStatus::Flushed),
        (4, WcStatus::Flushed),
    ];
    assert_eq!(got, expected);
    assert_eq!(a.qp.state(), QpState::Err);
    assert_eq!(b.qp.state(), QpState::Rts, "the peer does not know");
    assert_eq!(next_event(&a.context)?, None);
    Ok(())
}

#[test]
fn a_receive_fails_and_the_sender_succeeds() -> Result<()> {
    let (a, b, _list) = pair(1, "complete status=LOC_PROT_ERR opcode=RECV")?;
    b.qp.post_recv(5, &[b.memory.sge(..8)?])?;
    b.qp.post_recv(6, &[b.memory.sge(..8)?])?;
    let sges = [a.memory.sge(..8)?];
    a.qp.post_send(&SendRequest::send(&sges))?;
    a.cq.wait(MINUTE)?;
    let got = [0; 2]
        .map(|_| next(&b.cq))
        .map(|one| (one.wr_id, one.status));
    assert_eq!(
        got,
        [(5, WcStatus::LocalProtectionError), (6, WcStatus::Flushed)]
    );
    assert_eq!(b.qp.state(), QpState::Err);
    Ok(())
}

/// The CQ takes no more completions, its QPs are in ERR, and each of them has an event
/// (`IBV_EVENT_CQ_ERR`, `IBV_EVENT_QP_FATAL`).
#[test]
fn a_cq_overruns_with_room_left() -> Result<()> {
    let (a, b, _list) = pair(1, "overrun nth=3 dev=a")?;
    for wr_id in 1..=3 {
        post(&a, &b, wr_id)?;
        if wr_id < 3 {
            assert_eq!(next(&a.cq).wr_id, wr_id);
        }
    }
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    let cq = EventSource::CompletionQueue(a.cq.id());
    assert_eq!(next_event(&a.context)?, Some((AsyncEventKind::CqErr, cq)));
    let qp = EventSource::QueuePair(a.qp.id());
    assert_eq!(next_event(&a.context)?, Some((AsyncEventKind::QpFatal, qp)));
    assert_eq!(a.qp.state(), QpState::Err);
    assert_eq!(b.qp.state(), QpState::Rts);
    Ok(())
}

#[test]
fn a_completion_is_late_although_the_data_is_there() -> Result<()> {
    let (a, b, _list) = pair(1, "late by=5ms dev=a")?;
    a.memory.write(0, &[7; 8])?;
    let begin = a.context.clock_ns();
    post(&a, &b, 1)?;
    assert!(matches!(
        a.cq.wait(Duration::from_millis(1)),
        Err(WaitError::TimedOut)
    ));
    assert_eq!(b.memory.to_vec(..8)?, [7; 8]);
    a.cq.wait(MINUTE)?;
    let late = a.context.clock_ns() - begin;
    assert!((5 * MILLISECOND..6 * MILLISECOND).contains(&late), "{late}");
    Ok(())
}

#[test]
fn completions_come_in_bursts_and_in_order() -> Result<()> {
    let (a, b, _list) = pair(1, "burst count=4 by=1s dev=a")?;
    for wr_id in 1..=4 {
        assert!(a.cq.poll().is_none(), "before the fourth");
        post(&a, &b, wr_id)?;
        let pause = a.cq.wait(Duration::from_millis(2));
        match wr_id {
            4 => assert_eq!(pause?.wr_id, 1),
            _ => assert!(matches!(pause, Err(WaitError::TimedOut))),
        }
    }
    let rest = [a.cq.poll(), a.cq.poll(), a.cq.poll()];
    let rest = rest.map(|one| one.map(|completion| completion.wr_id));
    assert_eq!(rest, [Some(2), Some(3), Some(4)]);

    // A burst that does not fill up ends with its time.
    let begin = a.context.clock_ns();
    post(&a, &b, 5)?;
    a.cq.wait(MINUTE)?;
    assert!(a.context.clock_ns() - begin >= 1_000 * MILLISECOND);
    Ok(())
}

/// CQs keep the order of each queue only (IBTA 10.8.3.1).
#[test]
fn completions_of_queue_pairs_overtake_each_other_but_never_their_own() -> Result<()> {
    let order = |rules: &str| -> Result<Vec<(u64, u64)>> {
        let list = list(rules)?;
        let (context, peer) = (list.open("a")?, list.open("b")?);
        let (pd, peer_pd) = (context.protection_domain()?, peer.protection_domain()?);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let (from, to) = (pd.register(64, access)?, peer_pd.register(64, access)?);
        let (cq, peer_cq) = (context.completion_queue(256)?, peer.completion_queue(16)?);
        let mut qps = Vec::new();
        for _ in 0..4 {
            let (own, other) = (
                pd.queue_pair(&cq).build()?,
                peer_pd.queue_pair(&peer_cq).build()?,
            );
            let ends = (own.endpoint(), other.endpoint());
            qps.push((
                own.connect(ends.1, &ConnectOptions::default())?,
                other.connect(ends.0, &ConnectOptions::default())?,
            ));
        }
        let sges = [from.sge(..8)?];
        for round in 0..8 {
            for (number, (qp, _)) in (0..).zip(&qps) {
                let request = SendRequest::write(&sges, to.remote());
                qp.post_send(&request.wr_id(number << 8 | round))?;
            }
        }
        Ok((0..32)
            .map(|_| next(&cq).wr_id)
            .map(|id| (id >> 8, id & 0xff))
            .collect())
    };
    let shuffled = order("shuffle by=100us dev=a")?;
    for qp in 0..4 {
        let own = shuffled.iter().filter(|(number, _)| *number == qp);
        let rounds: Vec<_> = own.map(|(_, round)| *round).collect();
        assert_eq!(rounds, (0..8).collect::<Vec<_>>(), "QP {qp}");
    }
    let first_of = |order: &[(u64, u64)]| -> Vec<u64> {
        let firsts = order.iter().filter(|(_, round)| *round == 0);
        firsts.map(|(number, _)| *number).collect()
    };
    assert_eq!(first_of(&order("")?), [0, 1, 2, 3]);
    assert_ne!(first_of(&shuffled), [0, 1, 2, 3]);
    assert_eq!(
        shuffled,
        order("shuffle by=100us dev=a")?,
        "the seed repeats it"
    );
    Ok(())
}

#[test]
fn held_completions_go_with_their_queue_pair() -> Result<()> {
    let (a, b, list) = pair(1, "late by=10s dev=a")?;
    post(&a, &b, 1)?;
    assert!(matches!(
        a.cq.wait(Duration::from_millis(1)),
        Err(WaitError::TimedOut)
    ));
    drop(a.qp);
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    drop((b, list));
    Ok(())
}

/// The QP fails between two packets of a message: the beginning has arrived, the rest has not, the
/// work request is flushed, and `IBV_EVENT_QP_FATAL` tells.
#[test]
fn a_queue_pair_fails_in_the_middle_of_a_message() -> Result<()> {
    let (a, b, _list) = pair(1, "qp-error after=4K dev=a")?;
    write(&a, &b, 2_000)?;
    a.memory.write(0, &[9; 64_000])?;
    let sges = [a.memory.sge(..64_000)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert_eq!(status(a.cq.wait(MINUTE)), WcStatus::Flushed);
    let qp = EventSource::QueuePair(a.qp.id());
    assert_eq!(next_event(&a.context)?, Some((AsyncEventKind::QpFatal, qp)));
    assert_eq!(a.qp.state(), QpState::Err);
    assert!(matches!(b.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    let arrived = b.memory.to_vec(..64_000)?;
    assert_eq!(arrived.iter().filter(|byte| **byte == 9).count(), 3 * 1024);
    assert_eq!(b.qp.state(), QpState::Rts);
    Ok(())
}

/// The receive is posted, but the responder answers RNR NAK (IBTA 9.7.5.2.8) until the time is
/// over. Then the requester succeeds, because its RNR retries have no limit.
#[test]
fn a_receiver_is_not_ready_for_a_time() -> Result<()> {
    let (a, b, _list) = pair(1, "rnr for=50ms dev=b")?;
    b.qp.post_recv(5, &[b.memory.sge(..8)?])?;
    let sges = [a.memory.sge(..8)?];
    let begin = a.context.clock_ns();
    a.qp.post_send(&SendRequest::send(&sges))?;
    a.cq.wait(MINUTE)?;
    assert!(a.context.clock_ns() - begin >= 50 * MILLISECOND);
    assert_eq!(next(&b.cq).wr_id, 5);
    assert!(b.qp.counters().rnr_naks_sent > 0);
    assert_eq!(
        a.qp.counters().rnr_naks_received,
        b.qp.counters().rnr_naks_sent
    );

    // WRITEs need no receive.
    let (a, b, _list) = pair(1, "rnr dev=b")?;
    write(&a, &b, 8)?;
    assert_eq!(b.qp.counters().rnr_naks_sent, 0);
    Ok(())
}

#[test]
fn events_of_any_kind_come_at_their_time() -> Result<()> {
    let rules = "event type=PORT_ERR at=1ms dev=a; event type=DEVICE_FATAL at=2ms dev=a; \
                 event type=SM_CHANGE at=3ms port=1 dev=a; event type=PATH_MIG at=4ms dev=a; \
                 event type=CQ_ERR at=5ms dev=a; event type=LID_CHANGE at=6ms port=2 dev=a";
    let (a, _b, _list) = pair(1, rules)?;
    assert_eq!(next_event(&a.context)?, None, "before its time");
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    for expected in [
        (AsyncEventKind::PortErr, EventSource::Port(1)),
        (AsyncEventKind::DeviceFatal, EventSource::Device),
        (AsyncEventKind::SmChange, EventSource::Port(1)),
        (AsyncEventKind::PathMig, EventSource::QueuePair(a.qp.id())),
        (
            AsyncEventKind::CqErr,
            EventSource::CompletionQueue(a.cq.id()),
        ),
    ] {
        assert_eq!(next_event(&a.context)?, Some(expected));
    }
    assert_eq!(next_event(&a.context)?, None, "there is no port 2");
    assert_eq!(a.qp.state(), QpState::Rts, "only the event was raised");
    Ok(())
}

/// Retries bridge a partition that is shorter than they are.
#[test]
fn a_partition_ends() -> Result<()> {
    let (a, b, _list) = pair(1, "partition at=1ms for=200ms")?;
    assert!(matches!(
        a.cq.wait(Duration::from_millis(2)),
        Err(WaitError::TimedOut)
    ));
    let took = write(&a, &b, 8)?;
    assert!(took >= 198 * MILLISECOND, "{took}");
    assert!(a.qp.counters().timeouts > 0);
    Ok(())
}

#[test]
fn a_number_is_given_to_another_queue_pair() -> Result<()> {
    let list = list("qp-error after=0 dev=a")?;
    for _ in 0..3 {
        let (a, b) = connect(&list)?;
        assert_eq!(status(write(&a, &b, 8)), WcStatus::Flushed);
    }
    Ok(())
}

#[test]
fn a_seed_gives_the_same_report_again() -> Result<()> {
    let rules = "drop p=20%; late by=1ms p=50%; fail verb=post_send errno=ENOMEM p=10%";
    let report = |seed| -> Result<String> {
        let (a, b, list) = pair(seed, rules)?;
        for wr_id in 0..40 {
            if post(&a, &b, wr_id).is_ok() {
                assert_eq!(next(&a.cq).wr_id, wr_id);
            }
        }
        let report = list.fault_report();
        assert!(report.rules.iter().all(|rule| rule.hits > 0), "{report:?}");
        assert_eq!(report.rules[0].text, "drop p=0.2");
        let hits: u64 = report.rules.iter().map(|rule| rule.hits).sum();
        assert_eq!(report.occurrences.len() as u64, hits);
        Ok(format!("{report:?}"))
    };
    assert_eq!(report(3)?, report(3)?);
    assert_ne!(report(3)?, report(4)?);
    Ok(())
}
