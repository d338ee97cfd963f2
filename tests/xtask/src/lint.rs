//! Format, clippy, documentation, and the project's own rules.

use std::{fs, io, path::Path, process::Command, time::Duration};

use crate::{
    book, dependencies, exports, layers, licences, locks, prose, publish, rules,
    step::{self, succeeds},
    tally::Tally,
    workspace::{Workspace, in_ci},
};

/// The build has low priority, and the processors are busy.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs every check, also after one has failed.
pub(crate) fn run(workspace: &Workspace) -> Tally {
    format(workspace) + run_formatted(workspace)
}

/// Checks the format, which takes a second.
pub(crate) fn format(workspace: &Workspace) -> Tally {
    let format = workspace.cargo(&["fmt", "--all", "--check"]);
    component("format", "rustfmt", format)
}

/// Runs every check but that of the format.
pub(crate) fn run_formatted(workspace: &Workspace) -> Tally {
    let mut clippy = workspace.cargo(&["clippy", "--workspace", "--all-targets", "--locked"]);
    clippy.args(["--", "-D", "warnings"]);
    // The feature replaces code of the emulator, so it has a run of its own.
    let mut clippy_of_feature = workspace.cargo(&["clippy", "--package", "rocade-verbs"]);
    clippy_of_feature.args([
        "--package",
        "rocade-emulator",
        "--lib",
        "--examples",
        "--locked",
    ]);
    clippy_of_feature.args(["--features", "rocade-verbs/simulated-host"]);
    clippy_of_feature.args(["--", "-D", "warnings"]);
    let mut doc = workspace.cargo(&[
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--locked",
    ]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    component("clippy", "clippy-driver", clippy)
        + component("clippy, simulated host", "clippy-driver", clippy_of_feature)
        + step::run("documentation", LIMIT, doc).as_one()
        + skips_are_counted(workspace.root())
        + dependencies_are_used(workspace.root())
        + licences_are_allowed(workspace)
        + layers_are_kept(workspace.root())
        + locks_have_ranks(workspace.root())
        + exports_are_complete(workspace.root())
        + publish::package(workspace)
        + packages_are_complete(workspace)
        + prose_is_plain(workspace.root())
        + links_lead_somewhere(workspace.root())
        + rules::run(workspace.root(), false, false)
}

/// A check by a component that a minimal toolchain does not have.
fn component(headline: &str, tool: &str, command: Command) -> Tally {
    if succeeds(Command::new(tool).arg("--version")) {
        return step::run(headline, LIMIT, command).as_one();
    }
    eprintln!("SKIP: {headline}: the toolchain has no {tool}");
    if in_ci() { Tally::FAIL } else { Tally::SKIP }
}

/// No test skips itself in silence: only `rocade_skip` prints that word, and nothing is ignored.
fn skips_are_counted(root: &Path) -> Tally {
    let mut found = Vec::new();
    let searched = search(root, &mut found);
    let what = "is a skip that is not counted; use rocade_skip::skip!";
    all_clear(searched.map(|()| found), what)
}

/// No manifest names a crate that nothing uses.
fn dependencies_are_used(root: &Path) -> Tally {
    let unused = dependencies::unused(root);
    all_clear(unused, "is a dependency that nothing uses")
}

/// Every crate has a licence and a source that `deny.toml` allows.
fn licences_are_allowed(workspace: &Workspace) -> Tally {
    all_clear(licences::refused(workspace), "is not allowed by deny.toml")
}

/// No part of the emulator names one that is above it.
fn layers_are_kept(root: &Path) -> Tally {
    let circles = layers::circles(root);
    all_clear(circles, "(docs/ARCHITECTURE.md)")
}

/// Every lock of the emulator has its place in the order.
fn locks_have_ranks(root: &Path) -> Tally {
    all_clear(locks::violations(root), "(docs/locks.md)")
}

/// Users of the Rust API can name every type that it shows.
fn exports_are_complete(root: &Path) -> Tally {
    all_clear(exports::hidden(root), "is not exported by rocade-verbs")
}

/// Each package for crates.io describes itself, and has the files that it includes.
fn packages_are_complete(workspace: &Workspace) -> Tally {
    all_clear(publish::lacks(workspace), "(docs/release.md)")
}

/// Comments and documents keep the rules of CONTRIBUTING.md for words.
fn prose_is_plain(root: &Path) -> Tally {
    all_clear(prose::violations(root), "(CONTRIBUTING.md)")
}

/// Every link of a document has a target, and every page is in the book.
fn links_lead_somewhere(root: &Path) -> Tally {
    all_clear(book::dead_links(root), "is a dead link")
}

fn all_clear(found: io::Result<Vec<String>>, what: &str) -> Tally {
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            eprintln!("xtask: cannot read the sources: {error}");
            return Tally::FAIL;
        }
    };
    for place in &found {
        eprintln!("xtask: {place} {what}");
    }
    if found.is_empty() {
        Tally::PASS
    } else {
        Tally::FAIL
    }
}

fn search(dir: &Path, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            let ours = !name.starts_with('.') && name != "target";
            // Those that print the word and read it.
            let allowed = path.ends_with("tests/skip") || path.ends_with("tests/xtask");
            if ours && !allowed {
                search(&path, found)?;
            }
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path)?;
            let lines = text.lines().enumerate();
            found.extend(
                lines
                    .filter(|(_, line)| skips_in_silence(line))
                    .map(|(at, _)| format!("{}:{}", path.display(), at + 1)),
            );
        }
    }
    Ok(())
}

fn skips_in_silence(line: &str) -> bool {
    let line = line.trim_start().to_ascii_lowercase();
    let prints = line.contains("println!(\"skip");
    prints || line.starts_with("#[ignore")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_skips_are_found() {
        assert!(skips_in_silence("  eprintln!(\"SKIP this: no root\");"));
        assert!(skips_in_silence("println!(\"skipped: no readelf\");"));
        assert!(skips_in_silence("    #[ignore = \"slow\"]"));
        assert!(!skips_in_silence("rocade_skip::skip!(\"no root\");"));
        assert!(!skips_in_silence("// a comment on #[ignore]"));
    }
}
