//! Tells a program with another libibverbs that it misses Rocade.
//!
//! A libibverbs of rdma-core reads `/sys/class/infiniband_verbs`. If a device there has no driver
//! yet, it loads all drivers, also those of the variable `RDMAV_DRIVERS`. `rocade run` names this
//! library in that variable. So only such a program loads it, at the moment at which it would
//! silently find no devices. Rocade's own libibverbs does not read the variable.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The directory of this library's names in a view, where the warnings of the run are noted.
const DRIVERS: &str = "/sys/devices/rocade/notice";

/// The file name of this library.
const OWN_NAME: &str = "librocade_notice.so";

/// Runs when the library is loaded.
extern "C" fn initialise() {
    // A panic must not reach the dynamic linker.
    let _ = std::panic::catch_unwind(warn);
}

#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn() = initialise;

/// Prints the warning, once per run and foreign library.
fn warn() {
    let is_off = |filter: String| filter.trim().eq_ignore_ascii_case("off");
    if std::env::var("ROCADE_LOG").is_ok_and(is_off) {
        return;
    }
    let drivers = std::env::var_os("RDMAV_DRIVERS").unwrap_or_default();
    let Some(dir) = drivers_dir(drivers.as_bytes()) else {
        return;
    };
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let library = foreign_library(&mapped_files(&maps));
    if was_said(dir, library.as_deref()) {
        return;
    }
    let program = std::env::current_exe().unwrap_or_else(|_| "the program".into());
    // With the preload library there are no mounts, so another remedy is needed.
    let has_mounts = std::env::var_os("ROCADE_VIEW_STAGE").is_none();
    let text = text(&program, library.as_deref(), has_mounts);
    // A standard error that cannot be written is no reason to fail.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Returns the files that `/proc/self/maps` lists.
fn mapped_files(maps: &[u8]) -> Vec<PathBuf> {
    let lines = maps.split(|byte| *byte == b'\n');
    let paths = lines.filter_map(|line| {
        let start = line.iter().position(|byte| *byte == b'/')?;
        Some(PathBuf::from(OsStr::from_bytes(&line[start..])))
    });
    let mut files: Vec<PathBuf> = paths.collect();
    files.dedup();
    files
}

/// Returns the libibverbs among the files that is not Rocade's.
fn foreign_library(files: &[PathBuf]) -> Option<PathBuf> {
    let id = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    let own = files.iter().find(|path| path.ends_with(OWN_NAME));
    let own_dir = own.and_then(|path| path.parent());
    let names = ["libibverbs.so", "libibverbs.so.1"];
    let rocade: Vec<_> = names
        .into_iter()
        .filter_map(|name| id(&own_dir?.join(name)))
        .collect();
    let is_verbs = |path: &&PathBuf| {
        let name = path.file_name().map(OsStr::as_bytes);
        name.is_some_and(|name| name.starts_with(b"libibverbs"))
    };
    let mut found = files.iter().filter(is_verbs);
    found
        .find(|path| {
            let is_of_other_build = path.with_file_name(OWN_NAME).is_file();
            !is_of_other_build && id(path).is_none_or(|id| !rocade.contains(&id))
        })
        .cloned()
}

/// Returns the directory of the driver in `RDMAV_DRIVERS` that `rocade run` named.
fn drivers_dir(drivers: &[u8]) -> Option<&Path> {
    let mut entries = drivers.split(|byte| b":;".contains(byte));
    entries.find_map(|entry| {
        let dir = Path::new(OsStr::from_bytes(entry)).parent()?;
        let is_ours = dir.as_os_str().as_bytes().ends_with(DRIVERS.as_bytes());
        is_ours.then_some(dir)
    })
}

/// Returns true if a process of the run has warned of this library, and notes that this one does.
fn was_said(dir: &Path, library: Option<&Path>) -> bool {
    let name = library.map_or_else(String::new, |path| path.to_string_lossy().replace('/', "!"));
    let note = dir.join(format!("said{name}"));
    let made = fs::File::options().write(true).create_new(true).open(note);
    made.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
}

fn text(program: &Path, library: Option<&Path>, has_mounts: bool) -> String {
    let shown = library.map_or_else(
        || "another libibverbs".to_owned(),
        |path| path.display().to_string(),
    );
    let dir = library.and_then(Path::parent).filter(|_| has_mounts);
    let advice = match dir {
        Some(dir) => format!(
            "have Rocade's in its place: LD_LIBRARY_PATH={} rocade run -- CMD...",
            dir.display()
        ),
        None => "put Rocade's first: rocade run -- env \
                 LD_PRELOAD=$(rocade libdir)/libibverbs.so.1 CMD..."
            .to_owned(),
    };
    format!(
        "rocade: warning: {} uses {shown} and not Rocade's library, so it will find no devices\n  \
         {advice}\n",
        program.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_that_is_not_rocades_is_found() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        for place in [&ours, &theirs] {
            fs::create_dir(place).expect("writable");
        }
        let (rocade, other) = (ours.join("libibverbs.so"), theirs.join("libibverbs.so.1.2"));
        let mount = theirs.join("libibverbs.so.1");
        fs::write(&rocade, "ours").expect("writable");
        fs::write(&other, "theirs").expect("writable");
        fs::hard_link(&rocade, &mount).expect("one file system");
        let mut maps = b"1-2 r-xp 0 08:02 17 [stack]\n".to_vec();
        for file in [&ours.join(OWN_NAME), &rocade, &mount, &mount, &other] {
            let line = format!("1-2 r-xp 0000 08:02 17       {}\n", file.display());
            maps.extend(line.as_bytes());
        }
        let files = mapped_files(&maps);
        assert_eq!(files.len(), 4, "{files:?}");
        assert_eq!(foreign_library(&files), Some(other));
        assert_eq!(foreign_library(&files[..3]), None);
    }

    #[test]
    fn a_run_warns_once_of_each_library() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let drivers = dir.path().join(DRIVERS.trim_start_matches('/'));
        fs::create_dir_all(&drivers).expect("writable");
        let list = format!("rxe:{}/rocade;x", drivers.display());
        let found = drivers_dir(list.as_bytes());
        assert_eq!(found, Some(&*drivers));
        let found = found.expect("it is there");
        for library in [None, Some(Path::new("/a/b")), Some(Path::new("/b"))] {
            assert!(!was_said(found, library), "{library:?}");
            assert!(was_said(found, library), "{library:?}");
        }
        assert_eq!(drivers_dir(b"/opt/drivers/rocade:rxe"), None);
        let missing = Path::new("/no/such/directory");
        assert!(!was_said(missing, None));
        assert!(!was_said(missing, None), "better twice than never");
    }

    #[test]
    fn the_remedy_fits_the_view() {
        let (program, library) = (Path::new("/bin/x"), Path::new("/opt/v/libibverbs.so.1"));
        let mounts = text(program, Some(library), true);
        assert!(
            mounts.contains("LD_LIBRARY_PATH=/opt/v rocade run"),
            "{mounts}"
        );
        let preload = text(program, Some(library), false);
        assert!(preload.contains("LD_PRELOAD="), "{preload}");
        assert!(text(program, None, true).contains("another libibverbs"));
    }
}
