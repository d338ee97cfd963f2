//! Datagrams that the kernel has not delivered yet.
//!
//! It delivers those over loopback in the call that sends them, unless the processor has much to
//! do. Then they come later, at a moment that no seed knows.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

/// Longest time until a datagram arrives.
const LIMIT: Duration = Duration::from_secs(30);

/// A datagram that is sent behind those of a turn. A processor delivers in the order of the calls,
/// and all threads of a host run on one processor.
#[derive(Debug)]
pub(super) struct Delivery {
    from: UdpSocket,
    to: UdpSocket,
    number: u64,
}

impl Delivery {
    /// # Errors
    /// The system has no sockets on loopback.
    pub(super) fn new() -> io::Result<Self> {
        let open = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let (from, to) = (open()?, open()?);
        from.connect(to.local_addr()?)?;
        to.set_read_timeout(Some(LIMIT))?;
        Ok(Self {
            from,
            to,
            number: 0,
        })
    }

    /// Waits until everything that was sent so far has arrived.
    pub(super) fn wait(&mut self) {
        self.number += 1;
        let number = self.number.to_ne_bytes();
        let sent = self.from.send(&number).expect("it is sent");
        assert_eq!(sent, number.len());
        let mut arrived = [0; size_of::<u64>()];
        while arrived != number {
            self.to.recv(&mut arrived).expect("it arrives");
        }
    }
}
