//! Connections by IP address and port, blocking and with futures, between two NICs in one process.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, ConnectError, Connection, Context, DeviceList,
    EventError, Listener, MemoryRegion, PeerOptions, ProtectionDomain, QpState, RejReason, Route,
    SendRequest, UnconnectedQueuePair, WcStatus,
};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(30);

fn devices(a: &str, b: &str) -> DeviceList {
    let specs = [format!("a={a}"), format!("b={b}")];
    DeviceList::new(Config::from_specs(&specs).unwrap()).unwrap()
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// The objects that a side needs beside the connection.
struct Side {
    _pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

/// Creates a side and its queue pair, with a posted receive.
fn side(context: &Context) -> (Side, UnconnectedQueuePair) {
    let pd = context.protection_domain().unwrap();
    let cq = context.completion_queue(16).unwrap();
    let memory = pd.register(256, AccessFlags::LOCAL_WRITE).unwrap();
    let qp = pd.queue_pair(&cq).build().unwrap();
    qp.post_recv(9, &[memory.sge(..).unwrap()]).unwrap();
    let side = Side {
        _pd: pd,
        cq,
        memory,
    };
    (side, qp)
}

fn talk(from: (&Connection, &Side), to: &Side, text: &[u8]) {
    from.0.post_send(&SendRequest::send_inline(text)).unwrap();
    let received = to.cq.wait(LONG).unwrap();
    assert_eq!(
        (received.wr_id, received.byte_len as usize),
        (9, text.len())
    );
    assert_eq!(to.memory.to_vec(..text.len()).unwrap(), text);
    from.1.cq.wait(LONG).unwrap();
}

#[test]
fn a_connection_is_made_used_and_ended() {
    let list = devices("127.0.40.1", "127.0.40.2");
    let listener = Listener::bind(&list, at("127.0.40.2", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    assert_ne!(address.port(), 0);
    let route = Route::from(&list, at("127.0.40.1", 0), address).unwrap();
    assert_eq!(route.context().device().name, "a");
    let (a, a_qp) = side(route.context());
    let client = thread::spawn(move || {
        let connection = route.connect(a_qp, &PeerOptions::with_data(*b"ask"), LONG);
        (connection.unwrap(), a)
    });
    let request = listener.wait(LONG).unwrap();
    assert_eq!(request.private_data().len(), 56);
    assert_eq!(&request.private_data()[..4], b"ask\0");
    assert_eq!(request.context().device().name, "b");
    let from = request.peer_addr().unwrap();
    let (b, b_qp) = side(request.context());
    let options = PeerOptions::with_data(*b"answer");
    let passive = request.accept(b_qp, &options, LONG).unwrap();
    let (active, a) = client.join().unwrap();
    assert_eq!(active.private_data().len(), 196);
    assert_eq!(&active.private_data()[..7], b"answer\0");
    assert_eq!(active.local_addr().unwrap(), from);
    assert_eq!(active.peer_addr().unwrap(), address);
    assert_eq!(active.peer().qp_num, passive.qp_num());
    assert_eq!(passive.peer().qp_num, active.qp_num());

    talk((&active, &a), &b, b"one way");
    talk((&passive, &b), &a, b"and back");
    // A receive without a message is flushed.
    passive.post_recv(10, &[b.memory.sge(..).unwrap()]).unwrap();
    assert!(matches!(
        passive.wait_disconnect(SHORT),
        Err(EventError::TimedOut)
    ));
    let ends = thread::spawn(move || active.disconnect(LONG));
    passive.wait_disconnect(LONG).unwrap();
    ends.join().unwrap().unwrap();
    assert_eq!(passive.state(), QpState::Err);
    let flushed = b.cq.poll().unwrap();
    assert_eq!((flushed.wr_id, flushed.status), (10, WcStatus::Flushed));
}

#[test]
fn who_is_dropped_says_so() {
    let list = devices("127.0.41.1", "127.0.41.2");
    let listener = Listener::bind(&list, at("127.0.41.2", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let ask = || {
        let route = Route::to(&list, address).unwrap();
        let (side, qp) = side(route.context());
        let ask = thread::spawn(move || route.connect(qp, &PeerOptions::default(), LONG));
        (side, ask)
    };
    let refused = |outcome: Result<Connection, ConnectError>| match outcome {
        Err(ConnectError::Rejected {
            reason: RejReason::Consumer,
            private_data,
        }) => private_data,
        other => panic!("{other:?}"),
    };
    // Dropping a request rejects it.
    let (_side, asks) = ask();
    drop(listener.wait(LONG).unwrap());
    refused(asks.join().unwrap());
    let (_side, asks) = ask();
    let request = listener.wait(LONG).unwrap();
    assert!(request.reject(&[1; 149]).is_err(), "too long");
    refused(asks.join().unwrap());
    let (_side, asks) = ask();
    listener.wait(LONG).unwrap().reject(b"not now").unwrap();
    let said = refused(asks.join().unwrap());
    assert_eq!((said.len(), &said[..8]), (148, &b"not now\0"[..]));
    // Dropping a connection disconnects it.
    let (_a, asks) = ask();
    let request = listener.wait(LONG).unwrap();
    let (_b, qp) = side(request.context());
    let passive = request.accept(qp, &PeerOptions::default(), LONG).unwrap();
    drop(asks.join().unwrap().unwrap());
    passive.wait_disconnect(LONG).unwrap();
    // Dropping a listener closes its port.
    drop(listener);
    let (_side, asks) = ask();
    let outcome = asks.join().unwrap();
    assert!(
        matches!(
            outcome,
            Err(ConnectError::Rejected {
                reason: RejReason::InvalidServiceId,
                ..
            })
        ),
        "{outcome:?}"
    );
}

#[test]
fn mistakes_are_said() {
    let list = devices("127.0.42.1", "127.0.42.2");
    assert!(Listener::bind(&list, at("127.0.42.3", 0)).is_err());
    let listener = Listener::bind(&list, at("127.0.42.2", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    assert!(Listener::bind(&list, address).is_err(), "in use");
    assert!(matches!(listener.wait(SHORT), Err(EventError::TimedOut)));
    let (_side, other) = side(&list.open("a").unwrap());
    let to_b = || Route::from(&list, at("127.0.42.2", 0), address).unwrap();
    let outcome = to_b().connect(other, &PeerOptions::default(), LONG);
    assert!(
        matches!(outcome, Err(ConnectError::Verbs(_))),
        "another device"
    );
    let (_side, qp) = side(&list.open("b").unwrap());
    let outcome = to_b().connect(qp, &PeerOptions::with_data([0; 57]), LONG);
    assert!(matches!(outcome, Err(ConnectError::Verbs(_))), "too long");
    // Nothing replies in time.
    let (_side, qp) = side(&list.open("b").unwrap());
    let outcome = to_b().connect(qp, &PeerOptions::default(), SHORT);
    assert!(matches!(outcome, Err(ConnectError::TimedOut)));
}

/// A minimal executor.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = TaskContext::from_waker(&waker);
    let deadline = Instant::now() + LONG;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park_timeout(LONG);
        assert!(Instant::now() < deadline, "the task is not woken");
    }
}

/// Runs both futures concurrently on one thread.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut from_a, mut from_b) = (None, None);
    std::future::poll_fn(move |cx| {
        if from_a.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(cx)
        {
            from_a = Some(output);
        }
        if from_b.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(cx)
        {
            from_b = Some(output);
        }
        match (from_a.take(), from_b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (from_a, from_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

#[test]
fn futures_need_no_runtime() {
    let list = devices("127.0.43.1", "127.0.43.2");
    let listener = Listener::bind(&list, at("127.0.43.2", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = async {
        let mut connections = Vec::new();
        for round in 0..3 {
            let request = listener.request().await.unwrap();
            assert_eq!(request.private_data()[0], round);
            let (side, qp) = side(request.context());
            let connection = request.accept_async(qp, &PeerOptions::default()).await;
            connections.push((connection.unwrap(), side));
        }
        connections
    };
    let client = async {
        let mut connections = Vec::new();
        for round in 0..3 {
            let route = Route::to(&list, address).unwrap();
            let (side, qp) = side(route.context());
            let options = PeerOptions::with_data([round]);
            connections.push((route.connect_async(qp, &options).await.unwrap(), side));
        }
        connections
    };
    let (passive, active) = block_on(both(server, client));
    for ((a, a_side), (b, b_side)) in active.iter().zip(&passive) {
        talk((a, a_side), b_side, b"from a task");
        assert_eq!(b.state(), QpState::Rts);
    }
    // All connections end. The side that disconnects first alternates.
    for (round, ((a, _), (b, _))) in active.into_iter().zip(passive).enumerate() {
        let (ends, waits) = if round % 2 == 0 { (a, b) } else { (b, a) };
        let (ended, waited) = block_on(both(ends.disconnect_async(), waits.disconnect_event()));
        ended.unwrap();
        waited.unwrap();
        assert_eq!(waits.state(), QpState::Err);
    }
    // A rejection is a reply, too.
    let refuses = async { listener.request().await.unwrap().reject(b"").unwrap() };
    let asks = async {
        let route = Route::to(&list, address).unwrap();
        let (_side, qp) = side(route.context());
        route.connect_async(qp, &PeerOptions::default()).await
    };
    let ((), outcome) = block_on(both(refuses, asks));
    assert!(matches!(outcome, Err(ConnectError::Rejected { .. })));
}

/// Dropping a connection future cancels its request. The listener continues.
#[test]
fn a_future_may_be_dropped() {
    let list = devices("127.0.44.1", "127.0.44.2");
    let listener = Listener::bind(&list, at("127.0.44.2", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let route = Route::to(&list, address).unwrap();
    let (_side, qp) = side(route.context());
    {
        let options = PeerOptions::default();
        let mut asks = pin!(route.connect_async(qp, &options));
        let mut cx = TaskContext::from_waker(Waker::noop());
        assert!(asks.as_mut().poll(&mut cx).is_pending());
    }
    let route = Route::to(&list, address).unwrap();
    let (_a, qp) = side(route.context());
    let next = PeerOptions::with_data(*b"next");
    let asks = thread::spawn(move || route.connect(qp, &next, LONG));
    // The first request may have arrived already. Accepting it fails, because it was canceled.
    let request = loop {
        let request = listener.wait(LONG).unwrap();
        if request.private_data().starts_with(b"next") {
            break request;
        }
        let (_side, qp) = side(request.context());
        assert!(request.accept(qp, &PeerOptions::default(), LONG).is_err());
    };
    let (_b, qp) = side(request.context());
    request.accept(qp, &PeerOptions::default(), LONG).unwrap();
    asks.join().unwrap().unwrap();
}
