//! Floor: a stream of equal datagrams between two processes, cut (GSO) and merged (GRO) by the kernel.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use crate::{
    child::{Failure, Peer},
    figures::float,
    sys,
};

/// The stream runs for this long before anything is counted.
const WARM_UP: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(20);
fn bb() -> i32 { std::env::var("BB").ok().and_then(|b| b.parse().ok()).unwrap_or(8<<20) }

/// Bytes per second that arrive when one process sends batches of `segments` datagrams with `segment_len` bytes each as
/// fast as it can, and another one receives with a spinning thread and looks at nothing.
pub(crate) fn bytes_per_second(
    segment_len: u16,
    segments: u16,
    duration: Duration,
) -> Result<f64, Failure> {
    let sink = Peer::part(&["stream-sink", &duration.as_millis().to_string()])?;
    let port: u16 = sink.value(LIMIT)?;
    send(port, segment_len, segments, duration + 4 * WARM_UP).map_err(|error| error.to_string())?;
    let figure = sink.value(LIMIT)?;
    sink.finish(LIMIT)?;
    Ok(figure)
}

fn send(port: u16, segment_len: u16, segments: u16, duration: Duration) -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sys::large_buffers(&socket, bb())?;
    sys::segment_sends(&socket, segment_len)?;
    let batch = vec![0x5a; usize::from(segment_len) * usize::from(segments)];
    let to = (Ipv4Addr::LOCALHOST, port);
    let end = Instant::now() + duration;
    while Instant::now() < end {
        match socket.send_to(&batch, to) {
            Ok(_) => {}
            // The sink has counted enough.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The receiving process: says its port, counts for `duration` from shortly after the first datagram on, and says how many
/// bytes per second it got.
pub(crate) fn sink(duration: Duration) -> Result<(), Failure> {
    let rate = receive(duration).map_err(|error| error.to_string())?;
    println!("{rate}");
    Ok(())
}

fn receive(duration: Duration) -> std::io::Result<f64> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sys::large_buffers(&socket, bb())?;
    sys::merge_receives(&socket)?;
    socket.set_nonblocking(true)?;
    println!("{}", socket.local_addr()?.port());
    let mut buffer = vec![0; 1 << 16];
    let give_up = Instant::now() + LIMIT;
    let mut from: Option<Instant> = None;
    let mut bytes = 0u64;
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
