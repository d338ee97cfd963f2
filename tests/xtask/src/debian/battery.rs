//! Programs that run alone and in pairs, by a script inside the root.

use crate::roots::Root;

const SCRIPT: &str = include_str!("battery.sh");

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    /// The last lines of its output.
    Failed(String),
    /// The release has no such program.
    Absent,
}

/// A program or a pair, and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) verdict: Verdict,
}

/// Runs all cases in a root.
pub(super) fn run(root: &Root) -> Result<Vec<Case>, String> {
    let script = format!(
        "export ROCADE=/mnt/rocade\ncat > /tmp/battery.sh <<'END OF BATTERY'\n{SCRIPT}\
         END OF BATTERY\nexec $ROCADE run --dev rocade0=lo -- sh /tmp/battery.sh"
    );
    let cases = cases(&root.run("root", &script)?)?;
    for case in &cases {
        if let Verdict::Failed(output) = &case.verdict {
            eprintln!("xtask: {}: {output}", case.name);
        }
    }
    Ok(cases)
}

/// Reads the output of the script.
fn cases(text: &str) -> Result<Vec<Case>, String> {
    let case = |line: &str| {
        let mut words = line.splitn(3, '\t');
        let (kind, name) = (words.next()?, words.next()?.to_owned());
        let verdict = match kind {
            "ok" => Verdict::Good,
            "FAIL" => Verdict::Failed(words.next().unwrap_or_default().trim().to_owned()),
            "absent" => Verdict::Absent,
            _ => return None,
        };
        Some(Case { name, verdict })
    };
    let cases = text.lines().map(|line| {
        let found = case(line);
        found.ok_or_else(|| format!("battery.sh: unexpected output: {line:?}"))
    });
    cases.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let text = "ok\tibstat\nFAIL\trping -C 10\tlast line \nabsent\tqperf\n";
        let cases = cases(text).unwrap();
        let verdicts: Vec<&Verdict> = cases.iter().map(|case| &case.verdict).collect();
        let failed = Verdict::Failed("last line".to_owned());
        assert_eq!(verdicts, [&Verdict::Good, &failed, &Verdict::Absent]);
        assert_eq!(cases[1].name, "rping -C 10");
        assert!(super::cases("sh: syntax error").is_err());
    }

    #[test]
    fn the_script_is_one_that_a_shell_reads() {
        let mut shell = std::process::Command::new("sh");
        assert!(crate::step::succeeds(shell.args(["-n", "-c", SCRIPT])));
    }
}
