//! Which parts of the emulator know which others: dependencies point one way only.

use std::{fs, io, path::Path};

/// A folder of `emulator/src`, and the modules that its files may not name.
struct Layer {
    folder: &'static str,
    above: &'static [&'static str],
}

/// What the rest of the crate sees is above everything in this list.
const LAYERS: [Layer; 9] = [
    layer("engine", &["objects"]),
    layer("travel", &["objects", "engine", "cm"]),
    layer("cells", &["objects", "engine", "travel", "cm"]),
    layer("broker", &["objects", "engine", "travel", "cells", "cm"]),
    layer("raw", ABOVE_LINKS),
    layer("memory", ABOVE_ALL),
    layer("hca", ABOVE_ALL),
    layer("link", ABOVE_ALL),
    layer("steering", ABOVE_ALL),
];

const ABOVE_LINKS: &[&str] = &["objects", "engine", "travel", "cells", "cm", "broker"];
/// What has neither threads nor other processes in view.
const ABOVE_ALL: &[&str] = &[
    "objects", "engine", "travel", "cells", "cm", "broker", "raw",
];

/// What is above all the same by its folder only: tables and codecs of the connection manager that call nobody.
const LEAVES: [&str; 3] = ["cm::services", "cm::gsi", "cm::port_range"];

const fn layer(folder: &'static str, above: &'static [&'static str]) -> Layer {
    Layer { folder, above }
}

/// The lines that name what is above them.
///
/// # Errors
/// Those of reading the tree.
pub(crate) fn circles(root: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for layer in &LAYERS {
        let folder = root.join("emulator/src").join(layer.folder);
        search(&folder, layer, &mut found)?;
    }
    Ok(found)
}

fn search(folder: &Path, layer: &Layer, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            search(&path, layer, found)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path)?;
            for (at, line) in text.lines().enumerate() {
                if let Some(name) = names_above(line, layer.above) {
                    let place = path.display();
                    found.push(format!("{place}:{}: may not know {name}", at + 1));
                }
            }
        }
    }
    Ok(())
}

/// What a line of code names that it may not: a module, or what the crate shows to others.
fn names_above<'l>(line: &'l str, above: &[&'static str]) -> Option<&'l str> {
    if line.trim_start().starts_with("//") {
        return None;
    }
    let paths = line.split("crate::").skip(1);
    paths
        .filter(|path| !LEAVES.iter().any(|leaf| path.starts_with(leaf)))
        .map(|path| {
            let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
            &path[..end.unwrap_or(path.len())]
        })
        .find(|name| above.contains(name) || !name.starts_with(|c: char| c.is_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_keeps_its_layers() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let found = circles(&root).expect("the sources");
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn what_is_above_is_found() {
        let names = |line| names_above(line, &["objects", "engine"]);
        assert_eq!(names("use crate::objects::Qp;"), Some("objects"));
        assert_eq!(names("    let x = crate::engine::now();"), Some("engine"));
        assert_eq!(names("use crate::Qp;"), Some("Qp"));
        assert_eq!(names("use crate::{Qp, Cq};"), Some(""));
        assert_eq!(names("use crate::cells::QpInner;"), None);
        assert_eq!(names("use crate::engines::X;"), None);
        assert_eq!(names("// of crate::objects"), None);
        let of_cm = |line| names_above(line, &["cm"]);
        assert_eq!(of_cm("use crate::cm::services::Binding;"), None);
        assert_eq!(of_cm("use crate::cm::CmHost;"), Some("cm"));
    }
}
