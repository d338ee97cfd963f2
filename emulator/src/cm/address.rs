//! Addresses of the manager: those of IP, and InfiniBand's own.

use std::net::{IpAddr, SocketAddr};

use rocade_wire::Gid;
use rocade_wire::mad::ServiceId;

use super::id::PortSpace;
use super::resolve::canonical;
use super::services::port_of;
use crate::error::VerbsError;

/// The part of a service ID of `rdma_cm` that is the port space (`RDMA_IB_IP_PS_MASK`).
const PORT_SPACE_MASK: u64 = !0xffff;

/// An address, and what is offered or asked for there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmAddr {
    /// Of IP, with a port.
    Ip(SocketAddr),
    /// InfiniBand's own (`AF_IB`), with a service ID.
    Ib(IbAddr),
}

/// A port by its GID, and a service by its ID. On RoCE the GID is an IP address, and what is all 0 stands for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "sockaddr_ib")]
pub struct IbAddr {
    /// GID of the port.
    pub gid: Gid,
    /// The service. One of `rdma_cm` is a port space and a port.
    pub service_id: ServiceId,
    /// Which bits of the service ID are given; the others are the manager's to choose.
    pub service_mask: u64,
}

/// What somebody else has found out of the path to a peer (`RDMA_OPTION_IB_PATH`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_path_record")]
pub struct PathHint {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit; 0 for the usual one.
    pub hop_limit: u8,
}

impl From<SocketAddr> for CmAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl CmAddr {
    pub(super) const fn is_ib(&self) -> bool {
        matches!(self, Self::Ib(_))
    }

    /// As an address of IP; the port is the end of a service ID.
    pub(super) fn socket(&self) -> SocketAddr {
        match self {
            Self::Ip(addr) => canonical(*addr),
            Self::Ib(ib) => SocketAddr::new(ib.ip(), port_of(ib.given())),
        }
    }

    /// The port space that the address is of, for an ID of that port space.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the service ID is none of it.
    pub(super) fn port_space(&self, own: PortSpace) -> Result<PortSpace, VerbsError> {
        let Self::Ib(ib) = self else { return Ok(own) };
        let mask = ib.service_mask & PORT_SPACE_MASK;
        let is_of = |space: &PortSpace| {
            let may = own == PortSpace::Ib || own == *space;
            may && (ib.service_id.get() ^ space.service(0).get()) & mask == 0
        };
        let mut spaces = [PortSpace::Ib, PortSpace::Tcp, PortSpace::Udp].into_iter();
        spaces
            .find(is_of)
            .ok_or_else(|| VerbsError::Io(std::io::Error::from_raw_os_error(libc::EPROTONOSUPPORT)))
    }
}

impl IbAddr {
    fn ip(&self) -> IpAddr {
        self.gid.to_ip()
    }

    /// The bits of the service ID that are given.
    pub(super) const fn given(&self) -> ServiceId {
        ServiceId::new(self.service_id.get() & self.service_mask)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ib(service_id: u64, service_mask: u64) -> CmAddr {
        CmAddr::Ib(IbAddr {
            gid: Gid::from_ip([10, 0, 0, 1].into()),
            service_id: ServiceId::new(service_id),
            service_mask,
        })
    }

    //= CMA-01 type=test
    #[test]
    fn a_service_id_is_of_a_port_space() {
        let all = u64::MAX;
        let of = |addr: CmAddr, own| addr.port_space(own).ok();
        let tcp = ib(0x0106_1d2f, all);
        assert_eq!(of(tcp, PortSpace::Tcp), Some(PortSpace::Tcp));
        assert_eq!(of(tcp, PortSpace::Ib), Some(PortSpace::Tcp));
        assert_eq!(of(tcp, PortSpace::Udp), None);
        assert_eq!(of(ib(0x013f_0007, all), PortSpace::Ib), Some(PortSpace::Ib));
        assert_eq!(of(ib(0x013f_0007, all), PortSpace::Tcp), None);
        assert_eq!(of(ib(0, 0), PortSpace::Udp), Some(PortSpace::Udp));
        assert_eq!(of(ib(7, 0xffff), PortSpace::Ib), Some(PortSpace::Ib));
        assert_eq!(of(ib(0x1234_0007, all), PortSpace::Ib), None);
        assert_eq!(tcp.socket(), "10.0.0.1:7471".parse().unwrap());
        assert_eq!(ib(0x1d2f, 0xff).socket(), "10.0.0.1:47".parse().unwrap());
    }
}
