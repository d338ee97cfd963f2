//! `rocade broker units`: units of systemd, which start the broker when a program connects.
//!
//! A broker starts on demand without them. With them the service manager is its parent, so that it
//! has a log in the journal, limits and a sandbox, and does not depend on the first program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};

use crate::error::CliError;
use crate::output;

const SOCKET: &str = include_str!("units/rocade-broker.socket");
const USER: &str = include_str!("units/user.service");
const SYSTEM: &str = include_str!("units/system.service");

/// The word in the services that stands for the path of the command.
const COMMAND: &str = "ExecStart=ROCADE ";

const AFTER: &str = "\
Examples:
  rocade broker units ~/.config/systemd/user && systemctl --user enable --now rocade-broker.socket
  sudo rocade broker units --system /etc/systemd/system
  sudo systemctl enable --now rocade-broker.socket          the broker of root's programs
  systemctl --user disable --now rocade-broker.socket       before you remove the files

The units are optional, because programs start a broker on demand. With them it has a log in the
journal, and limits and a sandbox that do not depend on the first program. The socket is that of
the default runtime directory, so programs with ROCADE_RUNTIME_DIR have another broker. A broker
that runs already has its name: end it before (`rocade broker stop`).";

/// The options of `rocade broker units`.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(crate) struct UnitsArgs {
    /// Write the units of the system's manager, for programs of root, instead of the user's
    #[arg(long)]
    system: bool,

    /// The directory for rocade-broker.socket and rocade-broker.service
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

/// Writes the units.
pub(crate) fn write(args: &UnitsArgs) -> Result<ExitCode, CliError> {
    let exe = std::env::current_exe().map_err(|error| {
        CliError::new(format!(
            "failed to find the executable of this command: {error}"
        ))
    })?;
    let service = service(if args.system { SYSTEM } else { USER }, &exe)?;
    let failed = |error| {
        CliError::new(format!("{}: {error}", args.dir.display()))
            .hint("choose a directory that you can write to: rocade broker units DIR")
    };
    fs::create_dir_all(&args.dir).map_err(failed)?;
    for (name, text) in [
        ("rocade-broker.socket", SOCKET),
        ("rocade-broker.service", &service),
    ] {
        let file = args.dir.join(name);
        fs::write(&file, text).map_err(failed)?;
        output::line(format_args!("written: {}", file.display()))?;
    }
    let manager = if args.system { "" } else { " --user" };
    output::line(format_args!(
        "systemctl{manager} daemon-reload && systemctl{manager} enable --now rocade-broker.socket"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the service with the path of the command.
fn service(template: &str, exe: &Path) -> Result<String, CliError> {
    // Others have a meaning in a unit, such as specifiers and quotes.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._+-@~:,=".contains(c);
    let path = exe.to_str().filter(|path| path.chars().all(is_plain));
    let path = path.ok_or_else(|| {
        CliError::new(format!(
            "{}: a unit needs a path of plain characters",
            exe.display()
        ))
        .hint("install the command elsewhere: rocade install --prefix ~/.local")
    })?;
    Ok(template.replacen(COMMAND, &format!("ExecStart={path} "), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_start_this_command() {
        for template in [USER, SYSTEM] {
            let text = service(template, Path::new("/home/a-b/.local/bin/rocade")).unwrap();
            assert!(
                text.contains("\nExecStart=/home/a-b/.local/bin/rocade broker serve\n"),
                "{text}"
            );
        }
        for path in ["/home/a b/rocade", "/home/100%/rocade", "/home/\"/rocade"] {
            let error = service(USER, Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
    }
}
