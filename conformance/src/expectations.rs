//! Known deviations of a peer: the cases that fail or must not be run, and the reasons.

use std::{error::Error, fmt};

use serde::Deserialize;

use crate::Case;

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

/// The contents of `expectations/<peer>.toml`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Expectations {
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
            deviation: Vec::new(),
            is_unknown: true,
            base: None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

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
