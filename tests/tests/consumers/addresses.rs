//! Two processes on different addresses of one machine, and IPv6.

use rocade_tests::{
    harness::{Device, Perftest, Pingpong, Rig, devinfo_gids, free_port},
    or_skip,
};

use crate::{LIMIT, PERFTEST, UTILS};

#[test]
fn two_addresses_of_one_interface() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let mut pair = Pingpong::new(&["-c", "-s", "65536"]);
    pair.devices = [Device::on("127.0.0.2"), Device::on("127.0.0.3")];
    let [server, client] = pair.run(&rig, LIMIT);
    for output in [&server, &client] {
        assert!(!output.contains("invalid data"), "{output}");
        assert!(output.contains("GID ::ffff:127.0.0.2"), "{output}");
        assert!(output.contains("GID ::ffff:127.0.0.3"), "{output}");
    }
}

#[test]
fn perftest_between_two_addresses() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let mut pair = Perftest::new("ib_write_bw", &["-s", "65536", "-n", "1000"]);
    pair.devices = [Device::on("127.0.0.2"), Device::on("127.0.0.3")];
    pair.run(&rig, LIMIT);
}

/// Uses `--ip`, which creates a single device on that address.
#[test]
fn the_short_form_for_an_address() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let number = free_port();
    let port = number.to_string();
    let words = [
        "stdbuf",
        "-oL",
        "ibv_rc_pingpong",
        "-g",
        "0",
        "-c",
        "-p",
        &port,
    ];
    let mut server = rig.start_with("pingpong server", &["--ip", "127.0.0.2"], &words);
    server.wait_listening(number, LIMIT);
    let words = [&words[..], &["127.0.0.1"]].concat();
    rig.start_with("pingpong client", &["--ip", "127.0.0.3"], &words)
        .finish(LIMIT)
        .expect_success();
    let output = server.finish(LIMIT).expect_success();
    assert!(output.contains("1000 iters in "), "{output}");
    assert!(!output.contains("invalid data"), "{output}");
    assert!(output.contains("GID ::ffff:127.0.0.2"), "{output}");
    assert!(output.contains("GID ::ffff:127.0.0.3"), "{output}");
}

/// Returns the index of the GID `::1` of a device on `lo`.
fn ipv6_index(rig: &Rig) -> Option<u8> {
    let devinfo = rig.start("ibv_devinfo", &Device::on("lo"), &["ibv_devinfo", "-v"]);
    let gids = devinfo_gids(&devinfo.finish(LIMIT).expect_success());
    u8::try_from(gids.iter().position(|gid| gid == "::1")?).ok()
}

#[test]
fn pingpong_over_ipv6() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let index = ipv6_index(&rig).expect("no GID ::1");
    let mut pair = Pingpong::new(&["-c", "-s", "65536"]);
    pair.gid_index = [index, index];
    let [server, _] = pair.run(&rig, LIMIT);
    assert!(!server.contains("invalid data"), "{server}");
    assert_eq!(server.matches("GID ::1").count(), 2, "{server}");
}

#[test]
fn a_device_on_an_ipv6_address() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let mut pair = Pingpong::new(&["-c"]);
    pair.devices = [Device::on("::1"), Device::on("::1")];
    let [server, _] = pair.run(&rig, LIMIT);
    assert_eq!(server.matches("GID ::1").count(), 2, "{server}");
}

#[test]
fn perftest_over_ipv6() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let index = ipv6_index(&rig).expect("no GID ::1");
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_lat"] {
        let mut pair = Perftest::new(program, &["-s", "65536", "-n", "1000"]);
        pair.gid_index = [index, index];
        pair.run(&rig, LIMIT);
    }
}
