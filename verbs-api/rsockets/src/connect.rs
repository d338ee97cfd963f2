//! The private data that both sides exchange through the connection manager.

/// The size of an [`Sge`] in bytes.
pub const SGE_LEN: usize = 16;
/// The size of an [`Iomap`] in bytes.
pub const IOMAP_LEN: usize = 24;

/// The sender is big-endian. The receiver writes big-endian entries to the sender's lists.
const FLAG_BIG_ENDIAN: u8 = 1;
/// The sender has an iomap list behind its target list.
const FLAG_IOMAP: u8 = 2;
const VERSION: u8 = 1;

/// The maximum number of entries that is accepted for the peer's target list.
const MAX_TARGETS: u32 = 4096;

/// A range of one side's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// The virtual address.
    pub addr: u64,
    /// The rkey.
    pub key: u32,
    /// The length in bytes, or the number of entries of a list.
    pub length: u32,
}

impl Sge {
    /// Encodes the range as a list entry in the memory of a host with this byte order.
    #[must_use]
    pub fn to_bytes(self, big_endian: bool) -> [u8; SGE_LEN] {
        let mut bytes = [0; SGE_LEN];
        let (addr, key, length) = if big_endian {
            (
                self.addr.to_be_bytes(),
                self.key.to_be_bytes(),
                self.length.to_be_bytes(),
            )
        } else {
            (
                self.addr.to_le_bytes(),
                self.key.to_le_bytes(),
                self.length.to_le_bytes(),
            )
        };
        bytes[..8].copy_from_slice(&addr);
        bytes[8..12].copy_from_slice(&key);
        bytes[12..].copy_from_slice(&length);
        bytes
    }

    /// Decodes a list entry in the memory of a host with this byte order.
    #[must_use]
    pub fn from_bytes(bytes: [u8; SGE_LEN], big_endian: bool) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        let (addr, key, length) = ([a, b, c, d, e, f, g, h], [i, j, k, l], [m, n, o, p]);
        if big_endian {
            Self {
                addr: u64::from_be_bytes(addr),
                key: u32::from_be_bytes(key),
                length: u32::from_be_bytes(length),
            }
        } else {
            Self {
                addr: u64::from_le_bytes(addr),
                key: u32::from_le_bytes(key),
                length: u32::from_le_bytes(length),
            }
        }
    }
}

/// A memory range that the peer can write to, at an offset that the program chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Iomap {
    /// The offset of the first byte.
    pub offset: u64,
    /// The memory of the range.
    pub sge: Sge,
}

impl Iomap {
    /// Encodes the iomap as a list entry in the memory of a host with this byte order.
    #[must_use]
    pub fn to_bytes(self, big_endian: bool) -> [u8; IOMAP_LEN] {
        let mut bytes = [0; IOMAP_LEN];
        let offset = if big_endian {
            self.offset.to_be_bytes()
        } else {
            self.offset.to_le_bytes()
        };
        bytes[..8].copy_from_slice(&offset);
        bytes[8..].copy_from_slice(&self.sge.to_bytes(big_endian));
        bytes
    }

    /// Decodes a list entry in the memory of a host with this byte order.
    #[must_use]
    pub fn from_bytes(bytes: [u8; IOMAP_LEN], big_endian: bool) -> Self {
        let mut offset = [0; 8];
        offset.copy_from_slice(&bytes[..8]);
        let mut sge = [0; SGE_LEN];
        sge.copy_from_slice(&bytes[8..]);
        Self {
            offset: if big_endian {
                u64::from_be_bytes(offset)
            } else {
                u64::from_le_bytes(offset)
            },
            sge: Sge::from_bytes(sge, big_endian),
        }
    }
}

/// Encodes a number of entries in 8 bits. Values above 128 stand for multiples of 256.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "15 bits, of which 8 go away"
)]
pub const fn scale(entries: u16) -> u8 {
    if entries <= 128 {
        entries as u8
    } else if entries > 0x7fff {
        0xff
    } else {
        0x80 | (entries >> 8) as u8
    }
}

/// Decodes a number of entries. A number that was no multiple of 256 is rounded down.
#[must_use]
pub const fn unscale(code: u8) -> u16 {
    if code <= 128 {
        code as u16
    } else {
        (code as u16 & 0x7f) << 8
    }
}

/// The reasons why private data are not those of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnDataError {
    /// The private data are too short.
    Short,
    /// The protocol version is unknown.
    Version,
    /// There are no credits, no target list or no buffer, so that nothing could be sent.
    Empty,
    /// A list or buffer ends beyond the last address.
    Range,
}

/// The private data of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnData {
    /// The side's lists are in big-endian byte order.
    pub big_endian: bool,
    /// The number of messages that the side can receive initially.
    pub credits: u16,
    /// The number of entries in the iomap list.
    pub iomaps: u16,
    /// The target list. The iomap list follows it in memory.
    pub target_sgl: Sge,
    /// The receive buffer, or the half of it that the peer writes to first.
    pub data_buf: Sge,
}

impl ConnData {
    /// The length of the private data in bytes.
    pub const LEN: usize = 8 + 2 * SGE_LEN;

    /// Encodes the private data.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = VERSION;
        bytes[1] = FLAG_IOMAP;
        if self.big_endian {
            bytes[1] |= FLAG_BIG_ENDIAN;
        }
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = scale(self.iomaps);
        bytes[8..8 + SGE_LEN].copy_from_slice(&self.target_sgl.to_bytes(true));
        bytes[8 + SGE_LEN..].copy_from_slice(&self.data_buf.to_bytes(true));
        bytes
    }

    /// Decodes private data. Bytes behind [`Self::LEN`] are ignored.
    ///
    /// # Errors
    /// The bytes are not the private data of a stream.
    pub fn decode(bytes: &[u8]) -> Result<Self, ConnDataError> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk().ok_or(ConnDataError::Short)?;
        if bytes[0] != VERSION {
            return Err(ConnDataError::Version);
        }
        let sge = |at: usize| {
            let mut raw = [0; SGE_LEN];
            raw.copy_from_slice(&bytes[at..at + SGE_LEN]);
            Sge::from_bytes(raw, true)
        };
        let data = Self {
            big_endian: bytes[1] & FLAG_BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            iomaps: if bytes[1] & FLAG_IOMAP == 0 {
                0
            } else {
                unscale(bytes[7])
            },
            target_sgl: sge(8),
            data_buf: sge(8 + SGE_LEN),
        };
        let targets = data.target_sgl.length;
        if data.credits == 0 || targets == 0 || targets > MAX_TARGETS || data.data_buf.length == 0 {
            return Err(ConnDataError::Empty);
        }
        let lists = u64::from(targets) * SGE_LEN as u64 + u64::from(data.iomaps) * IOMAP_LEN as u64;
        let fits = |addr: u64, len: u64| addr.checked_add(len).is_some();
        if !fits(data.target_sgl.addr, lists)
            || !fits(data.data_buf.addr, data.data_buf.length.into())
        {
            return Err(ConnDataError::Range);
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: ConnData = ConnData {
        big_endian: false,
        credits: 0x0180,
        iomaps: 256,
        target_sgl: Sge {
            addr: 0x0102_0304_0506_0708,
            key: 0x1112_1314,
            length: 2,
        },
        data_buf: Sge {
            addr: 0x2122_2324_2526_2728,
            key: 0x3132_3334,
            length: 0x1_0000,
        },
    };

    #[test]
    fn private_data_have_the_layout_of_the_protocol() {
        let bytes = DATA.encode();
        assert_eq!(
            bytes,
            [
                1, 2, 0x01, 0x80, 0, 0, 0, 0x81, //
                1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2, //
                0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0,
            ]
        );
        assert_eq!(ConnData::decode(&bytes), Ok(DATA));
    }

    #[test]
    fn what_follows_private_data_is_not_looked_at() {
        let bytes = [DATA.encode().as_slice(), &[0xee; 16]].concat();
        assert_eq!(ConnData::decode(&bytes), Ok(DATA));
    }

    #[test]
    fn flags_are_understood() {
        let mut bytes = DATA.encode();
        bytes[1] = 1;
        let data = ConnData::decode(&bytes).expect("valid");
        assert!(data.big_endian);
        assert_eq!(data.iomaps, 0);
        let big = ConnData {
            big_endian: true,
            ..DATA
        };
        assert_eq!(big.encode()[1], 3);
    }

    #[test]
    fn private_data_that_cannot_work_are_refused() {
        let bytes = DATA.encode();
        assert_eq!(ConnData::decode(&bytes[..39]), Err(ConnDataError::Short));
        assert_eq!(ConnData::decode(&[0; 56]), Err(ConnDataError::Version));
        let with = |change: fn(&mut ConnData)| {
            let mut data = DATA;
            change(&mut data);
            ConnData::decode(&data.encode())
        };
        let empty = Err(ConnDataError::Empty);
        assert_eq!(with(|data| data.credits = 0), empty);
        assert_eq!(with(|data| data.target_sgl.length = 0), empty);
        assert_eq!(with(|data| data.target_sgl.length = u32::MAX), empty);
        assert_eq!(with(|data| data.data_buf.length = 0), empty);
        let range = Err(ConnDataError::Range);
        assert_eq!(with(|data| data.target_sgl.addr = u64::MAX - 40), range);
        assert_eq!(with(|data| data.data_buf.addr = u64::MAX - 3), range);
    }

    #[test]
    fn entries_are_in_the_byte_order_of_their_owner() {
        let iomap = Iomap {
            offset: 0x0102_0304_0506_0708,
            sge: DATA.data_buf,
        };
        for big_endian in [false, true] {
            let bytes = iomap.to_bytes(big_endian);
            assert_eq!(Iomap::from_bytes(bytes, big_endian), iomap);
            assert_ne!(Iomap::from_bytes(bytes, !big_endian), iomap);
        }
        let little = iomap.to_bytes(false);
        assert_eq!(little[0], 8);
        assert_eq!(little[8], 0x28);
        assert_eq!(little[16], 0x34);
        assert_eq!(little[20..], [0, 0, 1, 0]);
        assert_eq!(iomap.to_bytes(true)[0], 1);
    }

    #[test]
    fn numbers_of_entries_are_scaled() {
        for (entries, code, back) in [
            (0, 0, 0),
            (128, 128, 128),
            (129, 0x80, 128),
            (256, 0x81, 256),
            (300, 0x81, 256),
            (0x7fff, 0xff, 0x7f00),
            (0xffff, 0xff, 0x7f00),
        ] {
            assert_eq!(scale(entries), code, "{entries}");
            assert_eq!(unscale(code), back, "{code}");
        }
    }
}
