//! Codes that messages of the communication manager carry.

use core::fmt;

/// A time of the communication manager: 4.096 µs times 2 to the power of a code, 0 to 31.
//= CM-FLD-03
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// Creates the time with this code, of which only the low 5 bits count.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// The code, 0 to 31.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time in the approximation of Linux: whole milliseconds, 2 to the power of the
    /// code less 8, at least 1.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        1_000_000 << self.0.saturating_sub(8)
    }

    /// Returns the ACK timeout for a path: twice the packet lifetime plus the delay of the adapter.
    //= CM-FLD-05
    #[must_use]
    pub const fn ack_timeout(packet_life: Self, ack_delay: Self) -> Self {
        let (life, delay) = (packet_life.0 + 1, ack_delay.0);
        let code = if life >= delay {
            life + (delay >= life - 1) as u8
        } else {
            delay + (life + 1 >= delay) as u8
        };
        Self(if code > 31 { 31 } else { code })
    }
}

macro_rules! codes {
    (
        $(#[$doc:meta])* $name:ident($repr:ty) {
            $( $(#[$vdoc:meta])* $variant:ident = $code:literal ),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum $name {
            $( $(#[$vdoc])* $variant, )+
            /// Another code.
            Other($repr),
        }

        impl $name {
            /// Decodes a code.
            #[must_use]
            pub const fn from_code(code: $repr) -> Self {
                match code {
                    $( $code => Self::$variant, )+
                    code => Self::Other(code),
                }
            }

            /// The code.
            #[must_use]
            pub const fn code(self) -> $repr {
                match self {
                    $( Self::$variant => $code, )+
                    Self::Other(code) => code,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Other(code) => write!(f, "{code}"),
                    named => write!(f, "{} {named:?}", named.code()),
                }
            }
        }
    };
}

codes! {
    /// The reason why a connection is rejected.
    //= CM-REJ-A
    //= CM-REJ-B
    RejReason(u16) {
        /// No QP is available.
        NoQp = 1,
        /// No end-to-end context is available.
        NoEec = 2,
        /// No resources.
        NoResources = 3,
        /// The sender gave up waiting. The additional information is the GUID of its adapter.
        Timeout = 4,
        /// The request is not supported.
        Unsupported = 5,
        /// No such communication ID.
        InvalidCommId = 6,
        /// No such instance.
        InvalidCommInstance = 7,
        /// The service has no listener.
        InvalidServiceId = 8,
        /// The transport service is not offered.
        InvalidTransportType = 9,
        /// The sender's connection does not exist any more, or one that uses the same QP has not
        /// ended.
        StaleConnection = 10,
        /// No RD channel.
        NoRdc = 11,
        /// The GID of the primary path is not accepted.
        InvalidGid = 12,
        /// The LID of the primary path is not accepted.
        InvalidLid = 13,
        /// The service level is not accepted.
        InvalidSl = 14,
        /// The traffic class is not accepted.
        InvalidTrafficClass = 15,
        /// The hop limit is not accepted.
        InvalidHopLimit = 16,
        /// The packet rate is not accepted.
        InvalidPacketRate = 17,
        /// The GID of the alternate path is not accepted.
        InvalidAltGid = 18,
        /// The LID of the alternate path is not accepted.
        InvalidAltLid = 19,
        /// The service level of the alternate path is not accepted.
        InvalidAltSl = 20,
        /// The traffic class of the alternate path is not accepted.
        InvalidAltTrafficClass = 21,
        /// The hop limit of the alternate path is not accepted.
        InvalidAltHopLimit = 22,
        /// The packet rate of the alternate path is not accepted.
        InvalidAltPacketRate = 23,
        /// Redirected to another communication manager.
        CmRedirect = 24,
        /// Redirected to another port.
        PortRedirect = 25,
        /// The MTU is not accepted.
        InvalidMtu = 26,
        /// Too few responder resources.
        InsufficientResponderResources = 27,
        /// The program has rejected it.
        Consumer = 28,
        /// The RNR retry count is not accepted.
        RnrRetryCount = 29,
        /// The communication ID is in use for another connection.
        DuplicateCommId = 30,
        /// The class version is not supported.
        InvalidClassVersion = 31,
        /// The flow label is not accepted.
        InvalidFlowLabel = 32,
        /// The flow label of the alternate path is not accepted.
        InvalidAltFlowLabel = 33,
        /// The vendor's options are not accepted.
        VendorOption = 35,
    }
}

codes! {
    /// Result of a SIDR_REQ.
    //= CM-SIDR-S
    SidrStatus(u8) {
        /// The QP number and Q_Key are valid.
        Success = 0,
        /// The service has no listener.
        ServiceIdNotSupported = 1,
        /// The program has rejected it.
        Rejected = 2,
        /// No QP.
        NoQp = 3,
        /// Redirected to another communication manager.
        Redirect = 4,
        /// The class version is not supported.
        VersionNotSupported = 5,
    }
}

codes! {
    /// Result of a LAP.
    //= CM-APR-S
    ApStatus(u8) {
        /// The path is loaded.
        Loaded = 0,
        /// No such communication ID.
        InvalidCommId = 1,
        /// No automatic path migration.
        NotSupported = 2,
        /// The program has rejected it.
        Rejected = 3,
        /// Redirected to another communication manager.
        Redirect = 4,
        /// The path is the primary path already.
        IsPrimary = 5,
        /// The QP number does not match.
        QpnMismatch = 6,
        /// The LID is not accepted.
        InvalidLid = 7,
        /// The GID is not accepted.
        InvalidGid = 8,
        /// The flow label is not accepted.
        InvalidFlowLabel = 9,
        /// The traffic class is not accepted.
        InvalidTrafficClass = 10,
        /// The hop limit is not accepted.
        InvalidHopLimit = 11,
        /// The packet rate is not accepted.
        InvalidPacketRate = 12,
        /// The service level is not accepted.
        InvalidSl = 13,
    }
}

codes! {
    /// The message that an MRA or a REJ refers to, 2 bits.
    Rejected(u8) {
        /// A REQ.
        Req = 0,
        /// A REP.
        Rep = 1,
        /// A LAP in an MRA. Another message, or none, in a REJ.
        LapOrOther = 2,
    }
}

codes! {
    /// Answer of a REP about the alternate path, 2 bits.
    Failover(u8) {
        /// The alternate path is accepted.
        Accepted = 0,
        /// Automatic path migration is not supported.
        NotSupported = 1,
        /// The alternate path is not accepted.
        Rejected = 2,
    }
}
