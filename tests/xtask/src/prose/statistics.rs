//! Figures of the prose: how long its sentences are, how they are joined, and how readers are
//! addressed.

use std::fmt;

use super::text::{self, Source};

/// Words that join ideas: cause, contrast, condition, consequence.
const CONNECTIVES: [&str; 14] = [
    "although",
    "because",
    "but",
    "however",
    "if",
    "since",
    "so",
    "still",
    "than",
    "therefore",
    "though",
    "unless",
    "whereas",
    "while",
];
const READER: [&str; 3] = ["you", "your", "yours"];

/// Figures of a set of sentences.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Words of each sentence.
    lengths: Vec<usize>,
    connectives: usize,
    readers: usize,
}

impl Figures {
    /// Adds the sentences of a file. Sentences of one or two words are labels.
    pub(super) fn add(&mut self, source: Source, text: &str) {
        for block in source.blocks(text) {
            for paragraph in block.paragraphs() {
                for sentence in text::sentences(&paragraph.text) {
                    self.add_sentence(&text::without_code(sentence));
                }
            }
        }
    }

    fn add_sentence(&mut self, sentence: &str) {
        let words: Vec<String> = sentence
            .split_whitespace()
            .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect();
        if words.len() < 3 {
            return;
        }
        self.lengths.push(words.len());
        let count = |list: &[&str]| words.iter().filter(|w| list.contains(&w.as_str())).count();
        self.connectives += count(&CONNECTIVES);
        self.readers += count(&READER);
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "there are fewer sentences and words than 2^52"
    )]
    fn average(&self, sum: usize) -> f64 {
        sum as f64 / self.lengths.len().max(1) as f64
    }

    fn mean(&self) -> f64 {
        self.average(self.lengths.iter().sum())
    }

    #[expect(clippy::cast_precision_loss, reason = "sentences are short")]
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares = self.lengths.iter().map(|len| (*len as f64 - mean).powi(2));
        let count = self.lengths.len().max(1) as f64;
        (squares.sum::<f64>() / count).sqrt()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sentences, {:.1} words each, standard deviation {:.1}; of 100 sentences {:.0} \
             connectives and {:.1} times \"you\"",
            self.lengths.len(),
            self.mean(),
            self.deviation(),
            100.0 * self.average(self.connectives),
            100.0 * self.average(self.readers),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_measured() {
        let mut figures = Figures::default();
        let text =
            "You wait because it is late.\n\nA word.\n\nIt sleeps, but not for long at all.\n";
        figures.add(Source::Markdown, text);
        assert_eq!(
            figures.to_string(),
            "2 sentences, 7.0 words each, standard deviation 1.0; of 100 sentences 100 connectives \
             and 50.0 times \"you\""
        );
    }
}
