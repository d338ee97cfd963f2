//! Clean roots of Debian, in which packages and programs are tried.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    dist::{at, clear, execute, output, write},
    step::succeeds,
};

const SCRIPT: &str = include_str!("roots.sh");
const USER: u32 = 1000;

/// Directories whose files are of no package that is tried: logs and databases of the tools.
const NOT_COMPARED: [&str; 10] = [
    "proc",
    "sys",
    "dev",
    "mnt",
    "run",
    "var/log",
    "var/cache",
    "var/lib/dpkg",
    "var/lib/rpm",
    "root/.rpmdb",
];

/// A root directory with a release of Debian.
#[derive(Debug)]
pub(crate) struct Root {
    dir: PathBuf,
    mounted: PathBuf,
}

impl Root {
    /// Makes the root of a release in `dir` unless it is there, by debootstrap. It has these
    /// packages, separated by commas. Its programs see `mounted` as `/mnt`.
    pub(crate) fn new(
        dir: PathBuf,
        release: &str,
        packages: &str,
        mounted: &Path,
    ) -> Result<Self, String> {
        if !dir.is_dir() {
            let part = dir.with_extension("part");
            clear(&part)?;
            let mut make = Command::new("debootstrap");
            make.args([
                "--variant=minbase",
                &format!("--include={packages}"),
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
            mounted: mounted.to_owned(),
        })
    }

    /// The path on this machine of a file in the root, such as `opt/test`.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Runs a shell script as this user, `root` or `user`. Returns its output.
    pub(crate) fn run(&self, user: &str, script: &str) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", "600", "unshare"]);
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", SCRIPT, "roots.sh", "sh", "-euc", script]);
        command.env("ROOT", &self.dir).env("MOUNTED", &self.mounted);
        output(command.env("AS", user))
    }

    /// The files, with what tells whether one has changed.
    pub(crate) fn files(&self) -> Result<BTreeMap<String, (u64, u32)>, String> {
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

/// Returns the reason why this machine makes no roots, if there is one.
pub(crate) fn obstacle() -> Option<String> {
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if !is_root {
        return Some("it needs root".to_owned());
    }
    let is_there = succeeds(Command::new("debootstrap").arg("--version"));
    (!is_there).then(|| "no debootstrap (apt-get install debootstrap)".to_owned())
}

fn is_compared(name: &Path) -> bool {
    let is_cache = name.ends_with("etc/ld.so.cache") || name.ends_with("__pycache__");
    !is_cache && !NOT_COMPARED.iter().any(|dir| name.starts_with(dir))
}
