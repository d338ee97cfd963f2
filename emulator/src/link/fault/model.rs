//! Models of a network between the ends: a link with a queue, and several paths.
//!
//! Both say for each packet whether and how much later it arrives. They depend on the packets, the
//! given time and the random numbers only.

use std::fmt;

use rocade_transport::Time;

use super::Random;
use super::units::{BitRate, Bytes, Duration};

/// Bytes of a packet on Ethernet besides the IP packet: preamble, header, FCS and gap.
const ETHERNET_BYTES: u64 = 38;
/// Default size of the queue in bytes.
const QUEUE_BYTES: u64 = 1 << 20;

/// A link with a data rate, a latency and a queue that marks packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkModel {
    /// The data rate. `None` if packets take no time and find no queue.
    pub rate: Option<BitRate>,
    /// The time that each packet needs at least, in nanoseconds.
    pub latency_ns: u64,
    /// The time that a packet may need in addition, uniformly distributed, in nanoseconds.
    pub jitter_ns: u64,
    /// Size of the queue in bytes. A packet that finds no room is lost.
    pub queue_bytes: u64,
    /// The bytes in the queue from which packets are marked, and from which all of them are. None
    /// is marked if this is `None`.
    pub mark: Option<(u64, u64)>,
    /// Probability of a mark just below the second threshold, in millionths.
    pub mark_per_million: u32,
}

impl LinkModel {
    /// A link that changes nothing.
    pub(super) const NEW: Self = Self {
        rate: None,
        latency_ns: 0,
        jitter_ns: 0,
        queue_bytes: QUEUE_BYTES,
        mark: None,
        mark_per_million: 1_000_000,
    };
}

impl fmt::Display for LinkModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("link")?;
        if let Some(rate) = self.rate {
            write!(f, " rate={rate}")?;
        }
        if self.latency_ns > 0 {
            write!(f, " latency={}", Duration(self.latency_ns))?;
        }
        if self.jitter_ns > 0 {
            write!(f, " jitter={}", Duration(self.jitter_ns))?;
        }
        if self.queue_bytes != QUEUE_BYTES {
            write!(f, " queue={}", Bytes(self.queue_bytes))?;
        }
        if let Some((min, max)) = self.mark {
            write!(f, " mark={}..{}", Bytes(min), Bytes(max))?;
        }
        if self.mark_per_million != 1_000_000 {
            write!(f, " pmax={}", f64::from(self.mark_per_million) / 1e6)?;
        }
        Ok(())
    }
}

/// The passage of a packet through a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// The queue is full, and the packet is lost.
    Lost,
    /// The packet arrives after `delay_ns`, which is at least 1.
    Arrives {
        delay_ns: u64,
        /// The queue has marked it.
        is_marked: bool,
    },
}

/// The queue of a link, and the packets on it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkState {
    /// The time at which the last bit of the last packet leaves the queue.
    idle_at: Time,
    /// The time at which the last packet arrives. Later ones do not overtake it.
    last_arrival: Time,
}

impl LinkState {
    /// Sends an IP packet of `ip_bytes` bytes through the link.
    pub(super) fn pass(
        &mut self,
        model: &LinkModel,
        now: Time,
        ip_bytes: u64,
        random: &mut Random,
    ) -> Passage {
        let mut is_marked = false;
        let mut leaves = now;
        if let Some(rate) = model.rate {
            let waiting_ns = self.idle_at.as_ns().saturating_sub(now.as_ns());
            let queued = rate.bytes_in(waiting_ns);
            if queued.saturating_add(ip_bytes) > model.queue_bytes {
                return Passage::Lost;
            }
            is_marked = marks(model, queued, random);
            let wire_ns = rate.duration_ns(ip_bytes.saturating_add(ETHERNET_BYTES));
            leaves = self.idle_at.max(now).plus_ns(wire_ns);
            self.idle_at = leaves;
        }
        let jitter_ns = match model.jitter_ns {
            0 => 0,
            jitter_ns => random.next() % (jitter_ns + 1),
        };
        let arrival = leaves.plus_ns(model.latency_ns.saturating_add(jitter_ns));
        // At least 1 ns after the last one, so that the two stay in order.
        let arrival = arrival.max(now.max(self.last_arrival).plus_ns(1));
        self.last_arrival = arrival;
        Passage::Arrives {
            delay_ns: arrival.as_ns() - now.as_ns(),
            is_marked,
        }
    }
}

/// Returns true if a packet that finds `queued` bytes in the queue is marked: never below the first
/// threshold, always from the second one on, and between them with a probability that grows.
fn marks(model: &LinkModel, queued: u64, random: &mut Random) -> bool {
    match model.mark {
        None => false,
        Some((min, _)) if queued < min => false,
        Some((_, max)) if queued >= max => true,
        Some((min, max)) => {
            let share = u128::from(queued - min) * u128::from(model.mark_per_million);
            let per_million = share / u128::from(max - min);
            let draw = u128::from(random.next() % 1_000_000);
            draw < per_million
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1 << 10;

    fn model(rate: &str) -> LinkModel {
        LinkModel {
            rate: BitRate::parse(rate),
            ..LinkModel::NEW
        }
    }

    fn delay(passage: Passage) -> u64 {
        match passage {
            Passage::Arrives { delay_ns, .. } => delay_ns,
            Passage::Lost => panic!("the packet is lost"),
        }
    }

    #[test]
    fn a_link_takes_a_packet_after_the_other() {
        let (mut link, mut random) = (LinkState::default(), Random(1));
        let model = LinkModel {
            latency_ns: 5_000,
            ..model("1gbit")
        };
        let mut pass = |now| delay(link.pass(&model, Time::from_ns(now), 962, &mut random));
        // 1000 bytes on the wire take 8 µs.
        assert_eq!(pass(0), 13_000);
        assert_eq!(pass(0), 21_000);
        assert_eq!(pass(10_000), 19_000, "6 µs of the second are left");
        assert_eq!(pass(1_000_000), 13_000);
    }

    #[test]
    fn a_full_queue_loses_packets() {
        let (mut link, mut random) = (LinkState::default(), Random(1));
        let model = LinkModel {
            queue_bytes: 4_000,
            ..model("1mbit")
        };
        let passages: Vec<_> = (0..5)
            .map(|_| link.pass(&model, Time::ZERO, 1_000, &mut random))
            .collect();
        assert_eq!(passages[3..], [Passage::Lost; 2]);
        assert!(passages[..3].iter().all(|one| *one != Passage::Lost));
    }

    #[test]
    fn jitter_keeps_the_order_and_its_bounds() {
        let (mut link, mut random) = (LinkState::default(), Random(7));
        let model = LinkModel {
            latency_ns: 1_000,
            jitter_ns: 10_000,
            ..LinkModel::NEW
        };
        let mut last = 0;
        let mut delays = Vec::new();
        for now in (0..1_000).map(|packet| packet * 100) {
            let delay_ns = delay(link.pass(&model, Time::from_ns(now), 100, &mut random));
            assert!(now + delay_ns > last, "it overtakes another one");
            last = now + delay_ns;
            delays.push(delay_ns);
        }
        assert!(delays.iter().all(|delay| (1_000..=11_000).contains(delay)));
        let late = delays.iter().filter(|delay| **delay > 6_000).count();
        assert!((1..1_000).contains(&late), "{late}");
    }

    /// The thresholds are those of the congestion point of DCQCN (Zhu et al., SIGCOMM 2015): Kmin,
    /// Kmax and Pmax.
    #[test]
    fn the_queue_marks_between_its_thresholds() {
        let model = LinkModel {
            mark: Some((10 * KB, 20 * KB)),
            mark_per_million: 100_000,
            ..model("1gbit")
        };
        let mut random = Random(3);
        let mut share = |queued| {
            let marked = (0..10_000).filter(|_| marks(&model, queued, &mut random));
            marked.count()
        };
        assert_eq!(share(10 * KB - 1), 0);
        assert!((420..580).contains(&share(15 * KB)), "half of Pmax");
        assert_eq!(share(20 * KB), 10_000);
    }
}
