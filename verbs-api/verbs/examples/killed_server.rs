//! A client that survives the death of its server: three processes on a simulated host.
//!
//! ```sh
//! cargo run --package rocade-verbs --features simulated-host --example killed_server
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use rocade_verbs::simulated_host::{HostError, SimulatedHost, sleep};
use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, Connection, DeviceList, Listener, Result, Route,
    SendRequest, WaitError,
};

const PATIENCE: Duration = Duration::from_secs(10);
const MESSAGES: u64 = 2_000;

/// The result of a process, unless it was killed.
type Outcome<T> = Option<Result<T>>;

/// Receives the numbers of one client after the other, and returns how many.
fn serve(config: Config, addr: SocketAddr) -> Result<u64> {
    let listener = Listener::bind(&DeviceList::new(config)?, addr)?;
    let mut received = 0;
    loop {
        let request = listener.wait(PATIENCE)?;
        let pd = request.context().protection_domain()?;
        let cq = pd.context().completion_queue(8)?;
        let memory = pd.register(8, AccessFlags::LOCAL_WRITE)?;
        let qp = pd.queue_pair(&cq).build()?;
        qp.post_recv(0, &[memory.sge(..)?])?;
        let connection = request.accept(qp, &Default::default(), PATIENCE)?;
        while cq.wait(PATIENCE).is_ok() {
            received += 1;
            if memory.load_u64(0)? == MESSAGES {
                return Ok(received);
            }
            connection.post_recv(0, &[memory.sge(..)?])?;
        }
    }
}

/// Waits for a completion. Returns false if the connection ends before, or is lost.
fn is_acknowledged(cq: &CompletionQueue, connection: &Connection) -> bool {
    loop {
        match cq.wait(Duration::from_millis(10)) {
            Err(WaitError::TimedOut) if connection.wait_disconnect(Duration::ZERO).is_err() => {}
            outcome => return outcome.is_ok(),
        }
    }
}

/// Sends all numbers, to another server if one fails. Returns the number of connections.
fn send(config: Config, addr: SocketAddr) -> Result<u32> {
    let list = DeviceList::new(config)?;
    let (mut next, mut connections) = (1, 0);
    while next <= MESSAGES {
        let route = Route::to(&list, addr)?;
        let pd = route.context().protection_domain()?;
        let cq = pd.context().completion_queue(8)?;
        let qp = pd.queue_pair(&cq).build()?;
        let Ok(connection) = route.connect(qp, &Default::default(), PATIENCE) else {
            sleep(Duration::from_millis(10)); // no server listens
            continue;
        };
        connections += 1;
        while next <= MESSAGES {
            connection.post_send(&SendRequest::send_inline(&u64::to_ne_bytes(next)))?;
            if !is_acknowledged(&cq, &connection) {
                break; // the server has ended, and may have received this one
            }
            next += 1;
        }
    }
    Ok(connections)
}

/// Returns what the client and the second server return.
pub(crate) fn kill_one(seed: u64) -> Result<(Outcome<u32>, Outcome<u64>), HostError> {
    SimulatedHost::run(seed, |host| {
        let addr = SocketAddr::new(host.address(), 18_515);
        let first = host.start("server", move |config| serve(config, addr))?;
        let client = host.start("client", move |config| send(config, addr))?;
        host.run_for(Duration::from_millis(5))?; // of virtual time
        host.kill(&first)?; // in the middle of whatever it does
        let second = host.start("second server", move |config| serve(config, addr))?;
        host.run_to_end(Duration::from_secs(60))?;
        Ok((client.output(), second.output()))
    })?
}

fn main() -> Result<(), HostError> {
    let seed = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let (client, server) = kill_one(seed.unwrap_or(7))?;
    println!("the client has had {client:?} connections");
    println!("the second server has received {server:?} of {MESSAGES} messages");
    Ok(())
}
