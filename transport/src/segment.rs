//! How messages are cut into packets: what the sending and the receiving side of a connection agree on.

use rocade_wire::{Headers, Operation};

use crate::peer::Peer;

/// Longest message, and longest DMALen (RC-SEG-05).
pub(crate) const MAX_MESSAGE_LEN: u32 = 1 << 31;

/// The operation of one packet of a SEND or WRITE.
//= RC-SEG-01
pub(crate) const fn data_operation(write: bool, first: bool, last: bool, imm: bool) -> Operation {
    match (write, first, last, imm) {
        (false, true, false, _) => Operation::SendFirst,
        (false, false, false, _) => Operation::SendMiddle,
        (false, false, true, false) => Operation::SendLast,
        (false, false, true, true) => Operation::SendLastImm,
        (false, true, true, false) => Operation::SendOnly,
        (false, true, true, true) => Operation::SendOnlyImm,
        (true, true, false, _) => Operation::WriteFirst,
        (true, false, false, _) => Operation::WriteMiddle,
        (true, false, true, false) => Operation::WriteLast,
        (true, false, true, true) => Operation::WriteLastImm,
        (true, true, true, false) => Operation::WriteOnly,
        (true, true, true, true) => Operation::WriteOnlyImm,
    }
}

/// Has a request the lengths that its operation allows? RC-SEG-01, RC-SEG-05, OPC-37, OPC-38.
pub(crate) fn length_ok(
    peer: &Peer,
    operation: Operation,
    headers: &Headers,
    payload: &[u8],
) -> bool {
    let pmtu = peer.pmtu_bytes() as usize;
    let len = payload.len();
    let payload_ok = if operation.is_send() || operation.is_write() {
        if operation.is_first() || operation.is_middle() {
            len == pmtu && headers.bth.pad_count == 0
        } else if operation.is_last() {
            (1..=pmtu).contains(&len)
        } else {
            len <= pmtu
        }
    } else {
        len == 0
    };
    payload_ok
        && (len > 0 || headers.bth.pad_count == 0)
        && headers
            .reth
            .is_none_or(|reth| reth.dma_len <= MAX_MESSAGE_LEN)
}
