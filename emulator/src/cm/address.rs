//! Addresses of the connection manager: IP addresses, and native InfiniBand addresses.

use std::net::{IpAddr, SocketAddr};

use rocade_wire::Gid;
use rocade_wire::mad::ServiceId;

use super::id::PortSpace;
use super::resolve::canonical;
use crate::error::VerbsError;
use crate::gsi::services::port_of;

/// The port space part of an `rdma_cm` service ID (`RDMA_IB_IP_PS_MASK`).
const PORT_SPACE_MASK: u64 = !0xffff;

/// An address and a service at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmAddr {
    /// An IP address with a port.
    Ip(SocketAddr),
    /// A native InfiniBand address (`AF_IB`) with a service ID.
    Ib(IbAddr),
}

/// The GID of a port and a service ID. On RoCE the GID is an IP address, and a GID of zeros means
/// any address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "sockaddr_ib")]
pub struct IbAddr {
    /// GID of the port.
    pub gid: Gid,
    /// The service ID. Those of `rdma_cm` consist of a port space and a port.
    pub service_id: ServiceId,
    /// The bits of the service ID that are given. The connection manager chooses the others.
    pub service_mask: u64,
}

/// The attributes of a path to a peer that the application has resolved itself
/// (`RDMA_OPTION_IB_PATH`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_path_record")]
pub struct PathHint {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit. 0 means the default.
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

    /// Converts it to an IP address. The port is the last part of the service ID.
    pub(super) fn socket(&self) -> SocketAddr {
        match self {
            Self::Ip(addr) => canonical(*addr),
            Self::Ib(ib) => SocketAddr::new(ib.ip(), port_of(ib.given())),
        }
    }

    /// Returns the port space of the address, for an ID of port space `own`.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if the service ID does not belong to it.
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

    /// The given bits of the service ID.
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
