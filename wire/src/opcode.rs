//! Opcodes: one const table from the byte to its service, operation, extension headers and payload
//! rule.

mod operation;

use core::fmt;

use operation::full_name;
pub use operation::{Operation, OperationKind, PayloadRule};

/// Transport service: bits 7:5 of the opcode.
//= BTH-01
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Service {
    /// Reliable connection, 0x00–0x1F.
    Rc,
    /// Unreliable connection, 0x20–0x3F.
    Uc,
    /// Reliable datagram, 0x40–0x5F. No RoCE device implements it.
    Rd,
    /// Unreliable datagram, 0x60–0x7F.
    Ud,
    /// Congestion notification, 0x80–0x9F.
    Cnp,
    /// Extended reliable connection, 0xA0–0xBF.
    Xrc,
    /// Dynamically connected, 0xC0–0xDF: an encoding specific to Rocade, in the manufacturer range.
    /// Only for peers that have proved to be Rocade.
    Dc,
    /// Manufacturer specific, 0xE0–0xFF. Some of the codes are extensions of Rocade.
    Manufacturer,
}

impl Service {
    /// Returns the service of an opcode.
    #[inline]
    #[must_use]
    pub const fn of_opcode(opcode: u8) -> Self {
        match opcode >> 5 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            3 => Self::Ud,
            4 => Self::Cnp,
            5 => Self::Xrc,
            6 => Self::Dc,
            _ => Self::Manufacturer,
        }
    }

    /// Returns the opcode of the service's operation 0, with the upper bits of all its opcodes.
    #[must_use]
    pub const fn base(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Rd => 0x40,
            Self::Ud => 0x60,
            Self::Cnp => 0x80,
            Self::Xrc => 0xa0,
            //= DCW-01
            Self::Dc => 0xc0,
            Self::Manufacturer => 0xe0,
        }
    }

    /// Returns the headers that the service adds to the RC form of requests and of responses.
    const fn ext(self) -> [ExtHeaders; 2] {
        const NONE: ExtHeaders = ExtHeaders::empty();
        match self {
            //= OPC-32
            Self::Xrc => [ExtHeaders::XRCETH, NONE],
            //= DCW-03
            Self::Dc => [ExtHeaders::DCETH, ExtHeaders::DCRETH],
            Self::Ud => [ExtHeaders::DETH, NONE],
            Self::Rd => [ExtHeaders::RDETH.union(ExtHeaders::DETH), ExtHeaders::RDETH],
            Self::Rc | Self::Uc | Self::Cnp | Self::Manufacturer => [NONE, NONE],
        }
    }

    /// Returns true for datagrams: requests name the sending QP (DETH), and nothing else of a
    /// connection.
    #[inline]
    #[must_use]
    pub const fn is_datagram(self) -> bool {
        self.ext()[0].bits() == ExtHeaders::DETH.bits()
    }

    /// Returns true if the responder acknowledges requests, so that lost packets are retransmitted.
    #[inline]
    #[must_use]
    pub const fn is_acknowledged(self) -> bool {
        Operation::Acknowledge.is_defined_in(self)
    }

    /// Returns true if masked atomics have the format of NVIDIA's NICs.
    //= XAW-10
    #[inline]
    pub(crate) const fn has_short_masked_eth(self) -> bool {
        match self {
            Self::Rc | Self::Xrc => true,
            Self::Uc | Self::Rd | Self::Ud | Self::Cnp | Self::Dc | Self::Manufacturer => false,
        }
    }
}

bitflags::bitflags! {
    /// The extension headers after the BTH. The order of the bits is their order on the wire.
    //= OPC-35
    #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
    pub struct ExtHeaders: u16 {
        /// Reliable datagram extended transport header.
        const RDETH = 1 << 0;
        /// Number of the XRC shared receive queue.
        const XRCETH = 1 << 1;
        /// Datagram extended transport header.
        const DETH = 1 << 2;
        /// Session of a DC request.
        const DCETH = 1 << 3;
        /// Session of a DC response.
        const DCRETH = 1 << 4;
        /// FLUSH extended transport header.
        const FETH = 1 << 5;
        /// RDMA extended transport header.
        const RETH = 1 << 6;
        /// Operands of an atomic request.
        const ATOMIC_ETH = 1 << 7;
        /// Immediate data.
        const IMM_DT = 1 << 8;
        /// Key to invalidate.
        const IETH = 1 << 9;
        /// Acknowledgement.
        const AETH = 1 << 10;
        /// Result of an atomic request.
        const ATOMIC_ACK_ETH = 1 << 11;
        /// Address and size of a masked atomic. Its operands are the payload.
        const MASKED_ETH = 1 << 12;
        /// Address of a masked atomic of 8 bytes, as NVIDIA's NICs send it. Its operands are the
        /// payload.
        const SHORT_MASKED_ETH = 1 << 13;
    }
}

impl ExtHeaders {
    /// Returns the length of these headers, without the BTH.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        const LEN: [usize; 14] = [4, 4, 8, 16, 4, 4, 16, 28, 4, 4, 4, 8, 16, 12];
        let mut total = 0;
        let mut bit = 0;
        while bit < LEN.len() {
            if self.bits() & (1 << bit) != 0 {
                total += LEN[bit];
            }
            bit += 1;
        }
        total
    }
}

/// One row of the table.
#[derive(Clone, Copy)]
struct OpcodeRow {
    operation: Option<Operation>,
    ext: Option<ExtHeaders>,
    name: &'static str,
}

/// RESYNC exists in RD only, hence in no [`Operation`]. Its headers are still known.
//= OPC-21
const RD_RESYNC: u8 = 0x55;

static TABLE: [OpcodeRow; 256] = build_table();

const fn build_table() -> [OpcodeRow; 256] {
    let mut table = [OpcodeRow {
        operation: None,
        ext: None,
        name: "",
    }; 256];
    let mut opcode = 0u8;
    loop {
        table[opcode as usize] = entry(opcode);
        if opcode == u8::MAX {
            return table;
        }
        opcode += 1;
    }
}

const fn entry(opcode: u8) -> OpcodeRow {
    let service = Service::of_opcode(opcode);
    if opcode == RD_RESYNC {
        return OpcodeRow {
            operation: None,
            ext: Some(ExtHeaders::RDETH.union(ExtHeaders::DETH)),
            name: "RD RESYNC",
        };
    }
    let low = opcode & 0x1f;
    let candidate = match service {
        Service::Cnp if low == Operation::Cnp.low_bits() => Some(Operation::Cnp),
        Service::Manufacturer => Operation::extension(opcode),
        Service::Dc if low == Operation::DC_WIDE => Some(Operation::WideAtomicAcknowledge),
        Service::Cnp => None,
        Service::Rc | Service::Uc | Service::Rd | Service::Ud | Service::Xrc | Service::Dc => {
            Operation::from_low_bits(low)
        }
    };
    match candidate {
        Some(operation) if operation.is_defined_in(service) => OpcodeRow {
            operation: Some(operation),
            ext: Some(operation.ext_in(service)),
            name: full_name(service, Some(operation)),
        },
        //= OPC-24 OPC-27
        _ => OpcodeRow {
            operation: None,
            ext: None,
            name: full_name(service, None),
        },
    }
}

/// An opcode: any byte, defined or not.
//= BTH-01
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Opcode(u8);

impl Opcode {
    /// The congestion notification packet.
    //= OPC-33
    pub const CNP: Self = Self(0x81);

    /// The code with this value.
    #[inline]
    #[must_use]
    pub const fn new(value: u8) -> Self {
        Self(value)
    }

    /// The byte.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the opcode of an operation in a service. `None` if the service does not define it.
    #[inline]
    #[must_use]
    pub const fn of(service: Service, operation: Operation) -> Option<Self> {
        if operation.is_defined_in(service) {
            Some(Self(service.base() | operation.low_bits_in(service)))
        } else {
            None
        }
    }

    /// Returns the transport service. Every opcode belongs to one.
    #[inline]
    #[must_use]
    pub const fn service(self) -> Service {
        Service::of_opcode(self.0)
    }

    /// Returns the operation. `None` if the opcode is reserved.
    #[inline]
    #[must_use]
    pub fn operation(self) -> Option<Operation> {
        self.entry().operation
    }

    /// Returns the extension headers. `None` if the opcode is reserved, so that the content after
    /// the BTH is unknown.
    #[inline]
    #[must_use]
    pub fn ext(self) -> Option<ExtHeaders> {
        self.entry().ext
    }

    /// Returns the allowed payload lengths. `None` if the opcode is reserved.
    #[inline]
    #[must_use]
    pub fn payload_rule(self) -> Option<PayloadRule> {
        self.operation().map(Operation::payload_rule)
    }

    /// Returns service and operation, e.g. `RC SEND_ONLY_IMM`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    #[inline]
    fn entry(self) -> &'static OpcodeRow {
        &TABLE[usize::from(self.0)]
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x} {})", self.0, self.name())
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ext().is_some() {
            f.pad(self.name())
        } else {
            write!(f, "{} {:#04x}", self.name(), self.0)
        }
    }
}

#[cfg(test)]
mod tests;
