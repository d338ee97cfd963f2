//! Messages about shared XRC domains and their targets.

use rocade_wire::Qpn;

use super::ProtocolError;
use super::codec::{Reader, Writer};
use crate::journal::DomainKey;

/// Parameters of opening a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct DomainOpening {
    /// The domain.
    pub(in super::super) key: DomainKey,
    /// Creates the domain if it does not exist.
    pub(in super::super) create: bool,
    /// Fails if the domain exists.
    pub(in super::super) exclusive: bool,
    /// The client has the domain from an earlier broker, and its memory comes with the message.
    pub(in super::super) resumes: bool,
}

impl DomainOpening {
    pub(super) fn encode(&self, kind: u16) -> Vec<u8> {
        let mut w = Writer::new(kind);
        w.domain(&self.key);
        w.u8(self.create.into());
        w.u8(self.exclusive.into());
        w.u8(self.resumes.into());
        w.finish()
    }
}

/// Operations of a client on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TargetCall {
    /// The client has created the target.
    New,
    /// The client opens the target.
    Open,
    /// The client closes the target.
    Close,
    /// The client requests ownership, and has written that into the target record.
    Want,
    /// The client raises the event with this code in all other processes.
    Event(u8),
}

/// Events of a target that the broker reports to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetEvent {
    /// Another process requests ownership. The target record names it.
    Wanted,
    /// No process has the target open any longer.
    Gone,
    /// The owner died in the middle of a message.
    Failed,
    /// The owner raised the event with this code.
    Event(u8),
}

impl Writer {
    pub(super) fn domain(&mut self, key: &DomainKey) {
        self.u64(key.guid);
        self.u64(key.device);
        self.u64(key.inode);
    }

    pub(super) fn call(&mut self, call: TargetCall) {
        let (kind, code) = match call {
            TargetCall::New => (0, 0),
            TargetCall::Open => (1, 0),
            TargetCall::Close => (2, 0),
            TargetCall::Want => (3, 0),
            TargetCall::Event(code) => (4, code),
        };
        self.u8(kind);
        self.u8(code);
    }

    pub(super) fn target_event(&mut self, event: TargetEvent) {
        let (kind, code) = match event {
            TargetEvent::Wanted => (0, 0),
            TargetEvent::Gone => (1, 0),
            TargetEvent::Failed => (2, 0),
            TargetEvent::Event(code) => (3, code),
        };
        self.u8(kind);
        self.u8(code);
    }
}

impl Reader<'_> {
    pub(super) fn domain(&mut self) -> Result<DomainKey, ProtocolError> {
        Ok(DomainKey {
            guid: self.u64()?,
            device: self.u64()?,
            inode: self.u64()?,
        })
    }

    pub(super) fn opening(&mut self) -> Result<DomainOpening, ProtocolError> {
        Ok(DomainOpening {
            key: self.domain()?,
            create: self.flag()?,
            exclusive: self.flag()?,
            resumes: self.flag()?,
        })
    }

    pub(super) fn qpn(&mut self) -> Result<Qpn, ProtocolError> {
        match self.u32()? {
            number if number >> 24 == 0 => Ok(Qpn::new(number)),
            _ => Err(ProtocolError::Field("QP number")),
        }
    }

    pub(super) fn call(&mut self) -> Result<TargetCall, ProtocolError> {
        match (self.u8()?, self.u8()?) {
            (0, 0) => Ok(TargetCall::New),
            (1, 0) => Ok(TargetCall::Open),
            (2, 0) => Ok(TargetCall::Close),
            (3, 0) => Ok(TargetCall::Want),
            (4, code) => Ok(TargetCall::Event(code)),
            _ => Err(ProtocolError::Field("target operation")),
        }
    }

    pub(super) fn target_event(&mut self) -> Result<TargetEvent, ProtocolError> {
        match (self.u8()?, self.u8()?) {
            (0, 0) => Ok(TargetEvent::Wanted),
            (1, 0) => Ok(TargetEvent::Gone),
            (2, 0) => Ok(TargetEvent::Failed),
            (3, code) => Ok(TargetEvent::Event(code)),
            _ => Err(ProtocolError::Field("target event")),
        }
    }
}
