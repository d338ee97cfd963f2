//! iproute2's `rdma`, which queries the kernel by netlink, in every sysfs view.

use std::time::Instant;

use rocade_tests::{
    harness::{Finished, Installation, Process, Rig, User, qp_numbers},
    or_skip,
};
use serde_json::Value;

use crate::{LIMIT, PERFTEST, RDMACM, UTILS};

const NEEDS: &[(&str, &str)] = &[
    ("rdma", "iproute2"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];
const USERS: [User; 3] = [User::Root, User::Ordinary, User::Confined];
const DEVICE: [&str; 2] = ["--dev", "rocade0=lo"];

fn sh(rig: &Rig, place: &Installation, options: &[&str], script: &str) -> Finished {
    let words = ["sh", "-c", script];
    place.start(rig, "sh", options, &words).finish(LIMIT)
}

/// Returns the parsed output of `rdma -j` with these arguments.
fn json(rig: &Rig, place: &Installation, options: &[&str], arguments: &[&str]) -> Vec<Value> {
    let words = [&["rdma", "-j"], arguments].concat();
    let output = place.start(rig, "rdma", options, &words).finish(LIMIT);
    let output = output.expect_success();
    match serde_json::from_str(&output) {
        Ok(Value::Array(all)) => all,
        other => panic!("not a list, {other:?}: {output}"),
    }
}

/// Returns the value after `name:` in the output of `ibv_devinfo`.
fn devinfo(output: &str, name: &str) -> String {
    let mut lines = output.lines().map(str::trim);
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value
        .unwrap_or_else(|| panic!("no {name} in {output}"))
        .trim()
        .to_owned()
}

#[test]
fn devices_and_links_are_those_of_the_library() {
    for user in USERS {
        let rig = or_skip!(Rig::loopback(&[NEEDS, UTILS].concat()));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let info = place.start(&rig, "ibv_devinfo", &DEVICE, &["ibv_devinfo"]);
        let info = info.finish(LIMIT).expect_success();
        let devices = json(&rig, &place, &DEVICE, &["dev"]);
        assert_eq!(devices.len(), 1, "{user:?}: {devices:?}");
        let device = &devices[0];
        assert_eq!(device["ifindex"], 0, "{user:?}: {device}");
        assert_eq!(device["ifname"], devinfo(&info, "hca_id").as_str());
        assert_eq!(device["node_type"], "ca");
        assert_eq!(device["fw"], devinfo(&info, "fw_ver").as_str());
        assert_eq!(device["node_guid"], devinfo(&info, "node_guid").as_str());
        assert_eq!(
            device["sys_image_guid"],
            devinfo(&info, "sys_image_guid").as_str()
        );
        let links = json(&rig, &place, &DEVICE, &["link"]);
        assert_eq!(links.len(), 1, "{user:?}: {links:?}");
        let link = &links[0];
        assert_eq!(
            (&link["ifname"], &link["port"]),
            (&"rocade0".into(), &1.into())
        );
        assert!(devinfo(&info, "state").contains("PORT_ACTIVE"), "{info}");
        assert_eq!(link["state"], "ACTIVE", "{user:?}: {link}");
        assert_eq!(link["physical_state"], "LINK_UP");
        assert_eq!(link["netdev"], "lo");
        assert_eq!(link["netdev_index"], 1);
    }
}

#[test]
fn children_see_all_devices_and_one_by_name() {
    for user in USERS {
        let rig = or_skip!(Rig::loopback(NEEDS));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let options = ["--dev", "a=127.0.0.2", "--dev", "b=127.0.0.3"];
        let script = "rdma dev && (rdma link show b/1) && $(command -v rdma) system";
        let output = sh(&rig, &place, &options, script).expect_success();
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.len(), 4, "{user:?}: {output}");
        assert!(lines[0].starts_with("0: a: node_type ca"), "{output}");
        assert!(lines[1].starts_with("1: b: node_type ca"), "{output}");
        assert!(lines[2].starts_with("link b/1 state ACTIVE"), "{output}");
        assert!(lines[3].starts_with("netns shared"), "{output}");
        let absent = sh(&rig, &place, &options, "rdma dev show c").expect_failure();
        assert!(absent.contains("Wrong device name"), "{user:?}: {absent}");
    }
}

/// Scripts add an rxe device before they test, and delete it afterwards.
#[test]
fn no_link_can_be_added_or_deleted() {
    for user in USERS {
        let rig = or_skip!(Rig::loopback(NEEDS));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        for script in [
            "rdma link add rxe0 type rxe netdev lo",
            "rdma link delete rocade0",
        ] {
            let refused = sh(&rig, &place, &DEVICE, script).expect_failure();
            assert!(
                refused.contains("no link can be added or deleted")
                    && refused.contains("Operation not supported"),
                "{user:?}: {refused}"
            );
        }
        let still = json(&rig, &place, &DEVICE, &["link", "show", "rocade0/1"]);
        assert_eq!(still.len(), 1, "{user:?}");
    }
}

/// Programs such as rdmatop take `port_xmit_data` in bytes if netlink has it, and in units of four
/// bytes from its file.
#[test]
fn statistics_are_the_hw_counters_of_the_files() {
    for user in USERS {
        let rig = or_skip!(Rig::loopback(&[NEEDS, UTILS].concat()));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let script = "ibv_rc_pingpong -d rocade0 -g 0 >/dev/null & \
            until ibv_rc_pingpong -d rocade0 -g 0 127.0.0.1 >/dev/null 2>&1; do :; done; wait; \
            cat /sys/class/infiniband/rocade0/ports/1/hw_counters/sent_pkts; rdma -j statistic show";
        let output = sh(&rig, &place, &DEVICE, script).expect_success();
        let (sent, counters) = output.split_once('\n').expect("two lines");
        let counters: Value = serde_json::from_str(counters).expect("JSON");
        let port = &counters[0];
        assert_eq!(port["ifname"], "rocade0", "{user:?}: {output}");
        let sent: u64 = sent.parse().expect("a number");
        assert!(sent >= 2000, "{user:?}: {output}");
        assert_eq!(port["sent_pkts"], sent, "{user:?}: {output}");
        assert!(port["port_xmit_data"].is_null(), "{user:?}: {output}");
    }
}

/// The kinds of resources, by their names in lists and in the summary.
const KINDS: [&str; 7] = ["pd", "cq", "qp", "cm_id", "mr", "ctx", "srq"];

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

/// Checks that each list has the length given in the summary, and that its entries belong to
/// `pids`.
fn sums_are_those_of_lists(rig: &Rig, place: &Installation, pids: &[u64]) {
    let sum = json(rig, place, &DEVICE, &["resource"]);
    assert_eq!(sum.len(), 1, "{sum:?}");
    for kind in KINDS {
        let list = json(rig, place, &DEVICE, &["resource", "show", kind]);
        assert_eq!(sum[0][kind], list.len(), "{kind}: {sum:?} {list:?}");
        let ours = |one: &Value| pids.contains(&number(&one["pid"]));
        assert!(list.iter().all(ours), "{kind}: {pids:?} {list:?}");
    }
}

/// Checks all resources of two communicating programs, and that none are left when they have ended.
#[test]
fn resources_are_those_of_running_programs() {
    for user in USERS {
        let rig = or_skip!(Rig::loopback(&[NEEDS, PERFTEST].concat()));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let common = "stdbuf -oL ib_write_bw -d rocade0 -F -x 0 -D 100";
        let words: Vec<&str> = common.split(' ').collect();
        let mut server = place.start(&rig, "server", &DEVICE, &words);
        server.wait_until("a server", LIMIT, |server| {
            server.output().contains("Waiting for client").then_some(())
        });
        let words = [&words[..], &["127.0.0.1"]].concat();
        let mut client = place.start(&rig, "client", &DEVICE, &words);
        let is_connected = |process: &Process| {
            let remote = qp_numbers(&process.output(), true);
            (!remote.is_empty()).then_some(())
        };
        server.wait_until("a connection", LIMIT, is_connected);
        client.wait_until("a connection", LIMIT, is_connected);
        let show = || json(&rig, &place, &DEVICE, &["resource", "show", "qp"]);
        let qps = client.wait_until("queue pairs that send", LIMIT, |_| {
            let qps = show();
            // The client sends, and the server only receives.
            let states: Vec<_> = qps.iter().filter_map(|qp| qp["state"].as_str()).collect();
            matches!(states[..], ["RTS", "RTR"] | ["RTR", "RTS"]).then_some(qps)
        });
        let mut numbers: Vec<u64> = qps.iter().map(|qp| number(&qp["lqpn"])).collect();
        let both = [server.output(), client.output()].map(|said| qp_numbers(&said, false));
        let mut expected: Vec<u64> = both.concat().into_iter().map(u64::from).collect();
        numbers.sort_unstable();
        expected.sort_unstable();
        assert_eq!(numbers, expected, "{user:?}: {qps:?}");
        for (qp, other) in [(&qps[0], &qps[1]), (&qps[1], &qps[0])] {
            assert_eq!(qp["rqpn"], other["lqpn"], "{user:?}: {qps:?}");
            assert_eq!(
                (&qp["type"], &qp["comm"]),
                (&"RC".into(), &"ib_write_bw".into())
            );
            assert_eq!((&qp["ifname"], &qp["port"]), (&"rocade0".into(), &1.into()));
        }
        let pids = [number(&qps[0]["pid"]), number(&qps[1]["pid"])];
        assert_ne!(pids[0], pids[1], "{user:?}");
        sums_are_those_of_lists(&rig, &place, &pids);
        let one = qps[0]["lqpn"].to_string();
        let one = json(
            &rig,
            &place,
            &DEVICE,
            &["resource", "show", "qp", "link", "rocade0/1", "lqpn", &one],
        );
        assert_eq!(one.len(), 1, "{user:?}: {one:?}");
        assert_eq!(one[0]["pid"], qps[0]["pid"], "{user:?}");
        let regions = json(&rig, &place, &DEVICE, &["resource", "show", "mr"]);
        assert!(regions.len() >= 2, "{user:?}: {regions:?}");
        // Two buffers of 64 KiB: one to send from, and one to receive into.
        let long = |one: &&Value| number(&one["mrlen"]) >= 2 * 65536;
        assert_eq!(
            regions.iter().filter(long).count(),
            2,
            "{user:?}: {regions:?}"
        );
        client.kill();
        server.kill();
        // The broker may hear of their end a little later.
        let until = Instant::now() + LIMIT;
        while !show().is_empty() {
            assert!(Instant::now() < until, "{user:?}: {:?}", show());
        }
        sums_are_those_of_lists(&rig, &place, &[]);
    }
}

#[test]
fn listeners_are_shown() {
    let rig = or_skip!(Rig::loopback(&[NEEDS, RDMACM].concat()));
    let place = or_skip!(Installation::new(&rig, User::Root, &[]));
    let server = ["rping", "-s", "-a", "127.0.0.1", "-p", "20101"];
    let mut server = place.start(&rig, "rping", &DEVICE, &server);
    let listener = server.wait_until("a listener", LIMIT, |_| {
        let ids = json(&rig, &place, &DEVICE, &["resource", "show", "cm_id"]);
        ids.into_iter().find(|id| id["state"] == "LISTEN")
    });
    assert_eq!(listener["ps"], "TCP", "{listener}");
    assert_eq!(listener["src-addr"], "127.0.0.1:20101", "{listener}");
    assert_eq!(listener["comm"], "rping", "{listener}");
    server.kill();
}

/// Checks that only `rdma` gets the preload library where sysfs files are mounted, and that nothing
/// changes outside the view.
#[test]
fn other_programs_are_left_alone() {
    let rig = or_skip!(Rig::loopback(NEEDS));
    for user in [User::Root, User::Ordinary] {
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let script = "echo preload=$LD_PRELOAD; grep -c rocade_preload /proc/self/maps; \
            head -c 2 $(readlink -f $(command -v rdma)); echo";
        let output = sh(&rig, &place, &DEVICE, script).output;
        assert_eq!(output, "preload=\n0\n#!\n", "{user:?}");
    }
    let without = rig.start_with("rdma", &["--view", "none"], &["rdma", "dev"]);
    let output = without.finish(LIMIT).output;
    assert!(!output.contains("rocade0"), "{output}");
}

#[test]
fn a_view_in_a_view_answers_for_its_own_devices() {
    let rig = or_skip!(Rig::loopback(NEEDS));
    if !rig.network().is_isolated() {
        rocade_tests::skip!("cannot make a namespace");
    }
    let rocade = rig.rocade_path().to_string_lossy().into_owned();
    let inner = [&*rocade, "run", "--dev", "b=127.0.0.6", "--", "rdma", "dev"];
    let output = rig.start_with("run", &["--dev", "a=127.0.0.5"], &inner);
    let output = output.finish(LIMIT).expect_success();
    assert!(output.starts_with("0: b: "), "{output}");
    assert_eq!(output.lines().count(), 1, "{output}");
}
