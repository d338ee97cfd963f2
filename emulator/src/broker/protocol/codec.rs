//! Encoding of message fields: integers, texts and compound types.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use rocade_wire::mad::ServiceId;

use super::*;

/// Builds a message.
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn new(kind: u16) -> Self {
        let mut w = Self {
            bytes: MAGIC.to_vec(),
        };
        w.u16(VERSION);
        w.u16(kind);
        w.u32(0);
        w
    }

    /// Encodes a message of that kind with the ends of a shared-memory link.
    pub(super) fn ends(kind: u16, ends: &Ends) -> Vec<u8> {
        let mut w = Self::new(kind);
        w.local(ends.local);
        w.local(ends.peer);
        w.u8(ends.slot.get());
        w.finish()
    }

    /// Encodes a message of that kind about a port.
    pub(super) fn of_binding(kind: u16, binding: &Binding) -> Vec<u8> {
        let mut w = Self::new(kind);
        w.binding(binding);
        w.finish()
    }

    pub(super) fn binding(&mut self, binding: &Binding) {
        self.u64(binding.service.get());
        let (kind, ip) = match binding.to {
            BoundTo::Ip(ip) => (0, ip),
            BoundTo::AnyV4 => (1, Ipv6Addr::UNSPECIFIED.into()),
            BoundTo::AnyV6 => (2, Ipv6Addr::UNSPECIFIED.into()),
            BoundTo::Any => (3, Ipv6Addr::UNSPECIFIED.into()),
        };
        self.u8(kind);
        self.local(ip.into());
        self.u8(binding.reuse.into());
        self.u8(binding.listens.into());
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[8..HEADER_LEN].copy_from_slice(&len.to_le_bytes());
        self.bytes
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(super) fn key(&mut self, key: &ForwardKey) {
        self.bytes.extend(key.bytes());
    }

    pub(super) fn text(&mut self, text: &str, max_len: usize) {
        let end = (0..=max_len.min(text.len()))
            .rev()
            .find(|&at| text.is_char_boundary(at));
        let text = &text[..end.unwrap_or(0)];
        self.u16(u16::try_from(text.len()).unwrap_or(0));
        self.bytes.extend(text.as_bytes());
    }

    /// Writes an address, IPv4 as IPv4-mapped IPv6.
    pub(super) fn local(&mut self, local: LocalAddr) {
        let ip = match local.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.bytes.extend(ip.octets());
        self.u32(local.scope_id());
    }

    /// Writes each item with `write`. Items beyond [`MAX_RULES`] are left out.
    pub(super) fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        let items = &items[..items.len().min(MAX_RULES)];
        self.u16(u16::try_from(items.len()).unwrap_or(0));
        items.iter().for_each(|item| write(self, item));
    }

    pub(super) fn rule(&mut self, rule: &NumberedRule) {
        self.u32(rule.id);
        self.text(&rule.text, MAX_RULE_LEN);
    }

    pub(super) fn rule_for_client(&mut self, rule: &RuleForClient) {
        self.u32(rule.id);
        match &rule.which {
            WhichRule::Own(index) => {
                self.u8(1);
                self.u8(*index);
            }
            WhichRule::Text(text) => {
                self.u8(0);
                self.text(text, MAX_RULE_LEN);
            }
        }
    }

    pub(super) fn faulty_process(&mut self, process: &FaultyProcess) {
        self.u8(process.slot.get());
        self.u32(process.pid);
        self.text(&process.name, MAX_NAME_LEN);
        self.u8(process.is_up_to_date.into());
        self.list(&process.rules, |w, rule| {
            w.rule(&rule.rule);
            w.u8(rule.own.into());
            w.u64(rule.hits);
        });
    }

    pub(super) fn status(&mut self, status: &BrokerStatus) {
        self.u32(status.pid);
        self.text(&status.version, MAX_NAME_LEN);
        self.u64(u64::try_from(status.uptime.as_millis()).unwrap_or(u64::MAX));
        self.u64(status.gsi_datagrams);
        let addresses = &status.addresses[..status.addresses.len().min(MAX_ADDRESSES)];
        self.u16(u16::try_from(addresses.len()).unwrap_or(0));
        for address in addresses {
            self.local(address.local);
            self.u16(address.sockets);
            self.u16(address.users);
        }
        let slots = &status.slots[..status.slots.len().min(MAX_SLOTS)];
        self.u16(u16::try_from(slots.len()).unwrap_or(0));
        for slot in slots {
            self.u8(slot.slot.get());
            self.u32(slot.pid);
            self.u8(slot.connected.into());
            self.text(&slot.name, MAX_NAME_LEN);
        }
        let services = &status.services[..status.services.len().min(MAX_SERVICES)];
        self.u16(u16::try_from(services.len()).unwrap_or(0));
        for service in services {
            self.u64(service.service.get());
            self.u8(service.slot.get());
        }
    }
}

/// Most addresses that a status lists. Further ones are left out.
pub(super) const MAX_ADDRESSES: usize = 512;
/// Most services that a status lists. Further ones are left out.
pub(super) const MAX_SERVICES: usize = 256;
/// Most rules of one process, or of all.
pub(super) const MAX_RULES: usize = crate::link::fault::MAX_RULES;
/// Number of slots.
pub(super) const MAX_SLOTS: usize = 255;

/// Parses a message.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks the header. Returns the kind and a reader of the body.
    pub(super) fn new(bytes: &'a [u8]) -> Result<(u16, Self), ProtocolError> {
        let (version, kind, r) = Self::any_version(bytes)?;
        if version != VERSION && !UNCHANGING.contains(&kind) {
            return Err(ProtocolError::Version(version));
        }
        Ok((kind, r))
    }

    pub(super) fn any_version(bytes: &'a [u8]) -> Result<(u16, u16, Self), ProtocolError> {
        let mut r = Self { rest: bytes };
        if r.take::<4>()? != MAGIC {
            return Err(ProtocolError::Magic);
        }
        let (version, kind) = (r.u16()?, r.u16()?);
        if usize::try_from(r.u32()?) != Ok(bytes.len()) {
            return Err(ProtocolError::Length);
        }
        Ok((version, kind, r))
    }

    pub(super) fn finish(self) -> Result<(), ProtocolError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(ProtocolError::Trailing)
        }
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (head, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(ProtocolError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.take().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, ProtocolError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ProtocolError::Field("flag")),
        }
    }

    pub(super) fn key(&mut self) -> Result<ForwardKey, ProtocolError> {
        self.take().map(ForwardKey::from_bytes)
    }

    pub(super) fn text(&mut self, max_len: usize) -> Result<String, ProtocolError> {
        let len = usize::from(self.u16()?);
        if len > max_len {
            return Err(ProtocolError::Field("text"));
        }
        let (text, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(ProtocolError::Truncated)?;
        self.rest = rest;
        str::from_utf8(text)
            .map(str::to_owned)
            .map_err(|_| ProtocolError::Field("text"))
    }

    pub(super) fn local(&mut self) -> Result<LocalAddr, ProtocolError> {
        let ip = Ipv6Addr::from(self.take::<16>()?);
        let scope_id = self.u32()?;
        let local = LocalAddr::new(ip.into(), scope_id);
        if local.scope_id() != scope_id {
            return Err(ProtocolError::Field("scope id"));
        }
        Ok(local)
    }

    pub(super) fn binding(&mut self) -> Result<Binding, ProtocolError> {
        let service = ServiceId::new(self.u64()?);
        let kind = self.u8()?;
        let ip = self.local()?.ip();
        let to = match kind {
            0 => BoundTo::Ip(ip),
            1 => BoundTo::AnyV4,
            2 => BoundTo::AnyV6,
            3 => BoundTo::Any,
            _ => return Err(ProtocolError::Field("kind of address")),
        };
        Ok(Binding {
            service,
            to,
            reuse: self.flag()?,
            listens: self.flag()?,
        })
    }

    pub(super) fn ends(&mut self) -> Result<Ends, ProtocolError> {
        let (local, peer, slot) = (self.local()?, self.local()?, ProcessSlot::new(self.u8()?));
        if slot == ProcessSlot::BROKER {
            return Err(ProtocolError::Field("slot"));
        }
        Ok(Ends { local, peer, slot })
    }

    pub(super) fn status(&mut self) -> Result<BrokerStatus, ProtocolError> {
        let pid = self.u32()?;
        let version = self.text(MAX_NAME_LEN)?;
        let uptime = Duration::from_millis(self.u64()?);
        let gsi_datagrams = self.u64()?;
        let count = self.count(MAX_ADDRESSES)?;
        let addresses = (0..count)
            .map(|_| {
                Ok(AddressStatus {
                    local: self.local()?,
                    sockets: self.u16()?,
                    users: self.u16()?,
                })
            })
            .collect::<Result<_, _>>()?;
        let count = self.count(MAX_SLOTS)?;
        let slots = (0..count)
            .map(|_| {
                let (slot, pid) = (ProcessSlot::new(self.u8()?), self.u32()?);
                let connected = self.flag()?;
                Ok(SlotStatus {
                    slot,
                    pid,
                    connected,
                    name: self.text(MAX_NAME_LEN)?,
                })
            })
            .collect::<Result<_, _>>()?;
        let count = self.count(MAX_SERVICES)?;
        let services = (0..count)
            .map(|_| {
                Ok(ServiceStatus {
                    service: ServiceId::new(self.u64()?),
                    slot: ProcessSlot::new(self.u8()?),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(BrokerStatus {
            pid,
            version,
            uptime,
            gsi_datagrams,
            addresses,
            slots,
            services,
        })
    }

    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, ProtocolError>,
    ) -> Result<Vec<T>, ProtocolError> {
        let count = self.count(MAX_RULES)?;
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn rule(&mut self) -> Result<NumberedRule, ProtocolError> {
        Ok(NumberedRule {
            id: self.u32()?,
            text: self.text(MAX_RULE_LEN)?,
        })
    }

    pub(super) fn rule_for_client(&mut self) -> Result<RuleForClient, ProtocolError> {
        let id = self.u32()?;
        let which = if self.flag()? {
            WhichRule::Own(self.u8()?)
        } else {
            WhichRule::Text(self.text(MAX_RULE_LEN)?)
        };
        Ok(RuleForClient { id, which })
    }

    pub(super) fn faulty_process(&mut self) -> Result<FaultyProcess, ProtocolError> {
        Ok(FaultyProcess {
            slot: ProcessSlot::new(self.u8()?),
            pid: self.u32()?,
            name: self.text(MAX_NAME_LEN)?,
            is_up_to_date: self.flag()?,
            rules: self.list(|r| {
                Ok(RuleInProcess {
                    rule: r.rule()?,
                    own: r.flag()?,
                    hits: r.u64()?,
                })
            })?,
        })
    }

    pub(super) fn count(&mut self, max: usize) -> Result<usize, ProtocolError> {
        let count = usize::from(self.u16()?);
        if count > max {
            Err(ProtocolError::Field("count"))
        } else {
            Ok(count)
        }
    }
}
