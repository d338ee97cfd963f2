//! `cargo xtask test`: install, lint, build, test, loom, fuzz.

use std::{
    env, fs,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    fuzz, lint, loom, packages, pypi,
    skips::parse_skip_log,
    step,
    tally::Tally,
    workspace::{Workspace, in_ci},
};

const BUILD_LIMIT: Duration = Duration::from_secs(1200);
const TEST_LIMIT: Duration = Duration::from_secs(2400);

/// Runs the whole suite; `filters` name tests of `cargo test` and leave the rest out.
pub(crate) fn run(workspace: &Workspace, install: bool, filters: &[String]) -> Tally {
    if install {
        packages::install(false);
        pypi::install(workspace, false);
    }
    let linted = if filters.is_empty() {
        lint::run(workspace)
    } else {
        Tally::default()
    };
    // The tests run the command and the libraries that users get.
    let build = workspace.cargo(&["build", "--release", "--workspace", "--locked"]);
    if !step::run("build", BUILD_LIMIT, build).success {
        return linted + Tally::FAIL;
    }
    let tests = cargo_test(workspace, filters);
    if !filters.is_empty() {
        return tests;
    }
    linted + tests + loom::run(workspace) + fuzz::run(workspace, fuzz::SMOKE_SECONDS, &[])
}

/// `cargo test` over the workspace, with the skipped tests told from the passed ones.
fn cargo_test(workspace: &Workspace, filters: &[String]) -> Tally {
    let log = skip_log(workspace);
    // Left by an earlier run; absent is right.
    let _ = fs::remove_file(&log);
    let mut command = workspace.cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--"]);
    command.args(filters);
    command.env("ROCADE_SKIP_LOG", &log);
    let seeds = [
        ("ROCADE_FRESH_SEED", fresh_seed()),
        (
            "PROPTEST_RNG_SEED",
            env::var("PROPTEST_RNG_SEED").unwrap_or_default(),
        ),
    ];
    for (name, seed) in seeds.into_iter().filter(|(_, seed)| !seed.is_empty()) {
        eprintln!("xtask: {name}={seed}");
        command.env(name, seed);
    }
    let mut tally = step::run("tests", TEST_LIMIT, command).as_tests();
    // Tests that are marked to be ignored: no machine lacks anything for them.
    let ignored = tally.skipped;
    let skips = parse_skip_log(&fs::read_to_string(&log).unwrap_or_default());
    tally.reclassify_skipped(count(skips.len()));
    for skip in &skips {
        eprintln!("SKIP: {}: {}", skip.name, skip.reason);
    }
    if in_ci() {
        let unexpected: Vec<_> = skips
            .iter()
            .filter(|skip| !skip.is_expected_in_ci())
            .collect();
        for skip in &unexpected {
            eprintln!("xtask: in CI {} must not be skipped", skip.name);
        }
        if ignored > 0 {
            eprintln!("xtask: in CI no test may be ignored; {ignored} are");
        }
        tally.fail_skipped(ignored + count(unexpected.len()));
    }
    tally
}

/// The seed that simulations try besides those that they always try.
fn fresh_seed() -> String {
    env::var("ROCADE_FRESH_SEED").unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |time| time.as_secs()).to_string()
    })
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn skip_log(workspace: &Workspace) -> PathBuf {
    workspace.target().join("skipped-tests.log")
}
