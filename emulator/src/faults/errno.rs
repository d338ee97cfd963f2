//! Error numbers by their names.

use std::fmt;

use super::RuleError;
use crate::link::fault::{rule_error, unknown};

/// An error number with a name, of those that verbs and calls of the connection manager return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(i32);

/// The names and numbers.
const NAMES: [(&str, i32); 37] = [
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EINTR", libc::EINTR),
    ("EIO", libc::EIO),
    ("ENXIO", libc::ENXIO),
    ("E2BIG", libc::E2BIG),
    ("EAGAIN", libc::EAGAIN),
    ("ENOMEM", libc::ENOMEM),
    ("EACCES", libc::EACCES),
    ("EFAULT", libc::EFAULT),
    ("EBUSY", libc::EBUSY),
    ("EEXIST", libc::EEXIST),
    ("ENODEV", libc::ENODEV),
    ("EINVAL", libc::EINVAL),
    ("ENFILE", libc::ENFILE),
    ("EMFILE", libc::EMFILE),
    ("ENOSPC", libc::ENOSPC),
    ("ERANGE", libc::ERANGE),
    ("ENOSYS", libc::ENOSYS),
    ("ENODATA", libc::ENODATA),
    ("EREMOTEIO", libc::EREMOTEIO),
    ("EPROTO", libc::EPROTO),
    ("EOVERFLOW", libc::EOVERFLOW),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EADDRINUSE", libc::EADDRINUSE),
    ("EADDRNOTAVAIL", libc::EADDRNOTAVAIL),
    ("ENETDOWN", libc::ENETDOWN),
    ("ENETUNREACH", libc::ENETUNREACH),
    ("ECONNABORTED", libc::ECONNABORTED),
    ("ECONNRESET", libc::ECONNRESET),
    ("ENOBUFS", libc::ENOBUFS),
    ("EISCONN", libc::EISCONN),
    ("ENOTCONN", libc::ENOTCONN),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("ECONNREFUSED", libc::ECONNREFUSED),
    ("EHOSTUNREACH", libc::EHOSTUNREACH),
    ("ECANCELED", libc::ECANCELED),
];

impl Errno {
    /// Returns the number.
    #[must_use]
    pub const fn code(self) -> i32 {
        self.0
    }

    /// Reads the name of an error number. `word` is the word of the rule.
    ///
    /// # Errors
    /// [`RuleError`] for an unknown name.
    pub(super) fn parse(word: &str, name: &str) -> Result<Self, RuleError> {
        match NAMES.iter().find(|(known, _)| *known == name) {
            Some((_, code)) => Ok(Self(*code)),
            None => {
                let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
                rule_error(word, unknown("error", name, &names), names.join(", "))
            }
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, code)| *code == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}
