//! Format, clippy and documentation.

use std::time::Duration;

use crate::{step, tally::Tally, workspace::Workspace};

const LIMIT: Duration = Duration::from_secs(900);

/// Runs every check, also after one has failed.
pub(crate) fn run(workspace: &Workspace) -> Tally {
    let format = workspace.cargo(&["fmt", "--all", "--check"]);
    let mut clippy = workspace.cargo(&["clippy", "--workspace", "--all-targets", "--locked"]);
    clippy.args(["--", "-D", "warnings"]);
    let mut doc = workspace.cargo(&[
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--locked",
    ]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    let mut tally = Tally::default();
    for (name, command) in [
        ("format", format),
        ("clippy", clippy),
        ("documentation", doc),
    ] {
        tally = tally + step::run(name, LIMIT, command).as_one();
    }
    tally
}
