//! Operations of UD, DC and shared receive queues as futures, in virtual time.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::errno;
use rocade_verbs::{
    AccessFlags, AddressHandle, BlockOnError, CompletionQueue, Config, ConnectOptions,
    DatagramQueuePair, DeviceList, DynamicInitiator, DynamicTarget, GRH_LEN, MemoryRegion,
    Operation, OperationError, ProtectionDomain, QueuePair, SendRequest, SharedReceiveQueue,
    Simulation, TimedOut, WcStatus,
};

const MINUTE: Duration = Duration::from_secs(60);
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Both ends of a simulated network.
struct Net {
    a: ProtectionDomain,
    b: ProtectionDomain,
    a_cq: CompletionQueue,
    b_cq: CompletionQueue,
    simulation: Simulation,
}

impl Net {
    fn new(seed: u64, rules: &str) -> Self {
        let config = Config::simulated(seed).with_faults(rules).unwrap();
        let list = DeviceList::new(config).unwrap();
        let domain = |name| list.open(name).unwrap().protection_domain().unwrap();
        let (a, b) = (domain("a"), domain("b"));
        Self {
            a_cq: a.context().completion_queue(64).unwrap(),
            b_cq: b.context().completion_queue(64).unwrap(),
            simulation: list.simulation().unwrap(),
            a,
            b,
        }
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        self.simulation.block_on(future).unwrap()
    }

    /// Memory of B.
    fn inbox(&self, len: usize) -> Arc<MemoryRegion> {
        Arc::new(self.b.register(len, ALL).unwrap())
    }

    fn datagrams(&self) -> (DatagramQueuePair, DatagramQueuePair, AddressHandle) {
        let from = self.a.datagram_queue_pair(&self.a_cq, 7).unwrap();
        let to = self.b.datagram_queue_pair(&self.b_cq, 7).unwrap();
        let address = self.a.address(to.address().gid).unwrap();
        (from, to, address)
    }

    /// An initiator on A, and a target on B with its receives.
    fn dynamic(
        &self,
    ) -> (
        DynamicInitiator,
        DynamicTarget,
        SharedReceiveQueue,
        AddressHandle,
    ) {
        let receives = self.b.shared_receive_queue(16, 1).unwrap();
        let rights = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let rights = rights | AccessFlags::REMOTE_ATOMIC;
        let target = self.b.dynamic_target(&self.b_cq, &receives, rights, 5);
        let target = target.unwrap();
        let address = self.a.address(target.address().gid).unwrap();
        let initiator = self.a.dynamic_initiator(&self.a_cq).unwrap();
        (initiator, target, receives, address)
    }

    /// A connection whose end on B takes its receives from `receives` and completes in `cq`.
    fn connect(
        &self,
        receives: &SharedReceiveQueue,
        cq: &CompletionQueue,
    ) -> (QueuePair, QueuePair) {
        let from = self.a.queue_pair(&self.a_cq).build().unwrap();
        let to = self.b.queue_pair(cq).shared_receives(receives);
        let options = ConnectOptions::default();
        QueuePair::connect_pair(from, to.build().unwrap(), &options).unwrap()
    }
}

fn poll(operation: &mut Operation) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(operation).poll(&mut cx).is_ready()
}

#[test]
fn datagrams_are_sent_and_received() {
    let net = Net::new(1, "");
    let (from, to, address) = net.datagrams();
    let inbox = net.inbox(GRH_LEN + 64);
    let text = Arc::new(net.a.register_vec(*b"a datagram", ALL).unwrap());
    net.run(async {
        let received = to.recv(&inbox);
        from.send(&text, &address, &to.address()).await.unwrap();
        let message = received.await.unwrap();
        assert_eq!(message.src_qp, from.address().qp_num);
        assert!(message.has_grh);
        let end = message.byte_len as usize;
        assert_eq!(inbox.to_vec(GRH_LEN..end).unwrap(), b"a datagram");
        // The reply, with immediate data.
        let (back, peer) = net.b.address_of_sender(&message, (&inbox, 0), 7).unwrap();
        let here = Arc::new(net.a.register(GRH_LEN + 8, ALL).unwrap());
        let reply = from.recv(&here);
        let request = SendRequest::send_inline(b"back").imm(*b"tag!").unsignaled();
        to.submit(&request, &back, &peer).await.unwrap();
        assert_eq!(reply.await.unwrap().immediate, Some(*b"tag!"));
        assert_eq!(here.to_vec(GRH_LEN..GRH_LEN + 4).unwrap(), b"back");
    });
    // A request that is not posted resolves, too.
    let mut elsewhere = to.address();
    elsewhere.gid = from.address().gid;
    let refused = net.run(from.send_inline(b"", &address, &elsewhere));
    assert_eq!(errno(refused), 22);
}

/// A lost datagram completes at its sender, and its receive takes the next one.
#[test]
fn a_lost_datagram_leaves_its_receive() {
    let net = Net::new(2, "drop nth=1");
    let (from, to, address) = net.datagrams();
    let inbox = net.inbox(GRH_LEN + 64);
    net.run(async {
        let mut received = to.recv(&inbox);
        from.send_inline(b"lost", &address, &to.address())
            .await
            .unwrap();
        let nothing = net.simulation.timeout(MINUTE, &mut received).await;
        assert_eq!(nothing, Err(TimedOut));
        from.send_inline(b"second", &address, &to.address())
            .await
            .unwrap();
        assert_eq!(received.await.unwrap().byte_len as usize, GRH_LEN + 6);
        assert_eq!(inbox.to_vec(GRH_LEN..GRH_LEN + 6).unwrap(), b"second");
    });
}

/// Dropped receives of UD take their datagrams in order, and keep their memory until then.
#[test]
fn a_dropped_receive_of_ud_takes_its_datagram() {
    let net = Net::new(3, "");
    let (from, to, address) = net.datagrams();
    let (first, second) = (net.inbox(GRH_LEN + 8), net.inbox(GRH_LEN + 8));
    let watch = Arc::downgrade(&first);
    let mut dropped = to.recv(first);
    assert!(!poll(&mut dropped));
    drop(dropped);
    let received = to.recv(&second);
    assert!(watch.upgrade().is_some(), "the device may write to it");
    net.run(async {
        for text in [b"one", b"two"] {
            from.send_inline(text, &address, &to.address())
                .await
                .unwrap();
        }
        received.await.unwrap();
    });
    assert_eq!(second.to_vec(GRH_LEN..GRH_LEN + 3).unwrap(), b"two");
    assert!(watch.upgrade().is_none());
    // The end of the queue pair ends what waits, and releases its memory.
    let watch = Arc::downgrade(&second);
    let waits = to.recv(second);
    drop(to);
    assert_eq!(net.run(waits), Err(OperationError::Dropped));
    assert!(watch.upgrade().is_none());
}

#[test]
fn initiators_reach_their_targets_over_a_lossy_network() {
    let net = Net::new(4, "drop p=10%; dup p=5%");
    let (initiator, target, receives, address) = net.dynamic();
    let to = target.address();
    let there = net.inbox(4096);
    let here = Arc::new(net.a.register(4096, ALL).unwrap());
    net.run(async {
        for round in 0..20_u8 {
            here.write(0, &[round; 3000]).unwrap();
            let part = here.slice(..3000).unwrap();
            let write = initiator.write(&part, there.remote(), &address, &to);
            write.await.unwrap();
            assert_eq!(there.to_vec(..3000).unwrap(), [round; 3000]);
            let back = here.slice(..16).unwrap();
            let from = there.remote().at(100);
            initiator.read(&back, from, &address, &to).await.unwrap();
            assert_eq!(back.to_vec().unwrap(), [round; 16]);
            let old = here.slice(8..16).unwrap();
            let counter = there.remote().at(4088);
            let add = initiator.fetch_add(&old, (counter, 2), &address, &to);
            add.await.unwrap();
            let swap = (counter, u64::from(round) * 3 + 2, u64::from(round) * 3 + 3);
            let swap = initiator.compare_swap(&old, swap, &address, &to);
            swap.await.unwrap();
            assert_eq!(there.load_u64(4088).unwrap(), u64::from(round) * 3 + 3);
            let inbox = net.inbox(8);
            let received = receives.recv(&inbox);
            let text = net.a.register_vec([round; 8], ALL).unwrap();
            initiator.send(text, &address, &to).await.unwrap();
            let message = received.await.unwrap();
            assert_eq!((message.src_qp, message.byte_len), (initiator.number(), 8));
            assert_eq!(inbox.to_vec(..).unwrap(), [round; 8]);
        }
    });
    assert_eq!(net.b_cq.poll(), None, "completions go to their futures");
}

#[test]
fn operations_of_an_initiator_end_with_it() {
    let net = Net::new(5, "");
    let (initiator, target, receives, address) = net.dynamic();
    let (to, there) = (target.address(), net.inbox(8));
    let here = Arc::new(net.a.register(8, ALL).unwrap());
    let watch = Arc::downgrade(&here);
    let dropped = initiator.read(here, there.remote(), &address, &to);
    drop(dropped);
    assert!(watch.upgrade().is_some());
    // The next operation gets its own completion.
    let next = Arc::new(net.a.register(8, ALL).unwrap());
    net.run(initiator.read(&next, there.remote(), &address, &to))
        .unwrap();
    assert!(watch.upgrade().is_none());
    // One that fails has its completion, and later ones are flushed.
    let outside = initiator.read(&next, there.remote().at(64), &address, &to);
    let flushed = initiator.send_inline(b"", &address, &to);
    let status = |outcome| match outcome {
        Err(OperationError::Completion(completion)) => completion.status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(net.run(outside)), WcStatus::RemoteAccessError);
    assert_eq!(status(net.run(flushed)), WcStatus::Flushed);
    // Without a receive the peer repeats for ever, until the initiator ends.
    let second = net.a.dynamic_initiator(&net.a_cq).unwrap();
    let mut waits = second.send_inline(b"nothing receives", &address, &to);
    assert!(!poll(&mut waits));
    drop(second);
    assert_eq!(net.run(waits), Err(OperationError::Dropped));
    drop(receives);
}

/// Messages of two connections, with two completion queues, take the receives in order.
#[test]
fn a_shared_queue_serves_its_queue_pairs_in_order() {
    let net = Net::new(6, "drop p=10%; delay by=70us p=5%");
    let receives = net.b.shared_receive_queue(16, 1).unwrap();
    let other_cq = net.b.context().completion_queue(16).unwrap();
    let (first, first_end) = net.connect(&receives, &net.b_cq);
    let (second, second_end) = net.connect(&receives, &other_cq);
    let inbox = net.inbox(12 * 4096);
    let parts = (0..12).map(|n| inbox.slice(n * 4096..(n + 1) * 4096).unwrap());
    let parts: Vec<_> = parts.collect();
    let waits: Vec<_> = parts.iter().map(|part| receives.recv(part)).collect();
    net.run(async {
        for n in 0..12_u8 {
            let from = if n % 3 == 0 { &second } else { &first };
            let text = net.a.register_vec([n; 3000], ALL).unwrap();
            from.send(text).await.unwrap();
        }
        for ((n, wait), part) in (0..).zip(waits).zip(&parts) {
            let message = wait.await.unwrap();
            let end = if n % 3 == 0 { &second_end } else { &first_end };
            assert_eq!((message.qp_num, message.byte_len), (end.qp_num(), 3000));
            assert_eq!(part.slice(..3000).unwrap().to_vec().unwrap(), [n; 3000]);
        }
    });
    // Receives that the program posts itself are polled, in between those of futures.
    receives.post_recv(9, &[]).unwrap();
    let own = receives.recv(&parts[0]);
    net.run(async {
        first.send_inline(b"").await.unwrap();
        second.send_inline(b"x").await.unwrap();
        assert_eq!(own.await.unwrap().byte_len, 1);
    });
    assert_eq!(net.b_cq.poll().unwrap().wr_id, 9);
    assert_eq!((net.b_cq.poll(), other_cq.poll()), (None, None));
    let taken = receives.recv(&parts[0]);
    let stolen = taken.wr_id().unwrap();
    assert_eq!(errno(receives.post_recv(stolen, &[])), 22);
}

#[test]
fn a_dropped_receive_of_a_shared_queue_takes_its_message() {
    let net = Net::new(7, "");
    let receives = net.b.shared_receive_queue(16, 1).unwrap();
    let (from, _to) = net.connect(&receives, &net.b_cq);
    let (first, second) = (net.inbox(8), net.inbox(8));
    let watch = Arc::downgrade(&first);
    drop(receives.recv(first));
    let received = receives.recv(&second);
    assert!(watch.upgrade().is_some(), "the device may write to it");
    net.run(async {
        from.send_inline(b"one").await.unwrap();
        from.send_inline(b"second").await.unwrap();
        assert_eq!(received.await.unwrap().byte_len, 6);
    });
    assert_eq!(second.to_vec(..6).unwrap(), b"second");
    assert!(watch.upgrade().is_none());
    assert_eq!(net.b_cq.poll(), None);
}

/// A receive may be posted, and waited for, before any queue pair exists.
#[test]
fn a_receive_waits_for_the_first_queue_pair() {
    let net = Net::new(8, "");
    let receives = net.b.shared_receive_queue(2, 1).unwrap();
    let inbox = net.inbox(8);
    let mut received = receives.recv(&inbox);
    let stalled = net.simulation.block_on(&mut received);
    assert_eq!(stalled, Err(BlockOnError::Stalled));
    // The task waits already when the queue pair comes.
    let simulation = net.simulation.clone();
    let waits = simulation.spawn(received);
    net.run(async {
        net.simulation.sleep(Duration::from_millis(1)).await;
        let (from, _to) = net.connect(&receives, &net.b_cq);
        from.send_inline(b"early").await.unwrap();
        assert_eq!(waits.await.unwrap().byte_len, 5);
    });
    // The depth limits what is in flight, and a refused receive keeps no memory.
    let (_one, _two) = (receives.recv(&inbox), receives.recv(&inbox));
    let spare = net.inbox(8);
    let refused = net.run(receives.recv(&spare));
    assert_eq!(errno(refused), libc::ENOMEM);
    assert_eq!(Arc::strong_count(&spare), 1);
}

#[test]
fn receives_end_with_their_shared_queue() {
    let net = Net::new(9, "");
    let receives = net.b.shared_receive_queue(4, 1).unwrap();
    let (from, to) = net.connect(&receives, &net.b_cq);
    let (taken, left) = (net.inbox(8), net.inbox(8));
    let (first, second) = (receives.recv(&taken), receives.recv(&left));
    drop(receives);
    assert_eq!(net.run(first), Err(OperationError::Dropped));
    assert_eq!(net.run(second), Err(OperationError::Dropped));
    // The queue pair still takes its receives, whose memory stays registered until then.
    assert!(Arc::strong_count(&taken) > 1);
    net.run(from.send_inline(b"late")).unwrap();
    net.run(net.simulation.sleep(Duration::from_millis(1)));
    assert_eq!(net.b_cq.poll(), None);
    assert_eq!(taken.to_vec(..4).unwrap(), b"late");
    assert_eq!(Arc::strong_count(&taken), 1);
    assert!(Arc::strong_count(&left) > 1);
    drop(to);
    assert_eq!(Arc::strong_count(&left), 1);
}

/// A queue pair that ends in the middle of a message gives its receive back, flushed.
#[test]
fn a_receive_in_progress_ends_with_its_queue_pair() {
    let net = Net::new(10, "drop opcode=SEND_LAST");
    let receives = net.b.shared_receive_queue(4, 1).unwrap();
    let (from, to) = net.connect(&receives, &net.b_cq);
    let inbox = net.inbox(8192);
    let (begun, next) = (receives.recv(&inbox), receives.recv(&inbox));
    let text = net.a.register_vec(vec![1; 8192], ALL).unwrap();
    let sent = from.send(text);
    net.run(net.simulation.sleep(Duration::from_millis(1)));
    assert_eq!(inbox.to_vec(..1).unwrap(), [1], "the message has begun");
    drop(to);
    let Err(OperationError::Completion(flushed)) = net.run(begun) else {
        panic!("the message has not ended");
    };
    assert_eq!(flushed.status, WcStatus::Flushed);
    assert_eq!(net.b_cq.poll(), None);
    drop((from, sent));
    // The queue goes on with another queue pair.
    let (from, _to) = net.connect(&receives, &net.b_cq);
    net.run(async {
        from.send_inline(b"whole").await.unwrap();
        assert_eq!(next.await.unwrap().byte_len, 5);
    });
}

/// A target that is closed hands out what it has received.
#[test]
fn a_closed_target_loses_no_message() {
    let net = Net::new(11, "");
    let (initiator, target, receives, address) = net.dynamic();
    let (to, inbox) = (target.address(), net.inbox(8));
    let received = receives.recv(&inbox);
    net.run(initiator.send_inline(b"last", &address, &to))
        .unwrap();
    target.close().unwrap();
    assert_eq!(net.run(received).unwrap().byte_len, 4);
    assert_eq!(inbox.to_vec(..4).unwrap(), b"last");
}

#[test]
fn datagrams_and_xrc_take_shared_receives() {
    let net = Net::new(12, "");
    let receives = net.b.shared_receive_queue(4, 1).unwrap();
    let to = net.b.datagram_queue_pair_builder(&net.b_cq, 7);
    let to = to.shared_receives(&receives).build().unwrap();
    let from = net.a.datagram_queue_pair(&net.a_cq, 7).unwrap();
    let address = net.a.address(to.address().gid).unwrap();
    let inbox = net.inbox(GRH_LEN + 8);
    let received = receives.recv(&inbox);
    net.run(from.send_inline(b"shared", &address, &to.address()))
        .unwrap();
    assert_eq!(net.run(received).unwrap().byte_len as usize, GRH_LEN + 6);

    let domain = net.b.context().xrc_domain().unwrap();
    let target = domain.target(AccessFlags::empty()).unwrap();
    let initiator = net.a.queue_pair(&net.a_cq).xrc_initiator();
    let options = ConnectOptions::default();
    let pair = QueuePair::connect_pair(initiator.build().unwrap(), target, &options);
    let (initiator, _target) = pair.unwrap();
    let queue = domain
        .shared_receive_queue(&net.b, &net.b_cq, 4, 1)
        .unwrap();
    let received = queue.recv(&inbox);
    let request = SendRequest::send_inline(b"by XRC").to_queue(queue.number());
    net.run(initiator.submit(&request)).unwrap();
    assert_eq!(net.run(received).unwrap().byte_len, 6);
    assert_eq!(inbox.to_vec(..6).unwrap(), b"by XRC");
}

/// Without a run of the simulation, polls of a future move the time.
#[test]
fn other_executors_wait_for_shared_receives() {
    let net = Net::new(13, "");
    let receives = net.b.shared_receive_queue(4, 1).unwrap();
    let (from, _to) = net.connect(&receives, &net.b_cq);
    let inbox = net.inbox(8);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (received, sent) = tokio::join!(receives.recv(&inbox), from.send_inline(b"tokio"));
        assert_eq!(received.unwrap().byte_len, 5);
        sent.unwrap();
    });
    let mut waits = receives.recv(&inbox);
    assert!(matches!(
        Pin::new(&mut waits).poll(&mut Context::from_waker(Waker::noop())),
        Poll::Pending
    ));
}

/// A future of a shared receive learns that no message can come any more.
#[test]
fn a_shared_receive_ends_with_the_device() {
    let net = Net::new(14, "device-remove dev=b at=1ms");
    let receives = net.b.shared_receive_queue(4, 1).unwrap();
    let (_from, _to) = net.connect(&receives, &net.b_cq);
    let inbox = net.inbox(8);
    let ended = net.run(net.simulation.timeout(MINUTE, receives.recv(&inbox)));
    assert_eq!(errno(ended.unwrap()), libc::EIO);
}

/// Completions of a program's own requests end with their queue pair, as without futures.
#[test]
fn a_queue_pair_that_ends_leaves_no_completion() {
    let net = Net::new(15, "drop p=100%");
    let receives = net.b.shared_receive_queue(4, 1).unwrap();
    let (_from, to) = net.connect(&receives, &net.b_cq);
    let inbox = net.inbox(8);
    let _waits = receives.recv(&inbox);
    to.post_send(&SendRequest::send_inline(b"in flight"))
        .unwrap();
    drop(to);
    assert_eq!(net.b_cq.poll(), None);
}
