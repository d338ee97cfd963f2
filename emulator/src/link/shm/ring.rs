//! The ring protocol: which process may access which bytes, and when it has to wake the other.
//!
//! One direction of a link is a byte ring with one producer and one consumer process. Positions
//! count bytes since the beginning and only grow. The place in the ring is the position modulo the
//! ring length. Each process keeps its own position in its own memory ([`Producer`], [`Consumer`]).
//! Values that the other process writes into [`RingControl`] are validated at every use.
//!
//! A process first announces that it sleeps or waits for space, and then checks once more
//! ([`announce_sleep`], [`Producer::space_or_wait`]). The other process first produces or consumes,
//! and then checks for announcements. A fence between the two steps on both sides guarantees that
//! at least one of them sees the other.

use crate::sync::modelled::atomic::{AtomicU64, Ordering, fence};

/// Keeps words of different writers in different cache lines (two of them, because lines are
/// prefetched in pairs).
#[repr(C, align(128))]
#[derive(Debug)]
struct CacheAligned<T>(T);

/// The shared words of one direction. Every content is valid.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RingControl {
    /// The producer's position: all bytes before it are published.
    tail: CacheAligned<AtomicU64>,
    /// The end of the unpublished bytes. All bytes before it are written and will be published
    /// soon. The consumer may read them early, and does so when the producer is gone.
    unpublished: CacheAligned<AtomicU64>,
    /// The consumer's position: all bytes before it are free.
    head: CacheAligned<AtomicU64>,
    /// Not 0 while the consumer sleeps and must be woken after producing.
    sleeping: CacheAligned<AtomicU64>,
    /// Not 0 while the producer waits for space and must be woken after consuming.
    blocked: CacheAligned<AtomicU64>,
    /// Not 0 once threads of the consumer read the ring.
    open: CacheAligned<AtomicU64>,
}

/// A record that was consumed from the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Consumed {
    /// Length of the record in the ring.
    pub(super) len: u64,
    /// True if the caller wants no further record for now.
    pub(super) is_last: bool,
}

/// The other process has broken the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corrupt;

/// The producer's side.
#[derive(Debug)]
pub(super) struct Producer {
    tail: u64,
    head_seen: u64,
    len: u64,
}

/// The consumer's side.
#[derive(Debug)]
pub(super) struct Consumer {
    head: u64,
    /// Position up to which unpublished bytes may be read.
    unpublished_tail: u64,
    len: u64,
}

impl RingControl {
    #[cfg(any(test, loom))]
    pub(super) fn new() -> Self {
        let word = || CacheAligned(AtomicU64::new(0));
        Self {
            tail: word(),
            unpublished: word(),
            head: word(),
            sleeping: word(),
            blocked: word(),
            open: word(),
        }
    }

    /// Writes one of the words, as the other process may at any time.
    #[cfg(any(fuzzing, all(test, not(loom))))]
    pub(super) fn damage(&self, which: u8, value: u64) {
        let words = [
            &self.tail,
            &self.unpublished,
            &self.head,
            &self.sleeping,
            &self.blocked,
            &self.open,
        ];
        words[usize::from(which) % words.len()]
            .0
            .store(value, Ordering::Relaxed);
    }

    /// Returns true if there are bytes after `head`. Takes a few nanoseconds, and no lock.
    #[inline]
    pub(super) fn has_unread_records(&self, head: u64) -> bool {
        ahead(self.tail.0.load(Ordering::Acquire), head) > 0
    }

    /// Tells the producer that the ring is read from now on.
    pub(super) fn open(&self) {
        self.open.0.store(1, Ordering::Release);
    }

    /// Returns true if the consumer reads the ring.
    pub(super) fn is_open(&self) -> bool {
        self.open.0.load(Ordering::Acquire) != 0
    }

    /// Sets the sleep flag, for [`announce_sleep`].
    pub(super) fn announce(&self) {
        self.sleeping.0.store(1, Ordering::Relaxed);
    }

    /// Clears the sleep flag. Returns true if the producer has woken the consumer.
    pub(super) fn wake_up(&self) -> bool {
        self.sleeping.0.swap(0, Ordering::Relaxed) == 0
    }

    /// Returns true if the consumer must be woken. Must be called after producing.
    #[inline]
    pub(super) fn has_to_wake_consumer(&self) -> bool {
        full_fence();
        self.sleeping.0.load(Ordering::Relaxed) != 0
            && self.sleeping.0.swap(0, Ordering::Relaxed) != 0
    }

    /// Returns true if the producer must be woken. Must be called after consuming.
    fn has_to_wake_producer(&self) -> bool {
        full_fence();
        self.blocked.0.load(Ordering::Relaxed) != 0
            && self.blocked.0.swap(0, Ordering::Relaxed) != 0
    }
}

/// Returns how far a position is ahead of another, 0 if it is behind.
#[inline]
const fn ahead(position: u64, of: u64) -> u64 {
    let ahead = position.wrapping_sub(of);
    if ahead > u64::MAX / 2 { 0 } else { ahead }
}

/// Announces the sleep of a consumer at each of its links. Returns true if it may sleep: nothing is
/// there, and each producer wakes it for the next record.
pub(in crate::link) fn announce_sleep<L>(
    links: impl Iterator<Item = L> + Clone,
    announce: impl Fn(L),
    has_unread: impl Fn(L) -> bool,
) -> bool {
    links.clone().for_each(announce);
    full_fence();
    let mut links = links;
    !links.any(has_unread)
}

/// Orders an announcement before the check that follows it, and a change before the check for
/// announcements.
#[inline]
fn full_fence() {
    fence(Ordering::SeqCst);
}

impl Producer {
    /// Starts at the beginning of a ring of `len` bytes.
    pub(super) const fn new(len: u64) -> Self {
        Self {
            tail: 0,
            head_seen: 0,
            len,
        }
    }

    /// Returns the position of the next bytes to write.
    pub(super) const fn position(&self) -> u64 {
        self.tail
    }

    /// Returns true if there is space for `need` bytes. If not and `wait` is set, the consumer
    /// wakes the producer as soon as there is space.
    ///
    /// # Errors
    /// [`Corrupt`], if the consumer's position is invalid.
    #[inline]
    pub(super) fn space_or_wait(
        &mut self,
        control: &RingControl,
        need: u64,
        wait: bool,
    ) -> Result<bool, Corrupt> {
        if self.space(control, need)? {
            return Ok(true);
        }
        if !wait {
            return Ok(false);
        }
        control.blocked.0.store(1, Ordering::Relaxed);
        full_fence();
        self.space(control, need)
    }

    /// Returns true if there is space for `need` bytes.
    #[inline]
    fn space(&mut self, control: &RingControl, need: u64) -> Result<bool, Corrupt> {
        if self.len - (self.tail.wrapping_sub(self.head_seen)) >= need {
            return Ok(true);
        }
        let head = control.head.0.load(Ordering::Acquire);
        let used = self.tail.wrapping_sub(head);
        // The head never moves back, and never beyond the tail.
        if used > self.tail.wrapping_sub(self.head_seen) {
            return Err(Corrupt);
        }
        self.head_seen = head;
        Ok(self.len - used >= need)
    }

    /// Publishes `count` bytes, for which there was space. Call
    /// [`RingControl::has_to_wake_consumer`] afterwards.
    #[inline]
    pub(super) fn publish(&mut self, control: &RingControl, count: u64) {
        self.tail = self.tail.wrapping_add(count);
        self.publish_unpublished(control);
    }

    /// Appends `count` bytes, for which there was space, without publishing them. The next bytes or
    /// [`Producer::publish_unpublished`] publish them. They survive the death of this process.
    pub(super) fn append_unpublished(&mut self, control: &RingControl, count: u64) {
        self.tail = self.tail.wrapping_add(count);
        control.unpublished.0.store(self.tail, Ordering::Release);
    }

    /// Publishes all appended bytes.
    #[inline]
    pub(super) fn publish_unpublished(&self, control: &RingControl) {
        control.tail.0.store(self.tail, Ordering::Release);
    }
}

impl Consumer {
    /// Starts at the beginning of a ring of `len` bytes.
    pub(super) const fn new(len: u64) -> Self {
        Self {
            head: 0,
            unpublished_tail: 0,
            len,
        }
    }

    /// Returns the position of the next bytes to read.
    pub(super) const fn position(&self) -> u64 {
        self.head
    }

    /// Returns the number of readable bytes.
    #[inline]
    pub(super) fn available(&self, control: &RingControl) -> Result<u64, Corrupt> {
        let tail = control.tail.0.load(Ordering::Acquire);
        let count = ahead(tail, self.head).max(ahead(self.unpublished_tail, self.head));
        if count > self.len {
            Err(Corrupt)
        } else {
            Ok(count)
        }
    }

    /// Makes the bytes that are unpublished now readable.
    pub(super) fn read_unpublished(&mut self, control: &RingControl) {
        self.unpublished_tail = control.unpublished.0.load(Ordering::Acquire);
    }

    /// Passes up to `max` records to `each` and frees their space, until `each` breaks off. `each`
    /// gets the position of a record and the number of readable bytes. It returns the length of the
    /// record, or `None` to leave it in the ring.
    ///
    /// Returns true if the producer must be woken. A producer waits only if the ring is fuller than
    /// `crowded`.
    ///
    /// # Errors
    /// [`Corrupt`], from the producer's position or from `each`.
    #[inline]
    pub(super) fn consume(
        &mut self,
        control: &RingControl,
        (max, crowded): (usize, u64),
        mut each: impl FnMut(u64, u64) -> Result<Option<Consumed>, Corrupt>,
        mut released: impl FnMut(u64),
    ) -> Result<bool, Corrupt> {
        let mut was_crowded = false;
        for _ in 0..max {
            let available = self.available(control)?;
            if available == 0 {
                break;
            }
            let Some(consumed) = each(self.head, available)? else {
                break;
            };
            was_crowded |= available > crowded;
            self.release(control, consumed.len);
            released(self.head);
            if consumed.is_last {
                break;
            }
        }
        Ok(was_crowded && control.has_to_wake_producer())
    }

    /// Frees `count` bytes that were readable.
    #[inline]
    fn release(&mut self, control: &RingControl, count: u64) {
        self.head = self.head.wrapping_add(count);
        control.head.0.store(self.head, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Announces the sleep of a consumer that has read nothing of a ring.
    fn announce_at(ring: &RingControl) -> bool {
        let unread = |ring: &RingControl| ring.has_unread_records(0);
        announce_sleep(std::iter::once(ring), RingControl::announce, unread)
    }

    #[test]
    fn space_and_news_follow_the_positions() {
        let control = RingControl::new();
        let (mut producer, mut consumer) = (Producer::new(256), Consumer::new(256));
        assert!(!control.has_unread_records(consumer.position()));
        assert_eq!(producer.space(&control, 256), Ok(true));
        producer.publish(&control, 192);
        assert!(!control.has_to_wake_consumer());
        assert_eq!(producer.space(&control, 128), Ok(false));
        assert!(control.has_unread_records(consumer.position()));
        assert_eq!(consumer.available(&control), Ok(192));
        consumer.release(&control, 64);
        assert_eq!(producer.space(&control, 128), Ok(true));
        assert_eq!(consumer.available(&control), Ok(128));
    }

    #[test]
    fn sleepers_are_woken_once() {
        let control = RingControl::new();
        let mut producer = Producer::new(256);
        assert!(announce_at(&control));
        producer.publish(&control, 64);
        assert!(control.has_to_wake_consumer());
        producer.publish(&control, 64);
        assert!(!control.has_to_wake_consumer());
        assert!(control.wake_up(), "it was woken");
        assert!(!announce_at(&control), "a record is there");
        assert!(!control.wake_up());
        producer.publish(&control, 64);
        assert!(!control.has_to_wake_consumer());
        assert_eq!(producer.space_or_wait(&control, 256, true), Ok(false));
        assert!(control.has_to_wake_producer());
        assert!(!control.has_to_wake_producer());
        assert_eq!(producer.space_or_wait(&control, 256, false), Ok(false));
        assert!(!control.has_to_wake_producer(), "no producer waits");
    }

    #[test]
    fn an_unpublished_record_is_published_later_or_read_early() {
        let control = RingControl::new();
        let (mut producer, mut consumer) = (Producer::new(256), Consumer::new(256));
        producer.append_unpublished(&control, 64);
        assert!(!control.has_unread_records(consumer.position()));
        assert_eq!(consumer.available(&control), Ok(0));
        assert_eq!(producer.space(&control, 256), Ok(false), "it takes space");
        // The next published bytes publish the appended ones, too.
        producer.publish(&control, 64);
        assert_eq!(consumer.available(&control), Ok(128));
        consumer.release(&control, 128);
        // The producer publishes them itself.
        producer.append_unpublished(&control, 64);
        producer.publish_unpublished(&control);
        assert_eq!(consumer.available(&control), Ok(64));
        consumer.release(&control, 64);
        // The consumer reads them early, and is then ahead of the published position.
        producer.append_unpublished(&control, 64);
        consumer.read_unpublished(&control);
        assert_eq!(consumer.available(&control), Ok(64));
        consumer.release(&control, 64);
        assert!(!control.has_unread_records(consumer.position()));
        assert_eq!(consumer.available(&control), Ok(0));
        producer.publish(&control, 64);
        assert!(control.has_unread_records(consumer.position()));
        assert_eq!(consumer.available(&control), Ok(64));
        // An invalid unpublished position is detected, too.
        control.unpublished.0.store(1 << 40, Ordering::Relaxed);
        consumer.read_unpublished(&control);
        assert_eq!(consumer.available(&control), Err(Corrupt));
    }

    #[test]
    fn nonsense_of_the_other_side_is_noticed() {
        let control = RingControl::new();
        let (mut producer, consumer) = (Producer::new(256), Consumer::new(256));
        control.tail.0.store(257, Ordering::Relaxed);
        assert_eq!(consumer.available(&control), Err(Corrupt));
        control.tail.0.store(u64::MAX / 2, Ordering::Relaxed);
        assert_eq!(consumer.available(&control), Err(Corrupt));
        control.tail.0.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(consumer.available(&control), Ok(0), "behind");
        assert!(!control.has_unread_records(consumer.position()));
        producer.publish(&control, 256);
        control.head.0.store(257, Ordering::Relaxed);
        assert_eq!(producer.space(&control, 64), Err(Corrupt));
        control.head.0.store(64, Ordering::Relaxed);
        assert_eq!(producer.space(&control, 64), Ok(true));
        producer.publish(&control, 64);
        control.head.0.store(0, Ordering::Relaxed);
        assert_eq!(
            producer.space(&control, 64),
            Err(Corrupt),
            "the head goes back"
        );
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// Announces the sleep of a consumer that has read nothing of a ring.
    fn announce_at(ring: &RingControl) -> bool {
        let unread = |ring: &RingControl| ring.has_unread_records(0);
        announce_sleep(std::iter::once(ring), RingControl::announce, unread)
    }

    use super::*;

    const LEN: u64 = 2;

    struct Ring {
        control: RingControl,
        cells: [UnsafeCell<u64>; LEN as usize],
    }

    impl Ring {
        fn new() -> Arc<Self> {
            let cells = [UnsafeCell::new(0), UnsafeCell::new(0)];
            Arc::new(Self {
                control: RingControl::new(),
                cells,
            })
        }

        fn put(&self, producer: &mut Producer, value: u64) -> bool {
            let at = (producer.position() % LEN) as usize;
            // SAFETY: loom checks that no other thread accesses the cell meanwhile.
            self.cells[at].with_mut(|cell| unsafe { *cell = value });
            producer.publish(&self.control, 1);
            self.control.has_to_wake_consumer()
        }

        fn take(&self, consumer: &mut Consumer) -> (Option<u64>, bool) {
            let mut value = None;
            let each = |at: u64, _| {
                let cell = &self.cells[(at % LEN) as usize];
                // SAFETY: as above.
                value = Some(cell.with(|cell| unsafe { *cell }));
                let (len, is_last) = (1, true);
                Ok(Some(Consumed { len, is_last }))
            };
            let wakes = consumer.consume(&self.control, (1, 0), each, |_| ());
            (value, wakes.unwrap())
        }
    }

    /// All bytes are read after they were written, in order, and are not overwritten while they are
    /// read.
    #[test]
    fn loom_bytes_pass_to_the_consumer_and_back() {
        loom::model(|| {
            let ring = Ring::new();
            let producing = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    let mut producer = Producer::new(LEN);
                    let mut put = 0;
                    for _ in 0..4 {
                        if put < 3 && producer.space_or_wait(&ring.control, 1, false).unwrap() {
                            put += 1;
                            ring.put(&mut producer, put);
                        }
                    }
                    put
                })
            };
            let mut consumer = Consumer::new(LEN);
            let mut next = 1;
            for _ in 0..3 {
                if let (Some(value), _) = ring.take(&mut consumer) {
                    assert_eq!(value, next);
                    next += 1;
                }
            }
            let put = producing.join().unwrap();
            while let (Some(value), _) = ring.take(&mut consumer) {
                assert_eq!(value, next);
                next += 1;
            }
            assert_eq!(next, put + 1);
        });
    }

    /// A consumer that goes to sleep sees what was produced, or is woken for it.
    #[test]
    fn loom_no_packet_is_slept_through() {
        loom::model(|| {
            let ring = Ring::new();
            let producing = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || ring.put(&mut Producer::new(LEN), 1))
            };
            let sleeps = announce_at(&ring.control);
            let woken = producing.join().unwrap();
            assert!(
                !sleeps || woken,
                "a packet is there, and its receiver sleeps"
            );
        });
    }

    /// A producer that waits for space sees it, or is woken when there is some.
    #[test]
    fn loom_no_producer_waits_for_room_that_is_there() {
        loom::model(|| {
            let ring = Ring::new();
            let mut producer = Producer::new(LEN);
            ring.put(&mut producer, 1);
            ring.put(&mut producer, 2);
            let consuming = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    let (value, wakes) = ring.take(&mut Consumer::new(LEN));
                    assert_eq!(value, Some(1));
                    wakes
                })
            };
            let space = producer.space_or_wait(&ring.control, 1, true).unwrap();
            let woken = consuming.join().unwrap();
            assert!(
                space || woken,
                "there is space, and the producer waits for it"
            );
        });
    }
}
