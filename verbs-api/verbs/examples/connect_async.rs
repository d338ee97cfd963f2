//! Connections with futures: a server and its clients as tasks on one thread, without an async
//! runtime. The same futures also run on a runtime such as Tokio or smol.
//!
//! ```sh
//! cargo run --release --package rocade-verbs --example connect_async
//! ```

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use rocade_verbs::{Config, DeviceList, Listener, PeerOptions, Result, Route};

const CLIENTS: u8 = 4;

async fn serve(listener: Listener) -> Result<()> {
    for _ in 0..CLIENTS {
        let request = listener.request().await?;
        println!("server: request from client {}", request.private_data()[0]);
        let pd = request.context().protection_domain()?;
        let cq = pd.context().completion_queue(8)?;
        let qp = pd.queue_pair(&cq).build()?;
        let connection = request.accept_async(qp, &PeerOptions::default()).await?;
        connection.disconnect_event().await?;
    }
    Ok(())
}

async fn ask(list: DeviceList, listener: std::net::SocketAddr, number: u8) -> Result<()> {
    let route = Route::to(&list, listener)?;
    let pd = route.context().protection_domain()?;
    let cq = pd.context().completion_queue(8)?;
    let qp = pd.queue_pair(&cq).build()?;
    let connection = route
        .connect_async(qp, &PeerOptions::with_data([number]))
        .await?;
    println!("client {number}: connected to {}", connection.peer_addr()?);
    Ok(connection.disconnect_async().await?)
}

/// A waker that unparks a thread, which is all that this executor needs.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs all tasks to completion.
fn run(mut tasks: Vec<Pin<Box<dyn Future<Output = Result<()>>>>>) -> Result<()> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    while !tasks.is_empty() {
        let mut waiting = Vec::new();
        for mut task in tasks {
            match task.as_mut().poll(&mut cx) {
                Poll::Ready(outcome) => outcome?,
                Poll::Pending => waiting.push(task),
            }
        }
        tasks = waiting;
        if !tasks.is_empty() {
            thread::park();
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let config = Config::from_specs(&["a=127.0.0.92"])?;
    let list = DeviceList::new(config)?;
    let listener = Listener::bind(&list, ([127, 0, 0, 92], 0).into())?;
    let address = listener.local_addr()?;
    let mut tasks: Vec<Pin<Box<dyn Future<Output = _>>>> = vec![Box::pin(serve(listener))];
    for number in 0..CLIENTS {
        tasks.push(Box::pin(ask(list.clone(), address, number)));
    }
    run(tasks)
}
