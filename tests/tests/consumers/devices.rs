//! The devices as programs see them: `ibv_devices`, `ibv_devinfo -v`, the library directory.

use std::path::Path;

use rocade_tests::{
    harness::{Device, Rig, devinfo_gids, free_port},
    or_skip,
};

use crate::{LIMIT, PERFTEST, UTILS};

#[test]
fn ibv_devices_lists_the_device() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let output = rig
        .start("ibv_devices", &Device::on("lo"), &["ibv_devices"])
        .finish(LIMIT)
        .expect_success();
    let row = output
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut words| {
            (words.next() == Some("rocade0")).then(|| words.next().unwrap_or_default().to_owned())
        });
    let guid = row.unwrap_or_else(|| panic!("no rocade0 in\n{output}"));
    assert_eq!(guid.len(), 16, "{output}");
    assert_ne!(u64::from_str_radix(&guid, 16).unwrap(), 0, "{output}");
}

#[test]
fn ibv_devinfo_describes_an_active_roce_port() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let words = ["ibv_devinfo", "-v", "-d", "rocade0"];
    let output = rig
        .start("ibv_devinfo", &Device::on("lo"), &words)
        .finish(LIMIT)
        .expect_success();
    for expected in [
        "hca_id:\trocade0",
        "PORT_ACTIVE",
        "link_layer:\t\tEthernet",
        "active_mtu:\t\t4096 (5)",
    ] {
        assert!(output.contains(expected), "no {expected:?} in\n{output}");
    }
    let gids = devinfo_gids(&output);
    assert!(gids.contains(&"::ffff:127.0.0.1".to_owned()), "{output}");
    assert!(gids.contains(&"::1".to_owned()), "{output}");
    assert_eq!(output.matches("RoCE v2").count(), gids.len(), "{output}");
}

#[test]
fn without_options_the_interfaces_that_are_up_become_devices() {
    let rig = or_skip!(Rig::loopback(UTILS));
    if !rig.network().is_isolated() {
        rocade_tests::skip!("cannot make a network namespace");
    }
    let script = "ip link add vt0 type veth peer name vt1 && ip addr add 192.0.2.1/24 dev vt0 && \
                  ip link set vt0 up && ip link set vt1 up";
    let made = rig.start_plain("ip", &["sh", "-c", script]).finish(LIMIT);
    if !made.status.success() {
        rocade_tests::skip!("cannot make a veth pair: {}", made.output.trim());
    }
    let output = rig
        .start_with("ibv_devinfo", &[], &["ibv_devinfo", "-v"])
        .finish(LIMIT)
        .expect_success();
    let gids = devinfo_gids(&output);
    let place = |gid: &str| gids.iter().position(|have| have == gid);
    let (outside, loopback) = (place("::ffff:192.0.2.1"), place("::ffff:127.0.0.1"));
    assert!(outside.is_some() && loopback.is_some(), "{output}");
    assert!(outside < loopback, "loopback is not last in\n{output}");
}

#[test]
fn libdir_holds_the_drop_in_libraries() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let output = rig.rocade(&["libdir"]).expect_success();
    let dir = Path::new(output.trim_end());
    for library in [
        "libibverbs.so.1",
        "librdmacm.so.1",
        "libmlx5.so.1",
        "libefa.so.1",
        "libmana.so.1",
    ] {
        assert!(
            dir.join(library).is_file(),
            "no {library} in {}",
            dir.display()
        );
    }
    let library_path = format!("LD_LIBRARY_PATH={}", dir.display());
    let listed = rig.start_plain("ibv_devices", &["env", &library_path, "ibv_devices"]);
    let listed = listed.finish(LIMIT).expect_success();
    assert!(listed.contains("rocade0"), "{listed}");
}

/// Checks that programs work with the files that `rocade install` copies below a prefix, including
/// the broker.
#[test]
fn an_installation_serves_programs() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let prefix = rig.dir().join("prefix");
    let shown = prefix.display();
    rig.rocade(&["install", "--prefix", &shown.to_string()])
        .expect_success();
    let command = format!("{shown}/bin/rocade");
    let words = [&command, "run", "--dev", "rocade0=lo", "--", "ibv_devices"];
    let listed = rig
        .start_plain("ibv_devices", &words)
        .finish(LIMIT)
        .expect_success();
    assert!(listed.contains("rocade0"), "{listed}");

    let library_path = format!("LD_LIBRARY_PATH={shown}/lib/rocade");
    let port = free_port();
    let number = port.to_string();
    let words = [
        "env",
        "ROCADE_IP=127.0.0.1",
        &library_path,
        "ibv_rc_pingpong",
        "-g",
        "0",
        "-p",
        &number,
    ];
    let mut server = rig.start_plain("server", &words);
    server.wait_listening(port, LIMIT);
    let client = rig.start_plain("client", &[&words[..], &["127.0.0.1"]].concat());
    client.finish(LIMIT).expect_success();
    server.finish(LIMIT).expect_success();

    rig.start_plain("uninstall", &[&command, "uninstall"])
        .finish(LIMIT)
        .expect_success();
    assert!(!prefix.exists());
}

/// Checks that programs with immediate binding find all symbols with their versions.
#[test]
fn all_symbols_are_there_at_once() {
    let needs = [UTILS, PERFTEST, &[("rping", "rdmacm-utils")]].concat();
    let rig = or_skip!(Rig::loopback(&needs));
    for program in [
        "ibv_devices",
        "ibv_asyncwatch",
        "ibv_rc_pingpong",
        "ibv_srq_pingpong",
        "ibv_uc_pingpong",
        "ibv_ud_pingpong",
        "ibv_xsrq_pingpong",
        "ib_write_bw",
        "ib_send_lat",
        "ib_read_bw",
        "ib_atomic_lat",
        "raw_ethernet_bw",
        "rping",
        "ucmatose",
        "rdma_server",
        "udaddy",
        "cmtime",
    ] {
        // With an unknown option each program prints its usage and exits.
        let words = ["env", "LD_BIND_NOW=1", program, "--no-such-option"];
        let output = rig
            .start(program, &Device::on("lo"), &words)
            .finish(LIMIT)
            .output;
        for message in [
            "symbol lookup error",
            "undefined symbol",
            "not found",
            "cannot open shared object",
            "No such file",
        ] {
            assert!(!output.contains(message), "{program}: {output}");
        }
    }
}
