//! `fork` support and sysfs.

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void},
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::OnceLock,
};

use rocade_abi::IBV_FORK_UNNEEDED;
use rocade_sysfs_view::Node;

use crate::{
    ffi::{Errno, neg_verb},
    process,
};

/// `ibv_fork_init`: has nothing to prepare, because registered memory is ordinary memory.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range` and `ibv_dofork_range`.
pub(crate) unsafe extern "C" fn ibv_fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_get_sysfs_path`: `$SYSFS_PATH`, else `/sys`.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let set = std::env::var_os("SYSFS_PATH").filter(|path| !path.is_empty());
        set.and_then(|path| CString::new(path.as_bytes()).ok())
            .unwrap_or_else(|| c"/sys".into())
    });
    path.as_ptr()
}

/// `ibv_read_sysfs_file`: returns the length of the content without a final newline, or -1.
/// Attributes of Rocade's devices are read from memory.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    neg_verb(|| {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: not NULL, and by contract a terminated string.
        let dir = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(dir) }.to_bytes()));
        // SAFETY: as above.
        let file = Path::new(OsStr::from_bytes(
            unsafe { CStr::from_ptr(file) }.to_bytes(),
        ));
        let content = match own_attribute(dir, file) {
            Some(text) => text.into_bytes(),
            None => fs::read(dir.join(file))
                .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?,
        };
        // SAFETY: by contract `buf` has space for `size` bytes.
        unsafe { copy_text(&content, buf, size) }
    })
}

/// Copies `content` without a final newline, NUL-terminated if there is space.
///
/// # Safety
/// `buf` must be writable for `size` bytes.
unsafe fn copy_text(content: &[u8], buf: *mut c_char, size: usize) -> Result<c_int, Errno> {
    let text = content.strip_suffix(b"\n").unwrap_or(content);
    let len = text.len().min(size);
    // SAFETY: `len` is at most `size`.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, len) };
    if len < size {
        // SAFETY: the buffer is longer than the text.
        unsafe { buf.add(len).write(0) };
    }
    c_int::try_from(len).map_err(|_| Errno::INVAL)
}

/// Returns the content of a file of a Rocade device from the device tree. Files that change, or
/// depend on the host, are not in the tree: they are read from the file system.
fn own_attribute(dir: &Path, file: &Path) -> Option<String> {
    let path = dir.join(file);
    let name = path.strip_prefix("/sys/class").ok()?;
    if !name.starts_with("infiniband") && !name.starts_with("infiniband_verbs") {
        return None;
    }
    let tree = process::host().ok()?.tree();
    match tree.find(path.to_str()?)? {
        Node::File(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_file_is_read_without_its_newline() {
        let dir = std::env::temp_dir();
        let name = format!("rocade-sysfs-{}", std::process::id());
        fs::write(dir.join(&name), "value\n").expect("the temporary directory is writable");
        let c_dir = CString::new(dir.as_os_str().as_bytes()).expect("no NUL in a path");
        let c_name = CString::new(name.as_bytes()).expect("no NUL in a name");
        let mut buf: [c_char; 16] = [1; 16];
        // SAFETY: terminated strings, and a buffer of the length given.
        let len = unsafe {
            ibv_read_sysfs_file(c_dir.as_ptr(), c_name.as_ptr(), buf.as_mut_ptr(), buf.len())
        };
        fs::remove_file(dir.join(&name)).expect("made above");
        assert_eq!((len, buf[5]), (5, 0));
    }
}
