//! The connection manager of a device, driven by the agent with librdmacm.

use std::{cell::RefCell, fmt::Write as _, net::SocketAddr, rc::Rc};

use rocade_wire::Qpn;

use super::{Link, Tokens, accepted};
use crate::peer::{ManagerEvent, PeerManager, Unable};

/// The only user of the connection manager. The drop ends all its connections.
pub(super) struct AgentManager {
    link: Rc<RefCell<Link>>,
}

impl AgentManager {
    pub(super) fn open(link: &Rc<RefCell<Link>>) -> Result<Self, Unable> {
        let manager = Self {
            link: Rc::clone(link),
        };
        manager.order("cm-open")?;
        Ok(manager)
    }

    fn order(&self, order: &str) -> Result<String, Unable> {
        accepted(self.link.borrow_mut().ask(order)?)
    }
}

impl Drop for AgentManager {
    fn drop(&mut self) {
        let _closed = self.order("cm-close");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes(hex: &str) -> Result<Vec<u8>, Unable> {
    if hex == "-" {
        return Ok(Vec::new());
    }
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<_> = digits.map(byte).collect();
    bytes.ok_or_else(|| Unable(format!("the agent answered {hex:?} instead of bytes")))
}

/// Reads `KIND STATUS PRIVATE_DATA`.
fn event(answer: &str) -> Result<ManagerEvent, Unable> {
    let mut words = Tokens(answer.split_whitespace());
    Ok(ManagerEvent {
        kind: words.number()?,
        status: words.number()?,
        private_data: bytes(words.0.next().unwrap_or_default())?,
    })
}

impl PeerManager for AgentManager {
    fn listen(&self, datagrams: bool) -> Result<u16, Unable> {
        let answer = self.order(&format!("cm-listen {}", u32::from(datagrams)))?;
        Tokens(answer.split_whitespace()).number()
    }

    fn connect(&self, to: SocketAddr, qpn: Qpn, private_data: &[u8]) -> Result<(), Unable> {
        let (address, port, data) = (to.ip(), to.port(), hex(private_data));
        let order = format!("cm-connect {address} {port} {} {data}", qpn.get());
        self.order(&order).map(drop)
    }

    fn accept(&self, qpn: Qpn, private_data: &[u8]) -> Result<(), Unable> {
        let order = format!("cm-accept {} {}", qpn.get(), hex(private_data));
        self.order(&order).map(drop)
    }

    fn establish(&self) -> Result<(), Unable> {
        self.order("cm-establish").map(drop)
    }

    fn reject(&self, private_data: &[u8]) -> Result<(), Unable> {
        let order = format!("cm-reject {}", hex(private_data));
        self.order(&order).map(drop)
    }

    fn disconnect(&self) -> Result<(), Unable> {
        self.order("cm-disconnect").map(drop)
    }

    fn poll_event(&self) -> Option<ManagerEvent> {
        let answer = self.link.borrow_mut().ask("cm-event");
        match answer {
            Ok(answer) if answer == "none" => None,
            answer => match answer.and_then(accepted).and_then(|words| event(&words)) {
                Ok(event) => Some(event),
                Err(unable) => panic!("cm-event: {unable}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read() {
        let read = event("4 -110 726967").unwrap();
        assert_eq!((read.kind, read.status), (4, -110));
        assert_eq!(read.private_data, b"rig");
        assert_eq!(event("9 0 -").unwrap().private_data, b"");
        assert!(event("9 0 7x").is_err());
        assert_eq!(hex(b"rig"), "726967");
    }
}
