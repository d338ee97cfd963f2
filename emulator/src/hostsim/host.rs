//! A host: its brokers, its processes with engines, and the events of a plan.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::board::{BROKER_ENDED, BROKER_KILLED, Board, End};
use super::plan::{Act, PROCESSES, PlaceSet, Plan, SUCCESSOR, Visit};
use super::program;
use super::{Marks, connecting};
use crate::broker::simulated::brokers::until_closed;
use crate::simulated_host::schedule::{Places, Process, Turn};
use crate::simulated_host::stage::{Stage, Turned};

/// Messages before that of a strike from which on threads are slow.
const SLOW_BEFORE: u32 = 2;
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
const MOST_TURNS: u64 = 1_000_000;
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
    stage: Stage,
    board: Arc<Board>,
    begin: u64,
    frozen: Option<Frozen>,
    /// Threads have begun to be slow at some places.
    is_slow: bool,
    /// Turn after which the process of a strike is killed.
    strike_at: Option<u64>,
    /// The visit at which a process is killed: the process, if it is a certain one.
    death_at: Option<(Option<usize>, Visit)>,
    /// The visit at which a thread gets no processor.
    freeze_at: Option<Visit>,
    /// Time until which something was left to do.
    settled_at: u64,
    /// Texts about the processes that were killed.
    deaths: Vec<String>,
    /// The events that are left, by their turns.
    acts: VecDeque<(u64, Act)>,
}

impl Host {
    pub(super) fn new(plan: &Plan) -> Self {
        Self::captured(plan, None)
    }

    /// Makes a host whose processes write their packets to a file when they end.
    pub(super) fn captured(plan: &Plan, capture: Option<PathBuf>) -> Self {
        let stage = Stage::new(plan.seed, plan.is_quick, plan.slow).expect("a host");
        let (time, begin) = (stage.brokers.time(), stage.now_ns());
        let mut host = Self {
            stage,
            board: Arc::new(Board::new(plan.clone(), capture, time)),
            begin,
            frozen: None,
            is_slow: false,
            strike_at: None,
            death_at: plan.death.map(|visit| (None, visit)),
            freeze_at: plan.freeze,
            settled_at: begin,
            deaths: Vec::new(),
            acts: plan.acts.clone().into(),
        };
        for number in 0..PROCESSES {
            host.start(number);
        }
        host
    }

    fn start(&mut self, number: usize) {
        let board = Arc::clone(&self.board);
        let datagrams = board.plan.datagrams_of(number);
        let run = move |config| program::run(&board, number, config);
        let of = (&*number.to_string(), self.board.plan.host_of(number));
        let started = self.stage.start(number, of, datagrams, run);
        started.expect("a process");
    }

    /// Runs the plan.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(super) fn run(mut self) -> Result<Outcome, String> {
        let result = self.run_acts();
        let result = result.map_err(|text| text + &self.deaths.concat() + &self.tell_steps());
        let left: Vec<_> = self.stage.processes.keys().copied().collect();
        for process in left {
            let ended = self.kill(process);
            if result.is_ok() {
                ended?;
            }
        }
        let marks = self.board.notes().marks.clone();
        let deaths = self.deaths.concat();
        let Stage {
            brokers, schedule, ..
        } = self.stage;
        drop(brokers);
        if result.is_ok() {
            until_closed().map_err(|text| text + &deaths)?;
        }
        result.map(|()| Outcome {
            turns: schedule.steps,
            marks,
            places: schedule.places,
        })
    }

    fn run_acts(&mut self) -> Result<(), String> {
        loop {
            while let Some((at, act)) = self.acts.front().copied()
                && at <= self.stage.schedule.turns
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
            let now = self.stage.now_ns();
            let is_stopped = self.stage.schedule.stopped.is_some();
            if is_stopped || !self.board.unsettled(&[]).is_empty() {
                self.settled_at = now;
            } else if now - self.settled_at > REST_NS {
                return self.board.check_flows();
            }
            if now - self.begin > LIMIT_NS || self.stage.schedule.turns > MOST_TURNS {
                return Err(self.explain_unrest());
            }
            self.turn(now)?;
            self.kill_doomed()?;
            self.kill_at_place()?;
            self.freeze_at_place();
        }
    }

    /// Returns the thread whose turn has ended at one of these places.
    fn thread_at(&self, visit: Visit) -> Option<usize> {
        let (thread, hash) = self.stage.schedule.place_of_last_turn()?;
        let is_early = self.stage.schedule.turns < FIRST_DEATH;
        let may_be = !is_early || matches!(visit.places, PlaceSet::One(_));
        (visit.is_at(hash) && may_be).then_some(thread)
    }

    /// Kills the process whose turn has ended at the visit of the plan.
    fn kill_at_place(&mut self) -> Result<(), String> {
        let Some((wanted, visit)) = self.death_at else {
            return Ok(());
        };
        let Some(thread) = self.thread_at(visit) else {
            return Ok(());
        };
        let process = self.stage.schedule.threads[thread].process;
        if wanted.is_some_and(|wanted| wanted != process) {
            return Ok(());
        }
        self.death_at = visit.after_one().map(|visit| (wanted, visit));
        if self.death_at.is_some() {
            return Ok(());
        }
        self.board.mark("a process is killed at a place");
        self.act(Act::Kill(process))
    }

    /// Takes the processor from the thread whose turn has ended at the visit of the plan, or at the
    /// next one of a thread from which it can be taken.
    fn freeze_at_place(&mut self) {
        let Some(visit) = self.freeze_at else {
            return;
        };
        let Some(thread) = self.thread_at(visit) else {
            return;
        };
        if let Some(next) = visit.after_one() {
            self.freeze_at = Some(next);
            return;
        }
        let ends: Vec<_> = self.board.ends().collect();
        let end = ends
            .into_iter()
            .find(|end| self.thread_of(*end) == Some(thread));
        if let Some(end) = end
            && self.freeze(end)
        {
            self.freeze_at = None;
            self.board.mark("a thread gets no processor at a place");
        }
    }

    /// Kills a process that has sent as many datagrams as the plan says.
    fn kill_doomed(&mut self) -> Result<(), String> {
        let is_doomed = |process: &&Arc<Process>| process.is_doomed.load(Ordering::Relaxed);
        let doomed = self.stage.processes.values().find(is_doomed);
        let Some(number) = doomed.map(|process| process.number) else {
            return Ok(());
        };
        let exits = self.board.notes().exiting.contains(&number);
        self.board.mark(if exits {
            "a process exits"
        } else {
            "a process is killed after a datagram"
        });
        self.act(Act::Kill(number))
    }

    /// Names the ends that are not done, and what their threads wait for.
    fn explain_unrest(&self) -> String {
        let ns = self.stage.now_ns() - self.begin;
        let ends = self.board.unsettled(&[]);
        let mut text = format!("ends do not come to rest in {ns} ns: {ends:?}");
        text += &self.stage.tell_threads();
        text + &format!("\n  {:?}", self.board.notes().flows)
    }

    /// Tells the last turns and what the programs have noted, by time.
    fn tell_steps(&self) -> String {
        let steps = self.stage.schedule.last_steps(STEPS_TOLD);
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

    fn begin_slow(&mut self) {
        if !std::mem::replace(&mut self.is_slow, true) {
            self.stage.schedule.shared.begin_slow();
        }
    }

    /// Kills a process that has received what the plan says.
    fn strike(&mut self) -> Result<(), String> {
        let Some(strike) = self.board.plan.strike else {
            self.begin_slow();
            return Ok(());
        };
        let turns = self.stage.schedule.turns;
        if self.strike_at.is_none() {
            let flow = self.board.notes().flows.get(&strike.sender).copied();
            let received = flow.map_or(0, |flow| flow.received);
            if received + SLOW_BEFORE >= strike.messages {
                self.begin_slow();
            }
            self.strike_at = (received >= strike.messages).then_some(turns + strike.turns);
        }
        if self.strike_at != Some(turns) {
            return Ok(());
        }
        let receiver = self.board.process_of(super::board::other(strike.sender));
        if self.stage.processes.contains_key(&receiver) {
            self.board
                .mark("a process is killed soon after it has received");
        }
        if let Some(visit) = strike.visit {
            self.death_at = Some((Some(receiver), visit));
            return Ok(());
        }
        self.act(Act::Kill(receiver))
    }

    fn act(&mut self, act: Act) -> Result<(), String> {
        self.board.note(format!("{act:?}"));
        match act {
            Act::Kill(process) => {
                if self.stage.processes.contains_key(&process) {
                    self.board.mark("a process is killed");
                    self.board.notes().dead.insert(process);
                    let places = self.stage.schedule.note_death(process);
                    self.deaths
                        .push(format!("\nprocess {process} dies:{places}"));
                    self.kill(process)?;
                }
            }
            Act::KillBroker => {
                self.board.mark(BROKER_KILLED);
                self.stage.brokers.kill();
            }
            Act::EndBroker => {
                if self.stage.brokers.tell_to_end() {
                    self.board.mark(BROKER_ENDED);
                }
            }
            Act::Freeze(number) => {
                let end = (number / 2, number % 2);
                if end.0 < self.board.plan.connections.len() {
                    self.freeze(end);
                }
            }
            Act::Stop(process, ns) => self.stop(process, ns),
            Act::Exit(process) => {
                self.board.notes().exiting.insert(process);
            }
            Act::Start => {
                self.board.mark("a process starts later");
                self.start(SUCCESSOR);
            }
        }
        Ok(())
    }

    fn kill(&mut self, number: usize) -> Result<(), String> {
        let is_its = |frozen: &mut Frozen| {
            let thread = &self.stage.schedule.threads[frozen.thread];
            thread.process == number
        };
        if let Some(frozen) = self.frozen.take_if(is_its) {
            self.stage.schedule.threads[frozen.thread].is_frozen = false;
        }
        self.stage.kill(number)
    }

    /// Stops a process, as SIGSTOP does.
    fn stop(&mut self, process: usize, ns: u64) {
        // Each keeps others from work, so that one of them could be blamed for the other.
        let is_free = self.frozen.is_none() && self.stage.schedule.stopped.is_none();
        if is_free && self.stage.processes.contains_key(&process) {
            self.board.mark("a process is stopped");
            self.board.notes().halted.insert(process);
            if ns > LONG_STOP_NS {
                self.board.notes().stopped.insert(process);
            }
            self.stage.stop(process, ns);
        }
    }

    /// Lets a stopped process continue when its time has come.
    fn resume(&mut self) {
        if let Some(process) = self.stage.resume() {
            self.settled_at = self.stage.now_ns();
            self.board.note(format!("process {process} continues"));
        }
    }

    /// Returns the thread of an end.
    fn thread_of(&self, end: End) -> Option<usize> {
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
        let mut threads = self.stage.schedule.threads.iter();
        threads.position(|thread| thread.name == name)
    }

    /// Takes the processor from the thread of an end, if it holds no lock. Returns false if not.
    fn freeze(&mut self, end: End) -> bool {
        let is_free = self.frozen.is_none() && self.stage.schedule.stopped.is_none();
        let found = self.thread_of(end).filter(|_| is_free);
        let Some(thread) = found.filter(|thread| self.stage.schedule.may_freeze(*thread)) else {
            return false;
        };
        self.board.mark("a thread gets no processor");
        self.stage.schedule.threads[thread].is_frozen = true;
        let until = self.stage.now_ns() + FROZEN_NS;
        self.frozen = Some(Frozen { thread, end, until });
        true
    }

    /// Lets a frozen thread go on if all others are done, or when they had enough time for it.
    fn thaw(&mut self) -> Result<(), String> {
        let Some(frozen) = self.frozen else {
            return Ok(());
        };
        let unsettled = self.board.unsettled(&[frozen.end.0]);
        let is_over = self.stage.now_ns() >= frozen.until;
        if !unsettled.is_empty() && !is_over {
            return Ok(());
        }
        // The first thread of a process starts the others.
        let process = self.board.process_of(frozen.end);
        let has_begun = |end: &End| self.board.notes().endpoints.contains_key(end);
        let is_kept = |end: &&End| {
            let ends = [**end, super::board::other(**end)];
            let may_wait = connecting::may_wait_long(&self.board, &self.board.notes(), **end);
            // The thread may be the one that exits.
            let exits = ends.iter().any(|end| self.board.exits(*end));
            !(may_wait || exits)
                && ends.iter().all(has_begun)
                && ends
                    .iter()
                    .any(|end| self.board.process_of(*end) == process)
        };
        if let Some(end) = unsettled.iter().find(is_kept) {
            return Err(format!(
                "thread {} gets no processor, and keeps {end:?} from its messages\n{}",
                self.stage.schedule.threads[frozen.thread].name,
                self.explain_unrest()
            ));
        }
        self.stage.schedule.threads[frozen.thread].is_frozen = false;
        self.frozen = None;
        Ok(())
    }

    /// Gives a thread or a broker a turn, or lets time pass.
    fn turn(&mut self, now: u64) -> Result<(), String> {
        let Turned::Waits(deadline) = self.stage.turn()? else {
            return Ok(());
        };
        // All may wait for a process that has not started.
        let starts = self.acts.iter().any(|(_, act)| *act == Act::Start);
        if let Some((at, _)) = self.acts.front().filter(|_| starts) {
            self.stage.schedule.turns = self.stage.schedule.turns.max(*at);
            return Ok(());
        }
        let thawed = self.frozen.map(|frozen| frozen.until);
        let deadline = deadline.into_iter().chain(thawed).min();
        let is_settled = self.board.unsettled(&[]).is_empty();
        let Some(next) = deadline.or_else(|| is_settled.then_some(now + 2 * REST_NS)) else {
            return Err(self.explain_unrest());
        };
        self.stage.pass_until(next);
        Ok(())
    }
}
