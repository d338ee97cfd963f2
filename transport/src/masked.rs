//! Masked atomics: compare-and-swap under masks, fetch-and-add on several fields.

/// An operand of up to 32 bytes: words of 8 bytes in host byte order, lowest address first.
///
/// A shorter operand is in the first words, one of 4 bytes in the lower half of the first word.
pub type WideOperand = [u64; 4];

/// Supported sizes of operands, as a mask: bit n for 2^n bytes. The largest fits into the smallest
/// packet.
//= XAW-05
pub const MASKED_SIZES: u8 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5;

/// A masked atomic operation with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskedOp {
    /// Compares and swaps under masks. If the value and `compare` agree in all bits of
    /// `compare_mask`, the bits of `swap_mask` are replaced by those of `swap`.
    CmpSwap {
        /// Expected value.
        compare: WideOperand,
        /// Bits of `compare` that count.
        compare_mask: WideOperand,
        /// New value.
        swap: WideOperand,
        /// Bits of `swap` that count.
        swap_mask: WideOperand,
    },
    /// Adds field by field: no carry leaves a bit that `boundary` marks.
    FetchAdd {
        /// Addend.
        add: WideOperand,
        /// The highest bit of each field.
        boundary: WideOperand,
    },
}

/// Returns the bytes that an operand of 2^`log_size` bytes takes in a packet.
pub(crate) const fn wire_len(log_size: u8) -> usize {
    if log_size < 3 { 8 } else { 1 << log_size }
}

/// Returns true if masked atomics support operands of 2^`log_size` bytes.
pub(crate) const fn is_size(log_size: u8) -> bool {
    log_size < 8 && MASKED_SIZES & 1 << log_size != 0
}

impl MaskedOp {
    /// Returns the new value of an operand of 2^`log_size` bytes whose old value is `old`.
    //= XAT-17
    //= XAT-18
    //= XAT-19 XAT-20 XAT-21
    //= XAT-22
    //= XEX-01 XEX-02 XEX-03
    //= XEX-04 XEX-05 XEX-06
    //= XEX-07 XEX-08 XEX-09
    //= XEX-10 XEX-11 XEX-12
    //= XEX-13
    #[must_use]
    pub fn apply(&self, log_size: u8, old: &WideOperand) -> WideOperand {
        let width = if log_size < 3 { 32 } else { 64 };
        let mut new = *old;
        let words = wire_len(log_size) / 8;
        match self {
            Self::CmpSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                let all = u64::MAX >> (64 - width);
                let differs = |i: usize| (old[i] ^ compare[i]) & compare_mask[i] & all != 0;
                if (0..words).any(differs) {
                    return new;
                }
                for i in 0..words {
                    let mask = swap_mask[i] & all;
                    new[i] = old[i] & !mask | swap[i] & mask;
                }
            }
            Self::FetchAdd { add, boundary } => {
                for i in 0..words {
                    new[i] = add_fields(old[i], add[i], boundary[i], width);
                }
            }
        }
        new
    }

    /// Writes the operands in wire format, and returns their length in bytes.
    ///
    /// The order is swap, compare, swap mask, compare mask, or addend, boundary.
    //= XAW-03
    //= XAW-04
    pub(crate) fn to_wire(self, log_size: u8, out: &mut [u8; 128]) -> usize {
        let len = wire_len(log_size);
        let (operands, count) = match self {
            Self::CmpSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => ([swap, compare, swap_mask, compare_mask], 4),
            Self::FetchAdd { add, boundary } => ([add, boundary, [0; 4], [0; 4]], 2),
        };
        for (operand, part) in operands.iter().zip(out[..count * len].chunks_mut(len)) {
            put_words(operand, log_size, part);
        }
        count * len
    }

    /// Returns the operands of a packet. `None` if their length is wrong.
    pub(crate) fn from_wire(swap: bool, log_size: u8, bytes: &[u8]) -> Option<Self> {
        let len = wire_len(log_size);
        let count = if swap { 4 } else { 2 };
        if bytes.len() != count * len {
            return None;
        }
        let operand = |index: usize| get_words(log_size, &bytes[index * len..][..len]);
        Some(if swap {
            Self::CmpSwap {
                swap: operand(0),
                compare: operand(1),
                swap_mask: operand(2),
                compare_mask: operand(3),
            }
        } else {
            Self::FetchAdd {
                add: operand(0),
                boundary: operand(1),
            }
        })
    }
}

/// Returns the sum without carries out of the bits of `boundary` and out of the highest bit of
/// `width`.
//= XAT-20
const fn add_fields(old: u64, add: u64, boundary: u64, width: u32) -> u64 {
    let all = u64::MAX >> (64 - width);
    let ends = (boundary | 1 << (width - 1)) & all;
    let below = all & !ends;
    ((old & below) + (add & below)) ^ ((old ^ add) & ends)
}

/// Writes an operand in wire format.
pub(crate) fn put_words(words: &WideOperand, log_size: u8, out: &mut [u8]) {
    for (index, (word, place)) in words.iter().zip(out.chunks_exact_mut(8)).enumerate() {
        let word = if log_size < 3 && index == 0 {
            *word & u64::from(u32::MAX)
        } else {
            *word
        };
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// Reads an operand in wire format.
pub(crate) fn get_words(log_size: u8, bytes: &[u8]) -> WideOperand {
    let mut words = [0; 4];
    for (word, place) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_be_bytes(*place);
    }
    if log_size < 3 {
        words[0] &= u64::from(u32::MAX);
    }
    words
}

/// Writes an original value in the format of the local buffer, and returns its length.
///
/// Each unit of 8 bytes (or the only one of 4) is in host byte order, or big-endian.
//= XAT-05
//= XAT-25
pub(crate) fn to_memory(
    words: &WideOperand,
    log_size: u8,
    big_endian: bool,
    out: &mut [u8; 32],
) -> usize {
    if log_size < 3 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the value is in the lower half"
        )]
        let value = words[0] as u32;
        let value = if big_endian { value.to_be() } else { value };
        out[..4].copy_from_slice(&value.to_ne_bytes());
        return 4;
    }
    for (word, place) in words.iter().zip(out.chunks_exact_mut(8)) {
        let word = if big_endian { word.to_be() } else { *word };
        place.copy_from_slice(&word.to_ne_bytes());
    }
    1 << log_size
}

#[cfg(test)]
mod tests;
