//! A program that waits for packets in an event loop of its own.
//!
//! If the background thread received each packet and then woke the program, a message would cost
//! two turns of the scheduler. So the descriptor of a channel is an epoll instance. While the
//! channel is non-blocking and expects an event, the sockets and the eventfd of shared memory links
//! are members of it. A packet wakes the program itself, and its call for the event receives the
//! packet.
//!
//! One channel of an engine has the sockets, the *owner*. Any call receives the packets of all. A
//! program with one event loop may have many channels, and one wake-up for each packet is enough.
//! Channels for completions come before those of the connection manager.
//!
//! The descriptor of a blocking channel never has these members. A program that waits for it and
//! then calls for the event would block where a packet has brought none.
//!
//! The background thread looks after the program as it does after a thread that waits
//! (`event_wait.rs`), and receives what lies unread.

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process;
use std::sync::{Arc, Weak};

use crate::link::Link as _;
use crate::sync::{Mutex, rank};
use rocade_transport::Time;

use super::pending::ServiceContext;
use super::{Nic, Scheduler};
use crate::raw::PacketSocket;
use crate::state::{Caller, LocalEndpoint, ServiceReason};
use crate::sys::{self, Epoll};
use crate::tuning::{LOOP_ROUNDS, MAX_EMPTY_WAKES, OTHERS_POLL_NS};

/// The events that a channel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelKind {
    Completions,
    Connections,
}

/// The channel of an engine that has the sockets.
#[derive(Debug, Default)]
pub(super) struct EventLoops {
    owner: Mutex<Option<Owner>, rank::EventLoop>,
    /// Address of the owner's epoll instance, or 0.
    owner_address: AtomicUsize,
    /// Times in a row that the owner was woken without an event.
    empty_wakes: AtomicUsize,
    /// Time until which no channel gets the sockets, in ns. Other threads receive.
    left_until: AtomicU64,
    /// This process has made its own wake-up for shared memory readable.
    has_woken_itself: AtomicBool,
}

/// A channel whose descriptor has the sockets as members, until this is dropped.
#[derive(Debug)]
struct Owner {
    outer: Weak<Epoll>,
    kind: ChannelKind,
    /// Wakes the process for packets in shared memory.
    peers: Arc<OwnedFd>,
    members: Members,
    process: u32,
}

#[derive(Debug, Default)]
struct Members {
    endpoints: Vec<Arc<LocalEndpoint>>,
    frames: Vec<Arc<PacketSocket>>,
}

impl Members {
    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let endpoints = self.endpoints.iter();
        let sockets = endpoints.filter_map(|endpoint| endpoint.link.rx_fd());
        sockets.chain(self.frames.iter().map(|socket| socket.as_fd()))
    }

    fn is_same(&self, endpoints: &[Arc<LocalEndpoint>], frames: &[Arc<PacketSocket>]) -> bool {
        fn same<T>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        }
        same(&self.endpoints, endpoints) && same(&self.frames, frames)
    }
}

impl Owner {
    /// Gives the sockets to `outer`. Returns `None` if the system refuses.
    fn new(
        outer: &Arc<Epoll>,
        kind: ChannelKind,
        peers: &Arc<OwnedFd>,
        members: Members,
    ) -> Option<Self> {
        let owner = Self {
            outer: Arc::downgrade(outer),
            kind,
            peers: Arc::clone(peers),
            members,
            process: process::id(),
        };
        let peers = outer.add(owner.peers.as_fd());
        let all = owner.members.sockets().all(|socket| outer.add(socket));
        (peers && all).then_some(owner)
    }

    fn is(&self, outer: &Arc<Epoll>) -> bool {
        self.outer.as_ptr() == Arc::as_ptr(outer)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // The instance of a forked child is that of its parent.
        if self.process != process::id() {
            return;
        }
        // Other processes have duplicates of some sockets, so that closing one is not enough.
        if let Some(outer) = self.outer.upgrade() {
            outer.remove(self.peers.as_fd());
            for socket in self.members.sockets() {
                outer.remove(socket);
            }
        }
    }
}

impl EventLoops {
    fn is_owner(&self, outer: &Arc<Epoll>) -> bool {
        self.owner_address.load(Ordering::Relaxed) == Arc::as_ptr(outer).addr()
    }

    /// Records that the program has taken an event of this channel.
    fn note_event(&self, outer: &Arc<Epoll>) {
        if self.is_owner(outer) {
            self.empty_wakes.store(0, Ordering::Relaxed);
        }
    }

    /// Records a call of the owner that has found no event. Returns how many there were in a row.
    fn note_empty_wake(&self) -> usize {
        self.empty_wakes.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn leave_until(&self, until: Time) {
        self.left_until.store(until.as_ns(), Ordering::Relaxed);
    }

    fn set(&self, current: &mut Option<Owner>, owner: Option<Owner>) {
        let address = owner
            .as_ref()
            .map_or(0, |owner| owner.outer.as_ptr().addr());
        self.owner_address.store(address, Ordering::Relaxed);
        self.empty_wakes.store(0, Ordering::Relaxed);
        // The old owner gives the sockets back.
        *current = owner;
    }
}

/// The channel that receives for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopOwner {
    This,
    Another,
    /// The background thread receives.
    Nobody,
}

impl Scheduler {
    /// Returns true if the channel has the sockets, so that packets wake the program.
    pub(crate) fn has_loop_sockets(&self, outer: &Arc<Epoll>) -> bool {
        self.event_loops.is_owner(outer)
    }

    /// Records that the program has taken an event of this channel.
    pub(crate) fn note_loop_event(&self, outer: &Arc<Epoll>) {
        self.event_loops.note_event(outer);
    }

    /// Takes the sockets back from the channel that has them, because one of them is going to be
    /// closed. The next call gives them to a channel again.
    pub(super) fn close_loop(&self) {
        self.close_loop_if(|_| true);
    }

    fn close_loop_if(&self, is_meant: impl FnOnce(&Owner) -> bool) {
        let mut current = self.event_loops.owner.lock();
        if current.as_ref().is_some_and(is_meant) {
            self.event_loops.set(&mut current, None);
            self.service_queue.sleepers().end_loop();
            drop(current);
            self.wake_background();
        }
    }

    /// Wakes the program, which receives then.
    fn wake_loop(&self) {
        self.event_loops
            .has_woken_itself
            .store(true, Ordering::Relaxed);
        sys::eventfd_set(self.peer_wake_fd.as_fd());
    }
}

impl Nic {
    /// Receives what has come, for a program whose channel has the sockets and no event yet.
    /// `has_event` returns true if the event is there.
    pub(crate) fn receive_in_loop(&self, has_event: impl Fn() -> bool) {
        self.scheduler.polled();
        let by_itself = self
            .scheduler
            .event_loops
            .has_woken_itself
            .swap(false, Ordering::Relaxed);
        if by_itself || self.links.peer_link_count.load(Ordering::Acquire) > 0 {
            self.clear_peer_wake();
        }
        // Packets in the sockets go on waking the program, or the next call finds them.
        if self.receive_from_shm() && has_event() {
            return;
        }
        let mut rounds = 0;
        while rounds < LOOP_ROUNDS && self.receive_unlocked(Caller::Application, 0) && !has_event()
        {
            rounds += 1;
        }
    }

    /// Lets the program wait for `outer`, the descriptor of a non-blocking channel that expects an
    /// event. `is_empty_wake`: the program has just found no event.
    pub(crate) fn watch_in_loop(&self, outer: &Arc<Epoll>, kind: ChannelKind, is_empty_wake: bool) {
        if self.host.sim.is_some() {
            return self.leave_inline();
        }
        match self.owner_for(outer, kind, is_empty_wake) {
            LoopOwner::This => {
                self.scheduler.polled();
                self.serve(ServiceContext::Poll);
                self.begin_loop(is_empty_wake);
            }
            LoopOwner::Another => {
                self.serve(ServiceContext::Poll);
                self.release_before_sleep(is_empty_wake);
            }
            LoopOwner::Nobody => self.leave_inline(),
        }
    }

    /// Takes the sockets back, if the channel has them.
    pub(crate) fn leave_loop(&self, outer: &Arc<Epoll>) {
        if self.scheduler.event_loops.is_owner(outer) {
            self.scheduler.close_loop_if(|owner| owner.is(outer));
        }
    }

    /// Takes the sockets back at the second call without an event.
    pub(crate) fn leave_loop_soon(&self, outer: &Arc<Epoll>) {
        if !self.scheduler.event_loops.is_owner(outer) {
            self.leave_inline();
        } else if self.scheduler.event_loops.note_empty_wake() > 1 {
            self.leave_loop(outer);
        }
    }

    fn owner_for(&self, outer: &Arc<Epoll>, kind: ChannelKind, is_empty_wake: bool) -> LoopOwner {
        let loops = &self.scheduler.event_loops;
        let sleepers = self.scheduler.service_queue.sleepers();
        let mut current = loops.owner.lock();
        if let Some(owner) = &*current {
            if owner.is(outer) {
                if is_empty_wake && loops.note_empty_wake() >= MAX_EMPTY_WAKES {
                    loops.leave_until(self.host.now().plus_ns(OTHERS_POLL_NS));
                    loops.set(&mut current, None);
                    sleepers.end_loop();
                    return LoopOwner::Nobody;
                }
                if owner
                    .members
                    .is_same(&self.links.endpoints.read(), &self.links.frames.receivers())
                {
                    return LoopOwner::This;
                }
            } else if owner.kind == ChannelKind::Completions || kind == owner.kind {
                let is_open = owner.outer.strong_count() > 0;
                if is_open && sleepers.has_loop() {
                    return LoopOwner::Another;
                }
            }
        }
        // A channel for completions gets the sockets when the program requests an event.
        let is_late = is_empty_wake && kind == ChannelKind::Completions && !loops.is_owner(outer);
        if is_late || self.host.now().as_ns() < loops.left_until.load(Ordering::Relaxed) {
            return LoopOwner::Nobody;
        }
        // The old owner gives the sockets back first: it may be the same channel.
        loops.set(&mut current, None);
        let members = Members {
            endpoints: self.links.endpoints.read().clone(),
            frames: self.links.frames.receivers(),
        };
        let owner = Owner::new(outer, kind, &self.scheduler.peer_wake_fd, members);
        loops.set(&mut current, owner);
        if current.is_some() {
            return LoopOwner::This;
        }
        loops.leave_until(self.host.now().plus_ns(OTHERS_POLL_NS));
        sleepers.end_loop();
        LoopOwner::Nobody
    }

    /// Sends the delayed ACKs if the program has found no event, because it sleeps now. A program
    /// that requests an event handles the last one first, and its answer carries the ACK. If it
    /// does not answer, the background thread sends the ACK.
    fn release_before_sleep(&self, is_empty_wake: bool) {
        if is_empty_wake {
            self.serve(ServiceContext::IdlePoll(0));
        }
    }

    /// Announces that the program is going to sleep in its event loop, which is the watcher then.
    fn begin_loop(&self, is_empty_wake: bool) {
        if self.scheduler.service_queue.sleepers().begin_loop() {
            // The background thread ignores packets from now on, and looks after the program.
            self.scheduler.service_queue.wake_thread();
        }
        // The program may wait for the next change only, so that nothing may lie unread.
        let mut is_quiet = false;
        for _ in 0..LOOP_ROUNDS {
            let received = self.receive_unlocked(Caller::Application, 0);
            is_quiet = !received
                && self.scheduler.service_queue.woken() == 0
                && self.links.announce_sleep();
            if is_quiet {
                break;
            }
        }
        self.release_before_sleep(is_empty_wake);
        if self.scheduler.service_queue.count(ServiceReason::TxBlocked) > 0 {
            // The peers announce space.
            self.retry_backlogs(Caller::Background);
        }
        // The background thread need not wake for this.
        self.scheduler.arbiter.note_app_sleep();
        if !is_quiet {
            self.scheduler.wake_loop();
        }
    }

    /// Announces the sleep of the event loop again, after another thread may have withdrawn it.
    pub(super) fn resume_loop(&self) {
        if self.scheduler.service_queue.sleepers().has_loop()
            && (self.scheduler.service_queue.woken() > 0 || !self.links.announce_sleep())
        {
            self.scheduler.wake_loop();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod acks;
#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::RawFd;
    use std::thread;
    use std::time::{Duration, Instant};

    use rocade_transport::SendOp;

    use super::super::pending::common::{self, Side};
    use super::*;
    use crate::sys::PollSet;

    const LIMIT: Duration = Duration::from_secs(60);

    fn is_readable(fd: RawFd) -> bool {
        let mut set = PollSet::default();
        set.add(fd);
        set.wait_uncancelled(Some(Duration::ZERO))
            .expect("a descriptor");
        set.is_ready(0)
    }

    /// Sends to `a` and returns when the descriptor of its channel is readable. Returns true if the
    /// packet has made it so, and not an event.
    pub(super) fn send_until_readable(a: &Side, b: &Side) -> bool {
        a.qp.recv_queue().push(7, &[a.sge(0, 8)]).expect("space");
        a.cq.req_notify(false).expect("a channel");
        b.send(1, SendOp::Send { imm: None }, &[b.sge(0, 8)]);
        let begin = Instant::now();
        while !is_readable(a.channel.fd()) {
            assert!(begin.elapsed() < LIMIT, "the program is not woken");
        }
        a.cq.is_empty()
    }

    fn take(a: &Side, b: &Side) {
        let begin = Instant::now();
        while a.channel.get_event().is_err() {
            assert!(begin.elapsed() < LIMIT, "there is no event");
            thread::yield_now();
        }
        a.cq.ack_events(1);
        assert_eq!(a.completion().wr_id, 7);
        assert_eq!(b.completion().wr_id, 1);
    }

    /// The packet wakes the program, and its call receives.
    //= CQ-14 type=test
    #[test]
    fn a_packet_wakes_an_event_loop() {
        let (a, b) = common::pair("127.4.0.61", "127.4.0.62", 64);
        sys::set_nonblocking(a.channel.fd());
        let (begin, mut by_packet) = (Instant::now(), 0);
        while by_packet < 20 {
            assert!(begin.elapsed() < LIMIT, "{by_packet} times only");
            by_packet += u32::from(send_until_readable(&a, &b));
            take(&a, &b);
        }
    }

    /// A program that does not call for its event gets it from the background thread.
    #[test]
    fn an_event_loop_that_does_not_run_keeps_nothing_from_its_process() {
        let (a, b) = common::pair("127.4.0.63", "127.4.0.64", 64);
        sys::set_nonblocking(a.channel.fd());
        for _ in 0..20 {
            send_until_readable(&a, &b);
            let begin = Instant::now();
            while a.cq.is_empty() {
                assert!(begin.elapsed() < LIMIT, "the packet is not received");
                thread::yield_now();
            }
            take(&a, &b);
        }
    }

    /// A program that is still being set up, and has not called for an event, is told of events
    /// only: UCX aborts otherwise.
    #[test]
    fn packets_wake_no_program_before_its_first_call_for_an_event() {
        let (a, b) = common::pair("127.4.0.67", "127.4.0.68", 64);
        sys::set_nonblocking(a.channel.fd());
        let loops = &a.engine.inner.scheduler.event_loops;
        let is_owner = || loops.owner.lock().is_some();
        a.cq.req_notify(false).expect("a channel");
        assert!(!is_owner());
        send_until_readable(&a, &b);
        assert!(!is_owner());
        assert!(!a.cq.is_empty(), "the background thread has received");
        take(&a, &b);
        let begin = Instant::now();
        while !is_owner() {
            assert!(begin.elapsed() < LIMIT, "it never gets the sockets");
            a.cq.req_notify(false).expect("a channel");
        }
    }

    /// Wake-ups without an event end, and begin again after a while.
    #[test]
    fn packets_of_other_channels_do_not_wake_an_event_loop_for_long() {
        let (a, b) = common::pair("127.4.0.65", "127.4.0.66", 64);
        sys::set_nonblocking(a.channel.fd());
        let loops = &a.engine.inner.scheduler.event_loops;
        let is_owner = || loops.owner.lock().is_some();
        assert!(a.channel.get_event().is_err());
        a.cq.req_notify(false).expect("a channel");
        let begin = Instant::now();
        while !is_owner() {
            // Other threads receive for a while after earlier calls.
            assert!(begin.elapsed() < LIMIT);
            a.cq.req_notify(false).expect("a channel");
        }
        for _ in 0..MAX_EMPTY_WAKES {
            assert!(is_owner());
            assert!(a.channel.get_event().is_err());
        }
        assert!(!is_owner());
        assert!(!a.engine.inner.scheduler.service_queue.sleepers().has_loop());
        while !is_owner() {
            assert!(begin.elapsed() < LIMIT, "it never gets the sockets again");
            a.cq.req_notify(false).expect("a channel");
        }
        drop(b);
    }
}
