//! A process that waits uses no processor time.

use std::{thread, time::Duration};

use rocade_tests::{
    harness::{Pingpong, Process, Rig, free_port},
    or_skip,
};

use crate::{LINKS, UTILS};

/// Over how long the use is measured.
const INTERVAL: Duration = Duration::from_secs(4);

/// One clock tick (10 ms) is what the kernel can charge by its rounding.
const TICKS_ALLOWED: u64 = 1;

fn assert_idle(process: &Process) {
    let before = process.cpu_ticks().expect("the process lives");
    thread::sleep(INTERVAL);
    let used = process.cpu_ticks().expect("the process lives") - before;
    assert!(
        used <= TICKS_ALLOWED,
        "{used} clock ticks in {INTERVAL:?}\n{}",
        process.output()
    );
}

/// The server has made its QP and posted receives when it waits for its client.
#[test]
fn a_waiting_server_with_an_open_qp() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let server = Pingpong::new(&[]).start_server(&rig, free_port());
    assert_idle(&server);
}

/// The same after traffic on the machine, with a broker that has lost clients, over both links.
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
