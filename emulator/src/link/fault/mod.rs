//! Fault injection: rules that drop, duplicate, delay, reorder, corrupt or ECN-mark packets.
//!
//! A [`Rule`] selects packets and an action ([`Rule::parse`] parses
//! `drop opcode=READ_RESPONSE nth=3`). [`Faults`] applies the rules to one packet after the other,
//! without clock and I/O. The same rules, packets and times always give the same [`Effect`]s.
//! [`DelayQueue`] stores delayed packets. Links, the simulated network of the engine and the
//! simulation of the tests share this module.

mod delay_queue;
mod ending;
mod model;
#[cfg(test)]
mod model_tests;
mod parse;
mod rule;
#[cfg(test)]
mod tests;
mod units;

use std::fmt::Write as _;

pub use delay_queue::DelayQueue;
pub use ending::Ending;
pub use model::LinkModel;
pub use parse::RuleError;
pub use rule::{Action, Ends, PacketDirection, Rule};
pub use units::{BitErrorRate, BitRate};

pub(crate) use parse::{PACKET_ACTIONS, rule_error, unknown};
pub(crate) use units::{bytes, duration_ns, number, probability, range, write_duration};

use crate::random::Random;
use model::{LinkState, Passage};
use rocade_transport::Time;
use rocade_wire::{Bth, Packet};

/// Longest delay of a reordered packet, in nanoseconds, if no other packet follows.
pub const REORDER_NS: u64 = 1_000_000;
/// Most rules at a time.
pub const MAX_RULES: usize = 64;

/// The active rules, and their state.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    active_rules: Vec<ActiveRule>,
    /// Seed for rules without a seed of their own.
    seed: u64,
}

#[derive(Clone, Debug)]
struct ActiveRule {
    rule: Rule,
    /// Number of packets that match, including those that are not hit.
    seen: u64,
    hits: u64,
    /// The rule applies at present.
    is_open: bool,
    random: Random,
    /// The link of a rule that models one.
    link: LinkState,
}

/// The effect of the rules on a packet. [`Effect::NONE`] if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Number of copies that arrive, 0 if the packet is lost.
    pub copies: u32,
    /// Delay in nanoseconds.
    pub delay_ns: u64,
    /// Number of packets of the same direction that overtake this one. It waits for [`REORDER_NS`]
    /// at most.
    pub overtaken_by: u32,
    /// Corrupts the packet: the random number for [`corrupt`].
    pub corrupt: Option<u64>,
    /// Marks the packet as ECN-CE (congestion experienced).
    pub ecn: bool,
    /// The packet is lost if too many packets are delayed already. Otherwise it is not delayed
    /// then.
    pub is_queued: bool,
    /// The rules that have had an effect, by their index.
    pub rules: Vec<usize>,
    /// Ends or stops the process.
    pub ending: Option<Ending>,
    /// Description of the effect and its rules. Empty if there is none.
    pub note: String,
}

impl Effect {
    /// The packet arrives unchanged.
    pub const NONE: Self = Self {
        copies: 1,
        delay_ns: 0,
        overtaken_by: 0,
        corrupt: None,
        ecn: false,
        is_queued: false,
        rules: Vec::new(),
        ending: None,
        note: String::new(),
    };

    /// Returns true if no rule hits the packet.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.note.is_empty()
    }

    /// Returns true if the packet is delayed.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        self.delay_ns > 0 || self.overtaken_by > 0
    }

    /// Returns the longest delay in nanoseconds.
    #[must_use]
    pub const fn wait_ns(&self) -> u64 {
        if self.overtaken_by > 0 {
            self.delay_ns.saturating_add(REORDER_NS)
        } else {
            self.delay_ns
        }
    }
}

impl Faults {
    /// Creates the state for these rules.
    #[must_use]
    pub fn new(rules: &[Rule]) -> Self {
        let mut faults = Self::default();
        faults.add(rules);
        faults
    }

    /// Creates an empty list. Rules with a probability and without a seed use this one.
    #[must_use]
    pub const fn with_seed(seed: u64) -> Self {
        Self {
            active_rules: Vec::new(),
            seed,
        }
    }

    /// Adds rules. Rules beyond [`MAX_RULES`] are left out.
    pub fn add(&mut self, rules: &[Rule]) {
        let space = MAX_RULES.saturating_sub(self.active_rules.len());
        let active_rules = rules.iter().take(space).map(|rule| ActiveRule {
            rule: rule.clone(),
            seen: 0,
            hits: 0,
            is_open: true,
            random: Random(rule.seed().unwrap_or(self.seed)),
            link: LinkState::default(),
        });
        self.active_rules.extend(active_rules);
    }

    /// Replaces the rules. Rules that stay keep their state.
    pub fn replace(&mut self, rules: &[Rule]) {
        let mut before = std::mem::take(&mut self.active_rules);
        for rule in rules.iter().take(MAX_RULES) {
            match before
                .iter()
                .position(|active_rule| active_rule.rule == *rule)
            {
                Some(at) => self.active_rules.push(before.remove(at)),
                None => self.add(std::slice::from_ref(rule)),
            }
        }
    }

    /// Replaces the rules, of which only those with `true` apply at present. Rules that stay keep
    /// their state.
    pub fn replace_scheduled(&mut self, rules: &[(Rule, bool)]) {
        let all: Vec<_> = rules.iter().map(|(rule, _)| rule.clone()).collect();
        self.replace(&all);
        for (active_rule, (_, is_open)) in self.active_rules.iter_mut().zip(rules) {
            active_rule.is_open = *is_open;
        }
    }

    /// Returns the rules, and the number of packets that each has hit.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, u64)> {
        self.active_rules
            .iter()
            .map(|active_rule| (&active_rule.rule, active_rule.hits))
    }

    /// Returns true if there are no rules.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.active_rules.is_empty()
    }

    /// Applies the rules to the next packet, `udp_payload` from BTH to ICRC, at time `now`. An
    /// invalid packet is unaffected.
    pub fn decide(
        &mut self,
        now: Time,
        direction: PacketDirection,
        ends: Ends,
        udp_payload: &[u8],
    ) -> Effect {
        match Packet::parse(udp_payload) {
            Ok(packet) => self.decide_packet(now, direction, ends, &packet),
            Err(_) => Effect::NONE,
        }
    }

    /// Like [`decide`](Self::decide), for a parsed packet.
    pub fn decide_packet(
        &mut self,
        now: Time,
        direction: PacketDirection,
        ends: Ends,
        packet: &Packet<'_>,
    ) -> Effect {
        let mut effect = Effect::NONE;
        for (index, active_rule) in self.active_rules.iter_mut().enumerate() {
            let fits = active_rule.is_open && active_rule.rule.fits(direction, ends, packet);
            if !fits || !active_rule.applies() {
                continue;
            }
            let ip_bytes = rule::ip_bytes(ends, packet.as_bytes());
            let Some(what) = active_rule.affect(&mut effect, now, ip_bytes) else {
                continue;
            };
            active_rule.hits += 1;
            effect.rules.push(index);
            let separator = if effect.note.is_empty() { "" } else { "; " };
            // Writing to a string cannot fail.
            let _ = write!(effect.note, "{separator}{what} ({})", active_rule.rule);
        }
        effect
    }
}

impl ActiveRule {
    /// Counts another matching packet. Returns true if the rule hits it.
    fn applies(&mut self) -> bool {
        self.seen += 1;
        self.rule.hits_number(self.seen) && self.random.chance(self.rule.per_million())
    }

    /// Adds the effect on a packet of `ip_bytes` bytes. Returns what happens to it in a word, or
    /// `None` if nothing does.
    fn affect(&mut self, effect: &mut Effect, now: Time, ip_bytes: u64) -> Option<&'static str> {
        Some(match self.rule.action() {
            Action::Drop | Action::Partition | Action::Mute => {
                effect.copies = 0;
                "lost"
            }
            Action::Duplicate => {
                // Two rules that duplicate make three packets. A dropped packet stays dropped.
                effect.copies += u32::from(effect.copies > 0);
                "doubled"
            }
            Action::Delay { ns } => {
                effect.delay_ns = effect.delay_ns.saturating_add(*ns);
                "late"
            }
            Action::Reorder { packets } => {
                effect.overtaken_by = effect.overtaken_by.max(*packets);
                "overtaken"
            }
            Action::Corrupt { ber } => {
                let bits = ip_bytes.saturating_mul(8);
                if ber.is_some_and(|ber| !ber.hits(bits, self.random.next())) {
                    return None;
                }
                effect.corrupt = Some(self.random.next());
                "damaged"
            }
            Action::End(ending) => {
                effect.ending = effect.ending.or(Some(*ending));
                "the last one"
            }
            Action::Ecn => {
                effect.ecn = true;
                "marked"
            }
            Action::Spray { paths, ns } => {
                let path = self.random.next() % u64::from(*paths);
                // Even the first path has a delay, so that its packets stay in order, too.
                let delay_ns = ns.saturating_mul(path).max(1);
                effect.delay_ns = effect.delay_ns.saturating_add(delay_ns);
                effect.is_queued = true;
                "by a path"
            }
            Action::Link(model) => {
                let start = now.plus_ns(effect.delay_ns);
                match self.link.pass(model, start, ip_bytes, &mut self.random) {
                    Passage::Lost => {
                        effect.copies = 0;
                        "lost, the queue is full"
                    }
                    Passage::Arrives {
                        delay_ns,
                        is_marked,
                    } => {
                        effect.delay_ns = effect.delay_ns.saturating_add(delay_ns);
                        effect.is_queued = true;
                        effect.ecn |= is_marked;
                        if is_marked { "marked" } else { "in a queue" }
                    }
                }
            }
        })
    }
}

/// Corrupts a packet: flips one bit behind the BTH, where the ICRC covers everything.
pub fn corrupt(udp_payload: &mut [u8], random: u64) {
    let Some(behind) = udp_payload.get_mut(Bth::LEN..).filter(|b| !b.is_empty()) else {
        return;
    };
    let bits = behind.len() as u64 * 8;
    let bit = usize::try_from(random % bits).unwrap_or(0);
    behind[bit / 8] ^= 1 << (bit % 8);
}
