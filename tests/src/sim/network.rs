//! A network that loses, repeats and reorders, and an observer that knows which sequence
//! numbers are legal.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rocade_transport::testing::{Fate, Transit};
use rocade_wire::{Headers, Operation, Psn};

use super::rng::Rng;

/// Faults per 1000 packets, of both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Packets lost.
    pub loss: u64,
    /// Packets that arrive twice.
    pub duplication: u64,
    /// Packets that arrive late.
    pub reorder: u64,
    /// How late at most, in nanoseconds.
    pub reorder_ns: u64,
    /// All packets are lost for so many packets, once, starting somewhere in the first thousand.
    pub blackout: usize,
}

impl Faults {
    /// A network without faults.
    pub const NONE: Self =
        Self { loss: 0, duplication: 0, reorder: 0, reorder_ns: 0, blackout: 0 };
}

/// The network between a pair: to be called for every packet.
#[derive(Debug)]
pub struct Network {
    faults: Rc<RefCell<Faults>>,
    rng: Rng,
    pmtu: u32,
    observers: [Observer; 2],
    seen: usize,
    blackout_at: usize,
}

impl Network {
    /// A network with faults that the caller may change later.
    #[must_use]
    pub fn new(
        seed: u64,
        faults: Rc<RefCell<Faults>>,
        pmtu: u32,
        first_psns: [Psn; 2],
    ) -> Self {
        let mut rng = Rng::new(seed, 2);
        let blackout_at = usize::try_from(rng.below(1000)).expect("small");
        Self {
            faults,
            rng,
            pmtu,
            observers: first_psns.map(|next| Observer { next, sent: BTreeMap::new() }),
            seen: 0,
            blackout_at,
        }
    }

    /// What happens to a packet.
    ///
    /// # Panics
    /// If its sequence number is not legal.
    pub fn decide(&mut self, transit: &Transit<'_>) -> Fate {
        self.observers[transit.from as usize].check(
            transit.packet.headers(),
            transit.packet.payload(),
            self.pmtu,
        );
        let faults = *self.faults.borrow();
        self.seen += 1;
        let dark = self.blackout_at..self.blackout_at + faults.blackout;
        if dark.contains(&self.seen) || self.rng.chance(faults.loss) {
            return Fate::Drop;
        }
        let copies = 1 + u64::from(self.rng.chance(faults.duplication));
        let delays = (0..copies)
            .map(|_| {
                if self.rng.chance(faults.reorder) { self.rng.below(faults.reorder_ns) } else { 0 }
            })
            .collect();
        Fate::Copies(delays)
    }
}

/// Checks the requests of one side.
#[derive(Debug)]
struct Observer {
    /// PSN of the next new request.
    next: Psn,
    /// What was sent, by PSN; READs and ends of the space are overwritten when it wraps.
    sent: BTreeMap<u32, (Headers, u64)>,
}

impl Observer {
    //= RC-PSN-05, RC-REQ-16 type=test
    fn check(&mut self, headers: &Headers, payload: &[u8], pmtu: u32) {
        let Some(operation) = headers.bth.opcode.operation().filter(|o| o.is_request()) else {
            return;
        };
        let psn = headers.bth.psn;
        let ahead = psn.diff(self.next);
        assert!(ahead <= 0, "{headers} leaves a gap after {}", self.next);
        let mut image = *headers;
        image.bth.ack_req = false;
        let fact = (image, checksum(payload));
        if ahead == 0 {
            let psns = match headers.reth {
                Some(reth) if operation == Operation::ReadRequest => {
                    reth.dma_len.div_ceil(pmtu).max(1)
                }
                _ => 1,
            };
            self.next = psn.add(psns);
            for offset in 1..psns {
                self.sent.remove(&psn.add(offset).get());
            }
            self.sent.insert(psn.get(), fact);
            return;
        }
        match self.sent.get(&psn.get()) {
            Some(first) => assert!(*first == fact, "{headers} was {} before", first.0),
            None => assert_eq!(operation, Operation::ReadRequest, "{headers} inside a READ"),
        }
    }
}

/// FNV-1a over words, enough to tell two payloads apart.
fn checksum(payload: &[u8]) -> u64 {
    payload.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
    })
}
