//! The environment of all measurements of a run: the `rocade` command, a runtime directory (and so
//! a broker), and a network namespace.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use rocade_wire::crc::Backend;
use tempfile::TempDir;

use crate::{
    Common,
    child::Failure,
    probe::{echo, guest::Guest, sum},
};

/// The environment variable that is set in the process inside its own namespace.
const INSIDE: &str = "ROCADE_PERF_INSIDE";
/// The shell script that runs inside the namespace before this program.
const ENTER: &str = r#"ip link set lo up && exec "$0" "$@""#;

/// The kind of link between processes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Link {
    Udp,
    Shm,
}

impl Link {
    /// The value of `ROCADE_LINK`.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

/// The environment of the probes.
#[derive(Debug)]
pub(crate) struct Rig {
    rocade: PathBuf,
    dir: TempDir,
    quick: bool,
    /// The value of `ROCADE_ICRC` for all measurements.
    icrc: Option<Backend>,
    links: BTreeMap<Link, Result<(), Failure>>,
    guest: OnceLock<Result<Guest, Failure>>,
    echo: OnceLock<Result<PathBuf, Failure>>,
}

/// Checks that a program is in `$PATH`.
///
/// # Errors
/// The Debian package that has it.
pub(crate) fn require(program: &str, package: &str) -> Result<(), Failure> {
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|dir| dir.join(program).is_file()) {
        return Ok(());
    }
    Err(format!(
        "program {program} not found in PATH\n  on Debian and Ubuntu it is in: apt-get install {package}"
    ))
}

impl Rig {
    pub(crate) fn new(common: &Common) -> Result<Self, Failure> {
        let rocade = find_rocade(common.rocade.clone())?;
        let icrc = common.icrc.as_deref().map(sum::backend).transpose()?;
        let dir = tempfile::Builder::new().prefix("rocade-perf-").tempdir();
        let dir = dir.map_err(|error| format!("no temporary directory: {error}"))?;
        let mut rig = Self {
            rocade,
            dir,
            quick: common.quick,
            icrc,
            links: BTreeMap::new(),
            guest: OnceLock::new(),
            echo: OnceLock::new(),
        };
        for link in [Link::Udp, Link::Shm] {
            let state = rig.try_link(link);
            rig.links.insert(link, state);
        }
        Ok(rig)
    }

    /// Returns the guest for the comparison with the kernel's rxe. The first call boots it.
    pub(crate) fn guest(&self) -> Result<&Guest, Failure> {
        let boot = || Guest::boot(&self.rocade);
        self.guest
            .get_or_init(boot)
            .as_ref()
            .map_err(Failure::clone)
    }

    /// Returns the path of the echo program. The first call compiles it.
    pub(crate) fn echo(&self) -> Result<&Path, Failure> {
        let compile = || echo::compile(&self.rocade, self.dir.path());
        let program = self.echo.get_or_init(compile).as_ref();
        program.map(PathBuf::as_path).map_err(Failure::clone)
    }

    /// Returns the path of a file of this run.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the number of repetitions: `full`, or a tenth of it with `--quick`.
    pub(crate) const fn count(&self, full: u32) -> u32 {
        if self.quick { full / 10 } else { full }
    }

    /// Returns the duration of a stream.
    pub(crate) const fn duration(&self) -> Duration {
        Duration::from_millis(if self.quick { 200 } else { 1000 })
    }

    /// Returns an error with the reason if Rocade does not support this link.
    pub(crate) fn link(&self, link: Link) -> Result<(), Failure> {
        self.links.get(&link).cloned().unwrap_or(Ok(()))
    }

    fn try_link(&self, link: Link) -> Result<(), Failure> {
        let mut command = Command::new(&self.rocade);
        self.environment(&mut command, link);
        let devices = command.arg("devices").stdin(Stdio::null()).output();
        let devices =
            devices.map_err(|error| format!("cannot run {}: {error}", self.rocade.display()))?;
        if devices.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&devices.stderr);
        Err(format!(
            "no {} link ({})",
            link.word(),
            said.lines().next().unwrap_or_default()
        ))
    }

    /// Returns a command that runs its arguments under `rocade run`.
    pub(crate) fn run(&self, link: Link) -> Command {
        let mut command = Command::new(&self.rocade);
        self.environment(&mut command, link);
        command.args(["run", "--dev", "rocade0=lo", "--"]);
        command
    }

    /// Like [`run`](Self::run), for a program of the connection manager, which reaches no peer over
    /// shared memory alone.
    pub(crate) fn run_connecting(&self, link: Link) -> Command {
        let mut command = self.run(link);
        if link == Link::Shm {
            command.env("ROCADE_LINK", "auto");
        }
        command
    }

    /// Waits until a program listens on a port of the connection manager.
    pub(crate) fn await_service(&self, port: u16, limit: Duration) -> Result<(), Failure> {
        let wanted = format!("port {port}:");
        let end = Instant::now() + limit;
        while Instant::now() < end {
            let mut status = Command::new(&self.rocade);
            self.environment(&mut status, Link::Udp);
            status.args(["broker", "status"]).stdin(Stdio::null());
            let output = status.output().map_err(|error| error.to_string())?;
            if String::from_utf8_lossy(&output.stdout).contains(&wanted) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(format!(
            "no program listens on port {port} of the connection manager"
        ))
    }

    /// Sets the environment variables for a program of this package that uses Rocade's Rust API.
    pub(crate) fn environment(&self, command: &mut Command, link: Link) {
        for (name, _) in env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("ROCADE_"))
            {
                command.env_remove(name);
            }
        }
        command
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LD_PRELOAD")
            .env("ROCADE_RUNTIME_DIR", self.dir.path().join("run"))
            .env("ROCADE_LINK", link.word())
            .envs(self.icrc.map(|way| ("ROCADE_ICRC", way.name())))
            .env(INSIDE, "1");
    }

    /// Like [`environment`](Self::environment), for a program that is not started by `rocade run`.
    pub(crate) fn engine_environment(&self, command: &mut Command, link: Link) {
        self.environment(command, link);
        command
            .env("ROCADE_DEVICES", "rocade0=lo")
            .env("ROCADE_BROKER", &self.rocade);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The broker would outlive its clients for a while.
        let mut command = Command::new(&self.rocade);
        self.environment(&mut command, Link::Udp);
        let _ = command
            .args(["broker", "stop"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

fn find_rocade(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let beside = || {
        Some(
            env::current_exe()
                .ok()?
                .ancestors()
                .nth(2)?
                .join("release/rocade"),
        )
    };
    let path = given
        .or_else(|| env::var_os("ROCADE_BIN").map(PathBuf::from))
        .or_else(beside);
    let path = path.unwrap_or_else(|| PathBuf::from("target/release/rocade"));
    fs::canonicalize(&path).map_err(|error| {
        format!(
            "{}: {error}; build it with `cargo build --release`, or name it with --rocade",
            path.display()
        )
    })
}

/// Runs this program again in a new network namespace with only loopback, if the user may create
/// one. Returns the exit status of that process, or `None` if this process has to do the work
/// itself.
pub(crate) fn isolate() -> Option<u8> {
    if env::var_os(INSIDE).is_some() {
        return None;
    }
    let ways: [&[&str]; 2] = [&["--net"], &["--user", "--map-root-user", "--net"]];
    let allowed = |way: &&&[&str]| {
        let mut probe = Command::new("unshare");
        probe
            .args(**way)
            .args(["--", "ip", "link", "set", "lo", "up"]);
        let probe = probe.stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    let Some(way) = ways.iter().find(allowed) else {
        eprintln!(
            "no network namespace: measuring on this machine's loopback, others may use it too"
        );
        return None;
    };
    let mut command = Command::new("unshare");
    command.args(*way).args(["--", "sh", "-c", ENTER]);
    command.arg(env::current_exe().ok()?);
    command.args(env::args_os().skip(1)).env(INSIDE, "1");
    let status = command.status().ok()?;
    Some(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    )
}

/// Waits until a socket in this network namespace listens on a TCP port.
pub(crate) fn await_listener(port: u16, limit: Duration) -> Result<(), Failure> {
    const LISTEN: &str = "0A";
    let end = Instant::now() + limit;
    let wanted = format!(":{port:04X}");
    let listens = |table: &str| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&wanted))
                && words.nth(1) == Some(LISTEN)
        })
    };
    while Instant::now() < end {
        if ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .any(|table| listens(table))
        {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Err(format!("nothing listens on TCP port {port}"))
}

/// Returns the root directory of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or_else(|| Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        assert_eq!(require("sh", "dash"), Ok(()));
        let missing = require("no-such-program", "ucx-utils").expect_err("missing");
        for part in ["no-such-program", "apt-get install ucx-utils"] {
            assert!(missing.contains(part), "{missing}");
        }
    }
}
