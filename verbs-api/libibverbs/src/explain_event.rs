//! The causes of failed connections in words, with remedies.

use rocade_emulator::cm::{CmEvent, CmEventKind, RejReason};

use crate::diagnostics::Reason;

/// Returns the call that an event answers, its object, and the cause with its remedy. `None` if the
/// event is no failure, or one that only the program can explain.
pub(crate) fn event(event: &CmEvent) -> Option<(&'static str, String, Reason)> {
    let object = event
        .peer
        .map_or_else(String::new, |peer| format!("{peer}: "));
    let (call, reason) = match event.kind {
        CmEventKind::AddrError => ("rdma_resolve_addr", address(event.status)?),
        CmEventKind::Unreachable if event.status == -libc::ETIMEDOUT => {
            ("rdma_connect", no_reply())
        }
        CmEventKind::Rejected => ("rdma_connect", rejection(event.status)?),
        _ => return None,
    };
    Some((call, object, reason))
}

fn address(status: i32) -> Option<Reason> {
    match -status {
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL => Some(Reason::new(
            "the host has no route to the address",
            "`ip route get ADDRESS` shows the system's route",
        )),
        libc::ETIMEDOUT => Some(Reason::new(
            "no host of the network answers for the address",
            "`ip neigh` shows the answers of the network; compare the address with those of the \
             peer's `rocade devices`",
        )),
        libc::EPERM => Some(Reason::new(
            "the system forbids a call that finds the route to the address (connect or \
             getsockname): Operation not permitted",
            "allow it in the seccomp profile of the container or service (docker run \
             --security-opt seccomp=FILE, SystemCallFilter= of systemd)",
        )),
        // Programs try addresses to learn which of them have a device.
        _ => None,
    }
}

fn no_reply() -> Reason {
    Reason::new(
        "the peer does not answer connection requests",
        "usual causes: no RDMA device has the address there, or UDP port 4791 is filtered",
    )
}

fn rejection(status: i32) -> Option<Reason> {
    let code = u16::try_from(status).ok()?;
    let reason = RejReason::from_code(code);
    if reason == RejReason::Consumer {
        // The peer's program has decided so.
        return None;
    }
    let (what, advice) = match reason {
        RejReason::InvalidServiceId => (
            "no program listens there".to_owned(),
            "start the server first; there `rocade broker status` lists the listening ports",
        ),
        RejReason::StaleConnection => (
            "the peer still has an earlier connection of this queue pair".to_owned(),
            "create a new queue pair for a new connection",
        ),
        reason => (format!("{reason:?}"), ""),
    };
    Some(Reason::new(
        format!("the peer rejects the connection (status {status}): {what}"),
        advice,
    ))
}
