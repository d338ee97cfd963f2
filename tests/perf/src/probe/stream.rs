//! Floor: a stream of equal datagrams between two processes, which the kernel splits (GSO) and
//! merges (GRO).

//! A free stream is sent as fast as possible. Datagrams that overrun the receiver's buffer are
//! dropped, and the work on them is lost. A bounded stream has few bytes in flight (the receiver
//! publishes its progress in shared memory), so that nothing is lost. On a machine with two idle
//! cores both have about the same rate. If the rates differ, the free stream suffers from losses or
//! other programs.

use std::{
    fs::{File, OpenOptions},
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{
    child::{Failure, Peer},
    figures::float,
    sys::{self, SharedMemory},
};

/// The time that the stream runs before bytes are counted.
const WARM_UP: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(20);
const BUFFER_BYTES: i32 = 4 << 20;
/// The bytes in flight of a bounded stream, which fit into the default receive buffer of an
/// unprivileged user.
const WINDOW_BYTES: u64 = 256 << 10;
/// Datagrams that have not arrived after this time are lost.
const LOST: Duration = Duration::from_millis(5);
/// The counter with the number of received bytes.
const ARRIVED: usize = 0;

/// The limit of bytes in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// No limit.
    Free,
    /// At most [`WINDOW_BYTES`].
    Bounded,
}

/// Returns the received bytes per second of a stream between two processes.
///
/// One process sends batches of `segments` datagrams with `segment_len` bytes each. Another one
/// receives in a spinning thread without reading the data.
pub(crate) fn bytes_per_second(
    segment_len: u16,
    segments: u16,
    flow: Flow,
    duration: Duration,
) -> Result<f64, Failure> {
    let batch = vec![0x5a; usize::from(segment_len) * usize::from(segments)];
    let window = match flow {
        Flow::Free => None,
        Flow::Bounded => Some(WINDOW_BYTES),
    };
    let file = tempfile::tempfile_in("/dev/shm").map_err(|error| format!("/dev/shm: {error}"))?;
    let memory = SharedMemory::map(&file, 0).map_err(|error| error.to_string())?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let sink = Peer::part(&["stream-sink", &path, &duration.as_millis().to_string()])?;
    let port: u16 = sink.value(LIMIT)?;
    let sent = send(
        port,
        segment_len,
        &batch,
        duration + 4 * WARM_UP,
        window,
        &memory,
    );
    sent.map_err(|error| error.to_string())?;
    let figure = sink.value(LIMIT)?;
    sink.finish(LIMIT)?;
    Ok(figure)
}

fn send(
    port: u16,
    segment_len: u16,
    batch: &[u8],
    duration: Duration,
    window: Option<u64>,
    memory: &SharedMemory,
) -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sys::large_buffers(&socket, BUFFER_BYTES)?;
    sys::segment_sends(&socket, segment_len)?;
    let to = (Ipv4Addr::LOCALHOST, port);
    let arrived = || memory.counter(ARRIVED).load(Ordering::Acquire);
    let end = Instant::now() + duration;
    let mut sent = 0u64;
    while Instant::now() < end {
        let waiting = Instant::now();
        while window.is_some_and(|window| sent.saturating_sub(arrived()) > window) {
            std::hint::spin_loop();
            if waiting.elapsed() > LOST {
                sent = arrived();
            }
        }
        match socket.send_to(batch, to) {
            Ok(len) => sent += len as u64,
            // The receiver has counted enough.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs the receiving process: prints its port, counts for `duration` from shortly after the first
/// datagram on, and prints the received bytes per second.
pub(crate) fn sink(path: &Path, duration: Duration) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let rate = receive(&file, duration).map_err(|error| error.to_string())?;
    println!("{rate}");
    Ok(())
}

fn receive(file: &File, duration: Duration) -> std::io::Result<f64> {
    let memory = SharedMemory::map(file, 0)?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sys::large_buffers(&socket, BUFFER_BYTES)?;
    sys::merge_receives(&socket)?;
    socket.set_nonblocking(true)?;
    println!("{}", socket.local_addr()?.port());
    let mut buffer = vec![0; 1 << 16];
    let give_up = Instant::now() + LIMIT;
    let mut from: Option<Instant> = None;
    let (mut arrived, mut bytes) = (0u64, 0u64);
    loop {
        let now = Instant::now();
        if let Some(from) = from {
            if now >= from + duration {
                return Ok(float(bytes) / (now - from).as_secs_f64());
            }
        } else if now > give_up {
            return Err(ErrorKind::TimedOut.into());
        }
        match socket.recv(&mut buffer) {
            Ok(len) => {
                arrived += len as u64;
                memory.counter(ARRIVED).store(arrived, Ordering::Release);
                let from = *from.get_or_insert(now + WARM_UP);
                if now >= from {
                    bytes += len as u64;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
}
