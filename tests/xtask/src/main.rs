//! `cargo xtask`: everything that is done to the project besides building it.
//!
//! * `test` installs what the tests need where it may, lints, builds the workspace and runs every
//!   test.
//! * `lint`, `fuzz`, `loom`, `aarch64` and `install` are parts of `test` that can be run by
//!   themselves.
//! * `book` builds the documents as a book. It would have to compile mdBook first in each `test`,
//!   and `lint` checks the links.
//! * `dist` makes packages for users.
//! * `debian` tries programs of several releases of Debian.
//! * `failures` runs programs under each recipe of failures.
//! * `hostsim` runs more seeds of the simulated host than `test` does.
//! * `mutants` and `sanitize` take longer, and are for those who ask.
//!
//! The last line of the output is `N passed, N failed, N skipped`. The exit status is 0 if nothing
//! failed. With `CI=true` in the environment, a skipped test counts as failed unless `skips.rs`
//! expects it.

mod aarch64;
mod bench;
mod book;
mod debian;
mod dependencies;
mod dist;
mod exports;
mod failures;
mod fuzz;
mod hostsim;
mod layers;
mod licences;
mod lint;
mod locks;
mod loom;
mod mutants;
mod packages;
mod programs;
mod prose;
mod publish;
mod pypi;
mod registry;
mod roots;
mod rules;
mod sanitize;
mod skips;
mod step;
mod suite;
mod tally;
mod workspace;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::{tally::Tally, workspace::Workspace};

/// Build, test and release tasks of Rocade.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what the tests need (as root, with apt), lint, build, and run every test.
    Test(TestArgs),
    /// Check formatting, clippy, the documentation and the layers of the emulator.
    Lint,
    /// Say which rules of the standard have code and tests (docs/testing.md).
    Rules {
        /// Take lines that are no longer needed off `tests/rules/open.tsv`.
        #[arg(long)]
        prune: bool,
    },
    /// Print figures of the prose: length of sentences, connectives, how often readers are
    /// addressed.
    Prose,
    /// Build the documents as a book, into `target/book`, with mdBook.
    Book,
    /// Run fuzz targets (all, or those named), each for a while.
    Fuzz {
        /// Seconds per target.
        #[arg(long, default_value_t = 10)]
        seconds: u32,
        /// Names of targets: files of `tests/fuzz/fuzz_targets` without `.rs`.
        targets: Vec<String>,
    },
    /// Measure the release build: `cargo xtask bench -- --row write_bw_4096` (docs/performance.md).
    Bench {
        /// Arguments of `rocade-perf`.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Change the code in small ways, a sample at a time, and see whether its tests notice
    /// (docs/testing.md).
    Mutants {
        /// Chooses the sample.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Mutants to try, roughly.
        #[arg(long, default_value_t = 40)]
        count: u64,
        /// Packages to change: wire, transport and emulator unless told.
        packages: Vec<String>,
    },
    /// Run tests under AddressSanitizer and Miri, as far as the toolchain has them.
    Sanitize,
    /// Build for AArch64, and run tests and unmodified programs under QEMU's user emulation
    /// (docs/aarch64.md).
    Aarch64,
    /// Make packages for users: archives, deb, rpm, wheel, container image (docs/release.md).
    Dist(dist::DistArgs),
    /// Run programs and rdma-core's tests in roots of several releases of Debian, as root
    /// (docs/debian.md).
    Debian(debian::DebianArgs),
    /// Run programs under each recipe of failures, and print what they do
    /// (docs/failures-matrix.md).
    Failures(failures::FailuresArgs),
    /// Run brokers and their clients in a simulated host, from many seeds (docs/testing.md).
    Hostsim(hostsim::HostsimArgs),
    /// Run the loom models (exhaustive exploration of thread interleavings).
    Loom,
    /// Install what the tests need, or without root only say what is missing.
    Install,
}

#[derive(Debug, Args)]
struct TestArgs {
    /// Never install a package.
    #[arg(long)]
    no_install: bool,
    /// Only the tests of `cargo test` whose name contains one of these: no lint, no fuzzing, no
    /// loom.
    filters: Vec<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let workspace = match Workspace::locate() {
        Ok(workspace) => workspace,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let tally = run(&workspace, cli.task);
    println!("{tally}");
    if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs one task and counts its results.
fn run(workspace: &Workspace, task: Task) -> Tally {
    match task {
        Task::Test(args) => suite::run(workspace, !args.no_install, &args.filters),
        Task::Lint => lint::run(workspace),
        Task::Rules { prune } => rules::run(workspace.root(), true, prune),
        Task::Fuzz { seconds, targets } => fuzz::run(workspace, seconds, &targets),
        Task::Bench { arguments } => bench::run(workspace, &arguments),
        Task::Mutants {
            seed,
            count,
            packages,
        } => mutants::run(workspace, seed, count, &packages),
        Task::Sanitize => sanitize::run(workspace),
        Task::Aarch64 => {
            aarch64::install(workspace, false);
            aarch64::run(workspace)
        }
        Task::Dist(args) => dist::run(workspace, &args),
        Task::Debian(args) => debian::run(workspace, &args),
        Task::Failures(args) => failures::run(workspace, &args),
        Task::Hostsim(args) => hostsim::run(workspace, &args),
        Task::Loom => loom::run(workspace),
        Task::Book => book::build(workspace),
        Task::Prose => match prose::statistics(workspace.root()) {
            Ok(()) => Tally::PASS,
            Err(error) => {
                eprintln!("xtask: {error}");
                Tally::FAIL
            }
        },
        Task::Install => {
            let packages = packages::install(true) + pypi::install(workspace, true);
            let registry = registry::install(workspace, true);
            packages + registry + aarch64::install(workspace, true)
        }
    }
}
