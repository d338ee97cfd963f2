//! The compiler and the linker for AArch64.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use super::{TRIPLE, directory, root};
use crate::{packages, workspace::Workspace};

/// The compiler of Debian, for which Debian has standard libraries of other processors too.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// The C compiler, which is also the linker.
pub(super) const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Commands and files that are needed in any case, with Debian's names of their packages.
const NEEDED: [(&str, &str); 5] = [
    (COMPILER, "gcc-aarch64-linux-gnu"),
    (
        "/usr/aarch64-linux-gnu/include/stdio.h",
        "libc6-dev-arm64-cross",
    ),
    ("ld.lld", "lld"),
    ("qemu-aarch64-static", "qemu-user-static"),
    ("dpkg-deb", "dpkg"),
];

/// A compiler for AArch64.
#[derive(Debug)]
pub(super) struct Toolchain {
    /// The compiler, if it is not the one that cargo uses anyway.
    rustc: Option<PathBuf>,
    /// The directory of the standard library, if the compiler does not find it by itself.
    library: Option<PathBuf>,
    /// The directory for the build.
    target: PathBuf,
}

impl Toolchain {
    /// # Errors
    /// The name of a part that the machine lacks.
    pub(super) fn find(workspace: &Workspace) -> Result<Self, String> {
        let missing = NEEDED.iter().find(|(proof, _)| !packages::present(proof));
        if let Some((proof, package)) = missing {
            return Err(format!("no {proof} (package {package})"));
        }
        let target = directory(workspace);
        let own = sysroot(Path::new("rustc"));
        if own.is_some_and(|sysroot| has_library(&sysroot.join("lib/rustlib"))) {
            return Ok(Self {
                rustc: None,
                library: None,
                target,
            });
        }
        let own_lacks = format!("the toolchain has no {TRIPLE} (rustup target add {TRIPLE}), and");
        let Some(version) = root::version_of(root::RUSTC) else {
            return Err(format!(
                "{own_lacks} there is no {DEBIAN_RUSTC} (package {})",
                root::RUSTC
            ));
        };
        let needed = workspace.rust_version().unwrap_or_default();
        if is_older(&version, &needed) {
            return Err(format!(
                "{own_lacks} {DEBIAN_RUSTC} is older than {needed} (package {} {version}, \
                 apt-get update)",
                root::RUSTC
            ));
        }
        let unpacked = root::directory_of(workspace).join("usr/lib/rustlib");
        Ok(Self {
            rustc: Some(DEBIAN_RUSTC.into()),
            library: Some(unpacked.join(TRIPLE).join("lib")),
            target,
        })
    }

    /// Replaces Debian's compiler if it is too old. The lists of packages may have been old when it
    /// was installed.
    pub(super) fn upgrade(workspace: &Workspace) {
        let version = root::version_of(root::RUSTC);
        let needed = workspace.rust_version().unwrap_or_default();
        if version.is_some_and(|version| is_older(&version, &needed)) {
            packages::upgrade(root::RUSTC);
        }
    }

    /// The compiler, if it is not the one that cargo uses anyway.
    pub(super) fn rustc(&self) -> Option<&Path> {
        self.rustc.as_deref()
    }

    /// The directory for the build.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// The flag of rustc for a standard library that the compiler does not find by itself.
    pub(super) fn library_flag(&self) -> Option<String> {
        let library = self.library.as_ref()?;
        Some(format!("-L{}", library.display()))
    }

    /// Lets a cargo command build with this compiler, into a directory of its own.
    pub(super) fn prepare(&self, command: &mut Command) {
        // Optimised code takes longer to build than it saves, but for the tests of the transport.
        for package in ["wire", "emulator"] {
            let setting = format!("profile.dev.package.rocade-{package}.opt-level=0");
            command.args(["--config", &setting]);
        }
        let tools = self.target.join("tools");
        command
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER)
            .env("PATH", with_linker(&tools))
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET");
        if let Some(rustc) = &self.rustc {
            command.env("RUSTC", rustc);
        }
        if let Some(flag) = self.library_flag() {
            command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", flag);
        }
    }
}

/// Compares the first two numbers of two versions.
fn is_older(version: &str, needed: &str) -> bool {
    let numbers = |version: &str| -> Vec<u32> {
        let parts = version.split(|digit: char| !digit.is_ascii_digit());
        parts.take(2).map_while(|part| part.parse().ok()).collect()
    };
    numbers(version) < numbers(needed)
}

/// Returns the search path with a directory in which gcc finds lld by the name that it expects.
fn with_linker(tools: &Path) -> std::ffi::OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|dir| dir.join("ld.lld"));
    if let Some(lld) = found.into_iter().find(|file| file.is_file()) {
        let link = tools.join("aarch64-linux-gnu-ld.lld");
        // What fails here makes the linker fail, which says so.
        let _ = fs::create_dir_all(tools);
        let _ = fs::remove_file(&link);
        let _ = symlink(lld, link);
    }
    let all = [tools.to_owned()]
        .into_iter()
        .chain(env::split_paths(&path));
    env::join_paths(all).unwrap_or(path)
}

fn sysroot(rustc: &Path) -> Option<PathBuf> {
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    Some(PathBuf::from(text.trim()))
}

/// Returns true if the directory `rustlib` of a compiler has the standard library.
fn has_library(rustlib: &Path) -> bool {
    let files = fs::read_dir(rustlib.join(TRIPLE).join("lib"));
    let mut files = files.into_iter().flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standard_library_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_library(dir.path()));
        let library = dir.path().join(TRIPLE).join("lib");
        fs::create_dir_all(&library).unwrap();
        assert!(!has_library(dir.path()));
        fs::write(library.join("libstd-1.rlib"), []).unwrap();
        assert!(has_library(dir.path()));
    }

    #[test]
    fn the_linker_has_the_name_that_gcc_expects() {
        let dir = tempfile::tempdir().unwrap();
        let path = with_linker(dir.path());
        assert_eq!(env::split_paths(&path).next().as_deref(), Some(dir.path()));
        let link = dir.path().join("aarch64-linux-gnu-ld.lld");
        assert_eq!(link.is_file(), packages::present("ld.lld"));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(is_older("1.85.0+dfsg3-1~deb12u3", "1.89"));
        assert!(is_older("1.9.0", "1.89"));
        assert!(!is_older("1.89.0", "1.89"));
        assert!(!is_older("1.96.0+dfsg1-1~deb12u2", "1.89"));
        assert!(!is_older("2.0", "1.89"));
    }
}
