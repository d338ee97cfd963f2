//! Operations: their classification, the services that define them, and their headers and payload.

use core::fmt;

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

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident = $low:literal, $name:literal;)*) => {
        /// The function of a packet, independent of its transport service.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum Operation {
            $($(#[$doc])* $variant,)*
        }

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
    SendFirst = 0x00, "SEND_FIRST";
    /// Middle packet of a SEND.
    //= OPC-01
    SendMiddle = 0x01, "SEND_MIDDLE";
    /// Last packet of a SEND.
    //= OPC-02
    SendLast = 0x02, "SEND_LAST";
    /// Last packet of a SEND, with immediate data.
    //= OPC-03
    SendLastImm = 0x03, "SEND_LAST_IMM";
    /// SEND in one packet.
    //= OPC-04
    SendOnly = 0x04, "SEND_ONLY";
    /// SEND in one packet, with immediate data.
    //= OPC-05
    SendOnlyImm = 0x05, "SEND_ONLY_IMM";
    /// First packet of an RDMA WRITE.
    //= OPC-06
    WriteFirst = 0x06, "RDMA_WRITE_FIRST";
    /// Middle packet of an RDMA WRITE.
    //= OPC-07
    WriteMiddle = 0x07, "RDMA_WRITE_MIDDLE";
    /// Last packet of an RDMA WRITE.
    //= OPC-08
    WriteLast = 0x08, "RDMA_WRITE_LAST";
    /// Last packet of an RDMA WRITE, with immediate data.
    //= OPC-09
    WriteLastImm = 0x09, "RDMA_WRITE_LAST_IMM";
    /// RDMA WRITE in one packet.
    //= OPC-10
    WriteOnly = 0x0a, "RDMA_WRITE_ONLY";
    /// RDMA WRITE in one packet, with immediate data.
    //= OPC-11
    WriteOnlyImm = 0x0b, "RDMA_WRITE_ONLY_IMM";
    /// RDMA READ request.
    //= OPC-12
    ReadRequest = 0x0c, "RDMA_READ_REQUEST";
    /// First packet of an RDMA READ response.
    //= OPC-13
    ReadResponseFirst = 0x0d, "RDMA_READ_RESPONSE_FIRST";
    /// Middle packet of an RDMA READ response.
    //= OPC-14
    ReadResponseMiddle = 0x0e, "RDMA_READ_RESPONSE_MIDDLE";
    /// Last packet of an RDMA READ response.
    //= OPC-15
    ReadResponseLast = 0x0f, "RDMA_READ_RESPONSE_LAST";
    /// RDMA READ response in one packet. Also the response to FLUSH and ATOMIC WRITE.
    //= OPC-16
    ReadResponseOnly = 0x10, "RDMA_READ_RESPONSE_ONLY";
    /// ACK or NAK.
    //= OPC-17
    Acknowledge = 0x11, "ACKNOWLEDGE";
    /// Response to CmpSwap and FetchAdd.
    //= OPC-18
    AtomicAcknowledge = 0x12, "ATOMIC_ACKNOWLEDGE";
    /// Atomic compare and swap.
    //= OPC-19
    CmpSwap = 0x13, "CMP_SWAP";
    /// Atomic fetch and add.
    //= OPC-20
    FetchAdd = 0x14, "FETCH_ADD";
    /// Last packet of a SEND with invalidate.
    //= OPC-22
    SendLastInv = 0x16, "SEND_LAST_INV";
    /// SEND with invalidate in one packet.
    //= OPC-23
    SendOnlyInv = 0x17, "SEND_ONLY_INV";
    /// End of a DC session.
    Disconnect = 0x1a, "DISCONNECT";
    /// FLUSH (annex A19).
    //= OPC-25
    Flush = 0x1c, "FLUSH";
    /// ATOMIC WRITE (annex A19).
    //= OPC-26
    AtomicWrite = 0x1d, "ATOMIC_WRITE";
    /// Masked compare and swap. In RC and XRC it has 8 bytes and NVIDIA's format, elsewhere it is
    /// an extension of Rocade, only for peers that are Rocade.
    //= HW-11
    MaskedCmpSwap = 0x18, "MASKED_CMP_SWAP";
    /// Fetch and add on several fields. In RC and XRC by analogy with the former, elsewhere an
    /// extension of Rocade.
    //= HW-12
    MaskedFetchAdd = 0x19, "MASKED_FETCH_ADD";
    /// Masked compare and swap of an XRC initiator. Extension of Rocade.
    XrcMaskedCmpSwap = 0x1a, "XRC_MASKED_CMP_SWAP";
    /// Fetch and add on several fields of an XRC initiator. Extension of Rocade.
    XrcMaskedFetchAdd = 0x1b, "XRC_MASKED_FETCH_ADD";
    /// Response to a masked atomic on more than 8 bytes, which are its payload. Extension of
    /// Rocade.
    WideAtomicAcknowledge = 0x12, "WIDE_ATOMIC_ACKNOWLEDGE";
    /// Congestion notification packet.
    Cnp = 0x01, "CNP";
}

impl Operation {
    /// Returns true for a request: sent by the requester, handled by the responder. CNP is neither
    /// request nor response.
    #[must_use]
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Self::Cnp)
    }

    /// Returns true for a response: sent by the responder, handled by the requester.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
                | Self::WideAtomicAcknowledge
        )
    }

    /// Returns true for a packet of a SEND, with or without immediate data or invalidate.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImm
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendLastInv
                | Self::SendOnlyInv
        )
    }

    /// Returns true for a packet of an RDMA WRITE, with or without immediate data. ATOMIC WRITE
    /// does not count.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Returns true for a packet of an RDMA READ response.
    #[must_use]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    /// Returns true for CmpSwap and FetchAdd.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }

    /// Returns true for a masked atomic of any service.
    #[must_use]
    pub const fn is_masked_atomic(self) -> bool {
        matches!(
            self,
            Self::MaskedCmpSwap
                | Self::MaskedFetchAdd
                | Self::XrcMaskedCmpSwap
                | Self::XrcMaskedFetchAdd
        )
    }

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

    /// Returns true for the first of several packets of a message.
    #[must_use]
    pub const fn is_first(self) -> bool {
        matches!(
            self,
            Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst
        )
    }

    /// Returns true for a packet that is neither first nor last of its message.
    #[must_use]
    pub const fn is_middle(self) -> bool {
        matches!(
            self,
            Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle
        )
    }

    /// Returns true for the last of several packets of a message.
    #[must_use]
    pub const fn is_last(self) -> bool {
        matches!(
            self,
            Self::SendLast
                | Self::SendLastImm
                | Self::SendLastInv
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::ReadResponseLast
        )
    }

    /// Returns true for a message of one packet: any that is neither first, middle nor last.
    #[must_use]
    pub const fn is_only(self) -> bool {
        !self.is_first() && !self.is_middle() && !self.is_last()
    }

    /// Returns true if the packet carries immediate data.
    #[must_use]
    pub const fn has_imm(self) -> bool {
        matches!(
            self,
            Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm
        )
    }

    /// Returns true if the packet carries a key to invalidate.
    #[must_use]
    pub const fn has_inv(self) -> bool {
        matches!(self, Self::SendLastInv | Self::SendOnlyInv)
    }

    /// Returns the allowed payload lengths.
    #[must_use]
    pub const fn payload_rule(self) -> PayloadRule {
        match self {
            //= OPC-26
            Self::AtomicWrite => PayloadRule::Exactly(8),
            Self::WideAtomicAcknowledge => PayloadRule::OneToMtu,
            _ if self.is_masked_atomic() => PayloadRule::OneToMtu,
            //= ETH-11
            Self::Cnp => PayloadRule::Exactly(16),
            //= OPC-12 OPC-17
            Self::ReadRequest
            | Self::Acknowledge
            | Self::AtomicAcknowledge
            | Self::CmpSwap
            | Self::FetchAdd
            | Self::Disconnect
            | Self::Flush => PayloadRule::Empty,
            //= OPC-00
            _ if self.is_first() || self.is_middle() => PayloadRule::FullMtu,
            //= OPC-02
            _ if self.is_last() => PayloadRule::OneToMtu,
            //= OPC-04
            _ => PayloadRule::UpToMtu,
        }
    }

    /// Returns the headers after the BTH in the RC form.
    const fn rc_ext(self) -> ExtHeaders {
        match self {
            Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm => ExtHeaders::IMM_DT,
            Self::WriteFirst | Self::WriteOnly | Self::ReadRequest | Self::AtomicWrite => {
                ExtHeaders::RETH
            }
            Self::WriteOnlyImm => ExtHeaders::RETH.union(ExtHeaders::IMM_DT),
            Self::ReadResponseFirst
            | Self::ReadResponseLast
            | Self::ReadResponseOnly
            | Self::WideAtomicAcknowledge
            | Self::Acknowledge => ExtHeaders::AETH,
            //= XAW-03
            Self::MaskedCmpSwap | Self::MaskedFetchAdd => ExtHeaders::MASKED_ETH,
            Self::XrcMaskedCmpSwap | Self::XrcMaskedFetchAdd => {
                ExtHeaders::XRCETH.union(ExtHeaders::MASKED_ETH)
            }
            Self::AtomicAcknowledge => ExtHeaders::AETH.union(ExtHeaders::ATOMIC_ACK_ETH),
            Self::CmpSwap | Self::FetchAdd => ExtHeaders::ATOMIC_ETH,
            Self::SendLastInv | Self::SendOnlyInv => ExtHeaders::IETH,
            Self::Flush => ExtHeaders::FETH.union(ExtHeaders::RETH),
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendOnly
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::ReadResponseMiddle
            | Self::Disconnect
            | Self::Cnp => ExtHeaders::empty(),
        }
    }

    /// Returns true if the service defines the operation.
    pub(super) const fn is_defined_in(self, service: Service) -> bool {
        if matches!(self, Self::Cnp) {
            //= OPC-33
            return matches!(service, Service::Cnp);
        }
        if self.is_masked_atomic() || matches!(self, Self::WideAtomicAcknowledge) {
            let names_srq = matches!(self, Self::XrcMaskedCmpSwap | Self::XrcMaskedFetchAdd);
            //= DCW-02
            return match service {
                Service::Manufacturer => true,
                Service::Dc => !names_srq,
                //= XAW-10
                Service::Rc | Service::Xrc => {
                    matches!(self, Self::MaskedCmpSwap | Self::MaskedFetchAdd)
                }
                _ => false,
            };
        }
        if matches!(self, Self::Disconnect) {
            //= DCW-02
            return matches!(service, Service::Dc);
        }
        match service {
            Service::Rc | Service::Xrc => true,
            //= DCW-01
            Service::Dc => !matches!(self, Self::Flush | Self::AtomicWrite),
            //= OPC-30
            Service::Uc => (self.is_send() && !self.has_inv()) || self.is_write(),
            //= OPC-34
            Service::Rd => !matches!(
                self,
                Self::SendLastInv | Self::SendOnlyInv | Self::Flush | Self::AtomicWrite
            ),
            //= OPC-31
            Service::Ud => matches!(self, Self::SendOnly | Self::SendOnlyImm),
            Service::Cnp | Service::Manufacturer => false,
        }
    }

    /// Returns the headers after the BTH in a service that defines the operation.
    pub(super) const fn ext_in(self, service: Service) -> ExtHeaders {
        let rc = match service {
            //= XAW-10
            Service::Rc | Service::Xrc if self.is_masked_atomic() => ExtHeaders::SHORT_MASKED_ETH,
            _ => self.rc_ext(),
        };
        match service {
            //= OPC-32
            Service::Xrc if self.is_request() => rc.union(ExtHeaders::XRCETH),
            //= DCW-03
            Service::Dc if self.is_request() => rc.union(ExtHeaders::DCETH),
            Service::Dc => rc.union(ExtHeaders::DCRETH),
            Service::Ud => rc.union(ExtHeaders::DETH),
            Service::Rd if self.is_request() => rc.union(ExtHeaders::RDETH).union(ExtHeaders::DETH),
            Service::Rd => rc.union(ExtHeaders::RDETH),
            _ => rc,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
