//! Operations and completions as futures, in virtual time.
#![expect(clippy::unwrap_used, reason = "in a test")]
#![expect(clippy::mem_forget, reason = "a forgotten future is a case")]

mod common;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::errno;
use rocade_verbs::{
    AccessFlags, BlockOnError, Completion, Config, Host, MemoryRegion, OperationError, SendRequest,
    TimedOut, WaitError, WcStatus, simulated_pair,
};

const MINUTE: Duration = Duration::from_secs(60);
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

fn region(host: &Host, len: usize) -> Arc<MemoryRegion> {
    Arc::new(host.register(len, ALL).unwrap())
}

/// Counts its wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn new() -> (Arc<Self>, Waker) {
        let count = Arc::<Self>::default();
        let waker = Waker::from(Arc::clone(&count));
        (count, waker)
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn each_operation_resolves_to_its_completion() {
    let (a, b) = simulated_pair(1).unwrap();
    let (here, there) = (region(&a, 64), region(&b, 64));
    let simulation = a.simulation().clone();
    simulation
        .block_on(async {
            here.write(0, b"written").unwrap();
            let received = b.qp.recv(there.slice(32..).unwrap());
            let part = here.slice(..7).unwrap();
            let written = a.qp.write(&part, there.remote()).await.unwrap();
            assert_eq!(there.to_vec(..7).unwrap(), b"written");
            let sent =
                a.qp.send([part.slice(..3).unwrap(), part.slice(3..).unwrap()])
                    .await;
            assert!(sent.unwrap().wr_id != written.wr_id);
            assert_eq!(received.await.unwrap().byte_len, 7);
            assert_eq!(there.to_vec(32..39).unwrap(), b"written");
            a.qp.read(here.slice(8..12).unwrap(), there.remote().at(32))
                .await
                .unwrap();
            assert_eq!(here.to_vec(8..12).unwrap(), b"writ");
            there.store_u64(0, 40).unwrap();
            let old = here.slice(16..24).unwrap();
            a.qp.fetch_add(&old, there.remote(), 2).await.unwrap();
            assert_eq!(
                (here.load_u64(16).unwrap(), there.load_u64(0).unwrap()),
                (40, 42)
            );
            a.qp.compare_swap(&old, there.remote(), 42, 7)
                .await
                .unwrap();
            assert_eq!(
                (here.load_u64(16).unwrap(), there.load_u64(0).unwrap()),
                (42, 7)
            );
            a.qp.write_inline(b"inline", there.remote()).await.unwrap();
            assert_eq!(there.to_vec(..6).unwrap(), b"inline");
            let tagged = b.qp.recv(&there);
            a.qp.submit(&SendRequest::send_inline(b"").imm(*b"tag!"))
                .await
                .unwrap();
            assert_eq!(tagged.await.unwrap().immediate, Some(*b"tag!"));
        })
        .unwrap();
}

/// Completions of posted requests go to those who poll, in their order, and never to a future.
#[test]
fn futures_and_posted_requests_share_a_queue() {
    let (a, b) = simulated_pair(2).unwrap();
    let (here, there) = (region(&a, 8), region(&b, 8));
    let read = a.qp.read(&here, there.remote());
    let other = a.qp.read(&here, there.remote());
    for id in 1..=3 {
        a.qp.post_send(&SendRequest::nop().wr_id(id)).unwrap();
    }
    // The future takes the completions of all.
    let simulation = a.simulation();
    simulation.block_on(simulation.sleep(MINUTE)).unwrap();
    simulation.block_on(read).unwrap().unwrap();
    assert_eq!(a.cq.poll().unwrap().wr_id, 1);
    assert_eq!(a.cq.wait(MINUTE).unwrap().wr_id, 2);
    assert_eq!(simulation.block_on(a.cq.next()).unwrap().unwrap().wr_id, 3);
    assert_eq!(a.cq.wait(MINUTE), Err(WaitError::TimedOut));
    simulation.block_on(other).unwrap().unwrap();
    // A program cannot take the `wr_id` of a future.
    let own = a.qp.read(&here, there.remote());
    let stolen = own.wr_id().unwrap();
    assert_eq!(errno(a.qp.post_send(&SendRequest::nop().wr_id(stolen))), 22);
    assert_eq!(errno(b.qp.post_recv(stolen, &[])), 22);
    simulation.block_on(own).unwrap().unwrap();
}

#[test]
fn a_failed_operation_resolves_to_its_completion() {
    let (a, b) = simulated_pair(3).unwrap();
    let (here, there) = (region(&a, 8), region(&b, 8));
    let failed = a.qp.read(&here, there.remote().at(64));
    let flushed = a.qp.read(&here, there.remote());
    let simulation = a.simulation();
    let Err(OperationError::Completion(completion)) = simulation.block_on(failed).unwrap() else {
        panic!("the address is wrong");
    };
    let expected = (WcStatus::RemoteAccessError, a.qp.qp_num());
    assert_eq!((completion.status, completion.qp_num), expected);
    let flushed = simulation.block_on(flushed).unwrap();
    let Err(OperationError::Completion(Completion { status, .. })) = flushed else {
        panic!("{flushed:?}");
    };
    assert_eq!(status, WcStatus::Flushed);
    // What is not posted resolves, too.
    let long = vec![0; 1 << 16];
    assert_eq!(
        errno(simulation.block_on(a.qp.send_inline(&long)).unwrap()),
        22
    );
}

/// A dropped or forgotten future keeps its memory until the completion.
#[test]
fn memory_outlives_a_dropped_future() {
    for forgets in [false, true] {
        let (a, b) = simulated_pair(4).unwrap();
        let (here, there) = (region(&a, 8), region(&b, 8));
        there.write(0, b"the data").unwrap();
        let watch = here.slice(..).unwrap();
        let memory = Arc::downgrade(&here);
        let read = a.qp.read(here, there.remote());
        drop(watch);
        if forgets {
            std::mem::forget(read);
        } else {
            drop(read);
        }
        assert!(memory.upgrade().is_some());
        // The next operation gets its own completion, and the QP has not failed.
        let next = region(&a, 8);
        let simulation = a.simulation();
        let late = memory.upgrade().unwrap();
        simulation
            .block_on(a.qp.read(&next, there.remote()))
            .unwrap()
            .unwrap();
        assert_eq!(late.to_vec(..).unwrap(), b"the data");
        drop(late);
        assert!(memory.upgrade().is_none());
        assert_eq!(a.cq.poll(), None);
    }
}

/// Cancelled receives still take their messages, in order.
#[test]
fn a_cancelled_receive_takes_its_message() {
    let (a, b) = simulated_pair(5).unwrap();
    let inbox = region(&b, 16);
    let simulation = a.simulation();
    let mut first = b.qp.recv(inbox.slice(..8).unwrap());
    assert!(poll(&mut first, Waker::noop()).is_pending());
    drop(first);
    let second = b.qp.recv(inbox.slice(8..).unwrap());
    let sent = [a.qp.send_inline(b"one"), a.qp.send_inline(b"second")];
    let completion = simulation.block_on(second).unwrap().unwrap();
    assert_eq!(completion.byte_len, 6);
    assert_eq!(inbox.to_vec(8..14).unwrap(), b"second");
    assert_eq!(inbox.to_vec(..3).unwrap(), b"one");
    for sent in sent {
        simulation.block_on(sent).unwrap().unwrap();
    }
}

#[test]
fn futures_end_with_their_queue_pair_or_queue() {
    let (a, b) = simulated_pair(6).unwrap();
    let inbox = region(&b, 8);
    let weak = Arc::downgrade(&inbox);
    let simulation = a.simulation().clone();
    let Host { qp, cq, .. } = b;
    let (count, waker) = Count::new();
    let mut waits = qp.recv(inbox);
    assert!(poll(&mut waits, &waker).is_pending());
    // Polls outside of a run wake, so that the next poll moves the time on.
    let before = count.get();
    drop(qp);
    assert_eq!(count.get(), before + 1);
    assert_eq!(
        simulation.block_on(waits).unwrap(),
        Err(OperationError::Dropped)
    );
    assert!(weak.upgrade().is_none());
    drop(cq);

    let Host { qp, cq, .. } = a;
    let (count, waker) = Count::new();
    let mut waits = qp.send_inline(b"nobody receives");
    assert!(poll(&mut waits, &waker).is_pending());
    let before = count.get();
    drop(cq);
    assert_eq!(count.get(), before + 1);
    assert_eq!(
        poll(&mut waits, &waker),
        Poll::Ready(Err(OperationError::Dropped))
    );
    let mut late = qp.send_inline(b"");
    assert_eq!(
        poll(&mut late, &waker),
        Poll::Ready(Err(OperationError::Dropped))
    );
    // A future that was ready may be polled again.
    assert_eq!(
        poll(&mut late, &waker),
        Poll::Ready(Err(OperationError::Dropped))
    );
}

/// The queue pair and the queue may end while a task waits for both.
#[test]
fn nothing_hangs_when_all_tasks_wait() {
    let (_a, b) = simulated_pair(7).unwrap();
    let inbox = region(&b, 8);
    let simulation = b.simulation();
    assert_eq!(
        simulation.block_on(b.qp.recv(&inbox)),
        Err(BlockOnError::Stalled)
    );
    assert_eq!(simulation.block_on(b.cq.next()), Err(BlockOnError::Stalled));
    let limited = simulation.timeout(MINUTE, b.cq.next());
    assert_eq!(simulation.block_on(limited).unwrap(), Err(TimedOut));
    let nested = simulation.block_on(async { simulation.block_on(async {}) });
    assert!(matches!(nested, Ok(Err(BlockOnError::Running))));
}

/// One completion wakes the task that waits for it, and no other.
#[test]
fn a_completion_wakes_its_own_task() {
    let (a, b) = simulated_pair(8).unwrap();
    let inbox = region(&b, 64);
    let waits: Vec<_> = (0..8)
        .map(|n| b.qp.recv(inbox.slice(n * 8..n * 8 + 8).unwrap()))
        .collect();
    let mut waits: Vec<_> = waits.into_iter().map(|wait| (wait, Count::new())).collect();
    let simulation = a.simulation();
    // All wait within a run, so that no poll moves the time.
    simulation
        .block_on(async {
            for (wait, (_, waker)) in &mut waits {
                assert!(poll(wait, waker).is_pending());
                assert!(poll(wait, waker).is_pending());
            }
            for n in 0..8 {
                a.qp.send_inline(b"x").await.unwrap();
                simulation.sleep(Duration::from_millis(1)).await;
                let woken: Vec<_> = waits.iter().map(|(_, (count, _))| count.get()).collect();
                let expected: Vec<_> = (0..8).map(|other| usize::from(other <= n)).collect();
                assert_eq!(woken, expected);
            }
            for (wait, (_, waker)) in &mut waits {
                assert!(matches!(poll(wait, waker), Poll::Ready(Ok(_))));
            }
        })
        .unwrap();
}

#[test]
fn the_last_waker_counts() {
    let (a, b) = simulated_pair(9).unwrap();
    let inbox = region(&b, 8);
    let simulation = a.simulation();
    let mut wait = b.qp.recv(&inbox);
    let ((old, old_waker), (new, new_waker)) = (Count::new(), Count::new());
    simulation
        .block_on(async {
            assert!(poll(&mut wait, &old_waker).is_pending());
            assert!(poll(&mut wait, &new_waker).is_pending());
            a.qp.send_inline(b"x").await.unwrap();
            simulation.sleep(Duration::from_millis(1)).await;
        })
        .unwrap();
    assert_eq!((old.get(), new.get()), (0, 1));
    assert!(matches!(poll(&mut wait, &new_waker), Poll::Ready(Ok(_))));
}

/// A task that was woken and dropped passes its completion on.
#[test]
fn a_dropped_wait_loses_no_completion() {
    let (a, _b) = simulated_pair(10).unwrap();
    let simulation = a.simulation();
    simulation
        .block_on(async {
            let ((one, one_waker), (two, two_waker)) = (Count::new(), Count::new());
            let mut first = Box::pin(a.cq.next());
            let mut second = Box::pin(a.cq.next());
            assert!(poll(&mut first, &one_waker).is_pending());
            assert!(poll(&mut second, &two_waker).is_pending());
            a.qp.post_send(&SendRequest::nop().wr_id(6)).unwrap();
            simulation.sleep(Duration::from_millis(1)).await;
            assert_eq!((one.get(), two.get()), (1, 0));
            drop(first);
            assert_eq!(two.get(), 1);
            let Poll::Ready(Ok(completion)) = poll(&mut second, &two_waker) else {
                panic!("the completion is lost");
            };
            assert_eq!(completion.wr_id, 6);
        })
        .unwrap();
}

/// Any executor works: without a run of the simulation, polls move the time.
#[test]
fn other_executors_drive_a_simulation() {
    let (a, b) = simulated_pair(11).unwrap();
    let inbox = region(&b, 8);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (received, sent) = tokio::join!(b.qp.recv(&inbox), a.qp.send_inline(b"tokio"));
        assert_eq!(received.unwrap().byte_len, 5);
        sent.unwrap();
    });
}

/// Runs tasks on several hosts with faults. Returns what happened, with the times.
fn run(seed: u64) -> Vec<(Duration, usize, u8)> {
    let rules = "drop p=5%; dup p=2%; delay by=70us p=5%";
    let config = Config::simulated(seed).with_faults(rules).unwrap();
    let (a, b) = config.pair().unwrap();
    let simulation = a.simulation().clone();
    let memory = region(&b, 64);
    let (a, memory) = (Arc::new(a), memory);
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let (a, own, log) = (Arc::clone(&a), simulation.clone(), Arc::clone(&log));
            let (here, there) = (region(&a, 8), memory.remote().at(task as u64 * 8));
            simulation.spawn(async move {
                for round in 0..10 {
                    a.qp.write(&here, there).await.unwrap();
                    a.qp.read(&here, there).await.unwrap();
                    log.lock().unwrap().push((own.now(), task, round));
                }
            })
        })
        .collect();
    simulation
        .block_on(async {
            for task in tasks {
                task.await;
            }
        })
        .unwrap();
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 40);
    log.clone()
}

#[test]
fn a_seed_repeats_asynchronous_programs() {
    let begin = Instant::now();
    for seed in [1, 2, 3] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1), run(2));
    assert!(begin.elapsed() < MINUTE, "{:?}", begin.elapsed());
}

/// A stream of completions, and batches.
#[test]
fn completions_come_as_stream_and_in_batches() {
    use futures_core::Stream as _;
    let (a, _b) = simulated_pair(12).unwrap();
    for id in 0..9 {
        a.qp.post_send(&SendRequest::nop().wr_id(id)).unwrap();
    }
    let mut completions = pin!(a.cq.completions());
    let first = std::future::poll_fn(|cx| completions.as_mut().poll_next(cx));
    let first = a.simulation().block_on(first).unwrap().unwrap().unwrap();
    assert_eq!(first.wr_id, 0);
    let mut some = Vec::new();
    assert_eq!(a.cq.poll_into(&mut some, 3), 3);
    some.extend(a.cq.drain());
    let ids: Vec<_> = some.iter().map(|completion| completion.wr_id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(a.cq.poll_into(&mut some, 3), 0);
}

/// Completions before a failed one are not lost.
#[test]
fn wait_for_keeps_what_it_met() {
    let (a, b) = simulated_pair(13).unwrap();
    let there = region(&b, 8);
    a.qp.post_send(&SendRequest::nop().wr_id(1)).unwrap();
    a.qp.post_send(&SendRequest::nop().wr_id(2)).unwrap();
    assert_eq!(a.cq.wait_for(3, MINUTE), Err(WaitError::TimedOut));
    let beyond = there.remote().at(8);
    a.qp.post_send(&SendRequest::write_inline(b"beyond", beyond).wr_id(3))
        .unwrap();
    let Err(WaitError::Completion(failed)) = a.cq.wait_for(3, MINUTE) else {
        panic!("the address is wrong");
    };
    assert_eq!((failed.wr_id, failed.qp_num), (3, a.qp.qp_num()));
    let kept = a.cq.wait_for(2, MINUTE).unwrap();
    assert_eq!((kept[0].wr_id, kept[1].wr_id), (1, 2));
}

/// Operations are limited to the entries of the queue, so that no completion can be lost.
#[test]
fn operations_do_not_overrun_their_queue() {
    let (a, b) = simulated_pair(14).unwrap();
    a.cq.resize(2).unwrap();
    let (here, there) = (region(&a, 8), region(&b, 8));
    let reads: Vec<_> = (0..3).map(|_| a.qp.read(&here, there.remote())).collect();
    let outcomes = reads
        .into_iter()
        .map(|read| errno(a.simulation().block_on(read).unwrap()));
    assert_eq!(outcomes.collect::<Vec<_>>(), [0, 0, 12]);
}

/// Futures may be waited for on any thread.
#[test]
fn operations_move_between_threads() {
    let (a, b) = simulated_pair(15).unwrap();
    let (here, there) = (region(&a, 8), region(&b, 8));
    let mut read = a.qp.read(&here, there.remote());
    let simulation = a.simulation().clone();
    thread::spawn(move || {
        simulation.block_on(&mut read).unwrap().unwrap();
    })
    .join()
    .unwrap();
}
