//! What all measurements of one run share: the `rocade` command, a runtime directory (so a broker), a network namespace.

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
    probe::{guest::Guest, sum},
};

/// Set in the process that runs inside a namespace of its own.
const INSIDE: &str = "ROCADE_PERF_INSIDE";
/// What runs there before this program.
const ENTER: &str = r#"ip link set lo up && exec "$0" "$@""#;

/// Kind of link between processes of one host.
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

/// Everything that the probes need.
#[derive(Debug)]
pub(crate) struct Rig {
    rocade: PathBuf,
    dir: TempDir,
    quick: bool,
    /// `ROCADE_ICRC` of everything that is measured.
    icrc: Option<Backend>,
    links: BTreeMap<Link, Result<(), Failure>>,
    guest: OnceLock<Result<Guest, Failure>>,
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
        };
        for link in [Link::Udp, Link::Shm] {
            let state = rig.try_link(link);
            rig.links.insert(link, state);
        }
        Ok(rig)
    }

    /// The guest for the comparison with the kernel's rxe; the first call boots it.
    pub(crate) fn guest(&self) -> Result<&Guest, Failure> {
        let boot = || Guest::boot(&self.rocade);
        self.guest
            .get_or_init(boot)
            .as_ref()
            .map_err(Failure::clone)
    }

    /// How often to repeat what takes `full` repetitions in a real measurement.
    pub(crate) const fn count(&self, full: u32) -> u32 {
        if self.quick { full / 10 } else { full }
    }

    /// How long a stream shall be.
    pub(crate) const fn duration(&self) -> Duration {
        Duration::from_millis(if self.quick { 200 } else { 1000 })
    }

    /// Whether Rocade knows this link, and if not, why.
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

    /// A command line under `rocade run`.
    pub(crate) fn run(&self, link: Link) -> Command {
        let mut command = Command::new(&self.rocade);
        self.environment(&mut command, link);
        command.args(["run", "--dev", "rocade0=lo", "--"]);
        command
    }

    /// Settings for a program of our own that uses Rocade by its Rust API.
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

    /// As [`environment`](Self::environment), for a program that `rocade run` does not start.
    pub(crate) fn engine_environment(&self, command: &mut Command, link: Link) {
        self.environment(command, link);
        command
            .env("ROCADE_DEVICES", "rocade0=lo")
            .env("ROCADE_BROKER", &self.rocade);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The broker outlives its clients for a while: end it now.
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
            "{}: {error}; build it with `cargo build --release --workspace`, or name it with --rocade",
            path.display()
        )
    })
}

/// Goes on in a new network namespace with nothing but loopback, where this user may make one; gives the exit status of the
/// process in there, or `None` where this process is to do the work itself.
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

/// Waits until something in our network listens on a TCP port.
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

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or_else(|| Path::new("."))
}
