//! Helpers for several tests.

use rocade_verbs::Error;

/// Returns the error number that a C program would get, or 0 on success.
pub(crate) fn errno<T, E: Into<Error>>(result: Result<T, E>) -> i32 {
    match result.map_err(Into::into) {
        Err(Error::Verbs(error)) => error.errno(),
        Err(other) => panic!("{other}"),
        Ok(_) => 0,
    }
}
