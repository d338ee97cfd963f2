//! Hands the state of this process to a new broker, without blocking.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::super::BrokerError;
use super::super::machine::Machine;
use super::super::protocol::{
    DomainOpening, ProtocolError, Request, Response, SOCKETS_AT_ONCE, TargetCall,
};
use super::super::sys::HangupWatch;
use super::connection::{AnswerWait, Connection};
use super::{ANSWER_TIMEOUT, ClientResources, process_name};
use crate::link::LocalAddr;

/// One message to the broker. Each waits for the answer to the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResumeStep {
    /// The slot of this process.
    Hello,
    /// Sockets of an address, starting at this index.
    Restore(LocalAddr, usize),
    /// Use of shared-memory links.
    RegisterWake,
    /// The ACK journal.
    AckJournal,
    /// A port of the connection manager, by its index in the holdings.
    Port(usize),
    /// An XRC domain, by its index in the holdings.
    Domain(usize),
    /// An XRC target, by the indexes of its domain and of the target in it.
    Target(usize, usize),
    /// The end.
    Resumed,
}

/// Progress of the handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeProgress {
    /// The broker has to answer, within this time.
    Waiting(Duration),
    /// The broker has the whole state.
    Done,
}

/// A connection to a broker that does not have the whole state yet.
pub(super) struct Resume {
    connection: Connection,
    /// The message that waits for its answer, and those that follow.
    steps: VecDeque<ResumeStep>,
    wait: AnswerWait,
}

impl Resume {
    /// Sends the first message, and watches the connection for answers.
    pub(super) fn begin(
        connection: OwnedFd,
        resources: &ClientResources,
        watch: &HangupWatch,
        machine: &Arc<dyn Machine>,
    ) -> Result<Self, BrokerError> {
        let connection = Connection::new(connection, machine);
        connection.watch_with(watch)?;
        let restore = resources.shares.iter().flat_map(|(local, share)| {
            let firsts = (0..share.sockets.len()).step_by(SOCKETS_AT_ONCE);
            firsts.map(|first| ResumeStep::Restore(*local, first))
        });
        let share = resources.wake.is_some().then_some(ResumeStep::RegisterWake);
        let journal = resources
            .journal
            .is_some()
            .then_some(ResumeStep::AckJournal);
        let domains = resources
            .domains
            .iter()
            .enumerate()
            .flat_map(|(at, domain)| {
                let targets =
                    (0..domain.targets.len()).map(move |target| ResumeStep::Target(at, target));
                [ResumeStep::Domain(at)].into_iter().chain(targets)
            });
        let resume = Self {
            wait: connection.begin_to_wait(ANSWER_TIMEOUT),
            connection,
            steps: [ResumeStep::Hello]
                .into_iter()
                .chain(restore)
                .chain(share)
                .chain(journal)
                .chain((0..resources.ports.len()).map(ResumeStep::Port))
                .chain(domains)
                .chain([ResumeStep::Resumed])
                .collect(),
        };
        resume.send_step(ResumeStep::Hello, resources)?;
        Ok(resume)
    }

    /// Sends further messages, as far as the broker has answered.
    ///
    /// # Errors
    /// This broker cannot be used.
    pub(super) fn step(
        &mut self,
        resources: &mut ClientResources,
    ) -> Result<ResumeProgress, BrokerError> {
        while let Some(sent) = self.steps.front().copied() {
            let Some((response, fds)) = self.connection.try_answer()? else {
                return Ok(ResumeProgress::Waiting(self.wait.left(&self.connection)?));
            };
            match (sent, response) {
                (ResumeStep::Hello, Response::Leased { slot, .. }) if slot == resources.slot => {
                    if let Some(lock) = fds.into_iter().next() {
                        resources.lock = lock;
                    }
                }
                (
                    ResumeStep::Restore(..) | ResumeStep::RegisterWake | ResumeStep::Resumed,
                    Response::Accepted,
                ) => {}
                (ResumeStep::AckJournal, Response::Accepted) => {
                    resources
                        .journal
                        .iter()
                        .for_each(|journal| journal.set_registered(true));
                }
                (ResumeStep::Port(_), Response::Bound(_)) => {}
                (ResumeStep::Domain(_), Response::Domain) => {}
                (ResumeStep::Target(..), Response::Target { .. }) => {}
                (ResumeStep::Domain(_), Response::NoDomain { .. })
                | (ResumeStep::Target(..), Response::NoTarget) => {
                    tracing::warn!(
                        "failed to restore an XRC domain: other processes use a different one now"
                    );
                }
                // Another process was faster and receives the requests.
                (ResumeStep::Port(_), Response::PortTaken(_)) => {
                    tracing::warn!("failed to restore a port: another process has it now");
                }
                _ => return Err(ProtocolError::Unexpected.into()),
            }
            self.steps.pop_front();
            if let Some(next) = self.steps.front() {
                self.send_step(*next, resources)?;
                self.wait = self.connection.begin_to_wait(ANSWER_TIMEOUT);
            }
        }
        Ok(ResumeProgress::Done)
    }

    /// Waits up to `time` until there is something to continue with.
    pub(super) fn wait(&self, time: Duration) -> Result<(), BrokerError> {
        self.connection.wait(time)
    }

    /// Returns the connection, once the broker has the whole state.
    pub(super) fn finish(self) -> Connection {
        tracing::info!("resumed with a new broker");
        self.connection
    }

    pub(super) const fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn send_step(&self, what: ResumeStep, resources: &ClientResources) -> Result<(), BrokerError> {
        match what {
            ResumeStep::Hello => {
                let resume = Some(resources.slot);
                let name = process_name();
                let faults = resources.own_faults.clone();
                let hello = Request::Hello {
                    resume,
                    name,
                    faults,
                };
                self.connection.send(&hello, &[resources.lock.as_fd()])
            }
            ResumeStep::Restore(local, first) => {
                let share = resources.shares.get(&local).ok_or(BrokerError::Lost)?;
                let address_lock = (first == 0).then(|| share.address_lock.as_fd());
                let sockets = share.sockets.iter().skip(first).take(SOCKETS_AT_ONCE);
                let fds: Vec<_> = address_lock
                    .into_iter()
                    .chain(sockets.map(AsFd::as_fd))
                    .collect();
                let first = u8::try_from(first).map_err(|_| ProtocolError::Descriptors)?;
                let key = share.key;
                self.connection
                    .send(&Request::Restore { local, key, first }, &fds)
            }
            ResumeStep::RegisterWake => {
                let wake = resources.wake.iter().map(AsFd::as_fd).collect::<Vec<_>>();
                self.connection.send(&Request::RegisterWake, &wake)
            }
            ResumeStep::Resumed => self.connection.send(&Request::Resumed, &[]),
            ResumeStep::Port(at) => {
                let binding = *resources.ports.get(at).ok_or(BrokerError::Lost)?;
                let any_port = false;
                let bind = Request::Bind { binding, any_port };
                self.connection.send(&bind, &[])
            }
            ResumeStep::Domain(at) => {
                let domain = resources.domains.get(at).ok_or(BrokerError::Lost)?;
                let opening = DomainOpening {
                    key: domain.key,
                    create: true,
                    exclusive: false,
                    resumes: true,
                };
                let request = Request::OpenDomain(opening);
                self.connection.send(&request, &[domain.memory.as_fd()])
            }
            ResumeStep::Target(at, target) => {
                let domain = resources.domains.get(at).ok_or(BrokerError::Lost)?;
                let qpn = domain.targets.get(target).ok_or(BrokerError::Lost)?;
                let request = Request::Target(domain.key, *qpn, TargetCall::Open);
                self.connection.send(&request, &[])
            }
            ResumeStep::AckJournal => {
                let journal = resources.journal.iter().map(|journal| journal.fd());
                let journal = journal.collect::<Vec<_>>();
                self.connection.send(&Request::AckJournal, &journal)
            }
        }
    }
}
