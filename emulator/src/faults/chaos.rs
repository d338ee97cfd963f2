//! Chaos: recipes that a seed draws, with their times.

use super::recipes::{PREFIX as RECIPE_PREFIX, Recipe};
use crate::link::fault::{RuleError, duration_ns, number, rule_error, unknown};
use crate::random::Random;

/// The first letters of a draw among rules.
pub const PREFIX: &str = "chaos:";

/// Most recipes of a draw.
const MAX_COUNT: u64 = 16;
/// Longest time of a draw in milliseconds: one day.
const MAX_WITHIN_MS: u64 = 24 * 3600 * 1000;
const KEYS: [&str; 4] = ["within", "count", "only", "without"];

/// The choice of recipes and times by a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chaos {
    seed: u64,
    within_ms: u64,
    count: u64,
    from: Vec<&'static Recipe>,
}

impl Chaos {
    /// Parses `SEED[,within=10s][,count=6][,only=A+B][,without=A+B]`.
    ///
    /// Recipes that end or stop the process are drawn only if `only` names them.
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let mut words = text.split(|c: char| c == ',' || c.is_whitespace());
        let seed = words.next().unwrap_or_default();
        let Some(seed) = number(seed) else {
            let allowed = "a number below 2^64, e.g. 42";
            return rule_error(format!("{PREFIX}{seed}"), "it is not a seed", allowed);
        };
        let survivable = Recipe::ALL.iter().filter(|recipe| !recipe.ends_process);
        let mut chaos = Self {
            seed,
            within_ms: 10_000,
            count: 6,
            from: survivable.collect(),
        };
        let mut before: Vec<&str> = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            let Some((key, value)) = word.split_once('=') else {
                return rule_error(word, "it is not KEY=VALUE", KEYS.join(", "));
            };
            if before.contains(&key) {
                return rule_error(word, format!("{key} is given twice"), "each key once");
            }
            before.push(key);
            chaos.set(word, key, value)?;
        }
        if chaos.from.is_empty() {
            return rule_error(text, "no recipe is left", "a smaller without=");
        }
        Ok(chaos)
    }

    fn set(&mut self, word: &str, key: &str, value: &str) -> Result<(), RuleError> {
        match key {
            "within" => match duration_ns(value).map(|ns| ns / 1_000_000) {
                Some(ms @ 1..=MAX_WITHIN_MS) => self.within_ms = ms,
                _ => return rule_error(word, "it is not a duration", "1ms to 86400s, e.g. 10s"),
            },
            "count" => match number(value) {
                Some(count @ 1..=MAX_COUNT) => self.count = count,
                _ => return rule_error(word, "it is not a count", "1 to 16"),
            },
            "only" => self.from = names(value)?,
            "without" => {
                let without = names(value)?;
                self.from.retain(|recipe| !without.contains(recipe));
            }
            _ => return rule_error(word, unknown("key", key, &KEYS), KEYS.join(", ")),
        }
        Ok(())
    }

    /// Returns the seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Draws recipes with their parameters, by time. The same seed and options give the same list.
    #[must_use]
    pub fn draw(&self) -> Vec<String> {
        let mut random = Random(self.seed);
        let mut below = |limit: u64| random.next() % limit.max(1);
        let mut drawn = Vec::new();
        for _ in 0..self.count {
            let index = below(self.from.len() as u64);
            let recipe = self.from[usize::try_from(index).unwrap_or(0)];
            let at = below(self.within_ms);
            let mut text = format!("{RECIPE_PREFIX}{},at={at}ms", recipe.name);
            let has_period = recipe
                .parameters
                .iter()
                .any(|of| of.name == "every" && of.default.is_some());
            // At least 10 ms, and at most a quarter of the whole time.
            let long = 10 + below(self.within_ms / 4);
            if recipe.takes("for") && !has_period {
                text.push_str(&format!(",for={long}ms"));
            }
            let seed = below(1_000_000);
            if recipe.takes("seed") {
                text.push_str(&format!(",seed={seed}"));
            }
            drawn.push((at, text));
        }
        drawn.sort_by_key(|(at, _)| *at);
        drawn.into_iter().map(|(_, text)| text).collect()
    }
}

fn names(value: &str) -> Result<Vec<&'static Recipe>, RuleError> {
    value.split('+').map(Recipe::find).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::faults::FaultRule;

    fn draw(text: &str) -> Vec<String> {
        Chaos::parse(text)
            .unwrap_or_else(|error| panic!("{error}"))
            .draw()
    }

    #[test]
    fn a_seed_always_draws_the_same_valid_rules() {
        assert_eq!(draw("42"), draw("42"));
        assert_ne!(draw("42"), draw("43"));
        let at = |text: &String| {
            let (_, behind) = text.split_once("at=").expect("a time");
            duration_ns(behind.split(',').next().expect("a value")).expect("a duration")
        };
        for seed in 0..200 {
            let drawn = draw(&format!("{seed},within=3s,count=16"));
            assert_eq!(drawn.len(), 16);
            assert!(drawn.iter().map(at).is_sorted(), "{drawn:?}");
            assert!(drawn.iter().map(at).all(|at| at < 3_000_000_000));
            for text in &drawn {
                assert!(
                    !text.contains("peer-crash") && !text.contains("peer-hang"),
                    "{text}"
                );
                FaultRule::parse_list(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
            let whole = FaultRule::parse_list(&format!("chaos:{seed},within=3s,count=16"));
            assert_eq!(whole, FaultRule::parse_list(&drawn.join(";")));
        }
    }

    #[test]
    fn options_choose_the_recipes() {
        let all = |text: &str, name: &str| draw(text).iter().all(|drawn| drawn.contains(name));
        assert!(all("1,count=16,only=peer-crash", "recipe:peer-crash,at="));
        let without = draw("1 count=16 only=jitter+incast without=jitter");
        assert!(
            without.iter().all(|drawn| drawn.contains("incast")),
            "{without:?}"
        );
        for (text, part) in [
            ("chaos:", "`chaos:`: it is not a seed"),
            ("chaos:x", "`chaos:x`: it is not a seed"),
            ("chaos:1,cuont=3", "did you mean count?"),
            (
                "chaos:1,count=17",
                "`count=17`: it is not a count; allowed: 1 to 16",
            ),
            ("chaos:1,within=5", "`within=5`"),
            ("chaos:1,only=jiter", "did you mean jitter?"),
            ("chaos:1,only=jitter,without=jitter", "no recipe is left"),
        ] {
            let error = FaultRule::parse_list(text).expect_err(text).to_string();
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
