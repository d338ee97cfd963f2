//! `rocade run`: executes the program, with Rocade's libraries in front of the system's.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rocade_emulator::FileSizeErrors;
use rocade_emulator::config::{
    ENV_BROKER, ENV_CAPTURE, ENV_CONFIG, ENV_DEVICES, ENV_FAULT, ENV_IP, ENV_LIKE, ENV_WARNED,
    Settings, config_file, unknown_variables,
};
use rocade_emulator::faults::chaos::Chaos;
use rocade_emulator::link::capture;
use rocade_sysfs_view::namespace;
use rustix::process::Signal;

use crate::cli::{DeviceArgs, RunArgs};
use crate::error::{CliError, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND};
use crate::libdir;
use crate::packages::debian_package;
use crate::program;
use crate::sysfs_view::{Shown, View};

/// Returns the settings of the environment, which override the configuration file (`./rocade.toml`
/// among others).
pub(crate) fn load_settings() -> Result<Settings, CliError> {
    let env = |name: &str| std::env::var_os(name);
    let from_env = Settings::from_env(env)?;
    match found_config_file() {
        Some(path) => Ok(from_env.or(Settings::from_file(&path)?)),
        None => Ok(from_env),
    }
}

/// Returns the configuration file in use.
pub(crate) fn found_config_file() -> Option<PathBuf> {
    let here = std::env::current_dir().ok();
    config_file(|name| std::env::var_os(name), here.as_deref())
}

/// Returns the settings, overridden by the flags.
pub(crate) fn with_flags(args: &DeviceArgs, settings: Settings) -> Result<Settings, CliError> {
    let flags = Settings::from_flags(&args.dev, args.ip.as_deref())?;
    Ok(flags.with_like(args.like.as_deref())?.or(settings))
}

/// Replaces this process with the program. Returns only if that fails.
pub(crate) fn run(
    args: &RunArgs,
    settings: Settings,
    file_size_errors: &FileSizeErrors,
) -> Result<ExitCode, CliError> {
    let Some((program, program_args)) = args.command.split_first() else {
        return Err(CliError::new("no program given").hint("rocade run -- CMD..."));
    };
    let flags = Settings::from_flags(&args.devices.dev, args.devices.ip.as_deref())?;
    let flags = flags.with_like(args.devices.like.as_deref())?;
    let faults = faults(args)?;
    let flags = flags.with_links(capture_file(args)?, &faults)?;
    let merged = flags.clone().or(settings);
    // The library would find the same errors, but the program would only report that there are no
    // devices.
    let config = merged.resolve_here()?;
    if config.devices.is_empty() && merged.devices().is_none() {
        eprintln!("rocade: warning: no network interface is up, so there will be no device");
    }
    let path = find_program(program)?;
    let findings = program::examine(&path, program_args);
    let libraries = libdir::find()?;

    let mut command = Command::new(&path);
    command.arg0(program).args(program_args);
    command.env(
        "LD_LIBRARY_PATH",
        prepend(&libraries, std::env::var_os("LD_LIBRARY_PATH")),
    );
    if flags.devices().is_some()
        && let Some(devices) = merged.devices_env()
    {
        command.env(ENV_DEVICES, devices).env_remove(ENV_IP);
    }
    if let Some(like) = &args.devices.like {
        command.env(ENV_LIKE, like);
    }
    if let Some(file) = flags.capture() {
        command.env(ENV_CAPTURE, file);
    }
    if !flags.faults().is_empty() {
        command.env(ENV_FAULT, faults.join(";"));
    }
    if let Some(file) = found_config_file() {
        // Absolute, because the program may change its directory.
        command.env(ENV_CONFIG, std::path::absolute(&file).unwrap_or(file));
    }
    let unknown = unknown_variables(std::env::vars_os());
    if !unknown.is_empty() {
        let before = std::env::var(ENV_WARNED).into_iter();
        let names: Vec<String> = before.chain(unknown.into_iter().map(|u| u.name)).collect();
        command.env(ENV_WARNED, names.join(","));
    }
    if merged.broker().is_none()
        && let Ok(exe) = std::env::current_exe()
    {
        command.env(ENV_BROKER, exe);
    }
    // A privileged program gains its privileges only outside of user namespaces.
    let mut view = Shown::Nothing;
    if !findings.is_privileged || args.view.is_some() || namespace::keeps_privileges() {
        let devices = View {
            args,
            settings: &merged,
            devices: &config.devices,
            findings: &findings,
            libraries: &libraries,
        };
        view = devices.show(&mut command)?;
    }
    findings.warn(&view);
    tracing::debug!(?command, devices = ?config.devices, "exec");
    if args.end_with_parent {
        let ended = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        ended.map_err(|error| CliError::new(format!("failed to watch the parent: {error}")))?;
    }
    // The program gets the signal as it would without this command.
    file_size_errors.end();
    Err(exec_error(program, &command.exec()))
}

/// Returns the rules of the flags. Prints those that the seed of `--chaos` draws.
fn faults(args: &RunArgs) -> Result<Vec<String>, CliError> {
    let mut faults = args.fault.clone();
    let Some(text) = &args.chaos else {
        return Ok(faults);
    };
    let explain = |error| CliError::new(format!("--chaos {text}: {error}"));
    for recipe in Chaos::parse(text).map_err(explain)?.draw() {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "rocade: chaos {text}: {recipe}");
        faults.push(recipe);
    }
    Ok(faults)
}

/// Returns the absolute path of the capture file, because the program may change its directory.
/// Creates the file.
fn capture_file(args: &RunArgs) -> Result<Option<PathBuf>, CliError> {
    let Some(file) = &args.capture else {
        return Ok(None);
    };
    let explain = |error| {
        CliError::new(format!("--capture {}: {error}", file.display()))
            .hint("choose a file that you can write to: --capture ~/x.pcapng")
    };
    let path = std::path::absolute(file).map_err(explain)?;
    capture::prepare(&path).map_err(explain)?;
    Ok(Some(path))
}

/// Puts `dir` in front of the directories in `old`. An empty `old` adds no separator, because an
/// empty entry would mean the current directory.
pub(crate) fn prepend(dir: &Path, old: Option<OsString>) -> OsString {
    let mut list = dir.as_os_str().to_owned();
    if let Some(old) = old.filter(|old| !old.is_empty()) {
        list.push(":");
        list.push(old);
    }
    list
}

/// Finds `program` like a shell.
fn find_program(program: &OsStr) -> Result<PathBuf, CliError> {
    find_program_in(program, std::env::var_os("PATH"))
}

fn find_program_in(program: &OsStr, path: Option<OsString>) -> Result<PathBuf, CliError> {
    let shown = program.display();
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match std::fs::metadata(&path) {
            Ok(meta) if is_executable(&meta) => Ok(path),
            Ok(_) => Err(not_executable(program)),
            Err(error) => Err(CliError::new(format!("{shown}: {error}")).exit(EXIT_NOT_FOUND)),
        };
    }
    let mut not_executable_one = None;
    for dir in std::env::split_paths(&path.unwrap_or_default()) {
        let candidate = dir.join(program);
        match std::fs::metadata(&candidate) {
            Ok(meta) if is_executable(&meta) => return Ok(candidate),
            Ok(meta) if meta.is_file() => not_executable_one = Some(candidate),
            _ => {}
        }
    }
    if let Some(found) = not_executable_one {
        return Err(not_executable(found.as_os_str()));
    }
    let mut error = CliError::new(format!("program {shown} not found in PATH"));
    if Path::new(program).is_file() {
        error = error.hint(format!("use the one in this directory: ./{shown}"));
    }
    if let Some(package) = debian_package(program) {
        error = error.hint(format!(
            "on Debian and Ubuntu it is in: apt-get install {package}"
        ));
    }
    Err(error.exit(EXIT_NOT_FOUND))
}

fn is_executable(meta: &std::fs::Metadata) -> bool {
    meta.is_file() && meta.permissions().mode() & 0o111 != 0
}

fn not_executable(program: &OsStr) -> CliError {
    CliError::new(format!("{} is not an executable file", program.display()))
        .exit(EXIT_NOT_EXECUTABLE)
}

fn exec_error(program: &OsStr, error: &io::Error) -> CliError {
    let shown = program.display();
    match error.kind() {
        // The file exists, which was checked, so its interpreter is missing.
        io::ErrorKind::NotFound => CliError::new(format!(
            "failed to execute {shown}: its interpreter is missing"
        ))
        .hint("check the first line of a script, or use `file` and `ldd` on a program")
        .exit(EXIT_NOT_FOUND),
        _ => CliError::new(format!("failed to execute {shown}: {error}")).exit(EXIT_NOT_EXECUTABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_directory_comes_first() {
        let dir = Path::new("/r/libs");
        assert_eq!(prepend(dir, None), "/r/libs");
        assert_eq!(prepend(dir, Some("".into())), "/r/libs");
        assert_eq!(prepend(dir, Some("/a:/b".into())), "/r/libs:/a:/b");
    }

    #[test]
    fn programs_are_found_as_a_shell_does() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("1"), dir.path().join("2"));
        for (place, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::create_dir(place).unwrap();
            let file = place.join("prog");
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let both = std::env::join_paths([&first, &second]).unwrap();
        let prog = OsStr::new("prog");
        assert_eq!(
            find_program_in(prog, Some(both)).unwrap(),
            second.join("prog")
        );

        let only_first = Some(first.clone().into_os_string());
        let error = find_program_in(prog, only_first.clone()).expect_err("mode 644");
        assert_eq!(error.exit_code(), EXIT_NOT_EXECUTABLE);

        let error = find_program_in(OsStr::new("ib_no_such"), only_first).expect_err("missing");
        assert_eq!(error.exit_code(), EXIT_NOT_FOUND);
        assert!(
            error.to_string().contains("apt-get install perftest"),
            "{error}"
        );

        let with_slash = first.join("prog");
        let error = find_program_in(with_slash.as_os_str(), None).expect_err("mode 644");
        assert_eq!(error.exit_code(), EXIT_NOT_EXECUTABLE);
        let error = find_program_in(OsStr::new("/no/such"), None).expect_err("missing");
        assert_eq!(error.exit_code(), EXIT_NOT_FOUND);
    }
}
