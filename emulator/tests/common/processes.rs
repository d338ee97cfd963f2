//! Tests that start further processes of themselves. An environment variable contains the role of
//! each.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::broker::BrokerConfig;

pub(crate) const ROLE: &str = "ROCADE_TEST_ROLE";
/// The test program, for processes that cannot find out.
pub(crate) const EXE: &str = "ROCADE_TEST_EXE";
/// Longest wait. Everything here takes milliseconds, so that a longer wait would be endless.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The configuration of a broker that is this program in the role `broker`, run by the test
/// `child_process`.
pub(crate) fn broker_config(dir: &Path) -> BrokerConfig {
    let role: OsString = format!("{ROLE}=broker").into();
    let exe = env::var_os(EXE).unwrap_or_else(|| env::current_exe().unwrap().into());
    let arguments = ["--exact", "child_process", "--nocapture"].map(OsString::from);
    BrokerConfig {
        runtime_dir: Some(dir.to_owned()),
        command: Some([vec!["env".into(), role, exe], arguments.to_vec()].concat()),
        start_timeout: PATIENCE,
        ..BrokerConfig::default()
    }
}

/// Ends this process after a time in which every test has ended. A test that waits for its answer
/// then fails.
pub(crate) fn limit_life() {
    // SAFETY: takes no pointers. The default action of the signal is to end the process.
    unsafe { libc::alarm(300) };
}

/// Sends a signal to a process.
pub(crate) fn kill(pid: u32, signal: i32) {
    let pid = libc::pid_t::try_from(pid).unwrap();
    assert!(pid > 1);
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Stops all threads of a process until this is dropped.
pub(crate) struct Stopped(u32);

impl Stopped {
    pub(crate) fn new(pid: u32) -> Self {
        kill(pid, libc::SIGSTOP);
        let tasks = format!("/proc/{pid}/task");
        wait_until(|| {
            fs::read_dir(&tasks).unwrap().flatten().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap();
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('T'))
            })
        });
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, libc::SIGCONT);
    }
}

/// Checks the condition every 2 ms until it holds.
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "waited too long");
        thread::sleep(Duration::from_millis(2));
    }
}
