//! The conformance suite as its users run it: the command `rocade-conformance`, and the agent in C.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::{Process, Rig};
use crate::skip::{Reason, missing_command};

/// Compiles the agent with the machine's compiler and libibverbs into the rig's directory.
///
/// # Errors
/// The missing package.
///
/// # Panics
/// If the compiler reports an error.
pub fn conformance_agent(rig: &Rig) -> Result<PathBuf, Reason> {
    if let Some(reason) = missing_command(&[("gcc", "gcc")]) {
        return Err(reason);
    }
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return Err(Reason::Package("libibverbs-dev".to_owned()));
    }
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        return Err(Reason::Package("librdmacm-dev".to_owned()));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let agent = rig.dir().join("conformance-agent");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&agent)
        .args(
            [
                "agent.c",
                "states.c",
                "windows.c",
                "groups.c",
                "serve.c",
                "cm.c",
            ]
            .map(|file| root.join("../conformance/agent").join(file)),
        )
        .args(["-lrdmacm", "-libverbs"]);
    assert!(gcc.status().is_ok_and(|status| status.success()), "gcc");
    Ok(agent)
}

/// Starts the suite in the rig's network with the named expectation files. Later files override
/// earlier ones.
///
/// # Panics
/// If it cannot be started.
pub fn start_conformance(rig: &Rig, expectations: &[&str], arguments: &[&str]) -> Process {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let suite = rig.rocade_path().with_file_name("rocade-conformance");
    let folder = root.join("../conformance/expectations");
    let files: Vec<_> = expectations
        .iter()
        .map(|name| folder.join(name).to_string_lossy().into_owned())
        .collect();
    let suite = suite.to_string_lossy();
    let mut words = vec![&*suite, "--verbose"];
    words.extend(files.iter().flat_map(|file| ["--expect", file]));
    words.extend(arguments);
    rig.start_plain("rocade-conformance", &words)
}
