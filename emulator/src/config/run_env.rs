//! The variables of `rocade run` for programs whose environment was emptied.
//!
//! `env -i`, sudo(8) and login(1) drop the variables of a run. Its view in a mount namespace still
//! shows the libraries and the files of the devices, so it shows the settings of the run, too.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::OnceLock;

use super::settings::{ENV_BROKER, ENV_CAPTURE, ENV_CONFIG, ENV_RUNTIME_DIR};
use crate::sys;

/// The file of the view with the variables: `NAME=VALUE` and a zero byte, as in
/// `/proc/self/environ`.
pub const RUN_ENVIRONMENT: &str = "/sys/devices/rocade/environment";

/// Variables of which `rocade run` sets one at least. Where there is none of them, the environment
/// was emptied.
const SIGNS: [&str; 3] = [ENV_BROKER, ENV_CONFIG, "ROCADE_VIEW_COUNTERS"];

/// Files and directories that only the user of the run can use.
const PRIVATE: [&str; 2] = [ENV_CAPTURE, ENV_RUNTIME_DIR];

/// Returns a variable of the environment. In an emptied environment within a view of `rocade run`,
/// returns that of the run.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    static OF_RUN: OnceLock<HashMap<OsString, OsString>> = OnceLock::new();
    let set = std::env::var_os(name);
    if set.is_some() || SIGNS.iter().any(|sign| std::env::var_os(sign).is_some()) {
        return set;
    }
    let of_run = OF_RUN.get_or_init(|| read(Path::new(RUN_ENVIRONMENT)));
    of_run.get(OsStr::new(name)).cloned()
}

/// Returns the content of [`RUN_ENVIRONMENT`] for these variables.
#[must_use]
pub fn run_environment(variables: &[(OsString, OsString)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in variables {
        text.extend([name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
    }
    text
}

/// Reads the variables of a file. Without a file there are none.
fn read(file: &Path) -> HashMap<OsString, OsString> {
    let (Ok(text), Ok(data)) = (fs::read(file), fs::metadata(file)) else {
        return HashMap::new();
    };
    let is_own = data.uid() == sys::effective_uid();
    let lines = text.split(|byte| *byte == 0);
    let pairs = lines.filter_map(|line| {
        let middle = line.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&line[..middle], &line[middle + 1..]);
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((text(name), text(value)))
    });
    pairs
        .filter(|(name, _)| is_own || !PRIVATE.iter().any(|private| name == private))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_as_they_were_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let all = [
            pair("ROCADE_DEVICES", "a=lo;b=127.0.0.2"),
            pair("ROCADE_RUNTIME_DIR", "/tmp/x\n"),
            pair("ROCADE_LINK", ""),
        ];
        fs::write(file.path(), run_environment(&all)).unwrap();
        let found = read(file.path());
        assert_eq!(found, all.into_iter().collect());
        assert!(read(Path::new("/no/such/file")).is_empty());
        fs::write(file.path(), "damage\0=\0\0").unwrap();
        assert_eq!(read(file.path()), [pair("", "")].into_iter().collect());
    }
}
