//! Floor: memcpy into memory that two processes share.
//!
//! With one copy, a message goes from private memory of the producer directly to its destination,
//! like the best possible RDMA WRITE between two processes. The destination is always the same, as
//! with perftest, and a counter announces each message to the consumer. With two copies the message
//! goes through a ring, from which the consumer copies it.

use std::{
    fs::OpenOptions,
    hint::black_box,
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{
    child::{Failure, Peer},
    figures::float,
    sys::SharedMemory,
};

const LIMIT: Duration = Duration::from_secs(20);
const PRODUCED: usize = 0;
const CONSUMED: usize = 1;
/// The messages in flight with one copy: perftest's default depth of the send queue.
const IN_FLIGHT: u64 = 128;
/// The entries of the ring with two copies.
const RING_PLACES: usize = 4;

/// Returns the bytes per second that the consumer receives when a producer copies `count` messages
/// of `len` bytes. `copies` is 1 or 2.
pub(crate) fn bytes_per_second(len: usize, count: u32, copies: usize) -> Result<f64, Failure> {
    let file = tempfile::tempfile_in("/dev/shm").map_err(|error| format!("/dev/shm: {error}"))?;
    let memory = SharedMemory::map(&file, len * RING_PLACES).map_err(|error| error.to_string())?;
    // The consumer opens this path, because it inherits no descriptor.
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let (len_word, count_word) = (len.to_string(), count.to_string());
    let consumer = Peer::part(&[
        "copy-consumer",
        &path,
        &len_word,
        &count_word,
        &copies.to_string(),
    ])?;
    consumer.line(LIMIT)?;
    let message = vec![0x5a; len];
    let in_flight = if copies == 1 {
        IN_FLIGHT
    } else {
        RING_PLACES as u64
    };
    let began = Instant::now();
    for number in 0..u64::from(count) {
        await_count(
            &memory,
            CONSUMED,
            (number + 1).saturating_sub(in_flight),
            began,
        )?;
        memory.copy_in(place(number, len, copies), &message);
        memory
            .counter(PRODUCED)
            .store(number + 1, Ordering::Release);
    }
    await_count(&memory, CONSUMED, count.into(), began)?;
    let rate = float(u64::from(count) * len as u64) / began.elapsed().as_secs_f64();
    consumer.finish(LIMIT)?;
    Ok(rate)
}

/// Runs the consumer: waits for each message, copies it if `copies` is 2, and publishes its
/// progress.
pub(crate) fn consume(path: &Path, len: usize, count: u32, copies: usize) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let memory = SharedMemory::map(&file, len * RING_PLACES).map_err(|error| error.to_string())?;
    let mut message = vec![0; len];
    println!("ready");
    let began = Instant::now();
    for number in 0..u64::from(count) {
        await_count(&memory, PRODUCED, number + 1, began)?;
        if copies == 2 {
            memory.copy_out(place(number, len, copies), &mut message);
            // Prevents the compiler from removing the copy.
            black_box(&mut message);
        }
        memory
            .counter(CONSUMED)
            .store(number + 1, Ordering::Release);
    }
    Ok(())
}

fn place(number: u64, len: usize, copies: usize) -> usize {
    if copies == 1 {
        return 0;
    }
    usize::try_from(number % RING_PLACES as u64).map_or(0, |place| place * len)
}

/// Spins until a counter has reached `value`.
fn await_count(
    memory: &SharedMemory,
    counter: usize,
    value: u64,
    began: Instant,
) -> Result<(), Failure> {
    let counter = memory.counter(counter);
    let mut spins = 0u32;
    while counter.load(Ordering::Acquire) < value {
        std::hint::spin_loop();
        spins = spins.wrapping_add(1);
        if spins.is_multiple_of(1 << 16) && began.elapsed() > LIMIT {
            return Err("the other process does not go on".to_owned());
        }
    }
    Ok(())
}
