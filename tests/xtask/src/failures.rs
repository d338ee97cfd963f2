//! `cargo xtask failures`: runs programs under each recipe of failures, and says what they do.

mod table;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;

use crate::{step, tally::Tally, workspace::Workspace};
use table::{Cell, cells};

const SCRIPT: &str = "tests/xtask/src/failures/matrix.sh";
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// Arguments of `cargo xtask failures`.
#[derive(Debug, Args)]
pub(crate) struct FailuresArgs {
    /// Write the tables to docs/failures-matrix.md. Only for all recipes and programs.
    #[arg(long, conflicts_with_all = ["recipes", "program"])]
    write: bool,
    /// Take the output of an earlier run of the script from this file.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Only this program (can be repeated).
    #[arg(long)]
    program: Vec<String>,
    /// Only these recipes.
    recipes: Vec<String>,
}

/// Runs everything, and prints the tables. A hang or a crash without an explanation is a failure.
pub(crate) fn run(workspace: &Workspace, args: &FailuresArgs) -> Tally {
    let done = run_all(workspace, args);
    done.unwrap_or_else(|reason| {
        eprintln!("xtask: {reason}");
        Tally::FAIL
    })
}

fn run_all(workspace: &Workspace, args: &FailuresArgs) -> Result<Tally, String> {
    let output = match &args.from {
        Some(file) => std::fs::read_to_string(file).map_err(crate::dist::at(file))?,
        None => run_script(workspace, args)?,
    };
    let cells = cells(&output)?;
    for cell in &cells {
        eprintln!("xtask: {cell}");
    }
    table::publish(workspace.root(), &cells, args.write)?;
    let each = cells.iter().map(Cell::tally);
    Ok(each.fold(Tally::default(), |sum, one| sum + one))
}

/// Builds all, and returns the output of the script.
fn run_script(workspace: &Workspace, args: &FailuresArgs) -> Result<String, String> {
    for words in [
        &["build", "--workspace", "--locked"][..],
        &["build", "--locked", "-p", "rocade-verbs", "--examples"],
    ] {
        if !step::run("build", BUILD_LIMIT, workspace.cargo(words)).success {
            return Err("cargo build failed".to_owned());
        }
    }
    let built = workspace.target().join("debug");
    let mut command = Command::new("unshare");
    // Without root, the user namespace allows the interface.
    command
        .args(["--map-root-user", "--net", "sh", SCRIPT])
        .args(&args.recipes)
        .current_dir(workspace.root())
        .env("ROCADE", built.join("rocade"))
        .env("EXAMPLES", built.join("examples"))
        .env("PYPI", workspace.target().join("pypi"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if !args.program.is_empty() {
        command.env("PROGRAMS", args.program.join(" "));
    }
    let output = command
        .output()
        .map_err(|error| format!("failed to execute unshare: {error}"))?;
    if output.stdout.is_empty() {
        return Err(format!("{SCRIPT} has run nothing: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
