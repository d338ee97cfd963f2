//! librpma, for remote persistent memory: writes, flushes and reads over a connection of librdmacm.

use std::path::Path;

use rocade_tests::{
    harness::{Device, Process, Rig, free_port},
    or_skip,
};

use crate::{LIMIT, PYTHON};

const NEEDS: &[(&str, &str)] = &[
    ("/usr/lib/x86_64-linux-gnu/librpma.so.0", "librpma0"),
    ("ip", "iproute2"),
];

fn start(rig: &Rig, role: &str, port: &str) -> Process {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/librpma/transfer.py");
    let script = script.to_string_lossy();
    let words = [PYTHON, &*script, role, "127.0.0.1", port];
    rig.start(role, &Device::on("lo"), &words)
}

#[test]
fn memory_is_written_flushed_and_read() {
    // The connection manager needs UDP or the default link.
    for link in crate::LINKS {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        let port = free_port().to_string();
        let mut server = start(&rig, "server", &port);
        server.wait_until("ready", LIMIT, |server| {
            server.output().contains("ready").then_some(())
        });
        let client = start(&rig, "client", &port);
        for side in [client, server] {
            let output = side.finish(LIMIT).expect_success();
            assert!(output.contains("has compared everything"), "{output}");
        }
    }
}
