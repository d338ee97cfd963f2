//! Management datagrams (MADs) of the general services interface, QP 1, and the messages of the
//! communication manager that they carry.
//!
//! A MAD always has [`Mad::LEN`] bytes: a header of 24 and 232 of data. All integers are
//! big-endian.

mod bytes;
pub mod cm;
mod codes;
mod ip;
mod pretty;

use core::fmt;

pub use cm::{
    Apr, CmMessage, CmPath, Drep, Dreq, Ece, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq,
    TransportType,
};
pub use codes::{ApStatus, CmTimeout, Failover, RejReason, Rejected, SidrStatus};
pub use ip::{IpCmError, IpCmHeader};

use crate::Qkey;
use bytes::Bytes;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($repr:ty), $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name($repr);

        impl $name {
            /// Creates the identifier with this value, in host byte order.
            #[must_use]
            pub const fn new(value: $repr) -> Self {
                Self(value)
            }

            /// Returns the value in host byte order.
            #[must_use]
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#0", $width, "x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:#0", $width, "x}"), self.0)
            }
        }
    };
}

number! {
    /// Communication ID: names one end of a connection, or a request for a service. 0 is none.
    //= CM-FLD-01
    CommId(u32), 10
}

number! {
    /// The service that a REQ or SIDR_REQ requests.
    ServiceId(u64), 18
}

number! {
    /// Transaction of a MAD. An answer repeats the transaction of its request, but receivers need
    /// not check it.
    //= MAD-05
    TransactionId(u64), 18
}

impl ServiceId {
    /// Returns the service at a port of an `rdma_cm` port space.
    //= CMA-01
    #[must_use]
    pub const fn of_port(port_space: u16, port: u16) -> Self {
        Self((port_space as u64) << 16 | port as u64)
    }
}

/// Q_Key of QP 1.
//= MAD-01
pub const GSI_QKEY: Qkey = Qkey::new(0x8001_0000);

/// The reason why a MAD is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadError {
    /// Not 256 bytes.
    Length,
    /// Base version other than 1.
    BaseVersion(u8),
    /// Not of the communication management class.
    Class(u8),
    /// A version of that class other than 2.
    ClassVersion(u8),
    /// Another method than Send.
    Method(u8),
    /// An unknown message.
    Attribute(u16),
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("a MAD has 256 bytes"),
            Self::BaseVersion(version) => write!(f, "MAD base version {version}"),
            Self::Class(class) => write!(f, "management class {class:#04x}"),
            Self::ClassVersion(version) => write!(f, "class version {version}"),
            Self::Method(method) => write!(f, "method {method:#04x}"),
            Self::Attribute(id) => write!(f, "attribute {id:#06x}"),
        }
    }
}

impl core::error::Error for MadError {}

/// A MAD of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Its transaction.
    pub tid: TransactionId,
    /// The message.
    pub message: CmMessage,
}

impl Mad {
    /// Bytes of a MAD.
    //= MAD-01
    pub const LEN: usize = 256;
    /// Bytes of its header.
    //= MAD-02
    pub const HEADER_LEN: usize = 24;
    /// Bytes of its data.
    //= MAD-03
    pub const DATA_LEN: usize = Self::LEN - Self::HEADER_LEN;

    const BASE_VERSION: u8 = 1;
    const CM_CLASS: u8 = 7;
    const CM_VERSION: u8 = 2;
    const METHOD_SEND: u8 = 3;

    /// Creates a MAD.
    #[must_use]
    pub const fn new(tid: TransactionId, message: CmMessage) -> Self {
        Self { tid, message }
    }

    /// Parses the payload of a datagram. Reserved fields are ignored.
    ///
    /// # Errors
    /// [`MadError`]: it is no message of the communication manager.
    //= MAD-02
    //= MAD-04
    pub fn parse(payload: &[u8]) -> Result<Self, MadError> {
        let mad: &[u8; Self::LEN] = payload.try_into().map_err(|_| MadError::Length)?;
        let b = Bytes(mad);
        match [b.u8(0), b.u8(1), b.u8(2), b.u8(3)] {
            [version, ..] if version != Self::BASE_VERSION => {
                return Err(MadError::BaseVersion(version));
            }
            [_, class, ..] if class != Self::CM_CLASS => return Err(MadError::Class(class)),
            [_, _, version, _] if version != Self::CM_VERSION => {
                return Err(MadError::ClassVersion(version));
            }
            [.., method] if method != Self::METHOD_SEND => return Err(MadError::Method(method)),
            _ => {}
        }
        let attribute = b.u16(16);
        let message = CmMessage::parse(attribute, b).ok_or(MadError::Attribute(attribute))?;
        Ok(Self {
            tid: TransactionId(b.u64(8)),
            message,
        })
    }

    /// Returns the payload of the datagram. Reserved fields are 0.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut mad = [0; Self::LEN];
        mad[0] = Self::BASE_VERSION;
        mad[1] = Self::CM_CLASS;
        mad[2] = Self::CM_VERSION;
        mad[3] = Self::METHOD_SEND;
        mad[8..16].copy_from_slice(&self.tid.0.to_be_bytes());
        mad[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        self.message.emit(&mut mad);
        mad
    }
}

#[cfg(test)]
mod layout;
#[cfg(test)]
mod tests;
