//! `cargo xtask sanitize`: the tests once more under AddressSanitizer, and what Miri can run under
//! Miri.
//!
//! Neither needs another toolchain if this one has the pieces. A check whose pieces are missing is
//! skipped and names them. The standard library itself is not instrumented, but its allocator and
//! its memory functions are watched.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    step::{self, succeeds},
    tally::Tally,
    workspace::{Workspace, host_triple},
};

const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Runs both.
pub(crate) fn run(workspace: &Workspace) -> Tally {
    address(workspace) + miri(workspace)
}

/// The packages with `unsafe` on the data path, and the pure packages below them.
fn address(workspace: &Workspace) -> Tally {
    let Some(triple) = host_triple() else {
        eprintln!("xtask: rustc does not say what its host is");
        return Tally::FAIL;
    };
    let runtimes = sysroot().map(|root| root.join("lib/rustlib").join(&triple).join("lib"));
    if !runtimes.as_deref().is_some_and(has_asan_runtime) {
        let place = runtimes.unwrap_or_default();
        eprintln!(
            "SKIP: AddressSanitizer: the toolchain has no runtime for it (librustc*_rt.asan.a in {})",
            place.display()
        );
        return Tally::SKIP;
    }
    let mut command = workspace.cargo(&["test", "--locked", "--no-fail-fast", "--lib", "--tests"]);
    for package in ["rocade-wire", "rocade-transport", "rocade-emulator"] {
        command.args(["--package", package]);
    }
    // With a target, build scripts and macros stay as they are.
    command.args(["--target", &triple]);
    command.env("CARGO_TARGET_DIR", workspace.target().join("asan"));
    // The flag is not stable, but the compiler that makes the code is.
    command.env("RUSTC_BOOTSTRAP", "1");
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env("RUSTFLAGS", format!("{flags} -Zsanitizer=address"));
    // Tests leak memory on purpose: registered memory has to outlive everything.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    step::run("tests under AddressSanitizer", LIMIT, command).as_tests()
}

fn sysroot() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    Some(PathBuf::from(text.trim()))
}

fn has_asan_runtime(dir: &Path) -> bool {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files
        .into_iter()
        .any(|file| file.file_name().to_string_lossy().ends_with("_rt.asan.a"))
}

/// The packages without sockets and assembler: codec, transport, the broker's protocol.
fn miri(workspace: &Workspace) -> Tally {
    let toolchains: [&[&str]; 2] = [&["miri"], &["+nightly", "miri"]];
    let Some(miri) = toolchains.into_iter().find(|words| {
        // Inside cargo the variables of its toolchain would win over the word.
        let mut command = rustup_cargo();
        succeeds(command.args(*words).arg("--version"))
    }) else {
        eprintln!("SKIP: Miri: no toolchain has it: rustup +nightly component add miri rust-src");
        return Tally::SKIP;
    };
    let runs: [(&str, &[&str]); 3] = [
        ("rocade-wire", &[]),
        ("rocade-transport", &[]),
        ("rocade-emulator", &["broker::protocol"]),
    ];
    let mut tally = Tally::default();
    for (package, filter) in runs {
        let mut command = rustup_cargo();
        command.args(miri).args(["test", "--locked", "--lib"]);
        command.args(["--package", package, "--"]).args(filter);
        workspace.clean(&mut command);
        command.env("CARGO_TARGET_DIR", workspace.target().join("miri"));
        // Miri is a few hundred times slower, and proptest wants to write down its failures.
        command.env("PROPTEST_CASES", "8");
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        let headline = format!("{package} under Miri");
        tally = tally + step::run(&headline, LIMIT, command).as_tests();
    }
    tally
}

/// Cargo as the user would call it, so that `+nightly` is understood.
fn rustup_cargo() -> Command {
    let mut command = Command::new("cargo");
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_without_the_runtime_is_noticed() {
        assert!(!has_asan_runtime(Path::new("/no/such/directory")));
        let dir = std::env::temp_dir().join(format!("rocade-xtask-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert!(!has_asan_runtime(&dir));
        fs::write(dir.join("librustc-stable_rt.asan.a"), []).unwrap();
        assert!(has_asan_runtime(&dir));
        fs::remove_dir_all(&dir).unwrap();
    }
}
