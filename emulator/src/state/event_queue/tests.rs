//! Events that one thread adds and takes, and what waits for them.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::sys::PollSet;

fn readable(queue: &EventQueue<u32>) -> bool {
    let mut set = PollSet::default();
    let fd = set.add(queue.raw_fd());
    let waited = set.wait(Some(Duration::ZERO));
    waited.is_ok() && set.is_ready(fd)
}

//= CQ-14 type=test
#[test]
fn the_gate_and_the_descriptor_follow_the_events() {
    let queue = EventQueue::new().unwrap();
    for event in 0..5 {
        queue.push(event);
    }
    queue.retain(|event| event % 2 == 0);
    for event in [0, 2, 4] {
        assert!(readable(&queue));
        queue.waiter().wait().unwrap();
        assert_eq!(queue.pop(|_| ()).unwrap(), Some(event));
    }
    assert!(!readable(&queue) && !queue.semaphore.close());
    queue.push(5);
    queue.retain(|_| false);
    assert!(!readable(&queue) && !queue.semaphore.close());
    // The state after several threads tried to take the same event.
    queue.semaphore.open();
    assert_eq!(queue.pop(|_| ()).unwrap(), None);
    assert!(!queue.semaphore.close());
}

/// Reserves `event` for this thread.
fn reserve(queue: &EventQueue<u32>, event: u32) {
    queue.reserving(|| queue.push(event));
}

#[test]
fn an_event_for_the_thread_that_receives_it_is_not_announced() {
    let queue = EventQueue::new().unwrap();
    reserve(&queue, 1);
    assert!(!readable(&queue) && !queue.semaphore.close());
    assert_eq!(queue.pop(|_| ()).unwrap(), Some(1));
    queue.push(2);
    assert!(readable(&queue), "that is over");
    assert_eq!(queue.pop(|_| ()).unwrap(), Some(2));
    assert!(!readable(&queue) && !queue.semaphore.close());
}

#[test]
fn a_second_event_announces_the_first() {
    let queue = EventQueue::new().unwrap();
    queue.reserving(|| {
        queue.push(1);
        queue.push(2);
    });
    for event in [1, 2] {
        assert!(readable(&queue));
        queue.waiter().wait().unwrap();
        assert_eq!(queue.pop(|_| ()).unwrap(), Some(event));
    }
    assert!(!readable(&queue) && !queue.semaphore.close());
}

#[test]
fn an_event_that_the_thread_does_not_take_is_announced() {
    let queue = EventQueue::new().unwrap();
    reserve(&queue, 1);
    queue.announce_reserved();
    assert!(readable(&queue) && queue.semaphore.close());
    queue.announce_reserved();
    assert!(!queue.semaphore.close(), "once");
    assert_eq!(queue.pop(|_| ()).unwrap(), Some(1));
    assert!(!readable(&queue));
    reserve(&queue, 2);
    queue.retain(|_| false);
    queue.announce_reserved();
    assert!(!readable(&queue), "it was dropped");
}

/// Events of one queue that come while the thread receives for another are announced.
#[test]
fn a_thread_takes_events_of_one_queue_only() {
    let (own, other) = (EventQueue::new().unwrap(), EventQueue::new().unwrap());
    own.reserving(|| {
        other.push(1);
        assert!(readable(&other));
        other.reserving(|| other.push(2));
        own.push(3);
    });
    assert!(!readable(&own));
    assert_eq!(own.pop(|_| ()).unwrap(), Some(3));
}

/// A queue that has ended announces all, because those who wait take what is left.
#[test]
fn a_queue_that_has_ended_reserves_nothing() {
    let queue = EventQueue::new().unwrap();
    queue.end();
    reserve(&queue, 1);
    assert!(readable(&queue) && queue.semaphore.close());
    assert_eq!(queue.pop(|_| ()).unwrap(), Some(1));
    assert!(readable(&queue), "it stays so");
}

/// A thread that panics while it receives leaves its event to others.
#[test]
fn a_thread_that_panics_announces_its_event() {
    let queue = EventQueue::new().unwrap();
    let panicked = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            queue.reserving(|| {
                queue.push(1);
                panic!("expected by this test");
            });
        });
        receiver.join().is_err()
    });
    assert!(panicked && readable(&queue) && queue.semaphore.close());
}

#[test]
fn an_event_of_another_thread_is_announced() {
    let queue = EventQueue::new().unwrap();
    queue.reserving(|| {
        thread::scope(|scope| scope.spawn(|| queue.push(1)).join().unwrap());
        assert!(readable(&queue));
    });
    assert!(queue.semaphore.close());
}

#[test]
fn a_program_that_has_waited_in_a_verb_is_expected_to_for_a_while() {
    let queue = EventQueue::<u32>::new().unwrap();
    assert!(!queue.expects_wait(|| 1), "it has never waited");
    queue.note_wait(100);
    assert!(queue.expects_wait(|| 100));
    assert!(queue.expects_wait(|| 99 + EXPECTED_WAIT_NS));
    assert!(!queue.expects_wait(|| 100 + EXPECTED_WAIT_NS));
}

#[test]
fn a_thread_that_waits_is_let_through() {
    let queue = EventQueue::new().unwrap();
    let (events, seen) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..3 {
            let events = events.clone();
            let queue = &queue;
            scope.spawn(move || {
                loop {
                    match queue.pop(|_| ()).unwrap() {
                        Some(0) => break,
                        Some(event) => events.send(event).unwrap(),
                        None => queue.waiter().wait().unwrap(),
                    }
                }
            });
        }
        for event in 1..=1_000 {
            queue.push(event);
        }
        let mut all: Vec<u32> = seen.iter().take(1_000).collect();
        all.sort_unstable();
        assert_eq!(all, (1..=1_000).collect::<Vec<_>>());
        for _ in 0..3 {
            queue.push(0);
        }
    });
    assert!(!readable(&queue));
}
