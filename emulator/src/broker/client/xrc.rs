//! XRC domains that this process shares with others.

use std::os::fd::OwnedFd;

use rocade_wire::Qpn;

use super::super::BrokerError;
use super::super::protocol::{
    DomainKey, DomainOpening, ProtocolError, Request, Response, TargetCall, TargetNews,
};
use super::{BrokerClient, SharedDomain, State};

impl BrokerClient {
    /// Opens a domain, and returns its memory. Else `Ok(Err(exists))`: it is there and should not be, or the other way
    /// round.
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
        self.ask_patiently(
            &Request::OpenDomain(opening),
            &[],
            |state, answer, fds| match answer {
                Response::Domain => {
                    let memory = fds.into_iter().next().ok_or(ProtocolError::Descriptors)?;
                    let copy = memory.try_clone().map_err(BrokerError::doing(
                        "duplicating the memory of an XRC domain",
                    ))?;
                    state.holdings.domains.push(SharedDomain {
                        key,
                        memory: copy,
                        targets: Vec::new(),
                    });
                    Ok(Ok(memory))
                }
                Response::NoDomain { exists } => Ok(Err(exists)),
                _ => Err(ProtocolError::Unexpected.into()),
            },
        )
    }

    /// Closes a domain.
    ///
    /// # Errors
    /// See [`BrokerError`]. The next broker will not hear of the domain all the same.
    pub(crate) fn close_domain(&self, key: DomainKey) -> Result<(), BrokerError> {
        self.check_process()?;
        {
            let domains = &mut self.state.lock().holdings.domains;
            domains.retain(|domain| domain.key != key);
        }
        let request = Request::CloseDomain(key);
        self.ask_patiently(&request, &[], |_, answer, _| match answer {
            Response::Accepted => Ok(()),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// A target is there that we have made, and that we have open. False where there is no room.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn new_target(&self, key: DomainKey, qpn: Qpn) -> Result<bool, BrokerError> {
        self.have_target(key, qpn, TargetCall::New)
    }

    /// We have a target open. False where there is none of that number.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn open_target(&self, key: DomainKey, qpn: Qpn) -> Result<bool, BrokerError> {
        self.have_target(key, qpn, TargetCall::Open)
    }

    fn have_target(&self, key: DomainKey, qpn: Qpn, call: TargetCall) -> Result<bool, BrokerError> {
        let request = Request::Target(key, qpn, call);
        self.ask_patiently(&request, &[], |state, answer, _| match answer {
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

    /// We have a target open no more. True where nobody has: it is gone.
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

    /// The holder of a target shall look who wants it.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn want_target(&self, key: DomainKey, qpn: Qpn) -> Result<(), BrokerError> {
        self.call_target(key, qpn, TargetCall::Want).map(drop)
    }

    /// An event of a target, whose code this is, is raised wherever that is open.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn raise_of_target(
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
        self.ask_patiently(&request, &[], |_, answer, _| match answer {
            Response::Target { is_gone } => Ok(is_gone),
            // The broker does not know of it, and so nobody does.
            Response::NoTarget => Ok(true),
            _ => Err(ProtocolError::Unexpected.into()),
        })
    }

    /// What has happened to targets since the last call. There is nothing while another thread uses the
    /// connection.
    pub(crate) fn take_target_news(&self) -> Vec<(Qpn, TargetNews)> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.try_state()
            .map(|mut state| std::mem::take(&mut state.of_targets))
            .unwrap_or_default()
    }
}

impl State {
    fn domain(&mut self, key: DomainKey) -> Option<&mut SharedDomain> {
        let mut domains = self.holdings.domains.iter_mut();
        domains.find(|domain| domain.key == key)
    }
}
