//! The manifests for users: valid for Kubernetes, and with arguments that the plugin accepts.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rocade_skip::Reason;

/// The distribution's Python, for which the package is installed.
const PYTHON: &str = "/usr/bin/python3";
const PACKAGE: &str = "kubernetes-validate-1.37.0";

/// Returns the directory into which `cargo xtask install` has installed the schemas.
fn schemas() -> Result<PathBuf, Reason> {
    let test = env::current_exe().unwrap();
    // target/<profile>/deps/<test>
    let target = test.ancestors().nth(3).unwrap();
    let path = target.join("pypi").join(PACKAGE);
    match path.is_dir() {
        true => Ok(path),
        false => Err(Reason::Package(format!(
            "{PACKAGE} (`cargo xtask install`)"
        ))),
    }
}

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

/// Returns the files below a directory, sorted.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files.sort();
    files
}

fn validate(schemas: &Path, files: &[PathBuf]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests.py");
    let mut python = Command::new(PYTHON);
    // Writes no cache into the directory, which other tests read.
    python
        .arg("-B")
        .arg(script)
        .args(files)
        .env("PYTHONPATH", schemas);
    python.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn manifests_are_valid_and_the_plugin_accepts_their_arguments() {
    let schemas = match schemas() {
        Ok(schemas) => schemas,
        Err(reason) => rocade_skip::skip!(reason),
    };
    let files = files_below(&manifests());
    let output = validate(&schemas, &files);
    let lines = text(&output.stdout);
    assert!(output.status.success(), "{lines}{}", text(&output.stderr));
    for file in &files {
        let line = format!("valid {}", file.display());
        assert!(lines.contains(&line), "{line} is not in {lines}");
    }
    let args: Vec<Vec<String>> = lines
        .lines()
        .filter_map(|line| line.strip_prefix("args "))
        .map(|args| serde_json::from_str(args).unwrap())
        .collect();
    assert!(
        args.iter()
            .any(|args| args.contains(&"--resource=rdma/ib".to_owned()))
    );
    for args in args {
        let mut plugin = Command::new(env!("CARGO_BIN_EXE_rocade-k8s"));
        let plugin = plugin.args(&args[1..]).args(["--kubelet-dir", "/no/such"]);
        let output = plugin.output().unwrap();
        // 2 would be a wrong command line.
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    }
}

#[test]
fn wrong_manifests_are_found() {
    let schemas = match schemas() {
        Ok(schemas) => schemas,
        Err(reason) => rocade_skip::skip!(reason),
    };
    let dir = tempfile::tempdir().unwrap();
    let examples = manifests().join("examples");
    for (name, right, wrong) in [
        ("ib-write-bw.yaml", "completionMode:", "completionmode:"),
        (
            "generic.yaml",
            "restartPolicy: Never",
            "restartPolicy: [Never]",
        ),
        ("mpijob.yaml", "slotsPerWorker:", "slotsPerworker:"),
        ("leaderworkerset.yaml", "image: debian", "picture: debian"),
        (
            "leaderworkerset.yaml",
            "kind: LeaderWorkerSet",
            "kind: LeaderWorkers",
        ),
    ] {
        let original = fs::read_to_string(examples.join(name)).unwrap();
        assert!(original.contains(right), "{right} is not in {name}");
        let file = dir.path().join(name);
        fs::write(&file, original.replace(right, wrong)).unwrap();
        let output = validate(&schemas, &[file]);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{name} with {wrong}: {output:?}"
        );
        let lines = text(&output.stdout);
        assert!(lines.contains("INVALID"), "{lines}");
    }
}
