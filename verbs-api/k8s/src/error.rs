//! The error that ends the plugin.

use std::fmt;

/// A cause, and what to do.
#[derive(Debug)]
pub(crate) struct PluginError {
    cause: String,
    advice: String,
}

impl PluginError {
    /// Creates an error without advice.
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            advice: String::new(),
        }
    }

    /// Adds what the user can do.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        if self.advice.is_empty() {
            return Ok(());
        }
        write!(f, "\n  {}", self.advice)
    }
}
