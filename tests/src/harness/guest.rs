//! The peer of the interoperation tests: a Linux kernel with rdma_rxe in QEMU (`tests/interop/rxe-vm`).

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::Duration,
};

use super::Finished;
use crate::skip::Reason;

/// Exit status of `rxe-vm` for "not possible on this machine".
const CANNOT: i32 = 77;

/// A guest, on a network namespace made for it. One per kernel and test program; it ends with the test program.
#[derive(Debug)]
pub struct RxeGuest {
    script: PathBuf,
    namespace: String,
    kernel: Option<&'static str>,
}

/// What the guest's kernel thought of the ICRC of the packets it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcCounters {
    /// Packets whose ICRC was right.
    pub accepted: u64,
    /// Packets that were dropped because theirs was wrong.
    pub rejected: u64,
}

impl RxeGuest {
    /// IPv4 address of the guest; the host's side is 192.168.77.1 on the bridge [`RxeGuest::BRIDGE`].
    pub const ADDRESS: &str = "192.168.77.2";
    /// The interface of the namespace that Rocade gets.
    pub const BRIDGE: &str = "rxebr0";
    /// The interface that shows exactly what the guest sends and receives.
    pub const TAP: &str = "rxetap1";

    /// The running guest; the first call boots it, and may have to build its image.
    ///
    /// # Errors
    /// Why this machine cannot run it.
    ///
    /// # Panics
    /// Where it should run but does not come up.
    pub fn get() -> Result<&'static Self, Reason> {
        static GUEST: OnceLock<Result<RxeGuest, Reason>> = OnceLock::new();
        GUEST
            .get_or_init(|| Self::boot("rocade-rxe", None))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The running guest with Linux 6.12, whose rxe has FLUSH and ATOMIC WRITE; otherwise as [`RxeGuest::get`].
    ///
    /// # Errors
    /// Why this machine cannot run it.
    ///
    /// # Panics
    /// Where it should run but does not come up.
    pub fn get_newer() -> Result<&'static Self, Reason> {
        static GUEST: OnceLock<Result<RxeGuest, Reason>> = OnceLock::new();
        GUEST
            .get_or_init(|| Self::boot("rocade-rxe-newer", Some("linux-image-6.12-amd64")))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Boots a guest with this kernel package, or with that of the machine's environment.
    fn boot(name: &str, kernel: Option<&'static str>) -> Result<Self, Reason> {
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
                // The last lines say what is missing; a package is named as "(Debian: NAME)".
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

    /// Name of the network namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Runs a shell command line in the guest to its end.
    ///
    /// # Panics
    /// Where the guest does not answer.
    pub fn shell(&self, command: &str) -> Finished {
        let output = self.call(&["exec", "--timeout", "60", command]);
        finished(command, &output)
    }

    /// Waits until a command line has printed what is wanted.
    ///
    /// # Panics
    /// Where that does not come: then with what was printed last.
    pub fn wait_until(&self, what: &str, command: &str, wanted: impl Fn(&str) -> bool) {
        let mut output = String::new();
        for _ in 0..150 {
            output = self.shell(command).output;
            if wanted(&output) {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
        panic!("the guest waits for {what} in vain: {output}");
    }

    /// Copies a file into the guest's directory `/share`.
    ///
    /// # Panics
    /// Where it cannot be copied.
    pub fn put(&self, file: &Path) {
        let output = self.call(&["put", &file.to_string_lossy()]);
        finished("put", &output).expect_success();
    }

    /// Starts a program in the guest and waits until it listens on a TCP port, where one is given.
    ///
    /// # Panics
    /// Where it does not come up.
    pub fn spawn(&self, job: &str, listen: Option<u16>, words: &[&str]) {
        let listen = listen.map(|port| format!("--listen={port}"));
        let mut arguments = vec!["spawn"];
        arguments.extend(listen.as_deref());
        arguments.push(job);
        arguments.extend(words);
        let output = self.call(&arguments);
        finished(&format!("spawn {}", words.join(" ")), &output).expect_success();
    }

    /// Waits for the end of a program that was started with [`RxeGuest::spawn`]; after `limit` the status is 124.
    #[must_use]
    pub fn wait(&self, job: &str, limit: Duration) -> Finished {
        let seconds = limit.as_secs().to_string();
        let output = self.call(&["wait", "--timeout", &seconds, job]);
        if output.status.code() == Some(124) {
            self.call(&["kill", "--signal", "KILL", job]);
        }
        finished(&format!("{job} in the guest"), &output)
    }

    /// Ends a program that was started with [`RxeGuest::spawn`].
    pub fn kill(&self, job: &str) {
        self.call(&["kill", "--signal", "KILL", job]);
    }

    /// What the kernel thought of the ICRCs so far.
    ///
    /// # Panics
    /// Where the guest does not tell.
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

    /// The counters of `rdma statistic` for rxe0.
    ///
    /// # Panics
    /// Where the guest does not tell.
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
            .envs(self.kernel.map(|kernel| ("ROCADE_RXE_VM_KERNEL", kernel)))
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
