//! A connection with two paths (APM): requests continue when it migrates to the alternate path.
//!
//! ```sh
//! cargo run --package rocade-verbs --example two_ports
//! ```
//! Both devices have two ports. Each end loads an alternate path over the second ports. From then
//! on each end would migrate by itself if its path failed. Here the program migrates one end, and
//! the other follows.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, ConnectOptions, Context, DeviceList, Gid, MemoryRegion,
    MigrationState, QueuePair, Result, SendRequest,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the first address of a port.
fn address(context: &Context, port: u8) -> Result<Gid> {
    let gids = context.gids_of(port)?;
    Ok(gids.first().map(|entry| entry.gid).unwrap_or_default())
}

/// Sends a message from one end to the other, and prints it.
fn say(
    from: (&QueuePair, &CompletionQueue),
    to: (&QueuePair, &CompletionQueue),
    text: &str,
    at: &MemoryRegion,
) -> Result<()> {
    to.0.post_recv(1, &[at.sge(..)?])?;
    from.0
        .post_send(&SendRequest::send_inline(text.as_bytes()))?;
    let len = to.1.wait(PATIENCE)?.byte_len as usize;
    from.1.wait(PATIENCE)?;
    println!(
        "{:?} (from port {}, at port {})",
        String::from_utf8_lossy(&at.to_vec(..len)?),
        from.0.path_port(),
        to.0.path_port()
    );
    Ok(())
}

fn main() -> Result<()> {
    let specs = ["a=127.0.76.1+127.0.77.1", "b=127.0.76.2+127.0.77.2"];
    let list = DeviceList::new(Config::from_specs(&specs)?)?;
    let (a, b) = (
        list.open("a")?.protection_domain()?,
        list.open("b")?.protection_domain()?,
    );
    let a_cq = a.context().completion_queue(16)?;
    let b_cq = b.context().completion_queue(16)?;
    let memory = b.register(64, AccessFlags::LOCAL_WRITE)?;
    let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
    let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
    let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
    let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
    let (from, to) = ((&a_qp, &a_cq), (&b_qp, &b_cq));
    say(from, to, "one path", &memory)?;

    a_qp.set_alternate_path(2, address(b.context(), 2)?)?;
    b_qp.set_alternate_path(2, address(a.context(), 2)?)?;
    // Each end learns the other's migration state from its packets.
    say(from, to, "two paths", &memory)?;
    assert_eq!(a_qp.migration_state(), MigrationState::Armed);
    assert_eq!(b_qp.migration_state(), MigrationState::Armed);

    a_qp.migrate()?;
    say(from, to, "the other path", &memory)?;
    assert_eq!((a_qp.path_port(), b_qp.path_port()), (2, 2));
    assert_eq!(a_qp.migration_state(), MigrationState::Migrated);
    Ok(())
}
