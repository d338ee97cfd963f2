//! Loom models: the packages that depend on loom are tested once more with `--cfg loom`.

use std::{fs, process::Command, time::Duration};

use crate::{
    programs::{self, Program},
    step,
    tally::Tally,
    workspace::Workspace,
};

/// The build has low priority, and the processors are busy.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs the tests that have `loom` in their path, in every package that depends on loom.
///
/// Only the package itself gets the flag, so that everything it depends on is that of the other
/// tests.
pub(crate) fn run(workspace: &Workspace) -> Tally {
    let models = packages(workspace).into_iter().map(|package| {
        let mut build = workspace.cargo(&["rustc", "--locked", "--lib", "--profile", "test"]);
        build.args([
            "--package",
            &package,
            "--message-format=json-render-diagnostics",
        ]);
        // The models run for seconds. Optimised code takes longer to build than it saves.
        build.args(["--", "--cfg", "loom", "-Copt-level=0", "-Cdebuginfo=0"]);
        let headline = format!("loom models of {package}: build");
        let (built, messages) = step::capture(&headline, LIMIT, build);
        if !built.success {
            return Tally::FAIL;
        }
        programs::from_messages(&messages)
            .into_iter()
            .map(|program| run_models(&package, &program))
            .fold(Tally::default(), |sum, one| sum + one)
    });
    models.fold(Tally::default(), |sum, one| sum + one)
}

/// Runs the models of a program. One without any is a failure, because its models are lost.
fn run_models(package: &str, program: &Program) -> Tally {
    let mut command = Command::new(program.path());
    command.current_dir(program.dir()).arg("loom");
    let tally = step::run(&format!("loom models of {package}"), LIMIT, command).as_tests();
    if tally == Tally::default() {
        eprintln!("xtask: {package} depends on loom and has no model");
        return Tally::FAIL;
    }
    tally
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
        let with = "[package]\nname = \"rocade-x\"\n\n[dev-dependencies]\nloom.workspace = true\n";
        assert!(depends_on_loom(with));
        assert_eq!(package_name(with).as_deref(), Some("rocade-x"));
        assert!(!depends_on_loom("[package]\nname = \"loomless\"\n"));
    }
}
