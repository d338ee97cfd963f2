//! Paces packets that are not acknowledged by how full the receiving socket of this host is.
//!
//! The kernel tells that by sock_diag(7), also to programs without privileges. A sender may fill a
//! quarter of what is free before it asks again, and waits while half is full. The sockets of an
//! address share its port, and a sender does not know whose is whose, so that the fullest counts.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use rocade_transport::Time;

use super::ROCE_PORT;
use crate::sync::Mutex;
use crate::sys::Netlink;
use crate::tuning::STALLED_NS;

/// Time for which an answer holds. A sender that pauses for longer sends its next batch at once.
const VALID_NS: u64 = 1_000_000;
/// Least time between two questions while the queue is full.
const LOOK_NS: u64 = 10_000;
/// Time until the sockets are searched again after they were not found.
const SEARCH_NS: u64 = 1_000_000_000;
/// Most sockets that an address may have.
const MOST_SOCKETS: usize = 8;
/// Source ports that are tried until the kernel's choice among the sockets has met each.
const TRIES: u16 = 128;
/// Bytes that the kernel needs for a batch beside its own.
const PER_BATCH: usize = 1024;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_DONE: u16 = 3;
const INET_DIAG_SKMEMINFO: u16 = 7;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
/// Length of header and fixed part of an answer, before its attributes.
const ANSWER_LEN: usize = HEADER_LEN + 72;
/// Space for an answer, or for a part of a list.
const BUFFER_LEN: usize = 32 << 10;

/// Tells whether a batch may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Now,
    Later,
    /// Unmeasured: the kernel does not tell of the receiver.
    Unknown,
}

impl Leave {
    /// Notes whether the fill of the receiver is known. Returns true if the batch may leave.
    pub(crate) fn note(self, is_measured: &mut bool) -> bool {
        match self {
            Self::Now => *is_measured = true,
            Self::Unknown => *is_measured = false,
            Self::Later => {}
        }
        self != Self::Later
    }
}

/// The sockets that receive at an address of this host.
#[derive(Debug)]
pub(crate) struct ReceiverQueue {
    /// Bytes that may be sent before the next question.
    budget: AtomicI64,
    /// The time until which the budget holds, in ns.
    valid_until: AtomicU64,
    /// The last answer was that the queue is full.
    is_full: AtomicBool,
    /// The time until which nothing is known, in ns.
    unknown_until: AtomicU64,
    view: Mutex<View>,
}

/// Knowledge of a sender about the sockets.
#[derive(Debug)]
struct View {
    address: IpAddr,
    netlink: Option<Netlink>,
    /// Cookies of the sockets, and source ports for which the kernel chooses them.
    sockets: Vec<(u16, u64)>,
    /// The time of the next question.
    next_at: Time,
    /// The fill of a full queue, and the time since which it has not become less.
    full: Option<(u32, Time)>,
}

/// The memory of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fill {
    used: u32,
    size: u32,
}

impl ReceiverQueue {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self {
            budget: AtomicI64::new(0),
            valid_until: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            unknown_until: AtomicU64::new(0),
            view: Mutex::new(View {
                address,
                netlink: None,
                sockets: Vec::new(),
                next_at: Time::ZERO,
                full: None,
            }),
        }
    }

    /// Tells whether a batch of `len` bytes in `segments` packets may leave, and counts it if so.
    pub(crate) fn may_leave(&self, now: Time, len: usize, segments: usize) -> Leave {
        let now_ns = now.as_ns();
        if now_ns < self.unknown_until.load(Ordering::Relaxed) {
            return Leave::Unknown;
        }
        // The kernel rounds the memory of a single packet up.
        let bytes = if segments == 1 { 2 * len } else { len };
        let cost = i64::try_from(bytes + PER_BATCH).unwrap_or(i64::MAX);
        let is_valid = now_ns < self.valid_until.load(Ordering::Relaxed);
        if is_valid && self.budget.fetch_sub(cost, Ordering::Relaxed) > 0 {
            return Leave::Now;
        }
        if !is_valid && !self.is_full.load(Ordering::Relaxed) {
            self.allow(now, -cost);
            return Leave::Now;
        }
        self.look(now, cost)
    }

    fn allow(&self, now: Time, budget: i64) {
        self.budget.store(budget, Ordering::Relaxed);
        let until = now.plus_ns(VALID_NS).as_ns();
        self.valid_until.store(until, Ordering::Relaxed);
    }

    /// Asks how full the sockets are.
    #[cold]
    fn look(&self, now: Time, cost: i64) -> Leave {
        let Some(mut view) = self.view.try_lock() else {
            return Leave::Later;
        };
        if now < view.next_at {
            return Leave::Later;
        }
        view.next_at = now.plus_ns(LOOK_NS);
        let Some(fill) = view.fullest() else {
            self.is_full.store(false, Ordering::Relaxed);
            let until = now.plus_ns(SEARCH_NS).as_ns();
            self.unknown_until.store(until, Ordering::Relaxed);
            return Leave::Unknown;
        };
        let is_full = fill.used >= fill.size / 2;
        self.is_full.store(is_full, Ordering::Relaxed);
        if is_full {
            return view.wait_for_less(fill.used, now);
        }
        view.full = None;
        view.next_at = now;
        self.allow(now, i64::from((fill.size - fill.used) / 4) - cost);
        Leave::Now
    }
}

impl View {
    /// Returns that the queue is full, or that nothing is known if no one has read for long.
    fn wait_for_less(&mut self, used: u32, now: Time) -> Leave {
        let falls = self.full.is_none_or(|(before, _)| used < before);
        if falls {
            self.full = Some((used, now));
        }
        match self.full {
            Some((_, since)) if now.ns_since(since) >= STALLED_NS => Leave::Unknown,
            _ => Leave::Later,
        }
    }

    /// Returns the fill of the fullest socket. `None` if the kernel does not tell.
    fn fullest(&mut self) -> Option<Fill> {
        if self.netlink.is_none() {
            self.netlink = Netlink::open(libc::NETLINK_SOCK_DIAG).ok();
        }
        let netlink = self.netlink.as_ref()?;
        if let Some(fill) = fullest_of(netlink, self.address, &self.sockets) {
            return Some(fill);
        }
        // Sockets have come or gone.
        self.sockets = find(netlink, self.address).unwrap_or_default();
        let fill = fullest_of(netlink, self.address, &self.sockets);
        if fill.is_none() {
            self.netlink = None;
        }
        fill
    }
}

fn fullest_of(netlink: &Netlink, address: IpAddr, sockets: &[(u16, u64)]) -> Option<Fill> {
    let mut fullest = None;
    for (port, cookie) in sockets {
        let (found, fill) = ask(netlink, address, *port)?;
        if found != *cookie {
            return None;
        }
        fullest = fullest.max(Some((fill.used, fill)));
    }
    fullest.map(|(_, fill)| fill)
}

impl PartialOrd for Fill {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fill {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.used, self.size).cmp(&(other.used, other.size))
    }
}

/// Returns cookie and fill of the socket that would receive a packet from a port.
fn ask(netlink: &Netlink, address: IpAddr, source_port: u16) -> Option<(u64, Fill)> {
    let request = request(address, Some(source_port));
    let mut buffer = [0; 1024];
    let len = netlink.ask(&request, &mut buffer).ok()?;
    let (_, cookie, fill) = messages(buffer.get(..len)?).find_map(read_answer)?;
    Some((cookie, fill?))
}

/// Returns the sockets of an address, with source ports for which the kernel chooses them.
fn find(netlink: &Netlink, address: IpAddr) -> Option<Vec<(u16, u64)>> {
    let all = list(netlink, address).ok()?;
    if all.is_empty() || all.len() > MOST_SOCKETS {
        return None;
    }
    let mut sockets: Vec<(u16, u64)> = Vec::new();
    for port in 1..=TRIES {
        let (cookie, _) = ask(netlink, address, port)?;
        if !sockets.iter().any(|(_, known)| *known == cookie) {
            sockets.push((port, cookie));
        }
        if sockets.len() == all.len() {
            return Some(sockets);
        }
    }
    None
}

/// Returns the cookies of all RoCEv2 sockets that are bound to an address.
fn list(netlink: &Netlink, address: IpAddr) -> io::Result<Vec<u64>> {
    let mut buffer = vec![0; BUFFER_LEN];
    let mut len = netlink.ask(&request(address, None), &mut buffer)?;
    let mut all = Vec::new();
    loop {
        for message in messages(&buffer[..len]) {
            if kind_of(message) == Some(NLMSG_DONE) {
                return Ok(all);
            }
            let answer = read_answer(message).ok_or(io::ErrorKind::InvalidData)?;
            if answer.0 == address {
                all.push(answer.1);
            }
        }
        len = netlink.receive(&mut buffer)?;
    }
}

/// Returns a request for the socket that would receive a packet from a port, or for a list of all
/// RoCEv2 sockets.
fn request(address: IpAddr, source_port: Option<u16>) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    let mut put = |at: usize, field: &[u8]| bytes[at..][..field.len()].copy_from_slice(field);
    let flags = match source_port {
        Some(_) => NLM_F_REQUEST,
        None => NLM_F_REQUEST | NLM_F_DUMP,
    };
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    let protocol = u8::try_from(libc::IPPROTO_UDP).unwrap_or(0);
    put(0, &u32::try_from(REQUEST_LEN).unwrap_or(0).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &flags.to_ne_bytes());
    put(HEADER_LEN, &[u8::try_from(family).unwrap_or(0), protocol]);
    put(HEADER_LEN + 2, &[1 << (INET_DIAG_SKMEMINFO - 1)]);
    // Sockets in all states.
    put(HEADER_LEN + 4, &u32::MAX.to_ne_bytes());
    let [sport, dport, source, destination] = [8, 10, 12, 28].map(|at| HEADER_LEN + at);
    match source_port {
        // The receiving socket is the destination.
        Some(port) => {
            put(sport, &port.to_be_bytes());
            put(dport, &ROCE_PORT.to_be_bytes());
            for at in [source, destination] {
                match address {
                    IpAddr::V4(ip) => put(at, &ip.octets()),
                    IpAddr::V6(ip) => put(at, &ip.octets()),
                }
            }
        }
        None => put(sport, &ROCE_PORT.to_be_bytes()),
    }
    // Any cookie.
    put(HEADER_LEN + 48, &[0xff; 8]);
    bytes
}

/// Returns the messages of a datagram.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let message = bytes.get(..len).filter(|_| len >= HEADER_LEN)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn kind_of(message: &[u8]) -> Option<u16> {
    let kind = message.get(4..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*kind))
}

/// Returns the address that a socket is bound to, its cookie, and its fill if the kernel tells.
fn read_answer(message: &[u8]) -> Option<(IpAddr, u64, Option<Fill>)> {
    if kind_of(message)? != SOCK_DIAG_BY_FAMILY || message.len() < ANSWER_LEN {
        return None;
    }
    let address = message.get(HEADER_LEN + 8..)?;
    let is_v4 = i32::from(message[HEADER_LEN]) == libc::AF_INET;
    let address = if is_v4 {
        IpAddr::from(*address.first_chunk::<4>()?)
    } else {
        IpAddr::from(*address.first_chunk::<16>()?)
    };
    let cookie = u64::from_ne_bytes(*message.get(HEADER_LEN + 44..)?.first_chunk()?);
    let mut rest = message.get(ANSWER_LEN..)?;
    let mut fill = None;
    while let Some([len0, len1, kind0, kind1]) = rest.first_chunk() {
        let len = usize::from(u16::from_ne_bytes([*len0, *len1]));
        let content = rest.get(4..len)?;
        if u16::from_ne_bytes([*kind0, *kind1]) == INET_DIAG_SKMEMINFO {
            let word = |at: usize| content.get(at..)?.first_chunk().copied();
            let [used, size] = [word(0)?, word(4)?].map(u32::from_ne_bytes);
            fill = Some(Fill { used, size });
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((address, cookie, fill))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use socket2::{Domain, Socket, Type};

    use super::*;

    const SKIPPED: &str = "the kernel does not tell of sockets (sock_diag)";

    fn at_us(us: u64) -> Time {
        Time::from_ns(1_000_000_000 + us * 1_000)
    }

    fn receiver(address: IpAddr) -> UdpSocket {
        let local = std::net::SocketAddr::from((address, ROCE_PORT));
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM, None).expect("a socket");
        socket.set_reuse_port(true).expect("an option");
        socket.set_recv_buffer_size(64 << 10).expect("an option");
        socket.set_nonblocking(true).expect("a mode");
        crate::sys::bind(socket.as_fd(), &local.into()).expect("an address");
        socket.into()
    }

    /// Returns false where the kernel does not tell of sockets.
    fn is_supported(address: IpAddr) -> bool {
        let netlink = Netlink::open(libc::NETLINK_SOCK_DIAG);
        netlink.is_ok_and(|netlink| find(&netlink, address).is_some())
    }

    /// Sends while the queue allows it. Returns the number of datagrams.
    fn send(queue: &ReceiverQueue, to: IpAddr, now: Time) -> usize {
        let socket = UdpSocket::bind((to, 0)).expect("a socket");
        let mut count = 0;
        while queue.may_leave(now, 1000, 1) == Leave::Now {
            let sent = socket.send_to(&[0; 1000], (to, ROCE_PORT));
            sent.expect("it is sent");
            count += 1;
            assert!(count < 1000, "the queue has an end");
        }
        count
    }

    #[test]
    fn a_sender_waits_while_half_is_full_and_loses_nothing() {
        let address: IpAddr = "127.4.0.21".parse().expect("an address");
        let socket = receiver(address);
        if !is_supported(address) {
            rocade_skip::skip!("{SKIPPED}");
        }
        let queue = ReceiverQueue::new(address);
        let sent = send(&queue, address, at_us(0));
        assert!(sent > 10, "{sent}");
        assert_eq!(queue.may_leave(at_us(5), 1000, 1), Leave::Later);
        assert_eq!(send(&queue, address, at_us(20)), 0, "still full");
        let received = (0..).take_while(|_| socket.recv(&mut [0; 2000]).is_ok());
        assert_eq!(received.count(), sent);
        assert!(send(&queue, address, at_us(40)) > 10, "it is empty again");
    }

    #[test]
    fn a_receiver_that_does_not_read_for_long_counts_as_unknown() {
        let address: IpAddr = "127.4.0.22".parse().expect("an address");
        let _socket = receiver(address);
        if !is_supported(address) {
            rocade_skip::skip!("{SKIPPED}");
        }
        let queue = ReceiverQueue::new(address);
        send(&queue, address, at_us(0));
        let stalled_us = STALLED_NS / 1_000;
        assert_eq!(
            queue.may_leave(at_us(stalled_us - 50), 1000, 1),
            Leave::Later
        );
        assert_eq!(
            queue.may_leave(at_us(stalled_us + 50), 1000, 1),
            Leave::Unknown
        );
    }

    #[test]
    fn the_fullest_socket_of_an_address_counts() {
        let address: IpAddr = "127.4.0.23".parse().expect("an address");
        let sockets = [receiver(address), receiver(address), receiver(address)];
        if !is_supported(address) {
            rocade_skip::skip!("{SKIPPED}");
        }
        let netlink = Netlink::open(libc::NETLINK_SOCK_DIAG).expect("a socket");
        let found = find(&netlink, address).expect("sockets");
        assert_eq!(found.len(), sockets.len());
        let queue = ReceiverQueue::new(address);
        assert!(send(&queue, address, at_us(0)) > 10);
        // The one that was used has gone, and with it what it held.
        let [first, second, _third] = sockets;
        drop((first, second));
        let one = find(&netlink, address).expect("a socket");
        assert_eq!(one.len(), 1);
    }

    #[test]
    fn nothing_is_known_of_other_hosts() {
        let address: IpAddr = "192.0.2.1".parse().expect("an address");
        let queue = ReceiverQueue::new(address);
        // The first batch after a pause leaves without a question.
        assert_eq!(queue.may_leave(at_us(0), 1000, 1), Leave::Now);
        assert_eq!(queue.may_leave(at_us(1), 1000, 1), Leave::Unknown);
        assert_eq!(queue.may_leave(at_us(2_000), 1000, 1), Leave::Unknown);
    }

    #[test]
    fn nonsense_is_no_answer() {
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(messages(&[200, 0, 0, 0, 20, 0]).count(), 0);
        let mut answer = vec![0; ANSWER_LEN + 8];
        let len = u32::try_from(answer.len()).expect("a length");
        answer[..4].copy_from_slice(&len.to_ne_bytes());
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        // An attribute that is longer than the message.
        answer[ANSWER_LEN..][..2].copy_from_slice(&100u16.to_ne_bytes());
        assert_eq!(messages(&answer).filter_map(read_answer).count(), 0);
        // One of length 0 must not be read for ever.
        answer[ANSWER_LEN..][..2].copy_from_slice(&[0; 2]);
        assert_eq!(messages(&answer).filter_map(read_answer).count(), 0);
    }
}
