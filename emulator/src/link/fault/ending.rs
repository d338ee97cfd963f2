//! The end of the process, or its stop, by a signal to itself.

use crate::sys;

/// The end of the process, or its stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGKILL.
    Kill,
    /// SIGSTOP. The process goes on with SIGCONT from outside.
    Stop,
}

impl Ending {
    /// Returns the ending of this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "kill" => Some(Self::Kill),
            "stop" => Some(Self::Stop),
            _ => None,
        }
    }

    /// Returns the first word of the rule.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
        }
    }

    /// Sends the signal to this process. Returns only after a stop.
    #[cold]
    pub(crate) fn execute(self) {
        sys::signal_this_process(match self {
            Self::Kill => libc::SIGKILL,
            Self::Stop => libc::SIGSTOP,
        });
    }
}
