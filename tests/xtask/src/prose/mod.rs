//! Checks of the prose: comments, doc comments and documents (CONTRIBUTING.md, "Words").
//!
//! * [`text`] finds paragraphs and their sentences.
//! * [`rules`] judges a sentence.
//! * `tests/rules/old-terms.tsv` lists names that were replaced, and what replaced them.

mod rules;
mod statistics;
mod text;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use self::{
    rules::{Kind, Term},
    statistics::Figures,
    text::Source,
};

/// The list of replaced names, which may contain them.
const OLD_TERMS: &str = "tests/rules/old-terms.tsv";
/// Columns of a line of a comment or a document. A tab counts as eight columns.
const WIDTH: usize = 100;

/// One violation of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    line: usize,
    kind: Kind,
    excerpt: String,
}

/// Returns every violation below `root` as `path:line: rule: excerpt`, and prints how many each
/// rule has.
///
/// # Errors
/// Those of reading the tree, and `InvalidData` for a list of terms that cannot be parsed.
pub(crate) fn violations(root: &Path) -> io::Result<Vec<String>> {
    let terms = rules::parse_terms(&fs::read_to_string(root.join(OLD_TERMS))?)?;
    let mut paths = Vec::new();
    collect(root, &mut paths)?;
    paths.sort();
    let mut found = Vec::new();
    let mut counts = BTreeMap::new();
    for path in paths {
        let Some(source) = Source::of(&path) else {
            continue;
        };
        let text = fs::read_to_string(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display();
        for finding in check(source, &text, &terms) {
            *counts.entry(finding.kind).or_insert(0_usize) += 1;
            let Finding {
                line,
                kind,
                excerpt,
            } = finding;
            found.push(format!("{name}:{line}: {kind}: {excerpt}:"));
        }
    }
    for (kind, count) in counts {
        eprintln!("xtask: {count} x {kind}");
    }
    Ok(found)
}

/// Prints figures of the documents, of the guides among them, and of the comments below `root`. The
/// running text of the documents leaves out tables, whose cells are mostly labels, and what a
/// program has written.
///
/// # Errors
/// Those of reading the tree.
pub(crate) fn statistics(root: &Path) -> io::Result<()> {
    let mut paths = Vec::new();
    collect(root, &mut paths)?;
    paths.sort();
    let (mut documents, mut guides) = (Figures::default(), Figures::default());
    let (mut running, mut comments) = (Figures::default(), Figures::default());
    for path in paths {
        let Some(source) = Source::of(&path) else {
            continue;
        };
        let text = fs::read_to_string(&path)?;
        if path.starts_with(root.join("docs/guides")) {
            guides.add(source, &text);
        }
        match source {
            Source::Markdown => {
                documents.add(source, &text);
                running.add(source, &text::running(&text));
            }
            Source::Rust | Source::C => comments.add(source, &text),
        }
    }
    println!("documents: {documents}\nrunning text of them: {running}");
    println!("guides: {guides}\ncomments: {comments}");
    Ok(())
}

/// Lists the files below `dir`, except hidden folders and what Cargo builds.
fn collect(dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_symlink() || (name.starts_with('.') && name != ".github") || name == "target" {
            continue;
        }
        if path.is_dir() {
            // The book as built, and data of others.
            if name != "book" && name != "captures" {
                collect(&path, paths)?;
            }
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

fn check(source: Source, text: &str, terms: &[Term]) -> Vec<Finding> {
    let mut found = Vec::new();
    // Code keeps its lines, and a program writes what stands between these marks.
    let (mut in_code, mut generated) = (false, false);
    for (index, line) in text.lines().enumerate() {
        generated = (generated || line.starts_with("<!-- begin")) && !line.starts_with("<!-- end");
        if line.contains("```") {
            in_code = !in_code;
        }
        let mut add = |kind, excerpt: &str| {
            found.push(Finding {
                line: index + 1,
                kind,
                excerpt: excerpt.to_owned(),
            });
        };
        let free = in_code || generated;
        if text::columns(line) > WIDTH && !free && source.wraps(line) {
            add(Kind::Width, line.trim());
        }
        for term in terms {
            if term.occurs_in(line) {
                add(Kind::OldTerm, &term.advice());
            }
        }
    }
    for block in source.blocks(text) {
        for paragraph in block.paragraphs() {
            for (index, sentence) in text::sentences(&paragraph.text).into_iter().enumerate() {
                let opens = index == 0 && paragraph.opens && block.is_doc();
                for kind in rules::judge(sentence, opens, block.is_doc()) {
                    let excerpt = sentence.chars().take(80).collect();
                    found.push(Finding {
                        line: paragraph.line,
                        kind,
                        excerpt,
                    });
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: Source, text: &str) -> Vec<(usize, Kind)> {
        let terms = rules::parse_terms("Whatnot\tThing\n").expect("terms");
        let found = check(source, text, &terms);
        found.into_iter().map(|f| (f.line, f.kind)).collect()
    }

    #[test]
    fn a_doc_comment_opens_with_a_verb_or_a_noun() {
        let source = "/// Returns the PSN.\nfn a() {}\n/// What is next.\nfn b() {}\n";
        assert_eq!(kinds(Source::Rust, source), [(3, Kind::Opening)]);
        let later = "/// Returns the PSN.\n/// What follows is kept.\nfn a() {}\n";
        assert_eq!(kinds(Source::Rust, later), []);
        assert_eq!(kinds(Source::Rust, "// What is next.\n"), []);
    }

    #[test]
    fn a_long_sentence_is_found_across_lines() {
        let words = "word ".repeat(18);
        let source = format!("// {words}\n// {words}.\n");
        assert_eq!(kinds(Source::Rust, &source), [(1, Kind::Length)]);
        assert_eq!(
            kinds(Source::C, &format!("/*\n * {words}\n * {words}.\n */\n")),
            [(2, Kind::Length)]
        );
        let two = format!("// {words}.\n// More {words}.\n");
        assert_eq!(kinds(Source::Rust, &two), []);
    }

    #[test]
    fn code_is_not_prose() {
        let source =
            "/// Returns it.\n///\n/// ```\n/// let a = 1; // is it?\n/// ```\nfn a() {}\n";
        assert_eq!(kinds(Source::Rust, source), []);
        assert_eq!(kinds(Source::Rust, "let a = \"// what; is this?\";\n"), []);
        assert_eq!(kinds(Source::Markdown, "Run `a; b?` there.\n"), []);
    }

    #[test]
    fn questions_semicolons_and_persons_are_found() {
        assert_eq!(
            kinds(Source::Rust, "// Is it there?\n"),
            [(1, Kind::Question)]
        );
        assert_eq!(
            kinds(Source::Rust, "// One; two.\n"),
            [(1, Kind::Semicolon)]
        );
        assert_eq!(
            kinds(Source::Markdown, "- We send it.\n"),
            [(1, Kind::Person)]
        );
        let cited = "/// Returns it (RC-RSP-07).\nfn a() {}\n//= RC-RSP-07\n";
        assert_eq!(kinds(Source::Rust, cited), [(1, Kind::RuleId)]);
    }

    #[test]
    fn replaced_names_and_long_lines_are_found() {
        assert_eq!(
            kinds(Source::Rust, "struct Whatnot;\n"),
            [(1, Kind::OldTerm)]
        );
        assert_eq!(kinds(Source::Rust, "struct Whatnots;\n"), []);
        let long = format!("// {}\n", "word. Word. ".repeat(9));
        assert_eq!(kinds(Source::Rust, &long), [(1, Kind::Width)]);
        assert_eq!(kinds(Source::Markdown, &format!("| {long}")), []);
        assert_eq!(kinds(Source::Markdown, &format!("```\n{long}```\n")), []);
        let written = format!("<!-- begin x -->\n{long}<!-- end x -->\n");
        assert_eq!(kinds(Source::Markdown, &written), []);
        assert_eq!(
            kinds(Source::Markdown, &format!("{written}{long}")),
            [(4, Kind::Width)]
        );
    }
}
