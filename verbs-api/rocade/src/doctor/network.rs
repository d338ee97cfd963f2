//! Checks of the network: devices, sockets, steering, the broker, UDP port 4791.

use std::fs;
use std::net::IpAddr;

use rocade_emulator::broker::{self, BrokerError, BrokerStatus};
use rocade_emulator::config::{BrokerSetting, EngineConfig, Settings};
use rocade_emulator::probe;

use super::Check;
use crate::error::CliError;
use crate::libdir;

/// Lists the devices that a program will see.
pub(super) fn devices(config: &EngineConfig) -> Check {
    const NAME: &str = "devices";
    if config.devices.is_empty() {
        return Check::problem(NAME, "no network interface is up with an IP address")
            .advise("ip link set lo up    brings up the loopback interface");
    }
    let shown = config.devices.iter().map(|device| {
        let addrs: Vec<String> = device.addrs().map(|ip| ip.to_string()).collect();
        format!("{} ({})", device.name, addrs.join(", "))
    });
    Check::ok(NAME, shown.collect::<Vec<_>>().join(", "))
}

/// Tries sockets of this address, and the handling of several packets per system call.
pub(super) fn sockets(ip: IpAddr) -> Check {
    const NAME: &str = "sockets";
    if let Err(error) = probe::udp(ip) {
        return Check::problem(NAME, format!("{error} (address {ip})"))
            .advise(probe::remedy(&error));
    }
    let missing: Vec<String> = [
        ("GSO", probe::segmentation(ip)),
        ("GRO", probe::merging(ip)),
    ]
    .into_iter()
    .filter_map(|(name, result)| Some(format!("no {name}: {}", result.err()?)))
    .collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Check::warning(NAME, format!("UDP works slowly, {missing}")).advise(
            "a kernel from 5.0 on has both. A sandbox (gVisor, seccomp) may forbid these options",
        );
    }
    let buffer = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    Check::ok(
        NAME,
        match buffer.trim() {
            "" => "UDP with GSO and GRO".to_owned(),
            bytes => format!("UDP with GSO and GRO, receive buffers of {bytes} bytes"),
        },
    )
}

/// Tries the delivery of packets to several processes of one address.
pub(super) fn steering(ip: IpAddr) -> Check {
    const NAME: &str = "steering";
    let refused = match probe::steering(ip) {
        Ok(true) => return Check::ok(NAME, "the kernel delivers packets to each process"),
        Ok(false) => "a datagram did not reach its process".to_owned(),
        Err(error) => error.to_string(),
    };
    Check::warning(
        NAME,
        format!("the broker forwards UDP packets, which is slower: {refused}"),
    )
    .advise("a sandbox may forbid it. Shared memory is not affected")
}

/// Asks the broker, and finds foreign owners of UDP port 4791.
pub(super) fn broker_and_port(settings: &Settings, config: &EngineConfig) -> [Check; 2] {
    let status = match settings.broker() {
        Some(BrokerSetting::Embedded) => None,
        _ => Some(broker::status(&settings.broker_config())),
    };
    let own = status.as_ref().and_then(|status| status.as_ref().ok());
    let port = port(config, own);
    let broker = match &status {
        None => Check::ok("broker", "none (embedded): one program per address"),
        Some(status) => broker_check(status, settings),
    };
    [broker, port]
}

fn broker_check(status: &Result<BrokerStatus, BrokerError>, settings: &Settings) -> Check {
    const NAME: &str = "broker";
    match status {
        Ok(status) => Check::ok(
            NAME,
            format!(
                "process {}, version {}, {} programs",
                status.pid,
                status.version,
                status.slots.len()
            ),
        ),
        Err(BrokerError::NotRunning) => match usable_directory(settings) {
            Ok(()) => Check::ok(NAME, "not running, the first program starts it"),
            Err(error) => Check::of_error(NAME, &error),
        },
        Err(error) => {
            Check::problem(NAME, error.to_string().replace('\n', " ")).advise(error.remedy())
        }
    }
}

/// Checks a runtime directory that the user has chosen. There are several for the default.
fn usable_directory(settings: &Settings) -> Result<(), CliError> {
    match settings.runtime_dir() {
        Some(_) => libdir::runtime_dir(settings).map(drop),
        None => Ok(()),
    }
}

fn port(config: &EngineConfig, own: Option<&BrokerStatus>) -> Check {
    let name = "port 4791";
    let is_ours = |ip: IpAddr| {
        own.is_some_and(|status| status.addresses.iter().any(|one| one.local.ip() == ip))
    };
    let ports = config.devices.iter().flat_map(|device| device.ports());
    let all = ports.flat_map(|port| {
        let scope = port.ifindex;
        port.addrs.iter().map(move |ip| (*ip, scope))
    });
    let (ours, others): (Vec<_>, Vec<_>) = all.partition(|(ip, _)| is_ours(*ip));
    let taken: Vec<String> = others
        .iter()
        .filter_map(|(ip, scope)| Some(probe::port_in_use(*ip, *scope)?.to_string()))
        .collect();
    if let Some(first) = taken.first() {
        let (finding, advice) = first.split_once(". ").unwrap_or((first, ""));
        let more = match taken.len() {
            1 => String::new(),
            count => format!(" (and of {} other addresses)", count - 1),
        };
        return Check::problem(name, format!("{finding}{more}")).advise(advice);
    }
    match ours.len() {
        0 => Check::ok(name, "free on all addresses"),
        count => Check::ok(name, format!("free, on {count} addresses the broker's")),
    }
}
