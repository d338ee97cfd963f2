//! What several tests look at.

use rocade_verbs::{Error, Result};

/// What a C program would find in `errno`; 0 where all went well.
pub(crate) fn errno<T>(result: Result<T>) -> i32 {
    match result {
        Err(Error::Verbs(error)) => error.errno(),
        Err(other) => panic!("{other}"),
        Ok(_) => 0,
    }
}
