//! Asks the system whether an address can be reached: its routes, and its table of neighbours.
//!
//! Both are read by netlink, which needs no privilege. A system that does not answer, such as a
//! sandbox, never makes an address unreachable. The table of neighbours has no entry for a peer
//! before the first packet to it. So a datagram makes the system ask.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use super::LocalAddr;
use crate::failure;
use crate::sys;

/// Types of netlink messages.
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `RTA_DST`, `RTA_SRC`, `RTA_OIF`, `RTA_GATEWAY`, `RTA_VIA`.
const ROUTE_TO: u16 = 1;
const ROUTE_FROM: u16 = 2;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const ROUTE_VIA: u16 = 18;
/// `RTN_UNICAST`: neither local, nor to a group or all.
const UNICAST: u8 = 1;
/// `NDA_DST`.
const NEIGHBOUR_ADDRESS: u16 = 1;
/// `NUD_INCOMPLETE`, `NUD_FAILED`.
const INCOMPLETE: u16 = 0x01;
const FAILED: u16 = 0x20;
/// `IFF_NOARP`: the stations of the interface have no hardware addresses, as those of a tunnel.
const NO_ARP: u32 = 0x80;
/// Length of `nlmsghdr`, that of `rtmsg` and `ndmsg`, and that of `ifinfomsg`.
const HEADER_LEN: usize = 16;
const BODY_LEN: usize = 12;
const LINK_LEN: usize = 16;
/// The service that discards what it gets. Usually no program has this port.
const DISCARD_PORT: u16 = 9;
/// Lets a waiting thread look often at first: most neighbours answer in less than a millisecond.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The next station on the way to an address: the address itself, or a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextHop {
    interface: u32,
    address: IpAddr,
}

/// An address whose next station has not answered yet.
#[derive(Debug)]
pub(crate) struct SilentPeer {
    socket: UdpSocket,
    hop: NextHop,
    pause: Duration,
}

/// Returns `None` if the address can be reached, or if the system does not tell. Returns the
/// unfinished query if the next station has not answered the system yet.
///
/// # Errors
/// `ENETUNREACH` or `EHOSTUNREACH` if there is no route from `local` to `peer`.
//= QPC-05
pub(crate) fn look_up(local: LocalAddr, peer: IpAddr) -> io::Result<Option<SilentPeer>> {
    sys::uncancelled(|| begin(local, peer))
}

fn begin(local: LocalAddr, peer: IpAddr) -> io::Result<Option<SilentPeer>> {
    let Some(mut target) = local.peer(peer) else {
        return Ok(None);
    };
    target.set_port(DISCARD_PORT);
    let Ok(socket) = sys::udp_socket(local.with_port(0)) else {
        return Ok(None);
    };
    if let Err(error) = socket.connect(target) {
        let from_loopback = local.ip().is_loopback() && !peer.is_loopback();
        return match failure::code(&error) {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => Err(error),
            // A loopback address is no source outside the host.
            Some(libc::EINVAL) if from_loopback => {
                Err(io::Error::from_raw_os_error(libc::ENETUNREACH))
            }
            _ => Ok(None),
        };
    }
    if local.ip().is_loopback() {
        return Ok(None);
    }
    let Some(hop) = next_hop(local, peer) else {
        return Ok(None);
    };
    let silent = SilentPeer {
        socket,
        hop,
        pause: FIRST_PAUSE,
    };
    let is_silent = silent.is_without_answer();
    Ok(is_silent.then_some(silent))
}

impl SilentPeer {
    /// Looks at the table again. Returns true if there is still no answer.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        sys::uncancelled(|| self.is_without_answer())
    }

    /// The time until the next look is worthwhile.
    pub(crate) const fn pause(&self) -> Duration {
        self.pause
    }

    /// Returns true if the system asks for the next station, and makes it ask.
    fn is_without_answer(&self) -> bool {
        match state_of(&self.hop) {
            Entry::Asked => true,
            Entry::Answers | Entry::Unknown => false,
            Entry::Missing if !has_neighbours(self.hop.interface) => false,
            Entry::GivenUp | Entry::Missing => {
                // An error, such as one of a packet filter, leaves the entry as it is.
                let _ = self.socket.send(&[]);
                matches!(state_of(&self.hop), Entry::Asked | Entry::GivenUp)
            }
        }
    }
}

/// The entry of a station in the table of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// Its hardware address is known, or is not needed.
    Answers,
    /// The system asks, and has no answer yet.
    Asked,
    /// The system asked, and got no answer.
    GivenUp,
    /// The system has not asked yet.
    Missing,
    /// The system does not tell.
    Unknown,
}

/// Returns the next station on the way to a peer, or `None` if no station has to answer.
fn next_hop(local: LocalAddr, peer: IpAddr) -> Option<NextHop> {
    let (from, to) = (local.ip(), peer.to_canonical());
    let mut body = [0; BODY_LEN];
    body[0] = family(to);
    // Lengths of the prefixes, in bits.
    (body[1], body[2]) = (bits(to), bits(from));
    let mut request = message(GET_ROUTE, &body);
    attribute(&mut request, ROUTE_TO, &octets(to));
    attribute(&mut request, ROUTE_FROM, &octets(from));
    if local.scope_id() != 0 {
        attribute(
            &mut request,
            ROUTE_INTERFACE,
            &local.scope_id().to_ne_bytes(),
        );
    }
    let reply = exchange(request)?;
    hop_of(&reply, to)
}

/// Returns the next station that a route names.
fn hop_of(reply: &[u8], to: IpAddr) -> Option<NextHop> {
    if kind(reply)? != NEW_ROUTE || *reply.get(HEADER_LEN + 7)? != UNICAST {
        return None;
    }
    let (mut interface, mut address) = (None, to);
    for (name, value) in attributes(reply) {
        match name {
            ROUTE_INTERFACE => interface = value.try_into().map(u32::from_ne_bytes).ok(),
            ROUTE_GATEWAY => address = address_of(value)?,
            // A gateway of the other IP version, after its family.
            ROUTE_VIA => address = address_of(value.get(2..)?)?,
            _ => {}
        }
    }
    let interface = interface?;
    Some(NextHop { interface, address })
}

/// Returns true if the system asks for the stations of an interface before it sends to them.
fn has_neighbours(interface: u32) -> bool {
    let mut body = [0; LINK_LEN];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    exchange(message(GET_LINK, &body)).is_some_and(|reply| flags_of(&reply) & NO_ARP == 0)
}

/// Returns the flags of an interface. An answer that has none counts as a tunnel.
fn flags_of(reply: &[u8]) -> u32 {
    let flags = reply.get(HEADER_LEN + 8..HEADER_LEN + 12);
    let flags = flags.and_then(|flags| flags.try_into().ok());
    match (kind(reply), flags) {
        (Some(NEW_LINK), Some(flags)) => u32::from_ne_bytes(flags),
        _ => NO_ARP,
    }
}

/// Returns what the table of neighbours says of a station.
fn state_of(hop: &NextHop) -> Entry {
    let mut body = [0; BODY_LEN];
    body[0] = family(hop.address);
    body[4..8].copy_from_slice(&hop.interface.to_ne_bytes());
    let mut request = message(GET_NEIGHBOUR, &body);
    attribute(&mut request, NEIGHBOUR_ADDRESS, &octets(hop.address));
    exchange(request).map_or(Entry::Unknown, |reply| entry_of(&reply))
}

fn entry_of(reply: &[u8]) -> Entry {
    let state = reply.get(HEADER_LEN + 8..HEADER_LEN + 10);
    let state = state.and_then(|state| state.try_into().ok());
    match (kind(reply), state.map(u16::from_ne_bytes)) {
        (Some(NEW_NEIGHBOUR), Some(0)) => Entry::Missing,
        (Some(NEW_NEIGHBOUR), Some(INCOMPLETE)) => Entry::Asked,
        (Some(NEW_NEIGHBOUR), Some(FAILED)) => Entry::GivenUp,
        (Some(NEW_NEIGHBOUR), Some(_)) => Entry::Answers,
        // An error. Systems before Linux 5.0 do not know the question.
        _ if errno(reply) == Some(libc::ENOENT) => Entry::Missing,
        _ => Entry::Unknown,
    }
}

/// Sends a request, and returns the answer, which the system makes during the call.
fn exchange(mut request: Vec<u8>) -> Option<Vec<u8>> {
    let len = u32::try_from(request.len()).ok()?;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    sys::ask_netlink(&request).ok()
}

/// Begins a request. Its length is set when it is sent.
fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Appends an attribute. `value` is a multiple of 4 bytes long.
fn attribute(message: &mut Vec<u8>, name: u16, value: &[u8]) {
    let len = u16::try_from(value.len() + 4).unwrap_or(4);
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&name.to_ne_bytes());
    message.extend_from_slice(value);
}

/// Returns the type of a message.
fn kind(message: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?))
}

/// Returns the errno of an error message.
fn errno(message: &[u8]) -> Option<i32> {
    const ERROR: u16 = 2;
    let code = message.get(HEADER_LEN..HEADER_LEN + 4)?.try_into().ok()?;
    (kind(message)? == ERROR).then(|| i32::from_ne_bytes(code).wrapping_neg())
}

/// Returns the attributes of a message, name and value.
fn attributes(message: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = message.get(HEADER_LEN + BODY_LEN..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        let name = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((name, value))
    })
}

const fn family(ip: IpAddr) -> u8 {
    // The numbers of Linux, which fit a byte.
    match ip {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    }
}

const fn bits(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn reply(kind: u16, body: [u8; BODY_LEN], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = message(kind, &body);
        for (name, value) in attributes {
            attribute(&mut bytes, *name, value);
        }
        bytes
    }

    fn route(kind_of_route: u8, attributes: &[(u16, &[u8])]) -> Option<NextHop> {
        let mut body = [0; BODY_LEN];
        body[7] = kind_of_route;
        let bytes = reply(NEW_ROUTE, body, attributes);
        let to = IpAddr::from([10, 0, 0, 9]);
        for len in 0..bytes.len() {
            let _ = hop_of(&bytes[..len], to);
        }
        hop_of(&bytes, to)
    }

    #[test]
    fn a_route_names_the_next_station() {
        let on = 7u32.to_ne_bytes();
        let hop = |address: &str| {
            let address = address.parse().unwrap();
            Some(NextHop {
                interface: 7,
                address,
            })
        };
        let interface = (ROUTE_INTERFACE, &on[..]);
        assert_eq!(route(UNICAST, &[interface]), hop("10.0.0.9"));
        let gateway = (ROUTE_GATEWAY, &[10, 0, 0, 1][..]);
        assert_eq!(route(UNICAST, &[gateway, interface]), hop("10.0.0.1"));
        let mut via = [0; 18];
        (via[0], via[2], via[17]) = (10, 0xfe, 1);
        let via = (ROUTE_VIA, &via[..]);
        assert_eq!(route(UNICAST, &[interface, via]), hop("fe00::1"));
        // Of this host, and without an interface.
        assert_eq!(route(2, &[interface]), None);
        assert_eq!(route(UNICAST, &[gateway]), None);
        assert_eq!(route(UNICAST, &[interface, (ROUTE_GATEWAY, &[1])]), None);
    }

    #[test]
    fn only_a_station_that_was_asked_is_silent() {
        let entry = |state: u16| {
            let mut body = [0; BODY_LEN];
            body[8..10].copy_from_slice(&state.to_ne_bytes());
            entry_of(&reply(NEW_NEIGHBOUR, body, &[]))
        };
        assert_eq!([entry(0x01), entry(0x20)], [Entry::Asked, Entry::GivenUp]);
        assert_eq!(entry(0), Entry::Missing);
        for state in [0x02, 0x04, 0x08, 0x10, 0x40, 0x80] {
            assert_eq!(entry(state), Entry::Answers, "{state:#x}");
        }
        let error = |code: i32| {
            let mut body = [0; BODY_LEN];
            body[..4].copy_from_slice(&(-code).to_ne_bytes());
            entry_of(&reply(2, body, &[]))
        };
        assert_eq!(error(libc::ENOENT), Entry::Missing);
        assert_eq!(error(libc::EOPNOTSUPP), Entry::Unknown);
        assert_eq!(entry_of(&[]), Entry::Unknown);
        assert_eq!(entry_of(&[0; 17]), Entry::Unknown);
    }

    #[test]
    fn the_flags_of_an_interface_are_read() {
        let mut body = [0; LINK_LEN];
        body[8..12].copy_from_slice(&0x1_0043u32.to_ne_bytes());
        assert_eq!(flags_of(&message(NEW_LINK, &body)), 0x1_0043);
        for nonsense in [message(NEW_LINK, &body[..4]), message(2, &body), Vec::new()] {
            assert_eq!(flags_of(&nonsense), NO_ARP);
        }
    }

    #[test]
    fn loopback_needs_no_neighbour() {
        let local = LocalAddr::new("127.0.0.1".parse().unwrap(), 0);
        let found = look_up(local, "127.0.0.9".parse().unwrap()).unwrap();
        assert!(found.is_none(), "{found:?}");
        let outside = look_up(local, "192.0.2.77".parse().unwrap()).unwrap_err();
        assert_eq!(outside.raw_os_error(), Some(libc::ENETUNREACH));
    }
}
