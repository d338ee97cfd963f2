//! Wheels of PyPI that use verbs, in a root: `rocade doctor` reads them, and they move data.

use std::{fs, path::Path, process::Command};

use super::battery::{Case, Verdict};
use crate::{
    dist::{at, clear, copy_tree, execute},
    roots::Root,
};

/// A package of PyPI, whose test is a directory of `tests/interop` with the same name.
#[derive(Debug)]
struct Wheel {
    name: &'static str,
    requirements: &'static [&'static str],
    /// A part of what `rocade doctor` says about its files.
    diagnosis: &'static str,
    /// The script that moves data between two processes.
    transfer: &'static str,
}

const WHEELS: [Wheel; 2] = [
    Wheel {
        name: "mooncake",
        requirements: &["mooncake-transfer-engine-non-cuda==0.3.13.post1"],
        diagnosis: "loads it by its name",
        transfer: "sh /opt/test/mooncake/run /mnt/rocade /opt/mooncake python3",
    },
    Wheel {
        name: "nixl",
        requirements: &["nixl==1.5.1", "nixl-cu12==1.5.1", "numpy==2.2.6"],
        diagnosis: "is another libibverbs",
        transfer: "export PYTHONPATH=/opt/nixl\n\
            side() { /mnt/rocade run --dev rocade0=lo -- python3 /opt/test/nixl/transfer.py $1 \
            7777 rc_verbs,ud_verbs; }\n\
            side target > /tmp/target 2>&1 &\n\
            until grep -q ready /tmp/target; do kill -0 $!; sleep 0.1; done\n\
            side initiator || { cat /tmp/target; exit 1; }\n\
            wait $!",
    },
];

/// Runs all cases in a root. `workspace` is the checkout.
pub(super) fn run(root: &Root, workspace: &Path) -> Result<Vec<Case>, String> {
    let query = "python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'";
    let python = root.run("root", query)?;
    let python = python.trim();
    let mut cases = Vec::new();
    for wheel in &WHEELS {
        let test = root.path("opt/test").join(wheel.name);
        clear(&test)?;
        copy_tree(&workspace.join("tests/interop").join(wheel.name), &test)?;
        let fetched = fetch(wheel, python, &root.path("opt").join(wheel.name));
        let is_there = fetched.map_err(|reason| {
            eprintln!(
                "SKIP: {}: no wheel for Python {python}: {reason}",
                wheel.name
            );
        });
        let mut case = |what: &str, attempt: &dyn Fn() -> Result<(), String>| {
            cases.push(Case {
                name: format!("{what} {}", wheel.requirements[0].replace("==", " ")),
                verdict: match is_there {
                    Ok(()) => verdict(attempt()),
                    Err(()) => Verdict::Absent,
                },
            });
        };
        case("rocade doctor:", &|| diagnose(root, wheel));
        case("transfer:", &|| transfer(root, wheel));
    }
    Ok(cases)
}

fn verdict(result: Result<(), String>) -> Verdict {
    match result {
        Ok(()) => Verdict::Good,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            Verdict::Failed(reason)
        }
    }
}

/// Unpacks the wheel for a version of Python with the pip of this machine, unless it is there.
fn fetch(wheel: &Wheel, python: &str, place: &Path) -> Result<(), String> {
    if place.is_dir() {
        return Ok(());
    }
    let part = place.with_extension("part");
    clear(&part)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--python-version", python]);
    execute(pip.arg("--target").arg(&part).args(wheel.requirements))?;
    fs::rename(&part, place).map_err(at(place))
}

fn diagnose(root: &Root, wheel: &Wheel) -> Result<(), String> {
    let text = root.run("root", &format!("/mnt/rocade doctor /opt/{}", wheel.name))?;
    if text.contains(wheel.diagnosis) {
        return Ok(());
    }
    Err(format!(
        "rocade doctor does not say {:?} of {}:\n{text}",
        wheel.diagnosis, wheel.name
    ))
}

fn transfer(root: &Root, wheel: &Wheel) -> Result<(), String> {
    let script = format!("export PYTHONDONTWRITEBYTECODE=1\n{}", wheel.transfer);
    root.run("root", &script).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_those_that_a_shell_reads() {
        for wheel in &WHEELS {
            let mut shell = Command::new("sh");
            let is_read = crate::step::succeeds(shell.args(["-n", "-c", wheel.transfer]));
            assert!(is_read, "{}", wheel.name);
        }
    }

    #[test]
    fn each_wheel_has_a_test_in_the_checkout() {
        let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop");
        for wheel in &WHEELS {
            assert!(interop.join(wheel.name).is_dir(), "{}", wheel.name);
        }
    }
}
