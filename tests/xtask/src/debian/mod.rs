//! `cargo xtask debian`: programs of several releases of Debian, and rdma-core's own tests.
//!
//! Each release gets a root of its own, in which its programs run with the libraries that were
//! built here. The results are tables in docs/debian.md.

mod battery;
mod python;
mod report;
mod wheels;

use std::path::PathBuf;

use clap::Args;

use crate::{
    roots::{self, Root},
    step,
    tally::Tally,
    workspace::Workspace,
};

/// Options of `cargo xtask debian`.
#[derive(Debug, Args)]
pub(crate) struct DebianArgs {
    /// Releases: `bookworm`, `trixie`, `sid`. All of them unless told.
    releases: Vec<String>,
    /// Make the roots again, with today's packages.
    #[arg(long)]
    fresh: bool,
    /// Write the tables into docs/debian.md.
    #[arg(long)]
    write: bool,
    /// The profile of cargo, which the release's C library must be new enough for.
    #[arg(long, default_value = "release")]
    profile: String,
}

/// A release, and its name for readers.
#[derive(Debug)]
struct Release {
    code: &'static str,
    name: &'static str,
}

const RELEASES: [Release; 3] = [
    Release {
        code: "bookworm",
        name: "Debian 12",
    },
    Release {
        code: "trixie",
        name: "Debian 13",
    },
    Release {
        code: "sid",
        name: "unstable",
    },
];

/// The packages with the programs that run, and with libraries that wheels need.
const PACKAGES: [&str; 10] = [
    "ibverbs-utils",
    "rdmacm-utils",
    "infiniband-diags",
    "perftest",
    "qperf",
    "python3-pyverbs",
    "iproute2",
    "util-linux",
    "curl",
    "libnuma1",
];

/// The packages whose versions the table shows.
const SHOWN: [&str; 4] = ["ibverbs-utils", "perftest", "qperf", "python3"];

/// The results in the root of a release.
#[derive(Debug)]
struct Results {
    name: &'static str,
    /// Of the packages in [`SHOWN`], in that order.
    versions: Vec<String>,
    battery: Vec<battery::Case>,
    tests: Vec<python::Outcome>,
}

/// Runs everything, and prints the tables.
pub(crate) fn run(workspace: &Workspace, args: &DebianArgs) -> Tally {
    if let Some(reason) = roots::obstacle() {
        eprintln!("SKIP: programs of other releases of Debian: {reason}");
        return Tally::SKIP;
    }
    let done = run_all(workspace, args);
    done.unwrap_or_else(|reason| {
        eprintln!("xtask: {reason}");
        Tally::FAIL
    })
}

fn run_all(workspace: &Workspace, args: &DebianArgs) -> Result<Tally, String> {
    let built = build(workspace, &args.profile)?;
    let mut all = Vec::new();
    let mut sum = Tally::default();
    for release in chosen(&args.releases)? {
        let dir = workspace.target().join("debian").join(release.code);
        if args.fresh && dir.is_dir() {
            crate::dist::clear(&dir)?;
            std::fs::remove_dir(&dir).map_err(crate::dist::at(&dir))?;
        }
        match Root::new(dir, release.code, &PACKAGES.join(","), &built) {
            Ok(root) => all.push(results(workspace, release, &root)?),
            // Without a network, a root that is missing stays so.
            Err(reason) => {
                eprintln!("SKIP: {}: no root: {reason}", release.name);
                sum = sum + Tally::SKIP;
            }
        }
    }
    Ok(sum + report::publish(workspace.root(), &all, args.write)?)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Release>, String> {
    if names.is_empty() {
        return Ok(RELEASES.iter().collect());
    }
    let find = |name: &String| {
        let found = RELEASES.iter().find(|release| release.code == name);
        found.ok_or_else(|| format!("{name}: known are bookworm, trixie and sid"))
    };
    names.iter().map(find).collect()
}

/// Builds the command and the libraries. Returns their directory.
fn build(workspace: &Workspace, profile: &str) -> Result<PathBuf, String> {
    let mut cargo = workspace.cargo(&["build", "--workspace", "--locked", "--lib"]);
    cargo.args(["--bin", "rocade", "--profile", profile]);
    let limit = std::time::Duration::from_secs(3600);
    if !step::run("build", limit, cargo).success {
        return Err("cargo build failed".to_owned());
    }
    let dir = match profile {
        "dev" => "debug",
        other => other,
    };
    Ok(workspace.target().join(dir))
}

fn results(workspace: &Workspace, release: &Release, root: &Root) -> Result<Results, String> {
    eprintln!("\n=== {}: programs", release.name);
    let mut battery = battery::run(root)?;
    eprintln!("\n=== {}: wheels", release.name);
    battery.extend(wheels::run(root, workspace.root())?);
    let mut tests = Vec::new();
    for identity in &python::IDENTITIES {
        eprintln!(
            "\n=== {}: rdma-core's tests, {}",
            release.name, identity.name
        );
        tests.push(python::run(root, identity)?);
    }
    let mut versions = Vec::new();
    for package in SHOWN {
        let query = format!("dpkg-query --show --showformat='${{Version}}' {package}");
        versions.push(root.run("root", &query)?);
    }
    Ok(Results {
        name: release.name,
        versions,
        battery,
        tests,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), 3);
        assert_eq!(chosen(&["sid".to_owned()]).unwrap()[0].name, "unstable");
        let error = chosen(&["buster".to_owned()]).unwrap_err();
        assert!(error.contains("buster"), "{error}");
    }
}
