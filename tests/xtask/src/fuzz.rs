//! Fuzzing with libFuzzer on a stable compiler.
//!
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

/// Amount of fuzzing of a target.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effort {
    /// So many seconds, with other inputs each time, and with those of earlier runs.
    Seconds(u32),
    /// So many inputs, the same ones each time.
    Inputs(u32),
}

/// Inputs per target in `cargo xtask test`, which must not depend on luck: 1 to 15 s.
pub(crate) const SMOKE: Effort = Effort::Inputs(10_000);
/// Longest time of these.
const SMOKE_LIMIT: Duration = Duration::from_secs(900);

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Builds the fuzz targets and runs each (or those in `only`).
pub(crate) fn run(workspace: &Workspace, effort: Effort, only: &[String]) -> Tally {
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
        let (limit, amount) = match effort {
            Effort::Seconds(seconds) => (
                Duration::from_secs(u64::from(seconds) + 120),
                format!("for {seconds} s"),
            ),
            Effort::Inputs(count) => (SMOKE_LIMIT, format!("with {count} inputs")),
        };
        let headline = format!("fuzz {target} {amount}");
        tally = tally
            + match session(&dir, &program, target, effort) {
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
fn session(dir: &Path, program: &Path, target: &str, effort: Effort) -> io::Result<Command> {
    let artifacts = dir.join("artifacts").join(target);
    let kept = dir.join("corpus").join(target);
    let scratch = scratch_corpus(program, target);
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(program);
    command.current_dir(dir);
    match effort {
        Effort::Seconds(seconds) => {
            command.arg(format!("-max_total_time={seconds}"));
        }
        Effort::Inputs(count) => {
            command.arg(format!("-runs={count}")).arg("-seed=1");
            // The inputs of an earlier run would lead to others.
            let _ = fs::remove_dir_all(&scratch);
        }
    }
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
