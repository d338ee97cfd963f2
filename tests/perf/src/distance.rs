//! The distance between the two processors.
//!
//! Every figure here comes from two programs that exchange data, so it depends on whether their
//! processors share a cache. The host of a virtual machine may move its processors between caches
//! at any time. The distance is therefore measured before and after every figure: two threads, one
//! on each processor, pass a cache line back and forth.

use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use crate::{
    figures::{float, short},
    sys,
};

/// A cache line that takes longer than this to the other processor has not come through a shared
/// cache.
const SHARED_NS: f64 = 80.0;
/// Two distances that differ by less than this factor count as equal.
const SAME: f64 = 2.0;
/// The number of round trips per batch, and the number of batches.
const TRIPS: u64 = 500;
const BATCHES: usize = 100;

/// The time that a cache line takes from one processor to the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Distance {
    nanos: f64,
}

/// The value that both threads write, alone on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

impl Distance {
    /// Measures the distance. Returns `None` if there are not two processors.
    pub(crate) fn measure() -> Option<Self> {
        let [here, there] = processors()?;
        let (line, done) = (Line(AtomicU64::new(0)), AtomicBool::new(false));
        let mut batches = thread::scope(|scope| {
            // This thread responds even if pinning failed, because the other thread would otherwise
            // wait forever.
            let there = scope.spawn(|| {
                let pinned = sys::pin(there);
                return_line(&line.0, &done);
                pinned
            });
            let here = scope.spawn(|| {
                let pinned = sys::pin(here);
                let batches = time_batches(&line.0);
                done.store(true, Ordering::Relaxed);
                pinned.map(|()| batches)
            });
            let batches = here.join().ok()?.ok();
            there.join().ok()?.ok().and(batches)
        })?;
        batches.sort_by(f64::total_cmp);
        // Other programs make some batches slow, but none fast.
        let nanos = *batches.get(BATCHES / 10)?;
        Some(Self { nanos })
    }

    #[cfg(test)]
    pub(crate) const fn of(nanos: f64) -> Self {
        Self { nanos }
    }

    /// Returns true if the processors share a cache.
    pub(crate) fn is_near(self) -> bool {
        self.nanos < SHARED_NS
    }

    /// Returns true if the processors were placed equally in both measurements.
    pub(crate) fn is_like(self, other: Self) -> bool {
        self.nanos < SAME * other.nanos && other.nanos < SAME * self.nanos
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_near() { "one cache" } else { "apart" };
        write!(f, "{place} ({} ns)", short(self.nanos))
    }
}

/// Returns the two processors of the measurement: the first ones that this program may use.
pub(crate) fn processors() -> Option<[usize; 2]> {
    sys::processors().first_chunk().copied()
}

/// Returns a description of the processors and their distance.
pub(crate) fn introduction() -> String {
    let (Some([here, there]), Some(distance)) = (processors(), Distance::measure()) else {
        return "one processor".to_owned();
    };
    let mut text = format!(
        "processors {here} and {there}: {distance}, half of the round trip of a cache line"
    );
    if sys::processors().len() > 2 {
        text.push_str("; programs may run on others, `taskset -c ");
        text.push_str(&format!("{here},{there}` keeps them here"));
    }
    text
}

/// Returns the nanoseconds for one direction, per batch.
fn time_batches(line: &AtomicU64) -> Vec<f64> {
    let mut value = 0;
    let batch = |_| {
        let began = Instant::now();
        for _ in 0..TRIPS {
            line.store(value + 1, Ordering::Release);
            value += 2;
            spin_until(|| line.load(Ordering::Acquire) == value);
        }
        began.elapsed().as_secs_f64() * 1e9 / float(2 * TRIPS)
    };
    (0..BATCHES).map(batch).collect()
}

/// Increments every odd value, until `done` is set.
fn return_line(line: &AtomicU64, done: &AtomicBool) {
    loop {
        let mut value = 0;
        spin_until(|| {
            value = line.load(Ordering::Acquire);
            value % 2 == 1 || done.load(Ordering::Relaxed)
        });
        if value.is_multiple_of(2) {
            return;
        }
        line.store(value + 1, Ordering::Release);
    }
}

/// Spins without the pause of `spin_loop`, which can be longer than the measured time.
fn spin_until(mut condition: impl FnMut() -> bool) {
    while !condition() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_time_and_comes_back() {
        if processors().is_none() {
            assert_eq!(Distance::measure(), None);
            return;
        }
        let distance = Distance::measure().expect("two processors");
        assert!(distance.nanos > 0.0, "{distance}");
        assert!(distance.is_like(distance));
    }

    #[test]
    fn places_are_told_apart_by_a_factor() {
        let [near, far] = [40.0, 190.0].map(|nanos| Distance { nanos });
        let close = Distance { nanos: 55.0 };
        assert!(near.is_like(close) && close.is_like(near));
        assert!(!near.is_like(far) && !far.is_like(near));
        assert_eq!(near.to_string(), "one cache (40.0 ns)");
        assert_eq!(far.to_string(), "apart (190 ns)");
    }
}
