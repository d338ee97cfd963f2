//! Child processes with line-wise output and bounded waits, killed on drop.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// The reason why there is no figure, a text for the reader of the table.
pub(crate) type Failure = String;

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Peer {
    name: String,
    child: Child,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts a command whose standard output is read line by line and whose standard error goes to
    /// `stderr`.
    pub(crate) fn start(mut command: Command, stderr: Stdio) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|error| format!("cannot run {name}: {error}"))?;
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            // The thread ends with the child's output.
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines() {
                    let Ok(line) = line else { break };
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { name, child, lines })
    }

    /// Starts this program as one process of a measurement.
    pub(crate) fn part(words: &[&str]) -> Result<Self, Failure> {
        let mut command = part_command()?;
        command.args(words);
        Self::start(command, Stdio::inherit())
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line of output.
    pub(crate) fn line(&self, limit: Duration) -> Result<String, Failure> {
        self.lines.recv_timeout(limit).map_err(|error| {
            let what = match error {
                RecvTimeoutError::Timeout => "says nothing",
                RecvTimeoutError::Disconnected => "ended early",
            };
            format!("{} (process {}) {what}", self.name, self.id())
        })
    }

    /// Returns the next line of output, parsed.
    pub(crate) fn value<T: std::str::FromStr>(&self, limit: Duration) -> Result<T, Failure> {
        let line = self.line(limit)?;
        line.trim()
            .parse()
            .map_err(|_| format!("{} says {line:?}", self.name))
    }

    /// Writes a line to the child's standard input.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), Failure> {
        let stdin = self.child.stdin.as_mut().ok_or("no standard input")?;
        writeln!(stdin, "{line}").map_err(|error| format!("{}: {error}", self.name))
    }

    /// Waits for the end of the child and returns the rest of its output. Fails if the exit status
    /// is not 0.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<String, Failure> {
        drop(self.child.stdin.take());
        let end = Instant::now() + limit;
        let mut output = String::new();
        loop {
            match self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    output.push_str(&line);
                    output.push('\n');
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "{} did not end within {} s",
                        self.name,
                        limit.as_secs()
                    ));
                }
            }
        }
        // The output is closed, so the child has ended or ends now.
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < end => thread::yield_now(),
                Ok(None) => return Err(format!("{} does not end", self.name)),
                Err(error) => return Err(error.to_string()),
            }
        };
        if status.success() {
            return Ok(output);
        }
        let mut errors = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut errors);
        }
        let last = errors.lines().rfind(|line| !line.trim().is_empty());
        Err(format!(
            "{}: {status} {}",
            self.name,
            last.unwrap_or_default()
        ))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both calls fail if the child has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that runs this program as one process of a measurement.
pub(crate) fn part_command() -> Result<Command, Failure> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg("part");
    Ok(command)
}
