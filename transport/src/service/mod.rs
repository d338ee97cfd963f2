//! The only place where transport services differ.
//!
//! Requester and responder ask a [`Service`] instead of branching on the QP type.

mod rc;

use rocade_wire::{Opcode, Operation};

use crate::attr::QpType;
use crate::wr::SendOp;

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Reliable connected.
    Rc,
}

impl Service {
    /// The service of a QP type, `None` where this crate has no state machine for it.
    pub(crate) const fn of(qp_type: QpType) -> Option<Self> {
        match qp_type {
            QpType::Rc => Some(Self::Rc),
            _ => None,
        }
    }

    /// The class in the opcode's upper bits (BTH-15).
    pub(crate) const fn wire(self) -> rocade_wire::Service {
        match self {
            Self::Rc => rocade_wire::Service::Rc,
        }
    }

    /// The opcode of an operation that [`Service::supports`] or the responder produces.
    pub(crate) fn opcode(self, operation: Operation) -> Opcode {
        opcode_of(self.wire(), operation)
    }

    /// Which operations may be posted (PST-10).
    pub(crate) const fn supports(self, op: &SendOp) -> bool {
        match self {
            Self::Rc => rc::supports(op),
        }
    }
}

/// An opcode that no table entry has cannot be built from an operation of this service.
fn opcode_of(service: rocade_wire::Service, operation: Operation) -> Opcode {
    Opcode::of(service, operation).expect("the service defines every operation it sends")
}
