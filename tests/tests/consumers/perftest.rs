//! perftest's programs over RC, UC and UD, over UDP and through shared memory.

use rocade_tests::{
    harness::{Perftest, Rig},
    or_skip,
};

use crate::{LIMIT, PERFTEST};

macro_rules! programs {
    ($($name:ident: $program:literal $arguments:expr;)*) => {$(
        #[test]
        fn $name() {
            let rig = or_skip!(Rig::loopback(PERFTEST)).with_link("udp");
            Perftest::new($program, &$arguments).run(&rig, LIMIT);
        }
    )*

    /// The same through shared memory, and by no other way.
    mod shared_memory {
        use super::*;

        $(
            #[test]
            fn $name() {
                let rig = or_skip!(Rig::loopback(PERFTEST)).with_link("shm");
                Perftest::new($program, &$arguments).run(&rig, LIMIT);
            }
        )*
    }};
}

/// perftest looks at vendor and part to find out what a device can do.
const CONNECTX_5: &str = "0x02c9:0x1017";

macro_rules! dynamic {
    ($($name:ident: $program:literal $arguments:expr;)*) => {
        /// The same over dynamic connections.
        mod dynamic {
            use super::*;

            fn run(link: &'static str, program: &str, arguments: &[&str]) {
                let rig = or_skip!(Rig::loopback(PERFTEST));
                let rig = rig.with_link(link).with_identity(CONNECTX_5);
                let arguments = [arguments, &["-c", "DC"]].concat();
                Perftest::new(program, &arguments).run(&rig, LIMIT);
            }

            $(
                #[test]
                fn $name() {
                    for link in ["udp", "shm"] {
                        run(link, $program, &$arguments);
                    }
                }
            )*
        }
    };
}

//= DCU-01 DCU-02 DCU-06 type=test
dynamic! {
    write_bw: "ib_write_bw" ["-s", "65536", "-n", "1000"];
    write_lat: "ib_write_lat" ["-s", "64", "-n", "1000"];
    send_bw: "ib_send_bw" ["-s", "65536", "-n", "1000"];
    send_lat: "ib_send_lat" ["-s", "64", "-n", "1000"];
    read_bw: "ib_read_bw" ["-s", "65536", "-n", "1000"];
    read_lat: "ib_read_lat" ["-s", "64", "-n", "1000"];
    atomic_bw: "ib_atomic_bw" ["-n", "1000"];
    atomic_lat: "ib_atomic_lat" ["-n", "1000"];
    write_bw_both_ways: "ib_write_bw" ["-s", "65536", "-n", "500", "-b"];
    write_bw_four_qps: "ib_write_bw" ["-s", "4096", "-n", "500", "-q", "4"];
    write_bw_inline: "ib_write_bw" ["-s", "64", "-n", "1000", "-I", "64"];
    write_lat_inline: "ib_write_lat" ["-s", "64", "-n", "500", "-I", "64"];
    send_bw_both_ways_four_qps: "ib_send_bw" ["-s", "4096", "-n", "500", "-b", "-q", "4"];
    send_bw_all_sizes: "ib_send_bw" ["-a", "-n", "20"];
    send_bw_post_list: "ib_send_bw" ["-s", "4096", "-n", "512", "-l", "8"];
    read_bw_both_ways: "ib_read_bw" ["-s", "4096", "-n", "500", "-b"];
    read_bw_four_qps: "ib_read_bw" ["-s", "4096", "-n", "500", "-q", "4"];
    atomic_bw_both_ways: "ib_atomic_bw" ["-n", "500", "-b"];
    atomic_bw_four_qps: "ib_atomic_bw" ["-n", "500", "-q", "4"];
}

programs! {
    write_bw: "ib_write_bw" ["-s", "65536", "-n", "1000"];
    write_lat: "ib_write_lat" ["-s", "65536", "-n", "1000"];
    send_bw: "ib_send_bw" ["-s", "65536", "-n", "1000"];
    send_lat: "ib_send_lat" ["-s", "65536", "-n", "1000"];
    read_bw: "ib_read_bw" ["-s", "65536", "-n", "1000"];
    read_lat: "ib_read_lat" ["-s", "65536", "-n", "1000"];
    // Atomics are 8 bytes.
    atomic_bw: "ib_atomic_bw" ["-n", "1000"];
    atomic_lat: "ib_atomic_lat" ["-n", "1000"];
    atomic_bw_compare_and_swap: "ib_atomic_bw" ["-n", "1000", "-A", "CMP_AND_SWAP"];
    atomic_lat_compare_and_swap: "ib_atomic_lat" ["-n", "1000", "-A", "CMP_AND_SWAP"];
    write_bw_inline: "ib_write_bw" ["-s", "64", "-n", "5000", "-I", "64"];
    write_lat_small: "ib_write_lat" ["-s", "2", "-n", "1000"];
    send_lat_small: "ib_send_lat" ["-s", "2", "-n", "1000"];
    send_bw_with_events: "ib_send_bw" ["-s", "65536", "-n", "1000", "-e"];
    write_bw_both_ways: "ib_write_bw" ["-s", "65536", "-n", "1000", "-b"];
    send_bw_both_ways: "ib_send_bw" ["-s", "65536", "-n", "1000", "-b"];
    write_bw_four_qps: "ib_write_bw" ["-s", "65536", "-n", "1000", "-q", "4"];
    read_bw_mtu_1024: "ib_read_bw" ["-s", "65536", "-n", "1000", "-m", "1024"];
    send_bw_srq: "ib_send_bw" ["-s", "65536", "-n", "1000", "--use-srq"];
    send_bw_srq_both_ways_four_qps: "ib_send_bw" ["-s", "4096", "-n", "1000", "--use-srq", "-b", "-q", "4"];
    send_lat_srq: "ib_send_lat" ["-s", "64", "-n", "1000", "--use-srq"];
    send_bw_xrc: "ib_send_bw" ["-s", "65536", "-n", "1000", "-c", "XRC"];
    send_bw_xrc_both_ways_four_qps: "ib_send_bw" ["-s", "4096", "-n", "1000", "-c", "XRC", "-b", "-q", "4"];
    send_lat_xrc: "ib_send_lat" ["-s", "64", "-n", "1000", "-c", "XRC"];
    write_bw_xrc: "ib_write_bw" ["-s", "65536", "-n", "1000", "-c", "XRC"];
    read_bw_xrc: "ib_read_bw" ["-s", "65536", "-n", "1000", "-c", "XRC"];
    atomic_bw_xrc: "ib_atomic_bw" ["-n", "1000", "-c", "XRC"];
    write_lat_xrc: "ib_write_lat" ["-s", "4096", "-n", "1000", "-c", "XRC"];
    read_lat_xrc: "ib_read_lat" ["-s", "4096", "-n", "1000", "-c", "XRC"];
    atomic_lat_xrc: "ib_atomic_lat" ["-n", "1000", "-c", "XRC"];
    send_bw_xrc_all_sizes: "ib_send_bw" ["-a", "-n", "20", "-c", "XRC"];
    send_bw_xrc_with_events: "ib_send_bw" ["-s", "65536", "-n", "1000", "-c", "XRC", "-e"];
    write_bw_xrc_post_list: "ib_write_bw" ["-s", "4096", "-n", "1024", "-c", "XRC", "-l", "8"];
    send_lat_xrc_inline: "ib_send_lat" ["-s", "64", "-n", "1000", "-c", "XRC", "-I", "64"];
    uc_send_bw_srq: "ib_send_bw" ["-c", "UC", "-s", "4096", "-n", "1000", "--use-srq"];
    ud_send_bw_srq: "ib_send_bw" ["-c", "UD", "-s", "1024", "-n", "1000", "--use-srq"];
    uc_write_bw: "ib_write_bw" ["-c", "UC", "-s", "65536", "-n", "1000"];
    uc_write_lat: "ib_write_lat" ["-c", "UC", "-s", "65536", "-n", "1000"];
    uc_send_bw: "ib_send_bw" ["-c", "UC", "-s", "65536", "-n", "1000"];
    uc_send_lat: "ib_send_lat" ["-c", "UC", "-s", "4096", "-n", "1000"];
    uc_write_bw_both_ways: "ib_write_bw" ["-c", "UC", "-s", "65536", "-n", "1000", "-b"];
    ud_send_bw: "ib_send_bw" ["-c", "UD", "-n", "1000"];
    ud_send_bw_small: "ib_send_bw" ["-c", "UD", "-s", "64", "-n", "5000"];
    ud_send_bw_with_events: "ib_send_bw" ["-c", "UD", "-n", "1000", "-e"];
    ud_send_bw_post_list: "ib_send_bw" ["-c", "UD", "-n", "1024", "-l", "8"];
    ud_send_lat: "ib_send_lat" ["-c", "UD", "-s", "64", "-n", "1000"];
    ud_send_lat_inline: "ib_send_lat" ["-c", "UD", "-s", "64", "-n", "1000", "-I", "64"];
    write_bw_post_list: "ib_write_bw" ["-s", "4096", "-n", "1024", "-l", "8"];
}
