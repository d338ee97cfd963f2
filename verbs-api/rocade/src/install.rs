//! `rocade install` and `rocade uninstall`: the command, its libraries, headers, manual pages and
//! completions below a prefix.
//!
//! ```text
//! PREFIX/bin/rocade                    unless the running command is that file
//! PREFIX/lib/rocade/lib*.so*           where `libdir` looks for them
//! PREFIX/lib/rocade/installed          what was put where, so that all of it can be removed
//! PREFIX/include/infiniband/...        Rocade's own headers
//! PREFIX/share/...                     manual pages, completions
//! ```
//!
//! The libraries next to the executable are installed (in a build directory). If there are none,
//! they are built from the sources of the command, because `cargo install` installs only
//! executables.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cli::{PrefixArgs, Shell};
use crate::error::CliError;
use crate::headers::HEADERS;
use crate::libdir::{LIBRARIES, NOTICE_LIBRARY, PRELOAD_LIBRARY, names};
use crate::{manual, output};

/// The list of installed files, below the prefix.
const LIST: &str = "lib/rocade/installed";

/// The prefix in the list of directories. It sorts before everything below the prefix.
const PREFIX_ITSELF: &str = "./";

/// The sources of this command. A package (`cargo xtask dist`) names no directory of the machine
/// that it was made on.
const ORIGIN: &str = match option_env!("ROCADE_DIST") {
    Some(_) => "",
    None => env!("CARGO_MANIFEST_DIR"),
};

/// A file to install, and its path below the prefix.
struct Item {
    path: String,
    content: Content,
    mode: u32,
}

enum Content {
    /// A copy of this executable or library, without symbols.
    Stripped(PathBuf),
    Text(String),
    /// A symbolic link to a file of the same directory.
    Link(String),
}

/// `rocade install`.
pub(crate) fn install(args: &PrefixArgs) -> Result<ExitCode, CliError> {
    let exe = own_executable()?;
    let prefix = prefix(args, &exe)?;
    refuse_itself(&prefix, &exe)?;
    let items = items(&exe, &prefix)?;
    let paths: BTreeSet<&str> = items.iter().map(|item| item.path.as_str()).collect();
    let old = read_list(&prefix)?.unwrap_or_default();
    refuse_foreign(&prefix, &paths, &old)?;

    let in_prefix = |error: io::Error| {
        CliError::new(format!(
            "failed to install below {}: {error}",
            prefix.display()
        ))
        .hint("choose a directory that you can write to: rocade install --prefix ~/.local")
    };
    // The list is written first, so that the files of an interrupted installation can be removed.
    let mut list: BTreeSet<String> = old.clone();
    list.extend(paths.iter().map(|path| (*path).to_owned()));
    let missing = missing_directories(&prefix, paths.iter().chain([&LIST]).copied());
    list.extend(missing);
    write_list(&prefix, &list).map_err(in_prefix)?;
    for item in &items {
        put(&prefix, item)?;
    }
    // Files of an older version that this version does not have.
    for path in old.iter().filter(|path| !path.ends_with('/')) {
        if !paths.contains(path.as_str()) {
            remove(&prefix.join(path))?;
            list.remove(path);
        }
    }
    write_list(&prefix, &list).map_err(in_prefix)?;
    report(&prefix, &paths)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns an error if the running command is the one that is installed below the prefix.
fn refuse_itself(prefix: &Path, exe: &Path) -> Result<(), CliError> {
    let own = fs::canonicalize(prefix.join("bin/rocade")).ok();
    let is_installed = read_list(prefix)?.is_some_and(|list| list.contains("bin/rocade"));
    if is_installed && own.is_some_and(|own| own == exe) {
        return Err(CliError::new(format!(
            "this command is the one that is installed below {}",
            prefix.display()
        ))
        .hint("for a newer version, in a clone of Rocade: cargo build --release && target/release/rocade install")
        .hint("for another directory: rocade install --prefix DIR"));
    }
    Ok(())
}

/// `rocade uninstall`.
pub(crate) fn uninstall(args: &PrefixArgs) -> Result<ExitCode, CliError> {
    let exe = own_executable()?;
    let prefix = prefix(args, &exe)?;
    let Some(list) = read_list(&prefix)? else {
        return Err(
            CliError::new(format!("nothing is installed below {}", prefix.display()))
                .hint(
                    "rocade uninstall --prefix DIR, with the directory that `rocade install` printed",
                )
                .exit(1),
        );
    };
    let (dirs, files): (Vec<&String>, Vec<&String>) =
        list.iter().partition(|path| path.ends_with('/'));
    for file in &files {
        remove(&prefix.join(file))?;
    }
    remove(&prefix.join(LIST))?;
    // Longest paths first, so that directories are empty. A directory with files of other programs
    // stays.
    for dir in dirs.into_iter().rev() {
        let dir = if dir == PREFIX_ITSELF {
            prefix.clone()
        } else {
            prefix.join(dir)
        };
        let _ = fs::remove_dir(dir);
    }
    let count = files.len();
    output::line(format_args!(
        "removed {count} files below {}",
        prefix.display()
    ))?;
    let own = fs::canonicalize(prefix.join("bin/rocade")).ok();
    if own.is_some_and(|own| own == exe) {
        output::line(
            "this command itself was not installed by `rocade install`: cargo uninstall rocade",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn own_executable() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(|error| {
        CliError::new(format!(
            "failed to find the executable of this command: {error}"
        ))
    })
}

/// Returns the prefix: the option, else that of the running command, else the default for this
/// user.
fn prefix(args: &PrefixArgs, exe: &Path) -> Result<PathBuf, CliError> {
    if let Some(prefix) = &args.prefix {
        return std::path::absolute(prefix)
            .map_err(|error| CliError::new(format!("{}: {error}", prefix.display())));
    }
    let dir = exe.parent().unwrap_or_else(|| Path::new("/"));
    if let Some(prefix) = dir.parent().filter(|_| dir.ends_with("bin")) {
        return Ok(prefix.to_owned());
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/usr/local".into());
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    home.map(|home| Path::new(&home).join(".local"))
        .ok_or_else(|| {
            CliError::new("HOME is not set, and no directory is given")
                .hint("rocade install --prefix DIR")
        })
}

fn items(exe: &Path, prefix: &Path) -> Result<Vec<Item>, CliError> {
    let libraries = libraries(exe)?;
    let item = |path: &str, mode, content| Item {
        path: path.to_owned(),
        content,
        mode,
    };
    let text = |path: &str, text| item(path, 0o644, Content::Text(text));
    let mut items: Vec<Item> = Vec::new();
    for library in LIBRARIES {
        let from = libraries.join(format!("{library}.so"));
        let [name, unversioned] = names(library).map(|name| format!("lib/rocade/{name}"));
        items.push(item(&name, 0o644, Content::Stripped(from)));
        // A link and no copy: the dynamic linker must not load the library twice.
        let target = Content::Link(format!("{library}.so.1"));
        items.push(item(&unversioned, 0o777, target));
    }
    for name in [PRELOAD_LIBRARY, NOTICE_LIBRARY] {
        let from = Content::Stripped(libraries.join(name));
        items.push(item(&format!("lib/rocade/{name}"), 0o644, from));
    }
    let own = fs::canonicalize(prefix.join("bin/rocade")).ok();
    if own.is_none_or(|own| own != exe) {
        items.push(item("bin/rocade", 0o755, Content::Stripped(exe.to_owned())));
    }
    for (path, header) in HEADERS {
        items.push(text(&format!("include/{path}"), (*header).to_owned()));
    }
    for (name, page) in manual::pages() {
        items.push(text(&format!("share/man/man1/{name}"), page));
    }
    for (path, shell) in [
        ("share/bash-completion/completions/rocade", Shell::Bash),
        ("share/zsh/site-functions/_rocade", Shell::Zsh),
        ("share/fish/vendor_completions.d/rocade.fish", Shell::Fish),
    ] {
        items.push(text(path, manual::completions(shell)));
    }
    Ok(items)
}

/// Returns the directory with the libraries as Cargo builds them.
fn libraries(exe: &Path) -> Result<PathBuf, CliError> {
    let dir = exe.parent().unwrap_or_else(|| Path::new("/"));
    let complete = |dir: &Path| {
        let drop_in = LIBRARIES.iter().map(|library| format!("{library}.so"));
        let mut names = drop_in.chain([PRELOAD_LIBRARY, NOTICE_LIBRARY].map(str::to_owned));
        names.all(|name| dir.join(name).is_file())
    };
    // Those of an installation are installed elsewhere.
    for dir in [dir.to_owned(), dir.join("../lib/rocade")] {
        if complete(&dir) {
            return Ok(dir);
        }
    }
    // A second `rocade install`, run by the installed command, finds no newer libraries without
    // sources.
    let sources = sources().ok_or_else(|| {
        CliError::new("the sources of the drop-in libraries are missing")
            .hint("in a clone of Rocade: cargo build --release && target/release/rocade install")
    })?;
    build(&sources)?;
    let built = sources.join("target/release");
    if complete(&built) {
        return Ok(built);
    }
    Err(CliError::new(format!(
        "the build created no libraries in {}",
        built.display()
    )))
}

/// Returns the sources that this command was built from, or else the sources around the current
/// directory.
fn sources() -> Option<PathBuf> {
    let origin = Path::new(ORIGIN);
    let is_source = |dir: &&Path| dir.join("verbs-api/libibverbs/Cargo.toml").is_file();
    if let Some(found) = origin.ancestors().find(is_source) {
        return Some(found.to_owned());
    }
    let here = std::env::current_dir().ok()?;
    here.ancestors().find(is_source).map(Path::to_owned)
}

fn build(sources: &Path) -> Result<(), CliError> {
    output::line(format_args!(
        "building the drop-in libraries in {}",
        sources.display()
    ))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // The default members, as in a build by hand: after one, nothing is compiled again.
    command
        .current_dir(sources)
        .args(["build", "--release", "--locked"]);
    // Overrides the target directory of the user's configuration.
    command.arg("--target-dir").arg(sources.join("target"));
    let by_hand = "cargo build --release && target/release/rocade install";
    let status = command
        .status()
        .map_err(|error| CliError::new(format!("failed to run cargo: {error}")).hint(by_hand))?;
    if status.success() {
        Ok(())
    } else {
        Err(CliError::new("failed to build the drop-in libraries").hint(by_hand))
    }
}

/// Returns an error that names the file if a file of another program is in place of one to install.
fn refuse_foreign(
    prefix: &Path,
    paths: &BTreeSet<&str>,
    old: &BTreeSet<String>,
) -> Result<(), CliError> {
    let is_foreign =
        |path: &&&str| !old.contains(**path) && fs::symlink_metadata(prefix.join(path)).is_ok();
    match paths.iter().find(is_foreign) {
        None => Ok(()),
        Some(path) => {
            let file = prefix.join(path);
            Err(CliError::new(format!(
                "{} exists and was not installed by `rocade install`",
                file.display()
            ))
            .hint("remove it (after `cargo install`: cargo uninstall rocade), or use that command")
            .hint("or choose another directory: rocade install --prefix DIR"))
        }
    }
}

/// Returns the missing directories that the paths need, at and below the prefix.
fn missing_directories<'a>(
    prefix: &Path,
    paths: impl Iterator<Item = &'a str>,
) -> BTreeSet<String> {
    let parents = paths.flat_map(|path| Path::new(path).ancestors().skip(1));
    parents
        .filter(|dir| !prefix.join(dir).exists())
        .map(|dir| match dir.to_str() {
            None | Some("") => PREFIX_ITSELF.to_owned(),
            Some(dir) => format!("{dir}/"),
        })
        .collect()
}

fn put(prefix: &Path, item: &Item) -> Result<(), CliError> {
    let target = prefix.join(&item.path);
    let failed = |error: io::Error| CliError::new(format!("{}: {error}", target.display()));
    let dir = target.parent().unwrap_or(prefix);
    fs::create_dir_all(dir).map_err(failed)?;
    // Programs may have mapped the old file, so it is replaced instead of written.
    let new = dir.join(format!(".rocade-install.{}", std::process::id()));
    let written = match &item.content {
        Content::Text(text) => fs::write(&new, text).map_err(failed),
        Content::Stripped(from) => fs::copy(from, &new)
            .map_err(failed)
            .and_then(|_| strip(&new, &target)),
        Content::Link(to) => std::os::unix::fs::symlink(to, &new).map_err(failed),
    };
    let is_link = matches!(item.content, Content::Link(_));
    let with_mode = written.and_then(|()| {
        if is_link {
            return Ok(());
        }
        fs::set_permissions(&new, Permissions::from_mode(item.mode)).map_err(failed)
    });
    let done = with_mode.and_then(|()| fs::rename(&new, &target).map_err(failed));
    done.inspect_err(|_| {
        // The first error is reported, not that of the removal.
        let _ = fs::remove_file(&new);
    })
}

/// Removes symbols and line tables, nine tenths of the file. Without binutils they stay.
fn strip(file: &Path, target: &Path) -> Result<(), CliError> {
    match Command::new("strip")
        .arg("--strip-unneeded")
        .arg(file)
        .status()
    {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(CliError::new(format!(
            "failed to strip {}",
            target.display()
        ))),
        Err(error) => {
            let name = target.file_name().unwrap_or_default().display();
            eprintln!(
                "rocade: warning: failed to run strip ({error}): {name} is installed with symbols"
            );
            Ok(())
        }
    }
}

/// Returns the installed paths below the prefix. Directories have a slash at the end.
fn read_list(prefix: &Path) -> Result<Option<BTreeSet<String>>, CliError> {
    let file = prefix.join(LIST);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CliError::new(format!("{}: {error}", file.display()))),
    };
    let is_below = |path: &str| {
        let mut parts = Path::new(path).components();
        parts.all(|part| matches!(part, Component::Normal(_)))
    };
    match text
        .lines()
        .find(|line| *line != PREFIX_ITSELF && !is_below(line))
    {
        None => Ok(Some(text.lines().map(str::to_owned).collect())),
        Some(line) => Err(CliError::new(format!(
            "{} is damaged: {line}",
            file.display()
        ))),
    }
}

fn write_list(prefix: &Path, list: &BTreeSet<String>) -> io::Result<()> {
    let file = prefix.join(LIST);
    fs::create_dir_all(file.parent().unwrap_or(prefix))?;
    let new = file.with_extension("new");
    let text: String = list.iter().map(|path| format!("{path}\n")).collect();
    fs::write(&new, text)?;
    fs::rename(&new, &file)
}

fn remove(file: &Path) -> Result<(), CliError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CliError::new(format!(
            "failed to remove {}: {error}",
            file.display()
        ))),
        _ => Ok(()),
    }
}

fn report(prefix: &Path, paths: &BTreeSet<&str>) -> Result<(), CliError> {
    output::line(format_args!("installed below {}:", prefix.display()))?;
    if paths.contains("bin/rocade") {
        output::line("  bin/rocade   the command")?;
    }
    output::line("  lib/rocade/  the drop-in libraries")?;
    output::line("  share/       manual pages, and completions for bash, zsh and fish")?;
    output::line("`rocade uninstall` removes them")?;
    let bin = prefix.join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|dir| dir == bin) {
        output::line(format_args!(
            "not in PATH yet: export PATH={}:$PATH",
            bin.display()
        ))?;
    }
    Ok(())
}
