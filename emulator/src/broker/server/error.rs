//! Refusals of requests.

use std::io;

use super::super::protocol::RefusalCode;
use crate::failure;

/// The error sent to a program when the broker has no descriptors left.
pub(super) const NO_DESCRIPTORS: &str = "the broker has as many files open as it can, because the \
    program that started it had a small limit (ulimit -n). `rocade broker stop`, then start a \
    program with a larger one: the others keep their traffic";

/// The refusal of a request.
pub(super) struct RequestRefusal {
    pub(super) code: RefusalCode,
    pub(super) text: String,
}

impl RequestRefusal {
    pub(super) fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// Returns the refusal for a failed system call.
    pub(super) fn system(failure: &str, error: &io::Error) -> Self {
        if means_no_descriptor(error) {
            return Self::new(RefusalCode::Limit, NO_DESCRIPTORS);
        }
        let remedy = failure::remedy_of(failure, error);
        let separator = if remedy.is_empty() { "" } else { ". Remedy: " };
        let text = format!("{failure}: {error}{separator}{remedy}");
        Self::new(RefusalCode::System, text)
    }

    /// Returns the refusal for a request before the answer to another one.
    pub(super) fn early() -> Self {
        Self::malformed("the answer to another request is due first")
    }

    pub(super) fn malformed(text: &str) -> Self {
        Self::new(RefusalCode::Malformed, text)
    }
}

/// Returns true for the errors of a process or system that cannot open another file.
pub(super) fn means_no_descriptor(error: &io::Error) -> bool {
    matches!(failure::code(error), Some(libc::EMFILE | libc::ENFILE))
}
