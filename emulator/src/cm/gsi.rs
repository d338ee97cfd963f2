//! Sends the datagrams of the connection manager from QP 1.

use std::sync::Arc;

use rocade_transport::AddressVector;
use rocade_transport::cm::{CmRoute, CmTransmit};
use rocade_wire::{Psn, Qpn};

use crate::engine::Nic;
use crate::gsi::packet;
use crate::state::LocalEndpoint;

impl Nic {
    /// Sends a MAD from QP 1 to QP 1. Without room it is lost, like any datagram.
    //= MAD-01
    //= MAD-06
    pub(super) fn send_mad(
        &self,
        endpoint: &Arc<LocalEndpoint>,
        psn: Psn,
        transmit: &CmTransmit,
    ) -> std::io::Result<()> {
        let CmRoute { remote, .. } = transmit.route;
        let tx_route = endpoint.tx_route_to(Qpn::GSI, remote, &AddressVector::default(), None)?;
        let packet = packet(tx_route.source_port(), psn, transmit.route, &transmit.mad);
        let packet = packet.ok_or(std::io::ErrorKind::InvalidInput)?;
        self.send_datagram(endpoint, &tx_route, &packet);
        Ok(())
    }
}
