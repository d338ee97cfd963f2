//! Fault rules: those of a time, and those that wait for an occasion.

use crate::faults::{FaultPlan, Triggers};
use crate::sync::{Mutex, rank};

/// The fault rules of the process.
#[derive(Debug)]
pub(crate) struct Faults {
    /// All fault rules, and their times.
    pub(in crate::engine) plan: FaultPlan,
    /// The fault rules that wait for an occasion.
    pub(in crate::engine) triggers: Triggers,
    /// Held while the rules of the plan are installed.
    pub(in crate::engine) refreshing: Mutex<(), rank::FaultRefresh>,
}
