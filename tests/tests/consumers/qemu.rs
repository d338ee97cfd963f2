//! QEMU: migrates a guest to another process by RDMA.

use std::path::Path;

use rocade_tests::{
    harness::{Device, Rig, free_port},
    or_skip,
};

use crate::{LIMIT, LINKS, PYTHON};

const NEEDS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("ip", "iproute2"),
];

#[test]
fn a_guest_is_migrated() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/qemu/migrate.py");
        let (script, dir) = (script.to_string_lossy(), rig.dir().to_string_lossy());
        let port = free_port().to_string();
        let words = [PYTHON, &*script, &*dir, "127.0.0.1", &*port];
        let job = rig.start("migration", &Device::on("lo"), &words);
        let output = job.finish(2 * LIMIT).expect_success();
        assert!(output.contains("migrated, memory compared"), "{output}");
    }
}
