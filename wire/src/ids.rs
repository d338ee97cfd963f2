//! Identifiers carried in packets. Each is a newtype, so that a key is never mistaken for a QP
//! number.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident($repr:ty), mask $mask:expr, width $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name($repr);

        impl $name {
            /// Creates a value from the bits that the field has. Higher bits are dropped.
            #[inline]
            #[must_use]
            pub const fn new(value: $repr) -> Self {
                Self(value & $mask)
            }

            /// Returns the value in host byte order.
            #[inline]
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

identifier! {
    /// Number of a queue pair, 24 bits.
    //= BTH-10
    Qpn(u32), mask 0x00ff_ffff, width 8
}

impl Qpn {
    /// QP 0, the subnet management interface. It does not exist on RoCE.
    pub const SMI: Self = Self(0);
    /// QP 1, the general services interface, which receives the CM's datagrams.
    pub const GSI: Self = Self(1);
    /// Destination of multicast datagrams.
    pub const MULTICAST: Self = Self(0x00ff_ffff);
}

identifier! {
    /// Local key of a memory region, 32 bits. Never on the wire.
    Lkey(u32), mask u32::MAX, width 10
}

identifier! {
    /// Remote key of a memory region or window, 32 bits.
    Rkey(u32), mask u32::MAX, width 10
}

identifier! {
    /// Queue key of a datagram QP, 32 bits.
    Qkey(u32), mask u32::MAX, width 10
}

identifier! {
    /// Globally unique identifier (`EUI-64`) of a node or port.
    Guid(u64), mask u64::MAX, width 18
}

/// Message sequence number of a responder, 24 bits, modular.
//= ETH-03
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Msn(u32);

impl Rkey {
    /// Returns the key with the same index and the next tag (`ibv_inc_rkey`).
    #[must_use]
    pub const fn with_next_tag(self) -> Self {
        self.with_tag(self.0.wrapping_add(1))
    }

    /// Returns the key with the same index and the low 8 bits of `tag`.
    #[must_use]
    pub const fn with_tag(self, tag: u32) -> Self {
        Self(self.0 & !0xff | tag & 0xff)
    }
}

impl Msn {
    const MASK: u32 = 0x00ff_ffff;

    /// The number `value` modulo 2^24.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, `0..2^24`.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of the following message.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// The signed distance `self - other`, in `-2^23 .. 2^23`.
    #[inline]
    #[must_use]
    pub const fn diff(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Debug for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Msn({:#x})", self.0)
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Partition key: 15 bits of partition number, bit 15 set for full members.
//= BTH-06
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Pkey(u16);

impl Pkey {
    /// The default partition, full membership.
    pub const DEFAULT: Self = Self(0xffff);

    const FULL_MEMBER: u16 = 0x8000;

    /// Creates a key with these 16 bits, valid or not.
    #[inline]
    #[must_use]
    pub const fn new(value: u16) -> Self {
        Self(value)
    }

    /// The 16 bits, in host byte order.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns true if the partition number is not zero.
    #[inline]
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 & !Self::FULL_MEMBER != 0
    }

    /// Returns true if the holder is a full member of the partition.
    #[inline]
    #[must_use]
    pub const fn is_full_member(self) -> bool {
        self.0 & Self::FULL_MEMBER != 0
    }

    /// Returns true if both are the same valid key of full members, which therefore match. That is
    /// the usual case.
    #[inline]
    #[must_use]
    pub const fn is_same_full(self, other: Self) -> bool {
        self.0 == other.0 && self.0 > Self::FULL_MEMBER
    }

    /// Returns true if a packet with the key `other` may reach a holder of this key: same valid
    /// partition, and not both limited members.
    #[inline]
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        //= BTH-06
        (self.0 ^ other.0) & !Self::FULL_MEMBER == 0
            && self.is_valid()
            && (self.0 | other.0) & Self::FULL_MEMBER != 0
    }
}

impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Debug for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pkey({:#06x})", self.0)
    }
}

impl fmt::Display for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// Global identifier of a RoCEv2 port: its IP address in 16 bytes, network order, IPv4 as
/// `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Gid([u8; 16]);

impl Gid {
    /// Creates the GID with these 16 bytes.
    #[inline]
    #[must_use]
    pub const fn new(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    /// Creates the GID of an IP address.
    #[must_use]
    pub const fn from_ip(ip: IpAddr) -> Self {
        //= ENC-11
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// Returns the IP address: IPv4 if the GID is v4-mapped, else IPv6. The IP version of the
    /// packets follows from it.
    #[must_use]
    pub const fn to_ip(self) -> IpAddr {
        //= ENC-11
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0)).to_canonical()
    }

    /// The 16 bytes in network order.
    #[inline]
    #[must_use]
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }

    /// Returns true if all bytes are zero: an unused entry of a GID table.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Returns true if the address is a multicast group, of IPv4 or IPv6.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self::from_ip(ip)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Prints IPv6 notation, `::ffff:10.0.0.1` for IPv4.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0)).fmt(f)
    }
}

#[cfg(test)]
mod tests;
