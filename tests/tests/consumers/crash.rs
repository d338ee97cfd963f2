//! Many processes on one address, one of which is killed.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use rocade_tests::{
    harness::{Pingpong, Rig, qp_numbers},
    or_skip,
};

use crate::{
    LIMIT, PERFTEST,
    endless::{EndlessPair, wait_progress},
};

/// The local ACK timeout that perftest requests by default: 4.096 µs * 2^14.
const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

/// The retry count that perftest requests.
const RETRIES: u32 = 7;

/// perftest's message for a completion with `IBV_WC_RETRY_EXC_ERR`.
const RETRY_EXCEEDED: &str = "Failed status 12";

/// The longest time until all retries are exhausted: the requester may wait up to four times the
/// requested local ACK timeout.
const LATEST: Duration = ACK_TIMEOUT.saturating_mul(4 * (RETRIES + 1));

/// A pair with perftest's own timeouts.
fn victims(rig: &Rig) -> EndlessPair {
    EndlessPair::start(rig, "ib_write_bw", &["-s", "65536"])
}

/// Checks that the client of a killed server tried again until its retries were exhausted. On a
/// busy machine only the lower limit and the order of magnitude are certain. The first timeouts may
/// have begun before the kill, if the server was not scheduled, and the program's exit takes some
/// time too.
fn assert_gave_up(output: &str, took: Duration) {
    assert!(output.contains(RETRY_EXCEEDED), "{output}");
    assert!(
        took > ACK_TIMEOUT * RETRIES / 4,
        "gave up after {took:?}\n{output}"
    );
    assert!(
        took < LATEST + LIMIT / 2,
        "gave up after {took:?}\n{output}"
    );
}

/// Returns the process slots of the QPs' owners: the upper 8 bits of the QP numbers.
fn slots(output: &str) -> impl Iterator<Item = u32> {
    let numbers = [qp_numbers(output, false), qp_numbers(output, true)].concat();
    numbers.into_iter().map(|number| number >> 16)
}

#[test]
fn eight_pairs_on_one_address_survive_the_death_of_a_ninth_process() {
    // Through shared memory fewer, because pairs at full speed leave no processor to other tests.
    for (link, count) in [("udp", 8), ("", 4)] {
        pairs_and_a_death(&or_skip!(Rig::loopback(PERFTEST)).with_link(link), count);
    }
}

fn pairs_and_a_death(rig: &Rig, count: usize) {
    // A timeout of half a second, because each process has to wait for many others to run.
    let patient = ["-u", "17"];
    let large = ["-u", "17", "-s", "65536"];
    let mut others: Vec<EndlessPair> = [
        ("ib_write_bw", &large[..]),
        ("ib_send_bw", &large),
        ("ib_read_bw", &large),
        ("ib_atomic_bw", &patient),
        ("ib_write_bw", &patient),
        ("ib_send_bw", &patient),
        ("ib_read_bw", &patient),
        ("ib_atomic_bw", &patient),
    ]
    .iter()
    .take(count)
    .map(|(program, arguments)| EndlessPair::start(rig, program, arguments))
    .collect();
    let mut victims = victims(rig);
    let mut in_use = BTreeSet::new();
    wait_progress(others.iter_mut().chain([&mut victims]));
    for pair in others.iter().chain([&victims]) {
        in_use.extend(slots(&pair.client.output()));
    }
    assert_eq!(in_use.len(), 2 * (count + 1), "slots {in_use:?}");

    let (output, took) = victims.kill_server();
    assert_gave_up(&output, took);

    // The slots of the dead are the only ones that are free.
    let free: BTreeSet<u32> = slots(&output).collect();
    wait_until_free(rig, &free);
    let again = Pingpong::new(&["-c", "-s", "65536", "-n", "100"]).run(rig, LIMIT);
    assert!(!again[0].contains("invalid data"), "{}", again[0]);
    let used: BTreeSet<u32> = slots(&again[0]).collect();
    assert_eq!(used, free, "in use were {in_use:?}");
    wait_progress(&mut others);
    for pair in &others {
        for side in [&pair.server, &pair.client] {
            let output = side.output();
            let complaint = output.lines().find(|line| line.starts_with("rocade"));
            assert!(complaint.is_none(), "{output}");
        }
    }
}

/// Waits until the broker knows that the processes of these slots have ended.
fn wait_until_free(rig: &Rig, slots: &BTreeSet<u32>) {
    let until = Instant::now() + LIMIT;
    let is_free = |status: &str, slot| !status.contains(&format!("slot {slot:3} "));
    loop {
        let status = rig.rocade(&["broker", "status"]).expect_success();
        if slots.iter().all(|slot| is_free(&status, slot)) {
            return;
        }
        assert!(Instant::now() < until, "{slots:?}: {status}");
    }
}
