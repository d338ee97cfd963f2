//! Turns records into events: ends of calls, completions with their requests, packets that matter.

use std::collections::{BTreeMap, HashMap};

use rocade_emulator::trace::{Kind, Record, flag, queue};
use rocade_wire::{Opcode, Operation};

use super::event::{At, Call, Completion, Event, Incident, PacketSeen, QpId, Request, What};
use super::names;
use super::qp::Qp;
use super::source::Entry;

/// The most packets under way to remember.
const MAX_UNDER_WAY: usize = 1 << 15;

/// The operation codes of the last packet of a request, for RC and XRC.
const LAST_CODES: [u32; 18] = [
    0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x13, 0x14, 0x16, 0x17, 0xa2, 0xa4, 0xa8,
    0xaa, 0xac,
];

/// The services UC, UD and DC, in the upper bits of an operation code.
const UC: u32 = 1;
const UD: u32 = 3;
const DC: u32 = 6;

/// Identifies a packet at both ends: folded destination, QP, PSN, operation code.
type PacketKey = (u64, u32, u32, u32);

/// A call that has begun.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) begin_ns: u64,
    pub(super) name: String,
    pub(super) arguments: String,
}

/// A thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Thread {
    /// The calls that have not returned, outermost first.
    pub(super) open: Vec<Open>,
    /// The requests of the post in progress.
    posting: Vec<Request>,
    post_began_ns: u64,
    /// The CQ that it polls in vain, and since when.
    pub(super) polls: Option<(u64, u64)>,
}

/// A process.
#[derive(Debug, Clone, Default)]
pub(super) struct Process {
    pub(super) command: String,
    pub(super) threads: BTreeMap<u32, Thread>,
    /// The last request for an event of each CQ, and the last time that an event was taken.
    pub(super) armed: HashMap<u64, u64>,
}

/// The state of all traced processes.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) qps: BTreeMap<QpId, Qp>,
    /// Time of the last post, completion or call.
    pub(super) progress_ns: u64,
    srqs: HashMap<(u32, u64), Vec<Request>>,
    under_way: HashMap<PacketKey, (u64, u64)>,
    arrived: HashMap<PacketKey, u64>,
    flows: u64,
}

impl Model {
    /// Takes a record, and returns what has happened by it.
    pub(super) fn take(&mut self, entry: &Entry) -> Vec<Event> {
        let Entry { pid, record } = entry;
        let at = At {
            pid: *pid,
            thread: record.thread,
            time_ns: record.time_ns,
        };
        let what = match record.kind {
            Kind::Process => {
                let process = self.processes.entry(*pid).or_default();
                process.command.clone_from(&record.text);
                Some(What::Process(record.text.clone()))
            }
            Kind::Enter => {
                self.enter(at, record);
                None
            }
            Kind::Exit => self.exit(at, record),
            Kind::PostSend | Kind::PostRecv => {
                self.post(at, record);
                None
            }
            Kind::PostEnd => self.post_end(at, record),
            Kind::Completion => Some(What::Completion(self.complete(at, record))),
            Kind::EmptyPolls => {
                self.thread(at)
                    .polls
                    .get_or_insert_with(|| (record.field(0), at.time_ns));
                Some(What::EmptyPolls(record.field(1)))
            }
            Kind::ReqNotify => Some(self.req_notify(at, record)),
            Kind::Qp => {
                self.attributes(at, record);
                None
            }
            Kind::Sent | Kind::Received => return self.packet(at, record),
            Kind::Note => Some(self.note(at, record)),
            Kind::Timeout => Some(self.timeout(at, record)),
            Kind::Writer | Kind::PostedSend | Kind::PostedRecv => None,
        };
        what.map(|what| Event { at, what }).into_iter().collect()
    }

    fn thread(&mut self, at: At) -> &mut Thread {
        let process = self.processes.entry(at.pid).or_default();
        process.threads.entry(at.thread).or_default()
    }

    fn qp(&mut self, pid: u32, qpn: u32) -> &mut Qp {
        self.qps.entry(QpId { pid, qpn }).or_default()
    }

    fn enter(&mut self, at: At, record: &Record) {
        self.progress_ns = at.time_ns;
        let (name, arguments) = record.text.split_once('\t').unwrap_or((&record.text, ""));
        let open = Open {
            begin_ns: at.time_ns,
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let thread = self.thread(at);
        thread.polls = None;
        thread.open.push(open);
    }

    fn exit(&mut self, at: At, record: &Record) -> Option<What> {
        self.progress_ns = at.time_ns;
        let thread = self.thread(at);
        let open = thread.open.pop()?;
        Some(What::Call(Call {
            begin_ns: open.begin_ns,
            end_ns: at.time_ns,
            depth: thread.open.len(),
            name: open.name,
            arguments: open.arguments,
            failed: record.field(0) != 0,
            errno: record.low(1),
            result: record.text.clone(),
        }))
    }

    fn post(&mut self, at: At, record: &Record) {
        let is_send = record.kind == Kind::PostSend;
        let request = if is_send {
            Request::send(record)
        } else {
            Request::receive(record)
        };
        let thread = self.thread(at);
        if thread.posting.is_empty() {
            thread.post_began_ns = at.time_ns;
        }
        thread.posting.push(request.clone());
        let srq = record.field(1);
        if is_send {
            self.qp(at.pid, record.high(0))
                .post_send(at.time_ns, request);
        } else if srq == 0 {
            self.qp(at.pid, record.high(0))
                .post_receive(at.time_ns, request);
        } else {
            self.srqs.entry((at.pid, srq)).or_default().push(request);
        }
    }

    fn post_end(&mut self, at: At, record: &Record) -> Option<What> {
        self.progress_ns = at.time_ns;
        let (queue, errno) = (record.high(0), record.low(0));
        let thread = self.thread(at);
        let depth = thread.open.len();
        let requests = std::mem::take(&mut thread.posting);
        let accepted = usize::try_from(record.high(2)).unwrap_or(0);
        let qpn = if queue == queue::SHARED {
            0
        } else {
            record.low(1)
        };
        let name = match queue {
            queue::SEND if record.low(2) & flag::EXPERIMENTAL != 0 => "ibv_exp_post_send",
            queue::SEND => "ibv_post_send",
            queue::RECV => "ibv_post_recv",
            _ => "ibv_post_srq_recv",
        };
        if queue != queue::SHARED {
            let rest = requests.len().saturating_sub(accepted);
            self.qp(at.pid, qpn).withdraw(queue == queue::SEND, rest);
        }
        let arguments = match queue {
            queue::SHARED => format!("srq={:#x}", record.field(1)),
            _ => format!("qp={qpn:#08x}"),
        };
        let call = Call {
            begin_ns: at.time_ns.saturating_sub(record.field(3)),
            end_ns: at.time_ns,
            depth,
            name: name.to_owned(),
            arguments,
            failed: errno != 0,
            errno,
            result: errno.to_string(),
        };
        Some(What::Post {
            call,
            qpn,
            requests,
        })
    }

    fn complete(&mut self, at: At, record: &Record) -> Completion {
        self.progress_ns = at.time_ns;
        self.thread(at).polls = None;
        let (cq, wr_id) = (record.field(0), record.field(1));
        let (status, opcode) = (record.high(2), record.low(2));
        let qpn = record.high(3);
        let qp = self.qp(at.pid, qpn);
        let is_receive = names::is_receive(opcode);
        qp.recv_cq = if is_receive { cq } else { qp.recv_cq };
        let (mut unsignaled, mut request) = (Vec::new(), None);
        // The operation of a failed completion is undefined.
        let queues = [is_receive, !is_receive];
        let possible = if status == 0 { 1 } else { 2 };
        for is_receive in queues.into_iter().take(possible) {
            if is_receive {
                request = qp.complete_receive(at.time_ns, wr_id);
            } else if let Some((before, own)) = qp.complete_send(at.time_ns, wr_id, status == 0) {
                (unsignaled, request) = (before, Some(own));
            }
            if request.is_some() {
                break;
            }
        }
        let in_flight = qp.sends.len();
        Completion {
            qp: QpId { pid: at.pid, qpn },
            cq,
            wr_id,
            status,
            opcode,
            byte_len: record.high(4),
            vendor_err: record.high(5),
            empty_polls: record.high(6),
            is_experimental: record.low(6) & flag::EXPERIMENTAL != 0,
            in_flight,
            unsignaled,
            request,
        }
    }

    fn req_notify(&mut self, at: At, record: &Record) -> What {
        self.progress_ns = at.time_ns;
        let (cq, solicited, errno) = (record.field(0), record.high(1), record.low(1));
        let process = self.processes.entry(at.pid).or_default();
        process.armed.insert(cq, at.time_ns);
        let depth = self.thread(at).open.len();
        What::Call(Call {
            begin_ns: at.time_ns.saturating_sub(record.field(2)),
            end_ns: at.time_ns,
            depth,
            name: "ibv_req_notify_cq".to_owned(),
            arguments: format!("cq={cq:#x}, solicited_only={solicited}"),
            failed: errno != 0,
            errno,
            result: errno.to_string(),
        })
    }

    fn attributes(&mut self, at: At, record: &Record) {
        let mask = record.low(1);
        let qp = self.qp(at.pid, record.low(0));
        (qp.send_cq, qp.recv_cq) = (record.field(4), record.field(5));
        if mask & 1 << 8 != 0 {
            qp.set_mtu(record.low(2));
        }
        if mask & 1 << 20 != 0 {
            qp.remote_qpn = record.high(3);
        }
        // A QP that is reset begins anew.
        if mask & 1 != 0 && record.high(2) == 0 {
            *qp = Qp::default();
        }
        qp.signals_all = record.low(6) != 0;
    }

    fn packet(&mut self, at: At, record: &Record) -> Vec<Event> {
        let (own, remote) = (record.high(0), record.low(0));
        let (psn, what) = (record.high(1), record.low(1));
        let (code, len) = (what & 0xff, what >> 16);
        let is_received = record.kind == Kind::Received;
        let to = record.field(2);
        let dest = if is_received { own } else { remote };
        let key = (to, dest, psn, code);
        let code8 = u8::try_from(code).unwrap_or(0);
        let Some(operation) = Opcode::new(code8).operation() else {
            return Vec::new();
        };
        let mut left_ns = None;
        let flow = if is_received {
            bounded(&mut self.arrived).insert(key, at.time_ns);
            let left = self.under_way.remove(&key);
            left_ns = left.map(|(time_ns, _)| time_ns);
            left.map(|(_, flow)| flow)
        } else {
            self.flows += 1;
            let flow = self.flows;
            bounded(&mut self.under_way).insert(key, (at.time_ns, flow));
            Some(flow)
        };
        let aeth = record.low(3);
        let text = if is_received {
            self.received(at, own, (psn, aeth), operation, left_ns)
        } else {
            let service = code >> 5;
            let is_dynamic = matches!(service, UD | DC);
            let qp = self.qp(at.pid, own);
            match is_dynamic && !qp.is_of_request(service == UD) {
                true => None,
                false => {
                    qp.has_no_answers = matches!(service, UC | UD);
                    self.sent(at, own, (to, remote), (psn, aeth), operation)
                }
            }
        };
        let id = QpId {
            pid: at.pid,
            qpn: own,
        };
        let qp = self.qp(at.pid, own);
        let seen = PacketSeen {
            qp: id,
            remote_qpn: if remote == 0 { qp.remote_qpn } else { remote },
            received: is_received,
            opcode: code,
            psn,
            len,
            flow,
            in_flight: qp.sends.len(),
            window: qp.window(),
        };
        let incident = text.map(|text| {
            let name = names::packet(code);
            let text = format!("{name} PSN {psn:#x}: {text}");
            What::Incident(Incident { qp: id, text })
        });
        let all = [Some(What::Packet(seen)), incident];
        let all = all.into_iter().flatten();
        all.map(|what| Event { at, what }).collect()
    }

    /// Notes a received packet. Returns its words if it is no good news.
    fn received(
        &mut self,
        at: At,
        own: u32,
        (psn, aeth): (u32, u32),
        operation: Operation,
        left_ns: Option<u64>,
    ) -> Option<String> {
        if operation.is_response() {
            let refusal = self
                .qp(at.pid, own)
                .answered(at.time_ns, psn, operation, aeth);
            if let Some(left_ns) = left_ns {
                self.measure_wire(at, own, left_ns);
            }
            return refusal;
        }
        if operation.is_send() && (operation.is_last() || operation.is_only())
            || operation.has_imm()
        {
            self.qp(at.pid, own).arrived(at.time_ns, psn);
        }
        None
    }

    /// Finds out how long the last packet and its answer, which has left the traced peer at
    /// `left_ns`, were under way.
    fn measure_wire(&mut self, at: At, own: u32, left_ns: u64) {
        let qp = self.qp(at.pid, own);
        let Some((last, answer)) = qp.just_answered(at.time_ns) else {
            return;
        };
        let (remote, remote_qpn) = (qp.remote, qp.remote_qpn);
        let key = |code: &u32| (remote, remote_qpn, last, *code);
        let times = LAST_CODES
            .iter()
            .filter_map(|code| self.arrived.get(&key(code)));
        let arrived = times.max().copied();
        if let Some(arrived) = arrived {
            let peer = left_ns.saturating_sub(arrived);
            let from = at.time_ns.saturating_sub(left_ns);
            let to = answer.saturating_sub(peer + from);
            self.qp(at.pid, own).set_wire(at.time_ns, (to, from));
        }
    }

    /// Notes a packet that is sent. Returns its words if it is no good news.
    fn sent(
        &mut self,
        at: At,
        own: u32,
        (to, remote): (u64, u32),
        (psn, aeth): (u32, u32),
        operation: Operation,
    ) -> Option<String> {
        let qp = self.qp(at.pid, own);
        (qp.remote, qp.remote_qpn) = (to, remote);
        if operation.is_request() {
            return qp.sent(at.time_ns, psn, operation);
        }
        if operation == Operation::Acknowledge {
            return qp.answers(psn, aeth);
        }
        None
    }

    fn timeout(&mut self, at: At, record: &Record) -> What {
        let qpn = record.high(0);
        let text = self.qp(at.pid, qpn).timed_out(at.time_ns);
        What::Incident(Incident {
            qp: QpId { pid: at.pid, qpn },
            text,
        })
    }

    fn note(&self, at: At, record: &Record) -> What {
        let dest = record.low(0);
        let is_received = record.low(1) >> 8 & flag::RECEIVED != 0;
        let (psn, name) = (record.high(1), names::packet(record.low(1) & 0xff));
        let sender = self
            .qps
            .iter()
            .find(|(id, qp)| id.pid == at.pid && qp.remote_qpn == dest);
        let qpn = match sender {
            Some((id, _)) if !is_received => id.qpn,
            _ => dest,
        };
        What::Incident(Incident {
            qp: QpId { pid: at.pid, qpn },
            text: format!("{name} PSN {psn:#x}: {} (fault rule)", record.text),
        })
    }
}

/// Returns the map, emptied if it is full.
fn bounded<T>(map: &mut HashMap<PacketKey, T>) -> &mut HashMap<PacketKey, T> {
    if map.len() >= MAX_UNDER_WAY {
        map.clear();
    }
    map
}
