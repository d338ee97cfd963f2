//! Open MPI's OpenSHMEM over UCX: puts, gets and atomics in symmetric memory.

use std::path::Path;

use rocade_tests::{
    harness::{Device, Rig},
    or_skip,
};

use crate::{LIMIT, LINKS, PYTHON};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/liboshmem.so.40";

const NEEDS: &[(&str, &str)] = &[
    ("oshrun", "openmpi-bin"),
    (LIBRARY, "libopenmpi3"),
    ("env", "coreutils"),
];

#[test]
fn symmetric_memory_is_put_got_and_counted_in() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/openshmem/exchange.py");
        let script = script.to_string_lossy();
        let words = format!(
            "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 oshrun --oversubscribe -np 3 \
             --mca spml ucx --mca spml_ucx_tls any --mca spml_ucx_devices any --mca pml ucx \
             --mca pml_ucx_tls any --mca pml_ucx_devices any --mca btl self --mca memheap_base_max_segments 8 \
             -x SHMEM_SYMMETRIC_SIZE=16M -x UCX_TLS=rc_verbs,ud_verbs,self -x UCX_NET_DEVICES=rocade0:1 \
             {PYTHON} {script} {LIBRARY}"
        );
        let words: Vec<&str> = words.split_whitespace().collect();
        let job = rig.start("oshrun", &Device::on("lo"), &words);
        // The exit status is meaningless: this Open MPI crashes after `shmem_finalize`, over TCP
        // without Rocade too.
        let output = job.finish(2 * LIMIT).output;
        assert!(
            output.contains("3 elements have compared everything"),
            "{output}"
        );
    }
}
