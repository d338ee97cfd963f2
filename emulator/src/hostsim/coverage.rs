//! Counts of what happened in the runs so far. They choose the next place in the code at which a
//! process is killed, or a thread gets no processor: one at which that happened most rarely.

use std::collections::BTreeMap;

use super::Marks;
use super::host::Outcome;
use super::plan::{PlaceSet, Visit};
use crate::random::Random;
use crate::simulated_host::schedule::{Places, Visits, hash};
use crate::sync::turn::Place;

/// Number of deaths that each place should have seen.
const ENOUGH: u64 = 100;
/// Number of places that are told with their deaths.
const PLACES_TOLD: usize = 20;

#[derive(Default)]
pub(super) struct Coverage {
    pub(super) marks: Marks,
    places: Places,
    /// Number of times that a place was chosen for a thread that gets no processor.
    freezes: BTreeMap<Place, u64>,
}

impl Coverage {
    pub(super) fn add(&mut self, outcome: &Outcome) {
        for (mark, times) in &outcome.marks {
            *self.marks.entry(*mark).or_default() += times;
        }
        for (place, visits) in &outcome.places {
            let all: &mut Visits = self.places.entry(*place).or_default();
            all.turns += visits.turns;
            all.deaths += visits.deaths;
        }
    }

    /// Chooses one of the visits in a run for a death. Its place is one that has seen the fewest.
    pub(super) fn death(&self, outcome: &Outcome, seed: u64) -> Option<Visit> {
        let deaths = |place| self.places.get(&place).map_or(0, |visits| visits.deaths);
        rarest(outcome, seed, deaths).map(|(_, visit)| visit)
    }

    /// Chooses one of the visits in a run for a thread that gets no processor, and counts it.
    pub(super) fn freeze(&mut self, outcome: &Outcome, seed: u64) -> Option<Visit> {
        let freezes = |place| self.freezes.get(&place).copied().unwrap_or_default();
        let (place, visit) = rarest(outcome, seed, freezes)?;
        *self.freezes.entry(place).or_default() += 1;
        Some(visit)
    }

    /// Prints how often each mark was reached, and how often processes were killed while a thread
    /// was at a place.
    pub(super) fn print(&self) {
        for (mark, times) in &self.marks {
            println!("{times:8} x {mark}");
        }
        let all = self.places.len();
        for least in [1, ENOUGH] {
            let at = self.places.values().filter(|visits| visits.deaths >= least);
            println!("{least:8} deaths or more at {} of {all} places", at.count());
        }
        let mut rare: Vec<_> = self.places.iter().collect();
        rare.sort_by_key(|(_, visits)| visits.deaths);
        for (place, Visits { turns, deaths }) in rare.into_iter().take(PLACES_TOLD) {
            let (file, line) = (place.file(), place.line());
            println!("{deaths:8} deaths in {turns} turns at {file}:{line}");
        }
    }
}

/// Returns a visit in a run, of a place with the lowest `count`.
fn rarest(outcome: &Outcome, seed: u64, count: impl Fn(Place) -> u64) -> Option<(Place, Visit)> {
    let visited = outcome.places.iter();
    let (place, visits) = visited.min_by_key(|(place, _)| count(place))?;
    let number = 1 + Random(seed).next() % visits.turns.max(1);
    let places = PlaceSet::One(hash(place));
    Some((*place, Visit { places, number }))
}
