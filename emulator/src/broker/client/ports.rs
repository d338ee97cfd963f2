//! Ports of the connection manager, which the broker hands out for the host.

use super::super::BrokerError;
use super::super::protocol::{ProtocolError, Request, Response};
use super::{BrokerClient, State};
use crate::cm::services::{Binding, Conflict};

impl BrokerClient {
    /// Takes a port; any, where `any_port`. [`Conflict`] where somebody has it.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn bind_service(
        &self,
        binding: Binding,
        any_port: bool,
    ) -> Result<Result<Binding, Conflict>, BrokerError> {
        self.ask_about_port(
            &Request::Bind { binding, any_port },
            |state, answer| match answer {
                Response::Bound(bound) => {
                    state.holdings.ports.push(bound);
                    Ok(Ok(bound))
                }
                Response::PortTaken(conflict) => Ok(Err(conflict)),
                _ => Err(ProtocolError::Unexpected.into()),
            },
        )
    }

    /// Requests to a port of ours come here from now on; [`Conflict`] where they go to somebody else.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn listen_service(
        &self,
        binding: Binding,
    ) -> Result<Result<(), Conflict>, BrokerError> {
        self.ask_about_port(&Request::Listen(binding), |state, answer| match answer {
            Response::Accepted => {
                let mut ports = state.holdings.ports.iter_mut();
                if let Some(port) = ports.find(|port| **port == binding) {
                    port.listens = true;
                }
                Ok(Ok(()))
            }
            Response::PortTaken(conflict) => Ok(Err(conflict)),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// Gives a port back.
    ///
    /// # Errors
    /// See [`BrokerError`]. The next broker will not hear of the port all the same.
    pub(crate) fn release_service(&self, binding: Binding) -> Result<(), BrokerError> {
        self.check_process()?;
        {
            let ports = &mut self.state.lock().holdings.ports;
            if let Some(at) = ports.iter().position(|port| *port == binding) {
                ports.swap_remove(at);
            }
        }
        self.ask_about_port(&Request::Release(binding), |_, answer| match answer {
            Response::Accepted => Ok(()),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// Asks the broker, or the next one.
    fn ask_about_port<R>(
        &self,
        request: &Request,
        mut understand: impl FnMut(&mut State, Response) -> Result<R, BrokerError>,
    ) -> Result<R, BrokerError> {
        self.ask_patiently(request, &[], |state, answer, _| understand(state, answer))
    }
}
