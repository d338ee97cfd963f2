//! The directory that holds the drop-in libraries under the names that programs load.
//!
//! Cargo builds `libibverbs.so`, but programs load `libibverbs.so.1`. So the command keeps a
//! directory of symbolic links next to the executable (`target/release/rocade-libs`). If that place
//! is not writable, the directory is below the runtime directory. An installation has the real
//! files in `../lib/rocade`.
//!
//! Both places also have the names without version. NCCL and others load `libibverbs.so` first, and
//! with a development package the system has a library of that name.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rocade_emulator::config::Settings;

use crate::error::CliError;
use crate::output;

/// The drop-in libraries without their `.so.1`. The first one contains the emulator, and the others
/// require it.
pub(crate) const LIBRARIES: [&str; 5] = ["libibverbs", "librdmacm", "libmlx5", "libefa", "libmana"];

/// The directory of links next to the executable.
const LINK_DIR: &str = "rocade-libs";

/// `rocade libdir`.
pub(crate) fn print() -> Result<ExitCode, CliError> {
    output::line(find()?.display())?;
    Ok(ExitCode::SUCCESS)
}

/// The file name of the library that redirects a program's file functions to a view.
pub(crate) const PRELOAD_LIBRARY: &str = "librocade_preload.so";

/// The file name of the library that a program with another libibverbs loads as a driver.
pub(crate) const NOTICE_LIBRARY: &str = "librocade_notice.so";

/// Returns the directory for `LD_LIBRARY_PATH`, and creates it if necessary.
pub(crate) fn find() -> Result<PathBuf, CliError> {
    let exe = std::env::current_exe().map_err(|error| {
        CliError::new(format!(
            "failed to find the executable of this command: {error}"
        ))
    })?;
    let exe_dir = exe.parent().unwrap_or_else(|| Path::new("/"));
    find_from(exe_dir, fallback_dir)
}

/// Returns the path of [`PRELOAD_LIBRARY`] or [`NOTICE_LIBRARY`], or `None` if there is no such
/// file.
pub(crate) fn own_library(name: &str) -> Option<PathBuf> {
    /// In a `chroot` the kernel gives another path once this process has a mount namespace.
    static EXE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let exe = EXE.get_or_init(|| std::env::current_exe().ok());
    let exe_dir = exe.as_deref()?.parent()?;
    let places = [exe_dir.to_owned(), exe_dir.join("../lib/rocade")];
    let files = places.map(|dir| dir.join(name));
    fs::canonicalize(files.iter().find(|file| file.is_file())?).ok()
}

/// Implements [`find`] for an executable in `exe_dir`. `fallback` creates the directory if
/// `exe_dir` is not writable.
fn find_from(
    exe_dir: &Path,
    fallback: impl FnOnce(&Path) -> Result<PathBuf, CliError>,
) -> Result<PathBuf, CliError> {
    let missing: Vec<PathBuf> = LIBRARIES
        .iter()
        .map(|library| exe_dir.join(format!("{library}.so")))
        .filter(|path| !path.is_file())
        .collect();
    if missing.is_empty() {
        return make_links(exe_dir, fallback);
    }
    let installed = exe_dir.join("../lib/rocade");
    let has = |library: &str| installed.join(format!("{library}.so.1")).is_file();
    if LIBRARIES.iter().all(|library| has(library)) {
        return fs::canonicalize(&installed)
            .map_err(|error| CliError::new(format!("{}: {error}", installed.display())));
    }
    Err(not_there(exe_dir, &missing, &installed))
}

fn not_there(exe_dir: &Path, missing: &[PathBuf], installed: &Path) -> CliError {
    let by_hand = "in the source directory: cargo build --release";
    // `cargo install` installs the command alone.
    if let Some(prefix) = exe_dir.parent().filter(|_| exe_dir.ends_with("bin")) {
        let dir = prefix.join("lib/rocade");
        return CliError::new(format!(
            "the drop-in libraries are missing: {}/libibverbs.so.1 and others",
            dir.display()
        ))
        .hint("rocade install    builds and installs them")
        .hint(format!("or {by_hand}"));
    }
    let names: Vec<String> = missing
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let names = names.join(", ");
    let by_hand = if exe_dir.ends_with("debug") {
        by_hand.replace(" --release", "")
    } else {
        by_hand.to_owned()
    };
    CliError::new(format!("the drop-in libraries are missing: {names}"))
        .hint(by_hand)
        .hint(format!(
            "an installation has them as {}/lib{{ibverbs,rdmacm,mlx5,efa,mana}}.so.1",
            installed.display()
        ))
}

fn make_links(
    exe_dir: &Path,
    fallback: impl FnOnce(&Path) -> Result<PathBuf, CliError>,
) -> Result<PathBuf, CliError> {
    let beside = exe_dir.join(LINK_DIR);
    match link_all(&beside, Path::new("..")) {
        Ok(()) => Ok(beside),
        Err(error) => {
            tracing::debug!(dir = %beside.display(), %error, "failed to create links next to the executable");
            let dir = fallback(exe_dir)?;
            link_all(&dir, exe_dir).map_err(|error| {
                CliError::new(format!(
                    "failed to create links in {}: {error}",
                    dir.display()
                ))
                .hint("set ROCADE_RUNTIME_DIR to a directory that you can write to")
            })?;
            Ok(dir)
        }
    }
}

/// Creates a directory below the runtime directory for this `exe_dir` only.
fn fallback_dir(exe_dir: &Path) -> Result<PathBuf, CliError> {
    let runtime = runtime_dir(&crate::run::load_settings()?)?;
    // The name contains the path, so that the links of two builds do not conflict.
    let name: String = exe_dir
        .to_string_lossy()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') {
                c
            } else {
                '-'
            }
        })
        .collect();
    Ok(runtime.join("libs").join(name.trim_matches('-')))
}

/// Returns the directory of the broker's files, and creates it if necessary. Programs load
/// libraries from it, so it must belong to this user alone. In `/tmp`, another user may have
/// created it first.
pub(crate) fn runtime_dir(settings: &Settings) -> Result<PathBuf, CliError> {
    let failed = |dir: &Path, reason: String| {
        CliError::new(format!(
            "cannot use the runtime directory {}: {reason}",
            dir.display()
        ))
        .hint("set ROCADE_RUNTIME_DIR to a directory that only you can write to")
    };
    let uid = fs::metadata("/proc/self").map(|me| me.uid());
    let uid = uid.map_err(|error| failed(Path::new("/proc"), error.to_string()))?;
    let dir = settings
        .runtime_dir()
        .map_or_else(|| default_runtime_dir(uid), Path::to_owned);
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir);
    made.map_err(|error| failed(&dir, error.to_string()))?;
    let found = fs::symlink_metadata(&dir).map_err(|error| failed(&dir, error.to_string()))?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        return Err(failed(
            &dir,
            "it is not a directory that only you can write to".to_owned(),
        ));
    }
    Ok(dir)
}

fn default_runtime_dir(uid: u32) -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|dir| fs::metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == uid))
        .map_or_else(
            || format!("/tmp/rocade-{uid}").into(),
            |dir| dir.join("rocade"),
        )
}

/// Creates `dir` with the links `NAME.so.1` and `NAME.so` to `target_dir/NAME.so` for each library.
/// Several processes may do so at the same time: correct links stay, and others are replaced
/// atomically.
fn link_all(dir: &Path, target_dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for library in LIBRARIES {
        let target = target_dir.join(format!("{library}.so"));
        for name in names(library) {
            link(&dir.join(name), &target)?;
        }
    }
    Ok(())
}

/// Returns the file names by which programs load a library.
pub(crate) fn names(library: &str) -> [String; 2] {
    [format!("{library}.so.1"), format!("{library}.so")]
}

fn link(name: &Path, target: &Path) -> io::Result<()> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    if fs::read_link(name).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
    let mut new = name.as_os_str().to_owned();
    new.push(format!(".new.{}.{unique}", std::process::id()));
    let new = PathBuf::from(new);
    match std::os::unix::fs::symlink(target, &new) {
        // A process with the same PID was killed between the two steps, and left this link.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&new)?;
            std::os::unix::fs::symlink(target, &new)?;
        }
        other => other?,
    }
    fs::rename(&new, name).inspect_err(|_| {
        // The error of the rename is reported, not that of the removal.
        let _ = fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn no_fallback(_: &Path) -> Result<PathBuf, CliError> {
        Err(CliError::new("fallback used"))
    }

    /// Returns a directory like Cargo's. The content of each library is its name.
    fn built() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for library in LIBRARIES {
            fs::write(dir.path().join(format!("{library}.so")), library).unwrap();
        }
        dir
    }

    fn assert_complete(dir: &Path) {
        for library in LIBRARIES {
            for name in names(library) {
                let text = fs::read_to_string(dir.join(name)).unwrap();
                assert_eq!(text, library);
            }
        }
        assert_eq!(
            fs::read_dir(dir).unwrap().count(),
            2 * LIBRARIES.len(),
            "nothing left behind"
        );
    }

    #[test]
    fn links_are_made_once_and_repaired() {
        let exe = built();
        let dir = find_from(exe.path(), no_fallback).unwrap();
        assert_eq!(dir, exe.path().join(LINK_DIR));
        assert_complete(&dir);
        assert_eq!(
            fs::read_link(dir.join("libibverbs.so.1")).unwrap(),
            Path::new("../libibverbs.so"),
            "relative, so that the build directory can move"
        );

        fs::remove_file(dir.join("libefa.so.1")).unwrap();
        fs::remove_file(dir.join("libmana.so")).unwrap();
        fs::remove_file(dir.join("libmlx5.so.1")).unwrap();
        fs::write(dir.join("libmlx5.so.1"), "a file in the way").unwrap();
        assert_complete(&find_from(exe.path(), no_fallback).unwrap());
    }

    #[test]
    fn many_processes_may_make_the_links_at_once() {
        let exe = built();
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let dir = find_from(exe.path(), no_fallback).unwrap();
                    // The directory must be complete as soon as any thread returns it.
                    for library in LIBRARIES {
                        assert!(names(library).iter().all(|name| dir.join(name).is_file()));
                    }
                });
            }
        });
        assert_complete(&exe.path().join(LINK_DIR));
    }

    #[test]
    fn an_installation_needs_no_links() {
        let prefix = tempfile::tempdir().unwrap();
        let (bin, lib) = (prefix.path().join("bin"), prefix.path().join("lib/rocade"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        for library in LIBRARIES {
            fs::write(lib.join(format!("{library}.so.1")), library).unwrap();
        }
        let dir = find_from(&bin, no_fallback).unwrap();
        assert_eq!(dir, fs::canonicalize(&lib).unwrap());
        assert_eq!(fs::read_dir(&bin).unwrap().count(), 0);
    }

    #[test]
    fn another_place_is_used_when_there_is_no_writing() {
        let exe = built();
        // A file in place of the directory also stops root.
        fs::write(exe.path().join(LINK_DIR), "").unwrap();
        let other = tempfile::tempdir().unwrap();
        let dir = find_from(exe.path(), |_| Ok(other.path().join("libs/x"))).unwrap();
        assert_eq!(dir, other.path().join("libs/x"));
        assert_complete(&dir);
    }

    #[test]
    fn a_command_that_was_installed_alone_is_told_how_to_get_them() {
        let prefix = tempfile::tempdir().unwrap();
        let bin = prefix.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let text = find_from(&bin, no_fallback)
            .expect_err("nothing there")
            .to_string();
        assert!(text.contains("lib/rocade/libibverbs.so.1"), "{text}");
        assert!(text.contains("rocade install"), "{text}");
    }

    #[test]
    fn missing_libraries_are_named_with_the_cure() {
        let exe = built();
        fs::remove_file(exe.path().join("librdmacm.so")).unwrap();
        let text = find_from(exe.path(), no_fallback)
            .expect_err("incomplete")
            .to_string();
        assert!(text.contains("librdmacm.so"), "{text}");
        assert!(text.contains("cargo build --release"), "{text}");
    }
}
