//! Dynamically connected transport: many workers reach many stores, each worker through one queue
//! pair.
//!
//! ```sh
//! cargo run --package rocade-verbs --example dynamic
//! ```
//! With RC, every worker would need a queue pair for every store. With DC, each store creates one
//! *target* and each worker one *initiator*, and every request names its target. All of them run in
//! this process, each on a NIC with its own address.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, Config, DctAddress, DeviceList, MaskedAtomic, RemoteMemory, Result, SendRequest,
    WcStatus,
};

const WORKERS: u8 = 4;
const STORES: u8 = 3;
const ROUNDS: u64 = 10;
/// The access key, which initiators need. A real program would choose a random key and send it only
/// to its workers.
const KEY: u64 = 0x0bad_cafe_0000_0001;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let name = |kind: &str, n: u8| format!("{kind}{n}");
    let specs: Vec<String> = (0..WORKERS)
        .map(|n| format!("{}=127.0.71.{}", name("worker", n), n + 1))
        .chain((0..STORES).map(|n| format!("{}=127.0.72.{}", name("store", n), n + 1)))
        .collect();
    let list = DeviceList::new(Config::from_specs(&specs)?)?;

    // A store: memory for WRITEs and atomics, and a target that accepts initiators with the key.
    let mut stores = Vec::new();
    for n in 0..STORES {
        let domain = list.open(&name("store", n))?.protection_domain()?;
        let cq = domain.context().completion_queue(64)?;
        let rights = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let memory = domain.register(4096, rights | AccessFlags::LOCAL_WRITE)?;
        // Messages would consume receives of this queue. This example uses only WRITEs and atomics.
        let receives = domain.shared_receive_queue(1, 1)?;
        let target = domain.dynamic_target(&cq, &receives, rights, KEY)?;
        stores.push((target, memory));
    }
    // The data about each store that a real program would send to the workers.
    let targets: Vec<(DctAddress, RemoteMemory)> = stores
        .iter()
        .map(|(target, memory)| (target.address(), memory.remote()))
        .collect();

    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS)
            .map(|n| {
                let (list, targets, name) = (&list, &targets, &name);
                scope.spawn(move || -> Result<()> {
                    let domain = list.open(&name("worker", n))?.protection_domain()?;
                    let cq = domain.context().completion_queue(64)?;
                    let initiator = domain.dynamic_initiator(&cq)?;
                    let memory = domain.register(64, AccessFlags::LOCAL_WRITE)?;
                    let ways = targets.iter().map(|(to, _)| domain.address(to.gid));
                    let ways = ways.collect::<Result<Vec<_>, _>>()?;
                    for round in 0..ROUNDS {
                        for ((to, remote), way) in targets.iter().zip(&ways) {
                            // Consecutive requests name three stores, and the initiator connects to
                            // one after the other.
                            let place = 64 + 8 * u64::from(n);
                            let text = round.to_be_bytes();
                            let write = SendRequest::write_inline(&text, remote.at(place));
                            initiator.post_send(&write.unsignaled(), way, to)?;
                            let result = [memory.sge(0..8)?];
                            // Two counters in one word, updated by one atomic: requests above,
                            // bytes below. The boundary bit stops the carry out of the lower
                            // counter.
                            let both = MaskedAtomic::fetch_add(1 << 32 | 8, 1 << 31);
                            let add = SendRequest::masked(&result, remote.at(0), &both);
                            initiator.post_send(&add, way, to)?;
                        }
                        for _ in targets {
                            assert_eq!(cq.wait(PATIENCE)?.status, WcStatus::Success);
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no worker panics"))
    })?;

    for (n, (target, memory)) in stores.into_iter().enumerate() {
        let counters = memory.load_u64(0)?;
        let (requests, bytes) = (counters >> 32, counters & u64::from(u32::MAX));
        assert_eq!(requests, u64::from(WORKERS) * ROUNDS);
        assert_eq!(bytes, 8 * requests);
        println!(
            "store {n}: {requests} requests, {bytes} bytes, {} packets with a wrong key",
            target.key_violations()
        );
        // Accepts no new initiators, and waits for the connected ones.
        target.close()?;
    }
    Ok(())
}
