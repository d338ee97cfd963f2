//! The compiler, tools and programs of AArch64 for other tasks, such as `cargo xtask dist`.

use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    emulation::{self, Emulation},
    root,
    toolchain::Toolchain,
};
use crate::workspace::Workspace;

/// The tools that build and run programs of AArch64 on another processor.
#[derive(Debug)]
pub(crate) struct Cross {
    toolchain: Toolchain,
    /// The root with Debian's programs and libraries.
    root: PathBuf,
}

impl Cross {
    /// # Errors
    /// The name of a part that the machine lacks.
    pub(crate) fn find(workspace: &Workspace) -> Result<Self, String> {
        let toolchain = Toolchain::find(workspace)?;
        let root = root::find(workspace)?;
        Ok(Self { toolchain, root })
    }

    /// The compiler, if it is not the one that cargo uses anyway.
    pub(crate) fn rustc(&self) -> Option<&Path> {
        self.toolchain.rustc()
    }

    /// The flag of rustc for its standard library.
    pub(crate) fn library_flag(&self) -> Option<String> {
        self.toolchain.library_flag()
    }

    /// The directory of builds.
    pub(crate) fn target(&self) -> &Path {
        self.toolchain.target()
    }

    /// A command for a program that itself calls `strip` for files of its processor. The emulator
    /// runs it by its path, so the kernel needs no support.
    ///
    /// # Errors
    /// The name of a part that the machine lacks.
    pub(crate) fn command_with_tools(&self, program: &Path) -> Result<Command, String> {
        let tools = self.target().join("tools");
        let link = tools.join("strip");
        let path = env::var_os("PATH").unwrap_or_default();
        let strip = emulation::find_program("aarch64-linux-gnu-strip")?;
        let made = fs::create_dir_all(&tools).and_then(|()| replace_link(&strip, &link));
        made.map_err(|error| format!("{}: {error}", link.display()))?;
        let path = [tools].into_iter().chain(env::split_paths(&path));
        let path = env::join_paths(path).map_err(|error| error.to_string())?;
        let mut command = Command::new(emulation::find_program(emulation::QEMU)?);
        command.arg("-L").arg(&self.root).arg(program);
        command.env("PATH", path);
        Ok(command)
    }

    /// A command for a program of AArch64 in a network of its own, whose programs of either
    /// processor run as well.
    ///
    /// # Errors
    /// The reason why programs do not run.
    pub(crate) fn emulated(&self, program: &Path) -> Result<Command, String> {
        Ok(Emulation::find(&self.root)?.command(program))
    }

    /// Downloads packages of Debian for AArch64 into an existing directory.
    ///
    /// # Errors
    /// The step of apt that fails.
    pub(crate) fn download(&self, dir: &Path, packages: &[&str]) -> Result<(), String> {
        let apt = dir.with_extension("apt");
        let names: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
        let fetched = root::fetch(&apt, dir, &names);
        // What is left there only takes space.
        let _ = fs::remove_dir_all(&apt);
        fetched.map_err(|error| format!("packages of Debian for AArch64: {error}"))
    }
}

fn replace_link(target: &Path, link: &Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => symlink(target, link),
    }
}
