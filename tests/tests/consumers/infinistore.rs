//! InfiniStore from PyPI, a store for key-value caches.

use std::path::Path;

use rocade_tests::{
    harness::{Device, Rig, free_port},
    or_skip,
};

use crate::{LIMIT, PYTHON, UTILS, pypi};

#[test]
fn puts_and_takes_by_rdma() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let package = or_skip!(pypi("infinistore-0.2.35"));
    let path = format!("PYTHONPATH={}", package.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/infinistore/transfer.py");
    let script = script.to_string_lossy().into_owned();
    let port = free_port().to_string();
    let words = ["env", &*path, PYTHON, &*script, "server", "rocade0", &*port];
    let mut server = rig.start("server", &Device::on("lo"), &words);
    server.wait_until("ready", 2 * LIMIT, |server| {
        server.output().contains("ready").then_some(())
    });
    let words = [
        "env",
        &*path,
        PYTHON,
        &*script,
        "client",
        "rocade0",
        &*port,
        "127.0.0.1",
    ];
    let client = rig.start("client", &Device::on("lo"), &words).finish(LIMIT);
    let output = client.expect_success();
    assert!(output.contains("verified"), "{output}\n{}", server.output());
}
