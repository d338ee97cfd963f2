//! A connection to the broker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rocade_transport::Time;
use rocade_wire::Qpn;

use super::super::machine::Machine;
use super::super::protocol::{
    Ends, FaultUpdate, MAX_LEN, ProtocolError, Request, Response, TargetEvent, VERSION, version_of,
    with_version,
};
use super::super::sys::HangupWatch;
use super::super::{BrokerError, RefusalCode};
use super::{ANSWER_TIMEOUT, LONGEST_ANSWER, LOOK_WHETHER_STOPPED, Share, Stop, StopOutcome};
use crate::fdpass;
use crate::journal::AckJournal;
use crate::link::LocalAddr;
use crate::link::peer_link::PeerLinkOffer;
use crate::steering::ProcessSlot;

/// A received message: its bytes and its descriptors.
type Message = (Vec<u8>, Vec<OwnedFd>);

/// A connection to the broker. Requests and answers alternate, and unsolicited messages may arrive
/// in between.
pub(super) struct Connection {
    socket: OwnedFd,
    machine: Arc<dyn Machine>,
    /// Shared-memory links that peers have requested.
    offers: Vec<PeerLinkOffer>,
    /// A new lock file of this process's slot.
    lock: Option<OwnedFd>,
    /// Events of XRC targets.
    of_targets: Vec<(Qpn, TargetEvent)>,
    /// The current fault rules of this process.
    faults: Option<FaultUpdate>,
}

/// Unsolicited messages.
pub(super) struct Notifications {
    /// Shared-memory links that peers have requested.
    pub(super) offers: Vec<PeerLinkOffer>,
    /// A new lock file of this process's slot.
    pub(super) lock: Option<OwnedFd>,
    /// Events of XRC targets.
    pub(super) of_targets: Vec<(Qpn, TargetEvent)>,
    /// The current fault rules of this process.
    pub(super) faults: Option<FaultUpdate>,
}

impl Notifications {
    pub(super) const fn is_empty(&self) -> bool {
        let Self {
            offers,
            lock,
            of_targets,
            faults,
        } = self;
        offers.is_empty() && lock.is_none() && of_targets.is_empty() && faults.is_none()
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, machine: &Arc<dyn Machine>) -> Self {
        Self {
            socket,
            machine: Arc::clone(machine),
            offers: Vec::new(),
            lock: None,
            of_targets: Vec::new(),
            faults: None,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the unsolicited messages received so far.
    pub(super) fn notifications(&mut self) -> Notifications {
        Notifications {
            offers: std::mem::take(&mut self.offers),
            lock: self.lock.take(),
            of_targets: std::mem::take(&mut self.of_targets),
            faults: self.faults.take(),
        }
    }

    /// Sends a request.
    pub(super) fn send(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError> {
        fdpass::send(self.fd(), &request.encode(), fds)
            .map_err(lost_or("failed to send a request to the broker"))
    }

    /// Sends a request and waits for its answer.
    pub(super) fn ask(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Response, Vec<OwnedFd>), BrokerError> {
        if let Err(error) = self.send(request, fds) {
            // A broker that refuses a client may have sent the reason before it hung up.
            return self.try_answer()?.ok_or(error);
        }
        let mut wait = self.begin_to_wait(patience);
        loop {
            if let Some(answer) = self.try_answer()? {
                return Ok(answer);
            }
            let left = wait.left(self)?;
            self.wait(left)?;
        }
    }

    /// Returns the answer to the last request, if it was received.
    pub(super) fn try_answer(&mut self) -> Result<Option<(Response, Vec<OwnedFd>)>, BrokerError> {
        loop {
            let Some((message, fds)) = self.receive()? else {
                return Ok(None);
            };
            match self.decode(&message, fds.len())? {
                Response::Error { code, text } => {
                    return Err(BrokerError::Refused { code, text });
                }
                Response::Offer(ends) => self.offers.push(offer(ends, false, fds)?),
                Response::Lock => self.lock = fds.into_iter().next(),
                Response::TargetEvent(qpn, event) => self.of_targets.push((qpn, event)),
                Response::FaultUpdate(update) => self.faults = Some(update),
                response => return Ok(Some((response, fds))),
            }
        }
    }

    fn receive(&self) -> Result<Option<Message>, BrokerError> {
        let mut buf = vec![0; MAX_LEN];
        match fdpass::receive(self.fd(), &mut buf) {
            Ok((0, _)) => Err(BrokerError::Lost),
            Ok((len, fds)) => {
                buf.truncate(len);
                Ok(Some((buf, fds)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(lost_or("failed to receive the broker's answer")(error)),
        }
    }

    fn decode(&self, message: &[u8], fds: usize) -> Result<Response, BrokerError> {
        Response::decode(message, fds).map_err(|error| match error {
            ProtocolError::Version(version) => BrokerError::OtherVersion {
                pid: self.broker_pid(),
                version,
            },
            error => error.into(),
        })
    }

    /// Waits up to `time` for a message.
    pub(super) fn wait(&self, time: Duration) -> Result<(), BrokerError> {
        self.machine.until_readable(self.fd(), time)
    }

    /// Starts waiting for an answer. After `patience`, the client gives up a broker that was
    /// stopped.
    pub(super) fn begin_to_wait(&self, patience: Duration) -> AnswerWait {
        let now = self.machine.now();
        AnswerWait {
            next_look: now.plus(patience),
            limit: now.plus(patience.max(LONGEST_ANSWER)),
        }
    }

    /// Returns the error for a broker that did not answer in time.
    fn silent(&self) -> BrokerError {
        BrokerError::Silent {
            pid: self.broker_pid(),
        }
    }

    /// Returns the process ID of the broker. 0 where it is invisible to this process.
    fn broker_pid(&self) -> u32 {
        let peer = self.machine.process().peer(self.fd());
        peer.map_or(0, |peer| peer.pid)
    }

    /// Tells the broker to stop.
    pub(super) fn stop(&mut self) -> Result<Stop, BrokerError> {
        self.stop_as(VERSION)
    }

    /// Tells a broker of another version to stop. This message is the same in all versions.
    pub(super) fn stop_as(&mut self, version: u16) -> Result<Stop, BrokerError> {
        let message = with_version(Request::Stop.encode(), version);
        fdpass::send(self.fd(), &message, &[])
            .map_err(lost_or("failed to send a request to the broker"))?;
        let mut wait = self.begin_to_wait(ANSWER_TIMEOUT);
        loop {
            let left = wait.left(self)?;
            self.wait(left)?;
            let Some((message, fds)) = self.receive()? else {
                continue;
            };
            let theirs = version_of(&message).unwrap_or(version);
            match Response::decode(&message, fds.len()) {
                Ok(Response::Stopping {
                    broker_pid,
                    clients,
                }) => {
                    return Ok(Stop::Outcome(StopOutcome {
                        pid: broker_pid,
                        clients,
                    }));
                }
                Ok(Response::Error {
                    code: RefusalCode::Version,
                    ..
                }) if theirs != version => return Ok(Stop::OtherVersion(theirs)),
                Ok(Response::Error { code, text }) => {
                    return Err(BrokerError::Refused { code, text });
                }
                Ok(
                    Response::Offer(_)
                    | Response::Lock
                    | Response::TargetEvent(..)
                    | Response::FaultUpdate(_),
                ) => {}
                Err(ProtocolError::Version(_)) if theirs != version => {
                    return Ok(Stop::OtherVersion(theirs));
                }
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(ProtocolError::Unexpected.into()),
            }
        }
    }

    /// Requests the sockets 0 up to that of this process's slot.
    pub(super) fn open(
        &mut self,
        local: LocalAddr,
        slot: ProcessSlot,
        patience: Duration,
    ) -> Result<Share, BrokerError> {
        let (share, sockets) = self.open_from(local, 0, slot, patience)?;
        let mut share = share.ok_or(ProtocolError::Descriptors)?;
        share.sockets = sockets;
        while share.sockets.len() <= slot.index() {
            let (_, more) = self.open_from(local, share.sockets.len(), slot, patience)?;
            share.sockets.extend(more);
        }
        Ok(share)
    }

    /// Requests some sockets, starting at index `from`. Those from 0 come with the rest of the
    /// share.
    fn open_from(
        &mut self,
        local: LocalAddr,
        from: usize,
        slot: ProcessSlot,
        patience: Duration,
    ) -> Result<(Option<Share>, Vec<OwnedFd>), BrokerError> {
        let first = u8::try_from(from).map_err(|_| ProtocolError::Descriptors)?;
        let (response, fds) = self.ask(&Request::Open { local, first }, &[], patience)?;
        let Response::Sockets {
            local: of,
            key,
            first: theirs,
            total,
        } = response
        else {
            return Err(ProtocolError::Unexpected.into());
        };
        if of != local || theirs != first || usize::from(total) != slot.index() + 1 {
            return Err(ProtocolError::Unexpected.into());
        }
        let mut fds = fds.into_iter();
        let mut share = None;
        if first == 0 {
            let address_lock = fds.next().ok_or(ProtocolError::Descriptors)?;
            share = Some(Share {
                address_lock,
                key,
                sockets: Vec::new(),
            });
        }
        Ok((share, fds.collect()))
    }

    /// Enables shared-memory links.
    pub(super) fn share(&mut self, wake: &OwnedFd) -> Result<(), BrokerError> {
        match self.ask(&Request::RegisterWake, &[wake.as_fd()], ANSWER_TIMEOUT)? {
            (Response::Accepted, _) => Ok(()),
            _ => Err(ProtocolError::Unexpected.into()),
        }
    }

    /// Passes the ACK journal to the broker.
    pub(super) fn register_journal(&mut self, journal: &AckJournal) -> Result<(), BrokerError> {
        match self.ask(&Request::AckJournal, &[journal.fd()], ANSWER_TIMEOUT)? {
            (Response::Accepted, _) => {
                journal.set_registered(true);
                Ok(())
            }
            _ => Err(ProtocolError::Unexpected.into()),
        }
    }

    /// Requests a shared-memory link.
    pub(super) fn channel(&mut self, wanted: Ends) -> Result<Option<PeerLinkOffer>, BrokerError> {
        match self.ask(&Request::ShmLink(wanted), &[], ANSWER_TIMEOUT)? {
            (Response::ShmLink(ends), fds) if ends == wanted => offer(ends, true, fds).map(Some),
            (Response::NoShmLink, _) => Ok(None),
            _ => Err(ProtocolError::Unexpected.into()),
        }
    }

    pub(super) fn watch_with(&self, watch: &HangupWatch) -> Result<(), BrokerError> {
        watch
            .watch(self.socket.as_fd())
            .map_err(BrokerError::failure(
                "failed to watch the connection to the broker",
            ))
    }

    /// Receives unsolicited messages. Returns false if the broker has closed its end, or sends an
    /// answer without a request.
    pub(super) fn read_notifications(&mut self) -> bool {
        matches!(self.try_answer(), Ok(None))
    }
}

/// Timeouts of an answer of the broker.
///
/// On a busy machine the broker may get no CPU time for seconds. The timeout therefore only applies
/// to a broker that was stopped, or that does not answer for very long.
#[derive(Debug)]
pub(super) struct AnswerWait {
    next_look: Time,
    limit: Time,
}

impl AnswerWait {
    /// Returns the time to wait before the next call.
    ///
    /// # Errors
    /// [`BrokerError::Silent`] if the client gives up the broker.
    pub(super) fn left(&mut self, connection: &Connection) -> Result<Duration, BrokerError> {
        let machine = &connection.machine;
        let now = machine.now();
        if now >= self.next_look {
            if now >= self.limit || machine.process().is_stopped(connection.broker_pid()) {
                return Err(connection.silent());
            }
            self.next_look = self.limit.min(now.plus(LOOK_WHETHER_STOPPED));
        }
        Ok(self.next_look.since(now))
    }
}

/// Builds the shared-memory link from the descriptors of a message.
fn offer(ends: Ends, asked: bool, fds: Vec<OwnedFd>) -> Result<PeerLinkOffer, BrokerError> {
    let Ends { local, peer, slot } = ends;
    let [memory, liveness_socket, wake] =
        <[OwnedFd; 3]>::try_from(fds).map_err(|_| ProtocolError::Descriptors)?;
    Ok(PeerLinkOffer {
        local,
        peer,
        slot,
        asked,
        memory,
        liveness_socket,
        wake,
    })
}

/// Returns [`BrokerError::Lost`] if the broker has closed its end, else the system error.
fn lost_or(failure: &'static str) -> impl Fn(io::Error) -> BrokerError {
    move |source| match source.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::NotConnected
        | io::ErrorKind::WouldBlock => BrokerError::Lost,
        _ => BrokerError::System { failure, source },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::super::super::machine::ThisMachine;
    use super::*;

    /// This process has both ends, counts as the broker and was not stopped.
    #[test]
    fn a_broker_that_was_not_stopped_has_a_minute() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let connection = Connection::new(ours.into(), &ThisMachine::shared());
        assert_eq!(connection.broker_pid(), std::process::id());
        let mut wait = connection.begin_to_wait(Duration::ZERO);
        let left = wait.left(&connection).unwrap();
        assert!(!left.is_zero() && left <= LOOK_WHETHER_STOPPED);
        wait.next_look = connection.machine.now();
        wait.left(&connection).unwrap();
        wait.limit = connection.machine.now();
        wait.next_look = wait.limit;
        let error = wait.left(&connection).unwrap_err();
        assert!(matches!(error, BrokerError::Silent { .. }), "{error}");
    }
}
