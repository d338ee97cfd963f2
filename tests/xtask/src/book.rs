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
const BUILD_LIMIT: Duration = Duration::from_secs(60);

/// Builds the book into `target/book`.
///
/// Uses the `mdbook` of the `PATH`, or installs one below the build directory.
pub(crate) fn build(workspace: &Workspace) -> Tally {
    let root = workspace.target().join("mdbook");
    let mut program = PathBuf::from("mdbook");
    if !succeeds(Command::new(&program).arg("--version")) {
        program = root.join("bin/mdbook");
    }
    if !succeeds(Command::new(&program).arg("--version")) {
        let mut install = workspace.cargo(&["install", "mdbook", "--version", VERSION, "--locked"]);
        install.args(["--no-default-features", "--debug", "--root"]);
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
    let tally = step::run("book", BUILD_LIMIT, book).as_one();
    eprintln!("xtask: the book begins at target/book/index.html");
    tally
}

/// Returns the links of documents that lead nowhere, as `path:line: target`.
///
/// A link of a page of the book may not leave `docs`: the target would not be part of the book.
///
/// # Errors
/// Those of reading the documents.
pub(crate) fn dead_links(root: &Path) -> io::Result<Vec<String>> {
    let docs = root.join("docs");
    let mut found = Vec::new();
    for folder in [root, &docs] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "md") {
                let text = fs::read_to_string(&path)?;
                for (line, target) in links(&text) {
                    if !leads_somewhere(&path, &text, target, folder == docs)? {
                        let name = path.strip_prefix(root).unwrap_or(&path).display();
                        found.push(format!("{name}:{line}: {target}"));
                    }
                }
            }
        }
    }
    found.extend(pages_outside(&docs)?);
    found.sort();
    Ok(found)
}

/// Returns the pages that `SUMMARY.md` does not list: mdBook leaves them out.
fn pages_outside(docs: &Path) -> io::Result<Vec<String>> {
    let summary = fs::read_to_string(docs.join("SUMMARY.md"))?;
    let listed: BTreeSet<_> = links(&summary)
        .into_iter()
        .map(|(_, target)| target)
        .collect();
    let mut found = Vec::new();
    for entry in fs::read_dir(docs)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_page = name.ends_with(".md") && name != "SUMMARY.md";
        if is_page && !listed.contains(name.as_str()) && !listed.contains(&*format!("./{name}")) {
            found.push(format!("docs/{name}:1: not listed in SUMMARY.md"));
        }
    }
    Ok(found)
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

fn leads_somewhere(page: &Path, text: &str, target: &str, in_book: bool) -> io::Result<bool> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(true);
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    if file.is_empty() {
        return Ok(anchors(text).contains(anchor));
    }
    let leaves = Path::new(file)
        .components()
        .any(|part| part == Component::ParentDir);
    let path = page.parent().unwrap_or(page).join(file);
    if !path.exists() || (in_book && leaves) {
        return Ok(false);
    }
    if anchor.is_empty() || !file.ends_with(".md") {
        return Ok(true);
    }
    Ok(anchors(&fs::read_to_string(path)?).contains(anchor))
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = root.join("docs/ARCHITECTURE.md");
        let leads = |target| leads_somewhere(&page, "# Here\n", target, true).expect("readable");
        assert!(leads("#here") && leads("ARCHITECTURE.md") && leads("https://a.example/b"));
        assert!(!leads("#there") && !leads("nowhere.md") && !leads("../README.md"));
    }
}
