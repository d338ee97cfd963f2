//! Functions that execute a program.
//!
//! A program for another C library (musl) fails to start if it has to load this library, so it gets
//! an environment without it. A program that gets an emptied environment, as by `env -i`, gets the
//! variables of the run again. An environment that still has the staging directory is left as it
//! is: the caller may have taken this library out of it on purpose.
//!
//! These functions are called between `vfork` and `exec`. So a changed environment is built in a
//! mapping of its own.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::paths::PATH_MAX;

/// An argument list or environment: pointers to strings, with NULL behind the last one.
type Strings = *const *const c_char;

/// The maximum number of variables that are restored.
const MAX_SAVED: usize = 40;
/// The start of the variable by which an emptied environment is recognised.
const SIGN: &[u8] = b"ROCADE_VIEW_STAGE=";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// The variables of a run, besides those that start with `ROCADE_`.
const OTHERS: [&[u8]; 3] = [PRELOAD, b"LD_LIBRARY_PATH=", b"RDMAV_DRIVERS="];
/// The file name of this library.
const OWN_NAME: &[u8] = b"librocade_preload.so";

/// The variables of the run, which are set once before `main`.
struct Saved {
    entries: UnsafeCell<[*const c_char; MAX_SAVED]>,
    len: AtomicUsize,
}

// SAFETY: the entries are written before `len` is set, by the only thread during the initialisation
// of libraries, and never again.
unsafe impl Sync for Saved {}

static SAVED: Saved = Saved {
    entries: UnsafeCell::new([ptr::null(); MAX_SAVED]),
    len: AtomicUsize::new(0),
};

unsafe extern "C" {
    static environ: Strings;
}

/// Stores copies of the variables of the run, because the program may change its environment.
extern "C" fn initialise() {
    // SAFETY: no other thread changes the environment now. The entries are not read before `len` is
    // set, and each copy is a new string that is never freed.
    unsafe {
        let all = strings(environ);
        let is_ours = |entry: &[u8]| {
            entry.starts_with(b"ROCADE_") || OTHERS.iter().any(|name| entry.starts_with(name))
        };
        if !all.clone().any(|entry| text(entry).starts_with(SIGN)) {
            return;
        }
        let ours = all.filter(|entry| is_ours(text(*entry)));
        let mut count = 0;
        for entry in ours.take(MAX_SAVED) {
            let copy = libc::strdup(entry);
            if !copy.is_null() {
                SAVED
                    .entries
                    .get()
                    .cast::<*const c_char>()
                    .add(count)
                    .write(copy);
                count += 1;
            }
        }
        SAVED.len.store(count, Ordering::Release);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn() = initialise;

/// Returns the variables of the run.
fn saved() -> &'static [*const c_char] {
    let len = SAVED.len.load(Ordering::Acquire);
    // SAFETY: the first `len` entries were written before `len`, and do not change.
    unsafe { std::slice::from_raw_parts(SAVED.entries.get().cast(), len) }
}

/// Returns the entries of a list, which may be NULL.
///
/// # Safety
/// The list must live as long as the iterator.
unsafe fn strings(list: Strings) -> impl Iterator<Item = *const c_char> + Clone {
    (0..).map_while(move |index| {
        if list.is_null() {
            return None;
        }
        // SAFETY: no earlier entry was the NULL behind the last one.
        let entry = unsafe { *list.add(index) };
        (!entry.is_null()).then_some(entry)
    })
}

/// # Safety
/// `string` must be a terminated string that lives long enough.
unsafe fn text<'a>(string: *const c_char) -> &'a [u8] {
    // SAFETY: same contract.
    unsafe { CStr::from_ptr(string) }.to_bytes()
}

/// A changed environment in a mapping of its own. It is unmapped if the program was not executed. A
/// parent that shares its memory with the executing child (`vfork`) keeps the mapping.
struct Environment {
    start: *mut *const c_char,
    bytes: usize,
}

impl Drop for Environment {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the list is not used any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

impl Environment {
    /// Returns an environment with the variables of the run in addition to `given`.
    ///
    /// # Safety
    /// `given` must be a list or NULL.
    unsafe fn restored(given: Strings) -> Option<Self> {
        // SAFETY: same contract.
        let given = unsafe { strings(given) };
        let name = |entry: *const c_char| {
            // SAFETY: entries are terminated strings.
            let text = unsafe { text(entry) };
            text.split(|byte| *byte == b'=').next().unwrap_or(text)
        };
        let is_new = |own: &&*const c_char| !given.clone().any(|entry| name(entry) == name(**own));
        let added = saved().iter().filter(is_new).copied();
        Self::new(given.clone().chain(added), 0)
    }

    /// Returns `given` without this library in `LD_PRELOAD`, or `None` if it is not there.
    ///
    /// # Safety
    /// `given` must be a list or NULL.
    unsafe fn without_this_library(given: Strings) -> Option<Self> {
        // SAFETY: same contract, and entries are terminated strings.
        let (given, value) = unsafe {
            let given = strings(given);
            let value = given.clone().map(|entry| text(entry));
            (
                given,
                value
                    .clone()
                    .find_map(|entry| entry.strip_prefix(PRELOAD))?,
            )
        };
        let others = other_libraries(value);
        let keeps = others.clone().next().is_some();
        let others_len: usize = others.clone().map(|one| one.len() + 1).sum();
        // SAFETY: as above.
        let is_other = |entry: &*const c_char| !unsafe { text(*entry) }.starts_with(PRELOAD);
        let list = given.filter(is_other);
        let count = list.clone().count();
        let environment = Self::new(list, PRELOAD.len() + others_len + 1 + size_of::<usize>())?;
        if keeps {
            // SAFETY: `new` made room for one more pointer with NULL behind it, and for the text.
            // The text ends in a zero byte, because mappings are filled with zeroes.
            unsafe {
                let text = environment.start.add(count + 2).cast::<u8>();
                let mut at = text;
                let mut write = |bytes: &[u8]| {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
                    at = at.add(bytes.len());
                };
                write(PRELOAD);
                for (index, one) in others.enumerate() {
                    if index > 0 {
                        write(b":");
                    }
                    write(one);
                }
                environment.start.add(count).write(text.cast());
            }
        }
        Some(environment)
    }

    /// Maps a list of these entries, with NULL behind it and `more` bytes of zeroes.
    fn new(entries: impl Iterator<Item = *const c_char> + Clone, more: usize) -> Option<Self> {
        let count = entries.clone().count();
        let bytes = (count + 1) * size_of::<*const c_char>() + more;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start: *mut *const c_char = start.cast();
        for (index, entry) in entries.enumerate() {
            // SAFETY: the mapping has room for all entries.
            unsafe { start.add(index).write(entry) };
        }
        Some(Self { start, bytes })
    }
}

/// Returns the entries of `LD_PRELOAD` except this library.
fn other_libraries(value: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let entries = value.split(|byte| b": ".contains(byte));
    entries.filter(|entry| {
        let name = entry.rsplit(|byte| *byte == b'/').next();
        !entry.is_empty() && name != Some(OWN_NAME)
    })
}

/// Calls `execute` with the environment for the program at `file`, or for the one of this name in
/// `PATH` if `searches`.
///
/// # Safety
/// `file` must be NULL or a terminated string, and `given` a list or NULL.
unsafe fn with_environment(
    file: *const c_char,
    searches: bool,
    given: Strings,
    execute: impl FnOnce(Strings) -> c_int,
) -> c_int {
    if saved().is_empty() || file.is_null() {
        return execute(given);
    }
    // SAFETY: `file` and the entries are terminated strings, and `given` is a list or NULL.
    let changed = unsafe {
        if is_for_other_libc(text(file), searches) {
            Environment::without_this_library(given)
        } else if strings(given).any(|entry| text(entry).starts_with(SIGN)) {
            None
        } else {
            Environment::restored(given)
        }
    };
    match &changed {
        Some(environment) => execute(environment.start),
        None => execute(given),
    }
}

/// Returns true if the dynamic linker of a program, or of the interpreter of a script, is that of
/// another C library.
#[cold]
#[inline(never)]
fn is_for_other_libc(file: &[u8], searches: bool) -> bool {
    let mut path = [0; PATH_MAX];
    if !searches || file.contains(&b'/') {
        return join(&mut path, b"", file).is_some_and(looks_other);
    }
    // SAFETY: a terminated name. The value is used before anything can change it.
    let dirs = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if dirs.is_null() {
        return false;
    }
    // SAFETY: not NULL, so a terminated string.
    let dirs = unsafe { text(dirs) };
    for dir in dirs.split(|byte| *byte == b':') {
        if let Some(candidate) = join(&mut path, dir, file) {
            // SAFETY: a terminated string.
            if unsafe { libc::access(candidate.as_ptr(), libc::X_OK) } == 0 {
                return looks_other(candidate);
            }
        }
    }
    false
}

/// Writes `dir/file` into the buffer, or `file` for an empty `dir`.
fn join<'a>(path: &'a mut [u8; PATH_MAX], dir: &[u8], file: &[u8]) -> Option<&'a CStr> {
    let slash = usize::from(!dir.is_empty());
    let len = dir.len() + slash + file.len();
    if len >= path.len() {
        return None;
    }
    path[..dir.len()].copy_from_slice(dir);
    path[dir.len()..dir.len() + slash].fill(b'/');
    path[dir.len() + slash..len].copy_from_slice(file);
    path[len] = 0;
    CStr::from_bytes_with_nul(&path[..=len]).ok()
}

fn looks_other(path: &CStr) -> bool {
    let mut head = [0; 1024];
    let Some(read) = read_at(path, 0, &mut head) else {
        return false;
    };
    let head = &head[..read];
    if let Some(line) = head.strip_prefix(b"#!") {
        let mut words = line.split(|byte| byte.is_ascii_whitespace());
        let interpreter = words.find(|word| !word.is_empty()).unwrap_or(b"");
        let mut path = [0; 256];
        if interpreter.len() >= path.len() {
            return false;
        }
        path[..interpreter.len()].copy_from_slice(interpreter);
        let mut head = [0; 1024];
        let path = CStr::from_bytes_until_nul(&path).unwrap_or(c"");
        return read_at(path, 0, &mut head).is_some_and(|read| names_other(path, &head[..read]));
    }
    names_other(path, head)
}

/// Returns true if the ELF header of the file at `path` names the dynamic linker of another C
/// library.
fn names_other(path: &CStr, head: &[u8]) -> bool {
    let mut name = [0; 256];
    let read = interpreter_offset(head).and_then(|offset| read_at(path, offset, &mut name));
    let Some(name) = read.and_then(|_| CStr::from_bytes_until_nul(&name).ok()) else {
        return false;
    };
    let name = name.to_bytes().rsplit(|byte| *byte == b'/').next();
    [&b"ld-musl"[..], b"ld-uClibc", b"linker"]
        .iter()
        .any(|other| name.is_some_and(|name| name.starts_with(other)))
}

/// Returns the offset of the path of the dynamic linker in a file of 64 bits.
fn interpreter_offset(head: &[u8]) -> Option<i64> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at.checked_add(len)?)?;
        let shift = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(bytes.iter().rev().fold(0, shift))
    };
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = usize::try_from(number(32, 8)?).ok()?;
    let (size, count) = (number(54, 2)?, number(56, 2)?);
    let entries = (0..count).map(|index| table.checked_add(usize::try_from(index * size).ok()?));
    let entry = entries
        .map_while(|entry| entry)
        .find(|entry| number(*entry, 4) == Some(PT_INTERP))?;
    i64::try_from(number(entry.checked_add(8)?, 8)?).ok()
}

/// Reads from a file, and returns the number of bytes.
fn read_at(path: &CStr, offset: i64, buf: &mut [u8]) -> Option<usize> {
    // SAFETY: a terminated path, and a buffer of this length. The descriptor is closed again.
    let read = unsafe {
        let file = libc::open(
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK,
        );
        if file < 0 {
            return None;
        }
        let read = libc::pread(file, buf.as_mut_ptr().cast(), buf.len(), offset);
        libc::close(file);
        read
    };
    usize::try_from(read).ok()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    crate::next!(execve: fn(*const c_char, Strings, Strings) -> c_int, next, -1);
    // SAFETY: the caller keeps the contract of libc's function.
    unsafe { with_environment(path, false, envp, |envp| next(path, argv, envp)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller keeps the contract of libc's function.
    unsafe { execve(path, argv, environ) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvpe(
    file: *const c_char,
    argv: Strings,
    envp: Strings,
) -> c_int {
    crate::next!(execvpe: fn(*const c_char, Strings, Strings) -> c_int, next, -1);
    // SAFETY: the caller keeps the contract of libc's function.
    unsafe { with_environment(file, true, envp, |envp| next(file, argv, envp)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller keeps the contract of libc's function.
    unsafe { execvpe(file, argv, environ) }
}

/// Exports functions that start a child.
macro_rules! spawn {
    ($( fn $name:ident, searches: $searches:literal; )*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Strings,
            envp: Strings,
        ) -> c_int {
            crate::next!($name: fn(
                *mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings
            ) -> c_int, next, libc::ENOSYS);
            // SAFETY: the caller keeps the contract of libc's function.
            unsafe {
                with_environment(path, $searches, envp, |envp| {
                    next(pid, path, actions, attributes, argv, envp)
                })
            }
        }
    )* };
}

spawn! {
    fn posix_spawn, searches: false;
    fn posix_spawnp, searches: true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_library_is_taken_out_of_the_list() {
        let others =
            |value: &'static str| -> Vec<&[u8]> { other_libraries(value.as_bytes()).collect() };
        assert!(others("/x/librocade_preload.so").is_empty());
        assert_eq!(
            others("/a.so:/x/librocade_preload.so /b.so"),
            [&b"/a.so"[..], b"/b.so"]
        );
        assert!(others("").is_empty());
    }

    #[test]
    fn the_dynamic_linker_is_found_in_a_header() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let offset = interpreter_offset(&own[..1024]).unwrap();
        let name = CStr::from_bytes_until_nul(&own[usize::try_from(offset).unwrap()..]).unwrap();
        assert!(name.to_str().unwrap().contains("ld-linux"), "{name:?}");
        for len in [0, 4, 6, 40, 57, 63, 100] {
            assert_eq!(interpreter_offset(&own[..len]), None, "{len} bytes");
        }
        assert!(!looks_other(c"/proc/self/exe"));
        assert!(!looks_other(c"/no/such/file"));
    }
}
