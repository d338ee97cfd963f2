//! The view by mounts in the program's own mount namespace.
//!
//! No directory can be added to `/sys/class`. `/dev` belongs to the host, which the view must not
//! change. So the view covers both with an empty tmpfs and mounts the previous entries into it
//! again, next to the directories of the view. It reaches the covered entries through a descriptor
//! that was opened before.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::CHAR_DEVICE;
use crate::libraries::{self, Replacement};
use crate::programs::{self, Programs};
use crate::staging_dir::{self, make_dirs};
use crate::sys;
use crate::tree::Tree;

/// Directories that exist only in the view, by their parent.
const VIEW_DIRS: [(&str, &[&str]); 2] = [
    ("/dev", &["infiniband"]),
    (
        "/sys/class",
        &["infiniband", "infiniband_verbs", "infiniband_mad"],
    ),
];
/// A mount of the old `/dev`, which the view covers.
const OLD_DEV_DIR: &str = "/sys/devices/rocade/dev";
/// The directory with the attributes of the interfaces whose directories the view covers.
const NET_DIR: &str = "/sys/devices/rocade/net";

/// Shows the tree to this process and its later children, in a new mount namespace. A process
/// without any capability also gets a user namespace. Returns the replaced libraries.
///
/// The process must have a single thread. A failure leaves the process unchanged.
///
/// # Errors
/// The error of the system call. `Unsupported` for a process that has capabilities but not the one
/// to mount, because a user namespace would remove them.
pub fn enter(tree: &Tree, contents: &Contents) -> io::Result<BTreeSet<PathBuf>> {
    match Capabilities::of_this_process()? {
        Capabilities::Mount => {
            sys::unshare(libc::CLONE_NEWNS)?;
            sys::stop_propagation()?;
            build(tree, contents)
        }
        Capabilities::Some => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the capabilities of this process would be lost in a user namespace",
        )),
        Capabilities::None => {
            // A process cannot leave a user namespace again, so a child tries first.
            let trial = || enter_user_namespace().and_then(|()| build(tree, contents));
            if !sys::succeeds_in_a_child(|| trial().is_ok())? {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the system allows no user namespace, or no mounts in it",
                ));
            }
            let replaced = trial()?;
            sys::drop_capabilities_at_exec()?;
            Ok(replaced)
        }
    }
}

/// Returns true if this process may mount without a user namespace. Programs that it starts can
/// still gain privileges (set-user-ID).
#[must_use]
pub fn keeps_privileges() -> bool {
    matches!(Capabilities::of_this_process(), Ok(Capabilities::Mount))
}

/// The parts of a view besides the files of the devices.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Keeps the host's own devices visible.
    pub show_host: bool,
    /// The programs that get replies from the preload library.
    pub programs: Programs,
    /// The libraries of others that Rocade's take the place of.
    pub libraries: Vec<Replacement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capabilities {
    /// The process may mount.
    Mount,
    Some,
    None,
}

impl Capabilities {
    fn of_this_process() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        Self::parse(&status).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(status: &str) -> Option<Self> {
        const SYS_ADMIN: u64 = 1 << 21;
        let mask = |name: &str| {
            let text = status.lines().find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(text.trim(), 16).ok()
        };
        let (effective, permitted) = (mask("CapEff:")?, mask("CapPrm:")?);
        Some(if effective & SYS_ADMIN != 0 {
            Self::Mount
        } else if permitted != 0 {
            Self::Some
        } else {
            Self::None
        })
    }
}

/// Creates a user namespace with the same user and group, and its mount namespace.
fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = sys::effective_ids();
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    // The kernel allows the group mapping only after `setgroups` is denied.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    sys::stop_propagation()
}

/// Mounts that are removed again unless all of them succeed.
#[derive(Default)]
struct Mounts {
    made: Vec<PathBuf>,
}

impl Mounts {
    fn cover(&mut self, dir: &Path) -> io::Result<()> {
        sys::mount_tmpfs(dir)?;
        self.made.push(dir.to_owned());
        Ok(())
    }

    /// Covers `dir` with an empty directory. Returns a handle to the covered one.
    fn cover_keeping(&mut self, dir: &Path) -> io::Result<Covered> {
        let covered = Covered::open(dir)?;
        self.cover(dir)?;
        Ok(covered)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for dir in self.made.drain(..).rev() {
            if let Err(error) = sys::unmount(&dir) {
                tracing::debug!(dir = %dir.display(), %error, "failed to undo a mount");
            }
        }
    }
}

/// A directory that is covered by a mount.
pub(crate) struct Covered {
    handle: OwnedFd,
}

impl Covered {
    fn open(dir: &Path) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .open(dir)?;
        Ok(Self {
            handle: file.into(),
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd()).into()
    }

    fn names(&self) -> io::Result<Vec<std::ffi::OsString>> {
        fs::read_dir(self.path().join("."))?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }
}

fn build(tree: &Tree, contents: &Contents) -> io::Result<BTreeSet<PathBuf>> {
    let mut mounts = Mounts::default();
    // An existing `/sys/devices/rocade` belongs to an outer view.
    let around = make_space(&mut mounts, Path::new("/sys/devices"), &["rocade"])?;
    let around = around.first().map(|(_, covered)| covered);
    keep_dev(around)?;
    let mut host = Vec::new();
    for (parent, names) in VIEW_DIRS {
        host.extend(make_space(&mut mounts, Path::new(parent), names)?);
    }
    staging_dir::write(tree, Path::new("/"), char_device)?;
    if contents.show_host {
        for (dir, covered) in &host {
            show_again(covered, dir)?;
        }
    }
    for (ifname, device) in tree.interfaces() {
        show_on_interface(&mut mounts, around, ifname, device)?;
    }
    // The view is complete without the programs.
    if let Err(error) = programs::show(&contents.programs, around) {
        tracing::info!(%error, "failed to mount scripts over the programs named rdma, which will find no devices");
    }
    // All mounts succeeded, so they stay.
    mounts.made.clear();
    Ok(libraries::show(&contents.libraries))
}

/// Creates a device file as a bind mount of [`CHAR_DEVICE`]. A bind mount requires no privilege for
/// devices.
fn char_device(path: &Path) -> io::Result<()> {
    File::create(path)?;
    sys::bind(Path::new(CHAR_DEVICE), path)
}

/// Replaces `names` in `parent` with empty writable directories. Returns those of the host.
fn make_space(
    mounts: &mut Mounts,
    parent: &Path,
    names: &[&str],
) -> io::Result<Vec<(PathBuf, Covered)>> {
    make_parent(mounts, parent)?;
    let dirs: Vec<PathBuf> = names.iter().map(|name| parent.join(name)).collect();
    let host: Vec<_> = dirs
        .iter()
        .filter_map(|dir| Some((dir.clone(), Covered::open(dir).ok()?)))
        .collect();
    if host.len() == dirs.len() {
        for dir in &dirs {
            mounts.cover(dir)?;
        }
    } else {
        extend(mounts, parent, names)?;
        for dir in &dirs {
            make_dirs(dir)?;
        }
    }
    Ok(host)
}

/// Creates `/sys` if it is missing or empty, unless no parent of it exists.
fn make_parent(mounts: &mut Mounts, dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let above = dir.parent().filter(|above| above.parent().is_some());
    let above = above.ok_or(io::ErrorKind::NotFound)?;
    make_parent(mounts, above)?;
    extend(mounts, above, &[])?;
    make_dirs(dir)
}

/// Keeps the old `/dev`, because `/dev/ptmx` needs `pts` next to it in the same mount. The mount
/// must be made before `/dev` is covered, because a mount includes what covers its source. An outer
/// view has kept it already.
fn keep_dev(around: Option<&Covered>) -> io::Result<()> {
    let kept = around.map(|around| around.path().join("dev"));
    let source = kept.filter(|kept| kept.is_dir());
    let place = Path::new(OLD_DEV_DIR);
    make_dirs(place)?;
    sys::bind(
        source.as_deref().unwrap_or_else(|| Path::new("/dev")),
        place,
    )
}

/// Returns the target of `/dev/ptmx`. In containers that is `pts/ptmx`, which gives terminals the
/// same names as outside. On many hosts only root can open `pts/ptmx`.
fn ptmx_target() -> PathBuf {
    let opened = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(Path::new(OLD_DEV_DIR).join("pts/ptmx"));
    if opened.is_ok() {
        "pts/ptmx".into()
    } else {
        Path::new(OLD_DEV_DIR).join("ptmx")
    }
}

/// Returns true for the device, and false for a link to `pts/ptmx` as in most containers.
fn is_ptmx(path: &Path) -> bool {
    let device = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_char_device());
    device && path.file_name() == Some("ptmx".as_ref())
}

/// Covers `dir` with a writable copy without `names`.
fn extend(mounts: &mut Mounts, dir: &Path, names: &[&str]) -> io::Result<()> {
    let covered = mounts.cover_keeping(dir)?;
    for name in covered.names()? {
        if !names.iter().any(|own| name == **own) {
            show_entry(&covered, dir, &name)?;
        }
    }
    Ok(())
}

/// Mounts the host's entries of `dir` that the view does not have.
fn show_again(covered: &Covered, dir: &Path) -> io::Result<()> {
    for name in covered.names()? {
        if fs::symlink_metadata(dir.join(&name)).is_err() {
            show_entry(covered, dir, &name)?;
        }
    }
    Ok(())
}

/// Shows one entry of a covered directory. Links are copied, and everything else is mounted.
fn show_entry(covered: &Covered, dir: &Path, name: &std::ffi::OsStr) -> io::Result<()> {
    let (from, to) = (covered.path().join(name), dir.join(name));
    let kind = match fs::symlink_metadata(&from) {
        Ok(data) => data.file_type(),
        // The entry was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if is_ptmx(&from) {
        return symlink(ptmx_target(), to);
    }
    if kind.is_symlink() {
        return symlink(fs::read_link(&from)?, to);
    }
    if kind.is_dir() {
        make_dirs(&to)?;
    } else {
        File::create(&to)?;
    }
    sys::bind(&from, &to)
}

/// Adds `device` to an interface. The target of `/sys/class/net/IF` is extended, so that the list
/// of interfaces remains the kernel's. If the list is that of another network namespace and lacks
/// the interface, the list is extended.
fn show_on_interface(
    mounts: &mut Mounts,
    around: Option<&Covered>,
    ifname: &str,
    device: &str,
) -> io::Result<()> {
    let target = Path::new(crate::HCA_DIR).join(device);
    let place = Path::new("/sys/class/net").join(ifname);
    let Ok(real) = fs::canonicalize(&place) else {
        let net = Path::new("/sys/class/net");
        make_parent(mounts, net)?;
        extend(mounts, net, &[ifname])?;
        make_dirs(&place)?;
        return symlink(target, place.join("device"));
    };
    let kept = around.map(|around| around.path().join("net").join(ifname));
    let source = kept.filter(|kept| kept.is_dir());
    let kept = Path::new(NET_DIR).join(ifname);
    make_dirs(&kept)?;
    // Mounted before the directory is covered, and from an outer view if there is one: see
    // `keep_dev`.
    sys::bind(source.as_deref().unwrap_or(&real), &kept)?;
    mounts.cover(&real)?;
    for entry in fs::read_dir(&kept)? {
        let name = entry?.file_name();
        if name == "device" {
            continue;
        }
        let from = kept.join(&name);
        symlink(fs::read_link(&from).unwrap_or(from), real.join(name))?;
    }
    symlink(target, real.join("device"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_decide_on_the_way() {
        let status = |effective: &str, permitted: &str| {
            Capabilities::parse(&format!(
                "Name:\tx\nCapInh:\t0\nCapPrm:\t{permitted}\nCapEff:\t{effective}\n"
            ))
        };
        let none = "0000000000000000";
        let docker = "00000000a80425fb";
        let all = "000001ffffffffff";
        assert_eq!(status(all, all), Some(Capabilities::Mount));
        assert_eq!(status(docker, docker), Some(Capabilities::Some));
        assert_eq!(status(none, docker), Some(Capabilities::Some));
        assert_eq!(status(none, none), Some(Capabilities::None));
        assert_eq!(Capabilities::parse("nothing"), None);
    }
}
