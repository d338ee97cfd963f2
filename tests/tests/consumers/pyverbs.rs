//! rdma-core's own tests in Python, as far as they get with RC alone.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use rocade_tests::{
    harness::{Device, Rig},
    or_skip,
    skip::Reason,
};

use crate::{LIMIT, PYTHON};

/// Where the distribution has them, most of them compressed.
const SHIPPED: &str = "/usr/share/doc/rdma-core/tests";

/// The tests that pass on a device as it is, without privileges.
const PLAIN: &str = include_str!("pyverbs.txt");

/// Tests that fail for want of what is not there yet.
const MISSING: [&str; 1] = ["test_query_gid_table_bad_flow"];

fn unpack(target: &Path) -> Result<(), Reason> {
    if !Path::new("/usr/lib/python3/dist-packages/pyverbs/__init__.py").is_file() {
        return Err(Reason::Package("python3-pyverbs".to_owned()));
    }
    let shipped =
        fs::read_dir(SHIPPED).map_err(|error| Reason::Machine(format!("{SHIPPED}: {error}")))?;
    for entry in shipped.flatten() {
        let name = entry.file_name();
        fs::copy(entry.path(), target.join(name)).expect("room for a copy");
    }
    let script = "cd \"$0\" && gunzip -q ./*.gz";
    let unpacked = Command::new("sh").args(["-c", script]).arg(target).status();
    assert!(unpacked.is_ok_and(|status| status.success()), "gunzip");
    Ok(())
}

#[test]
fn rdma_cores_own_tests_find_the_interface() {
    let rig = or_skip!(Rig::loopback(&[("ip", "iproute2")]));
    let tests = rig.dir().join("tests");
    fs::create_dir(&tests).expect("it is ours");
    or_skip!(unpack(&tests));
    let script = tests.join("run_tests.py").to_string_lossy().into_owned();
    let words = [
        PYTHON, &*script, "--dev", "rocade0", "--port", "1", "--gid", "0", "-v",
    ];
    let output = rig
        .start("pyverbs", &Device::on("lo"), &words)
        .finish(3 * LIMIT)
        .output;
    assert!(output.contains("Ran 273 tests"), "{output}");
    assert!(!output.contains("doesn't have net interface"), "{output}");
    let heads = ["ERROR: ", "FAIL: "];
    let failed = output
        .lines()
        .filter_map(|line| heads.iter().find_map(|head| line.strip_prefix(head)));
    let unexpected: Vec<_> = failed
        .filter(|name| !MISSING.iter().any(|missing| name.starts_with(missing)))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}\n{output}");
    assert_all_passed(&output, PLAIN);
    // They fork after the library was used.
    let by_cm = output
        .lines()
        .filter(|line| line.starts_with("test_rdmacm_") && line.contains("test_rdmacm.CMTestCase"));
    assert_eq!(by_cm.count(), 10, "{output}");
}

/// Checks that each test of `expected`, a list of one name in a line, has passed.
fn assert_all_passed(output: &str, expected: &str) {
    let passed = passed(output);
    let missing: Vec<_> = expected
        .lines()
        .filter(|name| !passed.contains(*name))
        .collect();
    assert!(missing.is_empty(), "did not pass: {missing:#?}\n{output}");
    let unlisted: Vec<_> = passed
        .iter()
        .filter(|name| !expected.lines().any(|line| line == **name))
        .collect();
    println!("passed, but not on the list: {unlisted:#?}");
}

/// The names of the tests that have passed, as `test_module.Class.test_name`. The messages of verbs
/// that fail as the test wants it stand between a name and its result.
fn passed(output: &str) -> BTreeSet<String> {
    let mut passed = BTreeSet::new();
    let mut running = None;
    for line in output.lines() {
        if let Some((name, rest)) = line.split_once(" (")
            && name.starts_with("test_")
            && let Some((class, _)) = rest.split_once(')')
        {
            // Since Python 3.11 the name is there twice.
            let class = class.strip_suffix(name).unwrap_or(class);
            running = Some(format!("{}.{name}", class.trim_end_matches('.')));
        }
        if line == "ok" || line.ends_with(" ... ok") {
            passed.extend(running.take());
        }
    }
    passed
}

/// Those that look for devices of mlx5, and of them those about dynamic connections: on a device that passes for one.
//= DC-40 DCU-01..03 DCU-08 type=test
//= XDEC-03 type=test
#[test]
fn rdma_cores_own_tests_of_dynamic_connections() {
    let output = or_skip!(tests_of_mlx5("test_mlx5_dc"));
    assert!(output.contains("Ran 7 tests"), "{output}");
    assert!(output.ends_with("\nOK\n"), "{output}");
}

/// Likewise those about indirect memory keys; those about signatures skip.
//= UMU-01..04 UMU-07 type=test
#[test]
fn rdma_cores_own_tests_of_memory_keys() {
    let output = or_skip!(tests_of_mlx5("test_mlx5_mkey"));
    for test in [
        "interleaved",
        "interleaved_new_api",
        "list",
        "list_bad_flow",
        "list_new_api",
    ] {
        let name = format!("test_mkey_{test} (");
        let at = output.find(&name).expect("it ran");
        let end = output[at..].find("...").expect("it has a result") + at;
        assert!(output[end..].starts_with("... ok"), "{test}: {output}");
    }
    assert!(output.contains("Ran 11 tests"), "{output}");
}

/// Likewise those of connections whose queue pairs are a DC target and initiators, which all but the first of one side know by a
/// number that is nobody's.
//= DCU-03 type=test
#[test]
fn rdma_cores_own_tests_of_connections_by_dc() {
    let output = or_skip!(tests_of_mlx5("test_mlx5_rdmacm"));
    assert!(output.contains("Ran 2 tests"), "{output}");
    assert!(output.ends_with("\nOK\n"), "{output}");
}

/// The output of those whose names contain this.
fn tests_of_mlx5(pattern: &str) -> Result<String, Reason> {
    let rig = Rig::loopback(&[("ip", "iproute2")])?.with_identity("0x02c9:0x1017");
    let tests = rig.dir().join("tests");
    fs::create_dir(&tests).expect("it is ours");
    unpack(&tests)?;
    let script = tests.join("run_tests.py").to_string_lossy().into_owned();
    let words = [
        PYTHON, &*script, "--dev", "rocade0", "--port", "1", "--gid", "0", "-v", "-k", pattern,
    ];
    let run = rig.start("pyverbs", &Device::on("lo"), &words);
    Ok(run.finish(LIMIT).output)
}
