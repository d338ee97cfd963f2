//! Atomics under masks.

use rocade_emulator::{MaskedOp, Operands, SendOp, Sge};

use crate::endpoint::RemoteMemory;
use crate::request::SendRequest;

/// A masked atomic on 8 bytes, for [`SendRequest::masked`]. Numbers are in the machines' own byte order.
#[derive(Debug, Clone)]
pub struct MaskedAtomic(Operands);

impl MaskedAtomic {
    /// Where the number has `compare` in the bits of `compare_mask`, the bits of `swap_mask` become those of `swap`.
    #[must_use]
    pub const fn compare_swap(compare: u64, compare_mask: u64, swap: u64, swap_mask: u64) -> Self {
        Self(Operands::Masked(MaskedOp::CmpSwap {
            compare: [compare, 0, 0, 0],
            compare_mask: [compare_mask, 0, 0, 0],
            swap: [swap, 0, 0, 0],
            swap_mask: [swap_mask, 0, 0, 0],
        }))
    }

    /// Adds several fields at once: nothing is carried out of a bit that `boundary` marks, the highest of its field.
    #[must_use]
    pub const fn fetch_add(add: u64, boundary: u64) -> Self {
        Self(Operands::Masked(MaskedOp::FetchAdd {
            add: [add, 0, 0, 0],
            boundary: [boundary, 0, 0, 0],
        }))
    }
}

impl<'a> SendRequest<'a> {
    /// Changes the 8 bytes at `at`; what was there comes back into `result`. A peer that is not of
    /// this host is asked first whether it is Rocade; where it does not say so, the request fails with
    /// [`RetryExcErr`](rocade_emulator::WcStatus::RetryExcErr), and nothing that is not of the standard is sent to it.
    pub const fn masked(result: &'a [Sge], at: RemoteMemory, atomic: &'a MaskedAtomic) -> Self {
        let op = SendOp::Masked {
            va: at.addr,
            rkey: at.rkey,
            log_size: 3,
        };
        Self::with_operands(op, result, &atomic.0)
    }
}
