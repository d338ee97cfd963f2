//! Known deviations of a peer: the cases that fail or must not be run, and the reasons.
//!
//! A file may tell the driver that it is about, and the first version of the kernel. The suite uses
//! the files that are about its peer, and those of later kernels override those of earlier ones.

use std::{cmp::Ordering, error::Error, fmt};

use serde::Deserialize;

use crate::{Case, report::Device, suite};

/// The files that the suite brings along.
const BUILT_IN: [(&str, &str); 4] = [
    (
        "rocade-verbs.toml",
        include_str!("../expectations/rocade-verbs.toml"),
    ),
    ("rxe.toml", include_str!("../expectations/rxe.toml")),
    (
        "rxe-6.12.toml",
        include_str!("../expectations/rxe-6.12.toml"),
    ),
    ("rxe-7.3.toml", include_str!("../expectations/rxe-7.3.toml")),
];

/// The expected outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The case passes.
    Pass,
    /// The case passes or is skipped, because the features of the peer are unknown.
    PassOrSkip,
    /// The case fails, for this reason.
    Fail(String),
    /// The case must not be run, for this reason.
    Skip(String),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Fail,
    Skip,
    Pass,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Deviation {
    /// `RULE/slug`, a rule ID for all its cases, or a prefix of names that ends with `*`.
    case: String,
    expect: Kind,
    reason: String,
}

impl Deviation {
    fn concerns(&self, case: &Case) -> bool {
        let name = case.name();
        self.case == case.rule
            || self.case == name
            || self
                .case
                .strip_suffix('*')
                .is_some_and(|start| name.starts_with(start))
    }
}

/// The devices that a file is about.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Scope {
    /// The name of the driver in the kernel.
    driver: Option<String>,
    /// The first version of the kernel.
    kernel: Option<String>,
}

/// The contents of `expectations/<peer>.toml`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Expectations {
    #[serde(default)]
    peer: Scope,
    #[serde(default)]
    deviation: Vec<Deviation>,
    #[serde(skip)]
    is_unknown: bool,
    /// The expectations for cases without an entry here.
    #[serde(skip)]
    base: Option<Box<Self>>,
}

/// An error in a file of expectations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectationsError(String);

impl fmt::Display for ExpectationsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ExpectationsError {}

impl Expectations {
    /// Returns expectations for an unknown peer, which may skip any case.
    #[must_use]
    pub const fn unknown() -> Self {
        Self {
            peer: Scope {
                driver: None,
                kernel: None,
            },
            deviation: Vec::new(),
            is_unknown: true,
            base: None,
        }
    }

    /// Returns the built-in files about a device, in the order in which they apply, with their
    /// names.
    #[must_use]
    pub fn built_in(device: &Device) -> Vec<(&'static str, Self)> {
        let cases = suite::all();
        let parsed = BUILT_IN.iter().filter_map(|&(name, text)| {
            // A test parses all of them.
            let these = Self::parse(text, &cases).ok()?;
            let is_named = !device.driver.is_empty() && these.peer.driver.is_some();
            (is_named && these.is_about(device)).then_some((name, these))
        });
        let mut files: Vec<_> = parsed.collect();
        files.sort_by(|(_, a), (_, b)| a.order(b));
        files
    }

    /// Returns true unless the file is about another driver or only later kernels.
    #[must_use]
    pub fn is_about(&self, device: &Device) -> bool {
        let Scope { driver, kernel } = &self.peer;
        let is_driver = driver
            .as_ref()
            .is_none_or(|driver| device.driver.is_empty() || *driver == device.driver);
        let is_kernel = kernel.as_ref().is_none_or(|kernel| {
            device.kernel.is_empty() || version(kernel) <= version(&device.kernel)
        });
        is_driver && is_kernel
    }

    /// Compares the kernels of two files.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let [own, others] = [self, other].map(|file| file.peer.kernel.as_deref().map(version));
        own.cmp(&others)
    }

    /// Uses the expectations of `base` for the cases that have no entry here.
    #[must_use]
    pub fn over(mut self, base: Self) -> Self {
        self.base = Some(Box::new(base));
        self
    }

    /// Parses the text of a file. Every deviation must have a reason and match at least one of
    /// `cases`.
    ///
    /// # Errors
    /// The first error in the text.
    pub fn parse(text: &str, cases: &[Case]) -> Result<Self, ExpectationsError> {
        let parsed: Self =
            toml::from_str(text).map_err(|error| ExpectationsError(error.to_string()))?;
        for deviation in &parsed.deviation {
            if !cases.iter().any(|case| deviation.concerns(case)) {
                let text = format!("{}: no such case", deviation.case);
                return Err(ExpectationsError(text));
            }
            if deviation.reason.trim().is_empty() {
                let text = format!("{}: no reason", deviation.case);
                return Err(ExpectationsError(text));
            }
        }
        Ok(parsed)
    }

    /// Returns the expected outcome of a case. An entry with the name of the case overrides the
    /// others, of which the first one counts.
    #[must_use]
    pub fn of(&self, case: &Case) -> Expected {
        let name = case.name();
        let found = self
            .deviation
            .iter()
            .find(|deviation| deviation.case == name)
            .or_else(|| {
                self.deviation
                    .iter()
                    .find(|deviation| deviation.concerns(case))
            });
        match (found, &self.base) {
            (None, Some(base)) => base.of(case),
            (None, None) if self.is_unknown => Expected::PassOrSkip,
            (None, None) => Expected::Pass,
            (Some(deviation), _) => {
                let reason = deviation.reason.clone();
                match deviation.expect {
                    Kind::Pass => Expected::Pass,
                    Kind::Fail => Expected::Fail(reason),
                    Kind::Skip => Expected::Skip(reason),
                }
            }
        }
    }
}

/// Returns major and minor number of a kernel version.
fn version(text: &str) -> [u32; 2] {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    [0; 2].map(|_: u32| numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(driver: &str, kernel: &str) -> Device {
        Device {
            driver: driver.to_owned(),
            kernel: kernel.to_owned(),
            ..Device::default()
        }
    }

    #[test]
    fn the_kernel_chooses_the_files() {
        let names = |driver, kernel| {
            let files = Expectations::built_in(&device(driver, kernel));
            files.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        };
        assert_eq!(names("rxe", "6.1.0-18-amd64"), ["rxe.toml"]);
        assert_eq!(names("rxe", "6.9.3"), ["rxe.toml"]);
        assert_eq!(names("rxe", "6.12.9"), ["rxe.toml", "rxe-6.12.toml"]);
        assert_eq!(names("rxe", "7.0"), ["rxe.toml", "rxe-6.12.toml"]);
        let all = ["rxe.toml", "rxe-6.12.toml", "rxe-7.3.toml"];
        assert_eq!(names("rxe", "7.3.4+deb13-amd64"), all);
        assert_eq!(names("rxe", "5.15.0"), [""; 0]);
        assert_eq!(names("rocade", "5.15.0"), ["rocade-verbs.toml"]);
        assert_eq!(names("mlx5_core", "6.12.9"), [""; 0]);
        assert_eq!(names("", ""), [""; 0]);
    }

    #[test]
    fn a_file_without_a_scope_is_about_any_device() {
        let any = Expectations::default();
        assert!(any.is_about(&device("mlx5_core", "6.1")));
        let text = "[peer]\ndriver = 'rxe'\nkernel = '6.12'\n";
        let newer = Expectations::parse(text, &[]).unwrap();
        assert!(!newer.is_about(&device("rxe", "6.1")));
        assert!(!newer.is_about(&device("siw", "6.12")));
        // An agent that does not know its kernel.
        assert!(newer.is_about(&device("", "")));
        assert_eq!(any.order(&newer), Ordering::Less);
    }

    #[test]
    fn the_built_in_files_are_right() {
        for (name, text) in BUILT_IN {
            let parsed = Expectations::parse(text, &suite::all());
            assert!(parsed.is_ok(), "{name}: {parsed:?}");
        }
    }

    const CASES: [Case; 2] = [
        Case::responder("A-1", "x", |_| Ok(())),
        Case::responder("A-1", "y", |_| Ok(())),
    ];

    #[test]
    fn an_entry_for_a_case_wins() {
        let text = "[[deviation]]\ncase = 'A-1'\nexpect = 'fail'\nreason = 'a'\n\
            [[deviation]]\ncase = 'A-1/y'\nexpect = 'skip'\nreason = 'b'\n";
        let expectations = Expectations::parse(text, &CASES).unwrap();
        assert_eq!(expectations.of(&CASES[0]), Expected::Fail("a".to_owned()));
        assert_eq!(expectations.of(&CASES[1]), Expected::Skip("b".to_owned()));
        assert_eq!(Expectations::default().of(&CASES[0]), Expected::Pass);
        let unknown = Expectations::unknown();
        assert_eq!(unknown.of(&CASES[0]), Expected::PassOrSkip);
    }

    #[test]
    fn a_file_corrects_the_one_before_it() {
        let read = |text| Expectations::parse(text, &CASES).unwrap();
        let older = read("[[deviation]]\ncase = 'A-1'\nexpect = 'fail'\nreason = 'old'\n");
        let newer = read("[[deviation]]\ncase = 'A-*'\nexpect = 'skip'\nreason = 'new'\n");
        let mended = read("[[deviation]]\ncase = 'A-1/y'\nexpect = 'pass'\nreason = 'mended'\n");
        let both = newer.over(older.clone());
        assert_eq!(both.of(&CASES[0]), Expected::Skip("new".to_owned()));
        let both = mended.over(older);
        assert_eq!(both.of(&CASES[0]), Expected::Fail("old".to_owned()));
        assert_eq!(both.of(&CASES[1]), Expected::Pass);
    }

    #[test]
    fn an_entry_may_be_for_many_rules() {
        let text = "[[deviation]]\ncase = 'A-*'\nexpect = 'skip'\nreason = 'a'\n\
            [[deviation]]\ncase = 'A-1/y'\nexpect = 'fail'\nreason = 'b'\n";
        let expectations = Expectations::parse(text, &CASES).unwrap();
        assert_eq!(expectations.of(&CASES[0]), Expected::Skip("a".to_owned()));
        assert_eq!(expectations.of(&CASES[1]), Expected::Fail("b".to_owned()));
    }

    #[test]
    fn mistakes_are_found() {
        for (case, reason) in [("A-2", "a"), ("B*", "a"), ("A-1", " ")] {
            let text =
                format!("[[deviation]]\ncase = '{case}'\nexpect = 'fail'\nreason = '{reason}'");
            assert!(Expectations::parse(&text, &CASES).is_err());
        }
        assert!(Expectations::parse("[[deviation]]\nname = 'A-1'", &CASES).is_err());
    }
}
