//! The services of the engine for the connection manager: QP 1, addresses and the broker's table of
//! services.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rocade_transport::cm::{CmRoute, CmTransmit};
use rocade_transport::{AddressVector, Time};
use rocade_wire::{Guid, Packet, Psn, Qpn};

use super::{Host, Nic, Presence, Scheduler};
use crate::cm::CmIo;
use crate::error::VerbsError;
use crate::gsi::services::{Binding, BoundTo, Conflict};
use crate::gsi::{mad_of, packet};
use crate::hca::Hca;
use crate::journal::AckJournal;
use crate::link::Link as _;
use crate::state::LocalEndpoint;
use crate::steering::ProcessSlot;

impl Host {
    pub(crate) fn hcas(&self) -> &[Arc<Hca>] {
        &self.hcas
    }

    /// GUID of the first device, which identifies the process to other connection managers.
    pub(crate) fn node_guid(&self) -> Guid {
        let first = self.hcas.first();
        first.map_or(Guid::new(0), |hca| hca.config.guid)
    }
}

impl Presence {
    /// Returns the slot of this process, if it has one.
    pub(crate) fn slot(&self) -> Option<ProcessSlot> {
        let attachment = self.attachment.lock();
        attachment.as_ref().map(|a| a.qp_numbers.slot())
    }

    /// The ACK and connection journal, if there is a broker. It outlives this process.
    pub(crate) fn ack_journal(&self) -> Option<Arc<AckJournal>> {
        self.ack_journal.get().cloned()
    }

    /// Reserves a port for the host. Returns `None` if there is no broker.
    pub(crate) fn reserve_on_host(
        &self,
        wanted: Binding,
        any_port: bool,
    ) -> Result<Option<Binding>, VerbsError> {
        let Some(broker) = self.broker_link() else {
            return Ok(None);
        };
        let granted = broker.client().bind_service(wanted, any_port)?;
        granted
            .map(Some)
            .map_err(|conflict| VerbsError::Io(io::Error::from_raw_os_error(conflict.errno())))
    }

    /// Registers this process for requests to a service. Returns [`Conflict`] if another process
    /// has it.
    pub(crate) fn listen_on_host(
        &self,
        binding: Binding,
    ) -> Result<Result<(), Conflict>, VerbsError> {
        match self.broker_link() {
            Some(broker) => Ok(broker.client().listen_service(binding)?),
            None => Ok(Ok(())),
        }
    }

    /// Releases a port.
    pub(crate) fn release_on_host(&self, binding: Binding) {
        if let Some(broker) = self.broker_link()
            && let Err(error) = broker.client().release_service(binding)
        {
            tracing::debug!(%error, "failed to release a port");
        }
    }
}

impl Scheduler {
    /// Wakes the background thread if it would sleep beyond `at`.
    pub(crate) fn wake_background_by(&self, at: Time) {
        self.service_queue.wake_thread_by(at);
    }
}

impl CmIo for Nic {
    fn host(&self) -> &Host {
        &self.host
    }

    fn slot(&self) -> Option<ProcessSlot> {
        self.presence.slot()
    }

    fn journal(&self) -> Option<Arc<AckJournal>> {
        self.presence.ack_journal()
    }

    fn send_mad(&self, psn: Psn, transmit: &CmTransmit, flow: Option<u32>) {
        if let Err(error) = self.try_send_mad(psn, transmit, flow) {
            tracing::debug!(%error, route = ?transmit.route, "failed to send a MAD");
        }
    }

    fn wake_by(&self, at: Time) {
        self.scheduler.wake_background_by(at);
    }

    fn receive_rings(&self) {
        self.receive_all_unpublished();
    }
}

impl Nic {
    /// Sends a MAD from QP 1 to QP 1. Without a socket of its source it is lost.
    //= MAD-01
    //= MAD-06
    fn try_send_mad(&self, psn: Psn, transmit: &CmTransmit, flow: Option<u32>) -> io::Result<()> {
        let CmRoute { local, remote } = transmit.route;
        // Recursive, because a thread that receives already holds the lock.
        let endpoints = self.links.endpoints.read_recursive();
        let mut endpoints = endpoints.iter();
        let Some(endpoint) = endpoints.find(|endpoint| endpoint.link.local() == local) else {
            return Ok(());
        };
        let av = AddressVector::default();
        let mut tx_route = endpoint.tx_route_to(Qpn::GSI, remote, (&av, flow), None)?;
        let packet = packet(tx_route.source_port(), psn, transmit.route, &transmit.mad);
        let packet = packet.ok_or(io::ErrorKind::InvalidInput)?;
        self.send_datagram(endpoint, &mut tx_route, &packet);
        Ok(())
    }

    /// Returns the slot of this process. Attaches to the broker first if necessary.
    pub(crate) fn attached_slot(self: &Arc<Self>) -> Result<ProcessSlot, VerbsError> {
        let mut attachment = self.presence.attachment.lock();
        if attachment.is_none() {
            *attachment = Some(self.attach()?);
        }
        let slot = attachment.as_ref().map(|a| a.qp_numbers.slot());
        slot.ok_or(VerbsError::NoMemory("slots"))
    }

    /// Handles a packet for QP 1 with a right ICRC. Returns false if it is for another process on
    /// this address.
    #[cold]
    pub(super) fn to_gsi(
        &self,
        endpoint: &LocalEndpoint,
        source: IpAddr,
        segment: &[u8],
        forwarded: bool,
    ) -> bool {
        // The broker gets the packets of other processes first.
        let is_ours = |own| ProcessSlot::of_datagram(segment) == Some(own);
        if !forwarded && !endpoint.link.slot().is_none_or(is_ours) {
            return false;
        }
        let packet = Packet::parse(segment).ok();
        let message = packet
            .as_ref()
            .and_then(|packet| Some((packet.bth(), mad_of(packet)?)));
        match message {
            Some((bth, mad)) => {
                self.host.note_migreq(source, bth.migreq);
                self.cm.put(endpoint.link.local(), source, mad);
            }
            None => self.observers.count(|counters| &counters.rx_malformed),
        }
        true
    }

    /// Opens the sockets of all addresses that `to` covers. One is enough to succeed.
    pub(crate) fn open_all(&self, to: BoundTo) -> Result<(), VerbsError> {
        let addresses = self.host.hcas.iter().flat_map(|hca| {
            let addrs = hca.config.addrs();
            addrs.map(|ip| hca.local_addr(ip))
        });
        self.open_any(addresses.filter(|local| to.covers(local.ip())))
    }
}
