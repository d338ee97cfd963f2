//! Loom models: the packages that depend on loom are tested once more with `--cfg loom`.

use std::{fs, time::Duration};

use crate::{step, tally::Tally, workspace::Workspace};

/// The build has low priority, and the processors are busy.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs the tests that have `loom` in their path, in every package that depends on loom.
///
/// They have a build directory of their own: the flag changes every dependency.
pub(crate) fn run(workspace: &Workspace) -> Tally {
    let packages = packages(workspace);
    if packages.is_empty() {
        return Tally::default();
    }
    let mut command = workspace.cargo(&["test", "--locked", "--lib", "--no-fail-fast"]);
    for package in &packages {
        command.args(["--package", package]);
    }
    command.args(["--", "loom"]);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env("RUSTFLAGS", format!("{flags} --cfg loom"));
    command.env("CARGO_TARGET_DIR", workspace.target().join("loom"));
    // The models run for seconds. Optimised code takes longer to build than it saves.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    let headline = format!("loom models of {}", packages.join(", "));
    step::run(&headline, LIMIT, command).as_tests()
}

/// Names of the packages whose manifest mentions loom as a dependency.
fn packages(workspace: &Workspace) -> Vec<String> {
    let manifests = workspace.members().into_iter().filter_map(|member| {
        fs::read_to_string(workspace.root().join(member).join("Cargo.toml")).ok()
    });
    manifests
        .filter(|manifest| depends_on_loom(manifest))
        .filter_map(|m| package_name(&m))
        .collect()
}

fn depends_on_loom(manifest: &str) -> bool {
    manifest.lines().any(|line| {
        let line = line.trim_start();
        line.starts_with("loom =") || line.starts_with("loom.workspace")
    })
}

fn package_name(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("name = "))?;
    Some(line.split('"').nth(1)?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_packages_by_their_manifest() {
        let with = "[package]\nname = \"rocade-x\"\n\n[target.'cfg(loom)'.dependencies]\nloom = { workspace = true }\n";
        assert!(depends_on_loom(with));
        assert_eq!(package_name(with).as_deref(), Some("rocade-x"));
        assert!(!depends_on_loom("[package]\nname = \"loomless\"\n"));
    }
}
