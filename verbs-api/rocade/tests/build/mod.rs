//! Runs the command in a separate build directory.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

pub(crate) const LIBRARIES: [&str; 5] = ["libibverbs", "librdmacm", "libmlx5", "libefa", "libmana"];

/// A build directory with the command, and an empty home directory.
pub(crate) struct Build {
    dir: tempfile::TempDir,
}

impl Build {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // A link instead of a copy. A newly written file may still be open in a child that another
        // test forks, and then cannot be executed.
        fs::hard_link(env!("CARGO_BIN_EXE_rocade"), dir.path().join("rocade")).unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir }
    }

    pub(crate) fn with_libraries() -> Self {
        let build = Self::new();
        for library in LIBRARIES {
            fs::write(build.path(&format!("{library}.so")), library).unwrap();
        }
        fs::write(build.path("librocade_preload.so"), "preload").unwrap();
        build
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the command `rocade ARGS` in the directory `work`, without settings of the machine.
    pub(crate) fn rocade(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("rocade"));
        command
            .args(args)
            .current_dir(self.path("work"))
            .env_clear();
        command
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"));
        command
    }
}

/// Time in which each program has to end.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Programs that run to their end in a limited time.
pub(crate) trait Limited {
    /// Runs the program without input. Returns its status and its output.
    ///
    /// # Panics
    /// If the program cannot start or does not end in time. The text has its name and its output.
    fn run(&mut self) -> Output;

    /// Like [`Limited::run`], in this time.
    ///
    /// # Errors
    /// The text of the panic.
    fn run_within(&mut self, limit: Duration) -> Result<Output, String>;
}

impl Limited for Command {
    fn run(&mut self) -> Output {
        let ended = self.run_within(LIMIT);
        ended.unwrap_or_else(|error| panic!("{error}"))
    }

    fn run_within(&mut self, limit: Duration) -> Result<Output, String> {
        self.stdout(Stdio::piped());
        start(self).and_then(|child| finish_within(child, self, limit))
    }
}

/// Starts a program in a process group of its own, without input.
///
/// # Errors
/// The name of the program, and the error of the system.
pub(crate) fn start(command: &mut Command) -> Result<Child, String> {
    command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let started = command.spawn();
    started.map_err(|error| format!("failed to start {command:?}: {error}"))
}

/// Waits for the end of a program that [`start`] has started. Otherwise kills its process group.
///
/// # Errors
/// The name of the program and its output, if it does not end in time.
pub(crate) fn finish_within(
    child: Child,
    command: &Command,
    limit: Duration,
) -> Result<Output, String> {
    let group = Pid::from_child(&child);
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    let fate = match ended.recv_timeout(limit) {
        Ok(output) => return output.map_err(|error| format!("{command:?}: {error}")),
        // The program may have ended, while another one still has its output open.
        Err(_) => kill_process_group(group, Signal::KILL),
    };
    let rest = ended.recv_timeout(Duration::from_secs(10));
    Err(format!(
        "{command:?} has not ended within {limit:?} (killed: {fate:?}): {rest:?}"
    ))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Fails unless the command ended with `code` and an error text that contains all `parts`.
pub(crate) fn assert_refused(output: &Output, code: i32, parts: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}
