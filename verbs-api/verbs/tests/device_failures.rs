//! Rules for devices and ports, in virtual time: events, tables and states, and what happens to the
//! packets meanwhile.

#[path = "common/simulated.rs"]
mod simulated;

use std::time::Duration;

use rocade_verbs::{
    AsyncEventKind, Context, Error, EventSource, QpState, Result, SendRequest, WcStatus,
};
use simulated::{End, MINUTE, pair, status, write};

const MILLISECOND: u64 = 1_000_000;

fn next_event(context: &Context) -> Result<Option<(AsyncEventKind, EventSource)>> {
    let event = context.poll_event()?;
    Ok(event.map(|event| (event.kind, event.source)))
}

/// Lets virtual time pass.
fn pass(end: &End, ms: u64) {
    let result = end.cq.wait(Duration::from_millis(ms));
    assert!(matches!(result, Err(Error::TimedOut)), "{result:?}");
}

fn of_port(kind: AsyncEventKind) -> Option<(AsyncEventKind, EventSource)> {
    Some((kind, EventSource::Port(1)))
}

/// `IB_EVENT_PORT_ERR` and `IB_EVENT_PORT_ACTIVE` of the kernel, which RoCE drivers raise for the
/// state of the network interface (`mlx5_netdev_event`, `rxe_notify`). An RC QP does not see the
/// state: it retries (IBTA 9.9.2.1.1).
#[test]
fn a_port_is_down_and_comes_back_in_time() -> Result<()> {
    let (a, b, list) = pair(1, "port-down dev=a port=1 at=1ms for=200ms")?;
    assert!(a.context.port()?.active);
    pass(&a, 2);
    assert!(!a.context.port()?.active && b.context.port()?.active);
    assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::PortErr));
    assert_eq!(next_event(&a.context)?, None);
    let took = write(&a, &b, 8)?;
    assert!(took >= 198 * MILLISECOND, "{took}");
    assert!(a.context.port()?.active);
    assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::PortActive));
    assert_eq!(
        next_event(&b.context)?,
        None,
        "it is the port of the other device"
    );
    assert!(a.qp.counters().timeouts > 0);
    assert_eq!(b.qp.counters().timeouts, 0);
    let report = list.fault_report();
    assert_eq!(report.rules[0].hits, 1);
    assert_eq!(report.occurrences[0].subject.to_string(), "a port 1");
    Ok(())
}

#[test]
fn a_port_that_is_down_too_long_exhausts_the_retries() -> Result<()> {
    for device in ["a", "b"] {
        let (a, b, _list) = pair(1, &format!("port-down dev={device} at=1ms"))?;
        pass(&a, 2);
        assert_eq!(status(write(&a, &b, 8)), WcStatus::RetryExceeded);
        assert_eq!(a.qp.state(), QpState::Err);
        assert_eq!(b.qp.state(), QpState::Rts, "the responder is not told");
        let (down, up) = if device == "a" { (&a, &b) } else { (&b, &a) };
        assert_eq!(next_event(&down.context)?, of_port(AsyncEventKind::PortErr));
        assert_eq!(next_event(&up.context)?, None);
        assert_eq!(
            next_event(&down.context)?,
            None,
            "the completion tells of the QP"
        );
    }
    Ok(())
}

#[test]
fn a_port_flaps_with_a_period() -> Result<()> {
    let (a, b, list) = pair(1, "port-down dev=b at=1ms for=10ms every=50ms times=3")?;
    pass(&b, 500);
    for _ in 0..3 {
        assert_eq!(next_event(&b.context)?, of_port(AsyncEventKind::PortErr));
        assert_eq!(next_event(&b.context)?, of_port(AsyncEventKind::PortActive));
    }
    assert_eq!(next_event(&b.context)?, None);
    write(&a, &b, 100_000)?;
    let times: Vec<_> = list
        .fault_report()
        .occurrences
        .iter()
        .map(|one| one.at_ns)
        .collect();
    assert_eq!(times, [1, 51, 101].map(|ms| ms * MILLISECOND));
    Ok(())
}

/// The recipe is the rule of the same times.
#[test]
fn a_recipe_lets_a_port_flap() -> Result<()> {
    let recipe = "recipe:port-flap,dev=b,at=1ms,for=10ms,every=50ms";
    let (_a, b, _list) = pair(1, recipe)?;
    pass(&b, 500);
    for _ in 0..3 {
        assert_eq!(next_event(&b.context)?, of_port(AsyncEventKind::PortErr));
        assert_eq!(next_event(&b.context)?, of_port(AsyncEventKind::PortActive));
    }
    assert_eq!(next_event(&b.context)?, None);
    Ok(())
}

/// A cable that stays out exhausts the retries of the peer.
#[test]
fn a_recipe_pulls_the_cable() -> Result<()> {
    let (a, b, _list) = pair(1, "recipe:cable-pull,dev=b,at=0s")?;
    assert!(!b.context.port()?.active, "from the first use on");
    let sges = [a.memory.sge(..8)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    assert_eq!(status(a.cq.wait(MINUTE)), WcStatus::RetryExceeded);
    Ok(())
}

/// Two rules hold a port down, which is up when both have ended.
#[test]
fn a_port_is_up_when_the_last_rule_ends() -> Result<()> {
    let (a, _b, _list) = pair(1, "port-down dev=a for=20ms; port-down at=10ms for=30ms")?;
    assert!(!a.context.port()?.active, "from the first use on");
    pass(&a, 30);
    assert!(!a.context.port()?.active);
    pass(&a, 30);
    assert!(a.context.port()?.active);
    assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::PortErr));
    assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::PortActive));
    assert_eq!(next_event(&a.context)?, None);
    Ok(())
}

/// The entry is zero, as in the kernel's table (`del_gid` of core/cache.c), and packets of the
/// address are lost until it comes back.
#[test]
fn a_gid_goes_and_comes_back() -> Result<()> {
    let (a, b, _list) = pair(1, "gid-remove dev=a index=0 at=1ms for=200ms")?;
    let before = a.context.gids();
    pass(&a, 2);
    assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::GidChange));
    assert!(a.context.gids()[0].gid.is_zero());
    let took = write(&a, &b, 8)?;
    assert!(took >= 198 * MILLISECOND, "{took}");
    assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::GidChange));
    assert_eq!(a.context.gids(), before);
    assert!(a.context.port()?.active);
    Ok(())
}

#[test]
fn a_gid_is_added_and_another_one_changes() -> Result<()> {
    let rules =
        "gid-add dev=a gid=192.0.2.77 at=1ms; gid-change dev=a index=0 to=192.0.2.78 at=2ms";
    let (a, _b, _list) = pair(1, rules)?;
    let before = a.context.gids();
    pass(&a, 5);
    let after = a.context.gids();
    let of = |address: &str| rocade_verbs::Gid::from_ip(address.parse().expect("an address"));
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(after[0].gid, of("192.0.2.78"));
    assert_eq!(after[before.len()].gid, of("192.0.2.77"));
    for _ in 0..2 {
        assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::GidChange));
    }
    assert_eq!(next_event(&a.context)?, None);
    Ok(())
}

/// The queue pair names the key by its index, so that its packets carry the new one, which the
/// responder drops without an answer (IBTA 9.6.1.4).
#[test]
fn a_pkey_changes_under_a_queue_pair() -> Result<()> {
    let (a, b, _list) = pair(1, "pkey-change dev=a pkey=0x8001 at=1ms for=200ms")?;
    assert_eq!(a.context.pkeys()[0].get(), 0xffff);
    pass(&a, 2);
    assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::PkeyChange));
    assert_eq!(a.context.pkeys()[0].get(), 0x8001);
    let took = write(&a, &b, 8)?;
    assert!(took >= 198 * MILLISECOND, "{took}");
    assert!(b.context.port()?.bad_pkey_cntr > 0);
    assert_eq!(next_event(&a.context)?, of_port(AsyncEventKind::PkeyChange));
    assert_eq!(a.context.pkeys()[0].get(), 0xffff);
    Ok(())
}

#[test]
fn a_speed_changes_without_a_loss() -> Result<()> {
    let (a, b, _list) = pair(1, "speed-change dev=a gbit=25 at=1ms for=10ms")?;
    pass(&a, 2);
    let speed = of_port(AsyncEventKind::DeviceSpeedChange);
    assert_eq!(next_event(&a.context)?, speed);
    write(&a, &b, 8)?;
    assert_eq!(a.qp.counters().timeouts, 0);
    pass(&a, 20);
    assert_eq!(next_event(&a.context)?, speed);
    assert_eq!(next_event(&a.context)?, None);
    Ok(())
}

/// Packets that are on their way do not arrive at a port that is down.
#[test]
fn a_message_in_flight_survives_a_flap() -> Result<()> {
    let (a, b, _list) = pair(1, "link latency=1ms; port-down dev=b at=500us for=100ms")?;
    a.memory.write(0, &vec![9; 1 << 20])?;
    let sges = [a.memory.sge(..1 << 20)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    a.cq.wait(MINUTE)?;
    assert_eq!(b.memory.to_vec(..1 << 20)?, vec![9; 1 << 20]);
    assert!(a.context.clock_ns() >= 100 * MILLISECOND);
    Ok(())
}
