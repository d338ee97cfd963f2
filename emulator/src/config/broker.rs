//! Options for finding, starting and running the broker.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::settings::{ENV_BROKER, ENV_BROKER_IDLE_MS, ENV_LOG, ENV_RUNTIME_DIR};

/// Options for finding, starting and running the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Directory of the broker's socket, locks and log. `None`: `$XDG_RUNTIME_DIR/rocade`, or else
    /// `/tmp/rocade-UID` (or another directory in /tmp if a different user owns that one).
    pub runtime_dir: Option<PathBuf>,
    /// Program and arguments that start a broker. `None`: `rocade broker serve`, with `rocade`
    /// searched beside this library and in `$PATH`.
    pub command: Option<Vec<OsString>>,
    /// Log filter of a broker that this program starts. An invalid one is ignored.
    pub log: Option<String>,
    /// Time without clients after which a broker ends.
    pub idle_timeout: Duration,
    /// Time that a client waits for a broker that it started and that runs, but does not listen
    /// yet. The default is long because a program may take many seconds to start on a busy machine.
    /// A broker that ends is noticed at once. The limit is for one that hangs.
    pub start_timeout: Duration,
    /// Time that a new broker waits for clients of its predecessor before it serves new ones. The
    /// locks of their slots show that they live, but not whether they will connect.
    pub recovery_timeout: Duration,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            runtime_dir: None,
            command: None,
            log: None,
            idle_timeout: Duration::from_secs(60),
            start_timeout: Duration::from_secs(60),
            recovery_timeout: Duration::from_secs(2),
        }
    }
}

impl BrokerConfig {
    /// Returns the default, changed by the environment variables `ROCADE_RUNTIME_DIR`,
    /// `ROCADE_BROKER` (a program that is started as `PROGRAM broker serve`),
    /// `ROCADE_BROKER_IDLE_MS` and `ROCADE_LOG`. Empty and unparsable values are ignored.
    #[must_use]
    pub fn from_env() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let idle_ms = set(ENV_BROKER_IDLE_MS).and_then(|value| value.to_str()?.parse().ok());
        let default = Self::default();
        Self {
            runtime_dir: set(ENV_RUNTIME_DIR).map(PathBuf::from),
            command: set(ENV_BROKER).map(Self::serve_command),
            log: set(ENV_LOG).and_then(|value| value.into_string().ok()),
            idle_timeout: idle_ms.map_or(default.idle_timeout, Duration::from_millis),
            ..default
        }
    }

    /// Returns the command line that makes this program a broker.
    pub(crate) fn serve_command(program: OsString) -> Vec<OsString> {
        vec![program, "broker".into(), "serve".into()]
    }
}
