//! Packages for crates.io: each can be made, describes itself, and contains what its sources
//! include.
//!
//! Nothing is compiled and nothing is fetched, so the check takes a second. The release checklist
//! (docs/release.md) has the steps that need the network.

use std::{fs, io, path::Path, time::Duration};

use crate::{step, tally::Tally, workspace::Workspace};

const LIMIT: Duration = Duration::from_secs(300);

/// Keys of a manifest that a registry shows.
const KEYS: [&str; 6] = [
    "description",
    "readme",
    "documentation",
    "keywords",
    "categories",
    "include",
];

/// Makes all packages, without a build of them.
pub(crate) fn package(workspace: &Workspace) -> Tally {
    let published = published(workspace);
    if published.is_empty() {
        eprintln!("xtask: no package is published");
        return Tally::FAIL;
    }
    // Without `--offline` cargo asks the registry for newer versions of the dependencies.
    let mut command = workspace.cargo(&["package", "--quiet", "--no-verify", "--offline"]);
    command.arg("--allow-dirty");
    for (name, _) in published {
        command.args(["--package", &name]);
    }
    step::run("packages for crates.io", LIMIT, command).as_one()
}

/// Returns what the packages lack: keys of their manifests, and files that sources include.
///
/// # Errors
/// Those of reading the tree and of running cargo.
pub(crate) fn lacks(workspace: &Workspace) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, member) in published(workspace) {
        let dir = workspace.root().join(&member);
        let manifest = fs::read_to_string(dir.join("Cargo.toml"))?;
        found.extend(
            missing_keys(&manifest)
                .iter()
                .map(|key| format!("{member}/Cargo.toml: no {key}")),
        );
        let mut list = workspace.cargo(&["package", "--list", "--quiet", "--offline"]);
        let list = list.args(["--allow-dirty", "--package", &name]).output()?;
        if !list.status.success() {
            let message = String::from_utf8_lossy(&list.stderr).into_owned();
            return Err(io::Error::other(message));
        }
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let files: Vec<&str> = list.lines().collect();
        for file in files.iter().filter(|file| file.ends_with(".rs")) {
            let text = fs::read_to_string(dir.join(file))?;
            let included = included(&text).into_iter();
            let included = included.map(|path| resolved(file, path));
            let outside = included.filter(|path| !files.iter().any(|file| file.starts_with(path)));
            found.extend(
                outside.map(|path| format!("{member}/{file}: {path} is not in the package")),
            );
        }
    }
    Ok(found)
}

/// Returns name and directory of each member that says `publish = true`.
fn published(workspace: &Workspace) -> Vec<(String, String)> {
    let members = workspace.members().into_iter();
    let named = members.filter_map(|member| {
        let manifest = workspace.root().join(&member).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).ok()?;
        Some((published_name(&manifest)?.to_owned(), member))
    });
    named.collect()
}

fn published_name(manifest: &str) -> Option<&str> {
    let is_published = manifest.lines().any(|line| line == "publish = true");
    let mut lines = manifest.lines().filter(|_| is_published);
    let name = lines.find_map(|line| line.strip_prefix("name = "))?;
    Some(name.trim_matches('"'))
}

fn missing_keys(manifest: &str) -> Vec<&'static str> {
    let has = |key: &&&str| {
        let mut lines = manifest.lines().filter_map(|line| line.strip_prefix(**key));
        lines.any(|rest| rest.starts_with(" = "))
    };
    let mut missing: Vec<&str> = KEYS.iter().filter(|key| !has(key)).copied().collect();
    if !manifest.contains("\n[package.metadata.docs.rs]\n") {
        missing.push("[package.metadata.docs.rs]");
    }
    missing
}

/// Returns the paths that a source includes as text or bytes. Of a path that a macro composes, the
/// first part.
fn included(text: &str) -> Vec<&str> {
    let macros = ["include_str!(", "include_bytes!("];
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines
        .flat_map(|line| macros.iter().filter_map(|name| line.split_once(name)))
        .filter_map(|(_, argument)| argument.trim_start_matches("concat!(").strip_prefix('"'))
        .filter_map(|argument| Some(argument.split_once('"')?.0))
        .collect()
}

/// Returns a path that is relative to the directory of `file` as one that is relative to the
/// package. A path outside of it begins with `../`.
fn resolved(file: &str, path: &str) -> String {
    let dir = Path::new(file).parent().unwrap_or_else(|| Path::new(""));
    let dir = dir.to_string_lossy().into_owned();
    let mut parts: Vec<&str> = dir.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_published_is_packaged() {
        let named = |publish: &str| format!("[package]\nname = \"a\"\n{publish}\n");
        assert_eq!(published_name(&named("publish = true")), Some("a"));
        assert_eq!(published_name(&named("publish.workspace = true")), None);
    }

    #[test]
    fn missing_keys_are_found() {
        let complete = "[package]\ndescription = \"a\"\nreadme = \"b\"\ndocumentation = \"c\"\n\
                        keywords = []\ncategories = []\ninclude = []\n\n\
                        [package.metadata.docs.rs]\n";
        assert_eq!(missing_keys(complete), [""; 0]);
        let without = complete.replace("readme = \"b\"\n", "");
        assert_eq!(missing_keys(&without), ["readme"]);
        assert_eq!(
            missing_keys(complete.split_once("[package.meta").expect("there").0),
            ["[package.metadata.docs.rs]"]
        );
    }

    #[test]
    fn included_files_are_found() {
        let source = "let a = include_str!(\"a.rs\");\n// include_str!(\"b\")\n\
                      &[include_bytes!(concat!(\"../include/\", $path))]\n";
        assert_eq!(included(source), ["a.rs", "../include/"]);
        assert_eq!(
            resolved("src/config/names.rs", "settings.rs"),
            "src/config/settings.rs"
        );
        assert_eq!(resolved("src/headers.rs", "../include/"), "include/");
        assert_eq!(resolved("src/headers.rs", "../../include/"), "../include/");
    }
}
