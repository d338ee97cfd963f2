//! One end of a connection at work: it sends and receives messages until all are there.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use super::board::{Board, End, Endpoint, Flow, other};
use super::connecting;
use super::keeper_queue::bytes_to_keeper;
use super::memory::{
    ADDED, COUNTER, GOT, MARKED, MOST_MESSAGES, OWN_MARKS, READ_LEN, SENT, SOURCE, place_in_turn,
    to_keeper_at, written_at,
};
use super::objects::{Objects, Opened};
use super::plan::{Connection, Mode};
use super::program::{Program, name_of};
use super::services::{ATOMICS, MARKS, READS, Service, Traits, WRITES};
use super::stream;
use super::waiting::{self, Patience};
use crate::engine::common::pattern;
use crate::sync::turn;
use crate::{Completion, Feth, MaskedOp, Operands, Rkey, SendFlags, SendOp, Sge, WcStatus, sys};
use rocade_wire::{Placement, Selectivity};

/// The longest message that is posted inline.
const MOST_INLINE: usize = 64;

/// Bits of the IDs of work requests: a message, an atomic, a READ.
pub(super) const SEND: u64 = 1 << 32;
pub(super) const ADD: u64 = 1 << 33;
pub(super) const READ: u64 = 1 << 34;
/// The bit of atomic writes and flushes.
pub(super) const MARK: u64 = 1 << 35;
/// The bit of messages to the keeper of the peer's target.
pub(super) const TO_KEEPER: u64 = 1 << 37;
/// The ID of the bind of a window.
const BIND: u64 = 1 << 36;

/// Sends and receives all messages of an end.
pub(super) fn exchange(program: &Program, end: End) {
    let board = &program.board;
    let plan = board.plan.connections[end.0];
    let mut objects = Objects::new(program, end);
    objects.side.fill(COUNTER, &[0; 8]);
    objects.side.fill(MARKED, &[0; 8]);
    objects.side.fill(SOURCE, &source_of(end));
    if plan.modes[end.1] == Mode::Loop {
        sys::set_nonblocking(objects.side.channel.fd());
    }
    let own = objects.endpoint();
    board.notes().endpoints.insert(end, own);
    let peer = || board.notes().endpoints.get(&other(end)).copied();
    turn::until(None, || peer().is_some() || board.is_dead(other(end)));
    if let Some(peer) = peer() {
        let is_managed = plan.service.traits().is_managed;
        let manager = if is_managed {
            connecting::connect(program, &objects, end)
        } else if objects.connect(board, end, &peer) {
            None
        } else {
            give_up(board, end);
            return leave(board, end, objects);
        };
        if is_managed && manager.is_none() {
            return leave(board, end, objects);
        }
        if plan.service == Service::Stream {
            stream::run(board, end, &objects, peer);
            if let Some(manager) = manager {
                manager.disconnect(board, end);
            }
            return leave(board, end, objects);
        }
        let exchange = Arc::new(Exchange {
            board: Arc::clone(board),
            end,
            plan,
            traits: plan.service.traits(),
            objects,
            peer,
            rkey: AtomicU32::new(peer.rkey.get()),
            opened: OnceLock::new(),
            others: Default::default(),
            under_way: AtomicU32::new(0),
            taking: Mutex::new(0),
            is_over: AtomicBool::new(false),
        });
        exchange.begin();
        exchange.run();
        exchange.end();
        if let Some(manager) = manager {
            manager.disconnect(board, end);
        }
        let exchange = Arc::into_inner(exchange).expect("one thread is left");
        return leave(board, end, (exchange.opened, exchange.objects));
    }
    leave(board, end, objects);
}

/// Notes that an end neither sends nor receives, because its objects have failed.
fn give_up(board: &Board, end: End) {
    let mut notes = board.notes();
    notes.connected.insert(end);
    notes.flows.entry(end).or_default().failed = Some(WcStatus::WrFlushErr);
}

/// Ends the use of all objects, such as keys of the peer. They are dropped in their order.
fn leave<T>(board: &Board, end: End, objects: T) {
    linger(board, end);
    board.notes().leaving.insert(end);
    drop(objects);
    board.notes().done.insert(end);
}

/// Waits for the other end, if the plan says so. One that has failed posts no receives any more.
fn linger(board: &Board, end: End) {
    if board.plan.connections[end.0].lingers && !board.has_failed(end) {
        board.notes().done.insert(end);
        let is_over = || board.is_dead(other(end)) || board.notes().done.contains(&other(end));
        turn::until(None, is_over);
    }
}

/// Returns an atomic that increments a counter from a value, each of four kinds in turn.
fn increment(count: u64, va: u64, rkey: Rkey) -> (SendOp, Option<Operands>) {
    let wide = |value| [value, 0, 0, 0];
    let masked = |operation| {
        let log_size = 3;
        let op = SendOp::Masked { va, rkey, log_size };
        (op, Some(Operands::Masked(operation)))
    };
    let (add, compare, swap) = (1, count, count + 1);
    match count % 4 {
        0 => (SendOp::FetchAdd { va, rkey, add }, None),
        1 => {
            let op = SendOp::CmpSwap {
                va,
                rkey,
                compare,
                swap,
            };
            (op, None)
        }
        2 => masked(MaskedOp::FetchAdd {
            add: wide(add),
            boundary: wide(1 << 63),
        }),
        _ => masked(MaskedOp::CmpSwap {
            compare: wide(compare),
            compare_mask: wide(u64::MAX),
            swap: wide(swap),
            swap_mask: wide(0xff),
        }),
    }
}

/// Returns what the peer of an end reads there.
pub(super) fn source_of((connection, end): End) -> Vec<u8> {
    pattern(READ_LEN, connection * 11 + end * 5 + 3)
}

/// Returns the bytes of a message: its number and its sender come first.
pub(super) fn bytes_of((connection, end): End, number: u32, len: usize) -> Vec<u8> {
    let seed = connection * 97 + end * 31 + number as usize * 3 + 1;
    let mut bytes = pattern(len, seed);
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes[4..6].copy_from_slice(&[connection, end].map(|byte| u8::try_from(byte).unwrap_or(0)));
    bytes
}

/// An end at work, which its threads share.
pub(super) struct Exchange {
    pub(super) board: Arc<Board>,
    pub(super) end: End,
    pub(super) plan: Connection,
    pub(super) traits: Traits,
    pub(super) objects: Objects,
    peer: Endpoint,
    /// The key of the peer's memory.
    rkey: AtomicU32,
    /// The window or indirect key by which the peer accesses the memory of this end.
    opened: OnceLock<Opened>,
    /// Number of atomics, of READs, and of the others posted.
    others: [AtomicU32; 3],
    /// Number of those without a completion.
    pub(super) under_way: AtomicU32,
    /// Number of completions that were taken. A thread that takes one holds this.
    taking: Mutex<u64>,
    /// The first thread is done.
    is_over: AtomicBool,
}

impl Exchange {
    /// Waits for the peer, and starts a second thread if the plan has one.
    fn begin(self: &Arc<Self>) {
        if self.plan.windows {
            self.open_window();
        }
        self.board.notes().connected.insert(self.end);
        let peer = other(self.end);
        let is_ready = || self.board.is_dead(peer) || self.board.notes().connected.contains(&peer);
        turn::until(None, is_ready);
        if let Some(rkey) = self.board.notes().windows.get(&peer) {
            self.rkey.store(rkey.get(), Ordering::Relaxed);
        }
        if self.plan.is_assisted[self.end.1] {
            let own = Arc::clone(self);
            let schedule = turn::own().expect("a simulated thread");
            let name = name_of(self.end) + "b";
            schedule.spawn(&name, Box::new(move || own.assist()));
        }
    }

    /// Opens the memory of this end by a window or an indirect key, and tells the peer.
    fn open_window(&self) {
        let opened = self.objects.open_memory(BIND, self.plan.is_indirect);
        let mut completion = None;
        turn::until(None, || {
            completion = completion
                .take()
                .or_else(|| self.objects.side.cq.poll_one());
            completion.is_some()
        });
        let completion: Completion = completion.expect("it has come");
        assert_eq!(completion.wr_id, BIND, "nothing else is under way");
        match completion.status {
            WcStatus::Success => {
                let rkey = opened.rkey();
                self.opened.set(opened).expect("one key");
                self.board.notes().windows.insert(self.end, rkey);
            }
            // The peer has disconnected.
            WcStatus::WrFlushErr => {}
            status => {
                let text = format!("{:?}: a window is not bound ({status:?})", self.end);
                self.board.complain(text);
            }
        }
    }

    /// Waits for the end of the second thread.
    fn end(self: &Arc<Self>) {
        self.is_over.store(true, Ordering::Relaxed);
        turn::until(None, || Arc::strong_count(self) == 1);
    }

    /// Takes completions of the same CQ as the first thread, and posts the next receives.
    fn assist(&self) {
        let mut in_vain = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            if self.take_one() {
                in_vain = 0;
                self.board
                    .mark("a second thread takes completions of a queue pair");
            } else {
                waiting::nap(in_vain);
                in_vain += 1;
            }
        }
    }

    fn run(&self) {
        let (mut posted, total) = (0, self.plan.messages[self.end.1]);
        let mut patience = Patience::new();
        loop {
            waiting::exit_if_told(&self.board, self.end, &self.objects.side);
            let taken = *in_turn(&self.taking);
            let (own, others) = self.flows();
            let under_way = || self.under_way.load(Ordering::Relaxed);
            let all_done = own.acknowledged == total && under_way() == 0;
            let to_receive = self.plan.messages[1 - self.end.1];
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
            if self.take_one() {
                continue;
            }
            // One that waits for an answer has nothing under way either.
            let flow = self.flows().0;
            let is_idle = flow.signaled <= flow.acknowledged && under_way() == 0;
            if patience.is_over(&self.board, self.end, is_idle) {
                return;
            }
            let has_taken = || self.take_one() || *in_turn(&self.taking) != taken;
            waiting::wait(
                &self.board,
                self.end,
                &self.objects.side,
                is_idle,
                has_taken,
            );
        }
    }

    /// Returns true if a message need not wait for one of the peer. If one end answers, messages go
    /// to and fro as long as both have some.
    fn may_post(&self, number: u32, received: u32, to_receive: u32) -> bool {
        let asked = received + u32::from(self.end.1 == 0);
        !self.plan.answers || number < asked || received == to_receive
    }

    /// Returns the flows of this end and of the peer.
    pub(super) fn flows(&self) -> (Flow, Flow) {
        let notes = self.board.notes();
        let of = |end| notes.flows.get(&end).copied().unwrap_or_default();
        (of(self.end), of(other(self.end)))
    }

    /// Returns true if a message is a WRITE with immediate data.
    const fn is_write(&self, number: u32) -> bool {
        self.has(WRITES) && number % 3 == 1
    }

    /// Posts a message, and the operations that go with it.
    fn post_message(&self, number: u32) {
        let len = self.plan.len;
        let at = SENT + place_in_turn(number.into(), self.plan.depth, len);
        let side = &self.objects.side;
        side.fill(at, &bytes_of(self.end, number, len));
        let is_signaled = self.plan.is_signaled(self.end.1, number);
        {
            let mut notes = self.board.notes();
            let flow = notes.flows.entry(self.end).or_default();
            flow.posted = number + 1;
            if is_signaled {
                flow.signaled = number + 1;
            }
        }
        self.board
            .note(format!("{:?} posts message {number}", self.end));
        let rkey = Rkey::new(self.rkey.load(Ordering::Relaxed));
        let is_last = number + 1 == self.plan.messages[self.end.1];
        let has_others = self.has(ATOMICS | READS | MARKS);
        if self.has(MARKS) {
            self.post_mark(number, rkey);
        }
        let op = if self.is_write(number) {
            SendOp::Write {
                va: self.peer.addr + written_at(number, len) as u64,
                rkey,
                imm: Some(number.to_be_bytes()),
            }
        } else if self.plan.windows && is_last && !has_others {
            let mark = if self.plan.is_indirect {
                "a message invalidates an indirect key"
            } else {
                "a message invalidates a window"
            };
            self.board.mark(mark);
            SendOp::SendInv { rkey }
        } else {
            SendOp::Send { imm: None }
        };
        let id = SEND | u64::from(number);
        let is_inline = len <= MOST_INLINE && number.is_multiple_of(2);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, is_signaled);
        flags.set(SendFlags::INLINE, is_inline);
        let sge = Some(side.sge(at, len));
        self.objects.post(&self.peer, (id, flags), (op, None), sge);
        if is_inline {
            side.fill(at, &vec![0; len]);
        }
        self.post_to_keeper(number);
        if self.has(ATOMICS) {
            let count = u64::from(self.others[0].load(Ordering::Relaxed));
            let at = ADDED + place_in_turn(count, 16, 8);
            let va = self.peer.addr + COUNTER as u64;
            let op = increment(count, va, rkey);
            self.post_other(0, ADD, op, Some(side.sge(at, 8)));
        }
        if self.has(READS) {
            let va = self.peer.addr + SOURCE as u64;
            let op = SendOp::Read { va, rkey };
            self.post_other(1, READ, (op, None), Some(side.sge(GOT, READ_LEN)));
        }
    }

    /// Returns true if the plan has some of these operations, and the service, too.
    pub(super) const fn has(&self, mix: u32) -> bool {
        self.plan.mix & self.traits.mix & mix != 0
    }

    /// Writes the number of messages to the peer, which finds it there when it has received the
    /// message.
    fn post_mark(&self, number: u32, rkey: Rkey) {
        let (va, side) = (self.peer.addr + MARKED as u64, &self.objects.side);
        let at = OWN_MARKS + place_in_turn(number.into(), MOST_MESSAGES, 8);
        side.fill(at, &(u64::from(number) + 1).to_be_bytes());
        let op = SendOp::AtomicWrite { va, rkey };
        self.post_other(2, MARK, (op, None), Some(side.sge(at, 8)));
        if self.plan.windows {
            return;
        }
        let op = SendOp::Flush {
            va,
            rkey,
            len: 8,
            feth: Feth::new(Placement::GLOBAL_VISIBILITY, Selectivity::Range),
        };
        self.post_other(2, MARK, (op, None), None);
    }

    /// Sends a message to the process that keeps the peer's target, with two of three messages to
    /// the peer.
    fn post_to_keeper(&self, number: u32) {
        let keeper = self.board.living_keeper(other(self.end));
        let Some(flow) = keeper.filter(|_| !number.is_multiple_of(3)) else {
            return;
        };
        let (len, at) = (self.plan.len, to_keeper_at(flow.posted, self.plan.len));
        let side = &self.objects.side;
        side.fill(at, &bytes_to_keeper(other(self.end), flow.posted, len));
        if let Some(flow) = self.board.notes().keepers.get_mut(&other(self.end)) {
            flow.posted += 1;
        }
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let to = Endpoint {
            srqn: flow.srqn,
            ..self.peer
        };
        let id = TO_KEEPER | u64::from(flow.posted);
        let op = (SendOp::Send { imm: None }, None);
        let sge = Some(side.sge(at, len));
        self.objects.post(&to, (id, SendFlags::SIGNALED), op, sge);
    }

    fn post_other(&self, kind: usize, bit: u64, op: (SendOp, Option<Operands>), sge: Option<Sge>) {
        let number = self.others[kind].fetch_add(1, Ordering::Relaxed);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let id = bit | u64::from(number);
        let flags = SendFlags::SIGNALED;
        self.objects.post(&self.peer, (id, flags), op, sge);
    }

    /// Takes a completion if there is one.
    fn take_one(&self) -> bool {
        let mut taken = in_turn(&self.taking);
        let Some(completion) = self.objects.side.cq.poll_one() else {
            return false;
        };
        *taken += 1;
        self.take(&completion);
        true
    }
}

/// Locks a mutex that several threads of a process use. One that waits hands over.
fn in_turn<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    turn::until(None, || {
        !matches!(mutex.try_lock(), Err(TryLockError::WouldBlock))
    });
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
