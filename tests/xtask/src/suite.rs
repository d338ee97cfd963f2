//! `cargo xtask test`: install, build, test, lint, loom, AArch64.
//!
//! The tests wait most of the time, builds and checks compute. So several lines of work run at a
//! time:
//!
//! ```text
//! build of the tests ─┬─ guests ─ test programs, two at a time ───────────────────┬─ result
//!                     ├─ packages, documentation tests, loom, clippy, doc ────────┤
//!                     └─ AArch64 ─────────────────────────────────────────────────┘
//! ```
//!
//! The lower lines have low priority.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    aarch64, lint, loom, packages, programs, pypi, registry,
    skips::parse_skip_log,
    step::{self, Priority},
    tally::Tally,
    workspace::{Workspace, in_ci},
};

const BUILD_LIMIT: Duration = Duration::from_secs(1800);
const TEST_LIMIT: Duration = Duration::from_secs(2400);

/// The targets that have tests, or that tests run: everything but benchmarks.
const TARGETS: [&str; 4] = ["--lib", "--bins", "--examples", "--tests"];

/// Runs the whole suite, or only the tests of `cargo test` that `filters` name.
pub(crate) fn run(workspace: &Workspace, install: bool, filters: &[String]) -> Tally {
    if install {
        packages::install(false);
    }
    if filters.is_empty() {
        return everything(workspace, install);
    }
    if install {
        pypi::install(workspace, false);
        registry::install(workspace, false);
    }
    // The command and the libraries, which tests of unmodified programs run.
    let mut build = workspace.cargo(&["build", "--workspace", "--locked", "--lib", "--bins"]);
    build.arg("--quiet");
    if !step::run("build", BUILD_LIMIT, build).success {
        return Tally::FAIL;
    }
    let mut command = workspace.cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--"]);
    command.args(filters);
    counting_skips(&skip_log(workspace), |environment| {
        command.envs(environment.iter().cloned());
        step::run("tests", TEST_LIMIT, command).as_tests()
    })
}

fn everything(workspace: &Workspace, install: bool) -> Tally {
    let formatted = lint::format(workspace);
    let mut build = workspace.cargo(&["build", "--workspace", "--locked"]);
    build.args(TARGETS);
    build.arg("--message-format=json-render-diagnostics");
    let (built, messages) = thread::scope(|scope| {
        // Fetching waits for the network. Tests of what is missing afterwards print that and are
        // skipped.
        if install {
            scope.spawn(|| {
                step::aside(Priority::Normal, || {
                    pypi::install(workspace, false);
                    // By a library of those packages.
                    registry::install(workspace, false)
                })
            });
            scope.spawn(|| step::aside(Priority::Normal, || aarch64::install(workspace, false)));
        }
        step::capture("build of the tests", BUILD_LIMIT, build)
    });
    if !built.success {
        return formatted + Tally::FAIL;
    }
    let programs = programs::from_messages(&messages);
    let (tests, rest) = thread::scope(|scope| {
        let rest = scope.spawn(move || {
            step::aside(Priority::Low, || {
                // What has a build directory of its own does not wait for the rest.
                thread::scope(|scope| {
                    let others = || step::aside(Priority::Low, || aarch64::run(workspace));
                    let others = scope.spawn(others);
                    let checked = packages_assembled() + checks(workspace);
                    checked + others.join().unwrap_or(Tally::FAIL)
                })
            })
        });
        let tests = counting_skips(&skip_log(workspace), |environment| {
            // What tests would build by themselves is there.
            let built = [("ROCADE_TEST_BUILT".to_owned(), "1".to_owned())];
            programs::run(programs, &[environment, &built].concat())
        });
        // A panic of this thread counts as a failure, because its results are lost.
        (tests, rest.join().unwrap_or(Tally::FAIL))
    });
    formatted + tests + rest
}

/// Makes packages of the build of the tests, as far as they need no other compiler.
fn packages_assembled() -> Tally {
    // The build of the tests may have replaced the file of this program.
    let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
    command.args(["dist", "--assemble"]);
    step::run("packages", TEST_LIMIT, command).as_one()
}

/// Runs the checks that compute more than they wait.
fn checks(workspace: &Workspace) -> Tally {
    let doc_tests =
        workspace.cargo(&["test", "--doc", "--workspace", "--locked", "--no-fail-fast"]);
    step::run("documentation tests", TEST_LIMIT, doc_tests).as_tests()
        + simulated_host(workspace)
        + loom::run(workspace)
        + lint::run_formatted(workspace)
}

/// Runs the tests of a feature that no other package may get.
fn simulated_host(workspace: &Workspace) -> Tally {
    let feature = ["--package", "rocade-verbs", "--features", "simulated-host"];
    let tests = |targets: &[&str]| {
        let mut command = workspace.cargo(&["test", "--locked", "--no-fail-fast"]);
        command.args(feature).args(targets);
        let headline = format!("simulated host: {}", targets[0]);
        step::run(&headline, TEST_LIMIT, command).as_tests()
    };
    tests(&["--test", "simulated_host"]) + tests(&["--doc", "simulated_host"])
}

/// Runs tests with the environment that they need, and tells the skipped ones from those that
/// passed. The skipped ones are in the file `log` afterwards.
pub(crate) fn counting_skips(
    log: &Path,
    tests: impl FnOnce(&[(String, String)]) -> Tally,
) -> Tally {
    // An earlier run may have left it. It is normally absent.
    let _ = fs::remove_file(log);
    let mut environment = vec![(
        "ROCADE_SKIP_LOG".to_owned(),
        log.to_string_lossy().into_owned(),
    )];
    let seeds = [
        ("ROCADE_FRESH_SEED", fresh_seed()),
        (
            "PROPTEST_RNG_SEED",
            env::var("PROPTEST_RNG_SEED").unwrap_or_default(),
        ),
    ];
    for (name, seed) in seeds.into_iter().filter(|(_, seed)| !seed.is_empty()) {
        eprintln!("xtask: {name}={seed}");
        environment.push((name.to_owned(), seed));
    }
    let mut tally = tests(&environment);
    // Tests that are marked to be ignored: no machine lacks anything for them.
    let ignored = tally.skipped;
    let skips = parse_skip_log(&fs::read_to_string(log).unwrap_or_default());
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
