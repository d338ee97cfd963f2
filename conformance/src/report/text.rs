//! Prints a report.

use std::{collections::BTreeMap, fmt};

use super::{CaseResultEntry, Report, Verdict};
use crate::{Level, rules};

/// Prints one line per rule, then the reasons and transcripts of cases that did not pass.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_rule: BTreeMap<&str, Vec<&CaseResultEntry>> = BTreeMap::new();
        for entry in &self.entries {
            by_rule.entry(&entry.rule).or_default().push(entry);
        }
        writeln!(f, "{:<12} {:<6} {:>5}  result", "rule", "level", "cases")?;
        for (rule, entries) in &by_rule {
            let worst = entries
                .iter()
                .map(|e| e.verdict)
                .max()
                .unwrap_or(Verdict::Skip);
            let must = entries.iter().any(|e| e.level == Level::Must);
            let level = if must { Level::Must } else { Level::Should };
            writeln!(
                f,
                "{rule:<12} {level:<6} {:>5}  {}",
                entries.len(),
                worst.word()
            )?;
        }
        for entry in self.entries.iter().filter(|e| e.verdict != Verdict::Pass) {
            let reason = entry.explanation();
            writeln!(
                f,
                "\n{}: {} ({}): {reason}",
                entry.verdict.word(),
                entry.case,
                entry.level
            )?;
            if matches!(entry.verdict, Verdict::Fail | Verdict::Lost) {
                for rule in entry.rules().filter_map(rules::find) {
                    writeln!(f, "  {}: {}", rule.id, rule.statement)?;
                }
                for step in &entry.transcript {
                    step.fmt(f)?;
                }
            }
        }
        if let Some(why) = &self.lost {
            writeln!(f, "\nThe run ended early: {why}")?;
        }
        let unexpected = self.unexpected().count();
        writeln!(
            f,
            "\n{}: {} cases, {} passed, {} known to fail, {} skipped, {unexpected} unexpected",
            self.peer,
            self.entries.len(),
            self.count(Verdict::Pass),
            self.count(Verdict::KnownFailure),
            self.entries.len() - self.run_count(),
        )
    }
}
