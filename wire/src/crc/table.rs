//! The CRC by tables: for processors without suitable instructions, and for odd bytes.

use super::times_x;

/// `TABLES[n][b]` is the register after byte b and n zero bytes.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte;
        let mut n = 0;
        while n < 8 {
            let mut bit = 0;
            while bit < 8 {
                register = times_x(register);
                bit += 1;
            }
            tables[n][byte as usize] = register;
            n += 1;
        }
        byte += 1;
    }
    tables
};

/// Continues `crc` over `bytes`.
#[inline]
pub(super) fn update(crc: u32, bytes: &[u8]) -> u32 {
    let mut register = !crc;
    let (blocks, rest) = bytes.as_chunks::<8>();
    for block in blocks {
        // The register is added to the first four bytes. Then all eight are looked up at once.
        let [a, b, c, d, ..] = *block;
        let first = (register ^ u32::from_le_bytes([a, b, c, d])).to_le_bytes();
        let block = first.iter().chain(&block[4..]);
        register = block
            .zip(TABLES.iter().rev())
            .fold(0, |sum, (&b, table)| sum ^ table[usize::from(b)]);
    }
    for &byte in rest {
        let [low, ..] = register.to_le_bytes();
        register = register >> 8 ^ TABLES[0][usize::from(low ^ byte)];
    }
    !register
}
