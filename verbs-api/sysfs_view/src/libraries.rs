//! Libraries of others that Rocade's libraries take the place of.
//!
//! `LD_LIBRARY_PATH` does not reach every program: `env -i` removes it, scripts replace it, and
//! `DT_RPATH` and `dlopen` of an absolute path come before it. So in the mount namespace each known
//! file with another implementation of a library shows Rocade's.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::sys;

/// A file with another implementation of one of Rocade's libraries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replacement {
    /// The file, without symbolic links.
    pub file: PathBuf,
    /// Rocade's library.
    pub by: PathBuf,
}

/// Mounts Rocade's libraries over the files. Returns the files that now are Rocade's. A file that
/// cannot be replaced stays as it is.
pub(crate) fn show(replacements: &[Replacement]) -> BTreeSet<PathBuf> {
    let mut replaced = BTreeSet::new();
    for Replacement { file, by } in replacements {
        let done = if is_same(file, by) {
            Ok(())
        } else {
            sys::bind(by, file)
        };
        match done {
            Ok(()) => {
                replaced.insert(file.clone());
            }
            Err(error) => {
                tracing::info!(file = %file.display(), %error, "failed to mount Rocade's library over another one");
            }
        }
    }
    replaced
}

/// Returns true if both paths lead to one file, as within another view.
fn is_same(file: &Path, other: &Path) -> bool {
    let id = |path| fs::metadata(path).map(|data| (data.dev(), data.ino()));
    matches!((id(file), id(other)), (Ok(file), Ok(other)) if file == other)
}
