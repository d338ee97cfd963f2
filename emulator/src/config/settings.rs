//! Where settings come from: flags, environment, file; and how they become an [`EngineConfig`].

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rocade_wire::Pkey;
use rocade_wire::crc::Way;
use serde::Deserialize;

use super::error::{ConfigError, Origin};
use super::guid::HostIdentity;
use super::host::{self, HostNetwork};
use super::identity::{self, DeviceIdentity};
use super::names;
use super::peers::Peers;
use super::spec::{DeviceSpec, SpecItem};
use super::{BrokerMode, DeviceConfig, EngineConfig, LinkMode, PortConfig};
use crate::broker::BrokerConfig;
use crate::link::fault::Rule;

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
/// How ICRCs are computed: a name of [`Way`]. For measurements; the default is the best that the processor has.
pub const ENV_ICRC: &str = "ROCADE_ICRC";
/// `ADDR[/PREFIX][,..]`: who may talk to this process.
pub const ENV_PEERS: &str = "ROCADE_PEERS";
/// `on` or `off`: whether congestion is controlled (DCQCN).
pub const ENV_DCQCN: &str = "ROCADE_DCQCN";
/// `VENDOR:PART`: what the devices say they are.
pub const ENV_IDENTITY: &str = "ROCADE_IDENTITY";
/// `PKEY[,..]`: the P_Key table of the devices.
pub const ENV_PKEYS: &str = "ROCADE_PKEYS";
/// Path of a pcapng file that all packets go to.
pub const ENV_CAPTURE: &str = "ROCADE_CAPTURE";
/// What happens to packets on their way: rules of [`Rule::parse_list`].
pub const ENV_FAULT: &str = "ROCADE_FAULT";
/// Tracing filter, e.g. `info` or `rocade_emulator=debug`.
pub const ENV_LOG: &str = "ROCADE_LOG";
/// Path of the configuration file.
pub const ENV_CONFIG: &str = "ROCADE_CONFIG";

/// Name of the configuration file in every place where it is looked for.
pub const FILE_NAME: &str = "rocade.toml";

/// How processes that share an address find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerSetting {
    /// Through the broker, which is started on demand.
    Auto,
    /// Through the broker; this executable is started as `EXE broker serve` when none runs.
    Executable(PathBuf),
    /// No broker: this process alone uses its addresses.
    Embedded,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting<T> {
    value: T,
    origin: Origin,
}

/// Settings of one source, or of several merged; what is `None` was not said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    devices: Option<Setting<Vec<DeviceSpec>>>,
    broker: Option<Setting<BrokerSetting>>,
    broker_idle: Option<Setting<Duration>>,
    runtime_dir: Option<Setting<PathBuf>>,
    link: Option<Setting<LinkMode>>,
    icrc: Option<Setting<Way>>,
    peers: Option<Setting<Peers>>,
    dcqcn: Option<Setting<bool>>,
    identity: Option<Setting<DeviceIdentity>>,
    pkeys: Option<Setting<Vec<Pkey>>>,
    capture: Option<Setting<PathBuf>>,
    faults: Option<Setting<Vec<Rule>>>,
    log: Option<Setting<String>>,
}

/// The keys of the configuration file; each says the same as the variable `ROCADE_<KEY>`.
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
    pkeys: Option<Vec<String>>,
    capture: Option<String>,
    fault: Option<Vec<String>>,
    log: Option<String>,
}

impl Settings {
    /// The environment, and below it the configuration file: `$ROCADE_CONFIG`, else the first
    /// that exists of `$XDG_CONFIG_HOME/rocade/rocade.toml` (`~/.config/...` by default) and
    /// `/etc/rocade/rocade.toml`.
    ///
    /// The current directory is not searched, because a program may change it; `rocade run` looks
    /// for `./rocade.toml` and hands it down as `ROCADE_CONFIG`.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value that is not allowed.
    pub fn load() -> Result<Self, ConfigError> {
        let env = |name: &str| std::env::var_os(name);
        let from_env = Self::from_env(env)?;
        match config_file(env, None) {
            Some(path) => Ok(from_env.or(Self::from_file(&path)?)),
            None => Ok(from_env),
        }
    }

    /// The `ROCADE_*` variables. An empty variable counts as not set.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value that is not allowed, or when `ROCADE_IP` and
    /// `ROCADE_DEVICES` are both set.
    pub fn from_env(var: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let get = |name: &'static str| -> Result<Option<(String, Origin)>, ConfigError> {
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
        let devices = match (get(ENV_DEVICES)?, get(ENV_IP)?) {
            (Some((_, first)), Some((_, second))) => {
                return Err(ConfigError::Conflict {
                    first,
                    second,
                    advice: "unset one of them",
                });
            }
            (Some((text, origin)), None) => Some(Setting {
                value: DeviceSpec::parse_list(&text, &origin)?,
                origin,
            }),
            (None, Some((text, origin))) => Some(Setting {
                value: vec![DeviceSpec::from_ip_list(&text, &origin)?],
                origin,
            }),
            (None, None) => None,
        };
        Ok(Self {
            devices,
            broker: get(ENV_BROKER)?.map(parse_broker).transpose()?,
            broker_idle: get(ENV_BROKER_IDLE_MS)?.map(parse_idle).transpose()?,
            runtime_dir: get(ENV_RUNTIME_DIR)?.map(parse_dir).transpose()?,
            link: get(ENV_LINK)?.map(parse_link).transpose()?,
            icrc: get(ENV_ICRC)?.map(parse_icrc).transpose()?,
            peers: get(ENV_PEERS)?.map(parse_peers).transpose()?,
            dcqcn: get(ENV_DCQCN)?.map(parse_switch).transpose()?,
            identity: get(ENV_IDENTITY)?.map(parse_identity).transpose()?,
            pkeys: get(ENV_PKEYS)?.map(parse_pkeys).transpose()?,
            capture: get(ENV_CAPTURE)?.map(parse_file).transpose()?,
            faults: get(ENV_FAULT)?.map(parse_faults).transpose()?,
            log: get(ENV_LOG)?.map(|(value, origin)| Setting { value, origin }),
        })
    }

    /// A configuration file.
    ///
    /// # Errors
    /// [`ConfigError::File`] if it cannot be read or is not TOML with the known keys;
    /// [`ConfigError`] for the first value that is not allowed.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::File {
            path: path.to_owned(),
            reason: format!("cannot read it: {error}"),
        })?;
        Self::from_toml(&text, path)
    }

    /// The text of a configuration file; `path` is for error messages.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn from_toml(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let keys: FileKeys = toml::from_str(text).map_err(|error| ConfigError::File {
            path: path.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        })?;
        let origin = |key: &'static str| Origin::File {
            path: path.to_owned(),
            key,
        };
        let with = |key: &'static str, value: Option<String>| value.map(|v| (v, origin(key)));
        let devices = match (keys.devices, keys.ip) {
            (Some(_), Some(_)) => {
                return Err(ConfigError::Conflict {
                    first: origin("devices"),
                    second: origin("ip"),
                    advice: "remove one of them",
                });
            }
            (Some(specs), None) => {
                let origin = origin("devices");
                let value = specs
                    .iter()
                    .map(|spec| DeviceSpec::parse(spec, &origin))
                    .collect::<Result<_, _>>()?;
                Some(Setting { value, origin })
            }
            (None, Some(ip)) => {
                let origin = origin("ip");
                Some(Setting {
                    value: vec![DeviceSpec::from_ip_list(&ip, &origin)?],
                    origin,
                })
            }
            (None, None) => None,
        };
        Ok(Self {
            devices,
            broker: with("broker", keys.broker).map(parse_broker).transpose()?,
            broker_idle: keys.broker_idle_ms.map(|ms| Setting {
                value: Duration::from_millis(ms),
                origin: origin("broker_idle_ms"),
            }),
            runtime_dir: with("runtime_dir", keys.runtime_dir)
                .map(parse_dir)
                .transpose()?,
            link: with("link", keys.link).map(parse_link).transpose()?,
            icrc: with("icrc", keys.icrc).map(parse_icrc).transpose()?,
            peers: keys
                .peers
                .map(|items| {
                    let (origin, value) = (origin("peers"), items.join(","));
                    Peers::from_items(&items, &value, &origin)
                        .map(|value| Setting { value, origin })
                })
                .transpose()?,
            dcqcn: with("dcqcn", keys.dcqcn).map(parse_switch).transpose()?,
            identity: with("identity", keys.identity)
                .map(parse_identity)
                .transpose()?,
            pkeys: keys
                .pkeys
                .map(|items| parse_pkeys((items.join(","), origin("pkeys"))))
                .transpose()?,
            capture: with("capture", keys.capture).map(parse_file).transpose()?,
            faults: keys
                .fault
                .map(|rules| parse_faults((rules.join("\n"), origin("fault"))))
                .transpose()?,
            log: keys.log.map(|value| Setting {
                value,
                origin: origin("log"),
            }),
        })
    }

    /// The flags `--dev SPEC` (any number) and `--ip ADDR[,ADDR..]` of the `rocade` command.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value that is not allowed, or when both flags are given.
    pub fn from_flags(dev: &[String], ip: Option<&str>) -> Result<Self, ConfigError> {
        let (dev_origin, ip_origin) = (Origin::Flag("--dev"), Origin::Flag("--ip"));
        let devices = match (dev, ip) {
            ([], None) => None,
            ([], Some(ip)) => Some(Setting {
                value: vec![DeviceSpec::from_ip_list(ip, &ip_origin)?],
                origin: ip_origin,
            }),
            (_, Some(_)) => {
                return Err(ConfigError::Conflict {
                    first: dev_origin,
                    second: ip_origin,
                    advice: "give one of them",
                });
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

    /// Devices that a program asks for.
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

    /// These settings, and where they say nothing those of `lower`.
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
            pkeys: self.pkeys.or(lower.pkeys),
            capture: self.capture.or(lower.capture),
            faults: self.faults.or(lower.faults),
            log: self.log.or(lower.log),
        }
    }

    /// The device specifications, if any source gave some.
    #[must_use]
    pub fn devices(&self) -> Option<&[DeviceSpec]> {
        self.devices
            .as_ref()
            .map(|setting| setting.value.as_slice())
    }

    /// The devices as the value of `ROCADE_DEVICES`.
    #[must_use]
    pub fn devices_env(&self) -> Option<String> {
        let specs = self.devices()?.iter().map(ToString::to_string);
        Some(specs.collect::<Vec<_>>().join(";"))
    }

    /// The tracing filter, if any source gave one.
    #[must_use]
    pub fn log(&self) -> Option<&str> {
        self.log.as_ref().map(|setting| setting.value.as_str())
    }

    /// Checks the levels and targets of the tracing filter. Apart from the other settings, because
    /// programs run with a wrong filter too.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with the nearest name that exists.
    pub fn check_log(&self) -> Result<(), ConfigError> {
        let Some(Setting { value, origin }) = &self.log else {
            return Ok(());
        };
        names::log_filter_mistake(value).map_or(Ok(()), |mistake| {
            let allowed = "off, error, warn, info, debug, trace, or TARGET=LEVEL, \
                           e.g. rocade_emulator=debug";
            Err(ConfigError::invalid(origin, value, mistake, allowed))
        })
    }

    /// How packets travel.
    #[must_use]
    pub fn link(&self) -> LinkMode {
        self.link
            .as_ref()
            .map_or_else(LinkMode::default, |setting| setting.value)
    }

    /// Who may talk to this process.
    #[must_use]
    pub fn peers(&self) -> Peers {
        self.peers
            .as_ref()
            .map_or_else(Peers::default, |setting| setting.value.clone())
    }

    /// The file that packets go to, if any source gave one.
    #[must_use]
    pub fn capture(&self) -> Option<&Path> {
        self.capture.as_ref().map(|setting| setting.value.as_path())
    }

    /// What happens to packets.
    #[must_use]
    pub fn faults(&self) -> &[Rule] {
        self.faults
            .as_ref()
            .map_or(&[], |setting| setting.value.as_slice())
    }

    /// These settings with what the flags `--capture FILE` and `--fault RULE` (any number) say.
    ///
    /// # Errors
    /// [`ConfigError`] for the first rule that is wrong.
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

    /// What was said about the broker, if any source said something.
    #[must_use]
    pub fn broker(&self) -> Option<&BrokerSetting> {
        self.broker.as_ref().map(|setting| &setting.value)
    }

    /// The runtime directory, if any source gave one.
    #[must_use]
    pub fn runtime_dir(&self) -> Option<&Path> {
        self.runtime_dir
            .as_ref()
            .map(|setting| setting.value.as_path())
    }

    /// How the broker is reached.
    #[must_use]
    pub fn broker_config(&self) -> BrokerConfig {
        let mut config = BrokerConfig::default();
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

    /// What an engine on this host is made of.
    ///
    /// Without device specifications: one device `rocade0`, `rocade1`, ... per interface of
    /// `network`, in its order.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when a device does not fit the host: unknown interface or
    /// address, a name or address used twice.
    pub fn resolve(
        &self,
        network: &HostNetwork,
        identity: &HostIdentity,
    ) -> Result<EngineConfig, ConfigError> {
        let mut devices = match &self.devices {
            Some(setting) => resolve_specs(&setting.value, &setting.origin, network, identity)?,
            None => default_devices(network, identity),
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

/// Which configuration file applies; `current_dir` is searched first where given.
///
/// A file named by `ROCADE_CONFIG` is returned whether or not it exists, so that reading it
/// reports the mistake.
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

fn parse_broker((value, origin): (String, Origin)) -> Result<Setting<BrokerSetting>, ConfigError> {
    let broker = match value.as_str() {
        "auto" => BrokerSetting::Auto,
        "embedded" => BrokerSetting::Embedded,
        path if path.contains('/') => BrokerSetting::Executable(path.into()),
        _ => {
            return Err(ConfigError::invalid(
                &origin,
                value,
                "there is no such way to reach the broker",
                "auto, embedded, or the path of the rocade executable (with a '/')",
            ));
        }
    };
    Ok(Setting {
        value: broker,
        origin,
    })
}

fn parse_idle((value, origin): (String, Origin)) -> Result<Setting<Duration>, ConfigError> {
    match value.parse() {
        Ok(ms) => Ok(Setting {
            value: Duration::from_millis(ms),
            origin,
        }),
        Err(_) => {
            let reason = "it is not a number of milliseconds";
            Err(ConfigError::invalid(
                &origin,
                value,
                reason,
                "a whole number, e.g. 60000",
            ))
        }
    }
}

fn parse_dir(value: (String, Origin)) -> Result<Setting<PathBuf>, ConfigError> {
    parse_path(value, "an absolute path of a directory that is yours")
}

fn parse_path(
    (value, origin): (String, Origin),
    allowed: &str,
) -> Result<Setting<PathBuf>, ConfigError> {
    let path = PathBuf::from(&value);
    if !path.is_absolute() {
        return Err(ConfigError::invalid(
            &origin,
            value,
            "the path is relative",
            allowed,
        ));
    }
    Ok(Setting {
        value: path,
        origin,
    })
}

fn parse_file(value: (String, Origin)) -> Result<Setting<PathBuf>, ConfigError> {
    parse_path(
        value,
        "an absolute path, because programs change their directory",
    )
}

fn parse_faults((value, origin): (String, Origin)) -> Result<Setting<Vec<Rule>>, ConfigError> {
    match Rule::parse_list(&value) {
        Ok(value) => Ok(Setting { value, origin }),
        Err(error) => Err(ConfigError::invalid(
            &origin,
            error.at,
            error.reason,
            error.allowed,
        )),
    }
}

fn parse_peers((value, origin): (String, Origin)) -> Result<Setting<Peers>, ConfigError> {
    let value = Peers::parse(&value, &origin)?;
    Ok(Setting { value, origin })
}

fn parse_switch((text, origin): (String, Origin)) -> Result<Setting<bool>, ConfigError> {
    let value = match text.as_str() {
        "on" => true,
        "off" => false,
        _ => {
            let reason = "it is neither";
            return Err(ConfigError::invalid(&origin, text, reason, "on or off"));
        }
    };
    Ok(Setting { value, origin })
}

fn parse_identity(
    (value, origin): (String, Origin),
) -> Result<Setting<DeviceIdentity>, ConfigError> {
    let value = DeviceIdentity::parse(&value, &origin)?;
    Ok(Setting { value, origin })
}

fn parse_pkeys((text, origin): (String, Origin)) -> Result<Setting<Vec<Pkey>>, ConfigError> {
    let value = identity::parse_pkeys(text.split(','), &text, &origin)?;
    Ok(Setting { value, origin })
}

fn parse_link((value, origin): (String, Origin)) -> Result<Setting<LinkMode>, ConfigError> {
    let value = match value.as_str() {
        "auto" => LinkMode::Auto,
        "udp" => LinkMode::Udp,
        "shm" => LinkMode::Shm,
        _ => {
            let reason = "there is no such link";
            return Err(ConfigError::invalid(
                &origin,
                value,
                reason,
                "auto, udp or shm",
            ));
        }
    };
    Ok(Setting { value, origin })
}

fn parse_icrc((name, origin): (String, Origin)) -> Result<Setting<Way>, ConfigError> {
    match name.parse() {
        Ok(value) => Ok(Setting { value, origin }),
        Err(reason) => {
            let here: Vec<&str> = Way::available().map(Way::name).collect();
            let allowed = format!("on this processor {}", here.join(", "));
            Err(ConfigError::invalid(
                &origin,
                name,
                reason.to_string(),
                allowed,
            ))
        }
    }
}

fn default_devices(network: &HostNetwork, identity: &HostIdentity) -> Vec<DeviceConfig> {
    let with_addr = network
        .interfaces
        .iter()
        .filter_map(|i| Some((i, *i.addrs.first()?)));
    with_addr
        .enumerate()
        .map(|(number, (interface, first))| {
            let name = format!("rocade{number}");
            DeviceConfig {
                guid: identity.device_guid(&name, first),
                name,
                port: PortConfig {
                    ifname: Some(interface.name.clone()),
                    ifindex: interface.index,
                    addrs: interface.addrs.clone(),
                    follows: vec![interface.index],
                    netdev_mtu: interface.mtu_bytes,
                },
                second_port: None,
                identity: DeviceIdentity::default(),
                pkeys: vec![Pkey::DEFAULT],
            }
        })
        .collect()
}

fn resolve_specs(
    specs: &[DeviceSpec],
    origin: &Origin,
    network: &HostNetwork,
    identity: &HostIdentity,
) -> Result<Vec<DeviceConfig>, ConfigError> {
    let mut devices: Vec<DeviceConfig> = Vec::new();
    for spec in specs {
        let device = resolve_spec(spec, origin, network, identity)?;
        if devices.iter().any(|other| other.name == device.name) {
            return Err(ConfigError::invalid(
                origin,
                spec.to_string(),
                format!("there are two devices called {}", device.name),
                "a different name for each device",
            ));
        }
        let shared = |other: &&DeviceConfig| {
            let mut addrs = device.addrs();
            addrs.any(|addr| other.addrs().any(|theirs| theirs == addr))
        };
        if let Some(other) = devices.iter().find(shared) {
            return Err(ConfigError::invalid(
                origin,
                spec.to_string(),
                format!(
                    "{} and {} have an address in common",
                    other.name, device.name
                ),
                "each address on one device only, e.g. rocade0=127.0.0.2 and rocade1=127.0.0.3",
            ));
        }
        devices.push(device);
    }
    Ok(devices)
}

fn resolve_spec(
    spec: &DeviceSpec,
    origin: &Origin,
    network: &HostNetwork,
    identity: &HostIdentity,
) -> Result<DeviceConfig, ConfigError> {
    let bad = |reason: String| {
        let allowed = format!(
            "an interface that is up or an address of this host; here: {}",
            network.summary()
        );
        ConfigError::invalid(origin, spec.to_string(), reason, allowed)
    };
    let port = |items| resolve_port(items, network, &bad);
    let first = port(&spec.items)?;
    let second = match &*spec.second {
        [] => None,
        items => Some(port(items)?),
    };
    let in_both = |second: &PortConfig| first.addrs.iter().any(|a| second.addrs.contains(a));
    if second.as_ref().is_some_and(in_both) {
        return Err(bad("its ports have an address in common".to_owned()));
    }
    let Some(first_addr) = first.addrs.first() else {
        return Err(bad("it has no address".to_owned()));
    };
    Ok(DeviceConfig {
        guid: identity.device_guid(&spec.name, *first_addr),
        name: spec.name.clone(),
        port: first,
        second_port: second,
        identity: DeviceIdentity::default(),
        pkeys: vec![Pkey::DEFAULT],
    })
}

fn resolve_port(
    items: &[SpecItem],
    network: &HostNetwork,
    bad: &impl Fn(String) -> ConfigError,
) -> Result<PortConfig, ConfigError> {
    let mut addrs: Vec<IpAddr> = Vec::new();
    let mut owners: Vec<&host::Interface> = Vec::new();
    let mut follows = Vec::new();
    for item in items {
        let (interface, new): (_, &[IpAddr]) = match item {
            SpecItem::Iface(name) => {
                let interface = network
                    .by_name(name)
                    .ok_or_else(|| bad(no_interface(name)))?;
                follows.push(interface.index);
                (interface, &interface.addrs)
            }
            SpecItem::Addr { addr, zone: None } => {
                let missing = || bad(format!("{addr} is not an address of this host"));
                (
                    network.owner_of(*addr).ok_or_else(missing)?,
                    std::slice::from_ref(addr),
                )
            }
            SpecItem::Addr {
                addr,
                zone: Some(zone),
            } => {
                let interface = network
                    .by_name(zone)
                    .ok_or_else(|| bad(no_interface(zone)))?;
                if !interface.addrs.contains(addr) {
                    return Err(bad(format!("{addr} is not an address of {zone}")));
                }
                (interface, std::slice::from_ref(addr))
            }
        };
        let first_owner = owners.first().copied().unwrap_or(interface);
        if interface.index != first_owner.index && new.iter().any(host::is_link_local_v6) {
            return Err(bad(format!(
                "a link-local address of {} cannot join a device of {}",
                interface.name, first_owner.name
            )));
        }
        for addr in new {
            if !addrs.contains(addr) {
                addrs.push(*addr);
            }
        }
        owners.push(interface);
    }
    let Some(first) = owners.first() else {
        return Err(bad("it has no address".to_owned()));
    };
    let mtu = owners.iter().map(|owner| owner.mtu_bytes).min();
    Ok(PortConfig {
        ifname: Some(first.name.clone()),
        ifindex: first.index,
        netdev_mtu: mtu.unwrap_or(first.mtu_bytes),
        addrs,
        follows,
    })
}

fn no_interface(name: &str) -> String {
    if host::exists(name) {
        format!("the interface {name} is down or has no IP address")
    } else {
        format!("there is no interface {name}")
    }
}
