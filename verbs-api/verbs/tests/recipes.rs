//! Recipes in virtual time: what a program sees of each, and the source of rdma-core or of the
//! kernel that says so. rxe stands for hardware where the behaviour of RC is meant.

#[path = "common/mod.rs"]
mod common;
#[path = "common/simulated.rs"]
mod simulated;

use std::time::Duration;

use common::errno;
use rocade_verbs::{
    AccessFlags, AsyncEventKind, Config, ConnectOptions, DeviceList, QpState, Result, Route,
    SendRequest, WaitError, WcStatus,
};
use simulated::{MINUTE, pair, status, write};

const MILLISECOND: u64 = 1_000_000;

fn list(rules: &str) -> Result<DeviceList> {
    Ok(DeviceList::new(Config::simulated(1).with_faults(rules)?)?)
}

/// The responder NAKs the PSN behind a gap (`check_psn` of rxe_resp.c), and the requester repeats
/// from there (`check_ack` of rxe_comp.c).
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

/// RC repeats the same packets, which are all too long, until its retries are exhausted
/// (`rxe_completer` of rxe_comp.c: `IB_WC_RETRY_EXC_ERR`, and the QP goes to ERR).
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

/// Each ACK restarts the timer of the requester (`retrans_timer` of rxe_comp.c), so that a slow
/// path alone ends no connection.
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

/// The firmware of mlx5 refuses what is above a limit (`MLX5_CMD_STAT_LIM_ERR` in
/// `cmd_status_to_err` of mlx5/core/cmd.c), and the kernel what is above RLIMIT_MEMLOCK
/// (`ib_umem_get` of core/umem.c). Both are ENOMEM.
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

/// A QP that fails within a message has the event of `MLX5_EVENT_TYPE_WQ_CATAS_ERROR` in
/// `mlx5_ib_qp_event` of mlx5/qp.c, and its requests are flushed (`mlx5_handle_error_cqe` of
/// providers/mlx5/cq.c). A CQ that overruns has one, too (ibv_get_async_event(3)).
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
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    let event = a.context.poll_event()?.map(|event| event.kind);
    assert_eq!(event, Some(AsyncEventKind::CqErr));

    let (a, b, _list) = pair(1, "recipe:retries-exhausted,nth=1,dev=a")?;
    let sges = [a.memory.sge(..8)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert_eq!(status(a.cq.wait(MINUTE)), WcStatus::RetryExceeded);
    assert_eq!(a.qp.state(), QpState::Err);
    Ok(())
}

/// A short interruption of the path is only a delay, and one that lasts ends the retries
/// (`COMPST_ERROR_RETRY` of rxe_comp.c).
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

/// The requester waits for the time in the RNR NAK and repeats (`COMPST_RNR_RETRY` of rxe_comp.c).
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

/// The receiver drops what its ICRC does not fit, without a NAK (`rxe_rcv` of rxe_recv.c), and RC
/// repeats it.
#[test]
fn flipped_bits_cost_packets_but_no_data() -> Result<()> {
    let run = |rules: &str| -> Result<(u64, u64)> {
        let (a, b, list) = pair(1, rules)?;
        write(&a, &b, 1 << 20)?;
        let damaged = list.engine_counters().rx_bad_icrc;
        Ok((damaged, a.qp.counters().retransmitted_packets))
    };
    let (damaged, repeated) = run("recipe:bit-errors,ber=1e-6,seed=3")?;
    assert!(damaged > 0 && repeated > 0, "{damaged} {repeated}");
    assert_eq!(run("")?, (0, 0));
    Ok(())
}

/// The receiver of a packet with the mark CE sends a CNP (RoCEv2, annex A17), which mlx5 counts as
/// `np_ecn_marked_roce_packets` and `np_cnp_sent` (mlx5/counters.c).
#[test]
fn marks_of_a_switch_make_notification_packets() -> Result<()> {
    let (a, b, list) = pair(1, "recipe:congestion,p=20%,seed=3")?;
    write(&a, &b, 1 << 20)?;
    assert!(b.qp.counters().marked_packets > 0, "{:?}", b.qp.counters());
    assert!(list.fault_report().rules[0].hits > 0);
    assert_eq!(a.qp.counters().retransmitted_packets, 0, "nothing is lost");
    Ok(())
}

/// The call fails with ETIMEDOUT (`process_one_req` of core/addr.c, which `ucma_complete` of
/// librdmacm/cma.c hands on), and the next one succeeds.
#[test]
fn the_first_resolution_fails_and_the_second_succeeds() -> Result<()> {
    let list = list("recipe:connect-timeout")?;
    let peer = "10.0.0.2:7000".parse().expect("an address");
    let from = "10.0.0.1:0".parse().expect("an address");
    let resolve = || Route::from(&list, from, peer);
    assert_eq!(errno(resolve().map(drop)), 110);
    assert_eq!(resolve()?.context().device().name, "a");
    Ok(())
}

/// The entry of the table is another address, which the event announces
/// (`dispatch_gid_change_event` of core/cache.c). Packets to the old one are dropped
/// (`rxe_match_dgid` of rxe_recv.c), so that its connections end like those whose peer is gone.
#[test]
fn a_gid_changes_under_a_connection() -> Result<()> {
    let (a, b, _list) = pair(1, "recipe:gid-change,dev=b,at=1ms")?;
    write(&a, &b, 8)?;
    let pause = a.cq.wait(Duration::from_millis(5));
    assert!(matches!(pause, Err(WaitError::TimedOut)));
    let event = b.context.poll_event()?.map(|event| event.kind);
    assert_eq!(event, Some(AsyncEventKind::GidChange));
    assert_eq!(b.context.gids()[0].gid.to_string(), "::ffff:192.0.2.9");
    let sges = [a.memory.sge(..8)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert_eq!(status(a.cq.wait(MINUTE)), WcStatus::RetryExceeded);
    Ok(())
}

/// Completions come late and in another order of their QPs, and in the right order within a QP, by
/// which `mlx5_parse_cqe` of providers/mlx5/cq.c moves the tail of the queue.
#[test]
fn completions_of_two_queue_pairs_change_places() -> Result<()> {
    let list = list("recipe:jitter,by=5ms,dev=a")?;
    let (a, b) = simulated::connect(&list)?;
    let pd = b.context.protection_domain()?;
    let own = a.context.protection_domain()?;
    let (second, there) = (
        own.queue_pair(&a.cq).build()?,
        pd.queue_pair(&b.cq).build()?,
    );
    let (here_end, there_end) = (second.endpoint(), there.endpoint());
    let second = second.connect(there_end, &ConnectOptions::default())?;
    let _there = there.connect(here_end, &ConnectOptions::default())?;
    let memory = pd.register(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    let mut order = Vec::new();
    for round in 0..20 {
        let write = |to, id| SendRequest::write_inline(b"x", to).wr_id(id);
        a.qp.post_send(&write(b.memory.remote(), 2 * round))?;
        second.post_send(&write(memory.remote(), 2 * round + 1))?;
    }
    for _ in 0..40 {
        order.push(a.cq.wait(MINUTE)?.wr_id);
    }
    let of = |parity| order.iter().filter(move |id| *id % 2 == parity);
    assert!(of(0).is_sorted() && of(1).is_sorted(), "{order:?}");
    assert!(!order.is_sorted(), "{order:?}");
    Ok(())
}

/// Packets overtake each other. RC takes that for losses (`check_psn` of rxe_resp.c), and delivers
/// everything.
#[test]
fn paths_of_different_length_reorder_packets() -> Result<()> {
    let (a, b, list) = pair(1, "recipe:reordering-paths,by=200us,seed=4")?;
    write(&a, &b, 1 << 20)?;
    assert!(b.qp.counters().seq_naks_sent > 0, "{:?}", b.qp.counters());
    assert!(list.fault_report().rules[0].hits > 0);
    Ok(())
}

/// `ibv_post_send` returns ENOMEM for some requests, and none of them is half posted
/// (`mlx5_wq_overflow` in `_mlx5_post_send` of providers/mlx5/qp.c).
#[test]
fn a_full_send_queue_refuses_requests() -> Result<()> {
    let (a, b, list) = pair(1, "recipe:send-queue-full,p=30%,seed=5,dev=a")?;
    let (mut posted, mut refused) = (0, 0);
    for id in 0..50 {
        let request = SendRequest::write_inline(b"x", b.memory.remote()).wr_id(id);
        match errno(a.qp.post_send(&request)) {
            0 => posted += 1,
            12 => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(posted > 0 && refused > 0, "{posted} {refused}");
    assert_eq!(a.cq.wait_for(posted, MINUTE)?.len(), posted);
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    assert_eq!(list.fault_report().rules[0].hits, refused);
    Ok(())
}
