//! Configuration as users write it: files, variables, device specifications, fault rules.
//!
//! The first byte selects the kind. The parsers must not panic, must return an error text for
//! everything they refuse, and must parse their own printed values to equal ones.

use std::ffi::OsString;
use std::path::Path;

use rocade_emulator::config::{
    ConfigError, DeviceSpec, ENV_BROKER, ENV_BROKER_IDLE_MS, ENV_DCQCN, ENV_DEVICES, ENV_FAULT,
    ENV_ICRC, ENV_IDENTITY, ENV_IP, ENV_LINK, ENV_PEERS, ENV_PKEYS, HostIdentity, HostNetwork,
    Origin, Settings,
};
use rocade_emulator::faults::FaultRule;

const VARIABLES: [&str; 11] = [
    ENV_BROKER,
    ENV_BROKER_IDLE_MS,
    ENV_DCQCN,
    ENV_DEVICES,
    ENV_FAULT,
    ENV_ICRC,
    ENV_IDENTITY,
    ENV_IP,
    ENV_LINK,
    ENV_PEERS,
    ENV_PKEYS,
];

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((&kind, text)) = input.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    match usize::from(kind) % (VARIABLES.len() + 3) {
        0 => resolve(Settings::from_toml(text, Path::new("rocade.toml"))),
        1 => rules(text),
        2 => specs(text),
        variable => resolve(Settings::from_env(|name| {
            (name == VARIABLES[variable - 3]).then(|| OsString::from(text))
        })),
    }
}

/// Resolves the settings for a host without interfaces.
fn resolve(settings: Result<Settings, ConfigError>) {
    let network = HostNetwork::default();
    let found = settings.and_then(|it| it.resolve(&network, &HostIdentity::fixed("fuzz")));
    if let Err(error) = found {
        assert!(!error.to_string().is_empty());
    }
}

fn rules(text: &str) {
    match FaultRule::parse_list(text) {
        Ok(rules) => {
            for rule in rules {
                let printed = rule.to_string();
                let again = FaultRule::parse(&printed);
                assert_eq!(again.as_ref(), Ok(&rule), "{printed}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn specs(text: &str) {
    match DeviceSpec::parse_list(text, &Origin::Program) {
        Ok(specs) => {
            for spec in specs {
                let printed = spec.to_string();
                let again = DeviceSpec::parse(&printed, &Origin::Program);
                assert_eq!(again.ok().as_ref(), Some(&spec), "{printed}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
