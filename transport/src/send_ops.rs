//! Rows of the operations of send work requests: their properties, for all code that only has to
//! tell one kind from another.

use rocade_wire::Rkey;

use crate::attr::QpType;
use crate::completion::WcOpcode;
use crate::wr::SendOp;

/// Executor of an operation, and what it answers.
#[derive(Clone, Copy)]
enum Kind {
    /// The peer acknowledges a message.
    Message,
    /// The peer responds without data.
    Confirmed,
    /// The peer responds with data.
    Result,
    /// The peer responds with the original value of an atomic.
    Atomic,
    /// This QP, without a packet.
    Local,
}

/// Defines a row of each operation: its `ibv_wr_opcode` value, its name in texts, its completion
/// opcode, its kind, and the types of QPs that execute it.
macro_rules! rows {
    ($($(#[$attr:meta])* $op:ident = $code:literal: $name:literal, $completion:ident, $kind:ident,
        [$($qp_type:ident)+];)*) => {
        // Each match has constants only, so the compiler makes a test of bits of it.
        impl SendOp {
            /// Returns the name in texts, e.g. `RDMA WRITE`. Local operations have an article.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$op { .. } => $name,)*
                }
            }

            /// Returns the opcode of its completion. That of a masked atomic depends on its
            /// operands.
            //= WCO-01
            //= XCW-06
            pub(crate) const fn completion(&self) -> WcOpcode {
                match self {
                    $(Self::$op { .. } => WcOpcode::$completion,)*
                }
            }

            /// Returns true for a local operation, executed without a packet.
            #[inline]
            #[must_use]
            pub const fn is_local(&self) -> bool {
                match self {
                    $(Self::$op { .. } => matches!(Kind::$kind, Kind::Local),)*
                }
            }

            /// Returns true for SENDs and WRITEs, which need no special handling in many places.
            #[inline]
            pub(crate) const fn is_common(&self) -> bool {
                match self {
                    $(Self::$op { .. } => matches!(Kind::$kind, Kind::Message),)*
                }
            }

            /// Returns true if the operation has a response of its own, counted by
            /// `max_rd_atomic`: READ, atomics, ATOMIC WRITE and FLUSH.
            #[must_use]
            pub const fn needs_response_data(&self) -> bool {
                match self {
                    $(Self::$op { .. } => matches!(
                        Kind::$kind,
                        Kind::Result | Kind::Atomic | Kind::Confirmed
                    ),)*
                }
            }

            /// Returns true if the response has data: READ and atomics.
            #[must_use]
            pub const fn has_result(&self) -> bool {
                match self {
                    $(Self::$op { .. } => matches!(Kind::$kind, Kind::Result | Kind::Atomic),)*
                }
            }

            /// Returns true for compare-and-swap and fetch-and-add, masked or not.
            #[must_use]
            pub const fn is_atomic(&self) -> bool {
                match self {
                    $(Self::$op { .. } => matches!(Kind::$kind, Kind::Atomic),)*
                }
            }

            /// Returns the `ibv_wr_opcode` value without immediate data.
            #[must_use]
            pub const fn code(&self) -> u32 {
                match self {
                    $(Self::$op { .. } => $code,)*
                }
            }

            /// Returns true if a QP of this type executes the operation.
            pub(crate) const fn is_defined_for(&self, qp_type: QpType) -> bool {
                match self {
                    $(Self::$op { .. } => matches!(qp_type, $(QpType::$qp_type)|+),)*
                }
            }
        }
    };
}

rows! {
    //= UC-01 UD-01
    Send = 2: "SEND", Send, Message, [Rc Uc Ud RawPacket XrcSend DcInitiator];
    SendInv = 9: "SEND", Send, Message, [Rc XrcSend DcInitiator];
    Write = 0: "RDMA WRITE", RdmaWrite, Message, [Rc Uc XrcSend DcInitiator];
    Read = 4: "RDMA READ", RdmaRead, Result, [Rc XrcSend DcInitiator];
    CmpSwap = 5: "atomic", CompSwap, Atomic, [Rc XrcSend DcInitiator];
    FetchAdd = 6: "atomic", FetchAdd, Atomic, [Rc XrcSend DcInitiator];
    Masked = 11: "atomic", MaskedCompSwap, Atomic, [Rc XrcSend DcInitiator];
    //= DCU-06 DCU-07
    AtomicWrite = 15: "ATOMIC WRITE", AtomicWrite, Confirmed, [Rc XrcSend];
    Flush = 14: "FLUSH", Flush, Confirmed, [Rc XrcSend];
    //= MW-09
    Bind = 8: "a bind of a memory window", BindMw, Local, [Rc Uc XrcSend DcInitiator];
    Invalidate = 7: "an invalidation of a key", LocalInv, Local, [Rc Uc XrcSend DcInitiator];
    //= UMR-19
    Fill = 0x66: "a change of an indirect key", Umr, Local, [Rc XrcSend DcInitiator];
    //= XCH-02
    Nop = 11: "a work request", Send, Local, [Rc Uc XrcSend DcInitiator];
    Wait = 11: "a work request", Send, Local, [Rc Uc XrcSend DcInitiator];
    Enable = 11: "a work request", Send, Local, [Rc Uc XrcSend DcInitiator];
}

impl SendOp {
    /// Returns the binary logarithm of the length of an atomic's operand in bytes.
    pub(crate) const fn atomic_log_size(&self) -> Option<u8> {
        if let Self::Masked { log_size, .. } = self {
            Some(*log_size)
        } else if self.is_atomic() {
            Some(3)
        } else {
            None
        }
    }

    /// Returns the length of an atomic's operand in bytes.
    pub(crate) const fn atomic_len(&self) -> Option<u32> {
        match self.atomic_log_size() {
            Some(log_size) => Some(1 << (log_size & 7)),
            None => None,
        }
    }

    /// Returns the address and the key of the peer's memory.
    #[must_use]
    pub const fn remote(&self) -> Option<(u64, Rkey)> {
        match *self {
            Self::Write { va, rkey, .. }
            | Self::Read { va, rkey }
            | Self::CmpSwap { va, rkey, .. }
            | Self::FetchAdd { va, rkey, .. }
            | Self::Masked { va, rkey, .. }
            | Self::AtomicWrite { va, rkey }
            | Self::Flush { va, rkey, .. } => Some((va, rkey)),
            Self::Send { .. }
            | Self::SendInv { .. }
            | Self::Bind(_)
            | Self::Invalidate { .. }
            | Self::Fill
            | Self::Nop
            | Self::Wait
            | Self::Enable => None,
        }
    }
}
