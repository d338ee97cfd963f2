//! Processes of the Rust API on a simulated host.
#![cfg(target_os = "linux")]

use std::net::SocketAddr;
use std::time::Duration;

use rocade_verbs::simulated_host::{HostError, SimulatedHost, sleep};
use rocade_verbs::{AccessFlags, Config, DeviceList, Listener, Result, Route, SendRequest};

#[path = "../examples/killed_server.rs"]
#[allow(dead_code, reason = "the example has a main function, too")]
mod killed_server;

const LONG: Duration = Duration::from_secs(10);
const PORT: u16 = 4_000;

#[test]
fn a_client_survives_the_death_of_its_server() -> Result<(), HostError> {
    let mut interrupted = 0;
    for seed in 1..=20 {
        let (client, server) =
            killed_server::kill_one(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let connections = client.expect("it has ended").expect("all is sent");
        let received = server.expect("it has ended").expect("all has come");
        assert!(matches!(connections, 1 | 2), "seed {seed}: {connections}");
        assert!(received > 0, "seed {seed}");
        interrupted += u32::from(connections == 2);
    }
    assert!(interrupted >= 10, "the first server is killed too early");
    Ok(())
}

#[test]
fn a_seed_repeats() -> Result<(), HostError> {
    let run = |seed| {
        let (client, server) = killed_server::kill_one(seed)?;
        Ok::<_, HostError>(format!("{client:?} {server:?}"))
    };
    for seed in 1..=4 {
        assert_eq!(run(seed)?, run(seed)?, "seed {seed}");
    }
    assert_ne!(run(1)?, run(2)?, "seeds differ");
    Ok(())
}

/// Accepts a connection, answers one message and returns the length of the next one, or the error
/// that ends the wait for it.
fn answer(config: Config, addr: SocketAddr) -> Result<u32> {
    let listener = Listener::bind(&DeviceList::new(config)?, addr)?;
    let request = listener.wait(LONG)?;
    let pd = request.context().protection_domain()?;
    let cq = pd.context().completion_queue(8)?;
    let memory = pd.register(64, AccessFlags::LOCAL_WRITE)?;
    let qp = pd.queue_pair(&cq).build()?;
    qp.post_recv(0, &[memory.sge(..)?])?;
    qp.post_recv(1, &[memory.sge(..)?])?;
    let connection = request.accept(qp, &Default::default(), LONG)?;
    let first = cq.wait(LONG)?;
    connection.post_send(&SendRequest::send(
        &[memory.sge(..first.byte_len as usize)?],
    ))?;
    cq.wait(LONG)?;
    Ok(cq.wait(Duration::from_secs(2))?.byte_len)
}

/// Sends a message, waits for the answer, and then for the end of the connection. Returns the
/// answer.
fn ask(config: Config, addr: SocketAddr) -> Result<Vec<u8>> {
    let list = DeviceList::new(config)?;
    loop {
        let route = Route::to(&list, addr)?;
        let pd = route.context().protection_domain()?;
        let cq = pd.context().completion_queue(8)?;
        let memory = pd.register(64, AccessFlags::LOCAL_WRITE)?;
        let qp = pd.queue_pair(&cq).build()?;
        qp.post_recv(0, &[memory.sge(..)?])?;
        let Ok(connection) = route.connect(qp, &Default::default(), LONG) else {
            sleep(Duration::from_millis(1)); // no server listens yet
            continue;
        };
        connection.post_send(&SendRequest::send_inline(b"who?"))?;
        let answer = loop {
            let completion = cq.wait(LONG)?;
            if !completion.is_send {
                break memory.to_vec(..completion.byte_len as usize)?;
            }
        };
        connection.wait_disconnect(LONG)?;
        return Ok(answer);
    }
}

#[test]
fn a_peer_is_told_of_a_death() -> Result<(), HostError> {
    for seed in 1..=10 {
        let answer = SimulatedHost::run(seed, |host| {
            let addr = SocketAddr::new(host.address(), PORT);
            let server = host.start("server", move |config| answer(config, addr))?;
            let client = host.start("client", move |config| ask(config, addr))?;
            host.run_for(Duration::from_millis(200))?;
            assert!(host.lives(&server) && host.lives(&client));
            host.kill(&server)?;
            assert!(!host.lives(&server));
            let begin = host.now();
            host.run_to_end(LONG)?;
            assert!(host.now() - begin < Duration::from_secs(1), "soon");
            assert!(server.output().is_none(), "it was killed");
            Ok::<_, HostError>(client.output())
        })??;
        assert_eq!(answer, Some(Ok(b"who?".to_vec())), "seed {seed}");
    }
    Ok(())
}

#[test]
fn brokers_and_stops_do_no_harm() -> Result<(), HostError> {
    for seed in 1..=10 {
        let (client, server) = SimulatedHost::run(seed, |host| {
            let addr = SocketAddr::new(host.address(), PORT);
            let server = host.start("server", move |config| answer(config, addr))?;
            let client = host.start("client", move |config| ask(config, addr))?;
            host.run_for(Duration::from_micros(300 * seed))?;
            host.kill_broker();
            host.run_for(Duration::from_micros(300 * seed))?;
            host.stop(&server, Duration::from_millis(50));
            host.stop_broker();
            host.run_to_end(Duration::from_secs(60))?;
            Ok::<_, HostError>((client.output(), server.output()))
        })??;
        assert_eq!(client, Some(Ok(b"who?".to_vec())), "seed {seed}");
        // Its second wait ends with the time.
        assert!(matches!(server, Some(Err(_))), "seed {seed}: {server:?}");
    }
    Ok(())
}

#[test]
fn a_panic_names_its_process() {
    let error = SimulatedHost::run(1, |host| {
        host.start("careless", |_| -> () { panic!("out of ideas") })?;
        host.run_to_end(LONG)
    });
    let text = error.expect("a host").expect_err("a panic").to_string();
    assert!(text.contains("careless.main: out of ideas"), "{text}");
}

#[test]
fn who_does_not_end_is_named() {
    let error = SimulatedHost::run(1, |host| {
        host.start("idle", |_| sleep(Duration::from_secs(3600)))?;
        host.run_to_end(LONG)
    });
    let error = error.expect("a host").expect_err("it is late");
    assert!(matches!(&error, HostError::Late(text) if text.contains("idle.main")));
    assert!(error.to_string().contains("have not ended in time"));
}

#[test]
fn time_is_virtual() -> Result<(), HostError> {
    let day = Duration::from_secs(86_400);
    let slept = SimulatedHost::run(1, |host| {
        host.start("sleeper", move |_| sleep(day))?;
        host.run_to_end(2 * day)?;
        Ok::<_, HostError>(host.now())
    })??;
    assert!((day..day + LONG).contains(&slept), "{slept:?}");
    Ok(())
}

#[test]
fn the_book_shows_the_example() {
    let example = include_str!("../examples/killed_server.rs");
    let shown = example.find("/// Returns what the client and");
    let end = example.find("\nfn main()").expect("a main function");
    let shown = &example[shown.expect("the host")..end];
    let book = include_str!("../../../docs/rust.md");
    assert!(book.contains(shown.trim_end()), "copy it there:\n{shown}");
}
