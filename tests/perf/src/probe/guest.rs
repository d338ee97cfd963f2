//! The kernel's rxe and Rocade with the same programs inside one QEMU guest
//! (`tests/interop/rxe-vm`).
//!
//! rxe uses UDP port 4791, so its module is unloaded while Rocade runs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::perftest::{self, Perftest};
use crate::{child::Failure, rig};

/// The guest's address. Both processes use it, so that packets take the guest's loopback interface.
const ADDRESS: &str = "192.168.77.2";
/// The files that are copied from the directory of the `rocade` command.
const LIBRARIES: &[&str] = &[
    "libibverbs.so",
    "librdmacm.so",
    "libmlx5.so",
    "libefa.so",
    "libmana.so",
];
/// A library that Rust programs need and the guest lacks.
const GCC_RUNTIME: &str = "libgcc_s.so.1";
const ROCADE: &str = "/tmp/rocade/rocade run --dev rocade0=eth0 --";
/// Loads the module. Rocade's broker would keep the port for a while, so it is stopped before.
const RXE_ON: &str = "ROCADE_RUNTIME_DIR=/tmp/rocade-run /tmp/rocade/rocade broker stop >/dev/null 2>&1; \
                      for i in 1 2 3 4 5 6 7 8 9 10; do \
                      grep -q '^rdma_rxe ' /proc/modules || insmod /lib/modules/rdma_rxe.ko; \
                      rdma link show rxe0/1 >/dev/null 2>&1 && exit 0; \
                      rdma link add rxe0 type rxe netdev eth0 && exit 0; \
                      rmmod rdma_rxe; sleep 0.2; done; exit 1";
/// Unloads the module, which would keep the port.
const RXE_OFF: &str = "! grep -q '^rdma_rxe ' /proc/modules || rmmod rdma_rxe";
/// Removes the kernel probe by which the guest counts ICRC checks, because it slows rxe down.
const NO_PROBE: &str = "cd /sys/kernel/debug/tracing || exit 0; \
                        echo 0 > events/kprobes/icrc/enable; \
                        echo '!hist:keys=ret' > events/kprobes/icrc/trigger; echo > kprobe_events";
const LIMIT: Duration = Duration::from_secs(120);

/// The verbs provider of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Rxe,
    /// Rocade with this value of `ROCADE_LINK`.
    Rocade(&'static str),
}

/// A running guest, which ends with this process.
#[derive(Debug)]
pub(crate) struct Guest {
    script: PathBuf,
    namespace: String,
    state: TempDir,
}

impl Guest {
    /// Boots the guest and copies Rocade into it.
    pub(crate) fn boot(rocade: &Path) -> Result<Self, Failure> {
        let state = tempfile::tempdir().map_err(|error| error.to_string())?;
        let guest = Self {
            script: rig::root().join("tests/interop/rxe-vm/rxe-vm"),
            namespace: format!("rocade-perf-{}", process::id()),
            state,
        };
        let owner = process::id().to_string();
        guest.call(&["up", "--mtu", "4200", "--owner", &owner])?;
        let share = guest
            .state
            .path()
            .join(&guest.namespace)
            .join("guest1/share");
        let from = rocade
            .parent()
            .ok_or("the command rocade has no directory")?;
        strip_into(rocade, &share.join("rocade"))?;
        for library in LIBRARIES {
            strip_into(&from.join(library), &share.join(library))?;
        }
        fs::copy(gcc_runtime(rocade)?, share.join(GCC_RUNTIME))
            .map_err(|error| error.to_string())?;
        guest.exec(&format!("mv /share/{GCC_RUNTIME} /lib/x86_64-linux-gnu/"))?;
        guest.exec(NO_PROBE)?;
        guest.exec("mkdir -p /tmp/rocade && cp /share/rocade /share/*.so /tmp/rocade/")?;
        Ok(guest)
    }

    /// Runs both sides of a perftest program in the guest, and returns the client's figure.
    pub(crate) fn measure(
        &self,
        program: &Perftest,
        provider: Provider,
        iterations: u32,
    ) -> Result<f64, Failure> {
        let words = program.words(iterations, perftest::free_port()).join(" ");
        let port = words.split(' ').nth(3).unwrap_or_default().to_owned();
        // Both use IPv4: GID 1 of rxe, GID 0 of Rocade.
        let line = match provider {
            Provider::Rxe => {
                self.exec(RXE_ON)?;
                format!("{words} -d rxe0 -x 1")
            }
            Provider::Rocade(link) => {
                self.exec(RXE_OFF)?;
                let env = format!("env ROCADE_RUNTIME_DIR=/tmp/rocade-run ROCADE_LINK={link}");
                format!("{env} {ROCADE} {words} -d rocade0 -x 0")
            }
        };
        let server: Vec<&str> = line.split(' ').collect();
        let mut spawn = vec!["spawn", "-l", &port, "server"];
        spawn.extend(&server);
        self.call(&spawn)?;
        let limit = LIMIT.as_secs().to_string();
        let client = format!("{line} {ADDRESS}");
        let output = self.call(&["exec", "--timeout", &limit, &client]);
        if output.is_err() {
            let _ = self.call(&["kill", "--signal", "KILL", "server"]);
        }
        let _ = self.call(&["wait", "--timeout", "10", "server"]);
        perftest::parse(&output?, program.column)
    }

    fn exec(&self, line: &str) -> Result<String, Failure> {
        self.call(&["exec", "--timeout", "60", line])
    }

    fn call(&self, arguments: &[&str]) -> Result<String, Failure> {
        let output = Command::new(&self.script)
            .args(["--netns", &self.namespace])
            .env("ROCADE_RXE_VM_STATE", self.state.path())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cannot run {}: {error}", self.script.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        Err(format!("rxe guest: {}", last.unwrap_or("no guest")))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.call(&["down"]);
    }
}

/// Copies a program without its debugging information, which is the largest part of it.
fn strip_into(from: &Path, to: &Path) -> Result<(), Failure> {
    let stripped = Command::new("strip")
        .arg("-g")
        .arg("-o")
        .args([to, from])
        .stderr(Stdio::null())
        .status();
    if stripped.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    fs::copy(from, to)
        .map(drop)
        .map_err(|error| format!("{}: {error}", from.display()))
}

/// Returns the path at which the dynamic linker finds [`GCC_RUNTIME`] for a program on this
/// machine.
fn gcc_runtime(program: &Path) -> Result<PathBuf, Failure> {
    let ldd = Command::new("ldd").arg(program).output();
    let ldd = ldd.map_err(|error| format!("cannot run ldd: {error}"))?;
    let said = String::from_utf8_lossy(&ldd.stdout);
    let line = said.lines().find(|line| line.contains(GCC_RUNTIME));
    let path = line.and_then(|line| line.split_whitespace().nth(2));
    path.map(PathBuf::from)
        .ok_or_else(|| format!("ldd does not tell where {GCC_RUNTIME} is"))
}
