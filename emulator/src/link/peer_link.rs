//! Links to one other process: the contract, and the links that keep it.
//!
//! A link of another kind is a file with an implementation of [`PeerLink`], and a variant below.
//! The engine opens it in `engine/peer_links.rs`.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;

use rocade_wire::{FastPathPacket, Packet, PacketError};

#[cfg(all(test, not(loom)))]
use super::pipe::{PipeBatch, PipeLink, PipeReceiver};
use super::shm::{ShmBatch, ShmLink, ShmReceiver, ShmSegment, announce_sleep};
use super::{Inbound, LocalAddr};
use crate::memory::Readable;
use crate::steering::ProcessSlot;
use crate::trace::FirstBytes;

pub(crate) use super::shm::PeerLinkOffer;

/// Part of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fragment<'a> {
    /// Bytes in a buffer of this process.
    Bytes(&'a [u8]),
    /// Bytes in registered memory.
    Registered(Readable<'a>),
}

/// Parameters of sending a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Length of the batch in bytes, at most [`MAX_BATCH`](super::shm::MAX_BATCH).
    pub(crate) len: usize,
    /// Length of the segments in bytes. The last may be shorter.
    pub(crate) segment_len: usize,
    /// Traffic class that the packets would have in the IP header.
    pub(crate) traffic_class: u8,
    /// Hop limit that the packets would have in the IP header.
    pub(crate) hop_limit: u8,
    /// Set for the first batch that a queue pair sends on this link. The peer first receives the
    /// earlier packets over UDP.
    pub(crate) after_udp: bool,
    /// Waits for space, see [`SendOutcome::Full`].
    pub(crate) wait: bool,
    /// Leaves the batch unpublished until the next one or [`PeerLink::publish_unpublished`]. The
    /// peer also reads it if this process ends.
    pub(crate) unpublished: bool,
}

/// Ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The address of this process.
    pub(crate) local: LocalAddr,
    /// The peer's address.
    pub(crate) peer: LocalAddr,
    /// The peer's slot.
    pub(crate) slot: ProcessSlot,
}

/// Results of sending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The batch was sent.
    Sent,
    /// There is no space. With [`Sending::wait`], the wake fd becomes readable when there is.
    Full,
    /// The link cannot be used any longer.
    Ended,
    /// Registered memory was inaccessible. Nothing was sent.
    Fault,
}

/// A link from an address of this process to an address of one other process, or of this one.
///
/// The contract:
///
/// * Batches of segments (BTH to ICRC) arrive in the order of sending, intact and once, so that the
///   values of ICRCs are ignored. What was sent arrives even if the sender ends afterwards.
/// * What is sent before the peer has called [`open`](PeerLink::open) is read then, and not before.
/// * The peer is trusted to send packets, and in nothing else: what it writes may change at any
///   time, and may be wrong.
/// * Threads may send and receive at the same time. One thread at a time receives.
/// * No process sleeps in spite of a batch: after [`announce`](PeerLink::announce) and a full fence
///   either [`has_unread`](PeerLink::has_unread) is true, or the peer wakes this process by the
///   eventfd that it shares with its peers.
pub(crate) trait PeerLink: fmt::Debug {
    /// The receiving end, locked.
    type Receiver<'l>: PeerReceiver
    where
        Self: 'l;

    /// Returns what the link connects.
    fn ends(&self) -> &Ends;

    /// Returns the address of this process.
    fn local(&self) -> IpAddr {
        self.ends().local.ip()
    }

    /// Returns the peer's address.
    fn peer(&self) -> IpAddr {
        self.ends().peer.ip()
    }

    /// Returns true if this link connects `local` to the process with that slot at `peer`.
    fn connects(&self, local: LocalAddr, peer: IpAddr, slot: ProcessSlot) -> bool {
        let ends = self.ends();
        ends.local == local && ends.peer.ip() == peer && ends.slot == slot
    }

    /// Returns true if both links have the same ends.
    #[inline]
    fn is_parallel_to(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.ends() == other.ends()
    }

    /// Sends a batch of segments, in any number of fragments. The batch has space for the ICRCs.
    fn send<'a>(&self, batch: impl Iterator<Item = Fragment<'a>>, sending: Sending) -> SendOutcome;

    /// Publishes unpublished batches, and wakes the peer if it sleeps.
    fn publish_unpublished(&self) {}

    /// Prefetches the next received packets, and the space for their answers.
    fn prefetch_next(&self) {}

    /// Returns true if there are packets. Takes a few nanoseconds.
    #[inline]
    fn has_packets(&self) -> bool {
        self.has_unread() && !self.has_ended()
    }

    /// Tells the peer that all threads of this process that receive know this link, and wakes it.
    fn open(&self) {}

    /// Returns true if the peer receives from this link.
    fn is_open(&self) -> bool {
        true
    }

    /// Returns true if a thread has the receiving end.
    fn is_receiving(&self) -> bool;

    /// Locks the receiving end, unless another thread has it.
    fn try_receiver(&self) -> Option<Self::Receiver<'_>>;

    /// Locks the receiving end.
    fn receiver(&self) -> Self::Receiver<'_>;

    /// Announces that this process is going to wait for its wake fd.
    fn announce(&self) {}

    /// Returns true if a batch is there that was not read.
    fn has_unread(&self) -> bool;

    /// Ends the announced sleep. Returns true if the peer has woken this process.
    fn wake_up(&self) -> bool {
        self.has_unread()
    }

    /// Returns the descriptor that hangs up when the peer is gone, if there is one.
    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns true if the peer is gone or the link was shut down. Earlier packets of the peer can
    /// still be received.
    fn has_hung_up(&self) -> bool {
        false
    }

    /// Returns true if the link cannot be used any longer.
    fn has_ended(&self) -> bool {
        false
    }

    /// Stops sending and receiving.
    fn end(&self) {}
}

/// The receiving end of a link.
pub(crate) trait PeerReceiver {
    /// A received batch.
    type Batch<'b>: PeerBatch<'b>;

    /// Makes unpublished batches readable, because the peer is gone or this process cannot wait.
    /// Returns false if there is nothing to receive.
    fn read_unpublished(&mut self) -> bool;

    /// Returns true if earlier UDP packets must be received before the next batch.
    fn is_after_udp(&self) -> bool;

    /// Passes up to `max` batches to `each` until it breaks off, and frees their space. Stops
    /// before a batch that requires earlier UDP packets. `udp_received` tells that these were
    /// received for the first batch.
    fn receive(
        &mut self,
        max: usize,
        udp_received: bool,
        each: impl for<'b> FnMut(Self::Batch<'b>) -> ControlFlow<()>,
    );
}

/// A received batch of segments.
pub(crate) trait PeerBatch<'b>: Copy {
    /// A segment of the batch.
    type Segment: Inbound<'b>;

    /// Returns traffic class and hop limit of the packets, as sent by the peer.
    fn header(&self) -> (u8, u8);

    /// Returns the lengths of the batch and of its segments but the last, in bytes, not 0.
    fn lens(&self) -> (usize, usize);

    /// Returns `len` bytes at the offset `start`.
    fn segment(self, start: usize, len: usize) -> Self::Segment;

    /// Returns the segments.
    #[inline]
    fn segments(self) -> impl Iterator<Item = Self::Segment> {
        let (len, segment_len) = self.lens();
        let starts = (0..len).step_by(segment_len);
        starts.map(move |start| self.segment(start, segment_len.min(len - start)))
    }
}

/// Evaluates an expression on the link of any kind.
macro_rules! of_each {
    ($any:ident, $value:expr, $inner:ident => $result:expr) => {
        match $value {
            $any::Shm($inner) => $result,
            #[cfg(all(test, not(loom)))]
            $any::Pipe($inner) => $result,
        }
    };
}

/// Evaluates an expression on the link of any kind, as the same variant of another type.
macro_rules! as_each {
    ($any:ident, $value:expr, $inner:ident => $to:ident($result:expr)) => {
        match $value {
            $any::Shm($inner) => $to::Shm($result),
            #[cfg(all(test, not(loom)))]
            $any::Pipe($inner) => $to::Pipe($result),
        }
    };
}

/// A link of any kind.
#[derive(Debug)]
pub(crate) enum AnyPeerLink {
    /// Shared memory, made by the broker, or within this process.
    Shm(ShmLink),
    /// A queue within a test.
    #[cfg(all(test, not(loom)))]
    Pipe(PipeLink),
}

/// The receiving end of any link.
pub(crate) enum AnyReceiver<'l> {
    /// Of shared memory.
    Shm(ShmReceiver<'l>),
    /// Of a queue.
    #[cfg(all(test, not(loom)))]
    Pipe(PipeReceiver<'l>),
}

/// A batch from any link.
#[derive(Clone, Copy)]
pub(crate) enum AnyBatch<'b> {
    /// In shared memory.
    Shm(ShmBatch<'b>),
    /// In a queue.
    #[cfg(all(test, not(loom)))]
    Pipe(PipeBatch<'b>),
}

/// A segment from any link.
#[derive(Clone, Copy)]
pub(crate) enum AnySegment<'b> {
    /// In shared memory.
    Shm(ShmSegment<'b>),
    /// In a queue.
    #[cfg(all(test, not(loom)))]
    Pipe(&'b [u8]),
}

impl AnyPeerLink {
    /// Opens the link that the broker offers.
    ///
    /// # Errors
    /// Errors of mapping, or `InvalidData` if the memory is invalid.
    pub(crate) fn open(offer: PeerLinkOffer) -> io::Result<Self> {
        ShmLink::new(offer).map(Self::Shm)
    }

    /// Makes both ends of a link between two addresses of this process, which `wake` wakes.
    ///
    /// # Errors
    /// Errors of creating and mapping memory and sockets.
    pub(crate) fn within(
        local: LocalAddr,
        peer: LocalAddr,
        slot: ProcessSlot,
        wake: BorrowedFd<'_>,
    ) -> io::Result<[Self; 2]> {
        ShmLink::own(local, peer, slot, wake).map(|ends| ends.map(Self::Shm))
    }

    /// Announces to the peers of `links` that this process is going to wait for its wake fd.
    /// Returns true if it may: there are no packets, and peers wake it for new ones.
    pub(crate) fn announce_sleep<'l>(links: impl Iterator<Item = &'l Self> + Clone) -> bool {
        // A link that has ended receives no packets.
        let unread = |link: &Self| !link.has_ended() && link.has_unread();
        announce_sleep(links, Self::announce, unread)
    }
}

impl PeerLink for AnyPeerLink {
    type Receiver<'l> = AnyReceiver<'l>;

    #[inline]
    fn ends(&self) -> &Ends {
        of_each!(Self, self, link => link.ends())
    }

    #[inline]
    fn send<'a>(&self, batch: impl Iterator<Item = Fragment<'a>>, sending: Sending) -> SendOutcome {
        of_each!(Self, self, link => link.send(batch, sending))
    }

    fn publish_unpublished(&self) {
        of_each!(Self, self, link => link.publish_unpublished());
    }

    #[inline]
    fn prefetch_next(&self) {
        of_each!(Self, self, link => link.prefetch_next());
    }

    #[inline]
    fn has_packets(&self) -> bool {
        of_each!(Self, self, link => link.has_packets())
    }

    fn open(&self) {
        of_each!(Self, self, link => link.open());
    }

    fn is_open(&self) -> bool {
        of_each!(Self, self, link => link.is_open())
    }

    fn is_receiving(&self) -> bool {
        of_each!(Self, self, link => link.is_receiving())
    }

    #[inline]
    fn try_receiver(&self) -> Option<AnyReceiver<'_>> {
        Some(as_each!(Self, self, link => AnyReceiver(link.try_receiver()?)))
    }

    fn receiver(&self) -> AnyReceiver<'_> {
        as_each!(Self, self, link => AnyReceiver(link.receiver()))
    }

    fn announce(&self) {
        of_each!(Self, self, link => link.announce());
    }

    fn has_unread(&self) -> bool {
        of_each!(Self, self, link => link.has_unread())
    }

    fn wake_up(&self) -> bool {
        of_each!(Self, self, link => link.wake_up())
    }

    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        of_each!(Self, self, link => link.liveness())
    }

    fn has_hung_up(&self) -> bool {
        of_each!(Self, self, link => link.has_hung_up())
    }

    #[inline]
    fn has_ended(&self) -> bool {
        of_each!(Self, self, link => link.has_ended())
    }

    fn end(&self) {
        of_each!(Self, self, link => link.end());
    }
}

impl fmt::Display for AnyPeerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { local, peer, slot } = self.ends();
        write!(f, "{local} to slot {slot} at {peer}")
    }
}

impl PeerReceiver for AnyReceiver<'_> {
    type Batch<'b> = AnyBatch<'b>;

    fn read_unpublished(&mut self) -> bool {
        of_each!(Self, self, receiver => receiver.read_unpublished())
    }

    #[inline]
    fn is_after_udp(&self) -> bool {
        of_each!(Self, self, receiver => receiver.is_after_udp())
    }

    #[inline]
    fn receive(
        &mut self,
        max: usize,
        udp_received: bool,
        mut each: impl for<'b> FnMut(AnyBatch<'b>) -> ControlFlow<()>,
    ) {
        match self {
            Self::Shm(shm) => shm.receive(max, udp_received, |batch| each(AnyBatch::Shm(batch))),
            #[cfg(all(test, not(loom)))]
            Self::Pipe(pipe) => {
                pipe.receive(max, udp_received, |batch| each(AnyBatch::Pipe(batch)))
            }
        }
    }
}

impl<'b> PeerBatch<'b> for AnyBatch<'b> {
    type Segment = AnySegment<'b>;

    #[inline]
    fn header(&self) -> (u8, u8) {
        of_each!(Self, self, batch => batch.header())
    }

    #[inline]
    fn lens(&self) -> (usize, usize) {
        of_each!(Self, self, batch => batch.lens())
    }

    #[inline]
    fn segment(self, start: usize, len: usize) -> AnySegment<'b> {
        as_each!(Self, self, batch => AnySegment(batch.segment(start, len)))
    }
}

impl<'b> Inbound<'b> for AnySegment<'b> {
    #[inline]
    fn len(self) -> usize {
        of_each!(Self, self, segment => segment.len())
    }

    #[inline]
    fn first_bytes(self) -> Option<FirstBytes> {
        of_each!(Self, self, segment => segment.first_bytes())
    }

    #[inline]
    fn fast_path(self) -> Option<FastPathPacket<'b>> {
        of_each!(Self, self, segment => segment.fast_path())
    }

    fn copied(self) -> Vec<u8> {
        of_each!(Self, self, segment => segment.copied())
    }

    #[inline]
    fn whole(self) -> Result<Packet<'b>, PacketError> {
        of_each!(Self, self, segment => segment.whole())
    }
}
