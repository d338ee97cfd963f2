//! `rocade run --view`: the files that the program sees in `/dev` and `/sys`.

use std::path::{Path, PathBuf};
use std::process::Command;

use rocade_emulator::DeviceFacts;
use rocade_emulator::config::{DeviceConfig, Settings};
use rocade_sysfs_view::staging_dir::StagingDir;
use rocade_sysfs_view::{
    ENV_COUNTERS, ENV_FIRST_NUMBER, ENV_STAGE, HCA_DIR, HostFiles, Programs, Tree, namespace,
};

use crate::cli::{RunArgs, ViewMethod};
use crate::error::CliError;
use crate::libdir;
use crate::run;

/// Shows the devices to the program of `command`, with the requested kind of view or else the first
/// one that works. Without a request, a failure is no error: the program then has no view.
pub(crate) fn show(
    args: &RunArgs,
    settings: &Settings,
    devices: &[DeviceConfig],
    command: &mut Command,
) -> Result<(), CliError> {
    // Variables of an outer view.
    for name in [ENV_STAGE, ENV_COUNTERS, ENV_FIRST_NUMBER] {
        command.env_remove(name);
    }
    if args.view == Some(ViewMethod::None) {
        return Ok(());
    }
    let facts = DeviceFacts::of(devices);
    let host = HostFiles::look(&facts);
    let first = if args.show_host { host.first_free } else { 0 };
    let tree = Tree::new(&facts, &host, first);
    let shown = match args.view {
        Some(ViewMethod::Preload) => preload(args, settings, &tree, command),
        Some(_) => in_namespace(args, &tree, command),
        None => in_namespace(args, &tree, command).or_else(|reason| {
            tracing::info!(%reason, "failed to create a mount namespace, using the preload library");
            preload(args, settings, &tree, command)
        }),
    };
    match (shown, args.view) {
        (Ok(()), _) => {
            if first > 0 {
                command.env(ENV_FIRST_NUMBER, first.to_string());
            }
            Ok(())
        }
        (Err(reason), Some(_)) => Err(reason),
        (Err(reason), None) => {
            eprintln!(
                "rocade: warning: the program will find nothing in /dev/infiniband and /sys/class/infiniband: {reason}"
            );
            Ok(())
        }
    }
}

fn in_namespace(args: &RunArgs, tree: &Tree, command: &mut Command) -> Result<(), CliError> {
    let programs = preload_library().map_or_else(
        |reason| {
            tracing::info!(%reason, "failed to find the preload library, `rdma` will find no devices");
            Programs::default()
        },
        |library| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let started = Path::new(command.get_program());
            Programs::look(std::env::split_paths(&path), started, library)
        },
    );
    namespace::enter(tree, args.show_host, &programs).map_err(|error| {
        CliError::new(format!(
            "failed to create a mount namespace for the program: {error}"
        ))
        .hint("--view preload does not need one")
    })?;
    command.env(ENV_COUNTERS, HCA_DIR);
    Ok(())
}

/// Returns the path of the preload library. It must be one that `LD_PRELOAD` can contain.
fn preload_library() -> Result<PathBuf, CliError> {
    let library = libdir::preload_library().ok_or_else(|| {
        CliError::new("librocade_preload.so is missing")
            .hint("in the source directory: cargo build --release --workspace")
    })?;
    if library.to_string_lossy().contains([' ', ':']) {
        let library = library.display();
        return Err(CliError::new(format!(
            "{library}: LD_PRELOAD does not support paths with a space or colon"
        )));
    }
    Ok(library)
}

fn preload(
    args: &RunArgs,
    settings: &Settings,
    tree: &Tree,
    command: &mut Command,
) -> Result<(), CliError> {
    let library = preload_library()?;
    let failed = |error: std::io::Error| {
        CliError::new(format!("failed to create the files of the view: {error}"))
    };
    let runtime = libdir::runtime_dir(settings)?;
    let runtime = std::path::absolute(&runtime).map_err(failed)?;
    let staging_dir = StagingDir::new(&runtime, tree, args.show_host).map_err(failed)?;
    command.env(ENV_STAGE, staging_dir.dir());
    command.env(ENV_COUNTERS, below(staging_dir.dir(), HCA_DIR));
    command.env(
        "LD_PRELOAD",
        run::prepend(&library, std::env::var_os("LD_PRELOAD")),
    );
    Ok(())
}

fn below(root: &Path, absolute: &str) -> PathBuf {
    root.join(absolute.trim_start_matches('/'))
}
