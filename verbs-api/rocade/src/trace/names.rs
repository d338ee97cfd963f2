//! Names of numbers in records.

use rocade_wire::{NakCode, Opcode};

/// Returns the name of a send work request's operation.
pub(super) const fn operation(opcode: u32) -> &'static str {
    match opcode {
        0 => "RDMA_WRITE",
        1 => "RDMA_WRITE_WITH_IMM",
        2 => "SEND",
        3 => "SEND_WITH_IMM",
        4 => "RDMA_READ",
        5 => "ATOMIC_CMP_AND_SWP",
        6 => "ATOMIC_FETCH_AND_ADD",
        7 => "LOCAL_INV",
        8 => "BIND_MW",
        9 => "SEND_WITH_INV",
        10 => "TSO",
        14 => "FLUSH",
        15 => "ATOMIC_WRITE",
        0x4f => "TSO",
        0x60 => "SEND_ENABLE",
        0x61 => "RECV_ENABLE",
        0x62 => "CQE_WAIT",
        0x63 => "EXT_MASKED_ATOMIC_CMP_AND_SWP",
        0x64 => "EXT_MASKED_ATOMIC_FETCH_AND_ADD",
        0x65 => "NOP",
        0x66 => "UMR_FILL",
        0x67 => "UMR_INVALIDATE",
        _ => "DRIVER",
    }
}

/// Returns true if a send work request makes packets.
pub(super) const fn has_packets(opcode: u32) -> bool {
    !matches!(opcode, 7 | 8 | 11 | 0x60..=0x62 | 0x65..=0x67)
}

/// Returns true if a send work request carries immediate data.
pub(super) const fn has_immediate(opcode: u32) -> bool {
    matches!(opcode, 1 | 3)
}

/// Returns true if the local buffer of a send work request takes data: that of a READ, or the
/// former value of an atomic operation.
pub(super) const fn takes_data(opcode: u32) -> bool {
    matches!(opcode, 4..=6 | 0x63 | 0x64)
}

/// Returns true for the completion of a receive.
pub(super) const fn is_receive(opcode: u32) -> bool {
    matches!(opcode, 128 | 129)
}

/// Returns the name of a completion's operation.
pub(super) const fn completed(opcode: u32, is_experimental: bool) -> &'static str {
    match opcode {
        9 if is_experimental => "MASKED_COMP_SWAP",
        10 if is_experimental => "MASKED_FETCH_ADD",
        135 | 0x100 => "UMR",
        0 => "SEND",
        1 => "RDMA_WRITE",
        2 => "RDMA_READ",
        3 => "COMP_SWAP",
        4 => "FETCH_ADD",
        5 => "BIND_MW",
        6 => "LOCAL_INV",
        7 => "TSO",
        8 => "FLUSH",
        9 => "ATOMIC_WRITE",
        128 => "RECV",
        129 => "RECV_RDMA_WITH_IMM",
        _ => "DRIVER",
    }
}

/// Returns the name of a completion's status.
pub(super) const fn status(status: u32) -> &'static str {
    match status {
        0 => "SUCCESS",
        1 => "LOC_LEN_ERR",
        2 => "LOC_QP_OP_ERR",
        4 => "LOC_PROT_ERR",
        5 => "WR_FLUSH_ERR",
        6 => "MW_BIND_ERR",
        7 => "BAD_RESP_ERR",
        8 => "LOC_ACCESS_ERR",
        9 => "REM_INV_REQ_ERR",
        10 => "REM_ACCESS_ERR",
        11 => "REM_OP_ERR",
        12 => "RETRY_EXC_ERR",
        13 => "RNR_RETRY_EXC_ERR",
        19 => "FATAL_ERR",
        20 => "RESP_TIMEOUT_ERR",
        _ => "GENERAL_ERR",
    }
}

/// Returns the names of send flags, in the form ` SIGNALED|FENCE`, or an empty text.
pub(super) fn send_flags(flags: u32) -> String {
    let names = ["FENCE", "SIGNALED", "SOLICITED", "INLINE", "IP_CSUM"];
    let set = (0..).zip(names).filter(|(bit, _)| flags >> bit & 1 != 0);
    let set: Vec<&str> = set.map(|(_, name)| name).collect();
    if set.is_empty() {
        String::new()
    } else {
        format!(", {}", set.join("|"))
    }
}

/// Returns the name of a packet's operation code.
pub(super) fn packet(opcode: u32) -> &'static str {
    u8::try_from(opcode).map_or("?", |code| Opcode::new(code).name())
}

/// The kind of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Ack,
    RnrNak,
    Nak(&'static str),
}

/// Returns the kind of an acknowledgement with this AETH.
pub(super) fn answer(aeth: u32) -> Answer {
    match aeth >> 29 {
        1 => Answer::RnrNak,
        3 => Answer::Nak(nak(aeth >> 24 & 0x1f)),
        _ => Answer::Ack,
    }
}

fn nak(code: u32) -> &'static str {
    match NakCode::from_code(u8::try_from(code).unwrap_or(u8::MAX)) {
        NakCode::PsnSequence => "PSN sequence error",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccess => "remote access error",
        NakCode::RemoteOperational => "remote operational error",
        _ => "unknown code",
    }
}

/// Returns the name of an errno value.
pub(super) const fn errno(code: u32) -> &'static str {
    match code {
        1 => "EPERM",
        2 => "ENOENT",
        4 => "EINTR",
        5 => "EIO",
        9 => "EBADF",
        11 => "EAGAIN",
        12 => "ENOMEM",
        13 => "EACCES",
        14 => "EFAULT",
        16 => "EBUSY",
        17 => "EEXIST",
        19 => "ENODEV",
        22 => "EINVAL",
        28 => "ENOSPC",
        34 => "ERANGE",
        61 => "ENODATA",
        95 => "EOPNOTSUPP",
        98 => "EADDRINUSE",
        99 => "EADDRNOTAVAIL",
        101 => "ENETUNREACH",
        104 => "ECONNRESET",
        107 => "ENOTCONN",
        110 => "ETIMEDOUT",
        111 => "ECONNREFUSED",
        113 => "EHOSTUNREACH",
        115 => "EINPROGRESS",
        _ => "",
    }
}

/// Returns a duration with a unit that suits it.
pub(super) fn duration(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let ns_f = ns as f64;
    match ns {
        0..10_000 => format!("{:.1} us", ns_f / 1e3),
        10_000..1_000_000 => format!("{:.0} us", ns_f / 1e3),
        1_000_000..10_000_000 => format!("{:.2} ms", ns_f / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", ns_f / 1e6),
        _ => format!("{:.2} s", ns_f / 1e9),
    }
}
