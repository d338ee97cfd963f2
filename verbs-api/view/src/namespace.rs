//! The view by mounts, in a mount namespace of the program's own.
//!
//! Neither `/sys/class` nor, for somebody who is not to change the host, `/dev` takes a new
//! directory. So each is covered by an empty file system in memory, into which everything that was
//! there is mounted again, beside our directories. What is covered is reached through a descriptor
//! that was opened before.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::CHAR_DEVICE;
use crate::programs::{self, Programs};
use crate::stage::{self, make_dirs};
use crate::sys;
use crate::tree::Tree;

/// Directories that are ours alone, by their parent.
const OURS: [(&str, &[&str]); 2] = [
    ("/dev", &["infiniband"]),
    (
        "/sys/class",
        &["infiniband", "infiniband_verbs", "infiniband_mad"],
    ),
];
/// The whole of the old `/dev`, where that is covered.
const OLD_DEV_DIR: &str = "/sys/devices/rocade/dev";
/// Where the attributes of an interface are whose directory is covered.
const NET_DIR: &str = "/sys/devices/rocade/net";

/// Shows the tree to this process and those that come after it, with a mount namespace of its own;
/// in a user namespace too, where the process has no capability at all. `show_host` leaves the
/// host's own devices in sight. `programs` are those that get answers of the preload library.
///
/// The process must have a single thread. On failure it is where it was before.
///
/// # Errors
/// What the system says; `Unsupported` for a process that has some capabilities but not the one
/// to mount, because it would lose them.
pub fn enter(tree: &Tree, show_host: bool, programs: &Programs) -> io::Result<()> {
    match Capabilities::of_this_process()? {
        Capabilities::Mount => {
            sys::unshare(libc::CLONE_NEWNS)?;
            sys::stop_propagation()?;
            build(tree, show_host, programs)
        }
        Capabilities::Some => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the capabilities of this process would be lost in a user namespace",
        )),
        Capabilities::None => {
            // There is no way back from a user namespace, so the first try is a child's.
            let trial = || enter_user_namespace().and_then(|()| build(tree, show_host, programs));
            if !sys::succeeds_in_a_child(|| trial().is_ok())? {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the system allows no user namespace, or no mounts in it",
                ));
            }
            trial()?;
            sys::drop_capabilities_at_exec()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capabilities {
    /// Among them that to mount.
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

/// A user namespace in which this user and group are what they were, with its mount namespace.
fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = sys::effective_ids();
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    // A group may be mapped only once the groups cannot be changed.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    sys::stop_propagation()
}

/// Mounts that go away again unless all of them could be made.
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

    /// Covers `dir` by an empty one and returns a way to what is covered.
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
                tracing::debug!(dir = %dir.display(), %error, "cannot undo a mount");
            }
        }
    }
}

/// A directory that is under a mount.
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

fn build(tree: &Tree, show_host: bool, programs: &Programs) -> io::Result<()> {
    let mut mounts = Mounts::default();
    // `/sys/devices/rocade` can only be that of a view around this one.
    let around = make_room(&mut mounts, Path::new("/sys/devices"), &["rocade"])?;
    let around = around.first().map(|(_, covered)| covered);
    keep_dev(around)?;
    let mut host = Vec::new();
    for (parent, names) in OURS {
        host.extend(make_room(&mut mounts, Path::new(parent), names)?);
    }
    stage::write(tree, Path::new("/"), char_device)?;
    if show_host {
        for (dir, covered) in &host {
            show_again(covered, dir)?;
        }
    }
    for (ifname, device) in tree.interfaces() {
        show_on_interface(&mut mounts, around, ifname, device)?;
    }
    // The view is complete without them.
    if let Err(error) = programs::show(programs, around) {
        tracing::info!(%error, "failed to mount scripts over the programs named rdma: they see no device");
    }
    // All of them are there: they stay.
    mounts.made.clear();
    Ok(())
}

/// The character device that every other one is; a bind mount takes no privilege over devices.
fn char_device(path: &Path) -> io::Result<()> {
    File::create(path)?;
    sys::bind(Path::new(CHAR_DEVICE), path)
}

/// Makes `names` in `parent` empty directories that can be written to. Returns those of the host.
fn make_room(
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

/// Where `/sys` is missing or empty it is made, as far as something above it exists.
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

/// `/dev/ptmx` looks for `pts` beside the place where it is mounted from, so it works within the
/// whole of the old `/dev` only. That has to be mounted before it is covered: a mount takes along
/// what covers its source. A view around this one has kept it already.
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

/// Where `/dev/ptmx` leads: to its twin in `pts` as in containers, where terminals then have the names
/// that they have outside; but on many hosts only root may open that one.
fn ptmx_target() -> PathBuf {
    let twin = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(Path::new(OLD_DEV_DIR).join("pts/ptmx"));
    if twin.is_ok() {
        "pts/ptmx".into()
    } else {
        Path::new(OLD_DEV_DIR).join("ptmx")
    }
}

/// Is it the device, not a link to `pts/ptmx` as in most containers?
fn is_ptmx(path: &Path) -> bool {
    let device = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_char_device());
    device && path.file_name() == Some("ptmx".as_ref())
}

/// Covers `dir` with a copy to which entries can be added, without `names`.
fn extend(mounts: &mut Mounts, dir: &Path, names: &[&str]) -> io::Result<()> {
    let covered = mounts.cover_keeping(dir)?;
    for name in covered.names()? {
        if !names.iter().any(|own| name == **own) {
            show_entry(&covered, dir, &name)?;
        }
    }
    Ok(())
}

/// What the host has in `dir`, where there is nothing of ours.
fn show_again(covered: &Covered, dir: &Path) -> io::Result<()> {
    for name in covered.names()? {
        if fs::symlink_metadata(dir.join(&name)).is_err() {
            show_entry(covered, dir, &name)?;
        }
    }
    Ok(())
}

/// One entry again: links as they are, everything else mounted.
fn show_entry(covered: &Covered, dir: &Path, name: &std::ffi::OsStr) -> io::Result<()> {
    let (from, to) = (covered.path().join(name), dir.join(name));
    let kind = match fs::symlink_metadata(&from) {
        Ok(data) => data.file_type(),
        // It has just gone.
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

/// Adds `device` to an interface: to what `/sys/class/net/IF` leads to, so that the list of
/// interfaces stays the kernel's; or to the list, if that is of another network namespace and does
/// not have the interface.
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
    // Before it is covered, and from a view around this one: see `keep_dev`.
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
