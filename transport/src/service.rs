//! Rows of the QP types: their properties, for all code that only has to tell one service from
//! another.

use rocade_wire::Service;
use rocade_wire::mad::TransportType;

use crate::attr::{QpAttrMask, QpType};

/// The properties of a QP type.
#[derive(Clone, Copy, Debug)]
pub struct ServiceTraits {
    /// Name without `IBV_QPT_`.
    pub name: &'static str,
    /// The service of its packets.
    pub(crate) packets: Service,
    /// True if it has one peer, which `ibv_modify_qp` names.
    pub is_connected: bool,
    /// True if each request names its destination by address handle, QP number and Q_Key.
    pub is_datagram: bool,
    /// Attributes that are allowed and have no effect.
    pub(crate) ignored: QpAttrMask,
    /// The queues that may be managed by cross-channel operations.
    pub cross_channel: CrossChannelQueues,
    /// The transport service in a REQ. `None` if there are no connections of this type.
    pub transport: Option<TransportType>,
}

/// The queues of a QP that may be managed by cross-channel operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossChannelQueues {
    /// None.
    None,
    /// The send queue.
    Send,
    /// Both.
    Both,
}

const RC: ServiceTraits = ServiceTraits {
    name: "RC",
    packets: Service::Rc,
    is_connected: true,
    is_datagram: false,
    ignored: QpAttrMask::empty(),
    cross_channel: CrossChannelQueues::Both,
    transport: Some(TransportType::Rc),
};

const UC: ServiceTraits = ServiceTraits {
    name: "UC",
    packets: Service::Uc,
    is_connected: true,
    is_datagram: false,
    ignored: QpAttrMask::empty(),
    cross_channel: CrossChannelQueues::Both,
    transport: Some(TransportType::Uc),
};

const UD: ServiceTraits = ServiceTraits {
    name: "UD",
    packets: Service::Ud,
    is_connected: false,
    is_datagram: true,
    ignored: QpAttrMask::empty(),
    cross_channel: CrossChannelQueues::None,
    transport: None,
};

const RAW_PACKET: ServiceTraits = ServiceTraits {
    name: "RAW_PACKET",
    // Its frames have no BTH. No packet of this service is for a QP.
    packets: Service::Cnp,
    is_connected: false,
    is_datagram: false,
    ignored: QpAttrMask::empty(),
    cross_channel: CrossChannelQueues::None,
    transport: None,
};

const XRC_SEND: ServiceTraits = ServiceTraits {
    name: "XRC_SEND",
    //= XRC-02
    packets: Service::Xrc,
    is_connected: true,
    is_datagram: false,
    //= QPV-07
    ignored: QpAttrMask::MAX_DEST_RD_ATOMIC.union(QpAttrMask::MIN_RNR_TIMER),
    cross_channel: CrossChannelQueues::Send,
    transport: Some(TransportType::Xrc),
};

const XRC_RECV: ServiceTraits = ServiceTraits {
    name: "XRC_RECV",
    packets: Service::Xrc,
    is_connected: true,
    is_datagram: false,
    //= QPV-07
    ignored: QpAttrMask::MAX_QP_RD_ATOMIC
        .union(QpAttrMask::RETRY_CNT)
        .union(QpAttrMask::RNR_RETRY),
    cross_channel: CrossChannelQueues::None,
    transport: Some(TransportType::Xrc),
};

const DC_INITIATOR: ServiceTraits = ServiceTraits {
    name: "DCI",
    packets: Service::Dc,
    is_connected: false,
    is_datagram: false,
    ignored: QpAttrMask::empty(),
    cross_channel: CrossChannelQueues::Send,
    transport: None,
};

const DC_TARGET: ServiceTraits = ServiceTraits {
    name: "DCT",
    packets: Service::Dc,
    is_connected: false,
    is_datagram: false,
    ignored: QpAttrMask::empty(),
    cross_channel: CrossChannelQueues::None,
    transport: None,
};

impl QpType {
    /// Returns the properties of the type.
    #[must_use]
    pub const fn traits(self) -> &'static ServiceTraits {
        match self {
            Self::Rc => &RC,
            Self::Uc => &UC,
            Self::Ud => &UD,
            Self::RawPacket => &RAW_PACKET,
            Self::XrcSend => &XRC_SEND,
            Self::XrcRecv => &XRC_RECV,
            Self::DcInitiator => &DC_INITIATOR,
            Self::DcTarget => &DC_TARGET,
        }
    }

    /// Returns the name of the type with this number, without `IBV_QPT_`. `None` if there is none.
    #[must_use]
    pub const fn name_of(number: u32) -> Option<&'static str> {
        let mut types = Self::ALL.as_slice();
        while let [qp_type, rest @ ..] = types {
            if qp_type.code() == number {
                return Some(qp_type.traits().name);
            }
            types = rest;
        }
        None
    }
}
