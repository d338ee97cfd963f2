//! Futures over real sockets, without a runtime: a thread of the process wakes the tasks.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, ConnectOptions, DeviceList, MemoryRegion, OperationError,
    QueuePair, SendRequest,
};

const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: usize = 200;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future, which only its waker continues.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let begin = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = LIMIT.checked_sub(begin.elapsed());
        thread::park_timeout(left.expect("the task is not woken"));
    }
}

struct Side {
    cq: CompletionQueue,
    qp: QueuePair,
    memory: Arc<MemoryRegion>,
}

/// Connects the devices with the addresses 127.0.46.`net` and the next one.
fn pair(net: u8) -> (Side, Side) {
    let specs = [
        format!("a=127.0.46.{net}"),
        format!("b=127.0.46.{}", net + 1),
    ];
    let list = DeviceList::new(Config::from_specs(&specs).unwrap()).unwrap();
    let open = |name| {
        let pd = list.open(name).unwrap().protection_domain().unwrap();
        let cq = pd.context().completion_queue(64).unwrap();
        let qp = pd.queue_pair(&cq).build().unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        (cq, qp, Arc::new(pd.register(4096, access).unwrap()))
    };
    let ((a_cq, a_qp, a), (b_cq, b_qp, b)) = (open("a"), open("b"));
    let options = ConnectOptions::default();
    let (a_qp, b_qp) = QueuePair::connect_pair(a_qp, b_qp, &options).unwrap();
    let side = |cq, qp, memory| Side { cq, qp, memory };
    (side(a_cq, a_qp, a), side(b_cq, b_qp, b))
}

#[test]
fn two_threads_exchange_messages() {
    let (a, b) = pair(1);
    let answers = thread::spawn(move || {
        block_on(async {
            let mut received = b.qp.recv(b.memory.slice(..8).unwrap());
            for round in 0..ROUNDS {
                received.await.unwrap();
                received = b.qp.recv(b.memory.slice(..8).unwrap());
                let answer = u64::try_from(round).unwrap().to_ne_bytes();
                b.qp.send_inline(&answer).await.unwrap();
            }
        });
        // The last receive has no message.
        b
    });
    block_on(async {
        for round in 0..ROUNDS {
            let answer = a.qp.recv(a.memory.slice(..8).unwrap());
            a.qp.send_inline(b"question").await.unwrap();
            answer.await.unwrap();
            assert_eq!(a.memory.load_u64(0).unwrap(), round as u64);
        }
    });
    answers.join().unwrap();
}

/// A thread that blocks, futures and a stream share one queue. Each gets its own completions.
#[test]
fn blocking_waits_and_futures_share_a_queue() {
    let (a, b) = pair(3);
    let there = b.memory.remote();
    let (cq, qp, memory) = (&a.cq, &a.qp, &a.memory);
    thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..ROUNDS as u64 {
                let sge = [memory.sge(..8).unwrap()];
                qp.post_send(&SendRequest::read(&sge, there).wr_id(id))
                    .unwrap();
                assert_eq!(cq.wait(LIMIT).unwrap().wr_id, id);
            }
        });
        for task in 1..3 {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let read = qp.read(memory.slice(task * 8..task * 8 + 8).unwrap(), there);
                    assert_eq!(block_on(read).unwrap().byte_len, 8);
                }
            });
        }
    });
    assert_eq!(cq.poll(), None);
}

/// A task that has waited on one thread continues on another, and ends with its queue pair.
#[test]
fn a_task_moves_and_ends() {
    let (a, b) = pair(5);
    let mut waits = b.qp.recv(&b.memory);
    let mut ends = b.qp.recv(&b.memory);
    for wait in [&mut waits, &mut ends] {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(wait).poll(&mut cx).is_pending());
    }
    let other = thread::spawn(move || block_on(waits));
    block_on(a.qp.send_inline(b"moved")).unwrap();
    assert_eq!(other.join().unwrap().unwrap().byte_len, 5);
    let other = thread::spawn(move || block_on(ends));
    drop(b.qp);
    assert_eq!(other.join().unwrap(), Err(OperationError::Dropped));
}

/// The memory of a future that was dropped is released without another poll of the queue.
#[test]
fn memory_of_a_dropped_future_is_released() {
    let (a, b) = pair(7);
    let memory = Arc::downgrade(&a.memory);
    let read = a.qp.read(Arc::clone(&a.memory), b.memory.remote());
    drop((read, a.memory));
    let begin = Instant::now();
    while memory.upgrade().is_some() {
        assert!(begin.elapsed() < LIMIT, "the memory is never released");
        thread::yield_now();
    }
    drop((a.cq, a.qp));
}
