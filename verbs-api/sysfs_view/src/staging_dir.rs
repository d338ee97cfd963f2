//! Writes the tree to disk: below `/` in a mount namespace, and otherwise to the staging directory
//! of the preload library.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::tree::{Node, Tree};
use crate::{CHAR_DEVICE, ENV_STAGE};

/// The directories in which the host's own devices are visible.
const HOST_CLASSES: [&str; 3] = [
    "sys/class/infiniband",
    "sys/class/infiniband_verbs",
    "sys/class/infiniband_mad",
];

/// Creates directories down to `dir`, accessible to all users regardless of the umask.
pub(crate) fn make_dirs(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(dir) {
        Ok(()) => fs::set_permissions(dir, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_dirs(dir.parent().ok_or(error)?)?;
            make_dirs(dir)
        }
        Err(error) => Err(error),
    }
}

fn write_file(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(Permissions::from_mode(mode))
}

/// Writes the tree below `root`. `char_device` creates a character device at a path.
pub(crate) fn write(
    tree: &Tree,
    root: &Path,
    char_device: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    for entry in tree.entries() {
        let path = root.join(&entry.path);
        if entry.node == Node::Dir {
            make_dirs(&path)?;
            continue;
        }
        make_dirs(path.parent().unwrap_or(root))?;
        match &entry.node {
            Node::Dir => {}
            Node::File(text) => write_file(&path, text, 0o444)?,
            // An engine in a process of the same user updates the counter.
            Node::Counter => write_file(&path, "0\n", 0o644)?,
            Node::Link(target) => symlink(target, &path)?,
            Node::Char => char_device(&path)?,
        }
    }
    Ok(())
}

/// The staging directory with the whole tree, for the preload library.
#[derive(Debug)]
pub struct StagingDir {
    dir: PathBuf,
}

impl StagingDir {
    /// Creates a staging directory below `runtime_dir`, which must be accessible to this user only.
    /// Removes unused staging directories. With `show_host` it contains the host's own devices,
    /// too.
    ///
    /// # Errors
    /// The error of creating the files.
    pub fn new(runtime_dir: &Path, tree: &Tree, show_host: bool) -> io::Result<Self> {
        let views = runtime_dir.join("views");
        make_dirs(&views)?;
        sweep(&views);
        let dir = views.join(own_name()?);
        // A directory of this name was left by an earlier process with the same PID.
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        make_dirs(&dir)?;
        let staging_dir = Self { dir };
        staging_dir.fill(tree, show_host)?;
        Ok(staging_dir)
    }

    /// Returns the directory, which is absolute if `runtime_dir` is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn fill(&self, tree: &Tree, show_host: bool) -> io::Result<()> {
        write(tree, &self.dir, |path| symlink(CHAR_DEVICE, path))?;
        for (ifname, device) in tree.interfaces() {
            let dir = self.dir.join("sys/class/net").join(ifname);
            make_dirs(&dir)?;
            let host = Path::new("/sys/class/net").join(ifname);
            for entry in fs::read_dir(&host).into_iter().flatten().flatten() {
                if entry.file_name() != "device" {
                    symlink(host.join(entry.file_name()), dir.join(entry.file_name()))?;
                }
            }
            let target = format!("../../../devices/rocade/hca/{device}");
            symlink(target, dir.join("device"))?;
        }
        if show_host {
            for dir in HOST_CLASSES.iter().chain(&["dev/infiniband"]) {
                self.link_host(dir)?;
            }
        }
        // For programs that list the classes.
        self.link_host("sys/class")
    }

    /// Links to the host's entries of `dir` that the view does not have. The kernel follows these
    /// links, and the preload library does not redirect them.
    fn link_host(&self, dir: &str) -> io::Result<()> {
        let host = Path::new("/").join(dir);
        for entry in fs::read_dir(&host).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let place = self.dir.join(dir).join(&name);
            if fs::symlink_metadata(&place).is_err() {
                symlink(host.join(name), place)?;
            }
        }
        Ok(())
    }
}

/// Returns the name of this process's directory: PID namespace, PID and start time. The program
/// keeps them after `exec`.
fn own_name() -> io::Result<String> {
    Ok(format!(
        "{}-{}-{}",
        pid_namespace()?,
        std::process::id(),
        start_of("self")?
    ))
}

fn pid_namespace() -> io::Result<String> {
    let link = fs::read_link("/proc/self/ns/pid")?;
    let digits = link.to_string_lossy();
    Ok(digits.chars().filter(char::is_ascii_digit).collect())
}

/// Returns the start time of a process, in ticks since boot.
fn start_of(process: &str) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The fields behind the process name, which can contain any character. The state is field 3,
    // the start time field 22.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let start = fields.split_whitespace().nth(22 - 3);
    start.map(str::to_owned).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("/proc/{process}/stat: {stat}"),
        )
    })
}

/// Removes the directories of ended programs that no child uses.
fn sweep(views: &Path) {
    let Ok(here) = pid_namespace() else { return };
    let mut stale = Vec::new();
    for entry in fs::read_dir(views).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let mut parts = name.split('-');
        let [Some(namespace), Some(pid), Some(start), None] = std::array::from_fn(|_| parts.next())
        else {
            continue;
        };
        let gone = || {
            start_of(pid).map_or_else(
                |error| error.kind() == io::ErrorKind::NotFound,
                |found| found != start,
            )
        };
        if namespace == here && gone() {
            stale.push(entry.path());
        }
    }
    if stale.is_empty() {
        return;
    }
    let used = staging_dirs_in_use();
    for dir in stale.iter().filter(|dir| !used.contains(dir)) {
        if let Err(error) = fs::remove_dir_all(dir) {
            tracing::debug!(dir = %dir.display(), %error, "failed to remove an old view");
        }
    }
}

/// Returns the staging directories in the environments of all processes that this user may read.
fn staging_dirs_in_use() -> Vec<PathBuf> {
    let mut used = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(environment) = fs::read(process.path().join("environ")) else {
            continue;
        };
        for variable in environment.split(|byte| *byte == 0) {
            let variable = String::from_utf8_lossy(variable);
            if let Some((ENV_STAGE, dir)) = variable.split_once('=') {
                used.push(PathBuf::from(dir));
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_stages_go_and_those_in_use_stay() {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let views = runtime.path().join("views");
        let namespace = pid_namespace().expect("/proc is there");
        let me = std::process::id();
        let start = start_of("self").expect("/proc is there");
        // Directories of this process, of an earlier one with its PID, and of another PID
        // namespace.
        let live = views.join(format!("{namespace}-{me}-{start}"));
        let old = views.join(format!("{namespace}-{me}-1{start}"));
        let foreign = views.join(format!("1{namespace}-{me}-1{start}"));
        let inherited = views.join(format!("{namespace}-{me}-2{start}"));
        for dir in [&live, &old, &foreign, &inherited] {
            make_dirs(&dir.join("sys")).expect("writable");
        }
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line"])
            .stdin(std::process::Stdio::piped())
            .env(ENV_STAGE, &inherited)
            .spawn()
            .expect("sh is there");
        // Between fork and exec, the child has the environment of this process.
        while !staging_dirs_in_use().contains(&inherited) {
            std::thread::yield_now();
        }
        sweep(&views);
        let there = [&live, &old, &foreign, &inherited].map(|dir| dir.exists());
        drop(child.stdin.take());
        child.wait().expect("it ends with its input");
        assert_eq!(there, [true, false, true, true]);
        sweep(&views);
        assert!(!inherited.exists());
    }
}
