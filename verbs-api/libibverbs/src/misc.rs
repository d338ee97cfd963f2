//! `fork` support and sysfs.

use std::{
    ffi::{CString, OsStr, c_char, c_int, c_uint, c_void},
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::OnceLock,
};

use rocade_abi::IBV_FORK_UNNEEDED;
use rocade_sysfs_view::Node;

use crate::{
    args::{Buffer, Room, Text},
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
pub(crate) extern "C" fn ibv_fork_range(_base: *mut c_void, _size: usize) -> c_int {
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
pub(crate) fn ibv_read_sysfs_file(dir: Text<'_>, file: Text<'_>, buf: Room<'_>) -> c_int {
    neg_verb(|| {
        let (Some(dir), Some(file), false) = (dir.get(), file.get(), buf.is_null()) else {
            return Err(Errno::INVAL);
        };
        let dir = Path::new(OsStr::from_bytes(dir.to_bytes()));
        let file = Path::new(OsStr::from_bytes(file.to_bytes()));
        let content = match own_attribute(dir, file) {
            Some(text) => text.into_bytes(),
            None => fs::read(dir.join(file))
                .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?,
        };
        copy_text(&content, buf)
    })
}

/// Copies `content` without a final newline, NUL-terminated if there is space.
fn copy_text(content: &[u8], buf: Room<'_>) -> Result<c_int, Errno> {
    let text = content.strip_suffix(b"\n").unwrap_or(content);
    let len = text.len().min(buf.len());
    buf.copy_from(Buffer::of(text));
    buf.part(len, 1).copy_from(Buffer::of(&[0]));
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
        let mut buf = [1; 16];
        let room = Room::of(&mut buf);
        let len = ibv_read_sysfs_file(Text::of(&c_dir), Text::of(&c_name), room);
        fs::remove_file(dir.join(&name)).expect("made above");
        assert_eq!((len, buf[5]), (5, 0));
    }
}
