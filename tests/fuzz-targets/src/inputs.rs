//! The inputs that are kept, and changed ones, in each target.

use std::{env, fmt::Write as _, fs, path::Path, thread};

/// Changed inputs per target and seed.
const CHANGED: u32 = 10_000;
/// The seed of the changed inputs that every run has.
const SEED: u64 = 1;
/// Longest changed input.
const MAX_LEN: usize = 1_024;
/// Bytes at the limits of numbers.
const LIMITS: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// A test per target.
macro_rules! targets {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name), crate::$name::run);
        }
    )*};
}

targets!(cm, config, dc, mad, packet, qp, unreliable, xrc);

fn run(name: &str, target: fn(&[u8])) {
    let kept = kept(name);
    for input in &kept {
        run_one(name, target, input);
    }
    for seed in [Some(SEED), fresh_seed()].into_iter().flatten() {
        let mut random = Random(seed);
        for _ in 0..CHANGED {
            let input = changed(&kept, &mut random);
            run_one(name, target, &input);
        }
    }
}

/// Runs an input. A failure prints it, so that it can be kept.
fn run_one(name: &str, target: fn(&[u8]), input: &[u8]) {
    struct OnFailure<'a>(&'a str, &'a [u8]);
    impl Drop for OnFailure<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                let digits = self.1.iter().fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                });
                eprintln!(
                    "keep this input: echo {digits} | xxd -r -p > corpus/{}/NAME",
                    self.0
                );
            }
        }
    }
    let _printed = OnFailure(name, input);
    target(input);
}

/// Returns the inputs of `tests/fuzz/corpus`, in the order of their names. Some targets have none.
fn kept(name: &str) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let Ok(entries) = fs::read_dir(corpus.join(name)) else {
        return vec![Vec::new()];
    };
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| fs::read(file).expect("an input"))
        .collect()
}

/// Returns the seed of this run of `cargo xtask test`.
fn fresh_seed() -> Option<u64> {
    env::var("ROCADE_FRESH_SEED").ok()?.parse().ok()
}

/// Changes one of the kept inputs in up to eight places.
fn changed(kept: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = kept[random.below(kept.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(input.len() + 1);
        let end = input.len().min(at + random.below(16));
        match random.below(7) {
            0 => input[at..end].fill_with(|| random.byte()),
            1 => input[at..end].fill(LIMITS[random.below(LIMITS.len())]),
            2 => drop(input.drain(at..end)),
            3 => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            4 => {
                let new: Vec<_> = (0..random.below(16)).map(|_| random.byte()).collect();
                input.splice(at..at, new);
            }
            5 if at < input.len() => input[at] ^= 1 << random.below(8),
            // The end of another one.
            _ => {
                let other = &kept[random.below(kept.len())];
                input.truncate(at);
                input.extend_from_slice(&other[at.min(other.len())..]);
            }
        }
        input.truncate(MAX_LEN);
    }
    input
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `end - 1`. `end` is not 0.
    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("64 bits");
        usize::try_from(self.next() % end).expect("less than a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
