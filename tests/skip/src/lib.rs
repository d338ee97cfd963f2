//! Skips tests that cannot run on this machine, with a reason.
//!
//! A test that needs something this machine lacks (a package, root, a device) calls
//! [`skip!`](crate::skip!), which returns from the test. The test harness counts the test as
//! passed, but `cargo xtask test` reads the log named by `ROCADE_SKIP_LOG` and counts it as
//! skipped. With `CI=true` a skip is a failure, unless xtask lists the reason as something that a
//! CI machine may lack (`tests/xtask/src/skips.rs`). That list never contains a missing package.
//!
//! This is a separate package so that the tests of every package can use it.

use std::{
    env, fmt,
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
    thread,
};

/// The reason why a test is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A distribution package is not installed. The string is Debian's name of the package.
    Package(String),
    /// The machine or the user's privileges do not allow it.
    Machine(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // xtask searches the log for these words.
            Self::Package(name) => write!(f, "missing package {name}"),
            Self::Machine(text) => f.write_str(text),
        }
    }
}

/// Skips the test that calls it: records the reason and returns from the function.
///
/// The arguments are a [`Reason`], or a format string with its arguments for a [`Reason::Machine`].
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

/// Writes `SKIP: name: reason` to the skip log, or to standard error past the test harness's
/// capture.
///
/// The name is that of the current thread, which the test harness names after the test.
pub fn record(reason: &Reason) {
    let program = env::current_exe().ok();
    let program = program
        .as_deref()
        .and_then(Path::file_stem)
        .unwrap_or_default()
        .to_string_lossy();
    // Cargo appends a hash to the program's name: consumers-1f2e3d...
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let thread = thread::current();
    let line = format!(
        "SKIP: {program}::{}: {reason}\n",
        thread.name().unwrap_or("unnamed")
    );
    let target = env::var_os("ROCADE_SKIP_LOG")
        .map_or_else(|| PathBuf::from("/proc/self/fd/2"), PathBuf::from);
    // A single write per line keeps the lines of concurrent tests apart.
    let written = OpenOptions::new().create(true).append(true).open(&target);
    if written
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .is_err()
    {
        eprint!("{line}");
    }
}

/// Returns the package of the first of these commands that is not in the search path.
#[must_use]
pub fn missing_command(wanted: &[(&str, &str)]) -> Option<Reason> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = |command: &str| env::split_paths(&path).any(|dir| dir.join(command).is_file());
    let (_, package) = wanted.iter().find(|(command, _)| !found(command))?;
    Some(Reason::Package((*package).to_owned()))
}
