//! What a case is, and how one ends.

use std::{error::Error, fmt, time::Duration};

use serde::Serialize;

use crate::Bench;

/// How binding a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The specification demands it.
    Must,
    /// Recommended, or settled practice where the specification is silent or unclear.
    Should,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
        })
    }
}

/// Which half of the peer a case tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The rig requests, the peer responds.
    Responder,
    /// The peer requests, the rig responds.
    Requester,
}

/// What a device need not have, and a case may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// It answers FLUSH.
    Flush,
    /// It answers ATOMIC WRITE.
    AtomicWrite,
    /// It knows the operations that only Rocade has. Others may take their codes badly.
    Own,
    /// It takes a FLUSH only with the ICRC of Linux's rxe, which covers the packet twice.
    RxeFlush,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Flush, Self::AtomicWrite, Self::Own, Self::RxeFlush];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::AtomicWrite => "atomic-write",
            Self::Own => "own",
            Self::RxeFlush => "rxe-flush",
        }
    }
}

/// One check: a fresh queue pair, a few packets, an expectation.
#[derive(Clone, Copy)]
pub struct Case {
    /// Id of the rule in the specification, e.g. `RC-RSP-20`.
    pub rule: &'static str,
    /// Distinguishes the cases of a rule: lower case, words joined by hyphens.
    pub slug: &'static str,
    /// How binding the rule is.
    pub level: Level,
    /// Which half of the peer it tests.
    pub role: Role,
    /// What the peer must have; else nothing is sent to it.
    pub needs: Option<Feature>,
    /// Does it.
    pub run: fn(&Bench<'_>) -> CaseResult,
}

impl Case {
    /// A case for the peer's responder that has to pass.
    pub const fn responder(
        rule: &'static str,
        slug: &'static str,
        run: fn(&Bench<'_>) -> CaseResult,
    ) -> Self {
        Self {
            rule,
            slug,
            level: Level::Must,
            role: Role::Responder,
            needs: None,
            run,
        }
    }

    /// A case for the peer's requester that has to pass.
    pub const fn requester(
        rule: &'static str,
        slug: &'static str,
        run: fn(&Bench<'_>) -> CaseResult,
    ) -> Self {
        Self {
            role: Role::Requester,
            ..Self::responder(rule, slug, run)
        }
    }

    /// The same case as a recommendation.
    #[must_use]
    pub const fn should(self) -> Self {
        Self {
            level: Level::Should,
            ..self
        }
    }

    /// The same case, only for a peer that has this.
    #[must_use]
    pub const fn needing(self, feature: Feature) -> Self {
        Self {
            needs: Some(feature),
            ..self
        }
    }

    /// Its unique name: `RULE/slug`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.rule, self.slug)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({}/{})", self.rule, self.slug)
    }
}

/// Why a case ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseError {
    /// The peer broke the rule.
    Failed(String),
    /// The peer or the machine cannot do what the case needs.
    Skipped(String),
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(reason) => write!(f, "failed: {reason}"),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
        }
    }
}

impl Error for CaseError {}

/// What the functions of a case return.
pub type CaseResult<T = ()> = Result<T, CaseError>;

/// Ends a case with a failure.
///
/// # Errors
/// Always.
pub fn fail<T>(reason: impl Into<String>) -> CaseResult<T> {
    Err(CaseError::Failed(reason.into()))
}

/// Fails unless `actual` equals `expected`.
///
/// # Errors
/// [`CaseError::Failed`] with both values, and `what` they are.
pub fn equal<T: PartialEq + fmt::Debug>(actual: T, expected: T, what: &str) -> CaseResult {
    if actual == expected {
        return Ok(());
    }
    fail(format!("{what}: {actual:?} instead of {expected:?}"))
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer follows the rule.
    Passed,
    /// It does not.
    Failed {
        /// What was wrong.
        reason: String,
        /// All packets of the case.
        transcript: String,
    },
    /// Not tried.
    Skipped(String),
}

/// A case that was run.
#[derive(Clone, Debug)]
pub struct CaseRun {
    /// Which.
    pub case: Case,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took.
    pub duration: Duration,
}
