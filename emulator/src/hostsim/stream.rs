//! An end of a connection on which a stream of the protocol of rsockets runs. It has `messages`
//! times `len` bytes to send, and the flows of the board count bytes.

use rocade_rsockets::{Config, How, IOMAP_LEN, Iomap, Peers, SGE_LEN, Sge as Range, Source};
use rocade_rsockets::{Stream, Write};
use std::collections::VecDeque;

use super::board::{Board, End, Endpoint, other};
use super::memory::{HERE, LISTS, STAGED};
use super::objects::Objects;
use super::verdict::{Request, judge_failure};
use super::waiting::{self, Patience};
use crate::engine::common::{Side, pattern};
use crate::{Completion, ImmOrInv, Rkey, SendFlags, SendOp, WcStatus};

/// Messages of data that a peer may send before it gets credits.
const SLOTS: u16 = 16;
/// Receives in addition, so that control messages find one.
const SPARE: u32 = 16;
/// Number of receives at a time.
pub(super) const RECEIVES: u32 = SLOTS as u32 + SPARE;
/// Longest inline data.
const INLINE: u32 = 64;
/// Number of lists of ranges that are written directly.
const IOMAPS: u16 = 2;
/// Length after which the bytes of a stream repeat.
const PERIOD: usize = 4096;

/// The lists in the memory of an end, to which its peer writes.
struct Lists<'a>(&'a Side);

impl Peers for Lists<'_> {
    fn target(&self, slot: usize) -> Range {
        let bytes = self.0.bytes(LISTS + slot * SGE_LEN, SGE_LEN);
        Range::from_bytes(bytes.try_into().expect("16 bytes"), false)
    }

    fn iomap(&self, index: u16) -> Iomap {
        let at = LISTS + Stream::lists_len(0) + usize::from(index) * IOMAP_LEN;
        let bytes = self.0.bytes(at, IOMAP_LEN);
        Iomap::from_bytes(bytes.try_into().expect("24 bytes"), false)
    }
}

/// An end at work.
struct StreamEnd<'a> {
    board: &'a Board,
    end: End,
    objects: &'a Objects,
    peer: Endpoint,
    stream: Stream,
    /// The bytes that this end sends, and those that its peer sends, over and over.
    sent: Vec<u8>,
    received: Vec<u8>,
    /// Number of bytes of the stream up to the end of each write under way, if it has any.
    writes: VecDeque<Option<u32>>,
    /// Number of bytes that are posted, and of those that are read.
    posted: u32,
    read: u32,
    /// Number of the next receive.
    next_receive: u64,
}

/// Sends and receives all bytes, and ends the stream.
pub(super) fn run(board: &Board, end: End, objects: &Objects, peer: Endpoint) {
    let own = config(board, end, objects.endpoint());
    let theirs = config(board, other(end), peer);
    let data = Stream::conn_data(&theirs, peer.addr + LISTS as u64, peer.rkey.get());
    let bytes_of = |(connection, end)| pattern(PERIOD, connection * 13 + end * 7 + 2);
    let mut stream_end = StreamEnd {
        board,
        end,
        objects,
        peer,
        stream: Stream::new(own, data),
        sent: bytes_of(end),
        received: bytes_of(other(end)),
        writes: VecDeque::new(),
        posted: 0,
        read: 0,
        next_receive: RECEIVES.into(),
    };
    board.notes().connected.insert(end);
    stream_end.run();
}

/// Returns the buffers of an end. Small ones are often full.
fn config(board: &Board, end: End, endpoint: Endpoint) -> Config {
    let plan = &board.plan.connections[end.0];
    let buffer = 256 << plan.depth;
    Config {
        send_slots: SLOTS,
        recv_slots: SLOTS,
        send_buffer: buffer,
        recv_buffer: buffer,
        recv_addr: endpoint.addr,
        recv_key: endpoint.rkey.get(),
        inline: INLINE,
        iomaps: IOMAPS,
        big_endian: false,
    }
}

impl StreamEnd<'_> {
    fn run(&mut self) {
        let mut patience = Patience::new();
        let mut is_ending = false;
        self.flush();
        loop {
            waiting::exit_if_told(self.board, self.end, &self.objects.side);
            if self.board.has_failed(self.end) {
                return;
            }
            if is_ending && self.stream.end().is_some() {
                return self.board.mark("a stream ends");
            }
            let is_done = self.send() & self.receive();
            if is_done && !is_ending && self.writes.iter().all(Option::is_none) {
                is_ending = true;
                self.stream.shutdown(How::Both);
                self.flush();
                continue;
            }
            if self.take_one() {
                continue;
            }
            let is_idle = self.stream.is_quiet();
            if patience.is_over(self.board, self.end, is_idle) {
                return;
            }
            let side = &self.objects.side;
            waiting::wait(self.board, self.end, side, is_idle, || {
                side.cq.poll_one().is_some_and(|first| {
                    self.take(&first);
                    true
                })
            });
        }
    }

    /// Posts what the stream takes. Returns true if all is posted.
    fn send(&mut self) -> bool {
        let total = total(self.board, self.end);
        while self.posted < total {
            let left = (total - self.posted) as usize;
            let Some(write) = self.stream.send(0, left) else {
                return false;
            };
            self.posted += write.taken();
            {
                let mut notes = self.board.notes();
                let flow = notes.flows.entry(self.end).or_default();
                (flow.posted, flow.signaled) = (self.posted, self.posted);
            }
            self.post(&write);
        }
        true
    }

    /// Reads what has come. Returns true if all is read.
    fn receive(&mut self) -> bool {
        loop {
            let (at, len) = self.stream.readable(0, usize::MAX);
            if len == 0 {
                return self.read == total(self.board, other(self.end));
            }
            let bytes = self.objects.side.bytes(at as usize, len as usize);
            if bytes != slice_of(&self.received, self.read, len) {
                let (end, read) = (self.end, self.read);
                let text = format!("{end:?}: the {len} bytes after {read} are not those sent");
                self.board.complain(text);
            }
            self.read += len;
            {
                let mut notes = self.board.notes();
                let flow = notes.flows.entry(other(self.end)).or_default();
                flow.received = self.read;
            }
            self.board
                .note(format!("{:?} reads up to {}", self.end, self.read));
            self.board.mark("bytes arrive over a stream");
            self.stream.consume(len);
            self.flush();
        }
    }

    /// Posts all control messages that are due.
    fn flush(&mut self) {
        while let Some(write) = self.stream.next_control() {
            self.post(&write);
        }
    }

    fn post(&mut self, write: &Write) {
        let side = &self.objects.side;
        let taken = write.taken();
        let bytes = slice_of(&self.sent, self.posted - taken, taken);
        let (at, bytes, is_inline) = match &write.source {
            Source::Nothing => (HERE, Vec::new(), false),
            Source::Here(bytes, len) => (HERE, bytes[..*len].to_vec(), true),
            Source::Callers(_) => (HERE, bytes, true),
            Source::Staged { at, .. } => (STAGED + *at as usize, bytes, false),
        };
        side.fill(at, &bytes);
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::INLINE, is_inline);
        let op = SendOp::Write {
            va: write.remote_addr,
            rkey: Rkey::new(write.rkey),
            imm: write.imm.map(u32::to_be_bytes),
        };
        let sge = (!bytes.is_empty()).then(|| side.sge(at, bytes.len()));
        self.objects.post(&self.peer, (0, flags), (op, None), sge);
        self.writes.push_back((taken > 0).then_some(self.posted));
    }

    /// Takes a completion if there is one.
    fn take_one(&mut self) -> bool {
        let completion = self.objects.side.cq.poll_one();
        if let Some(completion) = &completion {
            self.take(completion);
        }
        completion.is_some()
    }

    fn take(&mut self, completion: &Completion) {
        if completion.is_send() {
            self.take_write(completion.status);
        } else if completion.status == WcStatus::Success {
            self.take_message(completion);
        }
        self.flush();
    }

    fn take_write(&mut self, status: WcStatus) {
        let written = self.writes.pop_front().expect("a write");
        if status != WcStatus::Success {
            let of_byte = |end: u32| Request::Message(end - 1);
            let failed = written.map_or(Request::Other, of_byte);
            // What comes after the end of the stream need not arrive.
            if self.stream.end().is_none() {
                judge_failure(self.board, self.end, status, failed);
            }
            return;
        }
        self.stream.completed();
        let Some(written) = written else { return };
        if self.board.is_dead(other(self.end)) {
            let traits = self.board.plan.connections[self.end.0].service.traits();
            self.board.mark(traits.outlived);
        }
        let mut notes = self.board.notes();
        notes.flows.entry(self.end).or_default().acknowledged = written;
    }

    fn take_message(&mut self, completion: &Completion) {
        let ImmOrInv::Imm(imm) = completion.imm_or_inv else {
            let text = format!("{:?}: a message without immediate data", self.end);
            return self.board.complain(text);
        };
        let lists = Lists(&self.objects.side);
        let imm = u32::from_be_bytes(imm);
        let result = self.stream.received(imm, completion.byte_len, &lists);
        if let Err(violation) = result {
            self.board
                .complain(format!("{:?}: {violation:?}", self.end));
        }
        self.objects.post_receive(self.next_receive);
        self.next_receive += 1;
    }
}

/// Returns the number of bytes that an end sends.
fn total(board: &Board, end: End) -> u32 {
    let plan = &board.plan.connections[end.0];
    plan.messages[end.1] * u32::try_from(plan.len).unwrap_or(0)
}

/// Returns a part of a stream of these bytes.
fn slice_of(bytes: &[u8], from: u32, len: u32) -> Vec<u8> {
    let all = bytes.iter().cycle().skip(from as usize % PERIOD);
    all.take(len as usize).copied().collect()
}
