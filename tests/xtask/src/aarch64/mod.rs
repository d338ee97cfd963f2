//! `cargo xtask aarch64`: builds for AArch64, and runs tests and unmodified programs of that
//! processor under QEMU's user emulation.
//!
//! Everything of the other processor stays in `target/aarch64`: the build, and the unpacked
//! packages of Debian with programs, libraries and Rust's standard library. A part that the machine
//! lacks is named, and the run counts as one skipped test.

mod cross;
mod emulation;
mod root;
mod toolchain;

pub(crate) use self::cross::Cross;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    aarch64::{emulation::Emulation, toolchain::Toolchain},
    packages,
    programs::Program,
    step::{self, Priority},
    suite,
    tally::Tally,
    workspace::Workspace,
};

const TRIPLE: &str = "aarch64-unknown-linux-gnu";

const BUILD_LIMIT: Duration = Duration::from_secs(1800);
const TEST_LIMIT: Duration = Duration::from_secs(900);

/// Packages whose libraries, commands or tests run.
const PACKAGES: [&str; 12] = [
    "rocade",
    "rocade-abi",
    "rocade-libefa",
    "rocade-libibverbs",
    "rocade-libmana",
    "rocade-libmlx5",
    "rocade-librdmacm",
    "rocade-notice",
    "rocade-preload",
    "rocade-tests",
    "rocade-transport",
    "rocade-wire",
];

/// Programs with tests: symbols, the library called from Rust and from C, unmodified programs.
const TESTS: [&str; 5] = ["symbols", "verbs", "fork", "c_programs", "consumers"];

/// Packages whose unit tests run.
const UNIT_TESTS: [&str; 3] = ["rocade-abi", "rocade-transport", "rocade-wire"];

/// Further programs with tests of these packages: layouts, recorded packets.
const BESIDE_UNIT_TESTS: [&str; 2] = ["layout", "captures"];

/// Programs of which only some tests run, by their package and target.
const IN_PART: [(&str, &[&str]); 5] = [
    // These simulate a minute of a flood, without anything that depends on the processor.
    (
        "transport (lib rocade_transport)",
        &["--skip", "cm::tests::flood::"],
    ),
    // The rest asks the loader of the machine.
    ("libibverbs (test consumers)", &["all_that_is_needed"]),
    (
        "libibverbs (test c_programs)",
        &["queues::", "semantics::", "events::reading", "events::each"],
    ),
    ("librdmacm (test c_programs)", &CONNECTIONS),
    ("tests (test consumers)", &UNMODIFIED),
];

/// Cases of a property. The emulator takes twenty times as long for each, and the native run has
/// the usual number.
const PROPERTY_CASES: &str = "32";

/// C tests of librdmacm that run, in 30 seconds of processor time. Those after `--skip` need what
/// QEMU lacks, and docs/aarch64.md says of the others that fail why they do.
const CONNECTIONS: [&str; 22] = [
    "calls::",
    "later_releases::",
    "failures::",
    "interposed::",
    "rsockets::what",
    "rsockets::errors",
    "rsockets::who",
    "rsockets::memory",
    "rsockets::datagrams_arrive",
    "repoll::",
    "rsocket_removal::",
    "rsocket_waits::waits",
    "tutorials::",
    "alternate::",
    "event_loops::edge",
    "processes::a_client",
    "processes::a_server",
    "unreachable::failed",
    "--skip",
    "repoll::sets_change",
    "--skip",
    "tutorials::groups",
];

/// Tests of unmodified programs that run, by a part of their names: those of Debian's packages for
/// AArch64, over UDP and through shared memory.
const UNMODIFIED: [&str; 6] = [
    "devices::ibv_devices_lists_the_device",
    "devices::ibv_devinfo_describes_an_active_roce_port",
    "pingpong::checked",
    "pingpong::udp::checked",
    "perftest::a_sample",
    "cm::rping",
];

/// Installs and fetches what [`run`] needs. With `must` the answer counts as a step: failed where
/// something is still missing.
pub(crate) fn install(workspace: &Workspace, must: bool) -> Tally {
    packages::install_for_aarch64();
    Toolchain::upgrade(workspace);
    let ready = Toolchain::find(workspace).and_then(|_| root::install(workspace));
    if let Err(reason) = &ready {
        eprintln!("xtask: tests for AArch64 are skipped: {reason}");
    }
    match (must, ready.is_ok()) {
        (false, _) => Tally::default(),
        (true, true) => Tally::PASS,
        (true, false) => Tally::FAIL,
    }
}

/// Builds and runs everything.
pub(crate) fn run(workspace: &Workspace) -> Tally {
    let parts = Toolchain::find(workspace).and_then(|toolchain| {
        let root = root::find(workspace)?;
        let emulation = Emulation::find(&root)?;
        Ok((toolchain, emulation))
    });
    let (toolchain, emulation) = match parts {
        Ok(parts) => parts,
        Err(reason) => {
            eprintln!("SKIP: AArch64: {reason}");
            return Tally::SKIP;
        }
    };
    let mut programs = Vec::new();
    for (headline, command) in builds(workspace, &toolchain) {
        let (outcome, messages) = step::capture(headline, BUILD_LIMIT, command);
        if !outcome.success {
            return Tally::FAIL;
        }
        programs.extend(crate::programs::from_messages(&messages));
    }
    let rocade = directory(workspace).join(TRIPLE).join("debug/rocade");
    let log = directory(workspace).join("skipped-tests.log");
    suite::counting_skips(&log, |environment| {
        // The builds may have waited for everything else. These programs have timeouts.
        step::aside(Priority::Normal, || {
            let tallies = programs
                .iter()
                .map(|program| run_program(&emulation, &rocade, program, environment));
            tallies.fold(Tally::default(), |sum, tally| sum + tally)
        })
    })
}

/// The directory of all that belongs to the other processor.
fn directory(workspace: &Workspace) -> PathBuf {
    workspace.target().join("aarch64")
}

/// Commands that build the libraries and the tests. All name the same features of dependencies, so
/// that nothing is built twice.
fn builds(workspace: &Workspace, toolchain: &Toolchain) -> [(&'static str, Command); 2] {
    let mut libraries = workspace.cargo(&["build", "--locked", "--lib", "--bins"]);
    for package in PACKAGES {
        libraries.args(["--package", package]);
    }
    for test in TESTS {
        libraries.args(["--test", test]);
    }
    let mut unit_tests = workspace.cargo(&["test", "--no-run", "--locked", "--lib"]);
    for package in UNIT_TESTS {
        unit_tests.args(["--package", package]);
    }
    for test in BESIDE_UNIT_TESTS {
        unit_tests.args(["--test", test]);
    }
    unit_tests.args(["--features", "rocade-wire/std,rocade-transport/test-utils"]);
    for command in [&mut libraries, &mut unit_tests] {
        toolchain.prepare(command);
        command.args(["--target", TRIPLE]);
        command.args(["--quiet", "--message-format=json-render-diagnostics"]);
    }
    [
        ("AArch64: libraries and tests", libraries),
        ("AArch64: unit tests", unit_tests),
    ]
}

/// Runs the tests of a program, or those that [`IN_PART`] names.
fn run_program(
    emulation: &Emulation,
    rocade: &Path,
    program: &Program,
    environment: &[(String, String)],
) -> Tally {
    let mut command = emulation.command(program.path());
    let in_part = IN_PART.iter().find(|(name, _)| *name == program.name());
    if let Some((_, tests)) = in_part {
        command.args(*tests);
        // Each has several processes.
        command.arg("--test-threads=1");
    }
    command
        .current_dir(program.dir())
        .env("CARGO_MANIFEST_DIR", program.dir())
        .envs(environment.iter().cloned())
        // What tests would build by themselves is there.
        .env("ROCADE_TEST_BUILT", "1")
        .env("PROPTEST_CASES", PROPERTY_CASES)
        .env("CC", toolchain::COMPILER)
        .env("ROCADE_BIN", rocade);
    let headline = format!("AArch64: {}", program.name());
    step::run(&headline, TEST_LIMIT, command).as_tests()
}
