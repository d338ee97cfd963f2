//! The cost of a completion by future, compared with one by poll.
//!
//! ```sh
//! cargo run --release --package rocade-verbs --example completion_cost -- 200000
//! ```

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, ConnectOptions, DeviceList, MemoryRegion, QueuePair,
    RemoteMemory, Result, SendRequest,
};

/// The rounds, in each of which all ways take turns.
const ROUNDS: usize = 9;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future: sleeps between polls, or polls all the time.
fn block_on<F: Future>(future: F, waker: &Waker, sleeps: bool) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending if sleeps => thread::park(),
            Poll::Pending => {}
        }
    }
}

struct Side {
    cq: CompletionQueue,
    qp: QueuePair,
    memory: Arc<MemoryRegion>,
    there: RemoteMemory,
}

impl Side {
    fn by_poll(&self, request: &SendRequest<'_>) -> Result<()> {
        self.qp.post_send(request)?;
        loop {
            if let Some(completion) = self.cq.poll() {
                completion.into_result()?;
                return Ok(());
            }
        }
    }

    fn run(&self, way: &str, waker: &Waker) -> Result<()> {
        let part = [self.memory.sge(..8)?];
        match way {
            "nop, poll" => self.by_poll(&SendRequest::nop()),
            "nop, future" => {
                Ok(block_on(self.qp.submit(&SendRequest::nop()), waker, false).map(drop)?)
            }
            "WRITE, poll" => self.by_poll(&SendRequest::write(&part, self.there)),
            "WRITE, future, polled" => {
                let write = self.qp.write(self.memory.slice(..8)?, self.there);
                Ok(block_on(write, waker, false).map(drop)?)
            }
            _ => {
                let write = self.qp.write(self.memory.slice(..8)?, self.there);
                Ok(block_on(write, waker, true).map(drop)?)
            }
        }
    }
}

/// Measures the ways: nanoseconds per operation, the median of the rounds.
fn measure(sides: &[(&str, Side)], count: u32) -> Result<Vec<f64>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut figures = vec![Vec::new(); sides.len()];
    for _ in 0..ROUNDS {
        for ((way, side), figures) in sides.iter().zip(&mut figures) {
            let begin = Instant::now();
            for _ in 0..count {
                side.run(way, &waker)?;
            }
            figures.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(count));
        }
    }
    for each in &mut figures {
        each.sort_by(f64::total_cmp);
    }
    Ok(figures.iter().map(|each| each[ROUNDS / 2]).collect())
}

fn main() -> Result<()> {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let list = DeviceList::new(Config::from_specs(&["a=127.0.0.95", "b=127.0.0.96"])?)?;
    let (a, b) = (list.open("a")?, list.open("b")?);
    let (a, b) = (a.protection_domain()?, b.protection_domain()?);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let target = b.register(64, access)?;
    let passive_cq = b.context().completion_queue(16)?;
    let ways = [
        "nop, poll",
        "nop, future",
        "WRITE, poll",
        "WRITE, future, polled",
        "WRITE, future",
    ];
    let (mut sides, mut peers) = (Vec::new(), Vec::new());
    for way in ways {
        let cq = a.context().completion_queue(16)?;
        let ends = (
            a.queue_pair(&cq).build()?,
            b.queue_pair(&passive_cq).build()?,
        );
        let (qp, peer) = QueuePair::connect_pair(ends.0, ends.1, &ConnectOptions::default())?;
        let (memory, there) = (Arc::new(a.register(64, access)?), target.remote());
        peers.push(peer);
        sides.push((
            way,
            Side {
                cq,
                qp,
                memory,
                there,
            },
        ));
    }
    let figures = measure(&sides, count.unwrap_or(200))?;
    for (index, way) in ways.iter().enumerate() {
        let base = if index < 2 { figures[0] } else { figures[2] };
        println!(
            "{way:24} {:8.0} ns  {:.2}",
            figures[index],
            figures[index] / base
        );
    }
    Ok(())
}
