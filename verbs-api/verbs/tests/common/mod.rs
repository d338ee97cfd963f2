//! Helpers for several tests.

use rocade_verbs::{Error, Result};

/// Returns the error number that a C program would get, or 0 on success.
pub(crate) fn errno<T>(result: Result<T>) -> i32 {
    match result {
        Err(Error::Verbs(error)) => error.errno(),
        Err(other) => panic!("{other}"),
        Ok(_) => 0,
    }
}
