//! The report of the rules as text: a table for people, and summaries that outlive the process.

use std::fmt;

use super::tally::{FaultReport, ReportedRule};

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// The applications of a rule, with its objects in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSummary {
    /// The text of the rule.
    pub text: String,
    /// Number of applications.
    pub hits: u64,
    /// The first application, in nanoseconds since the process opened its first device.
    pub first_ns: Option<u64>,
    /// The last application, in nanoseconds since the process opened its first device.
    pub last_ns: Option<u64>,
    /// The first objects, at most [`MAX_OBJECTS`](super::MAX_OBJECTS), and the number of
    /// applications to each.
    pub objects: Vec<(String, u64)>,
    /// Number of applications to other objects.
    pub other_hits: u64,
}

impl From<&ReportedRule> for RuleSummary {
    fn from(rule: &ReportedRule) -> Self {
        let objects = rule.objects.iter();
        Self {
            text: rule.text.clone(),
            hits: rule.hits,
            first_ns: rule.first_ns,
            last_ns: rule.last_ns,
            objects: objects
                .map(|(subject, hits)| (subject.to_string(), *hits))
                .collect(),
            other_hits: rule.other_hits,
        }
    }
}

impl RuleSummary {
    /// Returns the objects in words, each with the number of applications if there are several.
    #[must_use]
    pub fn objects_in_words(&self) -> String {
        if let ([(only, _)], 0) = (&*self.objects, self.other_hits) {
            return only.clone();
        }
        let known = self.objects.iter();
        let mut parts: Vec<_> = known
            .map(|(object, hits)| format!("{object} ({hits})"))
            .collect();
        if self.other_hits > 0 {
            parts.push(format!("others ({})", self.other_hits));
        }
        if parts.is_empty() {
            "-".to_owned()
        } else {
            parts.join(", ")
        }
    }

    fn cells(&self) -> [String; 5] {
        [
            self.hits.to_string(),
            seconds(self.first_ns),
            seconds(self.last_ns),
            self.text.clone(),
            self.objects_in_words(),
        ]
    }
}

/// Returns a time in seconds with six decimals, or `-` if there is none.
fn seconds(ns: Option<u64>) -> String {
    ns.map_or_else(
        || "-".to_owned(),
        |ns| format!("{}.{:06}", ns / SECOND_NS, ns % SECOND_NS / 1000),
    )
}

/// Returns a table of the rules, one per line, with a header. Each line begins with two spaces and
/// ends with a line feed. Times are in seconds since the process opened its first device.
#[must_use]
pub fn table(rules: &[RuleSummary]) -> String {
    let header = ["times", "first", "last", "rule", "object"].map(str::to_owned);
    let rows: Vec<_> = [header]
        .into_iter()
        .chain(rules.iter().map(RuleSummary::cells))
        .collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let [times, first, last, text] = [0, 1, 2, 3].map(width);
    let line = |row: &[String; 5]| {
        let [a, b, c, d, e] = row;
        format!("  {a:>times$}  {b:>first$}  {c:>last$}  {d:text$}  {e}\n")
    };
    rows.iter().map(line).collect()
}

impl FaultReport {
    /// Returns the rules with their objects in words.
    #[must_use]
    pub fn summaries(&self) -> Vec<RuleSummary> {
        self.rules.iter().map(RuleSummary::from).collect()
    }
}

/// Prints the [`table`] of the rules.
impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&table(&self.summaries()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rocade_transport::Time;
    use rocade_wire::Qpn;

    use super::super::schedule::RuleKey;
    use super::super::tally::{Subject, Tally};

    #[test]
    fn the_table_has_a_line_for_each_rule() {
        let tally = Tally::default();
        let keys = [RuleKey(1), RuleKey(2), RuleKey(3)];
        let texts = ["drop nth=3", "fail verb=reg_mr errno=ENOMEM", "rnr"];
        let rules: Vec<_> = keys.into_iter().zip(texts.map(str::to_owned)).collect();
        tally.set_rules(&rules, None);
        tally.begin(Time::from_ns(1_000));
        let packet = Subject::Packet {
            sent: true,
            dest: Qpn::new(0x11),
        };
        tally.hit(keys[0], Time::from_ns(3_001_000), packet.clone());
        tally.hit(keys[0], Time::from_ns(2_000_005_000), packet);
        for qpn in 1..=6 {
            let now = Time::from_ns(1_000_000 * u64::from(qpn));
            tally.hit(keys[2], now, Subject::Qp(Qpn::new(qpn)));
        }
        let report = tally.report();
        let lines = "  \
  times     first      last  rule                           object
      2  0.003000  2.000004  drop nth=3                     packet to QP 0x000011
      0         -         -  fail verb=reg_mr errno=ENOMEM  -
      6  0.000999  0.005999  rnr                            QP 0x000001 (1), QP 0x000002 (1), \
QP 0x000003 (1), QP 0x000004 (1), others (2)
";
        assert_eq!(report.to_string(), lines);
        assert_eq!(report.occurrences.len(), 8);
    }
}
