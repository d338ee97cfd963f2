//! Many programs that start at the same time on a busy machine.

use std::thread;

use rocade_tests::{
    harness::{Pingpong, Process, Rig},
    or_skip,
};

use crate::{LIMIT, LINKS, UTILS};

/// Pairs that start at a time.
const AT_A_TIME: usize = 20;
const ROUNDS: usize = 3;
/// Processes that use all the CPU time they get.
const BUSY_LOOPS: usize = 8;

/// Starts a process that is busy as long as it lives, but not longer than a test.
fn busy_loop(rig: &Rig) -> Process {
    let shell = ["sh", "-c", "while :; do :; done"];
    let words = [&["timeout", "--foreground", "300"], &shell[..]].concat();
    rig.start_plain("busy loop", &words)
}

/// Starts 60 pairs. In each round, all programs find no broker, and one of them starts it.
#[test]
fn programs_start_on_a_busy_machine() {
    for link in LINKS.into_iter().cycle().take(ROUNDS) {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        let _busy: [Process; BUSY_LOOPS] = std::array::from_fn(|_| busy_loop(&rig));
        let pair = Pingpong::new(&["-n", "20"]);
        thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| pair.run(&rig, LIMIT));
            }
        });
    }
}
