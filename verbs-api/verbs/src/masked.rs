//! Masked atomic operations.

use rocade_emulator::{MaskedOp, Operands, SendOp, Sge, WideOperand};

use crate::endpoint::RemoteMemory;
use crate::request::SendRequest;

/// A masked atomic for [`SendRequest::masked`], on 8 bytes. Functions with a suffix work on 4, 16
/// or 32 bytes.
///
/// Numbers are in the byte order of the machine that holds them. The first of several words is the
/// one at the lowest address. The remote address has to be a multiple of the size.
///
/// ```
/// use rocade_verbs::MaskedAtomic;
///
/// // Takes a lock (bit 0) and sets the owner byte above it. Other bits stay unchanged.
/// let take = MaskedAtomic::compare_swap(0, 1, 0x4201, 0xff01);
/// // Two 32-bit counters in one word: adds 1 and 512, without a carry between them.
/// let count = MaskedAtomic::fetch_add(1 << 32 | 512, 1 << 31);
/// // Replaces a pointer and its version, both or neither.
/// let swing = MaskedAtomic::compare_swap_words([0x1000, 7], [u64::MAX; 2], [0x2000, 8], [u64::MAX;
/// 2]); assert_eq!([&take, &count, &swing].map(MaskedAtomic::len), [8, 8, 16]);
/// ```
#[derive(Debug, Clone)]
pub struct MaskedAtomic {
    operands: Operands,
    log_size: u8,
}

impl MaskedAtomic {
    /// A compare-and-swap of 8 bytes. If the bits selected by `compare_mask` equal those of
    /// `compare`, it sets the bits selected by `swap_mask` to those of `swap`.
    #[must_use]
    pub const fn compare_swap(compare: u64, compare_mask: u64, swap: u64, swap_mask: u64) -> Self {
        let operands = [compare, compare_mask, swap, swap_mask];
        Self::swaps(operands_of_one(operands), 3)
    }

    /// A compare-and-swap of 4 bytes, like [`compare_swap`](Self::compare_swap).
    #[must_use]
    pub fn compare_swap_u32(compare: u32, compare_mask: u32, swap: u32, swap_mask: u32) -> Self {
        let operands = [compare, compare_mask, swap, swap_mask].map(u64::from);
        Self::swaps(operands_of_one(operands), 2)
    }

    /// A compare-and-swap of two or four words. All words are compared, and either all or none are
    /// swapped.
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

    /// A fetch-and-add of several fields in 8 bytes. `boundary` marks the highest bit of each
    /// field, from which no carry leaves.
    #[must_use]
    pub const fn fetch_add(add: u64, boundary: u64) -> Self {
        Self::adds([add, 0, 0, 0], [boundary, 0, 0, 0], 3)
    }

    /// A fetch-and-add of fields in 4 bytes, like [`fetch_add`](Self::fetch_add).
    #[must_use]
    pub fn fetch_add_u32(add: u32, boundary: u32) -> Self {
        Self::adds([add.into(), 0, 0, 0], [boundary.into(), 0, 0, 0], 2)
    }

    /// A fetch-and-add of fields in two or four words, like [`fetch_add`](Self::fetch_add). No
    /// carry passes from word to word.
    #[must_use]
    pub const fn fetch_add_words<const N: usize>(add: [u64; N], boundary: [u64; N]) -> Self {
        Self::adds(words(add), words(boundary), log_size_of::<N>())
    }

    /// Returns the size of the operation and of its result in bytes: 4, 8, 16 or 32.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        1 << self.log_size
    }

    const fn swaps(
        [compare, compare_mask, swap, swap_mask]: [WideOperand; 4],
        log_size: u8,
    ) -> Self {
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

    const fn adds(add: WideOperand, boundary: WideOperand, log_size: u8) -> Self {
        Self {
            operands: Operands::Masked(MaskedOp::FetchAdd { add, boundary }),
            log_size,
        }
    }
}

const fn operands_of_one([a, b, c, d]: [u64; 4]) -> [WideOperand; 4] {
    [[a, 0, 0, 0], [b, 0, 0, 0], [c, 0, 0, 0], [d, 0, 0, 0]]
}

const fn words<const N: usize>(operand: [u64; N]) -> WideOperand {
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
    /// A masked atomic on the bytes at `at`. The old value is written to `result`.
    ///
    /// Masked atomics are a vendor extension. A compare-and-swap of 8 bytes is sent in the format
    /// of NVIDIA's NICs. Before it sends any other to another host, Rocade checks that the peer is
    /// Rocade too. If the peer does not confirm that, the request fails with
    /// [`RetryExceeded`](crate::WcStatus::RetryExceeded), and the extension is not sent.
    pub const fn masked(result: &'a [Sge], at: RemoteMemory, atomic: &'a MaskedAtomic) -> Self {
        let op = SendOp::Masked {
            va: at.addr,
            rkey: at.rkey,
            log_size: atomic.log_size,
        };
        Self::with_operands(op, result, &atomic.operands)
    }
}
