//! XRC domains that this process shares with others.

use std::os::fd::OwnedFd;

use rocade_wire::Qpn;

use super::super::BrokerError;
use super::super::protocol::{
    DomainOpening, ProtocolError, Request, Response, TargetCall, TargetEvent,
};
use super::{BrokerClient, ClientState, SharedDomain};
use crate::journal::DomainKey;

impl BrokerClient {
    /// Opens a domain and returns its memory. Returns `Ok(Err(exists))` if the domain exists and
    /// should not, or does not exist and should.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn open_domain(
        &self,
        key: DomainKey,
        create: bool,
        exclusive: bool,
    ) -> Result<Result<OwnedFd, bool>, BrokerError> {
        let opening = DomainOpening {
            key,
            create,
            exclusive,
            resumes: false,
        };
        self.ask_with_reconnect(&Request::OpenDomain(opening), &[], |state, answer, fds| {
            match answer {
                Response::Domain => {
                    let memory = fds.into_iter().next().ok_or(ProtocolError::Descriptors)?;
                    let copy = memory.try_clone().map_err(BrokerError::failure(
                        "failed to duplicate the memory of an XRC domain",
                    ))?;
                    state.resources.domains.push(SharedDomain {
                        key,
                        memory: copy,
                        targets: Vec::new(),
                    });
                    Ok(Ok(memory))
                }
                Response::NoDomain { exists } => Ok(Err(exists)),
                _ => Err(ProtocolError::Unexpected.into()),
            }
        })
    }

    /// Closes a domain.
    ///
    /// # Errors
    /// See [`BrokerError`]. Even then, the next broker is not told of the domain.
    pub(crate) fn close_domain(&self, key: DomainKey) -> Result<(), BrokerError> {
        self.check_process()?;
        {
            let domains = &mut self.state.lock().resources.domains;
            domains.retain(|domain| domain.key != key);
        }
        let request = Request::CloseDomain(key);
        self.ask_with_reconnect(&request, &[], |_, answer, _| match answer {
            Response::Accepted => Ok(()),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// Registers a target that this process has created and has open. Returns false if the domain
    /// is full.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn new_target(&self, key: DomainKey, qpn: Qpn) -> Result<bool, BrokerError> {
        self.register_target(key, qpn, TargetCall::New)
    }

    /// Registers that this process has a target open. Returns false if there is no target with that
    /// number.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn open_target(&self, key: DomainKey, qpn: Qpn) -> Result<bool, BrokerError> {
        self.register_target(key, qpn, TargetCall::Open)
    }

    fn register_target(
        &self,
        key: DomainKey,
        qpn: Qpn,
        call: TargetCall,
    ) -> Result<bool, BrokerError> {
        let request = Request::Target(key, qpn, call);
        self.ask_with_reconnect(&request, &[], |state, answer, _| match answer {
            Response::Target { .. } => {
                if let Some(domain) = state.domain(key) {
                    domain.targets.push(qpn);
                }
                Ok(true)
            }
            Response::NoTarget => Ok(false),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// Registers that this process has closed a target. Returns true if no process has it open any
    /// longer, which destroys it.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn close_target(&self, key: DomainKey, qpn: Qpn) -> Result<bool, BrokerError> {
        self.check_process()?;
        if let Some(domain) = self.state.lock().domain(key) {
            domain.targets.retain(|other| *other != qpn);
        }
        self.call_target(key, qpn, TargetCall::Close)
    }

    /// Makes the owner of a target check which process requests ownership.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn want_target(&self, key: DomainKey, qpn: Qpn) -> Result<(), BrokerError> {
        self.call_target(key, qpn, TargetCall::Want).map(drop)
    }

    /// Raises the event `code` in all other processes that have the target open.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn raise_target_event(
        &self,
        key: DomainKey,
        qpn: Qpn,
        code: u8,
    ) -> Result<(), BrokerError> {
        self.call_target(key, qpn, TargetCall::Event(code))
            .map(drop)
    }

    fn call_target(&self, key: DomainKey, qpn: Qpn, call: TargetCall) -> Result<bool, BrokerError> {
        let request = Request::Target(key, qpn, call);
        self.ask_with_reconnect(&request, &[], |_, answer, _| match answer {
            Response::Target { is_gone } => Ok(is_gone),
            // The broker does not know the target, so no process has it open.
            Response::NoTarget => Ok(true),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// Returns the target events since the last call. Returns none while another thread uses the
    /// connection.
    pub(crate) fn take_target_events(&self) -> Vec<(Qpn, TargetEvent)> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.try_state()
            .map(|mut state| std::mem::take(&mut state.of_targets))
            .unwrap_or_default()
    }
}

impl ClientState {
    fn domain(&mut self, key: DomainKey) -> Option<&mut SharedDomain> {
        let mut domains = self.resources.domains.iter_mut();
        domains.find(|domain| domain.key == key)
    }
}
