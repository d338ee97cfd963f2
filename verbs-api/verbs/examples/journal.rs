//! A journal in another host's memory: no entry counts before all of it is there.
//!
//! ```sh
//! cargo run --package rocade-verbs --example journal
//! ```
//! The writer puts an entry into the keeper's memory (WRITE), makes sure that everybody there can see it (FLUSH), and only
//! then counts it (ATOMIC WRITE). The three are posted at once: they are executed in this order, so nobody has to wait
//! in between. The keeper's program has no part in it; it looks at the count when it likes.

use std::time::{Duration, Instant};

use rocade_verbs::{
    AccessFlags, Config, ConnectOptions, DeviceList, Error, Result, SendRequest, WcOpcode, WcStatus,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The count is in front of the entries.
const COUNT: usize = 0;
const ENTRIES: usize = 64;
const ENTRY_LEN: usize = 32;

fn main() -> Result<()> {
    let specs = ["writer=127.0.0.108", "keeper=127.0.0.109"];
    let list = DeviceList::new(Config::from_specs(&specs)?)?;
    let writer = list.open("writer")?.protection_domain()?;
    let keeper = list.open("keeper")?.protection_domain()?;
    let writer_cq = writer.context().completion_queue(16)?;
    let keeper_cq = keeper.context().completion_queue(16)?;

    // A FLUSH needs a right of its own, as WRITEs do. Queue pairs give it unless they are told otherwise.
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL;
    let journal = keeper.register(ENTRIES + 16 * ENTRY_LEN, rights)?;
    let desk = writer.register(ENTRY_LEN, AccessFlags::LOCAL_WRITE)?;

    let (here, there) = (
        writer.queue_pair(&writer_cq).build()?,
        keeper.queue_pair(&keeper_cq).build()?,
    );
    let (here_end, there_end) = (here.endpoint(), there.endpoint());
    let here = here.connect(there_end, &ConnectOptions::default())?;
    let _there = there.connect(here_end, &ConnectOptions::default())?;

    let place = journal.remote();
    for number in 0..3_u32 {
        let text = format!("{:<ENTRY_LEN$}", format!("entry {number}"));
        desk.write(0, text.as_bytes())?;

        // A part of the region: a FLUSH covers what it is told, as a WRITE does.
        let mut entry = place.at((ENTRIES + number as usize * ENTRY_LEN) as u64);
        entry.len = ENTRY_LEN as u64;
        // As a number of the keeper's: `load_u64` finds it there.
        let count = u64::from(number + 1).to_ne_bytes();
        here.post_sends(&[
            SendRequest::write(&[desk.sge(..)?], entry).unsignaled(),
            SendRequest::flush(entry).unsignaled(),
            SendRequest::atomic_write(&count, place.at(COUNT as u64)),
        ])?;

        // The keeper sees the count, and so all of the entry.
        let deadline = Instant::now() + PATIENCE;
        while journal.load_u64(COUNT)? <= u64::from(number) {
            if Instant::now() > deadline {
                return Err(Error::TimedOut);
            }
            std::thread::yield_now();
        }
        let entry = journal.to_vec(ENTRIES + number as usize * ENTRY_LEN, ENTRY_LEN)?;
        assert_eq!(entry, text.as_bytes());
        println!("{}", String::from_utf8_lossy(&entry).trim_end());

        // The last of the three is the one that was asked about: those before it are complete, too.
        let done = writer_cq.wait(PATIENCE)?;
        assert_eq!(done.opcode, WcOpcode::AtomicWrite);
    }

    // All of the region at once, wherever in it the address is.
    here.post_send(&SendRequest::flush_region(place).wr_id(4))?;
    let done = writer_cq.wait(PATIENCE)?;
    assert_eq!((done.wr_id, done.opcode), (4, WcOpcode::Flush));

    // The 8 bytes have to be at a multiple of 8.
    let count = [0; 8];
    here.post_send(&SendRequest::atomic_write(&count, place.at(4)))?;
    match writer_cq.wait(PATIENCE) {
        Err(Error::Completion {
            status: WcStatus::RemInvReqErr,
            ..
        }) => println!("the count stays {}", journal.load_u64(COUNT)?),
        other => panic!("{other:?}"),
    }
    assert_eq!(journal.load_u64(COUNT)?, 3);
    Ok(())
}
