//! Memory windows: a window is bound for one request, and the reply invalidates its key.
//!
//! ```sh
//! cargo run --package rocade-verbs --example windows
//! ```
//! Peers cannot access the owner's memory. For each request, the owner binds a window to a part of
//! it. The worker writes to that part, and invalidates the key with its reply. No registration is
//! needed, and the worker has no other access.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, Completion, Config, ConnectOptions, DeviceList, RemoteMemory, Result, SendRequest,
    WaitError, WcStatus,
};

const PATIENCE: Duration = Duration::from_secs(60);
const PART: usize = 1024;

fn main() -> Result<()> {
    let specs = ["owner=127.0.0.93", "worker=127.0.0.94"];
    let list = DeviceList::new(Config::from_specs(&specs)?)?;
    let owner = list.open("owner")?.protection_domain()?;
    let worker = list.open("worker")?.protection_domain()?;
    let owner_cq = owner.context().completion_queue(16)?;
    let worker_cq = worker.context().completion_queue(16)?;

    // Peers have no access to the region, but windows may be bound to it.
    let memory = owner.register(4 * PART, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND)?;
    let desk = worker.register(PART, AccessFlags::LOCAL_WRITE)?;
    let window = owner.memory_window()?;

    let (here, there) = (
        owner.queue_pair(&owner_cq).build()?,
        worker.queue_pair(&worker_cq).build()?,
    );
    let (here_end, there_end) = (here.endpoint(), there.endpoint());
    let here = here.connect(there_end, &ConnectOptions::default())?;
    let there = there.connect(here_end, &ConnectOptions::default())?;

    for part in 0..3 {
        let (begin, end) = (part * PART, (part + 1) * PART);
        there.post_recv(0, &[desk.sge(..RemoteMemory::ENCODED_LEN)?])?;
        here.post_recv(1, &[])?;
        // The bind precedes the message with the key, so the key is valid when the message arrives.
        let (bind, lent) = window.bind_request(&memory, begin..end, AccessFlags::REMOTE_WRITE)?;
        let order = lent.to_bytes();
        here.post_sends(&[
            bind.unsignaled(),
            SendRequest::send_inline(&order).unsignaled(),
        ])?;

        assert_eq!(
            worker_cq.wait(PATIENCE)?.wr_id,
            0,
            "the message with the key"
        );
        let mut order = [0; RemoteMemory::ENCODED_LEN];
        desk.read(0, &mut order)?;
        let place = RemoteMemory::from_bytes(&order);
        let text = format!("part {part} of the work");
        desk.write(0, text.as_bytes())?;
        there.post_sends(&[
            SendRequest::write(&[desk.sge(..text.len())?], place).unsignaled(),
            SendRequest::send_invalidating(&[], place.rkey).wr_id(2),
        ])?;
        assert_eq!(worker_cq.wait(PATIENCE)?.wr_id, 2, "the reply");

        let answer = owner_cq.wait(PATIENCE)?;
        assert_eq!(
            answer.invalidated,
            Some(lent.rkey),
            "the reply invalidated the key"
        );
        println!(
            "{}",
            String::from_utf8_lossy(&memory.to_vec(begin..begin + text.len())?)
        );
    }

    // A new key has no effect before the window is bound with it.
    let (_, closed) = window.bind_request(&memory, .., AccessFlags::REMOTE_WRITE)?;
    there.post_send(&SendRequest::write(&[desk.sge(..8)?], closed))?;
    match worker_cq.wait(PATIENCE) {
        Err(WaitError::Completion(Completion {
            status: WcStatus::RemoteAccessError,
            ..
        })) => println!("without a bind there is nothing to be written"),
        other => panic!("{other:?}"),
    }
    Ok(())
}
