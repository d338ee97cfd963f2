//! Rules for devices and ports, in virtual time: events, tables and states, and what happens to the
//! packets meanwhile.

#[path = "common/mod.rs"]
mod common;
#[path = "common/simulated.rs"]
mod simulated;

use std::net::SocketAddr;
use std::time::Duration;

use common::errno;
use rocade_verbs::{
    AsyncEventKind, Config, Connection, Context, DeviceList, Error, EventError, EventSource,
    Listener, OpenError, PeerOptions, QpState, Result, Route, SendRequest, VerbsErrorKind,
    WaitError, WcStatus,
};
use simulated::{End, MINUTE, connect, pair, status, write};

const MILLISECOND: u64 = 1_000_000;

fn next_event(context: &Context) -> Result<Option<(AsyncEventKind, EventSource)>> {
    let event = context.poll_event()?;
    Ok(event.map(|event| (event.kind, event.source)))
}

/// Lets virtual time pass.
fn pass(end: &End, ms: u64) {
    let result = end.cq.wait(Duration::from_millis(ms));
    assert!(matches!(result, Err(WaitError::TimedOut)), "{result:?}");
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

/// The recipe is the rule of the same times, with the events of `rxe_port_down` and `rxe_port_up`
/// of rxe_net.c.
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

/// The port tells its own host that the cable is out (`rxe_port_down` of rxe_net.c), and the peer's
/// retries are exhausted (`rxe_completer` of rxe_comp.c).
#[test]
fn a_recipe_pulls_the_cable() -> Result<()> {
    let (a, b, _list) = pair(1, "recipe:cable-pull,dev=b,at=1ms")?;
    pass(&a, 2);
    assert!(!b.context.port()?.active);
    assert_eq!(next_event(&b.context)?, of_port(AsyncEventKind::PortErr));
    assert_eq!(next_event(&a.context)?, None);
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

fn fatal() -> Option<(AsyncEventKind, EventSource)> {
    Some((AsyncEventKind::DeviceFatal, EventSource::Device))
}

/// Returns true if a call failed because the device was removed, with EIO.
fn is_removed<T, E: Into<Error>>(result: Result<T, E>) -> bool {
    match result.map_err(Into::into) {
        Err(Error::Verbs(error)) => error.kind() == VerbsErrorKind::Removed && error.errno() == 5,
        _ => false,
    }
}

fn names(list: &DeviceList) -> Vec<String> {
    let devices = list.devices().into_iter();
    devices.map(|device| device.name).collect()
}

/// The kernel raises the event (`uverbs_async_event_destroy_uobj`) and answers EIO to all but
/// destroying (`rdma_lookup_get_uobject`). The queues are memory of the provider (mlx5), so that
/// posting succeeds and nothing completes.
#[test]
fn a_device_is_removed_while_in_use() -> Result<()> {
    let (a, b, list) = pair(1, "device-remove dev=b at=1ms")?;
    assert_eq!(names(&list), ["a", "b"]);
    pass(&a, 2);
    assert_eq!(next_event(&b.context)?, fatal());
    assert_eq!(next_event(&b.context)?, None);
    assert_eq!(next_event(&a.context)?, None, "it is the other device");

    assert!(is_removed(b.context.port()));
    assert!(is_removed(b.context.gids_of(1)));
    assert!(is_removed(b.context.protection_domain()));
    assert!(is_removed(b.context.completion_queue(1)));
    assert!(is_removed(b.qp.set_error()));
    assert!(b.context.pkeys().is_empty());
    let sges = [b.memory.sge(..8)?];
    b.qp.post_recv(1, &sges)?;
    b.qp.post_send(&SendRequest::write(&sges, a.memory.remote()))?;
    assert_eq!(b.cq.poll(), None);
    assert!(is_removed(b.cq.wait(MINUTE)), "nothing can complete");
    assert_eq!(b.cq.poll(), None);

    assert_eq!(names(&list), ["a"]);
    assert!(matches!(list.open("b"), Err(OpenError::NoDevice(name)) if name == "b"));
    assert_eq!(status(write(&a, &b, 8)), WcStatus::RetryExceeded);
    let report = list.fault_report();
    assert_eq!(report.rules[0].hits, 1);
    assert_eq!(report.occurrences[0].subject.to_string(), "b");
    Ok(())
}

/// Completions from before can still be polled, and posts fill the queue.
#[test]
fn completions_of_a_removed_device_can_be_polled() -> Result<()> {
    let (a, b, _list) = pair(1, "device-remove dev=b at=10ms")?;
    b.qp.post_recv(7, &[b.memory.sge(..8)?])?;
    let sges = [a.memory.sge(..8)?];
    a.qp.post_send(&SendRequest::send(&sges))?;
    a.cq.wait(MINUTE)?;
    pass(&a, 20);
    assert_eq!(b.cq.wait(MINUTE)?.wr_id, 7);
    assert!(is_removed(b.cq.wait(MINUTE)));
    let own = [b.memory.sge(..8)?];
    let post = || b.qp.post_send(&SendRequest::write(&own, a.memory.remote()));
    let refused = (0..10_000).find_map(|_| post().err());
    let kind = refused.map(|error| error.kind());
    assert_eq!(kind, Some(VerbsErrorKind::NoMemory));
    assert_eq!(a.memory.to_vec(..8)?, b.memory.to_vec(..8)?);
    Ok(())
}

/// A new context works, and an old one never does again.
#[test]
fn a_device_comes_back_as_a_new_one() -> Result<()> {
    let (a, b, list) = pair(1, "device-remove dev=b at=1ms for=100ms")?;
    pass(&a, 2);
    assert_eq!(names(&list), ["a"]);
    pass(&a, 200);
    assert_eq!(names(&list), ["a", "b"]);
    let (new_a, new_b) = connect(&list)?;
    write(&new_a, &new_b, 100_000)?;
    write(&new_b, &new_a, 100_000)?;
    assert_eq!(next_event(&new_b.context)?, None);

    assert_eq!(next_event(&b.context)?, fatal());
    assert_eq!(next_event(&b.context)?, None);
    assert!(is_removed(b.context.port()));
    // The old QP is none of the new device.
    assert_eq!(status(write(&a, &b, 8)), WcStatus::RetryExceeded);
    drop(b);
    write(&new_a, &new_b, 8)?;
    Ok(())
}

#[test]
fn a_device_is_removed_when_it_is_opened() -> Result<()> {
    let list = DeviceList::new(Config::simulated(1).with_faults("device-remove dev=a")?)?;
    assert_eq!(names(&list), ["a", "b"]);
    let a = list.open("a")?;
    assert_eq!(next_event(&a)?, fatal());
    assert!(is_removed(a.port()));
    assert!(list.open("a").is_err());
    assert!(list.open("b")?.port()?.active);
    Ok(())
}

/// Each context has the event once, as its last one (`uverbs_async_event_destroy_uobj` of
/// uverbs_std_types_async_fd.c), and calls fail with EIO (`rdma_lookup_get_uobject` of
/// rdma_core.c).
#[test]
fn a_recipe_resets_the_device_again_and_again() -> Result<()> {
    let recipe = "recipe:nic-reset,dev=b,at=1ms,for=10ms,every=50ms,times=2";
    let (a, b, list) = pair(1, recipe)?;
    pass(&a, 20);
    assert_eq!(next_event(&b.context)?, fatal());
    let second = list.open("b")?;
    pass(&a, 40);
    assert!(is_removed(second.port()));
    assert_eq!(next_event(&second)?, fatal());
    assert_eq!(next_event(&b.context)?, None);
    pass(&a, 40);
    assert!(list.open("b")?.port()?.active);
    Ok(())
}

/// Tasks that wait get the error instead of waiting for ever.
#[test]
fn tasks_learn_that_the_device_is_removed() -> Result<()> {
    let (_a, b, list) = pair(1, "device-remove dev=b at=1ms")?;
    let simulation = list.simulation()?;
    let next = simulation.timeout(MINUTE, b.cq.next());
    assert!(is_removed(simulation.block_on(next)??));
    Ok(())
}

/// Connects to a listener of the simulation through IDs, and returns both ends.
async fn meet(list: &DeviceList, listener: Listener) -> Result<(Connection, Connection)> {
    async fn accept(listener: Listener) -> Result<Connection> {
        let request = listener.request().await?;
        let pd = request.context().protection_domain()?;
        let cq = pd.context().completion_queue(4)?;
        let qp = pd.queue_pair(&cq).build()?;
        Ok(request.accept_async(qp, &PeerOptions::default()).await?)
    }
    let port = listener.local_addr()?.port();
    let server = list.simulation()?.spawn(accept(listener));
    let route = Route::from(list, at("10.0.0.1", 0), at("10.0.0.2", port))?;
    let pd = route.context().protection_domain()?;
    let cq = pd.context().completion_queue(4)?;
    let qp = pd.queue_pair(&cq).build()?;
    let client = route.connect_async(qp, &PeerOptions::default()).await?;
    Ok((client, server.await?))
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port)
}

/// `cma_process_remove`: IDs that are bound to the device get their last event, and one that
/// listens on all addresses is bound to none.
#[test]
fn listeners_lose_the_device_and_get_it_back() -> Result<()> {
    let rules = "device-remove dev=b at=10ms for=100ms";
    let list = DeviceList::new(Config::simulated(1).with_faults(rules)?)?;
    let _b = list.open("b")?;
    let named = Listener::bind(&list, at("10.0.0.2", 7_000))?;
    let all = Listener::bind(&list, at("0.0.0.0", 7_001))?;
    assert!(is_removed(named.wait(MINUTE)));
    let meanwhile = Listener::bind(&list, at("10.0.0.2", 7_002));
    assert_eq!(errno(meanwhile.map(drop)), 19);
    let pause = Duration::from_millis(200);
    assert!(matches!(all.wait(pause), Err(EventError::TimedOut)));
    drop(named);

    let named = Listener::bind(&list, at("10.0.0.2", 7_000))?;
    let simulation = list.simulation()?;
    for listener in [named, all] {
        let (client, server) = simulation.block_on(meet(&list, listener))??;
        assert_eq!(client.peer_addr()?, server.local_addr()?);
    }
    Ok(())
}

/// Both ends of a connection get the event only for their own device. A peer is not told.
#[test]
fn a_connection_ends_with_its_device() -> Result<()> {
    let rules = "device-remove dev=b at=5s";
    let list = DeviceList::new(Config::simulated(1).with_faults(rules)?)?;
    let listener = Listener::bind(&list, at("10.0.0.2", 7_000))?;
    let simulation = list.simulation()?;
    let (client, server) = simulation.block_on(meet(&list, listener))??;
    assert!(is_removed(server.wait_disconnect(MINUTE)));
    assert!(matches!(
        client.wait_disconnect(MINUTE),
        Err(EventError::TimedOut)
    ));
    assert!(client.state() == QpState::Rts, "the peer is not told");
    drop(server);
    let ended = client.disconnect(Duration::from_secs(100));
    assert_eq!(ended, Ok(()), "without an answer of the peer");
    Ok(())
}

/// Requests are repeated until the retries of the connection manager are used up.
#[test]
fn a_port_that_is_down_is_unreachable() -> Result<()> {
    let list = DeviceList::new(Config::simulated(1).with_faults("port-down dev=b")?)?;
    let _b = list.open("b")?;
    let listener = Listener::bind(&list, at("10.0.0.2", 7_000))?;
    let simulation = list.simulation()?;
    let met = simulation.block_on(meet(&list, listener))?;
    assert!(matches!(met, Err(Error::Unreachable)), "{met:?}");
    Ok(())
}
