//! Reliable connected.

use crate::wr::SendOp;

/// All operations of this crate exist on RC (PST-10).
pub(super) const fn supports(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send { .. }
            | SendOp::Write { .. }
            | SendOp::Read { .. }
            | SendOp::CmpSwap { .. }
            | SendOp::FetchAdd { .. }
    )
}
