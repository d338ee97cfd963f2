//! A script on real processes, which are this test program in other roles.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::super::process::{Outcome, outcome_of, perform, text_of};
use super::super::step::{CLIENTS, Call, DIRS};
use super::super::world::{is_readable, other_version};
use super::{Act, Stage, call_of};
use crate::broker::identity::ThisProcess;
use crate::broker::paths::Paths;
use crate::broker::simulated::brokers::HOST;
use crate::broker::{self, BrokerClient, BrokerConfig, BrokerError, ServiceOutcome, start};
use crate::fdpass;

/// Environment variable with the role of a process of this program.
const ROLE: &str = "ROCADE_HOSTSIM_ROLE";
/// The test that a process of this program runs.
const ENTRY: &str = "broker::hostsim::fidelity::real::child_process";
/// Longest wait for what takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks at a condition.
const LOOK: Duration = Duration::from_millis(1);
/// Time after which a process ends by itself, in seconds.
const LIFE: libc::c_uint = 300;

/// The entry point of the processes. It is no test itself.
#[test]
fn child_process() {
    let Ok(role) = env::var(ROLE) else { return };
    // SAFETY: takes no pointers. The default action of the signal is to end the process.
    unsafe { libc::alarm(LIFE) };
    let dir = env::var_os("ROCADE_RUNTIME_DIR").expect("a directory");
    let config = config(Path::new(&dir));
    match role.as_str() {
        "broker" => broker::serve(&config).expect("the broker runs"),
        _ => live(&config),
    }
}

fn config(dir: &Path) -> BrokerConfig {
    let exe = env::current_exe().expect("a test has a path");
    let arguments = ["--exact", ENTRY, "--nocapture"].map(OsString::from);
    let command = ["env".into(), format!("{ROLE}=broker").into(), exe.into()];
    BrokerConfig {
        runtime_dir: Some(dir.to_owned()),
        command: Some(command.into_iter().chain(arguments).collect()),
        ..BrokerConfig::default()
    }
}

/// Carries out the orders that come from the standard input. Each has one line of answer, which
/// begins with `@`.
fn live(config: &BrokerConfig) {
    let client = match BrokerClient::connect_or_start(config) {
        Ok(client) => client,
        Err(error) => return println!("@gone {}", outcome_of(&Err(error))),
    };
    println!("@{}", outcome_of(&Ok(Outcome::Done)));
    let mut targets = 0;
    for line in std::io::stdin().lock().lines() {
        match line.expect("an order").as_str() {
            "settle" => {
                settle(&client);
                println!("@{}", text_of(&client.view()));
            }
            call => {
                let call = call_of(call).expect("a call");
                let result = perform(&client, call, &mut targets);
                println!("@{}", outcome_of(&result));
            }
        }
    }
}

/// Services the client until it has a broker and nothing to read.
fn settle(client: &BrokerClient) {
    let begin = Instant::now();
    loop {
        let again = match client.service() {
            ServiceOutcome::Retry(time) => time,
            _ => LOOK,
        };
        let view = client.view();
        if view.is_connected && !view.connection.is_some_and(is_readable) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "there is no broker");
        // SAFETY: the client lives, and has its descriptor as long.
        let control = unsafe { BorrowedFd::borrow_raw(client.control_fd()) };
        let mut waiting = [broker::sys::poll_readable(control)];
        let _ = broker::sys::poll(&mut waiting, Some(again));
    }
}

struct Client {
    child: Child,
    dir: u8,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn start(dir: u8, path: &Path) -> Self {
        let mut command = Command::new(env::current_exe().expect("a test has a path"));
        command.args(["--exact", ENTRY, "--nocapture"]);
        command.env(ROLE, "client").env("ROCADE_RUNTIME_DIR", path);
        command.env(HOST, std::process::id().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let input = child.stdin.take().expect("its input");
        let output = child.stdout.take().expect("its output");
        Self {
            child,
            dir,
            input,
            output: BufReader::new(output),
        }
    }

    fn say(&mut self, order: &str) -> Result<(), String> {
        writeln!(self.input, "{order}").map_err(|error| format!("{order}: {error}"))
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        loop {
            line.clear();
            let len = self.output.read_line(&mut line);
            if len.map_err(|error| error.to_string())? == 0 {
                return Err("a process has ended".to_owned());
            }
            // The test harness writes text of its own before it.
            if let Some((_, answer)) = line.trim_end().split_once('@') {
                return Ok(answer.to_owned());
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) struct Real {
    clients: Vec<Option<Client>>,
    dirs: Vec<TempDir>,
}

impl Real {
    pub(super) fn new() -> Self {
        let dir = |_| tempfile::tempdir().expect("a directory");
        Self {
            clients: (0..CLIENTS).map(|_| None).collect(),
            dirs: (0..DIRS).map(dir).collect(),
        }
    }

    fn config(&self, dir: u8) -> BrokerConfig {
        config(self.dirs[usize::from(dir)].path())
    }

    /// Begins an act. Returns what its call has returned.
    fn begin(&mut self, act: Act) -> Result<Option<(u8, String)>, String> {
        match act {
            Act::Connect { client, dir } => return self.connect(client, dir),
            Act::Call { client, call } => {
                let Some(process) = &mut self.clients[usize::from(client)] else {
                    return Ok(None);
                };
                process.say(&format!("{call:?}"))?;
                let answer = process.answer()?;
                return Ok((call != Call::Service).then_some((client, answer)));
            }
            Act::Kill { client } => self.clients[usize::from(client)] = None,
            Act::KillBroker { dir } => self.kill_broker(dir)?,
            Act::EndBroker { dir } => {
                if broker::stop(&self.config(dir)).is_ok() {
                    self.wait_for_its_end(dir)?;
                }
            }
            Act::OtherVersion { dir } => {
                if let Ok(connection) = start::connect(&Paths::new(&self.config(dir)), &ThisProcess)
                {
                    fdpass::send(connection.as_fd(), &other_version(), &[])
                        .map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(None)
    }

    fn connect(&mut self, client: u8, dir: u8) -> Result<Option<(u8, String)>, String> {
        let slot = usize::from(client);
        if self.clients[slot].is_some() {
            return Ok(None);
        }
        let mut process = Client::start(dir, self.dirs[usize::from(dir)].path());
        let answer = process.answer()?;
        if let Some(error) = answer.strip_prefix("gone ") {
            return Ok(Some((client, error.to_owned())));
        }
        self.clients[slot] = Some(process);
        Ok(Some((client, answer)))
    }

    fn kill_broker(&self, dir: u8) -> Result<(), String> {
        let Ok(status) = broker::status(&self.config(dir)) else {
            return Ok(());
        };
        let pid = libc::pid_t::try_from(status.pid).map_err(|error| error.to_string())?;
        assert!(pid > 1, "{pid} is a process");
        // SAFETY: takes no pointers.
        let killed = unsafe { libc::kill(pid, libc::SIGKILL) };
        assert_eq!(killed, 0, "the broker runs");
        self.wait_for_its_end(dir)
    }

    fn wait_for_its_end(&self, dir: u8) -> Result<(), String> {
        let gone =
            |error: &BrokerError| matches!(error, BrokerError::NotRunning | BrokerError::Lost);
        until("a broker ends", || {
            broker::status(&self.config(dir)).is_err_and(|error| gone(&error))
        })
    }

    /// Lets all clients find their broker, and all brokers notice who has ended. Returns what each
    /// client has.
    fn settle(&mut self) -> Result<String, String> {
        let begin = Instant::now();
        loop {
            let seen = self.settle_clients()?;
            if (0..DIRS).all(|dir| self.is_settled(dir)) {
                return Ok(seen);
            }
            if begin.elapsed() > PATIENCE {
                return Err("the brokers do not know their clients".to_owned());
            }
            thread::sleep(LOOK);
        }
    }

    fn settle_clients(&mut self) -> Result<String, String> {
        // All at once, because a broker may wait for one of them.
        for process in self.clients.iter_mut().flatten() {
            process.say("settle")?;
        }
        let mut seen = String::new();
        for (client, process) in self.clients.iter_mut().enumerate() {
            if let Some(process) = process {
                let _ = writeln!(seen, "client {client} has {}", process.answer()?);
            }
        }
        Ok(seen)
    }

    /// Returns true if the broker of a directory, if there is one, knows all its clients.
    fn is_settled(&self, dir: u8) -> bool {
        let own = self.clients.iter().flatten();
        let own: BTreeSet<_> = own
            .filter(|client| client.dir == dir)
            .map(|client| client.child.id())
            .collect();
        let Ok(status) = broker::status(&self.config(dir)) else {
            return own.is_empty();
        };
        let known: BTreeSet<_> = status.slots.iter().map(|slot| slot.pid).collect();
        known == own && status.slots.iter().all(|slot| slot.connected)
    }
}

impl Stage for Real {
    fn perform(&mut self, act: Act) -> Result<String, String> {
        let result = self.begin(act)?;
        let result = result.map(|(client, text)| format!("client {client} gets {text}\n"));
        let seen = self.settle()?;
        Ok(result.unwrap_or_default() + &seen)
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.clients.clear();
        for dir in 0..DIRS {
            if broker::stop(&self.config(dir)).is_ok() {
                let ended = self.wait_for_its_end(dir);
                assert!(ended.is_ok() || thread::panicking(), "{ended:?}");
            }
        }
    }
}

/// Waits for a condition.
fn until(what: &str, condition: impl Fn() -> bool) -> Result<(), String> {
    let begin = Instant::now();
    while !condition() {
        if begin.elapsed() > PATIENCE {
            return Err(format!("waited too long until {what}"));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}
