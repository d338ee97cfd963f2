//! The processes of a host with engines, its brokers, and whose turn is next.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::schedule::{Process, Schedule, Shared, SlowPlaces, Thread, lock};
use crate::broker::simulated::brokers::{Brokers, expire, until_closed};
use crate::config::BrokerConfig;

/// Most of the time that passes while all threads only look for work, in ns.
const IDLE_NS: u64 = 20_000;
/// Number of such turns until that time doubles.
const IDLE_TURNS: u32 = 16;
/// Most of such turns that count.
const MOST_IDLE_TURNS: u32 = 6 * IDLE_TURNS;
/// Number of such turns that one with work outweighs.
const TURNS_OF_WORK: u32 = 3;
/// Most of the time that a turn takes, in ns. Most turns are short.
const TURN_NS: [u64; 4] = [500, 500, 2_000, 50_000];
/// Most of the time that a turn takes if processors are idle, in ns.
const QUICK_TURN_NS: u64 = 700;

/// Number of turns of other threads for one of a thread at a slow place.
const TURNS_PER_SLOW_ONE: u64 = 16;

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    /// A thread or a broker has had a turn.
    Ran,
    /// None can run before this time, if any.
    Waits(Option<u64>),
}

/// The processes and brokers of a host.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) brokers: Brokers,
    pub(crate) schedule: Schedule,
    pub(crate) processes: BTreeMap<usize, Arc<Process>>,
    /// Turns are short, as on a machine with idle processors.
    is_quick: bool,
    /// Time until which a process is stopped.
    stopped_until: u64,
    last: Option<usize>,
    /// Time at which the host was made.
    begin: u64,
    /// Number of turns in which threads only looked for work, less those with work.
    idle_turns: u32,
}

impl Stage {
    /// Makes a host without processes.
    ///
    /// # Errors
    /// The system lacks what it needs: a directory, sockets on loopback.
    pub(crate) fn new(seed: u64, is_quick: bool, slow: SlowPlaces) -> io::Result<Self> {
        // Those of an earlier host, which all have the same addresses.
        let _ = until_closed();
        let brokers = Brokers::new()?;
        let schedule = Schedule::new(brokers.time(), seed, slow)?;
        Ok(Self {
            begin: schedule.shared.now_ns(),
            brokers,
            schedule,
            processes: BTreeMap::new(),
            is_quick,
            stopped_until: 0,
            last: None,
            idle_turns: 0,
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.schedule.shared.now_ns()
    }

    /// Returns the time since the host was made.
    pub(crate) fn since_begin(&self) -> Duration {
        self.since_begin_of(self.now_ns())
    }

    /// Returns the time from when the host was made to `at`.
    pub(crate) fn since_begin_of(&self, at: u64) -> Duration {
        Duration::from_nanos(at.saturating_sub(self.begin))
    }

    /// Returns the processes whose first thread has ended.
    pub(crate) fn ended(&self) -> Vec<usize> {
        let numbers = self.processes.keys().copied();
        let has_ended = |number: &usize| {
            let mut threads = self.schedule.threads.iter();
            let first = threads.find(|thread| thread.process == *number);
            first.is_some_and(Thread::has_ended)
        };
        numbers.filter(has_ended).collect()
    }

    /// Starts a process with a name and the directory of its broker. It is killed right after it
    /// has sent so many datagrams.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    pub(crate) fn start(
        &mut self,
        number: usize,
        (name, dir): (&str, u8),
        datagrams: u64,
        run: impl FnOnce(BrokerConfig) + Send + 'static,
    ) -> io::Result<()> {
        let process = Arc::new(Process {
            number,
            name: name.to_owned(),
            identity: self.brokers.new_process(dir)?,
            is_dead: AtomicBool::new(false),
            datagrams_left: AtomicU64::new(datagrams),
            is_doomed: AtomicBool::new(false),
            mappings: Mutex::default(),
            alarms: Mutex::default(),
        });
        let config = self.brokers.config(dir);
        let run = move || run(config);
        self.schedule.shared.spawn(&process, "main", Box::new(run));
        self.processes.insert(number, process);
        self.schedule.take_spawned();
        Ok(())
    }

    /// Kills a process if it lives, or forgets it if it has ended.
    ///
    /// # Errors
    /// The text of a panic.
    pub(crate) fn kill(&mut self, number: usize) -> Result<(), String> {
        let Some(process) = self.processes.remove(&number) else {
            return Ok(());
        };
        self.schedule.stopped.take_if(|stopped| *stopped == number);
        let result = self.schedule.kill(&process);
        self.brokers.end(&process.identity);
        result
    }

    /// Stops a process, as SIGSTOP does, for so many nanoseconds.
    pub(crate) fn stop(&mut self, number: usize, ns: u64) {
        self.schedule.stopped = Some(number);
        self.stopped_until = self.now_ns().saturating_add(ns);
    }

    /// Lets a stopped process continue when its time has come. Returns its number then.
    pub(crate) fn resume(&mut self) -> Option<usize> {
        let is_over = self.now_ns() >= self.stopped_until;
        self.schedule.stopped.take_if(|_| is_over)
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, ns: u64) {
        self.schedule.shared.time.fetch_add(ns, Ordering::Relaxed);
    }

    /// Gives a thread or a broker a turn, if one can run.
    ///
    /// # Errors
    /// A text that names the broken condition, or that of a panic.
    pub(crate) fn turn(&mut self) -> Result<Turned, String> {
        let now = self.now_ns();
        self.expire_timers(now);
        let has_broker = self.brokers.has_ready();
        let (ready, all_idle) = self.schedule.runnable();
        let shared = Arc::clone(&self.schedule.shared);
        let deadline = self.next_deadline();
        if has_broker && (ready.is_empty() || shared.below(4) == 0) {
            self.schedule.turns += 1;
            self.brokers.work()?;
            self.schedule.deliver();
            self.pass(time_of_turn(&shared, self.is_quick));
            return Ok(Turned::Ran);
        }
        if ready.is_empty() {
            return Ok(Turned::Waits(deadline));
        }
        // A thread hands over within its looks, too.
        self.idle_turns = match all_idle {
            true => (self.idle_turns + 1).min(MOST_IDLE_TURNS),
            false => self.idle_turns.saturating_sub(TURNS_OF_WORK),
        };
        if all_idle {
            let most = IDLE_NS << (self.idle_turns / IDLE_TURNS);
            let most = deadline.map_or(most, |next| next.saturating_sub(now).min(most));
            self.pass(shared.below(most.max(1)));
        }
        let ready = match shared.below(TURNS_PER_SLOW_ONE) {
            0 => ready,
            _ => self.schedule.without_slow(ready),
        };
        let at = usize::try_from(shared.below(ready.len() as u64)).unwrap_or(0);
        let last = self
            .last
            .filter(|last| ready.contains(last) && shared.below(2) == 0);
        let next = last.unwrap_or(ready[at]);
        self.last = Some(next);
        self.pass(time_of_turn(&shared, self.is_quick));
        self.schedule.run(next)?;
        Ok(Turned::Ran)
    }

    /// Lets the time pass in which nothing can run.
    pub(crate) fn pass_until(&mut self, next: u64) {
        self.schedule.turns += 1;
        self.pass(next.saturating_sub(self.now_ns()).max(1));
    }

    /// Returns the earliest time at which a thread or a broker runs by itself.
    fn next_deadline(&self) -> Option<u64> {
        let threads = self.schedule.threads.iter();
        let awake = threads.filter(|thread| !self.schedule.is_held(thread));
        let threads = awake.filter_map(|thread| thread.deadline());
        let broker = self.brokers.next_deadline().map(|time| time.as_ns());
        let alarm = |process: &Arc<Process>| lock(&process.alarms).values().copied().min();
        let alarms = self.processes.values().filter_map(alarm);
        let resumed = self.schedule.stopped.map(|_| self.stopped_until);
        threads.chain(broker).chain(alarms).chain(resumed).min()
    }

    fn expire_timers(&self, now: u64) {
        for process in self.processes.values() {
            lock(&process.alarms).retain(|timer, due| {
                let is_due = *due <= now;
                if is_due {
                    expire(*timer);
                }
                !is_due
            });
        }
    }

    /// Names what each thread waits for.
    pub(crate) fn tell_threads(&self) -> String {
        let threads = self.schedule.threads.iter();
        threads.map(|thread| thread.tell()).collect()
    }
}

/// Draws the time that a turn takes.
fn time_of_turn(shared: &Shared, is_quick: bool) -> u64 {
    if is_quick {
        return shared.below(QUICK_TURN_NS);
    }
    let kind = usize::try_from(shared.below(4)).unwrap_or(0);
    shared.below(TURN_NS[kind])
}
