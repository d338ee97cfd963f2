//! Every dependency is used: a package's by its sources, and the workspace's by a package.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A package: the names of its dependencies, and the text of its sources.
#[derive(Debug, Default)]
struct Package {
    manifest: PathBuf,
    dependencies: Vec<String>,
    sources: String,
}

/// Returns the unused dependencies, each with the manifest that names it.
///
/// # Errors
/// Those of reading the tree.
pub(crate) fn unused(root: &Path) -> io::Result<Vec<String>> {
    let mut packages = Vec::new();
    collect(root, &mut Package::default(), &mut packages)?;
    let mut found = Vec::new();
    for package in &packages {
        let is_workspace = package.manifest == root.join("Cargo.toml");
        for name in &package.dependencies {
            let used = if is_workspace {
                let mut members = packages
                    .iter()
                    .filter(|other| other.manifest != package.manifest);
                members.any(|member| member.dependencies.contains(name))
            } else {
                names(&package.sources, &name.replace('-', "_"))
            };
            if !used {
                found.push(format!("{}: {name}", package.manifest.display()));
            }
        }
    }
    Ok(found)
}

/// Sources below `dir` belong to `outer`, unless there is a package of its own.
fn collect(dir: &Path, outer: &mut Package, packages: &mut Vec<Package>) -> io::Result<()> {
    let manifest = dir.join("Cargo.toml");
    let mut own = if manifest.is_file() {
        let dependencies = dependencies_of(&fs::read_to_string(&manifest)?);
        Some(Package {
            manifest,
            dependencies,
            sources: String::new(),
        })
    } else {
        None
    };
    let package = own.as_mut().unwrap_or(outer);
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(&path, package, packages)?;
            }
        } else if name.ends_with(".rs") {
            package.sources.push_str(&fs::read_to_string(&path)?);
        }
    }
    packages.extend(own);
    Ok(())
}

/// The names in all sections of a manifest that list dependencies.
fn dependencies_of(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut lists = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            lists = line.ends_with("dependencies]");
        } else if let Some((name, _)) = line.split_once([' ', '.', '='])
            && lists
            && !name.is_empty()
            && !name.starts_with('#')
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns true if a path or a macro begins with this crate.
fn names(sources: &str, krate: &str) -> bool {
    sources.match_indices(krate).any(|(at, _)| {
        let before = sources[..at].chars().next_back();
        let is_start = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let rest = &sources[at + krate.len()..];
        is_start
            && ["::", "!", ";", " as "]
                .iter()
                .any(|end| rest.starts_with(end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_with_dependencies_are_read() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb-c = \"1\"\n\n# d = 1\n\
                        [target.'cfg(loom)'.dependencies]\ne = { path = \"e\" }\n[lib]\nf = 1\n";
        assert_eq!(dependencies_of(manifest), ["a", "b-c", "e"]);
    }

    #[test]
    fn only_the_crate_itself_is_a_use() {
        assert!(names("use crossbeam::utils;", "crossbeam"));
        assert!(names("bitflags! {}", "bitflags"));
        assert!(!names(
            "use rocade_wire_format::X; // crossbeam",
            "rocade_wire"
        ));
        assert!(!names("// crossbeam is a crate", "crossbeam"));
        assert!(!names("my_libc::f()", "libc"));
    }
}
