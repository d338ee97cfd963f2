//! Questions to the running broker.

use super::ask_running_for_files;
use crate::broker::protocol::{Request, Response};
use crate::broker::{BrokerConfig, BrokerError};

/// Asks the running broker.
///
/// # Errors
/// [`BrokerError::NotRunning`] without a broker.
pub(in crate::broker) fn ask_running(
    config: &BrokerConfig,
    request: &Request,
) -> Result<Response, BrokerError> {
    let (answer, _) = ask_running_for_files(config, request)?;
    Ok(answer)
}
