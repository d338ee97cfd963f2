//! The `/dev` and `/sys` that programs see: as root, as an ordinary user, and without namespaces.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
};

use rocade_tests::{
    harness::{Finished, Installation, Rig, User},
    or_skip,
};

use crate::{LIMIT, PERFTEST, PYTHON};

const NEEDS: &[(&str, &str)] = &[
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("python3", "python3"),
    ("ip", "iproute2"),
];
const DIAGS: &[(&str, &str)] = &[
    ("ibstat", "infiniband-diags"),
    ("ibstatus", "infiniband-diags"),
];
const UCX: &[(&str, &str)] = &[("ucx_info", "ucx-utils")];

/// The path of the file `name` in `tests/interop/view`.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("interop/view")
        .join(name)
}

fn run(rig: &Rig, place: &Installation, options: &[&str], words: &[&str]) -> Finished {
    place.start(rig, words[0], options, words).finish(LIMIT)
}

/// Checks that the files of these devices agree with the library in all details.
fn agrees(user: User, options: &[&str], devices: &[&str]) {
    let rig = or_skip!(Rig::loopback(NEEDS));
    let place = or_skip!(Installation::new(&rig, user, &[&script("check.py")]));
    let check = place.path("check.py");
    let words = [&[PYTHON, &*check], devices].concat();
    let output = run(&rig, &place, options, &words).expect_success();
    assert!(output.ends_with("the view agrees\n"), "{output}");
    assert!(!output.contains("warning"), "{output}");
}

const TWO: [&str; 4] = ["--dev", "a=127.0.0.2", "--dev", "b=127.0.0.3,127.0.0.4"];

#[test]
fn root_sees_what_the_library_says() {
    agrees(
        User::Root,
        &["--view", "namespace", "--dev", "rocade0=lo"],
        &["rocade0"],
    );
    agrees(User::Root, &TWO, &["a", "b"]);
}

#[test]
fn an_ordinary_user_sees_what_the_library_says() {
    agrees(
        User::Ordinary,
        &["--view", "namespace", "--dev", "rocade0=lo"],
        &["rocade0"],
    );
    agrees(User::Ordinary, &TWO, &["a", "b"]);
}

/// A program can be run as on a machine without RDMA, whatever the machine has.
#[test]
fn no_device_is_seen_if_none_is_wanted() {
    let listing = "ls /sys/class/infiniband /sys/class/infiniband_verbs && exec ibv_devinfo";
    let words = ["sh", "-c", listing];
    for user in [User::Root, User::Ordinary, User::Confined] {
        let rig = or_skip!(Rig::loopback(NEEDS));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let seen = run(&rig, &place, &["--dev", "none"], &words);
        assert_eq!(seen.status.code(), Some(255), "{seen:?}");
        assert_eq!(
            seen.output,
            "/sys/class/infiniband:\n\n/sys/class/infiniband_verbs:\nabi_version\n\
             No IB devices found\n"
        );
    }
}

#[test]
fn without_namespaces_a_program_sees_what_the_library_says() {
    agrees(User::Confined, &["--dev", "rocade0=lo"], &["rocade0"]);
    agrees(User::Confined, &TWO, &["a", "b"]);
}

#[test]
fn the_preload_library_serves_root_too() {
    agrees(
        User::Root,
        &["--view", "preload", "--dev", "rocade0=lo"],
        &["rocade0"],
    );
}

/// A process that is killed while a rule has removed its device leaves the files hidden, until the
/// next process of the view uses verbs. The rule belongs to the killed process only.
#[test]
fn a_device_that_a_killed_process_has_hidden_comes_back() {
    const SCRIPT: &str = "
        device=/sys/class/infiniband/rocade0
        [ -e $device ] || exit 3
        ROCADE_FAULT='device-remove at=50ms' ibv_rc_pingpong -d rocade0 &
        while [ -e $device ]; do
            kill -0 $! || exit 4
            sleep 0.01
        done
        kill -KILL $!
        wait $!
        [ ! -e $device ] || exit 5
        ibv_devinfo -d rocade0 || exit 6
        ls $device /sys/class/infiniband_verbs/uverbs0 > /dev/null";
    for user in [User::Root, User::Ordinary, User::Confined] {
        let rig = or_skip!(Rig::loopback(NEEDS));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let words = ["sh", "-c", SCRIPT];
        run(&rig, &place, &["--dev", "rocade0=lo"], &words).expect_success();
    }
}

/// Checks which view each user gets, so that a test of one view does not test the other.
#[test]
fn the_way_is_chosen_by_what_is_allowed() {
    for (user, preload) in [
        (User::Root, false),
        (User::Ordinary, false),
        (User::Confined, true),
    ] {
        let rig = or_skip!(Rig::loopback(NEEDS));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let words = [
            "sh",
            "-c",
            "echo stage=$ROCADE_VIEW_STAGE; grep -c ^rocade /proc/self/mounts",
        ];
        let output = run(&rig, &place, &["--dev", "rocade0=lo"], &words).output;
        assert_eq!(output.contains("stage=/"), preload, "{user:?}: {output}");
        assert_eq!(output.ends_with("\n0\n"), preload, "{user:?}: {output}");
    }
    let rig = or_skip!(Rig::loopback(NEEDS));
    let place = or_skip!(Installation::new(&rig, User::Confined, &[]));
    let refused = run(&rig, &place, &["--view", "namespace"], &["true"]);
    assert_eq!(refused.status.code(), Some(125), "{}", refused.output);
    assert!(
        refused.output.contains("--view preload"),
        "{}",
        refused.output
    );
}

/// Makes a root directory of the system's directories, and runs the command below chroot(2). There
/// the kernel refuses to make mounts private, because the root is no mount.
const BELOW_CHROOT: &str = r#"
root=$1; built=$2
for dir in bin lib lib64 usr etc proc sys dev tmp; do
    if [ -e "/$dir" ]; then
        mkdir -p "$root/$dir"
        mount --rbind "/$dir" "$root/$dir"
    fi
done
mkdir "$root/built"
mount --bind "$built" "$root/built"
exec chroot "$root" /built/rocade run --dev rocade0=lo -- ls /sys/class/infiniband
"#;

#[test]
fn below_chroot_the_preload_library_is_found() {
    let rig = or_skip!(Rig::loopback(NEEDS));
    // Only root may change the root directory.
    or_skip!(Installation::new(&rig, User::Root, &[]));
    let root = rig.dir().join("root").to_string_lossy().into_owned();
    let built = rig.rocade_path().parent().expect("a file in a directory");
    let built = built.to_string_lossy();
    let words = [
        "unshare",
        "--mount",
        "sh",
        "-euc",
        BELOW_CHROOT,
        "sh",
        &root,
        &built,
    ];
    let output = rig
        .start_plain("chroot", &words)
        .finish(LIMIT)
        .expect_success();
    assert_eq!(output, "rocade0\n");
}

#[test]
fn without_a_view_there_is_none() {
    let rig = or_skip!(Rig::loopback(NEEDS));
    let words = [
        "sh",
        "-c",
        "env; cat /proc/self/mountinfo; ls /sys/class/infiniband/rocade0",
    ];
    let output = rig.start_with("sh", &["--view", "none", "--dev", "rocade0=lo"], &words);
    let output = output.finish(LIMIT).expect_failure();
    assert!(
        !output.contains("ROCADE_VIEW") && !output.contains("LD_PRELOAD"),
        "{output}"
    );
    assert!(!output.contains("rocade rw"), "{output}");
}

#[test]
fn no_other_process_sees_it() {
    let places = [
        "/dev/infiniband/rdma_cm",
        "/sys/class/infiniband/hidden0",
        "/sys/devices/rocade",
    ];
    let host = places.map(|place| Path::new(place).exists());
    let rig = or_skip!(Rig::loopback(NEEDS));
    let script = format!("ls -d {} && echo ready && exec sleep 60", places.join(" "));
    let mut program = rig.start_with("sh", &["--dev", "hidden0=lo"], &["sh", "-c", &script]);
    program.wait_until("view", LIMIT, |p| {
        p.output().contains("ready").then_some(())
    });
    assert_eq!(places.map(|place| Path::new(place).exists()), host);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc is there");
    assert!(!mounts.contains("rocade /sys"), "{mounts}");
}

/// Checks that a process that forks, unshares or executes keeps the view, and that its credentials
/// and limits are unchanged.
#[test]
fn children_keep_it_and_the_rest_stays() {
    for user in [User::Root, User::Ordinary, User::Confined] {
        let rig = or_skip!(Rig::loopback(NEEDS));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let identity = "id -u; id -g; grep -E '^Cap(Eff|Prm)' /proc/self/status; readlink /proc/self/ns/net; pwd; ulimit -n";
        let plain =
            run(&rig, &place, &["--view", "none"], &["sh", "-c", identity]).expect_success();
        let viewed = run(&rig, &place, &[], &["sh", "-c", identity]).expect_success();
        assert_eq!(plain, viewed, "{user:?}");
        let see = "cat /sys/class/infiniband/rocade0/node_type";
        let mut commands = vec![
            format!("sh -c '({see})'"),
            format!("sh -c 'sh -c \"{see}\" & wait'"),
        ];
        match user {
            User::Root => commands.push(format!("unshare --mount --uts sh -c '{see}'")),
            User::Ordinary => commands.push(format!(
                "unshare --user --map-root-user --mount sh -c '{see}'"
            )),
            User::Confined => {}
        }
        for command in commands {
            let output = run(
                &rig,
                &place,
                &["--dev", "rocade0=lo"],
                &["sh", "-c", &command],
            );
            assert_eq!(output.expect_success(), "1: CA\n", "{user:?}: {command}");
        }
    }
}

#[test]
fn exit_status_and_signals_are_the_programs() {
    for user in [User::Root, User::Ordinary, User::Confined] {
        let rig = or_skip!(Rig::loopback(NEEDS));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let exit = run(&rig, &place, &[], &["sh", "-c", "exit 7"]);
        assert_eq!(exit.status.code(), Some(7), "{user:?}: {}", exit.output);
        let killed = run(&rig, &place, &[], &["sh", "-c", "kill -TERM $$; sleep 60"]);
        assert_eq!(
            killed.status.signal(),
            Some(15),
            "{user:?}: {}",
            killed.output
        );
    }
}

/// An outer view stands for a host with devices of its own.
#[test]
fn devices_of_the_host_are_hidden_or_shown() {
    let rig = or_skip!(Rig::loopback(NEEDS));
    if !rig.network().is_isolated() {
        rocade_tests::skip!("cannot make a namespace");
    }
    let rocade = rig.rocade_path().to_string_lossy().into_owned();
    for (option, expected) in [
        ("--view=namespace", "b\nuverbs0\n"),
        ("--show-host", "b\nhost0\nuverbs0\nuverbs1\n"),
    ] {
        let list = "ls /sys/class/infiniband; ls /dev/infiniband | grep uverbs";
        let inner = [
            &*rocade,
            "run",
            option,
            "--dev",
            "b=127.0.0.6",
            "--",
            "sh",
            "-c",
            list,
        ];
        let output = rig.start_with("run", &["--dev", "host0=127.0.0.5"], &inner);
        assert_eq!(output.finish(LIMIT).expect_success(), expected);
    }
}

/// Checks that both sides count the same packets, and that another process can read the counters
/// meanwhile.
fn counts(user: User, link: &'static str) {
    let rig = or_skip!(Rig::loopback(&[PERFTEST, NEEDS].concat())).with_link(link);
    let place = or_skip!(Installation::new(&rig, user, &[]));
    let script = "cd /sys/class/infiniband/rocade0/ports/1; \
        see() { cat counters/port_${1}_packets counters/port_${1}_data hw_counters/$2; }; \
        ib_write_bw -d rocade0 -F -x 0 -u 18 -s 65536 -n 2000 >/dev/null & \
        until ib_write_bw -d rocade0 -F -x 0 -u 18 -s 65536 -n 2000 127.0.0.1 >/dev/null 2>&1; do :; done; wait; \
        see xmit sent_pkts; see rcv rcvd_pkts";
    let output = run(
        &rig,
        &place,
        &["--dev", "rocade0=lo"],
        &["sh", "-c", script],
    );
    let output = output.expect_success();
    let numbers: Vec<u64> = output
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    let [
        sent,
        words,
        sent_too,
        received,
        received_words,
        received_too,
    ] = numbers[..]
    else {
        panic!("not six numbers: {output}")
    };
    // 128 MiB in units of four bytes, plus headers.
    assert!(words > (2000 * 65536) / 4, "{output}");
    assert_eq!((sent, received), (sent_too, received_too), "{output}");
    // Over UDP a packet may be lost and retransmitted.
    assert!(received <= sent && received_words <= words, "{output}");
    if link == "shm" {
        assert_eq!((sent, words), (received, received_words), "{output}");
    }
}

#[test]
fn counters_say_what_went_through_shared_memory() {
    counts(User::Root, "shm");
    counts(User::Confined, "shm");
}

#[test]
fn counters_say_what_went_over_udp() {
    counts(User::Ordinary, "udp");
}

#[test]
fn counters_are_live() {
    let rig = or_skip!(Rig::loopback(&[PERFTEST, NEEDS].concat()));
    let script = "cd /sys/class/infiniband/rocade0/ports/1/counters; \
        endless=\"ib_write_bw -d rocade0 -F -x 0 -D 1 --run_infinitely\"; \
        $endless >/dev/null & server=$!; \
        until $endless 127.0.0.1 >/dev/null 2>&1; do :; done & client=$!; \
        until [ $(cat port_rcv_packets) -gt 1000 ]; do :; done; first=$(cat port_rcv_packets); \
        until [ $(cat port_rcv_packets) -gt $first ]; do :; done; \
        kill -0 $server && kill $client $server && echo grows";
    let mut process = rig.start_with("sh", &["--dev", "rocade0=lo"], &["bash", "-c", script]);
    process.wait_until("growth", LIMIT, |p| {
        p.output().contains("grows").then_some(())
    });
}

#[test]
fn ibstat_and_ibstatus_report_an_active_port() {
    for user in [User::Root, User::Ordinary, User::Confined] {
        let rig = or_skip!(Rig::loopback(&[NEEDS, DIAGS].concat()));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let options = ["--dev", "rocade0=lo"];
        let output = run(&rig, &place, &options, &["ibstat"]).expect_success();
        for line in [
            "CA 'rocade0'",
            "State: Active",
            "Physical state: LinkUp",
            "Rate: 100",
            "Link layer: Ethernet",
        ] {
            assert!(output.contains(line), "{user:?}: no {line:?} in {output}");
        }
        let output = run(&rig, &place, &options, &["ibstatus"]).expect_success();
        for line in [
            "'rocade0' port 1",
            "0000:0000:0000:0000:0000:ffff:7f00:0001",
            "4: ACTIVE",
            "100 Gb/sec (4X EDR)",
        ] {
            assert!(output.contains(line), "{user:?}: no {line:?} in {output}");
        }
    }
}

#[test]
fn ucx_finds_the_device_for_rc() {
    for user in [User::Root, User::Ordinary, User::Confined] {
        let rig = or_skip!(Rig::loopback(&[NEEDS, UCX].concat()));
        let place = or_skip!(Installation::new(&rig, user, &[]));
        let output = run(&rig, &place, &["--dev", "rocade0=lo"], &["ucx_info", "-d"]).output;
        let resource = output
            .lines()
            .skip_while(|line| !line.contains("Transport: rc_verbs"))
            .nth(1);
        assert!(
            resource.is_some_and(|line| line.contains("Device: rocade0:1")),
            "{user:?}: {output}"
        );
    }
}
