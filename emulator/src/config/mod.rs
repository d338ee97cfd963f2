//! Which devices there are, and how this process reaches the others.
//!
//! An [`EngineConfig`] is plain data, and a program that uses the Rust API may write one down
//! itself. Everybody else lets it be found: flags of `rocade run` over `ROCADE_*` variables over
//! the configuration file over what the host has.
//!
//! | variable | key in `rocade.toml` | value |
//! |---|---|---|
//! | `ROCADE_DEVICES` | `devices = ["..", ..]` | `NAME=IFACE\|ADDR[,IFACE\|ADDR..][+IFACE\|ADDR..]`; in the variable separated by `;` |
//! | `ROCADE_IP` | `ip = ".."` | `ADDR[,ADDR..]`: short for one device `rocade0=ADDR,..` |
//! | `ROCADE_BROKER` | `broker = ".."` | `auto` (default), `embedded`, or path of the `rocade` executable |
//! | `ROCADE_BROKER_IDLE_MS` | `broker_idle_ms = N` | a broker without clients ends after this time; 60000 by default |
//! | `ROCADE_RUNTIME_DIR` | `runtime_dir = ".."` | directory of the broker's socket and lock files |
//! | `ROCADE_LINK` | `link = ".."` | `auto` (default), `udp`, `shm`: [`LinkMode`] |
//! | `ROCADE_ICRC` | `icrc = ".."` | how ICRCs are computed, for measurements: `avx512`, `vpclmul256`, `pclmul128`, `pmull`, `crc32`, `table`; the processor's best by default |
//! | `ROCADE_PEERS` | `peers = ["..", ..]` | `ADDR[/PREFIX][,..]`: who may talk to this process; anybody by default: [`Peers`] |
//! | `ROCADE_DCQCN` | `dcqcn = ".."` | `on` or `off` (default): congestion control of RC, XRC and UC over UDP |
//! | `ROCADE_IDENTITY` | `identity = ".."` | `VENDOR:PART`: what the devices say they are: [`DeviceIdentity`] |
//! | `ROCADE_PKEYS` | `pkeys = ["..", ..]` | `PKEY[,..]`: the P_Key table; only 0xffff by default |
//! | `ROCADE_CAPTURE` | `capture = ".."` | file that all packets are appended to, see [`capture`](crate::link::capture) |
//! | `ROCADE_FAULT` | `fault = ["..", ..]` | what happens to packets: rules separated by `;`, see [`fault`](crate::link::fault) |
//! | `ROCADE_LOG` | `log = ".."` | tracing filter, e.g. `info` |
//! | `ROCADE_CONFIG` | | path of the configuration file |
//!
//! # Devices and GIDs
//! Without a specification there is one device per interface that is up and has an address:
//! `rocade0`, `rocade1`, ... by interface index, interfaces with only link-local addresses after
//! the others, loopback last. The GID table of a device lists its IPv4 addresses first, then
//! IPv6, then link-local IPv6 (whose scope id is [`PortConfig::ifindex`]). So GID index 0 is
//! IPv4 wherever there is IPv4; `lo` has 127.0.0.1 at index 0 and ::1 at index 1. A specification
//! puts the addresses in the order in which it names them: `rocade0=::1,127.0.0.1` turns that
//! around, and `rocade0=127.0.0.2` gives a device with only that address (all of 127.0.0.0/8 is
//! there without being configured).
//!
//! What stands behind a `+` is a second port: `rocade0=eth0+eth1`, or `rocade0=127.0.0.2+127.0.1.2` to try
//! path migration on one host. Each port has its own GID table.

mod error;
mod guid;
mod host;
mod identity;
mod likeness;
mod names;
mod peers;
mod resolve;
mod settings;
mod spec;
mod sys;
#[cfg(test)]
mod tests;
mod values;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rocade_wire::crc::Way;
use rocade_wire::{Guid, Pkey};

pub use self::error::{ConfigError, Origin};
pub use self::guid::HostIdentity;
pub use self::host::{HostNetwork, Interface};
pub use self::identity::{DeviceIdentity, MAX_PKEYS};
pub use self::likeness::Likeness;
pub use self::names::{ENV_WARNED, UnknownVariable, nearest, unknown_variables};
pub use self::peers::Peers;
pub use self::settings::{
    BrokerSetting, ENV_BROKER, ENV_BROKER_IDLE_MS, ENV_CAPTURE, ENV_CONFIG, ENV_DCQCN, ENV_DEVICES,
    ENV_FAULT, ENV_ICRC, ENV_IDENTITY, ENV_IP, ENV_LIKE, ENV_LINK, ENV_LOG, ENV_PEERS, ENV_PKEYS,
    ENV_RUNTIME_DIR, FILE_NAME, Settings, config_file,
};
pub use self::spec::{DeviceSpec, MAX_DEVICE_NAME_LEN, SpecItem};
pub use crate::broker::BrokerConfig;
use crate::link::Simulation;
use crate::link::fault::{Rule, RuleError};

/// MTU in bytes of simulated interfaces: an active MTU of 1024.
const SIMULATED_MTU: u32 = 1_500;

/// Everything an engine needs to know when it is made.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// In the order in which programs see them. Names differ, and no address is in two of them.
    pub devices: Vec<DeviceConfig>,
    /// How this process shares its addresses with others.
    pub broker: BrokerMode,
    /// How packets travel.
    pub link: LinkMode,
    /// How ICRCs are computed, in the whole process; `None` for the best way that the processor has.
    pub icrc: Option<Way>,
    /// Who may talk to this process.
    pub peers: Peers,
    /// Whether congestion is controlled (DCQCN): packets of RC over UDP ask to be marked, marks are answered by
    /// notifications, and those slow the sender down.
    pub dcqcn: bool,
    /// Where all packets go: a pcapng file, which is appended to ([`capture`](crate::link::capture)).
    pub capture: Option<PathBuf>,
    /// What happens to packets on their way.
    pub faults: Vec<Rule>,
    /// A network that is simulated instead of links; there is no broker then.
    pub simulation: Option<Simulation>,
}

/// How packets travel between this process and its peers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// Through shared memory where the peer is a process of this host with the same broker and
    /// does not refuse it; over UDP otherwise.
    #[default]
    Auto,
    /// Over UDP, always.
    Udp,
    /// Through shared memory, always: what cannot go that way is lost, and queue pairs to other
    /// peers end with retries exceeded. For tests and measurements.
    Shm,
}

/// One emulated HCA with one port or two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Name that programs use, e.g. `rocade0`; at most [`MAX_DEVICE_NAME_LEN`] bytes.
    pub name: String,
    /// Port number 1.
    pub port: PortConfig,
    /// Port number 2.
    pub second_port: Option<PortConfig>,
    /// Node GUID, not zero.
    pub guid: Guid,
    /// The kind of device that it is like.
    pub like: Likeness,
    /// Vendor and part.
    pub identity: DeviceIdentity,
    /// The P_Key table of each port, at least one entry.
    pub pkeys: Vec<Pkey>,
}

/// A port of an emulated HCA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// The network interface behind it.
    pub ifname: Option<String>,
    /// Its index; the scope id of link-local addresses. 0 if unknown.
    pub ifindex: u32,
    /// Local addresses, at least one; the position is the GID index.
    pub addrs: Vec<IpAddr>,
    /// Indexes of the interfaces whose addresses are those of the port, whatever they are.
    pub follows: Vec<u32>,
    /// MTU of the interface in bytes; the port's active MTU follows from it.
    pub netdev_mtu: u32,
}

impl DeviceConfig {
    /// Its ports in the order of their numbers, from 1.
    pub fn ports(&self) -> impl Iterator<Item = &PortConfig> {
        std::iter::once(&self.port).chain(&self.second_port)
    }

    /// The addresses of all its ports.
    pub fn addrs(&self) -> impl Iterator<Item = IpAddr> {
        self.ports().flat_map(|port| port.addrs.iter().copied())
    }
}

impl PortConfig {
    /// A port of a simulated network, with these addresses.
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

/// How a process shares its addresses with other processes.
#[derive(Debug, Clone)]
pub enum BrokerMode {
    /// It does not: the engine binds the addresses itself, and nobody else can.
    Embedded,
    /// The broker hands out a place on the shared port; it is started on demand.
    Auto(BrokerConfig),
}

impl EngineConfig {
    /// From the environment, the configuration file and the interfaces of this host.
    ///
    /// # Errors
    /// [`ConfigError`], whose text is meant for the user.
    pub fn from_env() -> Result<Self, ConfigError> {
        Settings::load()?.resolve_here()
    }

    /// Two devices `a` and `b` in a simulated network, with addresses 10.0.0.1 and 10.0.0.2. Time is virtual:
    /// it moves when the program polls or waits. A program of one thread that does the same as before sees the same
    /// as before.
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

    /// Each device with a second port, whose addresses are 10.1.0.1 and 10.1.0.2.
    #[must_use]
    pub fn with_second_ports(mut self) -> Self {
        for (last, device) in (1..).zip(&mut self.devices) {
            let address = IpAddr::from([10, 1, 0, last]);
            device.second_port = Some(PortConfig::simulated(vec![address]));
        }
        self
    }

    /// With these rules ([`Rule::parse_list`]) besides.
    ///
    /// # Errors
    /// [`RuleError`] for the first rule that is wrong.
    pub fn with_faults(mut self, rules: &str) -> Result<Self, RuleError> {
        self.faults.extend(Rule::parse_list(rules)?);
        Ok(self)
    }

    /// With a capture.
    #[must_use]
    pub fn with_capture(mut self, path: impl Into<PathBuf>) -> Self {
        self.capture = Some(path.into());
        self
    }

    /// Devices given as `NAME=IFACE|ADDR[,..]`; environment and files are not read.
    ///
    /// # Errors
    /// [`ConfigError`] if a specification is wrong or does not fit this host.
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
    /// [`resolve`](Self::resolve) for this host.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`ConfigError::Interfaces`] if the host does not list its
    /// interfaces.
    pub fn resolve_here(&self) -> Result<EngineConfig, ConfigError> {
        let network = HostNetwork::discover().map_err(ConfigError::Interfaces)?;
        self.resolve(&network, &HostIdentity::this_host())
    }
}
