//! Texts of arguments and results. `libibverbs` and `librdmacm` share this file.

use std::{
    ffi::{c_char, c_int, c_void},
    fmt::Write as _,
    io,
    net::{Ipv4Addr, Ipv6Addr},
    ops::Deref,
    ptr,
};

use crate::args::{Address, Pointer, Sockaddr, Text};

/// The names of arguments that point to a result, although others of their types do not. The table
/// of calls names arguments accordingly.
const RESULTS: [&str; 5] = ["address", "ah_attr", "events", "init_attr", "options"];

/// A value of a traced call. Pointers in it are valid as the function demands, during `'a`.
pub(crate) struct Shown<'a, T>(&'a T);

impl<T> Clone for Shown<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shown<'_, T> {}

impl<T> Deref for Shown<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<'a, T> Shown<'a, T> {
    /// Makes a value of an argument, or of a result.
    ///
    /// # Safety
    /// Pointers in `value` must be valid as the function demands, during `'a`.
    pub(crate) const unsafe fn new(value: &'a T) -> Self {
        Self(value)
    }
}

impl<'a, P: Pointer> Shown<'a, P> {
    /// Returns what the pointer refers to. `None` for NULL.
    fn target(self) -> Option<Shown<'a, P::Target>> {
        // SAFETY: NULL or valid, by contract of `new`.
        unsafe { self.0.place().as_ref() }.map(Shown)
    }
}

/// A value of a traced call that has succeeded, so that it has stored its results.
pub(crate) struct Done<'a, T>(Shown<'a, T>);

impl<'a, T> Done<'a, T> {
    /// Makes a value of an argument, or of a result. `None` if the call frees what arguments
    /// point to.
    ///
    /// # Safety
    /// As for [`Shown::new`], unless the call frees it. The call must have succeeded.
    pub(crate) unsafe fn of(value: &'a T, rule: Rule) -> Option<Self> {
        (rule != Rule::Frees).then_some(Self(Shown(value)))
    }
}

impl<'a, P: Pointer> Done<'a, P> {
    /// Returns what the pointer refers to. `None` for NULL.
    fn target(self) -> Option<Done<'a, P::Target>> {
        self.0.target().map(Done)
    }
}

impl<T> Deref for Done<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// An argument or a result of a traced function.
pub(crate) trait Show: Sized {
    /// Appends the value as the call begins.
    fn value(shown: Shown<'_, Self>, name: &str, text: &mut String);

    /// Appends what the call has stored behind this argument, or that its result refers to.
    fn stored(_done: Done<'_, Self>, _name: &str, _text: &mut String) {}

    /// Returns true if this result means a failure.
    fn is_failure(&self, rule: Rule) -> bool;

    /// Returns the errno value of this failed result, unless it is in errno.
    fn errno(&self, _rule: Rule) -> Option<c_int> {
        None
    }
}

/// The results of a number that are failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// All but 0: an errno value, or -1 and errno.
    #[allow(dead_code, reason = "librdmacm has no such function")]
    Errno,
    /// Negative ones, with errno.
    Negative,
    /// Errors as for [`Rule::Errno`]. The call frees what its arguments point to.
    Frees,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) failed: bool,
    pub(crate) errno: c_int,
    pub(crate) text: String,
}

/// Appends an argument. Returns false, because the next one is not the first.
pub(crate) fn argument<T: Show>(
    name: &str,
    value: Shown<'_, T>,
    is_first: bool,
    text: &mut String,
) -> bool {
    if !is_first {
        text.push_str(", ");
    }
    text.push_str(name);
    text.push('=');
    T::value(value, name, text);
    false
}

/// Appends what the call has stored behind an argument.
pub(crate) fn result<T: Show>(name: &str, value: Option<Done<'_, T>>, text: &mut String) {
    if let Some(value) = value {
        T::stored(value, name, text);
    }
}

/// Returns the outcome of a call.
///
/// # Safety
/// As for [`Shown::new`], if the result is no failure.
pub(crate) unsafe fn outcome<T: Show>(value: &T, rule: Rule) -> Outcome {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let failed = value.is_failure(rule);
    let mut text = String::new();
    // SAFETY: same contract.
    let shown = unsafe { Shown::new(value) };
    T::value(shown, "", &mut text);
    if !failed {
        T::stored(Done(shown), "", &mut text);
    }
    let errno = match (failed, value.errno(rule)) {
        (false, _) => 0,
        (true, Some(value)) => value,
        (true, None) => errno,
    };
    Outcome {
        failed,
        errno,
        text,
    }
}

macro_rules! numbers {
    ($($kind:ty),+) => { $(
        impl Show for $kind {
            fn value(shown: Shown<'_, Self>, name: &str, text: &mut String) {
                let number = *shown;
                match name {
                    "access" => access(u64::try_from(number).unwrap_or(0), text),
                    "attr_mask" | "iova" | "offset" => {
                        let _ = write!(text, "{number:#x}");
                    }
                    _ => {
                        let _ = write!(text, "{number}");
                    }
                }
            }

            #[allow(unused_comparisons, reason = "also for unsigned numbers")]
            fn is_failure(&self, rule: Rule) -> bool {
                match rule {
                    Rule::Errno | Rule::Frees => *self != 0,
                    Rule::Negative => *self < 0,
                }
            }

            #[allow(unused_comparisons, reason = "also for unsigned numbers")]
            fn errno(&self, rule: Rule) -> Option<c_int> {
                let value = c_int::try_from(*self).ok()?;
                (rule != Rule::Negative && value > 0).then_some(value)
            }
        }
    )+ };
}
numbers!(u8, u16, u32, u64, usize, i32, i64, isize);

impl Show for bool {
    fn value(shown: Shown<'_, Self>, _name: &str, text: &mut String) {
        let _ = write!(text, "{}", *shown);
    }

    fn is_failure(&self, _rule: Rule) -> bool {
        false
    }
}

impl Show for () {
    fn value(_shown: Shown<'_, Self>, _name: &str, text: &mut String) {
        text.push_str("void");
    }

    fn is_failure(&self, _rule: Rule) -> bool {
        false
    }
}

/// A structure behind a pointer.
pub(crate) trait Target: Sized {
    /// Appends what identifies the object, in braces, or nothing.
    fn identity(&self, _text: &mut String) {}

    /// Appends the members that the call reads, in braces, or nothing.
    fn content(_shown: Shown<'_, Self>, _text: &mut String) {}

    /// Appends the members that the call has stored, or nothing.
    fn stored(_done: Done<'_, Self>, _name: &str, _text: &mut String) {}
}

/// Appends a pointer.
fn address<T>(pointer: *const T, text: &mut String) {
    if pointer.is_null() {
        text.push_str("NULL");
    } else {
        let _ = write!(text, "{:#x}", pointer.addr());
    }
}

macro_rules! pointers {
    ($($which:tt),+) => { $(
        impl<T: Target> Show for *$which T {
            fn value(shown: Shown<'_, Self>, name: &str, text: &mut String) {
                match shown.target() {
                    // A result is shown with what it refers to, as is an argument.
                    Some(target) => {
                        let before = text.len();
                        if !RESULTS.contains(&name) {
                            T::content(target, text);
                        }
                        if text.len() == before {
                            address(shown.cast::<T>(), text);
                            if !name.is_empty() {
                                target.identity(text);
                            }
                        }
                    }
                    None => text.push_str("NULL"),
                }
            }

            fn stored(done: Done<'_, Self>, name: &str, text: &mut String) {
                if let Some(target) = done.target() {
                    if name.is_empty() {
                        target.identity(text);
                    } else {
                        T::stored(target, name, text);
                    }
                }
            }

            fn is_failure(&self, _rule: Rule) -> bool {
                self.is_null()
            }
        }
    )+ };
}
pointers!(mut, const);

/// Makes types of which only the address is shown.
macro_rules! opaque {
    ($($kind:ty),+ $(,)?) => { $( impl $crate::trace::show::Target for $kind {} )+ };
}
pub(super) use opaque;

opaque!(c_void, libc::msghdr, libc::iovec, libc::fd_set);

impl Target for c_char {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        // SAFETY: the first character of a terminated string, by contract of `Shown::new`.
        if let Some(string) = unsafe { Text::new(shown.0) }.get() {
            let _ = write!(text, "{:?}", string.to_string_lossy());
        }
    }
}

macro_rules! stored_numbers {
    ($($kind:ty),+) => { $(
        impl Target for $kind {
            fn stored(done: Done<'_, Self>, name: &str, text: &mut String) {
                let _ = write!(text, " {name}={}", *done);
            }
        }
    )+ };
}
stored_numbers!(u16, u32, u64, c_int);

/// An object that a call returns by a pointer to a pointer.
impl<T: Target> Target for *mut T {
    fn stored(done: Done<'_, Self>, name: &str, text: &mut String) {
        let _ = write!(text, " {name}=");
        address(*done, text);
        if let Some(target) = done.target() {
            target.identity(text);
        }
    }
}

impl Target for libc::timeval {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(text, "{}.{:06} s", shown.tv_sec, shown.tv_usec);
    }
}

impl Target for libc::pollfd {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let Self { fd, events, .. } = *shown;
        let _ = write!(text, "{{fd={fd}, events={events:#x}, ..}}");
    }

    fn stored(done: Done<'_, Self>, _name: &str, text: &mut String) {
        let _ = write!(text, " {{revents={:#x}, ..}}", done.revents);
    }
}

impl Target for libc::epoll_event {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let events = shown.events;
        let _ = write!(text, "{{events={events:#x}}}");
    }
}

impl Target for libc::sockaddr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        // SAFETY: an address as long as its family demands, by contract of `Shown::new`.
        match unsafe { Address::new(ptr::from_ref(shown.0)) }.read() {
            Ok(Sockaddr::V4(v4)) => {
                let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
                let _ = write!(text, "{ip}:{}", u16::from_be(v4.sin_port));
            }
            Ok(Sockaddr::V6(v6)) => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let _ = write!(text, "[{ip}]:{}", u16::from_be(v6.sin6_port));
            }
            Ok(Sockaddr::Ib(_) | Sockaddr::Other) | Err(_) => {
                let _ = write!(text, "{{sa_family={}}}", shown.sa_family);
            }
        }
    }

    fn stored(done: Done<'_, Self>, name: &str, text: &mut String) {
        if RESULTS.contains(&name) {
            text.push_str(" address=");
            Self::content(done.0, text);
        }
    }
}

/// The names of access flags.
const ACCESS: [(u64, &str); 9] = [
    (1, "LOCAL_WRITE"),
    (2, "REMOTE_WRITE"),
    (4, "REMOTE_READ"),
    (8, "REMOTE_ATOMIC"),
    (16, "MW_BIND"),
    (32, "ZERO_BASED"),
    (64, "ON_DEMAND"),
    (128, "HUGETLB"),
    (0x10_0000, "RELAXED_ORDERING"),
];

/// Appends the names of access flags.
pub(crate) fn access(flags: u64, text: &mut String) {
    let mut rest = flags;
    let before = text.len();
    for (flag, name) in ACCESS {
        if flags & flag != 0 {
            rest &= !flag;
            if text.len() > before {
                text.push('|');
            }
            text.push_str(name);
        }
    }
    if rest != 0 || flags == 0 {
        if text.len() > before {
            text.push('|');
        }
        let _ = write!(text, "{rest:#x}");
    }
}
