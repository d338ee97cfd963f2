//! What can be wrong with a configuration, said so that it can be put right.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where a setting was read from; errors name it.
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

/// A configuration that cannot be used. The text names the key, its value, what is wrong with it
/// and what is allowed.
#[derive(Debug)]
pub enum ConfigError {
    /// A setting has a value that is not allowed, or that does not fit this host.
    Invalid {
        /// Which setting.
        origin: Origin,
        /// The value as it was given.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// What may stand there instead.
        allowed: String,
    },
    /// Two settings that exclude each other are both given.
    Conflict {
        /// The first of them.
        first: Origin,
        /// The second of them.
        second: Origin,
        /// What to do about it.
        advice: &'static str,
    },
    /// A configuration file cannot be read, or is not the TOML that is expected.
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column where known.
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
            Self::Interfaces(error) => write!(f, "cannot list the network interfaces: {error}"),
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
