//! Errors of the command: the cause and the remedy.

use std::fmt;

use rocade_emulator::broker::BrokerError;
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

    /// Adds a line that tells the user a remedy. An empty one adds none.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        self.hints.extend((!hint.is_empty()).then_some(hint));
        self
    }

    /// Returns cause and remedies without the name of the command, for a place that has it already.
    pub(crate) fn text(&self) -> String {
        let hints = self.hints.iter().map(|hint| format!("\n  {hint}"));
        std::iter::once(self.message.clone()).chain(hints).collect()
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
        write!(f, "rocade: {}", self.text())
    }
}

impl From<BrokerError> for CliError {
    fn from(error: BrokerError) -> Self {
        Self::new(error.to_string()).hint(error.remedy())
    }
}

impl From<rocade_verbs::Error> for CliError {
    fn from(error: rocade_verbs::Error) -> Self {
        let remedy = match &error {
            rocade_verbs::Error::Verbs(error) => error.remedy(),
            rocade_verbs::Error::Config(error) => error.remedy().to_owned(),
            _ => String::new(),
        };
        Self::new(error.to_string()).hint(remedy)
    }
}

/// Converts the errors of single functions of the Rust API.
macro_rules! from_parts {
    ($($part:ident)*) => {$(
        impl From<rocade_verbs::$part> for CliError {
            fn from(error: rocade_verbs::$part) -> Self {
                rocade_verbs::Error::from(error).into()
            }
        }
    )*};
}

from_parts! {
    BuildError ExchangeError OpenError RangeError VerbsError WaitError WordError
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::new(error.to_string()).hint(error.remedy())
    }
}
