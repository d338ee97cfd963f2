//! perftest's eight programs with every service and option that each accepts, over UDP and shared
//! memory.
//!
//! `perftest/rows.rs` models which options perftest accepts. A normal run uses a short table with
//! every option of every program and service on both links. `ROCADE_TEST_TABLE=full` runs all pairs
//! of options with both ways to post (see docs/consumers.md).

mod document;
mod rows;

use std::{
    env,
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use rocade_tests::{
    harness::{Finished, Perftest, Rig, free_port, perftest_rows},
    or_skip,
};

use self::rows::{Choice, Posts, Row, Service, Side, Tool};
use crate::{LIMIT, PERFTEST};

const LINKS: [&str; 2] = ["udp", "shm"];

/// The vendor id and part id from which perftest infers a device's features: inline data,
/// `ibv_wr_*`, DC.
const CONNECTX_5: &str = "0x02c9:0x1017";

/// Words that occur in perftest's error messages. None of them is a hexadecimal number.
const FAILURE_WORDS: &[&str] = &[
    "error", "fail", "couldn't", "unable", "did not", "mismatch", "bad wc", "invalid", "cannot",
];

/// perftest's message when it did not destroy a CQ ([`Row::leaves_cq`]).
const CHANNEL: &str = "Failed to close event channel";
const AFTER_CHANNEL: &[&str] = &[
    CHANNEL,
    "Couldn't destroy all SEND resources",
    "Failed to destroy resources",
];

fn is_full() -> bool {
    env::var("ROCADE_TEST_TABLE").is_ok_and(|value| value == "full")
}

/// Runs rows on one rig. Panics with all failures together.
fn run_all(rig: &Rig, rows: impl IntoIterator<Item = Row>) {
    let mut failures = Vec::new();
    let mut count = 0;
    for row in rows {
        count += 1;
        if let Err(cause) = panic::catch_unwind(AssertUnwindSafe(|| run(rig, &row))) {
            let text = cause.downcast_ref::<String>().cloned();
            failures.push(format!("=== {row}\n{}", text.unwrap_or_default()));
        }
    }
    let text = failures.join("\n");
    assert!(failures.is_empty(), "{} of {count}\n{text}", failures.len());
}

/// Runs both sides, and checks that both end as expected and that the client reports all messages.
fn run(rig: &Rig, row: &Row) {
    let arguments = row.arguments();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut pair = Perftest::new(row.tool.program(), &words);
    if row.has(Choice::Multicast) {
        // perftest's default group is an IPv6 group, which requires an IPv6 GID: that of ::1.
        pair.gid_index = [1, 1];
    }
    let port = free_port();
    if let Some(refusal) = row.refusal() {
        let alone = pair.start_client(rig, "127.0.0.1", port).finish(LIMIT);
        let output = alone.expect_failure();
        assert!(output.contains(refusal), "no {refusal:?} in\n{output}");
        return;
    }
    let server = pair.start_server(rig, port);
    let client = pair.start_client(rig, "127.0.0.1", port).finish(LIMIT);
    let found = perftest_rows(&client.output);
    let server = if found == row.expected() {
        server.finish(LIMIT)
    } else {
        // The server may wait for a client that never connected.
        server.finish_or_kill(Duration::from_secs(2))
    };
    let outputs = format!("client:\n{}\nserver:\n{}", client.output, server.output);
    assert_eq!(found, row.expected(), "{outputs}");
    for (side, finished) in [(Side::Server, &server), (Side::Client, &client)] {
        assert_ends_well(row, side, finished, &outputs);
    }
}

fn assert_ends_well(row: &Row, side: Side, finished: &Finished, outputs: &str) {
    let leaves_cq = row.leaves_cq(side);
    let status = i32::from(leaves_cq);
    assert_eq!(finished.status.code(), Some(status), "{side:?}\n{outputs}");
    assert_eq!(finished.output.contains(CHANNEL), leaves_cq, "{outputs}");
    for line in finished.output.lines() {
        let lower = line.to_lowercase();
        let has_warning = FAILURE_WORDS.iter().any(|word| lower.contains(word));
        let is_known = leaves_cq && AFTER_CHANNEL.iter().any(|words| line.contains(words));
        assert!(!has_warning || is_known, "{side:?}: {line}\n{outputs}");
        let is_ours = line.starts_with("rocade") && env::var_os("ROCADE_LOG").is_none();
        let is_of_channel = leaves_cq && line.contains("ibv_destroy_comp_channel: still in use");
        assert!(!is_ours || is_of_channel, "{side:?}: {line}\n{outputs}");
    }
}

/// Runs the rows of a service over a link: those of the short table, or all.
fn table(service: Service, link: usize) {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let rig = rig.with_link(LINKS[link]).with_identity(CONNECTX_5);
    if is_full() {
        run_all(&rig, rows::full().filter(|row| row.service == service));
    } else {
        run_all(&rig, rows::short(service, link));
    }
}

macro_rules! tables {
    ($($name:ident: $service:ident;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn udp() {
                table(Service::$service, 0);
            }

            #[test]
            fn shared_memory() {
                table(Service::$service, 1);
            }
        }
    )*};
}

//= DCU-01 DCU-02 DCU-06 type=test
tables! {
    rc: Rc;
    uc: Uc;
    ud: Ud;
    xrc: Xrc;
    dc: Dc;
}

/// Few messages over each link, also for processors that are emulated.
#[test]
fn a_sample() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(PERFTEST)).with_link(link);
        for program in ["ib_send_lat", "ib_write_bw", "ib_read_bw"] {
            Perftest::new(program, &["-n", "100"]).run(&rig, LIMIT);
        }
    }
}

#[test]
fn what_perftest_refuses() {
    let rig = or_skip!(Rig::loopback(PERFTEST)).with_identity(CONNECTX_5);
    run_all(&rig, rows::refusals());
}

/// Runs a thousand messages of each kind without options, alternating between the links.
#[test]
fn a_thousand_messages() {
    for (n, link) in LINKS.into_iter().enumerate() {
        let rig = or_skip!(Rig::loopback(PERFTEST));
        let rig = rig.with_link(link).with_identity(CONNECTX_5);
        let rows = Tool::all()
            .flat_map(|tool| Service::ALL.map(|service| Row::new(tool, service, &[], Posts::New)))
            .filter(|row| row.refusal().is_none());
        let of_link = rows.enumerate().filter(|(m, _)| m % 2 == n);
        run_all(
            &rig,
            of_link.map(|(_, row)| Row {
                iterations: 1000,
                ..row
            }),
        );
    }
}

/// On an unknown device perftest uses `ibv_post_send`, and sends no inline data.
#[test]
fn on_a_device_that_perftest_does_not_know() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(PERFTEST)).with_link(link);
        for (program, arguments) in [
            ("ib_write_bw", "-s 65536 -n 1000"),
            ("ib_send_bw", "-s 65536 -n 1000 -e"),
            ("ib_read_bw", "-s 65536 -n 1000 -m 1024"),
            ("ib_write_lat", "-s 2 -n 1000"),
            ("ib_send_lat", "-s 64 -n 1000 -c UD"),
            ("ib_atomic_bw", "-n 1000 -A CMP_AND_SWAP"),
            ("ib_atomic_lat", "-n 1000 -A CMP_AND_SWAP"),
            ("ib_write_bw", "-s 65536 -n 1000 -c XRC"),
        ] {
            let words: Vec<&str> = arguments.split(' ').collect();
            Perftest::new(program, &words).run(&rig, LIMIT);
        }
    }
}
