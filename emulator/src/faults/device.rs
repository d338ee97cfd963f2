//! Rules for devices and ports: a device that is removed, a port that is down, and changes of GIDs,
//! P_Keys and speed.

use std::fmt;
use std::net::IpAddr;

use rocade_wire::{Gid, Pkey};

use super::conditions::Conditions;
use super::{RuleError, each_word};
use crate::link::fault::{number, rule_error};

/// The speeds of ports in Gbit/s that have a code of their own.
const SPEEDS: [u32; 9] = [1, 10, 20, 25, 40, 50, 100, 200, 400];

/// An entry of the GID table, by its index or its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidPlace {
    /// The entry at this index.
    Index(u32),
    /// The entries with this address.
    Address(IpAddr),
}

/// A change of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidEdit {
    /// The entry is empty.
    Remove(GidPlace),
    /// A further address has an entry.
    Add(IpAddr),
    /// The entry has another address.
    Change(GidPlace, IpAddr),
}

/// The failure or the change of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// A port has no link.
    PortDown,
    /// A port has another speed, in Gbit/s.
    Speed(u32),
    /// The GID table of a port is another one.
    Gid(GidEdit),
    /// The P_Key at this index is another one.
    Pkey(u16, Pkey),
    /// The device is not there.
    Remove,
}

impl DeviceFault {
    /// Returns true if the failure is about the whole device instead of a port.
    pub(crate) const fn is_of_device(&self) -> bool {
        matches!(self, Self::Pkey(..) | Self::Remove)
    }
}

/// A rule for devices and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRule {
    /// The failure or the change.
    pub fault: DeviceFault,
    /// The time, the device and the port.
    pub conditions: Conditions,
}

/// The conditions of rules for ports. Rules for devices accept all but the first.
const CONDITIONS: [&str; 8] = ["port", "dev", "at", "for", "every", "times", "p", "seed"];

/// The words of a rule that are no conditions.
#[derive(Default)]
struct Words {
    index: Option<u32>,
    gid: Option<IpAddr>,
    to: Option<IpAddr>,
    pkey: Option<Pkey>,
    gbit: Option<u32>,
}

impl DeviceRule {
    /// The first words of these rules.
    pub(super) const ACTIONS: [&str; 7] = [
        "device-remove",
        "port-down",
        "speed-change",
        "gid-remove",
        "gid-add",
        "gid-change",
        "pkey-change",
    ];

    /// Parses a rule whose first word is one of [`DeviceRule::ACTIONS`].
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word, or if one is missing.
    pub(super) fn parse(text: &str) -> Result<Self, RuleError> {
        let action = text.split_whitespace().next().unwrap_or_default();
        let own: &[&str] = match action {
            "speed-change" => &["gbit"],
            "gid-remove" => &["gid", "index"],
            "gid-add" => &["gid"],
            "gid-change" => &["gid", "index", "to"],
            "pkey-change" => &["index", "pkey"],
            _ => &[],
        };
        let of_device = matches!(action, "pkey-change" | "device-remove");
        let conditions = CONDITIONS.iter().skip(usize::from(of_device));
        let keys: Vec<_> = own.iter().chain(conditions).copied().collect();
        let (mut words, mut conditions) = (Words::default(), Conditions::default());
        each_word(text, &keys, |word, key, value| {
            if own.contains(&key) {
                return words.set(word, key, value);
            }
            conditions.set(word, key, value).map(drop)
        })?;
        conditions.check(text)?;
        let fault = words.fault(text, action)?;
        Ok(Self { fault, conditions })
    }
}

impl Words {
    fn set(&mut self, word: &str, key: &str, value: &str) -> Result<(), RuleError> {
        let value_of = |limit: u64| number(value).filter(|number| *number <= limit);
        match key {
            "index" => match value_of(u16::MAX.into()).and_then(|index| index.try_into().ok()) {
                Some(index) => self.index = Some(index),
                None => return rule_error(word, "it is not an index", "0 to 65535"),
            },
            "pkey" => match value_of(u16::MAX.into()).and_then(|pkey| pkey.try_into().ok()) {
                Some(pkey) => self.pkey = Some(Pkey::new(pkey)),
                None => return rule_error(word, "it is not a P_Key", "0 to 0xffff"),
            },
            "gbit" => match value_of(400).and_then(|gbit| gbit.try_into().ok()) {
                Some(gbit) if SPEEDS.contains(&gbit) => self.gbit = Some(gbit),
                _ => {
                    let known = SPEEDS.map(|speed| speed.to_string()).join(", ");
                    return rule_error(word, "it is not a speed of ports", known);
                }
            },
            _ => {
                let Ok(address) = value.parse::<IpAddr>() else {
                    let allowed = "an IP address, e.g. 192.0.2.1 or fe80::1";
                    return rule_error(word, "it is not an address", allowed);
                };
                // An IPv4 address has one form only.
                let address = Some(Gid::from_ip(address).to_ip());
                match key {
                    "gid" => self.gid = address,
                    _ => self.to = address,
                }
            }
        }
        Ok(())
    }

    fn fault(self, text: &str, action: &str) -> Result<DeviceFault, RuleError> {
        Ok(match action {
            "device-remove" => DeviceFault::Remove,
            "port-down" => DeviceFault::PortDown,
            "speed-change" => match self.gbit {
                Some(gbit) => DeviceFault::Speed(gbit),
                None => return rule_error(text, "the speed is missing", "gbit=25"),
            },
            "gid-add" => match self.gid {
                Some(address) => DeviceFault::Gid(GidEdit::Add(address)),
                None => return rule_error(text, "the address is missing", "gid=192.0.2.9"),
            },
            "gid-remove" => DeviceFault::Gid(GidEdit::Remove(self.place(text)?)),
            "gid-change" => match (self.place(text)?, self.to) {
                (place, Some(to)) => DeviceFault::Gid(GidEdit::Change(place, to)),
                (_, None) => return rule_error(text, "the address is missing", "to=192.0.2.9"),
            },
            _ => {
                let index = self.index.and_then(|index| index.try_into().ok());
                match self.pkey {
                    Some(pkey) => DeviceFault::Pkey(index.unwrap_or(0), pkey),
                    None => return rule_error(text, "the P_Key is missing", "pkey=0x8001"),
                }
            }
        })
    }

    fn place(&self, text: &str) -> Result<GidPlace, RuleError> {
        match (self.index, self.gid) {
            (Some(index), None) => Ok(GidPlace::Index(index)),
            (None, Some(address)) => Ok(GidPlace::Address(address)),
            (None, None) => rule_error(text, "the entry is missing", "index=0 or gid=192.0.2.1"),
            (Some(_), Some(_)) => rule_error(text, "index= and gid=", "one of them"),
        }
    }
}

/// Prints the entry as a word that begins with a space.
impl fmt::Display for GidPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, " index={index}"),
            Self::Address(address) => write!(f, " gid={address}"),
        }
    }
}

impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            DeviceFault::Remove => f.write_str("device-remove")?,
            DeviceFault::PortDown => f.write_str("port-down")?,
            DeviceFault::Speed(gbit) => write!(f, "speed-change gbit={gbit}")?,
            DeviceFault::Gid(GidEdit::Remove(place)) => write!(f, "gid-remove{place}")?,
            DeviceFault::Gid(GidEdit::Add(address)) => write!(f, "gid-add gid={address}")?,
            DeviceFault::Gid(GidEdit::Change(place, to)) => {
                write!(f, "gid-change{place} to={to}")?;
            }
            DeviceFault::Pkey(index, pkey) => {
                write!(f, "pkey-change index={index} pkey={:#06x}", pkey.get())?;
            }
        }
        self.conditions.fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::faults::FaultRule;

    #[test]
    fn rules_print_as_they_are_read() {
        for text in [
            "port-down",
            "port-down dev=rocade0 port=1 at=2s for=500ms every=5s times=3",
            "port-down p=0.5 seed=7 for=1s every=5s",
            "speed-change gbit=25 at=1s",
            "gid-remove index=3 for=1s",
            "gid-remove gid=192.0.2.1",
            "gid-add gid=fd77::3 at=1s",
            "gid-change index=0 to=192.0.2.9",
            "gid-change gid=192.0.2.1 to=192.0.2.9 port=2",
            "pkey-change index=1 pkey=0x8001 dev=a",
            "device-remove",
            "device-remove dev=rocade0 at=2s for=1s",
        ] {
            let rule = FaultRule::parse(text).expect(text);
            let printed = rule.to_string();
            assert_eq!(FaultRule::parse(&printed).expect(&printed), rule, "{text}");
        }
        let default = FaultRule::parse("pkey-change pkey=0x7fff").expect("the first entry");
        assert_eq!(default.to_string(), "pkey-change index=0 pkey=0x7fff");
    }

    #[test]
    fn errors_name_the_word_and_what_is_allowed() {
        for (text, word, allowed) in [
            ("port-down port=0", "port=0", "1 to 255"),
            ("port-down nth=3", "nth=3", "port, dev, at"),
            ("pkey-change port=1", "port=1", "dev, at"),
            ("device-remove port=1", "port=1", "dev, at"),
            (
                "port-down for=2s every=1s",
                "port-down",
                "for=100ms every=1s",
            ),
            ("speed-change", "speed-change", "gbit=25"),
            ("speed-change gbit=7", "gbit=7", "1, 10, 20"),
            ("gid-remove", "gid-remove", "index=0"),
            ("gid-remove index=0 gid=::1", "gid-remove", "one of them"),
            ("gid-remove index=65536", "index=65536", "65535"),
            ("gid-add gid=localhost", "gid=localhost", "192.0.2.1"),
            ("gid-change index=0", "gid-change", "to=192.0.2.9"),
            ("pkey-change", "pkey-change", "pkey=0x8001"),
            ("pkey-change pkey=65536", "pkey=65536", "0xffff"),
        ] {
            let error = FaultRule::parse(text).expect_err(text).to_string();
            assert!(error.contains(word) && error.contains(allowed), "{error}");
        }
    }
}
