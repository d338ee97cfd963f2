//! Fuzzing with libFuzzer on a stable compiler.
//!
//! `cargo xtask test` has a short run of the same targets without it (`tests/fuzz-targets`).
//! `tests/fuzz` is a workspace of its own: one program per file of `fuzz_targets`. Its
//! `.cargo/config.toml` asks for the compiler's coverage pass by stable flags, so neither a nightly
//! toolchain nor cargo-fuzz is needed. `tests/fuzz/corpus/<target>` holds inputs that are kept,
//! `tests/fuzz/artifacts/<target>` inputs that crash.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    step,
    tally::Tally,
    workspace::{Workspace, host_triple},
};

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Builds the fuzz targets and runs each (or those in `only`) for so many seconds.
pub(crate) fn run(workspace: &Workspace, seconds: u32, only: &[String]) -> Tally {
    let dir = workspace.root().join("tests/fuzz");
    let targets = match targets(&dir) {
        Ok(targets) => targets,
        Err(error) => {
            eprintln!(
                "xtask: cannot list the fuzz targets in {}: {error}",
                dir.display()
            );
            return Tally::FAIL;
        }
    };
    if let Some(unknown) = only.iter().find(|name| !targets.contains(name)) {
        eprintln!(
            "xtask: no fuzz target {unknown}; there are {}",
            targets.join(", ")
        );
        return Tally::FAIL;
    }
    let Some(triple) = host_triple() else {
        eprintln!("xtask: rustc does not say what its host is");
        return Tally::FAIL;
    };
    let build_dir = workspace.target().join("fuzz");
    if !step::run(
        "fuzz targets: build",
        BUILD_LIMIT,
        build(workspace, &dir, &build_dir, &triple),
    )
    .success
    {
        return Tally::FAIL;
    }
    let mut tally = Tally::default();
    for target in targets
        .iter()
        .filter(|target| only.is_empty() || only.contains(target))
    {
        let program = build_dir.join(&triple).join("release").join(target);
        let limit = Duration::from_secs(u64::from(seconds) + 120);
        let headline = format!("fuzz {target} for {seconds} s");
        tally = tally
            + match session(&dir, &program, target, seconds) {
                Ok(command) => step::run(&headline, limit, command).as_one(),
                Err(error) => {
                    eprintln!("xtask: {headline}: {error}");
                    Tally::FAIL
                }
            };
    }
    tally
}

/// Names of the targets, sorted.
fn targets(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir.join("fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(
                path.file_stem()
                    .map(|stem| stem.to_string_lossy().into_owned()),
            );
        }
    }
    names.sort();
    Ok(names)
}

/// The build command: run in `tests/fuzz`, where cargo finds the flags.
fn build(workspace: &Workspace, dir: &Path, build_dir: &Path, triple: &str) -> Command {
    let mut command = workspace.cargo(&[
        "build",
        "--release",
        "--bins",
        "--locked",
        "--target",
        triple,
    ]);
    command
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", build_dir)
        .env_remove("RUSTFLAGS");
    command
}

/// One run of a target: new inputs go to a scratch corpus in the build directory, the kept ones are
/// only read.
fn session(dir: &Path, program: &Path, target: &str, seconds: u32) -> io::Result<Command> {
    let artifacts = dir.join("artifacts").join(target);
    let kept = dir.join("corpus").join(target);
    let scratch = scratch_corpus(program, target);
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(program);
    command.current_dir(dir);
    command.arg(format!("-max_total_time={seconds}"));
    fs::create_dir_all(&scratch)?;
    command.arg("-timeout=10").arg("-rss_limit_mb=2048");
    command.arg("-print_final_stats=1").arg("-verbosity=0");
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(&scratch);
    if kept.is_dir() {
        command.arg(&kept);
    }
    Ok(command)
}

fn scratch_corpus(program: &Path, target: &str) -> PathBuf {
    program.with_file_name("corpus").join(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The programs are built by `cargo xtask fuzz` only, so nothing else notices what is wrong.
    #[test]
    fn each_target_has_a_program_and_the_lock_file_is_complete() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).expect("the manifest");
        for name in targets(&dir).expect("the targets") {
            let program = dir.join("fuzz_targets").join(&name).with_extension("rs");
            let program = fs::read_to_string(program).expect("a program");
            assert!(program.contains("fuzz_target!(|input: &[u8]|"), "{name}");
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        }
        for source in fs::read_dir(dir.join("../fuzz-targets/src")).expect("the library") {
            let name = source.expect("a file").file_name();
            let is_target = !["lib.rs", "inputs.rs", "program.rs"]
                .iter()
                .any(|it| name == *it);
            assert!(
                !is_target || dir.join("fuzz_targets").join(&name).is_file(),
                "{name:?}"
            );
        }
        let asked = Command::new(env!("CARGO"))
            .args(["metadata", "--locked", "--format-version=1"])
            .current_dir(&dir)
            .output()
            .expect("cargo starts");
        // Without the network it may fail for another reason.
        let errors = String::from_utf8_lossy(&asked.stderr);
        assert!(!errors.contains("--locked"), "{errors}");
    }
}
