//! `rocade run --view`: the files that the program sees in `/dev` and `/sys`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rocade_emulator::DeviceFacts;
use rocade_emulator::config::{DeviceConfig, RUN_ENVIRONMENT, Settings, run_environment};
use rocade_sysfs_view::staging_dir::StagingDir;
use rocade_sysfs_view::{
    Contents, ENV_COUNTERS, ENV_FIRST_NUMBER, ENV_STAGE, HCA_DIR, HostFiles, Programs, Tree,
    namespace,
};

use crate::cli::{RunArgs, ViewMethod};
use crate::error::CliError;
use crate::libdir::{self, NOTICE_LIBRARY, PRELOAD_LIBRARY};
use crate::program::Findings;
use crate::run;
use crate::search;

/// The variable with drivers for a libibverbs of rdma-core.
const ENV_DRIVERS: &str = "RDMAV_DRIVERS";
/// The directory of the driver that warns, in the view.
const DRIVERS_DIR: &str = "/sys/devices/rocade/notice";
/// The name of the driver.
const DRIVER: &str = "rocade";
/// The numbers of rdma-core's interface for drivers: the release that changed it last. From release
/// 34 on it was the same until 57.
const DRIVER_NUMBERS: [RangeInclusive<u32>; 2] = [17..=34, 57..=80];

/// The view that a program got.
#[derive(Debug)]
pub(crate) enum Shown {
    /// Mounts in a namespace of its own.
    Mounts {
        /// The files of other libraries in whose place there are Rocade's.
        replaced: BTreeSet<PathBuf>,
        /// False in a user namespace, where no program gains privileges.
        as_root: bool,
    },
    /// The preload library.
    Preload,
    /// No view.
    Nothing,
}

/// The view that a program will get.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) args: &'a RunArgs,
    pub(crate) settings: &'a Settings,
    pub(crate) devices: &'a [DeviceConfig],
    /// The properties of the program.
    pub(crate) findings: &'a Findings,
    /// Rocade's directory of libraries.
    pub(crate) libraries: &'a Path,
}

impl View<'_> {
    /// Shows the devices to the program of `command`, with the requested kind of view or else the
    /// first one that works. Without a request, a failure is no error: the program then has no
    /// view.
    pub(crate) fn show(&self, command: &mut Command) -> Result<Shown, CliError> {
        // Variables of an outer view.
        for name in [ENV_STAGE, ENV_COUNTERS, ENV_FIRST_NUMBER] {
            command.env_remove(name);
        }
        let requested = self.args.view;
        if requested == Some(ViewMethod::None) {
            return Ok(Shown::Nothing);
        }
        let facts = DeviceFacts::of(self.devices);
        let host = HostFiles::look(&facts);
        let first = if self.args.show_host {
            host.first_free
        } else {
            0
        };
        if first > 0 {
            command.env(ENV_FIRST_NUMBER, first.to_string());
        }
        let tree = Tree::new(&facts, &host, first);
        // In a mount namespace of its own, a process below chroot(2) no longer finds its files by
        // the path of its executable.
        let own = OwnLibraries::find();
        let shown = match (check_file_size(), requested) {
            (Err(reason), _) => Err(reason),
            (Ok(()), Some(ViewMethod::Preload)) => self.preload(&tree, &own, command),
            (Ok(()), Some(_)) => self.in_namespace(&tree, &own, command),
            (Ok(()), None) => self.in_namespace(&tree, &own, command).or_else(|reason| {
                tracing::info!(
                    reason = reason.text(),
                    "failed to create a mount namespace, using the preload library"
                );
                self.preload(&tree, &own, command)
            }),
        };
        match shown {
            Err(reason) if requested.is_none() => {
                command.env_remove(ENV_FIRST_NUMBER);
                // Such a program gets a warning of its own.
                if !self.findings.is_for_other_libc {
                    eprintln!(
                        "rocade: warning: the program will find nothing in /dev/infiniband and \
                         /sys/class/infiniband: {}",
                        reason.text()
                    );
                }
                Ok(Shown::Nothing)
            }
            shown => shown,
        }
    }

    fn in_namespace(
        &self,
        tree: &Tree,
        own: &OwnLibraries,
        command: &mut Command,
    ) -> Result<Shown, CliError> {
        let programs = own.preload().map_or_else(
            |reason| {
                tracing::info!(
                    reason = reason.text(),
                    "failed to find the preload library, `rdma` will find no devices"
                );
                Programs::default()
            },
            |library| {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let started = Path::new(command.get_program());
                Programs::look(std::env::split_paths(&path), started, library.to_owned())
            },
        );
        let mut contents = Contents {
            show_host: self.args.show_host,
            programs,
            libraries: Vec::new(),
        };
        // Programs for the host's devices need the host's libraries.
        if !self.args.show_host {
            let own = self.findings.directories.iter().cloned();
            contents.libraries = search::other_libraries(self.libraries, own);
        }
        // Afterwards the process has all capabilities in a namespace of its own.
        let as_root = namespace::keeps_privileges();
        let replaced = namespace::enter(tree, &contents).map_err(|error| {
            CliError::new(format!(
                "failed to create a mount namespace for the program: {error}"
            ))
            .hint("--view preload does not need one")
        })?;
        command.env(ENV_COUNTERS, HCA_DIR);
        self.name_driver(own, Path::new(DRIVERS_DIR), command);
        // Programs with an empty environment find no libraries but these, and only they need it.
        if let Err(error) = std::fs::write(RUN_ENVIRONMENT, run_environment(&variables(command))) {
            tracing::info!(%error, "failed to keep the settings for programs with an empty environment");
        }
        Ok(Shown::Mounts { replaced, as_root })
    }

    fn preload(
        &self,
        tree: &Tree,
        own: &OwnLibraries,
        command: &mut Command,
    ) -> Result<Shown, CliError> {
        if self.findings.is_for_other_libc {
            return Err(CliError::new(
                "the program is for another C library and cannot load the preload library",
            )
            .hint("--view none, or --view namespace where that is allowed"));
        }
        let library = own.preload()?;
        let failed = |error: std::io::Error| {
            CliError::new(format!("failed to create the files of the view: {error}"))
        };
        let runtime = libdir::runtime_dir(self.settings)?;
        let runtime = std::path::absolute(&runtime).map_err(failed)?;
        let staging_dir = StagingDir::new(&runtime, tree, self.args.show_host).map_err(failed)?;
        command.env(ENV_STAGE, staging_dir.dir());
        command.env(ENV_COUNTERS, below(staging_dir.dir(), HCA_DIR));
        self.name_driver(own, &below(staging_dir.dir(), DRIVERS_DIR), command);
        command.env(
            "LD_PRELOAD",
            run::prepend(library, std::env::var_os("LD_PRELOAD")),
        );
        Ok(Shown::Preload)
    }

    /// Names the library that warns as a driver in `dir`, for programs with another libibverbs.
    /// With devices of the host, such a libibverbs may be intended.
    fn name_driver(&self, own: &OwnLibraries, dir: &Path, command: &mut Command) {
        let library = own.notice.as_deref().filter(|_| !self.args.show_host);
        // The variable is a list.
        let is_one = !dir.to_string_lossy().contains([':', ';']);
        let Some(library) = library.filter(|_| is_one) else {
            return;
        };
        match link_driver(library, dir) {
            Ok(()) => {
                let drivers = std::env::var_os(ENV_DRIVERS);
                command.env(ENV_DRIVERS, run::prepend(&dir.join(DRIVER), drivers));
            }
            Err(error) => {
                tracing::info!(%error, "failed to prepare a warning for programs with another libibverbs");
            }
        }
    }
}

/// Checks that this process may write the files of the view. None is longer than this limit.
fn check_file_size() -> Result<(), CliError> {
    const LONGEST: u64 = 1024;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit.filter(|limit| *limit < LONGEST) {
        None => Ok(()),
        Some(limit) => Err(CliError::new(format!(
            "its files are longer than the limit of this process, {limit} bytes"
        ))
        .hint("raise the limit: ulimit -f unlimited, or show none: rocade run --view none")),
    }
}

/// Creates a name of the library for each number of a driver interface.
fn link_driver(library: &Path, dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir(dir)?;
    for number in DRIVER_NUMBERS.into_iter().flatten() {
        symlink(library, dir.join(format!("{DRIVER}-rdmav{number}.so")))?;
    }
    Ok(())
}

/// Returns Rocade's variables in the environment of a command.
fn variables(command: &Command) -> Vec<(OsString, OsString)> {
    let mut all: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => all.insert(name.to_owned(), value.to_owned()),
            None => all.remove(name),
        };
    }
    let is_ours = |name: &OsString| name.as_bytes().starts_with(b"ROCADE_");
    all.into_iter().filter(|(name, _)| is_ours(name)).collect()
}

/// The libraries that only some programs load.
#[derive(Debug)]
struct OwnLibraries {
    preload: Option<PathBuf>,
    notice: Option<PathBuf>,
}

impl OwnLibraries {
    fn find() -> Self {
        Self {
            preload: libdir::own_library(PRELOAD_LIBRARY),
            notice: libdir::own_library(NOTICE_LIBRARY),
        }
    }

    /// Returns the path of the preload library. It must be one that `LD_PRELOAD` can contain.
    fn preload(&self) -> Result<&Path, CliError> {
        let library = self.preload.as_deref().ok_or_else(|| {
            CliError::new("librocade_preload.so is missing")
                .hint("in the source directory: cargo build --release")
        })?;
        if library.to_string_lossy().contains([' ', ':']) {
            let library = library.display();
            return Err(CliError::new(format!(
                "{library}: LD_PRELOAD does not support paths with a space or colon"
            )));
        }
        Ok(library)
    }
}

fn below(root: &Path, absolute: &str) -> PathBuf {
    root.join(absolute.trim_start_matches('/'))
}
