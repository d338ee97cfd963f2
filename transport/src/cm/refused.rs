//! Memory of requests that were refused for lack of room: a client repeats its request, a flood
//! does not.

use alloc::boxed::Box;
use alloc::vec;
use core::net::IpAddr;

use rocade_wire::mad::Req;

use crate::time::Time;

/// Number of entries.
const LEN: usize = 1 << 16;
/// Entries of one set, which is a cache line.
///
/// The fingerprint of a request selects its set. A new entry replaces the oldest of the set, so an
/// entry survives the next seven of its set.
const WAYS: usize = 8;
/// Least age, in ticks, at which a repetition counts. No client repeats its request sooner.
const SOONEST: u64 = 8;
/// Greatest age, in ticks, at which an entry is valid.
const LATEST: u64 = 1_600;
/// Bits of an entry that hold its time. The next bit says that the peer never confirmed a
/// connection it was given.
const TIME_BITS: u32 = 24;
const UNCONFIRMED: u64 = 1 << TIME_BITS;
const TIME: u64 = UNCONFIRMED - 1;

/// The record of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestHistory {
    /// No record.
    None,
    /// The peer has sent the request before, and was refused for lack of room.
    Repeated,
    /// The peer was answered before, and did not confirm the connection.
    Unconfirmed,
}

/// Fingerprints of requests, in a table of fixed size.
#[derive(Debug)]
pub(super) struct Refused {
    key: u64,
    entries: Option<Box<[u64]>>,
    /// The time when the last entry was added.
    last: Time,
}

/// Mixes the bits of a word (the finalizer of splitmix64).
const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Returns a time in ticks of 67 ms.
const fn tick(now: Time) -> u64 {
    now.as_ns() >> 26 & TIME
}

/// Returns true if a request that was received before, and is received again now, is a client's
/// repetition.
pub(super) const fn is_repetition(before: Time, now: Time) -> bool {
    now.ns_since(before) >> 26 >= SOONEST
}

impl Refused {
    /// Creates an empty table. `key` is random, so that a peer cannot choose requests that collide.
    pub(super) const fn new(key: u64) -> Self {
        Self {
            key,
            entries: None,
            last: Time::ZERO,
        }
    }

    /// Returns the fingerprint of a request.
    pub(super) fn fingerprint(&self, req: &Req, from: IpAddr) -> u64 {
        let address = match from {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let [high, low] = [0, 8].map(|at| {
            let half = address.octets().into_iter().skip(at).take(8);
            half.fold(0, |word, byte| word << 8 | u64::from(byte))
        });
        let words = [
            u64::from(req.local_id.get()) << 32 | u64::from(req.qpn.get()),
            req.ca_guid.get(),
            req.service_id.get(),
            high,
            low,
        ];
        words.iter().fold(self.key, |state, word| {
            mix(state ^ word).wrapping_add(state)
        })
    }

    /// Returns the range of a fingerprint's set.
    fn set(fingerprint: u64) -> core::ops::Range<usize> {
        let sets = (LEN / WAYS) as u64;
        let at = usize::try_from(fingerprint % sets).unwrap_or(0) * WAYS;
        at..at + WAYS
    }

    /// Returns the age of an entry in ticks.
    const fn age(now: Time, entry: u64) -> u64 {
        tick(now).wrapping_sub(entry) & TIME
    }

    /// Returns true if an entry is of this request, and still valid.
    fn is_of(entry: u64, now: Time, fingerprint: u64) -> bool {
        entry != 0 && Self::tag(entry) == Self::tag(fingerprint) && Self::age(now, entry) <= LATEST
    }

    const fn tag(fingerprint: u64) -> u64 {
        fingerprint & !(UNCONFIRMED | TIME)
    }

    /// Notes that a request was refused for lack of room, or (`is_unconfirmed`) that its connection
    /// was evicted unconfirmed.
    pub(super) fn note(&mut self, now: Time, fingerprint: u64, is_unconfirmed: bool) {
        self.last = now;
        let entries = self
            .entries
            .get_or_insert_with(|| vec![0; LEN].into_boxed_slice());
        let set = &mut entries[Self::set(fingerprint)];
        let known = set
            .iter()
            .position(|entry| Self::is_of(*entry, now, fingerprint));
        if known.is_some() && !is_unconfirmed {
            return;
        }
        let age = |at: &usize| match set[*at] {
            0 => u64::MAX,
            entry => Self::age(now, entry),
        };
        let oldest = (0..WAYS).max_by_key(age).unwrap_or(0);
        set[known.unwrap_or(oldest)] =
            Self::tag(fingerprint) | u64::from(is_unconfirmed) << TIME_BITS | tick(now);
    }

    /// Returns the age of a request's entry, and whether its connection was evicted unconfirmed.
    fn remember(&self, now: Time, fingerprint: u64) -> Option<(u64, bool)> {
        let set = self.entries.as_ref()?.get(Self::set(fingerprint))?;
        let mut entries = set.iter();
        let entry = *entries.find(|entry| Self::is_of(**entry, now, fingerprint))?;
        Some((Self::age(now, entry), entry & UNCONFIRMED != 0))
    }

    /// Returns the record of a request.
    pub(super) fn history(&self, now: Time, fingerprint: u64) -> RequestHistory {
        match self.remember(now, fingerprint) {
            Some((_, true)) => RequestHistory::Unconfirmed,
            Some((age, false)) if age >= SOONEST => RequestHistory::Repeated,
            _ => RequestHistory::None,
        }
    }

    /// Frees the table once all its entries have expired.
    pub(super) fn free_expired(&mut self, now: Time) {
        if self.entries.is_some() && now.ns_since(self.last) >> 26 > LATEST {
            self.entries = None;
        }
    }
}
