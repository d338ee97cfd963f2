//! `rocade devices`: what a program will see.

use std::net::IpAddr;
use std::process::ExitCode;

use comfy_table::Table;
use rocade_emulator::config::{DeviceConfig, Settings};
use rocade_wire::{Gid, Mtu};
use serde::Serialize;

use crate::cli::DevicesArgs;
use crate::error::CliError;
use crate::output;
use crate::run::with_flags;
use crate::table;

/// A device as `--json` shows it.
#[derive(Serialize)]
struct DeviceView<'a> {
    name: &'a str,
    interface: Option<&'a str>,
    state: &'static str,
    /// Active MTU of the port; none where it is down.
    mtu_bytes: Option<u32>,
    guid: String,
    gids: Vec<GidView>,
}

#[derive(Serialize)]
struct GidView {
    index: usize,
    gid: String,
    address: String,
}

pub(crate) fn print(args: &DevicesArgs, settings: Settings) -> Result<ExitCode, CliError> {
    let config = with_flags(&args.devices, settings)?.resolve_here()?;
    if args.output.json {
        let devices: Vec<_> = config.devices.iter().map(view).collect();
        output::json(&serde_json::json!({ "devices": devices }))?;
        return Ok(ExitCode::SUCCESS);
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
    let mtu = Mtu::largest_for_netdev(device.netdev_mtu);
    let gids = device.addrs.iter().enumerate();
    DeviceView {
        name: &device.name,
        interface: device.ifname.as_deref(),
        state: if mtu.is_some() { "ACTIVE" } else { "DOWN" },
        mtu_bytes: mtu.map(Mtu::bytes),
        guid: format!("{:016x}", device.guid.get()),
        gids: gids
            .map(|(index, &addr)| GidView {
                index,
                gid: Gid::from_ip(addr).to_string(),
                address: shown(addr, device),
            })
            .collect(),
    }
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
        let mtu = Mtu::largest_for_netdev(device.netdev_mtu);
        let state = if mtu.is_some() { "ACTIVE" } else { "DOWN" };
        let mtu = mtu.map_or_else(|| "-".to_owned(), |mtu| mtu.bytes().to_string());
        let ifname = device.ifname.as_deref().unwrap_or("-");
        for (index, &addr) in device.addrs.iter().enumerate() {
            // The device's own columns stand on its first line only.
            let [name, ifname, state, mtu] = if index == 0 {
                [&device.name, ifname, state, &mtu]
            } else {
                [""; 4]
            };
            let index = index.to_string();
            let gid = Gid::from_ip(addr).to_string();
            let addr = shown(addr, device);
            table.add_row([name, ifname, state, mtu, &index, &gid, &addr]);
        }
    }
    table
}

/// A link-local address with the interface that it belongs to.
fn shown(addr: IpAddr, device: &DeviceConfig) -> String {
    match (addr, &device.ifname) {
        (IpAddr::V6(v6), Some(ifname)) if v6.is_unicast_link_local() => format!("{v6}%{ifname}"),
        _ => addr.to_string(),
    }
}
