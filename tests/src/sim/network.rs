//! A network that loses, duplicates and reorders packets, and an observer that checks PSNs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rocade_emulator::link::fault::{Faults as Rules, PacketDirection, Rule};
use rocade_transport::testing::{Delivery, PacketEvent, Side};
use rocade_wire::{Headers, Operation, Psn};

use super::rng::Rng;

/// The processing time of B, which handles received and sent packets one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessingDelay {
    /// The time for a packet of the path MTU in nanoseconds. A shorter packet takes less, down to
    /// half of it.
    pub packet_ns: u64,
    /// The duration in nanoseconds during which B does nothing.
    pub stall_ns: u64,
    /// The time in nanoseconds that B works before each stall.
    pub busy_ns: u64,
}

impl ProcessingDelay {
    /// Returns the time at which work of `cost_ns` that starts at `time` is done.
    const fn done(&self, mut time: u64, mut cost_ns: u64) -> u64 {
        if self.stall_ns == 0 {
            return time + cost_ns;
        }
        let period = self.busy_ns + self.stall_ns;
        loop {
            let phase = time % period;
            let left = self.busy_ns.saturating_sub(phase);
            if cost_ns < left {
                return time + cost_ns;
            }
            cost_ns -= left;
            time += period - phase;
        }
    }
}

/// Network faults per 1000 packets, in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Lost packets.
    pub loss: u64,
    /// Packets that are delivered twice.
    pub duplication: u64,
    /// Packets that are delivered late.
    pub reorder: u64,
    /// The maximum delay of late packets in nanoseconds.
    pub reorder_ns: u64,
    /// Packets that are delayed beyond an ACK timeout, so that the state of the connection has
    /// changed on arrival.
    pub late: u64,
    /// The maximum delay of those packets in nanoseconds.
    pub late_ns: u64,
    /// The duration of a single outage, which begins within the first 20 ms.
    pub blackout_ns: u64,
}

impl Faults {
    /// A network without faults.
    pub const NONE: Self = Self {
        loss: 0,
        duplication: 0,
        reorder: 0,
        reorder_ns: 0,
        late: 0,
        late_ns: 0,
        blackout_ns: 0,
    };
}

/// The network between a pair, called for every packet.
#[derive(Debug)]
pub struct SimNetwork {
    faults: Rc<RefCell<Faults>>,
    rng: Rng,
    pmtu: u32,
    observers: [Observer; 2],
    blackout_at: u64,
    processing_delay: ProcessingDelay,
    /// The times until which B is busy with received packets, and with its own.
    busy_until: [u64; 2],
    rules: Rules,
}

impl SimNetwork {
    /// Creates a network whose faults the caller may change later.
    #[must_use]
    pub fn new(seed: u64, faults: Rc<RefCell<Faults>>, pmtu: u32, first_psns: [Psn; 2]) -> Self {
        let mut rng = Rng::new(seed, 2);
        let blackout_at = rng.below(20_000_000);
        Self {
            faults,
            rng,
            pmtu,
            observers: first_psns.map(|next| Observer {
                next,
                sent: BTreeMap::new(),
            }),
            blackout_at,
            processing_delay: ProcessingDelay::default(),
            busy_until: [0; 2],
            rules: Rules::with_seed(seed),
        }
    }

    /// Records that this side was connected again, and that its next new request has the PSN
    /// `next`.
    pub fn begin(&mut self, side: Side, next: Psn) {
        self.observers[side as usize] = Observer {
            next,
            sent: BTreeMap::new(),
        };
    }

    /// Adds fault rules.
    ///
    /// # Panics
    /// If `rules` cannot be parsed.
    pub fn set_rules(&mut self, rules: &str) {
        let rules = Rule::parse_list(rules).unwrap_or_else(|error| panic!("{error}"));
        self.rules.add(&rules);
    }

    /// Sets the processing time of B.
    pub const fn set_processing_delay(&mut self, processing_delay: ProcessingDelay) {
        self.processing_delay = processing_delay;
    }

    /// Returns the delay of this packet in nanoseconds that B's processing time causes.
    fn late_ns(&mut self, event: &PacketEvent<'_>) -> u64 {
        let len = event.packet.payload().len() as u64;
        let half = self.processing_delay.packet_ns / 2;
        let cost_ns = half + half * len / u64::from(self.pmtu);
        let now = event.time.as_ns();
        let until = &mut self.busy_until[event.from as usize];
        *until = self.processing_delay.done(now.max(*until), cost_ns);
        *until - now
    }

    /// Decides what happens to a packet.
    ///
    /// # Panics
    /// If its PSN is not valid.
    pub fn decide(&mut self, event: &PacketEvent<'_>) -> Delivery {
        self.observers[event.from as usize].check(
            event.packet.headers(),
            event.packet.payload(),
            self.pmtu,
        );
        let faults = *self.faults.borrow();
        let dark = self.blackout_at..self.blackout_at + faults.blackout_ns;
        if dark.contains(&event.time.as_ns()) || self.rng.chance(faults.loss) {
            return Delivery::Drop;
        }
        let ruled =
            self.rules
                .decide_packet(event.time, PacketDirection::Tx, event.path, &event.packet);
        if ruled.corrupt.is_some() {
            // The receiver drops the packet because of its ICRC.
            return Delivery::Drop;
        }
        let late_ns = self.late_ns(event) + ruled.wait_ns();
        let doubled = u64::from(self.rng.chance(faults.duplication));
        let copies = u64::from(ruled.copies) * (1 + doubled);
        let delays = (0..copies)
            .map(|_| {
                if self.rng.chance(faults.late) {
                    late_ns + self.rng.below(faults.late_ns)
                } else if self.rng.chance(faults.reorder) {
                    late_ns + self.rng.below(faults.reorder_ns)
                } else {
                    late_ns
                }
            })
            .collect();
        Delivery::Copies(delays)
    }
}

/// Checks the requests of one side.
#[derive(Debug)]
struct Observer {
    /// The PSN of the next new request.
    next: Psn,
    /// The packets sent, by PSN. Entries are overwritten by READs, and when PSNs wrap.
    sent: BTreeMap<u32, (Headers, Summary)>,
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
        // A retransmission may use the other path.
        image.bth.migreq = true;
        let fact = (image, summary(payload));
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

type Summary = (usize, [u8; 8], [u8; 8]);

/// Returns length, beginning and end of a payload, which suffice to tell two messages apart.
fn summary(payload: &[u8]) -> Summary {
    let (mut first, mut last) = ([0; 8], [0; 8]);
    let count = payload.len().min(8);
    first[..count].copy_from_slice(&payload[..count]);
    last[..count].copy_from_slice(&payload[payload.len() - count..]);
    (payload.len(), first, last)
}
