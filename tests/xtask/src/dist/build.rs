//! Builds the command and the libraries for an old C library, with zig as the linker.
//!
//! Zig has the symbols of all versions of glibc. The build itself is cargo's, so that nothing
//! depends on another tool that drives it.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Plan, at, execute, output, write};
use crate::workspace::Workspace;

/// The version of zig, from PyPI.
const ZIG: &str = "ziglang==0.17.1";
/// The version of glibc, that of manylinux_2_28.
pub(super) const GLIBC: &str = "2.28";
/// The target of rustc, and that of zig without the version.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const ZIG_TARGET: &str = "x86_64-linux-gnu";
const LINKER: &str = include_str!("linker.sh");

/// The packages of cargo with the command and the libraries.
const PACKAGES: [&str; 8] = [
    "rocade",
    "rocade-libibverbs",
    "rocade-librdmacm",
    "rocade-libmlx5",
    "rocade-libefa",
    "rocade-libmana",
    "rocade-preload",
    "rocade-notice",
];

/// A zig compiler.
pub(super) struct Zig {
    program: PathBuf,
    cache: PathBuf,
}

impl Zig {
    /// A compiler and linker for C.
    pub(super) fn cc(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["cc", "-target", &format!("{ZIG_TARGET}.{GLIBC}")]);
        command.env("ZIG_GLOBAL_CACHE_DIR", &self.cache);
        command.env("ZIG_LOCAL_CACHE_DIR", &self.cache);
        command
    }
}

/// Returns zig, from PyPI unless it is there.
pub(super) fn zig(plan: &Plan) -> Result<Zig, String> {
    let place = plan.work.join(ZIG.replace("==", "-"));
    let program = place.join("ziglang/zig");
    if !program.is_file() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
        execute(pip.arg(&place).arg(ZIG))?;
    }
    let cache = plan.work.join("zig-cache");
    Ok(Zig { program, cache })
}

/// Builds everything. Returns the directory of the results.
pub(super) fn build(
    workspace: &Workspace,
    plan: &Plan,
    zig: &Zig,
    profile: &str,
) -> Result<PathBuf, String> {
    let linker = plan.work.join("linker.sh");
    write(&linker, LINKER)?;
    fs::set_permissions(&linker, fs::Permissions::from_mode(0o755)).map_err(at(&linker))?;
    let mut cargo = workspace.cargo(&["build", "--locked", "--target", TARGET, "--profile"]);
    cargo.arg(profile);
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    cargo
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", &linker)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(workspace)?.join("\x1f"))
        .env_remove("RUSTFLAGS")
        .env("ROCADE_DIST", "1")
        .env("ROCADE_ZIG", &zig.program)
        .env("ROCADE_OUT", workspace.target().join(TARGET))
        .env("ROCADE_TARGET", format!("{ZIG_TARGET}.{GLIBC}"))
        .env("ROCADE_LIBGCC", libgcc()?)
        .env("ZIG_GLOBAL_CACHE_DIR", &zig.cache)
        .env("ZIG_LOCAL_CACHE_DIR", &zig.cache)
        .env("SOURCE_DATE_EPOCH", plan.epoch.to_string());
    execute(&mut cargo)?;
    let dir = match profile {
        "dev" => "debug",
        other => other,
    };
    Ok(workspace.target().join(TARGET).join(dir))
}

/// The flags of rustc. No file of a package names a directory of this machine.
fn flags(workspace: &Workspace) -> Result<Vec<String>, String> {
    let home = env::home_dir().ok_or("no home directory")?;
    let cargo = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let map = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    Ok(vec![
        map(&cargo, "/cargo"),
        map(&workspace.target(), "/rocade/target"),
        map(workspace.root(), "/rocade"),
        "-Clink-arg=-Wl,--build-id=sha1".to_owned(),
    ])
}

/// The shared library of the C compiler's runtime. Its symbols have had the same versions for
/// twenty years.
fn libgcc() -> Result<String, String> {
    let path = output(Command::new("gcc").arg("-print-file-name=libgcc_s.so.1"))?;
    let path = fs::canonicalize(path.trim()).map_err(at(Path::new(path.trim())))?;
    Ok(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the linker with a zig that prints its arguments, one a line.
    fn linked(dir: &Path, arguments: &[&str]) -> Vec<String> {
        let zig = dir.join("zig");
        write(&zig, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
        fs::set_permissions(&zig, fs::Permissions::from_mode(0o755)).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", LINKER, "linker.sh"]).args(arguments);
        shell.env("ROCADE_ZIG", &zig).env("ROCADE_OUT", dir);
        shell
            .env("ROCADE_TARGET", "t")
            .env("ROCADE_LIBGCC", "/lib/libgcc_s.so.1");
        let text = output(&mut shell).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn zig_gets_one_version_script_and_the_shared_libgcc() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = dir.path().join("nodes");
        write(&nodes, "A_1 {};\nA_2 {} A_1;\n").unwrap();
        let library = dir.path().join("a b.so").display().to_string();
        let second = format!("-Wl,--version-script={}", nodes.display());
        let first = "-Wl,--version-script=/no/such/list";
        let all = ["x.o", first, "-lgcc_s", "-lc", &second, "-o", &library];
        let arguments = linked(dir.path(), &all);
        let merged = format!("{second}.zig");
        let begin = ["cc", "-target", "t", "-Wl,--allow-shlib-undefined"];
        let rest = ["x.o", "/lib/libgcc_s.so.1", "-lc", &merged, "-o", &library];
        assert_eq!(arguments, [&begin[..], &rest[..]].concat());
        let text = fs::read_to_string(dir.path().join("nodes.zig")).unwrap();
        assert_eq!(text, "A_1 {};\nA_2 {} A_1;\nROCADE_HIDDEN { local: *; };\n");
        // The only script stays as it is.
        let arguments = linked(dir.path(), &["x.o", first, "-o", &library]);
        assert!(arguments.iter().any(|one| one == first), "{arguments:?}");
    }

    #[test]
    fn what_runs_here_is_linked_as_usual() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("empty.c");
        write(&source, "int main(void) { return 0; }").unwrap();
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("script");
        let words = [source.to_str().unwrap(), "-o", program.to_str().unwrap()];
        assert!(linked(dir.path(), &words).is_empty());
        assert!(program.is_file());
    }
}
