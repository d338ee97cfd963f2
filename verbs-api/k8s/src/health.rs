//! The health of a CDI device: all that a container gets of this node is there, and the broker is.

use std::path::{Path, PathBuf};

use rocade_emulator::broker::{self, BrokerError};
use rocade_emulator::config::BrokerConfig;

use crate::cdi::Edits;

/// The library that makes a directory of libraries one of Rocade.
const LIBRARY: &str = "libibverbs.so.1";

/// Checks what a device gives to a container.
///
/// # Errors
/// The cause, with what to do, if a container with this device would miss something.
pub(crate) fn check(edits: &Edits, require_broker: bool) -> Result<(), String> {
    for mount in &edits.mounts {
        exists(&mount.host_path, "is mounted in containers")?;
    }
    for node in &edits.device_nodes {
        let path = node.host_path.as_ref().unwrap_or(&node.path);
        exists(path, "is a device file of containers")?;
    }
    for dir in paths(edits, "LD_LIBRARY_PATH", &[':']) {
        exists(&dir.join(LIBRARY), "is what programs load")?;
    }
    for library in paths(edits, "LD_PRELOAD", &[':', ' ']) {
        exists(&library, "is preloaded in containers")?;
    }
    match paths(edits, "ROCADE_RUNTIME_DIR", &[]).pop() {
        Some(dir) => broker_answers(dir, require_broker),
        None if require_broker => Err(
            "its CDI device mounts no directory as ROCADE_RUNTIME_DIR, in which the broker of \
             --require-broker could be"
                .to_owned(),
        ),
        None => Ok(()),
    }
}

fn exists(path: &Path, role: &str) -> Result<(), String> {
    path.metadata().map(drop).map_err(|error| {
        format!(
            "{} {role}, but cannot be used: {error}. Install Rocade on this node again, and if \
             this plugin is in a container, mount the path there",
            path.display()
        )
    })
}

/// Returns the paths in a variable that come from the host, as they are there.
fn paths(edits: &Edits, name: &str, separators: &[char]) -> Vec<PathBuf> {
    let list = edits.variable(name).unwrap_or_default();
    let parts = list.split(|c| separators.contains(&c));
    let parts = parts.filter(|part| !part.is_empty());
    parts
        .filter_map(|part| edits.on_host(Path::new(part)))
        .collect()
}

/// Asks the broker of a runtime directory, in the network namespace of this process.
fn broker_answers(dir: PathBuf, required: bool) -> Result<(), String> {
    let shown = dir.display().to_string();
    let config = BrokerConfig {
        runtime_dir: Some(dir),
        ..BrokerConfig::default()
    };
    let Err(error) = broker::status(&config) else {
        return Ok(());
    };
    let is_fault = match &error {
        // The first program starts one. The broker of another user does not answer this process,
        // but it answers the programs of that user.
        BrokerError::NotRunning
        | BrokerError::ForeignBroker { .. }
        | BrokerError::RuntimeDir { .. } => required,
        _ => true,
    };
    if !is_fault {
        return Ok(());
    }
    let advice = match &error {
        BrokerError::NotRunning => "start it: rocade broker serve".to_owned(),
        BrokerError::Silent { .. } => "end its process, and programs start another".to_owned(),
        error => error.remedy(),
    };
    let end = if advice.is_empty() {
        ""
    } else {
        ". To go on, "
    };
    Err(format!("the broker in {shown}: {error}{end}{advice}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Returns edits that mount `dir` as `/r`.
    fn edits(dir: &Path, env: &[&str]) -> Edits {
        let mount = json!({ "hostPath": dir, "containerPath": "/r" });
        let value: Value = json!({ "env": env, "mounts": [mount] });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn everything_that_a_container_gets_has_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib");
        let env = ["LD_LIBRARY_PATH=/usr/lib:/r/lib", "LD_PRELOAD=/r/p.so:x.so"];
        let edits = edits(dir.path(), &env);
        let fault = |part: &str| {
            let cause = check(&edits, false).expect_err("something is missing");
            let path = dir.path().join(part);
            assert!(cause.contains(&*path.to_string_lossy()), "{cause}");
        };
        fault("lib/libibverbs.so.1");
        fs::create_dir(&lib).unwrap();
        fs::write(lib.join(LIBRARY), "").unwrap();
        fault("p.so");
        fs::write(dir.path().join("p.so"), "").unwrap();
        check(&edits, false).unwrap();
        fs::remove_dir_all(dir.path()).unwrap();
        let cause = check(&edits, false).expect_err("no directory");
        let role = format!("{} is mounted", dir.path().display());
        assert!(cause.starts_with(&role), "{cause}");
    }

    #[test]
    fn a_link_to_nothing_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/no/such", dir.path().join(LIBRARY)).unwrap();
        let edits = edits(dir.path(), &["LD_LIBRARY_PATH=/r"]);
        assert!(check(&edits, false).is_err());
    }

    #[test]
    fn device_files_have_to_be_there() {
        let node = json!({ "path": "/dev/x", "hostPath": "/no/such" });
        let edits: Edits = serde_json::from_value(json!({ "deviceNodes": [node] })).unwrap();
        let cause = check(&edits, false).expect_err("no such file");
        assert!(cause.starts_with("/no/such is a device file"), "{cause}");
    }

    #[test]
    fn a_broker_may_have_to_run_and_has_to_answer() {
        let dir = tempfile::tempdir().unwrap();
        let edits = edits(dir.path(), &["ROCADE_RUNTIME_DIR=/r"]);
        check(&edits, false).unwrap();
        let cause = check(&edits, true).expect_err("no broker");
        assert!(cause.contains("rocade broker serve"), "{cause}");

        let config = BrokerConfig {
            runtime_dir: Some(dir.path().to_owned()),
            ..BrokerConfig::default()
        };
        let broker = thread::spawn({
            let config = config.clone();
            move || broker::serve(&config)
        });
        let end = Instant::now() + LIMIT;
        while check(&edits, true).is_err() {
            assert!(!broker.is_finished(), "{:?}", broker.join());
            assert!(Instant::now() < end, "{:?}", check(&edits, true));
            thread::yield_now();
        }
        broker::stop(&config).unwrap();
        broker.join().unwrap().unwrap();
        check(&edits, true).expect_err("it has ended");
        check(&edits, false).unwrap();
    }

    #[test]
    fn a_required_broker_needs_a_directory() {
        let cause = check(&Edits::default(), true).expect_err("no directory");
        assert!(cause.contains("ROCADE_RUNTIME_DIR"), "{cause}");
        check(&Edits::default(), false).unwrap();
    }
}
