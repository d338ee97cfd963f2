//! A host: its brokers, its processes with engines, and the events of a plan.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::board::{BROKER_ENDED, BROKER_KILLED, Board, End};
use super::plan::{Act, PROCESSES, Plan, SUCCESSOR};
use super::program;
use super::schedule::{Places, Process, Schedule, Shared, State, Turn, lock};
use super::{Marks, connecting};
use crate::broker::hostsim::brokers::{Brokers, expire, until_closed};

/// Turns before a process may be killed at a place.
const FIRST_DEATH: u64 = 20;
/// Virtual time after which a host has to be at rest, in ns. Longer than all retries, also those of
/// the connection manager.
const LIMIT_NS: u64 = 200_000_000_000;
/// Virtual time in which all that was sent has come, in ns.
const REST_NS: u64 = 100_000_000;
/// Virtual time for which a thread gets no processor at most, in ns. Longer than all retries, and
/// than a broker waits for clients of an earlier one and for sockets that it does not know.
const FROZEN_NS: u64 = 8_000_000_000;
/// Most turns of a run.
const MOST_TURNS: u64 = 400_000;
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
/// A peer that is stopped longer may be taken for a dead one, in ns.
const LONG_STOP_NS: u64 = 100_000_000;
/// Number of turns that a failure tells.
const STEPS_TOLD: usize = 120;

/// A thread that gets no processor.
#[derive(Clone, Copy, Debug)]
struct Frozen {
    thread: usize,
    end: End,
    until: u64,
}

/// The result of a run without a violation.
pub(super) struct Outcome {
    /// All turns.
    pub(super) turns: Vec<Turn>,
    /// Counts of what has happened.
    pub(super) marks: Marks,
    pub(super) places: Places,
}

/// A host that runs a plan.
pub(super) struct Host {
    brokers: Brokers,
    schedule: Schedule,
    processes: BTreeMap<usize, Arc<Process>>,
    board: Arc<Board>,
    begin: u64,
    frozen: Option<Frozen>,
    /// Time until which a process is stopped.
    stopped_until: u64,
    /// Turn after which the process of a strike is killed.
    strike_at: Option<u64>,
    /// Turns that are left to the process which is killed at a place.
    visits_left: u64,
    last: Option<usize>,
    /// Time until which something was left to do.
    settled_at: u64,
    /// Texts about the processes that were killed.
    deaths: Vec<String>,
    /// The events that are left, by their turns.
    acts: VecDeque<(u64, Act)>,
    /// Number of turns in which threads only looked for work, less those with work.
    idle_turns: u32,
}

impl Host {
    pub(super) fn new(plan: &Plan) -> Self {
        Self::captured(plan, None)
    }

    /// Makes a host whose processes write their packets to a file when they end.
    pub(super) fn captured(plan: &Plan, capture: Option<PathBuf>) -> Self {
        let brokers = Brokers::new();
        let time = brokers.time();
        let schedule = Schedule::new(brokers.time(), plan.seed);
        let begin = schedule.shared.now_ns();
        let mut host = Self {
            brokers,
            schedule,
            processes: BTreeMap::new(),
            board: Arc::new(Board::new(plan.clone(), capture, time)),
            begin,
            frozen: None,
            stopped_until: 0,
            strike_at: None,
            visits_left: plan.place_of_death.map_or(0, |place| place.visits),
            last: None,
            settled_at: begin,
            deaths: Vec::new(),
            acts: plan.acts.clone().into(),
            idle_turns: 0,
        };
        for number in 0..PROCESSES {
            host.start(number);
        }
        host
    }

    fn start(&mut self, number: usize) {
        let process = Arc::new(Process {
            number,
            identity: self.brokers.new_process(),
            is_dead: AtomicBool::new(false),
            datagrams_left: AtomicU64::new(self.board.plan.datagrams_of(number)),
            is_doomed: AtomicBool::new(false),
            mappings: Mutex::default(),
            alarms: Mutex::default(),
        });
        let (board, config) = (Arc::clone(&self.board), self.brokers.config());
        let run = move || program::run(&board, number, config);
        self.schedule.shared.spawn(&process, "main", Box::new(run));
        self.processes.insert(number, process);
    }

    /// Runs the plan.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(super) fn run(mut self) -> Result<Outcome, String> {
        let result = self.run_acts();
        let result = result.map_err(|text| text + &self.deaths.concat() + &self.tell_steps());
        let left: Vec<_> = self.processes.keys().copied().collect();
        for process in left {
            let ended = self.kill(process);
            if result.is_ok() {
                ended?;
            }
        }
        let marks = self.board.notes().marks.clone();
        let deaths = self.deaths.concat();
        drop(self.brokers);
        if result.is_ok() {
            until_closed().map_err(|text| text + &deaths)?;
        }
        result.map(|()| Outcome {
            turns: self.schedule.steps,
            marks,
            places: self.schedule.places,
        })
    }

    fn run_acts(&mut self) -> Result<(), String> {
        self.schedule.take_spawned();
        loop {
            while let Some((at, act)) = self.acts.front().copied()
                && at <= self.schedule.turns
            {
                self.acts.pop_front();
                self.act(act)?;
            }
            self.strike()?;
            self.thaw()?;
            self.resume();
            let complaint = self.board.notes().complaints.first().cloned();
            if let Some(complaint) = complaint {
                return Err(complaint);
            }
            let now = self.schedule.shared.now_ns();
            let is_stopped = self.schedule.stopped.is_some();
            if is_stopped || !self.board.unsettled(&[]).is_empty() {
                self.settled_at = now;
            } else if now - self.settled_at > REST_NS {
                return self.board.check_flows();
            }
            if now - self.begin > LIMIT_NS || self.schedule.turns > MOST_TURNS {
                return Err(self.explain_unrest());
            }
            self.turn(now)?;
            self.kill_doomed()?;
            self.kill_at_place()?;
        }
    }

    /// Kills the process whose turn has ended at the place of the plan.
    fn kill_at_place(&mut self) -> Result<(), String> {
        let Some(of_plan) = self.board.plan.place_of_death else {
            return Ok(());
        };
        let Some((process, group)) = self.schedule.place_of_last_turn() else {
            return Ok(());
        };
        if self.visits_left == 0 || group != of_plan.group || self.schedule.turns < FIRST_DEATH {
            return Ok(());
        }
        self.visits_left -= 1;
        if self.visits_left > 0 {
            return Ok(());
        }
        self.board.mark("a process is killed at a place");
        self.act(Act::Kill(process))
    }

    /// Kills a process that has sent as many datagrams as the plan says.
    fn kill_doomed(&mut self) -> Result<(), String> {
        let is_doomed = |process: &&Arc<Process>| process.is_doomed.load(Ordering::Relaxed);
        let doomed = self.processes.values().find(is_doomed);
        let Some(number) = doomed.map(|process| process.number) else {
            return Ok(());
        };
        self.board.mark("a process is killed after a datagram");
        self.act(Act::Kill(number))
    }

    /// Names the ends that are not done, and what their threads wait for.
    fn explain_unrest(&self) -> String {
        let ns = self.schedule.shared.now_ns() - self.begin;
        let ends = self.board.unsettled(&[]);
        let mut text = format!("ends do not come to rest in {ns} ns: {ends:?}");
        for thread in &self.schedule.threads {
            let state = match &thread.state {
                State::Ready { fds, until } => format!("waits for {} until {until}", fds.len()),
                state => format!("{state:?}"),
            };
            let frozen = if thread.is_frozen {
                ", without a processor"
            } else {
                ""
            };
            let turns = thread.turns;
            text += &format!("\n  {}: {state}{frozen}, turns {turns:?}", thread.name);
        }
        text + &format!("\n  {:?}", self.board.notes().flows)
    }

    /// Tells the last turns and what the programs have noted, by time.
    fn tell_steps(&self) -> String {
        let steps = self.schedule.last_steps(STEPS_TOLD);
        let since = steps.first().map_or(0, |(at, _)| *at);
        let notes = self.board.notes().log.clone();
        let mut all: Vec<_> = notes.into_iter().filter(|(at, _)| *at >= since).collect();
        all.extend(steps);
        all.sort_by_key(|(at, _)| *at);
        let mut text = "\nThe last turns, in us since the begin:".to_owned();
        for (at, step) in all {
            let us = at.saturating_sub(self.begin) as f64 / 1e3;
            text += &format!("\n{us:12.3}  {step}");
        }
        text
    }

    /// Kills a process that has received what the plan says.
    fn strike(&mut self) -> Result<(), String> {
        let Some(strike) = self.board.plan.strike else {
            return Ok(());
        };
        let turns = self.schedule.turns;
        if self.strike_at.is_none() {
            let flow = self.board.notes().flows.get(&strike.sender).copied();
            let is_due = flow.is_some_and(|flow| flow.received >= strike.messages);
            self.strike_at = is_due.then_some(turns + strike.turns);
        }
        if self.strike_at != Some(turns) {
            return Ok(());
        }
        let receiver = self.board.process_of(super::board::other(strike.sender));
        if self.processes.contains_key(&receiver) {
            self.board
                .mark("a process is killed soon after it has received");
        }
        self.act(Act::Kill(receiver))
    }

    fn act(&mut self, act: Act) -> Result<(), String> {
        self.board.note(format!("{act:?}"));
        match act {
            Act::Kill(process) => {
                if self.processes.contains_key(&process) {
                    self.board.mark("a process is killed");
                    self.board.notes().dead.insert(process);
                    let places = self.schedule.note_death(process);
                    self.deaths
                        .push(format!("\nprocess {process} dies:{places}"));
                    self.kill(process)?;
                }
            }
            Act::KillBroker => {
                self.board.mark(BROKER_KILLED);
                self.brokers.kill()?;
            }
            Act::EndBroker => {
                if self.brokers.tell_to_end()? {
                    self.board.mark(BROKER_ENDED);
                }
            }
            Act::Freeze(number) => self.freeze(number),
            Act::Stop(process, ns) => self.stop(process, ns),
            Act::Start => {
                self.board.mark("a process starts later");
                self.start(SUCCESSOR);
                self.schedule.take_spawned();
            }
        }
        Ok(())
    }

    fn kill(&mut self, number: usize) -> Result<(), String> {
        let Some(process) = self.processes.remove(&number) else {
            return Ok(());
        };
        if let Some(frozen) = self
            .frozen
            .take_if(|frozen| self.schedule.threads[frozen.thread].process == number)
        {
            self.schedule.threads[frozen.thread].is_frozen = false;
        }
        self.schedule.stopped.take_if(|stopped| *stopped == number);
        let result = self.schedule.kill(&process);
        self.brokers.end(&process.identity);
        result
    }

    /// Stops a process, as SIGSTOP does.
    fn stop(&mut self, process: usize, ns: u64) {
        // Each keeps others from work, so that one of them could be blamed for the other.
        let is_free = self.frozen.is_none() && self.schedule.stopped.is_none();
        if is_free && self.processes.contains_key(&process) {
            self.board.mark("a process is stopped");
            self.board.notes().halted.insert(process);
            if ns > LONG_STOP_NS {
                self.board.notes().stopped.insert(process);
            }
            self.schedule.stopped = Some(process);
            self.stopped_until = self.schedule.shared.now_ns() + ns;
        }
    }

    /// Lets a stopped process continue when its time has come.
    fn resume(&mut self) {
        let now = self.schedule.shared.now_ns();
        if now >= self.stopped_until
            && let Some(process) = self.schedule.stopped.take()
        {
            self.settled_at = now;
            self.board.note(format!("process {process} continues"));
        }
    }

    /// Takes the processor from a thread that holds no lock.
    fn freeze(&mut self, number: usize) {
        if self.frozen.is_some() || self.schedule.stopped.is_some() {
            return;
        }
        let end = (number / 2, number % 2);
        if end.0 >= self.board.plan.connections.len() {
            return;
        }
        let process = self.board.process_of(end);
        let main = self
            .board
            .ends()
            .find(|end| self.board.process_of(*end) == process);
        let name = if main == Some(end) {
            format!("{process}.main")
        } else {
            format!("{process}.{}", program::name_of(end))
        };
        let found = self
            .schedule
            .threads
            .iter()
            .position(|thread| thread.name == name);
        if let Some(thread) = found.filter(|thread| self.schedule.may_freeze(*thread)) {
            self.board.mark("a thread gets no processor");
            self.schedule.threads[thread].is_frozen = true;
            let until = self.schedule.shared.now_ns() + FROZEN_NS;
            self.frozen = Some(Frozen { thread, end, until });
        }
    }

    /// Lets a frozen thread go on if all others are done, or when they had enough time for it.
    fn thaw(&mut self) -> Result<(), String> {
        let Some(frozen) = self.frozen else {
            return Ok(());
        };
        let unsettled = self.board.unsettled(&[frozen.end.0]);
        let is_over = self.schedule.shared.now_ns() >= frozen.until;
        if !unsettled.is_empty() && !is_over {
            return Ok(());
        }
        // The first thread of a process starts the others.
        let process = self.board.process_of(frozen.end);
        let has_begun = |end: &End| self.board.notes().endpoints.contains_key(end);
        let is_kept = |end: &&End| {
            let ends = [**end, super::board::other(**end)];
            let may_wait = connecting::may_wait_long(&self.board, &self.board.notes(), **end);
            !may_wait
                && ends.iter().all(has_begun)
                && ends
                    .iter()
                    .any(|end| self.board.process_of(*end) == process)
        };
        if let Some(end) = unsettled.iter().find(is_kept) {
            return Err(format!(
                "thread {} gets no processor, and keeps {end:?} from its messages\n{}",
                self.schedule.threads[frozen.thread].name,
                self.explain_unrest()
            ));
        }
        self.schedule.threads[frozen.thread].is_frozen = false;
        self.frozen = None;
        Ok(())
    }

    /// Gives a thread or a broker a turn, or lets time pass.
    fn turn(&mut self, now: u64) -> Result<(), String> {
        self.expire_timers(now);
        let has_broker = self.brokers.has_ready();
        let (ready, all_idle) = self.schedule.runnable();
        let shared = Arc::clone(&self.schedule.shared);
        let deadline = self.next_deadline();
        let is_quick = self.board.plan.is_quick;
        let pass = |ns: u64| {
            shared.time.fetch_add(ns, Ordering::Relaxed);
        };
        if has_broker && (ready.is_empty() || shared.below(4) == 0) {
            self.schedule.turns += 1;
            self.brokers.work()?;
            self.schedule.deliver();
            pass(time_of_turn(&shared, is_quick));
            return Ok(());
        }
        if ready.is_empty() {
            // All may wait for a process that has not started.
            let starts = self.acts.iter().any(|(_, act)| *act == Act::Start);
            if let Some((at, _)) = self.acts.front().filter(|_| starts) {
                self.schedule.turns = self.schedule.turns.max(*at);
                return Ok(());
            }
            let is_settled = self.board.unsettled(&[]).is_empty();
            let Some(next) = deadline.or_else(|| is_settled.then_some(now + 2 * REST_NS)) else {
                return Err(self.explain_unrest());
            };
            self.schedule.turns += 1;
            pass(next.saturating_sub(now).max(1));
            return Ok(());
        }
        // A thread hands over within its looks, too.
        self.idle_turns = match all_idle {
            true => (self.idle_turns + 1).min(MOST_IDLE_TURNS),
            false => self.idle_turns.saturating_sub(TURNS_OF_WORK),
        };
        if all_idle {
            let most = IDLE_NS << (self.idle_turns / IDLE_TURNS);
            let most = deadline.map_or(most, |next| next.saturating_sub(now).min(most));
            pass(shared.below(most.max(1)));
        }
        let at = usize::try_from(shared.below(ready.len() as u64)).unwrap_or(0);
        let last = self
            .last
            .filter(|last| ready.contains(last) && shared.below(2) == 0);
        let next = last.unwrap_or(ready[at]);
        self.last = Some(next);
        pass(time_of_turn(&shared, is_quick));
        self.schedule.run(next)
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
}

/// Draws the time that a turn takes.
fn time_of_turn(shared: &Shared, is_quick: bool) -> u64 {
    if is_quick {
        return shared.below(QUICK_TURN_NS);
    }
    let kind = usize::try_from(shared.below(4)).unwrap_or(0);
    shared.below(TURN_NS[kind])
}
