//! A journal in another host's memory, with FLUSH and ATOMIC WRITE: only complete entries count.
//!
//! ```sh
//! cargo run --package rocade-verbs --example flush_atomic_write
//! ```
//! The writer copies an entry into the keeper's memory (WRITE), makes it visible to every
//! process there (FLUSH), and then updates the count (ATOMIC WRITE). It posts the three
//! requests at once, because they are executed in this order. The keeper's program only reads the
//! count.

use std::time::{Duration, Instant};

use rocade_verbs::{
    AccessFlags, Completion, Config, ConnectOptions, DeviceList, Error, Result, SendRequest,
    WaitError, WcOpcode, WcStatus,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The offset of the count, which precedes the entries.
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

    // A FLUSH needs a right of its own, like a WRITE. Queue pairs grant it by default.
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

        // The part of the region for this entry. WRITE and FLUSH both cover exactly this part.
        let mut entry = place.at((ENTRIES + number as usize * ENTRY_LEN) as u64);
        entry.len = ENTRY_LEN as u64;
        // In the byte order that `load_u64` expects at the keeper.
        let count = u64::from(number + 1).to_ne_bytes();
        here.post_sends(&[
            SendRequest::write(&[desk.sge(..)?], entry).unsignaled(),
            SendRequest::flush(entry).unsignaled(),
            SendRequest::atomic_write(&count, place.at(COUNT as u64)),
        ])?;

        // When the keeper reads the new count, it also sees the whole entry.
        let deadline = Instant::now() + PATIENCE;
        while journal.load_u64(COUNT)? <= u64::from(number) {
            if Instant::now() > deadline {
                return Err(Error::TimedOut);
            }
            std::thread::yield_now();
        }
        let entry = journal.to_vec(
            ENTRIES + number as usize * ENTRY_LEN
                ..ENTRIES + number as usize * ENTRY_LEN + ENTRY_LEN,
        )?;
        assert_eq!(entry, text.as_bytes());
        println!("{}", String::from_utf8_lossy(&entry).trim_end());

        // Only the last request is signaled. Its completion means that all three have completed.
        let done = writer_cq.wait(PATIENCE)?;
        assert_eq!(done.opcode, WcOpcode::AtomicWrite);
    }

    // Flushes the whole region, whatever address in it is given.
    here.post_send(&SendRequest::flush_region(place).wr_id(4))?;
    let done = writer_cq.wait(PATIENCE)?;
    assert_eq!((done.wr_id, done.opcode), (4, WcOpcode::Flush));

    // The address of an ATOMIC WRITE has to be a multiple of 8.
    let count = [0; 8];
    here.post_send(&SendRequest::atomic_write(&count, place.at(4)))?;
    match writer_cq.wait(PATIENCE) {
        Err(WaitError::Completion(Completion {
            status: WcStatus::RemoteInvalidRequest,
            ..
        })) => println!("the count stays {}", journal.load_u64(COUNT)?),
        other => panic!("{other:?}"),
    }
    assert_eq!(journal.load_u64(COUNT)?, 3);
    Ok(())
}
