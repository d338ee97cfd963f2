//! Many processes on one address, one of which is killed.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use rocade_tests::{
    harness::{Perftest, Pingpong, Process, Rig, free_port, has_result, qp_numbers},
    or_skip,
};

use crate::{LIMIT, LINKS, PERFTEST};

/// The local ACK timeout that perftest requests by default: 4.096 µs * 2^14.
const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

/// The retry count that perftest requests.
const RETRIES: u32 = 7;

/// perftest's message for a completion with `IBV_WC_RETRY_EXC_ERR`.
const RETRY_EXCEEDED: &str = "Failed status 12";

/// The longest time until all retries are exhausted: the requester may wait up to four times the
/// requested local ACK timeout.
const LATEST: Duration = ACK_TIMEOUT.saturating_mul(4 * (RETRIES + 1));

/// A pair of perftest that never ends. The client prints a row each second.
struct EndlessPair {
    server: Process,
    client: Process,
}

impl EndlessPair {
    fn start(rig: &Rig) -> Self {
        let pair = Perftest::new(
            "ib_write_bw",
            &["-s", "65536", "-D", "1", "--run_infinitely"],
        );
        let port = free_port();
        let server = pair.start_server(rig, port);
        let client = pair.start_client(rig, "127.0.0.1", port);
        Self { server, client }
    }

    /// Kills the server under traffic. Returns the client's output, and the time until the client
    /// ended.
    fn kill_server(mut self) -> (String, Duration) {
        self.client.wait_until("first result", LIMIT, |client| {
            has_result(&client.output()).then_some(())
        });
        let killed = Instant::now();
        self.server.kill();
        let output = self.client.finish(LIMIT).expect_failure();
        (output, killed.elapsed())
    }
}

#[test]
fn the_peer_of_a_killed_process_gives_up_in_time() {
    for link in LINKS {
        gives_up_in_time(&or_skip!(Rig::loopback(PERFTEST)).with_link(link));
    }
}

fn gives_up_in_time(rig: &Rig) {
    let (output, took) = EndlessPair::start(rig).kill_server();
    assert!(output.contains(RETRY_EXCEEDED), "{output}");
    // The first timeouts may have begun before the kill, if the server was not scheduled. The
    // program's exit takes some time too.
    assert!(
        took > ACK_TIMEOUT * RETRIES / 4,
        "gave up after {took:?}\n{output}"
    );
    assert!(
        took < LATEST + Duration::from_secs(10),
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
    for link in LINKS {
        eight_pairs_and_a_death(&or_skip!(Rig::loopback(PERFTEST)).with_link(link));
    }
}

fn eight_pairs_and_a_death(rig: &Rig) {
    // A timeout of half a second, because each process has to wait for many others to run.
    let seconds = ["-D", "6", "-u", "17", "-s", "65536"];
    let mut others: Vec<(Process, Process)> = Vec::new();
    for program in [
        "ib_write_bw",
        "ib_send_bw",
        "ib_read_bw",
        "ib_write_bw",
        "ib_send_bw",
        "ib_atomic_bw",
    ] {
        let arguments = if program == "ib_atomic_bw" {
            &seconds[..4]
        } else {
            &seconds[..]
        };
        let pair = Perftest::new(program, arguments);
        let port = free_port();
        let server = pair.start_server(rig, port);
        others.push((server, pair.start_client(rig, "127.0.0.1", port)));
    }
    let victim = EndlessPair::start(rig);
    let pair = Pingpong::new(&["-c", "-s", "65536", "-n", "2000"]);
    let port = free_port();
    let server = pair.start_server(rig, port);
    others.push((server, pair.start_client(rig, "127.0.0.1", port)));
    let mut told = Vec::new();
    for (_, client) in &mut others {
        let output = client.wait_until("address of the peer", LIMIT, |client| {
            Some(client.output()).filter(|output| output.contains("remote address:"))
        });
        told.push(slots(&output).collect::<Vec<_>>());
    }
    // On a busy machine the first pairs may end before the last ones begin, and free their slots.
    let (mut in_use, mut alive) = (BTreeSet::new(), 1);
    for ((server, client), slots) in others.iter_mut().zip(&told) {
        if server.is_running() && client.is_running() {
            alive += 1;
            in_use.extend(slots);
        }
    }
    let (output, took) = victim.kill_server();
    assert!(output.contains(RETRY_EXCEEDED), "{output}");
    // Sixteen polling processes share the machine, so only the lower limit and the order of
    // magnitude are certain.
    assert!(
        took > ACK_TIMEOUT * RETRIES / 4,
        "gave up after {took:?}\n{output}"
    );
    assert!(
        took < LATEST + Duration::from_secs(10),
        "gave up after {took:?}\n{output}"
    );
    in_use.extend(slots(&output));
    assert_eq!(in_use.len(), 2 * alive, "slots {in_use:?} of {told:?}");

    for (server, client) in others {
        let output = client.finish(LIMIT).expect_success();
        assert!(
            has_result(&output) || output.contains("2000 iters in "),
            "{output}"
        );
        let output = server.finish(LIMIT).expect_success();
        assert!(!output.contains("invalid data"), "{output}");
    }
    in_use.extend(told.into_iter().flatten());
    let highest = in_use.last().copied();
    let [server, _] = Pingpong::new(&["-c"]).run(rig, LIMIT);
    assert!(
        slots(&server).max() <= highest,
        "no slot was used again: {in_use:?}, then\n{server}"
    );
}

/// Checks that the next process gets the slot of a killed process while the former peer still runs.
#[test]
fn the_slot_of_a_killed_process_is_used_again() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let mut bystander = Pingpong::new(&[]).start_server(&rig, free_port());
    let output = bystander.wait_until("address", LIMIT, |server| {
        Some(server.output()).filter(|output| output.contains("local address:"))
    });
    let mut seen: BTreeSet<u32> = slots(&output).collect();
    let (output, _) = EndlessPair::start(&rig).kill_server();
    seen.extend(slots(&output));
    assert_eq!(seen.len(), 3, "slots {seen:?}");
    let [server, _] = Pingpong::new(&["-c"]).run(&rig, LIMIT);
    let again: BTreeSet<u32> = slots(&server).collect();
    assert_eq!(again.len(), 2, "{server}");
    assert!(again.is_subset(&seen), "slots {again:?} after {seen:?}");
}
