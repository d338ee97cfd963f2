//! Atomics under masks.

use rocade_emulator::{MaskedOp, Operands, SendOp, Sge, Words};

use crate::endpoint::RemoteMemory;
use crate::request::SendRequest;

/// A masked atomic for [`SendRequest::masked`]: on 8 bytes, and by the functions whose names say so on 4, 16 or 32. Numbers
/// are in the machines' own byte order, and of several the first is the one of the lowest address.
///
/// What it changes has to be aligned to its size.
///
/// ```
/// use rocade_verbs::MaskedAtomic;
///
/// // Takes a lock, bit 0, and leaves a name in the byte above it; all other bits are somebody else's.
/// let take = MaskedAtomic::compare_swap(0, 1, 0x4201, 0xff01);
/// // Two counters of 32 bits in one word: one more request, 512 bytes more, and nothing carried from one to the other.
/// let count = MaskedAtomic::fetch_add(1 << 32 | 512, 1 << 31);
/// // A pointer and its version, both or none.
/// let swing = MaskedAtomic::compare_swap_words([0x1000, 7], [u64::MAX; 2], [0x2000, 8], [u64::MAX; 2]);
/// assert_eq!([&take, &count, &swing].map(MaskedAtomic::len), [8, 8, 16]);
/// ```
#[derive(Debug, Clone)]
pub struct MaskedAtomic {
    operands: Operands,
    log_size: u8,
}

impl MaskedAtomic {
    /// Where the number has `compare` in the bits of `compare_mask`, the bits of `swap_mask` become those of `swap`.
    #[must_use]
    pub const fn compare_swap(compare: u64, compare_mask: u64, swap: u64, swap_mask: u64) -> Self {
        let operands = [compare, compare_mask, swap, swap_mask];
        Self::swaps(operands_of_one(operands), 3)
    }

    /// Likewise, on 4 bytes.
    #[must_use]
    pub fn compare_swap_u32(compare: u32, compare_mask: u32, swap: u32, swap_mask: u32) -> Self {
        let operands = [compare, compare_mask, swap, swap_mask].map(u64::from);
        Self::swaps(operands_of_one(operands), 2)
    }

    /// Likewise, on two or four words: all of them are compared, and all change or none.
    #[must_use]
    pub const fn compare_swap_words<const N: usize>(
        compare: [u64; N],
        compare_mask: [u64; N],
        swap: [u64; N],
        swap_mask: [u64; N],
    ) -> Self {
        let operands = [
            words(compare),
            words(compare_mask),
            words(swap),
            words(swap_mask),
        ];
        Self::swaps(operands, log_size_of::<N>())
    }

    /// Adds several fields at once: nothing is carried out of a bit that `boundary` marks, the highest of its field.
    #[must_use]
    pub const fn fetch_add(add: u64, boundary: u64) -> Self {
        Self::adds([add, 0, 0, 0], [boundary, 0, 0, 0], 3)
    }

    /// Likewise, on 4 bytes.
    #[must_use]
    pub fn fetch_add_u32(add: u32, boundary: u32) -> Self {
        Self::adds([add.into(), 0, 0, 0], [boundary.into(), 0, 0, 0], 2)
    }

    /// Likewise, on two or four words; nothing is carried from one to the next.
    #[must_use]
    pub const fn fetch_add_words<const N: usize>(add: [u64; N], boundary: [u64; N]) -> Self {
        Self::adds(words(add), words(boundary), log_size_of::<N>())
    }

    /// Bytes that it changes, and that the result has: 4, 8, 16 or 32.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        1 << self.log_size
    }

    const fn swaps([compare, compare_mask, swap, swap_mask]: [Words; 4], log_size: u8) -> Self {
        let op = MaskedOp::CmpSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        };
        Self {
            operands: Operands::Masked(op),
            log_size,
        }
    }

    const fn adds(add: Words, boundary: Words, log_size: u8) -> Self {
        Self {
            operands: Operands::Masked(MaskedOp::FetchAdd { add, boundary }),
            log_size,
        }
    }
}

const fn operands_of_one([a, b, c, d]: [u64; 4]) -> [Words; 4] {
    [[a, 0, 0, 0], [b, 0, 0, 0], [c, 0, 0, 0], [d, 0, 0, 0]]
}

const fn words<const N: usize>(operand: [u64; N]) -> Words {
    let mut words = [0; 4];
    let mut index = 0;
    while index < N {
        words[index] = operand[index];
        index += 1;
    }
    words
}

const fn log_size_of<const N: usize>() -> u8 {
    const { assert!(N == 2 || N == 4, "two or four words") };
    if N == 2 { 4 } else { 5 }
}

impl<'a> SendRequest<'a> {
    /// Changes the bytes at `at`, as many as `atomic` is about; what was there comes back into `result`. A peer that is not of
    /// this host is asked first whether it is Rocade; where it does not say so, the request fails with
    /// [`RetryExcErr`](rocade_emulator::WcStatus::RetryExcErr), and nothing that is not of the standard is sent to it.
    pub const fn masked(result: &'a [Sge], at: RemoteMemory, atomic: &'a MaskedAtomic) -> Self {
        let op = SendOp::Masked {
            va: at.addr,
            rkey: at.rkey,
            log_size: atomic.log_size,
        };
        Self::with_operands(op, result, &atomic.operands)
    }
}
