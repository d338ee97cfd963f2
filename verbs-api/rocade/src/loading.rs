//! The ways in which a file loads, or contains, a libibverbs that is not Rocade's.

use std::collections::BTreeSet;
use std::path::Path;

use memchr::memmem;

use crate::elf::Elf;
use crate::libdir::LIBRARIES;
use crate::search::{self, VERBS};

/// The directory that every libibverbs reads.
pub(crate) const VERBS_CLASS: &[u8] = b"infiniband_verbs";
/// The beginning of the messages of rdma-core's libibverbs.
const RDMA_CORE: &[u8] = b"libibverbs: Warning";
/// A symbol of Rocade's own libraries.
const ROCADE: &[u8] = b"ROCADE_PRIVATE_1";
/// The name in paths to the library.
const NAME: &[u8] = b"libibverbs.so";
/// The longest path that is recognised.
const LONGEST_PATH: usize = 4096;

/// A way to a libibverbs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// The file has verbs and loads no libraries.
    Static,
    /// The file is a library with a libibverbs inside.
    Inside,
    /// The file is another libibverbs.
    Copy,
    /// The file is linked with a copy that only its package has, by this name.
    NeedsCopy(String),
    /// The file is linked with this path.
    NeedsPath(String),
    /// The file searches these directories before those of `LD_LIBRARY_PATH`.
    Rpath(String),
    /// The file searches these directories after those of `LD_LIBRARY_PATH`.
    Runpath(String),
    /// The file contains this path.
    Opens(String),
    /// The file loads libibverbs into a namespace of its own.
    Namespace,
    /// The file is linked with the usual name, or loads it.
    Usual,
}

/// Returns the ways of a file with this name and content. Empty if it does not use verbs.
pub(crate) fn ways(name: &str, elf: &Elf, content: &[u8]) -> BTreeSet<Way> {
    let mut ways = BTreeSet::new();
    if contains(content, ROCADE) {
        return ways;
    }
    let is_copy = library_of_copy(name).is_some() || name == VERBS;
    let needs: Vec<&String> = elf
        .needed
        .iter()
        .filter(|name| search::is_verbs(name))
        .collect();
    let is_program = !name.contains(".so");
    let is_static = is_program && elf.interpreter.is_none() && elf.needed.is_empty();
    if is_copy {
        ways.insert(Way::Copy);
    } else if contains(content, VERBS_CLASS) && is_static {
        ways.insert(Way::Static);
    } else if contains(content, RDMA_CORE) && needs.is_empty() {
        ways.insert(Way::Inside);
    }
    for name in &needs {
        ways.insert(match name {
            name if name.contains('/') => Way::NeedsPath((*name).clone()),
            name if library_of_copy(name).is_some() => Way::NeedsCopy((*name).clone()),
            _ => Way::Usual,
        });
    }
    if !needs.is_empty() {
        ways.extend(match (&elf.runpath, &elf.rpath) {
            (Some(dirs), _) => Some(Way::Runpath(dirs.clone())),
            (None, Some(dirs)) => Some(Way::Rpath(dirs.clone())),
            (None, None) => None,
        });
    }
    if !is_copy && (elf.opens || elf.opens_namespaces) {
        let (paths, has_name) = names_inside(content);
        let usual = has_name.then_some(Way::Usual);
        ways.extend(paths.iter().cloned().map(Way::Opens).chain(usual));
        let uses = has_name || !paths.is_empty();
        ways.extend((elf.opens_namespaces && uses).then_some(Way::Namespace));
    }
    ways
}

/// Returns the library of a file that a wheel has under a name with a checksum:
/// `libibverbs-0a1b2c3d.so.1.14.44.0`.
pub(crate) fn library_of_copy(name: &str) -> Option<&'static str> {
    let file = Path::new(name).file_name()?.to_str()?;
    LIBRARIES.into_iter().find(|library| {
        let rest = file
            .strip_prefix(library)
            .and_then(|rest| rest.strip_prefix('-'));
        let sum = rest.and_then(|rest| rest.split_once(".so"));
        sum.is_some_and(|(sum, _)| {
            (4..=64).contains(&sum.len()) && sum.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    })
}

/// Returns the absolute paths of libibverbs in a file, and true if it has the name without a path.
pub(crate) fn names_inside(content: &[u8]) -> (BTreeSet<String>, bool) {
    let mut paths = BTreeSet::new();
    let mut has_name = false;
    for at in memmem::find_iter(content, NAME) {
        let (before, after) = content.split_at(at);
        let is_text = |byte: &&u8| byte.is_ascii_graphic();
        let head = before.iter().rev().take_while(is_text);
        let head = head.take(LONGEST_PATH).count();
        let tail = after.iter().take_while(is_text).take(LONGEST_PATH).count();
        let text = &content[at - head..at + tail];
        let ends_well = content.get(at + tail) == Some(&0);
        let text = String::from_utf8_lossy(text);
        let is_library = text.split(".so").nth(1).is_some_and(|version| {
            version
                .bytes()
                .all(|byte| byte == b'.' || byte.is_ascii_digit())
        });
        match ends_well && is_library {
            true if text.starts_with('/') => {
                paths.insert(text.into_owned());
            }
            true => has_name |= head == 0,
            false => {}
        }
    }
    (paths, has_name)
}

pub(crate) fn contains(content: &[u8], word: &[u8]) -> bool {
    memmem::find(content, word).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(elf: &Elf, content: &[u8]) -> Vec<Way> {
        ways("prog", elf, content).into_iter().collect()
    }

    fn linked(name: &str) -> Elf {
        Elf {
            interpreter: Some("/lib64/ld-linux-x86-64.so.2".to_owned()),
            needed: vec![name.to_owned(), "libc.so.6".to_owned()],
            ..Elf::default()
        }
    }

    #[test]
    fn names_decide() {
        let copy = "libibverbs-abcdef12.so.1";
        assert_eq!(of(&linked("libm.so.6"), b""), []);
        assert_eq!(of(&linked(VERBS), b""), [Way::Usual]);
        let needs = Way::NeedsCopy(copy.to_owned());
        assert_eq!(of(&linked(copy), b""), [needs]);
        let path = "/opt/x/libibverbs.so.1";
        let needs = Way::NeedsPath(path.to_owned());
        assert_eq!(of(&linked(path), b""), [needs]);
        for (name, is_copy) in [
            (copy, true),
            ("librdmacm-0a1b2c3d.so.1.3.44.0", true),
            ("libibverbs.so.1", false),
            ("libibverbs-notes.so", false),
            ("libibverbs-.so.1", false),
            ("libibverbsx-0a1b2c3d.so", false),
        ] {
            assert_eq!(library_of_copy(name).is_some(), is_copy, "{name}");
        }
        let found = ways(copy, &linked("libnl.so"), b"");
        assert!(found.contains(&Way::Copy), "{found:?}");
    }

    #[test]
    fn search_paths_matter_for_programs_with_verbs_only() {
        let with = |name: &str| Elf {
            rpath: Some("/opt".to_owned()),
            ..linked(name)
        };
        assert_eq!(of(&with("libm.so.6"), b""), []);
        let both = [Way::Rpath("/opt".to_owned()), Way::Usual];
        assert_eq!(of(&with(VERBS), b""), both);
    }

    #[test]
    fn texts_tell_what_is_opened() {
        let opens = Elf {
            opens: true,
            ..linked("libm.so.6")
        };
        let text = b"x\0/usr/lib/libibverbs.so.1\0libibverbs.so\0";
        let path = Way::Opens("/usr/lib/libibverbs.so.1".to_owned());
        assert_eq!(of(&opens, text), [path, Way::Usual]);
        assert_eq!(of(&linked("libm.so.6"), text), [], "nothing is opened");
        for text in [
            &b"no /usr/lib/libibverbs.so.1 found\0"[..],
            b"libibverbs.so.1 is missing\0",
            b"libibverbs.so",
            b"libibverbs.socket\0",
        ] {
            assert_eq!(of(&opens, text), [], "{text:?}");
        }
        let apart = Elf {
            opens_namespaces: true,
            ..opens
        };
        assert_eq!(
            of(&apart, b"\0libibverbs.so.1\0"),
            [Way::Namespace, Way::Usual]
        );
    }

    #[test]
    fn a_library_may_be_inside() {
        let text = b"\0/sys/class/infiniband_verbs\0libibverbs: Warning: no\0";
        assert_eq!(of(&Elf::default(), text), [Way::Static]);
        assert_eq!(of(&linked("libm.so.6"), text), [Way::Inside]);
        assert_eq!(of(&linked(VERBS), text), [Way::Usual]);
        let library = ways("libx.so.1", &Elf::default(), text);
        assert_eq!(library, BTreeSet::from([Way::Inside]));
        let ours = b"infiniband_verbs\0ROCADE_PRIVATE_1\0";
        assert_eq!(of(&Elf::default(), ours), []);
    }
}
