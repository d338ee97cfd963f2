//! Forwards packets to processes where the kernel does not steer.

#![deny(clippy::disallowed_methods)]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::Socket;

use crate::link::sys::{self, SendOptions};
use crate::link::{ForwardKey, LocalAddr, Segments, forward, socket};
use crate::steering::ProcessSlot;

/// Most datagrams, or GRO batches of them, that one call forwards before it returns to serve
/// clients.
const MOST_AT_ONCE: usize = 256;
/// Longest batch that the kernel merges.
const BUFFER_LEN: usize = 1 << 16;

/// State for forwarding packets, allocated on first use.
#[derive(Debug, Default)]
pub(super) struct Relay {
    buffer: Vec<u8>,
    sender: Option<Socket>,
}

impl Relay {
    /// Forwards the packets in the socket of a slot, each wrapped as between processes
    /// (`link/forward.rs`). `port_of` returns the port of a slot if the broker has to steer. `gsi`
    /// returns the recipients of packets to QP 1. Returns the number of packets that were for slot
    /// 0 or undeliverable.
    pub(super) fn forward(
        &mut self,
        (from, slot): (BorrowedFd<'_>, ProcessSlot),
        local: LocalAddr,
        key: &ForwardKey,
        port_of: impl Fn(ProcessSlot) -> Option<u16>,
        gsi: &mut impl FnMut(SocketAddr, &[u8]) -> Vec<(ProcessSlot, u16)>,
    ) -> usize {
        self.buffer.resize(BUFFER_LEN, 0);
        let mut left = 0;
        for _ in 0..MOST_AT_ONCE {
            let Ok(received) = sys::receive(from, &mut self.buffer) else {
                break;
            };
            let segment_len = received.segment_len.unwrap_or(received.len).max(1);
            let data = &self.buffer[..received.len];
            for segment in Segments::new(data, segment_len) {
                // A process that received the packet by mistake may have sent it back.
                let arrived = Forwarded::new(key, slot, received.source, segment);
                let (source, packet) = (arrived.source, arrived.packet);
                let is_steered =
                    ProcessSlot::of_packet(packet).is_some_and(|slot| slot != ProcessSlot::BROKER);
                let to = match ProcessSlot::of_packet(packet) {
                    Some(ProcessSlot::BROKER) => gsi(source, packet),
                    Some(slot) => port_of(slot).map(|port| (slot, port)).into_iter().collect(),
                    None => Vec::new(),
                };
                let passed = deliver(&mut self.sender, local, key, arrived, &to);
                left += usize::from(!passed || !is_steered);
            }
        }
        left
    }

    /// Forwards the packets in the socket of a slot whose process is gone, to the ports that `to`
    /// returns.
    pub(super) fn forward_orphaned(
        &mut self,
        from: BorrowedFd<'_>,
        local: LocalAddr,
        key: &ForwardKey,
        slot: ProcessSlot,
        to: impl Fn(&[u8]) -> Option<(ProcessSlot, u16)>,
    ) {
        self.buffer.resize(BUFFER_LEN, 0);
        for _ in 0..MOST_AT_ONCE {
            let Ok(received) = sys::receive(from, &mut self.buffer) else {
                break;
            };
            let segment_len = received.segment_len.unwrap_or(received.len).max(1);
            for segment in Segments::new(&self.buffer[..received.len], segment_len) {
                let arrived = Forwarded::new(key, slot, received.source, segment);
                if let Some(to) = to(arrived.packet) {
                    deliver(&mut self.sender, local, key, arrived, &[to]);
                }
            }
        }
    }

    /// Forwards one packet to the ports of some slots.
    pub(super) fn deliver(
        &mut self,
        local: LocalAddr,
        key: &ForwardKey,
        source: SocketAddr,
        packet: &[u8],
        to: &[(ProcessSlot, u16)],
    ) {
        let arrived = Forwarded {
            source,
            packet,
            hops: 0,
        };
        deliver(&mut self.sender, local, key, arrived, to);
    }
}

/// A packet that the broker has received, and forwards.
#[derive(Clone, Copy)]
struct Forwarded<'p> {
    /// The sender of the packet, even if a process has forwarded it.
    source: SocketAddr,
    packet: &'p [u8],
    /// Number of times that it was forwarded. The broker counts as any process, so that there is no
    /// loop between both.
    hops: u8,
}

impl<'p> Forwarded<'p> {
    /// Unwraps a segment that came to a slot if a process has forwarded it.
    fn new(key: &ForwardKey, slot: ProcessSlot, source: SocketAddr, segment: &'p [u8]) -> Self {
        match forward::unwrap(key, slot, segment) {
            Some((source, packet, hops)) => Self {
                source,
                packet,
                hops: hops.saturating_add(1),
            },
            None => Self {
                source,
                packet: segment,
                hops: 0,
            },
        }
    }
}

/// Forwards one packet. Returns true if it was sent to at least one port.
fn deliver(
    sender_of: &mut Option<Socket>,
    local: LocalAddr,
    key: &ForwardKey,
    arrived: Forwarded<'_>,
    to: &[(ProcessSlot, u16)],
) -> bool {
    let mut passed = false;
    for (slot, port) in to {
        let Some(datagram) = wrap(arrived, key, *slot) else {
            continue;
        };
        let Some(sender) = sender(sender_of, local) else {
            continue;
        };
        // A packet that does not fit into the socket buffer is lost, as with any socket.
        let to = local.with_port(*port);
        passed |= sys::send(sender.as_fd(), &to, &datagram, SendOptions::default()).is_ok();
    }
    passed
}

fn wrap(arrived: Forwarded<'_>, key: &ForwardKey, slot: ProcessSlot) -> Option<Vec<u8>> {
    let Forwarded {
        source,
        packet,
        hops,
    } = arrived;
    if forward::is_wrapped(packet) {
        // From one process to another, which checks the key itself.
        return (ProcessSlot::of_packet(packet) == Some(slot)).then(|| packet.to_vec());
    }
    let header = forward::header(key, slot, source, hops, packet)?;
    Some([&header, packet].concat())
}

fn sender(cell: &mut Option<Socket>, local: LocalAddr) -> Option<&Socket> {
    if cell.is_none() {
        // The source port is arbitrary, because the key authenticates the sender.
        match socket::open_send(local, 0, None) {
            Ok(socket) => *cell = Some(socket),
            Err(error) => tracing::warn!(%local, %error, "failed to open a socket for forwarding"),
        }
    }
    cell.as_ref()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::{IpAddr, UdpSocket};
    use std::time::Duration;

    use super::*;

    const GONE: ProcessSlot = ProcessSlot::new(7);
    const OWNER: ProcessSlot = ProcessSlot::new(9);
    /// A packet to a QP number with the slot 7.
    const PACKET: [u8; 16] = [4, 0, 0, 0, 0, 7, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];

    /// A process forwards a packet to the slot of a process that is gone, from where the broker
    /// forwards it to the same process.
    #[test]
    fn a_packet_is_not_forwarded_for_ever() {
        let ip = IpAddr::from([127, 9, 77, 1]);
        let [gone, owner] = [(); 2].map(|()| UdpSocket::bind((ip, 0)).expect("a port"));
        gone.set_nonblocking(true).expect("an open socket");
        let limit = Some(Duration::from_secs(30));
        owner.set_read_timeout(limit).expect("an open socket");
        let port = owner.local_addr().expect("it is bound").port();
        let to = gone.local_addr().expect("it is bound");
        let (key, mut relay) = (ForwardKey::random(), Relay::default());
        let source = SocketAddr::from(([127, 9, 77, 2], 1234));
        let (mut hops, mut arrived_with) = (0, Vec::new());
        while let Some(header) = forward::header(&key, GONE, source, hops, &PACKET) {
            let sent = owner.send_to(&[&header, &PACKET[..]].concat(), to);
            sent.expect("a datagram");
            relay.forward_orphaned(gone.as_fd(), ip.into(), &key, GONE, |_| Some((OWNER, port)));
            let mut buffer = [0; 100];
            let len = owner.recv(&mut buffer).expect("a datagram");
            let (from, packet, passed) =
                forward::unwrap(&key, OWNER, &buffer[..len]).expect("a packet of the broker");
            assert_eq!((from, packet), (source, &PACKET[..]));
            arrived_with.push(passed);
            // The process forwards it again.
            hops = passed + 1;
        }
        assert_eq!(arrived_with, [1, 3]);
    }
}
