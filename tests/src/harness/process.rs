//! A child process with recorded output and bounded waits.

use std::{
    fs::{self, File},
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The polling interval for conditions without a notification.
const POLL: Duration = Duration::from_millis(5);

/// A running program, the leader of its own process group. Dropping it kills the group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    started: Instant,
}

/// The result of a program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The program's name in messages.
    pub name: String,
    /// The exit status.
    pub status: ExitStatus,
    /// Standard output and standard error, merged.
    pub output: String,
}

impl Process {
    /// Starts `command`, and appends its standard output and standard error to the file `log`.
    ///
    /// # Panics
    /// If it cannot be started, which is a fault of the test or of the machine. The message shows
    /// the error.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Self {
        let open = || File::options().create(true).append(true).open(log);
        let (stdout, stderr) = match (open(), open()) {
            (Ok(stdout), Ok(stderr)) => (stdout, stderr),
            (Err(error), _) | (_, Err(error)) => panic!("{name}: {}: {error}", log.display()),
        };
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: cannot run {command:?}: {error}"));
        Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            started: Instant::now(),
        }
    }

    /// The process id of the group's leader, which is the program itself, since every wrapper ends
    /// in `exec`.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output so far. (Programs buffer their output to a file.)
    #[must_use]
    pub fn output(&self) -> String {
        fs::read(&self.log).map_or_else(
            |error| error.to_string(),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// Waits until `condition` returns a value.
    ///
    /// # Panics
    /// If `limit` expires or the program ends before there is a value. The message shows `what` and
    /// the output.
    pub fn wait_until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> Option<T>,
    ) -> T {
        let began = Instant::now();
        loop {
            let ended = self.try_wait();
            if let Some(value) = condition(self) {
                return value;
            }
            if let Some(status) = ended {
                panic!(
                    "{}: ended with {status} before {what}\n{}",
                    self.name,
                    self.output()
                );
            }
            if began.elapsed() > limit {
                panic!(
                    "{}: no {what} within {limit:?}\n{}",
                    self.name,
                    self.output()
                );
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until the program listens on a TCP port in its own network namespace.
    ///
    /// # Panics
    /// Like [`Process::wait_until`].
    pub fn wait_listening(&mut self, port: u16, limit: Duration) {
        self.wait_until("listening TCP socket", limit, |process| {
            ["tcp", "tcp6"]
                .iter()
                .any(|table| {
                    let path = format!("/proc/{}/net/{table}", process.id());
                    listens(&fs::read_to_string(path).unwrap_or_default(), port)
                })
                .then_some(())
        });
    }

    /// Waits until the program ends.
    ///
    /// # Panics
    /// If `limit` (from now on) expires. The program is then killed, and the message shows its
    /// output.
    pub fn finish(mut self, limit: Duration) -> Finished {
        let began = Instant::now();
        loop {
            if let Some(status) = self.try_wait() {
                return Finished {
                    name: self.name.clone(),
                    status,
                    output: self.output(),
                };
            }
            if began.elapsed() > limit {
                let threads = self.threads();
                self.kill();
                panic!(
                    "{}: still runs after {limit:?}\n{threads}{}",
                    self.name,
                    self.output()
                );
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until the program ends, and kills it when `limit` (from now on) expires.
    ///
    /// # Panics
    /// If it survives the signal.
    pub fn finish_or_kill(mut self, limit: Duration) -> Finished {
        let end = Instant::now() + limit;
        while self.try_wait().is_none() && Instant::now() < end {
            thread::sleep(POLL);
        }
        self.kill();
        self.finish(limit)
    }

    /// Returns true if the program has not ended.
    pub fn is_running(&mut self) -> bool {
        self.try_wait().is_none()
    }

    /// The time since the start.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Kills the whole process group with SIGKILL, and waits for its leader.
    ///
    /// The group's id is the pid of a child that has not been waited for, so that no other group
    /// has this id.
    pub fn kill(&mut self) {
        if self.try_wait().is_none() {
            // The shell's builtin `kill`, because the machine may not have the command.
            let script = format!("kill -s KILL -- -{}", self.child.id());
            let _ = Command::new("sh")
                .args(["-c", &script])
                .stderr(Stdio::null())
                .status();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Returns the CPU time of the process's threads in nanoseconds. Unlike the times in
    /// `/proc/PID/stat`, it is not sampled by clock ticks and does not depend on other processes.
    ///
    /// # Errors
    /// If `/proc/PID/task/TID/schedstat` cannot be read.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let mut sum = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            // The fields: time on a CPU, time spent waiting for a CPU, number of time slices.
            let time = text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
            sum += time.ok_or_else(|| io::Error::other(format!("unexpected contents: {text}")))?;
        }
        Ok(Duration::from_nanos(sum))
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .unwrap_or_else(|error| panic!("{}: cannot wait: {error}", self.name))
    }

    /// Returns a line for messages per thread: its name, its state, and the kernel function in
    /// which it waits.
    fn threads(&self) -> String {
        let mut lines = String::new();
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.id())) else {
            return lines;
        };
        for task in tasks.flatten() {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let stat = read("stat");
            let state = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next());
            let comm = read("comm");
            lines += &format!(
                "thread {}: state {}, {}\n",
                comm.trim(),
                state.unwrap_or('?'),
                read("wchan")
            );
        }
        lines
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Finished {
    /// Checks that the program ended with status 0, and returns its output.
    ///
    /// # Panics
    /// If it did not. The message shows the output.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert!(
            self.status.success(),
            "{}: {}\n{}",
            self.name,
            self.status,
            self.output
        );
        self.output
    }

    /// Checks that the program exited with a status other than 0, and returns its output.
    ///
    /// # Panics
    /// If it succeeded or was ended by a signal. The message shows the output.
    #[track_caller]
    pub fn expect_failure(self) -> String {
        let failed =
            self.status.code().is_some_and(|code| code != 0) && self.status.signal().is_none();
        assert!(failed, "{}: {}\n{}", self.name, self.status, self.output);
        self.output
    }
}

/// Returns true if a table in the format of `/proc/net/tcp` contains a socket that listens on
/// `port`.
fn listens(table: &str, port: u16) -> bool {
    let port = format!("{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().unwrap_or_default();
        let state = fields.nth(1).unwrap_or_default();
        state == "0A" && local.rsplit(':').next() == Some(&*port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> (tempfile::TempDir, Process) {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let process = Process::start("test", command, &dir.path().join("log"));
        (dir, process)
    }

    #[test]
    fn keeps_output_and_status() {
        let (_dir, mut process) = start("echo one; echo two >&2; exit 3");
        process.wait_until("output", Duration::from_secs(10), |p| {
            p.output().contains("two").then_some(())
        });
        let finished = process.finish(Duration::from_secs(10));
        assert_eq!(finished.output, "one\ntwo\n");
        finished.expect_failure();
    }

    #[test]
    fn kills_the_whole_group() {
        let (_dir, mut process) = start("sleep 60 & echo $!; wait");
        let child = process.wait_until("child", Duration::from_secs(10), |p| {
            p.output().strip_suffix('\n').map(str::to_owned)
        });
        process.kill();
        // The signal has been sent to all processes of the group, but each takes some time to end.
        let begin = Instant::now();
        loop {
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") || stat.contains(") X ") {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "{stat}");
            thread::yield_now();
        }
    }

    #[test]
    fn finds_listening_sockets_only() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     0: 0100007F:4853 00000000:0000 0A 00000000:00000000\n\
                     1: 0100007F:4854 0100007F:9999 01 00000000:00000000\n";
        assert!(listens(table, 0x4853));
        assert!(!listens(table, 0x4854));
        assert!(!listens(table, 0x9999));
    }
}
