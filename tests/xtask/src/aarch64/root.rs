//! Debian's packages for AArch64, unpacked and not installed.
//!
//! Apt gets lists and a cache of its own, so it needs no privileges, and the system's list of
//! architectures stays as it is.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::directory;
use crate::{step, workspace::Workspace};

const LIMIT: Duration = Duration::from_secs(300);

/// The package of Debian's compiler.
pub(super) const RUSTC: &str = "rustc-web";

/// The package of its standard library, which must have the version of the compiler.
const STD: &str = "libstd-rust-web-dev";

/// The package of which only stdbuf is needed. Everything else is better native.
const COREUTILS: &str = "coreutils";
const STDBUF: [&str; 2] = ["usr/bin/stdbuf", "usr/libexec/coreutils/libstdbuf.so"];

/// The file in the root with the version of the compiler that the standard library belongs to.
const VERSION: &str = "compiler-version";

/// Programs, and the libraries that they need besides those of Rocade.
const PACKAGES: [&str; 12] = [
    "ibverbs-utils",
    "perftest",
    "rdmacm-utils",
    "libc6",
    "libgcc-s1",
    "libibumad3",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpci3",
    "libudev1",
    "zlib1g",
    "libcap2",
];

/// The directory of the unpacked packages.
pub(super) fn directory_of(workspace: &Workspace) -> PathBuf {
    directory(workspace).join("root")
}

/// # Errors
/// The reason why there is none.
pub(super) fn find(workspace: &Workspace) -> Result<PathBuf, String> {
    let root = directory_of(workspace);
    if is_current(&root) {
        Ok(root)
    } else {
        Err("its packages are not there (cargo xtask install)".to_owned())
    }
}

/// Downloads and unpacks what is missing.
///
/// # Errors
/// The reason to print.
pub(super) fn install(workspace: &Workspace) -> Result<(), String> {
    let root = directory_of(workspace);
    if is_current(&root) {
        return Ok(());
    }
    // What is at `root` is complete.
    let part = root.with_extension("part");
    for old in [&part, &root] {
        // An earlier or interrupted run may have left it. It is normally absent.
        let _ = fs::remove_dir_all(old);
    }
    unpack(&part).map_err(|error| format!("its packages cannot be had: {error}"))?;
    fs::rename(part.join("root"), &root).map_err(|error| error.to_string())?;
    // What is left there only takes space.
    let _ = fs::remove_dir_all(&part);
    Ok(())
}

/// Returns true if the packages are there, and belong to the compiler of the system.
fn is_current(root: &Path) -> bool {
    let known = fs::read_to_string(root.join(VERSION));
    known.is_ok_and(|known| known == version_of(RUSTC).unwrap_or_default())
}

fn unpack(part: &Path) -> io::Result<()> {
    let compiler = version_of(RUSTC);
    let debs = part.join("debs");
    for dir in [&debs, &part.join("root")] {
        fs::create_dir_all(dir)?;
    }
    let mut names = vec![COREUTILS.to_owned()];
    names.extend(PACKAGES.map(str::to_owned));
    names.extend(compiler.iter().map(|version| format!("{STD}={version}")));
    fetch(part, &debs, &names)?;
    let (root, others) = (part.join("root"), part.join("others"));
    for deb in fs::read_dir(&debs)? {
        let deb = deb?;
        let name = deb.file_name();
        let is_whole = !name.to_string_lossy().starts_with(COREUTILS);
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.arg("--extract").arg(deb.path());
        if !dpkg
            .arg(if is_whole { &root } else { &others })
            .status()?
            .success()
        {
            return Err(io::Error::other("dpkg-deb fails"));
        }
    }
    for file in STDBUF {
        let place = root.join(file);
        fs::create_dir_all(place.parent().unwrap_or(&root))?;
        fs::rename(others.join(file), place)?;
    }
    fs::write(root.join(VERSION), compiler.unwrap_or_default())
}

/// Downloads packages into the directory `debs`, with the files of apt in `part`.
pub(super) fn fetch(part: &Path, debs: &Path, packages: &[String]) -> io::Result<()> {
    for dir in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(part.join(dir))?;
    }
    fs::write(part.join("status"), [])?;
    let mut update = apt(part);
    update.arg("update");
    let mut download = apt(part);
    download.current_dir(debs).arg("download").args(packages);
    for (headline, command) in [("package lists", update), ("packages", download)] {
        let headline = format!("AArch64: {headline}");
        if !step::run(&headline, LIMIT, command).success {
            return Err(io::Error::other("apt-get fails"));
        }
    }
    Ok(())
}

/// An apt-get for another processor, with its files in `part`.
fn apt(part: &Path) -> Command {
    let mut command = Command::new("apt-get");
    let files = [
        ("Dir::State::Lists", "lists"),
        ("Dir::State::status", "status"),
        ("Dir::Cache", "cache"),
    ];
    for (option, file) in files {
        let value = format!("{option}={}", part.join(file).display());
        command.args(["-o", &value]);
    }
    for option in [
        "APT::Architecture=arm64",
        "APT::Architectures=arm64",
        "APT::Sandbox::User=root",
        "Acquire::Languages=none",
    ] {
        command.args(["-o", option]);
    }
    command.arg("-q");
    command
}

/// Returns the version of an installed package.
pub(super) fn version_of(package: &str) -> Option<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${Version}", package]);
    let output = query.output().ok().filter(|out| out.status.success())?;
    let version = String::from_utf8(output.stdout).ok()?;
    Some(version).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apt_changes_nothing_of_the_system() {
        let part = Path::new("/part");
        let command = apt(part);
        let options: Vec<_> = command
            .get_args()
            .map(|arg| arg.to_string_lossy())
            .collect();
        for directory in ["Dir::State::Lists", "Dir::State::status", "Dir::Cache"] {
            let inside = format!("{directory}=/part/");
            assert!(options.iter().any(|option| option.starts_with(&inside)));
        }
    }
}
