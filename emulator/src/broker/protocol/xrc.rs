//! Messages about XRC domains that processes share, and their targets.

use rocade_wire::Qpn;

use super::ProtocolError;
use super::codec::{Reader, Writer};

/// What a shared XRC domain is known by: the device, and the file (XRCL-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DomainKey {
    /// GUID of the device.
    pub(crate) guid: u64,
    /// `st_dev` of the file.
    pub(crate) device: u64,
    /// `st_ino` of the file.
    pub(crate) inode: u64,
}

/// How a domain is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct DomainOpening {
    /// Which.
    pub(in super::super) key: DomainKey,
    /// Make it if it is not there.
    pub(in super::super) create: bool,
    /// Only if it is not there.
    pub(in super::super) exclusive: bool,
    /// The client has it from an earlier broker, and its memory comes along.
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

/// What a client does about a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TargetCall {
    /// It has made one.
    New,
    /// It opens one.
    Open,
    /// It lets go of one.
    Close,
    /// It has written into the cell that it wants to hold it.
    Want,
    /// It raises an event, whose code this is, for all others.
    Event(u8),
}

/// What a client is told of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetNews {
    /// Somebody wants to hold it: the cell says who.
    Wanted,
    /// Nobody has it open any more.
    Gone,
    /// Its holder has died in the middle of a message.
    Failed,
    /// An event has happened at its holder, whose code this is.
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

    pub(super) fn news(&mut self, news: TargetNews) {
        let (kind, code) = match news {
            TargetNews::Wanted => (0, 0),
            TargetNews::Gone => (1, 0),
            TargetNews::Failed => (2, 0),
            TargetNews::Event(code) => (3, code),
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
            _ => Err(ProtocolError::Field("what to do about a target")),
        }
    }

    pub(super) fn news(&mut self) -> Result<TargetNews, ProtocolError> {
        match (self.u8()?, self.u8()?) {
            (0, 0) => Ok(TargetNews::Wanted),
            (1, 0) => Ok(TargetNews::Gone),
            (2, 0) => Ok(TargetNews::Failed),
            (3, code) => Ok(TargetNews::Event(code)),
            _ => Err(ProtocolError::Field("what has happened to a target")),
        }
    }
}
