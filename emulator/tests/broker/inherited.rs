//! Properties that the broker and an engine's threads inherit from the thread that starts them.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{c_int, c_long};
use std::fs;
use std::io::{self, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use rocade_emulator::config::{BrokerMode, EngineConfig};
use rocade_emulator::{Engine, spawn_thread};

use crate::common::Side;
use crate::processes::{PATIENCE, broker_config, wait_until};
use crate::sandbox;
use crate::site::*;

/// The state of the process of the role `opener`.
const OPENER: &str = "ROCADE_TEST_OPENER";

fn checked(result: impl Into<c_long>) -> io::Result<()> {
    if result.into() < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Starts a client in a state that `prepare` makes, and returns it with the process ID of the
/// broker that the client has started. Returns `None` if the system does not allow that state.
fn start_in(
    site: &Site,
    prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> Option<(ClientProcess, u32)> {
    let mut command = site.command("client");
    // SAFETY: the closures make system calls and nothing else.
    unsafe { command.pre_exec(prepare) };
    let client = ClientProcess::try_spawn(command).ok()?.ready();
    let broker = site.status().pid;
    Some((client, broker))
}

/// Returns a field of /proc/PID/status, or of a thread.
fn status(path: &str, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{path}/status")).unwrap();
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap().trim().to_owned()
}

/// Returns niceness and policy of a process or thread.
fn priority(path: &str) -> [i32; 2] {
    // The third field follows the name.
    let stat = fs::read_to_string(format!("/proc/{path}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    [19, 41].map(|field| fields[field - 3].parse().unwrap())
}

fn own_niceness() -> i32 {
    priority("thread-self")[0]
}

/// Returns the policies and niceness values of all threads of a broker. In tests it is one thread
/// of a larger process.
fn priorities(broker: u32) -> BTreeSet<[i32; 2]> {
    let tasks = fs::read_dir(format!("/proc/{broker}/task")).unwrap();
    let path = |task: fs::DirEntry| format!("{broker}/task/{}", task.file_name().display());
    tasks.map(|task| priority(&path(task.unwrap()))).collect()
}

/// Returns the processors on which a thread may run. 0 is this thread.
fn cpus_of(tid: c_int) -> Vec<usize> {
    // SAFETY: plain data, for which zero is a value.
    let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let len = size_of_val(&cpus);
    // SAFETY: the set is writable.
    checked(unsafe { libc::sched_getaffinity(tid, len, &raw mut cpus) }).unwrap();
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: a valid set, and an index inside.
    all.filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &cpus) })
        .collect()
}

/// Binds a thread to a processor. 0 is this thread.
fn bind(tid: c_int, cpu: usize) -> io::Result<()> {
    // SAFETY: plain data, for which zero is a value.
    let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid set, and an index inside.
    unsafe { libc::CPU_SET(cpu, &mut cpus) };
    // SAFETY: the set is readable.
    checked(unsafe { libc::sched_setaffinity(tid, size_of_val(&cpus), &raw const cpus) })
}

/// Sets the policy of this thread.
fn set_policy(policy: c_int, priority: c_int) -> io::Result<()> {
    // SAFETY: `sched_param` begins with the priority. The call reads one live int.
    checked(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) })
}

/// Returns true if this process may raise priorities.
fn may_raise_priorities() -> bool {
    const CAP_SYS_NICE: u32 = 23;
    let capabilities = status("self", "CapEff");
    u64::from_str_radix(&capabilities, 16).unwrap() >> CAP_SYS_NICE & 1 == 1
}

#[test]
fn a_broker_may_run_on_all_processors() {
    let all = cpus_of(0);
    if all.len() == 1 {
        rocade_skip::skip!("one processor");
    }
    let site = Site::new();
    let first = all[0];
    let (_client, broker) = start_in(&site, move || bind(0, first)).unwrap();
    let broker = cpus_of(broker.try_into().unwrap());
    assert!(all.iter().all(|cpu| broker.contains(cpu)), "{broker:?}");
}

#[test]
fn a_broker_sheds_the_low_priority_of_the_program_that_starts_it() {
    const NICENESS: i32 = 5;
    let site = Site::new();
    let (_client, broker) = start_in(&site, || {
        // SAFETY: takes no pointers.
        checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) })?;
        set_policy(libc::SCHED_BATCH, 0)
    })
    .unwrap();
    let niceness = if may_raise_priorities() { 0 } else { NICENESS };
    assert!(priorities(broker).contains(&[niceness, libc::SCHED_OTHER]));
}

#[test]
fn a_broker_sheds_the_high_priority_of_the_program_that_starts_it() {
    let site = Site::new();
    let started = start_in(&site, || {
        // SAFETY: takes no pointers.
        checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -5) })?;
        set_policy(libc::SCHED_FIFO, 1)
    });
    let Some((_client, broker)) = started else {
        rocade_skip::skip!("not allowed to raise priorities");
    };
    assert_eq!(priorities(broker), [[0, libc::SCHED_OTHER]].into());
}

#[test]
fn a_thread_with_a_deadline_starts_a_broker_and_an_engine() {
    let site = Site::new();
    let mut child = site.command("deadline").spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let said = answer(&mut output);
    if said == "refused" {
        child.wait().unwrap();
        rocade_skip::skip!("no SCHED_DEADLINE");
    }
    assert_eq!(said, "started");
    assert_eq!(
        priorities(site.status().pid),
        [[0, libc::SCHED_OTHER]].into()
    );
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Opens an engine in a thread with the policy `SCHED_DEADLINE`, which keeps that.
pub(crate) fn run_deadline() {
    const PERIOD_NS: u64 = 100_000_000;
    // SAFETY: plain data, for which zero is a value.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    attr.size = size_of_val(&attr).try_into().unwrap();
    attr.sched_policy = libc::SCHED_DEADLINE.try_into().unwrap();
    attr.sched_runtime = PERIOD_NS / 10;
    attr.sched_deadline = PERIOD_NS;
    attr.sched_period = PERIOD_NS;
    // SAFETY: a valid structure that contains its length.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if set != 0 {
        return println!("@refused");
    }
    let dir = env::var_os("ROCADE_RUNTIME_DIR").unwrap();
    let broker = BrokerMode::Auto(broker_config(dir.as_ref()));
    let side = Side::on(engine(broker), 64);
    assert_eq!(priority("thread-self")[1], libc::SCHED_DEADLINE);
    assert!(thread::Builder::new().spawn(|| {}).is_err(), "as before");
    println!("@started");
    io::stdin().lines().for_each(drop);
    drop(side);
    // Ends of processes do not fork.
    set_policy(libc::SCHED_OTHER, 0).unwrap();
}

fn engine(broker: BrokerMode) -> Engine {
    let config = EngineConfig::from_specs(&[format!("dev={}", own_address())], broker).unwrap();
    Engine::new(config).unwrap()
}

#[test]
fn a_broker_is_no_special_victim() {
    if fs::read_to_string("/proc/self/oom_score_adj").is_ok_and(|own| own.trim() != "0") {
        rocade_skip::skip!("this process is one");
    }
    let site = Site::new();
    let (_client, broker) = start_in(&site, || {
        // SAFETY: a terminated string, and bytes of this length.
        unsafe {
            let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
            checked(libc::write(fd, c"500".as_ptr().cast(), 3) as c_long)?;
            checked(libc::close(fd))
        }
    })
    .unwrap();
    let adjusted = fs::read_to_string(format!("/proc/{broker}/oom_score_adj")).unwrap();
    assert_eq!(adjusted.trim(), "0");
}

#[test]
fn timers_memory_and_addresses_of_a_broker_are_as_usual() {
    const PREFERRED: c_int = 1;
    const IDLE: c_int = 3 << 13;
    const WHO_PROCESS: c_int = 1;
    let site = Site::new();
    let (_client, broker) = start_in(&site, || {
        let node_0 = 1usize;
        // SAFETY: the mask is live, and has one word.
        unsafe {
            checked(libc::prctl(
                libc::PR_SET_TIMERSLACK,
                2_000_000usize,
                0,
                0,
                0,
            ))?;
            checked(libc::personality(libc::ADDR_NO_RANDOMIZE as _))?;
            // Not all systems have these.
            libc::syscall(
                libc::SYS_set_mempolicy,
                PREFERRED,
                &raw const node_0,
                64usize,
            );
            libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, IDLE);
        }
        Ok(())
    })
    .unwrap();
    let of_broker = |file: &str| fs::read_to_string(format!("/proc/{broker}/{file}"));
    // Not readable without privilege.
    if let Ok(slack) = of_broker("timerslack_ns") {
        assert_eq!(slack.trim(), "50000");
    }
    if let Ok(personality) = of_broker("personality") {
        assert_eq!(personality.trim(), "00000000");
    }
    if let Ok(maps) = of_broker("numa_maps") {
        assert!(!maps.contains(" prefer"), "{maps}");
    }
    // SAFETY: takes no pointers.
    let io_priority = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, broker) };
    assert_ne!(io_priority, IDLE.into());
}

#[test]
fn a_broker_has_no_signals_of_the_program() {
    let site = Site::new();
    let (client, broker) = start_in(&site, || {
        // SAFETY: plain data, live sets, and valid signals.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR2);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::signal(libc::SIGUSR1, libc::SIG_IGN);
            checked(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))
        }
    })
    .unwrap();
    let of_broker = |field| {
        let set = status(&broker.to_string(), field);
        u64::from_str_radix(&set, 16).unwrap()
    };
    assert_eq!(of_broker("SigIgn") >> (libc::SIGUSR1 - 1) & 1, 0);
    // A thread that starts another blocks all signals for a moment.
    wait_until(|| of_broker("SigBlk") == 0);
    // The signal for the death of a parent is none for the broker's.
    client.crash();
    site.wait_for(|status| status.slots.is_empty());
    assert_eq!(site.status().pid, broker);
}

#[test]
fn directory_umask_and_files_of_the_program_are_not_those_of_a_broker() {
    let mut site = Site::new();
    let here = tempfile::tempdir().unwrap();
    let runtime_dir = site.dir.path().join("made");
    site.config = broker_config(&runtime_dir);
    let mut command = site.command("client");
    command.env("ROCADE_RUNTIME_DIR", &runtime_dir);
    command.current_dir(here.path());
    let leave_open = || {
        // SAFETY: a terminated string.
        unsafe {
            libc::umask(0o777);
            checked(libc::open(
                c".".as_ptr(),
                libc::O_RDONLY | libc::O_DIRECTORY,
            ))
        }
    };
    // SAFETY: system calls only.
    unsafe { command.pre_exec(leave_open) };
    let _client = ClientProcess::spawn_as(command).ready();
    let broker = site.status().pid;
    assert_eq!(status(&broker.to_string(), "Umask"), "0077");
    let link = |name: &str| fs::read_link(format!("/proc/{broker}/{name}")).unwrap();
    assert_eq!(link("cwd").to_str(), Some("/"));
    for fd in fs::read_dir(format!("/proc/{broker}/fd")).unwrap() {
        // The broker may have closed one of its own meanwhile, but none that it got.
        let Ok(file) = fs::read_link(fd.unwrap().path()) else {
            continue;
        };
        assert!(!file.starts_with(here.path()), "{}", file.display());
    }
    // Other programs of the user can use what this one has made.
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(runtime_dir.clone()), 0o700);
    let mut kinds = BTreeSet::new();
    for entry in fs::read_dir(&runtime_dir).unwrap() {
        let path = entry.unwrap().path();
        kinds.extend(path.extension().map(|kind| kind.display().to_string()));
        assert_eq!(mode(path.clone()) & 0o677, 0o600, "{}", path.display());
    }
    assert!(kinds.contains("lock") && kinds.contains("log"), "{kinds:?}");
}

#[test]
fn a_broker_raises_the_limits_of_the_program() {
    let site = Site::new();
    let limits = [
        (libc::RLIMIT_NOFILE, 100),
        (libc::RLIMIT_CPU, 1000),
        (libc::RLIMIT_STACK, 1 << 20),
    ];
    let (_client, broker) = start_in(&site, move || {
        for (resource, soft) in limits {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: the structure is live.
            unsafe {
                checked(libc::getrlimit(resource, &raw mut limit))?;
                limit.rlim_cur = soft;
                checked(libc::setrlimit(resource, &raw const limit))?;
            }
        }
        Ok(())
    })
    .unwrap();
    let limits = fs::read_to_string(format!("/proc/{broker}/limits")).unwrap();
    let soft_and_hard = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let mut words = line.unwrap().split_whitespace().map(str::to_owned);
        [words.next().unwrap(), words.next().unwrap()]
    };
    for name in ["Max open files", "Max cpu time"] {
        let [soft, hard] = soft_and_hard(name);
        assert_eq!(soft, hard, "{name}");
    }
    let [stack, hard] = soft_and_hard("Max stack size");
    assert!(stack == "8388608" || stack == hard, "{stack}");
}

#[test]
fn a_broker_has_no_settings_of_the_program() {
    let site = Site::new();
    let mut command = site.command("client");
    command.envs([
        ("LD_BIND_NOW", "1"),
        ("LD_LIBRARY_PATH", "/nonexistent"),
        ("ROCADE_CONFIG", "relative.toml"),
        ("ROCADE_FAULT", "drop all"),
        ("OF_THE_PROGRAM", "1"),
    ]);
    let _client = ClientProcess::spawn_as(command).ready();
    let environ = fs::read(format!("/proc/{}/environ", site.status().pid)).unwrap();
    let environ = String::from_utf8_lossy(&environ).into_owned();
    let has = |entry: &str| environ.split('\0').any(|other| other.starts_with(entry));
    for entry in ["LD_BIND_NOW=", "ROCADE_FAULT=", "ROCADE_CONFIG=r"] {
        assert!(!has(entry), "{entry}");
    }
    for entry in [
        "LD_LIBRARY_PATH=/nonexistent",
        "ROCADE_CONFIG=/dev/null",
        "ROCADE_RUNTIME_DIR=/",
        "OF_THE_PROGRAM=1",
    ] {
        assert!(has(entry), "{entry}");
    }
}

#[test]
fn a_broker_starts_where_nothing_can_be_shed() {
    let site = Site::new();
    let mut command = site.command("client");
    let calls = [
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_getscheduler,
        libc::SYS_sched_setattr,
        libc::SYS_sched_getattr,
        libc::SYS_setpriority,
        libc::SYS_getpriority,
        libc::SYS_ioprio_set,
        libc::SYS_set_mempolicy,
        libc::SYS_personality,
        libc::SYS_prlimit64,
        libc::SYS_close_range,
        libc::SYS_umask,
    ];
    sandbox::refuse(&mut command, &calls);
    let mut client = ClientProcess::spawn_as(command).ready();
    let ip = own_address();
    client.open(ip);
    client.check(ip, 1);
}

/// Starts a process that opens an engine, and returns the lists of processors, the niceness and the
/// policies of the engine's threads.
fn threads_of_opener(
    state: &str,
    prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> String {
    let site = Site::new();
    let mut command: Command = site.command("opener");
    command.env(OPENER, state);
    // SAFETY: system calls only.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let said = answer(&mut output);
    // The test harness still prints its result.
    io::copy(&mut output, &mut io::sink()).unwrap();
    child.wait().unwrap();
    said
}

/// Opens an engine, and tells what its threads have when they wait for the first time.
pub(crate) fn run_opener() {
    let first = cpus_of(0)[0];
    match env::var(OPENER).unwrap().as_str() {
        "bound" => {
            bind(0, first).unwrap();
            bind(std::process::id().try_into().unwrap(), first).unwrap();
        }
        "behind" => {
            // SAFETY: takes no pointers.
            checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, own_niceness() + 5) })
                .unwrap();
            set_policy(libc::SCHED_BATCH, 0).unwrap();
        }
        _ => {}
    }
    let dir = env::var_os("ROCADE_RUNTIME_DIR").unwrap();
    let spec = format!("dev={}", own_address());
    let config = EngineConfig::from_specs(&[spec], BrokerMode::Embedded).unwrap();
    let config = EngineConfig {
        capture: Some(std::path::Path::new(&dir).join("capture.pcapng")),
        ..config
    };
    let _side = Side::on(Engine::new(config).unwrap(), 64);
    let _own = spawn_thread("rocade-own", || thread::sleep(PATIENCE)).unwrap();
    let mut found = BTreeSet::new();
    wait_until(|| {
        found = waiting_threads();
        found.len() == 3
    });
    let found: BTreeSet<_> = found
        .into_iter()
        .map(|path| {
            let [niceness, policy] = priority(&path);
            let cpus = status(&path, "Cpus_allowed_list");
            let signals = u64::from_str_radix(&status(&path, "SigBlk"), 16).unwrap();
            let is_blocked = signals >> (libc::SIGUSR1 - 1) & 1 == 1;
            format!("cpus {cpus} nice {niceness} policy {policy} blocked {is_blocked}")
        })
        .collect();
    println!("@{}", Vec::from_iter(found).join("; "));
}

/// Returns the threads of Rocade in this process that sleep.
fn waiting_threads() -> BTreeSet<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .map(|task| format!("self/task/{}", task.file_name().display()))
        .filter(|path| {
            let stat = fs::read_to_string(format!("/proc/{path}/stat")).unwrap_or_default();
            let is_own = stat.split_once(" (rocade").is_some();
            is_own
                && stat
                    .rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('S'))
        })
        .collect()
}

/// The state of an engine's threads in a process that may run on these processors and has this
/// one's priority.
fn usual_threads(cpus: &str) -> String {
    let niceness = own_niceness();
    format!("cpus {cpus} nice {niceness} policy 0 blocked true")
}

#[test]
fn threads_of_an_engine_are_not_bound_as_the_thread_that_opens_it() {
    let cpus = status("thread-self", "Cpus_allowed_list");
    assert_eq!(threads_of_opener("bound", || Ok(())), usual_threads(&cpus));
}

#[test]
fn threads_of_an_engine_are_bound_as_the_program_is() {
    let first = cpus_of(0)[0];
    let said = threads_of_opener("free", move || bind(0, first));
    assert_eq!(said, usual_threads(&first.to_string()));
}

#[test]
fn threads_of_an_engine_have_the_priority_of_the_program() {
    if !may_raise_priorities() {
        rocade_skip::skip!("not allowed to raise priorities");
    }
    let cpus = status("thread-self", "Cpus_allowed_list");
    assert_eq!(threads_of_opener("behind", || Ok(())), usual_threads(&cpus));
    // The whole program has a low priority.
    let low = own_niceness() + 3;
    let lower = move || {
        // SAFETY: takes no pointers.
        checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, low) })
    };
    let said = threads_of_opener("behind", lower);
    assert!(said.contains(&format!("nice {low} policy 0")), "{said}");
}
