//! One page in HTML for one or more peers, which needs no network.

use std::collections::{BTreeMap, BTreeSet};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{CaseResultEntry, Report, Verdict};
use crate::{
    Level,
    rig::{Origin, Step},
    rules,
};

const STYLE: &str = include_str!("style.css");

/// The first and last lines of a ladder that are shown.
const HEAD: usize = 40;
const TAIL: usize = 20;

impl Verdict {
    /// Returns the CSS class and the symbol.
    const fn look(self) -> (&'static str, &'static str) {
        match self {
            Self::Pass => ("pass", "✓"),
            Self::Skip => ("skip", "–"),
            Self::KnownFailure => ("known", "✗"),
            Self::UnexpectedPass | Self::UnexpectedSkip => ("odd", "?"),
            Self::Fail | Self::Lost => ("fail", "✗"),
        }
    }

    const fn in_page(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skip => "skipped",
            Self::KnownFailure => "known",
            Self::UnexpectedPass => "passes now",
            Self::UnexpectedSkip => "not run",
            Self::Fail => "fails",
            Self::Lost => "lost",
        }
    }
}

/// Returns a page with a matrix of rules and peers, and the packets of each failure.
#[must_use]
pub fn html(reports: &[Report]) -> String {
    let titles: Vec<_> = reports.iter().map(Report::title).collect();
    let title = format!("RoCEv2 conformance: {}", titles.join(", "));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "RoCEv2 conformance" }
                    p.soft { "Each case sends a few packets to the device and checks the packets and \
                        completions that follow. The rules are those of the InfiniBand \
                        specification, in other words." }
                    div.peers { @for report in reports { (card(report)) } }
                }
                (matrix(reports))
                @for (number, report) in reports.iter().enumerate() { (failures(number, report)) }
                footer { "rocade-conformance " (env!("CARGO_PKG_VERSION")) }
            }
        }
    };
    page.into_string()
}

/// Returns the summary of a peer.
fn card(report: &Report) -> Markup {
    let kinds = [
        ("pass", "passed", &[Verdict::Pass][..]),
        ("fail", "failed", &[Verdict::Fail, Verdict::Lost]),
        ("known", "known to fail", &[Verdict::KnownFailure]),
        (
            "odd",
            "not as expected",
            &[Verdict::UnexpectedPass, Verdict::UnexpectedSkip],
        ),
        ("skip", "skipped", &[Verdict::Skip]),
    ];
    let counts = kinds.map(|(class, name, verdicts)| {
        let count: usize = verdicts.iter().map(|&verdict| report.count(verdict)).sum();
        (class, name, count)
    });
    html! {
        div.peer {
            h2 { (report.title()) }
            div.soft {
                (report.entries.len()) " cases"
                @if !report.device.address.is_empty() { ", at " (report.device.address) }
            }
            div.bar {
                @for (class, name, count) in counts.iter().filter(|(_, _, count)| *count > 0) {
                    span class=(class) style={ "flex:" (count) } title={ (count) " " (name) } {}
                }
            }
            ul {
                @for (class, name, count) in counts.iter().filter(|(_, _, count)| *count > 0) {
                    li class=(class) { (count) " " (name) }
                }
            }
            @if let Some(why) = &report.lost { p.lost { "The run ended early: " (why) } }
        }
    }
}

/// Returns the IDs of the groups and of their rules, in the order of the list of rules.
fn groups(reports: &[Report]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for entry in reports.iter().flat_map(|report| &report.entries) {
        let group = groups.entry(rules::group(&entry.rule)).or_default();
        group.insert(&entry.rule);
    }
    groups
}

fn matrix(reports: &[Report]) -> Markup {
    html! {
        h2 { "Rules" }
        div.legend {
            label { input type="checkbox" id="deviations"; " only deviations" }
            label { input type="checkbox" id="cases"; " every case" }
            span { span.pass { "✓" } " follows the rule" }
            span { span.fail { "✗" } " violates it" }
            span { span.known { "✗" } " violates it, as is known" }
            span { span.odd { "?" } " not as expected" }
            span { span.skip { "–" } " skipped" }
        }
        div.scroll {
            table.matrix {
                thead { tr {
                    th { "rule" }
                    th { "what it says" }
                    @for report in reports { th.cell {
                        (report.peer)
                        @if report.title() != report.peer {
                            span.number { (&report.title()[report.peer.len()..]) }
                        }
                    } }
                } }
                tbody { @for (group, ids) in groups(reports) { (group_rows(reports, group, &ids)) } }
            }
        }
    }
}

fn group_rows(reports: &[Report], group: &str, ids: &BTreeSet<&str>) -> Markup {
    let name = rules::find(group).map_or(group, |rule| rule.statement);
    let is_clean = |ids: &BTreeSet<&str>| {
        let mut entries = reports.iter().flat_map(|report| &report.entries);
        !entries.any(|entry| ids.contains(&*entry.rule) && is_deviation(entry))
    };
    html! {
        tr.group.clean[is_clean(ids)] { th colspan=(reports.len() + 2) { (name) } }
        @for &id in ids {
            @let clean = is_clean(&BTreeSet::from([id]));
            tr.rule.clean[clean] {
                th scope="row" {
                    (id)
                    @if let Some(rule) = rules::find(id) { span.number { (rule.number) } }
                }
                td { @if let Some(rule) = rules::find(id) { (rule.statement) } }
                @for (number, report) in reports.iter().enumerate() { (rule_cell(number, report, id)) }
            }
            @for (case, level) in cases(reports, id) { (case_row(reports, case, level)) }
        }
    }
}

/// Returns the cases of a rule in any report, with their levels.
fn cases<'a>(reports: &'a [Report], id: &str) -> BTreeMap<&'a str, Level> {
    let entries = reports.iter().flat_map(|report| &report.entries);
    let of_rule = entries.filter(|entry| entry.rule == id);
    of_rule.map(|entry| (&*entry.case, entry.level)).collect()
}

fn is_deviation(entry: &CaseResultEntry) -> bool {
    entry.verdict > Verdict::Skip
}

/// Returns the worst result of a rule, with the number of cases that have it.
fn rule_cell(number: usize, report: &Report, id: &str) -> Markup {
    let of_rule = report.entries.iter().filter(|entry| entry.rule == id);
    let entries: Vec<_> = of_rule.collect();
    let Some(worst) = entries.iter().max_by_key(|entry| entry.verdict) else {
        return html! { td.cell {} };
    };
    // A rule that was checked by some cases is not called skipped because of the others.
    let passed = entries.iter().find(|entry| entry.verdict == Verdict::Pass);
    let shown = match (worst.verdict, passed) {
        (Verdict::Skip, Some(passed)) => passed,
        _ => worst,
    };
    let same = entries
        .iter()
        .filter(|e| e.verdict == shown.verdict)
        .count();
    let (class, symbol) = shown.verdict.look();
    let count = match (same, entries.len()) {
        (1, 1) => String::new(),
        (same, all) if same == all => format!(" {all}"),
        (same, all) => format!(" {same} of {all}"),
    };
    let text = html! { (symbol) " " (shown.verdict.in_page()) (count) };
    let first = entries.iter().find(|entry| entry.verdict == shown.verdict);
    html! {
        td.cell.(class) {
            @match first.filter(|entry| is_deviation(entry)) {
                Some(entry) => a href={ "#" (anchor(number, entry)) } { (text) },
                None => (text),
            }
        }
    }
}

fn case_row(reports: &[Report], case: &str, level: Level) -> Markup {
    let found: Vec<_> = reports.iter().map(|report| report.find(case)).collect();
    let clean = !found.iter().flatten().any(|entry| is_deviation(entry));
    let slug = case.split_once('/').map_or(case, |(_, slug)| slug);
    html! {
        tr.one.clean[clean] {
            th scope="row" colspan="2" { span.case { (slug) } " " (level) }
            @for (number, entry) in found.into_iter().enumerate() {
                @match entry {
                    None => td.cell {},
                    Some(entry) => {
                        @let (class, symbol) = entry.verdict.look();
                        td.cell.(class) title=(entry.explanation()) {
                            @if is_deviation(entry) {
                                a href={ "#" (anchor(number, entry)) } {
                                    (symbol) " " (entry.verdict.in_page())
                                }
                            } @else { (symbol) " " (entry.verdict.in_page()) }
                        }
                    },
                }
            }
        }
    }
}

fn anchor(number: usize, entry: &CaseResultEntry) -> String {
    format!("{number}-{}", entry.case.replace('/', "-"))
}

/// Returns the deviations of a peer, each with its rules and packets.
fn failures(number: usize, report: &Report) -> Markup {
    let deviations: Vec<_> = report.entries.iter().filter(|e| is_deviation(e)).collect();
    html! {
        h2 { "Deviations of " (report.title()) }
        @if deviations.is_empty() { p { "None." } }
        @for entry in deviations { (failure(number, entry)) }
    }
}

fn failure(number: usize, entry: &CaseResultEntry) -> Markup {
    let (class, _) = entry.verdict.look();
    html! {
        details open[entry.verdict.is_unexpected()] {
            summary {
                span.word.(class) { (entry.verdict.in_page()) } " "
                span.case { (entry.case) } " " span.soft { (entry.level) }
            }
            div id=(anchor(number, entry)) {
                dl {
                    @for id in entry.rules() {
                        dt { (id) }
                        dd { (rules::find(id).map_or("", |rule| rule.statement)) }
                    }
                    dt { "found" }
                    dd { (entry.explanation()) }
                }
                @if !entry.transcript.is_empty() { (ladder(&entry.transcript)) }
            }
        }
    }
}

fn ladder(steps: &[Step]) -> Markup {
    html! {
        table.ladder {
            thead { tr { th.ms { "ms" } th { "suite" } th.right { "device" } } }
            tbody {
                @for (number, step) in steps.iter().enumerate() {
                    @if number == HEAD && steps.len() > HEAD + TAIL {
                        tr { td.ms {} td.lane.note colspan="2" {
                            (steps.len() - HEAD - TAIL) " more lines"
                        } }
                    }
                    @if number < HEAD || number + TAIL >= steps.len() { tr {
                        td.ms { (format!("{:.3}", step.ms)) }
                        @match step.from {
                            Origin::Rig => td.lane colspan="2" { div.arrow.right { (step.text) } },
                            Origin::Peer => td.lane colspan="2" { div.arrow.left { (step.text) } },
                            Origin::Note => td.lane.note colspan="2" { (step.text) },
                        }
                    } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Case, Outcome, case::CaseRun, expectations::Expected};

    fn report(peer: &str, outcome: Outcome) -> Report {
        let mut report = Report::new(peer);
        let run = CaseRun {
            case: Case::responder("RC-SEG-01", "write-of-full-packets", |_| Ok(())),
            outcome,
            duration: Duration::ZERO,
            frames: Vec::new(),
            is_lost: false,
        };
        report.push(CaseResultEntry::new(run, &Expected::Pass));
        report
    }

    #[test]
    fn a_page_has_peers_side_by_side_and_the_packets_of_failures() {
        let step = |from, text: &str| Step {
            ms: 0.25,
            from,
            text: text.to_owned(),
        };
        let failed = Outcome::Failed {
            reason: "no <ACK>".to_owned(),
            transcript: vec![
                step(Origin::Rig, "RC RDMA_WRITE_FIRST"),
                step(Origin::Peer, "RC ACKNOWLEDGE"),
            ],
        };
        let page = html(&[report("mlx5_0", Outcome::Passed), report("rxe0", failed)]);
        let cells = r##"<td class="cell pass">✓ pass</td><td class="cell fail"><a href="#1-RC-SEG-01-write-of-full-packets">✗ fails</a></td>"##;
        assert!(page.contains(cells), "{page}");
        for text in [
            "A message is Only, or First, Middle and Last",
            "no &lt;ACK&gt;",
            r#"<div class="arrow right">RC RDMA_WRITE_FIRST</div>"#,
            r#"<div class="arrow left">RC ACKNOWLEDGE</div>"#,
            r#"id="1-RC-SEG-01-write-of-full-packets""#,
            "prefers-color-scheme: dark",
        ] {
            assert!(page.contains(text), "{text} in {page}");
        }
        let external = ["http://", "https://", "src=", "@import", "url("];
        assert!(external.iter().all(|word| !page.contains(word)));
    }
}
