//! The peer of the interoperation tests: a Linux kernel with rdma_rxe in QEMU
//! (`tests/interop/rxe-vm`).

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use super::Finished;
use crate::skip::Reason;

/// The exit status of `rxe-vm` for "not possible on this machine".
const CANNOT: i32 = 77;

/// A guest in a network namespace of its own. A test program boots one guest per kernel, which ends
/// with the test program.
#[derive(Debug)]
pub struct RxeGuest {
    script: PathBuf,
    namespace: String,
    kernel: Kernel,
}

/// The kernel of a guest.
#[derive(Clone, Copy, Debug, Default)]
struct Kernel {
    /// The package, or `None` for the default one.
    package: Option<&'static str>,
    /// The suite of Debian that has it, or `None` for the sources of this machine.
    suite: Option<&'static str>,
}

/// The guest kernel's counters of ICRC checks on received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcCounters {
    /// Packets with a correct ICRC.
    pub accepted: u64,
    /// Packets that were dropped because of a wrong ICRC.
    pub rejected: u64,
}

impl RxeGuest {
    /// The IPv4 address of the guest. The host has 192.168.77.1 on the bridge [`RxeGuest::BRIDGE`].
    pub const ADDRESS: &str = "192.168.77.2";
    /// The interface of the namespace on which Rocade's device is created.
    pub const BRIDGE: &str = "rxebr0";
    /// The interface that carries exactly the packets that the guest sends and receives.
    pub const TAP: &str = "rxetap1";

    /// Returns the running guest. The first call boots it, and may have to build its image.
    ///
    /// # Errors
    /// The reason why this machine cannot run it.
    ///
    /// # Panics
    /// If the guest does not boot although the machine could run it.
    pub fn get() -> Result<&'static Self, Reason> {
        static GUEST: OnceLock<Result<RxeGuest, Reason>> = OnceLock::new();
        GUEST
            .get_or_init(|| Self::boot("rocade-rxe", Kernel::default()))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Like [`RxeGuest::get`], but returns the guest with Linux 6.12, whose rxe supports FLUSH and
    /// ATOMIC WRITE.
    ///
    /// # Errors
    /// The reason why this machine cannot run it.
    ///
    /// # Panics
    /// If the guest does not boot although the machine could run it.
    pub fn get_newer() -> Result<&'static Self, Reason> {
        static GUEST: OnceLock<Result<RxeGuest, Reason>> = OnceLock::new();
        let kernel = Kernel {
            package: Some("linux-image-6.12-amd64"),
            suite: None,
        };
        GUEST
            .get_or_init(|| Self::boot("rocade-rxe-newer", kernel))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Like [`RxeGuest::get`], but boots the newest kernel of Debian's backports, with every call.
    ///
    /// # Errors
    /// The reason why this machine cannot run it.
    ///
    /// # Panics
    /// If the guest does not boot although the machine could run it.
    pub fn boot_newest() -> Result<Self, Reason> {
        let kernel = Kernel {
            package: None,
            suite: Some("trixie-backports"),
        };
        Self::boot("rocade-rxe-newest", kernel)
    }

    /// Boots a guest with this kernel.
    fn boot(name: &str, kernel: Kernel) -> Result<Self, Reason> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/rxe-vm/rxe-vm");
        let guest = Self {
            script,
            namespace: format!("{name}-{}", process::id()),
            kernel,
        };
        if let Some(reason) =
            crate::skip::missing_command(&[("python3", "python3"), ("nsenter", "util-linux")])
        {
            return Err(reason);
        }
        let up = guest.call(&["up", "--owner", &process::id().to_string()]);
        let message = String::from_utf8_lossy(&up.stderr);
        match up.status.code() {
            Some(0) => Ok(guest),
            Some(CANNOT) => {
                // The last lines name the missing part, and a package as "(Debian: NAME)".
                let package = message
                    .split("(Debian: ")
                    .nth(1)
                    .and_then(|rest| rest.split(')').next());
                Err(package.map_or_else(
                    || {
                        Reason::Machine(format!(
                            "no rxe guest: {}",
                            message.trim().replace('\n', "; ")
                        ))
                    },
                    |name| Reason::Package(name.to_owned()),
                ))
            }
            _ => panic!("rxe-vm up: {}\n{message}", up.status),
        }
    }

    /// The name of the network namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Runs a shell command line in the guest and waits until it ends.
    ///
    /// # Panics
    /// If the guest does not answer.
    pub fn shell(&self, command: &str) -> Finished {
        let output = self.call(&["exec", "--timeout", "60", command]);
        finished(command, &output)
    }

    /// Repeats a command line until `wanted` accepts its output.
    ///
    /// # Panics
    /// If `wanted` accepts no output in time. The message shows the last output.
    pub fn wait_until(&self, what: &str, command: &str, wanted: impl Fn(&str) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.shell(command).output;
            if wanted(&output) {
                return;
            }
            let in_time = Instant::now() < until;
            assert!(in_time, "{what} not found in the guest: {output}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Copies a file into the guest's directory `/share`.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn put(&self, file: &Path) {
        let output = self.call(&["put", &file.to_string_lossy()]);
        finished("put", &output).expect_success();
    }

    /// Starts a program in the guest, and waits until it listens on the TCP port `listen` if one is
    /// given.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn spawn(&self, job: &str, listen: Option<u16>, words: &[&str]) {
        let listen = listen.map(|port| format!("--listen={port}"));
        let mut arguments = vec!["spawn"];
        arguments.extend(listen.as_deref());
        arguments.push(job);
        arguments.extend(words);
        let output = self.call(&arguments);
        finished(&format!("spawn {}", words.join(" ")), &output).expect_success();
    }

    /// Waits for the end of a program that [`RxeGuest::spawn`] started. After `limit`, kills it and
    /// returns status 124.
    #[must_use]
    pub fn wait(&self, job: &str, limit: Duration) -> Finished {
        let seconds = limit.as_secs().to_string();
        let output = self.call(&["wait", "--timeout", &seconds, job]);
        if output.status.code() == Some(124) {
            self.call(&["kill", "--signal", "KILL", job]);
        }
        finished(&format!("{job} in the guest"), &output)
    }

    /// Kills a program that [`RxeGuest::spawn`] started.
    pub fn kill(&self, job: &str) {
        self.call(&["kill", "--signal", "KILL", job]);
    }

    /// Returns the guest kernel's ICRC counters.
    ///
    /// # Panics
    /// If the guest does not answer.
    #[must_use]
    pub fn icrc(&self) -> IcrcCounters {
        let text = self.shell("icrc-counters").expect_success();
        let mut words = text.split_whitespace();
        let mut number = |name: &str| {
            assert_eq!(words.next(), Some(name), "{text}");
            words
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or_else(|| panic!("{text}"))
        };
        IcrcCounters {
            accepted: number("accepted"),
            rejected: number("rejected"),
        }
    }

    /// Returns the counters that `rdma statistic` shows for rxe0.
    ///
    /// # Panics
    /// If the guest does not answer.
    #[must_use]
    pub fn statistics(&self) -> BTreeMap<String, u64> {
        let text = self
            .shell("rdma statistic show link rxe0/1")
            .expect_success();
        let words: Vec<_> = text.split_whitespace().skip(2).collect();
        let pairs = words
            .chunks(2)
            .filter_map(|pair| Some((pair.first()?, pair.get(1)?.parse().ok()?)));
        pairs
            .map(|(name, value)| ((*name).to_owned(), value))
            .collect()
    }

    fn call(&self, arguments: &[&str]) -> Output {
        Command::new(&self.script)
            .args(["--netns", &self.namespace])
            .args(arguments)
            .envs(
                self.kernel
                    .package
                    .map(|name| ("ROCADE_RXE_VM_KERNEL", name)),
            )
            .envs(self.kernel.suite.map(|name| ("ROCADE_RXE_VM_SUITE", name)))
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", self.script.display()))
    }
}

fn finished(name: &str, output: &Output) -> Finished {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    let _ = write!(text, "{}", String::from_utf8_lossy(&output.stderr));
    Finished {
        name: name.to_owned(),
        status: output.status,
        output: text,
    }
}
