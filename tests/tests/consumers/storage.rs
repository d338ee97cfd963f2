//! Programs that access storage: fio's RDMA engine, and a disk over iSER (tgt and libiscsi).

use std::fs;

use rocade_tests::{harness::Rig, or_skip};

use crate::{LIMIT, LINKS, cm};

const FIO: &[(&str, &str)] = &[("fio", "fio"), ("ip", "iproute2")];

/// Moves 4 MB in blocks of 64 KB, several at a time, by SENDs or by direct access to the memory of
/// client or server. The server posts receives for all blocks, because fio does not retry after an
/// RNR NAK (`rnr_retry_count` 0). It only waits half a second before the first message.
fn fio(verb: &str) {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(FIO)).with_link(link);
        let both = "--ioengine=rdma --port=8888 --bs=64k --size=4m";
        let server = format!("fio --name=server {both} --rw=read --iodepth=128");
        let client = format!(
            "fio --name=client {both} --hostname=127.0.0.1 --verb={verb} --rw=write --iodepth=16"
        );
        let server = cm::serve(&rig, &server, 8888);
        let client = cm::start(&rig, &client).finish(LIMIT).expect_success();
        assert!(client.contains("issued rwts: total=0,64,0,0"), "{client}");
        let server = server.finish(LIMIT).expect_success();
        for output in [client, server] {
            assert!(output.contains("err= 0"), "{output}");
        }
    }
}

#[test]
fn fio_writes() {
    fio("write");
}

#[test]
fn fio_reads() {
    fio("read");
}

#[test]
fn fio_sends() {
    fio("send");
}

const TGT: &[(&str, &str)] = &[
    ("/usr/sbin/tgtd", "tgt"),
    ("iscsi-inq", "libiscsi-bin"),
    ("iscsi-test-cu", "libiscsi-bin"),
    ("ip", "iproute2"),
];

const INITIATOR: &str = "iqn.2026-01.rocade:initiator";
const TARGET: &str = "iqn.2026-01.rocade:target";

/// Runs libiscsi's tests on a disk over iSER, which write, read and compare. A mismatch makes them
/// fail.
#[test]
fn a_disk_over_iser() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(TGT)).with_link(link);
        let disk = rig.dir().join("disk");
        let file = fs::File::create(&disk).expect("the file can be created");
        file.set_len(16 << 20).expect("the length can be set");
        // The socket by which tgtadm finds tgtd.
        let socket = format!("TGT_IPC_SOCKET={}", rig.dir().join("tgtd").display());
        let words = format!("env {socket} /usr/sbin/tgtd -f --iser pool_sz_mb=64");
        let mut server = cm::serve(&rig, &words, 3260);
        let target = format!("--op new --mode target --tid 1 -T {TARGET}");
        let unit = format!(
            "--op new --mode logicalunit --tid 1 --lun 1 -b {}",
            disk.display()
        );
        // This version of tgt requires both: an address and a name.
        let from = "--op bind --mode target --tid 1 -I ALL".to_owned();
        let whom = format!("--op bind --mode target --tid 1 -Q {INITIATOR}");
        for step in [target, unit, from, whom] {
            let words = format!("env {socket} /usr/sbin/tgtadm --lld iser {step}");
            let words: Vec<&str> = words.split(' ').collect();
            let done = rig.start_plain("tgtadm", &words).finish(LIMIT);
            done.expect_success();
        }
        let disk = format!("iser://127.0.0.1:3260/{TARGET}/1");
        let inquiry = cm::start(&rig, &format!("iscsi-inq -i {INITIATOR} {disk}"));
        let output = inquiry.finish(LIMIT).expect_success();
        assert!(output.contains("Product:VIRTUAL-DISK"), "{output}");
        for tests in ["Write16", "Read16", "Verify10", "OrWrite"] {
            // libiscsi 1.19 reads uninitialized memory of a connection, so this setting makes
            // allocations return zeroed memory.
            let words = format!(
                "env MALLOC_PERTURB_=255 iscsi-test-cu -n -d -i {INITIATOR} -t SCSI.{tests} {disk}"
            );
            let output = cm::start(&rig, &words).finish(LIMIT).expect_success();
            let asserts = output
                .lines()
                .find_map(|line| line.trim().strip_prefix("asserts"));
            let asserts = asserts.unwrap_or_else(|| panic!("{tests}: {output}"));
            let counts: Vec<u32> = asserts
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect();
            // The counts: total, run, passed, failed.
            let [all, run, passed, failed] = counts[..] else {
                panic!("{tests}: {output}");
            };
            assert!(
                all > 1000 && run == all && passed == all && failed == 0,
                "{output}"
            );
        }
        server.kill();
    }
}
