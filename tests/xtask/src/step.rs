//! One step of a task: a command with a headline, a time limit and a verdict.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, IsTerminal, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::tally::Tally;

/// What came of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Whether its exit status was 0.
    pub(crate) success: bool,
    /// Sum of the `test result:` lines it printed.
    pub(crate) results: Tally,
}

impl Outcome {
    /// The verdict on a step that is itself the test.
    pub(crate) fn as_one(&self) -> Tally {
        if self.success {
            Tally::PASS
        } else {
            Tally::FAIL
        }
    }

    /// The verdict on a step that ran tests: a failure that no test accounts for (a build error, a crash) counts too.
    pub(crate) fn as_tests(&self) -> Tally {
        if !self.success && self.results.failed == 0 {
            self.results + Tally::FAIL
        } else {
            self.results
        }
    }
}

/// Runs `command` under a headline, passing its output on as it comes; it is ended after `limit`.
pub(crate) fn run(headline: &str, limit: Duration, command: Command) -> Outcome {
    eprintln!("\n=== {headline}");
    let began = Instant::now();
    let outcome = execute(limited(command, limit), &mut std::io::stdout());
    let verdict = if outcome.success { "ok" } else { "FAILED" };
    eprintln!(
        "=== {headline}: {verdict} ({:.1} s)",
        began.elapsed().as_secs_f64()
    );
    outcome
}

/// Runs a command whose output nobody needs; true where it exists and its exit status is 0.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Wraps a command into coreutils' `timeout`, which ends its whole process group; without that tool there is no limit.
///
/// At a terminal the command stays in the foreground group, so that Ctrl-C reaches it; then only it is ended in time.
fn limited(command: Command, limit: Duration) -> Command {
    if !succeeds(Command::new("timeout").arg("--version")) {
        return command;
    }
    let mut wrapped = Command::new("timeout");
    if std::io::stdin().is_terminal() {
        wrapped.arg("--foreground");
    }
    wrapped
        .arg("--kill-after=10")
        .arg(limit.as_secs().to_string());
    wrapped.arg(command.get_program());
    wrapped.args(command.get_args().map(OsString::from));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

fn execute(mut command: Command, output: &mut impl Write) -> Outcome {
    let failed = |reason: String| {
        eprintln!("xtask: {reason}");
        Outcome {
            success: false,
            results: Tally::default(),
        }
    };
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return failed(format!("cannot run {:?}: {error}", command.get_program())),
    };
    let mut results = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        // Bytes, not strings: a test may print anything.
        while matches!(lines.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            if let Some(tally) = Tally::from_result_line(&String::from_utf8_lossy(&line)) {
                results = results + tally;
            }
            // Whoever reads our output may go away; the tests are run all the same.
            let _ = output.write_all(&line);
            line.clear();
        }
    }
    match child.wait() {
        Ok(status) => Outcome {
            success: status.success(),
            results,
        },
        Err(error) => failed(format!(
            "cannot wait for {:?}: {error}",
            command.get_program()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script with a limit; its output is kept from ours, where a caller may count result lines.
    fn shell(script: &str, limit: Duration) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        execute(limited(command, limit), &mut Vec::new())
    }

    #[test]
    fn adds_up_results_and_notices_a_failure_without_one() {
        let line = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        let limit = Duration::from_secs(10);
        let twice = shell(&format!("echo '{line}'; echo '{line}'"), limit);
        assert_eq!(
            twice.as_tests(),
            Tally {
                passed: 4,
                failed: 0,
                skipped: 2
            }
        );
        let crash = shell(&format!("echo '{line}'; exit 101"), limit);
        assert_eq!(
            crash.as_tests(),
            Tally {
                passed: 2,
                failed: 1,
                skipped: 1
            }
        );
        assert_eq!(crash.as_one(), Tally::FAIL);
    }

    #[test]
    fn ends_a_command_that_hangs() {
        let began = Instant::now();
        let hung = shell("sleep 60", Duration::from_secs(1));
        assert!(!hung.success);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
