//! rdma-core's own tests in Python.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use rocade_tests::{
    harness::{Device, Rig},
    or_skip,
    skip::Reason,
};

use crate::{LIMIT, PYTHON};

/// The directory of the distribution's copy, whose files are mostly compressed.
const SHIPPED: &str = "/usr/share/doc/rdma-core/tests";

/// The tests that pass on the default device without privileges.
const PLAIN: &str = include_str!("pyverbs.txt");

/// Tests that fail because of missing features.
const MISSING: [&str; 1] = ["test_query_gid_table_bad_flow"];

fn unpack(target: &Path) -> Result<(), Reason> {
    if !Path::new("/usr/lib/python3/dist-packages/pyverbs/__init__.py").is_file() {
        return Err(Reason::Package("python3-pyverbs".to_owned()));
    }
    let shipped =
        fs::read_dir(SHIPPED).map_err(|error| Reason::Machine(format!("{SHIPPED}: {error}")))?;
    for entry in shipped.flatten() {
        let name = entry.file_name();
        fs::copy(entry.path(), target.join(name)).expect("the file can be copied");
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
    fs::create_dir(&tests).expect("the directory can be created");
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
    // These tests fork after they have used the library.
    let by_cm = output
        .lines()
        .filter(|line| line.starts_with("test_rdmacm_") && line.contains("test_rdmacm.CMTestCase"));
    assert_eq!(by_cm.count(), 10, "{output}");
}

/// Checks that each test in `expected`, which has one name per line, has passed.
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

/// Returns the names of the passed tests as `test_module.Class.test_name`. Diagnostics of verbs
/// that fail as a test intends may stand between a name and its result.
fn passed(output: &str) -> BTreeSet<String> {
    let mut passed = BTreeSet::new();
    let mut running = None;
    for line in output.lines() {
        if let Some((name, rest)) = line.split_once(" (")
            && name.starts_with("test_")
            && let Some((class, _)) = rest.split_once(')')
        {
            // Since Python 3.11 the name occurs twice.
            let class = class.strip_suffix(name).unwrap_or(class);
            running = Some(format!("{}.{name}", class.trim_end_matches('.')));
        }
        if line == "ok" || line.ends_with(" ... ok") {
            passed.extend(running.take());
        }
    }
    passed
}

/// Runs the mlx5 tests of dynamic connections, on a device with an mlx5 vendor id and part id.
//= DC-40 DCU-01 DCU-02 type=test
//= DCU-03 DCU-08 type=test
//= XDEC-03 type=test
#[test]
fn rdma_cores_own_tests_of_dynamic_connections() {
    let output = or_skip!(tests_of_mlx5("test_mlx5_dc"));
    assert!(output.contains("Ran 7 tests"), "{output}");
    assert!(output.ends_with("\nOK\n"), "{output}");
}

/// Runs the mlx5 tests of indirect memory keys. The tests of signatures are skipped.
//= UMU-01 UMU-02 UMU-03 type=test
//= UMU-04 UMU-07 type=test
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

/// Runs the mlx5 tests of rdmacm connections between a DC target and DC initiators. All initiators
/// of one side but the first use a reserved QP number.
//= DCU-03 type=test
#[test]
fn rdma_cores_own_tests_of_connections_by_dc() {
    let output = or_skip!(tests_of_mlx5("test_mlx5_rdmacm"));
    assert!(output.contains("Ran 2 tests"), "{output}");
    assert!(output.ends_with("\nOK\n"), "{output}");
}

/// Runs the tests whose names match `pattern`, on an mlx5 device, and returns the output.
fn tests_of_mlx5(pattern: &str) -> Result<String, Reason> {
    let rig = Rig::loopback(&[("ip", "iproute2")])?.with_identity("0x02c9:0x1017");
    let tests = rig.dir().join("tests");
    fs::create_dir(&tests).expect("the directory can be created");
    unpack(&tests)?;
    let script = tests.join("run_tests.py").to_string_lossy().into_owned();
    // Without the reasons of refused verbs, which would stand between the results.
    let quiet = ["env", "ROCADE_LOG=off", PYTHON, &*script];
    let words = [
        "--dev", "rocade0", "--port", "1", "--gid", "0", "-v", "-k", pattern,
    ];
    let words = [&quiet[..], &words].concat();
    let run = rig.start("pyverbs", &Device::on("lo"), &words);
    Ok(run.finish(LIMIT).output)
}
