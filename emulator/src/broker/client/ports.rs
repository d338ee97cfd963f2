//! Ports of the connection manager, which the broker assigns for the host.

use super::super::BrokerError;
use super::super::protocol::{ProtocolError, Request, Response};
use super::{BrokerClient, ClientState};
use crate::gsi::services::{Binding, Conflict};

impl BrokerClient {
    /// Reserves a port, any free one if `any_port`. Returns [`Conflict`] if another process has it.
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
                    state.resources.ports.push(bound);
                    Ok(Ok(bound))
                }
                Response::PortTaken(conflict) => Ok(Err(conflict)),
                _ => Err(ProtocolError::Unexpected.into()),
            },
        )
    }

    /// Routes requests to a bound port to this process from now on. Returns [`Conflict`] if they go
    /// to another process.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn listen_service(
        &self,
        binding: Binding,
    ) -> Result<Result<(), Conflict>, BrokerError> {
        self.ask_about_port(&Request::Listen(binding), |state, answer| match answer {
            Response::Accepted => {
                let mut ports = state.resources.ports.iter_mut();
                if let Some(port) = ports.find(|port| **port == binding) {
                    port.listens = true;
                }
                Ok(Ok(()))
            }
            Response::PortTaken(conflict) => Ok(Err(conflict)),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// Releases a port.
    ///
    /// # Errors
    /// See [`BrokerError`]. Even then, the next broker is not told of the port.
    pub(crate) fn release_service(&self, binding: Binding) -> Result<(), BrokerError> {
        self.check_process()?;
        {
            let ports = &mut self.state.lock().resources.ports;
            if let Some(at) = ports.iter().position(|port| *port == binding) {
                ports.swap_remove(at);
            }
        }
        self.ask_about_port(&Request::Release(binding), |_, answer| match answer {
            Response::Accepted => Ok(()),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// Sends a request to the broker, or to the next one.
    fn ask_about_port<R>(
        &self,
        request: &Request,
        mut decode: impl FnMut(&mut ClientState, Response) -> Result<R, BrokerError>,
    ) -> Result<R, BrokerError> {
        self.ask_with_reconnect(request, &[], |state, answer, _| decode(state, answer))
    }
}
