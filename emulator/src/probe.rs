//! Probes of the system: the means that the engine uses, each tried once. For `rocade doctor`.
//!
//! No probe touches UDP port 4791 or leaves anything behind, so programs may run meanwhile.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockAddr, Socket};

use crate::failure::{self, named};
use crate::link::{self, LinkError, LocalAddr, socket, socket_owner, sys};
use crate::steering::steering_program;

/// Length of the datagram that tests the steering program, in bytes: a BTH and an ICRC.
const DATAGRAM_LEN: usize = 16;
/// The byte of the payload that selects the process.
const SLOT_BYTE: usize = 5;
/// Time in which a datagram arrives that a process sends to itself.
const ARRIVAL: Duration = Duration::from_secs(2);

/// Opens a send socket of this address, as a device does.
///
/// # Errors
/// The error of the system call that failed. [`remedy`] has the remedy.
pub fn udp(ip: IpAddr) -> io::Result<()> {
    socket::open_send(ip.into(), 0, None).map(drop)
}

/// Tries segmentation of sent datagrams (GSO). Without it, each packet is a system call.
///
/// # Errors
/// The error of setsockopt(2) or of creating the socket.
pub fn segmentation(ip: IpAddr) -> io::Result<()> {
    let socket = socket::open_send(ip.into(), 0, None)?;
    sys::set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 1024)
        .map_err(named("failed to set UDP_SEGMENT"))
}

/// Tries merging of received datagrams (GRO). Without it, each packet is a system call.
///
/// # Errors
/// The error of setsockopt(2) or of creating the socket.
pub fn merging(ip: IpAddr) -> io::Result<()> {
    let socket = socket::new_socket(ip.into()).map_err(named("failed to create a UDP socket"))?;
    sys::set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)
        .map_err(named("failed to set UDP_GRO"))
}

/// Sends a datagram through the steering program, on an unused port. Returns true if it arrives at
/// the process that it names. Without steering the broker forwards all packets over UDP.
///
/// # Errors
/// The error of the system call that failed.
pub fn steering(ip: IpAddr) -> io::Result<bool> {
    let local = LocalAddr::from(ip);
    let first = group_member(local, 0)?;
    let port = socket::port_of(&first)?;
    let second = group_member(local, port)?;
    let program = steering_program().encode();
    sys::attach_reuseport_cbpf(first.as_fd(), &program)
        .map_err(named("failed to attach the steering program"))?;
    let sender = socket::new_socket(local)?;
    let mut datagram = [0; DATAGRAM_LEN];
    datagram[SLOT_BYTE] = 1;
    let address = SockAddr::from(local.with_port(port));
    sender
        .send_to(&datagram, &address)
        .map_err(named("failed to send a datagram to the own address"))?;
    let mut fds = [&first, &second].map(|socket| crate::sys::poll_readable(socket.as_fd()));
    crate::sys::poll(&mut fds, Some(ARRIVAL))?;
    Ok(fds[1].revents & libc::POLLIN != 0)
}

/// Opens a member of a `SO_REUSEPORT` group. Port 0 is an unused one.
fn group_member(local: LocalAddr, port: u16) -> io::Result<Socket> {
    let socket = socket::new_socket(local).map_err(named("failed to create a UDP socket"))?;
    socket
        .set_reuse_port(true)
        .map_err(named("failed to set SO_REUSEPORT"))?;
    let address = SockAddr::from(local.with_port(port));
    crate::sys::bind(socket.as_fd(), &address).map_err(named("failed to bind a UDP socket"))?;
    Ok(socket)
}

/// Creates and maps the memory of a link between two processes, and the descriptor that wakes one.
///
/// # Errors
/// The error of the system call that failed.
pub fn shared_memory() -> io::Result<()> {
    link::shm::probe().map_err(named("failed to create shared memory"))?;
    crate::sys::eventfd()
        .map(drop)
        .map_err(named("failed to create an eventfd"))
}

/// Returns the error that a device of this address would get because UDP port 4791 is taken.
///
/// `scope_id` is the index of the interface of a link-local address. Sockets of Rocade's broker
/// count too: ask the broker first ([`crate::broker::status`]).
#[must_use]
pub fn port_in_use(ip: IpAddr, scope_id: u32) -> Option<LinkError> {
    let local = LocalAddr::new(ip, scope_id);
    let owner = socket_owner::holder(local)?;
    Some(LinkError::InUse { local, owner })
}

/// Returns what the user can do about an error of a probe, or an empty text.
#[must_use]
pub fn remedy(error: &io::Error) -> &'static str {
    failure::remedy(error)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 44, 1));

    #[test]
    fn an_ordinary_system_has_all_means() {
        udp(LOOPBACK).unwrap();
        segmentation(LOOPBACK).unwrap();
        merging(LOOPBACK).unwrap();
        assert!(steering(LOOPBACK).unwrap());
        shared_memory().unwrap();
    }

    #[test]
    fn an_address_of_another_host_is_refused_by_name() {
        let error = udp("192.0.2.1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("failed to bind"), "{error}");
    }

    #[test]
    fn the_holder_of_the_port_is_this_process() {
        assert!(port_in_use(LOOPBACK, 0).is_none());
        let _holder = std::net::UdpSocket::bind((LOOPBACK, link::ROCE_PORT)).unwrap();
        let text = port_in_use(LOOPBACK, 0).unwrap().to_string();
        let own = format!("process {}", std::process::id());
        assert!(text.contains(&own), "{text}");
        assert!(port_in_use("127.0.44.2".parse().unwrap(), 0).is_none());
    }
}
