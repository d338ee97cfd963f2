//! Names of failed system calls, and remedies.
//!
//! An error of the system alone ("Operation not permitted") does not tell what failed. [`named`]
//! adds it and keeps the code, which programs get as errno.

use std::error::Error;
use std::fmt;
use std::io;

/// A failed system call.
#[derive(Debug)]
struct Failure {
    /// A text such as "failed to ...".
    what: &'static str,
    source: io::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Returns a function that adds `what` ("failed to ...") to an error. The kind and the code stay.
pub(crate) fn named(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |source| io::Error::new(source.kind(), Failure { what, source })
}

/// Returns the system's code of an error, also if the error has a name.
#[must_use]
pub(crate) fn code(error: &io::Error) -> Option<i32> {
    let inner = || code(&failure(error)?.source);
    error.raw_os_error().or_else(inner)
}

fn failure(error: &io::Error) -> Option<&Failure> {
    error.get_ref()?.downcast_ref()
}

/// Returns the remedy for an error that a verb returns, or an empty text.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match (failure(error), code(error)) {
        (Some(failure), _) => remedy_of(failure.what, &failure.source),
        (None, Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
            "the host has no route to the peer: `ip route get ADDRESS` shows the system's route"
        }
        // Of a call without a name, these codes have one meaning only.
        (None, Some(libc::EMFILE | libc::ENFILE)) => remedy_of("", error),
        _ => "",
    }
}

/// Returns the remedy for the failed call `what` ("failed to ..."), or an empty text.
pub(crate) fn remedy_of(what: &str, source: &io::Error) -> &'static str {
    match code(source) {
        Some(libc::EMFILE) => {
            "this process has as many files open as it may: raise its limit (ulimit -n 1024)"
        }
        Some(libc::ENFILE) => {
            "the system has as many files open as it may: raise its limit (sysctl fs.file-max)"
        }
        Some(libc::EPERM | libc::ENOSYS) => {
            "the system forbids this call: allow it in the seccomp profile of the container or \
             service (docker run --security-opt seccomp=FILE, SystemCallFilter= of systemd)"
        }
        Some(libc::EAGAIN) if what.contains("start") => {
            "there are as many threads and processes as may be: raise the limit of this user \
             (ulimit -u) or of the container (pids.max, docker run --pids-limit)"
        }
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            "the system has no memory for it: raise the limit of this process (ulimit -v) or of \
             the container (memory.max), or free memory"
        }
        Some(libc::EBADF | libc::ENOTSOCK) => CLOSED,
        _ => "",
    }
}

/// The name of a failed getsockname(2).
pub(crate) const NO_ADDRESS: &str = "failed to read the address of a socket (getsockname)";

/// The remedy if descriptors of Rocade are not what they were.
pub(crate) const CLOSED: &str = "the program has closed descriptors that it did not open, or put \
    others in their place. A loop that closes all descriptors must run before the first verb";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_kind_and_code() {
        let error = named("failed to fly")(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(code(&error), Some(libc::EPERM));
        assert_eq!(
            error.to_string(),
            "failed to fly: Operation not permitted (os error 1)"
        );
        assert!(remedy(&error).contains("seccomp"));
        let twice = named("failed to travel")(error);
        assert_eq!(code(&twice), Some(libc::EPERM));
        assert!(remedy(&twice).contains("seccomp"));
    }

    #[test]
    fn a_code_without_a_name_says_nothing_about_the_system() {
        let bare = io::Error::from_raw_os_error;
        // A service ID that another program has, for example.
        assert_eq!(remedy(&bare(libc::EPERM)), "");
        assert!(remedy(&bare(libc::EMFILE)).contains("ulimit -n"));
        let thread = named("failed to start a thread")(bare(libc::EAGAIN));
        assert!(remedy(&thread).contains("ulimit -u"));
        let other = named("failed to send")(bare(libc::EAGAIN));
        assert_eq!(remedy(&other), "");
    }
}
