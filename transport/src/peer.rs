//! The other end of a connection.

use core::net::{IpAddr, Ipv4Addr};

use rocade_wire::{Bth, Mtu, Operation, Pkey, Psn, Qpn};

use crate::counters::DropReason;
use crate::service::Service;
use crate::transmit::Head;

/// Network addresses of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// Source address, IPv4 addresses unmapped.
    pub source: IpAddr,
    /// Destination address, likewise.
    pub destination: IpAddr,
}

/// Who a QP talks to, and what is the same in all their packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Our own number.
    pub(crate) qp_num: Qpn,
    /// Its number.
    pub(crate) qpn: Qpn,
    pub(crate) pkey: Pkey,
    pub(crate) pmtu: Mtu,
    pub(crate) service: Service,
    /// Address that packets to it leave from.
    pub(crate) local: IpAddr,
    /// Its address.
    pub(crate) remote: IpAddr,
}

impl Peer {
    /// Nobody yet.
    pub(crate) const fn unknown(qp_num: Qpn, service: Service) -> Self {
        Self {
            qp_num,
            qpn: Qpn::new(0),
            pkey: Pkey::DEFAULT,
            pmtu: Mtu::Mtu256,
            service,
            local: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            remote: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        }
    }

    /// Why a packet cannot be this peer's, if so (BTH-15, RC-LIM-05, BTH-06).
    #[inline]
    pub(crate) fn reject_reason(&self, meta: &PacketMeta, bth: &Bth) -> Option<DropReason> {
        //= BTH-15 RC-LIM-05 BTH-06
        if bth.opcode.service() != self.service.wire() {
            Some(DropReason::WrongService)
        } else if meta.source != self.remote || meta.destination != self.local {
            Some(DropReason::WrongAddress)
        } else if !bth.pkey.matches(self.pkey) {
            Some(DropReason::BadPkey)
        } else {
            None
        }
    }

    pub(crate) const fn pmtu_bytes(&self) -> u32 {
        self.pmtu.bytes()
    }

    /// Packets of a message of `len` bytes (MTU-03, RC-SEG-02).
    pub(crate) const fn packets(&self, len: u32) -> u32 {
        if len <= self.pmtu_bytes() {
            1
        } else {
            len.div_ceil(self.pmtu_bytes())
        }
    }

    /// Head of a packet to the peer; extension headers are the caller's.
    #[inline]
    pub(crate) fn head(&self, operation: Operation, psn: Psn, payload_len: usize) -> Head {
        Head::new(Bth {
            opcode: self.service.opcode(operation),
            solicited: false,
            //= BTH-03
            migreq: true,
            //= BTH-04
            pad_count: Bth::pad_for(payload_len),
            tver: 0,
            pkey: self.pkey,
            fecn: false,
            becn: false,
            resv6: 0,
            dest_qp: self.qpn,
            ack_req: false,
            resv7: 0,
            psn,
        })
    }
}
