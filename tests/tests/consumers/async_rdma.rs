//! The tests of the crate async-rdma, which connects through a TCP socket and moves data by verbs.

use std::{path::Path, thread};

use rocade_tests::{
    harness::{Device, Rig},
    or_skip,
};

use crate::{LIMIT, LINKS, installed};

/// One of its tests reads the name of the device from `rdma link`.
const NEEDS: &[(&str, &str)] = &[("rdma", "iproute2"), ("ip", "iproute2")];

/// Its test programs, with the tests of each that pass: all but one that the crate ignores.
const PROGRAMS: [(&str, u32); 8] = [
    ("async_rdma", 31),
    ("atomic", 3),
    ("device", 1),
    ("imm", 2),
    ("loop", 1),
    ("mr_slice", 8),
    ("rmr_access", 2),
    ("rmr_timeout", 3),
];

/// A part of the error where a client came before its server listened.
const REFUSED: [&str; 2] = ["code: 111", "os error 111"];

/// Attempts until a server listens in time. Each of the crate's tests gives it a second.
const ATTEMPTS: u32 = 3;

/// The crate takes the flags that a real NIC sets for another meaning (see docs/like.md).
///
/// Its programs wait most of the time, so all run at once. Each has a network of its own, because
/// two servers that start at the same time may pick the same port.
#[test]
fn its_own_tests_pass_on_a_device_like_rxe() {
    let programs = or_skip!(installed("registry", "async-rdma-0.5.0"));
    drop(or_skip!(Rig::loopback(NEEDS)));
    thread::scope(|scope| {
        for link in LINKS {
            for (program, count) in PROGRAMS {
                let path = programs.join(program);
                scope.spawn(move || passes(&path, count, link));
            }
        }
    });
}

/// Runs a test program over a link, and checks that so many tests pass.
fn passes(path: &Path, count: u32, link: &'static str) {
    let rig = Rig::loopback(NEEDS).expect("it was there before");
    let rig = rig.with_link(link).with_options(&["--like", "rxe"]);
    let program = path.display().to_string();
    // The panics that tests expect are shown, because a refused connection ends in a panic too.
    let words = [&*program, "--test-threads=1", "--nocapture"];
    for _ in 0..ATTEMPTS {
        let ended = rig.start(&program, &Device::on("lo"), &words);
        let ended = ended.finish(2 * LIMIT);
        if REFUSED.iter().any(|error| ended.output.contains(error)) {
            eprintln!("{program}: a server was late\n{}", ended.output);
            continue;
        }
        let output = ended.expect_success();
        let line = format!("\ntest result: ok. {count} passed; 0 failed;");
        assert!(output.contains(&line), "no {line:?} in {output}");
        return;
    }
    panic!("{program}: {ATTEMPTS} times a server did not listen within a second");
}
