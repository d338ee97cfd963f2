//! Test programs of crates from the Rust registry. They go below the build directory and stay
//! there.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{step, tally::Tally, workspace::Workspace};

const LIMIT: Duration = Duration::from_secs(900);

/// The crate whose tests run, by the name under which the tests look for it in `target/registry`.
const ASYNC_RDMA: &str = "async-rdma-0.5.0";

/// Its integration tests. Others of it are empty, or need a feature that makes it fail on purpose.
const TESTS: [&str; 7] = [
    "atomic",
    "device",
    "imm",
    "loop",
    "mr_slice",
    "rmr_access",
    "rmr_timeout",
];

/// The program of the unit tests of its library.
const LIB: &str = "async_rdma";

/// The directory in `target/pypi` with the library that its bindings are generated with.
const LIBCLANG: &str = "libclang-14.0.6/clang/native";

/// Builds what is missing. With `must` the answer counts as a step: failed where something is still
/// missing.
pub(crate) fn install(workspace: &Workspace, must: bool) -> Tally {
    let place = workspace.target().join("registry").join(ASYNC_RDMA);
    let complete = place.is_dir() || build(workspace, &place).is_some();
    if !complete {
        eprintln!("xtask: the tests of {ASYNC_RDMA} are not there; they are skipped");
    }
    match (must, complete) {
        (false, _) => Tally::default(),
        (true, true) => Tally::PASS,
        (true, false) => Tally::FAIL,
    }
}

/// Into a directory beside `place` first: what is at `place` is complete.
fn build(workspace: &Workspace, place: &Path) -> Option<()> {
    let part = place.with_file_name(format!("{ASYNC_RDMA}.part"));
    // An interrupted run may have left it. It is normally absent.
    let _ = fs::remove_dir_all(&part);
    let (source, target) = (part.join("source"), part.join("target"));
    copy(&fetch(workspace)?, &source).ok()?;
    // Else cargo takes it for a member of this workspace, which is around it.
    let mut manifest = fs::read_to_string(source.join("Cargo.toml")).ok()?;
    manifest.push_str("\n[workspace]\n");
    fs::write(source.join("Cargo.toml"), manifest).ok()?;
    let command = compile(workspace, &source, &target)?;
    if !step::run(&format!("build {ASYNC_RDMA}"), LIMIT, command).success {
        return None;
    }
    let programs = part.join("programs");
    fs::create_dir(&programs).ok()?;
    for test in TESTS.into_iter().chain([LIB]) {
        fs::copy(find(&target.join("debug/deps"), test)?, programs.join(test)).ok()?;
    }
    fs::rename(&programs, place).ok()?;
    // What is left there only takes space.
    let _ = fs::remove_dir_all(&part);
    Some(())
}

/// The compilation of the tests. The crate's own lock file has the versions of what it depends on.
fn compile(workspace: &Workspace, source: &Path, target: &Path) -> Option<Command> {
    let mut command = workspace.cargo(&["test", "--no-run", "--locked", "--lib"]);
    for test in TESTS {
        command.args(["--test", test]);
    }
    let libclang = workspace.target().join("pypi").join(LIBCLANG);
    command
        .current_dir(source)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("LIBCLANG_PATH", libclang)
        // The package has no headers of the compiler.
        .env("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{}", headers()?))
        // The crate denies warnings, and later compilers warn of more.
        .env("RUSTFLAGS", "--cap-lints=allow")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    Some(command)
}

/// Finds the program `NAME-HASH`.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let prefix = format!("{name}-");
    let mut entries = fs::read_dir(dir).ok()?.flatten();
    let is_it = |file: &str| file.starts_with(&prefix) && !file.contains('.');
    let found = entries.find(|entry| entry.file_name().to_str().is_some_and(is_it))?;
    Some(found.path())
}

/// Lets cargo download the crate. Returns its directory in the sources of the registry.
fn fetch(workspace: &Workspace) -> Option<PathBuf> {
    let (name, version) = ASYNC_RDMA.rsplit_once('-')?;
    let mut command = workspace.cargo(&["info", "--quiet", "--registry", "crates-io"]);
    command.arg(format!("{name}@{version}"));
    // Without the network it may be there from an earlier time.
    step::run(&format!("fetch {ASYNC_RDMA}"), LIMIT, command);
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")))?;
    let registries = fs::read_dir(home.join("registry/src")).ok()?;
    let mut sources = registries.flatten().map(|dir| dir.path().join(ASYNC_RDMA));
    sources.find(|source| source.join("Cargo.lock").is_file())
}

/// The directory of the C compiler's headers.
fn headers() -> Option<String> {
    let asked = Command::new("gcc").arg("-print-file-name=include").output();
    let path = String::from_utf8(asked.ok()?.stdout).ok()?;
    Some(path.trim().to_owned())
}

/// Copies a directory.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copied = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &copied)?;
        } else {
            fs::copy(entry.path(), copied)?;
        }
    }
    Ok(())
}
