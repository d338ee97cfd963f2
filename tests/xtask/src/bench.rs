//! `cargo xtask bench`: builds the release and measures it with `rocade-perf` (see
//! docs/performance.md).

use std::time::Duration;

use crate::{step, tally::Tally, workspace::Workspace};

const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// The limit of a run. A table takes minutes, a sweep with many runs takes longer.
const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Passes `arguments` on. Fails where the build fails, or a row falls short.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Tally {
    let build = workspace.cargo(&["build", "--release", "--workspace"]);
    if !step::run("build --release", BUILD_LIMIT, build).success {
        return Tally::FAIL;
    }
    let mut bench = workspace.cargo(&["run", "--release", "-p", "rocade-perf", "--"]);
    bench.args(arguments);
    step::run("rocade-perf", LIMIT, bench).as_one()
}
