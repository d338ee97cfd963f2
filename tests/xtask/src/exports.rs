//! The public signatures of the Rust API name only types that its users can name.
//!
//! A type of an inner crate that `rocade-verbs` does not export again would force a program to
//! depend on that crate too, in the same version. The compiler accepts such a signature.
//!
//! Implementations of traits are not checked: a conversion from an inner type is for `rocade`
//! itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// The crates that are no part of the API.
const INNER: [&str; 3] = ["rocade_emulator", "rocade_transport", "rocade_wire"];

/// Returns the places of `rocade-verbs` whose signature names a type that it does not export, as
/// `path:line: name`.
///
/// # Errors
/// Those of reading the sources.
pub(crate) fn hidden(root: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    collect(&root.join("verbs-api/verbs/src"), &mut files)?;
    files.sort();
    let texts: Vec<String> = files
        .iter()
        .map(fs::read_to_string)
        .collect::<io::Result<_>>()?;
    let exported: BTreeSet<String> = texts
        .iter()
        .flat_map(|text| imports(text, "pub use "))
        .map(|(_, name)| name)
        .collect();
    let mut found = Vec::new();
    for (file, text) in files.iter().zip(&texts) {
        let file = file.strip_prefix(root).unwrap_or(file).display();
        let named = named_inside(text, &exported).into_iter();
        for (line, name) in named {
            found.push(format!("{file}:{line}: {name}"));
        }
    }
    Ok(found)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the types of inner crates that the public signatures of a file name, with their lines.
fn named_inside(text: &str, exported: &BTreeSet<String>) -> Vec<(usize, String)> {
    let imported: BTreeMap<String, String> = imports(text, "use ").into_iter().collect();
    let mut found = Vec::new();
    for (line, signature) in signatures(text) {
        for path in paths(&signature) {
            let (first, last) = (path[0], path[path.len() - 1]);
            let through = imported.get(first).map(String::as_str);
            let inner = match through {
                // A crate under another name: `emulator::Gid`.
                Some(original) if INNER.contains(&original) => Some(last),
                Some(original) => Some(original),
                None if INNER.contains(&first) => Some(last),
                None => None,
            };
            // A constant is a number, whatever its name.
            let is_type = |name: &&str| name.contains(char::is_lowercase);
            let inner = inner.filter(is_type);
            if let Some(name) = inner.filter(|name| !exported.contains(*name)) {
                found.push((line, name.to_owned()));
            }
        }
    }
    found
}

/// Returns the names that statements with this beginning take from inner crates: here, and there.
fn imports(text: &str, beginning: &str) -> Vec<(String, String)> {
    let mut names = Vec::new();
    let statements = text.split(';').filter_map(|part| {
        let at = part.rfind(&format!("\n{beginning}"))?;
        Some(&part[at + 1 + beginning.len()..])
    });
    for statement in statements {
        if !INNER.iter().any(|inner| statement.starts_with(inner)) {
            continue;
        }
        let list = statement
            .split_once('{')
            .map_or(statement, |(_, list)| list.trim_end_matches('}'));
        for item in list
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            let (path, here) = item.split_once(" as ").unwrap_or((item, ""));
            let original = path.rsplit("::").next().unwrap_or(path);
            let here = if here.is_empty() { original } else { here };
            names.push((here.to_owned(), original.to_owned()));
        }
    }
    names
}

/// Returns what a user sees of each public item, with its line: functions without their bodies,
/// fields, types, and whole enums and traits. Tests at the end of a file are left out, and so are
/// modules inside it, which are private.
fn signatures(text: &str) -> Vec<(usize, String)> {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text);
    let lines: Vec<&str> = text.lines().map(without_comment).collect();
    let mut is_private = false;
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        is_private =
            (is_private || line.starts_with("mod ") && line.ends_with('{')) && *line != "}";
        if is_private {
            continue;
        }
        let item = line.trim_start();
        let Some(rest) = item.strip_prefix("pub ") else {
            continue;
        };
        if rest.starts_with("use ") || rest.starts_with("mod ") {
            continue;
        }
        let indent = &line[..line.len() - item.len()];
        let all = || lines[index..].join("\n");
        let has_body = !rest.ends_with("{}");
        let signature = if has_body && (rest.starts_with("enum ") || rest.starts_with("trait ")) {
            let end = format!("\n{indent}}}");
            all().split(&end).next().unwrap_or_default().to_owned()
        } else if rest.starts_with("struct ") {
            public_fields(&until(&all(), &['{', ';']))
        } else if rest.starts_with("type ") {
            until(&all(), &[';'])
        } else if rest.starts_with("trait ") {
            until(&all(), &['{'])
        } else if rest.starts_with("const ") && !rest.contains("fn ") || rest.starts_with("static ")
        {
            until(&all(), &['='])
        } else if rest.contains("fn ") {
            until(&all(), &['{', ';'])
        } else {
            // A field.
            (*rest).to_owned()
        };
        found.push((index + 1, signature));
    }
    found
}

fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or(line).trim_end()
}

fn until(text: &str, ends: &[char]) -> String {
    text.split(ends).next().unwrap_or_default().to_owned()
}

/// Returns the header of a struct, and of a tuple only the public fields.
fn public_fields(header: &str) -> String {
    match header.split_once('(') {
        None => header.to_owned(),
        Some((name, fields)) => {
            let public = fields
                .split(',')
                .filter(|field| field.trim().starts_with("pub "));
            format!("{name} {}", public.collect::<Vec<_>>().join(" "))
        }
    }
}

/// Returns the paths in a text, each as its parts.
fn paths(text: &str) -> Vec<Vec<&str>> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    text.split(|c: char| !is_part(c))
        .map(|path| path.split("::").filter(|part| !part.is_empty()))
        .map(Iterator::collect::<Vec<_>>)
        .filter(|path| !path.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
//! A file.

use rocade_emulator as emulator;
use rocade_emulator::{Gid, Mr as RawMr, QpAttr};
use rocade_wire::mad::Ece;

pub struct Handle(RawMr, pub QpAttr);

pub struct Facts {
    /// Not a `QpAttr`.
    pub gid: Gid,
    pub ece: Ece,
    raw: RawMr,
}

pub enum Cause {
    Refused(emulator::link::RuleError),
}

impl Handle {
    pub fn open(
        self,
        name: &str,
    ) -> Result<Gid, rocade_transport::PostError> {
        QpAttr::default();
    }

    pub(crate) fn raw(&self) -> &RawMr {
        &self.0
    }
}

mod sealed {
    pub trait Raw {
        fn raw(&self) -> &QpAttr;
    }
}

#[cfg(test)]
mod tests {
    pub fn attr() -> QpAttr {}
}
";

    #[test]
    fn types_that_a_user_cannot_name_are_found() {
        let exported = ["Gid".to_owned()].into();
        let found = named_inside(SOURCE, &exported);
        let found: Vec<_> = found
            .iter()
            .map(|(at, name)| (*at, name.as_str()))
            .collect();
        let expected = [
            (7, "QpAttr"),
            (12, "Ece"),
            (16, "RuleError"),
            (21, "PostError"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn exports_are_found() {
        let text = "\npub use rocade_transport::{\n    Sge,\n    WcStatus,\n};\npub use rocade_wire::Gid;\n";
        let names = imports(text, "pub use ").into_iter().map(|(_, name)| name);
        assert_eq!(names.collect::<Vec<_>>(), ["Sge", "WcStatus", "Gid"]);
    }

    #[test]
    fn the_api_itself_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let lib =
            fs::read_to_string(root.join("verbs-api/verbs/src/queue_pair.rs")).expect("readable");
        let seen = signatures(&lib);
        assert!(
            seen.iter().any(|(_, text)| text.contains("fn post_send(")),
            "{seen:?}"
        );
        assert_eq!(hidden(&root).expect("readable"), [""; 0]);
    }
}
