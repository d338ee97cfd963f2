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
use crate::{aarch64::Cross, workspace::Workspace};

/// The version of zig, from PyPI.
const ZIG: &str = "ziglang==0.17.1";
/// The directory of that version.
pub(super) const ZIG_PLACE: &str = "ziglang-0.17.1";
/// The version of glibc, that of manylinux_2_28.
pub(super) const GLIBC: &str = "2.28";
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
    /// The target, with the version of the C library.
    target: String,
}

impl Zig {
    /// A compiler and linker for C.
    pub(super) fn cc(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["cc", "-target", &self.target]);
        command.env("ZIG_GLOBAL_CACHE_DIR", &self.cache);
        command.env("ZIG_LOCAL_CACHE_DIR", &self.cache);
        command
    }
}

/// Returns zig, from PyPI unless it is there.
pub(super) fn zig(plan: &Plan) -> Result<Zig, String> {
    let place = plan.work.join(ZIG_PLACE);
    let program = place.join("ziglang/zig");
    if !program.is_file() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
        execute(pip.arg(&place).arg(ZIG))?;
    }
    let cache = plan.work.join("zig-cache");
    let target = format!("{}.{GLIBC}", plan.arch.gnu());
    Ok(Zig {
        program,
        cache,
        target,
    })
}

/// Builds everything. Returns the directory of the results.
pub(super) fn build(
    workspace: &Workspace,
    plan: &Plan,
    zig: &Zig,
    cross: Option<&Cross>,
    profile: &str,
) -> Result<PathBuf, String> {
    let linker = plan.work.join("linker.sh");
    write(&linker, LINKER)?;
    fs::set_permissions(&linker, fs::Permissions::from_mode(0o755)).map_err(at(&linker))?;
    let triple = plan.arch.triple();
    let target = cross.map_or_else(|| workspace.target(), |cross| cross.target().to_owned());
    let mut cargo = workspace.cargo(&["build", "--locked", "--target", &triple, "--profile"]);
    cargo.arg(profile).env("CARGO_TARGET_DIR", &target);
    if let Some(rustc) = cross.and_then(Cross::rustc) {
        cargo.env("RUSTC", rustc);
    }
    let variable = triple.to_uppercase().replace('-', "_");
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    cargo
        .env(format!("CARGO_TARGET_{variable}_LINKER"), &linker)
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            flags(workspace, cross)?.join("\x1f"),
        )
        .env_remove("RUSTFLAGS")
        .env("ROCADE_DIST", "1")
        .env("ROCADE_ZIG", &zig.program)
        .env("ROCADE_OUT", target.join(&triple))
        .env("ROCADE_TARGET", &zig.target)
        .env("ROCADE_LIBGCC", libgcc(plan)?)
        .env("ZIG_GLOBAL_CACHE_DIR", &zig.cache)
        .env("ZIG_LOCAL_CACHE_DIR", &zig.cache)
        .env("SOURCE_DATE_EPOCH", plan.epoch.to_string());
    execute(&mut cargo)?;
    let dir = match profile {
        "dev" => "debug",
        other => other,
    };
    Ok(target.join(triple).join(dir))
}

/// The flags of rustc. No file of a package names a directory of this machine.
fn flags(workspace: &Workspace, cross: Option<&Cross>) -> Result<Vec<String>, String> {
    let home = env::home_dir().ok_or("no home directory")?;
    let cargo = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let map = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let mut flags = vec![
        map(&cargo, "/cargo"),
        map(&sysroot(workspace, cross)?, "/rust"),
        map(&workspace.target(), "/rocade/target"),
        map(workspace.root(), "/rocade"),
        "-Clink-arg=-Wl,--build-id=sha1".to_owned(),
    ];
    flags.extend(cross.and_then(Cross::library_flag));
    Ok(flags)
}

/// The directory of the compiler, whose sources of the standard library may be there.
fn sysroot(workspace: &Workspace, cross: Option<&Cross>) -> Result<PathBuf, String> {
    let rustc = cross
        .and_then(Cross::rustc)
        .unwrap_or_else(|| Path::new("rustc"));
    let mut command = Command::new(rustc);
    workspace.clean(&mut command);
    let text = output(command.args(["--print", "sysroot"]))?;
    Ok(text.trim().into())
}

/// The shared library of the C compiler's runtime. Its symbols have had the same versions for
/// twenty years.
fn libgcc(plan: &Plan) -> Result<String, String> {
    let path = output(Command::new(plan.arch.tool("gcc")).arg("-print-file-name=libgcc_s.so.1"))?;
    let path = fs::canonicalize(path.trim()).map_err(at(Path::new(path.trim())))?;
    Ok(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the linker with a zig that prints its arguments, one a line.
    fn linked(dir: &Path, arguments: &[&str]) -> Vec<String> {
        fs::create_dir_all(dir.join("lib")).unwrap();
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
