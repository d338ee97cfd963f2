//! An executor for programs in a simulated network.
//!
//! It polls all tasks that can run. Only when all of them wait does the time move, to the next
//! event of the network or the end of the next [sleep](Simulation::sleep). Tasks run in the order
//! of their wake-ups, so a seed repeats a run.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{self, Poll, Wake, Waker};
use std::time::Duration;

use rocade_emulator::Engine;
use rocade_emulator::cm::CmChannel;
use rocade_transport::Time;

use crate::device::DeviceList;
use crate::error::{BlockOnError, NotSimulated, Result, TimedOut};
use crate::routing::{Router, lock};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The number of the future that [`Simulation::block_on`] runs.
const MAIN: u64 = 0;

/// All that waits in a simulated network.
pub(crate) struct Simulator {
    engine: Engine,
    is_running: AtomicBool,
    ready: Arc<Ready>,
    tasks: Mutex<Tasks>,
    waits: Mutex<Waits>,
}

/// The tasks that were woken, in this order.
#[derive(Default)]
struct Ready(Mutex<VecDeque<u64>>);

#[derive(Default)]
struct Tasks {
    last: u64,
    all: BTreeMap<u64, (Work, Waker)>,
}

#[derive(Default)]
struct Waits {
    queues: Vec<Weak<Router>>,
    channels: Vec<(CmChannel, Waker)>,
    timers: BTreeMap<(Time, u64), Waker>,
    last_timer: u64,
}

struct TaskWake {
    task: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = lock(&self.ready.0);
        if !ready.contains(&self.task) {
            ready.push_back(self.task);
        }
    }
}

impl Simulator {
    /// Returns `None` if the network is real.
    pub(crate) fn of(engine: &Engine) -> Option<Arc<Self>> {
        engine.simulated_time()?;
        Some(Arc::new(Self {
            engine: engine.clone(),
            is_running: AtomicBool::new(false),
            ready: Arc::default(),
            tasks: Mutex::default(),
            waits: Mutex::default(),
        }))
    }

    fn waker(&self, task: u64) -> Waker {
        let ready = Arc::clone(&self.ready);
        Waker::from(Arc::new(TaskWake { task, ready }))
    }

    fn now(&self) -> Time {
        let time = self.engine.simulated_time();
        time.map_or(Time::from_ns(0), |(now, _)| now)
    }

    /// Delivers the completions of a queue from now on. Returns true if no executor runs, so that
    /// the caller has moved the time and has to poll again.
    pub(crate) fn watch_queue(&self, queue: &Weak<Router>) -> bool {
        let mut waits = lock(&self.waits);
        waits.queues.retain(|known| known.strong_count() > 0);
        if !waits.queues.iter().any(|known| known.ptr_eq(queue)) {
            waits.queues.push(Weak::clone(queue));
        }
        drop(waits);
        self.moves_alone()
    }

    /// Wakes the task when the channel has an event. Returns as
    /// [`watch_queue`](Self::watch_queue).
    pub(crate) fn watch_channel(&self, channel: &CmChannel, waker: &Waker) -> bool {
        let mut waits = lock(&self.waits);
        let is_known = |(known, other): &(CmChannel, Waker)| {
            known.fd() == channel.fd() && other.will_wake(waker)
        };
        if !waits.channels.iter().any(is_known) {
            waits.channels.push((channel.clone(), waker.clone()));
        }
        drop(waits);
        self.moves_alone()
    }

    fn moves_alone(&self) -> bool {
        if self.is_running.load(Ordering::Acquire) || self.engine.simulated_time().is_none() {
            return false;
        }
        let moved = self.engine.step_simulation();
        self.deliver();
        moved
    }

    /// Wakes all whose events have happened.
    fn deliver(&self) {
        let mut waits = lock(&self.waits);
        let queues: Vec<_> = waits.queues.iter().filter_map(Weak::upgrade).collect();
        let with_event = waits
            .channels
            .extract_if(.., |(channel, _)| channel.has_event());
        let mut woken: Vec<Waker> = with_event.map(|(_, waker)| waker).collect();
        let now = self.now();
        while let Some(timer) = waits.timers.first_entry()
            && timer.key().0 <= now
        {
            woken.push(timer.remove());
        }
        drop(waits);
        for queue in queues {
            queue.take(false);
            queue.wake_if_removed();
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// Moves the time to the next event, and handles it. Returns false if there is none.
    fn advance(&self) -> bool {
        let timer = lock(&self.waits).timers.keys().next().copied();
        let next = self.engine.simulated_time().and_then(|(_, next)| next);
        let moved = match (timer, next) {
            (None, None) => false,
            (Some((at, _)), next) if next.is_none_or(|next| at < next) => {
                self.engine.move_simulated_time(at);
                true
            }
            _ => self.engine.step_simulation(),
        };
        self.deliver();
        moved
    }

    /// Runs a step of the network for a caller that waits until `end`. Returns false if nothing
    /// happens until then.
    pub(crate) fn step_until(&self, end: Time) -> bool {
        let next = self.engine.simulated_time().and_then(|(_, next)| next);
        if next.is_none_or(|next| next > end) {
            self.engine.move_simulated_time(end);
            return false;
        }
        self.engine.step_simulation()
    }

    /// Returns the time in `timeout`.
    pub(crate) fn end_of(&self, timeout: Duration) -> Time {
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.now().plus_ns(ns)
    }

    fn add(&self, work: Work) {
        let mut tasks = lock(&self.tasks);
        tasks.last += 1;
        let task = tasks.last;
        let waker = self.waker(task);
        waker.wake_by_ref();
        tasks.all.insert(task, (work, waker));
    }

    fn run_task(&self, task: u64) {
        let Some((mut work, waker)) = lock(&self.tasks).all.remove(&task) else {
            return;
        };
        let outcome = work.as_mut().poll(&mut task::Context::from_waker(&waker));
        if outcome.is_pending() {
            lock(&self.tasks).all.insert(task, (work, waker));
        }
    }
}

/// Ends a run: drops the tasks that have not finished.
struct Run<'a>(&'a Simulator);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let unfinished = std::mem::take(&mut lock(&self.0.tasks).all);
        drop(unfinished);
        lock(&self.0.ready.0).clear();
        self.0.is_running.store(false, Ordering::Release);
    }
}

/// A handle on a simulated network, which runs asynchronous programs in virtual time.
///
/// Polls all tasks that can run, and then moves the time to the next event. A single-threaded
/// program therefore behaves the same with each run of the same seed.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::{BlockOnError, Config, DeviceList};
///
/// let simulation = DeviceList::new(Config::simulated(1))?.simulation()?;
/// let begin = simulation.now();
/// let hour = Duration::from_secs(3600);
/// simulation.block_on(simulation.sleep(hour))?; // takes no real time
/// assert_eq!(simulation.now() - begin, hour);
///
/// // A program whose tasks all wait for each other ends with an error.
/// let outcome = simulation.block_on(std::future::pending::<()>());
/// assert_eq!(outcome, Err(BlockOnError::Stalled));
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Simulation(Arc<Simulator>);

impl DeviceList {
    /// Returns a handle on the simulated network of these devices.
    ///
    /// # Errors
    /// [`NotSimulated`] if the network is real.
    pub fn simulation(&self) -> Result<Simulation, NotSimulated> {
        let simulator = self.simulator().ok_or(NotSimulated)?;
        Ok(Simulation(Arc::clone(simulator)))
    }
}

impl Simulation {
    /// Runs a future and the tasks of [`spawn`](Self::spawn) until the future is ready. Tasks that
    /// have not finished by then are dropped.
    ///
    /// # Errors
    /// - [`BlockOnError::Stalled`] if all tasks wait, and nothing is going to happen in the
    ///   network.
    /// - [`BlockOnError::Running`] if the simulation runs a future already.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockOnError> {
        let simulator = &*self.0;
        if simulator.is_running.swap(true, Ordering::AcqRel) {
            return Err(BlockOnError::Running);
        }
        let _run = Run(simulator);
        let mut main = pin!(future);
        let waker = simulator.waker(MAIN);
        waker.wake_by_ref();
        loop {
            let next = lock(&simulator.ready.0).pop_front();
            match next {
                Some(MAIN) => {
                    let mut cx = task::Context::from_waker(&waker);
                    if let Poll::Ready(output) = main.as_mut().poll(&mut cx) {
                        return Ok(output);
                    }
                }
                Some(task) => simulator.run_task(task),
                None => {
                    simulator.deliver();
                    let is_idle = lock(&simulator.ready.0).is_empty();
                    if is_idle && !simulator.advance() && lock(&simulator.ready.0).is_empty() {
                        return Err(BlockOnError::Stalled);
                    }
                }
            }
        }
    }

    /// Adds a task, which runs in the present or the next [`block_on`](Self::block_on).
    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> SimulationTask<T> {
        let end = Arc::new(Mutex::new(End {
            output: None,
            waker: None,
        }));
        let own = Arc::clone(&end);
        self.0.add(Box::pin(async move {
            let output = future.await;
            let mut end = lock(&own);
            end.output = Some(output);
            let waker = end.waker.take();
            drop(end);
            if let Some(waker) = waker {
                waker.wake();
            }
        }));
        SimulationTask(end)
    }

    /// Returns the virtual time, as a duration since a fixed point before the simulation.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now().as_ns())
    }

    /// Waits for `duration` of virtual time, which begins with the first poll. Outside of
    /// [`block_on`](Self::block_on) the time moves at once.
    pub async fn sleep(&self, duration: Duration) {
        let end = self.0.end_of(duration);
        let mut timer = Timer {
            simulator: &self.0,
            key: None,
        };
        poll_fn(|cx| timer.poll(end, cx)).await;
    }

    /// Waits for a future, for up to `limit` of virtual time. The future is dropped then.
    ///
    /// # Errors
    /// [`TimedOut`] if the limit is reached before.
    pub async fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> Result<F::Output, TimedOut> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep(limit));
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            sleep.as_mut().poll(cx).map(|()| Err(TimedOut))
        })
        .await
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

struct Timer<'a> {
    simulator: &'a Simulator,
    key: Option<(Time, u64)>,
}

impl Timer<'_> {
    fn poll(&mut self, end: Time, cx: &task::Context<'_>) -> Poll<()> {
        let simulator = self.simulator;
        if !simulator.is_running.load(Ordering::Acquire) {
            simulator.engine.move_simulated_time(end);
        }
        if simulator.now() >= end {
            return Poll::Ready(());
        }
        let mut waits = lock(&simulator.waits);
        waits.last_timer += 1;
        let new = waits.last_timer;
        let key = *self.key.get_or_insert((end, new));
        waits.timers.insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            let waker = lock(&self.simulator.waits).timers.remove(key);
            drop(waker);
        }
    }
}

struct End<T> {
    output: Option<T>,
    waker: Option<Waker>,
}

/// The result of a task, as a future. The task runs on if this is dropped.
#[must_use = "the task runs even without a wait, but its result is lost"]
pub struct SimulationTask<T>(Arc<Mutex<End<T>>>);

impl<T> Future for SimulationTask<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<T> {
        let mut end = lock(&self.0);
        if let Some(output) = end.output.take() {
            return Poll::Ready(output);
        }
        end.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> fmt::Debug for SimulationTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_finished = lock(&self.0).output.is_some();
        f.debug_struct("SimulationTask")
            .field("is_finished", &is_finished)
            .finish()
    }
}
