//! Prints the devices of this machine, their limits and GIDs.
//!
//! ```sh
//! cargo run --package rocade-verbs --example devinfo
//! ROCADE_DEVICES=a=127.0.0.2 cargo run --package rocade-verbs --example devinfo
//! ```

use rocade_verbs::{DeviceList, Result};

fn main() -> Result<()> {
    let list = DeviceList::from_env()?;
    for device in list.devices() {
        let context = list.open(&device.name)?;
        let (attributes, port) = (context.attributes(), context.port()?);
        println!("{}", device.name);
        println!(
            "  interface      {}",
            device.ifname.as_deref().unwrap_or("unknown")
        );
        println!("  node GUID      {}", device.guid);
        println!("  active MTU     {} bytes", port.active_mtu.bytes());
        println!(
            "  queue pairs    {} of {} requests",
            attributes.max_qp, attributes.max_qp_wr
        );
        println!("  regions        {}", attributes.max_mr);
        println!(
            "  READ, atomics  {} outstanding per queue pair",
            attributes.max_qp_rd_atom
        );
        for entry in context.gids().iter() {
            println!("  GID {:<10} {}", entry.index, entry.gid);
        }
    }
    Ok(())
}
