//! The first failure of a queue pair, with the facts that explain it.
//!
//! A completion tells only a status. What led to it is known where it is made, and only then.

use alloc::boxed::Box;

use rocade_wire::{Headers, NakCode, Operation, OperationKind, Rkey};

use crate::completion::WcStatus;
use crate::memory::{Accessor, RemoteAccess};
use crate::queue::RecvWqe;
use crate::wr::{AccessFlags, LocalData, SendOp, Sge};

/// The first failure of a queue pair since its last RESET.
#[derive(Clone, Debug)]
pub enum Failure {
    /// A send work request has completed in error.
    Send(FailedSend),
    /// A request of the peer was refused.
    Request(RefusedRequest),
    /// The buffers of a receive could not be written, for a service without acknowledgements.
    Receive(ReceiveBuffers),
}

/// A send work request that has completed in error.
#[derive(Clone, Debug)]
pub struct FailedSend {
    /// Status of its completion.
    pub status: WcStatus,
    /// Operation and its remote operands.
    pub op: SendOp,
    /// Length in bytes.
    pub len: u32,
    /// The buffers are longer than a message may be.
    pub too_long: bool,
    /// Local buffers, none for inline data.
    pub sges: Box<[Sge]>,
}

/// A request of the peer that was refused with a NAK.
#[derive(Clone, Debug)]
pub struct RefusedRequest {
    /// Code of the NAK.
    pub nak: NakCode,
    /// Status of the receive that the message has consumed, if it has consumed one.
    pub status: WcStatus,
    /// Operation of the packet. `None` if its opcode is unknown.
    pub operation: Option<Operation>,
    /// Remote memory that the message asks for.
    pub target: Option<RemoteRange>,
    /// Payload of the packet in bytes.
    pub payload_len: usize,
    /// Path MTU of this side in bytes.
    pub path_mtu: u32,
    /// Access flags of the queue pair.
    pub rights: AccessFlags,
    /// Number of READs and atomics that were not answered yet, and the limit.
    pub resources: (usize, u8),
    /// The receive that the message has consumed.
    pub receive: Option<ReceiveBuffers>,
    /// The accessor as which the peer accesses memory.
    pub who: Accessor,
}

/// A range of remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// Key.
    pub rkey: Rkey,
    /// Address.
    pub va: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The buffers of a receive.
#[derive(Clone, Debug)]
pub struct ReceiveBuffers {
    /// The accessor as which they are written.
    pub who: Accessor,
    /// Their length in bytes.
    pub len: u64,
    /// The buffers.
    pub sges: Box<[Sge]>,
}

impl FailedSend {
    pub(crate) fn new(
        status: WcStatus,
        op: SendOp,
        (len, too_long): (u32, bool),
        data: &LocalData,
    ) -> Self {
        Self {
            status,
            op,
            len,
            too_long,
            sges: data.sges().into(),
        }
    }
}

impl ReceiveBuffers {
    pub(crate) fn of(wqe: &RecvWqe, who: Accessor) -> Self {
        Self {
            who: Accessor { pd: wqe.pd, ..who },
            len: wqe.data.len(),
            sges: wqe.data.sges().into(),
        }
    }
}

impl RefusedRequest {
    /// Adds what the packet says.
    pub(crate) fn add_packet(&mut self, headers: &Headers, payload_len: usize) {
        self.operation = headers.bth.opcode.operation();
        self.payload_len = payload_len;
        let of_reth = headers.reth.map(|reth| RemoteRange {
            rkey: reth.rkey,
            va: reth.va,
            len: reth.dma_len.into(),
        });
        let of_atomic = headers.atomic.map(|eth| RemoteRange {
            rkey: eth.rkey,
            va: eth.va,
            len: 8,
        });
        let of_masked = headers.masked.map(|eth| RemoteRange {
            rkey: eth.rkey,
            va: eth.va,
            len: 1 << (eth.log_size & 7),
        });
        let of_key = headers.ieth.map(|ieth| RemoteRange {
            rkey: ieth.0,
            va: 0,
            len: 0,
        });
        self.target = of_reth
            .or(of_atomic)
            .or(of_masked)
            .or(of_key)
            .or(self.target);
    }

    /// The right to memory that the request needs. `None` for a SEND.
    #[must_use]
    pub fn access(&self) -> Option<RemoteAccess> {
        match self.operation?.kind() {
            OperationKind::Read => Some(RemoteAccess::Read),
            OperationKind::Write | OperationKind::AtomicWrite => Some(RemoteAccess::Write),
            OperationKind::Atomic | OperationKind::MaskedAtomic => Some(RemoteAccess::Atomic),
            OperationKind::Flush => Some(RemoteAccess::FlushGlobal),
            OperationKind::Send
            | OperationKind::Disconnect
            | OperationKind::ReadResponse
            | OperationKind::Acknowledge
            | OperationKind::AtomicResponse
            | OperationKind::Cnp => None,
        }
    }
}
