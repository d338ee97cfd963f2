//! Recognises the paths of the view, and returns their shadow paths in the staging directory.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum length of a path.
pub(crate) const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Directories of the view, with everything below them. A path that reaches them through a link of
/// the host is not recognised.
const VIEW_DIRS: [&[u8]; 5] = [
    b"/dev/infiniband",
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_mad",
    b"/sys/devices/rocade",
];
const CLASSES: &[u8] = b"/sys/class";
/// Parent directories of the view. Neither these directories nor those of the view are links.
const ABOVE: [&[u8]; 6] = [
    b"",
    b"/dev",
    b"/sys",
    CLASSES,
    b"/sys/class/net",
    b"/sys/devices",
];
const NET: &[u8] = b"/sys/class/net/";
const CHAR_DEVICES: &[u8] = b"/dev/infiniband/";

/// The name of the staging directory, which is set once before `main`.
struct StagingDir {
    bytes: UnsafeCell<[u8; PATH_MAX]>,
    len: AtomicUsize,
}

// SAFETY: the bytes are written before `len` is set, by the only thread during the initialisation
// of libraries, and never again.
unsafe impl Sync for StagingDir {}

static STAGING_DIR: StagingDir = StagingDir {
    bytes: UnsafeCell::new([0; PATH_MAX]),
    len: AtomicUsize::new(0),
};

/// Returns the staging directory without a final `/`, or an empty slice if there is none.
pub(crate) fn staging_dir() -> &'static [u8] {
    let len = STAGING_DIR.len.load(Ordering::Acquire);
    // SAFETY: the first `len` bytes were written before `len`, and do not change.
    unsafe { std::slice::from_raw_parts(STAGING_DIR.bytes.get().cast::<u8>(), len) }
}

/// Stores the staging directory, because the program may change its environment later.
extern "C" fn initialise() {
    // SAFETY: the name is terminated, and no other thread changes the environment now.
    let value = unsafe { libc::getenv(c"ROCADE_VIEW_STAGE".as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: not NULL, so a terminated string.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    let value = value.strip_suffix(b"/").unwrap_or(value);
    if value.first() == Some(&b'/') && value.len() < PATH_MAX {
        // SAFETY: `len` is still 0, so that no thread reads the bytes. The value fits.
        unsafe {
            std::ptr::copy_nonoverlapping(
                value.as_ptr(),
                STAGING_DIR.bytes.get().cast(),
                value.len(),
            );
        }
        STAGING_DIR.len.store(value.len(), Ordering::Release);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn() = initialise;

/// A path, or its shadow path in the staging directory.
pub(crate) struct ViewPath {
    given: *const c_char,
    shadow_path: Option<ShadowPath>,
}

struct ShadowPath {
    bytes: [u8; PATH_MAX],
    /// The start of the path: behind the name of the staging directory for a path that leaves the
    /// view by `..`. The host need not have the directories of such a path.
    start: usize,
    is_char_device: bool,
}

impl ViewPath {
    /// Returns the path for libc's function.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        match &self.shadow_path {
            Some(shadow_path) => shadow_path.bytes[shadow_path.start..].as_ptr().cast(),
            None => self.given,
        }
    }

    /// Returns true if the path is redirected to the staging directory.
    pub(crate) fn is_ours(&self) -> bool {
        self.shadow_path
            .as_ref()
            .is_some_and(|shadow_path| shadow_path.start == 0)
    }

    /// Returns true for a device, which is a link in the staging directory.
    pub(crate) fn is_char_device(&self) -> bool {
        self.shadow_path
            .as_ref()
            .is_some_and(|shadow_path| shadow_path.is_char_device)
    }
}

/// Returns true if the path may belong to the view. This rejects most paths without a copy on the
/// stack.
///
/// # Safety
/// `path` must be NULL or a terminated string.
#[inline]
pub(crate) unsafe fn may_be_ours(path: *const c_char) -> bool {
    // SAFETY: if it is not NULL there is at least the terminator.
    if staging_dir().is_empty() || path.is_null() || unsafe { *path.cast::<u8>() } != b'/' {
        return false;
    }
    // SAFETY: not NULL, so by contract terminated.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes();
    let mut parts = given.split(|byte| *byte == b'/');
    let first = parts.find(|part| !matches!(*part, b"" | b"."));
    matches!(first, Some(b"dev" | b"sys"))
}

/// Redirects a path.
///
/// # Safety
/// `path` must be NULL or a terminated string that lives as long as the result.
pub(crate) unsafe fn redirect(path: *const c_char) -> ViewPath {
    // SAFETY: same contract.
    let shadow_path = if unsafe { may_be_ours(path) } {
        // SAFETY: it is not NULL, so by contract terminated.
        shadow_path(staging_dir(), unsafe { CStr::from_ptr(path) }.to_bytes())
    } else {
        None
    };
    ViewPath {
        given: path,
        shadow_path,
    }
}

/// Redirects a path like [`redirect`], for functions that list a directory. The staging directory
/// has the directory of the classes with all its entries, which link to the host's.
///
/// # Safety
/// As for [`redirect`].
pub(crate) unsafe fn redirect_list(path: *const c_char) -> ViewPath {
    // SAFETY: same contract.
    let mut redirected = unsafe { redirect(path) };
    // SAFETY: same contract.
    if !redirected.is_ours() && unsafe { may_be_ours(path) } {
        // SAFETY: it is not NULL, so by contract terminated.
        let given = unsafe { CStr::from_ptr(path) }.to_bytes();
        redirected.shadow_path = shadow_path_if(staging_dir(), given, |plain, _| {
            plain.strip_suffix(b"/").unwrap_or(plain) == CLASSES
        });
    }
    redirected
}

/// Returns the shadow path of a path of the view.
fn shadow_path(staging_dir: &[u8], given: &[u8]) -> Option<ShadowPath> {
    shadow_path_if(staging_dir, given, |plain, whole| {
        let ours = VIEW_DIRS.iter().any(|dir| is_below(plain, dir));
        ours || is_device_of_interface(whole, staging_dir.len(), staging_dir.len() + plain.len())
    })
}

/// Returns the shadow path if `is_ours` returns true for the normalised path and the shadow path
/// that ends with it.
fn shadow_path_if(
    staging_dir: &[u8],
    given: &[u8],
    is_ours: impl Fn(&[u8], &[u8; PATH_MAX]) -> bool,
) -> Option<ShadowPath> {
    let mut bytes = [0; PATH_MAX];
    bytes
        .get_mut(..staging_dir.len())?
        .copy_from_slice(staging_dir);
    let (len, leaves_view) = tidy(given, bytes.get_mut(staging_dir.len()..)?)?;
    let len = staging_dir.len() + len;
    if len >= PATH_MAX {
        return None;
    }
    let plain = &bytes[staging_dir.len()..len];
    if !is_ours(plain, &bytes) {
        let start = staging_dir.len();
        return leaves_view.then_some(ShadowPath {
            bytes,
            start,
            is_char_device: false,
        });
    }
    let is_char_device = plain
        .strip_prefix(CHAR_DEVICES)
        .is_some_and(|name| !name.is_empty() && !name.contains(&b'/'));
    Some(ShadowPath {
        bytes,
        start: 0,
        is_char_device,
    })
}

/// Copies a path without double slashes and single dots. Returns its length, and whether it entered
/// and left a directory of the view.
///
/// A final slash stays, because it requires a directory. A `..` removes the preceding directory if
/// that is no link, and can leave the view this way. Any other `..` stays, because its meaning
/// depends on links.
fn tidy(given: &[u8], out: &mut [u8]) -> Option<(usize, bool)> {
    let mut len = 0;
    let mut leaves_view = false;
    let mut left = given;
    while let Some(start) = left.iter().position(|byte| *byte != b'/') {
        let end = left[start..].iter().position(|byte| *byte == b'/');
        let end = end.map_or(left.len(), |end| start + end);
        let part = &left[start..end];
        left = &left[end..];
        if part == b"." {
            continue;
        }
        if part == b".." && is_plain_directory(&out[..len]) {
            leaves_view |= VIEW_DIRS.contains(&&out[..len]);
            let parent = out[..len].iter().rposition(|byte| *byte == b'/');
            let parent = parent.unwrap_or(0);
            // The bytes behind the end must be zero.
            out[parent..len].fill(0);
            len = parent;
            continue;
        }
        *out.get_mut(len)? = b'/';
        out.get_mut(len + 1..=len + part.len())?
            .copy_from_slice(part);
        len += 1 + part.len();
    }
    if !left.is_empty() {
        *out.get_mut(len)? = b'/';
        len += 1;
    }
    if len == 0 {
        *out.first_mut()? = b'/';
        len = 1;
    }
    Some((len, leaves_view))
}

/// Returns true for a directory of the view or above it that is no link. There, `..` is the parent.
fn is_plain_directory(path: &[u8]) -> bool {
    VIEW_DIRS.contains(&path) || ABOVE.contains(&path)
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

/// Returns true for `/sys/class/net/IF/device...` of an interface in the staging directory.
fn is_device_of_interface(bytes: &[u8; PATH_MAX], staging_len: usize, len: usize) -> bool {
    let Some(rest) = bytes[staging_len..len].strip_prefix(NET) else {
        return false;
    };
    let Some(name_len) = rest.iter().position(|byte| *byte == b'/') else {
        return false;
    };
    if !is_below(&rest[name_len..], b"/device") {
        return false;
    }
    let mut shadow_path = *bytes;
    shadow_path[staging_len + NET.len() + name_len] = 0;
    // SAFETY: terminated by the byte just written, and the system call only reads it. Libc's
    // function cannot be used here, because this library replaces it.
    let found = unsafe {
        libc::syscall(
            libc::SYS_faccessat,
            libc::AT_FDCWD,
            shadow_path.as_ptr(),
            libc::F_OK,
        )
    };
    found == 0
}

/// Returns the length of the staging directory's name at the start of a path that libc found, or 0.
pub(crate) fn staging_prefix(found: &[u8]) -> usize {
    let staging_dir = staging_dir();
    if !staging_dir.is_empty() && is_below(found, staging_dir) && found.len() > staging_dir.len() {
        staging_dir.len()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected(path: &str) -> Option<String> {
        let shadow_path = shadow_path(b"/stage", path.as_bytes())?;
        let text = CStr::from_bytes_until_nul(&shadow_path.bytes[shadow_path.start..])
            .expect("terminated");
        Some(text.to_str().expect("ASCII").to_owned())
    }

    #[test]
    fn paths_of_the_view_have_twins() {
        for (path, shadow_path) in [
            ("/dev/infiniband", "/stage/dev/infiniband"),
            (
                "/dev//infiniband/./uverbs0",
                "/stage/dev/infiniband/uverbs0",
            ),
            ("//dev/infiniband/", "/stage/dev/infiniband/"),
            (
                "/./sys/class/infiniband/a/../..",
                "/stage/sys/class/infiniband/a/../..",
            ),
            (
                "/sys/class/infiniband_verbs/.",
                "/stage/sys/class/infiniband_verbs",
            ),
            (
                "/sys/devices/rocade/hca/a",
                "/stage/sys/devices/rocade/hca/a",
            ),
            (
                "/dev/infiniband/../infiniband/uverbs0",
                "/stage/dev/infiniband/uverbs0",
            ),
            (
                "/dev/../sys/class/net/../infiniband/a",
                "/stage/sys/class/infiniband/a",
            ),
        ] {
            assert_eq!(redirected(path).as_deref(), Some(shadow_path), "{path}");
        }
    }

    #[test]
    fn other_paths_stay() {
        for path in [
            "",
            "/",
            ".",
            "/dev",
            "/dev/infiniband2",
            "/dev/null",
            "/sys/class",
            "/sys/class/infiniband_cm",
            "/sys/class/net/lo/mtu",
            "/sys/class/net/no-such/device",
            "/srv/dev/infiniband",
            "/dev/../../etc",
            "/dev/../dev/null",
        ] {
            assert_eq!(redirected(path), None, "{path}");
        }
        let long = format!("/dev/infiniband/{}", "x".repeat(PATH_MAX));
        assert_eq!(redirected(&long), None);
    }

    /// The host need not have the directories of such a path.
    #[test]
    fn paths_that_leave_the_view_are_shortened() {
        for (path, short) in [
            ("/dev/infiniband/../null", "/dev/null"),
            ("/dev/infiniband/..", "/dev"),
            ("/dev/infiniband/../", "/dev/"),
            ("/dev/infiniband/../..", "/"),
            ("/dev/infiniband/../../etc/passwd", "/etc/passwd"),
            (
                "/sys/class/infiniband/../net/lo/mtu",
                "/sys/class/net/lo/mtu",
            ),
        ] {
            assert_eq!(redirected(path).as_deref(), Some(short), "{path}");
        }
    }

    #[test]
    fn devices_are_told_from_directories() {
        let is =
            |path: &str| shadow_path(b"/stage", path.as_bytes()).is_some_and(|t| t.is_char_device);
        assert!(is("/dev/infiniband/uverbs0"));
        assert!(!is("/dev/infiniband/"));
        assert!(!is("/dev/infiniband"));
    }
}
