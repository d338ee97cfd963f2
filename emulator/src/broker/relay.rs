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
                let (source, packet) = match forward::unwrap(key, slot, segment) {
                    Some((source, packet, _)) => (source, packet),
                    None => (received.source, segment),
                };
                let is_steered =
                    ProcessSlot::of_packet(packet).is_some_and(|slot| slot != ProcessSlot::BROKER);
                let to = match ProcessSlot::of_packet(packet) {
                    Some(ProcessSlot::BROKER) => gsi(source, packet),
                    Some(slot) => port_of(slot).map(|port| (slot, port)).into_iter().collect(),
                    None => Vec::new(),
                };
                let passed = deliver(&mut self.sender, local, key, source, packet, &to);
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
                let (source, packet) = match forward::unwrap(key, slot, segment) {
                    Some((source, packet, _)) => (source, packet),
                    None => (received.source, segment),
                };
                if let Some(to) = to(packet) {
                    deliver(&mut self.sender, local, key, source, packet, &[to]);
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
        deliver(&mut self.sender, local, key, source, packet, to);
    }
}

/// Forwards one packet. Returns true if it was sent to at least one port.
fn deliver(
    sender_of: &mut Option<Socket>,
    local: LocalAddr,
    key: &ForwardKey,
    source: SocketAddr,
    packet: &[u8],
    to: &[(ProcessSlot, u16)],
) -> bool {
    let mut passed = false;
    for (slot, port) in to {
        let Some(datagram) = wrap(packet, key, source, *slot) else {
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

fn wrap(packet: &[u8], key: &ForwardKey, source: SocketAddr, slot: ProcessSlot) -> Option<Vec<u8>> {
    if forward::is_wrapped(packet) {
        // From one process to another, which checks the key itself.
        return (ProcessSlot::of_packet(packet) == Some(slot)).then(|| packet.to_vec());
    }
    let header = forward::header(key, slot, source, 0, packet)?;
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
