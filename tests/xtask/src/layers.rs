//! The layers of the emulator and of the transport: dependencies point one way only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

/// The modules of `emulator/src`, lowest first. A module may name those before it, and those of its
/// own line.
const LAYERS: [&[&str]; 29] = [
    &["tuning"],
    &["failure"],
    &["sync"],
    &["sys"],
    &["random"],
    &["limits"],
    &["nearest"],
    &["fdpass"],
    &["clock"],
    &["cpu_idle"],
    &["notice"],
    &["inherited"],
    &["trace"],
    &["memory"],
    &["steering"],
    // A packet rule is one of the link, which counts for the tally what it has done.
    &["link", "faults"],
    &["gsi"],
    &["journal"],
    &["config"],
    &["hca", "counters", "probe", "statistics"],
    &["broker"],
    &["error"],
    &["raw"],
    &["state"],
    &["xrc_shared"],
    // The manager sends through the engine that drives it.
    &["engine", "cm"],
    &["objects"],
    // Only tests of this crate see its engines.
    &["simulated_host"],
    &["hostsim"],
];

/// The modules of the transport that use each other, because a work request may change a key or
/// compute, and `memory` executes both.
const CIRCLE: [&str; 5] = ["cross_channel", "indirect", "memory", "window", "wr"];

/// The lines that name what is above them, and the modules of the transport that are in a circle of
/// their own.
///
/// # Errors
/// Those of reading the tree.
pub(crate) fn circles(root: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let transport = uses(&root.join("transport/src"))?;
    for module in in_circles(&transport) {
        if !CIRCLE.contains(&&*module) {
            found.push(format!("transport/src/{module}: is in a circle of imports"));
        }
    }
    let emulator = root.join("emulator/src");
    // The highest one has tests of all together.
    for (level, modules) in LAYERS.iter().enumerate().take(LAYERS.len() - 1) {
        let above: Vec<_> = LAYERS[level + 1..].concat();
        for module in *modules {
            let (folder, file) = (emulator.join(module), emulator.join(format!("{module}.rs")));
            if folder.is_dir() {
                search(&folder, &above, &mut found)?;
            }
            if file.is_file() {
                search_file(&file, &above, &mut found)?;
            }
        }
    }
    found.extend(unlisted(&emulator)?);
    Ok(found)
}

/// Returns the modules of the emulator that no layer lists.
fn unlisted(emulator: &Path) -> io::Result<Vec<String>> {
    let listed = LAYERS.concat();
    let mut found = Vec::new();
    for entry in fs::read_dir(emulator)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if !matches!(&*name, "lib" | "fuzzing") && !listed.contains(&&*name) {
            found.push(format!("{}: is in no layer", path.display()));
        }
    }
    Ok(found)
}

fn search(folder: &Path, above: &[&'static str], found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            search(&path, above, found)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs") {
            search_file(&path, above, found)?;
        }
    }
    Ok(())
}

fn search_file(path: &Path, above: &[&'static str], found: &mut Vec<String>) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    for (at, line) in text.lines().enumerate() {
        if let Some(name) = names_above(line, above) {
            let place = path.display();
            found.push(format!("{place}:{}: may not know {name}", at + 1));
        }
    }
    Ok(())
}

/// Returns the modules of a crate, and those that each names outside of tests. The crate's root
/// counts as all modules that it re-exports.
fn uses(src: &Path) -> io::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut uses = BTreeMap::new();
    for entry in fs::read_dir(src)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if !matches!(&*name, "lib" | "tests" | "testing") {
            named(&path, uses.entry(name.into_owned()).or_default())?;
        }
    }
    Ok(uses)
}

fn named(path: &Path, found: &mut BTreeSet<String>) -> io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            if path.file_stem().is_none_or(|stem| stem != "tests") {
                named(&path, found)?;
            }
        }
        return Ok(());
    }
    let text = fs::read_to_string(path)?;
    let code = text.lines().take_while(|line| *line != "#[cfg(test)]");
    let code = code.filter(|line| !line.trim_start().starts_with("//"));
    for path in code.flat_map(|line| line.split("crate::").skip(1)) {
        let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
        found.insert(path[..end.unwrap_or(path.len())].to_owned());
    }
    Ok(())
}

/// Returns the modules from which a path leads back to them. A name that is no module is a
/// re-export of the crate and leads to all modules.
fn in_circles(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let leads_back = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            for used in uses.get(module).into_iter().flatten() {
                if used == from && module != from || !uses.contains_key(used) {
                    return true;
                }
                if seen.insert(used) {
                    next.push(used);
                }
            }
        }
        false
    };
    uses.keys()
        .filter(|name| leads_back(name))
        .cloned()
        .collect()
}

/// Returns what a line of code names that it may not: a module, or an item that the crate
/// re-exports.
fn names_above<'l>(line: &'l str, above: &[&'static str]) -> Option<&'l str> {
    if line.trim_start().starts_with("//") {
        return None;
    }
    let paths = line.split("crate::").skip(1);
    paths
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
    fn circles_are_found() {
        let of = |pairs: &[(&str, &str)]| {
            let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for name in ["a", "b", "c", "d"] {
                uses.entry(name.to_owned()).or_default();
            }
            for (from, to) in pairs {
                let used = uses.entry((*from).to_owned()).or_default();
                used.insert((*to).to_owned());
            }
            in_circles(&uses).join(" ")
        };
        assert_eq!(of(&[("a", "b"), ("b", "c"), ("a", "c"), ("a", "a")]), "");
        assert_eq!(of(&[("a", "b"), ("b", "c"), ("c", "b")]), "b c");
        assert_eq!(
            of(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]),
            "a b c"
        );
        assert_eq!(of(&[("d", "Qp")]), "d");
    }

    /// Every module listed as part of the circle is in one, so the documentation lists no more than
    /// there is.
    #[test]
    fn the_circle_of_the_transport_is_the_one_that_is_explained() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let uses = uses(&root.join("transport/src")).expect("the sources");
        assert_eq!(in_circles(&uses), CIRCLE);
    }

    #[test]
    fn what_is_above_is_found() {
        let names = |line| names_above(line, &["objects", "engine"]);
        assert_eq!(names("use crate::objects::Qp;"), Some("objects"));
        assert_eq!(names("    let x = crate::engine::now();"), Some("engine"));
        assert_eq!(names("use crate::Qp;"), Some("Qp"));
        assert_eq!(names("use crate::{Qp, Cq};"), Some(""));
        assert_eq!(names("use crate::state::QpInner;"), None);
        assert_eq!(names("use crate::engines::X;"), None);
        assert_eq!(names("// of crate::objects"), None);
    }
}
