//! Operations: their classification, the services that define them, and their headers and payload.

use core::fmt;

use OperationKind as Kind;

use super::{ExtHeaders, Service};

/// The payload lengths that an operation allows. The path MTU is known to the queue pair only.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PayloadRule {
    /// No payload.
    Empty,
    /// Exactly one path MTU.
    FullMtu,
    /// At least one byte, at most one path MTU.
    OneToMtu,
    /// At most one path MTU.
    UpToMtu,
    /// Exactly this many bytes.
    Exactly(u8),
}

impl PayloadRule {
    /// Returns true if `payload_len` bytes are allowed with a path MTU of `mtu_bytes`.
    #[inline]
    #[must_use]
    pub const fn allows(self, payload_len: usize, mtu_bytes: usize) -> bool {
        match self {
            Self::Empty => payload_len == 0,
            Self::FullMtu => payload_len == mtu_bytes,
            Self::OneToMtu => payload_len >= 1 && payload_len <= mtu_bytes,
            Self::UpToMtu => payload_len <= mtu_bytes,
            Self::Exactly(len) => payload_len == len as usize,
        }
    }
}

/// The function of a packet, without its place in the message and its form.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum OperationKind {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    Read,
    /// CmpSwap or FetchAdd.
    Atomic,
    /// Masked atomic.
    MaskedAtomic,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// End of a DC session.
    Disconnect,
    /// RDMA READ response.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Response to an atomic.
    AtomicResponse,
    /// Congestion notification packet.
    Cnp,
}

/// The place of a packet in its message.
#[derive(Clone, Copy)]
enum Place {
    First,
    Middle,
    Last,
    Only,
}

impl OperationKind {
    /// Returns true for a request that has a response besides an ACK.
    #[inline]
    #[must_use]
    pub const fn is_answered(self) -> bool {
        match self {
            Self::Read | Self::Atomic | Self::MaskedAtomic | Self::AtomicWrite | Self::Flush => {
                true
            }
            Self::Send
            | Self::Write
            | Self::Disconnect
            | Self::ReadResponse
            | Self::Acknowledge
            | Self::AtomicResponse
            | Self::Cnp => false,
        }
    }

    const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Self::Cnp)
    }

    const fn is_response(self) -> bool {
        match self {
            Self::ReadResponse | Self::Acknowledge | Self::AtomicResponse => true,
            Self::Send
            | Self::Write
            | Self::Read
            | Self::Atomic
            | Self::MaskedAtomic
            | Self::AtomicWrite
            | Self::Flush
            | Self::Disconnect
            | Self::Cnp => false,
        }
    }
}

macro_rules! ext {
    ($($ext:ident)*) => { ExtHeaders::empty()$(.union(ExtHeaders::$ext))* };
}

/// Defines the operations, one row each.
///
/// A row has bits 4:0 of the opcode, the name in the specification, kind and place. Then follow the
/// headers after the BTH in the RC form, the payload, and the services that define the operation.
macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident = $low:literal, $name:literal, $kind:ident $place:ident,
        [$($ext:ident)*], $payload:ident $(($len:literal))?, [$($service:ident)+];)*) => {
        /// The function of a packet, independent of its transport service.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum Operation {
            $($(#[$doc])* $variant,)*
        }

        // Each match has constants only, so the compiler makes a test of bits of it.
        impl Operation {
            /// All operations, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns bits 4:0 of the opcode.
            #[must_use]
            pub const fn low_bits(self) -> u8 {
                match self {
                    $(Self::$variant => $low,)*
                }
            }

            /// Returns the name in the specification, e.g. `SEND_ONLY_IMM`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the operation with these bits 4:0 in the services that carry data.
            pub(super) const fn from_low_bits(low: u8) -> Option<Self> {
                match low {
                    // CNP also has the code 1, but belongs to a service of its own.
                    $($low if !matches!(Self::$variant, Self::Cnp) => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the function of the packet.
            #[inline]
            #[must_use]
            pub const fn kind(self) -> OperationKind {
                match self {
                    $(Self::$variant => Kind::$kind,)*
                }
            }

            /// Returns true for a request: sent by the requester, handled by the responder. CNP is
            /// neither request nor response.
            #[must_use]
            pub const fn is_request(self) -> bool {
                match self {
                    $(Self::$variant => const { Kind::$kind.is_request() },)*
                }
            }

            /// Returns true for a response: sent by the responder, handled by the requester.
            #[must_use]
            pub const fn is_response(self) -> bool {
                match self {
                    $(Self::$variant => const { Kind::$kind.is_response() },)*
                }
            }

            /// Returns true for a packet of a SEND, with or without immediate data or invalidate.
            #[must_use]
            pub const fn is_send(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Kind::$kind, Kind::Send),)*
                }
            }

            /// Returns true for a packet of an RDMA WRITE, with or without immediate data. ATOMIC
            /// WRITE does not count.
            #[must_use]
            pub const fn is_write(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Kind::$kind, Kind::Write),)*
                }
            }

            /// Returns true for a packet of an RDMA READ response.
            #[must_use]
            pub const fn is_read_response(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Kind::$kind, Kind::ReadResponse),)*
                }
            }

            /// Returns true for CmpSwap and FetchAdd.
            #[must_use]
            pub const fn is_atomic(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Kind::$kind, Kind::Atomic),)*
                }
            }

            /// Returns true for a masked atomic of any service.
            #[must_use]
            pub const fn is_masked_atomic(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Kind::$kind, Kind::MaskedAtomic),)*
                }
            }

            /// Returns true for the first of several packets of a message.
            #[must_use]
            pub const fn is_first(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Place::$place, Place::First),)*
                }
            }

            /// Returns true for a packet that is neither first nor last of its message.
            #[must_use]
            pub const fn is_middle(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Place::$place, Place::Middle),)*
                }
            }

            /// Returns true for the last of several packets of a message.
            #[must_use]
            pub const fn is_last(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Place::$place, Place::Last),)*
                }
            }

            /// Returns true for a message of one packet: any that is neither first, middle nor
            /// last.
            #[must_use]
            pub const fn is_only(self) -> bool {
                match self {
                    $(Self::$variant => matches!(Place::$place, Place::Only),)*
                }
            }

            /// Returns true if the packet carries immediate data.
            #[must_use]
            pub const fn has_imm(self) -> bool {
                match self {
                    $(Self::$variant => const { ext!($($ext)*).contains(ExtHeaders::IMM_DT) },)*
                }
            }

            /// Returns true if the packet carries a key to invalidate.
            #[must_use]
            pub const fn has_inv(self) -> bool {
                match self {
                    $(Self::$variant => const { ext!($($ext)*).contains(ExtHeaders::IETH) },)*
                }
            }

            /// Returns true for packets that consume a receive of the peer: the first or only one
            /// of a SEND, and the last or only one of a WRITE with immediate data.
            #[inline]
            #[must_use]
            pub const fn takes_receive(self) -> bool {
                match self {
                    $(Self::$variant => const {
                        if matches!(Kind::$kind, Kind::Send) {
                            matches!(Place::$place, Place::First | Place::Only)
                        } else {
                            ext!($($ext)*).contains(ExtHeaders::IMM_DT)
                        }
                    },)*
                }
            }

            /// Returns the allowed payload lengths.
            #[must_use]
            pub const fn payload_rule(self) -> PayloadRule {
                match self {
                    $(Self::$variant => PayloadRule::$payload$(($len))?,)*
                }
            }

            /// Returns the headers after the BTH in the RC form.
            const fn rc_ext(self) -> ExtHeaders {
                match self {
                    $(Self::$variant => ext!($($ext)*),)*
                }
            }

            /// Returns true if the service defines the operation.
            pub(super) const fn is_defined_in(self, service: Service) -> bool {
                match self {
                    $(Self::$variant => matches!(service, $(Service::$service)|+),)*
                }
            }
        }

        pub(super) const fn full_name(service: Service, operation: Option<Operation>) -> &'static str {
            match (service, operation) {
                $((Service::Rc, Some(Operation::$variant)) => concat!("RC ", $name),)*
                $((Service::Uc, Some(Operation::$variant)) => concat!("UC ", $name),)*
                $((Service::Rd, Some(Operation::$variant)) => concat!("RD ", $name),)*
                $((Service::Ud, Some(Operation::$variant)) => concat!("UD ", $name),)*
                $((Service::Xrc, Some(Operation::$variant)) => concat!("XRC ", $name),)*
                $((Service::Dc, Some(Operation::$variant)) => concat!("DC ", $name),)*
                (Service::Cnp, Some(_)) => "CNP",
                (Service::Rc, None) => "RC RESERVED",
                (Service::Uc, None) => "UC RESERVED",
                (Service::Rd, None) => "RD RESERVED",
                (Service::Ud, None) => "UD RESERVED",
                (Service::Xrc, None) => "XRC RESERVED",
                (Service::Dc, None) => "DC RESERVED",
                (Service::Cnp, None) => "CNP RESERVED",
                $((Service::Manufacturer, Some(Operation::$variant)) => $name,)*
                (Service::Manufacturer, None) => "MANUFACTURER",
            }
        }
    };
}

operations! {
    /// First packet of a SEND.
    //= OPC-00
    //= OPC-30 OPC-34 DCW-01
    SendFirst = 0x00, "SEND_FIRST", Send First, [], FullMtu, [Rc Uc Rd Xrc Dc];
    /// Middle packet of a SEND.
    //= OPC-01
    SendMiddle = 0x01, "SEND_MIDDLE", Send Middle, [], FullMtu, [Rc Uc Rd Xrc Dc];
    /// Last packet of a SEND.
    //= OPC-02
    SendLast = 0x02, "SEND_LAST", Send Last, [], OneToMtu, [Rc Uc Rd Xrc Dc];
    /// Last packet of a SEND, with immediate data.
    //= OPC-03
    SendLastImm = 0x03, "SEND_LAST_IMM", Send Last, [IMM_DT], OneToMtu, [Rc Uc Rd Xrc Dc];
    /// SEND in one packet.
    //= OPC-04
    //= OPC-31
    SendOnly = 0x04, "SEND_ONLY", Send Only, [], UpToMtu, [Rc Uc Rd Ud Xrc Dc];
    /// SEND in one packet, with immediate data.
    //= OPC-05
    SendOnlyImm = 0x05, "SEND_ONLY_IMM", Send Only, [IMM_DT], UpToMtu, [Rc Uc Rd Ud Xrc Dc];
    /// First packet of an RDMA WRITE.
    //= OPC-06
    WriteFirst = 0x06, "RDMA_WRITE_FIRST", Write First, [RETH], FullMtu, [Rc Uc Rd Xrc Dc];
    /// Middle packet of an RDMA WRITE.
    //= OPC-07
    WriteMiddle = 0x07, "RDMA_WRITE_MIDDLE", Write Middle, [], FullMtu, [Rc Uc Rd Xrc Dc];
    /// Last packet of an RDMA WRITE.
    //= OPC-08
    WriteLast = 0x08, "RDMA_WRITE_LAST", Write Last, [], OneToMtu, [Rc Uc Rd Xrc Dc];
    /// Last packet of an RDMA WRITE, with immediate data.
    //= OPC-09
    WriteLastImm = 0x09, "RDMA_WRITE_LAST_IMM", Write Last, [IMM_DT], OneToMtu, [Rc Uc Rd Xrc Dc];
    /// RDMA WRITE in one packet.
    //= OPC-10
    WriteOnly = 0x0a, "RDMA_WRITE_ONLY", Write Only, [RETH], UpToMtu, [Rc Uc Rd Xrc Dc];
    /// RDMA WRITE in one packet, with immediate data.
    //= OPC-11
    WriteOnlyImm = 0x0b, "RDMA_WRITE_ONLY_IMM", Write Only, [RETH IMM_DT], UpToMtu,
        [Rc Uc Rd Xrc Dc];
    /// RDMA READ request.
    //= OPC-12
    ReadRequest = 0x0c, "RDMA_READ_REQUEST", Read Only, [RETH], Empty, [Rc Rd Xrc Dc];
    /// First packet of an RDMA READ response.
    //= OPC-13
    ReadResponseFirst = 0x0d, "RDMA_READ_RESPONSE_FIRST", ReadResponse First, [AETH], FullMtu,
        [Rc Rd Xrc Dc];
    /// Middle packet of an RDMA READ response.
    //= OPC-14
    ReadResponseMiddle = 0x0e, "RDMA_READ_RESPONSE_MIDDLE", ReadResponse Middle, [], FullMtu,
        [Rc Rd Xrc Dc];
    /// Last packet of an RDMA READ response.
    //= OPC-15
    ReadResponseLast = 0x0f, "RDMA_READ_RESPONSE_LAST", ReadResponse Last, [AETH], OneToMtu,
        [Rc Rd Xrc Dc];
    /// RDMA READ response in one packet. Also the response to FLUSH and ATOMIC WRITE.
    //= OPC-16
    ReadResponseOnly = 0x10, "RDMA_READ_RESPONSE_ONLY", ReadResponse Only, [AETH], UpToMtu,
        [Rc Rd Xrc Dc];
    /// ACK or NAK.
    //= OPC-17
    Acknowledge = 0x11, "ACKNOWLEDGE", Acknowledge Only, [AETH], Empty, [Rc Rd Xrc Dc];
    /// Response to CmpSwap and FetchAdd.
    //= OPC-18
    AtomicAcknowledge = 0x12, "ATOMIC_ACKNOWLEDGE", AtomicResponse Only,
        [AETH ATOMIC_ACK_ETH], Empty, [Rc Rd Xrc Dc];
    /// Atomic compare and swap.
    //= OPC-19
    CmpSwap = 0x13, "CMP_SWAP", Atomic Only, [ATOMIC_ETH], Empty, [Rc Rd Xrc Dc];
    /// Atomic fetch and add.
    //= OPC-20
    FetchAdd = 0x14, "FETCH_ADD", Atomic Only, [ATOMIC_ETH], Empty, [Rc Rd Xrc Dc];
    /// Last packet of a SEND with invalidate.
    //= OPC-22
    SendLastInv = 0x16, "SEND_LAST_INV", Send Last, [IETH], OneToMtu, [Rc Xrc Dc];
    /// SEND with invalidate in one packet.
    //= OPC-23
    SendOnlyInv = 0x17, "SEND_ONLY_INV", Send Only, [IETH], UpToMtu, [Rc Xrc Dc];
    /// End of a DC session.
    //= DCW-02
    Disconnect = 0x1a, "DISCONNECT", Disconnect Only, [], Empty, [Dc];
    /// FLUSH (annex A19).
    //= OPC-25
    Flush = 0x1c, "FLUSH", Flush Only, [FETH RETH], Empty, [Rc Xrc];
    /// ATOMIC WRITE (annex A19).
    //= OPC-26
    AtomicWrite = 0x1d, "ATOMIC_WRITE", AtomicWrite Only, [RETH], Exactly(8), [Rc Xrc];
    /// Masked compare and swap. In RC and XRC it has 8 bytes and NVIDIA's format, elsewhere it is
    /// an extension of Rocade, only for peers that are Rocade.
    //= HW-11
    //= DCW-02 XAW-03 XAW-10
    MaskedCmpSwap = 0x18, "MASKED_CMP_SWAP", MaskedAtomic Only, [MASKED_ETH], OneToMtu,
        [Rc Xrc Dc Manufacturer];
    /// Fetch and add on several fields. In RC and XRC by analogy with the former, elsewhere an
    /// extension of Rocade.
    //= HW-12
    MaskedFetchAdd = 0x19, "MASKED_FETCH_ADD", MaskedAtomic Only, [MASKED_ETH], OneToMtu,
        [Rc Xrc Dc Manufacturer];
    /// Masked compare and swap of an XRC initiator. Extension of Rocade.
    XrcMaskedCmpSwap = 0x1a, "XRC_MASKED_CMP_SWAP", MaskedAtomic Only,
        [XRCETH MASKED_ETH], OneToMtu, [Manufacturer];
    /// Fetch and add on several fields of an XRC initiator. Extension of Rocade.
    XrcMaskedFetchAdd = 0x1b, "XRC_MASKED_FETCH_ADD", MaskedAtomic Only,
        [XRCETH MASKED_ETH], OneToMtu, [Manufacturer];
    /// Response to a masked atomic on more than 8 bytes, which are its payload. Extension of
    /// Rocade.
    WideAtomicAcknowledge = 0x12, "WIDE_ATOMIC_ACKNOWLEDGE", AtomicResponse Only, [AETH], OneToMtu,
        [Dc Manufacturer];
    /// Congestion notification packet.
    //= OPC-33 ETH-11
    Cnp = 0x01, "CNP", Cnp Only, [], Exactly(16), [Cnp];
}

impl Operation {
    /// Bits 4:0 of [`Operation::WideAtomicAcknowledge`] in DC. Its bits in the manufacturer range
    /// are those of Atomic Acknowledge in DC.
    //= XAW-06
    pub(super) const DC_WIDE: u8 = 0x1f;

    /// Returns bits 4:0 of the opcode in a service.
    pub(super) const fn low_bits_in(self, service: Service) -> u8 {
        match (self, service) {
            (Self::WideAtomicAcknowledge, Service::Dc) => Self::DC_WIDE,
            _ => self.low_bits(),
        }
    }

    /// Returns the operation of an extension of Rocade: the opcodes 0xF2 and 0xF8 to 0xFB.
    //= XAW-01
    //= XAW-02
    //= XAW-06
    pub(super) const fn extension(opcode: u8) -> Option<Self> {
        match opcode {
            0xf2 => Some(Self::WideAtomicAcknowledge),
            0xf8 => Some(Self::MaskedCmpSwap),
            0xf9 => Some(Self::MaskedFetchAdd),
            0xfa => Some(Self::XrcMaskedCmpSwap),
            0xfb => Some(Self::XrcMaskedFetchAdd),
            _ => None,
        }
    }

    /// Returns the headers after the BTH in a service that defines the operation.
    pub(super) const fn ext_in(self, service: Service) -> ExtHeaders {
        let rc = if self.is_masked_atomic() && service.has_short_masked_eth() {
            ExtHeaders::SHORT_MASKED_ETH
        } else {
            self.rc_ext()
        };
        let [of_requests, of_responses] = service.ext();
        rc.union(if self.is_response() {
            of_responses
        } else {
            of_requests
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
