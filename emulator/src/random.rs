//! Unpredictable numbers: keys, queue pair numbers, initial PSNs.
//!
//! Each number comes from the kernel when it is needed. There is no buffered state, so a forked
//! child cannot repeat the numbers of its parent.

use std::hash::{BuildHasher, RandomState};

use crate::sync::Mutex;

/// Returns `N` random bytes.
#[must_use]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
    if let Some(schedule) = crate::sync::turn::own() {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&schedule.random().to_ne_bytes()[..chunk.len()]);
        }
        return bytes;
    }
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is writable for its length.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) if interrupted() => {}
            Err(_) => {
                without_kernel(rest);
                break;
            }
        }
    }
    bytes
}

fn interrupted() -> bool {
    std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
}

/// Fills the bytes from the standard library's secret keys if getrandom(2) fails, for example
/// because of a seccomp filter.
#[cold]
fn without_kernel(bytes: &mut [u8]) {
    let state = RandomState::new();
    let now = std::time::SystemTime::now();
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        let hash = state.hash_one((std::process::id(), now, index));
        chunk.copy_from_slice(&hash.to_ne_bytes()[..chunk.len()]);
    }
}

/// Returns 32 random bits.
#[must_use]
pub fn word() -> u32 {
    u32::from_ne_bytes(bytes())
}

/// The SplitMix64 generator. A seed gives the same numbers in all versions.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns 64 random bits.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns true with this probability.
    pub(crate) const fn chance(&mut self, per_million: u32) -> bool {
        per_million >= 1_000_000 || self.next() % 1_000_000 < per_million as u64
    }
}

/// The source of an engine's random numbers.
#[derive(Debug)]
pub(crate) enum Randomness {
    /// The kernel.
    System,
    /// A seed, so that a simulation is repeatable.
    Seeded(Mutex<Random>),
}

impl Randomness {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        seed.map_or(Self::System, |seed| Self::Seeded(Mutex::new(Random(seed))))
    }

    /// Returns 32 random bits.
    pub(crate) fn word(&self) -> u32 {
        match self {
            Self::System => word(),
            Self::Seeded(random) => {
                let [a, b, c, d, ..] = random.lock().next().to_ne_bytes();
                u32::from_ne_bytes([a, b, c, d])
            }
        }
    }

    /// Returns a number below `limit`, which must not be 0.
    pub(crate) fn below(&self, limit: usize) -> usize {
        match self {
            Self::System => below(limit),
            Self::Seeded(random) => {
                let number = random.lock().next() % limit.max(1) as u64;
                usize::try_from(number).unwrap_or(0)
            }
        }
    }
}

/// Returns a number below `limit`, which must not be 0. The probabilities are equal up to one part
/// in 2^31.
pub(crate) fn below(limit: usize) -> usize {
    let limit = limit.max(1) as u128;
    let scaled = (u128::from(u64::from_ne_bytes(bytes())) * limit) >> 64;
    // The value is below `limit`, which is a usize.
    usize::try_from(scaled).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn all_bits_change_and_nothing_repeats() {
        let words: HashSet<u64> = (0..1000).map(|_| u64::from_ne_bytes(bytes())).collect();
        assert_eq!(words.len(), 1000);
        for bit in 0..64 {
            let ones = words.iter().filter(|word| *word >> bit & 1 == 1).count();
            assert!((350..650).contains(&ones), "bit {bit}: {ones} of 1000");
        }
        let mut long = [0; 20];
        without_kernel(&mut long);
        assert_ne!(long[..8], long[8..16]);
        assert_ne!(long[16..], [0; 4]);
    }

    #[test]
    fn below_stays_below() {
        let seen: HashSet<_> = (0..1000).map(|_| below(7)).collect();
        assert_eq!(seen, (0..7).collect());
        assert_eq!(below(1), 0);
        assert_eq!(below(0), 0);
    }
}
