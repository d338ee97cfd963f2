//! Events as lines of text.

use std::collections::HashMap;
use std::io::{self, Write};

use super::args::TraceFilter;
use super::event::{At, Call, Completion, Event, PacketSeen, Request, Timing, What};
use super::names;

/// The most requests of a post that its line shows.
const MAX_REQUESTS: usize = 4;
const EAGAIN: u32 = 11;

/// Prints events as lines.
pub(super) struct Printer<W> {
    out: W,
    filter: TraceFilter,
    begin_ns: Option<u64>,
    /// The last call of each thread that would have had to wait, and how often it came again.
    again: HashMap<(u32, u32), (String, u64)>,
}

impl<W: Write> Printer<W> {
    pub(super) fn new(out: W, filter: TraceFilter) -> Self {
        Self {
            out,
            filter,
            begin_ns: None,
            again: HashMap::new(),
        }
    }

    /// Prints an event, unless the filter leaves it out.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn print(&mut self, event: &Event) -> io::Result<()> {
        let begin = *self.begin_ns.get_or_insert(event.at.time_ns);
        let Some(text) = text(event, &self.filter) else {
            return Ok(());
        };
        if self.is_again(event)? {
            return Ok(());
        }
        let since = match &event.what {
            What::Call(call) | What::Post { call, .. } => call.begin_ns,
            _ => event.at.time_ns,
        };
        let seconds = since.saturating_sub(begin) / 1_000;
        let time = format!("{}.{:06}", seconds / 1_000_000, seconds % 1_000_000);
        writeln!(self.out, "{} {time:>10} {text}", who(event.at))
    }

    /// Counts a call that fails with `EAGAIN` as the thread's last one did, instead of printing it.
    /// Programs call such functions in a loop.
    fn is_again(&mut self, event: &Event) -> io::Result<bool> {
        let At { pid, thread, .. } = event.at;
        let key = match &event.what {
            What::Call(call) if call.failed && call.errno == EAGAIN => {
                format!("{}({})", call.name, call.arguments)
            }
            What::Call(_) | What::Post { .. } | What::Completion(_) => String::new(),
            _ => return Ok(false),
        };
        match self.again.get_mut(&(pid, thread)) {
            Some((last, count)) if *last == key && !key.is_empty() => {
                *count += 1;
                return Ok(true);
            }
            Some((last, count)) if *count > 0 => {
                let who = who(event.at);
                writeln!(
                    self.out,
                    "{who} {:>10} {last} = EAGAIN {count} times more",
                    ""
                )?;
            }
            _ => {}
        }
        self.again.insert((pid, thread), (key, 0));
        Ok(false)
    }

    /// Prints a line of the tracer itself.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "rocade trace: {text}")
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns the process, and the thread unless it is the first.
pub(super) fn who(at: At) -> String {
    if at.thread == at.pid || at.thread == 0 {
        format!("{}", at.pid)
    } else {
        format!("{}/{}", at.pid, at.thread)
    }
}

/// Returns the line of an event, without process and time. `None` if the filter leaves it out.
pub(super) fn text(event: &Event, filter: &TraceFilter) -> Option<String> {
    match &event.what {
        What::Process(command) => Some(format!("process: {command}"))
            .filter(|_| filter.qp.is_none() && !filter.failed && filter.call.is_empty()),
        What::Call(call) => {
            let named = filter.names(&call.name) && is_of_qp(&call.arguments, filter.qp);
            let shown = named && (!filter.failed || call.failed);
            shown.then(|| call_line(call, &call.arguments))
        }
        What::Post {
            call,
            qpn,
            requests,
        } => {
            let of_qp = filter.qp.is_none_or(|qp| qp == *qpn);
            let shown = filter.names(&call.name) && of_qp && (!filter.failed || call.failed);
            shown.then(|| call_line(call, &posted(&call.arguments, requests)))
        }
        What::Completion(completion) => {
            let of_qp = filter.qp.is_none_or(|qp| qp == completion.qp.qpn);
            let is_wanted = !filter.failed || completion.status != 0;
            (filter.names(completion.verb()) && of_qp && is_wanted).then(|| completed(completion))
        }
        What::Incident(incident) => {
            let of_qp = filter.qp.is_none_or(|qp| qp == incident.qp.qpn);
            let shown = of_qp && filter.call.is_empty();
            shown.then(|| format!("** QP {:#08x}: {}", incident.qp.qpn, incident.text))
        }
        What::Packet(packet) => {
            let of_qp = filter.qp.is_none_or(|qp| qp == packet.qp.qpn);
            (filter.packets && of_qp).then(|| packet_line(packet))
        }
        What::EmptyPolls(count) => {
            let shown = filter.packets && filter.call.is_empty();
            shown.then(|| format!("ibv_poll_cq: {count} polls found nothing"))
        }
    }
}

/// Returns true if the arguments name the QP.
fn is_of_qp(arguments: &str, qpn: Option<u32>) -> bool {
    qpn.is_none_or(|qpn| arguments.contains(&format!("{qpn:#08x}")))
}

fn call_line(call: &Call, arguments: &str) -> String {
    let indent = "| ".repeat(call.depth);
    let took = names::duration(call.took());
    let mut line = format!("{indent}{}({arguments}) = {}", call.name, call.result);
    if call.failed {
        line += &match names::errno(call.errno) {
            "" => format!(" errno {}", call.errno),
            name => format!(" {name}"),
        };
    }
    line + &format!(" <{took}>")
}

/// Returns the arguments of a post.
fn posted(queue: &str, requests: &[Request]) -> String {
    let shown = requests.iter().take(MAX_REQUESTS);
    let mut all: Vec<String> = shown.map(|request| request.text.clone()).collect();
    if requests.len() > MAX_REQUESTS {
        all.push(format!("{} more", requests.len() - MAX_REQUESTS));
    }
    format!("{queue}, {}", all.join(", "))
}

fn completed(completion: &Completion) -> String {
    let Completion {
        cq,
        wr_id,
        status,
        opcode,
        byte_len,
        qp,
        ..
    } = completion;
    let mut line = format!(
        "{}(cq={cq:#x}) = {{wr_id={wr_id:#x}, {}",
        completion.verb(),
        names::status(*status)
    );
    if *status == 0 {
        line += &format!(
            ", {}",
            names::completed(*opcode, completion.is_experimental)
        );
        if names::is_receive(*opcode) {
            line += &format!(", {byte_len} bytes");
        }
    } else {
        line += &format!(", vendor_err={:#x}", completion.vendor_err);
    }
    line += &format!(", qp={:#08x}}}", qp.qpn);
    if let Some((request, timing)) = &completion.request {
        line += &format!(" {}", where_it_went(request, timing));
    }
    match completion.unsignaled.len() {
        0 => {}
        1 => line += " (1 unsignaled request before)",
        count => line += &format!(" ({count} unsignaled requests before)"),
    }
    if completion.empty_polls > 0 {
        line += &format!(" ({} empty polls before)", completion.empty_polls);
    }
    line
}

/// Returns how long a request took, and where.
pub(super) fn where_it_went(request: &Request, timing: &Timing) -> String {
    let mut parts = Vec::new();
    let mut part = |name: &str, ns: u64| {
        if ns > 0 {
            parts.push(format!("{name} {}", names::duration(ns)));
        }
    };
    if request.opcode.is_some() {
        part("queue", timing.queue);
        part("send", timing.send);
    }
    let count = timing.rnr_naks;
    part(&format!("RNR ({count} NAKs)"), timing.rnr);
    let count = timing.retransmissions;
    part(&format!("retransmission ({count})"), timing.retransmission);
    match timing.wire {
        Some((to, from)) => {
            part("wire", to + from);
            part("peer", timing.answer.saturating_sub(to + from));
        }
        None => part("wire and peer", timing.answer),
    }
    part("poll", timing.poll);
    let total = names::duration(timing.total);
    if parts.is_empty() {
        format!("after {total}")
    } else {
        format!("after {total}: {}", parts.join(", "))
    }
}

fn packet_line(packet: &PacketSeen) -> String {
    let PacketSeen {
        qp,
        remote_qpn,
        opcode,
        psn,
        len,
        ..
    } = packet;
    let arrow = if packet.received { "<-" } else { "->" };
    let name = names::packet(*opcode);
    format!(
        "   QP {:#08x} {arrow} {remote_qpn:#08x} {name} PSN {psn:#x}, {len} bytes",
        qp.qpn
    )
}
