//! Recipes in virtual time: what a program sees of each.

#[path = "common/mod.rs"]
mod common;
#[path = "common/simulated.rs"]
mod simulated;

use common::errno;
use rocade_verbs::{
    AccessFlags, AsyncEventKind, Config, DeviceList, Error, QpState, Result, SendRequest, WcStatus,
};
use simulated::{MINUTE, pair, status, write};

const MILLISECOND: u64 = 1_000_000;

fn list(rules: &str) -> Result<DeviceList> {
    DeviceList::new(Config::simulated(1).with_faults(rules)?)
}

#[test]
fn losses_cost_time_but_no_data_and_the_seed_repeats_them() -> Result<()> {
    let run = |rules: &str| -> Result<(u64, u64)> {
        let (a, b, _list) = pair(1, rules)?;
        let took = write(&a, &b, 1 << 20)?;
        Ok((took, a.qp.counters().retransmitted_packets))
    };
    let lossy = run("recipe:lossy-1pct,seed=5")?;
    assert!(lossy.1 > 0, "{lossy:?}");
    assert_eq!(run("")?.1, 0);
    assert_eq!(run("recipe:lossy-1pct,seed=5")?, lossy);
    Ok(())
}

/// RC repeats the same packets, which are all too long, until its retries are exhausted.
#[test]
fn long_packets_vanish_and_short_ones_pass() -> Result<()> {
    let (a, b, _list) = pair(1, "recipe:mtu-blackhole,size=1000")?;
    write(&a, &b, 512)?;
    let sges = [a.memory.sge(..2_000)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert_eq!(status(a.cq.wait(MINUTE)), WcStatus::RetryExceeded);
    assert_eq!(a.qp.state(), QpState::Err);
    Ok(())
}

#[test]
fn a_slow_link_and_a_slow_peer_only_cost_time() -> Result<()> {
    let took = |rules: &str| -> Result<u64> {
        let (a, b, _list) = pair(1, rules)?;
        write(&a, &b, 1 << 20)
    };
    let plain = took("")?;
    // 8 Mbit at 1 Gbit/s.
    let incast = took("recipe:incast,queue=4M,latency=5us")?;
    assert!(incast > 8 * MILLISECOND && incast > plain, "{incast}");
    let slow = took("recipe:slow-peer,by=3ms")?;
    assert!(slow >= 3 * MILLISECOND, "{slow}");
    Ok(())
}

#[test]
fn resources_run_out_with_the_errno_of_the_driver() -> Result<()> {
    let list =
        list("recipe:out-of-mr,max=2,dev=a; recipe:out-of-qp,max=1,dev=a; recipe:memlock,dev=b")?;
    let (a, b) = (list.open("a")?, list.open("b")?);
    let (pd, cq) = (a.protection_domain()?, a.completion_queue(16)?);
    let register = || pd.register(64, AccessFlags::LOCAL_WRITE);
    let regions = [register()?, register()?];
    assert_eq!(errno(register()), 12);
    drop(regions);
    assert_eq!(errno(register()), 0);
    let qp = pd.queue_pair(&cq).build()?;
    assert_eq!(errno(pd.queue_pair(&cq).build()), 12);
    drop(qp);
    let large = b
        .protection_domain()?
        .register(1 << 20, AccessFlags::LOCAL_WRITE);
    assert_eq!(errno(large), 12);
    Ok(())
}

/// A QP that fails within a message has an event, and a CQ that overruns has one, too.
#[test]
fn queue_pairs_fail_with_their_events() -> Result<()> {
    let (a, b, _list) = pair(1, "recipe:qp-error-mid-transfer,after=4K,dev=a")?;
    let sges = [a.memory.sge(..64_000)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert_eq!(status(a.cq.wait(MINUTE)), WcStatus::Flushed);
    let event = a.context.poll_event()?.map(|event| event.kind);
    assert_eq!(event, Some(AsyncEventKind::QpFatal));

    let (a, b, _list) = pair(1, "recipe:cq-overrun,nth=1,dev=a")?;
    let sges = [a.memory.sge(..8)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert!(matches!(a.cq.wait(MINUTE), Err(Error::TimedOut)));
    let event = a.context.poll_event()?.map(|event| event.kind);
    assert_eq!(event, Some(AsyncEventKind::CqErr));

    let (a, b, _list) = pair(1, "recipe:retries-exhausted,nth=1,dev=a")?;
    let sges = [a.memory.sge(..8)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert_eq!(status(a.cq.wait(MINUTE)), WcStatus::RetryExceeded);
    assert_eq!(a.qp.state(), QpState::Err);
    Ok(())
}

/// A short interruption of the path is only a delay, and one that lasts ends the retries.
#[test]
fn a_switch_restarts_and_traffic_goes_on_if_the_retries_last() -> Result<()> {
    let (a, b, _list) = pair(1, "recipe:switch-reboot,at=0s,for=50ms")?;
    let took = write(&a, &b, 8)?;
    assert!(took >= 49 * MILLISECOND, "{took}");

    let (a, b, _list) = pair(1, "recipe:half-open,at=0s")?;
    let sges = [a.memory.sge(..8)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert_eq!(status(a.cq.wait(MINUTE)), WcStatus::RetryExceeded);
    Ok(())
}

#[test]
fn a_receiver_is_not_ready_again_and_again() -> Result<()> {
    let (a, b, _list) = pair(1, "recipe:rnr-storm,for=20ms,every=1s,times=2,dev=b")?;
    b.qp.post_recv(5, &[b.memory.sge(..8)?])?;
    let sges = [a.memory.sge(..8)?];
    let begin = a.context.clock_ns();
    a.qp.post_send(&SendRequest::send(&sges))?;
    a.cq.wait(MINUTE)?;
    assert!(a.context.clock_ns() - begin >= 19 * MILLISECOND);
    Ok(())
}
