//! Faults that somebody asks for: which packets are lost, doubled, late, damaged or marked.
//!
//! A [`Rule`] says what happens to which packets ([`Rule::parse`] reads `drop opcode=READ_RESPONSE nth=3`);
//! [`Faults`] looks at packets one after the other and decides, without clock and I/O: the same rules and
//! packets always give the same [`Effect`]s. [`Held`] keeps what is late. Links, the simulated network of
//! the engine and the simulation of the tests use them alike.

mod held;
mod parse;
mod rule;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

pub use held::Held;
pub use parse::RuleError;
pub use rule::{Action, Direction, Ends, Rule};

use rocade_wire::{Bth, Packet};

/// A reordered packet that nothing follows goes on after so many nanoseconds.
pub const REORDER_NS: u64 = 1_000_000;
/// Most rules at a time.
pub const MAX_RULES: usize = 64;

/// Rules in force, and what they have seen so far.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    armed: Vec<Armed>,
    /// For rules that have no seed of their own.
    seed: u64,
}

#[derive(Clone, Debug)]
struct Armed {
    rule: Rule,
    /// Packets that fit, but for which of them it is.
    seen: u64,
    hits: u64,
    random: Random,
}

/// What happens to a packet. Nothing: see [`Effect::NONE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// How often it arrives: 0 is lost.
    pub copies: u32,
    /// So many nanoseconds later.
    pub delay_ns: u64,
    /// Behind so many packets of its direction that come after it, or after [`REORDER_NS`].
    pub behind: u32,
    /// Damaged: [`corrupt`] with this number.
    pub corrupt: Option<u64>,
    /// Marked as having met congestion (ECN CE).
    pub ecn: bool,
    /// In words, with the rules; empty where nothing happens.
    pub note: String,
}

impl Effect {
    /// It arrives as it is.
    pub const NONE: Self = Self {
        copies: 1,
        delay_ns: 0,
        behind: 0,
        corrupt: None,
        ecn: false,
        note: String::new(),
    };

    /// Does nothing happen?
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.note.is_empty()
    }

    /// Does it have to wait?
    #[must_use]
    pub const fn is_late(&self) -> bool {
        self.delay_ns > 0 || self.behind > 0
    }

    /// How long it waits at most, in nanoseconds.
    #[must_use]
    pub const fn wait_ns(&self) -> u64 {
        if self.behind > 0 {
            self.delay_ns.saturating_add(REORDER_NS)
        } else {
            self.delay_ns
        }
    }
}

impl Faults {
    /// These rules, as if they had seen nothing.
    #[must_use]
    pub fn new(rules: &[Rule]) -> Self {
        let mut faults = Self::default();
        faults.add(rules);
        faults
    }

    /// None yet; those with a probability and without a seed take this one.
    #[must_use]
    pub const fn with_seed(seed: u64) -> Self {
        Self {
            armed: Vec::new(),
            seed,
        }
    }

    /// More rules; beyond [`MAX_RULES`] they are left out.
    pub fn add(&mut self, rules: &[Rule]) {
        let room = MAX_RULES.saturating_sub(self.armed.len());
        let armed = rules.iter().take(room).map(|rule| Armed {
            rule: rule.clone(),
            seen: 0,
            hits: 0,
            random: Random(rule.seed().unwrap_or(self.seed)),
        });
        self.armed.extend(armed);
    }

    /// These rules from now on. Those that were there before go on counting where they were.
    pub fn replace(&mut self, rules: &[Rule]) {
        let mut before = std::mem::take(&mut self.armed);
        for rule in rules.iter().take(MAX_RULES) {
            match before.iter().position(|armed| armed.rule == *rule) {
                Some(at) => self.armed.push(before.remove(at)),
                None => self.add(std::slice::from_ref(rule)),
            }
        }
    }

    /// The rules, and how many packets each has hit.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, u64)> {
        self.armed.iter().map(|armed| (&armed.rule, armed.hits))
    }

    /// Are there any?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }

    /// What happens to the next packet, `udp_payload` from BTH to ICRC. To what is no packet, nothing.
    pub fn decide(&mut self, direction: Direction, ends: Ends, udp_payload: &[u8]) -> Effect {
        match Packet::parse(udp_payload) {
            Ok(packet) => self.decide_packet(direction, ends, &packet),
            Err(_) => Effect::NONE,
        }
    }

    /// Likewise, for a packet that has been read.
    pub fn decide_packet(
        &mut self,
        direction: Direction,
        ends: Ends,
        packet: &Packet<'_>,
    ) -> Effect {
        let mut effect = Effect::NONE;
        for armed in &mut self.armed {
            if !armed.rule.fits(direction, ends, packet) || !armed.strikes() {
                continue;
            }
            armed.hits += 1;
            let what = match *armed.rule.action() {
                Action::Drop => {
                    effect.copies = 0;
                    "lost"
                }
                Action::Duplicate => {
                    // Two rules that double make three of one; what is lost stays so.
                    effect.copies += u32::from(effect.copies > 0);
                    "doubled"
                }
                Action::Delay { ns } => {
                    effect.delay_ns = effect.delay_ns.saturating_add(ns);
                    "late"
                }
                Action::Reorder { packets } => {
                    effect.behind = effect.behind.max(packets);
                    "overtaken"
                }
                Action::Corrupt => {
                    effect.corrupt = Some(armed.random.next());
                    "damaged"
                }
                Action::Ecn => {
                    effect.ecn = true;
                    "marked"
                }
            };
            let separator = if effect.note.is_empty() { "" } else { "; " };
            // Writing to a string does not fail.
            let _ = write!(effect.note, "{separator}{what} ({})", armed.rule);
        }
        effect
    }
}

impl Armed {
    /// Another packet fits: is it one of those that are hit?
    fn strikes(&mut self) -> bool {
        self.seen += 1;
        self.rule.hits_number(self.seen) && self.random.chance(self.rule.per_million())
    }
}

/// Damages a packet: one bit behind the BTH, where the ICRC covers everything.
pub fn corrupt(udp_payload: &mut [u8], random: u64) {
    let Some(behind) = udp_payload.get_mut(Bth::LEN..).filter(|b| !b.is_empty()) else {
        return;
    };
    let bits = behind.len() as u64 * 8;
    let bit = usize::try_from(random % bits).unwrap_or(0);
    behind[bit / 8] ^= 1 << (bit % 8);
}

/// SplitMix64: a seed means the same for ever.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// 64 random bits.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True in so many of a million cases.
    pub(crate) const fn chance(&mut self, per_million: u32) -> bool {
        per_million >= 1_000_000 || self.next() % 1_000_000 < per_million as u64
    }
}
