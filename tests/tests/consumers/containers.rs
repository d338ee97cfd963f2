//! Programs in containers of podman, by a specification of `rocade cdi generate`. The image knows
//! nothing of Rocade.

use std::{fs, process::Command};

use rocade_tests::{
    harness::{Process, Rig, free_port},
    or_skip,
    skip::Reason,
};

use crate::LIMIT;

const NEEDS: &[(&str, &str)] = &[
    ("podman", "podman"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ip", "iproute2"),
];

/// Runs a command with an empty `/run` and `/dev/shm` and no cgroups, which are those of podman
/// otherwise. The specification is where podman looks for it, and no other program sees it.
const PREPARE: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir /run/cdi
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cp "$1" /run/cdi/
shift
exec "$@"
"#;

/// The options of podman for a container without an image of its own: its root is that of the
/// system, in which a layer of the container's own takes all changes.
const RUN: &[&str] = &["run", "--rm", "--cgroups=disabled", "--network=host"];
/// A machine may not allow more.
const LIMITS: &[&str] = &["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];

/// A machine with containers.
struct Host {
    rig: Rig,
}

impl Host {
    /// Prepares a machine for containers.
    ///
    /// # Errors
    /// The reason why this one has none.
    fn new() -> Result<Self, Reason> {
        let rig = Rig::loopback(NEEDS)?;
        let id = Command::new("id").arg("-u").output();
        if id.map_or(true, |output| output.stdout != b"0\n") {
            return Err(Reason::Machine("containers need root".to_owned()));
        }
        if !rig.network().is_isolated() {
            let reason = "cannot make a network namespace";
            return Err(Reason::Machine(reason.to_owned()));
        }
        let host = Self { rig };
        fs::write(host.path("rocade.json"), "").expect("the directory is writable");
        let plain = host.start("plain", &[], &["true"]).finish(LIMIT);
        match plain.status.success() {
            true => Ok(host),
            false => Err(Reason::Machine(format!(
                "podman cannot run a container: {}",
                plain.output
            ))),
        }
    }

    fn path(&self, name: &str) -> String {
        self.rig.dir().join(name).display().to_string()
    }

    /// Writes the specification.
    fn generate(&self, options: &[&str]) {
        let path = self.path("rocade.json");
        let words = [&["cdi", "generate", "--output", &path], options].concat();
        self.rig.rocade(&words).expect_success();
    }

    /// Starts a container, which ends in time even if this test does not.
    fn start(&self, name: &str, options: &[&str], words: &[&str]) -> Process {
        // Each podman has its own list of containers, as it has its own locks.
        let place = |kind| format!("--{kind}={}", self.path(&format!("{name}-{kind}")));
        let places = ["root", "runroot"].map(place);
        let specification = self.path("rocade.json");
        let mut all = vec!["unshare", "--mount", "sh", "-c", PREPARE, "sh"];
        all.extend([&*specification, "podman", "--cgroup-manager=cgroupfs"]);
        all.extend(places.iter().map(String::as_str));
        all.extend(RUN.iter().chain(LIMITS).chain(options));
        all.extend(["--rootfs", "/:O", "timeout", "60"]);
        all.extend(words);
        self.rig.start_plain(name, &all)
    }
}

#[test]
fn two_containers_of_an_image_without_rocade_meet() {
    let host = or_skip!(Host::new());
    let shared = host.path("shared");
    host.generate(&["--runtime-dir", &shared]);
    // Without the device, the image has no RDMA.
    let without = host.start("without", &[], &["ibv_devices"]).finish(LIMIT);
    assert!(!without.output.contains("rocade0"), "{}", without.output);

    for link in ["shm", "udp"] {
        let link = format!("--env=ROCADE_LINK={link}");
        let port = free_port().to_string();
        let words = ["ibv_rc_pingpong", "-d", "rocade0", "-g", "0", "-p", &port];
        let devices = ["--device=rocade.dev/nic=all", "--device=rocade.dev/nic=7"];
        let mut server = host.start("server", &[devices[0], &link], &words);
        server.wait_listening(port.parse().unwrap(), LIMIT);
        let words = [&words[..], &["127.0.0.1"]].concat();
        let client = host.start("client", &[devices[1], &link], &words);
        for side in [client, server] {
            let output = side.finish(LIMIT).expect_success();
            assert!(output.contains("1000 iters in"), "{output}");
        }
    }
    // The broker of both was in the shared directory.
    let mut files = fs::read_dir(&shared).unwrap();
    assert!(files.any(|file| {
        let name = file.unwrap().file_name();
        name.to_string_lossy().ends_with("broker.lock")
    }));
}

#[test]
fn the_command_shows_a_view_in_a_container() {
    let host = or_skip!(Host::new());
    host.generate(&[]);
    let words = ["rocade", "run", "--", "ls", "/sys/class/infiniband"];
    let options = ["--device=rocade.dev/nic=0"];
    let shown = host.start("ls", &options, &words).finish(LIMIT);
    let shown = shown.expect_success();
    assert!(shown.lines().any(|line| line == "rocade0"), "{shown}");
}
