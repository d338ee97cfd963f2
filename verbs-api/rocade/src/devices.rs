//! `rocade devices`: the devices that a program will see.

use std::net::IpAddr;
use std::process::ExitCode;

use comfy_table::Table;
use rocade_emulator::config::{DeviceConfig, PortConfig, Settings};
use rocade_wire::{Gid, Mtu};
use serde::Serialize;

use crate::cli::DevicesArgs;
use crate::error::CliError;
use crate::output;
use crate::run::with_flags;
use crate::table;

/// A device in the output of `--json`.
#[derive(Serialize)]
struct DeviceView<'a> {
    name: &'a str,
    interface: Option<&'a str>,
    state: &'static str,
    /// The active MTU of the first port, or `None` if the port is down.
    mtu_bytes: Option<u32>,
    guid: String,
    gids: Vec<GidView>,
}

#[derive(Serialize)]
struct GidView {
    port: u8,
    index: usize,
    gid: String,
    address: String,
}

pub(crate) fn print(args: &DevicesArgs, settings: Settings) -> Result<ExitCode, CliError> {
    let settings = with_flags(&args.devices, settings)?;
    let config = settings.resolve_here()?;
    if args.output.json {
        let devices: Vec<_> = config.devices.iter().map(view).collect();
        output::json(&serde_json::json!({ "devices": devices }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if config.devices.is_empty() && settings.devices().is_some() {
        return Err(CliError::new("no device, as the settings say"));
    }
    if config.devices.is_empty() {
        return Err(
            CliError::new("no device: no network interface is up with an IP address")
                .hint("ip link set lo up    brings up the loopback interface (in a new namespace)"),
        );
    }
    output::line(rows(&config.devices))?;
    Ok(ExitCode::SUCCESS)
}

fn view(device: &DeviceConfig) -> DeviceView<'_> {
    let mtu = Mtu::largest_for_netdev(device.port.netdev_mtu);
    let gids = (1u8..).zip(device.ports()).flat_map(|(number, port)| {
        let addrs = port.addrs.iter().enumerate();
        addrs.map(move |(index, &addr)| GidView {
            port: number,
            index,
            gid: Gid::from_ip(addr).to_string(),
            address: shown(addr, port),
        })
    });
    DeviceView {
        name: &device.name,
        interface: device.port.ifname.as_deref(),
        state: state(mtu),
        mtu_bytes: mtu.map(Mtu::bytes),
        guid: format!("{:016x}", device.guid.get()),
        gids: gids.collect(),
    }
}

const fn state(mtu: Option<Mtu>) -> &'static str {
    if mtu.is_some() { "ACTIVE" } else { "DOWN" }
}

fn rows(devices: &[DeviceConfig]) -> Table {
    let mut table = table::plain();
    table.set_header([
        "device",
        "interface",
        "state",
        "MTU",
        "index",
        "GID",
        "address",
    ]);
    for device in devices {
        for (number, port) in (1u8..).zip(device.ports()) {
            // A number distinguishes the second port from the first.
            let name = match number {
                1 => device.name.clone(),
                _ => format!("{}/{number}", device.name),
            };
            let mtu = Mtu::largest_for_netdev(port.netdev_mtu);
            let bytes = mtu.map_or_else(|| "-".to_owned(), |mtu| mtu.bytes().to_string());
            let ifname = port.ifname.as_deref().unwrap_or("-");
            for (index, &addr) in port.addrs.iter().enumerate() {
                // Only the first line of a port has the columns of the port.
                let [name, ifname, state, bytes] = if index == 0 {
                    [&name, ifname, state(mtu), &bytes]
                } else {
                    [""; 4]
                };
                let index = index.to_string();
                let gid = Gid::from_ip(addr).to_string();
                let addr = shown(addr, port);
                table.add_row([name, ifname, state, bytes, &index, &gid, &addr]);
            }
        }
    }
    table
}

/// Returns the text of an address. A link-local address includes its interface.
fn shown(addr: IpAddr, port: &PortConfig) -> String {
    match (addr, &port.ifname) {
        (IpAddr::V6(v6), Some(ifname)) if v6.is_unicast_link_local() => format!("{v6}%{ifname}"),
        _ => addr.to_string(),
    }
}
