//! Passing packets on to processes, where the kernel does not do it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::Socket;

use crate::link::sys::{self, SendOptions};
use crate::link::{ForwardKey, LocalAddr, Segments, forward, socket};
use crate::steering::Slot;

/// Datagrams, or runs of them, that one call passes on at most: then it is the clients' turn.
const MOST_AT_ONCE: usize = 256;
/// The most that the kernel merges.
const BUFFER_LEN: usize = 1 << 16;

/// What the broker needs to pass packets on; made with the first one.
#[derive(Debug, Default)]
pub(super) struct Relay {
    buffer: Vec<u8>,
    sender: Option<Socket>,
}

impl Relay {
    /// Passes on what is in the socket, each packet wrapped as between processes
    /// (`link/forward.rs`) to the port that its slot has. Returns how many were for slot 0 or for
    /// nobody.
    pub(super) fn pass_on(
        &mut self,
        from: BorrowedFd<'_>,
        local: LocalAddr,
        key: &ForwardKey,
        port_of: impl Fn(Slot) -> Option<u16>,
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
                let passed =
                    wrap(segment, key, received.source, &port_of).and_then(|(port, datagram)| {
                        let sender = sender(&mut self.sender, local)?;
                        let to = local.with_port(port);
                        // What finds no room is lost, as with any socket.
                        sys::send(sender.as_fd(), &to, &datagram, SendOptions::default()).ok()
                    });
                left += usize::from(passed.is_none());
            }
        }
        left
    }
}

fn wrap(
    packet: &[u8],
    key: &ForwardKey,
    source: SocketAddr,
    port_of: impl Fn(Slot) -> Option<u16>,
) -> Option<(u16, Vec<u8>)> {
    let slot = Slot::of_packet(packet)?;
    let port = port_of(slot)?;
    let header = forward::header(key, slot, source, packet)?;
    Some((port, [&header, packet].concat()))
}

fn sender(cell: &mut Option<Socket>, local: LocalAddr) -> Option<&Socket> {
    if cell.is_none() {
        // Any port will do: the key says who it is.
        match socket::open_send(local, 0, None) {
            Ok(socket) => *cell = Some(socket),
            Err(error) => tracing::warn!(%local, %error, "opening a socket to pass packets on"),
        }
    }
    cell.as_ref()
}
