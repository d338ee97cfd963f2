//! Models of threads that add, take and drop events of one queue.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::*;
use crate::sys::PollSet;

/// The descriptor and the semaphore tell of the events that are left, and of no others. So a thread
/// that has found no event and sleeps now is woken, and one that waits for the descriptor finds an
/// event.
pub(in crate::state) fn assert_announced<T>(queue: &EventQueue<T>) {
    let mut set = PollSet::default();
    let fd = set.add(queue.raw_fd());
    set.wait(Some(Duration::ZERO)).expect("polled");
    let is_left = queue.len() > 0;
    assert_eq!(set.is_ready(fd), is_left, "readable");
    // A thread may wake once for nothing.
    assert!(!is_left || queue.semaphore.close(), "the semaphore");
}

/// In every interleaving with other events and takers, an event that its receiver does not take is
/// announced.
//= CQ-14 type=test
#[test]
fn loom_a_reserved_event_is_taken_or_announced() {
    for takes in [true, false] {
        loom::model(move || {
            let queue = Arc::new(EventQueue::new().expect("a queue"));
            let receiver = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    queue.reserving(|| queue.push(1));
                    if takes {
                        queue.try_pop(|_| ())
                    } else {
                        queue.announce_reserved();
                        None
                    }
                })
            };
            let other = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.push(2))
            };
            let here = queue.try_pop(|_| ());
            let there = receiver.join().expect("a receiver");
            other.join().expect("a thread");
            assert_announced(&queue);
            let taken = usize::from(here.is_some()) + usize::from(there.is_some());
            assert_eq!(queue.len() + taken, 2, "each event once");
        });
    }
}

/// A CQ is destroyed, and its events dropped, while it or another CQ of the channel gets an event.
//= CQ-14 type=test
#[test]
fn loom_a_reserved_event_that_is_dropped_is_not_announced() {
    for (second, kept) in [(None, 0), (Some(2), 0), (Some(2), 2)] {
        loom::model(move || {
            let queue = Arc::new(EventQueue::new().expect("a queue"));
            let receiver = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    queue.reserving(|| queue.push(1));
                    queue.announce_reserved();
                })
            };
            let other = second.map(|event| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.push(event))
            });
            queue.retain(|event| *event == kept);
            receiver.join().expect("a receiver");
            if let Some(other) = other {
                other.join().expect("a thread");
            }
            assert_announced(&queue);
        });
    }
}
