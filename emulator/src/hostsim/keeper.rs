//! Shared XRC domains: a process makes the target of an end that another process has, so that the
//! target is served by that one, and outlives its creator.

use super::board::{Board, End, other};
use super::keeper_queue::KeeperQueue;
use super::program::Program;
use super::waiting::end_process;
use crate::sync::turn;
use crate::{FileId, Qp, VerbsError, Xrcd, XrcdInitAttr};

/// The file that identifies the XRC domain of all processes.
const DOMAIN: FileId = FileId {
    device: 1,
    inode: 77,
};

/// Makes the target of an end, and keeps it open until the end is done.
pub(super) fn keep(program: &Program, end: End) {
    let board = &program.board;
    let domain = open_domain(program);
    let keeper = board.keeper_of(end).expect("this process");
    let target = create_target(board, keeper, &domain, 8);
    let receives = board.plan.connections[end.0].keeper_receives;
    let queue = receives.then(|| KeeperQueue::new(program, end, &domain));
    let number = target.qp_num();
    board.notes().targets.insert(end, number);
    let has_ended = |end| board.is_dead(end) || board.notes().done.contains(&end);
    match queue {
        Some(queue) => queue.receive_until(|| has_ended(end) && has_ended(other(end))),
        None => {
            turn::until(None, || has_ended(end));
        }
    }
    drop(target);
    drop(domain);
}

/// Makes or opens the target of an end.
pub(super) fn target_of(program: &Program, end: End) -> (Xrcd, Qp) {
    let board = &program.board;
    let domain = open_domain(program);
    if let Some(keeper) = board.keeper_of(end) {
        let number = || board.notes().targets.get(&end).copied();
        let is_dead = || board.notes().dead.contains(&keeper);
        turn::until(None, || number().is_some() || is_dead());
        if let Some(number) = number() {
            match domain.open_target(number, 6) {
                Ok(target) => {
                    board.mark("a target is opened that another process has made");
                    return (domain, target);
                }
                // It has ended with its creator, or is in a domain that the others do not know.
                Err(error) => assert!(
                    is_dead() || is_late(board, keeper),
                    "a target is not opened: {error}"
                ),
            }
        }
    }
    let target = create_target(board, board.process_of(end), &domain, 6);
    (domain, target)
}

/// Returns true if a process may have lost its domain: it was stopped while the broker was killed,
/// and others have made a new one meanwhile.
fn is_late(board: &Board, process: usize) -> bool {
    let notes = board.notes();
    notes.was_without_broker() && notes.halted.contains(&process)
}

/// Makes a target. A program that has lost its domain gives up.
fn create_target(board: &Board, process: usize, domain: &Xrcd, cookie: u64) -> Qp {
    let error = match domain.create_target(cookie) {
        Ok(target) => return target,
        Err(error) => error,
    };
    assert!(
        is_late(board, process) && matches!(error, VerbsError::NotFound(_)),
        "a target is not made: {error}"
    );
    board.mark("a process comes back too late for its XRC domain");
    end_process();
}

fn open_domain(program: &Program) -> Xrcd {
    let init = XrcdInitAttr {
        file: Some(DOMAIN),
        create: true,
        exclusive: false,
    };
    program.context.open_xrcd(init).expect("a domain")
}
