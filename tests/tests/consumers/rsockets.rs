//! Programs on rsockets: rdmacm-utils, and TCP programs under librspreload.

use std::{
    fs,
    io::Read,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rocade_tests::{
    harness::{Device, Process, Rig},
    or_skip,
    skip::Reason,
};

use crate::{LIMIT, LINKS, RDMACM, cm};

/// The port space of stream sockets, as in service IDs.
const TCP: u16 = 0x0106;
const IP: &str = "127.0.0.1";
/// Debian's library that redirects socket calls to rsockets.
const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";
/// Runs a server and a client, which both have to succeed, and returns their outputs.
fn pair(rig: &Rig, server: &str, port: u16, client: &str) -> [String; 2] {
    let server = cm::serve(rig, server, port);
    let client = cm::start(rig, client).finish(LIMIT).expect_success();
    let server = server.finish(LIMIT).expect_success();
    for output in [&client, &server] {
        let has_warning = output.lines().any(|line| line.starts_with("rocade"));
        assert!(!has_warning, "{output}");
        assert!(!output.contains("data verification failed"), "{output}");
    }
    [server, client]
}

/// Runs `name` as server and client at an address, over both links.
fn on_all_links(name: &str, port: u16, arguments: &str, address: &str, expected: &[&str]) {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
        exchange(&rig, name, port, arguments, address, expected);
    }
}

/// Runs `name` as server and client in a rig. Both outputs must contain each word of `expected`.
fn exchange(rig: &Rig, name: &str, port: u16, arguments: &str, address: &str, expected: &[&str]) {
    let server = format!("{name} -b {address} {arguments}");
    let client = format!("{name} -s {address} {arguments}");
    let outputs = pair(rig, &server, port, &client);
    for word in expected {
        let both = outputs.iter().all(|output| output.contains(word));
        assert!(
            both,
            "{word}: server\n{}\nclient\n{}",
            outputs[0], outputs[1]
        );
    }
}

/// The program verifies every byte, in both directions, also of messages beyond its buffers.
#[test]
fn rstream_of_many_sizes() {
    for (size, times) in [
        (64, 100),
        (1000, 100),
        (4096, 50),
        (65536, 50),
        (1_048_576, 10),
        (6_000_000, 2),
    ] {
        let arguments = format!("-T v -S {size} -C {times} -I {times}");
        on_all_links("rstream", 7471, &arguments, IP, &["custom"]);
    }
}

/// Tests blocking calls, polling and non-blocking calls, and address resolution by the connection
/// manager.
#[test]
fn rstream_in_all_ways() {
    for way in ["-T b", "-T a", "-T n", "-T r", "-f ip", "-k 30"] {
        let arguments = format!("-T v {way} -S 5000 -C 50 -I 50 -B 8192 -i 128");
        on_all_links("rstream", 7471, &arguments, IP, &["custom"]);
    }
}

#[test]
fn rstream_over_ipv6() {
    let arguments = "-T v -f ipv6 -S 5000 -C 20 -I 20";
    on_all_links("rstream", 7471, arguments, "::1", &["custom"]);
}

/// Uses GIDs, InfiniBand's own addresses, each of which is an IP address of the device.
#[test]
fn rstream_by_gid() {
    let arguments = "-T v -f gid -S 5000 -C 20 -I 20";
    on_all_links("rstream", 7471, arguments, "::ffff:127.0.0.1", &["custom"]);
    on_all_links("rstream", 7471, arguments, "::1", &["custom"]);
}

/// Uses memory that the peer writes directly. The waiting process polls this memory without a
/// system call until its time slice ends. With fewer CPUs than programs a round trip therefore
/// costs a time slice, so there are few of them.
#[test]
fn riostream_of_many_sizes() {
    for size in [64, 1000, 4096, 100_000, 1_000_000] {
        let arguments = format!("-T v -S {size} -I 20 -C 20");
        on_all_links("riostream", 7471, &arguments, IP, &["custom"]);
    }
}

#[test]
fn riostream_in_all_ways() {
    for way in ["-T b", "-T a", "-T n"] {
        let arguments = format!("-T v {way} -S 5000 -C 50 -I 50");
        on_all_links("riostream", 7471, &arguments, IP, &["custom"]);
    }
}

/// Copies 100 MB in which no two pages are equal.
#[test]
fn rcopy_of_a_large_file() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
        let (from, to) = (rig.dir().join("from"), rig.dir().join("to"));
        let words = (0_u32..25_000_000).flat_map(|at| at.wrapping_mul(0x9e37_79b9).to_le_bytes());
        fs::write(&from, words.collect::<Vec<u8>>()).expect("the file can be written");
        let mut server = cm::serve(&rig, "rcopy", 7427);
        let (from_name, to_name) = (from.display(), to.display());
        let client = cm::start(&rig, &format!("rcopy {from_name} 127.0.0.1:{to_name}"));
        let output = client.finish(LIMIT).expect_success();
        assert!(output.contains("100000000 bytes"), "{output}");
        assert!(same(&from, &to), "the copy differs");
        server.kill();
    }
}

fn same(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| {
        let mut bytes = Vec::new();
        let mut file = fs::File::open(path).expect("the file is there");
        file.read_to_end(&mut bytes).expect("it can be read");
        bytes
    };
    read(one) == read(other)
}

/// Starts a server on a UDP port, which is known to no broker, and waits until the socket exists.
fn serve_datagrams(rig: &Rig, words: &str, port: u16) -> Process {
    let mut server = cm::start(rig, words);
    let line = format!(":{port} ");
    server.wait_until("its UDP port", LIMIT, |_| {
        let sockets = rig.start_plain("ss", &["ss", "-lun"]).finish(LIMIT);
        sockets.output.contains(&line).then_some(())
    });
    server
}

/// Runs datagrams, which the server counts or returns. The server never ends.
#[test]
fn udpong() {
    for link in LINKS {
        for way in ["-T e", "-T b -T e", "-T a -T e", "-T b"] {
            let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
            let mut server = serve_datagrams(&rig, &format!("udpong -b 127.0.0.1 {way}"), 7174);
            for size in [64, 1000, 1400] {
                let client = format!("udpong -s 127.0.0.1 {way} -S {size} -C 300");
                let output = cm::start(&rig, &client).finish(LIMIT).expect_success();
                assert!(output.contains("custom"), "{output}");
            }
            server.kill();
        }
    }
}

/// Checks that a process waiting for a killed peer ends soon, in both roles.
#[test]
fn a_killed_peer_is_noticed() {
    for link in LINKS {
        for survivor in 0..2 {
            let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
            let arguments = "-T b -S 1000 -C 1 -I 100000000";
            let server = cm::serve(&rig, &format!("rstream -b 127.0.0.1 {arguments}"), 7471);
            let client = cm::start(&rig, &format!("rstream -s 127.0.0.1 {arguments}"));
            let mut both = [server, client];
            // Waits until both processes transfer data.
            let busy = Instant::now() + LIMIT;
            for process in &both {
                let at_it = Duration::from_millis(100);
                while process.cpu_time().unwrap_or_default() < at_it && Instant::now() < busy {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            both[1 - survivor].kill();
            let [server, client] = both;
            let left = if survivor == 0 { server } else { client };
            left.finish(LIMIT);
        }
    }
}

/// Creates a rig for `program` under librspreload, or returns the missing package.
fn preload(program: &'static str, package: &'static str) -> Result<Rig, Reason> {
    if !Path::new(PRELOAD).is_file() {
        return Err(Reason::Package("librdmacm1".to_owned()));
    }
    Rig::loopback(&[(program, package), ("ip", "iproute2")])
}

fn start_preloaded(rig: &Rig, environment: &str, words: &str) -> Process {
    let preload = format!("LD_PRELOAD={PRELOAD}");
    let words: Vec<&str> = ["env", &preload]
        .into_iter()
        .chain(environment.split_whitespace())
        .chain(words.split(' '))
        .collect();
    rig.start(words[2], &Device::on("lo"), &words)
}

/// Runs a program with TCP's calls, which waits in each possible way, and a server that forks.
/// rstream verifies every byte. The capture shows that the bytes went over RDMA.
#[test]
fn servers_of_all_kinds_under_librspreload() {
    let ways = [
        "-T s -T b",
        "-T s -T n",
        "-T s -T a",
        "-T f -T b",
        "-T f -T a",
    ];
    for link in LINKS {
        for way in ways {
            let rig = or_skip!(preload("rstream", "rdmacm-utils")).with_link(link);
            let file = rig.dir().join("capture.pcapng");
            let path = file.to_string_lossy().into_owned();
            let rig = rig.with_options(&["--capture", &path]);
            let forks = way.starts_with("-T f");
            let environment = if forks { "RDMAV_FORK_SAFE=1" } else { "" };
            let both = format!("127.0.0.1 {way} -T v -S 5000 -C 20 -I 10");
            let mut server =
                start_preloaded(&rig, environment, &format!("stdbuf -oL rstream -b {both}"));
            if forks {
                // A forking server begins with a kernel socket.
                server.wait_listening(7471, LIMIT);
            } else {
                rig.wait_service(&mut server, TCP, 7471, LIMIT);
            }
            let client = format!("stdbuf -oL rstream -s {both}");
            let client = start_preloaded(&rig, environment, &client).finish(LIMIT);
            for output in [client, server.finish(LIMIT)] {
                let output = output.expect_success();
                assert!(output.contains("custom"), "{output}");
                assert!(!output.contains("data verification failed"), "{output}");
            }
            // Each direction transfers twice as much.
            let captured = fs::metadata(&file).map_or(0, |file| file.len());
            assert!(captured > 5000 * 20 * 10 / 2, "{way}: {captured} bytes");
        }
    }
}

/// Runs a TCP program. The listener in the broker shows that it uses RDMA.
#[test]
fn sockperf_under_librspreload() {
    for link in LINKS {
        let rig = or_skip!(preload("sockperf", "sockperf")).with_link(link);
        let server = "sockperf sr --tcp -i 127.0.0.1 -p 6001";
        let mut server = start_preloaded(&rig, "", server);
        rig.wait_service(&mut server, TCP, 6001, LIMIT);
        for client in [
            "pp -t 1",
            "ping-pong -t 1 -m 5000 --full-rtt",
            "tp -t 1 -m 1000",
        ] {
            let words = format!("sockperf {client} --tcp -i 127.0.0.1 -p 6001");
            let output = start_preloaded(&rig, "", &words);
            let output = output.finish(LIMIT).expect_success();
            if client.starts_with("tp") {
                assert!(output.contains("Message Rate is"), "{output}");
                continue;
            }
            assert!(output.contains("percentile 50.000"), "{output}");
            assert!(
                output.contains("# dropped messages = 0; # duplicated messages = 0"),
                "{output}"
            );
        }
        server.kill();
    }
}
