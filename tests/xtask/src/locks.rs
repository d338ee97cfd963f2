//! The emulator's locks have ranks, and docs/locks.md lists them in their order.

use std::{fs, io, path::Path};

const RANKS: &str = "emulator/src/sync/rank.rs";
const PAGE: &str = "docs/locks.md";

/// Returns the ranks that the page lacks or has in another order, and the files of the emulator
/// that take a lock without a rank.
///
/// # Errors
/// Those of reading the files.
pub(crate) fn violations(root: &Path) -> io::Result<Vec<String>> {
    let declared = declared(&fs::read_to_string(root.join(RANKS))?);
    let listed = listed(&fs::read_to_string(root.join(PAGE))?);
    let mut found = Vec::new();
    if declared.is_empty() {
        found.push(format!("{RANKS}: no rank was found"));
    }
    found.extend(difference(&declared, &listed));
    without_rank(&root.join("emulator/src"), &mut found)?;
    Ok(found)
}

/// The names of the ranks, first to last.
fn declared(text: &str) -> Vec<String> {
    let Some((_, list)) = text.split_once("\nranks! {") else {
        return Vec::new();
    };
    let names = list
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','));
    names
        .filter(|name| name.chars().all(char::is_alphanumeric))
        .map(str::to_owned)
        .collect()
}

/// The names in the first cells of the page's table.
fn listed(page: &str) -> Vec<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `"));
    cells
        .filter_map(|cell| Some(cell.split_once("` |")?.0.to_owned()))
        .collect()
}

/// The first place in which two lists differ.
fn difference(declared: &[String], listed: &[String]) -> Option<String> {
    let longest = declared.len().max(listed.len());
    let at = (0..longest).find(|&at| declared.get(at) != listed.get(at))?;
    let name = |list: &[String]| list.get(at).map_or("nothing", String::as_str).to_owned();
    let (expected, got) = (name(declared), name(listed));
    Some(format!("{PAGE}: row {} is {got}, not {expected}", at + 1))
}

/// Finds files outside `sync/` that use the locks of parking_lot themselves.
fn without_rank(dir: &Path, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("sync") {
                without_rank(&path, found)?;
            }
        } else if fs::read_to_string(&path)?.contains("parking_lot::") {
            found.push(format!("{}: a lock without a rank", path.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{declared, difference, listed};

    #[test]
    fn another_order_and_a_missing_row_are_found() {
        let ranks =
            declared("macro\nranks! {\n    /// One.\n    One,\n    /// Two.\n    Two,\n}\n");
        assert_eq!(ranks, ["One", "Two"]);
        let page = |rows: &str| listed(&format!("# Locks\n\n| rank | locks |\n|---|---|\n{rows}"));
        assert_eq!(
            difference(&ranks, &page("| `One` | a |\n| `Two` | b |\n")),
            None
        );
        for rows in ["| `Two` | b |\n| `One` | a |\n", "| `One` | a |\n", ""] {
            assert!(difference(&ranks, &page(rows)).is_some(), "{rows}");
        }
    }
}
