//! Recipes: named lists of rules that imitate a failure of real hardware.
//!
//! `recipe:lossy-1pct,p=3%` stands for the rules of the recipe with this value of its parameter.
//! [`Recipe::ALL`] is the table of them. [`expand`] turns the text into rules.

mod table;
#[cfg(all(test, not(loom)))]
mod tests;

use super::FaultRule;
use crate::link::fault::{RuleError, rule_error, unknown};

/// The first letters of a recipe among rules.
pub const PREFIX: &str = "recipe:";

/// A named list of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The name, e.g. `lossy-1pct`.
    pub name: &'static str,
    /// The behaviour of real hardware that the recipe imitates, in one or two sentences.
    pub hardware: &'static str,
    /// The kind of fault in programs that the recipe finds, in one or two sentences.
    pub finds: &'static str,
    /// The parameters.
    pub parameters: &'static [Parameter],
    /// The rules. A word `[key]` becomes `key=VALUE` if the parameter has a value, and `{key}`
    /// within a word becomes the value.
    pub rules: &'static [&'static str],
    /// True if the process that has the rules dies or stops.
    pub ends_process: bool,
}

/// A parameter of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name.
    pub name: &'static str,
    /// The value if none is given. `None` leaves the condition out.
    pub default: Option<&'static str>,
    /// The meaning, in a few words.
    pub meaning: &'static str,
}

impl Recipe {
    /// All recipes, by name.
    pub const ALL: &[Self] = table::RECIPES;

    /// Returns the recipe of this name.
    ///
    /// # Errors
    /// [`RuleError`] with the nearest name if there is none.
    pub fn find(name: &str) -> Result<&'static Self, RuleError> {
        if let Some(recipe) = Self::ALL.iter().find(|recipe| recipe.name == name) {
            return Ok(recipe);
        }
        let names: Vec<_> = Self::ALL.iter().map(|recipe| recipe.name).collect();
        let at = format!("{PREFIX}{name}");
        rule_error(at, unknown("recipe", name, &names), names.join(", "))
    }

    /// Returns true if the recipe has this parameter.
    #[must_use]
    pub fn takes(&self, parameter: &str) -> bool {
        self.parameters.iter().any(|known| known.name == parameter)
    }

    /// Returns the rules with these values of parameters, as text.
    ///
    /// # Errors
    /// [`RuleError`] for a word that is not `KEY=VALUE`, a parameter that the recipe does not have,
    /// or one that is given twice.
    pub fn texts(&self, words: &[&str]) -> Result<Vec<String>, RuleError> {
        let given = self.read(words)?;
        Ok(self.rules.iter().map(|rule| fill(rule, &given)).collect())
    }

    /// Returns the rules with these values of parameters.
    ///
    /// # Errors
    /// As [`Recipe::texts`], or for a value that is not allowed.
    pub fn rules(&self, words: &[&str]) -> Result<Vec<FaultRule>, RuleError> {
        let texts = self.texts(words)?;
        let rules = texts.iter().map(|text| FaultRule::parse(text));
        let rules: Result<_, _> = rules.collect();
        rules.map_err(|error| self.explain(error, words))
    }

    /// Returns parameters and their values.
    fn read<'t>(&self, words: &[&'t str]) -> Result<Vec<(&'static str, &'t str)>, RuleError> {
        let names: Vec<_> = self.parameters.iter().map(|known| known.name).collect();
        let allowed = || format!("{}, of recipe {}", names.join(", "), self.name);
        let mut values: Vec<(&str, Option<&str>)> = Vec::new();
        values.extend(self.parameters.iter().map(|of| (of.name, of.default)));
        let mut before: Vec<&str> = Vec::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return rule_error(*word, "it is not KEY=VALUE", allowed());
            };
            let Some((_, place)) = values.iter_mut().find(|(name, _)| *name == key) else {
                return rule_error(*word, unknown("parameter", key, &names), allowed());
            };
            if before.contains(&key) {
                return rule_error(*word, format!("{key} is given twice"), "each key once");
            }
            if value.is_empty() {
                return rule_error(*word, "the value is missing", self.example(key));
            }
            before.push(key);
            *place = Some(value);
        }
        let with_value = values
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        Ok(with_value.collect())
    }

    fn example(&self, key: &str) -> String {
        let parameter = self.parameters.iter().find(|known| known.name == key);
        let default = parameter.and_then(|known| known.default);
        format!("{key}={}", default.unwrap_or("VALUE"))
    }

    /// Lets an error of a rule name the parameter that the user has given.
    fn explain(&self, error: RuleError, words: &[&str]) -> RuleError {
        let is_at_fault = |word: &&&str| {
            let value = word.split_once('=').map_or("", |(_, value)| value);
            error.at == **word || error.at.contains('=') && error.at.ends_with(value)
        };
        let whole = || format!("{PREFIX}{},{}", self.name, words.join(","));
        let at = (words.iter().find(|word| error.at == ***word))
            .or_else(|| words.iter().find(is_at_fault))
            .filter(|_| !error.at.contains(' '));
        RuleError {
            at: at.map_or_else(whole, |word| (*word).to_owned()),
            reason: format!("{} (recipe {})", error.reason, self.name),
            allowed: error.allowed,
        }
    }
}

/// Returns the rules that `recipe:NAME[,KEY=VALUE..]` stands for. Spaces also separate parameters.
///
/// # Errors
/// [`RuleError`] if there is no such recipe, or for the first parameter that is not allowed.
pub fn expand(text: &str) -> Result<Vec<FaultRule>, RuleError> {
    let (recipe, words) = parse(text)?;
    recipe.rules(&words)
}

/// Splits `recipe:NAME[,KEY=VALUE..]`.
///
/// # Errors
/// [`RuleError`] if there is no such recipe.
pub fn parse(text: &str) -> Result<(&'static Recipe, Vec<&str>), RuleError> {
    let text = text.trim();
    let behind = text.strip_prefix(PREFIX).unwrap_or(text);
    let mut words = behind.split(|c: char| c == ',' || c.is_whitespace());
    let recipe = Recipe::find(words.next().unwrap_or_default())?;
    Ok((recipe, words.filter(|word| !word.is_empty()).collect()))
}

/// Replaces the parameters in a rule.
fn fill(rule: &str, given: &[(&str, &str)]) -> String {
    let mut filled: Vec<String> = Vec::new();
    for word in rule.split_whitespace() {
        let key = word
            .strip_prefix('[')
            .and_then(|word| word.strip_suffix(']'));
        let Some(key) = key else {
            let mut word = word.to_owned();
            for (key, value) in given {
                word = word.replace(&format!("{{{key}}}"), value);
            }
            filled.push(word);
            continue;
        };
        if let Some((_, value)) = given.iter().find(|(known, _)| *known == key) {
            filled.push(format!("{key}={value}"));
        }
    }
    filled.join(" ")
}
