//! Programs that read and write storage: fio's engine for RDMA.

use rocade_tests::{harness::Rig, or_skip};

use crate::{LIMIT, LINKS, cm};

const FIO: &[(&str, &str)] = &[("fio", "fio"), ("ip", "iproute2")];

/// The client moves 4 MB in blocks of 64 KB, several at a time; its memory or the server's is written or read directly. The server has
/// room for all of them: to messages for which there is none fio gives no second chance (`rnr_retry_count` 0), it rather waits for
/// half a second before it sends the first.
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
