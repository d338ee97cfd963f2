//! The queue of a process that keeps the target of an end of another process, and receives by it as
//! well: the target moves to and fro between both.

use std::sync::Arc;
use std::time::Duration;

use super::board::{Board, End, KeeperFlow, other};
use super::exchange::bytes_of;
use super::memory::{Memory, place_in_turn};
use super::plan::Mode;
use super::program::Program;
use crate::engine::common::register;
use crate::sync::turn;
use crate::{Completion, Cq, Mr, Pd, Sge, Srq, SrqInitAttr, Srqn, WcStatus, Xrcd};

/// Number of receives at a time.
const RECEIVES: u32 = 8;
/// Added to the numbers of these messages, which have other bytes than those to the end.
const NUMBERS: u32 = 1 << 16;
/// Longest nap between two looks, in ns.
const NAP_NS: u64 = 1_000_000;

/// Returns the bytes of a message to the keeper of an end's target.
pub(super) fn bytes_to_keeper(end: End, number: u32, len: usize) -> Vec<u8> {
    bytes_of(other(end), NUMBERS + number, len)
}

/// A shared receive queue in the domain of a target.
pub(super) struct KeeperQueue {
    board: Arc<Board>,
    end: End,
    srq: Srq,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
    memory: Memory,
}

impl KeeperQueue {
    /// Makes the queue with its receives, and tells the sender.
    pub(super) fn new(program: &Program, end: End, domain: &Xrcd) -> Self {
        let pd = program.context.alloc_pd().expect("a domain");
        let cq = program.context.create_cq(64, None, 0, 4).expect("a CQ");
        let memory = Memory::new();
        let mr = register(&pd, memory.0);
        let init = SrqInitAttr {
            max_wr: RECEIVES,
            max_sge: 1,
            cookie: 2,
        };
        let srq = domain.create_srq(&pd, &cq, init).expect("a shared queue");
        let flow = KeeperFlow {
            srqn: Srqn::new(srq.number()),
            posted: 0,
            acknowledged: 0,
            received: 0,
        };
        let board = Arc::clone(&program.board);
        let queue = Self {
            board,
            end,
            srq,
            cq,
            mr,
            _pd: pd,
            memory,
        };
        (0..RECEIVES).for_each(|number| queue.post(number.into()));
        queue.board.notes().keepers.insert(end, flow);
        queue
    }

    fn len(&self) -> usize {
        self.board.plan.connections[self.end.0].len
    }

    /// Posts the receive with this number.
    fn post(&self, number: u64) {
        let at = place_in_turn(number, RECEIVES, self.len());
        let sge = Sge {
            addr: self.mr.addr() + at as u64,
            len: u32::try_from(self.len()).unwrap_or(0),
            lkey: self.mr.lkey(),
        };
        let posted = self.srq.recv_queue().push(number, &[sge]);
        posted.expect("space");
    }

    /// Takes messages until `is_over` and all are there that were acknowledged, by polling or after
    /// naps, as the end does.
    pub(super) fn receive_until(&self, is_over: impl Fn() -> bool) {
        let naps = self.board.plan.connections[self.end.0].modes[self.end.1] != Mode::Poll;
        loop {
            while let Some(completion) = self.cq.poll_one() {
                if let Err(text) = self.take(&completion) {
                    let end = self.end;
                    self.board
                        .complain(format!("the keeper of {end:?}: {text}"));
                }
            }
            if is_over() && !self.lacks_any() {
                return;
            }
            if naps {
                let schedule = turn::own().expect("a simulated thread");
                turn::sleep(Duration::from_nanos(schedule.random() % NAP_NS));
            } else {
                turn::yield_now();
            }
        }
    }

    /// Returns true if a message was acknowledged and not taken. It comes a moment later.
    fn lacks_any(&self) -> bool {
        let notes = self.board.notes();
        let flow = notes.keepers.get(&self.end);
        flow.is_some_and(|flow| flow.acknowledged > flow.received)
    }

    /// Takes a message. Each comes once, in order and intact.
    fn take(&self, completion: &Completion) -> Result<(), String> {
        let (board, len) = (&self.board, self.len());
        if completion.status != WcStatus::Success {
            return Err(format!("a receive fails ({:?})", completion.status));
        }
        let mut notes = board.notes();
        let flow = notes.keepers.get_mut(&self.end).expect("this queue");
        let next = flow.received;
        if completion.wr_id != u64::from(next) || next >= flow.posted {
            return Err(format!("receive {} completes", completion.wr_id));
        }
        flow.received += 1;
        drop(notes);
        let at = place_in_turn(next.into(), RECEIVES, len);
        let is_whole = completion.byte_len as usize == len;
        if !is_whole || self.memory.bytes(at, len) != bytes_to_keeper(self.end, next, len) {
            return Err(format!("message {next} is not what was sent"));
        }
        board.note(format!("the keeper of {:?} receives {next}", self.end));
        board.mark("a message arrives over XRC at a second process");
        self.post(u64::from(next) + u64::from(RECEIVES));
        Ok(())
    }
}
