//! The state of an ID, and the attributes of its queue pair.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rocade_transport::{
    AccessFlags, AddressVector, QpAttr, QpAttrMask, QpState, QpType, transition_rule,
};
use rocade_wire::mad::{CmPath, CmTimeout, CommId, Ece, ServiceId};
use rocade_wire::{Gid, Mtu, Psn, Qkey, Qpn};

use super::address::PathHint;
use super::event::CmEventChannel;
use crate::config::Likeness;
use crate::error::VerbsError;
use crate::gsi::services::Binding;
use crate::hca::{Hca, Port};

/// The key of an ID in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct IdKey(pub(super) u64);

/// The name space of ports (`rdma_port_space`).
//= CMA-01
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[doc(alias = "rdma_port_space")]
pub enum PortSpace {
    /// `RDMA_PS_IPOIB`: datagrams.
    Ipoib = 0x0002,
    /// `RDMA_PS_TCP`: connections.
    Tcp = 0x0106,
    /// `RDMA_PS_UDP`: datagrams.
    Udp = 0x0111,
    /// `RDMA_PS_IB`: connections or datagrams, depending on the queue pair.
    Ib = 0x013f,
}

impl PortSpace {
    /// The port space of this code.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0x0002 => Some(Self::Ipoib),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }

    /// The service ID of a port.
    pub(super) const fn service(self, port: u16) -> ServiceId {
        ServiceId::of_port(self as u16, port)
    }
}

/// The state of an ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdState {
    Idle,
    AddrBound,
    /// The system asks for the peer.
    AddrQuery,
    AddrResolved,
    RouteResolved,
    Listen,
    Connect,
    Disconnect,
    /// The device was removed. All that is left is to destroy the ID.
    Removed,
}

impl IdState {
    /// The kernel's number of the state (`enum rdma_cm_state`).
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Idle => 0,
            Self::AddrQuery => 1,
            Self::AddrResolved => 2,
            Self::RouteResolved => 4,
            Self::Connect => 5,
            Self::Disconnect => 6,
            Self::AddrBound => 7,
            Self::Listen => 8,
            Self::Removed => 9,
        }
    }
}

/// Packet life time on RoCE.
//= CMA-06
pub(super) const PACKET_LIFE: CmTimeout = CmTimeout::new(16);
/// Response timeout of peers.
//= CMA-06
pub(super) const RESPONSE_TIMEOUT: CmTimeout = CmTimeout::new(20);
/// Number of retransmissions of a message.
//= CMA-06
pub(super) const MAX_CM_RETRIES: u8 = 15;
/// Q_Key of datagram services.
//= CMA-12
pub(super) const UDP_QKEY: Qkey = Qkey::new(0x0123_4567);
/// TTL or hop limit of paths.
//= CMA-07
const HOP_LIMIT: u8 = 64;
/// The permissive LID, because RoCE has no LIDs.
//= CMA-08
const PERMISSIVE_LID: u16 = 0xffff;

/// The attributes of the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerEnd {
    pub(super) qpn: Qpn,
    pub(super) sq_psn: Psn,
    pub(super) mtu: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) timeout: CmTimeout,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
}

/// An ID.
#[derive(Debug)]
pub(super) struct IdCore {
    pub(super) channel: Arc<CmEventChannel>,
    /// The application's cookie, `None` until the application knows the ID.
    pub(super) cookie: Option<u64>,
    pub(super) port_space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) state: IdState,
    pub(super) src: Option<SocketAddr>,
    pub(super) dst: Option<SocketAddr>,
    /// The address that was to be resolved last.
    pub(super) asked: Option<SocketAddr>,
    /// Its port, if other processes have to know it.
    pub(super) binding: Option<Binding>,
    pub(super) hca: Option<Arc<Hca>>,
    pub(super) conn: Option<CommId>,
    /// The peer's initial PSN.
    pub(super) rq_psn: Psn,
    pub(super) peer: Option<PeerEnd>,
    pub(super) tos: u8,
    pub(super) ack_timeout: Option<u8>,
    pub(super) reuse: bool,
    pub(super) af_only: bool,
    pub(super) backlog: usize,
    /// Requests that the application has not taken.
    pub(super) pending: usize,
    /// Number of events that the application has got.
    pub(super) reported: u64,
    pub(super) qkey: Option<Qkey>,
    pub(super) srq: bool,
    pub(super) local_qpn: Qpn,
    /// Number of retries after timeouts that the application demands.
    pub(super) retry_count: u8,
    /// Set if the addresses are native InfiniBand addresses: the requested service, 0 while there
    /// is none.
    pub(super) ib: Option<ServiceId>,
    /// The path attributes that the application has set.
    pub(super) hint: Option<PathHint>,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
}

impl IdCore {
    pub(super) fn new(
        channel: Arc<CmEventChannel>,
        port_space: PortSpace,
        qp_type: QpType,
    ) -> Self {
        Self {
            channel,
            cookie: None,
            port_space,
            qp_type,
            state: IdState::Idle,
            src: None,
            dst: None,
            asked: None,
            binding: None,
            hca: None,
            conn: None,
            rq_psn: Psn::new(0),
            peer: None,
            tos: 0,
            ack_timeout: None,
            reuse: false,
            af_only: false,
            backlog: 0,
            pending: 0,
            reported: 0,
            qkey: None,
            srq: false,
            local_qpn: Qpn::new(0),
            retry_count: 7,
            ib: None,
            hint: None,
            local_ece: Ece::NONE,
            remote_ece: Ece::NONE,
        }
    }

    /// The services of both sides, if the addresses are native InfiniBand addresses.
    pub(super) fn ib_services(&self) -> Option<[ServiceId; 2]> {
        let peers = self.ib?;
        let own = self.binding.map(|binding| binding.service);
        let port = self.src.map_or(0, |src| src.port());
        Some([own.unwrap_or_else(|| self.port_space.service(port)), peers])
    }

    /// Hop limit of the path.
    //= CMA-07
    pub(super) fn hop_limit(&self) -> u8 {
        let told = self.hint.map(|hint| hint.hop_limit);
        told.filter(|limit| *limit != 0).unwrap_or(HOP_LIMIT)
    }

    /// Returns true if the ID is of datagrams instead of connections.
    pub(super) const fn is_datagram(&self) -> bool {
        matches!(self.qp_type, QpType::Ud)
    }

    /// The port of the device that it is bound to.
    fn port(&self) -> Option<&Port> {
        let ip = self.src?.ip();
        Some(self.hca.as_ref()?.port_with(ip))
    }

    /// The number of that port, or of the first one while it is not bound.
    pub(super) fn port_num(&self) -> u8 {
        self.port().map_or(1, |port| port.number)
    }

    pub(super) fn gid_index(&self) -> Result<u8, VerbsError> {
        let port = self.port().ok_or(VerbsError::NoDevice)?;
        let ip = self.src.map(|src| src.ip()).ok_or(VerbsError::NoDevice)?;
        let index = port.index_of(ip).ok_or(VerbsError::NoDevice)?;
        u8::try_from(index).map_err(|_| VerbsError::NoDevice)
    }

    pub(super) fn mtu(&self) -> Mtu {
        self.port().map_or(Mtu::Mtu1024, Port::active_mtu)
    }

    /// The packet life time of this ID.
    //= CMA-06
    pub(super) fn packet_life(&self) -> CmTimeout {
        self.ack_timeout
            .map_or(PACKET_LIFE, |t| CmTimeout::new(t.saturating_sub(1)))
    }

    //= CMA-07
    pub(super) fn flow_label(&self) -> u32 {
        if let Some(hint) = self.hint {
            return hint.flow_label;
        }
        let port = |addr: Option<SocketAddr>| addr.map_or(0, |addr| u32::from(addr.port()));
        (port(self.src) * 31 + port(self.dst)) & 0xf_ffff
    }

    /// Returns the flow label that both ends use: that of the peer's REQ, or of its own.
    pub(super) fn path_flow_label(&self) -> u32 {
        let told = self.peer.map(|peer| peer.flow_label);
        told.unwrap_or_else(|| self.flow_label())
    }

    /// The kind of device that its device imitates.
    fn like(&self) -> Likeness {
        self.hca.as_ref().map(|hca| hca.like()).unwrap_or_default()
    }

    /// The ACK delay of the device.
    //= CM-FLD-06
    pub(super) fn ack_delay(&self) -> CmTimeout {
        CmTimeout::new(self.like().ack_delay())
    }

    /// Returns the path for a REQ.
    //= CMA-07
    //= CMA-08
    pub(super) fn path(&self, local: IpAddr, remote: IpAddr) -> CmPath {
        CmPath {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: Gid::from_ip(local),
            remote_gid: Gid::from_ip(remote),
            flow_label: self.flow_label(),
            packet_rate: self.like().packet_rate(),
            traffic_class: self.tos,
            hop_limit: self.hop_limit(),
            sl: 0,
            subnet_local: false,
            //= CM-FLD-05
            ack_timeout: CmTimeout::ack_timeout(self.packet_life(), self.ack_delay()),
        }
    }

    /// Returns the address vector of the peer, for address handles and queue pairs.
    //= CMA-09
    pub(super) fn address(&self) -> Result<AddressVector, VerbsError> {
        let remote = self.dst.ok_or(VerbsError::InvalidArgument("no peer"))?;
        let (hop_limit, traffic_class, flow_label) = match &self.peer {
            Some(peer) => (peer.hop_limit, peer.traffic_class, peer.flow_label),
            None => (self.hop_limit(), self.tos, self.flow_label()),
        };
        Ok(AddressVector {
            dgid: Gid::from_ip(remote.ip()),
            sgid_index: self.gid_index()?,
            flow_label,
            hop_limit,
            traffic_class,
            is_global: true,
            port_num: self.port_num(),
            ..AddressVector::default()
        })
    }

    /// Returns the address vector of a multicast group.
    //= CMA-14
    pub(super) fn group_address(&self, group: IpAddr) -> Result<AddressVector, VerbsError> {
        Ok(AddressVector {
            dgid: Gid::from_ip(group),
            sgid_index: self.gid_index()?,
            hop_limit: if group.is_ipv4() { HOP_LIMIT } else { 1 },
            traffic_class: self.tos,
            is_global: true,
            port_num: self.port_num(),
            ..AddressVector::default()
        })
    }

    /// Returns the attributes that a transition of the queue pair requires.
    fn required(&self, from: QpState, to: QpState) -> QpAttrMask {
        let rule = transition_rule(self.qp_type, from, to);
        rule.map_or(QpAttrMask::STATE, |rule| rule.required | QpAttrMask::STATE)
    }

    /// Returns the attributes that the queue pair needs for a state (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the peer is not known yet.
    //= CMA-10
    pub(super) fn qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        let mut attr = QpAttr {
            qp_state: state.code(),
            ..QpAttr::default()
        };
        if self.is_datagram() {
            return self.datagram_attr(state, attr);
        }
        if state == QpState::Init {
            attr.port_num = self.port_num();
            if let Some(peer) = self.peer.filter(|_| self.conn.is_some()) {
                attr.qp_access_flags = AccessFlags::REMOTE_WRITE;
                if peer.responder_resources > 0 {
                    attr.qp_access_flags |= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
                }
            }
            let mask = QpAttrMask::STATE
                | QpAttrMask::PKEY_INDEX
                | QpAttrMask::PORT
                | QpAttrMask::ACCESS_FLAGS;
            return Ok((attr, mask));
        }
        let peer = self
            .peer
            .ok_or(VerbsError::InvalidArgument("no peer yet"))?;
        match state {
            QpState::Rtr => {
                attr.path_mtu = peer.mtu.min(self.mtu().code()).into();
                attr.dest_qp_num = peer.qpn.get();
                attr.rq_psn = self.rq_psn.get();
                attr.ah_attr = self.address()?;
                attr.max_dest_rd_atomic = peer.responder_resources;
                Ok((attr, self.required(QpState::Init, QpState::Rtr)))
            }
            QpState::Rts => {
                attr.sq_psn = peer.sq_psn.get();
                attr.timeout = self.ack_timeout.unwrap_or_else(|| peer.timeout.code());
                attr.retry_cnt = peer.retry_count;
                attr.rnr_retry = peer.rnr_retry_count;
                //= RC-LIM-03
                attr.max_rd_atomic = peer.initiator_depth;
                Ok((attr, self.required(QpState::Rtr, QpState::Rts)))
            }
            _ => Err(VerbsError::InvalidArgument("qp_state")),
        }
    }

    fn datagram_attr(
        &self,
        state: QpState,
        mut attr: QpAttr,
    ) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        let mask = match state {
            QpState::Init => {
                attr.port_num = self.port_num();
                attr.qkey = self.qkey.unwrap_or(UDP_QKEY).get();
                QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY
            }
            QpState::Rtr => QpAttrMask::STATE,
            QpState::Rts => QpAttrMask::STATE | QpAttrMask::SQ_PSN,
            _ => return Err(VerbsError::InvalidArgument("qp_state")),
        };
        Ok((attr, mask))
    }
}
