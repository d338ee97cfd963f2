//! Reports of what the traced processes wait for: open calls, requests without completion, unpolled
//! messages.

use rocade_emulator::trace::now_ns;

use super::event::QpId;
use super::model::{Model, Open, Process};
use super::names;
use super::qp::{Qp, Send};

/// A call that has not returned for as long waits.
const LONG_NS: u64 = 500_000_000;
/// The most lines of one kind.
const MAX_LINES: usize = 12;

/// Returns lines that say what each process waits for. `is_alive` tells whether a process runs.
pub(super) fn waiting(model: &Model, is_alive: impl Fn(u32) -> bool) -> Vec<String> {
    let now = now_ns();
    let mut lines = Vec::new();
    for (pid, process) in &model.processes {
        if is_alive(*pid) {
            lines.extend(threads(now, *pid, process));
        }
    }
    let outstanding = model.qps.iter().filter(|(id, _)| is_alive(id.pid));
    let of_qps = outstanding.flat_map(|(id, qp)| {
        let process = model.processes.get(&id.pid);
        let peer = peer_of(model, *id, qp);
        [
            unfinished(now, *id, qp, peer, &is_alive),
            unpolled(now, *id, qp, process),
        ]
    });
    let mut of_qps: Vec<String> = of_qps.flatten().collect();
    let more = of_qps.len().saturating_sub(MAX_LINES);
    of_qps.truncate(MAX_LINES);
    lines.extend(of_qps);
    if more > 0 {
        lines.push(format!("{more} more queue pairs"));
    }
    lines
}

fn since(now: u64, then: u64) -> String {
    names::duration(now.saturating_sub(then))
}

fn threads(now: u64, pid: u32, process: &Process) -> Vec<String> {
    let long = |open: &&Open| now.saturating_sub(open.begin_ns) >= LONG_NS;
    let mut lines = Vec::new();
    for (thread, state) in &process.threads {
        let who = format!("process {pid}, thread {thread}");
        if let Some(open) = state.open.first().filter(long) {
            let Open {
                name, arguments, ..
            } = open;
            lines.push(format!(
                "{who} is in {name}({arguments}) since {}",
                since(now, open.begin_ns)
            ));
        } else if let Some((cq, begin)) = state.polls {
            lines.push(format!(
                "{who} polls CQ {cq:#x} and finds nothing since {}",
                since(now, begin)
            ));
        }
    }
    lines.truncate(MAX_LINES);
    lines
}

/// Returns the traced QP at the other end.
fn peer_of<'m>(model: &'m Model, id: QpId, qp: &Qp) -> Option<(QpId, &'m Qp)> {
    let mut all = model.qps.iter();
    let other = all.find(|(other, state)| {
        other.qpn == qp.remote_qpn && state.remote_qpn == id.qpn && **other != id
    });
    other.map(|(id, qp)| (*id, qp))
}

/// Describes the sends that are not complete.
fn unfinished(
    now: u64,
    id: QpId,
    qp: &Qp,
    peer: Option<(QpId, &Qp)>,
    is_alive: &impl Fn(u32) -> bool,
) -> Option<String> {
    let pending = qp.pending();
    let count = pending.clone().count();
    let oldest: &Send = pending.clone().next()?;
    let mut line = format!(
        "process {}, QP {:#08x}: {count} {} not complete, the oldest {} since {}. ",
        id.pid,
        id.qpn,
        if count == 1 { "send is" } else { "sends are" },
        oldest.request.text,
        since(now, oldest.timing.posted_ns)
    );
    let the_peer = match peer {
        Some((other, _)) if is_alive(other.pid) => format!("The peer (process {})", other.pid),
        Some((other, _)) => format!("The peer (process {}, which has ended)", other.pid),
        None => "The peer".to_owned(),
    };
    line += &if qp.rnr_naks > 0 {
        let posted = peer.map_or_else(String::new, |(_, peer)| match peer.receives_posted {
            0 => ", and has not posted any on this queue pair".to_owned(),
            n => format!(", and has posted {n} on this queue pair so far"),
        });
        let refused = match qp.rnr_naks {
            1 => "once".to_owned(),
            n => format!("{n} times"),
        };
        format!(
            "{the_peer} has answered RNR NAK {refused}: it has no receive for the message{posted}"
        )
    } else if qp.unanswered > 0 {
        let times = qp.unanswered;
        format!(
            "{the_peer} does not answer, after {times} {}",
            if times == 1 {
                "retransmission"
            } else {
                "retransmissions"
            }
        )
    } else if oldest.sent_ns == 0 {
        "It was not sent yet".to_owned()
    } else {
        format!("{the_peer} has not answered yet")
    };
    Some(line)
}

/// Describes unpolled completions.
fn unpolled(now: u64, id: QpId, qp: &Qp, process: Option<&Process>) -> Option<String> {
    let received = qp
        .unpolled_arrivals()
        .filter(|_| qp.recv_cq != 0)
        .map(|(then, count)| (then, format!("{count} received"), qp.recv_cq));
    let sent = qp.unpolled_send().and_then(|send| {
        let what = format!("the completion of {}", send.request.text);
        Some((send.acked_ns?, what, qp.send_cq))
    });
    let (then, what, cq) = [received, sent].into_iter().flatten().min()?;
    if now.saturating_sub(then) < LONG_NS {
        return None;
    }
    let age = since(now, then);
    let mut line = format!(
        "process {}, QP {:#08x}: {what}, in CQ {cq:#x} since {age}, not polled",
        id.pid, id.qpn
    );
    let armed = process.and_then(|process| process.armed.get(&cq));
    let waits = process.is_some_and(|process| {
        let mut all = process.threads.values().flat_map(|thread| &thread.open);
        all.any(|open| open.name == "ibv_get_cq_event" || open.name == "rdma_get_cm_event")
    });
    line += &match armed {
        Some(armed) if *armed > then && waits => format!(
            ". ibv_req_notify_cq came {} after it and reports later completions only: poll the CQ \
             once more after ibv_req_notify_cq, before you wait",
            names::duration(armed - then)
        ),
        None if waits => ". ibv_req_notify_cq was never called for this CQ, so no event comes: \
                          call it before you wait"
            .to_owned(),
        _ => String::new(),
    };
    Some(line)
}
