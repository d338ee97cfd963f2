//! The manners in which an end waits for completions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::board::{Board, End, other};
use super::plan::Mode;
use crate::engine::common::Side;
use crate::sync::turn;
use crate::{VerbsError, sys};

/// Time for which a program that polls waits for messages that may never come.
const PATIENCE_NS: u64 = 100_000_000;
/// Most of the time between two looks that counts. A process that is stopped sees nothing.
const LOOK_NS: u64 = 10_000_000;
/// Most doublings of a nap.
const NAP_DOUBLINGS: u32 = 6;

/// The time for which an end has waited for a peer that may send nothing more.
pub(super) struct Patience {
    alone_ns: u64,
    looked_at: u64,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self {
            alone_ns: 0,
            looked_at: now_ns(),
        }
    }

    /// Returns true if an end with nothing under way has waited long enough.
    pub(super) fn is_over(&mut self, board: &Board, end: End, is_idle: bool) -> bool {
        let passed = now_ns() - std::mem::replace(&mut self.looked_at, now_ns());
        if is_idle && board.is_silent(other(end)) {
            self.alone_ns += passed.min(LOOK_NS);
        }
        self.alone_ns > PATIENCE_NS
    }
}

/// Exits if the plan says so: the objects are not destroyed, but the process tells others what they
/// have to know.
pub(super) fn exit_if_told(board: &Board, end: End, side: &Side) {
    if !board.exits(end) {
        return;
    }
    side.engine.inner().finish_at_exit();
    end_process();
}

/// Returns the value of a call, or `None` if it fails because the peer ends, and with it the
/// connection. In a program that exits, calls of other threads fail for that reason, too.
///
/// # Panics
/// If the call fails otherwise.
pub(super) fn unless_ended<T>(
    board: &Board,
    end: End,
    result: Result<T, VerbsError>,
    wanted: &str,
) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    if board.is_ending(end) {
        end_process();
    }
    assert!(board.is_ending(other(end)), "{wanted}: {error:?}");
    None
}

/// Ends the process of the calling thread.
pub(super) fn end_process() -> ! {
    let schedule = turn::own().expect("a simulated thread");
    loop {
        schedule.end_process();
    }
}

/// Waits as the plan says, unless `has_taken` a completion after the CQ was armed.
pub(super) fn wait(
    board: &Board,
    end: End,
    side: &Side,
    is_idle: bool,
    has_taken: impl FnOnce() -> bool,
) {
    match board.plan.connections[end.0].modes[end.1] {
        Mode::Poll => turn::yield_now(),
        Mode::Nap => nap(0),
        Mode::Events | Mode::Loop => {
            side.cq.req_notify(false).expect("a channel");
            if !has_taken() {
                sleep(board, end, is_idle, || take_event(side));
            }
        }
        Mode::Descriptors => {
            side.cq.arm(false).expect("a channel");
            if !has_taken() {
                sleep(board, end, is_idle, || wait_for_descriptor(side));
            }
        }
    }
}

/// Sleeps, for longer after many looks in vain.
pub(super) fn nap(in_vain: u32) {
    let schedule = turn::own().expect("a simulated thread");
    let limit = match schedule.random() % 3 {
        0 => 20_000,
        1 => 300_000,
        _ => 5_000_000,
    };
    let limit = limit << (in_vain / 16).min(NAP_DOUBLINGS);
    turn::sleep(Duration::from_nanos(schedule.random() % limit));
}

/// Waits, and notes it if nothing is under way.
fn sleep(board: &Board, end: End, is_idle: bool, wait: impl FnOnce()) {
    if is_idle {
        board.notes().waiting.insert(end);
    }
    wait();
    board.notes().waiting.remove(&end);
}

/// Takes the event of a completion. An event loop waits for the descriptor.
fn take_event(side: &Side) {
    loop {
        match side.channel.get_event() {
            Ok(_) => return side.cq.ack_events(1),
            Err(VerbsError::WouldBlock) => {
                let mut fds = [readable(side.channel.fd())];
                sys::poll(&mut fds, None).expect("a descriptor");
            }
            Err(error) => panic!("no event: {error}"),
        }
    }
}

fn wait_for_descriptor(side: &Side) {
    let mut fds = [readable(side.channel.fd())];
    let ready = side.engine.poll_descriptors(&mut fds, None);
    ready.expect("a descriptor");
    if side.channel.try_event().is_some() {
        side.cq.ack_events(1);
    }
}

const fn readable(fd: i32) -> libc::pollfd {
    let (events, revents) = (libc::POLLIN, 0);
    libc::pollfd {
        fd,
        events,
        revents,
    }
}

fn now_ns() -> u64 {
    turn::time().map_or(0, |time| time.load(Ordering::Relaxed))
}
