//! The remote end of a connection.

use alloc::boxed::Box;
use core::net::{IpAddr, Ipv4Addr};

use rocade_wire::{Bth, DcEth, DcRespEth, Mtu, Opcode, Operation, Pkey, Psn, Qpn, Service};

use crate::attr::QpType;
use crate::counters::DropReason;
use crate::transmit::Head;

/// The bits of an opcode that encode its service.
const OPCODE_BASE: u8 = 0xe0;
/// A value that matches no opcode.
const NO_BASE: u8 = !OPCODE_BASE;

/// Network addresses of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// Source address, IPv4 addresses unmapped.
    pub source: IpAddr,
    /// Destination address, IPv4 addresses unmapped.
    pub destination: IpAddr,
    /// IPv4 TOS or IPv6 traffic class. 0 if unknown.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit. 64 if unknown.
    pub hop_limit: u8,
}

impl PacketMeta {
    /// Returns true if the network has marked the packet as having met congestion (ECN CE).
    #[inline]
    pub(crate) const fn is_marked(&self) -> bool {
        const CONGESTION_EXPERIENCED: u8 = 3;
        self.traffic_class & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED
    }
}

/// Format of the packets of a transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framing {
    /// The upper bits of its opcodes.
    base: u8,
}

impl Framing {
    /// Returns the framing of a QP type.
    pub(crate) const fn of(qp_type: QpType) -> Self {
        Self {
            base: qp_type.traits().packets.base(),
        }
    }

    /// Returns the opcode of an operation, which the service must have.
    #[inline]
    pub(crate) const fn opcode(self, operation: Operation) -> Opcode {
        Opcode::new(self.base | operation.low_bits())
    }

    /// Returns the opcode of an operation that is not in the standard.
    //= XAW-02
    pub(crate) const fn extension_opcode(self, operation: Operation) -> Option<Opcode> {
        let is_dc = self.base == Service::Dc.base();
        let service = if is_dc {
            Service::Dc
        } else {
            Service::Manufacturer
        };
        Opcode::of(service, operation)
    }

    /// Returns true if requests name a shared receive queue (XRC).
    #[inline]
    pub(crate) const fn names_srq(self) -> bool {
        self.base == Service::Xrc.base()
    }

    /// Returns true if an opcode belongs to the service, reserved ones included.
    #[inline]
    pub(crate) const fn owns(self, opcode: Opcode) -> bool {
        opcode.get() & OPCODE_BASE == self.base || self.owns_extension(opcode)
    }

    /// Returns true if an opcode is a Rocade extension of the service: masked atomics and their
    /// responses.
    //= XAW-02
    //= XAW-06
    #[cold]
    const fn owns_extension(self, opcode: Opcode) -> bool {
        let is_rc = self.base == Service::Rc.base();
        match opcode.get() {
            0xf2 => is_rc || self.names_srq(),
            0xf8 | 0xf9 => is_rc,
            0xfa | 0xfb => self.names_srq(),
            _ => false,
        }
    }
}

/// Path migration states. The discriminants are the `ibv_mig_state` values.
//= RC-APM-01
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Migration {
    /// There is only one path, or no other one is ready.
    Migrated = 0,
    /// The alternate path is ready on this side.
    Rearm = 1,
    /// The alternate path is ready on both sides.
    Armed = 2,
}

/// The alternate path, used when the primary one fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alternate {
    pub(crate) pkey: Pkey,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    /// A packet on the alternate path that did not match the peer has been reported.
    pub(crate) complained: bool,
}

/// The additional header fields of a dynamic connection.
#[derive(Clone, Debug)]
pub(crate) struct SessionTag {
    pub(crate) id: u32,
    /// Request fields: access key of the target, QP number of the initiator, and its stream
    /// channel.
    pub(crate) key: u64,
    pub(crate) dci: Qpn,
    pub(crate) stream_channel: u8,
    /// PSN of the first packet, until it is acknowledged.
    pub(crate) start: Option<Psn>,
}

impl SessionTag {
    #[cold]
    fn push_onto(&self, head: &mut Head, operation: Operation, pmtu: Mtu) {
        //= DCW-03
        if operation.is_response() {
            let eth = DcRespEth { session: self.id };
            head.push(&eth.to_bytes());
            return;
        }
        //= DCW-04 DCW-08
        let eth = DcEth {
            key: self.key,
            start: self.start == Some(head.bth.psn),
            pmtu: pmtu.code(),
            stream_channel: self.stream_channel,
            dci: self.dci,
            session: self.id,
        };
        head.push(&eth.to_bytes());
    }
}

/// The remote QP, and the fields that all packets to it share.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The QP number of the peer.
    pub(crate) qpn: Qpn,
    pub(crate) pkey: Pkey,
    pub(crate) pmtu: Mtu,
    pub(crate) framing: Framing,
    /// Source address of packets to the peer.
    pub(crate) local: IpAddr,
    /// Address of the peer.
    pub(crate) remote: IpAddr,
    pub(crate) migration: Migration,
    /// Copies of the above for the fast path: the migration bit, and the opcode base of its
    /// packets.
    pub(crate) is_migrated: bool,
    pub(crate) fast_path_base: u8,
    pub(crate) alternate: Option<Box<Alternate>>,
    /// Only for dynamic connections.
    pub(crate) session: Option<Box<SessionTag>>,
}

impl Peer {
    /// Creates a peer that is not set yet.
    pub(crate) const fn unknown(framing: Framing) -> Self {
        Self {
            qpn: Qpn::new(0),
            pkey: Pkey::DEFAULT,
            pmtu: Mtu::Mtu256,
            framing,
            local: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            remote: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            migration: Migration::Migrated,
            is_migrated: true,
            fast_path_base: framing.base,
            alternate: None,
            session: None,
        }
    }

    /// Returns true if the QP may migrate to the alternate path when the current one fails.
    //= RC-APM-05
    pub(crate) const fn may_migrate(&self) -> bool {
        matches!(self.migration, Migration::Armed) && self.alternate.is_some()
    }

    /// Returns true if the migration bit of a packet requires a change of the migration state.
    //= RC-APM-09 RXE-112
    #[inline]
    pub(crate) const fn changes_migration_state(&self, bth: &Bth) -> bool {
        match self.migration {
            Migration::Migrated => false,
            Migration::Rearm => !bth.migreq,
            Migration::Armed => bth.migreq,
        }
    }

    /// Returns true if a packet is certainly from this peer and has no meaning for path migration.
    /// Always false for a QP that may migrate.
    #[inline]
    pub(crate) fn is_fast_path(&self, meta: &PacketMeta, bth: &Bth) -> bool {
        //= BTH-15 RC-LIM-05 BTH-06
        bth.opcode.get() & OPCODE_BASE == self.fast_path_base
            && meta.source == self.remote
            && meta.destination == self.local
            && bth.pkey.is_same_full(self.pkey)
    }

    pub(crate) const fn set_migration(&mut self, migration: Migration) {
        self.migration = migration;
        self.is_migrated = matches!(migration, Migration::Migrated);
        self.fast_path_base = if self.is_migrated {
            self.framing.base
        } else {
            NO_BASE
        };
    }

    /// Returns the reason why a packet cannot be from this peer, if there is one.
    #[inline]
    pub(crate) fn reject_reason(&self, meta: &PacketMeta, bth: &Bth) -> Option<DropReason> {
        //= BTH-15 RC-LIM-05 BTH-06
        if !self.framing.owns(bth.opcode) {
            Some(DropReason::WrongService)
        } else if meta.source != self.remote || meta.destination != self.local {
            Some(DropReason::WrongAddress)
        } else if !bth.pkey.matches(self.pkey) {
            Some(DropReason::BadPkey)
        } else {
            None
        }
    }

    /// Returns the reason why a packet cannot be for a datagram QP, if there is one.
    pub(crate) fn reject_datagram(&self, meta: &PacketMeta, bth: &Bth) -> Option<DropReason> {
        //= BTH-15 BTH-06
        if !self.framing.owns(bth.opcode) {
            Some(DropReason::WrongService)
        } else if meta.destination.is_multicast() != (bth.dest_qp == Qpn::MULTICAST) {
            //= MC-03
            Some(DropReason::WrongAddress)
        } else if !bth.pkey.matches(self.pkey) {
            Some(DropReason::BadPkey)
        } else {
            None
        }
    }

    /// Returns the reason why a congestion notification cannot be from this peer, if there is one.
    //= CNP-02
    pub(crate) fn reject_cnp(&self, meta: &PacketMeta, bth: &Bth) -> Option<DropReason> {
        if meta.source != self.remote || meta.destination != self.local {
            Some(DropReason::WrongAddress)
        } else if !bth.pkey.matches(self.pkey) {
            Some(DropReason::BadPkey)
        } else {
            None
        }
    }

    /// Returns a congestion notification packet (CNP) for the peer.
    //= CNP-01 ETH-11
    pub(crate) fn cnp(&self) -> Head {
        let mut head = self.bare_head(Operation::Acknowledge, Psn::new(0), 0);
        head.bth.opcode = Opcode::new(Service::Cnp.base() | Operation::Cnp.low_bits());
        head.bth.migreq = false;
        head.bth.becn = true;
        head.push(&[0; 16]);
        head
    }

    pub(crate) const fn pmtu_bytes(&self) -> u32 {
        self.pmtu.bytes()
    }

    /// Returns the number of packets of a message of `len` bytes.
    //= MTU-03
    pub(crate) const fn packets(&self, len: u32) -> u32 {
        if len <= self.pmtu_bytes() {
            1
        } else {
            len.div_ceil(self.pmtu_bytes())
        }
    }

    /// Returns the head of a packet to the peer. The caller adds extension headers, except that of
    /// a session.
    #[inline]
    pub(crate) fn head(&self, operation: Operation, psn: Psn, payload_len: usize) -> Head {
        let mut head = self.bare_head(operation, psn, payload_len);
        if let Some(session) = &self.session {
            session.push_onto(&mut head, operation, self.pmtu);
        }
        head
    }

    #[inline]
    pub(crate) fn bare_head(&self, operation: Operation, psn: Psn, payload_len: usize) -> Head {
        Head::new(self.bth(operation, psn, payload_len))
    }

    /// Returns true if packets have the same extension headers as with RC.
    #[inline]
    pub(crate) const fn adds_nothing(&self) -> bool {
        self.session.is_none() && !self.framing.names_srq()
    }

    /// Returns the BTH of a packet to the peer.
    #[inline(always)]
    pub(crate) const fn bth(&self, operation: Operation, psn: Psn, payload_len: usize) -> Bth {
        Bth {
            opcode: self.framing.opcode(operation),
            solicited: false,
            //= BTH-03 RC-APM-02
            migreq: self.is_migrated,
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= BTH-15 type=test
    #[test]
    fn opcodes_are_those_of_the_service() {
        let framing = Framing::of(QpType::Rc);
        for &operation in Operation::ALL {
            if let Some(opcode) = Opcode::of(Service::Rc, operation) {
                assert_eq!(framing.opcode(operation), opcode);
            }
        }
        for opcode in 0..=u8::MAX {
            let opcode = Opcode::new(opcode);
            //= XAW-01 XAW-02 type=test
            let is_own = matches!(opcode.get(), 0xf2 | 0xf8 | 0xf9);
            let owned = opcode.service() == Service::Rc || is_own;
            assert_eq!(framing.owns(opcode), owned);
        }
    }
}
