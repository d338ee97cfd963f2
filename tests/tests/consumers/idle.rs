//! A waiting process uses no CPU time.

use std::{
    thread,
    time::{Duration, Instant},
};

use rocade_tests::{
    harness::{Pingpong, Process, Rig, free_port},
    or_skip,
};

use crate::{LINKS, UTILS};

/// The duration of the measurement.
const INTERVAL: Duration = Duration::from_secs(4);

/// The CPU time of a few wake-ups, which other processes may cause.
const ALLOWED: Duration = Duration::from_millis(2);

fn assert_idle(process: &Process) {
    let time = || process.cpu_time().expect("the process lives");
    // On a busy machine the process may still have work to finish.
    let begin = Instant::now();
    let mut before = time();
    loop {
        thread::sleep(Duration::from_millis(200));
        let last = std::mem::replace(&mut before, time());
        if before == last {
            break;
        }
        assert!(
            begin.elapsed() < crate::LIMIT,
            "the process keeps using CPU time"
        );
    }
    thread::sleep(INTERVAL);
    let used = time() - before;
    assert!(
        used <= ALLOWED,
        "{used:?} in {INTERVAL:?}\n{}",
        process.output()
    );
}

/// Measures a server that has created its QP and posted receives, and waits for its client.
#[test]
fn a_waiting_server_with_an_open_qp() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let server = Pingpong::new(&[]).start_server(&rig, free_port());
    assert_idle(&server);
}

/// Measures a waiting server over both links, after other processes have communicated and
/// disconnected from the broker.
#[test]
fn a_waiting_server_after_others_have_come_and_gone() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        let pair = Pingpong::new(&["-e"]);
        let server = pair.start_server(&rig, free_port());
        pair.run(&rig, crate::LIMIT);
        assert_idle(&server);
    }
}
