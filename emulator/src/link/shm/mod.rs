//! Shared-memory links: packets between two processes of a host without the kernel.
//!
//! A [`ShmLink`] connects an address of this process with an address of another process of the
//! same broker, which has created the memory. It carries the same batches of segments (BTH to ICRC)
//! as UDP, but leaves the ICRC out. Each process wakes a sleeping peer through an eventfd. A socket
//! pair, the liveness socket, hangs up when the other end is gone.
//!
//! The other process is only trusted to send packets, see `ring` and `memory`.

#[cfg(any(fuzzing, all(test, not(loom))))]
pub(crate) mod fuzz;
mod memory;
mod ring;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::sync::{Mutex, MutexGuard, rank};
use rocade_wire::{FastPathPacket, Packet, PacketError};

use memory::{RING_LEN, RingDirection, SharedMemory};
pub(crate) use memory::{create, probe, wake, wake_fd};
pub(super) use ring::announce_sleep;
use ring::{Consumed, Consumer, Corrupt, Producer, RingControl};

use super::peer_link::{Ends, Fragment, PeerBatch, PeerLink, PeerReceiver, SendOutcome, Sending};
use super::{Inbound, LocalAddr};
use crate::steering::ProcessSlot;
use crate::trace::FirstBytes;

/// Bytes before each batch in the ring, little-endian: length (2), segment length (2), flags (2),
/// traffic class (1), hop limit (1).
const RECORD_HEADER: usize = 8;
/// Offset of the flags in the header.
const RECORD_FLAGS: usize = 4;
/// Flag: the peer must first receive the earlier UDP packets of the queue pair.
const AFTER_UDP: u16 = 1;
/// Most records in a ring.
pub(crate) const MAX_RECORDS: usize = RING_LEN / RECORD_ALIGN;
/// Alignment of records: two cache lines.
const RECORD_ALIGN: usize = 128;
/// Number of following shortest records that are prefetched: an ACK and a message.
const RECORDS_AHEAD: u64 = 2;
/// Longest batch in bytes.
pub(crate) const MAX_BATCH: usize = 65_535;
const _: () = assert!(super::MAX_SEND_LEN <= MAX_BATCH && MAX_BATCH <= u16::MAX as usize);
/// Fill level above which the producer may be waiting for space. The producer waits only if the
/// longest record does not fit.
const CROWDED_BYTES: u64 = RING_LEN as u64 / 4;

/// The ends of a link and the descriptors to use it, from the broker.
#[derive(Debug)]
pub(crate) struct PeerLinkOffer {
    /// The address of this process.
    pub(crate) local: LocalAddr,
    /// The peer's address.
    pub(crate) peer: LocalAddr,
    /// The peer's slot.
    pub(crate) slot: ProcessSlot,
    /// True if this process requested the link, false if the peer did.
    pub(crate) asked: bool,
    /// The memory.
    pub(crate) memory: OwnedFd,
    /// The liveness socket, which hangs up when the peer is gone.
    pub(crate) liveness_socket: OwnedFd,
    /// The eventfd that wakes the peer.
    pub(crate) wake: OwnedFd,
}

/// A shared-memory link to another process. Threads may send and receive at the same time.
pub(crate) struct ShmLink {
    ends: Ends,
    memory: SharedMemory,
    tx: RingDirection,
    producer: Mutex<Producer>,
    consumer: Mutex<Consumer, rank::RingReceive>,
    /// The consumer's position, to check for packets without its lock.
    head: AtomicU64,
    /// The producer's position, to prefetch without its lock.
    next: AtomicU64,
    liveness_socket: UnixStream,
    wake: OwnedFd,
    /// True while this process has announced that it sleeps.
    announced: AtomicBool,
    ended: AtomicBool,
}

impl ShmLink {
    /// Maps a link.
    ///
    /// # Errors
    /// Errors of mapping, or `InvalidData` if the memory is invalid.
    pub(crate) fn new(offer: PeerLinkOffer) -> io::Result<Self> {
        let memory = SharedMemory::map(offer.memory.as_fd())?;
        let len = RING_LEN as u64;
        Ok(Self {
            ends: Ends {
                local: offer.local,
                peer: offer.peer,
                slot: offer.slot,
            },
            memory,
            tx: if offer.asked {
                RingDirection::First
            } else {
                RingDirection::Second
            },
            producer: Mutex::new(Producer::new(len)),
            consumer: Mutex::new(Consumer::new(len)),
            head: AtomicU64::new(0),
            next: AtomicU64::new(0),
            liveness_socket: offer.liveness_socket.into(),
            wake: offer.wake,
            announced: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    /// Creates both ends of a link between two addresses of this process, which `wake` wakes.
    ///
    /// # Errors
    /// Errors of creating and mapping memory and sockets.
    pub(crate) fn own(
        local: LocalAddr,
        peer: LocalAddr,
        slot: ProcessSlot,
        wake: BorrowedFd<'_>,
    ) -> io::Result<[Self; 2]> {
        let memory = create()?;
        let (one, other) = UnixStream::pair()?;
        let offer = |local, peer, asked, liveness_socket: UnixStream| {
            Self::new(PeerLinkOffer {
                local,
                peer,
                slot,
                asked,
                memory: memory.try_clone()?,
                liveness_socket: liveness_socket.into(),
                wake: wake.try_clone_to_owned()?,
            })
        };
        Ok([
            offer(local, peer, true, one)?,
            offer(peer, local, false, other)?,
        ])
    }

    /// Shuts the link down because the peer broke the protocol.
    #[cold]
    fn mark_corrupt(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            tracing::warn!(ends = ?self.ends, "shutting down a shared-memory link, because the peer has damaged its memory");
            // Both ends hang up. Fails if that has happened before.
            let _ = self.liveness_socket.shutdown(Shutdown::Both);
        }
    }

    #[inline]
    fn wake_peer(&self) {
        if self.memory.control(self.tx).has_to_wake_consumer() {
            wake(self.wake.as_fd());
        }
    }

    /// Returns the control words of the receive direction.
    #[inline]
    fn rx_control(&self) -> &RingControl {
        self.memory.control(self.tx.reverse())
    }

    /// Returns the consumer's position.
    #[inline]
    fn head(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }
}

impl PeerLink for ShmLink {
    type Receiver<'l> = ShmReceiver<'l>;

    #[inline]
    fn ends(&self) -> &Ends {
        &self.ends
    }

    #[inline]
    fn send<'a>(&self, batch: impl Iterator<Item = Fragment<'a>>, sending: Sending) -> SendOutcome {
        let (batch_len, unpublished) = (sending.len, sending.unpublished);
        let flags = if sending.after_udp { AFTER_UDP } else { 0 };
        let lens = (u16::try_from(batch_len), u16::try_from(sending.segment_len));
        let (Ok(len), Ok(segment_len)) = lens else {
            return SendOutcome::Ended;
        };
        if self.has_ended() {
            return SendOutcome::Ended;
        }
        let need = record_len(batch_len);
        let control = self.memory.control(self.tx);
        let mut producer = self.producer.lock();
        match producer.space_or_wait(control, need, sending.wait) {
            Ok(true) => {}
            Ok(false) => {
                // The peer frees only the space of published records.
                producer.publish_unpublished(control);
                return SendOutcome::Full;
            }
            Err(Corrupt) => {
                self.mark_corrupt();
                return SendOutcome::Ended;
            }
        }
        let at = producer.position();
        let mut header = [0; RECORD_HEADER];
        header[..2].copy_from_slice(&len.to_le_bytes());
        header[2..4].copy_from_slice(&segment_len.to_le_bytes());
        header[RECORD_FLAGS..][..2].copy_from_slice(&flags.to_le_bytes());
        header[6] = sending.traffic_class;
        header[7] = sending.hop_limit;
        self.memory.write(self.tx, at, &header);
        let mut place = at.wrapping_add(RECORD_HEADER as u64);
        let end = place.wrapping_add(batch_len as u64);
        for fragment in batch {
            let len = match fragment {
                Fragment::Bytes(bytes) => bytes.len(),
                Fragment::Registered(payload) => payload.len(),
            } as u64;
            debug_assert!(len <= end.wrapping_sub(place), "longer than announced");
            match fragment {
                Fragment::Bytes(bytes) => self.memory.write(self.tx, place, bytes),
                Fragment::Registered(payload) => {
                    if self.memory.write_from(self.tx, place, payload).is_err() {
                        return SendOutcome::Fault;
                    }
                }
            }
            place = place.wrapping_add(len);
        }
        self.next.store(at.wrapping_add(need), Ordering::Relaxed);
        if unpublished {
            producer.append_unpublished(control, need);
            return SendOutcome::Sent;
        }
        producer.publish(control, need);
        drop(producer);
        self.wake_peer();
        SendOutcome::Sent
    }

    fn publish_unpublished(&self) {
        let producer = self.producer.lock();
        producer.publish_unpublished(self.memory.control(self.tx));
        drop(producer);
        self.wake_peer();
    }

    #[inline]
    fn prefetch_next(&self) {
        let head = self.head.load(Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        for record in 0..RECORDS_AHEAD {
            let ahead = record * RECORD_ALIGN as u64;
            let (from, to) = (head.wrapping_add(ahead), next.wrapping_add(ahead));
            self.memory.prefetch_read(self.tx.reverse(), from);
            self.memory.prefetch_write(self.tx, to);
        }
    }

    fn open(&self) {
        self.rx_control().open();
        wake(self.wake.as_fd());
    }

    fn is_open(&self) -> bool {
        self.memory.control(self.tx).is_open()
    }

    fn is_receiving(&self) -> bool {
        self.consumer.is_locked()
    }

    #[inline]
    fn try_receiver(&self) -> Option<ShmReceiver<'_>> {
        self.consumer.try_lock().map(|consumer| ShmReceiver {
            shm_link: self,
            consumer,
        })
    }

    fn receiver(&self) -> ShmReceiver<'_> {
        ShmReceiver {
            shm_link: self,
            consumer: self.consumer.lock(),
        }
    }

    fn announce(&self) {
        self.announced.store(true, Ordering::Relaxed);
        self.rx_control().announce();
    }

    fn has_unread(&self) -> bool {
        self.rx_control().has_unread_records(self.head())
    }

    fn wake_up(&self) -> bool {
        self.announced.swap(false, Ordering::Relaxed) && self.rx_control().wake_up()
    }

    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.liveness_socket.as_fd())
    }

    fn has_hung_up(&self) -> bool {
        memory::has_hung_up(self.liveness_socket.as_fd())
    }

    #[inline]
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmLink")
            .field("ends", &self.ends)
            .field("ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

/// Returns the length of a batch's record in the ring.
#[inline]
const fn record_len(batch: usize) -> u64 {
    (RECORD_HEADER + batch).next_multiple_of(RECORD_ALIGN) as u64
}

/// The receiving end of a link, locked.
pub(crate) struct ShmReceiver<'a> {
    shm_link: &'a ShmLink,
    consumer: MutexGuard<'a, Consumer>,
}

/// Bytes of a segment that are copied out before any decision. All headers fit.
const HEAD_LEN: usize = 64;

/// A batch of segments in the ring.
#[derive(Clone, Copy)]
pub(crate) struct ShmBatch<'a> {
    shm_link: &'a ShmLink,
    at: u64,
    len: usize,
    segment_len: usize,
    after_udp: bool,
    traffic_class: u8,
    hop_limit: u8,
}

/// One segment of a batch.
#[derive(Clone, Copy)]
pub(crate) struct ShmSegment<'a> {
    shm_link: &'a ShmLink,
    at: u64,
    len: usize,
}

impl PeerReceiver for ShmReceiver<'_> {
    type Batch<'b> = ShmBatch<'b>;

    fn read_unpublished(&mut self) -> bool {
        let control = self.shm_link.rx_control();
        self.consumer.read_unpublished(control);
        self.consumer.available(control) != Ok(0)
    }

    #[inline]
    fn is_after_udp(&self) -> bool {
        let control = self.shm_link.rx_control();
        let is_there = self
            .consumer
            .available(control)
            .is_ok_and(|count| count > 0);
        is_there && self.next_is_after_udp()
    }

    #[inline]
    fn receive(
        &mut self,
        max: usize,
        mut udp_received: bool,
        mut each: impl for<'b> FnMut(ShmBatch<'b>) -> ControlFlow<()>,
    ) {
        let shm_link = self.shm_link;
        let next = |at, available| {
            if shm_link.has_ended() {
                return Ok(None);
            }
            let batch = next_batch(shm_link, at, available).ok_or(Corrupt)?;
            if batch.after_udp && !udp_received {
                return Ok(None);
            }
            udp_received = false;
            let (len, is_last) = (record_len(batch.len), each(batch).is_break());
            Ok(Some(Consumed { len, is_last }))
        };
        let released = |head| shm_link.head.store(head, Ordering::Relaxed);
        let bounds = (max, CROWDED_BYTES);
        let control = shm_link.rx_control();
        match self.consumer.consume(control, bounds, next, released) {
            Ok(true) => wake(shm_link.wake.as_fd()),
            Ok(false) => {}
            Err(Corrupt) => shm_link.mark_corrupt(),
        }
    }
}

impl ShmReceiver<'_> {
    /// Returns true if the next record has the flag [`AFTER_UDP`], without validating the record.
    #[inline]
    fn next_is_after_udp(&self) -> bool {
        let mut flags = [0; 2];
        let at = self.consumer.position().wrapping_add(RECORD_FLAGS as u64);
        let direction = self.shm_link.tx.reverse();
        self.shm_link.memory.copy(direction, at, &mut flags);
        u16::from_le_bytes(flags) == AFTER_UDP
    }
}

/// Returns the batch at a position, if its header is valid.
#[inline]
fn next_batch(shm_link: &ShmLink, at: u64, available: u64) -> Option<ShmBatch<'_>> {
    let mut header = [0; RECORD_HEADER];
    if available < RECORD_HEADER as u64 {
        return None;
    }
    shm_link.memory.copy(shm_link.tx.reverse(), at, &mut header);
    let [a, b, c, d, e, f, traffic_class, hop_limit] = header;
    let len = usize::from(u16::from_le_bytes([a, b]));
    let segment_len = usize::from(u16::from_le_bytes([c, d]));
    let flags = u16::from_le_bytes([e, f]);
    if len == 0 || segment_len == 0 || record_len(len) > available {
        return None;
    }
    if flags & !AFTER_UDP != 0 {
        return None;
    }
    Some(ShmBatch {
        shm_link,
        at: at.wrapping_add(RECORD_HEADER as u64),
        len,
        segment_len,
        after_udp: flags != 0,
        traffic_class,
        hop_limit,
    })
}

impl<'a> PeerBatch<'a> for ShmBatch<'a> {
    type Segment = ShmSegment<'a>;

    #[inline]
    fn header(&self) -> (u8, u8) {
        (self.traffic_class, self.hop_limit)
    }

    #[inline]
    fn lens(&self) -> (usize, usize) {
        (self.len, self.segment_len)
    }

    #[inline]
    fn segment(self, start: usize, len: usize) -> ShmSegment<'a> {
        ShmSegment {
            shm_link: self.shm_link,
            at: self.at.wrapping_add(start as u64),
            len,
        }
    }
}

impl<'a> ShmSegment<'a> {
    /// Copies the first `N` bytes. Returns `None` if there are fewer.
    #[inline]
    fn copy_first<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.len >= N).then(|| {
            self.copy_head(&mut bytes);
            bytes
        })
    }

    /// Copies the first bytes, as many as exist and fit, and returns them.
    #[inline]
    fn copy_head<'h>(&self, head: &'h mut [u8]) -> &'h [u8] {
        let len = self.len.min(head.len());
        let head = &mut head[..len];
        let direction = self.shm_link.tx.reverse();
        self.shm_link.memory.copy(direction, self.at, head);
        head
    }

    /// Returns the whole segment in place. Only its length is reliable.
    #[inline]
    fn in_place(&self) -> &'a [u8] {
        let direction = self.shm_link.tx.reverse();
        self.shm_link.memory.in_place(direction, self.at, self.len)
    }
}

/// Copies headers out before use, because the peer may change them. Of the rest, only the length is
/// reliable.
impl<'a> Inbound<'a> for ShmSegment<'a> {
    #[inline]
    fn len(self) -> usize {
        self.len
    }

    #[inline]
    fn first_bytes(self) -> Option<FirstBytes> {
        let mut bytes = FirstBytes::default();
        (self.copy_head(&mut bytes).len() == bytes.len()).then_some(bytes)
    }

    #[inline]
    fn fast_path(self) -> Option<FastPathPacket<'a>> {
        FastPathPacket::parse_in_place(&self.copy_first()?, self.in_place())
    }

    fn copied(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_head(&mut bytes);
        bytes
    }

    #[inline]
    fn whole(self) -> Result<Packet<'a>, PacketError> {
        let mut head = [0; HEAD_LEN];
        Packet::parse_in_place(self.copy_head(&mut head), self.in_place())
    }
}

#[cfg(all(test, not(loom)))]
#[expect(
    clippy::unwrap_used,
    reason = "in helpers of tests a panic is the report"
)]
mod tests;
