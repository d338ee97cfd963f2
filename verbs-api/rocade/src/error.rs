//! Errors of the command: the cause and the remedy.

use std::fmt;

use rocade_emulator::config::ConfigError;

/// The exit code of `rocade` for its own errors. Programs that `rocade run` starts normally use
/// smaller codes. env(1) and docker(1) use the same code.
pub(crate) const EXIT_ROCADE: u8 = 125;
/// The exit code of `rocade run` if the program exists but cannot be executed.
pub(crate) const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The exit code of `rocade run` if there is no such program.
pub(crate) const EXIT_NOT_FOUND: u8 = 127;

/// An error that ends the command.
#[derive(Debug)]
pub(crate) struct CliError {
    message: String,
    hints: Vec<String>,
    exit_code: u8,
}

impl CliError {
    /// Creates an error of Rocade itself. `message` states the cause.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hints: Vec::new(),
            exit_code: EXIT_ROCADE,
        }
    }

    /// Creates an error without a message.
    pub(crate) fn silent(exit_code: u8) -> Self {
        Self::new("").exit(exit_code)
    }

    /// Adds a line that tells the user a remedy.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Sets another exit code than 125.
    pub(crate) fn exit(mut self, exit_code: u8) -> Self {
        self.exit_code = exit_code;
        self
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// Returns true if there is no message.
    pub(crate) fn is_silent(&self) -> bool {
        self.message.is_empty()
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rocade: {}", self.message)?;
        for hint in &self.hints {
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::new(error.to_string())
    }
}
