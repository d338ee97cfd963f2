//! Clean roots of Debian, in which packages are tried.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use super::{Plan, at, execute, output, write};

const SCRIPT: &str = include_str!("root.sh");
const USER: u32 = 1000;

/// The packages with the programs that are tried, and with the tools of other packages.
const PACKAGES: &str = "ibverbs-utils,perftest,python3,python3-venv,rpm,util-linux";

/// Directories whose files are of no package that is tried: logs and databases of the tools.
const NOT_COMPARED: [&str; 9] = [
    "proc",
    "sys",
    "dev",
    "mnt",
    "run",
    "var/log",
    "var/cache",
    "var/lib/dpkg",
    "var/lib/rpm",
];

/// A root directory with a release of Debian.
pub(super) struct Root {
    dir: PathBuf,
    packages: PathBuf,
}

impl Root {
    /// Makes the root of a release unless it is there, by debootstrap.
    pub(super) fn new(plan: &Plan, release: &str) -> Result<Self, String> {
        let dir = plan.work.join("roots").join(release);
        if !dir.is_dir() {
            let part = dir.with_extension("part");
            super::clear(&part)?;
            let mut make = Command::new("debootstrap");
            make.args([
                "--variant=minbase",
                &format!("--include={PACKAGES}"),
                release,
            ]);
            execute(make.arg(&part))?;
            let home = part.join("home/user");
            fs::create_dir_all(&home).map_err(at(&home))?;
            chown(&home, Some(USER), Some(USER)).map_err(at(&home))?;
            let passwd = part.join("etc/passwd");
            let mut users = fs::read_to_string(&passwd).map_err(at(&passwd))?;
            users.push_str("user:x:1000:1000::/home/user:/bin/sh\n");
            write(&passwd, users)?;
            fs::rename(&part, &dir).map_err(at(&dir))?;
        }
        Ok(Self {
            dir,
            packages: plan.out.clone(),
        })
    }

    /// Runs a shell script as this user, `root` or `user`. Returns its output.
    pub(super) fn run(&self, user: &str, script: &str) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", "600", "unshare"]);
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", SCRIPT, "root.sh", "sh", "-euc", script]);
        command
            .env("ROOT", &self.dir)
            .env("PACKAGES", &self.packages);
        output(command.env("AS", user))
    }

    /// The files, with what tells whether one has changed.
    pub(super) fn files(&self) -> Result<BTreeMap<String, (u64, u32)>, String> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![self.dir.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).map_err(at(&dir))? {
                let path = entry.map_err(at(&dir))?.path();
                let name = path.strip_prefix(&self.dir).unwrap_or(&path);
                if is_compared(name) {
                    let meta = fs::symlink_metadata(&path).map_err(at(&path))?;
                    // Directories change their length.
                    let len = if meta.is_dir() { 0 } else { meta.len() };
                    found.insert(name.display().to_string(), (len, meta.mode()));
                    if meta.is_dir() {
                        dirs.push(path);
                    }
                }
            }
        }
        Ok(found)
    }
}

fn is_compared(name: &Path) -> bool {
    let is_cache = name.ends_with("etc/ld.so.cache") || name.ends_with("__pycache__");
    !is_cache && !NOT_COMPARED.iter().any(|dir| name.starts_with(dir))
}
