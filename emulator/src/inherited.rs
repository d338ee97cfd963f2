//! Properties that a new process or thread has from the thread that starts it, and sheds.
//!
//! The broker serves all programs of a user, and the background thread serves all threads of a
//! program. Each is started by the thread that comes first. That thread may be bound to one
//! processor where it spins, have a real-time policy, or be the first victim when memory runs out.
//! `docs/steering-and-broker.md` has a table of all that is inherited.
//!
//! Nothing here fails: what the system refuses to change stays as it is.

use std::ffi::{CStr, c_int, c_long};
use std::fs;
use std::io;
use std::sync::OnceLock;

use crate::failure::named;
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
use crate::sync::turn;
use crate::sys;

/// The default timer slack of the kernel, in nanoseconds.
const TIMER_SLACK_NS: libc::c_ulong = 50_000;
/// A flag in the result of `sched_getscheduler(2)`.
const RESET_ON_FORK: c_int = 0x4000_0000;
/// Most processors of a system, a multiple of those in a word.
const MOST_CPUS: usize = 8192;
const WORD_BITS: usize = usize::BITS as usize;

/// A set of processors, in the format of `sched_setaffinity(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuSet([usize; MOST_CPUS / WORD_BITS]);

impl CpuSet {
    const NONE: Self = Self([0; MOST_CPUS / WORD_BITS]);
    const ALL: Self = Self([usize::MAX; MOST_CPUS / WORD_BITS]);

    /// Returns the processors on which a thread may run. `tid` 0 is the calling thread.
    fn of(tid: libc::pid_t) -> Option<Self> {
        let mut cpus = Self::NONE;
        // SAFETY: the words are writable for the given length.
        let got = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                tid,
                size_of_val(&cpus.0),
                cpus.0.as_mut_ptr(),
            )
        };
        (got > 0).then_some(cpus)
    }

    /// Lets the calling thread run on these processors, as far as its cpuset has them. Returns
    /// false if the system refuses, or the cpuset has none of them. Async-signal-safe.
    fn apply(&self) -> bool {
        let words = &self.0;
        // SAFETY: the words are readable for the given length. 0 is the calling thread.
        let set = unsafe {
            libc::syscall(
                libc::SYS_sched_setaffinity,
                0,
                size_of_val(words),
                words.as_ptr(),
            )
        };
        set == 0
    }

    /// Parses a list of the kernel, such as `0-3,8`. Ignores what is malformed.
    fn from_list(list: &str) -> Self {
        let mut cpus = Self::NONE;
        for part in list.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                continue;
            };
            for cpu in first..=last.min(MOST_CPUS - 1) {
                cpus.0[cpu / WORD_BITS] |= 1 << (cpu % WORD_BITS);
            }
        }
        cpus
    }

    fn add(&mut self, others: &Self) {
        for (word, other) in self.0.iter_mut().zip(&others.0) {
            *word |= other;
        }
    }

    /// Removes processors, unless none would be left.
    fn remove(&mut self, others: &Self) {
        let mut rest = *self;
        for (word, other) in rest.0.iter_mut().zip(&others.0) {
            *word &= !other;
        }
        if rest != Self::NONE {
            *self = rest;
        }
    }

    /// Returns the processors that the scheduler does not balance (`isolcpus`). A thread that
    /// starts on one of them would never leave it, even if it may.
    fn isolated() -> Self {
        let list = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
        Self::from_list(&list)
    }
}

/// Keeps the calling thread, and those that it starts, on the processor on which it runs, if the
/// system permits. So hosts of several test programs are on several processors.
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
pub(crate) fn stay_on_one_cpu() {
    // SAFETY: no pointers.
    let cpu = unsafe { libc::sched_getcpu() };
    if let Some(cpu) = usize::try_from(cpu).ok().filter(|cpu| *cpu < MOST_CPUS) {
        let mut one = CpuSet::NONE;
        one.0[cpu / WORD_BITS] = 1 << (cpu % WORD_BITS);
        one.apply();
    }
}

/// The state of a program at its start, before it changes that for single threads.
struct AtLoad {
    cpus: Option<CpuSet>,
    policy: c_int,
    niceness: c_int,
}

static AT_LOAD: OnceLock<AtLoad> = OnceLock::new();

/// Notes the state in which the program was started. The loader calls it, before `main` unless the
/// library is loaded later.
extern "C" fn note_state_at_load() {
    AT_LOAD.get_or_init(|| AtLoad {
        cpus: CpuSet::of(0),
        policy: policy(),
        niceness: niceness(),
    });
}

#[used]
// SAFETY: the section holds pointers to functions of this type, which the loader calls once.
#[unsafe(link_section = ".init_array")]
static NOTE_STATE_AT_LOAD: extern "C" fn() = note_state_at_load;

/// Returns the scheduling policy of the calling thread.
fn policy() -> c_int {
    // SAFETY: no pointers. 0 is the calling thread.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    c_int::try_from(policy).unwrap_or(libc::SCHED_OTHER) & !RESET_ON_FORK
}

/// Returns the niceness of the calling thread.
fn niceness() -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Gives the calling thread the usual scheduling policy. Async-signal-safe.
fn take_usual_policy() {
    let no_priority: c_int = 0;
    // SAFETY: `sched_param` is one int, which is live. 0 is the calling thread.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_OTHER,
            &raw const no_priority,
        )
    };
}

/// Sets the niceness of the calling thread. Async-signal-safe.
fn take_niceness(niceness: c_int) {
    // SAFETY: no pointers. 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, niceness) };
}

/// Gives the calling thread, which was just started for the whole program, the processors and the
/// priority of the program.
///
/// The processors are those at the start of the program (`taskset`, `mpirun`), and those of each of
/// its threads. A thread that binds itself, as DPDK's reactors do, therefore does not bind this
/// one. A policy below the usual one, or a niceness above that of the program, is left where the
/// system allows it. Real-time policies stay, because the thread works for the one that has it.
pub fn settle_thread() {
    let mut cpus = program_cpus();
    cpus.remove(&CpuSet::isolated());
    if cpus != CpuSet::NONE && CpuSet::of(0) != Some(cpus) {
        cpus.apply();
    }
    let Some(at_load) = AT_LOAD.get() else { return };
    let is_behind = |policy| matches!(policy, libc::SCHED_IDLE | libc::SCHED_BATCH);
    if is_behind(policy()) && !is_behind(at_load.policy) {
        take_usual_policy();
    }
    if niceness() > at_load.niceness {
        take_niceness(at_load.niceness);
    }
}

/// Returns the processors on which the program was started, and those of all its threads.
fn program_cpus() -> CpuSet {
    let at_load = AT_LOAD.get().and_then(|at_load| at_load.cpus);
    let mut cpus = at_load.unwrap_or(CpuSet::NONE);
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let others = tasks.flatten().filter_map(|task| {
        let name = task.file_name();
        name.to_str()?.parse().ok()
    });
    for tid in [0].into_iter().chain(others) {
        if let Some(own) = CpuSet::of(tid) {
            cpus.add(&own);
        }
    }
    cpus
}

/// The state of a detached process instead of the one that it inherits. Prepared before the fork.
#[derive(Debug)]
pub(crate) struct Defaults {
    cpus: CpuSet,
}

impl Defaults {
    pub(crate) fn new() -> Self {
        let mut cpus = CpuSet::ALL;
        cpus.remove(&CpuSet::isolated());
        Self { cpus }
    }

    /// Takes the defaults in the calling process, which has one thread. Async-signal-safe.
    pub(crate) fn take(&self) {
        take_usual_policy();
        take_niceness(0);
        let _ = self.cpus.apply() || CpuSet::ALL.apply();
        // SAFETY: no pointers.
        unsafe {
            let who_process: c_int = 1;
            libc::syscall(libc::SYS_ioprio_set, who_process, 0, 0);
            libc::syscall(libc::SYS_set_mempolicy, 0, 0usize, 0usize);
            libc::syscall(
                libc::SYS_prctl,
                libc::PR_SET_TIMERSLACK,
                TIMER_SLACK_NS,
                0usize,
                0usize,
                0usize,
            );
            // Debuggers switch off the randomisation of addresses.
            libc::syscall(libc::SYS_personality, 0usize);
        }
        write_to(c"/proc/self/oom_score_adj", b"0");
    }
}

/// Writes to a file that exists. Async-signal-safe.
fn write_to(path: &CStr, bytes: &[u8]) {
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: a terminated string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return;
    }
    // SAFETY: the bytes are readable for their length, and the descriptor is open and not used
    // elsewhere.
    unsafe {
        libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len());
        libc::syscall(libc::SYS_close, fd);
    }
}

/// Lets a thread with the policy `SCHED_DEADLINE` start processes and threads, until this is
/// dropped. The kernel refuses that (`EAGAIN`) unless they get the usual policy.
#[derive(Debug)]
pub struct StartPermit {
    before: Option<libc::sched_attr>,
}

impl StartPermit {
    /// Changes nothing for a thread with another policy.
    #[must_use]
    pub fn new() -> Self {
        let before = deadline_attr().filter(|before| {
            let mut attr = *before;
            attr.sched_flags |= SCHED_FLAG_RESET_ON_FORK;
            set_attr(&attr)
        });
        Self { before }
    }
}

impl Default for StartPermit {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            set_attr(before);
        }
    }
}

const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// Returns the attributes of the calling thread if it has the policy `SCHED_DEADLINE` without the
/// flag that lets it fork.
fn deadline_attr() -> Option<libc::sched_attr> {
    if policy() != libc::SCHED_DEADLINE {
        return None;
    }
    // SAFETY: plain data, for which zero is a value.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attr);
    // SAFETY: `attr` is writable and has the given length. 0 is the calling thread.
    let got: c_long = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    (got == 0 && attr.sched_flags & SCHED_FLAG_RESET_ON_FORK == 0).then_some(attr)
}

fn set_attr(attr: &libc::sched_attr) -> bool {
    // SAFETY: a valid structure that contains its length. 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attr), 0) == 0 }
}

/// Starts a thread that serves the whole program. It calls [`settle_thread`] before `run`, and
/// blocks all signals, which are for the application's threads.
///
/// # Errors
/// The system has no more threads.
pub fn spawn_thread(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    let _permit = StartPermit::new();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            sys::block_all_signals();
            settle_thread();
            run();
        })
        .map_err(named("failed to start a thread"))
}

/// Starts a thread as [`spawn_thread`] does, which ends by itself.
///
/// # Errors
/// The system has no more threads.
pub(crate) fn spawn_detached(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
    if let Some(schedule) = turn::own() {
        let name = name.strip_prefix("rocade-").unwrap_or("background");
        schedule.spawn(name, Box::new(run));
        return Ok(());
    }
    spawn_thread(name, run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        let bits = |list: &str| CpuSet::from_list(list).0[0];
        assert_eq!(bits("\n"), 0);
        assert_eq!(bits("0\n"), 1);
        assert_eq!(bits("0-2,5\n"), 0b10_0111);
        assert_eq!(bits("x,1-y,3"), 0b1000);
        let last = CpuSet::from_list("8190-99999");
        assert_eq!(last.0[MOST_CPUS / WORD_BITS - 1], 0b11 << (WORD_BITS - 2));
    }

    #[test]
    fn isolated_processors_are_left_only_if_there_are_others() {
        let [both, first] = ["0-1", "0"].map(CpuSet::from_list);
        let mut cpus = both;
        cpus.remove(&first);
        assert_eq!(cpus, CpuSet::from_list("1"));
        let mut cpus = first;
        cpus.remove(&both);
        assert_eq!(cpus, first);
        cpus.add(&both);
        assert_eq!(cpus, both);
    }
}
