//! One step of a task: a command with a headline, a time limit and a verdict.
//!
//! Steps of one thread follow each other, and their output is passed on as it comes. A thread
//! inside [`aside`] keeps the output of each step until the step has ended, and prints it in one
//! piece.

use std::{
    cell::Cell,
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead, BufReader, IsTerminal, Read, Seek, Write},
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    param::clock_ticks_per_second,
    process::{Pid, WaitId, WaitIdOptions, waitid},
};

use crate::tally::Tally;

/// The share of the machine and of the screen that the steps of a thread get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// The step competes with others for the processors.
    Normal,
    /// The step runs where no other one wants a processor.
    Low,
}

thread_local! {
    /// Set inside [`aside`].
    static ASIDE: Cell<Option<Priority>> = const { Cell::new(None) };
}

/// Runs `work`, whose steps run beside those of other threads.
pub(crate) fn aside<T>(priority: Priority, work: impl FnOnce() -> T) -> T {
    let before = ASIDE.replace(Some(priority));
    let result = work();
    ASIDE.set(before);
    result
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Set if its exit status was 0.
    pub(crate) success: bool,
    /// Sum of the `test result:` lines it printed.
    pub(crate) results: Tally,
    /// The time that it and the processes below it spent on processors, as far as they were waited
    /// for.
    pub(crate) processor_time: Duration,
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

    /// The verdict on a step that ran tests. A failed step without a failed test, as after a build
    /// error or a crash, counts as one failure.
    pub(crate) fn as_tests(&self) -> Tally {
        if !self.success && self.results.failed == 0 {
            self.results + Tally::FAIL
        } else {
            self.results
        }
    }
}

/// Runs `command` under a headline, and ends it after `limit`.
///
/// Its output is passed on as it comes, or inside [`aside`] in one piece after its end.
pub(crate) fn run(headline: &str, limit: Duration, command: Command) -> Outcome {
    if let Some(priority) = ASIDE.get() {
        return run_aside(headline, limit, command, priority);
    }
    eprintln!("\n=== {headline}");
    let began = Instant::now();
    let outcome = execute(limited(command, limit), &mut io::stdout());
    conclude(headline, &outcome, began);
    outcome
}

/// Runs `command` under a headline, and gives what it wrote to standard output instead of printing
/// that. Its standard error is passed on as it comes, also inside [`aside`].
pub(crate) fn capture(headline: &str, limit: Duration, command: Command) -> (Outcome, Vec<u8>) {
    let command = match ASIDE.get() {
        Some(priority) => low(command, priority),
        None => command,
    };
    eprintln!("\n=== {headline}");
    let began = Instant::now();
    let mut output = Vec::new();
    let outcome = execute(limited(command, limit), &mut output);
    conclude(headline, &outcome, began);
    (outcome, output)
}

fn conclude(headline: &str, outcome: &Outcome, began: Instant) {
    let verdict = if outcome.success { "ok" } else { "FAILED" };
    let seconds = began.elapsed().as_secs_f64();
    let computed = outcome.processor_time.as_secs_f64();
    eprintln!("=== {headline}: {verdict} ({seconds:.1} s, {computed:.1} s of processor time)");
}

/// Runs `command` beside the steps of other threads, and prints its output after its end.
fn run_aside(headline: &str, limit: Duration, command: Command, priority: Priority) -> Outcome {
    static SCREEN: Mutex<()> = Mutex::new(());
    let began = Instant::now();
    let (outcome, text) = keep(limited(low(command, priority), limit));
    let _whole = SCREEN.lock().unwrap_or_else(PoisonError::into_inner);
    eprintln!("\n=== {headline}");
    // The reader of this output may go away. The steps run nevertheless.
    let _ = io::stdout()
        .write_all(&text)
        .and_then(|()| io::stdout().flush());
    conclude(headline, &outcome, began);
    outcome
}

/// Runs `command` to its end, and gives both its outputs in one.
///
/// They go to a file and not to a pipe: a process that outlives the command may keep it open.
fn keep(mut command: Command) -> (Outcome, Vec<u8>) {
    let mut text = Vec::new();
    let ran = nameless_file().and_then(|mut file| {
        command.stdin(Stdio::null());
        command.stdout(file.try_clone()?).stderr(file.try_clone()?);
        let (status, processor_time) = wait(&mut command.spawn()?)?;
        file.rewind()?;
        file.read_to_end(&mut text)?;
        Ok((status.success(), processor_time))
    });
    let (success, processor_time) = ran.unwrap_or_else(|error| {
        let program = command.get_program().to_string_lossy();
        text.extend(format!("xtask: failed to run {program}: {error}\n").bytes());
        (false, Duration::ZERO)
    });
    let lines = text.split(|&byte| byte == b'\n');
    let results = lines.filter_map(|line| Tally::from_result_line(&String::from_utf8_lossy(line)));
    let results = results.fold(Tally::default(), |sum, tally| sum + tally);
    let outcome = Outcome {
        success,
        results,
        processor_time,
    };
    (outcome, text)
}

/// Creates a file for output without a name, which the system deletes with its last descriptor.
fn nameless_file() -> io::Result<File> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = env::temp_dir().join(format!("rocade-xtask-{}-{number}", process::id()));
    let mut options = File::options();
    // Appending, because the two descriptors of the command have one position each in the file.
    let file = options
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Niceness of a step of low priority: a third of the share of a test. The lowest priority would
/// get nothing beside other programs that compute.
const NICENESS: &str = "5";

/// Wraps a command into coreutils' `nice` if it has low priority. Without that tool it keeps the
/// usual priority.
fn low(command: Command, priority: Priority) -> Command {
    if priority == Priority::Normal || !succeeds(Command::new("nice").arg("--version")) {
        return command;
    }
    let mut nice = Command::new("nice");
    nice.args(["-n", NICENESS]);
    wrap(nice, &command)
}

/// Returns `outer` with `command` as its arguments, and with the environment and directory of
/// `command`.
fn wrap(mut outer: Command, command: &Command) -> Command {
    outer.arg(command.get_program());
    outer.args(command.get_args().map(OsString::from));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        outer.current_dir(dir);
    }
    outer
}

/// Runs a command and discards its output. Returns true if the command exists and its exit status
/// is 0.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Wraps a command into coreutils' `timeout`, which ends its whole process group. Without that tool
/// there is no limit.
///
/// At a terminal the command stays in the foreground group, so that Ctrl-C reaches it. Then the
/// limit ends the command alone.
fn limited(command: Command, limit: Duration) -> Command {
    if !succeeds(Command::new("timeout").arg("--version")) {
        return command;
    }
    let mut wrapped = Command::new("timeout");
    if io::stdin().is_terminal() {
        wrapped.arg("--foreground");
    }
    wrapped
        .arg("--kill-after=10")
        .arg(limit.as_secs().to_string());
    wrap(wrapped, &command)
}

fn execute(mut command: Command, output: &mut impl Write) -> Outcome {
    let failed = |reason: String| {
        eprintln!("xtask: {reason}");
        Outcome {
            success: false,
            results: Tally::default(),
            processor_time: Duration::ZERO,
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
            // The reader of this output may go away. The tests run nevertheless.
            let _ = output.write_all(&line);
            line.clear();
        }
    }
    match wait(&mut child) {
        Ok((status, processor_time)) => Outcome {
            success: status.success(),
            results,
            processor_time,
        },
        Err(error) => failed(format!(
            "cannot wait for {:?}: {error}",
            command.get_program()
        )),
    }
}

/// Waits for the end of a process. Returns its exit status and processor time.
///
/// The system forgets the time of a process that has been waited for, so it is read before.
fn wait(child: &mut Child) -> io::Result<(ExitStatus, Duration)> {
    let ended = || {
        let not_yet = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(child)), not_yet)
    };
    while matches!(ended(), Err(Errno::INTR)) {}
    let line = fs::read_to_string(format!("/proc/{}/stat", child.id()));
    let processor_time = line.ok().and_then(|line| processor_time(&line));
    Ok((child.wait()?, processor_time.unwrap_or_default()))
}

/// Reads the times in user and system mode, of the process and of its children, from a line of
/// `/proc/PID/stat`. The name of the program, in brackets, may have spaces.
fn processor_time(line: &str) -> Option<Duration> {
    let (_, fields) = line.rsplit_once(')')?;
    // The field after the name is the third one, and the times are the 14th to the 17th.
    let times: Vec<u64> = fields
        .split_ascii_whitespace()
        .skip(11)
        .take(4)
        .map_while(|field| field.parse().ok())
        .collect();
    let ticks: u64 = (times.len() == 4).then(|| times.iter().sum())?;
    Some(Duration::from_secs_f64(
        ticks as f64 / clock_ticks_per_second() as f64,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_step_includes_that_of_its_children() {
        let computing = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let limit = Duration::from_secs(60);
        let begun = Instant::now();
        let outcome = shell(&format!("sh -c '{computing}'; sleep 1"), limit);
        let (spent, elapsed) = (outcome.processor_time, begun.elapsed());
        assert!(outcome.success);
        assert!(spent > Duration::ZERO, "{spent:?}");
        assert!(
            spent + Duration::from_millis(500) < elapsed,
            "{spent:?} of {elapsed:?}"
        );
        assert_eq!(
            processor_time("1 (a) b) S 1 1 1 0 -1 0 0 0 0 0 x 2 3 4 5"),
            None
        );
        let second = clock_ticks_per_second();
        let line = format!("1 (a) b) S 1 1 1 0 -1 0 0 0 0 0 {second} {second} 0 {second} 20");
        assert_eq!(processor_time(&line), Some(Duration::from_secs(3)));
    }

    /// Runs a script with a limit. Its output stays out of this test's, whose caller may count
    /// result lines.
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
    fn output_that_is_kept_has_both_streams_and_waits_for_no_process_left_behind() {
        let line = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let script = format!("sleep 30 & echo '{line}'; echo '{line}' >&2; exit 3");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let began = Instant::now();
        let limit = Duration::from_secs(60);
        let (outcome, text) = keep(limited(low(command, Priority::Low), limit));
        assert!(began.elapsed() < Duration::from_secs(25));
        assert_eq!(
            String::from_utf8(text).unwrap(),
            format!("{line}\n{line}\n")
        );
        let expected = Tally {
            passed: 4,
            failed: 1,
            skipped: 0,
        };
        assert_eq!(outcome.as_tests(), expected);
        let (outcome, text) = keep(Command::new("/no/such/program"));
        assert_eq!(outcome.as_one(), Tally::FAIL);
        assert!(String::from_utf8_lossy(&text).contains("/no/such/program"));
    }

    #[test]
    fn ends_a_command_that_hangs() {
        let began = Instant::now();
        let hung = shell("sleep 60", Duration::from_secs(1));
        assert!(!hung.success);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
