//! How far apart the two processors are.
//!
//! Every figure here is of two programs that exchange data, so it depends on whether their processors share a cache. A
//! virtual machine's processors are moved about by its host, and may share one this minute and none the next. Hence it
//! is measured, before and after every figure: two threads, one on each processor, pass a cache line to and fro.

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

/// A cache line that takes longer to the other processor has not come through a shared cache.
const SHARED_NS: f64 = 80.0;
/// Two distances that differ by less than this factor are the same one.
const SAME: f64 = 2.0;
/// The line makes so many round trips at a time, so many times.
const TRIPS: u64 = 500;
const BATCHES: usize = 100;

/// How long a cache line takes from one processor to the other one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Distance {
    nanos: f64,
}

/// What both threads write: nothing else is on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

impl Distance {
    /// Measures it; `None` where there are no two processors.
    pub(crate) fn measure() -> Option<Self> {
        let [here, there] = processors()?;
        let (line, done) = (Line(AtomicU64::new(0)), AtomicBool::new(false));
        let mut batches = thread::scope(|scope| {
            scope.spawn(|| {
                if sys::pin(there).is_ok() {
                    return_line(&line.0, &done);
                }
            });
            let batches = scope.spawn(|| {
                let pinned = sys::pin(here);
                let batches = pinned.map(|()| time_batches(&line.0));
                done.store(true, Ordering::Relaxed);
                batches
            });
            batches.join().ok()?.ok()
        })?;
        batches.sort_by(f64::total_cmp);
        // What else runs on the processors makes some batches slow, but none fast.
        let nanos = *batches.get(BATCHES / 10)?;
        Some(Self { nanos })
    }

    #[cfg(test)]
    pub(crate) const fn of(nanos: f64) -> Self {
        Self { nanos }
    }

    /// Whether both were measured with the processors at the same places.
    pub(crate) fn is_like(self, other: Self) -> bool {
        self.nanos < SAME * other.nanos && other.nanos < SAME * self.nanos
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.nanos < SHARED_NS {
            "one cache"
        } else {
            "apart"
        };
        write!(f, "{place} ({} ns)", short(self.nanos))
    }
}

/// The two processors between which it is measured: the first that this program may use.
pub(crate) fn processors() -> Option<[usize; 2]> {
    sys::processors().first_chunk().copied()
}

/// What to say before anything is measured.
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

/// Nanoseconds one way, per batch.
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

/// Makes every odd number even.
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

/// Without the pause of `spin_loop`, which can be longer than what is measured.
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
