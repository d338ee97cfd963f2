//! A link of tests: two queues between two addresses of one process.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::peer_link::{Ends, Fragment, PeerBatch, PeerLink, PeerReceiver, SendOutcome, Sending};
use super::shm::wake;
use crate::sync::{Mutex, MutexGuard, rank};

/// One direction.
type Queue = Arc<Mutex<VecDeque<(Vec<u8>, Sending)>>>;

/// An end of a pipe. Nothing bounds it, and batches are published at once.
#[derive(Debug)]
pub(crate) struct PipeLink {
    ends: Ends,
    tx: Queue,
    rx: Queue,
    receiving: Mutex<(), rank::RingReceive>,
    /// Wakes the thread that waits for packets.
    wake: Arc<OwnedFd>,
}

impl PipeLink {
    /// Makes both ends.
    pub(crate) fn pair(ends: Ends, wake: &Arc<OwnedFd>) -> [Self; 2] {
        let (to, fro) = (Queue::default(), Queue::default());
        let end = |ends, tx: &Queue, rx: &Queue| Self {
            ends,
            tx: Arc::clone(tx),
            rx: Arc::clone(rx),
            receiving: Mutex::default(),
            wake: Arc::clone(wake),
        };
        let (local, peer) = (ends.peer, ends.local);
        let other = Ends {
            local,
            peer,
            ..ends
        };
        [end(ends, &to, &fro), end(other, &fro, &to)]
    }
}

impl PeerLink for PipeLink {
    type Receiver<'l> = PipeReceiver<'l>;

    fn ends(&self) -> &Ends {
        &self.ends
    }

    fn send<'a>(&self, batch: impl Iterator<Item = Fragment<'a>>, sending: Sending) -> SendOutcome {
        let mut bytes = Vec::with_capacity(sending.len);
        for fragment in batch {
            let at = bytes.len();
            match fragment {
                Fragment::Bytes(part) => bytes.extend_from_slice(part),
                Fragment::Registered(payload) => {
                    bytes.resize(at + payload.len(), 0);
                    if payload.copy(&mut bytes[at..]).is_err() {
                        return SendOutcome::Fault;
                    }
                }
            }
        }
        self.tx.lock().push_back((bytes, sending));
        wake(self.wake.as_fd());
        SendOutcome::Sent
    }

    fn is_receiving(&self) -> bool {
        self.receiving.is_locked()
    }

    fn try_receiver(&self) -> Option<PipeReceiver<'_>> {
        Some(PipeReceiver(self, self.receiving.try_lock()?))
    }

    fn receiver(&self) -> PipeReceiver<'_> {
        PipeReceiver(self, self.receiving.lock())
    }

    fn has_unread(&self) -> bool {
        !self.rx.lock().is_empty()
    }
}

/// The receiving end, locked.
pub(crate) struct PipeReceiver<'l>(
    &'l PipeLink,
    #[expect(dead_code, reason = "held")] MutexGuard<'l, ()>,
);

/// A received batch.
#[derive(Clone, Copy)]
pub(crate) struct PipeBatch<'b>(&'b [u8], Sending);

impl PeerReceiver for PipeReceiver<'_> {
    type Batch<'b> = PipeBatch<'b>;

    fn read_unpublished(&mut self) -> bool {
        self.0.has_unread()
    }

    fn is_after_udp(&self) -> bool {
        let queue = self.0.rx.lock();
        queue.front().is_some_and(|(_, sending)| sending.after_udp)
    }

    fn receive(
        &mut self,
        max: usize,
        mut udp_received: bool,
        mut each: impl for<'b> FnMut(PipeBatch<'b>) -> ControlFlow<()>,
    ) {
        for _ in 0..max {
            if self.is_after_udp() && !udp_received {
                return;
            }
            udp_received = false;
            let Some((bytes, sending)) = self.0.rx.lock().pop_front() else {
                return;
            };
            if each(PipeBatch(&bytes, sending)).is_break() {
                return;
            }
        }
    }
}

impl<'b> PeerBatch<'b> for PipeBatch<'b> {
    type Segment = &'b [u8];

    fn header(&self) -> (u8, u8) {
        (self.1.traffic_class, self.1.hop_limit)
    }

    fn lens(&self) -> (usize, usize) {
        (self.0.len(), self.1.segment_len)
    }

    fn segment(self, start: usize, len: usize) -> &'b [u8] {
        &self.0[start..start + len]
    }
}
