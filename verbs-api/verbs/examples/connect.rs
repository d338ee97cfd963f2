//! An echo server and its client, connected by IP address and port.
//!
//! ```sh
//! cargo build --release                  # the processes share an address through the broker
//! cargo run --release --package rocade-verbs --example connect &
//! cargo run --release --package rocade-verbs --example connect 127.0.0.1 hello
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rocade_verbs::{
    AccessFlags, CompletionQueue, Context, DeviceList, Listener, MemoryRegion, PeerOptions, Result,
    Route, SendRequest, UnconnectedQueuePair,
};

const PORT: u16 = 18_516;
const LEN: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// Creates memory and a queue pair with a posted receive, on the device of the connection.
fn prepare(context: &Context) -> Result<(CompletionQueue, MemoryRegion, UnconnectedQueuePair)> {
    let pd = context.protection_domain()?;
    let cq = context.completion_queue(8)?;
    let memory = pd.register(LEN, AccessFlags::LOCAL_WRITE)?;
    let qp = pd.queue_pair(&cq).build()?;
    qp.post_recv(0, &[memory.sge(..)?])?;
    Ok((cq, memory, qp))
}

fn serve(list: &DeviceList) -> Result<()> {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let listener = Listener::bind(list, SocketAddr::new(any, PORT))?;
    let request = listener.wait(PATIENCE)?;
    println!("{} connects", request.peer_addr()?);
    let (cq, memory, qp) = prepare(request.context())?;
    let connection = request.accept(qp, &PeerOptions::default(), PATIENCE)?;
    let len = cq.wait(PATIENCE)?.byte_len as usize;
    connection.post_send(&SendRequest::send(&[memory.sge(..len)?]))?;
    Ok(connection.wait_disconnect(PATIENCE)?)
}

fn ask(list: &DeviceList, server: IpAddr, text: &str) -> Result<()> {
    let route = Route::to(list, SocketAddr::new(server, PORT))?;
    let (cq, memory, qp) = prepare(route.context())?;
    let connection = route.connect(qp, &PeerOptions::default(), PATIENCE)?;
    connection.post_send(&SendRequest::send_inline(text.as_bytes()))?;
    // The receive completes after the send.
    let echo = loop {
        let completion = cq.wait(PATIENCE)?;
        if !completion.is_send {
            break memory.to_vec(..completion.byte_len as usize)?;
        }
    };
    println!("{}", String::from_utf8_lossy(&echo));
    Ok(connection.disconnect(PATIENCE)?)
}

fn main() -> Result<()> {
    let list = DeviceList::from_env()?;
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().and_then(|text| text.parse().ok());
    let text = arguments.next().unwrap_or_else(|| "hello".to_owned());
    match server {
        Some(server) => ask(&list, server, &text),
        None => serve(&list),
    }
}
