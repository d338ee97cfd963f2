//! `rocade k8s`: executes rocade-k8s, as git does with programs that extend it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rocade_emulator::FileSizeErrors;

use crate::error::CliError;

const PROGRAM: &str = "rocade-k8s";

/// Replaces this process with rocade-k8s. Returns only if that fails.
pub(crate) fn run(
    args: &[OsString],
    file_size_errors: &FileSizeErrors,
) -> Result<ExitCode, CliError> {
    let exe = std::env::current_exe().unwrap_or_default();
    let dir = exe.parent().unwrap_or_else(|| Path::new("/"));
    let program = find(dir, std::env::var_os("PATH")).ok_or_else(|| not_there(dir))?;
    let mut command = Command::new(&program);
    command.args(args);
    // The program gets the signal as it would without this command.
    file_size_errors.end();
    let error = command.exec();
    Err(CliError::new(format!(
        "failed to execute {}: {error}",
        program.display()
    )))
}

/// Finds the program beside this command, or else in the search path.
fn find(dir: &Path, path: Option<OsString>) -> Option<PathBuf> {
    let path = path.unwrap_or_default();
    let dirs = std::iter::once(dir.to_owned()).chain(std::env::split_paths(&path));
    let mut programs = dirs.map(|dir| dir.join(PROGRAM));
    programs.find(|program| program.is_file())
}

fn not_there(dir: &Path) -> CliError {
    let text = format!(
        "{PROGRAM} is not installed: it is neither in {} nor in PATH",
        dir.display()
    );
    CliError::new(text)
        .hint(format!(
            "in the source directory: cargo build --release -p {PROGRAM}"
        ))
        .hint(format!(
            "then: cp target/release/{PROGRAM} {}",
            dir.display()
        ))
}
