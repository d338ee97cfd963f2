//! Connects to the broker, and starts one if there is none.

#![deny(clippy::disallowed_methods)]

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rocade_transport::Time;
use socket2::{Domain, SockAddr, Type};

use super::identity::Identity;
use super::machine::Machine;
use super::paths::{Paths, open_lock, open_own};
use super::{BrokerConfig, BrokerError, service, sys};
use crate::config::{self, LogFilter};
use crate::notice::{self, Notice};

/// Most attempts to start a broker that ends at once. They count ends, so that a slow start is no
/// failure.
const MOST_STARTS: u32 = 3;
/// Interval of checks whether the broker listens, because no event shows this.
const LOOK_AGAIN: Duration = Duration::from_millis(3);
/// Checks at the first interval. The interval then grows up to [`LAZIEST`] times the first, because
/// many programs may be waiting for the broker and take CPU time from it.
const EARLY_LOOKS: u32 = 16;
const LAZIEST: u32 = 8;
/// Time without a connection after which the user is told. People need no earlier message, and it
/// changes nothing.
const QUIET_TIME: Duration = Duration::from_secs(3);
/// Length at which the log is truncated, in bytes.
const LOG_LIMIT: u64 = 256 << 10;
/// Length of the log excerpt in an error message, in bytes.
const LOG_TAIL: usize = 1000;

/// Connects to the running broker.
///
/// # Errors
/// [`BrokerError::NotRunning`] if there is none.
pub(super) fn connect(paths: &Paths, process: &dyn Identity) -> Result<OwnedFd, BrokerError> {
    let path = paths.socket();
    let address = SockAddr::unix(&path).map_err(|_| paths.too_long())?;
    match connect_to(&address, process) {
        Err(BrokerError::NotRunning) => {}
        Err(BrokerError::System { source, .. })
            if matches!(
                source.kind(),
                io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
            ) && source.raw_os_error() != Some(libc::EPERM) =>
        {
            return Err(paths.unusable(source.to_string()));
        }
        connected => return connected,
    }
    match connect_abstract(paths, process) {
        // A broker of another user does not matter here.
        Err(BrokerError::ForeignBroker { .. }) => Err(BrokerError::NotRunning),
        connected => connected,
    }
}

/// Connects by the abstract name. This finds a broker whose files were deleted, or that uses
/// another default directory.
pub(super) fn connect_abstract(
    paths: &Paths,
    process: &dyn Identity,
) -> Result<OwnedFd, BrokerError> {
    let name = paths.abstract_name();
    let address = SockAddr::unix(OsStr::from_bytes(&name))
        .map_err(BrokerError::failure("failed to connect to the broker"))?;
    connect_to(&address, process)
}

fn connect_to(address: &SockAddr, process: &dyn Identity) -> Result<OwnedFd, BrokerError> {
    let kind = Type::SEQPACKET.nonblocking().cloexec();
    let socket = crate::sys::socket(Domain::UNIX, kind, None)
        .map_err(BrokerError::failure("failed to create a unix socket"))?;
    process
        .prepare(socket.as_fd())
        .map_err(BrokerError::failure("failed to prepare a unix socket"))?;
    socket
        .connect(address)
        .map_err(|source| match source.kind() {
            // A full queue (WouldBlock) means that there should be a listener. The next attempts
            // show whether there is.
            io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::WouldBlock => BrokerError::NotRunning,
            _ => BrokerError::System {
                failure: "failed to connect to the broker",
                source,
            },
        })?;
    let peer = process.peer(socket.as_fd()).map_err(BrokerError::failure(
        "failed to query the listening process",
    ))?;
    if peer.uid != sys::effective_uid() {
        return Err(BrokerError::ForeignBroker { uid: peer.uid });
    }
    Ok(socket.into())
}

/// One attempt to reach the broker and to start it if necessary, in non-blocking steps.
#[derive(Debug)]
pub(super) struct Connector {
    config: BrokerConfig,
    paths: Paths,
    machine: Arc<dyn Machine>,
    deadline: Time,
    /// Held while this process starts the broker.
    lock: Option<File>,
    liveness_socket: Option<OwnedFd>,
    starts: u32,
    looks: u32,
    /// The length of the log at the last start.
    log_start: u64,
    /// The time after which the user is told that this takes long. `None` after that.
    announce_at: Option<Time>,
}

/// Result of a step.
#[derive(Debug)]
pub(super) enum ConnectStep {
    /// The connection.
    Connected(OwnedFd),
    /// The time to wait before the next step.
    Wait(Duration),
}

impl Connector {
    pub(super) fn new(config: &BrokerConfig, paths: &Paths, machine: &Arc<dyn Machine>) -> Self {
        let now = machine.now();
        Self {
            config: config.clone(),
            paths: paths.clone(),
            machine: Arc::clone(machine),
            deadline: now.plus(config.start_timeout),
            lock: None,
            liveness_socket: None,
            starts: 0,
            looks: 0,
            log_start: 0,
            announce_at: Some(now.plus(QUIET_TIME)),
        }
    }

    /// Takes the lock for starting a broker, to replace the running one. Returns false if another
    /// process has it.
    pub(super) fn take_lock(&mut self) -> Result<bool, BrokerError> {
        if self.lock.is_none() {
            self.paths.prepare()?;
            let failed = BrokerError::failure("failed to take the lock for starting a broker");
            let lock = open_lock(&self.paths.start_lock())
                .map_err(|error| self.cannot_open(&self.paths.start_lock(), error))?;
            if sys::try_lock(lock.as_fd()).map_err(&failed)? {
                self.lock = Some(lock);
            }
        }
        Ok(self.lock.is_some())
    }

    /// Takes the next step.
    ///
    /// # Errors
    /// The error that ended the attempt.
    pub(super) fn step(&mut self) -> Result<ConnectStep, BrokerError> {
        if let Some(connection) = self.try_connect()? {
            return Ok(ConnectStep::Connected(connection));
        }
        if self.machine.now() > self.deadline {
            let secs = self.config.start_timeout.as_secs_f32();
            let who = if self.lock.is_some() {
                ""
            } else {
                ", and another program has the lock for starting one"
            };
            return Err(self.failed(format!("nothing listens after {secs} s{who}")));
        }
        if self.lock.is_none() {
            // The previous owner of the lock may just have started a broker.
            return Ok(ConnectStep::Wait(if self.take_lock()? {
                Duration::ZERO
            } else {
                self.pause()
            }));
        }
        match &self.liveness_socket {
            None => {
                self.liveness_socket = Some(self.spawn()?);
                self.starts += 1;
                Ok(ConnectStep::Wait(LOOK_AGAIN))
            }
            Some(line) if has_ended(line) => {
                if self.starts >= MOST_STARTS {
                    return Err(self.ended_at_once());
                }
                self.liveness_socket = None;
                Ok(ConnectStep::Wait(LOOK_AGAIN * 10 * self.starts))
            }
            Some(_) => Ok(ConnectStep::Wait(self.pause())),
        }
    }

    /// Tells the user once if this takes long.
    fn announce(&mut self) {
        if self.announce_at.is_some_and(|at| self.machine.now() >= at) {
            self.announce_at = None;
            notice::say(&Notice {
                call: "broker",
                what: format!(
                    "it does not listen yet, and this program waits for up to {} s",
                    self.config.start_timeout.as_secs()
                ),
                remedy: format!(
                    "on a busy machine its start takes long. Its log: {}",
                    self.paths.log().display()
                ),
            });
        }
    }

    /// Returns the time to wait before the next check.
    fn pause(&mut self) -> Duration {
        self.looks = self.looks.saturating_add(1);
        LOOK_AGAIN * (1 + self.looks / EARLY_LOOKS).min(LAZIEST)
    }

    /// Takes steps until there is a connection.
    pub(super) fn run(&mut self) -> Result<OwnedFd, BrokerError> {
        loop {
            self.announce();
            match self.step()? {
                ConnectStep::Connected(connection) => return Ok(connection),
                ConnectStep::Wait(time) => self.machine.sleep(time)?,
            }
        }
    }

    fn try_connect(&self) -> Result<Option<OwnedFd>, BrokerError> {
        match connect(&self.paths, self.machine.process()) {
            Ok(connection) => Ok(Some(connection)),
            Err(BrokerError::NotRunning) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn spawn(&mut self) -> Result<OwnedFd, BrokerError> {
        let command = match &self.config.command {
            Some(command) => command.clone(),
            None => BrokerConfig::serve_command(find_program()?.into()),
        };
        let Some(program) = command.first().and_then(|program| in_path(program)) else {
            let tried = command.first().map(PathBuf::from).into_iter().collect();
            return Err(BrokerError::NoProgram { tried });
        };
        let strings = |strings: Vec<OsString>| -> Result<Vec<CString>, BrokerError> {
            let convert = |s: OsString| CString::new(s.into_vec());
            strings
                .into_iter()
                .map(convert)
                .collect::<Result<_, _>>()
                .map_err(|error| BrokerError::System {
                    failure: "failed to prepare the start of the broker",
                    source: error.into(),
                })
        };
        let argv = strings([vec![program.into()], command[1..].to_vec()].concat())?;
        let env = strings(self.environment())?;
        let failed = BrokerError::failure("failed to start the broker");
        let log = self
            .open_log()
            .map_err(|error| self.cannot_open(&self.paths.log(), error))?;
        self.log_start = log.metadata().map_or(0, |data| data.len());
        tracing::debug!(program = ?argv[0], "starting the broker");
        self.machine
            .start_broker(&argv, &env, log.as_fd())
            .map_err(&failed)
    }

    /// Returns the environment of the broker: that of this process, without the settings and the
    /// variables of the loader that are meant for the application.
    ///
    /// There is no configuration file either. Its path may be relative, and it may be gone when a
    /// program starts a broker again.
    fn environment(&self) -> Vec<OsString> {
        let mut entries: Vec<_> = env::vars_os()
            .filter(|(name, _)| is_for_broker(name))
            .map(|(name, value)| entry(&name, &value))
            .collect();
        entries.push(entry(config::ENV_CONFIG.as_ref(), "/dev/null".as_ref()));
        let log = self.config.log.as_ref();
        if let Some(log) = log.filter(|log| LogFilter::parse(log).is_ok()) {
            entries.push(entry(config::ENV_LOG.as_ref(), log.as_ref()));
        }
        entries.push(entry(
            config::ENV_RUNTIME_DIR.as_ref(),
            self.paths.dir().as_os_str(),
        ));
        let idle_ms = self.config.idle_timeout.as_millis().to_string();
        entries.push(entry(config::ENV_BROKER_IDLE_MS.as_ref(), idle_ms.as_ref()));
        entries
    }

    fn open_log(&self) -> io::Result<File> {
        let path = self.paths.log();
        let log = open_own(File::options().append(true).create(true), &path)?;
        if log.metadata()?.len() > LOG_LIMIT {
            log.set_len(0)?;
        }
        Ok(log)
    }

    /// Returns the error of a file in the runtime directory.
    fn cannot_open(&self, file: &Path, error: io::Error) -> BrokerError {
        // With such a code, the file is not the reason.
        if matches!(
            error.raw_os_error(),
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EPERM)
        ) {
            return BrokerError::failure("failed to open a file of the broker")(error);
        }
        let name = file.file_name().unwrap_or_default().display();
        self.paths
            .unusable(format!("failed to open {name}: {error}"))
    }

    fn failed(&self, reason: String) -> BrokerError {
        let log = fs::read(self.paths.log()).unwrap_or_default();
        // Earlier lines are about other brokers.
        let begin = usize::try_from(self.log_start).unwrap_or(0);
        let tail = log.get(begin..).unwrap_or(&log);
        let tail = &tail[tail.len().saturating_sub(LOG_TAIL)..];
        BrokerError::Start {
            reason,
            log: String::from_utf8_lossy(tail).trim_end().to_owned(),
            remedy: "",
        }
    }

    /// Returns the error of a broker that ended before it listened.
    fn ended_at_once(&self) -> BrokerError {
        let words = self.config.command.as_deref().unwrap_or_default();
        let shown = words
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let error = match shown.is_empty() {
            true => self.failed("it ended at once".to_owned()),
            false => self.failed(format!("`{shown}` ended at once")),
        };
        match error {
            // The broker gives its reasons, so that this is another program.
            BrokerError::Start { reason, log, .. }
                if !log.lines().any(|line| line.starts_with("rocade")) =>
            {
                BrokerError::Start {
                    reason,
                    log,
                    remedy: "ROCADE_BROKER (broker in rocade.toml) must be the path of `rocade`, \
                             `auto` or `embedded`",
                }
            }
            error => error,
        }
    }
}

/// Returns true if the broker inherits this variable.
fn is_for_broker(name: &OsStr) -> bool {
    // The program of the broker may need the libraries in this path, like the application.
    let is_for_loader = name.as_bytes().starts_with(b"LD_") && name != "LD_LIBRARY_PATH";
    !is_for_loader && !config::is_setting(name) && !service::is_of_manager(name)
}

fn entry(name: &OsStr, value: &OsStr) -> OsString {
    OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())
}

fn has_ended(liveness_socket: &OwnedFd) -> bool {
    let mut fds = [sys::poll_readable(liveness_socket.as_fd())];
    sys::poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
}

/// Returns the `rocade` program near the file of this code or of the running program, or in
/// `$PATH`.
fn find_program() -> Result<PathBuf, BrokerError> {
    const NEAR: [&str; 5] = ["", "..", "../..", "../bin", "../../bin"];
    let own_files = [sys::own_file(), env::current_exe().ok()];
    let near = own_files.iter().flatten().filter_map(|file| {
        let file = fs::canonicalize(file).unwrap_or_else(|_| file.clone());
        Some(file.parent()?.to_owned())
    });
    let mut tried: Vec<PathBuf> = near
        .flat_map(|dir| NEAR.map(|step| dir.join(step).join("rocade")))
        .collect();
    tried.dedup();
    if let Some(found) = tried.iter().find(|path| is_program(path)) {
        return Ok(fs::canonicalize(found).unwrap_or_else(|_| found.clone()));
    }
    if let Some(found) = in_path("rocade".as_ref()) {
        return Ok(found);
    }
    tried.push("$PATH".into());
    Err(BrokerError::NoProgram { tried })
}

/// Returns the file of a command name: itself if it contains a slash, else the match in `$PATH`.
fn in_path(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        // The broker runs in another directory.
        return std::path::absolute(program)
            .ok()
            .filter(|path| is_program(path));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(program))
        .find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::super::identity::ThisProcess;
    use super::super::machine::ThisMachine;
    use super::*;

    fn config(dir: &Path, command: &[&str]) -> BrokerConfig {
        BrokerConfig {
            runtime_dir: Some(dir.to_owned()),
            command: Some(command.iter().map(OsString::from).collect()),
            ..BrokerConfig::default()
        }
    }

    fn start(config: &BrokerConfig) -> BrokerError {
        let _starts = crate::sys::STARTS.write();
        Connector::new(config, &Paths::new(config), &ThisMachine::shared())
            .run()
            .unwrap_err()
    }

    #[test]
    fn a_broker_that_fails_is_reported_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let error = start(&config(
            dir.path(),
            &["/bin/sh", "-c", "echo sorry; exit 1"],
        ));
        let BrokerError::Start { log, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(log, "sorry", "only the last attempt");
        assert!(error.to_string().contains("ended at once"), "{error}");
    }

    #[test]
    fn a_program_that_is_no_broker_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = start(&config(dir.path(), &["/bin/true", "broker", "serve"]));
        assert_eq!(
            error.to_string(),
            "the broker did not start: `/bin/true broker serve` ended at once"
        );
        assert!(error.remedy().contains("ROCADE_BROKER"), "{error:?}");
        let script = "echo 'rocade: it is Monday'; exit 1";
        let error = start(&config(dir.path(), &["/bin/sh", "-c", script]));
        assert!(
            error.to_string().ends_with("rocade: it is Monday"),
            "{error}"
        );
        assert_eq!(error.remedy(), "", "the log has the reason");
    }

    #[test]
    fn a_runtime_directory_that_is_a_file_is_said() {
        let error = start(&config(Path::new("/etc/passwd"), &["/bin/true"]));
        assert!(matches!(error, BrokerError::RuntimeDir { .. }), "{error:?}");
        assert!(error.to_string().contains("/etc/passwd"), "{error}");
        assert!(error.remedy().contains("ROCADE_RUNTIME_DIR"), "{error:?}");
    }

    #[test]
    fn a_broker_that_hangs_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path(), &["/bin/sh", "-c", "exec sleep 20"]);
        config.start_timeout = Duration::from_millis(50);
        let error = start(&config);
        assert!(
            error.to_string().contains("nothing listens after 0.05 s"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_program_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "/nonexistent/rocade",
            "no-such-rocade-program",
            "/etc/passwd",
        ] {
            let error = start(&config(dir.path(), &[name]));
            assert!(matches!(error, BrokerError::NoProgram { .. }), "{error:?}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_directory_name_too_long_for_a_socket_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(120));
        let error = start(&config(&long, &["/bin/true"]));
        assert!(error.to_string().contains("too long"), "{error}");
        let most = super::super::paths::LONGEST_DIR;
        assert!(error.remedy().contains(&format!("at most {most} bytes")));
        // A path of that length has room for the socket.
        let dir = Path::new("/").join("x".repeat(most - 1));
        let config = config(&dir, &["/bin/true"]);
        assert!(SockAddr::unix(Paths::new(&config).socket()).is_ok());
        let error = connect(&Paths::new(&config), &ThisProcess).unwrap_err();
        assert!(matches!(error, BrokerError::NotRunning), "{error}");
    }

    #[test]
    fn programs_are_found_in_the_path() {
        let sh = in_path("sh".as_ref()).unwrap();
        assert!(sh.is_absolute() && sh.ends_with("sh"));
        assert_eq!(in_path("/etc".as_ref()), None);
    }
}
