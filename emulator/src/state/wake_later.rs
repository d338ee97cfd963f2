//! Wake-ups that a thread puts off until it holds no lock of a link or queue pair.
//!
//! A thread that is woken often runs at once, in place of the one that wakes it. If that one holds
//! locks, the first soon waits for them, and on busy processors both wait for other programs. So
//! the background thread receives first, and wakes the threads of the program afterwards.

use std::cell::RefCell;
use std::sync::Arc;

use super::event_waiter::{AwaitedEvents, HasEvents};
use super::service_queue::ServiceQueue;
use crate::sync::modelled::per_thread;

/// A wake-up that is due.
enum Later {
    /// Of the threads that wait for these events.
    Events(Arc<dyn AwaitedEvents>),
    /// Of the pollers of the CQ with this key.
    Pollers(Arc<ServiceQueue>, usize),
}

per_thread! {
    /// The wake-ups that the thread has put off. `None` if it wakes at once.
    static LATER: RefCell<Option<Vec<Later>>> = RefCell::new(None);
}

/// Returns true if the thread puts off wake-ups.
fn is_putting_off() -> bool {
    // A thread that is about to end has no list any more, and wakes at once.
    LATER
        .try_with(|later| later.borrow().is_some())
        .unwrap_or(false)
}

fn put_off(wake_up: Later) {
    LATER.with(|later| {
        if let Some(later) = &mut *later.borrow_mut()
            && !later.last().is_some_and(|last| last.includes(&wake_up))
        {
            later.push(wake_up);
        }
    });
}

impl Later {
    /// Returns true if `next` wakes the same threads.
    fn includes(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Pollers(_, own), Self::Pollers(_, next)) => own == next,
            _ => false,
        }
    }

    fn wake(self) {
        match self {
            Self::Events(events) => events.announce(),
            Self::Pollers(service_queue, cq) => service_queue.sleepers().wake_pollers_of(cq),
        }
    }
}

/// Wakes all when it is dropped, also by a panic.
struct AtTheEnd;

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        // From here on the thread wakes at once.
        let put_off = LATER.with(RefCell::take);
        put_off.into_iter().flatten().for_each(Later::wake);
    }
}

/// Calls `receive`, which takes locks and gives them back. Events and completions wake threads
/// afterwards.
pub(crate) fn waking_later<R>(receive: impl FnOnce() -> R) -> R {
    let begins = LATER.try_with(|later| {
        let mut later = later.borrow_mut();
        let begins = later.is_none();
        later.get_or_insert_default();
        begins
    });
    if !begins.unwrap_or(false) {
        // The outer call wakes them.
        return receive();
    }
    let _wakes = AtTheEnd;
    receive()
}

/// Adds an event to the queue of `owner`, and wakes the threads that wait for it.
pub(crate) fn push_event<T: HasEvents + 'static>(owner: &Arc<T>, event: T::Event) {
    if !is_putting_off() {
        owner.events().push(event);
    } else if owner.events().push_unannounced(event) {
        put_off(Later::Events(Arc::<T>::clone(owner)));
    }
}

/// Wakes the pollers of the CQ with this key.
#[inline]
pub(crate) fn wake_pollers(service_queue: &Arc<ServiceQueue>, cq: usize) {
    if !service_queue.sleepers().has_unwoken() {
        return;
    }
    if is_putting_off() {
        put_off(Later::Pollers(Arc::clone(service_queue), cq));
    } else {
        service_queue.sleepers().wake_pollers_of(cq);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::state::event_queue::loom_tests::assert_announced;
    use crate::state::{EventQueue, event_waiter::HasEvents};

    struct Owner(EventQueue<u32>);

    impl HasEvents for Owner {
        type Event = u32;

        fn events(&self) -> &EventQueue<u32> {
            &self.0
        }
    }

    /// In every interleaving, an event whose wake-up is put off is taken, or announced when the
    /// locks are free, whatever other threads add and take.
    //= CQ-14 type=test
    #[test]
    fn loom_an_event_that_wakes_later_does_wake() {
        loom::model(|| {
            let owner = Arc::new(Owner(EventQueue::new().expect("a queue")));
            let background = {
                let owner = Arc::clone(&owner);
                thread::spawn(move || waking_later(|| push_event(&owner, 1)))
            };
            let receiver = {
                let owner = Arc::clone(&owner);
                thread::spawn(move || {
                    owner.0.reserving(|| push_event(&owner, 2));
                    owner.0.try_pop(|_| ())
                })
            };
            let here = owner.0.try_pop(|_| ());
            background.join().expect("a thread");
            let there = receiver.join().expect("a thread");
            assert_announced(&owner.0);
            let taken = usize::from(here.is_some()) + usize::from(there.is_some());
            assert_eq!(owner.0.len() + taken, 2, "each event once");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::RawFd;
    use std::panic;
    use std::time::Duration;

    use super::*;
    use crate::state::EventQueue;
    use crate::sys::{self, PollSet};

    struct Owner(EventQueue<u32>);

    impl HasEvents for Owner {
        type Event = u32;

        fn events(&self) -> &EventQueue<u32> {
            &self.0
        }
    }

    fn owner() -> Arc<Owner> {
        Arc::new(Owner(EventQueue::new().expect("a queue")))
    }

    fn is_readable(fd: RawFd) -> bool {
        let mut set = PollSet::default();
        set.add(fd);
        set.wait_uncancelled(Some(Duration::ZERO)).expect("polled");
        set.is_ready(0)
    }

    #[test]
    fn an_event_wakes_when_the_locks_are_free() {
        let owner = owner();
        push_event(&owner, 1);
        assert!(is_readable(owner.0.raw_fd()), "at once");
        assert_eq!(owner.0.try_pop(|_| ()), Some(1));
        waking_later(|| {
            waking_later(|| push_event(&owner, 2));
            assert!(!is_readable(owner.0.raw_fd()));
        });
        assert!(is_readable(owner.0.raw_fd()));
        assert_eq!(owner.0.try_pop(|_| ()), Some(2));
        push_event(&owner, 3);
        assert!(is_readable(owner.0.raw_fd()), "at once again");
    }

    #[test]
    fn an_event_that_was_taken_meanwhile_wakes_nothing() {
        let owner = owner();
        waking_later(|| {
            push_event(&owner, 1);
            assert_eq!(owner.0.try_pop(|_| ()), Some(1));
        });
        assert!(!is_readable(owner.0.raw_fd()));
    }

    #[test]
    fn pollers_wake_when_the_locks_are_free() {
        let service_queue = ServiceQueue::new(Arc::new(sys::eventfd().expect("a descriptor")));
        let service_queue = Arc::new(service_queue);
        let sleepers = service_queue.sleepers();
        let sleeper = sleepers.begin_poll(7, false).expect("a descriptor");
        waking_later(|| {
            wake_pollers(&service_queue, 7);
            assert!(!is_readable(sleeper.wake_fd()));
        });
        assert!(is_readable(sleeper.wake_fd()));
        assert!(sleepers.end(sleeper));
    }

    #[test]
    fn a_panic_wakes_as_well() {
        let owner = owner();
        let caught = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            waking_later(|| {
                push_event(&owner, 1);
                panic!("expected by this test");
            })
        }));
        assert!(caught.is_err() && is_readable(owner.0.raw_fd()));
    }

    /// A thread that ends may flush queue pairs in its destructors, after its list is gone.
    #[test]
    fn a_thread_that_ends_wakes_at_once() {
        struct AtExit(Arc<Owner>);

        impl Drop for AtExit {
            fn drop(&mut self) {
                waking_later(|| push_event(&self.0, 1));
            }
        }

        thread_local! {
            static AT_EXIT: RefCell<Option<AtExit>> = const { RefCell::new(None) };
        }

        let owner = owner();
        let at_exit = AtExit(Arc::clone(&owner));
        std::thread::spawn(move || {
            AT_EXIT.set(Some(at_exit));
            // The list is used after that, and dropped before it.
            waking_later(|| ());
        })
        .join()
        .expect("a thread that ends well");
        assert!(is_readable(owner.0.raw_fd()));
    }
}
