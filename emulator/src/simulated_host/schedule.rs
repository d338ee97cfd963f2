//! The schedule of a host: its threads, of which one runs at a time, and how time passes.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::delivery::Delivery;
use super::own_thread::{Killed, OwnThread};
use crate::broker::simulated::brokers::HostProcess;
use crate::broker::simulated::handover::{Receiver, Sender, channel};
use crate::random::Random;
use crate::sync::turn::{self, Pause, Place, Schedule as _};
use crate::sys;

/// Number of rounds in which the first thread keeps what it has.
const ROUNDS_WITHOUT_FIRST: usize = 8;
/// Longest real time of a turn. Emulated processors are slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most rounds in which the threads of a killed process unwind.
const ROUNDS_OF_DEATH: usize = 10_000;

/// Number of times that threads are slow.
const SLOW_TIMES: u64 = 800;

/// The number of the pause of a thread that looks for work in vain.
const IDLE: usize = 2;
/// The pauses of threads, by their numbers.
const PAUSES: [&str; 5] = [
    "has ended",
    "hands over",
    "looks for work in vain",
    "waits for another thread",
    "waits for descriptors",
];

/// State that all threads of a host share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) time: Arc<AtomicU64>,
    pub(crate) random: Mutex<Random>,
    /// Number of locks that threads hold, but for the running one.
    pub(crate) held_by_others: AtomicUsize,
    /// Threads that the running one has started.
    spawned: Mutex<Vec<Thread>>,
    /// The running thread has sent a datagram.
    pub(crate) has_sent: AtomicBool,
    /// Places at which threads are slow.
    slow: SlowPlaces,
    /// Number of times that they still are, so that time passes for those that wait.
    slow_left: AtomicU64,
}

/// Places in the code at which threads hand over and get few turns. Others do meanwhile what
/// rarely happens otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlowPlaces {
    /// One place of so many is slow. 0 means that none is.
    pub(crate) groups: u32,
    /// The group of the slow ones, below `groups`.
    pub(crate) group: u32,
}

impl SlowPlaces {
    pub(crate) const NONE: Self = Self {
        groups: 0,
        group: 0,
    };

    pub(crate) fn contains(self, place: Place) -> bool {
        let group = hash(place).checked_rem(self.groups);
        group == Some(self.group)
    }
}

/// Returns a number that tells places apart, mostly.
pub(crate) const fn hash(place: Place) -> u32 {
    let mixed = (place.line() ^ (place.column() << 16)).wrapping_mul(0x9e37_79b1);
    mixed >> 8
}

impl Shared {
    pub(crate) fn random(&self) -> u64 {
        lock(&self.random).next()
    }

    /// Lets threads be slow at some places from now on, for a while.
    pub(crate) fn begin_slow(&self) {
        self.slow_left.store(SLOW_TIMES, Ordering::Relaxed);
    }

    /// Returns true if threads are slow at this place.
    fn is_slow(&self, place: Place) -> bool {
        self.slow.contains(place) && self.slow_left.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a thread has to hand over at this place, because threads are slow there.
    pub(crate) fn slows(&self, place: Place) -> bool {
        let slows = self.is_slow(place) && self.below(2) == 0;
        if slows {
            self.slow_left.fetch_sub(1, Ordering::Relaxed);
        }
        slows
    }

    pub(crate) fn below(&self, limit: u64) -> u64 {
        self.random() % limit.max(1)
    }

    /// Returns a time from now.
    pub(crate) fn after(&self, time: Duration) -> u64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns().saturating_add(ns)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    /// Starts a thread of a process. It runs when the schedule gives it a turn.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        process: &Arc<Process>,
        name: &str,
        run: Box<dyn FnOnce() + Send>,
    ) {
        let (orders, received) = channel();
        let (told, reports) = channel();
        let (shared, of) = (Arc::clone(self), Arc::clone(process));
        let join = thread::spawn(move || {
            if received.receive().is_none() {
                return;
            }
            of.identity.enter(&shared.time);
            let own = OwnThread::new(shared, of, received, told);
            turn::join(Rc::clone(&own) as _);
            let run = || {
                // Its process may have been killed before it began.
                if !own.is_dead() {
                    run();
                }
            };
            let ended = panic::catch_unwind(AssertUnwindSafe(run));
            let failure = ended.err().filter(|payload| !payload.is::<Killed>());
            own.end(failure.map(|payload| text_of(&*payload)));
        });
        lock(&self.spawned).push(Thread {
            name: format!("{}.{name}", process.name),
            process: process.number,
            orders: Some(orders),
            reports: Some(reports),
            state: State::Turn,
            locks: 0,
            place: None,
            turns: [0; 5],
            is_frozen: false,
            join: Some(join),
        });
    }
}

/// A process of a host, which its threads share.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) identity: HostProcess,
    pub(crate) is_dead: AtomicBool,
    /// Number of datagrams after which it is killed.
    pub(crate) datagrams_left: AtomicU64,
    /// True once it has sent the last of them.
    pub(crate) is_doomed: AtomicBool,
    /// Memory that others can see: start and length.
    pub(crate) mappings: Mutex<BTreeMap<usize, usize>>,
    /// Timers that have not expired, and when they do.
    pub(crate) alarms: Mutex<BTreeMap<RawFd, u64>>,
}

/// A message to the schedule from a thread that stops running.
#[derive(Debug)]
pub(crate) enum Report {
    /// The thread hands over at a place, and holds so many locks.
    Paused(Pause, usize, Option<Place>),
    /// The thread has ended, perhaps by a panic.
    Ended(Option<String>),
}

/// A thread, seen by the schedule.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) process: usize,
    orders: Option<Sender<()>>,
    reports: Option<Receiver<Report>>,
    pub(crate) state: State,
    /// Number of locks that it holds.
    locks: usize,
    /// The place at which it hands over.
    place: Option<Place>,
    /// Number of its turns, by the kind of pause after them.
    pub(crate) turns: [u64; 5],
    /// A thread that gets no processor.
    pub(crate) is_frozen: bool,
    join: Option<JoinHandle<()>>,
}

/// The state of a thread that does not run.
#[derive(Debug)]
pub(crate) enum State {
    Turn,
    Idle,
    Change {
        /// Number of changes when it began to wait.
        since: u64,
        until: u64,
    },
    Ready {
        fds: Vec<libc::pollfd>,
        until: u64,
    },
    Ended,
}

impl Thread {
    /// Returns the time at which it runs by itself.
    pub(crate) const fn deadline(&self) -> Option<u64> {
        match self.state {
            State::Change { until, .. } | State::Ready { until, .. } if until < u64::MAX => {
                Some(until)
            }
            _ => None,
        }
    }

    /// Names what it waits for.
    pub(crate) fn tell(&self) -> String {
        let state = match &self.state {
            State::Ready { fds, until } => format!("waits for {} until {until}", fds.len()),
            state => format!("{state:?}"),
        };
        let frozen = if self.is_frozen {
            ", without a processor"
        } else {
            ""
        };
        format!("\n  {}: {state}{frozen}, turns {:?}", self.name, self.turns)
    }

    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Lets go of a thread that does not hand over. Returns a text about it.
    fn abandon(&mut self) -> String {
        (self.orders, self.reports, self.join) = (None, None, None);
        self.state = State::Ended;
        format!(
            "thread {} has run for {PATIENCE:?}: it computes, or waits for something outside of \
             the simulated host, for which it has to wait in a loop that sleeps there",
            self.name
        )
    }
}

/// A turn of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The time at its end.
    at: u64,
    thread: usize,
    /// The number of the pause after it.
    kind: usize,
    /// The place of the pause.
    place: Option<Place>,
}

/// Counts of what happened at a place in the code.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Visits {
    /// Number of turns that ended there.
    pub(crate) turns: u64,
    /// Number of threads that were there when their process was killed.
    #[cfg(test)]
    pub(crate) deaths: u64,
}

/// The places at which threads hand over.
pub(crate) type Places = BTreeMap<Place, Visits>;

/// The threads of a host.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) shared: Arc<Shared>,
    pub(crate) threads: Vec<Thread>,
    /// Number of turns so far.
    pub(crate) turns: u64,
    /// Number of turns after which something may have changed.
    changes: u64,
    /// A process that is stopped.
    pub(crate) stopped: Option<usize>,
    /// All turns so far.
    pub(crate) steps: Vec<Turn>,
    pub(crate) places: Places,
    delivery: Delivery,
}

impl Schedule {
    /// # Errors
    /// The system has no sockets on loopback.
    pub(crate) fn new(time: Arc<AtomicU64>, seed: u64, slow: SlowPlaces) -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                time,
                random: Mutex::new(Random(seed)),
                held_by_others: AtomicUsize::new(0),
                spawned: Mutex::default(),
                has_sent: AtomicBool::new(false),
                slow,
                slow_left: AtomicU64::new(0),
            }),
            threads: Vec::new(),
            turns: 0,
            changes: 0,
            stopped: None,
            steps: Vec::new(),
            places: Places::new(),
            delivery: Delivery::new()?,
        })
    }

    /// Waits until the datagrams of a turn have arrived.
    pub(crate) fn deliver(&mut self) {
        self.delivery.wait();
    }

    /// Takes over the threads that were started.
    pub(crate) fn take_spawned(&mut self) {
        self.threads.append(&mut lock(&self.shared.spawned));
    }

    /// Returns true if a thread gets no processor.
    pub(crate) fn is_held(&self, thread: &Thread) -> bool {
        thread.is_frozen || self.stopped == Some(thread.process)
    }

    /// Returns the threads that can run, and if all of them look for work in vain.
    pub(crate) fn runnable(&self) -> (Vec<usize>, bool) {
        let now = self.shared.now_ns();
        let with_input = self.threads_with_input();
        let can_run = |index: usize, thread: &Thread| match &thread.state {
            State::Turn | State::Idle => true,
            State::Change { since, until } => *since < self.changes || *until <= now,
            State::Ready { until, .. } => *until <= now || with_input.contains(&index),
            State::Ended => false,
        };
        let all = self.threads.iter().enumerate();
        let ready = all.filter(|(index, thread)| !self.is_held(thread) && can_run(*index, thread));
        let ready: Vec<_> = ready.map(|(index, _)| index).collect();
        let is_idle = |index: &usize| {
            let state = &self.threads[*index].state;
            matches!(state, State::Idle | State::Change { .. })
        };
        let all_idle = ready.iter().all(is_idle);
        (ready, all_idle)
    }

    /// Returns the threads that wait for descriptors of which one is ready.
    fn threads_with_input(&self) -> Vec<usize> {
        let mut fds = Vec::new();
        let mut threads = Vec::new();
        for (index, thread) in self.threads.iter().enumerate() {
            if let State::Ready { fds: of_thread, .. } = &thread.state {
                fds.extend_from_slice(of_thread);
                threads.resize(fds.len(), index);
            }
        }
        if !sys::poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0) {
            return Vec::new();
        }
        let all = fds.into_iter().zip(threads);
        let mut ready: Vec<_> = all
            .filter(|(fd, _)| fd.revents != 0)
            .map(|(_, at)| at)
            .collect();
        ready.dedup();
        ready
    }

    /// Returns those of the threads that are not slow where they are, or all if each is.
    pub(crate) fn without_slow(&self, ready: Vec<usize>) -> Vec<usize> {
        let is_slow = |index: &usize| {
            let thread = &self.threads[*index];
            let place = thread.place.filter(|_| matches!(thread.state, State::Turn));
            place.is_some_and(|place| self.shared.is_slow(place))
        };
        let (slow, others): (Vec<_>, Vec<_>) = ready.into_iter().partition(is_slow);
        if others.is_empty() { slow } else { others }
    }

    /// Lets a thread run until it hands over.
    ///
    /// # Errors
    /// The text of its panic.
    pub(crate) fn run(&mut self, index: usize) -> Result<(), String> {
        self.turns += 1;
        let now = self.shared.now_ns();
        let others = self.threads.iter().enumerate();
        let others = others.filter(|(other, thread)| *other != index && !thread.has_ended());
        let held = others.map(|(_, thread)| thread.locks).sum();
        self.shared.held_by_others.store(held, Ordering::Relaxed);
        let thread = &mut self.threads[index];
        let orders = thread.orders.as_ref().expect("it lives");
        assert!(orders.send(()), "it lives");
        let end = |from: u64, time: Option<Duration>| {
            let ns = time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            ns.map_or(u64::MAX, |ns| from.saturating_add(ns))
        };
        let reports = thread.reports.as_ref().expect("it lives");
        let Ok(report) = reports.receive_within(PATIENCE) else {
            return Err(thread.abandon());
        };
        if self.shared.has_sent.swap(false, Ordering::Relaxed) {
            self.delivery.wait();
        }
        let later = self.shared.now_ns().max(now);
        let (state, kind) = match report {
            Report::Paused(pause, locks, place) => {
                thread.locks = locks;
                thread.place = place;
                if let Some(place) = place {
                    self.places.entry(place).or_default().turns += 1;
                }
                self.changes += u64::from(pause.may_follow_a_change());
                match pause {
                    Pause::Turn => (State::Turn, 1),
                    Pause::Idle => (State::Idle, IDLE),
                    Pause::Lock { .. } | Pause::Change { .. } => {
                        let until = match pause {
                            Pause::Change { time, .. } => end(later, time),
                            _ => u64::MAX,
                        };
                        let since = self.changes;
                        (State::Change { since, until }, 3)
                    }
                    Pause::Ready { fds, time } => {
                        let until = end(later, time);
                        (State::Ready { fds, until }, 4)
                    }
                }
            }
            Report::Ended(failure) => {
                thread.orders = None;
                self.changes += 1;
                self.steps.push(Turn {
                    at: later,
                    thread: index,
                    kind: 0,
                    place: None,
                });
                let name = thread.name.clone();
                thread.state = State::Ended;
                if let Some(join) = thread.join.take() {
                    let _ = join.join();
                }
                self.take_spawned();
                return failure.map_or(Ok(()), |text| Err(format!("thread {name}: {text}")));
            }
        };
        thread.state = state;
        thread.turns[kind] += 1;
        self.steps.push(Turn {
            at: later,
            thread: index,
            kind,
            place: thread.place,
        });
        self.take_spawned();
        Ok(())
    }

    /// Returns the thread of the last turn, and the hash of the place at which it has ended.
    #[cfg(test)]
    pub(crate) fn place_of_last_turn(&self) -> Option<(usize, u32)> {
        let turn = self.steps.last()?;
        Some((turn.thread, hash(turn.place?)))
    }

    /// Forgets all turns but some of the last ones, if there are many.
    pub(crate) fn forget_steps(&mut self, kept: usize) {
        if self.steps.len() > 2 * kept {
            self.steps.drain(..self.steps.len() - kept);
        }
    }

    /// Returns the last turns that did more than look for work in vain, with their times.
    pub(crate) fn last_steps(&self, count: usize) -> Vec<(u64, String)> {
        let told = self.steps.iter().rev().filter(|turn| turn.kind != IDLE);
        let text = |turn: &Turn| {
            let name = &self.threads[turn.thread].name;
            let place = turn
                .place
                .map(|at| format!(" at {}:{}", at.file(), at.line()));
            let place = place.unwrap_or_default();
            (turn.at, format!("{name} {}{place}", PAUSES[turn.kind]))
        };
        let mut steps: Vec<_> = told.take(count).map(text).collect();
        steps.reverse();
        steps
    }

    /// Returns true if the thread holds no lock, so that others do not need it to run.
    #[cfg(test)]
    pub(crate) fn may_freeze(&self, index: usize) -> bool {
        let thread = &self.threads[index];
        thread.locks == 0 && !thread.has_ended()
    }

    /// Notes the places at which the threads of a process are, because it dies now. Returns a text
    /// about them.
    #[cfg(test)]
    pub(crate) fn note_death(&mut self, process: usize) -> String {
        let mut text = String::new();
        let all = self.threads.iter();
        let living = all.filter(|thread| thread.process == process && !thread.has_ended());
        for (place, name) in living.filter_map(|thread| Some((thread.place?, &thread.name))) {
            self.places.entry(place).or_default().deaths += 1;
            text += &format!(" {name} at {}:{}", place.file(), place.line());
        }
        text
    }

    /// Kills a process at this moment: what it shares with others is cut, its threads unwind, and
    /// what they had is dropped.
    ///
    /// # Errors
    /// The text of a panic.
    pub(crate) fn kill(&mut self, process: &Process) -> Result<(), String> {
        process.is_dead.store(true, Ordering::Relaxed);
        for (start, len) in lock(&process.mappings).iter() {
            sys::detach_memory(*start, *len);
        }
        for round in 0..ROUNDS_OF_DEATH {
            let all = self.threads.iter().enumerate();
            let left = all.filter(|(_, one)| one.process == process.number && !one.has_ended());
            // The first thread has the objects, and is the last to let go. But it may hold a lock.
            let left: Vec<_> = left.map(|(index, _)| index).rev().collect();
            if left.is_empty() {
                return Ok(());
            }
            let [others @ .., first] = &left[..] else {
                return Ok(());
            };
            for index in others {
                self.run(*index)?;
            }
            if others.is_empty() || round > ROUNDS_WITHOUT_FIRST {
                self.run(*first)?;
            }
        }
        Err(format!("process {} does not end", process.name))
    }
}

/// Locks a mutex that only the running thread uses.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the text of a panic.
pub(crate) fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic").to_owned()
}
