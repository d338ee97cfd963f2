//! The rules that cases check, as short statements.
//!
//! `rules.tsv` contains them: the ID, the number in the InfiniBand specification where it is known,
//! and the statement. An ID without a number, such as `RC-RSP`, names a group.

use std::sync::LazyLock;

const TEXT: &str = include_str!("../rules.tsv");

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let lines = TEXT.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(Rule::parse).collect()
});

/// A rule of the specification, or a group of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The ID, such as `RC-RSP-07`.
    pub id: &'static str,
    /// The number of the section or statement in the specification, or an empty text.
    pub number: &'static str,
    /// The statement.
    pub statement: &'static str,
}

impl Rule {
    fn parse(line: &'static str) -> Option<Self> {
        let mut words = line.split('\t');
        Some(Self {
            id: words.next()?,
            number: words.next()?,
            statement: words.next()?,
        })
    }
}

/// Returns the rule or group with this ID.
#[must_use]
pub fn find(id: &str) -> Option<Rule> {
    RULES.iter().find(|rule| rule.id == id).copied()
}

/// Returns the ID of the group of a rule: `RC-RSP` for `RC-RSP-07`.
#[must_use]
pub fn group(id: &str) -> &str {
    id.rsplit_once('-').map_or(id, |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::suite;

    #[test]
    fn every_case_has_rules_with_a_statement() {
        for case in suite::all() {
            assert!(!case.rules().is_empty());
            for id in case.rules() {
                let rule = find(id).unwrap_or_else(|| panic!("{}: no rule {id}", case.name()));
                assert!(rule.statement.ends_with('.'), "{id}");
                assert!(find(group(id)).is_some(), "no group of {id}");
            }
        }
    }

    #[test]
    fn the_rules_are_those_of_the_project() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/rules/rules.tsv");
        let text = fs::read_to_string(path).unwrap();
        let known: BTreeSet<_> = text.lines().filter_map(|l| l.split('\t').next()).collect();
        let mut ids = BTreeSet::new();
        for rule in RULES.iter() {
            assert!(ids.insert(rule.id), "{} twice", rule.id);
            let is_group = !rule.statement.ends_with('.');
            assert!(is_group || known.contains(rule.id), "{}", rule.id);
        }
        assert_eq!(
            ids.len(),
            TEXT.lines().filter(|l| !l.starts_with('#')).count()
        );
    }
}
