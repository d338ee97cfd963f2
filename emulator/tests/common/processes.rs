//! Tests that start further processes of themselves: the environment says which role one plays.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::broker::BrokerConfig;

pub(crate) const ROLE: &str = "ROCADE_TEST_ROLE";
/// The test program, where a process cannot find out.
pub(crate) const EXE: &str = "ROCADE_TEST_EXE";
/// Everything here is a matter of milliseconds; whoever waits so long waits for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A broker that is this program in the role `broker`, of the test `child_process`.
pub(crate) fn broker_config(dir: &Path) -> BrokerConfig {
    let role: OsString = format!("{ROLE}=broker").into();
    let exe = env::var_os(EXE).unwrap_or_else(|| env::current_exe().unwrap().into());
    let arguments = ["--exact", "child_process", "--nocapture"].map(OsString::from);
    BrokerConfig {
        runtime_dir: Some(dir.to_owned()),
        command: Some([vec!["env".into(), role, exe], arguments.to_vec()].concat()),
        start_timeout: PATIENCE,
        ..BrokerConfig::default()
    }
}

/// Looks every 2 ms whether it is so.
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "waited too long");
        thread::sleep(Duration::from_millis(2));
    }
}
