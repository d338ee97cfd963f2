//! `cargo xtask mutants`: changes the code in one small place at a time and sees whether a test
//! notices.
//!
//! All mutants would take a day, so a seed chooses a sample. The sample is mutants number `seed`,
//! `seed + n`, `seed + 2 n`, … of those that cargo-mutants lists, where `n` leaves about `count`.
//! Seeds 0 to `n - 1` together try them all.

use std::{fs, process::Command, time::Duration};

use crate::{
    step::{self, succeeds},
    tally::Tally,
    workspace::Workspace,
};

/// A mutant takes seconds to a minute, mostly for building.
const LIMIT: Duration = Duration::from_secs(12 * 3600);

/// The packages whose tests judge the mutants of a package.
struct Judged {
    package: &'static str,
    /// Packages whose tests run besides its own.
    guards: &'static [&'static str],
    /// Names of the tests to run in all these packages, as arguments of `cargo test`. All tests run
    /// if there are none.
    tests: &'static [&'static str],
}

/// The packages that are changed unless others are named. Packages above often test what a package
/// promises. The simulations hold whole conversations of two transports, and the C programs use the
/// emulator as programs do.
const PACKAGES: [Judged; 3] = [
    Judged {
        package: "rocade-wire",
        guards: &["rocade-transport"],
        tests: &[],
    },
    Judged {
        package: "rocade-transport",
        guards: &["rocade-tests"],
        tests: &["--lib", "--test", "sim_*"],
    },
    Judged {
        package: "rocade-emulator",
        guards: &["rocade-libibverbs", "rocade-librdmacm"],
        tests: &[],
    },
];

/// Tries about `count` mutants of `packages` (or of the default ones).
///
/// A mutant that a test notices, or that never ends, has passed. One that no test notices has
/// failed. One that does not compile is skipped.
pub(crate) fn run(workspace: &Workspace, seed: u64, count: u64, packages: &[String]) -> Tally {
    if !succeeds(Command::new("cargo").args(["mutants", "--version"])) {
        eprintln!("SKIP: mutants: cargo-mutants is missing: cargo install --locked cargo-mutants");
        return Tally::SKIP;
    }
    let names: Vec<&str> = if packages.is_empty() {
        PACKAGES.iter().map(|judged| judged.package).collect()
    } else {
        packages.iter().map(String::as_str).collect()
    };
    let Some(known) = list(workspace, &names) else {
        return Tally::FAIL;
    };
    let shards = (known / count.max(1)).max(1);
    let shard = format!("{}/{shards}", seed % shards);
    eprintln!("xtask: {known} mutants, sample {shard} (--seed {seed} --count {count})");
    let each = names
        .iter()
        .map(|package| judge(workspace, package, &shard));
    each.fold(Tally::default(), |sum, tally| sum + tally)
}

/// Returns the number of mutants of these packages.
fn list(workspace: &Workspace, packages: &[&str]) -> Option<u64> {
    let mut command = workspace.cargo(&["mutants", "--list"]);
    command.args(packages.iter().flat_map(|name| ["--package", name]));
    match command.output() {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).lines().count() as u64)
        }
        Ok(output) => {
            eprintln!("xtask: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            eprintln!("xtask: failed to list the mutants: {error}");
            None
        }
    }
}

/// Tries the mutants of one package that are in the sample.
fn judge(workspace: &Workspace, package: &str, shard: &str) -> Tally {
    let dir = workspace.target().join("mutants").join(package);
    if let Err(error) = fs::create_dir_all(&dir) {
        eprintln!("xtask: failed to make {}: {error}", dir.display());
        return Tally::FAIL;
    }
    let mut mutants = workspace.cargo(&["mutants", "--no-shuffle", "--sharding", "round-robin"]);
    mutants.args(["--shard", shard, "--output"]).arg(&dir);
    mutants.args(arguments(package));
    let outcome = step::run(&format!("mutants of {package}"), LIMIT, mutants);
    let lines = |name: &str| {
        let file = dir.join("mutants.out").join(name);
        let text = fs::read_to_string(file).unwrap_or_default();
        u32::try_from(text.lines().count()).unwrap_or(u32::MAX)
    };
    let tally = Tally {
        passed: lines("caught.txt") + lines("timeout.txt"),
        failed: lines("missed.txt"),
        skipped: lines("unviable.txt"),
    };
    // It fails for mutants that were missed. Anything else is a failure of its own.
    if !outcome.success && tally.failed == 0 && lines("timeout.txt") == 0 {
        return tally + Tally::FAIL;
    }
    tally
}

/// The package that is changed, and the tests that judge it: those that are known to guard it, else
/// its own.
fn arguments(package: &str) -> Vec<&str> {
    let mut arguments = vec!["--package", package, "--test-package", package];
    if let Some(judged) = PACKAGES.iter().find(|judged| judged.package == package) {
        let guards = judged.guards.iter();
        arguments.extend(guards.flat_map(|guard| ["--test-package", guard]));
        if !judged.tests.is_empty() {
            arguments.push("--");
            arguments.extend(judged.tests);
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_judged_by_those_that_guard_it() {
        let words = |package| arguments(package).join(" ");
        assert_eq!(
            words("rocade-transport"),
            "--package rocade-transport --test-package rocade-transport --test-package rocade-tests -- --lib --test sim_*"
        );
        assert_eq!(
            words("rocade-emulator"),
            "--package rocade-emulator --test-package rocade-emulator --test-package rocade-libibverbs --test-package rocade-librdmacm"
        );
        assert_eq!(
            words("rocade-sysfs-view"),
            "--package rocade-sysfs-view --test-package rocade-sysfs-view"
        );
    }

    /// A name that no package has would judge nothing.
    #[test]
    fn those_that_guard_are_packages_of_the_workspace() {
        let metadata = Command::new("cargo")
            .args([
                "metadata",
                "--no-deps",
                "--format-version",
                "1",
                "--offline",
            ])
            .output()
            .expect("cargo runs");
        let text = String::from_utf8_lossy(&metadata.stdout);
        for judged in &PACKAGES {
            for name in judged.guards.iter().chain([&judged.package]) {
                assert!(text.contains(&format!("\"name\":\"{name}\"")), "{name}");
            }
        }
    }
}
