//! Cases and their outcomes.

use std::{error::Error, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Bench,
    rig::{Frame, Step},
};

/// The level of a rule.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The specification requires the rule.
    Must,
    /// The rule is recommended, or common practice where the specification is silent or unclear.
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

/// The half of the peer that a case tests.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The rig sends requests, and the peer responds.
    Responder,
    /// The peer sends requests, and the rig responds.
    Requester,
}

/// An optional feature of a device, which a case may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The device implements FLUSH.
    Flush,
    /// The device implements ATOMIC WRITE.
    AtomicWrite,
    /// The device implements the operations that only Rocade has. Other devices may react badly to
    /// their opcodes.
    Own,
    /// The device executes the masked compare-and-swap of 8 bytes that NVIDIA's NICs have.
    MaskedSwap,
    /// The device accepts a FLUSH only with the ICRC of Linux's rxe, which covers the packet twice.
    RxeFlush,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 5] = [
        Self::Flush,
        Self::AtomicWrite,
        Self::Own,
        Self::MaskedSwap,
        Self::RxeFlush,
    ];

    /// Returns the name of the feature.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::AtomicWrite => "atomic-write",
            Self::Own => "own",
            Self::MaskedSwap => "masked-swap",
            Self::RxeFlush => "rxe-flush",
        }
    }
}

/// One check: a new queue pair, a few packets and an expectation.
#[derive(Clone, Copy)]
pub struct Case {
    /// The ID of the rule in the specification.
    pub rule: &'static str,
    /// The IDs of further rules that demand a status of the case.
    pub also: &'static [&'static str],
    /// The name of the case among those of the rule: lower case, words joined by hyphens.
    pub slug: &'static str,
    /// The level of the rule.
    pub level: Level,
    /// The half of the peer that the case tests.
    pub role: Role,
    /// The feature that the peer must have. Otherwise no packet is sent to it.
    pub needs: Option<Feature>,
    /// The function that runs the case.
    pub run: fn(&Bench<'_>) -> CaseResult,
}

impl Case {
    /// Creates a mandatory case for the peer's responder.
    pub const fn responder(
        rule: &'static str,
        slug: &'static str,
        run: fn(&Bench<'_>) -> CaseResult,
    ) -> Self {
        Self {
            rule,
            also: &[],
            slug,
            level: Level::Must,
            role: Role::Responder,
            needs: None,
            run,
        }
    }

    /// Creates a mandatory case for the peer's requester.
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

    /// Makes the case a recommendation.
    #[must_use]
    pub const fn should(self) -> Self {
        Self {
            level: Level::Should,
            ..self
        }
    }

    /// Adds rules that demand a status of the case.
    #[must_use]
    pub const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    /// Returns the IDs of all rules of the case.
    #[must_use]
    pub fn rules(&self) -> Vec<&'static str> {
        [&[self.rule], self.also].concat()
    }

    /// Restricts the case to peers with this feature.
    #[must_use]
    pub const fn needing(self, feature: Feature) -> Self {
        Self {
            needs: Some(feature),
            ..self
        }
    }

    /// Returns the unique name: `RULE/slug`.
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

/// The reason why a case ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseError {
    /// The peer violated the rule.
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

/// The return type of the functions of a case.
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
/// [`CaseError::Failed`] with both values, and their meaning `what`.
pub fn equal<T: PartialEq + fmt::Debug>(actual: T, expected: T, what: &str) -> CaseResult {
    if actual == expected {
        return Ok(());
    }
    fail(format!("{what}: {actual:?} instead of {expected:?}"))
}

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The peer follows the rule.
    Passed,
    /// The peer violates the rule.
    Failed {
        /// The reason of the failure.
        reason: String,
        /// All packets of the case.
        transcript: Vec<Step>,
    },
    /// The case was not run, for this reason.
    Skipped(String),
}

/// A case that was run.
#[derive(Clone, Debug)]
pub struct CaseRun {
    /// The case.
    pub case: Case,
    /// The outcome of the case.
    pub outcome: Outcome,
    /// The duration of the case.
    pub duration: Duration,
    /// The packets as they were on the wire.
    pub frames: Vec<Frame>,
    /// The peer was lost during the case.
    pub is_lost: bool,
}
