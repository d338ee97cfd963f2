//! Configuration: the devices of this process, its links, its peers and its diagnostics.
//!
//! An [`EngineConfig`] is plain data, which a program may construct through the Rust API. Otherwise
//! it results from several sources, in order of precedence: flags of `rocade run`, `ROCADE_*`
//! variables, the configuration file, and the interfaces of the host.
//!
//! | variable | key in `rocade.toml` | value |
//! |---|---|---|
//! | `ROCADE_DEVICES` | `devices = ["..", ..]` | `NAME=IFACE\|ADDR[,IFACE\|ADDR..][+IFACE\|ADDR..]`, separated by semicolons in the variable |
//! | `ROCADE_IP` | `ip = ".."` | `ADDR[,ADDR..]`: short for one device `rocade0=ADDR,..` |
//! | `ROCADE_BROKER` | `broker = ".."` | `auto` (default), `embedded`, or path of the `rocade` executable |
//! | `ROCADE_BROKER_IDLE_MS` | `broker_idle_ms = N` | time without clients after which a broker ends, 60000 by default |
//! | `ROCADE_RUNTIME_DIR` | `runtime_dir = ".."` | directory of the broker's socket and lock files |
//! | `ROCADE_LINK` | `link = ".."` | `auto` (default), `udp`, `shm`: [`LinkMode`] |
//! | `ROCADE_ICRC` | `icrc = ".."` | method of computing ICRCs, for measurements (default: the processor's best): `avx512`, `vpclmul256`, `pclmul128`, `pmull`, `crc32`, `table` |
//! | `ROCADE_PEERS` | `peers = ["..", ..]` | `ADDR[/PREFIX][,..]`: allowed peers, all by default: [`Peers`] |
//! | `ROCADE_DCQCN` | `dcqcn = ".."` | `on` or `off` (default): congestion control of RC, XRC and UC over UDP |
//! | `ROCADE_IDENTITY` | `identity = ".."` | `VENDOR:PART` that the devices report: [`DeviceIdentity`] |
//! | `ROCADE_PKEYS` | `pkeys = ["..", ..]` | `PKEY[,..]`: the P_Key table, only 0xffff by default |
//! | `ROCADE_CAPTURE` | `capture = ".."` | file to which all packets are appended, see [`capture`](crate::link::capture) |
//! | `ROCADE_FAULT` | `fault = ["..", ..]` | fault rules separated by `;`, see [`fault`](crate::link::fault) |
//! | `ROCADE_LOG` | `log = ".."` | tracing filter, e.g. `info`: [`LogFilter`] |
//! | `ROCADE_CONFIG` | | path of the configuration file |
//!
//! # Devices and GIDs
//! Without a specification there is one device per interface that is up and has an address:
//! `rocade0`, `rocade1`, ... They are ordered by interface index, interfaces with only link-local
//! addresses after the others, loopback last. The GID table of a device lists its IPv4 addresses
//! first, then IPv6, then link-local IPv6 (whose scope ID is [`PortConfig::ifindex`]). So GID index
//! 0 is IPv4 wherever there is IPv4, and `lo` has 127.0.0.1 at index 0 and ::1 at index 1. A
//! specification sets the order of the addresses: `rocade0=::1,127.0.0.1` reverses that of `lo`.
//! `rocade0=127.0.0.2` gives a device with only that address, because all of 127.0.0.0/8 is
//! available without configuration.
//!
//! The part after a `+` is a second port: `rocade0=eth0+eth1`, or `rocade0=127.0.0.2+127.0.1.2` to
//! try path migration on one host. Each port has its own GID table.

mod broker;
mod error;
mod guid;
mod host;
mod identity;
mod likeness;
mod log_filter;
mod names;
mod peers;
mod resolve;
mod run_env;
mod settings;
mod spec;
mod sys;
#[cfg(test)]
mod tests;
mod values;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rocade_wire::crc::Backend;
use rocade_wire::{Guid, Pkey};

pub use self::broker::BrokerConfig;
pub use self::error::{ConfigError, Origin};
pub use self::guid::HostIdentity;
pub use self::host::{HostNetwork, Interface};
pub use self::identity::{DeviceIdentity, MAX_PKEYS};
pub use self::likeness::Likeness;
pub(crate) use self::likeness::ecn_capable;
pub use self::log_filter::LogFilter;
pub(crate) use self::names::is_setting;
pub use self::names::{ENV_WARNED, UnknownVariable, unknown_variables};
pub use self::peers::Peers;
pub use self::run_env::{RUN_ENVIRONMENT, run_environment, variable};
pub use self::settings::{
    BrokerSetting, ENV_BROKER, ENV_BROKER_IDLE_MS, ENV_CAPTURE, ENV_CONFIG, ENV_DCQCN, ENV_DEVICES,
    ENV_FAULT, ENV_ICRC, ENV_IDENTITY, ENV_IP, ENV_LIKE, ENV_LINK, ENV_LOG, ENV_PEERS, ENV_PKEYS,
    ENV_RUNTIME_DIR, FILE_NAME, Settings, config_file,
};
pub use self::spec::{DeviceSpec, MAX_DEVICE_NAME_LEN, SpecItem};
use crate::faults::FaultRule;
use crate::link::Simulation;
use crate::link::fault::RuleError;
pub use crate::nearest::nearest;

/// MTU of simulated interfaces in bytes, which gives an active MTU of 1024.
const SIMULATED_MTU: u32 = 1_500;

/// The configuration of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The devices in the order of the device list. Names are unique, and no two devices share an
    /// address.
    pub devices: Vec<DeviceConfig>,
    /// Sharing of addresses with other processes.
    pub broker: BrokerMode,
    /// Transport of packets.
    pub link: LinkMode,
    /// Method of computing ICRCs in the whole process. `None` selects the fastest that the
    /// processor supports.
    pub icrc: Option<Backend>,
    /// The allowed peers of this process.
    pub peers: Peers,
    /// Enables congestion control (DCQCN). RC packets over UDP are then sent ECN-capable, the
    /// receiver answers CE marks with CNPs, and CNPs reduce the sender's rate.
    pub dcqcn: bool,
    /// A pcapng file to which all packets are appended ([`capture`](crate::link::capture)).
    pub capture: Option<PathBuf>,
    /// The fault rules for packets.
    pub faults: Vec<FaultRule>,
    /// A simulated network instead of links, without a broker.
    pub simulation: Option<Simulation>,
}

/// Transport of packets between this process and its peers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// Shared memory if the peer is a process of this host with the same broker that accepts it,
    /// UDP otherwise.
    #[default]
    Auto,
    /// UDP only.
    Udp,
    /// Shared memory only. Packets without a shared-memory link are lost, and their queue pairs end
    /// with retries exceeded. For tests and measurements.
    Shm,
}

/// An emulated HCA with one or two ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Device name, e.g. `rocade0`, at most [`MAX_DEVICE_NAME_LEN`] bytes.
    pub name: String,
    /// Port number 1.
    pub port: PortConfig,
    /// Port number 2.
    pub second_port: Option<PortConfig>,
    /// Node GUID, not zero.
    pub guid: Guid,
    /// The kind of device that it imitates.
    pub like: Likeness,
    /// Vendor and part.
    pub identity: DeviceIdentity,
    /// The P_Key table of each port, at least one entry.
    pub pkeys: Vec<Pkey>,
}

/// A port of an emulated HCA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// The network interface of the port.
    pub ifname: Option<String>,
    /// Index of the interface, and the scope ID of link-local addresses. 0 if unknown.
    pub ifindex: u32,
    /// Local addresses, at least one. The position is the GID index.
    pub addrs: Vec<IpAddr>,
    /// Indexes of the interfaces whose address changes the port follows.
    pub follows: Vec<u32>,
    /// MTU of the interface in bytes, from which the port's active MTU results.
    pub netdev_mtu: u32,
}

impl DeviceConfig {
    /// Returns the ports in the order of their numbers, from 1.
    pub fn ports(&self) -> impl Iterator<Item = &PortConfig> {
        std::iter::once(&self.port).chain(&self.second_port)
    }

    /// Returns the addresses of all ports.
    pub fn addrs(&self) -> impl Iterator<Item = IpAddr> {
        self.ports().flat_map(|port| port.addrs.iter().copied())
    }
}

impl PortConfig {
    /// Returns a port of a simulated network with these addresses.
    #[must_use]
    pub fn simulated(addrs: Vec<IpAddr>) -> Self {
        Self {
            ifname: None,
            ifindex: 0,
            addrs,
            follows: Vec::new(),
            netdev_mtu: SIMULATED_MTU,
        }
    }
}

/// Sharing of addresses between processes.
#[derive(Debug, Clone)]
pub enum BrokerMode {
    /// No sharing: the engine binds the addresses exclusively.
    Embedded,
    /// The broker leases a slot on the shared port. It is started on demand.
    Auto(BrokerConfig),
}

impl EngineConfig {
    /// Reads the environment, the configuration file and the interfaces of this host.
    ///
    /// # Errors
    /// [`ConfigError`] with a text for the user.
    pub fn from_env() -> Result<Self, ConfigError> {
        Settings::load()?.resolve_here()
    }

    /// Returns two devices `a` and `b` in a simulated network, with addresses 10.0.0.1 and
    /// 10.0.0.2. Time is virtual and advances when the program polls or waits. A single-threaded
    /// program that repeats its calls gets the same results.
    ///
    /// # Examples
    /// ```
    /// use rocade_emulator::config::EngineConfig;
    ///
    /// let config = EngineConfig::simulated(42).with_faults("drop opcode=READ_RESPONSE nth=3")?;
    /// assert_eq!(config.devices[1].name, "b");
    /// # Ok::<(), rocade_emulator::link::fault::RuleError>(())
    /// ```
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        let device = |name: &str, last| {
            let address = IpAddr::from([10, 0, 0, last]);
            DeviceConfig {
                name: name.to_owned(),
                port: PortConfig::simulated(vec![address]),
                second_port: None,
                guid: Guid::new(0x0200_0000_0000_0000 | u64::from(last)),
                like: Likeness::default(),
                identity: DeviceIdentity::default(),
                pkeys: vec![Pkey::DEFAULT],
            }
        };
        Self {
            devices: vec![device("a", 1), device("b", 2)],
            broker: BrokerMode::Embedded,
            link: LinkMode::Udp,
            icrc: None,
            peers: Peers::default(),
            dcqcn: false,
            capture: None,
            faults: Vec::new(),
            simulation: Some(Simulation {
                seed,
                latency: Duration::from_micros(5),
            }),
        }
    }

    /// Adds a second port to each device, with the addresses 10.1.0.1 and 10.1.0.2.
    #[must_use]
    pub fn with_second_ports(mut self) -> Self {
        for (last, device) in (1..).zip(&mut self.devices) {
            let address = IpAddr::from([10, 1, 0, last]);
            device.second_port = Some(PortConfig::simulated(vec![address]));
        }
        self
    }

    /// Adds these fault rules ([`FaultRule::parse_list`]).
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid rule.
    pub fn with_faults(mut self, rules: &str) -> Result<Self, RuleError> {
        self.faults.extend(FaultRule::parse_list(rules)?);
        Ok(self)
    }

    /// Enables a capture.
    #[must_use]
    pub fn with_capture(mut self, path: impl Into<PathBuf>) -> Self {
        self.capture = Some(path.into());
        self
    }

    /// Resolves device specifications `NAME=IFACE|ADDR[,..]`, without environment and files.
    ///
    /// # Errors
    /// [`ConfigError`] if a specification is invalid or does not fit this host.
    ///
    /// # Examples
    /// ```
    /// use rocade_emulator::config::{BrokerMode, EngineConfig};
    ///
    /// let config = EngineConfig::from_specs(&["a=127.0.0.2", "b=127.0.0.3"], BrokerMode::Embedded)?;
    /// assert_eq!(config.devices[1].name, "b");
    /// # Ok::<(), rocade_emulator::config::ConfigError>(())
    /// ```
    pub fn from_specs<S: AsRef<str>>(specs: &[S], broker: BrokerMode) -> Result<Self, ConfigError> {
        let specs = specs
            .iter()
            .map(|spec| DeviceSpec::parse(spec.as_ref(), &Origin::Program))
            .collect::<Result<_, _>>()?;
        let resolved = Settings::from_specs(specs).resolve_here()?;
        Ok(Self { broker, ..resolved })
    }
}

impl Settings {
    /// Calls [`resolve`](Self::resolve) for this host.
    ///
    /// # Errors
    /// Errors of [`resolve`](Self::resolve), and [`ConfigError::Interfaces`] if the interfaces
    /// cannot be listed.
    pub fn resolve_here(&self) -> Result<EngineConfig, ConfigError> {
        let network = HostNetwork::discover().map_err(ConfigError::Interfaces)?;
        self.resolve(&network, &HostIdentity::this_host())
    }
}
