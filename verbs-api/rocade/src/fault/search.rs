//! The search for the smallest set of rules with which a program fails (delta debugging).

/// The end of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The program does not fail with all rules.
    NeverFails,
    /// The program fails without any rule.
    AlwaysFails,
    /// Leaving out any further rule lets the program succeed.
    Smallest(Vec<usize>),
    /// The program fails with these rules. There was no budget to try all smaller sets.
    Smaller(Vec<usize>),
}

/// Searches among `count` rules. `fails` runs the program with the rules of these indexes and
/// returns true if it fails, or `None` if the budget is used up.
pub(super) fn search<E>(
    count: usize,
    mut fails: impl FnMut(&[usize]) -> Result<Option<bool>, E>,
) -> Result<Found, E> {
    let mut left: Vec<usize> = (0..count).collect();
    match fails(&left)? {
        Some(true) => {}
        Some(false) => return Ok(Found::NeverFails),
        None => return Ok(Found::Smaller(left)),
    }
    match fails(&[])? {
        Some(true) => return Ok(Found::AlwaysFails),
        Some(false) => {}
        None => return Ok(Found::Smaller(left)),
    }
    let mut parts = 2;
    while left.len() > 1 {
        let parts_now = parts.min(left.len());
        match step(&left, parts_now, &mut fails)? {
            Step::Smaller(next, is_part) => {
                left = next;
                parts = if is_part { 2 } else { (parts_now - 1).max(2) };
            }
            Step::None if parts_now == left.len() => break,
            Step::None => parts = parts_now * 2,
            Step::NoBudget => return Ok(Found::Smaller(left)),
        }
    }
    Ok(Found::Smallest(left))
}

enum Step {
    /// The program fails with these rules, which are one part of those before, or all but one part.
    Smaller(Vec<usize>, bool),
    /// The program succeeds with each.
    None,
    NoBudget,
}

/// Tries each of `parts` parts of the rules, then all rules but each part.
fn step<E>(
    rules: &[usize],
    parts: usize,
    fails: &mut impl FnMut(&[usize]) -> Result<Option<bool>, E>,
) -> Result<Step, E> {
    let chunks: Vec<_> = (0..parts)
        .map(|part| rules.len() * part / parts..rules.len() * (part + 1) / parts)
        .collect();
    for chunk in &chunks {
        let part = &rules[chunk.clone()];
        match fails(part)? {
            Some(true) => return Ok(Step::Smaller(part.to_vec(), true)),
            Some(false) => {}
            None => return Ok(Step::NoBudget),
        }
    }
    // With two parts, the rest of one is the other.
    for chunk in chunks.iter().filter(|_| parts > 2) {
        let rest = [&rules[..chunk.start], &rules[chunk.end..]].concat();
        match fails(&rest)? {
            Some(true) => return Ok(Step::Smaller(rest, false)),
            Some(false) => {}
            None => return Ok(Step::NoBudget),
        }
    }
    Ok(Step::None)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Searches for rules that together let a program fail. Returns the number of runs, too.
    fn find(count: usize, cause: &[usize], budget: usize) -> (Found, usize) {
        let mut runs = 0;
        let found = search(count, |rules| {
            if runs == budget {
                return Ok::<_, Infallible>(None);
            }
            runs += 1;
            Ok(Some(cause.iter().all(|rule| rules.contains(rule))))
        });
        let Ok(found) = found;
        (found, runs)
    }

    #[test]
    fn every_pair_of_rules_is_found() {
        for count in 1..=9 {
            for first in 0..count {
                for last in first..count {
                    let cause: Vec<_> = [first, last].into();
                    let mut smallest = cause.clone();
                    smallest.dedup();
                    let (found, runs) = find(count, &cause, 1000);
                    assert_eq!(found, Found::Smallest(smallest), "of {count}");
                    assert!(
                        runs <= 2 + count * count + 3 * count,
                        "{runs} runs of {count}"
                    );
                }
            }
        }
        assert_eq!(
            find(4, &[0, 1, 2, 3], 99).0,
            Found::Smallest(vec![0, 1, 2, 3])
        );
    }

    #[test]
    fn the_end_says_why() {
        assert_eq!(find(3, &[7], 99), (Found::NeverFails, 1));
        assert_eq!(find(3, &[], 99), (Found::AlwaysFails, 2));
        // A set that is known to fail, although not the smallest.
        assert_eq!(find(4, &[1], 3), (Found::Smaller(vec![0, 1]), 3));
        assert_eq!(find(4, &[1], 1), (Found::Smaller(vec![0, 1, 2, 3]), 1));
    }
}
