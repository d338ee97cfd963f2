//! Loom tests of queues that several threads use: SRQs whose WQEs the CQ frees, XRC SRQs destroyed
//! during a message, and moderated events.

use loom::thread;
use rocade_transport::{
    Completion, PdTag, PostError, ReceiveDomain, SharedReceives, Srqn, Time, WcStatus,
};
use std::sync::Arc;

use super::cq_ring::test_completion;
use super::*;
use crate::config::{EngineConfig, Likeness};
use crate::hca::Hca;
use crate::steering::ProcessSlot;
use crate::sys;

const PD: PdTag = PdTag(3);
const PERIOD_NS: u64 = 1_000;

struct Device {
    events: Arc<AsyncEvents>,
    service_queue: Arc<ServiceQueue>,
}

impl Device {
    fn new() -> Self {
        let config = EngineConfig::simulated(1);
        let device = config.devices.into_iter().next().expect("a device");
        let hca = Arc::new(Hca::new(device, 0));
        let wake_fd = sys::eventfd().expect("a descriptor");
        Self {
            events: Arc::new(AsyncEvents::new(hca).expect("a queue")),
            service_queue: Arc::new(ServiceQueue::new(Arc::new(wake_fd))),
        }
    }

    fn cq(&self, channel: Option<Arc<CompChannelState>>) -> Arc<CqInner> {
        let (events, service_queue) = (Arc::clone(&self.events), Arc::clone(&self.service_queue));
        CqInner::new(
            events,
            service_queue,
            channel,
            0,
            CqRing::new(4, false),
            Likeness::default(),
        )
    }

    /// Makes a queue with space for one receive, which is posted.
    fn srq(&self, xrc: Option<(&Arc<Domain>, &Arc<CqInner>)>) -> Arc<SrqInner> {
        let number = SrqNumbers::new(ProcessSlot::EMBEDDED)
            .allocate()
            .expect("a number");
        let core = rocade_transport::Srq::new(PD, 1, 1);
        let xrc = xrc.map(|(domain, cq)| (Arc::clone(domain), Arc::clone(cq)));
        let srq = SrqInner::new(Arc::clone(&self.events), number, 0, PD, core, xrc);
        assert_eq!(srq.lock().post(1, &[]), Ok(()));
        srq
    }
}

fn completion(srqn: Srqn) -> Completion {
    Completion {
        srqn,
        ..test_completion(1, false, WcStatus::Success)
    }
}

/// A thread that has polled the completion of a shared receive can post the next one.
//= RC-WQE-03 type=test
#[test]
fn loom_a_shared_receive_that_was_polled_has_freed_its_wqe() {
    loom::model(|| {
        let device = Device::new();
        let cq = device.cq(None);
        let srq = device.srq(None);
        let packet = {
            let (srq, cq) = (Arc::clone(&srq), Arc::clone(&cq));
            thread::spawn(move || {
                assert!(srq.take().is_some());
                let done = completion(srq.srqn());
                assert_eq!(srq.add_completions(&cq, [done].iter(), &mut 0), 0);
            })
        };
        let poll_and_post = || {
            if cq.take(1, &mut |_, _| {}) == 0 {
                return false;
            }
            let mut core = srq.lock();
            assert_eq!(core.post(2, &[]), Err(PostError::QueueFull));
            assert!(srq.reclaim_wqes(&mut core));
            assert_eq!(core.post(2, &[]), Ok(()));
            true
        };
        let early = poll_and_post();
        packet.join().unwrap();
        assert!(early || poll_and_post());
        assert!(!srq.reclaim_wqes(&mut srq.lock()), "each once");
    });
}

/// An XRC SRQ that is destroyed while a message takes a receive of it lives until the receive has
/// completed, and no longer.
//= XRC-05 type=test
#[test]
fn loom_an_xrc_queue_ends_with_its_last_message() {
    loom::model(|| {
        let device = Device::new();
        let (cq, domain) = (device.cq(None), domain(&device));
        let srq = device.srq(Some((&domain, &cq)));
        let (srqn, weak) = (srq.srqn(), Arc::downgrade(&srq));
        let message = {
            let domain = Arc::clone(&domain);
            thread::spawn(move || {
                let taken = domain.find(srqn).and_then(|queue| queue.take());
                if taken.is_some() {
                    let done = completion(srqn);
                    assert_eq!(domain.complete(srqn, [done].iter(), &mut 0), 0);
                }
                taken.is_some()
            })
        };
        assert!(srq.end());
        let was_alive = srq.is_alive();
        drop(srq);
        assert!(!was_alive && domain.find(srqn).is_none());
        let taken = message.join().unwrap();
        assert!(weak.upgrade().is_none(), "a reference to the queue is left");
        assert!(taken || cq.is_empty());
        assert!(cq.users().is_empty() && !cq.is_awaited());
    });
}

fn domain(device: &Device) -> Arc<Domain> {
    let new = XrcdInitAttr::default();
    Domains::default()
        .open(&device.events, new, |_| Ok(None))
        .expect("a private domain")
}

/// A moderated event is raised exactly once: with enough completions, or when its period is over.
//= CQ-10 type=test
#[test]
fn loom_an_event_that_waits_comes_once() {
    for completions in [1, 2] {
        loom::model(move || {
            let device = Device::new();
            let channel = Arc::new(CompChannelState::new(EventQueue::new().expect("a queue")));
            let cq = device.cq(Some(Arc::clone(&channel)));
            cq.moderate(2, PERIOD_NS, Time::ZERO);
            assert!(cq.arm(false));
            let engine = {
                let cq = Arc::clone(&cq);
                thread::spawn(move || {
                    for _ in 0..completions {
                        let done = completion(Srqn::NONE);
                        cq.add([done].iter(), &mut 0, |_, _| {});
                    }
                })
            };
            let look = || {
                let due = Time::from_ns(PERIOD_NS);
                for cq in device.service_queue.take_events(due) {
                    cq.raise_due_event(due);
                }
            };
            look();
            engine.join().unwrap();
            look();
            let mut count = 0;
            while channel
                .events
                .pop(|_| ())
                .expect("a blocking descriptor")
                .is_some()
            {
                count += 1;
            }
            assert_eq!(count, 1);
            cq.destroy();
        });
    }
}

/// A poller that is about to sleep sees the completion, or is woken by the thread that adds it, at
/// once or later.
#[test]
fn loom_no_completion_is_slept_over() {
    for is_later in [false, true] {
        loom::model(move || {
            let device = Device::new();
            let cq = device.cq(None);
            let adder = {
                let cq = Arc::clone(&cq);
                thread::spawn(move || {
                    let add = || {
                        let done = test_completion(1, false, WcStatus::Success);
                        assert_eq!(cq.add([done].iter(), &mut 0, |_, _| {}), 0);
                    };
                    if is_later { waking_later(add) } else { add() }
                })
            };
            let sleepers = device.service_queue.sleepers();
            let sleeper = sleepers.begin().expect("a descriptor");
            let sees_it = cq.has_any();
            adder.join().unwrap();
            assert!(sees_it || sleepers.is_woken(&sleeper));
            assert!(sleepers.end(sleeper));
        });
    }
}
