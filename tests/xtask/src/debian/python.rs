//! rdma-core's tests in Python, with devices of several identities.

use std::collections::BTreeMap;

use crate::roots::Root;

/// A kind of device.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) name: &'static str,
    /// Settings of Rocade in front of the command, and its options.
    settings: &'static str,
    options: &'static str,
    device: &'static str,
    /// The index of a GID of RoCE v2.
    gid: &'static str,
}

pub(super) const IDENTITIES: [Identity; 4] = [
    Identity {
        name: "default",
        settings: "",
        options: "--dev rocade0=lo",
        device: "rocade0",
        gid: "0",
    },
    Identity {
        name: "`--like rxe`",
        settings: "",
        options: "--like rxe --dev rxe0=lo",
        device: "rxe0",
        gid: "0",
    },
    Identity {
        name: "`--like mlx5`",
        settings: "",
        options: "--like mlx5 --dev mlx5_0=lo",
        device: "mlx5_0",
        gid: "3",
    },
    Identity {
        name: "identity of mlx5",
        settings: "ROCADE_IDENTITY=0x02c9:0x1017",
        options: "--dev rocade0=lo",
        device: "rocade0",
        gid: "0",
    },
];

/// Starts the tests with processes made by `fork`, because those of rdma-core give their objects to
/// a child in memory. Since Python 3.14 another way is the default, which cannot.
const START: &str = "import multiprocessing, runpy, sys\n\
     multiprocessing.set_start_method(\"fork\")\n\
     sys.path[:0] = [\"/tmp/tests\", \"/tmp\"]\n\
     sys.argv[0] = \"/tmp/tests/run_tests.py\"\n\
     runpy.run_path(sys.argv[0], run_name=\"__main__\")";

/// The numbers of a run, and the reasons of what was skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) passed: u32,
    pub(super) skipped: u32,
    /// Names of tests that failed.
    pub(super) failed: Vec<String>,
    /// Modules of skipped tests, by reason.
    pub(super) reasons: BTreeMap<String, Vec<String>>,
}

/// Runs all tests in a root.
pub(super) fn run(root: &Root, identity: &Identity) -> Result<Outcome, String> {
    let Identity {
        settings,
        options,
        device,
        gid,
        ..
    } = identity;
    let script = format!(
        "mkdir /tmp/tests && cp /usr/share/doc/rdma-core/tests/* /tmp/tests\n\
         gunzip -q /tmp/tests/*.gz 2> /dev/null || true\n\
         cat > /tmp/start.py <<'END OF START'\n{START}\nEND OF START\n\
         env ROCADE_LOG=off {settings} timeout 580 /mnt/rocade run {options} -- \
         python3 /tmp/start.py --dev {device} --port 1 --gid {gid} -v 2>&1 || true"
    );
    let text = root.run("root", &script)?;
    let outcome = outcome(&text).ok_or_else(|| format!("the tests did not end:\n{text}"))?;
    for name in &outcome.failed {
        eprintln!("xtask: {name} failed");
    }
    if !outcome.failed.is_empty() {
        eprintln!("{text}");
    }
    Ok(outcome)
}

/// Reads what unittest has printed, or returns `None` if its last lines are missing.
fn outcome(text: &str) -> Option<Outcome> {
    let mut outcome = Outcome::default();
    let mut module = String::new();
    let mut ran = None;
    for line in text.lines() {
        if let Some(name) = module_of(line) {
            module = name.to_owned();
        }
        let failed = ["ERROR: ", "FAIL: "];
        let name = failed.iter().find_map(|head| line.strip_prefix(head));
        outcome.failed.extend(name.map(str::to_owned));
        if let Some((_, reason)) = line.split_once("skipped ")
            && (line.starts_with("skipped ") || line.contains("... skipped "))
        {
            let reason = reason.trim().trim_matches(['\'', '"']).to_owned();
            outcome
                .reasons
                .entry(reason)
                .or_default()
                .push(module.clone());
            outcome.skipped += 1;
        }
        let count = line
            .strip_prefix("Ran ")
            .and_then(|rest| rest.split_once(" test"));
        ran = count
            .and_then(|(number, _)| number.parse::<u32>().ok())
            .or(ran);
    }
    let failed = u32::try_from(outcome.failed.len()).ok()?;
    outcome.passed = ran?.checked_sub(outcome.skipped + failed)?;
    Some(outcome)
}

/// The module in a line such as `test_x (tests.test_cq.CQTest.test_x) ... ok`.
fn module_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(" (tests.")?;
    let module = rest.split('.').next()?;
    module.starts_with("test_").then_some(module)
}

/// Beginnings of reasons, and why the tests skip. Other reasons are failures, because a feature may
/// have got lost.
const EXPLAINED: [(&str, &str); 42] = [
    ("Can not run the test over non MLX5 device", MLX5),
    ("Could not open mlx5 context", MLX5),
    (
        "Can not run the test over non EFA device",
        "for EFA devices",
    ),
    (
        "Can not run the test over non IRDMA device",
        "for Intel's devices",
    ),
    (
        "Can not run the test over non HNS device",
        "for HiSilicon's devices",
    ),
    (
        "CC PD is not supported",
        "confidential guests, [not planned](abi.md)",
    ),
    (
        "Device does not report CC_DMA_BOUNCE",
        "confidential guests, [not planned](abi.md)",
    ),
    ("Device /dev/dri/", "memory of a GPU"),
    (
        "Allocating dmabuf is not supported by /dev/dri/",
        "memory of a GPU",
    ),
    ("CUDA", "memory of a GPU"),
    ("cuda-python", "memory of a GPU"),
    (
        "Operation not supported (Failed to create DMA Handle",
        "handles of hardware, [not planned](abi.md)",
    ),
    (
        "DM dmabuf export is not supported",
        "memory of a PCI device",
    ),
    (
        "Converting timestamp to nanoseconds",
        "needs the clock of mlx5",
    ),
    ("No PHC or failed to open", "a clock of a PCI device"),
    (
        "There are no huge pages of size 2M",
        "the machine must have reserved some",
    ),
    (
        "Tag matching is not supported",
        "no device without tag matching runs them",
    ),
    ("PCI device must be passed by the user", "VFIO"),
    (
        "All gid indices populated",
        "the GID table has no empty entry, as long as no address goes",
    ),
    ("FDs file not found", "needs a file of a test before it"),
    ("ODP is not supported", LIKE_RXE),
    ("Device memory is not supported", LIKE_RXE),
    ("scapy package is needed", RAW_MLX5),
    ("Create Mlx5DV", RAW_MLX5),
    ("Opening mlx5 DevX context is not supported", RAW_MLX5),
    ("DevX general command is not supported", RAW_MLX5),
    ("VAR allocation is not supported", RAW_MLX5),
    ("Operation not supported (Dr", RAW_MLX5),
    ("Operation not supported (Failed to allocate VAR", RAW_MLX5),
    ("Matcher creation is not supported", RAW_MLX5),
    ("Creation of flow", RAW_MLX5),
    ("Could not find the PCI device", "there is no PCI device"),
    ("Crypto login details must be supplied", "keys of a device"),
    ("Set LAG affinity is not supported", RAW_MLX5),
    (
        "Create Mkey is not supported",
        "signatures, which Rocade lacks",
    ),
    (
        "Device caps doesn't support",
        "queues of mlx5 that programs write themselves",
    ),
    (
        "Create Raw Packet QP",
        "the test picks flags at random, also those of datagrams",
    ),
    ("mlx5dv_query_port() isn't supported", RAW_MLX5),
    ("Create schedule elements is not supported", RAW_MLX5),
    ("Creation or usage of schedule elements", RAW_MLX5),
    ("UAR ", RAW_MLX5),
    ("Modifying a QP UDP sport is not supported", RAW_MLX5),
];

const MLX5: &str = "for mlx5 devices";
const LIKE_RXE: &str = "rxe does not report it, so neither does its likeness";
const RAW_MLX5: &str = "queues and commands of mlx5 that Rocade does not have";

/// Returns why tests with this reason skip, or `None` if nothing is known of it.
pub(super) fn explanation(reason: &str) -> Option<&'static str> {
    let found = EXPLAINED
        .iter()
        .find(|(begin, _)| reason.starts_with(begin));
    found.map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "test_create_ah (tests.test_addr.AHTest.test_create_ah)\n\
        Test ibv_create_ah. ... ok\n\
        test_bad (tests.test_addr.AHTest.test_bad) ... rocade[1]: ibv_create_ah: EINVAL\nok\n\
        test_efa (tests.test_efadv.EfaQueryDeviceTest.test_efa)\n\
        Test efadv_query_device() ... skipped 'Can not run the test over non EFA device'\n\
        test_dm (tests.test_device.DMTest.test_dm) ... ERROR\n\
        ERROR: test_dm (tests.test_device.DMTest.test_dm)\n\
        Ran 4 tests in 7.2s\n\nFAILED (errors=1, skipped=1)\n";

    #[test]
    fn unittest_is_read() {
        let outcome = outcome(OUTPUT).unwrap();
        assert_eq!((outcome.passed, outcome.skipped), (2, 1));
        assert_eq!(
            outcome.failed,
            ["test_dm (tests.test_device.DMTest.test_dm)"]
        );
        let reason = "Can not run the test over non EFA device";
        assert_eq!(outcome.reasons[reason], ["test_efadv"]);
        assert_eq!(super::outcome("Segmentation fault"), None);
    }

    #[test]
    fn a_new_reason_is_noticed() {
        assert!(explanation("No PHC or failed to open").is_some());
        // rdma-core 44 says it in other words than 65.
        for known in [
            "Allocating dmabuf is not supported by /dev/dri/renderD128",
            "DevX general command is not supported",
            "VAR allocation is not supported",
        ] {
            assert!(explanation(known).is_some(), "{known}");
        }
        assert_eq!(explanation("RC is not supported"), None);
    }
}
