//! Programs from the Python Package Index that the tests use. They go below the build directory and stay there.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use crate::{step, tally::Tally, workspace::Workspace};

const LIMIT: Duration = Duration::from_secs(600);

/// The Python of the distribution; others may have no wheels yet.
const PYTHON: &str = "/usr/bin/python3";

/// A package with its version, and the directory below `target/pypi` that the tests look for.
const PACKAGES: &[(&str, &str)] = &[(
    "mooncake-transfer-engine-non-cuda==0.3.13.post1",
    "mooncake-0.3.13.post1",
)];

/// Installs what is missing. With `must` the answer counts as a step: failed where something is still missing.
pub(crate) fn install(workspace: &Workspace, must: bool) -> Tally {
    let mut complete = true;
    for (package, name) in PACKAGES {
        let place = workspace.target().join("pypi").join(name);
        if !place.is_dir() && !fetch(package, &place) {
            eprintln!("xtask: {package} from PyPI is not there; its tests are skipped");
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
fn fetch(package: &str, place: &PathBuf) -> bool {
    let part = place.with_extension("part");
    // Left by a run that was interrupted; absent is right.
    let _ = fs::remove_dir_all(&part);
    let mut command = Command::new(PYTHON);
    command.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    command
        .args(["--only-binary", ":all:", "--target"])
        .arg(&part)
        .arg(package);
    step::run(&format!("fetch {package}"), LIMIT, command).success
        && fs::rename(&part, place).is_ok()
}
