//! Rocade's connection manager as the device under test.

use std::{
    cell::RefCell,
    net::{IpAddr, SocketAddr},
};

use rocade_conformance::peer::{ManagerEvent, PeerManager, Unable};
use rocade_emulator::cm::{CmChannel, CmId, CmParam, ConnParam, PortSpace, RejReason};
use rocade_emulator::{Engine, QpType, Qpn, VerbsError};

use crate::peer::unable;

/// The connection manager, with listeners and the current connection.
pub(crate) struct RocadeManager {
    channel: CmChannel,
    address: IpAddr,
    listeners: RefCell<Vec<CmId>>,
    current: RefCell<Option<CmId>>,
}

impl RocadeManager {
    pub(crate) fn new(engine: &Engine, address: IpAddr) -> Result<Self, VerbsError> {
        let channel = CmChannel::new(engine)?;
        // SAFETY: The call takes no pointers, and the descriptor is open as long as the channel.
        unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        Ok(Self {
            channel,
            address,
            listeners: RefCell::default(),
            current: RefCell::default(),
        })
    }

    fn current(&self, f: impl FnOnce(&CmId) -> Result<(), VerbsError>) -> Result<(), Unable> {
        let current = self.current.borrow();
        let id = current
            .as_ref()
            .ok_or_else(|| Unable("no connection".to_owned()))?;
        f(id).map_err(unable)
    }
}

fn conn_param(qp_num: Qpn, private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.to_vec(),
        responder_resources: 2,
        initiator_depth: 3,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num,
        ..ConnParam::default()
    }
}

impl PeerManager for RocadeManager {
    fn listen(&self, datagrams: bool) -> Result<u16, Unable> {
        let (space, qp_type) = if datagrams {
            (PortSpace::Udp, QpType::Ud)
        } else {
            (PortSpace::Tcp, QpType::Rc)
        };
        let listen = || {
            let id = CmId::new(&self.channel, space, qp_type, 0)?;
            id.bind(SocketAddr::new(self.address, 0))?;
            id.listen(0)?;
            let port = id.addresses().local.map_or(0, |addr| addr.port());
            self.listeners.borrow_mut().push(id);
            Ok(port)
        };
        listen().map_err(unable)
    }

    fn connect(&self, to: SocketAddr, qpn: Qpn, private_data: &[u8]) -> Result<(), Unable> {
        let connect = || {
            let id = CmId::new(&self.channel, PortSpace::Tcp, QpType::Rc, 0)?;
            id.bind(SocketAddr::new(self.address, 0))?;
            if !id.resolve(None, to)? {
                return Err(VerbsError::NoDevice);
            }
            id.connect(&conn_param(qpn, private_data))?;
            *self.current.borrow_mut() = Some(id);
            Ok(())
        };
        connect().map_err(unable)
    }

    fn accept(&self, qpn: Qpn, private_data: &[u8]) -> Result<(), Unable> {
        self.current(|id| id.accept(0, &conn_param(qpn, private_data)))
    }

    fn establish(&self) -> Result<(), Unable> {
        self.current(CmId::establish)
    }

    fn reject(&self, private_data: &[u8]) -> Result<(), Unable> {
        self.current(|id| id.reject(RejReason::Consumer, private_data))
    }

    fn disconnect(&self) -> Result<(), Unable> {
        self.current(CmId::disconnect)
    }

    fn poll_event(&self) -> Option<ManagerEvent> {
        let event = self.channel.take_event().ok().flatten()?;
        if let Some(new) = event.new_id {
            *self.current.borrow_mut() = Some(new);
        }
        Some(ManagerEvent {
            kind: event.kind.code(),
            status: event.status,
            private_data: match event.param {
                CmParam::Conn(param) => param.private_data,
                CmParam::Ud(param) => param.private_data,
                CmParam::None | CmParam::User(_) => Vec::new(),
            },
        })
    }
}
