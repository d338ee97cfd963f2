//! The broker exits, or answers `rocade broker status`, while programs communicate.

use std::{fs, path::Path};

use rocade_tests::{
    harness::{Pingpong, Rig, free_port},
    or_skip,
};

use crate::{LIMIT, LINKS, PERFTEST, endless::EndlessPair};

/// Returns the process id of the rig's broker, as `rocade broker status` prints it.
fn broker_pid(rig: &Rig) -> Option<u32> {
    let status = rig.rocade(&["broker", "status"]);
    let mut words = status.output.split(|c: char| !c.is_ascii_alphanumeric());
    words.find(|&word| word == "pid")?;
    words.next()?.parse().ok()
}

fn alive(pid: u32) -> bool {
    // A zombie has no command line. The process that inherited the broker may not reap it at once.
    fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"))
        .is_ok_and(|command| !command.is_empty())
}

/// Checks that a transfer continues without the broker, and that the next programs get a new broker
/// and their own process slots.
#[test]
fn a_transfer_survives_the_death_of_the_broker() {
    for link in LINKS {
        transfer_without_broker(&or_skip!(Rig::loopback(PERFTEST)).with_link(link));
    }
}

fn transfer_without_broker(rig: &Rig) {
    let mut pair = EndlessPair::start(rig, "ib_write_bw", &["-s", "65536"]);
    pair.wait_progress();
    let first = broker_pid(rig).expect("a broker runs");
    let killed = rig
        .start_plain("kill", &["kill", "-s", "KILL", &first.to_string()])
        .finish(LIMIT);
    assert!(killed.status.success(), "{}", killed.output);
    wait_until_gone(&mut pair, first);
    pair.wait_progress();

    for _ in 0..2 {
        Pingpong::new(&["-c"]).run(rig, LIMIT);
    }
    let second = broker_pid(rig).expect("no new broker");
    assert_ne!(first, second);
    pair.wait_progress();
}

/// Waits until the broker has ended, while the pair goes on.
fn wait_until_gone(pair: &mut EndlessPair, broker: u32) {
    pair.client.wait_until("end of the broker", LIMIT, |_| {
        (!alive(broker)).then_some(())
    });
}

/// Checks that programs that have ended occupy no process slot.
#[test]
fn slots_come_back() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let slots = || {
        let status = rig.rocade(&["broker", "status"]).expect_success();
        status
            .lines()
            .filter(|line| line.starts_with("slot "))
            .count()
    };
    let mut waiting = Pingpong::new(&[]).start_server(&rig, free_port());
    assert_eq!(slots(), 1);
    Pingpong::new(&["-n", "10"]).run(&rig, LIMIT);
    waiting.wait_until("end of the others", LIMIT, |_| (slots() == 1).then_some(()));
    waiting.kill();
}
