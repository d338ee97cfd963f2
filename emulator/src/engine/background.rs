//! The background thread: receives while the application does not poll, fires timers, and handles
//! messages of the broker.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use rocade_transport::{DELAYED_ACK_NS, Time};

use super::poll_policy::{Observation, PollPolicy, PollStep};
use super::resources::ResourceSocket;
use super::{Links, Nic, Scheduler};
use crate::broker::BrokerLink;
use crate::cpu_idle::CpuIdle;
use crate::failure;
use crate::inherited::spawn_detached;
use crate::link::Link as _;
use crate::link::peer_link::PeerLink as _;
use crate::notice::{self, Notice};
use crate::raw::PacketSocket;
use crate::state::{Caller, LocalEndpoint, QpInner, ServiceReason, waking_later};
use crate::sync::turn;
use crate::sys;
use crate::tuning::{
    DISPLACED_NS, FALLBACK_POLL_NS, SHARED_ROUNDS, SOCKET_POLL_INTERVAL, SOCKET_ROUNDS,
    STREAM_PACKETS, STREAM_SOCKET_SPINS, STREAM_SPINS,
};

/// Starts the thread. It ends after the engine was dropped.
pub(super) fn start(engine: &Arc<Nic>) -> io::Result<()> {
    let weak = Arc::downgrade(engine);
    spawn_detached("rocade", move || run(&weak))
}

/// The descriptors that the thread waits for. It holds no reference to the engine, so that the
/// engine can be dropped meanwhile.
struct WaitSet {
    wake: Arc<OwnedFd>,
    /// The eventfd that peers of shared memory links write to, if they may wake this thread.
    peers: Option<Arc<OwnedFd>>,
    endpoints: Vec<Arc<LocalEndpoint>>,
    frames: Vec<Arc<PacketSocket>>,
    control: Option<Arc<BrokerLink>>,
    network: Option<Arc<OwnedFd>>,
    resources: Option<Arc<ResourceSocket>>,
    timeout: Option<Duration>,
}

/// The events that woke the thread.
#[derive(Clone, Copy, Default)]
struct Woken {
    by_broker: bool,
    by_packets: bool,
    /// The eventfd that peers of shared memory links write to was readable, and was cleared.
    by_peers: bool,
    by_network: bool,
    by_question: bool,
}

/// The state that the thread keeps between turns.
#[derive(Default)]
struct ThreadState {
    policy: PollPolicy,
    cpu_idle: CpuIdle,
    /// The kind of rest after the last turn.
    wait_mode: WaitMode,
    /// An ACK was held after the last turn.
    holds_ack: bool,
}

/// The way in which the thread waits.
#[derive(Clone, Copy, Default)]
enum WaitMode {
    /// Until there is something to do, without a limit.
    #[default]
    Sleep,
    /// For this time in ns, ignoring packets.
    BackOff(u64),
    /// Not at all.
    Poll,
}

fn run(weak: &Weak<Nic>) {
    sys::set_precise_timers();
    let mut thread_state = ThreadState::default();
    loop {
        let Some(engine) = weak.upgrade() else { return };
        let wait_set = engine.wait_set(thread_state.wait_mode, thread_state.holds_ack);
        drop(engine);
        let woken = wait_set.wait();
        let Some(engine) = weak.upgrade() else { return };
        engine.step(&mut thread_state, woken);
    }
}

impl WaitSet {
    /// Sleeps until there is a packet, a wake-up, a message of the broker or a timeout.
    fn wait(&self) -> Woken {
        let mut set = sys::PollSet::default();
        let wake = set.add(self.wake.as_raw_fd());
        let peers = self.peers.as_ref().map(|fd| set.add(fd.as_raw_fd()));
        let control = self.control.as_ref().map(|control| set.add(control.fd()));
        let network = self.network.as_ref();
        let network = network.map(|socket| set.add(socket.as_raw_fd()));
        let resources = self.resources.as_ref();
        let resources = resources.map(|socket| set.add(socket.fd()));
        let last = resources.or(network).or(control).or(peers);
        let before_endpoints = last.unwrap_or(wake) + 1;
        for endpoint in &self.endpoints {
            if let Some(fd) = endpoint.link.rx_fd() {
                set.add(fd.as_raw_fd());
            }
        }
        for socket in &self.frames {
            set.add(socket.fd());
        }
        if let Err(error) = set.wait(self.timeout) {
            // The application has lowered RLIMIT_NOFILE below the number of open descriptors, or
            // the system forbids the call. Check everything at intervals.
            warn_of_refusal(&error);
            let blind = Duration::from_nanos(FALLBACK_POLL_NS);
            turn::sleep(self.timeout.map_or(blind, |timeout| timeout.min(blind)));
            return Woken {
                by_broker: control.is_some(),
                by_packets: true,
                by_peers: false,
                by_network: network.is_some(),
                by_question: resources.is_some(),
            };
        }
        if set.is_ready(wake) {
            sys::eventfd_clear(self.wake.as_fd());
        }
        let by_peers = peers.is_some_and(|peers| set.is_ready(peers));
        if let Some(fd) = self.peers.as_ref().filter(|_| by_peers) {
            sys::eventfd_clear(fd.as_fd());
        }
        Woken {
            by_broker: control.is_some_and(|control| set.is_ready(control)),
            by_packets: set.any_ready_from(before_endpoints),
            by_peers,
            by_network: network.is_some_and(|network| set.is_ready(network)),
            by_question: resources.is_some_and(|socket| set.is_ready(socket)),
        }
    }
}

/// Tells the user once that the system refuses to wait.
#[cold]
fn warn_of_refusal(error: &io::Error) {
    static TOLD: Once = Once::new();
    let remedy = failure::remedy(error);
    if !remedy.is_empty() {
        TOLD.call_once(|| {
            notice::say(&Notice {
                call: notice::WARNING,
                what: format!("{error}. The engine checks for packets at intervals, which is slow"),
                remedy: remedy.to_owned(),
            });
        });
    }
}

impl Links {
    /// Returns true if another thread is receiving.
    pub(super) fn is_receiving(&self) -> bool {
        let sockets = self
            .endpoints
            .read()
            .iter()
            .any(|endpoint| endpoint.rx.is_locked());
        sockets || self.peer_links.read().iter().any(|c| c.is_receiving())
    }
}

impl Scheduler {
    /// Returns how to wait after a turn that ended with `step`.
    fn wait_mode_after(
        &self,
        step: PollStep,
        sleep_epoch: u64,
        policy: &mut PollPolicy,
    ) -> WaitMode {
        let sleepers = self.service_queue.sleepers();
        match step {
            PollStep::BackOff { blind_ns } if self.arbiter.yield_to_app(sleep_epoch) => {
                if !sleepers.is_watched_by_program() {
                    // The pollers receive the packets.
                    sleepers.wake();
                }
                return WaitMode::BackOff(blind_ns);
            }
            PollStep::Poll => return WaitMode::Poll,
            PollStep::BackOff { .. } => policy.cancel_backoff(),
            PollStep::Sleep | PollStep::Receive | PollStep::TakeOver { .. } | PollStep::Spin => {}
        }
        // The next turn notices a poller that watches by now.
        if sleepers.watch_in_background() {
            WaitMode::Sleep
        } else {
            WaitMode::Poll
        }
    }
}

impl Nic {
    /// Returns what to wait for next. Does not wait if the thread is busy. While it has yielded to
    /// the application it ignores packets.
    fn wait_set(&self, wait_mode: WaitMode, holds_ack: bool) -> WaitSet {
        let wake = Arc::clone(self.scheduler.service_queue.wake_fd());
        let control = self.presence.broker_link();
        let network = self.observers.network.socket();
        let resources = self.observers.resources.get().cloned();
        if let WaitMode::BackOff(mut ns) = wait_mode {
            if holds_ack {
                ns = ns.min(DELAYED_ACK_NS);
            } else if self
                .scheduler
                .service_queue
                .count(ServiceReason::DelayedAck)
                > 0
            {
                // The next ACK may be delayed in a moment. Two processes that talk all the time
                // would be interrupted more often for it than for all else.
                ns = ns.min(2 * DELAYED_ACK_NS);
            }
            let timeout = Some(Duration::from_nanos(ns));
            // Peers announce space here if this thread has requested it.
            let for_space = self.scheduler.service_queue.count(ServiceReason::TxBlocked) > 0;
            return WaitSet {
                wake,
                peers: for_space.then(|| Arc::clone(&self.scheduler.peer_wake_fd)),
                endpoints: Vec::new(),
                frames: Vec::new(),
                control,
                network,
                resources,
                timeout,
            };
        }
        let until = self.sleep_until();
        let timeout = if matches!(wait_mode, WaitMode::Poll) {
            Some(Duration::ZERO)
        } else if self.links.announce_sleep() {
            until.map(|at| Duration::from_nanos(at.ns_since(self.host.now())))
        } else {
            Some(Duration::ZERO)
        };
        // If the thread does not wait, another one may be the watcher.
        let watches = matches!(wait_mode, WaitMode::Sleep);
        WaitSet {
            wake,
            peers: watches.then(|| Arc::clone(&self.scheduler.peer_wake_fd)),
            endpoints: self.links.endpoints.read().clone(),
            frames: self.links.frames.receivers(),
            control,
            network,
            resources,
            timeout,
        }
    }

    /// Runs one turn after waiting: receives, or leaves that to the application.
    fn step(&self, thread_state: &mut ThreadState, woken: Woken) {
        self.scheduler.service_queue.set_awake();
        let mut by_shared = self.stop_watching();
        if woken.by_peers {
            // The peers may have meant to wake another watcher.
            let sleepers = self.scheduler.service_queue.sleepers();
            sleepers.wake_all();
            if sleepers.is_watched_by_loop() {
                // An event loop wakes only for what is still unread.
                sleepers.displace();
                by_shared = true;
            }
        }
        self.scheduler.arbiter.resume();
        if let Some(broker) = self.presence.broker_link() {
            let now = self.host.now();
            if woken.by_broker || broker.retry_at().is_some_and(|at| at <= now) {
                broker.service(now);
                self.take_faults(&broker);
                self.take_offers();
                self.drop_ended_peer_links();
                self.tables
                    .shared_targets
                    .handle_target_events(self, &broker);
            }
        }
        if woken.by_network {
            self.observers.network.changed(&self.host.hcas);
            self.observers.publisher.note_network();
        }
        self.use_opened_links();
        self.resolve_new_routes();
        self.tables.shared_targets.serve(self);
        let sleep_epoch = self.scheduler.arbiter.sleep_epoch();
        let step = self.poll_links(thread_state, woken.by_packets || by_shared, sleep_epoch);
        if self.links.hooks.is_active() {
            self.release_delayed(Caller::Background);
        }
        self.execute_due_faults();
        self.fire_timers();
        self.cm.serve(self);
        self.fail_qps_of_overrun_cqs();
        self.raise_moderated();
        thread_state.holds_ack = self.serve_in_background();
        self.observers
            .publisher
            .publish(self.host.now(), &self.host.hcas, || self.snapshot());
        if woken.by_question
            && let Some(socket) = self.observers.resources.get()
        {
            socket.answer(|| self.report_resources());
        }
        thread_state.wait_mode =
            self.scheduler
                .wait_mode_after(step, sleep_epoch, &mut thread_state.policy);
    }

    /// Stops watching for packets. Returns true if the peer of a shared memory link has woken the
    /// thread.
    fn stop_watching(&self) -> bool {
        let sleepers = self.scheduler.service_queue.sleepers();
        if !sleepers.is_watched_in_background() {
            // The announced sleep is that of a poller.
            return false;
        }
        let by_shared = self.links.announce_awake();
        sleepers.leave_background();
        // An event loop may have begun to watch meanwhile.
        self.resume_loop();
        by_shared
    }

    /// Receives, or leaves that to the application. Returns how the turn ends.
    fn poll_links(
        &self,
        thread_state: &mut ThreadState,
        packets: bool,
        sleep_epoch: u64,
    ) -> PollStep {
        let sleepers = self.scheduler.service_queue.sleepers();
        let is_polled = self.links.is_receiving() || sleepers.has_any();
        let mut seen = Observation {
            now: self.host.now(),
            packets,
            activity: self
                .scheduler
                .arbiter
                .activity(self.host.now().as_ns(), is_polled),
            sleep_epoch,
            app_asleep: self.scheduler.arbiter.is_asleep(),
            has_sleeping_poller: sleepers.is_watched_by_program(),
            timer_due: false,
        };
        let mut spins = 0;
        loop {
            let ThreadState {
                policy, cpu_idle, ..
            } = thread_state;
            let step = policy.next(&seen, || cpu_idle.has_idle_processors(seen.now));
            seen.packets = match step {
                PollStep::Receive => self.receive_while(|| !sleepers.is_watched_by_program()),
                PollStep::TakeOver { stalled_ns } => self.take_over(stalled_ns),
                PollStep::Spin => {
                    if spins > 0 {
                        std::hint::spin_loop();
                    }
                    spins += 1;
                    waking_later(|| self.spin_once(spins - 1, Caller::Background))
                }
                PollStep::BackOff { .. } | PollStep::Sleep | PollStep::Poll => return step,
            };
            if seen.packets {
                self.scheduler.wake_sleepers();
            }
            seen.now = self.host.now();
            seen.has_sleeping_poller = sleepers.is_watched_by_program();
            seen.activity = self.scheduler.arbiter.activity(seen.now.as_ns(), false);
            seen.timer_due = self
                .scheduler
                .service_queue
                .next_timer()
                .is_some_and(|at| at <= seen.now);
        }
    }

    /// Receives the packets that other threads have left unread for `stalled_ns`. If there are any,
    /// or if that is long ago, this thread watches for the next ones. A thread that does not run
    /// may hold the lock of a link, so that this one does not wait for locks.
    fn take_over(&self, stalled_ns: u64) -> bool {
        let found = waking_later(|| self.receive_unlocked(Caller::Background, stalled_ns));
        if found || stalled_ns >= DISPLACED_NS {
            self.scheduler.service_queue.sleepers().displace();
        }
        found
    }

    /// Receives pending packets. Returns true if there were any. Reading a socket takes longer than
    /// checking shared memory, so that sockets are read only every few turns if there are shared
    /// memory links.
    pub(super) fn spin_once(&self, spins: u32, caller: Caller) -> bool {
        let peer_links = self.links.peer_links.read();
        let mut packets = self.receive_shared(&peer_links, caller);
        let sockets = peer_links.is_empty() || spins.is_multiple_of(SOCKET_POLL_INTERVAL);
        drop(peer_links);
        if sockets {
            packets += self.receive_from_sockets(caller, 0);
        }
        packets > 0
    }

    /// Receives from all links until they are empty, or until the application polls and receives
    /// the rest. Returns true if there were packets.
    pub(super) fn receive_all(&self) -> bool {
        self.receive_while(|| true)
    }

    /// Like [`receive_all`](Self::receive_all), but begins no further round of a link when
    /// `goes_on` returns false: a thread of the application waits for the packets by then. If both
    /// received in turn, each would wait for the other's locks.
    fn receive_while(&self, goes_on: impl Fn() -> bool) -> bool {
        let mut packets = self.receive_all_shared(&goes_on);
        packets += self.receive_frames(Caller::Background);
        for endpoint in self.links.endpoints.read().iter() {
            let mut spins = 0;
            for _ in 0..SOCKET_ROUNDS {
                let received = waking_later(|| {
                    self.receive(endpoint, &mut endpoint.lock_rx(), Caller::Background)
                });
                packets += received.packets;
                if self.scheduler.arbiter.is_polling(self.host.now().as_ns()) || !goes_on() {
                    break;
                }
                if received.packets >= STREAM_PACKETS {
                    spins = STREAM_SOCKET_SPINS;
                } else if !received.more {
                    if spins == 0 {
                        break;
                    }
                    spins -= 1;
                }
            }
        }
        self.cm.serve(self);
        packets > 0
    }

    /// Receives before a QP with unacknowledged packets is destroyed. Its ACK, above all, may be in
    /// a socket or a ring that no thread reads.
    pub(crate) fn receive_before_end(&self, inner: &QpInner) {
        if !inner.lock().qp.awaits_acknowledgements() {
            return;
        }
        self.receive_all_unpublished();
        for endpoint in self.links.endpoints.read().iter() {
            let mut rx = endpoint.lock_rx();
            for _ in 0..SOCKET_ROUNDS {
                if !self.receive(endpoint, &mut rx, Caller::Application).more {
                    break;
                }
            }
        }
        self.cm.serve(self);
    }

    /// Receives from all shared memory links until they are empty, or the limit of rounds is
    /// reached. In a stream the next packets are only microseconds away, so that the thread spins
    /// instead of sleeping.
    fn receive_all_shared(&self, goes_on: impl Fn() -> bool) -> u64 {
        let peer_links = self.links.peer_links.read();
        let (mut packets, mut spins) = (0, 0);
        for _ in 0..SHARED_ROUNDS {
            let found = waking_later(|| self.receive_shared(&peer_links, Caller::Background));
            packets += found;
            if !goes_on() {
                break;
            }
            if found >= STREAM_PACKETS {
                spins = STREAM_SPINS;
            }
            if found > 0 {
                continue;
            }
            while spins > 0 && !peer_links.iter().any(|peer_link| peer_link.has_packets()) {
                std::hint::spin_loop();
                spins -= 1;
            }
            if spins == 0 {
                break;
            }
        }
        packets
    }

    /// Returns when the thread has to wake up by itself.
    fn sleep_until(&self) -> Option<Time> {
        let broker = self
            .presence
            .broker_link()
            .and_then(|broker| broker.retry_at());
        let others = || {
            [
                self.observers.publisher.due(),
                self.cm.next_timeout(),
                self.links.hooks.next_due(),
                self.faults.plan.next_due(),
            ]
        };
        let until = others().into_iter().chain([broker]).flatten().min();
        let until = self.scheduler.service_queue.sleep(self.host.now(), until);
        // A thread that added an entry before the sleep was published has not woken this one.
        others().into_iter().chain([until]).flatten().min()
    }
}

#[cfg(all(test, not(loom)))]
mod wiring;
