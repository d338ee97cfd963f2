//! Hands the state of this process to a new broker, without blocking.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::super::BrokerError;
use super::super::protocol::{
    DomainOpening, ProtocolError, Request, Response, SOCKETS_AT_ONCE, TargetCall,
};
use super::super::sys::HangupWatch;
use super::connection::{AnswerWait, Connection};
use super::{ANSWER_TIMEOUT, Holdings, process_name};
use crate::link::LocalAddr;

/// One message to the broker. Each waits for the answer to the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Say {
    /// The slot of this process.
    Hello,
    /// Sockets of an address, starting at this index.
    Restore(LocalAddr, usize),
    /// Use of shared-memory links.
    Share,
    /// The ACK journal.
    AckJournal,
    /// A port of the connection manager, by its index in the holdings.
    Port(usize),
    /// An XRC domain, by its index in the holdings.
    Domain(usize),
    /// An XRC target, by the indexes of its domain and of the target in it.
    Target(usize, usize),
}

/// Progress of the handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The broker has to answer, within this time.
    Waiting(Duration),
    /// The broker has the whole state.
    Done,
}

/// A connection to a broker that does not have the whole state yet.
pub(super) struct Resume {
    connection: Connection,
    /// The message that waits for its answer, and those that follow.
    to_say: VecDeque<Say>,
    wait: AnswerWait,
}

impl Resume {
    /// Sends the first message, and watches the connection for answers.
    pub(super) fn begin(
        connection: OwnedFd,
        holdings: &Holdings,
        watch: &HangupWatch,
    ) -> Result<Self, BrokerError> {
        let connection = Connection::new(connection);
        connection.watch_with(watch)?;
        let restore = holdings.shares.iter().flat_map(|(local, share)| {
            let firsts = (0..share.sockets.len()).step_by(SOCKETS_AT_ONCE);
            firsts.map(|first| Say::Restore(*local, first))
        });
        let share = holdings.wake.is_some().then_some(Say::Share);
        let journal = holdings.journal.is_some().then_some(Say::AckJournal);
        let domains = holdings
            .domains
            .iter()
            .enumerate()
            .flat_map(|(at, domain)| {
                let targets = (0..domain.targets.len()).map(move |target| Say::Target(at, target));
                [Say::Domain(at)].into_iter().chain(targets)
            });
        let resume = Self {
            connection,
            to_say: [Say::Hello]
                .into_iter()
                .chain(restore)
                .chain(share)
                .chain(journal)
                .chain((0..holdings.ports.len()).map(Say::Port))
                .chain(domains)
                .collect(),
            wait: AnswerWait::begin(ANSWER_TIMEOUT),
        };
        resume.say(Say::Hello, holdings)?;
        Ok(resume)
    }

    /// Sends further messages, as far as the broker has answered.
    ///
    /// # Errors
    /// This broker cannot be used.
    pub(super) fn step(&mut self, holdings: &mut Holdings) -> Result<Progress, BrokerError> {
        while let Some(said) = self.to_say.front().copied() {
            let Some((response, fds)) = self.connection.try_answer()? else {
                return Ok(Progress::Waiting(self.wait.left(&self.connection)?));
            };
            match (said, response) {
                (Say::Hello, Response::Welcome { slot, .. }) if slot == holdings.slot => {
                    if let Some(lock) = fds.into_iter().next() {
                        holdings.lock = lock;
                    }
                }
                (Say::Restore(..) | Say::Share, Response::Accepted) => {}
                (Say::AckJournal, Response::Accepted) => {
                    holdings
                        .journal
                        .iter()
                        .for_each(|journal| journal.set_registered(true));
                }
                (Say::Port(_), Response::Bound(_)) => {}
                (Say::Domain(_), Response::Domain) => {}
                (Say::Target(..), Response::Target { .. }) => {}
                (Say::Domain(_), Response::NoDomain { .. })
                | (Say::Target(..), Response::NoTarget) => {
                    tracing::warn!(
                        "failed to restore an XRC domain: other processes use a different one now"
                    );
                }
                // Another process was faster and receives the requests.
                (Say::Port(_), Response::PortTaken(_)) => {
                    tracing::warn!("failed to restore a port: another process has it now");
                }
                _ => return Err(ProtocolError::Unexpected.into()),
            }
            self.to_say.pop_front();
            if let Some(next) = self.to_say.front() {
                self.say(*next, holdings)?;
                self.wait = AnswerWait::begin(ANSWER_TIMEOUT);
            }
        }
        Ok(Progress::Done)
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

    fn say(&self, what: Say, holdings: &Holdings) -> Result<(), BrokerError> {
        match what {
            Say::Hello => {
                let resume = Some(holdings.slot);
                let name = process_name();
                let faults = holdings.own_faults.clone();
                let hello = Request::Hello {
                    resume,
                    name,
                    faults,
                };
                self.connection.send(&hello, &[holdings.lock.as_fd()])
            }
            Say::Restore(local, first) => {
                let share = holdings.shares.get(&local).ok_or(BrokerError::Lost)?;
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
            Say::Share => {
                let wake = holdings.wake.iter().map(AsFd::as_fd).collect::<Vec<_>>();
                self.connection.send(&Request::Share, &wake)
            }
            Say::Port(at) => {
                let binding = *holdings.ports.get(at).ok_or(BrokerError::Lost)?;
                let any_port = false;
                let bind = Request::Bind { binding, any_port };
                self.connection.send(&bind, &[])
            }
            Say::Domain(at) => {
                let domain = holdings.domains.get(at).ok_or(BrokerError::Lost)?;
                let opening = DomainOpening {
                    key: domain.key,
                    create: true,
                    exclusive: false,
                    resumes: true,
                };
                let request = Request::OpenDomain(opening);
                self.connection.send(&request, &[domain.memory.as_fd()])
            }
            Say::Target(at, target) => {
                let domain = holdings.domains.get(at).ok_or(BrokerError::Lost)?;
                let qpn = domain.targets.get(target).ok_or(BrokerError::Lost)?;
                let request = Request::Target(domain.key, *qpn, TargetCall::Open);
                self.connection.send(&request, &[])
            }
            Say::AckJournal => {
                let journal = holdings.journal.iter().map(|journal| journal.fd());
                let journal = journal.collect::<Vec<_>>();
                self.connection.send(&Request::AckJournal, &journal)
            }
        }
    }
}
