//! Checks of the installation: settings, libraries, other copies, the view.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rocade_emulator::config::{EngineConfig, unknown_variables};

use super::Check;
use crate::cli::DoctorArgs;
use crate::error::CliError;
use crate::libdir::{self, NOTICE_LIBRARY, PRELOAD_LIBRARY};
use crate::run;
use crate::search::{self, VERBS};

/// Describes the settings, whose `error` makes every program fail.
pub(super) fn settings(error: Option<&CliError>) -> Check {
    const NAME: &str = "settings";
    if let Some(error) = error {
        return Check::of_error(NAME, error);
    }
    let unknown = unknown_variables(std::env::vars_os());
    if !unknown.is_empty() {
        let texts: Vec<String> = unknown.into_iter().map(|one| one.text).collect();
        return Check::warning(NAME, texts.join("\n")).advise("rocade --help lists the variables");
    }
    let is_ours = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("ROCADE_");
    let names = std::env::vars_os().map(|(name, _)| name).filter(is_ours);
    let mut sources: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    sources.sort();
    sources.extend(run::found_config_file().map(|file| file.display().to_string()));
    Check::ok(
        NAME,
        match sources.is_empty() {
            true => "the defaults".to_owned(),
            false => sources.join(", "),
        },
    )
}

/// Finds the drop-in libraries.
pub(super) fn libraries() -> Check {
    const NAME: &str = "libraries";
    let dir = match libdir::find() {
        Ok(dir) => dir,
        Err(error) => return Check::of_error(NAME, &error),
    };
    let helpers = [PRELOAD_LIBRARY, NOTICE_LIBRARY];
    let missing = helpers
        .iter()
        .find(|name| libdir::own_library(name).is_none());
    let finding = format!("version {}, {}", env!("CARGO_PKG_VERSION"), dir.display());
    match missing {
        None => Check::ok(NAME, finding),
        Some(name) => Check::warning(NAME, format!("{finding}, without {name}"))
            .advise("rocade install, or in the sources: cargo build --release"),
    }
}

/// Finds other installations of Rocade, and other implementations of its libraries.
pub(super) fn copies() -> Check {
    const NAME: &str = "copies";
    let own = std::env::current_exe().unwrap_or_default();
    let own = fs::canonicalize(&own).unwrap_or(own);
    let others = other_commands(&own);
    let ours = libdir::find().unwrap_or_default();
    let foreign: Vec<String> = search::other_libraries(&ours, [])
        .into_iter()
        .map(|one| one.file)
        .filter(|file| file.to_string_lossy().contains("libibverbs"))
        .map(|file| file.display().to_string())
        .collect();
    let system = match foreign.as_slice() {
        [] => "no other libibverbs".to_owned(),
        files => format!("{}, in whose place programs get Rocade's", files.join(", ")),
    };
    if let Some(preloaded) = preloaded_verbs(&ours) {
        return Check::warning(NAME, format!("LD_PRELOAD puts {preloaded} before Rocade's"))
            .advise("unset LD_PRELOAD");
    }
    if others.is_empty() {
        return Check::ok(NAME, system);
    }
    let shown: Vec<String> = others
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let advice = "keep one: `rocade uninstall`, `cargo uninstall rocade`, `pip uninstall rocade` or \
                  the package manager removes another";
    let finding = format!("another Rocade: {}. {system}", shown.join(", "));
    Check::warning(NAME, finding).advise(advice)
}

/// Returns the commands `rocade` in `PATH` and in the usual prefixes besides this one.
fn other_commands(own: &Path) -> BTreeSet<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(["/usr/bin", "/usr/local/bin"].map(PathBuf::from));
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.map(PathBuf::from);
    let in_home = |home: PathBuf| [".local/bin", ".cargo/bin"].map(|dir| home.join(dir));
    dirs.extend(home.into_iter().flat_map(in_home));
    let files = dirs.into_iter().map(|dir| dir.join("rocade"));
    let real = files.filter_map(|file| fs::canonicalize(file).ok());
    real.filter(|file| file != own && file.is_file()).collect()
}

/// Returns an entry of `LD_PRELOAD` that is another libibverbs than Rocade's.
fn preloaded_verbs(ours: &Path) -> Option<String> {
    let list = std::env::var("LD_PRELOAD").ok()?;
    let mut entries = list.split([':', ' ']);
    let own = fs::canonicalize(ours.join(VERBS)).ok();
    let is_other =
        |entry: &&str| entry.contains("libibverbs") && fs::canonicalize(entry).ok() != own;
    entries.find(is_other).map(str::to_owned)
}

/// Runs a program that looks for the first device in `/sys`, by each way of showing it.
pub(super) fn view(args: &DoctorArgs, config: &EngineConfig) -> Check {
    const NAME: &str = "view";
    let Some(device) = config.devices.first() else {
        return Check::warning(NAME, "there is no device to show");
    };
    let reason = match shows("namespace", args, &device.name) {
        Ok(()) => return Check::ok(NAME, "device files by mounts in a namespace of the program"),
        Err(reason) => reason,
    };
    match shows("preload", args, &device.name) {
        Ok(()) => Check::ok(
            NAME,
            format!("device files by a preload library ({reason})"),
        )
        .advise(
            "programs that are static, or load libibverbs by its path, miss Rocade. Mounts need \
             root with CAP_SYS_ADMIN, or an ordinary user with user namespaces",
        ),
        Err(second) => {
            let finding = format!("no files in /dev and /sys: {reason}. Preload library: {second}");
            Check::warning(NAME, finding)
                .advise("verbs work without them, programs such as ibstat and UCX do not")
        }
    }
}

/// Returns the reason if a program of a run with this view does not find the device.
fn shows(way: &str, args: &DoctorArgs, device: &str) -> Result<(), String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(&exe);
    command.args(["run", "--view", way]);
    for dev in &args.devices.dev {
        command.args(["--dev", dev]);
    }
    for (option, value) in [("--ip", &args.devices.ip), ("--like", &args.devices.like)] {
        if let Some(value) = value {
            command.args([option, value]);
        }
    }
    command
        .arg("--")
        .arg(&exe)
        .args(["doctor", "--seen", device]);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| !line.contains("warning"));
    let line = line.map(|line| line.trim_start_matches("rocade: "));
    Err(line.unwrap_or("the program does not see them").to_owned())
}

/// Returns success if this process sees the files of a device: the program of a run.
pub(super) fn sees(device: &str) -> ExitCode {
    let dir = Path::new("/sys/class/infiniband").join(device);
    match dir.join("node_guid").is_file() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
