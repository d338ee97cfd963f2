//! `cargo xtask mutants`: changes the code in one small place at a time and sees whether a test notices.
//!
//! All mutants would take a day, so a seed chooses a sample: mutants number `seed`, `seed + n`, `seed + 2 n`, … of those
//! that cargo-mutants knows of, where `n` is such that about `count` are left. Seeds 0 to `n - 1` together try them all.

use std::{fs, process::Command, time::Duration};

use crate::{
    step::{self, succeeds},
    tally::Tally,
    workspace::Workspace,
};

/// A mutant takes seconds to a minute, mostly for building.
const LIMIT: Duration = Duration::from_secs(12 * 3600);

/// The packages whose own tests judge their mutants.
const PACKAGES: [&str; 3] = ["rocade-wire", "rocade-transport", "rocade-emulator"];

/// Tries about `count` mutants of `packages` (or of the default ones).
///
/// A mutant that a test notices, or that never ends, has passed; one that nobody notices has failed; one that does
/// not compile is skipped.
pub(crate) fn run(workspace: &Workspace, seed: u64, count: u64, packages: &[String]) -> Tally {
    if !succeeds(Command::new("cargo").args(["mutants", "--version"])) {
        eprintln!("SKIP: mutants: cargo-mutants is missing: cargo install --locked cargo-mutants");
        return Tally::SKIP;
    }
    let mut chosen = Vec::new();
    if packages.is_empty() {
        chosen.extend(PACKAGES.iter().flat_map(|name| ["--package", name]));
    } else {
        chosen.extend(packages.iter().flat_map(|name| ["--package", name]));
    }
    let mut list = workspace.cargo(&["mutants", "--list"]);
    let known = match list.args(&chosen).output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().count() as u64
        }
        Ok(output) => {
            eprintln!("xtask: {}", String::from_utf8_lossy(&output.stderr));
            return Tally::FAIL;
        }
        Err(error) => {
            eprintln!("xtask: cannot list the mutants: {error}");
            return Tally::FAIL;
        }
    };
    let shards = (known / count.max(1)).max(1);
    let shard = format!("{}/{shards}", seed % shards);
    eprintln!("xtask: {known} mutants, sample {shard} (--seed {seed} --count {count})");
    let dir = workspace.target().join("mutants");
    if let Err(error) = fs::create_dir_all(&dir) {
        eprintln!("xtask: cannot make {}: {error}", dir.display());
        return Tally::FAIL;
    }
    let mut mutants = workspace.cargo(&["mutants", "--no-shuffle", "--sharding", "round-robin"]);
    mutants.args(["--shard", &shard, "--output"]).arg(&dir);
    mutants.args(&chosen);
    let outcome = step::run("mutants", LIMIT, mutants);
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
    // It fails for mutants that were missed; anything else is a failure of its own.
    if !outcome.success && tally.failed == 0 && lines("timeout.txt") == 0 {
        return tally + Tally::FAIL;
    }
    tally
}
