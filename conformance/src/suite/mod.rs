//! The cases, by area. Each is named after the rule that it checks.

mod acknowledge;
mod draining;
mod duplicates;
mod dynamic;
mod dynamic_initiator;
mod errors;
mod extended;
mod failures;
mod flush;
mod hostile_application;
mod hostile_peer;
mod hostile_responses;
mod initiator;
mod manager;
mod messages;
mod migration;
mod multicast;
mod packets;
mod posting;
mod requester;
mod resources;
mod retry;
mod send_errors;
mod sequence;
mod shared;
mod unreliable;
mod window_domains;
mod windows;

use crate::Case;

/// A group of cases.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// The name.
    pub name: &'static str,
    /// The cases.
    pub cases: &'static [Case],
}

/// All areas.
pub const AREAS: &[Area] = &[
    Area {
        name: "packets",
        cases: packets::CASES,
    },
    Area {
        name: "sequence",
        cases: sequence::CASES,
    },
    Area {
        name: "messages",
        cases: messages::CASES,
    },
    Area {
        name: "acknowledge",
        cases: acknowledge::CASES,
    },
    Area {
        name: "errors",
        cases: errors::CASES,
    },
    Area {
        name: "duplicates",
        cases: duplicates::CASES,
    },
    Area {
        name: "resources",
        cases: resources::CASES,
    },
    Area {
        name: "requester",
        cases: requester::CASES,
    },
    Area {
        name: "failures",
        cases: failures::CASES,
    },
    Area {
        name: "retry",
        cases: retry::CASES,
    },
    Area {
        name: "windows",
        cases: windows::CASES,
    },
    Area {
        name: "shared",
        cases: shared::CASES,
    },
    Area {
        name: "unreliable",
        cases: unreliable::CASES,
    },
    Area {
        name: "manager",
        cases: manager::CASES,
    },
    Area {
        name: "initiator",
        cases: initiator::CASES,
    },
    Area {
        name: "flush",
        cases: flush::CASES,
    },
    Area {
        name: "extended",
        cases: extended::CASES,
    },
    Area {
        name: "dynamic",
        cases: dynamic::CASES,
    },
    Area {
        name: "dynamic_initiator",
        cases: dynamic_initiator::CASES,
    },
    Area {
        name: "migration",
        cases: migration::CASES,
    },
    Area {
        name: "multicast",
        cases: multicast::CASES,
    },
    Area {
        name: "hostile_packets",
        cases: hostile_peer::packets::CASES,
    },
    Area {
        name: "hostile_ranges",
        cases: hostile_peer::ranges::CASES,
    },
    Area {
        name: "hostile_rights",
        cases: hostile_peer::rights::CASES,
    },
    Area {
        name: "hostile_errors",
        cases: hostile_peer::after_errors::CASES,
    },
    Area {
        name: "hostile_responses",
        cases: hostile_responses::CASES,
    },
    Area {
        name: "hostile_application",
        cases: hostile_application::CASES,
    },
    Area {
        name: "posting",
        cases: posting::CASES,
    },
    Area {
        name: "window_domains",
        cases: window_domains::CASES,
    },
    Area {
        name: "draining",
        cases: draining::CASES,
    },
    Area {
        name: "send_errors",
        cases: send_errors::CASES,
    },
];

/// Returns all cases.
#[must_use]
pub fn all() -> Vec<Case> {
    AREAS.iter().flat_map(|area| area.cases).copied().collect()
}

/// Returns the area of the case with this name, or `other` if there is no such case.
#[must_use]
pub fn area_of(name: &str) -> &'static str {
    let has = |area: &&Area| area.cases.iter().any(|case| case.name() == name);
    AREAS.iter().find(has).map_or("other", |area| area.name)
}

/// Returns distinct bytes, so that a misplaced segment is noticed.
fn pattern(len: usize) -> Vec<u8> {
    (1..=251).cycle().take(len).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut names = BTreeSet::new();
        for case in all() {
            assert!(names.insert(case.name()), "{} twice", case.name());
            let rule_ok = case
                .rule
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'-');
            let slug_ok = case
                .slug
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            assert!(rule_ok && slug_ok, "{}", case.name());
        }
    }
}
