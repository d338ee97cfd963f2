//! Tests that cannot run on this machine say so.
//!
//! A test that needs what is not here (a package, root, a device) calls [`skip!`](crate::skip!) and so returns early.
//! The test harness counts it as passed; `cargo xtask test` reads the log named by `ROCADE_SKIP_LOG` and counts it as
//! skipped. With `CI=true` a skip is a failure unless xtask has it in its list of what a CI machine may lack
//! (`tests/xtask/src/skips.rs`); a missing package is never in it.
//!
//! This is a package of its own so that the tests of every package can use it.

use std::{
    env, fmt,
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
    thread,
};

/// Why a test is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A distribution package (Debian's name) is not installed.
    Package(String),
    /// The machine or the user's rights do not allow it.
    Machine(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // xtask looks for these words.
            Self::Package(name) => write!(f, "missing package {name}"),
            Self::Machine(text) => f.write_str(text),
        }
    }
}

/// Skips the test that calls it: records the reason and returns from the function.
///
/// Takes a [`Reason`], or a format string and arguments, which make a [`Reason::Machine`].
#[macro_export]
macro_rules! skip {
    ($format:literal $($args:tt)*) => {
        $crate::skip!($crate::Reason::Machine(format!($format $($args)*)))
    };
    ($reason:expr) => {{
        $crate::record(&$reason);
        return;
    }};
}

/// Prints `SKIP: name: reason` where it is seen even though the test's output is captured.
///
/// The name is the current thread's, which the test harness names after the test.
pub fn record(reason: &Reason) {
    let program = env::current_exe().ok();
    let program = program
        .as_deref()
        .and_then(Path::file_stem)
        .unwrap_or_default()
        .to_string_lossy();
    // Cargo adds a hash: consumers-1f2e3d...
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let thread = thread::current();
    let line = format!(
        "SKIP: {program}::{}: {reason}\n",
        thread.name().unwrap_or("unnamed")
    );
    let target = env::var_os("ROCADE_SKIP_LOG")
        .map_or_else(|| PathBuf::from("/proc/self/fd/2"), PathBuf::from);
    // One write of one line, so that concurrent tests do not mix theirs.
    let written = OpenOptions::new().create(true).append(true).open(&target);
    if written
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .is_err()
    {
        eprint!("{line}");
    }
}

/// The first of these commands that is not in the search path, with the package that has it.
#[must_use]
pub fn missing_command(wanted: &[(&str, &str)]) -> Option<Reason> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = |command: &str| env::split_paths(&path).any(|dir| dir.join(command).is_file());
    let (_, package) = wanted.iter().find(|(command, _)| !found(command))?;
    Some(Reason::Package((*package).to_owned()))
}
