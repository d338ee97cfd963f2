//! The invariant CRC at the end of every packet.
//!
//! It is the CRC-32 of Ethernet over eight bytes 0xFF, the IP and UDP headers and the packet. The
//! fields that routers change count as ones.
//!
//! The CRC also covers the IPv4 Identification. A UDP socket neither shows that of a received
//! packet nor lets the sender choose it. Therefore [`IcrcFlow`] takes the Identification as an
//! argument when it computes, and solves for it when it checks. A CRC is linear. So the difference
//! between the received CRC and one computed with a guessed Identification is an invertible
//! function of the difference of the two Identifications. One corrupted packet in 2^16 passes that
//! test. IPv6 has no such field.
//!
//! # Arithmetic
//!
//! Registers are polynomials over GF(2) modulo the CRC's, bit 31 the coefficient of x^0. Feeding n
//! zero bytes multiplies the register by x^8n. Bytes are added to the register's low end before
//! they are shifted through. Let two bytes end k bytes before the end of the data. A difference
//! (d0, d1) of these bytes changes the CRC by (d0 | d1 << 8) · x^(8(k + 2)).

use core::net::IpAddr;
use core::ops::Range;

use crate::crc::{self, ONE, POLYNOMIAL, times_x};
use crate::ip;
use crate::{Bth, ICRC_LEN, ROCE_UDP_PORT};

/// Divides by x.
const fn over_x(a: u32) -> u32 {
    if a & ONE != 0 {
        ((a ^ POLYNOMIAL) << 1) | 1
    } else {
        a << 1
    }
}

/// Returns the product of two polynomials.
const fn product(mut a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    while a != 0 {
        if a & ONE != 0 {
            sum ^= b;
        }
        a <<= 1;
        b = times_x(b);
    }
    sum
}

/// `X_BACK[k]` is x^(-8 · 2^k), which undoes 2^k bytes.
const X_BACK: [u32; 17] = {
    let mut powers = [0; 17];
    let mut power = ONE;
    let mut bit = 0;
    while bit < 8 {
        power = over_x(power);
        bit += 1;
    }
    let mut k = 0;
    while k < powers.len() {
        powers[k] = power;
        power = product(power, power);
        k += 1;
    }
    powers
};

/// Multiplies `a` by x^(-8 · `byte_count`), for a `byte_count` below 2^17.
fn back(mut a: u32, byte_count: usize) -> u32 {
    for (k, &power) in X_BACK.iter().enumerate() {
        if byte_count >> k & 1 != 0 {
            a = product(a, power);
        }
    }
    a
}

/// The change of a CRC by each value of a 16-bit field, as one table of 16 entries per hex digit,
/// the lowest digit first.
type FieldTable = [[u32; 16]; 4];

/// Returns the table of a big-endian 16-bit field that ends `bytes_behind` bytes before the end of
/// the data.
const fn field_table(bytes_behind: usize) -> FieldTable {
    let mut table = [[0; 16]; 4];
    let mut digit = 0;
    while digit < 4 {
        let mut value = 0u32;
        while value < 16 {
            let field = value << (4 * digit);
            // The first byte on the wire is the high one, and enters at the low end.
            let mut register = (field & 0xff) << 8 | field >> 8;
            let mut bits = 8 * (bytes_behind + 2);
            while bits > 0 {
                register = times_x(register);
                bits -= 1;
            }
            table[digit][value as usize] = register;
            value += 1;
        }
        digit += 1;
    }
    table
}

#[inline]
fn look_up(table: &FieldTable, field: u16) -> u32 {
    let [high, low] = field.to_be_bytes();
    table[0][usize::from(low & 0x0f)]
        ^ table[1][usize::from(low >> 4)]
        ^ table[2][usize::from(high & 0x0f)]
        ^ table[3][usize::from(high >> 4)]
}

/// Bytes of the prefix after the Identification: 14 of the IPv4 header, 8 of UDP.
const BEHIND_ID: usize = 14 + ip::UDP_HEADER_LEN;

static UDP_LENGTH: FieldTable = field_table(2);
static IPV4_TOTAL_LENGTH: FieldTable = field_table(16 + ip::UDP_HEADER_LEN);
static IPV4_ID: FieldTable = field_table(BEHIND_ID);
static IPV6_PAYLOAD_LENGTH: FieldTable = field_table(34 + ip::UDP_HEADER_LEN);

/// Result of [`IcrcFlow::check`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum IcrcCheck {
    /// The ICRC is correct.
    Ok {
        /// The packet's IPv4 Identification, predicted or solved for. For IPv6, the prediction.
        ip_id: u16,
    },
    /// The ICRC is wrong. The packet has to be dropped.
    //= ICRC-11
    Bad,
}

/// One direction between two addresses with a fixed source port: the inputs of the ICRC, except for
/// length, Identification and contents.
///
/// The IPv4 header is assumed to have no options and DF set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IcrcFlow {
    /// CRC of the prefix (ones, IP and UDP header) with lengths and Identification 0.
    prefix_crc: u32,
    ipv4: bool,
}

impl IcrcFlow {
    /// Prepares the flow from `src`:`src_port` to port 4791 of `dst`.
    ///
    /// IPv4-mapped IPv6 addresses count as IPv4. `None` if the addresses are of different families.
    #[must_use]
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Option<Self> {
        let mut prefix = Prefix::new();
        let ipv4 = match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                //= ICRC-03 ENC-07
                prefix.push(&[
                    0x45,
                    0xff,
                    0,
                    0,
                    0,
                    0,
                    0x40,
                    0,
                    0xff,
                    ip::PROTOCOL_UDP,
                    0xff,
                    0xff,
                ]);
                prefix.push(&src.octets());
                prefix.push(&dst.octets());
                true
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                //= ICRC-05
                prefix.push(&[0x6f, 0xff, 0xff, 0xff, 0, 0, ip::PROTOCOL_UDP, 0xff]);
                prefix.push(&src.octets());
                prefix.push(&dst.octets());
                false
            }
            _ => return None,
        };
        //= ICRC-04
        prefix.push(&src_port.to_be_bytes());
        prefix.push(&ROCE_UDP_PORT.to_be_bytes());
        prefix.push(&[0, 0, 0xff, 0xff]);
        Some(Self {
            prefix_crc: prefix.crc(),
            ipv4,
        })
    }

    /// Returns the ICRC of a packet whose IPv4 Identification is `ip_id` (ignored for IPv6).
    ///
    /// `covered` is the UDP payload without the ICRC, at least 12 bytes. `to_le_bytes` of the
    /// result goes on the wire.
    #[inline]
    #[must_use]
    pub fn compute(&self, ip_id: u16, covered: &[u8]) -> u32 {
        self.of_len(covered.len()).compute(ip_id, covered)
    }

    /// Checks whether `icrc` is that of a packet. `covered` is the UDP payload without the ICRC.
    ///
    /// `predicted_id` is the expected IPv4 Identification. A correct prediction saves time, and a
    /// wrong one has no other effect.
    #[inline]
    #[must_use]
    pub fn check(&self, predicted_id: u16, covered: &[u8], icrc: [u8; ICRC_LEN]) -> IcrcCheck {
        self.of_len(covered.len())
            .check(predicted_id, covered, icrc)
    }

    /// Prepares the flow for packets of one length: `covered_len` bytes without the ICRC. Packets
    /// come in runs of equal length.
    #[inline]
    #[must_use]
    pub fn of_len(&self, covered_len: usize) -> IcrcOfLen {
        //= ICRC-07
        // No packet has 64 KiB or more. The value for such a length has no meaning.
        let udp_len = (covered_len + ICRC_LEN + ip::UDP_HEADER_LEN) & 0xffff;
        let udp_len = u16::try_from(udp_len).unwrap_or(u16::MAX);
        let mut crc = self.prefix_crc ^ look_up(&UDP_LENGTH, udp_len);
        if self.ipv4 {
            crc ^= look_up(
                &IPV4_TOTAL_LENGTH,
                udp_len.wrapping_add(ip::IPV4_HEADER_LEN_U16),
            );
        } else {
            crc ^= look_up(&IPV6_PAYLOAD_LENGTH, udp_len);
        }
        IcrcOfLen {
            crc,
            covered_len,
            ipv4: self.ipv4,
        }
    }
}

/// An [`IcrcFlow`] for packets of one length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IcrcOfLen {
    /// CRC of the prefix with lengths, but Identification 0.
    crc: u32,
    covered_len: usize,
    ipv4: bool,
}

impl IcrcOfLen {
    /// Returns the length of its packets, without the ICRC.
    #[inline]
    #[must_use]
    pub const fn covered_len(&self) -> usize {
        self.covered_len
    }

    /// Computes the ICRC like [`IcrcFlow::compute`]. `covered` must have the prepared length.
    #[inline]
    #[must_use]
    pub fn compute(&self, ip_id: u16, covered: &[u8]) -> u32 {
        debug_assert_eq!(covered.len(), self.covered_len);
        crc_of_packet(self.before_packet(ip_id), covered)
    }

    /// Computes the ICRC like [`IcrcOfLen::compute`], of a packet into which `fill` first copies
    /// the payload.
    ///
    /// `payload` is a range after the BTH. `fill` receives a CRC, the bytes before the payload, and
    /// the payload's place. It returns the CRC continued over both.
    #[inline]
    #[must_use]
    pub fn compute_filling(
        &self,
        ip_id: u16,
        covered: &mut [u8],
        payload: Range<usize>,
        fill: impl FnOnce(u32, &[u8], &mut [u8]) -> u32,
    ) -> u32 {
        debug_assert_eq!(covered.len(), self.covered_len);
        let (head, rest) = covered.split_at_mut(payload.start);
        let (payload, tail) = rest.split_at_mut(payload.len());
        let crc = fill(self.before_packet(ip_id) ^ mask(head), head, payload);
        if tail.is_empty() {
            crc
        } else {
            crc::update(crc, tail)
        }
    }

    #[inline]
    fn before_packet(&self, ip_id: u16) -> u32 {
        if self.ipv4 {
            self.crc ^ look_up(&IPV4_ID, ip_id)
        } else {
            self.crc
        }
    }

    /// Checks the ICRC like [`IcrcFlow::check`]. `covered` must have the prepared length.
    #[inline]
    #[must_use]
    pub fn check(&self, predicted_id: u16, covered: &[u8], icrc: [u8; ICRC_LEN]) -> IcrcCheck {
        //= ICRC-08
        //= ICRC-12
        let difference = self.compute(predicted_id, covered) ^ u32::from_le_bytes(icrc);
        if difference == 0 {
            return IcrcCheck::Ok {
                ip_id: predicted_id,
            };
        }
        if !self.ipv4 {
            return IcrcCheck::Bad;
        }
        match solve_id(difference, covered.len()) {
            Some(id_difference) => IcrcCheck::Ok {
                ip_id: predicted_id ^ id_difference,
            },
            None => IcrcCheck::Bad,
        }
    }
}

/// Returns the difference of Identifications that causes a `difference` of ICRCs, if there is one.
#[cold]
fn solve_id(difference: u32, covered_len: usize) -> Option<u16> {
    if covered_len > usize::from(u16::MAX) {
        return None;
    }
    // Moved back to the position of the Identification, the difference may affect only its 16 bits.
    let entered = back(difference, covered_len + BEHIND_ID + 2);
    u16::try_from(entered).ok().map(u16::swap_bytes)
}

/// Index of the BTH byte that counts as ones.
const MASKED_AT: usize = 4;

/// Difference of the register before a packet that replaces the masked byte, with this value, by
/// ones.
static MASK: [u32; 256] = {
    let mut table = [0; 256];
    let mut value = 0u32;
    while value < 256 {
        // The masked byte has four bytes before it.
        table[value as usize] = product(value ^ 0xff, X_BACK[2]);
        value += 1;
    }
    table
};

/// Continues a CRC over the packet, with the fifth byte of its BTH masked.
#[inline]
fn crc_of_packet(crc: u32, covered: &[u8]) -> u32 {
    // One pass over the unmodified packet: for short packets, each pass is expensive.
    crc::update(crc ^ mask(covered), covered)
}

/// Returns the difference of the register before a packet that replaces its masked byte by ones.
/// The packet has at least a BTH.
#[inline]
fn mask(packet: &[u8]) -> u32 {
    //= ICRC-06
    packet.get(MASKED_AT).map_or(0, |&b| MASK[usize::from(b)])
}

/// Computes the ICRC of a datagram that begins with its IP header and includes the ICRC. All fields
/// are taken from it.
///
/// `None` if it is no UDP datagram that could hold a packet. IPv4 options are not supported.
#[must_use]
pub fn datagram(ip_datagram: &[u8]) -> Option<u32> {
    //= ICRC-02
    let mut prefix = Prefix::new();
    let ip_len = match ip_datagram.first()? >> 4 {
        4 => {
            let mut header = *ip_datagram.first_chunk::<{ ip::IPV4_HEADER_LEN }>()?;
            if header[0] != 0x45 || header[9] != ip::PROTOCOL_UDP {
                return None;
            }
            let total_len = u16::from_be_bytes([header[2], header[3]]);
            //= ICRC-03
            header[1] = 0xff;
            header[8] = 0xff;
            header[10..12].fill(0xff);
            prefix.push(&header);
            usize::from(total_len)
        }
        6 => {
            let mut header = *ip_datagram.first_chunk::<{ ip::IPV6_HEADER_LEN }>()?;
            if header[6] != ip::PROTOCOL_UDP {
                return None;
            }
            let payload_len = u16::from_be_bytes([header[4], header[5]]);
            //= ICRC-05
            header[0] |= 0x0f;
            header[1..4].fill(0xff);
            header[7] = 0xff;
            prefix.push(&header);
            ip::IPV6_HEADER_LEN + usize::from(payload_len)
        }
        _ => return None,
    };
    let udp = ip_datagram.get(prefix.ip_len()..ip_len)?;
    let (header, payload) = udp.split_first_chunk::<{ ip::UDP_HEADER_LEN }>()?;
    let mut header = *header;
    //= ICRC-04
    header[6..8].fill(0xff);
    prefix.push(&header);
    let (covered, _) = payload.split_last_chunk::<ICRC_LEN>()?;
    if covered.len() < Bth::LEN {
        return None;
    }
    Some(crc_of_packet(prefix.crc(), covered))
}

/// The data that the CRC covers before the BTH.
struct Prefix {
    bytes: [u8; Self::MAX_LEN],
    len: usize,
}

impl Prefix {
    /// A dummy LRH, as in an InfiniBand packet.
    //= ICRC-02 ICRC-09
    const ONES_LEN: usize = 8;
    const MAX_LEN: usize = Self::ONES_LEN + ip::IPV6_HEADER_LEN + ip::UDP_HEADER_LEN;

    const fn new() -> Self {
        Self {
            bytes: [0xff; Self::MAX_LEN],
            len: Self::ONES_LEN,
        }
    }

    /// Appends a part, which fits by construction.
    fn push(&mut self, part: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + part.len()) {
            room.copy_from_slice(part);
            self.len += part.len();
        }
    }

    const fn ip_len(&self) -> usize {
        self.len - Self::ONES_LEN
    }

    fn crc(&self) -> u32 {
        crc::update(0, &self.bytes[..self.len])
    }
}

#[cfg(test)]
mod tests;
