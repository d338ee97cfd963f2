//! The rules that a sentence has to keep.

use std::{fmt, io};

use super::text;

/// Words of a sentence.
const MAX_WORDS: usize = 35;

/// Words that do not begin the first sentence of a doc comment: that is a verb in the third person
/// or a noun phrase.
const NO_OPENINGS: &[&str] = &[
    "And",
    "Anything",
    "Are",
    "As",
    "But",
    "Can",
    "Could",
    "Did",
    "Do",
    "Does",
    "Everything",
    "Had",
    "Has",
    "Have",
    "How",
    "If",
    "Is",
    "It",
    "Likewise",
    "May",
    "Might",
    "Must",
    "Nothing",
    "Or",
    "Shall",
    "Should",
    "That",
    "They",
    "Those",
    "Was",
    "Were",
    "What",
    "Whatever",
    "When",
    "Where",
    "Whether",
    "Which",
    "Who",
    "Whoever",
    "Whom",
    "Whose",
    "Why",
    "Will",
    "Would",
];

/// Persons that nothing in Rocade is.
const PERSONS: &[&str] = &[
    "we",
    "our",
    "ours",
    "us",
    "nobody",
    "whoever",
    "whichever",
    "likewise",
];

/// A rule, in the words of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The first sentence of a doc comment begins with a word of `NO_OPENINGS`.
    Opening,
    /// A sentence has more than `MAX_WORDS` words.
    Length,
    /// A sentence is a question.
    Question,
    /// A semicolon joins two ideas.
    Semicolon,
    /// A word of `PERSONS` occurs.
    Person,
    /// A doc comment names a rule of the standard: that is for `//=` lines.
    RuleId,
    /// A line of a comment or a document is longer than 100 columns.
    Width,
    /// A name occurs that was replaced.
    OldTerm,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Opening => "doc comment that opens with no verb or noun",
            Self::Length => "sentence of more than 35 words",
            Self::Question => "question",
            Self::Semicolon => "semicolon between two ideas",
            Self::Person => "person (we, ours, nobody, ...)",
            Self::RuleId => "rule id outside a //= line",
            Self::Width => "line of more than 100 columns",
            Self::OldTerm => "replaced name",
        })
    }
}

/// Returns the rules that a sentence breaks. `opens` is set for the first one of a doc comment,
/// `doc` for every one in it.
pub(super) fn judge(sentence: &str, opens: bool, doc: bool) -> Vec<Kind> {
    let plain = text::without_code(sentence);
    let words = || {
        plain
            .split(|c: char| c.is_whitespace() || matches!(c, '/' | '–' | '—'))
            .filter(|word| word.contains(|c: char| c.is_ascii_alphanumeric()))
    };
    let mut broken = Vec::new();
    let first = plain.split(|c: char| !c.is_ascii_alphabetic()).next();
    if opens && (first.is_some_and(|word| NO_OPENINGS.contains(&word)) || same(&plain)) {
        broken.push(Kind::Opening);
    }
    if words().count() > MAX_WORDS {
        broken.push(Kind::Length);
    }
    if plain
        .trim_end_matches([')', '"', '*', '_', ' '])
        .ends_with('?')
    {
        broken.push(Kind::Question);
    }
    let unquoted = text::without_quotes(&plain);
    if unquoted.contains(';') {
        broken.push(Kind::Semicolon);
    }
    let mut letters = unquoted.split(|c: char| !c.is_ascii_alphabetic());
    if letters.any(|word| PERSONS.contains(&&*uncapitalised(word))) {
        broken.push(Kind::Person);
    }
    if doc
        && plain
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
            .any(is_rule_id)
    {
        broken.push(Kind::RuleId);
    }
    broken
}

fn same(sentence: &str) -> bool {
    sentence.starts_with("The same ")
}

/// `US` is a country, `us` a person.
fn uncapitalised(word: &str) -> String {
    let mut chars = word.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// Returns true for `RC-RSP-07` and `ICRC-03`.
fn is_rule_id(word: &str) -> bool {
    let mut parts: Vec<_> = word.split('-').collect();
    let number = parts.pop().unwrap_or_default();
    let letters = |part: &&str| part.len() >= 2 && part.bytes().all(|b| b.is_ascii_uppercase());
    let standard = ["RFC", "UTF", "ISO", "SHA", "CVE", "CRC", "AVX", "MD"];
    (1..=2).contains(&parts.len())
        && parts.iter().all(letters)
        && !parts.iter().any(|part| standard.contains(part))
        && number.len() == 2
        && number.bytes().all(|b| b.is_ascii_digit())
}

/// A name that was replaced.
#[derive(Debug)]
pub(super) struct Term {
    old: String,
    new: String,
}

impl Term {
    /// Returns true if the name stands in `line`, not as a part of a longer one.
    pub(super) fn occurs_in(&self, line: &str) -> bool {
        let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        line.match_indices(&self.old).any(|(at, _)| {
            let before = line.get(..at).unwrap_or_default();
            let after = line.get(at + self.old.len()..).unwrap_or_default();
            !before.ends_with(part) && !after.starts_with(part)
        })
    }

    /// Names the term and its replacement.
    pub(super) fn advice(&self) -> String {
        format!("{} is {} now", self.old, self.new)
    }
}

/// Parses lines of an old name, a tab and the new one. Lines that begin with `#` are comments.
///
/// # Errors
/// `InvalidData` with the number of a line that has no tab.
pub(super) fn parse_terms(text: &str) -> io::Result<Vec<Term>> {
    let lines = text.lines().enumerate();
    let terms = lines.filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    terms
        .map(|(index, line)| {
            let (old, new) = line.split_once('\t').ok_or_else(|| {
                let message = format!("old-terms.tsv:{}: no tab", index + 1);
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?;
            let (old, new) = (old.to_owned(), new.to_owned());
            Ok(Term { old, new })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_ids_are_told_from_other_names() {
        assert!(is_rule_id("RC-RSP-07") && is_rule_id("ICRC-03"));
        for other in [
            "AVX-512", "UTF-8", "RoCE-20", "A-10", "BTH-4", "RC-RSP", "07",
        ] {
            assert!(!is_rule_id(other), "{other}");
        }
    }

    #[test]
    fn words_are_counted_without_code() {
        let spans = "Reads `a b c d e f g h i j k l m n o p q r s t u v w x y z` here.";
        assert_eq!(judge(spans, true, true), []);
        assert_eq!(judge(&"word ".repeat(36), false, false), [Kind::Length]);
        assert_eq!(judge(&"word ".repeat(35), false, false), []);
    }

    #[test]
    fn quotes_may_hold_a_semicolon() {
        assert_eq!(judge("Prints \"a; b\".", false, false), []);
        assert_eq!(judge("The US variant.", false, false), []);
        assert_eq!(judge("It is Ours.", false, false), [Kind::Person]);
    }

    #[test]
    fn a_list_of_terms_names_its_bad_line() {
        let error = parse_terms("# a\nOld\tNew\nbad\n").expect_err("no tab");
        assert!(error.to_string().contains(":3:"), "{error}");
    }
}
