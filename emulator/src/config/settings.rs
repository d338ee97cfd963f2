//! Collects settings from flags, environment and file, and resolves them to an [`EngineConfig`].

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rocade_wire::Pkey;
use rocade_wire::crc::Backend;
use serde::Deserialize;

use super::broker::BrokerConfig;
use super::error::{ConfigError, Origin};
use super::guid::HostIdentity;
use super::host::HostNetwork;
use super::identity::DeviceIdentity;
use super::likeness::Likeness;
use super::log_filter::LogFilter;
use super::peers::Peers;
use super::resolve::{default_devices, resolve_specs};
use super::run_env::variable;
use super::spec::{DeviceSpec, NO_DEVICES};
use super::values::{
    Setting, parse_broker, parse_devices, parse_dir, parse_faults, parse_file, parse_icrc,
    parse_identity, parse_idle, parse_ip, parse_like, parse_link, parse_peers, parse_pkeys,
    parse_switch,
};
use super::{BrokerMode, EngineConfig, LinkMode};
use crate::faults::FaultRule;

/// `NAME=IFACE|ADDR[,..]`, several separated by `;`.
pub const ENV_DEVICES: &str = "ROCADE_DEVICES";
/// `ADDR[,ADDR..]`: one device `rocade0` with these addresses.
pub const ENV_IP: &str = "ROCADE_IP";
/// `auto`, `embedded`, or the path of the `rocade` executable to start as broker.
pub const ENV_BROKER: &str = "ROCADE_BROKER";
/// Milliseconds without clients after which a broker ends.
pub const ENV_BROKER_IDLE_MS: &str = "ROCADE_BROKER_IDLE_MS";
/// Directory of the broker's socket and lock files.
pub const ENV_RUNTIME_DIR: &str = "ROCADE_RUNTIME_DIR";
/// Kind of link: `auto`, `udp` or `shm`.
pub const ENV_LINK: &str = "ROCADE_LINK";
/// Method of computing ICRCs, a name of [`Backend`]. For measurements. The default is the fastest
/// that the processor supports.
pub const ENV_ICRC: &str = "ROCADE_ICRC";
/// Allowed peers of this process: `ADDR[/PREFIX][,..]`.
pub const ENV_PEERS: &str = "ROCADE_PEERS";
/// `on` or `off`: congestion control (DCQCN).
pub const ENV_DCQCN: &str = "ROCADE_DCQCN";
/// Vendor and part that the devices report: `VENDOR:PART`.
pub const ENV_IDENTITY: &str = "ROCADE_IDENTITY";
/// `rocade`, `rxe` or `mlx5`: the kind of device that the devices imitate.
pub const ENV_LIKE: &str = "ROCADE_LIKE";
/// `PKEY[,..]`: the P_Key table of the devices.
pub const ENV_PKEYS: &str = "ROCADE_PKEYS";
/// Path of a pcapng file to which all packets are appended.
pub const ENV_CAPTURE: &str = "ROCADE_CAPTURE";
/// Fault rules for packets, see [`FaultRule::parse_list`].
pub const ENV_FAULT: &str = "ROCADE_FAULT";
/// Tracing filter, e.g. `info` or `rocade_emulator=debug`.
pub const ENV_LOG: &str = "ROCADE_LOG";
/// Path of the configuration file.
pub const ENV_CONFIG: &str = "ROCADE_CONFIG";

/// Name of the configuration file in all searched directories.
pub const FILE_NAME: &str = "rocade.toml";

/// A value and its source.
type SourcedValue = (String, Origin);

/// The setting of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerSetting {
    /// Uses the broker, which is started on demand.
    Auto,
    /// Uses the broker, and starts this executable as `EXE broker serve` when none runs.
    Executable(PathBuf),
    /// Uses no broker. This process uses its addresses exclusively.
    Embedded,
}

/// The settings of one source, or of several merged. `None` if a setting is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    devices: Option<Setting<Vec<DeviceSpec>>>,
    broker: Option<Setting<BrokerSetting>>,
    broker_idle: Option<Setting<Duration>>,
    runtime_dir: Option<Setting<PathBuf>>,
    link: Option<Setting<LinkMode>>,
    icrc: Option<Setting<Backend>>,
    peers: Option<Setting<Peers>>,
    dcqcn: Option<Setting<bool>>,
    identity: Option<Setting<DeviceIdentity>>,
    like: Option<Setting<Likeness>>,
    pkeys: Option<Setting<Vec<Pkey>>>,
    capture: Option<Setting<PathBuf>>,
    faults: Option<Setting<Vec<FaultRule>>>,
    log: Option<Setting<String>>,
}

/// The keys of the configuration file. Each is equivalent to the variable `ROCADE_<KEY>`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileKeys {
    devices: Option<Vec<String>>,
    ip: Option<String>,
    broker: Option<String>,
    broker_idle_ms: Option<u64>,
    runtime_dir: Option<String>,
    link: Option<String>,
    icrc: Option<String>,
    peers: Option<Vec<String>>,
    dcqcn: Option<String>,
    identity: Option<String>,
    like: Option<String>,
    pkeys: Option<Vec<String>>,
    capture: Option<String>,
    fault: Option<Vec<String>>,
    log: Option<String>,
}

impl FileKeys {
    /// Returns the value of a key, in the syntax of its variable.
    fn text(&self, key: &str) -> Option<String> {
        let list = |list: &Option<Vec<String>>, by: &str| list.as_ref().map(|list| list.join(by));
        match key {
            "devices" => list(&self.devices, ";"),
            "ip" => self.ip.clone(),
            "broker" => self.broker.clone(),
            "broker_idle_ms" => self.broker_idle_ms.map(|ms| ms.to_string()),
            "runtime_dir" => self.runtime_dir.clone(),
            "link" => self.link.clone(),
            "icrc" => self.icrc.clone(),
            "peers" => list(&self.peers, ","),
            "dcqcn" => self.dcqcn.clone(),
            "identity" => self.identity.clone(),
            "like" => self.like.clone(),
            "pkeys" => list(&self.pkeys, ","),
            "capture" => self.capture.clone(),
            "fault" => list(&self.fault, "\n"),
            "log" => self.log.clone(),
            _ => None,
        }
    }
}

impl Settings {
    /// Reads the environment, and with lower precedence the configuration file. This is
    /// `$ROCADE_CONFIG`, or the first existing one of `$XDG_CONFIG_HOME/rocade/rocade.toml`
    /// (`~/.config/...` by default) and `/etc/rocade/rocade.toml`.
    ///
    /// The current directory is not searched, because a program may change it. `rocade run`
    /// searches `./rocade.toml` and passes it on as `ROCADE_CONFIG`. Variables that the program
    /// dropped are those of the run ([`variable`]).
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid value.
    pub fn load() -> Result<Self, ConfigError> {
        let from_env = Self::from_env(variable)?;
        match config_file(variable, None) {
            Some(path) => Ok(from_env.or(Self::from_file(&path)?)),
            None => Ok(from_env),
        }
    }

    /// Reads the `ROCADE_*` variables. An empty variable counts as not set.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid value, or if `ROCADE_IP` and `ROCADE_DEVICES` are both
    /// set.
    pub fn from_env(var: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let say = |name: &'static str, _| -> Result<Option<SourcedValue>, ConfigError> {
            let Some(value) = var(name).filter(|value| !value.is_empty()) else {
                return Ok(None);
            };
            let origin = Origin::Env(name);
            match value.into_string() {
                Ok(value) => Ok(Some((value, origin))),
                Err(raw) => Err(ConfigError::invalid(
                    &origin,
                    raw.to_string_lossy(),
                    "it is not UTF-8",
                    "UTF-8 text",
                )),
            }
        };
        Self::from_source(say, "unset one of them")
    }

    /// Parses the settings of a source by variable or key. `advice` is the remedy if both devices
    /// and an address are set.
    fn from_source(
        mut say: impl FnMut(&'static str, &'static str) -> Result<Option<SourcedValue>, ConfigError>,
        advice: &'static str,
    ) -> Result<Self, ConfigError> {
        let devices = match (say(ENV_DEVICES, "devices")?, say(ENV_IP, "ip")?) {
            (Some((_, first)), Some((_, second))) => {
                return Err(ConfigError::Conflict {
                    first,
                    second,
                    advice,
                });
            }
            (devices, ip) => devices
                .map(parse_devices)
                .or_else(|| ip.map(parse_ip))
                .transpose()?,
        };
        Ok(Self {
            devices,
            broker: say(ENV_BROKER, "broker")?.map(parse_broker).transpose()?,
            broker_idle: say(ENV_BROKER_IDLE_MS, "broker_idle_ms")?
                .map(parse_idle)
                .transpose()?,
            runtime_dir: say(ENV_RUNTIME_DIR, "runtime_dir")?
                .map(parse_dir)
                .transpose()?,
            link: say(ENV_LINK, "link")?.map(parse_link).transpose()?,
            icrc: say(ENV_ICRC, "icrc")?.map(parse_icrc).transpose()?,
            peers: say(ENV_PEERS, "peers")?.map(parse_peers).transpose()?,
            dcqcn: say(ENV_DCQCN, "dcqcn")?.map(parse_switch).transpose()?,
            identity: say(ENV_IDENTITY, "identity")?
                .map(parse_identity)
                .transpose()?,
            like: say(ENV_LIKE, "like")?.map(parse_like).transpose()?,
            pkeys: say(ENV_PKEYS, "pkeys")?.map(parse_pkeys).transpose()?,
            capture: say(ENV_CAPTURE, "capture")?.map(parse_file).transpose()?,
            faults: say(ENV_FAULT, "fault")?.map(parse_faults).transpose()?,
            log: say(ENV_LOG, "log")?.map(|(value, origin)| Setting { value, origin }),
        })
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError::File`] if it cannot be read or is not TOML with the known keys.
    /// [`ConfigError`] for the first invalid value.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::File {
            path: path.to_owned(),
            reason: format!("cannot read it: {error}"),
        })?;
        Self::from_toml(&text, path)
    }

    /// Parses the text of a configuration file. `path` is for error messages.
    ///
    /// # Errors
    /// Errors of [`from_file`](Self::from_file), except that of reading.
    pub fn from_toml(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let keys: FileKeys = toml::from_str(text).map_err(|error| ConfigError::File {
            path: path.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        })?;
        let say = |_, key: &'static str| {
            let origin = Origin::File {
                path: path.to_owned(),
                key,
            };
            Ok(keys.text(key).map(|text| (text, origin)))
        };
        Self::from_source(say, "remove one of them")
    }

    /// Parses the flags `--dev SPEC` (any number) and `--ip ADDR[,ADDR..]` of the `rocade` command.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid value, or if both flags are given.
    pub fn from_flags(dev: &[String], ip: Option<&str>) -> Result<Self, ConfigError> {
        let (dev_origin, ip_origin) = (Origin::Flag("--dev"), Origin::Flag("--ip"));
        let devices = match (dev, ip) {
            ([], None) => None,
            ([], Some(ip)) => Some(parse_ip((ip.to_owned(), ip_origin))?),
            (_, Some(_)) => {
                return Err(ConfigError::Conflict {
                    first: dev_origin,
                    second: ip_origin,
                    advice: "give one of them",
                });
            }
            ([none], None) if none.trim() == NO_DEVICES => {
                Some(parse_devices((none.clone(), dev_origin))?)
            }
            (dev, None) => Some(Setting {
                value: dev
                    .iter()
                    .map(|spec| DeviceSpec::parse(spec, &dev_origin))
                    .collect::<Result<_, _>>()?,
                origin: dev_origin,
            }),
        };
        Ok(Self {
            devices,
            ..Self::default()
        })
    }

    /// Returns settings with the devices that a program specifies.
    #[must_use]
    pub fn from_specs(devices: Vec<DeviceSpec>) -> Self {
        let devices = Some(Setting {
            value: devices,
            origin: Origin::Program,
        });
        Self {
            devices,
            ..Self::default()
        }
    }

    /// Returns these settings, with those of `lower` where these have none.
    #[must_use]
    pub fn or(self, lower: Self) -> Self {
        Self {
            devices: self.devices.or(lower.devices),
            broker: self.broker.or(lower.broker),
            broker_idle: self.broker_idle.or(lower.broker_idle),
            runtime_dir: self.runtime_dir.or(lower.runtime_dir),
            link: self.link.or(lower.link),
            icrc: self.icrc.or(lower.icrc),
            peers: self.peers.or(lower.peers),
            dcqcn: self.dcqcn.or(lower.dcqcn),
            identity: self.identity.or(lower.identity),
            like: self.like.or(lower.like),
            pkeys: self.pkeys.or(lower.pkeys),
            capture: self.capture.or(lower.capture),
            faults: self.faults.or(lower.faults),
            log: self.log.or(lower.log),
        }
    }

    /// Returns the device specifications, if a source has some.
    #[must_use]
    pub fn devices(&self) -> Option<&[DeviceSpec]> {
        self.devices
            .as_ref()
            .map(|setting| setting.value.as_slice())
    }

    /// Returns the devices as the value of `ROCADE_DEVICES`.
    #[must_use]
    pub fn devices_env(&self) -> Option<String> {
        let specs = self.specs()?;
        if specs.is_empty() {
            return Some(NO_DEVICES.to_owned());
        }
        let specs = specs.iter().map(ToString::to_string);
        Some(specs.collect::<Vec<_>>().join(";"))
    }

    /// Returns the device specifications, if a source has some. If the source has addresses without
    /// a name, the device gets the default name of its kind.
    fn specs(&self) -> Option<Vec<DeviceSpec>> {
        let setting = self.devices.as_ref()?;
        let mut specs = setting.value.clone();
        let is_of_ip = match &setting.origin {
            Origin::Flag(name) | Origin::Env(name) => ["--ip", ENV_IP].contains(name),
            Origin::File { key, .. } => *key == "ip",
            Origin::Program => false,
        };
        if is_of_ip {
            for (number, spec) in specs.iter_mut().enumerate() {
                spec.name = self.like().device_name(number);
            }
        }
        Some(specs)
    }

    /// Returns the kind of device that the devices imitate.
    #[must_use]
    pub fn like(&self) -> Likeness {
        self.like
            .as_ref()
            .map_or_else(Likeness::default, |setting| setting.value)
    }

    /// Returns these settings with the value of the flag `--like NAME`.
    ///
    /// # Errors
    /// [`ConfigError`] for an unknown kind.
    pub fn with_like(mut self, like: Option<&str>) -> Result<Self, ConfigError> {
        if let Some(like) = like {
            self.like = Some(parse_like((like.to_owned(), Origin::Flag("--like")))?);
        }
        Ok(self)
    }

    /// Returns the tracing filter, if a source has one.
    #[must_use]
    pub fn log(&self) -> Option<&str> {
        self.log.as_ref().map(|setting| setting.value.as_str())
    }

    /// Reads the levels and targets of the tracing filter, if a source has one. This is separate
    /// from the other checks, because programs also run with an invalid filter.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with the nearest existing name.
    pub fn log_filter(&self) -> Result<Option<LogFilter>, ConfigError> {
        let Some(Setting { value, origin }) = &self.log else {
            return Ok(None);
        };
        LogFilter::parse(value).map(Some).map_err(|mistake| {
            let allowed = "off, error, warn, info, debug, trace, or TARGET=LEVEL, \
                           e.g. rocade_emulator=debug";
            ConfigError::invalid(origin, value, mistake, allowed)
        })
    }

    /// Returns the transport of packets.
    #[must_use]
    pub fn link(&self) -> LinkMode {
        self.link
            .as_ref()
            .map_or_else(LinkMode::default, |setting| setting.value)
    }

    /// Returns the allowed peers of this process.
    #[must_use]
    pub fn peers(&self) -> Peers {
        self.peers
            .as_ref()
            .map_or_else(Peers::default, |setting| setting.value.clone())
    }

    /// Returns the capture file, if a source has one.
    #[must_use]
    pub fn capture(&self) -> Option<&Path> {
        self.capture.as_ref().map(|setting| setting.value.as_path())
    }

    /// Returns the fault rules.
    #[must_use]
    pub fn faults(&self) -> &[FaultRule] {
        self.faults
            .as_ref()
            .map_or(&[], |setting| setting.value.as_slice())
    }

    /// Returns these settings with the values of the flags `--capture FILE` and `--fault RULE` (any
    /// number).
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid rule.
    pub fn with_links(
        mut self,
        capture: Option<PathBuf>,
        fault: &[String],
    ) -> Result<Self, ConfigError> {
        let origin = Origin::Flag("--capture");
        self.capture = capture.map(|value| Setting { value, origin });
        if !fault.is_empty() {
            let faults = (fault.join("\n"), Origin::Flag("--fault"));
            self.faults = Some(parse_faults(faults)?);
        }
        Ok(self)
    }

    /// Returns the broker setting, if a source has one.
    #[must_use]
    pub fn broker(&self) -> Option<&BrokerSetting> {
        self.broker.as_ref().map(|setting| &setting.value)
    }

    /// Returns the runtime directory, if a source has one.
    #[must_use]
    pub fn runtime_dir(&self) -> Option<&Path> {
        self.runtime_dir
            .as_ref()
            .map(|setting| setting.value.as_path())
    }

    /// Returns the configuration of the broker.
    #[must_use]
    pub fn broker_config(&self) -> BrokerConfig {
        let mut config = BrokerConfig {
            log: self.log().map(str::to_owned),
            ..BrokerConfig::default()
        };
        if let Some(dir) = &self.runtime_dir {
            config.runtime_dir = Some(dir.value.clone());
        }
        if let Some(Setting {
            value: BrokerSetting::Executable(path),
            ..
        }) = &self.broker
        {
            let arguments = ["broker", "serve"].map(OsString::from);
            config.command = Some([&[path.clone().into_os_string()], &arguments[..]].concat());
        }
        if let Some(idle) = &self.broker_idle {
            config.idle_timeout = idle.value;
        }
        config
    }

    /// Resolves the settings to the configuration of an engine on this host.
    ///
    /// Without device specifications, creates one device `rocade0`, `rocade1`, ... per interface of
    /// `network`, in its order.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if a device does not fit the host: unknown interface or address, or
    /// a duplicate name or address.
    pub fn resolve(
        &self,
        network: &HostNetwork,
        identity: &HostIdentity,
    ) -> Result<EngineConfig, ConfigError> {
        let like = self.like();
        let mut devices = match (&self.devices, self.specs()) {
            (Some(setting), Some(specs)) => {
                resolve_specs(&specs, &setting.origin, network, identity, like)?
            }
            _ => default_devices(network, identity, like),
        };
        for device in &mut devices {
            if let Some(setting) = &self.identity {
                device.identity = setting.value;
            }
            if let Some(setting) = &self.pkeys {
                device.pkeys.clone_from(&setting.value);
            }
        }
        let embedded = self
            .broker
            .as_ref()
            .is_some_and(|b| b.value == BrokerSetting::Embedded);
        let broker = if embedded {
            BrokerMode::Embedded
        } else {
            BrokerMode::Auto(self.broker_config())
        };
        Ok(EngineConfig {
            devices,
            broker,
            link: self.link(),
            icrc: self.icrc.as_ref().map(|setting| setting.value),
            peers: self.peers(),
            dcqcn: self.dcqcn.as_ref().is_some_and(|setting| setting.value),
            capture: self.capture().map(Path::to_owned),
            faults: self.faults().to_vec(),
            simulation: None,
        })
    }
}

/// Returns the path of the configuration file. `current_dir` is searched first if given.
///
/// Returns a file named by `ROCADE_CONFIG` even if it does not exist, so that reading it reports
/// the error.
pub fn config_file(
    var: impl Fn(&str) -> Option<OsString>,
    current_dir: Option<&Path>,
) -> Option<PathBuf> {
    let dir = |name: &str| {
        var(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(path) = dir(ENV_CONFIG) {
        return Some(path);
    }
    let user = dir("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| dir("HOME").map(|home| home.join(".config")))
        .map(|config| config.join("rocade"));
    let candidates = [
        current_dir.map(Path::to_owned),
        user,
        Some("/etc/rocade".into()),
    ];
    candidates
        .into_iter()
        .flatten()
        .map(|dir| dir.join(FILE_NAME))
        .find(|path| path.is_file())
}
