//! Functions that open, list or query the file at a path.
//!
//! `open` and similar functions take a mode only if they create a file. The wrapper always passes
//! it on: its register or stack slot exists, and libc ignores it otherwise.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{DIR, FILE, dirent, dirent64, mode_t, off_t, ssize_t};

use crate::redirect_functions;

type Select<T> = Option<unsafe extern "C" fn(*const T) -> c_int>;
type Compare<T> = Option<unsafe extern "C" fn(*mut *const T, *mut *const T) -> c_int>;
type Visit = Option<unsafe extern "C" fn(*const c_char, *const c_void, c_int) -> c_int>;
type VisitNext =
    Option<unsafe extern "C" fn(*const c_char, *const c_void, c_int, *mut c_void) -> c_int>;

redirect_functions! {
    by redirect:
    fn open([path], flags: c_int, mode: mode_t) -> c_int = -1;
    fn open64([path], flags: c_int, mode: mode_t) -> c_int = -1;
    fn __open_2([path], flags: c_int) -> c_int = -1;
    fn __open64_2([path], flags: c_int) -> c_int = -1;
    fn openat(dir: c_int, [path], flags: c_int, mode: mode_t) -> c_int = -1;
    fn openat64(dir: c_int, [path], flags: c_int, mode: mode_t) -> c_int = -1;
    fn __openat_2(dir: c_int, [path], flags: c_int) -> c_int = -1;
    fn __openat64_2(dir: c_int, [path], flags: c_int) -> c_int = -1;
    fn creat([path], mode: mode_t) -> c_int = -1;
    fn creat64([path], mode: mode_t) -> c_int = -1;
    fn fopen([path], mode: *const c_char) -> *mut FILE = std::ptr::null_mut();
    fn fopen64([path], mode: *const c_char) -> *mut FILE = std::ptr::null_mut();
    fn freopen([path], mode: *const c_char, file: *mut FILE) -> *mut FILE = std::ptr::null_mut();
    fn freopen64([path], mode: *const c_char, file: *mut FILE) -> *mut FILE = std::ptr::null_mut();
    fn stat([path], buf: *mut c_void) -> c_int = -1;
    fn stat64([path], buf: *mut c_void) -> c_int = -1;
    fn __xstat(version: c_int, [path], buf: *mut c_void) -> c_int = -1;
    fn __xstat64(version: c_int, [path], buf: *mut c_void) -> c_int = -1;
    fn access([path], mode: c_int) -> c_int = -1;
    fn eaccess([path], mode: c_int) -> c_int = -1;
    fn euidaccess([path], mode: c_int) -> c_int = -1;
    fn faccessat(dir: c_int, [path], mode: c_int, flags: c_int) -> c_int = -1;
    fn ftw([path], visit: Visit, open: c_int) -> c_int = -1;
    fn ftw64([path], visit: Visit, open: c_int) -> c_int = -1;
    fn nftw([path], visit: VisitNext, open: c_int, flags: c_int) -> c_int = -1;
    fn nftw64([path], visit: VisitNext, open: c_int, flags: c_int) -> c_int = -1;
    fn chdir([path]) -> c_int = -1;
    fn statfs([path], buf: *mut c_void) -> c_int = -1;
    fn statfs64([path], buf: *mut c_void) -> c_int = -1;
    fn statvfs([path], buf: *mut c_void) -> c_int = -1;
    fn statvfs64([path], buf: *mut c_void) -> c_int = -1;
    fn pathconf([path], name: c_int) -> c_long = -1;
    fn truncate([path], length: off_t) -> c_int = -1;
    fn truncate64([path], length: off_t) -> c_int = -1;
    fn getxattr([path], name: *const c_char, value: *mut c_void, size: usize) -> ssize_t = -1;
    fn lgetxattr([path], name: *const c_char, value: *mut c_void, size: usize) -> ssize_t = -1;
    fn listxattr([path], list: *mut c_char, size: usize) -> ssize_t = -1;
    fn llistxattr([path], list: *mut c_char, size: usize) -> ssize_t = -1;
    fn inotify_add_watch(watches: c_int, [path], mask: c_uint) -> c_int = -1;
}

redirect_functions! {
    by redirect_list:
    fn opendir([path]) -> *mut DIR = std::ptr::null_mut();
    fn scandir([path], list: *mut *mut *mut dirent, select: Select<dirent>, compare: Compare<dirent>) -> c_int = -1;
    fn scandir64([path], list: *mut *mut *mut dirent64, select: Select<dirent64>, compare: Compare<dirent64>) -> c_int = -1;
    fn scandirat(dir: c_int, [path], list: *mut *mut *mut dirent, select: Select<dirent>, compare: Compare<dirent>) -> c_int = -1;
    fn scandirat64(dir: c_int, [path], list: *mut *mut *mut dirent64, select: Select<dirent64>, compare: Compare<dirent64>) -> c_int = -1;
}
