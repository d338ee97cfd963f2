//! An echo server over the connection manager, and its clients, on Tokio.
//!
//! ```sh
//! cargo run --release --package rocade-verbs --example echo
//! ```

#[path = "runtime/on_tokio.rs"]
mod on_tokio;
#[path = "runtime/mod.rs"]
pub(crate) mod runtime;

use std::net::SocketAddr;
use std::sync::Arc;

use rocade_verbs::{
    AccessFlags, Config, ConnectRequest, DeviceList, Listener, PeerOptions, Result, Route,
};
use runtime::Runtime;

/// The length of the longest message in bytes.
const LONGEST: usize = 256;

/// Accepts `clients` connections, and serves each in a task of its own.
pub(crate) async fn serve(listener: Listener, clients: usize, runtime: impl Runtime) -> Result<()> {
    for _ in 0..clients {
        let request = listener.request().await?;
        let own = runtime.clone();
        runtime.spawn(async move {
            if let Err(error) = echo(request, own).await {
                eprintln!("server: {error}");
            }
        });
    }
    Ok(())
}

/// Sends each message back, until an empty one.
async fn echo(request: ConnectRequest, runtime: impl Runtime) -> Result<()> {
    let pd = request.context().protection_domain()?;
    let cq = pd.context().completion_queue(16)?;
    runtime.drive(&cq)?;
    let qp = pd.queue_pair(&cq).build()?;
    // Two buffers: one holds the message that is sent back, the other receives the next one.
    let memory = Arc::new(pd.register(2 * LONGEST, AccessFlags::LOCAL_WRITE)?);
    let buffers = [memory.slice(..LONGEST)?, memory.slice(LONGEST..)?];
    let mut received = qp.recv(&buffers[0]);
    let connection = request.accept_async(qp, &PeerOptions::default()).await?;
    for round in 0.. {
        let len = received.await?.byte_len as usize;
        if len == 0 {
            break;
        }
        received = connection.recv(&buffers[(round + 1) % 2]);
        let answer = buffers[round % 2].slice(..len)?;
        connection.send(answer).await?;
    }
    Ok(connection.disconnect_event().await?)
}

/// Sends texts to the server and returns its answers.
pub(crate) async fn ask(
    route: Route,
    texts: &[&str],
    runtime: impl Runtime,
) -> Result<Vec<String>> {
    let pd = route.context().protection_domain()?;
    let cq = pd.context().completion_queue(16)?;
    runtime.drive(&cq)?;
    let qp = pd.queue_pair(&cq).build()?;
    let inbox = Arc::new(pd.register(LONGEST, AccessFlags::LOCAL_WRITE)?);
    let connection = route.connect_async(qp, &PeerOptions::default()).await?;
    let mut answers = Vec::new();
    for text in texts {
        let answer = connection.recv(&inbox);
        connection.send_inline(text.as_bytes()).await?;
        let len = answer.await?.byte_len as usize;
        let bytes = inbox.to_vec(..len)?;
        answers.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    connection.send_inline(b"").await?;
    connection.disconnect_async().await?;
    Ok(answers)
}

async fn client(list: DeviceList, server: SocketAddr, number: usize) -> Result<()> {
    let text = format!("hello from client {number}");
    let route = Route::to(&list, server)?;
    for answer in ask(route, &[&text, "over and out"], on_tokio::Tokio).await? {
        println!("client {number} hears: {answer}");
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    const CLIENTS: usize = 4;
    let list = DeviceList::new(Config::from_specs(&["a=127.0.0.93"])?)?;
    let listener = Listener::bind(&list, ([127, 0, 0, 93], 0).into())?;
    let address = listener.local_addr()?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(list.clone(), address, number)))
        .collect();
    serve(listener, CLIENTS, on_tokio::Tokio).await?;
    for client in clients {
        client.await.map_err(std::io::Error::from)??;
    }
    Ok(())
}
