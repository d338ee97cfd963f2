//! Functions that read links or return a path.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libc::ssize_t;

use crate::paths::{PATH_MAX, may_be_ours, redirect, staging_dir, staging_prefix};

fn fail(errno: c_int) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Removes the name of the staging directory from a path that libc returned.
///
/// # Safety
/// `found` must be NULL or a terminated string that may be changed.
unsafe fn strip(found: *mut c_char) {
    if found.is_null() {
        return;
    }
    // SAFETY: not NULL, so by contract terminated.
    let bytes = unsafe { CStr::from_ptr(found) }.to_bytes_with_nul();
    let prefix = staging_prefix(&bytes[..bytes.len() - 1]);
    let left = bytes.len() - prefix;
    if prefix > 0 {
        // SAFETY: both ranges are within the string, and `copy` allows overlaps.
        unsafe { ptr::copy(found.add(prefix), found, left) };
    }
}

/// Exports functions that do not follow links. The staging directory has a link in place of a
/// device, and the program has to see the device itself.
macro_rules! look_at_link {
    ($( fn $name:ident = $following:ident ( $($head:ident : $head_type:ty ,)* [ $path:ident ] , $buf:ident : $buf_type:ty ); )*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            $($head: $head_type,)* $path: *const c_char, $buf: $buf_type
        ) -> c_int {
            $crate::next!($name: fn($($head_type,)* *const c_char, $buf_type) -> c_int, next, -1);
            /// A separate function, because its stack frame holds a path.
            #[cold]
            #[inline(never)]
            unsafe fn redirected(
                next: unsafe extern "C" fn($($head_type,)* *const c_char, $buf_type) -> c_int,
                $($head: $head_type,)* $path: *const c_char, $buf: $buf_type
            ) -> c_int {
                // SAFETY: the caller's contract is that of libc's function.
                unsafe {
                    let redirected = redirect($path);
                    if redirected.is_char_device() {
                        return crate::files::$following($($head,)* $path, $buf);
                    }
                    next($($head,)* redirected.as_ptr(), $buf)
                }
            }
            // SAFETY: the caller keeps the contract of libc's function, and both functions have the
            // same contract.
            unsafe {
                if may_be_ours($path) {
                    redirected(next, $($head,)* $path, $buf)
                } else {
                    next($($head,)* $path, $buf)
                }
            }
        }
    )* };
}

look_at_link! {
    fn lstat = stat([path], buf: *mut c_void);
    fn lstat64 = stat64([path], buf: *mut c_void);
    fn __lxstat = __xstat(version: c_int, [path], buf: *mut c_void);
    fn __lxstat64 = __xstat64(version: c_int, [path], buf: *mut c_void);
}

/// Exports functions with a flag that says whether to follow links.
macro_rules! look_at {
    ($( fn $name:ident ( $($head:ident : $head_type:ty ,)* [ $path:ident ], { $($between:ident : $between_type:ty ,)* }, flags, { $($tail:ident : $tail_type:ty),* } ); )*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            $($head: $head_type,)* $path: *const c_char, $($between: $between_type,)* flags: c_int $(, $tail: $tail_type)*
        ) -> c_int {
            $crate::next!($name: fn($($head_type,)* *const c_char, $($between_type,)* c_int $(, $tail_type)*) -> c_int, next, -1);
            /// A separate function, because its stack frame holds a path.
            #[cold]
            #[inline(never)]
            unsafe fn redirected(
                next: unsafe extern "C" fn($($head_type,)* *const c_char, $($between_type,)* c_int $(, $tail_type)*) -> c_int,
                $($head: $head_type,)* $path: *const c_char, $($between: $between_type,)* flags: c_int $(, $tail: $tail_type)*
            ) -> c_int {
                // SAFETY: the caller's contract is that of libc's function.
                unsafe {
                    let redirected = redirect($path);
                    let flags = if redirected.is_char_device() {
                        flags & !libc::AT_SYMLINK_NOFOLLOW
                    } else {
                        flags
                    };
                    next($($head,)* redirected.as_ptr(), $($between,)* flags $(, $tail)*)
                }
            }
            // SAFETY: the caller keeps the contract of libc's function, which is the same.
            unsafe {
                if may_be_ours($path) {
                    redirected(next, $($head,)* $path, $($between,)* flags $(, $tail)*)
                } else {
                    next($($head,)* $path, $($between,)* flags $(, $tail)*)
                }
            }
        }
    )* };
}

look_at! {
    fn fstatat(dir: c_int, [path], { buf: *mut c_void, }, flags, {});
    fn fstatat64(dir: c_int, [path], { buf: *mut c_void, }, flags, {});
    fn __fxstatat(version: c_int, dir: c_int, [path], { buf: *mut c_void, }, flags, {});
    fn __fxstatat64(version: c_int, dir: c_int, [path], { buf: *mut c_void, }, flags, {});
    fn statx(dir: c_int, [path], {}, flags, { mask: c_uint, buf: *mut c_void });
}

/// Implements `readlink`, and removes the name of the staging directory from the result. Links
/// outside of that directory can also lead there (`/proc/self/cwd`).
///
/// # Safety
/// `path` as for `readlink`, and `buf` writable for `len` bytes. `read` must be libc's function.
unsafe fn read_link(
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
    read: impl Fn(*const c_char, *mut c_char, usize) -> ssize_t,
) -> ssize_t {
    // SAFETY: same contract.
    if unsafe { may_be_ours(path) } {
        // SAFETY: same contract.
        return unsafe { read_link_apart(path, buf, len, read) };
    }
    let found = read(path, buf, len);
    let Ok(count) = usize::try_from(found) else {
        return found;
    };
    let staging_len = staging_dir().len();
    // SAFETY: libc has written this number of bytes.
    let start = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), count) };
    if staging_len == 0
        || count <= staging_len && count < len
        || !staging_dir().starts_with(&start[..staging_len.min(count)])
    {
        return found;
    }
    // SAFETY: same contract.
    unsafe { read_link_apart(path, buf, len, read) }
}

/// Reads a link through a buffer with room for the name of the staging directory.
///
/// # Safety
/// As for [`read_link`].
#[cold]
#[inline(never)]
unsafe fn read_link_apart(
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
    read: impl Fn(*const c_char, *mut c_char, usize) -> ssize_t,
) -> ssize_t {
    // SAFETY: same contract.
    let redirected = unsafe { redirect(path) };
    if redirected.is_char_device() || len == 0 {
        fail(libc::EINVAL);
        return -1;
    }
    let mut target = [0; PATH_MAX];
    let found = read(
        redirected.as_ptr(),
        target.as_mut_ptr().cast(),
        target.len(),
    );
    let Ok(found) = usize::try_from(found) else {
        return found;
    };
    let target: &[u8] = &target[..found];
    let target = &target[staging_prefix(target)..];
    let count = target.len().min(len);
    // SAFETY: `buf` has room for `len` bytes, by contract.
    unsafe { ptr::copy_nonoverlapping(target.as_ptr().cast(), buf, count) };
    ssize_t::try_from(count).unwrap_or(ssize_t::MAX)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn readlink(
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
) -> ssize_t {
    crate::next!(readlink: fn(*const c_char, *mut c_char, usize) -> ssize_t, next, -1);
    // SAFETY: the caller's contract is the same.
    unsafe { read_link(path, buf, len, |path, buf, len| next(path, buf, len)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
    room: usize,
) -> ssize_t {
    if len > room {
        // libc aborts, too, if the buffer is too short.
        std::process::abort();
    }
    // SAFETY: the caller's contract is the same.
    unsafe { readlink(path, buf, len) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn readlinkat(
    dir: c_int,
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
) -> ssize_t {
    crate::next!(readlinkat: fn(c_int, *const c_char, *mut c_char, usize) -> ssize_t, next, -1);
    // SAFETY: the caller's contract is the same.
    unsafe { read_link(path, buf, len, |path, buf, len| next(dir, path, buf, len)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __readlinkat_chk(
    dir: c_int,
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
    room: usize,
) -> ssize_t {
    if len > room {
        std::process::abort();
    }
    // SAFETY: the caller's contract is the same.
    unsafe { readlinkat(dir, path, buf, len) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn realpath(
    path: *const c_char,
    resolved: *mut c_char,
) -> *mut c_char {
    crate::next!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char, next, ptr::null_mut());
    /// A separate function, because its stack frame holds a path.
    #[cold]
    #[inline(never)]
    unsafe fn redirected(
        next: unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char,
        path: *const c_char,
        resolved: *mut c_char,
    ) -> *mut c_char {
        // SAFETY: the caller's contract is that of `realpath`.
        unsafe {
            let redirected = redirect(path);
            if redirected.is_char_device() {
                real_device(path, redirected.as_ptr(), resolved, next)
            } else {
                next(redirected.as_ptr(), resolved)
            }
        }
    }
    // SAFETY: the caller keeps the contract of libc's function, and may change the result.
    unsafe {
        let found = if may_be_ours(path) {
            redirected(next, path, resolved)
        } else {
            next(path, resolved)
        };
        strip(found);
        found
    }
}

/// Returns the real path of a device: the real path of its directory, and its name. In the staging
/// directory the device is a link.
///
/// # Safety
/// As for `realpath`. `shadow_path` must be the shadow path, and `next` libc's function.
unsafe fn real_device(
    path: *const c_char,
    shadow_path: *const c_char,
    resolved: *mut c_char,
    next: unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char,
) -> *mut c_char {
    // SAFETY: `shadow_path` is terminated. With NULL, libc allocates the result for the caller.
    let there = unsafe { next(shadow_path, ptr::null_mut()) };
    if there.is_null() {
        return there;
    }
    // SAFETY: allocated by malloc(3), and not used any more.
    unsafe { libc::free(there.cast()) };
    // SAFETY: terminated. The device is `/dev/infiniband/NAME` in every spelling of its path.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let name = given.rsplit(|byte| *byte == b'/').next().unwrap_or(given);
    let dir = b"/dev/infiniband/";
    let target = if resolved.is_null() {
        // SAFETY: malloc(3) accepts any size.
        unsafe { libc::malloc(dir.len() + name.len()) }.cast()
    } else {
        resolved
    };
    if !target.is_null() {
        // SAFETY: there is room for both parts: allocated above, or by contract `PATH_MAX` bytes,
        // the maximum length of a path.
        unsafe {
            ptr::copy_nonoverlapping(dir.as_ptr().cast(), target, dir.len());
            ptr::copy_nonoverlapping(name.as_ptr().cast(), target.add(dir.len()), name.len());
        }
    }
    target
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    resolved: *mut c_char,
    room: usize,
) -> *mut c_char {
    if room < PATH_MAX {
        std::process::abort();
    }
    // SAFETY: the caller's contract is the same.
    unsafe { realpath(path, resolved) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's contract is that of `realpath` with NULL.
    unsafe { realpath(path, ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getcwd(buf: *mut c_char, size: usize) -> *mut c_char {
    crate::next!(getcwd: fn(*mut c_char, usize) -> *mut c_char, next, ptr::null_mut());
    // SAFETY: the caller keeps the contract of libc's function, and may change the result.
    unsafe {
        let found = next(buf, size);
        strip(found);
        found
    }
}

type GlobError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

/// Removes the name of the staging directory from the results of `glob`.
///
/// # Safety
/// `found` must have been filled by libc's `glob`.
unsafe fn strip_all(found: *mut libc::glob_t, flags: c_int) {
    // SAFETY: by contract readable.
    let (paths, count, offset) =
        unsafe { ((*found).gl_pathv, (*found).gl_pathc, (*found).gl_offs) };
    let first = if flags & libc::GLOB_DOOFFS == 0 {
        0
    } else {
        offset
    };
    for index in first..first + count {
        // SAFETY: `glob` returned this number of terminated strings, which `globfree` will free by
        // their start.
        unsafe { strip(*paths.add(index)) };
    }
}

macro_rules! globbing {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            error: GlobError,
            found: *mut libc::glob_t,
        ) -> c_int {
            $crate::next!(
                $name: fn(*const c_char, c_int, GlobError, *mut libc::glob_t) -> c_int,
                next,
                libc::GLOB_ABORTED
            );
            // SAFETY: the caller's contract is the same.
            unsafe {
                let redirected = redirect(pattern);
                let result = next(redirected.as_ptr(), flags, error, found);
                if result == 0 && redirected.is_ours() {
                    strip_all(found, flags);
                }
                result
            }
        }
    )* };
}

globbing! { glob glob64 }
