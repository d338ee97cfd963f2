//! The causes of failed completions and refused requests in words, with remedies.

use std::fmt::Write as _;

use rocade_emulator::{
    AccessError, AccessFlags, FailedSend, Failure, FailureReport, NakCode, Operation,
    OperationKind, RefusedKey, RefusedRequest, RemoteAccess, SendOp, WcStatus,
};

use crate::diagnostics::Reason;

/// Names of access flags for programs.
const RIGHTS: [(AccessFlags, &str); 6] = [
    (AccessFlags::LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE"),
    (AccessFlags::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
    (AccessFlags::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
    (AccessFlags::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
    (AccessFlags::FLUSH_GLOBAL, "IBV_ACCESS_FLUSH_GLOBAL"),
    (AccessFlags::FLUSH_PERSISTENT, "IBV_ACCESS_FLUSH_PERSISTENT"),
];

/// The remedy where only the peer knows the cause.
const PEER_KNOWS: &str = "if the peer is Rocade, its standard error has the cause";

/// Returns the cause of a failure, with the work request or request in front, and its remedy.
pub(crate) fn failure(report: &FailureReport<'_>) -> Reason {
    match report.failure {
        Failure::Send(send) => {
            let cause = send_cause(report, send);
            let what = format!(
                "{} completes with {}: {}",
                work_request(send),
                status_name(send.status),
                cause.what
            );
            Reason::new(what, cause.advice)
        }
        Failure::Request(request) => {
            let cause = request_cause(report, request);
            let operation = request.operation.map_or("a request", operation_name);
            let what = format!("refuses {operation} of {}: {}", peer(report), cause.what);
            Reason::new(what, cause.advice)
        }
        Failure::Receive(_) => {
            let cause = key_cause("lkey", report.key.as_ref(), None);
            let what = format!(
                "a receive completes with IBV_WC_LOC_PROT_ERR: {}",
                cause.what
            );
            Reason::new(what, cause.advice)
        }
    }
}

/// Returns the peer's address and queue pair.
fn peer(report: &FailureReport<'_>) -> String {
    match report.peer {
        Some(ip) if report.attr.dest_qp_num != 0 => {
            format!("the peer {ip} QP {:#08x}", report.attr.dest_qp_num)
        }
        Some(ip) => format!("the peer {ip}"),
        None => "the peer".to_owned(),
    }
}

fn work_request(send: &FailedSend) -> String {
    let name = send.op.name();
    if send.op.is_local() {
        return name.to_owned();
    }
    format!("{name} of {} bytes", send.len)
}

/// Returns the memory of the peer that a work request asks for.
fn asked(send: &FailedSend) -> Option<String> {
    let (va, rkey) = send.op.remote()?;
    let (len, key) = (send.len, rkey.get());
    Some(format!("{len} bytes at {va:#x} with rkey {key:#x}"))
}

fn send_cause(report: &FailureReport<'_>, send: &FailedSend) -> Reason {
    let peer = peer(report);
    let attr = &report.attr;
    match send.status {
        WcStatus::LocLenErr => length_cause(report, send),
        WcStatus::LocProtErr => key_cause("lkey", report.key.as_ref(), None),
        WcStatus::LocQpOpErr => {
            if let SendOp::Invalidate { rkey } = send.op {
                Reason::new(
                    format!("the key {:#x} cannot be invalidated", rkey.get()),
                    "only a type 2 memory window or an indirect key of the same domain can be",
                )
            } else {
                Reason::new("the queue pair cannot execute it", "")
            }
        }
        WcStatus::MwBindErr => Reason::new(
            "the key, the rights or the range do not fit the memory region",
            "the region needs IBV_ACCESS_MW_BIND, and IBV_ACCESS_LOCAL_WRITE for a window that \
             allows remote writes",
        ),
        WcStatus::BadRespErr => Reason::new(
            format!("the response of {peer} does not fit the request"),
            "usual cause: different path_mtu on both sides; `rocade run --capture x.pcapng` and \
             `rocade ladder x.pcapng` show the packets",
        ),
        WcStatus::RemInvReqErr => Reason::new(
            format!("{peer} refuses it as invalid"),
            format!(
                "usual causes: a receive that is too short, different path_mtu on both sides, or \
                 qp_access_flags or max_dest_rd_atomic of the peer; {PEER_KNOWS}"
            ),
        ),
        WcStatus::RemAccessErr => Reason::new(
            match asked(send) {
                Some(asked) => format!("{peer} refuses access to {asked}"),
                None => format!("{peer} refuses access to its memory"),
            },
            format!(
                "rkey, range and IBV_ACCESS_REMOTE_* rights must be those of a memory region of \
                 the peer; {PEER_KNOWS}"
            ),
        ),
        WcStatus::RemOpErr => Reason::new(
            format!("{peer} cannot write to its receive buffer"),
            PEER_KNOWS,
        ),
        WcStatus::RetryExcErr => Reason::new(
            format!(
                "{peer} does not answer (retry_cnt {}, timeout {})",
                attr.retry_cnt, attr.timeout
            ),
            "usual causes: the peer has ended, its queue pair is not in RTR or has another number, \
             or UDP port 4791 is filtered",
        ),
        WcStatus::RnrRetryExcErr => Reason::new(
            format!(
                "{peer} has posted no receive (rnr_retry {})",
                attr.rnr_retry
            ),
            "the peer has to post receives in time, or set rnr_retry to 7 here, which waits for ever",
        ),
        _ => Reason::new("an error of the queue pair", ""),
    }
}

fn length_cause(report: &FailureReport<'_>, send: &FailedSend) -> Reason {
    if send.op.has_result() {
        Reason::new(
            "the response of the peer has another length",
            "set the same path_mtu on both sides",
        )
    } else if report.qp_type.traits().is_datagram {
        Reason::new(
            "a datagram is at most as long as the active MTU",
            "`ibv_devinfo` shows the active MTU",
        )
    } else {
        Reason::new("a message is at most 2^31 bytes long", "")
    }
}

fn request_cause(report: &FailureReport<'_>, request: &RefusedRequest) -> Reason {
    match (request.nak, request.status) {
        (_, WcStatus::LocProtErr) => key_cause("lkey", report.key.as_ref(), None),
        (_, WcStatus::LocLenErr) => {
            let space = request.receive.as_ref().map_or(0, |receive| receive.len);
            Reason::new(
                format!("the message is longer than the receive, which has {space} bytes"),
                "post longer receives, or send less",
            )
        }
        (NakCode::RemoteAccess, _) => match (request.access(), request.operation) {
            (Some(access), Some(Operation::ReadRequest)) if report.key.is_none() => Reason::new(
                "the memory that it reads is no longer accessible",
                format!("keep it registered and mapped{}", rights_of(access)),
            ),
            (Some(access), _) => key_cause("rkey", report.key.as_ref(), Some(access)),
            (None, _) => {
                let key = request.target.map_or(0, |target| target.rkey.get());
                Reason::new(
                    format!("the key {key:#x} that it invalidates is not valid here"),
                    "only a type 2 memory window or an indirect key of this queue pair can be \
                     invalidated",
                )
            }
        },
        _ => invalid_request(request),
    }
}

fn rights_of(access: RemoteAccess) -> String {
    format!(", with {}", names(access.right()))
}

/// Returns the cause of a request that is refused as invalid.
fn invalid_request(request: &RefusedRequest) -> Reason {
    let path_mtu = request.path_mtu as usize;
    let Some(operation) = request.operation else {
        return Reason::new("its opcode is unknown", "");
    };
    let access = request.access();
    let needed = access.map_or(AccessFlags::empty(), RemoteAccess::right);
    if !request.rights.contains(needed) {
        let needed = names(needed);
        return Reason::new(
            format!("qp_access_flags of the queue pair lack {needed}"),
            format!("add {needed} to qp_access_flags (ibv_modify_qp to INIT)"),
        );
    }
    let (outstanding, limit) = request.resources;
    let is_resource = operation == Operation::ReadRequest
        || matches!(
            access,
            Some(RemoteAccess::Atomic | RemoteAccess::FlushGlobal)
        );
    if is_resource && outstanding >= usize::from(limit) {
        return Reason::new(
            format!("it is one more than max_dest_rd_atomic ({limit}) at the same time"),
            "max_rd_atomic of the peer must not be above max_dest_rd_atomic of this side",
        );
    }
    let is_data = operation.is_send() || operation.is_write();
    let is_full = operation.is_first() || operation.is_middle();
    let len = request.payload_len;
    if is_data && (len > path_mtu || is_full && len != path_mtu) {
        return Reason::new(
            format!("its packet of {len} bytes does not fit path_mtu, {path_mtu} bytes here"),
            "set the same path_mtu on both sides (ibv_modify_qp to RTR)",
        );
    }
    if access == Some(RemoteAccess::Atomic)
        && let Some(target) = request.target
        && target.va % 8 != 0
    {
        return Reason::new(
            format!("its address {:#x} is no multiple of 8", target.va),
            "align the value",
        );
    }
    Reason::new(
        "it does not follow from the packets before it",
        "`rocade run --capture x.pcapng` and `rocade ladder x.pcapng` show the packets",
    )
}

/// Returns why a key was refused. `access` is that of a peer.
fn key_cause(kind: &str, key: Option<&RefusedKey>, access: Option<RemoteAccess>) -> Reason {
    let Some(refused) = key else {
        return Reason::new("a buffer is not registered memory", "");
    };
    let RefusedKey { key, addr, len, .. } = *refused;
    let asked = format!("{len} bytes at {addr:#x}");
    let mut what = format!("{kind} {key:#x}, {asked}: ");
    let region = refused.region.map(|(start, len, _)| {
        format!("the memory region of the key has {len} bytes at {start:#x}")
    });
    let advice = match refused.error {
        AccessError::BadKey => {
            what.push_str("no memory region has this key");
            "it was never registered, is deregistered, or was not passed on correctly (byte order)"
        }
        AccessError::WrongPd => {
            what.push_str("the key belongs to another protection domain than the queue pair");
            "register the memory in the domain of the queue pair"
        }
        AccessError::WrongQp => {
            what.push_str("the memory window of the key belongs to another queue pair");
            "bind a window on the queue pair that the peer uses"
        }
        AccessError::Permission => {
            let needed = access.map_or(AccessFlags::LOCAL_WRITE, RemoteAccess::right);
            let needed = names(needed);
            let has = refused.region.map(|(_, _, rights)| names(rights));
            // Writing to a String cannot fail.
            let _ = write!(what, "the key lacks {needed}");
            if let Some(has) = has {
                let _ = write!(what, ", it has {has}");
            }
            return Reason::new(what, format!("register the memory with {needed}"));
        }
        AccessError::OutOfRange => {
            what.push_str(region.as_deref().unwrap_or("outside the range of the key"));
            "the whole range must be inside"
        }
        AccessError::Fault => {
            what.push_str("the memory is not mapped any more, or not writable");
            "deregister memory before it is freed"
        }
    };
    Reason::new(what, advice)
}

/// Returns the names of access flags.
fn names(rights: AccessFlags) -> String {
    let known = RIGHTS.iter().filter(|(right, _)| rights.contains(*right));
    let names: Vec<_> = known.map(|(_, name)| *name).collect();
    match names.is_empty() {
        true => "no rights".to_owned(),
        false => names.join(" | "),
    }
}

fn operation_name(operation: Operation) -> &'static str {
    match operation.kind() {
        OperationKind::Send => "SEND",
        OperationKind::Write => "RDMA WRITE",
        OperationKind::Read => "RDMA READ",
        OperationKind::Atomic => "an atomic",
        OperationKind::MaskedAtomic => "a masked atomic",
        OperationKind::AtomicWrite => "ATOMIC WRITE",
        OperationKind::Flush => "FLUSH",
        OperationKind::Disconnect
        | OperationKind::ReadResponse
        | OperationKind::Acknowledge
        | OperationKind::AtomicResponse
        | OperationKind::Cnp => "a request",
    }
}

const fn status_name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "IBV_WC_SUCCESS",
        WcStatus::LocLenErr => "IBV_WC_LOC_LEN_ERR",
        WcStatus::LocQpOpErr => "IBV_WC_LOC_QP_OP_ERR",
        WcStatus::LocProtErr => "IBV_WC_LOC_PROT_ERR",
        WcStatus::WrFlushErr => "IBV_WC_WR_FLUSH_ERR",
        WcStatus::MwBindErr => "IBV_WC_MW_BIND_ERR",
        WcStatus::BadRespErr => "IBV_WC_BAD_RESP_ERR",
        WcStatus::LocAccessErr => "IBV_WC_LOC_ACCESS_ERR",
        WcStatus::RemInvReqErr => "IBV_WC_REM_INV_REQ_ERR",
        WcStatus::RemAccessErr => "IBV_WC_REM_ACCESS_ERR",
        WcStatus::RemOpErr => "IBV_WC_REM_OP_ERR",
        WcStatus::RetryExcErr => "IBV_WC_RETRY_EXC_ERR",
        WcStatus::RnrRetryExcErr => "IBV_WC_RNR_RETRY_EXC_ERR",
    }
}
