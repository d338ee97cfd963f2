//! The tables of `cargo xtask failures`, and their place in docs/failures-matrix.md.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use crate::{
    dist::{at, write},
    tally::Tally,
};

const DOCUMENT: &str = "docs/failures-matrix.md";
const BEGIN: &str = "<!-- begin matrix -->\n";
const END: &str = "<!-- end matrix -->\n";
/// Recipe, program, and a sentence: the reason for a hang or a crash. `*` stands for all recipes.
const EXPLANATIONS: &str = include_str!("explained.tsv");

/// The conduct of a program under a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Recovers,
    Error,
    Hangs,
    Crashes,
    /// The rules were not applied.
    Unhit,
    Absent,
}

impl Verdict {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "recovers" => Self::Recovers,
            "error" => Self::Error,
            "hangs" => Self::Hangs,
            "crashes" => Self::Crashes,
            "unhit" => Self::Unhit,
            "absent" => Self::Absent,
            _ => return None,
        })
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Recovers => "recovers",
            Self::Error => "error",
            Self::Hangs => "**hangs**",
            Self::Crashes => "**crashes**",
            Self::Unhit => "-",
            Self::Absent => "not there",
        }
    }
}

/// A recipe and a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) recipe: String,
    pub(super) program: String,
    pub(super) verdict: Verdict,
    /// The status, and a line of the output.
    pub(super) detail: String,
}

impl Cell {
    /// Returns the reason for a hang or a crash.
    fn explanation(&self) -> Option<&'static str> {
        let lines = EXPLANATIONS.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| {
                let mut words = line.splitn(3, '\t');
                Some((words.next()?, words.next()?, words.next()?))
            })
            .find(|(recipe, program, _)| {
                [&*self.recipe, "*"].contains(recipe) && *program == self.program
            })
            .map(|(_, _, why)| why)
    }

    fn needs_explanation(&self) -> bool {
        matches!(self.verdict, Verdict::Hangs | Verdict::Crashes)
    }

    /// A hang or a crash without an explanation is a failure.
    pub(super) fn tally(&self) -> Tally {
        match self.verdict {
            Verdict::Absent => Tally::SKIP,
            _ if self.needs_explanation() && self.explanation().is_none() => Tally::FAIL,
            _ => Tally::PASS,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            recipe,
            program,
            verdict,
            detail,
        } = self;
        write!(f, "{recipe}, {program}: {verdict:?}, {detail}")
    }
}

/// Reads the output of the script.
///
/// # Errors
/// The first line that is none.
pub(super) fn cells(text: &str) -> Result<Vec<Cell>, String> {
    let cell = |line: &str| {
        let mut words = line.splitn(4, '\t').map(str::to_owned);
        Some(Cell {
            recipe: words.next()?,
            program: words.next()?,
            verdict: Verdict::of(&words.next()?)?,
            detail: words.next()?,
        })
    };
    let cells = text.lines().map(|line| {
        let found = cell(line);
        found.ok_or_else(|| format!("matrix.sh: unexpected output: {line:?}"))
    });
    cells.collect()
}

/// Prints the tables, and writes them to the document if `document` is set.
///
/// # Errors
/// Those of the file, or that it has no place for the tables.
pub(super) fn publish(root: &Path, all: &[Cell], document: bool) -> Result<(), String> {
    let text = format!("{}\n{}", matrix(all), explanations(all));
    println!("{text}");
    if document {
        let file = root.join(DOCUMENT);
        let old = fs::read_to_string(&file).map_err(at(&file))?;
        let parts = old.split_once(BEGIN).and_then(|(head, rest)| {
            let (_, tail) = rest.split_once(END)?;
            Some((head, tail))
        });
        let (head, tail) = parts.ok_or_else(|| format!("{DOCUMENT} has no {}", BEGIN.trim()))?;
        write(&file, format!("{head}{BEGIN}{text}{END}{tail}"))?;
    }
    Ok(())
}

/// The table of verdicts: a row for each recipe, a column for each program.
fn matrix(all: &[Cell]) -> String {
    let mut programs: Vec<&str> = Vec::new();
    let mut rows: BTreeMap<&str, BTreeMap<&str, Verdict>> = BTreeMap::new();
    for cell in all {
        if !programs.contains(&&*cell.program) {
            programs.push(&cell.program);
        }
        let row = rows.entry(&cell.recipe).or_default();
        row.insert(&cell.program, cell.verdict);
    }
    let names: String = programs.iter().map(|name| format!(" `{name}` |")).collect();
    let mut text = format!(
        "| recipe |{names}\n|---|{}\n",
        "---|".repeat(programs.len())
    );
    for (recipe, row) in rows {
        let cells: String = programs
            .iter()
            .map(|name| format!(" {} |", row.get(name).map_or("", |verdict| verdict.word())))
            .collect();
        text.push_str(&format!("| `{recipe}` |{cells}\n"));
    }
    text
}

/// The table of reasons for hangs and crashes, one row for each program and reason.
fn explanations(all: &[Cell]) -> String {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for cell in all.iter().filter(|cell| cell.needs_explanation()) {
        let why = cell.explanation().unwrap_or("UNEXPLAINED");
        let recipes = reasons.entry((&cell.program, why)).or_default();
        recipes.push(&cell.recipe);
    }
    let mut text = "| program | hangs or crashes under | why |\n|---|---|---|\n".to_owned();
    for ((program, why), recipes) in reasons {
        let recipes: Vec<_> = recipes.iter().map(|recipe| format!("`{recipe}`")).collect();
        text.push_str(&format!(
            "| `{program}` | {} | {why} |\n",
            recipes.join(", ")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "lossy-1pct\trping\trecovers\t0: \njitter\trping\thangs\t124: late\n\
                          lossy-1pct\tqperf\tabsent\t\n";

    #[test]
    fn results_are_read_and_make_a_table() {
        let all = cells(OUTPUT).unwrap();
        assert_eq!(all[1].verdict, Verdict::Hangs);
        let table = matrix(&all);
        assert!(table.starts_with("| recipe | `rping` | `qperf` |\n|---|---|---|\n"));
        assert!(
            table.contains("| `lossy-1pct` | recovers | not there |\n"),
            "{table}"
        );
        assert!(table.contains("| `jitter` | **hangs** |  |\n"), "{table}");
        assert!(cells("sh: syntax error").is_err());
    }

    #[test]
    fn a_hang_without_an_explanation_is_a_failure() {
        let all = cells(OUTPUT).unwrap();
        let sum = all.iter().map(Cell::tally);
        let sum = sum.fold(Tally::default(), |sum, one| sum + one);
        assert_eq!((sum.passed, sum.failed, sum.skipped), (1, 1, 1));
        let all = cells("jitter\tno-program\tcrashes\t139: \n").unwrap();
        assert!(explanations(&all).contains("| `jitter` | UNEXPLAINED |"));
    }

    #[test]
    fn explanations_are_sentences() {
        for line in EXPLANATIONS.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<_> = line.split('\t').collect();
            assert_eq!(words.len(), 3, "{line}");
            assert!(words[2].ends_with('.'), "{line}");
        }
    }

    #[test]
    fn the_script_is_one_that_a_shell_reads() {
        let script = include_str!("matrix.sh");
        let mut shell = std::process::Command::new("sh");
        assert!(crate::step::succeeds(shell.args(["-n", "-c", script])));
    }
}
