//! `cargo xtask dist --twice`: a second build from a copy of the sources, and its comparison.
//!
//! The copy has another path, another build directory, nothing that was built before, another time
//! zone and another umask. Both builds share what they download, the time of the commit, and the
//! compilers.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    DistArgs, Plan, arch::Arch, archive::sha256, at, build::ZIG_PLACE, clear, copy, execute,
    files_below, output, tree::binaries, write,
};
use crate::{tally::Tally, workspace::Workspace};

/// The list of checksums. Its lines are compared one by one.
const SUMS: &str = "SHA256SUMS";

/// Builds all packages again, and compares them with those of `plan`.
pub(super) fn run(workspace: &Workspace, args: &DistArgs, plan: &Plan) -> Result<Tally, String> {
    let dir = plan.work.join("again");
    clear(&dir)?;
    let root = dir.join("sources");
    for file in sources(workspace)? {
        copy(&workspace.root().join(&file), &root.join(&file))?;
    }
    share(workspace, plan, &root)?;
    execute(&mut build(args, plan, &root)?)?;
    let second = root.join("target/dist");
    let mut differences = compare(&plan.out, &second.join("packages"))?;
    differences.extend(named_directories(args, &second, &root)?);
    for difference in &differences {
        eprintln!("xtask: {difference}");
    }
    if !differences.is_empty() {
        eprintln!("xtask: the second build stays in {}", dir.display());
        return Ok(Tally::FAIL);
    }
    let sums = plan.out.join(SUMS);
    let sums = fs::read_to_string(&sums).map_err(at(&sums))?;
    write(&record(plan), &sums)?;
    println!(
        "{} packages are the same in both builds",
        sums.lines().count()
    );
    fs::remove_dir_all(&dir).map_err(at(&dir))?;
    Ok(Tally::PASS)
}

/// Returns the words of the table: the result of the last [`run`] if it was with these packages.
pub(super) fn words(plan: &Plan) -> &'static str {
    let sums = fs::read_to_string(plan.out.join(SUMS)).ok();
    let is_same = sums.is_some_and(|sums| {
        let seen = fs::read_to_string(record(plan)).unwrap_or_default();
        let seen: BTreeSet<&str> = seen.lines().collect();
        sums.lines().all(|line| seen.contains(line))
    });
    if is_same {
        "Two builds of these sources gave the same bytes."
    } else {
        "These packages were built once (`--twice` compares two builds)."
    }
}

fn record(plan: &Plan) -> PathBuf {
    plan.work.join("built-twice")
}

/// The files of the checkout that git knows, or would add.
fn sources(workspace: &Workspace) -> Result<Vec<String>, String> {
    let mut git = Command::new("git");
    git.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let text = output(git.current_dir(workspace.root()))?;
    let files = text.split('\0').filter(|file| !file.is_empty());
    let exists = |file: &&str| workspace.root().join(file).symlink_metadata().is_ok();
    Ok(files.filter(exists).map(str::to_owned).collect())
}

/// Lets the copy use what the first build has downloaded.
fn share(workspace: &Workspace, plan: &Plan, root: &Path) -> Result<(), String> {
    let target = root.join("target");
    for (from, to) in [
        (
            plan.work.join(ZIG_PLACE),
            target.join("dist").join(ZIG_PLACE),
        ),
        (plan.work.join("debs"), target.join("dist/debs")),
        (
            workspace.target().join("aarch64/root"),
            target.join("aarch64/root"),
        ),
    ] {
        if let Some(dir) = to.parent().filter(|_| from.exists()) {
            fs::create_dir_all(dir).map_err(at(dir))?;
            std::os::unix::fs::symlink(&from, &to).map_err(at(&to))?;
        }
    }
    Ok(())
}

/// This command for the copy.
fn build(args: &DistArgs, plan: &Plan, root: &Path) -> Result<Command, String> {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077 && exec \"$@\"", "sh"]);
    command.arg(env::current_exe().map_err(|error| error.to_string())?);
    command.args(["dist", "--profile", &args.profile]);
    for arch in &args.arch {
        command.args(["--arch", arch]);
    }
    command
        .current_dir(root)
        .env("CARGO_MANIFEST_DIR", root.join("tests/xtask"))
        .env_remove("CARGO_TARGET_DIR")
        .env("SOURCE_DATE_EPOCH", plan.epoch.to_string())
        .env("TZ", "Pacific/Chatham");
    Ok(command)
}

/// Names the files that only one directory has, and those that differ.
fn compare(first: &Path, second: &Path) -> Result<Vec<String>, String> {
    let names = |dir: &Path| -> Result<BTreeSet<String>, String> {
        let files = files_below(dir)?.into_iter();
        Ok(files.filter(|file| file != SUMS).collect())
    };
    let (here, there) = (names(first)?, names(second)?);
    let mut found: Vec<String> = here
        .symmetric_difference(&there)
        .map(|name| format!("only one build has {name}"))
        .collect();
    for name in here.intersection(&there) {
        if sha256(&first.join(name))? != sha256(&second.join(name))? {
            found.push(format!(
                "{name} differs between two builds (diffoscope shows where)"
            ));
        }
    }
    Ok(found)
}

/// Names the files of the second build that contain a directory of this machine.
fn named_directories(args: &DistArgs, work: &Path, root: &Path) -> Result<Vec<String>, String> {
    let home = env::home_dir().map(|home| home.join(".cargo/registry"));
    // Zig is shared, so the comparison does not show where it lies.
    let zig = fs::canonicalize(work.join(ZIG_PLACE)).ok();
    let directories: Vec<PathBuf> = [Some(root.to_owned()), home, zig]
        .into_iter()
        .flatten()
        .collect();
    let mut found = Vec::new();
    for arch in Arch::named(&args.arch)? {
        let tree = work.join("tree").join(arch.name);
        if !tree.is_dir() {
            continue;
        }
        let debug = files_below(&work.join("debug").join(arch.name))?;
        let debug = debug
            .into_iter()
            .map(|file| work.join("debug").join(arch.name).join(file));
        for file in binaries(&tree)?.into_iter().chain(debug) {
            let bytes = fs::read(&file).map_err(at(&file))?;
            let named = directories.iter().filter(|dir| contains(&bytes, dir));
            found.extend(named.map(|dir| format!("{} names {}", file.display(), dir.display())));
        }
    }
    Ok(found)
}

fn contains(bytes: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    bytes.windows(path.len()).any(|part| part == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| dir.path().join(name));
        for (place, text) in [(&first, "1"), (&second, "2")] {
            write(&place.join("same"), "0").unwrap();
            write(&place.join("other"), text).unwrap();
            write(&place.join(SUMS), text).unwrap();
        }
        write(&second.join("more"), "").unwrap();
        let found = compare(&first, &second).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0], "only one build has more");
        assert!(found[1].starts_with("other differs"), "{found:?}");
        assert!(compare(&first, &first).unwrap().is_empty());
    }

    #[test]
    fn a_directory_inside_a_file_is_found() {
        assert!(contains(b"\0/a/b/c.rs\0", Path::new("/a/b")));
        assert!(!contains(b"\0/a/c.rs\0", Path::new("/a/b")));
    }
}
