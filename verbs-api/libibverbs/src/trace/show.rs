//! Texts of arguments and results. `libibverbs` and `librdmacm` share this file.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

/// The names of arguments that point to a result, although others of their types do not. The table
/// of calls names arguments accordingly.
const RESULTS: [&str; 5] = ["address", "ah_attr", "events", "init_attr", "options"];

/// An argument or a result of a traced function.
pub(crate) trait Show {
    /// Appends the value as the call begins.
    ///
    /// # Safety
    /// Pointers must be valid as the function demands.
    unsafe fn value(&self, name: &str, text: &mut String);

    /// Appends what the call has stored behind this argument, or that its result refers to.
    ///
    /// # Safety
    /// The call must have succeeded.
    unsafe fn stored(&self, _name: &str, _text: &mut String) {}

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
///
/// # Safety
/// As for [`Show::value`].
pub(crate) unsafe fn argument(
    name: &str,
    value: &impl Show,
    is_first: bool,
    text: &mut String,
) -> bool {
    if !is_first {
        text.push_str(", ");
    }
    text.push_str(name);
    text.push('=');
    // SAFETY: same contract.
    unsafe { value.value(name, text) };
    false
}

/// Appends what the call has stored behind an argument.
///
/// # Safety
/// As for [`Show::stored`].
pub(crate) unsafe fn result(name: &str, value: &impl Show, rule: Rule, text: &mut String) {
    if rule != Rule::Frees {
        // SAFETY: same contract.
        unsafe { value.stored(name, text) };
    }
}

/// Returns the outcome of a call.
///
/// # Safety
/// As for [`Show::stored`], if the result is no failure.
pub(crate) unsafe fn outcome<T: Show>(value: &T, rule: Rule) -> Outcome {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let failed = value.is_failure(rule);
    let mut text = String::new();
    // SAFETY: same contract.
    unsafe { value.value("", &mut text) };
    if !failed {
        // SAFETY: same contract.
        unsafe { value.stored("", &mut text) };
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
            unsafe fn value(&self, name: &str, text: &mut String) {
                match name {
                    "access" => access(u64::try_from(*self).unwrap_or(0), text),
                    "attr_mask" | "iova" | "offset" => {
                        let _ = write!(text, "{self:#x}");
                    }
                    _ => {
                        let _ = write!(text, "{self}");
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

impl Show for () {
    unsafe fn value(&self, _name: &str, text: &mut String) {
        text.push_str("void");
    }

    fn is_failure(&self, _rule: Rule) -> bool {
        false
    }
}

/// A structure behind a pointer.
pub(crate) trait Target {
    /// Appends what identifies the object, in braces, or nothing.
    fn identity(&self, _text: &mut String) {}

    /// Appends the members that the call reads, in braces, or nothing.
    ///
    /// # Safety
    /// Pointers in it must be valid as the function demands.
    unsafe fn content(&self, _text: &mut String) {}

    /// Appends the members that the call has stored, or nothing.
    ///
    /// # Safety
    /// As for [`Self::content`].
    unsafe fn stored(&self, _name: &str, _text: &mut String) {}
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
            unsafe fn value(&self, name: &str, text: &mut String) {
                // SAFETY: by contract NULL or valid.
                match unsafe { self.as_ref() } {
                    // A result is shown with what it refers to, as is an argument.
                    Some(target) => {
                        let before = text.len();
                        if !RESULTS.contains(&name) {
                            // SAFETY: same contract.
                            unsafe { target.content(text) };
                        }
                        if text.len() == before {
                            address(self.cast::<T>(), text);
                            if !name.is_empty() {
                                target.identity(text);
                            }
                        }
                    }
                    None => text.push_str("NULL"),
                }
            }

            unsafe fn stored(&self, name: &str, text: &mut String) {
                // SAFETY: by contract NULL or valid.
                if let Some(target) = unsafe { self.as_ref() } {
                    if name.is_empty() {
                        target.identity(text);
                    } else {
                        // SAFETY: same contract.
                        unsafe { target.stored(name, text) };
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
    unsafe fn content(&self, text: &mut String) {
        // SAFETY: by contract a terminated string.
        let string = unsafe { CStr::from_ptr(self) };
        let _ = write!(text, "{:?}", string.to_string_lossy());
    }
}

macro_rules! stored_numbers {
    ($($kind:ty),+) => { $(
        impl Target for $kind {
            unsafe fn stored(&self, name: &str, text: &mut String) {
                let _ = write!(text, " {name}={self}");
            }
        }
    )+ };
}
stored_numbers!(u16, u32, u64, c_int);

/// An object that a call returns by a pointer to a pointer.
impl<T: Target> Target for *mut T {
    unsafe fn stored(&self, name: &str, text: &mut String) {
        let _ = write!(text, " {name}=");
        address(*self, text);
        // SAFETY: by contract NULL or an object.
        if let Some(target) = unsafe { self.as_ref() } {
            target.identity(text);
        }
    }
}

impl Target for libc::timeval {
    unsafe fn content(&self, text: &mut String) {
        let _ = write!(text, "{}.{:06} s", self.tv_sec, self.tv_usec);
    }
}

impl Target for libc::pollfd {
    unsafe fn content(&self, text: &mut String) {
        let _ = write!(text, "{{fd={}, events={:#x}, ..}}", self.fd, self.events);
    }

    unsafe fn stored(&self, _name: &str, text: &mut String) {
        let _ = write!(text, " {{revents={:#x}, ..}}", self.revents);
    }
}

impl Target for libc::epoll_event {
    unsafe fn content(&self, text: &mut String) {
        let events = self.events;
        let _ = write!(text, "{{events={events:#x}}}");
    }
}

impl Target for libc::sockaddr {
    unsafe fn content(&self, text: &mut String) {
        let address = std::ptr::from_ref(self);
        match c_int::from(self.sa_family) {
            libc::AF_INET => {
                // SAFETY: `sa_family` says so. Programs do not always align addresses.
                let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
                let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
                let _ = write!(text, "{ip}:{}", u16::from_be(v4.sin_port));
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let _ = write!(text, "[{ip}]:{}", u16::from_be(v6.sin6_port));
            }
            family => {
                let _ = write!(text, "{{sa_family={family}}}");
            }
        }
    }

    unsafe fn stored(&self, name: &str, text: &mut String) {
        if RESULTS.contains(&name) {
            text.push_str(" address=");
            // SAFETY: same contract.
            unsafe { self.content(text) };
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
