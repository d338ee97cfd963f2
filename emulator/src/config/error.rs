//! Configuration errors, with a hint how to fix them.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::failure;

/// The source of a setting, which errors name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag of the `rocade` command, e.g. `--dev`.
    Flag(&'static str),
    /// An environment variable, e.g. `ROCADE_DEVICES`.
    Env(&'static str),
    /// A key of a configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The key inside it, e.g. `devices`.
        key: &'static str,
    },
    /// A call of the Rust API, or a default.
    Program,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::File { path, key } => write!(f, "{}: {key}", path.display()),
            Self::Program => f.write_str("device specification"),
        }
    }
}

/// An error in the configuration. Its text names the key, the value, the reason and the allowed
/// values.
#[derive(Debug)]
pub enum ConfigError {
    /// A setting has a value that is not allowed, or that does not fit this host.
    Invalid {
        /// The setting.
        origin: Origin,
        /// The value as it was given.
        value: String,
        /// The reason why it is invalid.
        reason: String,
        /// The allowed values.
        allowed: String,
    },
    /// Two settings that exclude each other are both given.
    Conflict {
        /// The first of them.
        first: Origin,
        /// The second of them.
        second: Origin,
        /// The remedy.
        advice: &'static str,
    },
    /// A configuration file cannot be read, or is not valid TOML for Rocade.
    File {
        /// The file.
        path: PathBuf,
        /// The reason, with line and column where known.
        reason: String,
    },
    /// The network interfaces of this host cannot be listed.
    Interfaces(io::Error),
}

impl ConfigError {
    pub(crate) fn invalid(
        origin: &Origin,
        value: impl Into<String>,
        reason: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            origin: origin.clone(),
            value: value.into(),
            reason: reason.into(),
            allowed: allowed.into(),
        }
    }
}

impl ConfigError {
    /// Returns what the user can do about the error, or an empty text. The other errors say what is
    /// allowed.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Interfaces(error) => failure::remedy(error),
            _ => "",
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid {
                origin,
                value,
                reason,
                allowed,
            } => {
                write!(f, "{origin} = \"{value}\": {reason}; allowed: {allowed}")
            }
            Self::Conflict {
                first,
                second,
                advice,
            } => {
                write!(f, "{first} and {second} are both set; {advice}")
            }
            Self::File { path, reason } => {
                write!(f, "configuration file {}: {reason}", path.display())
            }
            Self::Interfaces(error) => write!(f, "failed to list the network interfaces: {error}"),
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Interfaces(error) => Some(error),
            _ => None,
        }
    }
}
