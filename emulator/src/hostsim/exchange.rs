//! One end of a connection: sends and receives messages, and notes what it sees.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::board::{BROKER_KILLED, Board, End, Endpoint, Flow, other};
use super::plan::{Connection, MEMORY, Mode};
use super::program::Memory;
use crate::engine::common::{ALL_ACCESS, Side, pattern};
use crate::sync::turn;
use crate::{Completion, Engine, SendOp, Sge, VerbsError, WcStatus, sys};

/// Time for which a program that polls waits for messages of a process that was killed.
const PATIENCE_NS: u64 = 100_000_000;

/// Bits of the IDs of work requests: a message, an atomic, a READ.
const SEND: u64 = 1 << 32;
const ADD: u64 = 1 << 33;
const READ: u64 = 1 << 34;

/// Parts of the memory of an end. Messages are received at the beginning.
const SENT: usize = 16 << 10;
/// Place of the messages that the peer writes.
const WRITTEN: usize = 32 << 10;
/// Number of messages that have a place there.
const MOST_WRITTEN: u32 = 12;
/// Place of a number to which the peer adds.
const COUNTER: usize = MEMORY - 1024;
/// Place of what the peer reads.
const SOURCE: usize = MEMORY - 512;
/// Place of the results of atomics.
const ADDED: usize = MEMORY - 256;
/// Place of what was read.
const GOT: usize = MEMORY - 128;
/// Length of a READ.
const READ_LEN: usize = 64;

/// Sends and receives all messages of an end.
pub(super) fn exchange(board: &Arc<Board>, engine: Engine, end: End) {
    let memory = Memory::new();
    let side = Side::on_memory(engine, "dev", memory.0);
    side.fill(COUNTER, &[0; 8]);
    side.fill(SOURCE, &source_of(end));
    if board.plan.connections[end.0].modes[end.1] == Mode::Loop {
        sys::set_nonblocking(side.channel.fd());
    }
    let own = Endpoint {
        qpn: side.qp.qp_num().get(),
        gid: side.gid(),
        addr: side.mr.addr(),
        rkey: side.mr.rkey(),
    };
    board.notes().endpoints.insert(end, own);
    let peer = || board.notes().endpoints.get(&other(end)).copied();
    turn::until(None, || peer().is_some() || board.is_dead(other(end)));
    if let Some(peer) = peer() {
        let exchange = Exchange {
            board,
            end,
            plan: board.plan.connections[end.0],
            side: &side,
            peer,
            expected: 0,
            others: [0, 0],
            under_way: 0,
        };
        exchange.run();
    }
    if board.plan.connections[end.0].lingers {
        board.notes().done.insert(end);
        let is_over = || board.is_dead(other(end)) || board.notes().done.contains(&other(end));
        turn::until(None, is_over);
    }
    drop(side);
    board.notes().done.insert(end);
}

/// Returns what the peer of an end reads there.
fn source_of((connection, end): End) -> Vec<u8> {
    pattern(READ_LEN, connection * 11 + end * 5 + 3)
}

/// An end at work.
struct Exchange<'a> {
    board: &'a Board,
    end: End,
    plan: Connection,
    side: &'a Side,
    peer: Endpoint,
    /// Number of receives posted.
    expected: u32,
    /// Number of atomics and READs posted.
    others: [u64; 2],
    /// Number of those without a completion.
    under_way: u32,
}

impl Exchange<'_> {
    fn connect(&mut self) {
        let Endpoint { qpn, gid, .. } = self.peer;
        let connection = crate::Connection {
            timeout: self.plan.timeout,
            // 2.56 ms, because a receiver may get no processor for long.
            min_rnr_timer: 16,
            ..self.side.connection(qpn, gid)
        };
        self.side.qp.to_init(ALL_ACCESS).expect("INIT");
        for _ in 0..self.plan.depth {
            self.post_receive();
        }
        self.to_rtr(&connection);
        self.side.qp.to_rts(&connection).expect("RTS");
        self.board.notes().connected.insert(self.end);
        let peer = other(self.end);
        let is_ready = || self.board.is_dead(peer) || self.board.notes().connected.contains(&peer);
        turn::until(None, is_ready);
    }

    /// Changes the state to RTR. After the death of a broker its address may be refused, because
    /// the kernel takes some real time to close the sockets that the broker had sent. The next
    /// broker waits for a second of virtual time, which passes sooner.
    fn to_rtr(&self, connection: &crate::Connection) {
        let mut attempts = 0;
        while let Err(error) = self.side.qp.to_rtr(connection) {
            let text = error.to_string();
            attempts += 1;
            let had_kill = self.board.notes().marks.contains_key(BROKER_KILLED);
            let is_in_use = text.contains("is taken by process");
            assert!(had_kill && is_in_use && attempts < 1_000, "RTR: {text}");
            self.board
                .mark("an address is refused after the death of a broker");
            turn::sleep(Duration::from_millis(10));
        }
    }

    fn run(mut self) {
        self.connect();
        let (mut posted, total) = (0, self.plan.messages[self.end.1]);
        let to_receive = self.plan.messages[1 - self.end.1];
        loop {
            let (own, others) = self.flows();
            let all_done = own.acknowledged == total && self.under_way == 0;
            if own.failed.is_some() || all_done && others.received == to_receive {
                return;
            }
            while posted < total
                && posted - own.acknowledged < self.plan.depth
                && self.may_post(posted, others.received, to_receive)
            {
                self.post_message(posted);
                posted += 1;
            }
            // One that waits for an answer has nothing under way either.
            let is_idle = posted == own.acknowledged && self.under_way == 0;
            match self.next_completion(is_idle) {
                Some(completion) => self.take(&completion),
                None => return,
            }
        }
    }

    /// Returns true if a message need not wait for one of the peer. If one end answers, messages go
    /// to and fro as long as both have some.
    fn may_post(&self, number: u32, received: u32, to_receive: u32) -> bool {
        let asked = received + u32::from(self.end.1 == 0);
        !self.plan.answers || number < asked || received == to_receive
    }

    fn flows(&self) -> (Flow, Flow) {
        let notes = self.board.notes();
        let of = |end| notes.flows.get(&end).copied().unwrap_or_default();
        (of(self.end), of(other(self.end)))
    }

    fn post_receive(&mut self) {
        let (slot, len) = (self.expected % self.plan.depth, self.plan.len);
        let sges = [self.side.sge(slot as usize * len, len)];
        let queue = &mut self.side.qp.recv_queue();
        queue.push(u64::from(self.expected), &sges).expect("space");
        self.expected += 1;
    }

    /// Returns the bytes of a message.
    fn bytes_of(&self, (connection, end): End, number: u32) -> Vec<u8> {
        let seed = connection * 97 + end * 31 + number as usize * 3 + 1;
        pattern(self.plan.len, seed)
    }

    /// Returns true if a message is a WRITE with immediate data.
    const fn is_write(&self, number: u32) -> bool {
        self.plan.mix & 1 != 0 && number % 3 == 1
    }

    /// Posts a message, and the operations that go with it.
    fn post_message(&mut self, number: u32) {
        let len = self.plan.len;
        let at = SENT + (number % self.plan.depth) as usize * len;
        self.side.fill(at, &self.bytes_of(self.end, number));
        self.board.notes().flows.entry(self.end).or_default().posted = number + 1;
        self.board
            .note(format!("{:?} posts message {number}", self.end));
        let op = if self.is_write(number) {
            SendOp::Write {
                va: self.peer.addr + written_at(number, len) as u64,
                rkey: self.peer.rkey,
                imm: Some([0; 4]),
            }
        } else {
            SendOp::Send { imm: None }
        };
        let sges = [self.side.sge(at, len)];
        self.side.send(SEND | u64::from(number), op, &sges);
        let rkey = self.peer.rkey;
        if self.plan.mix & 2 != 0 {
            let (at, va) = (ADDED + (self.others[0] % 16) as usize * 8, COUNTER as u64);
            let va = self.peer.addr + va;
            let op = SendOp::FetchAdd { va, rkey, add: 1 };
            self.post_other(0, ADD, op, self.side.sge(at, 8));
        }
        if self.plan.mix & 4 != 0 {
            let va = self.peer.addr + SOURCE as u64;
            let op = SendOp::Read { va, rkey };
            self.post_other(1, READ, op, self.side.sge(GOT, READ_LEN));
        }
    }

    fn post_other(&mut self, kind: usize, bit: u64, op: SendOp, sge: Sge) {
        self.side.send(bit | self.others[kind], op, &[sge]);
        self.others[kind] += 1;
        self.under_way += 1;
    }

    /// Waits for a completion as the plan says. Returns `None` if none can come.
    fn next_completion(&self, is_idle: bool) -> Option<Completion> {
        let mode = self.plan.modes[self.end.1];
        let mut alone_since = None;
        loop {
            if let Some(completion) = self.side.cq.poll_one() {
                return Some(completion);
            }
            if is_idle && self.board.is_dead(other(self.end)) {
                let now = now_ns();
                if now - *alone_since.get_or_insert(now) > PATIENCE_NS {
                    return None;
                }
            }
            match mode {
                Mode::Poll => turn::yield_now(),
                Mode::Nap => {
                    let schedule = turn::own()?;
                    let limit = match schedule.random() % 3 {
                        0 => 20_000,
                        1 => 300_000,
                        _ => 5_000_000,
                    };
                    turn::sleep(Duration::from_nanos(schedule.random() % limit));
                }
                Mode::Events | Mode::Loop => {
                    self.side.cq.req_notify(false).expect("a channel");
                    if let Some(completion) = self.side.cq.poll_one() {
                        return Some(completion);
                    }
                    self.wait(is_idle, || self.take_event());
                }
                Mode::Descriptors => {
                    self.side.cq.arm(false).expect("a channel");
                    if let Some(completion) = self.side.cq.poll_one() {
                        return Some(completion);
                    }
                    self.wait(is_idle, || self.wait_for_descriptor());
                }
            }
        }
    }

    /// Waits, and notes it if nothing is under way.
    fn wait(&self, is_idle: bool, wait: impl FnOnce()) {
        if is_idle {
            self.board.notes().waiting.insert(self.end);
        }
        wait();
        self.board.notes().waiting.remove(&self.end);
    }

    /// Takes the event of a completion. An event loop waits for the descriptor.
    fn take_event(&self) {
        loop {
            match self.side.channel.get_event() {
                Ok(_) => return self.side.cq.ack_events(1),
                Err(VerbsError::WouldBlock) => self.poll_channel(),
                Err(error) => panic!("no event: {error}"),
            }
        }
    }

    fn poll_channel(&self) {
        let fd = self.side.channel.fd();
        let (events, revents) = (libc::POLLIN, 0);
        let mut fds = [libc::pollfd {
            fd,
            events,
            revents,
        }];
        sys::poll(&mut fds, None).expect("a descriptor");
    }

    fn wait_for_descriptor(&self) {
        let fd = self.side.channel.fd();
        let (events, revents) = (libc::POLLIN, 0);
        let mut fds = [libc::pollfd {
            fd,
            events,
            revents,
        }];
        let ready = self.side.engine.poll_descriptors(&mut fds, None);
        ready.expect("a descriptor");
        if self.side.channel.try_event().is_some() {
            self.side.cq.ack_events(1);
        }
    }

    fn take(&mut self, completion: &Completion) {
        let id = completion.wr_id;
        let number = u32::try_from(id & (SEND - 1)).unwrap_or(u32::MAX);
        if completion.status != WcStatus::Success {
            let of_message = id & SEND != 0;
            return self.take_failure(completion.status, of_message.then_some(number));
        }
        if id & SEND != 0 {
            self.take_acknowledgement(number);
        } else if id & (ADD | READ) != 0 {
            self.under_way -= 1;
            self.take_other(id & ADD != 0, number);
        } else {
            self.take_message(completion.byte_len as usize, number);
        }
    }

    fn take_acknowledgement(&self, number: u32) {
        if self.board.is_dead(other(self.end)) {
            let (udp, answers) = (self.board.plan.udp, self.plan.answers);
            if udp && answers && number >= 8 {
                self.board
                    .mark("a killed process acknowledges a message that it may answer");
            }
            let mark = if udp {
                "a killed process acknowledges over UDP"
            } else {
                "a killed process acknowledges in shared memory"
            };
            self.board.mark(mark);
        }
        let text = format!("{:?} sees the acknowledgement of {number}", self.end);
        self.board.note(text);
        let mut notes = self.board.notes();
        let flow = notes.flows.entry(self.end).or_default();
        let expected = flow.acknowledged;
        flow.acknowledged += 1;
        if expected != number {
            let text = format!("{:?}: completion {number} after {expected}", self.end);
            notes.complaints.push(text);
        }
    }

    /// Takes the result of an atomic or a READ.
    fn take_other(&self, is_add: bool, number: u32) {
        let is_right = if is_add {
            let got = self.side.bytes(ADDED + (number % 16) as usize * 8, 8);
            got == u64::from(number).to_ne_bytes()
        } else {
            self.side.bytes(GOT, READ_LEN) == source_of(other(self.end))
        };
        if !is_right {
            let text = format!("{:?}: result {number} of an atomic or READ", self.end);
            self.board.complain(text);
        }
    }

    fn take_message(&mut self, byte_len: usize, number: u32) {
        let (from, len) = (other(self.end), self.plan.len);
        if self.board.is_dead(from) {
            self.board.mark("a message of a killed process arrives");
        }
        let received = self.flows().1.received;
        let at = if self.is_write(received) {
            written_at(received, len)
        } else {
            (number % self.plan.depth) as usize * len
        };
        let is_right = self.side.bytes(at, len) == self.bytes_of(from, received);
        if byte_len != len || !is_right || number != received {
            let text = format!("{:?}: message {received} is not that", self.end);
            self.board.complain(text);
        }
        self.board
            .note(format!("{:?} receives message {received}", self.end));
        self.board.notes().flows.entry(from).or_default().received += 1;
        self.post_receive();
    }

    /// Takes a failure, with the number of the message if it is of one.
    fn take_failure(&self, status: WcStatus, number: Option<u32>) {
        self.board
            .note(format!("{:?} sees {status:?} of {number:?}", self.end));
        let (own, _) = self.flows();
        if own.failed.is_none() {
            // A lost acknowledgement of a process that was killed does not come again.
            let is_lost = number.is_some_and(|number| number < own.received);
            // So does one that both a process and its broker were to send.
            let had_kill = self.board.notes().marks.contains_key(BROKER_KILLED);
            if is_lost && self.board.plan.loss == 0 && !had_kill {
                self.board.complain(format!(
                    "{:?}: message {number:?} failed ({status:?}), but its receiver has seen it",
                    self.end
                ));
            }
            let peer = other(self.end);
            // A peer that has all messages does not wait for READs of its memory.
            let is_done = self.board.notes().done.contains(&peer);
            let needs_peer = number.is_none() || self.board.plan.loss > 0;
            let may_fail = self.board.is_dead(peer) || is_done && needs_peer;
            if !may_fail {
                let text = format!("{:?}: message {number:?} failed ({status:?})", self.end);
                self.board.complain(text);
            }
            self.board.mark("a sender sees the end of its peer");
        }
        let mut notes = self.board.notes();
        notes.flows.entry(self.end).or_default().failed = Some(status);
    }
}

/// Returns the place of a message that the peer writes.
const fn written_at(number: u32, len: usize) -> usize {
    WRITTEN + (number % MOST_WRITTEN) as usize * len
}

fn now_ns() -> u64 {
    turn::time().map_or(0, |time| time.load(Ordering::Relaxed))
}
