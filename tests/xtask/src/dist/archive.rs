//! Archives of tar, and checksums. GNU tar and gzip make the same file of the same tree.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Plan, at, copy_tree, execute, files_below, output, write};

/// Makes the archive of the tree and that of its debug files.
pub(super) fn make(plan: &Plan) -> Result<(), String> {
    of_tree(plan)?;
    let debug = format!("{}-linux-debug", plan.prefix());
    archive_of(plan, &plan.debug_tree(), &debug).map(drop)
}

/// Makes the archive of the tree. Returns its path.
pub(super) fn of_tree(plan: &Plan) -> Result<PathBuf, String> {
    archive_of(plan, &plan.tree(), &format!("{}-linux", plan.prefix()))
}

/// Makes the archive of a tree, in which the top directory has this name.
fn archive_of(plan: &Plan, tree: &Path, name: &str) -> Result<PathBuf, String> {
    let stage = plan.stage("tar")?;
    copy_tree(tree, &stage.join(name))?;
    let tar = plan.work.join(format!("{name}.tar"));
    tar_of(plan, &stage, name, &tar)?;
    let packed = gzip(&tar)?;
    let target = plan.out.join(format!("{name}.tar.gz"));
    fs::rename(&packed, &target).map_err(at(&target))?;
    Ok(target)
}

/// Makes an archive of `name` in `dir`, with fixed owners, modes, times and order.
pub(super) fn tar_of(plan: &Plan, dir: &Path, name: &str, to: &Path) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--format=gnu", "--numeric-owner"])
        .args(["--owner=0", "--group=0", "--mode=u+rw,go+r,go-w,a-s,a+X"])
        .arg(format!("--mtime=@{}", plan.epoch))
        .arg("--file")
        .arg(to)
        .arg("--directory")
        .arg(dir)
        .arg(name);
    execute(&mut tar)
}

/// Compresses a file, which gets the ending `.gz`. No name and no time are kept.
pub(super) fn gzip(file: &Path) -> Result<PathBuf, String> {
    execute(Command::new("gzip").args(["-n", "-9", "-f"]).arg(file))?;
    let mut name = file.as_os_str().to_owned();
    name.push(".gz");
    Ok(name.into())
}

/// The SHA-256 of a file in hexadecimal.
pub(super) fn sha256(file: &Path) -> Result<String, String> {
    let text = output(Command::new("sha256sum").arg("--").arg(file))?;
    let sum = text.split_whitespace().next().unwrap_or_default();
    Ok(sum.trim_start_matches('\\').to_owned())
}

/// Writes `SHA256SUMS` for all packages.
pub(super) fn sums(plan: &Plan) -> Result<(), String> {
    let mut text = String::new();
    let mut files = files_below(&plan.out)?;
    files.retain(|file| file != "SHA256SUMS");
    for file in files {
        let sum = sha256(&plan.out.join(&file))?;
        text.push_str(&format!("{sum}  {file}\n"));
    }
    write(&plan.out.join("SHA256SUMS"), text)
}
