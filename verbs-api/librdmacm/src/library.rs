//! Looks up `libibverbs.so.1` for Rocade's other libraries. `libmlx5` and `libefa` share this
//! file.

use std::{
    ffi::{CStr, c_char, c_void},
    mem::transmute_copy,
};

/// # Safety
/// `library` must be a handle of dlopen(3), and `name` a terminated string. `F` must be a function
/// pointer type, and that of the function with this name.
pub(crate) unsafe fn function<F: Copy>(library: *mut c_void, name: *const c_char) -> Option<F> {
    // SAFETY: same contract.
    let found = unsafe { libc::dlsym(library, name) };
    // SAFETY: `F` is a function pointer, as large as any pointer, and not NULL.
    (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
}

/// Returns the library that the program has loaded, or else the one next to this library, or else
/// the default one. Returns NULL if there is none.
pub(crate) fn find() -> *mut c_void {
    let name = c"libibverbs.so.1";
    // SAFETY: a terminated string.
    let mut library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        library = open_beside(name);
    }
    if library.is_null() {
        // SAFETY: a terminated string.
        library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    }
    library
}

/// Opens the library in the directory of this one.
fn open_beside(name: &CStr) -> *mut c_void {
    // SAFETY: all zeroes are a valid structure.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = find as fn() -> *mut c_void as *const c_void;
    // SAFETY: an address, and room for the answer.
    if unsafe { libc::dladdr(here, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: a terminated string that lives as long as the library.
    let own = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    let Some(slash) = own.iter().rposition(|byte| *byte == b'/') else {
        return std::ptr::null_mut();
    };
    let path = [&own[..=slash], name.to_bytes_with_nul()].concat();
    // SAFETY: a terminated string.
    unsafe { libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW) }
}
