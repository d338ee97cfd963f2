//! The table in docs/consumers.md, generated from the expectations of the tests.

use std::{env, fs};

use super::rows::{Choice, Posts, Row, Service, Side, Tool};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/consumers.md");
const BEGIN: &str = "<!-- begin perftest -->\n";
const END: &str = "<!-- end perftest -->\n";

/// Returns the cell for a row: it runs, it runs and leaves a CQ, or a reference to perftest's
/// reason for refusing it.
fn cell(row: &Row, reasons: &mut Vec<&'static str>) -> String {
    if let Some(refusal) = row.refusal() {
        let known = reasons.iter().position(|&reason| reason == refusal);
        let number = known.unwrap_or_else(|| {
            reasons.push(refusal);
            reasons.len() - 1
        });
        return format!("({})", number + 1);
    }
    let leaves_cq = row.leaves_cq(Side::Server) || row.leaves_cq(Side::Client);
    if leaves_cq { "runs*" } else { "runs" }.to_owned()
}

fn table() -> String {
    let mut reasons = Vec::new();
    let mut text = "| program | `-c` | |".to_owned();
    for choice in Choice::ALL {
        text += &format!(" `{}` |", choice.words());
    }
    text += " `--use_old_post_send` |\n|---|---|";
    text += &"---|".repeat(Choice::ALL.len() + 2);
    text.push('\n');
    for tool in Tool::all() {
        for service in Service::ALL {
            text += &format!("| `{}` | {} |", tool.program(), service.word());
            let alone = Choice::ALL.map(|choice| Row::new(tool, service, &[choice], Posts::New));
            let plain = Posts::ALL.map(|posts| Row::new(tool, service, &[], posts));
            let [old, new] = &plain;
            for row in [new].into_iter().chain(&alone).chain([old]) {
                text += &format!(" {} |", cell(row, &mut reasons));
            }
            text.push('\n');
        }
    }
    text.push_str("\nperftest's own words:\n\n");
    for (n, reason) in reasons.iter().enumerate() {
        text += &format!("{}. {reason}\n", n + 1);
    }
    text
}

/// To update the document after a deliberate change: `ROCADE_BLESS=1 cargo test -p rocade-tests
/// --test consumers document`.
#[test]
fn the_documented_table_is_the_one_that_is_tested() {
    let text = fs::read_to_string(PATH).expect("docs/consumers.md");
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| {
        let (old, tail) = rest.split_once(END)?;
        Some((head, old, tail))
    });
    let (head, old, tail) = parts.expect("the marks around the table");
    if env::var_os("ROCADE_BLESS").is_some() {
        let new = format!("{head}{BEGIN}{}{END}{tail}", table());
        fs::write(PATH, new).expect("docs/consumers.md");
        return;
    }
    assert_eq!(old, table());
}
