//! Reasons for which a call may fail, and what holds after each call.

use std::time::Duration;

use super::super::client::view::View;
use super::super::{BrokerConfig, BrokerError, RefusalCode};
use super::process::{binding, domain};
use super::step::Call;
use super::world::World;

/// Time for which a client waits for a broker that may be stopped.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the time that a call lasts at least before it fails like this, or `None` if no call may.
fn shortest(error: &BrokerError) -> Option<Duration> {
    match error {
        BrokerError::Silent { .. } => Some(PATIENCE),
        // The next broker is not there yet.
        BrokerError::Lost => Some(BrokerConfig::default().start_timeout),
        // Several brokers were killed before they listened.
        BrokerError::Start { .. } => Some(Duration::ZERO),
        BrokerError::Refused { code, .. } => {
            (*code == RefusalCode::AddressInUse).then_some(Duration::ZERO)
        }
        _ => None,
    }
}

impl World {
    /// Checks that a call had a reason to fail. It was disturbed after `disturbed`, and lasted so
    /// long.
    ///
    /// # Errors
    /// The error of the call.
    pub(super) fn check_error(
        &mut self,
        error: &BrokerError,
        disturbed: u64,
        lasted: Duration,
    ) -> Result<(), String> {
        let is_in_use = matches!(
            error,
            BrokerError::Refused {
                code: RefusalCode::AddressInUse,
                ..
            }
        );
        if is_in_use && self.has_several_dirs() {
            self.mark("an address is in use by the other directory");
            return Ok(());
        }
        if matches!(error, BrokerError::Silent { .. }) {
            self.mark("a broker is stopped and given up");
        }
        let is_late = shortest(error).is_some_and(|shortest| lasted >= shortest);
        if is_late && self.is_disturbed(disturbed) {
            return Ok(());
        }
        Err(format!(
            "a call fails without a reason, after {lasted:?}: {error}"
        ))
    }

    /// Checks what a process has after a call, whether the call has failed or not.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(super) fn check_complaints(
        &self,
        call: Option<Call>,
        view: Option<&View>,
    ) -> Result<(), String> {
        if let Some(complaint) = self.notes.complaints.lock().pop() {
            return Err(complaint);
        }
        let is_kept = view.is_some_and(|view| match call {
            Some(Call::Release(name)) => view.ports.contains(&binding(name)),
            Some(Call::CloseDomain(name)) => view.domains.contains_key(&domain(name)),
            _ => false,
        });
        match (is_kept, call) {
            (true, Some(call)) => Err(format!("a process keeps what it has given back: {call:?}")),
            _ => Ok(()),
        }
    }
}
