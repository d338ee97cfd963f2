//! Serves the queue pairs on the ready lists. Which thread does what:
//!
//! | reason | a poll | an idle poll | the background thread |
//! |---|---|---|---|
//! | batched posts | sends them | | after 0.5 ms |
//! | no space | tries again | | tries again, unless a poll has tried |
//! | a delayed ACK | | sends it after 15 µs | after 0.25 to 0.5 ms |
//! | a timer | | | when it is due |
//!
//! A poll comes from a thread that is awake anyway, and finds space as soon as there is some. Only
//! the background thread asks the peer of a shared memory link to wake it. A stream that is faster
//! than its receiver is blocked most of the time, and waking a thread takes as long as copying many
//! packets.

use std::sync::Arc;

use rocade_transport::{DELAYED_ACK_NS, Time, TransmitTrigger};
use rocade_wire::Qpn;

use super::cx::Cx;
use super::{Nic, Scheduler};
use crate::memory::MemGuard;
use crate::state::{Caller, CqInner, QpCore, QpInner, ServiceReason};
use crate::sync::turn;
use crate::trace;
use crate::tuning::{MAX_CHAIN, MAX_DELAYED_ACK_QPS, POST_FLUSH_NS};

/// The context in which the ready lists are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceContext {
    /// The application polls, or is about to sleep.
    Poll,
    /// The application's polls have found nothing for this time in ns. It waits for something other
    /// than the response to its own packets.
    IdlePoll(u64),
}

impl Scheduler {
    /// Puts a QP on a ready list.
    pub(super) fn enqueue(&self, qpn: Qpn, core: &mut QpCore, reason: ServiceReason, now: Time) {
        if core.tx.queued.insert(reason)
            && self
                .service_queue
                .enqueue(qpn, reason, now.plus_ns(reason.deadline_ns()))
        {
            self.wake_background();
        }
    }

    /// Returns true if one more QP may delay ACKs.
    pub(super) fn can_delay_more_acks(&self) -> bool {
        self.service_queue.count(ServiceReason::DelayedAck) < MAX_DELAYED_ACK_QPS
    }

    /// Adds a timer entry: the QP's timer expires at `at` or later.
    pub(super) fn arm_timer(&self, at: Time, qpn: Qpn) {
        if self.service_queue.enqueue_timer(qpn, at) {
            self.wake_background();
        }
    }
}

impl Nic {
    /// Serves the QPs that are due in this context.
    #[inline]
    pub(super) fn serve(&self, context: ServiceContext) {
        let waits = |reason| self.scheduler.service_queue.count(reason) > 0;
        match context {
            ServiceContext::Poll => {
                if self.scheduler.service_queue.woken() > 0 {
                    self.resume_woken(Caller::Application);
                }
                if waits(ServiceReason::BatchedPost) {
                    self.send_posts(Caller::Application);
                }
                if waits(ServiceReason::TxBlocked) {
                    self.scheduler.service_queue.note_inline_retry();
                    self.retry_backlogs(Caller::Application);
                }
            }
            ServiceContext::IdlePoll(ns) => {
                self.release_acks(ns, Caller::Application);
            }
        }
    }

    /// Serves the QPs that are due although the application does nothing. Returns true if an ACK
    /// is still held.
    pub(super) fn serve_in_background(&self) -> bool {
        if self.scheduler.service_queue.woken() > 0 {
            self.resume_woken(Caller::Background);
        }
        let tried = self.scheduler.service_queue.take_inline_retry();
        if !tried || self.scheduler.arbiter.is_asleep() {
            self.retry_backlogs(Caller::Background);
        }
        let holds_ack = self.release_acks(DELAYED_ACK_NS, Caller::Background);
        self.send_posts(Caller::Background);
        holds_ack
    }

    /// Waits until the posts with completions to `cq` that found no space or no route are sent. The
    /// wait is bounded, because a peer need not make space.
    pub(crate) fn wait_for_posts(&self, cq: &Arc<CqInner>) {
        let until = self.host.now().plus_ns(POST_FLUSH_NS);
        // On a busy machine the background thread may be late.
        self.resolve_new_routes();
        let waits = |qp: &Arc<QpInner>| {
            qp.completes_to(cq) && (qp.lock().tx.has_backlog() || qp.waits_for_space())
        };
        while self.tables.qps.read().iter().any(waits) && self.host.now() < until {
            self.serve(ServiceContext::Poll);
            turn::yield_now();
        }
    }

    /// Serves each QP on a ready list. `stays` returns true if the QP remains on it.
    fn visit_ready(
        &self,
        reason: ServiceReason,
        mut stays: impl FnMut(&QpInner, &mut QpCore, &MemGuard<'_>) -> bool,
    ) {
        for _ in 0..self.scheduler.service_queue.count(reason) {
            let Some(qpn) = self.scheduler.service_queue.next_ready(reason) else {
                return;
            };
            let (mut is_done, mut exists) = (true, false);
            self.with_qp(qpn, |inner, core, mem| {
                exists = true;
                // Another thread may have served the QP and removes it. Removing it twice would be
                // wrong, because it may have been enqueued again.
                let is_queued = core.tx.queued.contains(reason);
                is_done = is_queued && !stays(inner, core, mem);
                if is_done {
                    core.tx.queued.remove(reason);
                }
            });
            if is_done {
                let was_there = self.scheduler.service_queue.remove_qp(qpn, reason);
                debug_assert!(
                    was_there || !exists || self.tables.qps.read().get(qpn).is_none(),
                    "a queue pair is removed from a list that it is not on: {qpn:?}, {reason:?}"
                );
            }
        }
    }

    /// Serves the QPs that were woken. One may wake the next.
    #[cold]
    fn resume_woken(&self, caller: Caller) {
        for _ in 0..MAX_CHAIN {
            let Some(qpn) = self.scheduler.service_queue.take_woken() else {
                return;
            };
            let now = self.host.now();
            self.with_qp(qpn, |inner, core, mem| {
                self.flush_outputs(inner, core, TransmitTrigger::Other, Cx { now, caller, mem });
            });
        }
    }

    pub(super) fn retry_backlogs(&self, caller: Caller) {
        self.visit_ready(ServiceReason::TxBlocked, |inner, core, mem| {
            let now = self.host.now();
            self.resend_backlog(inner, core, Cx { now, caller, mem });
            core.tx.has_backlog() || inner.waits_for_space()
        });
    }

    /// Sends the ACKs that were delayed for `held_ns` or longer. Returns true if others remain.
    fn release_acks(&self, held_ns: u64, caller: Caller) -> bool {
        if self
            .scheduler
            .service_queue
            .count(ServiceReason::DelayedAck)
            == 0
        {
            return false;
        }
        let now = self.host.now();
        let mut remain = false;
        self.visit_ready(ServiceReason::DelayedAck, |inner, core, mem| {
            let since = core.qp.coalescer().held_since();
            if since.is_some_and(|since| now.ns_since(since) >= held_ns) {
                core.tx.publish_ack();
                self.flush_outputs(inner, core, TransmitTrigger::Other, Cx { now, caller, mem });
            }
            remain |= core.qp.coalescer().held_since().is_some();
            // The journal has one that is blocked, or waits behind what is.
            let has_ack = core.tx.has_blocked_ack() || core.qp.newest_ack().is_some();
            let is_over = !has_ack && core.qp.coalescer_mut().forget(now);
            if is_over {
                core.tx.release_journal_slot();
            }
            !is_over
        });
        remain
    }

    /// Transmits batched posts. The background thread transmits only those that are overdue.
    fn send_posts(&self, caller: Caller) {
        let now = self.host.now();
        self.visit_ready(ServiceReason::BatchedPost, |inner, core, mem| {
            let coalescer = core.qp.coalescer_mut();
            if coalescer.has_batched_posts() {
                if caller == Caller::Background && !coalescer.batch_is_overdue(now) {
                    return true;
                }
                self.flush_outputs(
                    inner,
                    core,
                    TransmitTrigger::Posted,
                    Cx { now, caller, mem },
                );
            }
            false
        });
    }

    /// Returns true if a post of `bytes` bytes is batched. Otherwise the caller has to transmit it.
    /// Posts through shared memory need no system call and are never batched. Of unreliable
    /// packets, more would get lost at a receiver that is not measured.
    #[inline]
    pub(crate) fn should_batch(&self, qpn: Qpn, core: &mut QpCore, bytes: u32, now: Time) -> bool {
        let calls = core.tx.uses_socket() || core.tx.peer_routes_use_socket();
        let calls = calls && (core.tx.is_measured || !core.qp.sends_unreliably());
        let waits = calls && core.qp.should_batch(now, bytes);
        if waits {
            self.scheduler
                .enqueue(qpn, core, ServiceReason::BatchedPost, now);
        }
        waits
    }

    /// Fires the timers that are due. The awaited packet may be in the socket already, so this
    /// receives first.
    pub(super) fn fire_timers(&self) {
        if self
            .scheduler
            .service_queue
            .next_timer()
            .is_none_or(|at| at > self.host.now())
        {
            return;
        }
        self.receive_all();
        self.receive_all_unpublished();
        let now = self.host.now();
        while let Some(qpn) = self.scheduler.service_queue.take_timer(now) {
            self.with_qp(qpn, |inner, core, mem| {
                core.tx.take_timer();
                if core.qp.next_timeout().is_some_and(|at| at <= now) {
                    let before = trace::is_on().then(|| core.qp.counters().timeouts);
                    core.qp.handle_timeout(now);
                    let expired = before.map_or(0, |_| core.qp.counters().timeouts);
                    if before.is_some_and(|before| expired > before) {
                        trace::timeout(qpn, expired);
                    }
                }
                let cx = Cx::of_background(now, mem);
                self.flush_outputs(inner, core, TransmitTrigger::Other, cx);
            });
            // The last timeout of a request sends nothing.
            self.note_change();
        }
    }

    /// Raises the moderated completion events that are due.
    pub(super) fn raise_moderated(&self) {
        let now = self.host.now();
        for cq in self.scheduler.service_queue.take_events(now) {
            cq.raise_due_event(now);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "../../tests/common/mod.rs"]
pub(crate) mod common;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use rocade_transport::SendOp;

    use super::common::{self, Side};

    /// Posts 8-byte WRITEs, the n-th to place n, until one is batched, and returns its number.
    fn post_until_one_waits(a: &Side, b: &Side) -> usize {
        for number in 1..1000 {
            a.qp.inner().lock().qp.coalescer_mut().batch_every_post();
            let op = SendOp::Write {
                va: b.addr(8 * number),
                rkey: b.mr.rkey(),
                imm: None,
            };
            a.send(1, op, &[a.sge(8 * number, 8)]);
            if a.qp.inner().lock().qp.coalescer().has_batched_posts() {
                return number;
            }
            // No packet was in flight. Makes space for the next posts.
            while a.cq.poll_one().is_some() {}
        }
        panic!("each was acknowledged at once");
    }

    /// A post is batched while packets are in flight. It is sent at the next opportunity: with an
    /// empty poll, when the application goes to sleep, or soon if the application does nothing.
    #[test]
    fn posts_that_wait_leave_whatever_the_application_does() {
        let opportunities: [fn(&Side); 3] = [
            |_| (),
            |a| while a.cq.poll_one().is_some() {},
            |a| a.engine.inner.leave_inline(),
        ];
        for opportunity in opportunities {
            let (a, b) = common::pair("127.4.0.3", "127.4.0.4", 8 * 1000);
            a.fill(0, &[1; 8 * 1000]);
            let number = post_until_one_waits(&a, &b);
            opportunity(&a);
            let deadline = Instant::now() + Duration::from_secs(60);
            while b.bytes(8 * number, 8) != [1; 8] {
                assert!(Instant::now() < deadline, "post {number} is still waiting");
                std::thread::yield_now();
            }
            assert!(!a.qp.inner().lock().qp.coalescer().has_batched_posts());
        }
    }
}
