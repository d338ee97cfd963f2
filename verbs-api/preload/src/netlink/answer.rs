//! Replies of the kernel's RDMA subsystem, for Rocade's devices.

use super::abi::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_MULTI, NLM_F_REQUEST, NLMSG_MIN_TYPE, attr, cmd, command, kind,
};
use super::devices::{Device, Port};
use super::entries::{self, KINDS, Table};
use super::message::{Message, Request, requests};
use super::resources::Resource;

/// The datagram size that every reader has room for: `MNL_SOCKET_BUFFER_SIZE` with pages of 4096
/// bytes.
const DATAGRAM_LEN: usize = 3600;
/// The table size from which on further entries go to the next message.
const TABLE_LEN: usize = 2800;
/// `RDMA_NLDEV_SYS_ATTR_NETNS_MODE`: every network namespace has access to all devices.
const NETNS_SHARED: u8 = 1;

/// The source of the data in replies.
pub(super) trait Source {
    /// Returns the devices of the view, by their index.
    fn devices(&self) -> Vec<Device>;
    /// Returns the objects of all processes.
    fn resources(&self) -> Vec<Resource>;
    /// Returns the hardware counters of a port, with their names.
    fn counters(&self, device: &Device, port: &Port) -> Vec<(String, u64)>;
}

/// The program's socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// The netlink port of the socket.
    pub(super) port_id: u32,
    /// Set if the socket accepts error texts (`NETLINK_EXT_ACK`).
    pub(super) takes_words: bool,
}

/// The error of a request that fails.
struct NetlinkError {
    errno: i32,
    word: &'static str,
}

impl NetlinkError {
    const fn new(errno: i32, word: &'static str) -> Self {
        Self { errno, word }
    }
}

type Answered = Result<Vec<Message>, NetlinkError>;

/// Returns the datagrams that answer a datagram of a program.
pub(super) fn answer(bytes: &[u8], caller: Caller, source: &impl Source) -> Vec<Vec<u8>> {
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    for request in requests(bytes) {
        for message in replies(&request, caller, source) {
            let message = message.finish();
            match datagrams.last_mut() {
                Some(last) if last.len() + message.len() <= DATAGRAM_LEN => last.extend(message),
                _ => datagrams.push(message),
            }
        }
    }
    datagrams
}

fn replies(request: &Request<'_>, caller: Caller, source: &impl Source) -> Vec<Message> {
    let acknowledge = |errno, word: Option<&str>| {
        let word = word.filter(|_| caller.takes_words);
        Message::acknowledgement(request, caller.port_id, errno, word)
    };
    let acknowledged = || request.has(NLM_F_ACK).then(|| acknowledge(0, None));
    if request.kind < NLMSG_MIN_TYPE || !request.has(NLM_F_REQUEST) {
        return acknowledged().into_iter().collect();
    }
    let work = Work {
        request,
        caller,
        source,
        is_dump: request.has(NLM_F_DUMP),
    };
    match work.answer() {
        Ok(mut messages) => {
            if work.is_dump {
                messages.push(Message::done(request, caller.port_id));
            } else {
                messages.extend(acknowledged());
            }
            messages
        }
        Err(refusal) => vec![acknowledge(refusal.errno, Some(refusal.word))],
    }
}

/// A request in progress.
struct Work<'a, S> {
    request: &'a Request<'a>,
    caller: Caller,
    source: &'a S,
    is_dump: bool,
}

impl<S: Source> Work<'_, S> {
    fn answer(&self) -> Answered {
        match command(self.request.kind) {
            Some(cmd::GET) if self.is_dump => Ok(self.all_devices()),
            Some(cmd::GET) => Ok(vec![self.device(&self.chosen()?)]),
            Some(cmd::PORT_GET) if self.is_dump => self.all_ports(),
            Some(cmd::PORT_GET) => {
                let device = self.chosen()?;
                Ok(vec![
                    self.port(&device, chosen_port(self.request, &device)?),
                ])
            }
            Some(cmd::SYS_GET) => Ok(vec![self.system()]),
            Some(cmd::STAT_GET) => self.statistics(),
            Some(cmd::RES_GET) if self.is_dump => {
                let devices = self.source.devices();
                Ok(devices.iter().map(|device| self.summary(device)).collect())
            }
            Some(cmd::RES_GET) => Ok(vec![self.summary(&self.chosen()?)]),
            Some(cmd::NEWLINK | cmd::DELLINK) => Err(NetlinkError::new(
                libc::EOPNOTSUPP,
                "Rocade's devices are those of `rocade run`: no link can be added or deleted",
            )),
            Some(cmd::SET | cmd::SYS_SET | cmd::STAT_SET | cmd::STAT_DEL) => Err(
                NetlinkError::new(libc::EOPNOTSUPP, "Rocade's devices cannot be changed here"),
            ),
            other => match other.and_then(entries::table) {
                Some(table) => self.resources(&table),
                None => Err(NetlinkError::new(
                    libc::EOPNOTSUPP,
                    "Rocade does not support this request",
                )),
            },
        }
    }

    fn message(&self) -> Message {
        let command = command(self.request.kind).unwrap_or_default();
        let flags = if self.is_dump { NLM_F_MULTI } else { 0 };
        Message::reply(self.request, self.caller.port_id, kind(command), flags)
    }

    /// Returns a message about a device, with its index and name.
    fn about(&self, device: &Device) -> Message {
        let mut message = self.message();
        message.put_u32(attr::DEV_INDEX, device.index);
        message.put_text(attr::DEV_NAME, &device.name);
        message
    }

    /// Returns the device that the request names.
    fn chosen(&self) -> Result<Device, NetlinkError> {
        let index = self.request.number(attr::DEV_INDEX);
        let index = index.ok_or(NetlinkError::new(
            libc::EINVAL,
            "the request names no device",
        ))?;
        let mut devices = self.source.devices().into_iter();
        devices
            .find(|device| device.index == index)
            .ok_or(NetlinkError::new(libc::EINVAL, "no such device"))
    }

    fn all_devices(&self) -> Vec<Message> {
        let devices = self.source.devices();
        devices.iter().map(|device| self.device(device)).collect()
    }

    fn device(&self, device: &Device) -> Message {
        let mut message = self.about(device);
        let ports = u32::try_from(device.ports.len()).unwrap_or(u32::MAX);
        message.put_u32(attr::PORT_INDEX, ports);
        message.put_text(attr::FW_VERSION, &device.fw_ver);
        message.put_u64(attr::NODE_GUID, device.node_guid);
        message.put_u64(attr::SYS_IMAGE_GUID, device.sys_image_guid);
        message.put_u8(attr::DEV_NODE_TYPE, device.node_type);
        message.put_text(attr::DEV_PROTOCOL, "roce");
        message
    }

    fn all_ports(&self) -> Answered {
        let device = self.chosen()?;
        let ports = device.ports.iter();
        Ok(ports.map(|port| self.port(&device, port)).collect())
    }

    fn port(&self, device: &Device, port: &Port) -> Message {
        let mut message = self.about(device);
        message.put_u32(attr::PORT_INDEX, port.number);
        message.put_u8(attr::PORT_STATE, port.state);
        message.put_u8(attr::PORT_PHYS_STATE, port.phys_state);
        if let Some((index, name)) = &port.interface {
            message.put_u32(attr::NDEV_INDEX, *index);
            message.put_text(attr::NDEV_NAME, name);
        }
        message
    }

    fn system(&self) -> Message {
        let mut message = self.message();
        message.put_u8(attr::SYS_NETNS_MODE, NETNS_SHARED);
        message.put_u8(attr::SYS_COPY_ON_FORK, 1);
        message
    }

    /// Returns the objects of a device.
    fn resources_of(&self, device: &Device) -> Vec<Resource> {
        let mut all = self.source.resources();
        all.retain(|resource| resource.guid() == Some(device.node_guid));
        all
    }

    /// Returns the number of objects of each kind.
    fn summary(&self, device: &Device) -> Message {
        let all = self.resources_of(device);
        let mut message = self.about(device);
        message.put_nested(attr::RES_SUMMARY, |table| {
            for kind in KINDS {
                let count = all.iter().filter(|one| one.kind() == kind).count();
                table.put_nested(attr::RES_SUMMARY_ENTRY, |entry| {
                    entry.put_text(attr::RES_SUMMARY_ENTRY_NAME, kind);
                    entry.put_u64(attr::RES_SUMMARY_ENTRY_CURR, count as u64);
                });
            }
        });
        message
    }

    /// Returns the objects of one kind: all, those of a port, or the one that the request names.
    fn resources(&self, table: &Table) -> Answered {
        let device = self.chosen()?;
        let mut all = self.resources_of(&device);
        all.retain(|resource| resource.kind() == table.kind);
        if !self.is_dump {
            let (attribute, field) = table.id;
            let number = self.request.number(attribute);
            let number = number.ok_or(NetlinkError::new(
                libc::EINVAL,
                "the request names no object",
            ))?;
            let one = all.iter().find(|one| one.number(field) == Some(number));
            let one = one.ok_or(NetlinkError::new(libc::ENOENT, "no such object"))?;
            let mut message = self.about(&device);
            entries::put(&mut message, one);
            return Ok(vec![message]);
        }
        let port = self.request.number(attr::PORT_INDEX);
        if let Some(port) = port.filter(|port| *port != 0) {
            all.retain(|resource| resource.number("port").is_none_or(|its: u32| its == port));
        }
        Ok(self.in_tables(&device, table, &all))
    }

    /// Returns the messages with all entries of a table.
    fn in_tables(&self, device: &Device, table: &Table, all: &[Resource]) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut left = all.iter().peekable();
        while left.peek().is_some() {
            let mut message = self.about(device);
            message.put_nested(table.table, |rows| {
                while rows.len() < TABLE_LEN
                    && let Some(resource) = left.next()
                {
                    rows.put_nested(table.entry, |entry| entries::put(entry, resource));
                }
            });
            messages.push(message);
        }
        messages
    }

    /// Returns the counters of a port. No counter is bound to single queue pairs or memory regions.
    fn statistics(&self) -> Answered {
        if self.is_dump {
            return Ok(Vec::new());
        }
        let device = self.chosen()?;
        let port = chosen_port(self.request, &device)?;
        let mut message = self.about(&device);
        message.put_u32(attr::PORT_INDEX, port.number);
        if self.request.number(attr::STAT_RES) == Some(u32::from(attr::RES_QP)) {
            // The request asks for the binding mode of queue pairs to counters, which is none.
            message.put_u32(attr::STAT_MODE, 0);
            return Ok(vec![message]);
        }
        message.put_nested(attr::STAT_HWCOUNTERS, |table| {
            for (name, value) in self.source.counters(&device, port) {
                table.put_nested(attr::STAT_HWCOUNTER_ENTRY, |entry| {
                    entry.put_text(attr::STAT_HWCOUNTER_ENTRY_NAME, &name);
                    entry.put_u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, value);
                });
            }
        });
        Ok(vec![message])
    }
}

/// Returns the port that the request names.
fn chosen_port<'a>(request: &Request<'_>, device: &'a Device) -> Result<&'a Port, NetlinkError> {
    let number = request.number(attr::PORT_INDEX);
    let number = number.ok_or(NetlinkError::new(libc::EINVAL, "the request names no port"))?;
    let mut ports = device.ports.iter();
    ports
        .find(|port| port.number == number)
        .ok_or(NetlinkError::new(libc::EINVAL, "no such port"))
}

#[cfg(test)]
mod tests;
