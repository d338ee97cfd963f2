//! The engine's end of the connection to the broker.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rocade_transport::Time;

use super::{BrokerClient, BrokerConfig, BrokerError, ServiceOutcome};
use crate::link::{LinkError, LocalAddr, UdpLink};
use crate::steering::ProcessSlot;

/// Holds the slot of this process, returns sockets and reconnects after the broker has ended.
#[derive(Debug)]
pub(crate) struct BrokerLink {
    client: BrokerClient,
    /// Time of the next attempt to reach the broker, in ns. 0 while connected.
    retry_at: AtomicU64,
}

impl BrokerLink {
    /// Connects a process that was started with the fault rules `faults`.
    pub(crate) fn connect(config: &BrokerConfig, faults: Vec<String>) -> Result<Self, BrokerError> {
        let client = BrokerClient::connect_with(config, faults)?;
        Ok(Self {
            client,
            retry_at: AtomicU64::new(0),
        })
    }

    pub(crate) fn slot(&self) -> ProcessSlot {
        self.client.slot()
    }

    pub(crate) fn open(&self, local: LocalAddr) -> Result<Result<UdpLink, LinkError>, BrokerError> {
        let socket = self.client.socket_for(local)?;
        Ok(UdpLink::from_broker(local, self.client.slot(), socket))
    }

    /// Returns the broker client, for shared-memory links.
    pub(crate) const fn client(&self) -> &BrokerClient {
        &self.client
    }

    /// Returns the fd that is readable when [`BrokerLink::service`] has something to do.
    pub(crate) fn fd(&self) -> RawFd {
        self.client.control_fd()
    }

    pub(crate) fn service(&self, now: Time) {
        let at = match self.client.service() {
            ServiceOutcome::Retry(delay) => now
                .plus_ns(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX))
                .as_ns(),
            ServiceOutcome::Connected | ServiceOutcome::Reconnected => 0,
        };
        self.retry_at.store(at, Ordering::Relaxed);
    }

    pub(crate) fn retry_at(&self) -> Option<Time> {
        match self.retry_at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Time::from_ns(at)),
        }
    }
}
