//! `cargo xtask dist --assemble`: the tree, the archive and Debian's package of a build that is
//! there.
//!
//! These are the steps of a release that need no other compiler, so each run of the suite has them.
//! The packages are for the C library of this machine only, and go to `target/dist/assembly`.

use std::{collections::BTreeSet, path::Path, process::Command};

use super::{Plan, arch::Arch, archive, contents, deb, files_below, glibc, output, tree};
use crate::{tally::Tally, workspace::Workspace};

/// Assembles the packages of the build in a directory, such as `target/debug`, and checks them.
pub(crate) fn run(workspace: &Workspace, built: &Path) -> Tally {
    match assemble(workspace, built) {
        Ok(()) => Tally::PASS,
        Err(reason) => {
            eprintln!("xtask: packages: {reason}");
            Tally::FAIL
        }
    }
}

fn assemble(workspace: &Workspace, built: &Path) -> Result<(), String> {
    let names = [std::env::consts::ARCH.to_owned()];
    let arch = *Arch::named(&names)?.first().ok_or("no processor")?;
    let plan = Plan::new(workspace, arch, "dist/assembly")?;
    super::remove_packages(&plan)?;
    tree::fill(&plan, built, None)?;
    contents::check(&plan)?;
    glibc::check(&plan, None)?;
    let tar = archive::of_tree(&plan)?;
    let listed = output(Command::new("tar").arg("-tf").arg(&tar))?;
    let top = format!("{}-linux/", plan.prefix());
    same(
        &plan,
        "tar.gz",
        listed.lines().filter_map(|line| line.strip_prefix(&top)),
    )?;
    let package = deb::make(&plan)?;
    let listed = output(Command::new("sh").args(["-c", LIST, "sh"]).arg(&package))?;
    let places = listed
        .lines()
        .filter_map(|line| line.strip_prefix("./usr/"));
    same(&plan, "deb", places.map(deb::place_in_tree))
}

/// Lists the files of a package of Debian.
const LIST: &str = "dpkg-deb --fsys-tarfile \"$1\" | tar -t";

/// Returns an error if a file of the tree is not among those of the package. Documents may have
/// other names there.
fn same<'a>(plan: &Plan, kind: &str, files: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let found: BTreeSet<&str> = files.collect();
    let tree = files_below(&plan.tree())?;
    let mut expected = tree.iter().filter(|file| !file.starts_with("share/doc/"));
    match expected.find(|file| !found.contains(file.as_str())) {
        None => Ok(()),
        Some(file) => Err(format!("the {kind} lacks {file}")),
    }
}
