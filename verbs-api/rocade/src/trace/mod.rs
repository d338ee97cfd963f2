//! `rocade trace`: runs a program and prints its verbs, work requests and packets.
//!
//! The program's libraries write records into rings (`rocade_emulator::trace`), and send those to
//! a socket in a temporary directory. This process reads them meanwhile, and never makes them wait.

pub(crate) mod args;
mod event;
mod model;
#[cfg(test)]
mod model_tests;
mod names;
mod perfetto;
#[cfg(test)]
mod perfetto_tests;
mod print;
mod proto;
mod qp;
#[cfg(test)]
mod qp_tests;
mod report;
mod show;
mod source;
mod summary;
mod timeline;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::trace::{ENV_TRACE_DIR, now_ns};
use rocade_emulator::{FileSizeErrors, IgnoredInterrupts};

use crate::error::CliError;

use args::{TraceArgs, TraceCommand, TraceRunArgs};
use event::Event;
use model::Model;
use perfetto::Timeline;
use print::Printer;
use source::Source;
use summary::Summary;

/// The time between two looks at the rings.
const TICK: Duration = Duration::from_millis(5);
/// The time between two looks while the program is busy and may need the processor. A ring is not
/// full so soon.
const BUSY_TICK: Duration = Duration::from_millis(20);
/// The time between two messages about decoding what is left at the end.
const PROGRESS: Duration = Duration::from_secs(2);
/// After this time without progress, the trace says what the program waits for.
const QUIET_NS: u64 = 2_000_000_000;

pub(crate) fn run(args: &TraceArgs, file_size: &FileSizeErrors) -> Result<ExitCode, CliError> {
    if let Some(TraceCommand::Show(args)) = &args.command {
        return show::run(args);
    }
    let run = &args.run;
    if run.command.is_empty() {
        return Err(CliError::new("no program given").hint("rocade trace -- CMD..."));
    }
    let dir = directory()?;
    let mut session = Session::new(run, dir.path())?;
    let child = start(run, dir.path(), file_size)?;
    let status = session.follow(child).map_err(|error| {
        CliError::new(format!("failed to read or write the trace: {error}"))
            .hint("the program may still run")
    })?;
    Ok(exit_code(status))
}

/// Makes the directory of the socket. The path of a socket must be short.
fn directory() -> Result<tempfile::TempDir, CliError> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("rocade-trace-");
    let made = builder
        .tempdir()
        .or_else(|_| builder.tempdir_in("/dev/shm"));
    made.map_err(|error| CliError::new(format!("failed to make a directory: {error}")))
}

/// Starts the program by `rocade run`.
fn start(run: &TraceRunArgs, dir: &Path, file_size: &FileSizeErrors) -> Result<Child, CliError> {
    let explain = |error: io::Error| CliError::new(format!("failed to start the program: {error}"));
    let exe = std::env::current_exe().map_err(explain)?;
    let mut command = Command::new(exe);
    command.arg("run").args(run.run_args());
    command.arg("--").args(&run.command);
    command.env(ENV_TRACE_DIR, dir);
    // The program gets the signals as it would without this command.
    file_size.end();
    let child = command.spawn().map_err(explain)?;
    Ok(child)
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or(0),
    };
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}

/// A trace in progress.
struct Session {
    source: Source,
    model: Model,
    printer: Option<Printer<Box<dyn Write>>>,
    /// The counts, and where their table goes.
    summary: Option<(Summary, Box<dyn Write>)>,
    timeline: Option<Timeline<BufWriter<File>>>,
    /// Time of progress of the last report, which comes once.
    reported_ns: u64,
    /// Processes that have ended, and when that was noticed.
    ended: BTreeMap<u32, u64>,
}

impl Session {
    fn new(run: &TraceRunArgs, dir: &Path) -> Result<Self, CliError> {
        let create = |path: &Path| {
            let explain = |error| format!("failed to write {}: {error}", path.display());
            let file = File::create(path).map_err(|error| CliError::new(explain(error)))?;
            Ok::<_, CliError>(BufWriter::new(file))
        };
        let timeline = run.perfetto.as_deref().map(create).transpose()?;
        let has_lines = !run.count && (timeline.is_none() || run.output.is_some());
        let out: Box<dyn Write> = match &run.output {
            Some(path) => Box::new(create(path)?),
            None => Box::new(BufWriter::new(io::stderr())),
        };
        let (printer, summary) = match (has_lines, run.count) {
            (true, _) => (Some(Printer::new(out, run.filter.clone())), None),
            (false, true) => (None, Some((Summary::default(), out))),
            (false, false) => (None, None),
        };
        let written = run.output.as_deref().or(run.perfetto.as_deref());
        let spool_dir = match written.and_then(Path::parent) {
            // The name of a file in the current directory has an empty parent.
            Some(parent) => Path::new(".").join(parent),
            None => std::env::temp_dir(),
        };
        Ok(Self {
            source: Source::new(dir, spool_dir).map_err(|error| {
                CliError::new(format!("failed to listen in {}: {error}", dir.display()))
            })?,
            model: Model::default(),
            printer,
            summary,
            timeline: timeline.map(Timeline::new),
            reported_ns: 0,
            ended: BTreeMap::new(),
        })
    }

    /// Prints until the program has ended.
    fn follow(&mut self, mut child: Child) -> io::Result<ExitStatus> {
        let _interrupts = IgnoredInterrupts::begin();
        self.model.progress_ns = now_ns();
        loop {
            let ended = child.try_wait()?;
            let is_busy = self.source.collect()?;
            if let Some(status) = ended {
                self.decode_rest()?;
                self.finish(status)?;
                return Ok(status);
            }
            if !is_busy {
                let until = Instant::now() + TICK;
                let mut decoded = 0;
                let has_all = loop {
                    match self.decode(false)? {
                        Some(count) => decoded += count,
                        None => break true,
                    }
                    if Instant::now() > until && !self.source.is_full() {
                        break false;
                    }
                };
                if !has_all {
                    continue;
                }
                self.report_silence()?;
                if decoded == 0 {
                    self.report_ended()?;
                    self.flush()?;
                }
            }
            thread::sleep(if is_busy { BUSY_TICK } else { TICK });
        }
    }

    /// Shows all records that wait, and tells how many are left if that takes long.
    fn decode_rest(&mut self) -> io::Result<()> {
        let mut told = Instant::now();
        while self.decode(true)?.is_some() {
            if told.elapsed() > PROGRESS {
                told = Instant::now();
                if let Some(text) = progress(self.source.waiting_bytes()) {
                    writeln!(io::stderr(), "rocade trace: {text}")?;
                }
            }
        }
        Ok(())
    }

    /// Shows the records of a round. Returns their number, or `None` without a round.
    fn decode(&mut self, all: bool) -> io::Result<Option<usize>> {
        let Some(entries) = self.source.next(all)? else {
            return Ok(None);
        };
        for entry in &entries {
            for event in self.model.take(entry) {
                self.show(&event)?;
            }
        }
        Ok(Some(entries.len()))
    }

    fn show(&mut self, event: &Event) -> io::Result<()> {
        if let Some((summary, _)) = &mut self.summary {
            summary.add(event);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.add(event)?;
        }
        match &mut self.printer {
            Some(printer) => printer.print(event),
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.printer.as_mut().map_or(Ok(()), Printer::flush)
    }

    /// Says what the program waits for if nothing has happened for a while.
    fn report_silence(&mut self) -> io::Result<()> {
        let progress = self.model.progress_ns;
        let silent = now_ns().saturating_sub(progress);
        if silent < QUIET_NS || self.reported_ns == progress || self.model.processes.is_empty() {
            return Ok(());
        }
        self.reported_ns = progress;
        let lines = report::waiting(&self.model, is_alive);
        if lines.is_empty() {
            return Ok(());
        }
        let silent = names::duration(silent);
        self.lines(&format!("no call has begun or ended for {silent}:"), &lines)
    }

    /// Says which processes have ended, because their peers may wait for them.
    fn report_ended(&mut self) -> io::Result<()> {
        let pids = self.model.processes.keys().copied();
        let is_new = |pid: &u32| !self.ended.contains_key(pid) && !is_alive(*pid);
        let ended: Vec<u32> = pids.filter(is_new).collect();
        for pid in ended {
            self.ended.insert(pid, now_ns());
            if let Some(printer) = &mut self.printer {
                printer.line(&format!("process {pid} has ended"))?;
            }
        }
        Ok(())
    }

    fn lines(&mut self, head: &str, lines: &[String]) -> io::Result<()> {
        let say = |text: &str| writeln!(io::stderr(), "rocade trace: {text}");
        let all = std::iter::once(head.to_owned());
        for line in all.chain(lines.iter().map(|line| format!("  {line}"))) {
            match &mut self.printer {
                Some(printer) => printer.line(&line)?,
                None => say(&line)?,
            }
        }
        self.flush()
    }

    fn finish(&mut self, status: ExitStatus) -> io::Result<()> {
        let lines = report::waiting(&self.model, |_| true);
        if !lines.is_empty() && !status.success() {
            self.lines(&format!("at the end ({status}):"), &lines)?;
        }
        for (pid, count) in self.source.lost() {
            let text = format!("{count} records of process {pid} are lost, because it was faster");
            self.lines(&text, &[])?;
        }
        let running: Vec<String> = self
            .model
            .processes
            .keys()
            .copied()
            .filter(|pid| is_alive(*pid))
            .map(|pid| pid.to_string())
            .collect();
        if !running.is_empty() {
            self.lines(
                &format!("still running: process {}", running.join(", ")),
                &[],
            )?;
        }
        self.flush()?;
        if let Some(timeline) = &mut self.timeline {
            let now = now_ns();
            timeline.unfinished(&self.model, |pid| {
                self.ended.get(&pid).copied().unwrap_or(now)
            })?;
            timeline.finish()?;
        }
        if let Some((summary, out)) = &mut self.summary {
            writeln!(out, "{}", summary.text())?;
            out.flush()?;
        }
        Ok(())
    }
}

/// Returns words about the records that are left, if they are 1 MiB or more.
fn progress(left_bytes: u64) -> Option<String> {
    let left = left_bytes >> 20;
    (left > 0).then(|| format!("{left} MiB of records are left"))
}

/// Returns true if a process runs.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // The state follows the name, which is in parentheses.
    let state = stat.ok().and_then(|stat| {
        let (_, rest) = stat.rsplit_once(") ")?;
        rest.chars().next()
    });
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[cfg(test)]
mod tests {
    #[test]
    fn little_that_is_left_is_not_told() {
        assert_eq!(super::progress((1 << 20) - 1), None);
        let told = super::progress(5 << 20);
        assert_eq!(told.as_deref(), Some("5 MiB of records are left"));
    }
}
