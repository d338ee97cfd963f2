//! The copy with ICRC, in one thread and in the cache, compared with a bare copy.

use std::{hint::black_box, time::Instant};

use rocade_wire::crc::Backend;

use crate::{child::Failure, figures::float, sys};

/// The payload of a packet, and the BTH before it.
const LEN: usize = 4096;
const HEAD: [u8; 12] = [0x5a; 12];
/// The packets between two clock readings, and the number of readings, of which the fastest counts.
const PACKETS: u32 = 1000;
const LOOKS: u32 = 200;

/// Returns the backend of this name.
pub(crate) fn backend(name: &str) -> Result<Backend, Failure> {
    name.parse().map_err(|reason| format!("{name}: {reason}"))
}

/// Returns the bytes per second of copying payloads with a checksum over header and payload.
pub(crate) fn bytes_per_second(name: &str) -> Result<f64, Failure> {
    let backend = backend(name)?;
    Ok(fastest(|from, to| {
        black_box(sys::copy_and_sum(backend, &HEAD, from, to));
    }))
}

/// Returns the bytes per second of copying payloads.
pub(crate) fn copied_per_second() -> f64 {
    fastest(|from, to| to.copy_from_slice(from))
}

fn fastest(mut work: impl FnMut(&[u8], &mut [u8])) -> f64 {
    let (from, mut to) = (vec![0x5a; LEN], vec![0; LEN]);
    let mut look = || {
        let began = Instant::now();
        for _ in 0..PACKETS {
            work(black_box(&from), black_box(&mut to));
        }
        began.elapsed().as_secs_f64()
    };
    let least = (0..LOOKS).map(|_| look()).fold(f64::INFINITY, f64::min);
    float(u64::from(PACKETS) * LEN as u64) / least
}
