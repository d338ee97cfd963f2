//! The tree that all packages are made of: `bin`, `lib/rocade`, `share`. And its debug files.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Plan, at, build::GLIBC, clear, contents, copy, copy_tree, execute, files_below, glibc, output,
};
use crate::aarch64::Cross;

/// Documents of the checkout that each package has.
pub(super) const DOCUMENTS: [&str; 4] =
    ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Fills the tree and that of debug files, and checks them.
pub(super) fn make(plan: &Plan, built: &Path, cross: Option<&Cross>) -> Result<(), String> {
    fill(plan, built, cross)?;
    contents::check(plan)?;
    contents::check_length(plan)?;
    glibc::check(plan, Some(GLIBC))?;
    debug_files(plan, built)
}

/// Fills the tree with what `rocade install` installs.
///
/// # Errors
/// That of `rocade install`, or a symbol that a library lacks.
pub(super) fn fill(plan: &Plan, built: &Path, cross: Option<&Cross>) -> Result<(), String> {
    let tree = plan.tree();
    clear(&tree)?;
    let command = built.join("rocade");
    let mut install = match cross {
        Some(cross) => cross.command_with_tools(&command)?,
        None => Command::new(&command),
    };
    install.arg("install").arg("--prefix").arg(&tree);
    execute(&mut install)?;
    // The list is for `rocade uninstall`, and here a package manager removes the files.
    let list = tree.join("lib/rocade/installed");
    fs::remove_file(&list).map_err(at(&list))?;
    // In `include`, a package of another libibverbs could have files of these names.
    let headers = tree.join("include");
    copy_tree(&headers, &tree.join("share/rocade/include"))?;
    fs::remove_dir_all(&headers).map_err(at(&headers))?;
    for name in DOCUMENTS {
        copy(
            &plan.root.join(name),
            &tree.join("share/doc/rocade").join(name),
        )?;
    }
    for name in ["libibverbs", "librdmacm", "libmlx5", "libefa", "libmana"] {
        check_symbols(plan, name)?;
    }
    Ok(())
}

/// Returns an error if a library lacks a symbol of its table.
fn check_symbols(plan: &Plan, name: &str) -> Result<(), String> {
    let dir = plan.root.join("verbs-api").join(name);
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).map_err(at(&path))
    };
    let failed = |error: rocade_symbols::TableError| format!("{}: {error}", dir.display());
    let versions = rocade_symbols::versions(&read("versions.tsv")?).map_err(failed)?;
    let exports = rocade_symbols::exports(&read("exports.tsv")?).map_err(failed)?;
    let library = plan.tree().join(format!("lib/rocade/{name}.so.1"));
    let text = output(
        Command::new("readelf")
            .args(["--dyn-syms", "--wide"])
            .arg(&library),
    )?;
    let defined = text.lines().filter(|line| !line.contains(" UND "));
    let defined: BTreeSet<&str> = defined
        .filter_map(|line| line.split_whitespace().nth(7))
        .collect();
    for export in rocade_symbols::with_repeated(exports, &versions) {
        let sign = if export.default { "@@" } else { "@" };
        let symbol = format!("{}{sign}{}", export.symbol, export.version);
        if !defined.contains(&*symbol) {
            return Err(format!("{} lacks {symbol}", library.display()));
        }
    }
    Ok(())
}

/// Keeps the symbols of each file where gdb looks for them, by its build ID.
fn debug_files(plan: &Plan, built: &Path) -> Result<(), String> {
    let to = plan.debug_tree();
    clear(&to)?;
    for file in binaries(&plan.tree())? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let name = name.replace(".so.1", ".so");
        let id = build_id(&built.join(&name))?;
        let (dir, rest) = id.split_at(2);
        let target = to.join(format!("lib/debug/.build-id/{dir}/{rest}.debug"));
        if let Some(dir) = target.parent() {
            fs::create_dir_all(dir).map_err(at(dir))?;
        }
        let mut objcopy = Command::new(plan.arch.tool("objcopy"));
        objcopy.arg("--only-keep-debug").arg(built.join(&name));
        execute(objcopy.arg(&target))?;
    }
    Ok(())
}

/// The command and the libraries of a tree, without links.
pub(super) fn binaries(tree: &Path) -> Result<Vec<PathBuf>, String> {
    let files = files_below(tree)?.into_iter().map(|file| tree.join(file));
    let is_binary = |file: &PathBuf| {
        let place = file.strip_prefix(tree).unwrap_or(file);
        !file.is_symlink() && (place.starts_with("bin") || place.starts_with("lib"))
    };
    Ok(files.filter(is_binary).collect())
}

fn build_id(file: &Path) -> Result<String, String> {
    let text = output(Command::new("readelf").arg("-n").arg(file))?;
    let id = text
        .split("Build ID: ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let id = id.filter(|id| id.len() > 8);
    id.map(str::to_owned)
        .ok_or_else(|| format!("{} has no build ID", file.display()))
}
