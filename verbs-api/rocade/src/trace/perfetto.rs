//! Writes a timeline in the format of Perfetto: tracks of processes, threads and queue pairs,
//! slices of calls and work requests, instants of packets, flows between packets, counters.

use std::collections::HashMap;
use std::io::{self, Write};

use super::event::{
    At, Call, Completion, Event, Incident, PacketSeen, QpId, Request, Timing, What,
};
use super::model::Model;
use super::names;
use super::proto::Message;

/// Field numbers of the messages, and values of `TrackEvent.Type`.
pub(super) mod field {
    pub(crate) const TRACE_PACKET: u64 = 1;
    pub(crate) const TIMESTAMP: u64 = 8;
    pub(crate) const SEQUENCE: u64 = 10;
    pub(crate) const TRACK_EVENT: u64 = 11;
    pub(crate) const TRACK_DESCRIPTOR: u64 = 60;

    pub(crate) const UUID: u64 = 1;
    pub(crate) const TRACK_NAME: u64 = 2;
    pub(crate) const PROCESS: u64 = 3;
    pub(crate) const THREAD: u64 = 4;
    pub(crate) const PARENT: u64 = 5;
    pub(crate) const COUNTER: u64 = 8;
    pub(crate) const PID: u64 = 1;
    pub(crate) const PROCESS_NAME: u64 = 6;
    pub(crate) const TID: u64 = 2;
    pub(crate) const THREAD_NAME: u64 = 5;

    pub(crate) const ANNOTATION: u64 = 4;
    pub(crate) const TYPE: u64 = 9;
    pub(crate) const TRACK: u64 = 11;
    pub(crate) const CATEGORY: u64 = 22;
    pub(crate) const NAME: u64 = 23;
    pub(crate) const COUNTER_VALUE: u64 = 30;
    pub(crate) const FLOW: u64 = 47;
    pub(crate) const END_OF_FLOW: u64 = 48;
    pub(crate) const ANNOTATION_STRING: u64 = 6;
    pub(crate) const ANNOTATION_NAME: u64 = 10;

    pub(crate) const SLICE_BEGIN: u64 = 1;
    pub(crate) const SLICE_END: u64 = 2;
    pub(crate) const INSTANT: u64 = 3;
    pub(crate) const COUNTER_TYPE: u64 = 4;
}

/// The category of slices that have ended.
const ENDED: &str = "rocade";
/// The category of calls and requests that have not ended.
const OPEN: &str = "open";
/// The most open requests of a QP to draw, each on a track of its own.
const MAX_OPEN: usize = 16;

/// A track of the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Track {
    Process(u32),
    Thread(u32, u32),
    /// Work requests of a QP that overlap are on several of these.
    Requests(QpId, usize),
    Packets(QpId),
    InFlight(QpId),
    Window(QpId),
}

/// Writes a timeline.
pub(super) struct Timeline<W> {
    out: W,
    tracks: HashMap<Track, u64>,
    /// The end of the last request on each track of a QP.
    lanes: HashMap<QpId, Vec<u64>>,
    counters: HashMap<Track, u64>,
}

impl<W: Write> Timeline<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            tracks: HashMap::new(),
            lanes: HashMap::new(),
            counters: HashMap::new(),
        }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn add(&mut self, event: &Event) -> io::Result<()> {
        match &event.what {
            What::Process(command) => self.process(event.at, command),
            What::Call(call) => self.call(event.at, call, &call.arguments),
            What::Post { call, requests, .. } => {
                let texts: Vec<&str> = requests.iter().map(|one| one.text.as_str()).collect();
                let arguments = format!("{}, {}", call.arguments, texts.join(", "));
                self.call(event.at, call, &arguments)
            }
            What::Completion(completion) => self.completion(event.at, completion),
            What::Incident(incident) => self.incident(event.at, incident),
            What::Packet(packet) => self.packet(event.at, packet),
            What::EmptyPolls(_) => Ok(()),
        }
    }

    /// Adds the calls that have not returned, and the sends without an answer. `end_ns` returns the
    /// time at which a process has ended, or the trace.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn unfinished(
        &mut self,
        model: &Model,
        end_ns: impl Fn(u32) -> u64,
    ) -> io::Result<()> {
        for (pid, process) in &model.processes {
            for (thread, state) in &process.threads {
                for open in &state.open {
                    let uuid = self.track(Track::Thread(*pid, *thread))?;
                    let name = format!("{}, not returned", open.name);
                    let words = [("arguments", open.arguments.clone())];
                    let time = (open.begin_ns, end_ns(*pid));
                    self.slice(uuid, (OPEN, &name), time, &words)?;
                }
            }
        }
        for (qp, state) in &model.qps {
            for send in state.pending().take(MAX_OPEN) {
                let time = (send.timing.posted_ns, end_ns(qp.pid));
                let uuid = self.lane(*qp, time)?;
                let operation = send.request.opcode.map_or("", names::operation);
                let name = format!("{operation}, not complete");
                let words = [("request", send.request.text.clone())];
                self.slice(uuid, (OPEN, &name), time, &words)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns a track of a QP that is free for a request.
    fn lane(&mut self, qp: QpId, (begin_ns, end_ns): (u64, u64)) -> io::Result<u64> {
        let lanes = self.lanes.entry(qp).or_default();
        let free = lanes.iter().position(|end| *end <= begin_ns);
        let lane = free.unwrap_or(lanes.len());
        if lane == lanes.len() {
            lanes.push(0);
        }
        if let Some(end) = lanes.get_mut(lane) {
            *end = end_ns;
        }
        self.track(Track::Requests(qp, lane))
    }

    fn put(&mut self, packet: Message) -> io::Result<()> {
        let packet = packet.number(field::SEQUENCE, 1);
        let trace = Message::default().message(field::TRACE_PACKET, &packet);
        self.out.write_all(trace.bytes())
    }

    /// Returns the identifier of a track, which it describes the first time.
    fn track(&mut self, track: Track) -> io::Result<u64> {
        if let Some(uuid) = self.tracks.get(&track) {
            return Ok(*uuid);
        }
        let uuid = self.tracks.len() as u64 + 1;
        self.tracks.insert(track, uuid);
        let mut description = Message::default().number(field::UUID, uuid);
        let (pid, name) = match track {
            Track::Process(pid) => (pid, String::new()),
            Track::Thread(pid, thread) => {
                let thread = Message::default()
                    .number(field::PID, pid.into())
                    .number(field::TID, thread.into())
                    .text(field::THREAD_NAME, "thread");
                description = description.message(field::THREAD, &thread);
                (pid, String::new())
            }
            Track::Requests(qp, _) => (qp.pid, format!("QP {:#08x} requests", qp.qpn)),
            Track::Packets(qp) => (qp.pid, format!("QP {:#08x} packets", qp.qpn)),
            Track::InFlight(qp) => (qp.pid, format!("QP {:#08x} in flight", qp.qpn)),
            Track::Window(qp) => (qp.pid, format!("QP {:#08x} window", qp.qpn)),
        };
        if matches!(track, Track::InFlight(_) | Track::Window(_)) {
            description = description.message(field::COUNTER, &Message::default());
        }
        if !name.is_empty() {
            description = description.text(field::TRACK_NAME, &name);
        }
        if !matches!(track, Track::Process(_)) {
            let parent = self.track(Track::Process(pid))?;
            description = description.number(field::PARENT, parent);
            self.put(Message::default().message(field::TRACK_DESCRIPTOR, &description))?;
        }
        Ok(uuid)
    }

    fn process(&mut self, at: At, command: &str) -> io::Result<()> {
        let uuid = self.track(Track::Process(at.pid))?;
        let process = Message::default()
            .number(field::PID, at.pid.into())
            .text(field::PROCESS_NAME, command);
        let description = Message::default()
            .number(field::UUID, uuid)
            .message(field::PROCESS, &process);
        self.put(Message::default().message(field::TRACK_DESCRIPTOR, &description))
    }

    fn event(&mut self, time_ns: u64, event: &Message) -> io::Result<()> {
        let packet = Message::default()
            .number(field::TIMESTAMP, time_ns)
            .message(field::TRACK_EVENT, event);
        self.put(packet)
    }

    /// Adds a slice. `words` are pairs of name and value.
    fn slice(
        &mut self,
        uuid: u64,
        (category, name): (&str, &str),
        (begin_ns, end_ns): (u64, u64),
        words: &[(&str, String)],
    ) -> io::Result<()> {
        let mut begin = Message::default()
            .number(field::TYPE, field::SLICE_BEGIN)
            .number(field::TRACK, uuid)
            .text(field::CATEGORY, category)
            .text(field::NAME, name);
        for (name, value) in words {
            begin = begin.message(field::ANNOTATION, &annotation(name, value));
        }
        self.event(begin_ns, &begin)?;
        let end = Message::default()
            .number(field::TYPE, field::SLICE_END)
            .number(field::TRACK, uuid);
        self.event(end_ns, &end)
    }

    fn call(&mut self, at: At, call: &Call, arguments: &str) -> io::Result<()> {
        let uuid = self.track(Track::Thread(at.pid, at.thread))?;
        let result = match names::errno(call.errno) {
            _ if !call.failed => call.result.clone(),
            name => format!("{} {name}", call.result),
        };
        let words = [("arguments", arguments.to_owned()), ("result", result)];
        self.slice(
            uuid,
            (ENDED, &call.name),
            (call.begin_ns, call.end_ns),
            &words,
        )
    }

    fn completion(&mut self, at: At, completion: &Completion) -> io::Result<()> {
        let qp = completion.qp;
        for finished in &completion.unsignaled {
            self.request(at, qp, finished, (names::status(0), ", unsignaled"))?;
        }
        let Some(finished) = &completion.request else {
            return Ok(());
        };
        let status = names::status(completion.status);
        let mark = match completion.status {
            0 => String::new(),
            _ => format!(" {status}"),
        };
        self.request(at, qp, finished, (status, &mark))?;
        if finished.0.opcode.is_none() {
            return Ok(());
        }
        self.counter(at, Track::InFlight(qp), completion.in_flight as u64)
    }

    /// Adds a request that has ended. `mark` follows its name.
    fn request(
        &mut self,
        at: At,
        qp: QpId,
        (request, timing): &(Request, Timing),
        (status, mark): (&str, &str),
    ) -> io::Result<()> {
        // A receive waits for the peer, which is no work of this QP.
        let Some(opcode) = request.opcode else {
            return Ok(());
        };
        let time = (timing.posted_ns, at.time_ns);
        let uuid = self.lane(qp, time)?;
        let name = format!("{}{mark}", names::operation(opcode));
        let words = [
            ("request", request.text.clone()),
            ("status", status.to_owned()),
            ("time", super::print::where_it_went(request, timing)),
        ];
        self.slice(uuid, (ENDED, &name), time, &words)?;
        for (name, begin, end) in phases(timing, at.time_ns) {
            self.slice(uuid, (ENDED, name), (begin, end), &[])?;
        }
        Ok(())
    }

    fn incident(&mut self, at: At, incident: &Incident) -> io::Result<()> {
        let uuid = self.track(Track::Packets(incident.qp))?;
        let event = Message::default()
            .number(field::TYPE, field::INSTANT)
            .number(field::TRACK, uuid)
            .text(field::CATEGORY, "incident")
            .text(field::NAME, &incident.text);
        self.event(at.time_ns, &event)
    }

    fn packet(&mut self, at: At, packet: &PacketSeen) -> io::Result<()> {
        let uuid = self.track(Track::Packets(packet.qp))?;
        let way = if packet.received { "received" } else { "sent" };
        let name = format!("{} {way}", names::packet(packet.opcode));
        let words = format!("PSN {:#x}, {} bytes", packet.psn, packet.len);
        let mut event = Message::default()
            .number(field::TYPE, field::INSTANT)
            .number(field::TRACK, uuid)
            .text(field::CATEGORY, "packet")
            .text(field::NAME, &name)
            .message(field::ANNOTATION, &annotation("packet", &words));
        if let Some(flow) = packet.flow {
            let end = if packet.received {
                field::END_OF_FLOW
            } else {
                field::FLOW
            };
            event = event.fixed64(end, flow);
        }
        self.event(at.time_ns, &event)?;
        self.counter(at, Track::Window(packet.qp), packet.window.into())?;
        self.counter(at, Track::InFlight(packet.qp), packet.in_flight as u64)
    }

    /// Adds the value of a counter, if it has changed.
    fn counter(&mut self, at: At, track: Track, value: u64) -> io::Result<()> {
        if self.counters.insert(track, value) == Some(value) {
            return Ok(());
        }
        let uuid = self.track(track)?;
        let event = Message::default()
            .number(field::TYPE, field::COUNTER_TYPE)
            .number(field::TRACK, uuid)
            .number(field::COUNTER_VALUE, value);
        self.event(at.time_ns, &event)
    }
}

fn annotation(name: &str, value: &str) -> Message {
    Message::default()
        .text(field::ANNOTATION_NAME, name)
        .text(field::ANNOTATION_STRING, value)
}

/// Returns the parts of a request's time, one behind the other: name, begin and end.
fn phases(timing: &Timing, end_ns: u64) -> Vec<(&'static str, u64, u64)> {
    let answer = match timing.wire {
        Some((to, from)) => [
            ("wire", to),
            ("peer", timing.answer.saturating_sub(to + from)),
            ("wire", from),
        ],
        None => [("wire and peer", timing.answer), ("", 0), ("", 0)],
    };
    let before = [
        ("queue", timing.queue),
        ("send", timing.send),
        ("RNR", timing.rnr),
        ("retransmission", timing.retransmission),
    ];
    let lengths = before.into_iter().chain(answer);
    let lengths = lengths.chain([("poll", timing.poll)]);
    let mut begin = timing.posted_ns;
    let mut all = Vec::new();
    for (name, length) in lengths {
        let end = (begin + length).min(end_ns);
        if end > begin {
            all.push((name, begin, end));
        }
        begin = end;
    }
    all
}
