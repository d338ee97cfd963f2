//! Suggests the nearest known name for a misspelt one.

use std::ffi::{OsStr, OsString};

use super::settings::{
    ENV_BROKER, ENV_BROKER_IDLE_MS, ENV_CAPTURE, ENV_CONFIG, ENV_DCQCN, ENV_DEVICES, ENV_FAULT,
    ENV_ICRC, ENV_IDENTITY, ENV_IP, ENV_LIKE, ENV_LINK, ENV_LOG, ENV_PEERS, ENV_PKEYS,
    ENV_RUNTIME_DIR,
};
use crate::nearest::nearest;
use crate::trace::ENV_TRACE_DIR;

/// The variables that users set.
const VARIABLES: [&str; 16] = [
    ENV_BROKER,
    ENV_BROKER_IDLE_MS,
    ENV_CAPTURE,
    ENV_CONFIG,
    ENV_DCQCN,
    ENV_DEVICES,
    ENV_FAULT,
    ENV_ICRC,
    ENV_IDENTITY,
    ENV_IP,
    ENV_LIKE,
    ENV_LINK,
    ENV_LOG,
    ENV_PEERS,
    ENV_PKEYS,
    ENV_RUNTIME_DIR,
];

/// Prefixes of the internal variables of Rocade and its tests.
const INTERNAL: [&str; 12] = [
    ENV_WARNED,
    "ROCADE_BIN",
    "ROCADE_BLESS",
    "ROCADE_CONFORMANCE",
    "ROCADE_FRESH_SEED",
    "ROCADE_PERF_",
    "ROCADE_RXE_VM_",
    "ROCADE_SEED",
    "ROCADE_SKIP",
    "ROCADE_TEST_",
    ENV_TRACE_DIR,
    "ROCADE_VIEW",
];

/// Variables about which the user was warned, separated by commas. `rocade run` sets it so that the
/// libraries in the program do not repeat the warning.
pub const ENV_WARNED: &str = "ROCADE_WARNED";

/// A variable `ROCADE_*` that Rocade does not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// The warning for the user.
    pub text: String,
}

/// Returns the variables among `variables` (the whole environment) that look like settings of
/// Rocade but are unknown. Skips empty ones, and those listed in [`ENV_WARNED`].
pub fn unknown_variables(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<UnknownVariable> {
    let mut found = Vec::new();
    let mut warned = String::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with("ROCADE_")) else {
            continue;
        };
        if name == ENV_WARNED {
            warned = value.to_string_lossy().into_owned();
        }
        let internal = INTERNAL.iter().any(|prefix| name.starts_with(prefix));
        if !internal && !VARIABLES.contains(&name) && value != OsStr::new("") {
            found.push(name.to_owned());
        }
    }
    found.retain(|name| !warned.split(',').any(|known| known == name));
    found.sort();
    let with_text = |name: String| {
        let advice = nearest(&name, &VARIABLES).map_or_else(
            || format!("there are {}", VARIABLES.join(", ")),
            |known| format!("did you mean {known}?"),
        );
        let text = format!("{name} is no setting of Rocade; {advice}");
        UnknownVariable { name, text }
    };
    found.into_iter().map(with_text).collect()
}

/// Returns true if a variable is a setting of Rocade, which users set.
pub(crate) fn is_setting(name: &OsStr) -> bool {
    VARIABLES.iter().any(|variable| name == *variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables
            .iter()
            .map(|&(name, value)| (name.into(), value.into()));
        let found = unknown_variables(variables);
        found.into_iter().map(|unknown| unknown.text).collect()
    }

    #[test]
    fn misspelt_variables_get_the_nearest_known_one() {
        for (wrong, right) in [
            ("ROCADE_LGO", "ROCADE_LOG"),
            ("ROCADE_LOGS", "ROCADE_LOG"),
            ("ROCADE_LOG_LEVEL", "ROCADE_LOG"),
            ("ROCADE_DEVICE", "ROCADE_DEVICES"),
            ("ROCADE_DEV", "ROCADE_DEVICES"),
            ("ROCADE_DEVCIES", "ROCADE_DEVICES"),
            ("ROCADE_LINKS", "ROCADE_LINK"),
            ("ROCADE_RUNTIME", "ROCADE_RUNTIME_DIR"),
            ("ROCADE_RUNTIMEDIR", "ROCADE_RUNTIME_DIR"),
            ("ROCADE_CONF", "ROCADE_CONFIG"),
            ("ROCADE_BROKER_IDLE", "ROCADE_BROKER_IDLE_MS"),
        ] {
            let texts = unknown(&[(wrong, "1")]);
            assert_eq!(
                texts,
                [format!(
                    "{wrong} is no setting of Rocade; did you mean {right}?"
                )]
            );
        }
        let texts = unknown(&[("ROCADE_WEATHER", "1")]);
        assert!(
            texts[0].contains("ROCADE_WEATHER") && texts[0].contains("there are ROCADE_BROKER")
        );
    }

    #[test]
    fn known_foreign_empty_and_reported_variables_are_no_mistake() {
        assert!(
            unknown(&[
                ("ROCADE_LOG", "debug"),
                ("PATH", "/bin"),
                ("ROCADE_LGO", "")
            ])
            .is_empty()
        );
        let told = [
            ("ROCADE_LGO", "1"),
            ("ROCADE_X", "1"),
            (ENV_WARNED, "ROCADE_X,ROCADE_LGO"),
        ];
        assert!(unknown(&told).is_empty());
    }

    /// A new setting has to be added above, or users who set it get a warning.
    #[test]
    fn every_variable_of_the_settings_is_known() {
        let constants = include_str!("settings.rs")
            .lines()
            .filter(|line| line.starts_with("pub const ENV_"));
        let mut count = 0;
        for line in constants {
            let name = line.split('"').nth(1).expect("a quoted name");
            assert!(VARIABLES.contains(&name), "{name} is missing in names.rs");
            count += 1;
        }
        assert_eq!(count, VARIABLES.len());
    }
}
