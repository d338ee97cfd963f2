//! Quantities that packets and attributes encode in a few bits: MTU, timers, credits.

/// Path MTU: payload bytes of a full packet, headers not counted.
//= MTU-01
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// All values, ascending.
    pub const ALL: [Self; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// Bytes of headers that an Ethernet MTU must leave space for: GRH 40, UDP 8, BTH 12, XRCETH 4,
    /// AtomicETH 28, ICRC 4.
    //= MTU-02
    pub const OVERHEAD_BYTES: u32 = 40 + 8 + 12 + 4 + 28 + 4;

    /// The MTU with this code, `1..=5`.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// The code, `1..=5`.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Payload bytes of a full packet.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.code()
    }

    /// Returns the largest MTU that fits an interface whose IP MTU is `mtu_bytes`. None fits below
    /// 352.
    #[must_use]
    pub fn largest_for_netdev(mtu_bytes: u32) -> Option<Self> {
        //= MTU-02
        let space = mtu_bytes.checked_sub(Self::OVERHEAD_BYTES)?;
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= space)
    }
}

/// Microseconds of each RNR timer code.
//= RNR-04
const RNR_TIMER_US: [u32; 32] = [
    //= RNR-00
    655_360, 10, 20, 30, 40, 60, 80, 120, //
    //= RNR-01
    160, 240, 320, 480, 640, 960, 1_280, 1_920, //
    //= RNR-02
    2_560, 3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, //
    //= RNR-03
    40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
];

/// Delay of a requester after an RNR NAK: a code of 5 bits (`min_rnr_timer`).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Code 0, the largest value.
    pub const LONGEST: Self = Self(0);

    /// The timer with this code, `0..=31`.
    #[inline]
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The low five bits of a syndrome.
    #[inline]
    pub(crate) const fn from_low_bits(byte: u8) -> Self {
        Self(byte & 0x1f)
    }

    /// The code, `0..=31`.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The delay. Code 0 is the longest, 655.36 ms.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        RNR_TIMER_US[self.0 as usize & 31] as u64 * 1_000
    }
}

/// Local ACK timeout of a requester: a code of 5 bits, 4.096 µs · 2^code, 0 = no timeout.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Code 0: the timer never expires.
    pub const DISABLED: Self = Self(0);

    /// The timeout with this code, `0..=31`.
    #[inline]
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code, `0..=31`.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The timeout. `None` if it is disabled (code 0).
    #[must_use]
    pub const fn as_ns(self) -> Option<u64> {
        if self.0 == 0 {
            None
        } else {
            Some(4_096 << self.0)
        }
    }
}

/// Receive credits of each code below 31.
//= AETH-20 AETH-21
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, //
    256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576,
    32_768,
];

/// End-to-end credits of a positive ACK: a code of 5 bits.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CreditCode(u8);

impl CreditCode {
    /// No credits announced: the requester sends without limit.
    //= AETH-11
    pub const INVALID: Self = Self(31);

    /// The credits with this code, `0..=31`.
    #[inline]
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The low five bits of a syndrome.
    #[inline]
    pub(crate) const fn from_low_bits(byte: u8) -> Self {
        Self(byte & 0x1f)
    }

    /// Returns the code of the largest number of credits that is not above `credits`.
    #[inline]
    #[must_use]
    pub const fn from_credits(credits: u32) -> Self {
        //= AETH-20
        match credits {
            0 => Self(0),
            1 => Self(1),
            2..=0xffff => {
                // There are two codes for each power of two: for the power itself, and for one and
                // a half times as many.
                let log = credits.ilog2();
                let upper = (credits >> (log - 1)) & 1;
                let [code, ..] = (2 * log + upper).to_le_bytes();
                Self(if code > 30 { 30 } else { code })
            }
            _ => Self(30),
        }
    }

    /// The code, `0..=31`.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the number of credits. `None` for [`CreditCode::INVALID`].
    #[must_use]
    pub fn credits(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied().map(u32::from)
    }
}

#[cfg(test)]
mod tests;
