//! Shared XRC domains: a process makes the target of an end that another process has, so that the
//! target is served by that one, and outlives its creator.

use super::board::End;
use super::program::Program;
use crate::sync::turn;
use crate::{FileId, Qp, Xrcd, XrcdInitAttr};

/// The file that identifies the XRC domain of all processes.
const DOMAIN: FileId = FileId {
    device: 1,
    inode: 77,
};

/// Makes the target of an end, and keeps it open until the end is done.
pub(super) fn keep(program: &Program, end: End) {
    let board = &program.board;
    let domain = open_domain(program);
    let target = domain.create_target(8).expect("a target");
    let number = target.qp_num();
    board.notes().targets.insert(end, number);
    let is_over = || board.is_dead(end) || board.notes().done.contains(&end);
    turn::until(None, is_over);
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
                // It has ended with its creator.
                Err(error) => assert!(is_dead(), "a target is not opened: {error}"),
            }
        }
    }
    let target = domain.create_target(6).expect("a target");
    (domain, target)
}

fn open_domain(program: &Program) -> Xrcd {
    let init = XrcdInitAttr {
        file: Some(DOMAIN),
        create: true,
        exclusive: false,
    };
    program.context.open_xrcd(init).expect("a domain")
}
