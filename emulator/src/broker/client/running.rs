//! Questions to the running broker.

use std::os::fd::OwnedFd;
use std::thread;

use super::connection::Connection;
use super::{ANSWER_TIMEOUT, STOPPED_TIMEOUT};
use crate::broker::machine::ThisMachine;
use crate::broker::paths::Paths;
use crate::broker::protocol::{Request, Response};
use crate::broker::{BrokerConfig, BrokerError, start};

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

/// Asks the running broker. Returns the descriptors of the answer, too.
///
/// # Errors
/// As [`ask_running`].
pub(in crate::broker) fn ask_running_for_files(
    config: &BrokerConfig,
    request: &Request,
) -> Result<(Response, Vec<OwnedFd>), BrokerError> {
    let machine = ThisMachine::shared();
    let begin = machine.now();
    loop {
        let mut connection = Connection::new(
            start::connect(&Paths::new(config), machine.process())?,
            &machine,
        );
        match connection.ask(request, &[], ANSWER_TIMEOUT) {
            // A broker that was stopped lets others connect until it has ended.
            Err(BrokerError::Lost) if machine.now().since(begin) < STOPPED_TIMEOUT => {
                thread::yield_now();
            }
            answer => return answer,
        }
    }
}
