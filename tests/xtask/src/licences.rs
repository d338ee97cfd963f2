//! Licences and sources of the crates in `Cargo.lock`, against `deny.toml`.
//!
//! `cargo deny check` does the same and knows of advisories, but needs the network. This check
//! needs neither the network nor another program.

use std::{fs, io};

use serde_json::Value;

use crate::workspace::Workspace;

/// The only registry that crates may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Returns the crates whose licence or source `deny.toml` does not allow.
///
/// # Errors
/// Those of running cargo and of reading `deny.toml`.
pub(crate) fn refused(workspace: &Workspace) -> io::Result<Vec<String>> {
    let deny = fs::read_to_string(workspace.root().join("deny.toml"))?;
    let mut metadata = workspace.cargo(&["metadata", "--locked", "--format-version", "1"]);
    let output = metadata.output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(message));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.ok_or_else(|| io::Error::other("no packages in cargo metadata"))?;
    let text = |package: &Value, key: &str| {
        let value = package.get(key).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let mut found = Vec::new();
    for package in packages {
        let (name, source) = (text(package, "name"), text(package, "source"));
        if source.is_empty() {
            continue;
        }
        if source != REGISTRY {
            found.push(format!("{name}: source {source}"));
        }
        let licence = text(package, "license");
        if !satisfied(&licence, &allowed(&deny, &name)) {
            found.push(format!("{name}: licence \"{licence}\""));
        }
    }
    Ok(found)
}

/// Returns the licences that `deny.toml` allows to a crate: the common ones and its exceptions.
fn allowed<'d>(deny: &'d str, name: &str) -> Vec<&'d str> {
    let exception = format!("crate = \"{name}\"");
    let lines = deny.lines().filter(|line| {
        line.starts_with("allow = [") || (line.contains("allow = [") && line.contains(&exception))
    });
    let lists = lines.filter_map(|line| line.split_once("allow = [")?.1.split_once(']'));
    let names = lists.flat_map(|(list, _)| list.split(','));
    names.map(|name| name.trim().trim_matches('"')).collect()
}

/// Returns true if the licences in `allowed` satisfy an SPDX expression without nested parentheses.
fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let one = |part: &str| {
        let part = part.replace(" / ", " OR ").replace('/', " OR ");
        let mut choices = part.split(" OR ").map(str::trim);
        choices.any(|licence| allowed.contains(&licence))
    };
    if expression.contains('(') {
        // Each group, and each licence beside one, is needed.
        let parts = expression.split(['(', ')']).map(str::trim);
        let parts = parts.map(|part| part.trim_start_matches("AND ").trim_end_matches(" AND"));
        return parts
            .filter(|part| !part.is_empty() && *part != "AND")
            .all(one);
    }
    expression.split(" AND ").all(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = "allow = [\"MIT\", \"Apache-2.0\"]\n\
                        { crate = \"tables\", allow = [\"Unicode-3.0\"] },\n";

    #[test]
    fn one_choice_and_every_part_is_needed() {
        let allowed = allowed(DENY, "other");
        for expression in [
            "MIT",
            "MIT/GPL-2.0",
            "GPL-2.0 OR Apache-2.0",
            "MIT AND Apache-2.0",
        ] {
            assert!(satisfied(expression, &allowed), "{expression}");
        }
        for expression in [
            "",
            "GPL-2.0",
            "MIT AND GPL-2.0",
            "(MIT OR Zlib) AND GPL-2.0",
        ] {
            assert!(!satisfied(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn an_exception_is_for_its_crate() {
        let expression = "(MIT OR Apache-2.0) AND Unicode-3.0";
        assert!(satisfied(expression, &allowed(DENY, "tables")));
        assert!(!satisfied(expression, &allowed(DENY, "other")));
    }
}
