//! Parses the values of settings, for all sources.

use std::path::PathBuf;
use std::time::Duration;

use rocade_wire::Pkey;
use rocade_wire::crc::Backend;

use super::LinkMode;
use super::error::{ConfigError, Origin};
use super::identity::{self, DeviceIdentity};
use super::likeness::Likeness;
use super::peers::Peers;
use super::settings::BrokerSetting;
use super::spec::{DeviceSpec, NO_DEVICES};
use crate::faults::FaultRule;

/// A value and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

pub(super) fn parse_devices(
    (text, origin): (String, Origin),
) -> Result<Setting<Vec<DeviceSpec>>, ConfigError> {
    // An empty list in a file is valid and means no devices, like the word.
    let value = match text.trim() {
        "" | NO_DEVICES => Vec::new(),
        _ => DeviceSpec::parse_list(&text, &origin)?,
    };
    Ok(Setting { value, origin })
}

pub(super) fn parse_ip(
    (text, origin): (String, Origin),
) -> Result<Setting<Vec<DeviceSpec>>, ConfigError> {
    let value = vec![DeviceSpec::from_ip_list(&text, &origin)?];
    Ok(Setting { value, origin })
}

pub(super) fn parse_broker(
    (value, origin): (String, Origin),
) -> Result<Setting<BrokerSetting>, ConfigError> {
    let broker = match value.as_str() {
        "auto" => BrokerSetting::Auto,
        "embedded" => BrokerSetting::Embedded,
        path if path.contains('/') => BrokerSetting::Executable(path.into()),
        _ => {
            return Err(ConfigError::invalid(
                &origin,
                value,
                "there is no such way to reach the broker",
                "auto, embedded, or the path of the rocade executable (with a '/')",
            ));
        }
    };
    Ok(Setting {
        value: broker,
        origin,
    })
}

pub(super) fn parse_idle(
    (value, origin): (String, Origin),
) -> Result<Setting<Duration>, ConfigError> {
    match value.parse() {
        Ok(ms) => Ok(Setting {
            value: Duration::from_millis(ms),
            origin,
        }),
        Err(_) => {
            let reason = "it is not a number of milliseconds";
            Err(ConfigError::invalid(
                &origin,
                value,
                reason,
                "a whole number, e.g. 60000",
            ))
        }
    }
}

pub(super) fn parse_dir(value: (String, Origin)) -> Result<Setting<PathBuf>, ConfigError> {
    parse_path(value, "an absolute path of a directory that is yours")
}

fn parse_path(
    (value, origin): (String, Origin),
    allowed: &str,
) -> Result<Setting<PathBuf>, ConfigError> {
    let path = PathBuf::from(&value);
    if !path.is_absolute() {
        return Err(ConfigError::invalid(
            &origin,
            value,
            "the path is relative",
            allowed,
        ));
    }
    Ok(Setting {
        value: path,
        origin,
    })
}

pub(super) fn parse_file(value: (String, Origin)) -> Result<Setting<PathBuf>, ConfigError> {
    parse_path(
        value,
        "an absolute path, because programs change their directory",
    )
}

pub(super) fn parse_faults(
    (value, origin): (String, Origin),
) -> Result<Setting<Vec<FaultRule>>, ConfigError> {
    match FaultRule::parse_list(&value) {
        Ok(value) => Ok(Setting { value, origin }),
        Err(error) => Err(ConfigError::invalid(
            &origin,
            error.at,
            error.reason,
            error.allowed,
        )),
    }
}

pub(super) fn parse_peers(
    (value, origin): (String, Origin),
) -> Result<Setting<Peers>, ConfigError> {
    let value = Peers::parse(&value, &origin)?;
    Ok(Setting { value, origin })
}

pub(super) fn parse_switch((text, origin): (String, Origin)) -> Result<Setting<bool>, ConfigError> {
    let value = match text.as_str() {
        "on" => true,
        "off" => false,
        _ => {
            let reason = "it is neither on nor off";
            return Err(ConfigError::invalid(&origin, text, reason, "on or off"));
        }
    };
    Ok(Setting { value, origin })
}

pub(super) fn parse_identity(
    (value, origin): (String, Origin),
) -> Result<Setting<DeviceIdentity>, ConfigError> {
    let value = DeviceIdentity::parse(&value, &origin)?;
    Ok(Setting { value, origin })
}

pub(super) fn parse_like(
    (text, origin): (String, Origin),
) -> Result<Setting<Likeness>, ConfigError> {
    let value = Likeness::parse(&text, &origin)?;
    Ok(Setting { value, origin })
}

pub(super) fn parse_pkeys(
    (text, origin): (String, Origin),
) -> Result<Setting<Vec<Pkey>>, ConfigError> {
    let value = identity::parse_pkeys(text.split(','), &text, &origin)?;
    Ok(Setting { value, origin })
}

pub(super) fn parse_link(
    (value, origin): (String, Origin),
) -> Result<Setting<LinkMode>, ConfigError> {
    let value = match value.as_str() {
        "auto" => LinkMode::Auto,
        "udp" => LinkMode::Udp,
        "shm" => LinkMode::Shm,
        _ => {
            let reason = "there is no such link";
            return Err(ConfigError::invalid(
                &origin,
                value,
                reason,
                "auto, udp or shm",
            ));
        }
    };
    Ok(Setting { value, origin })
}

pub(super) fn parse_icrc(
    (name, origin): (String, Origin),
) -> Result<Setting<Backend>, ConfigError> {
    match name.parse() {
        Ok(value) => Ok(Setting { value, origin }),
        Err(reason) => {
            let here: Vec<&str> = Backend::available().map(Backend::name).collect();
            let allowed = format!("on this processor {}", here.join(", "));
            Err(ConfigError::invalid(
                &origin,
                name,
                reason.to_string(),
                allowed,
            ))
        }
    }
}
