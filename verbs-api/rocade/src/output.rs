//! Standard output, which may be a pipe that is closed early (`rocade devices | head -1`).

use std::fmt;
use std::io::{self, Write as _};

use crate::error::CliError;

/// The exit code of a command whose output pipe was closed, as if SIGPIPE had ended it.
const EXIT_PIPE_CLOSED: u8 = 128 + 13;

/// Prints `text` and flushes it.
pub(crate) fn print(text: impl fmt::Display) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let written = write!(stdout, "{text}").and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => CliError::silent(EXIT_PIPE_CLOSED),
        _ => CliError::new(format!("failed to write to standard output: {error}")),
    })
}

/// Prints `text` and a newline.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), CliError> {
    print(format_args!("{text}\n"))
}

/// Prints a value as JSON.
pub(crate) fn json(value: &serde_json::Value) -> Result<(), CliError> {
    line(format_args!("{value:#}"))
}
