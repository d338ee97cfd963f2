//! Vendor, part and P_Key table of a device.

use rocade_wire::Pkey;

use super::error::{ConfigError, Origin};

/// Most entries of a P_Key table.
pub const MAX_PKEYS: usize = 128;

/// Vendor and part of a device (`vendor_id`, `vendor_part_id` of `ibv_device_attr`). Programs use
/// them to detect device features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The 24-bit OUI that the IEEE assigned to the vendor.
    pub vendor_id: u32,
    /// The vendor's number of the device.
    pub part_id: u32,
}

impl Default for DeviceIdentity {
    /// Returns Rocade's own identity, which no real device has.
    fn default() -> Self {
        Self {
            vendor_id: 0x526f,
            part_id: 1,
        }
    }
}

impl DeviceIdentity {
    /// Parses `VENDOR:PART`, decimal or with 0x.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with `origin`, the text and the allowed values.
    pub(super) fn parse(text: &str, origin: &Origin) -> Result<Self, ConfigError> {
        let bad = |reason: String| {
            let allowed = "VENDOR:PART, e.g. 0x02c9:0x1017 (ConnectX-5); of 24 and 32 bits";
            ConfigError::invalid(origin, text, reason, allowed)
        };
        let Some((vendor, part)) = text.split_once(':') else {
            return Err(bad("no ':' in it".to_owned()));
        };
        let parse = |text| number(text).ok_or_else(|| bad(format!("{text:?} is not a number")));
        let (vendor_id, part_id) = (parse(vendor)?, parse(part)?);
        if vendor_id >= 1 << 24 {
            return Err(bad(format!("{vendor} has more than 24 bits")));
        }
        Ok(Self { vendor_id, part_id })
    }
}

/// Parses the P_Key table: numbers, in the order of the table.
///
/// # Errors
/// [`ConfigError::Invalid`] for an entry that is not a 16-bit number, for partition 0 and duplicate
/// partitions, and for an empty or too long table.
pub(super) fn parse_pkeys<'t>(
    items: impl Iterator<Item = &'t str>,
    text: &str,
    origin: &Origin,
) -> Result<Vec<Pkey>, ConfigError> {
    let bad = |reason: String| {
        let allowed =
            format!("1 to {MAX_PKEYS} P_Keys of different partitions, e.g. 0xffff,0x8001");
        ConfigError::invalid(origin, text, reason, allowed)
    };
    let mut pkeys: Vec<Pkey> = Vec::new();
    for item in items.map(str::trim) {
        let value = number(item).and_then(|value| u16::try_from(value).ok());
        let pkey = value
            .map(Pkey::new)
            .ok_or_else(|| bad(format!("{item:?} is not a P_Key")))?;
        if !pkey.is_valid() {
            return Err(bad(format!(
                "{item} is in partition 0, which does not exist"
            )));
        }
        if pkeys
            .iter()
            .any(|other| (other.get() ^ pkey.get()) << 1 == 0)
        {
            return Err(bad(format!(
                "{item} is in the partition of an earlier entry"
            )));
        }
        pkeys.push(pkey);
    }
    if pkeys.is_empty() || pkeys.len() > MAX_PKEYS {
        return Err(bad(format!("{} entries", pkeys.len())));
    }
    Ok(pkeys)
}

fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    // Rejects a sign.
    let plain = digits.starts_with(|c: char| c.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, radix).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin::Env("ROCADE_X");

    #[test]
    fn identities_are_two_numbers() {
        let parse = |text| DeviceIdentity::parse(text, &ORIGIN);
        let connectx_5 = DeviceIdentity {
            vendor_id: 0x02c9,
            part_id: 4119,
        };
        for text in ["0x02c9:4119", "713:0x1017", " 0X2C9 : 4119 "] {
            assert_eq!(parse(text).unwrap(), connectx_5, "{text}");
        }
        for (text, part) in [
            ("0x2c9", "no ':'"),
            ("x:1", "\"x\" is not a number"),
            ("1:+2", "\"+2\" is not a number"),
            ("1:", "is not a number"),
            ("0x1000000:1", "more than 24 bits"),
            ("1:0x100000000", "is not a number"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn pkeys_are_of_different_partitions() {
        let parse = |text: &'static str| parse_pkeys(text.split(','), text, &ORIGIN);
        let values = |text| {
            let table = parse(text).unwrap();
            table.into_iter().map(Pkey::get).collect::<Vec<_>>()
        };
        assert_eq!(values("0xffff, 0x8001,2"), [0xffff, 0x8001, 2]);
        for (text, part) in [
            ("", "is not a P_Key"),
            ("0x10000", "is not a P_Key"),
            ("0x8000", "partition 0"),
            ("0xffff,0x7fff", "of an earlier entry"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let many: Vec<String> = (1..=129).map(|n| n.to_string()).collect();
        let table = |n: usize| parse_pkeys(many[..n].iter().map(String::as_str), "", &ORIGIN);
        assert_eq!(table(128).unwrap().len(), 128);
        assert!(table(129).is_err());
    }
}
