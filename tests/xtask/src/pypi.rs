//! Programs from the Python Package Index that the tests use. They go below the build directory and stay there.

use std::{fs, path::Path, process::Command, time::Duration};

use crate::{step, tally::Tally, workspace::Workspace};

const LIMIT: Duration = Duration::from_secs(600);

/// The Python of the distribution; others may have no wheels yet.
const PYTHON: &str = "/usr/bin/python3";

/// What goes into one directory of `target/pypi`, by the name under which the tests look for it.
#[derive(Debug)]
struct Package {
    name: &'static str,
    /// With their versions.
    requirements: &'static [&'static str],
    /// For pip; without dependencies where one of them is large and not needed here.
    options: &'static [&'static str],
}

const PACKAGES: &[Package] = &[
    Package {
        name: "mooncake-0.3.13.post1",
        requirements: &["mooncake-transfer-engine-non-cuda==0.3.13.post1"],
        options: &[],
    },
    Package {
        name: "infinistore-0.2.35",
        requirements: &["infinistore==0.2.35", "uvloop==0.19.0", "numpy==2.2.6"],
        // PyTorch.
        options: &["--no-deps"],
    },
    Package {
        name: "nixl-1.5.1",
        requirements: &["nixl==1.5.1", "nixl-cu12==1.5.1", "numpy==2.2.6"],
        // The other half of it, for another CUDA.
        options: &["--no-deps"],
    },
];

/// Installs what is missing. With `must` the answer counts as a step: failed where something is still missing.
pub(crate) fn install(workspace: &Workspace, must: bool) -> Tally {
    let mut complete = true;
    for package in PACKAGES {
        let place = workspace.target().join("pypi").join(package.name);
        if !place.is_dir() && !fetch(package, &place) {
            let name = package.name;
            eprintln!("xtask: {name} from PyPI is not there; its tests are skipped");
            complete = false;
        }
    }
    match (must, complete) {
        (false, _) => Tally::default(),
        (true, true) => Tally::PASS,
        (true, false) => Tally::FAIL,
    }
}

/// Into a directory beside `place` first: what is at `place` is complete.
fn fetch(package: &Package, place: &Path) -> bool {
    let part = place.with_file_name(format!("{}.part", package.name));
    // Left by a run that was interrupted; absent is right.
    let _ = fs::remove_dir_all(&part);
    let mut command = Command::new(PYTHON);
    command.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"]);
    command.args(package.options).arg("--target").arg(&part);
    command.args(package.requirements);
    step::run(&format!("fetch {}", package.name), LIMIT, command).success
        && fs::rename(&part, place).is_ok()
}
