//! NIXL from PyPI. It contains its own UCX and libibverbs, so Rocade's libibverbs has to be
//! preloaded.

use std::path::Path;

use rocade_tests::{
    harness::{Device, Process, Rig, free_port},
    or_skip,
};

use crate::{LIMIT, LINKS, PYTHON, UTILS, pypi};

const PACKAGE: &str = "nixl-1.5.1";
/// Loading all libraries and searching for plug-ins takes some time.
const PATIENCE: std::time::Duration = LIMIT.saturating_mul(2);

fn start(rig: &Rig, package: &Path, role: &str, port: &str, transports: &str) -> Process {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/nixl/transfer.py");
    let path = format!("PYTHONPATH={}", package.display());
    let command = format!(
        "LD_PRELOAD=$({} libdir)/libibverbs.so.1 exec {PYTHON} {} {role} {port} {transports}",
        rig.rocade_path().display(),
        script.display(),
    );
    let words = ["env", &*path, "sh", "-c", &*command];
    rig.start(role, &Device::on("lo"), &words)
}

#[test]
fn moves_data_over_its_own_ucx() {
    for (link, transports) in LINKS.into_iter().zip(["rc_verbs,ud_verbs", "ud_verbs"]) {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        let package = or_skip!(pypi(PACKAGE));
        let port = free_port().to_string();
        let mut target = start(&rig, &package, "target", &port, transports);
        target.wait_until("ready", PATIENCE, |target| {
            target.output().contains("ready").then_some(())
        });
        let initiator = start(&rig, &package, "initiator", &port, transports);
        let output = initiator.finish(PATIENCE).expect_success();
        assert!(output.contains("initiator has verified"), "{output}");
        let output = target.finish(PATIENCE).expect_success();
        assert!(output.contains("target has verified"), "{output}");
    }
}
