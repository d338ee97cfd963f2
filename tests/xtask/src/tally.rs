//! Counting results: what `cargo test` prints.

use std::{fmt, ops::Add};

/// The numbers of tests that passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that ran and found nothing wrong.
    pub(crate) passed: u32,
    /// Tests that failed, and steps (a build, a check) that did.
    pub(crate) failed: u32,
    /// Tests that could not run here, and ignored ones.
    pub(crate) skipped: u32,
}

impl Tally {
    /// One step that passed.
    pub(crate) const PASS: Self = Self {
        passed: 1,
        failed: 0,
        skipped: 0,
    };
    /// One step that cannot be done here.
    pub(crate) const SKIP: Self = Self {
        passed: 0,
        failed: 0,
        skipped: 1,
    };
    /// One step that failed.
    pub(crate) const FAIL: Self = Self {
        passed: 0,
        failed: 1,
        skipped: 0,
    };

    /// Reads a `test result:` line of a test program. Any other line gives `None`.
    pub(crate) fn from_result_line(line: &str) -> Option<Self> {
        let (_, counts) = line
            .trim()
            .strip_prefix("test result: ")?
            .split_once(". ")?;
        let mut tally = Self::default();
        for part in counts.split(';') {
            let Some((number, what)) = part.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u32>() else {
                continue;
            };
            match what {
                "passed" => tally.passed = number,
                "failed" => tally.failed = number,
                "ignored" => tally.skipped = number,
                _ => {}
            }
        }
        Some(tally)
    }

    /// Moves `count` tests from passed to skipped: a test that skips itself ends like one that
    /// passes.
    pub(crate) fn reclassify_skipped(&mut self, count: u32) {
        let moved = count.min(self.passed);
        self.passed -= moved;
        self.skipped += moved;
    }

    /// Moves `count` tests from skipped to failed.
    pub(crate) fn fail_skipped(&mut self, count: u32) {
        let moved = count.min(self.skipped);
        self.skipped -= moved;
        self.failed += moved;
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_result_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 4 ignored; 0 measured; 7 filtered out; \
                    finished in 0.52s";
        let tally = Tally::from_result_line(line).unwrap();
        assert_eq!(
            tally,
            Tally {
                passed: 12,
                failed: 3,
                skipped: 4
            }
        );
        assert_eq!(Tally::from_result_line("test psn::wraps ... ok"), None);
    }

    #[test]
    fn sums_up_in_the_closing_line() {
        let mut tally = Tally {
            passed: 5,
            failed: 0,
            skipped: 1,
        } + Tally::FAIL;
        tally.reclassify_skipped(2);
        assert_eq!(tally.to_string(), "3 passed, 1 failed, 3 skipped");
        tally.fail_skipped(1);
        assert_eq!(tally.to_string(), "3 passed, 2 failed, 2 skipped");
    }
}
