//! The documents as a book (mdBook), and their links.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Component, Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    step::{self, succeeds},
    tally::Tally,
    workspace::Workspace,
};

/// The version that builds the book where none is installed.
const VERSION: &str = "0.5.4";
const INSTALL_LIMIT: Duration = Duration::from_secs(1200);
const BUILD_LIMIT: Duration = Duration::from_secs(600);

/// Builds the book into `target/book`.
///
/// Uses the `mdbook` of the `PATH`, or installs one below the build directory. A book without an
/// index for the search counts as failed.
pub(crate) fn build(workspace: &Workspace) -> Tally {
    let root = workspace.target().join("mdbook-search");
    let mut program = PathBuf::from("mdbook");
    if !succeeds(Command::new(&program).arg("--version")) {
        program = root.join("bin/mdbook");
    }
    if !succeeds(Command::new(&program).arg("--version")) {
        let mut install = workspace.cargo(&["install", "mdbook", "--version", VERSION, "--locked"]);
        install.args(["--no-default-features", "--features", "search"]);
        install.args(["--debug", "--root"]);
        install
            .arg(&root)
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_TARGET_DIR", root.join("build"));
        if !step::run("install of mdbook", INSTALL_LIMIT, install).success {
            return Tally::FAIL;
        }
    }
    let mut book = Command::new(program);
    book.arg("build").arg(workspace.root());
    // Indexes have the hash of their content in their name, and old ones would stay.
    let output = workspace.root().join("target/book");
    let _ = fs::remove_dir_all(&output);
    let tally = step::run("book", BUILD_LIMIT, book).as_one();
    if tally.failed == 0 && !has_index(&output) {
        eprintln!("xtask: the book has no search: this mdbook was built without the feature");
        return Tally::FAIL;
    }
    eprintln!("xtask: the book begins at target/book/index.html");
    tally
}

/// Returns true if the book has an index for its search.
fn has_index(book: &Path) -> bool {
    let files = fs::read_dir(book).into_iter().flatten().flatten();
    let mut names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.any(|name| name.starts_with("searchindex"))
}

/// Returns the links of documents that lead nowhere, as `path:line: target`.
///
/// The documents are those of the root, of `docs` and the README of each folder. A link of a page
/// of the book may not leave `docs`, because the target would not be part of the book. A README of
/// a package is shown by a registry, where relative links lead nowhere.
///
/// # Errors
/// Those of reading the documents.
pub(crate) fn dead_links(root: &Path) -> io::Result<Vec<String>> {
    let docs = root.join("docs");
    let mut documents = Vec::new();
    collect(root, &docs, &mut documents)?;
    let mut found = Vec::new();
    for path in &documents {
        let text = fs::read_to_string(path)?;
        let dir = path.parent().unwrap_or(root);
        let shown = if path.starts_with(&docs) {
            Shown::InBook
        } else if dir != root && dir.join("Cargo.toml").is_file() {
            Shown::ByRegistry
        } else {
            Shown::OnForge
        };
        for (line, target) in links(&text) {
            if !leads_somewhere(root, path, &text, target, shown)? {
                let name = path.strip_prefix(root).unwrap_or(path).display();
                found.push(format!("{name}:{line}: {target}"));
            }
        }
    }
    found.extend(pages_outside(&docs, &documents)?);
    found.sort();
    Ok(found)
}

/// The reader's program, beside the forge that shows all documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    OnForge,
    InBook,
    ByRegistry,
}

/// Lists the documents that are checked: all of the root and of `docs`, elsewhere each README.
fn collect(dir: &Path, docs: &Path, documents: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_symlink() || name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            collect(&path, docs, documents)?;
        } else if name == "README.md"
            || (name.ends_with(".md") && (dir.starts_with(docs) || docs.parent() == Some(dir)))
        {
            documents.push(path);
        }
    }
    Ok(())
}

/// Returns the pages that `SUMMARY.md` does not list: mdBook leaves them out.
fn pages_outside(docs: &Path, documents: &[PathBuf]) -> io::Result<Vec<String>> {
    let summary = fs::read_to_string(docs.join("SUMMARY.md"))?;
    let listed: BTreeSet<PathBuf> = links(&summary)
        .into_iter()
        .map(|(_, target)| docs.join(target.trim_start_matches("./")))
        .collect();
    let pages = documents.iter().filter(|path| path.starts_with(docs));
    let outside = pages.filter(|path| !path.ends_with("SUMMARY.md") && !listed.contains(*path));
    let names = outside.map(|path| path.strip_prefix(docs).unwrap_or(path).display());
    Ok(names
        .map(|name| format!("docs/{name}:1: not listed in SUMMARY.md"))
        .collect())
}

/// Returns the targets of inline links and images with their lines, code left out.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (number, part) in line.split('`').enumerate() {
            // Every other part is inside a code span. A link's text may be one: its target follows
            // outside.
            if number % 2 == 0 {
                let targets = part.split("](").skip(1);
                let targets = targets.filter_map(|rest| Some(rest.split_once(')')?.0));
                found.extend(targets.map(|target| (index + 1, target)));
            }
        }
    }
    found
}

fn leads_somewhere(
    root: &Path,
    page: &Path,
    text: &str,
    target: &str,
    shown: Shown,
) -> io::Result<bool> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(true);
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    if file.is_empty() {
        return Ok(anchors(text).contains(anchor));
    }
    let path = normal(&page.parent().unwrap_or(page).join(file));
    let is_shown = match shown {
        Shown::OnForge => path.starts_with(root),
        Shown::InBook => path.starts_with(root.join("docs")),
        Shown::ByRegistry => false,
    };
    if !is_shown || !path.exists() {
        return Ok(false);
    }
    if anchor.is_empty() || !file.ends_with(".md") {
        return Ok(true);
    }
    Ok(anchors(&fs::read_to_string(path)?).contains(anchor))
}

/// Returns a path without `.` and `..`, although links of the file system are not followed.
fn normal(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                result.pop();
            }
            part => result.push(part),
        }
    }
    result
}

/// Returns the names of the headings, as mdBook and GitHub make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            });
            kept.collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_outside_code() {
        let text = "See [a](b.md#c) and [`d`](e.svg).\n`[x](y)`\n```\n[z](w)\n```\n![p](q.png)\n";
        assert_eq!(links(text), [(1, "b.md#c"), (1, "e.svg"), (6, "q.png")]);
    }

    #[test]
    fn headings_have_names() {
        let names = anchors("# The safe Rust API\ntext\n## `rocade run`: how, and why\n");
        assert!(names.contains("the-safe-rust-api"));
        assert!(names.contains("rocade-run-how-and-why"));
    }

    #[test]
    fn a_dead_link_is_found() {
        let root = normal(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        let from = |page: &str, target, shown| {
            leads_somewhere(&root, &root.join(page), "# Here\n", target, shown).expect("readable")
        };
        let page = |target| from("docs/ARCHITECTURE.md", target, Shown::InBook);
        assert!(page("#here") && page("ARCHITECTURE.md") && page("https://a.example/b"));
        assert!(!page("#there") && !page("nowhere.md") && !page("../README.md"));
        // A page in a folder of the book may name the folder above, but nothing beyond.
        let guide = |target| from("docs/guides/ci.md", target, Shown::InBook);
        assert!(guide("../ARCHITECTURE.md#life-of-a-packet") && guide("hangs.md"));
        assert!(!guide("../ARCHITECTURE.md#nothing") && !guide("../../README.md"));
        assert!(from("README.md", "docs/start.md", Shown::OnForge));
        assert!(!from("wire/README.md", "../README.md", Shown::ByRegistry));
    }

    #[test]
    fn a_page_that_the_book_leaves_out_is_found() {
        let docs = tempfile::tempdir().expect("a directory");
        let docs = docs.path().join("docs");
        fs::create_dir_all(docs.join("guides")).expect("a folder");
        let mut documents = Vec::new();
        for (name, text) in [
            ("SUMMARY.md", "[A](a.md)\n- [B](guides/b.md)\n"),
            ("a.md", "# A\n"),
            ("guides/b.md", "# B\n"),
            ("guides/c.md", "# C\n"),
        ] {
            fs::write(docs.join(name), text).expect("written");
            documents.push(docs.join(name));
        }
        let outside = pages_outside(&docs, &documents).expect("readable");
        assert_eq!(outside, ["docs/guides/c.md:1: not listed in SUMMARY.md"]);
    }
}
