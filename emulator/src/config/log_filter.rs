//! The tracing filter of `ROCADE_LOG`: levels, and targets with levels.
//!
//! Rocade parses the filter itself. That of tracing-subscriber accepts regular expressions for
//! values of spans, which Rocade does not have, and takes a tenth of the libraries' length.

use tracing::level_filters::LevelFilter;

use crate::nearest::nearest;

/// The levels in the order of their numbers, `0` to `5`.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Crates that write traces, now or in the future.
const TARGETS: [&str; 6] = [
    "rocade_emulator",
    "rocade_transport",
    "rocade_wire",
    "rocade_verbs",
    "rocade",
    "ibverbs",
];

/// A tracing filter, read from `LEVEL` and `TARGET[=LEVEL]`, separated by commas. The default is
/// `error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter {
    default: LevelFilter,
    targets: Vec<(String, LevelFilter)>,
}

impl Default for LogFilter {
    fn default() -> Self {
        Self {
            default: LevelFilter::ERROR,
            targets: Vec::new(),
        }
    }
}

impl LogFilter {
    /// Reads a filter. Spaces around a directive do not matter, and a target without level has
    /// `trace`.
    ///
    /// # Errors
    /// The text about an unknown level or target, with the nearest known name.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let directives = text.split(',').map(str::trim);
        let mut directives = directives.filter(|directive| !directive.is_empty());
        let Some(first) = directives.next() else {
            return Ok(Self::default());
        };
        // A filter of targets alone says nothing about others.
        let mut filter = Self {
            default: LevelFilter::OFF,
            targets: Vec::new(),
        };
        for directive in std::iter::once(first).chain(directives) {
            filter.add(directive)?;
        }
        Ok(filter)
    }

    fn add(&mut self, directive: &str) -> Result<(), String> {
        let (target, level) = match directive.rsplit_once('=') {
            Some((target, level)) => {
                let known = level_named(level);
                (
                    target,
                    known.ok_or_else(|| no_such("level", level, &names_of_levels()))?,
                )
            }
            None => match level_named(directive) {
                Some(level) => {
                    self.default = level;
                    return Ok(());
                }
                None => (directive, LevelFilter::TRACE),
            },
        };
        if TARGETS.iter().any(|name| is_part(target, name)) {
            self.targets.push((target.to_owned(), level));
            return Ok(());
        }
        let levels = names_of_levels();
        let is_level = target == directive && nearest(target, &levels).is_some();
        Err(if is_level {
            no_such("level", target, &levels)
        } else {
            no_such("level or target", target, &TARGETS)
        })
    }

    /// Returns the level of targets that [`targets`](Self::targets) does not name.
    #[must_use]
    pub fn default_level(&self) -> LevelFilter {
        self.default
    }

    /// Returns the beginnings of targets, and their levels. The last one of equal names counts.
    #[must_use]
    pub fn targets(&self) -> &[(String, LevelFilter)] {
        &self.targets
    }

    /// Returns the most verbose level, above which no trace is written.
    #[must_use]
    pub fn max_level(&self) -> LevelFilter {
        let levels = self.targets.iter().map(|(_, level)| *level);
        levels.fold(self.default, Ord::max)
    }
}

/// Returns true if `target` is the beginning of a crate's name, or a module in it.
fn is_part(target: &str, name: &str) -> bool {
    let module = target.strip_prefix(name);
    !target.is_empty()
        && (name.starts_with(target) || module.is_some_and(|rest| rest.starts_with(':')))
}

fn level_named(word: &str) -> Option<LevelFilter> {
    let mut levels = (0_u8..).zip(LEVELS);
    levels
        .find(|(number, (name, _))| name.eq_ignore_ascii_case(word) || number.to_string() == word)
        .map(|(_, (_, level))| level)
}

fn names_of_levels() -> [&'static str; 6] {
    LEVELS.map(|(name, _)| name)
}

fn no_such(kind: &str, word: &str, known: &[&str]) -> String {
    let mut text = format!("there is no {kind} {word}");
    if let Some(near) = nearest(word, known) {
        text.push_str(&format!("; did you mean {near}?"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: LevelFilter = LevelFilter::OFF;
    const WARN: LevelFilter = LevelFilter::WARN;
    const DEBUG: LevelFilter = LevelFilter::DEBUG;
    const TRACE: LevelFilter = LevelFilter::TRACE;

    #[test]
    fn levels_and_targets_are_read() {
        for (text, default, targets) in [
            ("info", LevelFilter::INFO, &[][..]),
            ("DEBUG", DEBUG, &[]),
            ("off", OFF, &[]),
            ("3", LevelFilter::INFO, &[]),
            ("info,warn", WARN, &[]),
            (
                "warn, rocade_emulator=debug",
                WARN,
                &[("rocade_emulator", DEBUG)],
            ),
            (
                "rocade_emulator::engine=trace",
                OFF,
                &[("rocade_emulator::engine", TRACE)],
            ),
            ("rocade", OFF, &[("rocade", TRACE)]),
            ("rocade=5,", OFF, &[("rocade", TRACE)]),
        ] {
            let filter = LogFilter::parse(text).expect(text);
            let found: Vec<_> = filter
                .targets()
                .iter()
                .map(|(name, level)| (&**name, *level))
                .collect();
            assert_eq!((filter.default_level(), &*found), (default, targets));
        }
        for empty in ["", " ", ","] {
            assert_eq!(LogFilter::parse(empty), Ok(LogFilter::default()));
        }
    }

    #[test]
    fn the_most_verbose_level_limits_all() {
        for (text, level) in [
            ("off", OFF),
            ("warn", WARN),
            ("warn,rocade_emulator=debug", DEBUG),
            ("debug,rocade_emulator=off", DEBUG),
            ("ibverbs", TRACE),
        ] {
            let filter = LogFilter::parse(text).expect(text);
            assert_eq!(filter.max_level(), level, "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (bad, parts) in [
            ("debgu", ["no level debgu", "did you mean debug?"]),
            ("inof", ["no level inof", "did you mean info?"]),
            ("rocade_emulator=debugg", ["no level debugg", "debug?"]),
            ("rocade_emulator=", ["no level", ""]),
            ("=debug", ["no level or target", ""]),
            ("x=y", ["no level y", ""]),
            ("6", ["no level or target 6", ""]),
            (
                "rocade_emulater=debug",
                ["target rocade_emulater", "rocade_emulator?"],
            ),
            ("warn,loud", ["loud", ""]),
            ("rocade_emulator[{qp=7}]=debug", ["rocade_emulator[{qp", ""]),
        ] {
            let mistake = LogFilter::parse(bad).expect_err(bad);
            assert!(parts.iter().all(|part| mistake.contains(part)), "{mistake}");
        }
    }
}
