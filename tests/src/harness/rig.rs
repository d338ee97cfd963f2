//! One machine with RDMA: devices, a broker and programs.

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tempfile::TempDir;

use super::{network::Network, process::Process};
use crate::skip::{Reason, missing_command};

/// A device and the place of its addresses: the argument of `rocade run --dev NAME=...`.
#[derive(Clone, Debug)]
pub struct Device {
    name: String,
    place: String,
}

impl Device {
    /// The device `rocade0` on a network interface or an address.
    #[must_use]
    pub fn on(place: &str) -> Self {
        Self {
            name: "rocade0".to_owned(),
            place: place.to_owned(),
        }
    }
}

/// A network, a runtime directory (and so a broker) and the programs that run on them.
#[derive(Debug)]
pub struct Rig {
    network: Network,
    dir: TempDir,
    rocade: PathBuf,
    /// The value of `ROCADE_LINK`, empty for the default.
    link: &'static str,
    /// The value of `ROCADE_IDENTITY`, empty for the default.
    identity: &'static str,
    /// Further options of `rocade run`.
    options: Vec<String>,
    started: Mutex<u32>,
    /// A lock that serializes the rigs of a shared network.
    _serial: Option<MutexGuard<'static, ()>>,
}

impl Rig {
    /// Creates a rig with loopback only.
    ///
    /// # Errors
    /// The reason to skip the test: Rocade is not built, or a package with one of the commands in
    /// `needs` (command, package) is missing.
    pub fn loopback(needs: &[(&str, &str)]) -> Result<Self, Reason> {
        Self::check(needs)?;
        let network = Network::isolated();
        let shared = !network.is_isolated();
        Self::new(network, shared)
    }

    /// Creates a rig in the network namespace of that name.
    ///
    /// # Errors
    /// Like [`Rig::loopback`].
    pub fn in_namespace(name: &str, needs: &[(&str, &str)]) -> Result<Self, Reason> {
        Self::check(needs)?;
        Self::new(Network::named(name), true)
    }

    fn check(needs: &[(&str, &str)]) -> Result<(), Reason> {
        missing_command(needs).map_or(Ok(()), Err)
    }

    fn new(network: Network, shared: bool) -> Result<Self, Reason> {
        static SERIAL: Mutex<()> = Mutex::new(());
        let rocade = find_rocade()?;
        let dir = tempfile::Builder::new().prefix("rocade-").tempdir();
        let dir =
            dir.map_err(|error| Reason::Machine(format!("no temporary directory: {error}")))?;
        let serial = shared.then(|| SERIAL.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Self {
            network,
            dir,
            rocade,
            link: "",
            identity: "",
            options: Vec::new(),
            started: Mutex::new(0),
            _serial: serial,
        })
    }

    /// Sets `ROCADE_LINK` for all programs.
    #[must_use]
    pub fn with_link(mut self, link: &'static str) -> Self {
        self.link = link;
        self
    }

    /// Sets `ROCADE_IDENTITY` for all programs: the vendor id and part id of the devices.
    #[must_use]
    pub fn with_identity(mut self, identity: &'static str) -> Self {
        self.identity = identity;
        self
    }

    /// Sets options of `rocade run` for all programs.
    #[must_use]
    pub fn with_options(mut self, options: &[&str]) -> Self {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
        self
    }

    /// The network of the rig.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The path of the command under test.
    #[must_use]
    pub fn rocade_path(&self) -> &Path {
        &self.rocade
    }

    /// A directory that exists as long as the rig.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts `words` under `rocade run` with the device `rocade0`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(&self, name: &str, device: &Device, words: &[&str]) -> Process {
        self.start_with(
            name,
            &["--dev", &format!("{}={}", device.name, device.place)],
            words,
        )
    }

    /// Like [`Rig::start`], but in another network.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_in(
        &self,
        network: &Network,
        name: &str,
        device: &Device,
        words: &[&str],
    ) -> Process {
        let device = format!("{}={}", device.name, device.place);
        let all = self.run_words(&["--dev", &device], words);
        self.start_command(name, network.command(&all))
    }

    /// Starts `words` under `rocade run` with these options.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_with(&self, name: &str, options: &[&str], words: &[&str]) -> Process {
        let all = self.run_words(options, words);
        self.start_command(name, self.network.command(&all))
    }

    fn run_words(&self, options: &[&str], words: &[&str]) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec![self.rocade.clone().into(), "run".into()];
        all.extend(options.iter().map(OsString::from));
        all.extend(self.options.iter().map(OsString::from));
        all.push("--".into());
        all.extend(words.iter().map(OsString::from));
        all
    }

    /// Starts a program in the rig's network, without `rocade run`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_plain(&self, name: &str, words: &[&str]) -> Process {
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        self.start_command(name, self.network.command(&words))
    }

    /// Runs the command `rocade` with these arguments, and waits until it ends.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn rocade(&self, arguments: &[&str]) -> super::Finished {
        let mut words: Vec<OsString> = vec![self.rocade.clone().into()];
        words.extend(arguments.iter().map(OsString::from));
        let name = format!("rocade {}", arguments.join(" "));
        self.start_command(&name, self.network.command(&words))
            .finish(Duration::from_secs(30))
    }

    /// Waits until a program listens on a port of the connection manager (RDMA_PS_TCP 0x106,
    /// RDMA_PS_UDP 0x111).
    ///
    /// # Panics
    /// If `server` ends first, or `limit` expires.
    pub fn wait_service(&self, server: &mut Process, port_space: u16, port: u16, limit: Duration) {
        let line = format!("port space {port_space:#06x}, port {port}: ");
        server.wait_until(&format!("listener: {line}"), limit, |_| {
            let status = self.rocade(&["broker", "status"]);
            status.output.contains(&line).then_some(())
        });
    }

    fn start_command(&self, name: &str, mut command: Command) -> Process {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        *started += 1;
        let mut file = String::new();
        let _ = write!(file, "{:03}.log", *started);
        self.environment(&mut command);
        Process::start(name, command, &self.dir.path().join(file))
    }

    /// Sets the rig's runtime directory, and removes the variables that the user may have set for
    /// Rocade.
    fn environment(&self, command: &mut Command) {
        for (name, _) in env::vars_os() {
            let ours = name
                .to_str()
                .is_some_and(|name| name.starts_with("ROCADE_"));
            if ours && name != "ROCADE_LOG" {
                command.env_remove(name);
            }
        }
        command.env("ROCADE_RUNTIME_DIR", self.dir.path().join("run"));
        // Rocade treats an empty variable as unset.
        command.env("ROCADE_LINK", self.link);
        command.env("ROCADE_IDENTITY", self.identity);
        command
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LD_PRELOAD");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The broker would outlive its clients for a while.
        let words = [self.rocade.clone().into(), "broker".into(), "stop".into()];
        let mut stop = self.network.command(&words);
        self.environment(&mut stop);
        let _ = stop
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// Returns the command of the same build as this test. Its libraries lie beside it.
fn find_rocade() -> Result<PathBuf, Reason> {
    if let Some(path) = env::var_os("ROCADE_BIN") {
        return Ok(path.into());
    }
    let test = env::current_exe().unwrap_or_default();
    // target/<profile>/deps/<test>
    let built = test.ancestors().nth(2).unwrap_or_else(|| Path::new("."));
    let rocade = built.join("rocade");
    if rocade.is_file() {
        return Ok(rocade);
    }
    Err(Reason::Machine(format!(
        "{} is not there: cargo build --workspace",
        rocade.display()
    )))
}
