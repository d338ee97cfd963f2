//! Client connections: accepting, limiting and dropping them.
//!
//! One process must not lock others out, by staying silent or by not reading answers. A connection
//! without a slot has a short time limit. When the broker is full, it drops the oldest of these
//! first. The broker stops serving a client that does not read, and drops it after a timeout, but
//! the client can reconnect.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rocade_transport::Time;
use socket2::Socket;

use super::super::protocol::{MAX_LEN, RefusalCode, Request, Response, VERSION, with_version};
use super::super::sys::{self, effective_uid};
use super::ack_journal::RegisteredJournal;
use super::error::{NO_DESCRIPTORS, means_no_descriptor};
use super::faults::ClientFaults;
use super::handover::Unclaimed;
use super::{LOOK_AGAIN, Pending, Server};
use crate::fdpass::{self, Peer};
use crate::steering::ProcessSlot;

/// Most connections at a time: one client per slot, and some status queries.
const MAX_CONNECTIONS: usize = 300;
/// Time that a connection may have no slot. A peer that connects and stays silent would otherwise
/// keep the broker from ending. A client that got no CPU time for so long connects again.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a client may leave messages unread while it sends more requests. A stopped client and
/// a slow one look the same. A dropped one connects again.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Most offers of shared-memory links that a client may leave unread, because each holds
/// descriptors.
const MAX_UNREAD_OFFERS: u32 = 16;

/// A client's connection.
pub(super) struct Client {
    pub(super) connection: OwnedFd,
    pub(super) peer: Peer,
    pub(super) name: String,
    pub(super) slot: Option<ProcessSlot>,
    /// The eventfd that wakes the client, if it uses shared-memory links.
    pub(super) wake: Option<OwnedFd>,
    /// The client's ACK journal, to process when the client is gone.
    pub(super) registered_journal: Option<RegisteredJournal>,
    /// Number of the client's report of fault rules.
    pub(super) report_number: u64,
    /// An unanswered request for an address.
    pub(super) pending: Option<Pending>,
    /// An unanswered request for what another client may have a better right to.
    pub(super) deferred: Option<Request>,
    /// Resources of the slot that a resuming client has not handed over yet. `None` for a client
    /// that is new, or has said that this was all.
    pub(super) unclaimed: Option<Unclaimed>,
    /// The client's fault rules.
    pub(super) faults: ClientFaults,
    /// The protocol version of the client's requests.
    pub(super) version: u16,
    /// True if the connection is to be dropped.
    pub(super) gone: bool,
    since: Time,
    /// Time since which the client has sent a request while an earlier message is unread.
    stuck_since: Option<Time>,
    unread_offers: u32,
}

impl Client {
    fn new(connection: OwnedFd, peer: Peer, since: Time) -> Self {
        Self {
            connection,
            peer,
            name: String::new(),
            slot: None,
            wake: None,
            registered_journal: None,
            report_number: 0,
            pending: None,
            deferred: None,
            unclaimed: None,
            faults: ClientFaults::default(),
            version: VERSION,
            gone: false,
            since,
            stuck_since: None,
            unread_offers: 0,
        }
    }

    /// Returns the poll entry for the next request, or only for a hangup while the client is stuck.
    pub(super) fn poll(&self) -> libc::pollfd {
        let mut entry = sys::poll_readable(self.connection.as_fd());
        if self.is_stuck() {
            entry.events = 0;
        }
        entry
    }

    /// Returns true if the client resumes its slot and has not handed over everything yet.
    pub(super) const fn is_resuming(&self) -> bool {
        self.unclaimed.is_some()
    }

    pub(super) const fn is_stuck(&self) -> bool {
        self.stuck_since.is_some()
    }

    /// Returns true if the client has received all messages. Otherwise the broker stops serving it
    /// for now.
    pub(super) fn has_read_all(&mut self, now: Time) -> bool {
        let unread = sys::has_unread(self.connection.as_fd());
        self.stuck_since = unread.then(|| self.stuck_since.unwrap_or(now));
        !unread
    }

    /// Returns the time at which the client is dropped unless something happens.
    pub(super) fn deadline(&self) -> Option<Time> {
        let is_silent = self.slot.is_none() && self.deferred.is_none();
        let without_slot = is_silent.then(|| self.since.plus(HELLO_TIMEOUT));
        let stuck = self.stuck_since.map(|since| since.plus(UNREAD_TIMEOUT));
        [without_slot, stuck].into_iter().flatten().min()
    }

    /// Sends an answer. Drops a client that does not receive the answer to its own request.
    pub(super) fn send(&mut self, response: &Response, fds: &[BorrowedFd<'_>]) {
        if let Err(error) = self.try_send(response, fds) {
            tracing::warn!(pid = self.peer.pid, %error, "failed to answer a client: dropping it");
            self.gone = true;
        }
    }

    /// Sends an answer.
    ///
    /// # Errors
    /// The error of sending. The client stays.
    pub(super) fn try_send(&self, response: &Response, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = with_version(response.encode(), self.version);
        fdpass::send(self.connection.as_fd(), &message, fds)
    }

    /// Sends an offer unless too many are unread. Returns false if it was not sent.
    pub(super) fn offer(&mut self, offer: &Response, fds: &[BorrowedFd<'_>]) -> bool {
        if !sys::has_unread(self.connection.as_fd()) {
            self.unread_offers = 0;
        }
        if self.unread_offers >= MAX_UNREAD_OFFERS {
            return false;
        }
        self.unread_offers += 1;
        self.try_send(offer, fds).is_ok()
    }
}

/// A spare descriptor, closed when no other is left, to accept a connection and refuse it.
pub(super) struct Reserve(Option<File>);

impl Reserve {
    pub(super) fn new() -> Self {
        let mut reserve = Self(None);
        reserve.refill();
        reserve
    }

    fn refill(&mut self) {
        if self.0.is_none() {
            // Any file serves, and a directory tree without devices has no /dev/null.
            self.0 = File::open("/dev/null").or_else(|_| File::open("/")).ok();
        }
    }
}

impl Server {
    /// Accepts the connections waiting at one of the listeners.
    pub(super) fn accept(&mut self, which: usize) {
        while let Some(accepted) = self.files.accept(which) {
            match accepted {
                Ok(connection) => self.admit(connection),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if means_no_descriptor(&error) && self.drop_oldest_without_slot() {
                        continue;
                    }
                    tracing::warn!(%error, "failed to accept a connection");
                    return self.reject_excess(which);
                }
            }
        }
    }

    fn admit(&mut self, connection: Socket) {
        let peer = match self.check_peer(connection.as_fd()) {
            Ok(peer) => peer,
            Err(error) => return tracing::warn!(%error, "connection refused"),
        };
        let mut client = Client::new(connection.into(), peer, self.now);
        if self.clients.len() >= MAX_CONNECTIONS && !self.drop_oldest_without_slot() {
            return refuse(&mut client, "the broker has as many connections as it can");
        }
        self.clients.push(client);
    }

    /// Drops the oldest connection without a slot. Returns false if there is none.
    fn drop_oldest_without_slot(&mut self) -> bool {
        let oldest = self.clients.iter().position(|client| client.slot.is_none());
        let Some(oldest) = oldest else { return false };
        let client = self.clients.remove(oldest);
        tracing::warn!(
            pid = client.peer.pid,
            "dropped the oldest connection without a slot to make room"
        );
        true
    }

    /// Ends this broker if its limits are too small and the peer could start one with larger
    /// limits. The peer retries, as with any broker that ends. Returns true if the broker ends.
    pub(super) fn end_for_larger_limits(&mut self, peer: Peer) -> bool {
        let can_do_better =
            peer.pid != 0 && self.process.are_limits_too_low(peer.pid) == Some(false);
        if self.limits_too_low && can_do_better {
            tracing::warn!(
                pid = peer.pid,
                "ending, so that this process can start a broker with larger limits"
            );
            self.stop = true;
            return true;
        }
        false
    }

    /// Refuses a connection with an error message when no descriptor is left for it.
    fn reject_excess(&mut self, which: usize) {
        if self.reserve.0.take().is_none() {
            // Avoids a busy loop on the listener.
            self.accept_again = self.now.plus(LOOK_AGAIN);
        }
        if let Some(Ok(connection)) = self.files.accept(which)
            && let Ok(peer) = self.check_peer(connection.as_fd())
        {
            if self.end_for_larger_limits(peer) {
                return;
            }
            let mut client = Client::new(connection.into(), peer, self.now);
            refuse(&mut client, NO_DESCRIPTORS);
        }
        self.reserve.refill();
    }

    /// Drops the clients whose timeout has expired.
    pub(super) fn check_deadlines(&mut self) {
        let now = self.now;
        for client in &mut self.clients {
            if client.is_stuck() {
                client.has_read_all(now);
            }
            if client.deadline().is_some_and(|deadline| deadline <= now) {
                tracing::warn!(
                    pid = client.peer.pid,
                    "dropped a client that sends or receives nothing"
                );
                client.gone = true;
            }
        }
    }

    /// Returns the process that has connected, which has to be of this user.
    fn check_peer(&self, connection: BorrowedFd<'_>) -> io::Result<Peer> {
        let peer = self.process.peer(connection)?;
        if peer.uid != effective_uid() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("process {} belongs to user {}", peer.pid, peer.uid),
            ));
        }
        Ok(peer)
    }
}

fn refuse(client: &mut Client, text: &str) {
    tracing::warn!(pid = client.peer.pid, text, "connection refused");
    let (code, text) = (RefusalCode::Limit, text.to_owned());
    client.send(&Response::Error { code, text }, &[]);
    // Closing the socket with unread data would discard the answer.
    let _ = fdpass::receive(client.connection.as_fd(), &mut vec![0; MAX_LEN]);
}
