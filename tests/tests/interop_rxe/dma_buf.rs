//! DMA-bufs of the guest's newer kernel. The kernel of this machine may have neither udmabuf nor
//! heaps, so Rocade runs in the guest here.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use rocade_tests::{
    or_skip,
    skip::{Reason, missing_command},
};

use super::newer_rig;

const PROGRAM: &str = "dmabuf";

/// Compiles the example for users into a directory.
fn example(dir: &Path) -> Result<PathBuf, Reason> {
    if let Some(reason) = missing_command(&[("gcc", "gcc")]) {
        return Err(reason);
    }
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return Err(Reason::Package("libibverbs-dev".to_owned()));
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let program = dir.join(PROGRAM);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    gcc.arg(&program)
        .arg(examples.join(PROGRAM).with_extension("c"));
    let compiled = gcc.arg("-libverbs").status();
    assert!(compiled.is_ok_and(|status| status.success()), "gcc");
    Ok(program)
}

/// A peer writes to the memory of a DMA-buf, the program changes it by a mapping, and the peer
/// reads it.
#[test]
fn memory_of_a_dma_buf_is_written_and_read() {
    let (rig, guest) = or_skip!(newer_rig());
    let program = or_skip!(example(rig.dir()));
    let library = rig.rocade_path().with_file_name("libibverbs.so");
    for file in [&library, &program] {
        guest.put(file);
    }
    for kind in ["udmabuf", "heap"] {
        // The kernel's rxe holds port 4791 in the first network namespace.
        let script = format!(
            "mkdir -p /tmp/rocade && ln -sf /share/libibverbs.so /tmp/rocade/libibverbs.so.1 && \
             export LD_LIBRARY_PATH=/tmp/rocade ROCADE_BROKER=embedded ROCADE_DEVICES=rocade0=lo && \
             unshare -n sh -c 'ip link set lo up && exec /share/{PROGRAM} {kind}'"
        );
        let output = guest.shell(&script).expect_success();
        let line = format!("device memory ({kind}) written, changed and read");
        assert!(output.contains(&line), "{output}");
    }
}
