//! Division of messages into packets: rules that the sending and the receiving side share.

use alloc::boxed::Box;

use rocade_wire::{Headers, Operation};

use crate::completion::{ImmOrInv, WcStatus};
use crate::cx::Cx;
use crate::memory::{AccessError, Memory};
use crate::peer::Peer;
use crate::wr::{Operands, SendOp};

/// Longest message, and largest DMALen.
pub(crate) const MAX_MESSAGE_LEN: u32 = 1 << 31;

/// Returns the operation of one packet of a SEND or WRITE.
//= RC-SEG-01
pub(crate) const fn data_operation(
    write: bool,
    first: bool,
    last: bool,
    tail: ImmOrInv,
) -> Operation {
    use ImmOrInv::{FlowTag, Imm, Inv};
    match (write, first, last, tail) {
        (false, true, false, _) => Operation::SendFirst,
        (false, false, false, _) => Operation::SendMiddle,
        (false, false, true, ImmOrInv::None | FlowTag(_)) => Operation::SendLast,
        (false, false, true, Imm(_)) => Operation::SendLastImm,
        (false, false, true, Inv(_)) => Operation::SendLastInv,
        (false, true, true, ImmOrInv::None | FlowTag(_)) => Operation::SendOnly,
        (false, true, true, Imm(_)) => Operation::SendOnlyImm,
        (false, true, true, Inv(_)) => Operation::SendOnlyInv,
        (true, true, false, _) => Operation::WriteFirst,
        (true, false, false, _) => Operation::WriteMiddle,
        (true, false, true, Imm(_)) => Operation::WriteLastImm,
        (true, false, true, _) => Operation::WriteLast,
        (true, true, true, Imm(_)) => Operation::WriteOnlyImm,
        (true, true, true, _) => Operation::WriteOnly,
    }
}

/// Returns true if the lengths of a request are valid for its operation.
pub(crate) fn length_ok(
    peer: &Peer,
    operation: Operation,
    headers: &Headers,
    payload: &[u8],
) -> bool {
    let pmtu = peer.pmtu_bytes() as usize;
    let len = payload.len();
    let payload_ok = if operation.is_send() || operation.is_write() {
        //= RC-SEG-01
        if operation.is_first() || operation.is_middle() {
            //= OPC-37
            len == pmtu && headers.bth.pad_count == 0
        } else if operation.is_last() {
            (1..=pmtu).contains(&len)
        } else {
            len <= pmtu
        }
    } else if operation == Operation::AtomicWrite {
        //= ETH-12
        len == 8
    } else if operation.is_masked_atomic() {
        // The length depends on the operands, and is checked on execution.
        len > 0 && headers.bth.pad_count == 0
    } else {
        len == 0
    };
    //= OPC-38 RC-SEG-05
    payload_ok
        && (len > 0 || headers.bth.pad_count == 0)
        && headers
            .reth
            // The length of a FLUSH may have no meaning.
            .is_none_or(|reth| reth.dma_len <= MAX_MESSAGE_LEN || operation == Operation::Flush)
}

/// Executes a local operation.
///
/// # Errors
/// The status of its completion if the memory refuses the operation. Nothing has changed then.
pub(crate) fn execute_local<H: Memory>(
    cx: &Cx<'_, H>,
    op: SendOp,
    operands: &mut Option<Box<Operands>>,
) -> Result<(), WcStatus> {
    match (op, operands.as_deref()) {
        (SendOp::Bind(bind), _) => cx
            .host
            .bind(cx.who, &bind)
            //= WCS-06
            //= MW-05
            .map_err(|_| WcStatus::MwBindErr),
        (SendOp::Invalidate { rkey }, _) => {
            cx.host.invalidate(cx.who, rkey).map_err(|why| match why {
                //= MW-02
                AccessError::WrongQp => WcStatus::MwBindErr,
                //= INV-01
                AccessError::BadKey
                | AccessError::WrongPd
                | AccessError::Permission
                | AccessError::OutOfRange
                | AccessError::Fault => WcStatus::LocQpOpErr,
            })
        }
        //= NOP-01
        //= XCW-06
        (SendOp::Nop | SendOp::Wait, _) => Ok(()),
        (SendOp::Enable, Some(Operands::Enable(queue))) => {
            queue.release();
            Ok(())
        }
        (SendOp::Fill, _) => match operands.take().map(|operands| *operands) {
            Some(Operands::Fill(fill)) => cx
                .host
                .fill(cx.who, fill)
                //= UMR-12
                .map_err(|_| WcStatus::MwBindErr),
            _ => Err(WcStatus::LocQpOpErr),
        },
        // It needs operands that it lacks, or a packet.
        (_, _) => Err(WcStatus::LocQpOpErr),
    }
}
