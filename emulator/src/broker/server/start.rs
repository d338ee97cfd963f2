//! The start of a broker, which may have to wait for an earlier one to end.
//!
//! The only wait of a broker outside poll is here, in [`take_over`].

#![allow(clippy::disallowed_methods, reason = "it waits for another process")]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rocade_transport::Time;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::identity::Identity;
use super::super::paths::{Paths, open_lock};
use super::super::{BrokerConfig, BrokerError, start, sys};
use super::LOOK_AGAIN;
use super::files::{BACKLOG, Files};
use crate::clock::Clock;
use crate::sys::{bind, socket};

/// Time that a starting broker waits for one that listens but may be about to end. Its listener
/// does not show that it will. If it lives on, or ends later, the clients connect or start another
/// broker.
const TAKEOVER_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest wait for a broker that does not listen and needs CPU time to end. A stopped one would
/// otherwise hold up every start. It is below the time that a client waits for its broker.
const LONGEST_END: Duration = Duration::from_secs(30);

/// Starts listening, unless another broker does. `passed` is the socket in the abstract namespace
/// at which a service manager listens.
///
/// # Errors
/// [`BrokerError::AlreadyRunning`] if another broker runs, or the reason why the files cannot be
/// created.
pub(super) fn take_over(
    config: &BrokerConfig,
    clock: &Clock,
    process: &Arc<dyn Identity>,
    passed: Option<Socket>,
) -> Result<Files, BrokerError> {
    let mut takeover = Takeover::new(config, clock.now(), Arc::clone(process))?;
    takeover.passed = passed;
    loop {
        takeover = match takeover.step(clock.now())? {
            Step::Listening(files) => return Ok(files),
            Step::Wait(again) => again,
        };
        thread::sleep(LOOK_AGAIN);
    }
}

/// Result of a step.
pub(in crate::broker) enum Step {
    /// The broker listens.
    Listening(Files),
    /// An earlier broker still has what this one needs. To be tried again in a moment.
    Wait(Takeover),
}

/// The start of a broker, step by step.
pub(in crate::broker) struct Takeover {
    process: Arc<dyn Identity>,
    paths: Paths,
    lock: File,
    /// The listener of a service manager.
    passed: Option<Socket>,
    /// True once this process holds the lock.
    is_locked: bool,
    /// Beginning of the wait for the lock, then of the wait for the abstract name.
    begin: Time,
}

impl Takeover {
    pub(in crate::broker) fn new(
        config: &BrokerConfig,
        now: Time,
        process: Arc<dyn Identity>,
    ) -> Result<Self, BrokerError> {
        let paths = Paths::new(config);
        paths.prepare()?;
        SockAddr::unix(paths.socket()).map_err(|_| paths.too_long())?;
        let failed = BrokerError::failure("failed to take the broker's lock");
        Ok(Self {
            lock: open_lock(&paths.broker_lock()).map_err(failed)?,
            paths,
            process,
            passed: None,
            is_locked: false,
            begin: now,
        })
    }

    /// Takes the next step.
    ///
    /// # Errors
    /// As [`take_over`].
    pub(in crate::broker) fn step(mut self, now: Time) -> Result<Step, BrokerError> {
        if !self.is_locked && !self.take_lock(now)? {
            return Ok(Step::Wait(self));
        }
        let listener = match self.passed.take() {
            Some(passed) => Some(self.listen_at(passed)?),
            None => match self.listen_abstract(now)? {
                Some(AbstractListener(listener)) => listener,
                None => return Ok(Step::Wait(self)),
            },
        };
        Files::create(&self.paths, self.lock, listener, now)
            .map(Step::Listening)
            .map_err(BrokerError::failure("failed to listen"))
    }

    /// Takes the lock. Returns false if an earlier broker still holds it.
    fn take_lock(&mut self, now: Time) -> Result<bool, BrokerError> {
        let failed = BrokerError::failure("failed to take the broker's lock");
        if !sys::try_lock(self.lock.as_fd()).map_err(failed)? {
            let waited = now.since(self.begin);
            let is_late =
                waited > TAKEOVER_TIMEOUT && start::connect(&self.paths, &*self.process).is_ok();
            if is_late || waited > LONGEST_END {
                return Err(BrokerError::AlreadyRunning);
            }
            return Ok(false);
        }
        (self.is_locked, self.begin) = (true, now);
        // Informational, so errors are ignored.
        let _ = self
            .lock
            .set_len(0)
            .and_then(|()| writeln!(self.lock, "{}", self.process.own_pid()));
        Ok(true)
    }

    /// Takes over the listener of a service manager. From then on its peers see this process.
    fn listen_at(&self, passed: Socket) -> Result<Socket, BrokerError> {
        let failed = BrokerError::failure("failed to listen");
        let address = passed.local_addr().map_err(&failed)?;
        let wanted = self.paths.abstract_name();
        // The name of an abstract address has no leading zero.
        if address.as_abstract_namespace() != wanted.get(1..) {
            let wanted = wanted.get(1..).unwrap_or_default();
            return Err(failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "programs look for the broker at ListenSequentialPacket=@{}, and the service \
                     manager listens elsewhere",
                    String::from_utf8_lossy(wanted)
                ),
            )));
        }
        passed.listen(BACKLOG).map_err(failed)?;
        Ok(passed)
    }

    /// Listens in the abstract namespace. Returns `None` if an earlier broker still has the name.
    fn listen_abstract(&self, now: Time) -> Result<Option<AbstractListener>, BrokerError> {
        let failed = BrokerError::failure("failed to listen");
        let name = self.paths.abstract_name();
        let address = SockAddr::unix(std::ffi::OsStr::from_bytes(&name)).map_err(&failed)?;
        let kind = Type::SEQPACKET.nonblocking().cloexec();
        let listener = socket(Domain::UNIX, kind, None).map_err(&failed)?;
        match bind(listener.as_fd(), &address) {
            Ok(()) => {
                listener.listen(BACKLOG).map_err(&failed)?;
                return Ok(Some(AbstractListener(Some(listener))));
            }
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(failed(error)),
            Err(_) => {}
        }
        let is_late = now.since(self.begin) > TAKEOVER_TIMEOUT;
        match start::connect_abstract(&self.paths, &*self.process) {
            Err(BrokerError::ForeignBroker { uid }) => {
                tracing::warn!(uid, "another user has the broker's abstract name");
                Ok(Some(AbstractListener(None)))
            }
            // The other broker may be ending.
            Ok(_) if is_late => Err(BrokerError::AlreadyRunning),
            // The name is bound without a listener, so its owner is not a broker.
            Err(_) if is_late => Ok(Some(AbstractListener(None))),
            _ => Ok(None),
        }
    }
}

/// The listener in the abstract namespace. `None` if another process has the name.
struct AbstractListener(Option<Socket>);
