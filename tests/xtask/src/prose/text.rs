//! Paragraphs and sentences of comments and documents.

use std::path::Path;

/// A language that has comments, or is prose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Rust.
    Rust,
    /// C.
    C,
    /// A document.
    Markdown,
}

/// Lines of prose that belong together: a comment, or a whole document.
#[derive(Debug)]
pub(super) struct Block<'t> {
    doc: bool,
    lines: Vec<(usize, &'t str)>,
}

/// Text between two empty lines, list items or tables.
#[derive(Debug)]
pub(super) struct Paragraph {
    /// Its first line, from 1.
    pub(super) line: usize,
    /// Set where nothing stands before it in its block.
    pub(super) opens: bool,
    /// Its lines, joined by spaces.
    pub(super) text: String,
}

impl Source {
    /// Returns the language of a file by its name.
    pub(super) fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "rs" => Some(Self::Rust),
            "c" | "h" => Some(Self::C),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }

    /// Returns true if a long line of this language can be wrapped: code is for the formatter,
    /// tables and addresses are not wrapped.
    pub(super) fn wraps(self, line: &str) -> bool {
        let line = line.trim_start();
        let prose = match self {
            Self::Rust => line.starts_with("//"),
            Self::C => line.starts_with("/*") || line.starts_with("* "),
            Self::Markdown => !line.starts_with(['|', '<', '!']),
        };
        // A table or a line of code in a doc comment.
        let inner = line.trim_start_matches(['/', '!', '*', ' ']);
        prose && !inner.starts_with('|') && !line.contains("://") && inner.contains(' ')
    }

    /// Returns the comments of a file, or the document.
    pub(super) fn blocks(self, text: &str) -> Vec<Block<'_>> {
        match self {
            Self::Rust => rust_blocks(text),
            Self::C => c_blocks(text),
            Self::Markdown => vec![Block {
                doc: false,
                lines: numbered(text).collect(),
            }],
        }
    }
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

fn rust_blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    // The marker of the comment that the line before belongs to.
    let mut open = "";
    for (number, line) in numbered(text) {
        let trimmed = line.trim_start();
        let markers = ["///", "//!", "//=", "//"];
        let marker = markers
            .into_iter()
            .find(|marker| trimmed.starts_with(marker));
        let (marker, rest) = match marker {
            Some("//=") | None => {
                open = "";
                if let Some(rest) = trailing_comment(line) {
                    blocks.push(Block {
                        doc: false,
                        lines: vec![(number, rest)],
                    });
                }
                continue;
            }
            Some(marker) => (marker, trimmed.strip_prefix(marker).unwrap_or_default()),
        };
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        match blocks.last_mut() {
            Some(block) if open == marker => block.lines.push((number, rest)),
            _ => blocks.push(Block {
                doc: marker != "//",
                lines: vec![(number, rest)],
            }),
        }
        open = marker;
    }
    blocks
}

/// Returns the comment behind code. A line with a string counts as code, because the marker may be
/// part of the string.
fn trailing_comment(line: &str) -> Option<&str> {
    let (code, comment) = line.split_once(" // ")?;
    (!code.contains('"') && !code.trim_start().starts_with("//")).then_some(comment)
}

fn c_blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Vec<(usize, &str)>> = None;
    for (number, line) in numbered(text) {
        let (mut lines, rest) = match open.take() {
            Some(lines) => {
                let rest = line.trim_start();
                let ends = rest.starts_with("*/");
                let rest = if ends {
                    rest
                } else {
                    rest.strip_prefix('*').unwrap_or(rest)
                };
                (lines, rest.strip_prefix(' ').unwrap_or(rest))
            }
            None => match line.split_once("/*") {
                Some((code, rest)) if !code.contains('"') => (Vec::new(), rest.trim_start()),
                _ => continue,
            },
        };
        match rest.split_once("*/") {
            Some((last, _)) => {
                lines.push((number, last));
                blocks.push(Block { doc: false, lines });
            }
            None => {
                lines.push((number, rest));
                open = Some(lines);
            }
        }
    }
    blocks
}

impl Block<'_> {
    /// Returns true for a doc comment.
    pub(super) fn is_doc(&self) -> bool {
        self.doc
    }

    /// Splits the block where lines are empty and where items, tables, headings and code begin.
    pub(super) fn paragraphs(&self) -> Vec<Paragraph> {
        let mut paragraphs: Vec<Paragraph> = Vec::new();
        let mut in_code = false;
        // Whether the next line continues the last paragraph, and whether anything stood before.
        let (mut continues, mut opens) = (false, true);
        for &(line, text) in &self.lines {
            let trimmed = text.trim();
            if trimmed.starts_with("```") {
                in_code = !in_code;
                (continues, opens) = (false, false);
                continue;
            }
            if in_code || trimmed.is_empty() {
                continues = false;
                continue;
            }
            let mut push = |text: &str, opens| {
                let text = text.to_owned();
                paragraphs.push(Paragraph { line, opens, text });
            };
            if trimmed.starts_with(['#', '<', '|']) || trimmed.starts_with("---") {
                if trimmed.starts_with('|') {
                    trimmed.split('|').for_each(|cell| push(cell.trim(), false));
                }
                (continues, opens) = (false, false);
            } else if let Some(item) = item(trimmed) {
                push(item, opens);
                (continues, opens) = (true, false);
            } else if continues {
                if let Some(last) = paragraphs.last_mut() {
                    last.text.push(' ');
                    last.text.push_str(trimmed);
                }
            } else if is_definition(trimmed) || text.starts_with("    ") {
                // A link's address, or code by its indentation.
                opens = false;
            } else {
                push(trimmed, opens);
                (continues, opens) = (true, false);
            }
        }
        paragraphs
    }
}

/// Returns the text of a list item.
fn item(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = if rest.len() < line.len() {
        rest.strip_prefix('.')?
    } else {
        line.strip_prefix(['-', '*', '+'])?
    };
    rest.strip_prefix(' ')
}

/// Returns true for `[name]: target`.
fn is_definition(line: &str) -> bool {
    line.starts_with('[') && line.contains("]: ")
}

/// Splits a paragraph into sentences. A sentence ends at a full stop, an exclamation mark or a
/// question mark, with a space and the beginning of another sentence behind it.
pub(super) fn sentences(paragraph: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut in_code = false;
    for (at, c) in paragraph.char_indices() {
        if c == '`' {
            in_code = !in_code;
        }
        if in_code || !matches!(c, '.' | '!' | '?') {
            continue;
        }
        let rest = paragraph.get(at + 1..).unwrap_or_default();
        let next = rest.trim_start_matches([')', '"', '\'', '*', '_']);
        let ended = next.starts_with(' ')
            && next.trim_start().starts_with(|c: char| {
                c.is_uppercase() || c.is_ascii_digit() || "`[(\"*_".contains(c)
            });
        let end = at + 1 + (rest.len() - next.len());
        let sentence = paragraph.get(start..end).unwrap_or_default();
        if ended && !is_abbreviation(sentence) {
            found.push(sentence.trim());
            start = end;
        }
    }
    let rest = paragraph.get(start..).unwrap_or_default().trim();
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}

fn is_abbreviation(sentence: &str) -> bool {
    let endings = [
        "e.g.", "i.e.", "etc.", "vs.", "cf.", "resp.", "approx.", "incl.",
    ];
    endings.iter().any(|ending| sentence.ends_with(ending))
}

/// Returns the text with each code span as the word `code`, and links without their addresses.
pub(super) fn without_code(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        plain.push_str(if index % 2 == 0 { part } else { "code" });
    }
    let mut linked = String::with_capacity(plain.len());
    let mut rest = plain.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        linked.push_str(before);
        linked.push(']');
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    linked.push_str(rest);
    linked
}

/// Returns a document without its tables and without what stands between `<!-- begin` and
/// `<!-- end`, which a program has written.
pub(super) fn running(text: &str) -> String {
    let mut generated = false;
    let lines = text.lines().filter(|line| {
        generated = (generated || line.starts_with("<!-- begin")) && !line.starts_with("<!-- end");
        !generated && !line.trim_start().starts_with('|')
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the text without what stands in double quotes.
pub(super) fn without_quotes(text: &str) -> String {
    let parts = text.split('"').enumerate();
    parts
        .filter(|(index, _)| index % 2 == 0)
        .map(|(_, part)| part)
        .collect()
}

/// Returns the columns that a line takes. A tab goes to the next multiple of eight.
pub(super) fn columns(line: &str) -> usize {
    line.chars().fold(0, |at, c| match c {
        '\t' => at + 8 - at % 8,
        _ => at + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_where_one_begins() {
        let text = "Reads v1.2 of it, e.g. The first. `code.` follows. Ends (here.) So.";
        let expected = [
            "Reads v1.2 of it, e.g. The first.",
            "`code.` follows.",
            "Ends (here.)",
            "So.",
        ];
        assert_eq!(sentences(text), expected);
    }

    #[test]
    fn items_and_cells_are_paragraphs_of_their_own() {
        let text = "Intro\n\n- one\n  more\n- two\n\n| a | b |\n";
        let blocks = Source::Markdown.blocks(text);
        let paragraphs = blocks.first().expect("a document").paragraphs();
        let texts: Vec<_> = paragraphs.iter().map(|p| p.text.as_str()).collect();
        assert_eq!(texts, ["Intro", "one more", "two", "", "a", "b", ""]);
        assert_eq!(
            paragraphs.first().map(|p| (p.line, p.opens)),
            Some((1, true))
        );
    }

    #[test]
    fn tables_and_what_a_program_wrote_are_no_running_text() {
        let text = "One.\n\n| a | b |\n\n<!-- begin x -->\nTwo.\n<!-- end x -->\nThree.\n";
        assert_eq!(running(text), "One.\n\n\n<!-- end x -->\nThree.\n");
    }

    #[test]
    fn links_count_as_their_text() {
        assert_eq!(
            without_code("See [a `b c`](d e) there"),
            "See [a code] there"
        );
        assert_eq!(columns("\ta"), 9);
    }
}
