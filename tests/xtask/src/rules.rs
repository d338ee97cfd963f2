//! `cargo xtask rules`: which rules of the standard the code enforces, and which of them a test
//! looks at.
//!
//! `tests/rules/rules.tsv` lists the rules, `tests/rules/open.tsv` those without a line of code or
//! a test, with the reason. A line of code cites a rule as `//= BTH-04`, a test as `//= BTH-04
//! type=test`, in C also as `/*= BTH-04 type=test */`. A line cites up to three, separated by
//! commas or spaces. `QPT-01..03` counts as three. Cases of the conformance suite name theirs.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::tally::Tally;

const RULES: &str = "tests/rules/rules.tsv";
const OPEN: &str = "tests/rules/open.tsv";
/// So many rules a line may cite: who cites more does not say which line enforces which.
const MAX_CITED: usize = 3;
/// Folders whose string literals name rules too.
const SUITE: &str = "conformance/src/suite";

/// A rule, and how often it is cited.
#[derive(Debug, Default)]
struct Rule {
    area: String,
    phrase: String,
    code: usize,
    tests: usize,
}

/// A line of the list of open rules: of one rule, or of all whose ids begin so.
#[derive(Debug)]
struct Open {
    line: String,
    /// Its number in the list, from 0: two lines may say the same.
    number: usize,
    id: String,
    lacks_code: bool,
    lacks_test: bool,
    used: bool,
}

/// The content of `rules` and `open`, and the citations.
#[derive(Debug, Default)]
struct Book {
    rules: BTreeMap<String, Rule>,
    open: Vec<Open>,
    problems: Vec<String>,
}

/// Joins rules and citations. With `table` it prints what is open by area. With `prune` it removes
/// lines that are no longer needed from the list.
pub(crate) fn run(root: &Path, table: bool, prune: bool) -> Tally {
    let mut book = match Book::read(root) {
        Ok(book) => book,
        Err(error) => {
            eprintln!("xtask: cannot read the rules, or the sources: {error}");
            return Tally::FAIL;
        }
    };
    book.judge();
    for problem in &book.problems {
        eprintln!("xtask: {problem}");
    }
    let spare: Vec<_> = book.open.iter().filter(|open| !open.used).collect();
    for open in &spare {
        eprintln!(
            "xtask: {OPEN}: no longer needed (cargo xtask rules --prune): {}",
            open.line
        );
    }
    if prune
        && !spare.is_empty()
        && let Err(error) = book.prune(root)
    {
        eprintln!("xtask: cannot write {OPEN}: {error}");
        return Tally::FAIL;
    }
    if table {
        print!("{}", book.table());
    }
    if book.problems.is_empty() {
        Tally::PASS
    } else {
        Tally::FAIL
    }
}

impl Book {
    fn read(root: &Path) -> io::Result<Self> {
        let mut book = Self::default();
        book.add_rules(&fs::read_to_string(root.join(RULES))?);
        book.add_open(&fs::read_to_string(root.join(OPEN))?);
        let mut sources = Vec::new();
        collect(root, &mut sources)?;
        for path in sources {
            let text = fs::read_to_string(&path)?;
            let place = path.strip_prefix(root).unwrap_or(&path);
            book.add_citations(place, &text);
        }
        Ok(book)
    }

    fn add_rules(&mut self, text: &str) {
        for fields in rows(text) {
            let [id, area, phrase] = fields[..] else {
                self.problems
                    .push(format!("{RULES}: three fields: {fields:?}"));
                continue;
            };
            let rule = Rule {
                area: area.to_owned(),
                phrase: phrase.to_owned(),
                ..Rule::default()
            };
            if self.rules.insert(id.to_owned(), rule).is_some() {
                self.problems.push(format!("{RULES}: {id} twice"));
            }
        }
    }

    fn add_open(&mut self, text: &str) {
        for (number, fields) in numbered_rows(text) {
            let (id, lacks, why) = match fields[..] {
                [id, lacks, why] => (id, lacks, why),
                _ => ("", "", ""),
            };
            let reasons = ["not yet: ", "never: "];
            if !["code", "test", "both"].contains(&lacks)
                || !reasons.iter().any(|reason| why.starts_with(reason))
            {
                let what =
                    "an id, what it lacks (code, test, both), and `not yet: …` or `never: …`";
                self.problems.push(format!("{OPEN}: {what}: {fields:?}"));
                continue;
            }
            self.open.push(Open {
                line: fields.join("\t"),
                number,
                id: id.to_owned(),
                lacks_code: lacks != "test",
                lacks_test: lacks != "code",
                used: false,
            });
        }
    }

    fn add_citations(&mut self, place: &Path, text: &str) {
        let in_suite = place.starts_with(SUITE);
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(fault) = fault_of(line) {
                let place = place.display();
                self.problems.push(format!("{place}:{number}: {fault}"));
            }
            let (mut ids, is_test) = citation(line).unwrap_or_default();
            for id in ids.drain(..) {
                self.cite(&id, is_test, place, number);
            }
            if in_suite && let Some(id) = literal(line) {
                self.cite(id, true, place, number);
            }
        }
    }

    fn cite(&mut self, id: &str, is_test: bool, place: &Path, line: usize) {
        match self.rules.get_mut(id) {
            Some(rule) if is_test => rule.tests += 1,
            Some(rule) => rule.code += 1,
            None => {
                let place = place.display();
                let problem = format!("{place}:{line}: {id} is no rule of {RULES}");
                self.problems.push(problem);
            }
        }
    }

    /// Each rule has code and a test, or a line that says why not.
    fn judge(&mut self) {
        for (id, rule) in &self.rules {
            for (lacks, is_code) in [(rule.code == 0, true), (rule.tests == 0, false)] {
                if !lacks {
                    continue;
                }
                let excuses = self.open.iter_mut().filter(|open| {
                    let lacks_it = if is_code {
                        open.lacks_code
                    } else {
                        open.lacks_test
                    };
                    lacks_it && open.is_about(id)
                });
                // A line of its own says more than one of many rules.
                if let Some(open) = excuses.min_by_key(|open| open.id != *id) {
                    open.used = true;
                    continue;
                }
                let what = if is_code {
                    "no line of code"
                } else {
                    "no test"
                };
                let problem = format!("{id} has {what}, and no line in {OPEN}: {}", rule.phrase);
                self.problems.push(problem);
            }
        }
        for open in &self.open {
            if !self.rules.keys().any(|id| open.is_about(id)) {
                self.problems
                    .push(format!("{OPEN}: no such rule: {}", open.line));
            }
        }
    }

    fn prune(&self, root: &Path) -> io::Result<()> {
        let path = root.join(OPEN);
        let text = fs::read_to_string(&path)?;
        fs::write(path, self.pruned(&text))
    }

    /// The list without the lines that are no longer needed.
    fn pruned(&self, text: &str) -> String {
        let is_spare = |number| {
            let mut lines = self.open.iter();
            lines.any(|open| open.number == number && !open.used)
        };
        let lines = (0..).zip(text.lines());
        let kept: Vec<_> = lines.filter(|(number, _)| !is_spare(*number)).collect();
        let kept = kept.into_iter().map(|(_, line)| line.to_owned() + "\n");
        kept.collect()
    }

    /// By area: rules, those with code, with a test, with both.
    fn table(&self) -> String {
        let mut areas: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
        for rule in self.rules.values() {
            let (code, test) = (rule.code > 0, rule.tests > 0);
            for area in [rule.area.as_str(), "~all"] {
                let row = areas.entry(area).or_default();
                for (cell, counts) in row.iter_mut().zip([true, code, test, code && test]) {
                    *cell += usize::from(counts);
                }
            }
        }
        let mut text = format!(
            "{:18}{:>7}{:>7}{:>7}{:>7}\n",
            "area", "rules", "code", "test", "both"
        );
        for (area, [rules, code, test, both]) in areas {
            let area = area.trim_start_matches('~');
            text += &format!("{area:18}{rules:7}{code:7}{test:7}{both:7}\n");
        }
        text
    }
}

impl Open {
    fn is_about(&self, id: &str) -> bool {
        match self.id.strip_suffix('*') {
            Some(head) => id.starts_with(head),
            None => id == self.id,
        }
    }
}

/// The rows of a table with tabs between fields.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    numbered_rows(text).map(|(_, fields)| fields)
}

/// Returns the rows with the numbers of their lines, from 0.
fn numbered_rows(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let lines = (0..).zip(text.lines());
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(number, line)| (number, line.split('\t').collect()))
}

/// Returns what is wrong with the form of a citation, if the line has one.
fn fault_of(line: &str) -> Option<String> {
    if let Some((ids, _)) = citation(line) {
        let count = ids.len();
        let is_long = count > MAX_CITED;
        return is_long.then(|| format!("cites {count} rules, and {MAX_CITED} are the most"));
    }
    let (_, behind) = line.split_once("//= ")?;
    let in_id = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-';
    let is_id = |word: &str| word.contains('-') && word.chars().all(in_id);
    let is_hidden = behind.split(' ').next().is_some_and(is_id);
    is_hidden.then(|| "a citation has a line of its own".to_owned())
}

/// The rules that a line cites, and whether as a test.
fn citation(line: &str) -> Option<(Vec<String>, bool)> {
    let line = line.trim_start();
    let text = line
        .strip_prefix("//= ")
        .or_else(|| line.strip_prefix("/*= "))?;
    let text = text.trim_end_matches("*/").trim_end();
    let (ids, is_test) = match text.strip_suffix("type=test") {
        Some(ids) => (ids, true),
        None => (text, false),
    };
    let words = ids.split([' ', ',']).filter(|word| !word.is_empty());
    Some((words.flat_map(range).collect(), is_test))
}

/// `QPT-01..03` is all from the first to the last.
fn range(word: &str) -> Vec<String> {
    let parts = word.split_once("..").and_then(|(first, last)| {
        let (area, begin) = first.rsplit_once('-')?;
        let last = last.rsplit('-').next()?;
        let (begin, end) = (begin.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        Some((area, begin, end, last.len()))
    });
    match parts {
        Some((area, begin, end, width)) => (begin..=end)
            .map(|number| format!("{area}-{number:0width$}"))
            .collect(),
        None => vec![word.to_owned()],
    }
}

/// The id that stands as a string in a line.
fn literal(line: &str) -> Option<&str> {
    let mut strings = line.split('"').skip(1).step_by(2);
    strings.find(|text| {
        let (head, tail) = text.split_once('-').unwrap_or_default();
        let is_id = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-';
        head.len() > 1 && !tail.is_empty() && text.chars().all(is_id)
    })
}

/// The sources of the project.
fn collect(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            // The checker's own tests cite rules that there are not.
            if !name.starts_with('.') && name != "target" && !path.ends_with("tests/xtask") {
                collect(&path, found)?;
            }
        } else if [".rs", ".c", ".h"].iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(open: &str, source: &str) -> Book {
        let mut book = Book::default();
        book.add_rules("# a comment\nAB-01\twire\tfirst\nAB-02\twire\tsecond\n");
        book.add_open(open);
        book.add_citations(Path::new("a.rs"), source);
        book.judge();
        book
    }

    #[test]
    fn rules_without_code_or_test_need_a_reason() {
        let source = "//= AB-01\n  //= AB-01 type=test\n//= AB-02\n";
        let bad = book("", source).problems;
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert!(bad[0].starts_with("AB-02 has no test"), "{bad:?}");
        let good = book("AB-02\ttest\tnot yet: later\n", source);
        assert!(good.problems.is_empty(), "{:?}", good.problems);
        assert!(good.open[0].used);
        let code_only = book("AB-0*\tcode\tnever: because\n", source).problems;
        assert_eq!(code_only.len(), 1, "{code_only:?}");
        assert_eq!(book("AB-0*\tboth\tnot yet: x\n", "").problems.len(), 0);
    }

    #[test]
    fn unknown_ids_and_reasons_that_are_none_are_found() {
        let source =
            "//= AB-01\n//= AB-01 type=test\n/*= AB-02 type=test */\n//= AB-02\n//= AB-03\n";
        let bad = book("", source).problems;
        assert_eq!(bad, ["a.rs:5: AB-03 is no rule of tests/rules/rules.tsv"]);
        assert_eq!(book("AB-01\tboth\tlater\n", source).problems.len(), 2);
        assert_eq!(book("CD-*\tboth\tnot yet: x\n", source).problems.len(), 2);
    }

    #[test]
    fn a_citation_is_a_line_of_three_rules_at_most() {
        let problems = |line: &str| book("AB-0*\tboth\tnever: x\n", line).problems;
        for good in [
            "//= AB-01 AB-02, AB-01 type=test\n",
            "/*= AB-01..02 AB-01 type=test */\n",
            "let x = \"//= \";\n",
        ] {
            assert!(problems(good).is_empty(), "{good}");
        }
        for long in ["//= AB-01 AB-02 AB-01 AB-02\n", "//= AB-01..02 AB-01..02\n"] {
            let found = problems(&format!("\n  {long}"));
            assert_eq!(found, ["a.rs:2: cites 4 rules, and 3 are the most"]);
        }
        for hidden in ["/// Words. //= AB-01 type=test\n", "x(); //= AB-01\n"] {
            assert_eq!(
                problems(hidden),
                ["a.rs:1: a citation has a line of its own"]
            );
        }
    }

    #[test]
    fn lines_no_longer_needed_are_noticed() {
        let source = "//= AB-01\n//= AB-01 type=test\n//= AB-02\n//= AB-02 type=test\n";
        let book = book("AB-02\ttest\tnot yet: x\n", source);
        assert!(book.problems.is_empty() && !book.open[0].used);
        assert!(
            book.table()
                .ends_with("all                     2      2      2      2\n")
        );
    }

    #[test]
    fn pruning_leaves_what_is_needed() {
        let pruned = |open: &str, source: &str| book(open, source).pruned(open);
        let whole = "//= AB-01\n//= AB-01 type=test\n";
        // The same twice: one of them is needed.
        let line = "AB-*\tboth\tnot yet: x\n";
        let twice = format!("# a list\n{line}\n{line}");
        assert_eq!(pruned(&twice, whole), format!("# a list\n{line}\n"));
        // A line for one rule makes the line for all of them unnecessary, wherever it stands.
        // Otherwise that line stays.
        let own = "AB-02\tboth\tnever: y\n";
        for list in [[own, line], [line, own]] {
            assert_eq!(pruned(&list.concat(), whole), own);
            assert_eq!(pruned(&list.concat(), ""), list.concat());
        }
        // Half of it.
        let half = "AB-02\tcode\tnever: y\n";
        assert_eq!(pruned(&[half, line].concat(), whole), [half, line].concat());
        assert_eq!(pruned(own, "//= AB-01..02\n//= AB-01..02 type=test\n"), "");
    }

    #[test]
    fn cases_of_the_suite_name_their_rule() {
        assert_eq!(
            literal("    Case::responder(\"AB-01\", \"a-b\", x),"),
            Some("AB-01")
        );
        assert_eq!(literal("        \"RC-RSP-20\","), Some("RC-RSP-20"));
        assert_eq!(literal("  \"duplicates-are-answered\","), None);
        assert_eq!(literal("x(\"\", \"A\", \"-\")"), None);
        assert_eq!(citation("let x = 1; //= AB-01"), None);
    }

    #[test]
    fn a_line_may_cite_several_rules() {
        let ids = |line: &str| citation(line).map(|(ids, is_test)| (ids.join(" "), is_test));
        let both = |ids: &str, is_test| Some((ids.to_owned(), is_test));
        assert_eq!(ids("  //= A-1, B-C-02 type=test"), both("A-1 B-C-02", true));
        assert_eq!(
            ids("//= A-08..11 B-1"),
            both("A-08 A-09 A-10 A-11 B-1", false)
        );
        assert_eq!(ids("/*= A-1..A-2 type=test */"), both("A-1 A-2", true));
        assert_eq!(ids("//= A-x..y"), both("A-x..y", false));
    }
}
