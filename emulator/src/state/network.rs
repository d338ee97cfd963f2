//! Watches the network interfaces of the devices and raises their changes as port events.
//!
//! A netlink socket reports changes. Its messages contain the state of an interface, so that an
//! interface that goes down and up quickly causes two events. Addresses are read from the host
//! after any change.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

use super::events::{AsyncEventKind, AsyncEvents, EventElement};
use crate::config::HostNetwork;
use crate::hca::{Hca, Port};
use crate::sys;

/// `RTM_NEWLINK`, `RTM_DELLINK`.
const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;
/// Lengths of `nlmsghdr` and `ifinfomsg`.
const HEADER_LEN: usize = 16;
const INFO_LEN: usize = 16;
/// `IFF_UP | IFF_RUNNING`: up, and with a carrier.
const RUNNING: u32 = 0x41;

/// The netlink socket, and the opened devices to notify.
#[derive(Debug, Default)]
pub(crate) struct NetworkWatch {
    socket: Mutex<Option<Arc<OwnedFd>>>,
    events: Mutex<Vec<Weak<AsyncEvents>>>,
}

/// The change of an interface that a message reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkChange {
    Running(bool),
    Gone,
}

impl NetworkWatch {
    /// The socket that the background thread waits for.
    pub(crate) fn socket(&self) -> Option<Arc<OwnedFd>> {
        self.socket.lock().clone()
    }

    /// Raises an event for all openers of the device.
    fn raise(&self, hca: &Arc<Hca>, port: u8, kind: AsyncEventKind) {
        let all: Vec<_> = {
            let events = self.events.lock();
            events.iter().filter_map(Weak::upgrade).collect()
        };
        let element = match kind {
            AsyncEventKind::DeviceFatal => EventElement::Device,
            _ => EventElement::Port(port),
        };
        for events in all.iter().filter(|events| Arc::ptr_eq(events.hca(), hca)) {
            events.raise_of_port(kind, element);
        }
    }

    /// Registers an opened device for events of its interfaces. Returns true if it is the first
    /// one: then the caller has to let a thread poll the socket.
    pub(crate) fn subscribe(&self, events: &Arc<AsyncEvents>, hcas: &[Arc<Hca>]) -> bool {
        {
            let mut all = self.events.lock();
            all.retain(|other| other.strong_count() > 0);
            all.push(Arc::downgrade(events));
        }
        let begins = {
            let mut socket = self.socket.lock();
            let begins = socket.is_none();
            if begins {
                *socket = sys::route_socket().ok().map(Arc::new);
            }
            begins && socket.is_some()
        };
        // Changes between the creation of the devices and now raise no event.
        if begins && let Ok(network) = HostNetwork::discover() {
            for (_, port) in ports(hcas) {
                port.set_running(network.is_running(port.config.ifindex));
                port.follow(&network);
            }
        }
        begins
    }

    /// Handles the messages that the socket has.
    pub(crate) fn changed(&self, hcas: &[Arc<Hca>]) {
        let Some(socket) = self.socket() else {
            return;
        };
        let mut buffer = vec![0; 32 * 1024];
        loop {
            match sys::receive(socket.as_fd(), &mut buffer) {
                Ok(0) => break,
                Ok(len) => each_change(&buffer[..len], |index, change| {
                    self.link_changed(hcas, index, change);
                }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel dropped messages: the interfaces are read below.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.look_at_interfaces(hcas);
                }
                Err(_) => break,
            }
        }
        self.look_at_addresses(hcas);
    }

    fn link_changed(&self, hcas: &[Arc<Hca>], index: u32, change: LinkChange) {
        for (hca, port) in ports(hcas) {
            if port.config.ifindex != index {
                continue;
            }
            let running = change == LinkChange::Running(true);
            if port.set_running(running) {
                self.raise_port(hca, port, running);
            }
            //= AEV-07
            if change == LinkChange::Gone && port.set_gone() && hca.is_gone() {
                self.raise(hca, port.number, AsyncEventKind::DeviceFatal);
            }
        }
    }

    //= AEV-08
    fn raise_port(&self, hca: &Arc<Hca>, port: &Port, running: bool) {
        let kind = if running {
            AsyncEventKind::PortActive
        } else {
            AsyncEventKind::PortErr
        };
        let (device, number) = (&hca.config.name, port.number);
        tracing::info!(
            device,
            port = number,
            ?kind,
            "network interface has changed"
        );
        self.raise(hca, number, kind);
    }

    fn look_at_interfaces(&self, hcas: &[Arc<Hca>]) {
        let Ok(network) = HostNetwork::discover() else {
            return;
        };
        for (hca, port) in ports(hcas) {
            let running = network.is_running(port.config.ifindex);
            if port.set_running(running) {
                self.raise_port(hca, port, running);
            }
        }
    }

    fn look_at_addresses(&self, hcas: &[Arc<Hca>]) {
        let Ok(network) = HostNetwork::discover() else {
            return;
        };
        for (hca, port) in ports(hcas) {
            if port.follow(&network) {
                self.raise(hca, port.number, AsyncEventKind::GidChange);
            }
        }
    }
}

fn ports(hcas: &[Arc<Hca>]) -> impl Iterator<Item = (&Arc<Hca>, &Port)> {
    hcas.iter()
        .flat_map(|hca| hca.ports().map(move |port| (hca, port)))
}

/// Calls `each` with the index of each interface that the messages report, and its change.
fn each_change(mut messages: &[u8], mut each: impl FnMut(u32, LinkChange)) {
    while let Some(len) = word(messages, 0) {
        let len = len as usize;
        if len < HEADER_LEN || len > messages.len() {
            return;
        }
        let (message, _) = messages.split_at(len);
        let kind = message[4..6].try_into().map(u16::from_ne_bytes);
        if let Ok(kind @ (NEW_LINK | DEL_LINK)) = kind
            && message.len() >= HEADER_LEN + INFO_LEN
            // Bridges report their ports in messages of another family.
            && message[HEADER_LEN] == 0
            && let (Some(index), Some(flags)) = (word(message, 20), word(message, 24))
        {
            let change = match kind {
                DEL_LINK => LinkChange::Gone,
                _ => LinkChange::Running(flags & RUNNING == RUNNING),
            };
            each(index, change);
        }
        messages = messages.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn message(kind: u16, family: u8, index: u32, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN + INFO_LEN];
        bytes[..4].copy_from_slice(&32u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[16] = family;
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes[24..28].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    fn changes(messages: &[Vec<u8>]) -> Vec<(u32, LinkChange)> {
        let mut found = Vec::new();
        each_change(&messages.concat(), |index, change| {
            found.push((index, change));
        });
        found
    }

    //= AEV-07 AEV-08 type=test
    #[test]
    fn messages_tell_of_interfaces() {
        let all = [
            message(NEW_LINK, 0, 3, 0x1043),
            message(NEW_LINK, 0, 3, 0x1003),
            message(NEW_LINK, 0, 4, 0x40),
            message(20, 0, 5, 0x43),
            message(DEL_LINK, 7, 3, 0x43),
            message(DEL_LINK, 0, 3, 0x43),
        ];
        let expected = [
            (3, LinkChange::Running(true)),
            (3, LinkChange::Running(false)),
            (4, LinkChange::Running(false)),
            (3, LinkChange::Gone),
        ];
        assert_eq!(changes(&all), expected);
    }

    #[test]
    fn nonsense_is_no_message() {
        let whole = message(NEW_LINK, 0, 3, 0x43);
        for len in 0..whole.len() {
            assert!(changes(&[whole[..len].to_vec()]).is_empty());
        }
        for len in [0u32, 15, 16, 31, 33, u32::MAX] {
            let mut bad = whole.clone();
            bad[..4].copy_from_slice(&len.to_ne_bytes());
            assert!(changes(&[bad.clone()]).is_empty(), "{len}");
            let _ = changes(&[bad, whole.clone()]);
        }
        assert_eq!(changes(&[whole, vec![1, 2, 3]]).len(), 1);
    }
}
