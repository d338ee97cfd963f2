//! A shared receive queue from which several queue pairs of a process take their receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::board::Board;
use super::memory::Memory;
use super::plan::Plan;
use crate::engine::common::register;
use crate::{AsyncEventKind, Context, Mr, Pd, Sge, Srq, SrqInitAttr};

/// Bytes of each receive.
const LEN: usize = 2560;

/// The queue with its memory. The number of a receive is that of its place.
pub(super) struct Pool {
    pub(super) pd: Pd,
    pub(super) srq: Srq,
    mr: Mr,
    memory: Memory,
    receives: u32,
    /// Number of messages that were received from the queue.
    taken: AtomicU32,
}

impl Pool {
    /// Makes the queue of a process with all its receives, and a limit of their number. Returns
    /// `None` if no end needs it.
    pub(super) fn new(board: &Board, context: &Context, process: usize) -> Option<Self> {
        let receives = receives_of(&board.plan, process);
        if receives == 0 {
            return None;
        }
        let pd = context.alloc_pd().expect("a domain");
        let memory = Memory::new();
        let len = memory.0.len();
        assert!(receives as usize * LEN <= len, "place for {receives}");
        let mr = register(&pd, memory.0);
        let init = SrqInitAttr {
            max_wr: receives,
            max_sge: 1,
            cookie: 5,
        };
        let srq = pd.create_srq(init).expect("a shared queue");
        let pool = Self {
            pd,
            srq,
            mr,
            memory,
            receives,
            taken: AtomicU32::new(0),
        };
        for number in 0..receives {
            pool.post(u64::from(number));
        }
        let limit = pool.srq.modify(None, Some(receives));
        limit.expect("a limit");
        Some(pool)
    }

    /// Posts the receive with this number.
    pub(super) fn post(&self, number: u64) {
        let at = LEN * usize::try_from(number).unwrap_or(usize::MAX);
        let sge = Sge {
            addr: self.mr.addr() + at as u64,
            len: u32::try_from(LEN).unwrap_or(0),
            lkey: self.mr.lkey(),
        };
        let posted = self.srq.recv_queue().push(number, &[sge]);
        posted.expect("space");
    }

    /// Returns the bytes of a receive that is complete.
    pub(super) fn bytes(&self, number: u64) -> Vec<u8> {
        self.taken.fetch_add(1, Ordering::Relaxed);
        assert!(number < u64::from(self.receives), "receive {number}");
        let at = LEN * usize::try_from(number).unwrap_or(usize::MAX);
        self.memory.bytes(at, LEN)
    }

    /// Checks at the end that the program was told once of the limit, if a message came.
    pub(super) fn check_limit(&self, board: &Arc<Board>, context: &Context, process: usize) {
        let taken = self.taken.load(Ordering::Relaxed);
        let mut told = 0;
        while let Ok(Some(event)) = context.take_async_event() {
            context.ack_async_event(&event);
            told += u32::from(event.kind == AsyncEventKind::SrqLimitReached);
        }
        // A message that has come need not have been taken.
        if told > 1 || told == 0 && taken > 0 {
            board.complain(format!(
                "process {process} was told {told} times of the limit of its shared queue, \
                 from which it has {taken} messages"
            ));
        }
        if told > 0 {
            board.mark("a shared receive queue reaches its limit");
        }
    }
}

/// Returns the number of receives in the queue of a process. If a thread may get no processor, or
/// has an end that may fail before it has taken its receives, those of the others must be left. A
/// datagram without a receive is lost.
fn receives_of(plan: &Plan, process: usize) -> u32 {
    let ends = (0..plan.connections.len()).flat_map(|at| [(at, 0), (at, 1)]);
    let pooled = ends.filter(|(at, end)| {
        let connection = &plan.connections[*at];
        connection.pools && connection.processes[*end] == process
    });
    let are_reliable = |(at, _): (usize, usize)| {
        let service = plan.connections[at].service;
        service.traits().is_reliable
    };
    let happens_much = plan.strike.is_some()
        || plan.last_datagram.is_some()
        || plan.death.is_some()
        || plan.freeze.is_some();
    let is_calm = plan.acts.is_empty() && !happens_much && pooled.clone().all(are_reliable);
    let of_end = |(at, end): (usize, usize)| {
        let connection = &plan.connections[at];
        let all = connection.messages[1 - end];
        if is_calm {
            connection.depth.min(all)
        } else {
            all
        }
    };
    pooled.map(of_end).sum()
}
