//! The configuration of a process: its devices and their network.

use std::path::PathBuf;

use rocade_emulator::config::ConfigError;
use rocade_emulator::link::fault::RuleError;
use rocade_emulator::{BrokerMode, EngineConfig, Pkey};

use crate::error::{MalformedError, Result, SharedError};

/// The devices of a process and their network.
///
/// ```
/// use rocade_verbs::{Config, DeviceList};
///
/// let config = Config::simulated(42).with_faults("drop opcode=READ_RESPONSE nth=3")?;
/// let list = DeviceList::new(config)?;
/// let names: Vec<_> = list.devices().into_iter().map(|device| device.name).collect();
/// assert_eq!(names, ["a", "b"]);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a configuration does nothing until a DeviceList is created with it"]
pub struct Config(EngineConfig);

impl Config {
    /// Returns the devices that the environment and the configuration file describe. By default
    /// there is one per network interface.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is wrong. The error's text is meant for the user.
    pub fn from_env() -> Result<Self, SharedError<ConfigError>> {
        Ok(Self(EngineConfig::from_env()?))
    }

    /// Returns two devices, `a` (10.0.0.1) and `b` (10.0.0.2), in a simulated network.
    ///
    /// Time is virtual: it advances when the program polls or waits. A single-threaded program that
    /// repeats its calls with the same `seed` gets the same packets at the same times.
    pub fn simulated(seed: u64) -> Self {
        Self(EngineConfig::simulated(seed))
    }

    /// Returns devices given as `NAME=INTERFACE` or `NAME=ADDRESS[,ADDRESS]`.
    ///
    /// The environment and files are not read. The process binds the addresses for itself, so no
    /// other process can use them.
    ///
    /// # Errors
    /// [`ConfigError`] if a specification is wrong or does not fit this host.
    pub fn from_specs<S: AsRef<str>>(specs: &[S]) -> Result<Self, SharedError<ConfigError>> {
        Ok(Self(EngineConfig::from_specs(specs, BrokerMode::Embedded)?))
    }

    /// Adds fault rules, separated by `;`. The engine drops, delays, duplicates or changes the
    /// packets that match a rule.
    ///
    /// # Errors
    /// [`RuleError`] for the first rule that cannot be parsed.
    pub fn with_faults(self, rules: &str) -> Result<Self, RuleError> {
        Ok(Self(self.0.with_faults(rules)?))
    }

    /// Adds a capture of all packets to the pcapng file `path`. The capture appends to an existing
    /// file.
    pub fn with_capture(self, path: impl Into<PathBuf>) -> Self {
        Self(self.0.with_capture(path))
    }

    /// Adds a second port to each simulated device, with the addresses 10.1.0.1 and 10.1.0.2.
    pub fn with_second_ports(self) -> Self {
        Self(self.0.with_second_ports())
    }

    /// Sets the P_Key table of every device. By default it has one entry, 0xffff.
    ///
    /// # Errors
    /// [`MalformedError`] if `table` is empty.
    pub fn with_pkeys(mut self, table: &[Pkey]) -> Result<Self, MalformedError> {
        if table.is_empty() {
            return Err(MalformedError("P_Key table: it has no entries"));
        }
        for device in &mut self.0.devices {
            table.clone_into(&mut device.pkeys);
        }
        Ok(self)
    }

    pub(crate) fn into_engine(self) -> EngineConfig {
        self.0
    }
}

/// Conversion for Rocade's own programs, which read the settings themselves.
#[doc(hidden)]
impl From<EngineConfig> for Config {
    fn from(config: EngineConfig) -> Self {
        Self(config)
    }
}
