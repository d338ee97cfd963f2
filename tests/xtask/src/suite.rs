//! `cargo xtask test`: install, build, test, fuzz, loom.

use std::{fs, path::PathBuf, time::Duration};

use crate::{
    fuzz, loom, packages, pypi, step,
    tally::{Skip, Tally, parse_skip_log},
    workspace::{Workspace, in_ci},
};

const BUILD_LIMIT: Duration = Duration::from_secs(1200);
const TEST_LIMIT: Duration = Duration::from_secs(1500);

/// Runs the whole suite; `filters` name tests of `cargo test` and leave the rest out.
pub(crate) fn run(workspace: &Workspace, install: bool, filters: &[String]) -> Tally {
    if install {
        packages::install(false);
        pypi::install(workspace, false);
    }
    // The tests run the command and the libraries that users get.
    let build = workspace.cargo(&["build", "--release", "--workspace", "--locked"]);
    if !step::run("build", BUILD_LIMIT, build).success {
        return Tally::FAIL;
    }
    let tests = cargo_test(workspace, filters);
    if !filters.is_empty() {
        return tests;
    }
    tests + loom::run(workspace) + fuzz::run(workspace, fuzz::SMOKE_SECONDS, &[])
}

/// `cargo test` over the workspace, with the skipped tests told from the passed ones.
fn cargo_test(workspace: &Workspace, filters: &[String]) -> Tally {
    let log = skip_log(workspace);
    // Left by an earlier run; absent is right.
    let _ = fs::remove_file(&log);
    let mut command = workspace.cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--"]);
    command.args(filters);
    command.env("ROCADE_SKIP_LOG", &log);
    let mut tally = step::run("tests", TEST_LIMIT, command).as_tests();
    let skips = parse_skip_log(&fs::read_to_string(&log).unwrap_or_default());
    tally.reclassify_skipped(count(&skips));
    for skip in &skips {
        eprintln!("SKIP: {}", skip.text);
    }
    if in_ci() {
        let preventable: Vec<_> = skips
            .into_iter()
            .filter(|skip| skip.missing_package)
            .collect();
        if !preventable.is_empty() {
            eprintln!("xtask: in CI a missing package is a failure");
            tally.fail_skipped(count(&preventable));
        }
    }
    tally
}

fn count(skips: &[Skip]) -> u32 {
    u32::try_from(skips.len()).unwrap_or(u32::MAX)
}

fn skip_log(workspace: &Workspace) -> PathBuf {
    workspace.target().join("skipped-tests.log")
}
