//! Checks of the machine: the kernel, shared memory, limits, and RDMA devices of the host.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use rocade_emulator::{LinkMode, probe};
use rustix::process::{Resource, getrlimit};

use super::{Check, Status};

/// The oldest version of Linux that has everything that Rocade uses, for the advice.
const OLDEST_KERNEL: (u32, u32) = (5, 0);

/// Below this number of open files, programs fail.
const FEWEST_FILES: u64 = 64;
/// Below this number of open files, the last of many programs fail.
const FEW_FILES: u64 = 1024;
/// Below this size of files in bytes, the broker has to be replaced.
const SMALL_FILES: u64 = 64 << 20;
/// Below this address space in bytes, programs fail.
const SMALL_SPACE: u64 = 1 << 30;

/// Names the kernel. Its abilities have checks of their own.
pub(super) fn kernel() -> Check {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let release = release.trim();
    let mut finding = format!("Linux {release}, {}", std::env::consts::ARCH);
    if read("/proc/version").contains("gVisor") {
        finding.push_str(", in gVisor");
    } else if Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists() {
        finding.push_str(", in a container");
    }
    if version(release).is_some_and(|version| version < OLDEST_KERNEL) {
        let (major, minor) = OLDEST_KERNEL;
        return Check::warning("system", finding).advise(format!(
            "Rocade is made for Linux {major}.{minor} or later: the lines below tell what is missing"
        ));
    }
    Check::ok("system", finding)
}

/// Parses the first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Checks the memory between processes. Rocade uses memory files, and other libraries `/dev/shm`.
pub(super) fn shared_memory(link: LinkMode) -> Check {
    const NAME: &str = "shared memory";
    if let Err(error) = probe::shared_memory() {
        let (status, rest) = match link {
            LinkMode::Shm => (Status::Problem, "ROCADE_LINK=shm needs it"),
            _ => (Status::Warning, "packets go over UDP"),
        };
        return Check::new(NAME, status, format!("{error}: {rest}")).advise(probe::remedy(&error));
    }
    let use_of_it = match link {
        LinkMode::Udp => "works, and is not used (ROCADE_LINK=udp)",
        _ => "between processes of this host",
    };
    match writable(Path::new("/dev/shm")) {
        Ok(()) => Check::ok(NAME, use_of_it),
        Err(error) => Check::warning(
            NAME,
            format!("{use_of_it}. /dev/shm cannot be used ({error}): Rocade does not need it"),
        )
        .advise("MPI, NCCL and UCX need it: mount -t tmpfs tmpfs /dev/shm, docker run --shm-size"),
    }
}

/// Creates a file in a directory and removes it.
fn writable(dir: &Path) -> io::Result<()> {
    let file = dir.join(format!(".rocade-doctor.{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&file)?;
    fs::remove_file(&file)
}

/// Checks the limits of this process, which programs inherit.
pub(super) fn limits() -> Check {
    const NAME: &str = "limits";
    let limit = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
    let files = limit(Resource::Nofile);
    if let Err(error) = std::thread::Builder::new().spawn(|| {}).map(drop) {
        return Check::problem(NAME, format!("failed to start a thread: {error}")).advise(
            "raise the limit of this user (ulimit -u) or of the container (docker run \
             --pids-limit)",
        );
    }
    let few = [
        (files < FEW_FILES, "ulimit -n 1024", files, "open files"),
        (
            limit(Resource::Fsize) < SMALL_FILES,
            "ulimit -f unlimited",
            limit(Resource::Fsize),
            "bytes of a file",
        ),
        (
            limit(Resource::As) < SMALL_SPACE,
            "ulimit -v unlimited",
            limit(Resource::As),
            "bytes of address space",
        ),
    ];
    let found: Vec<_> = few.into_iter().filter(|(is_low, ..)| *is_low).collect();
    if found.is_empty() {
        let files = match files {
            u64::MAX => "any number of".to_owned(),
            files => files.to_string(),
        };
        return Check::ok(NAME, format!("{files} open files, threads can be started"));
    }
    let text = |(_, _, limit, what): &(bool, &str, u64, &str)| format!("at most {limit} {what}");
    let finding: Vec<String> = found.iter().map(text).collect();
    let advice: Vec<String> = found
        .iter()
        .map(|(_, command, ..)| format!("raise it: {command}"))
        .collect();
    let status = if files < FEWEST_FILES {
        Status::Problem
    } else {
        Status::Warning
    };
    Check::new(NAME, status, finding.join(", ")).advise(advice.join("\n"))
}

/// Lists the RDMA devices of the host and the software drivers of its kernel.
pub(super) fn host_devices() -> Check {
    const NAME: &str = "host devices";
    let entries = fs::read_dir("/sys/class/infiniband");
    let names = entries.into_iter().flatten().flatten();
    let mut devices: Vec<String> = names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    devices.sort();
    let drivers = ["rdma_rxe", "siw"];
    let is_loaded = |driver: &&&str| Path::new("/sys/module").join(driver).exists();
    let loaded: Vec<&str> = drivers.iter().filter(is_loaded).copied().collect();
    let mut finding = match devices.as_slice() {
        [] => "no RDMA device of the host".to_owned(),
        _ => format!("{}, which programs do not see", devices.join(", ")),
    };
    if !loaded.is_empty() {
        finding.push_str(&format!(". Loaded: {}", loaded.join(", ")));
    }
    let check = Check::ok(NAME, finding);
    match devices.is_empty() {
        true => check,
        false => check.advise("to see them too: rocade run --show-host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_two_numbers() {
        assert_eq!(version("6.18.44-fc-v769"), Some((6, 18)));
        assert_eq!(version("4.4"), Some((4, 4)));
        assert_eq!(version("x"), None);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told_by_its_error() {
        let dir = tempfile::tempdir().unwrap();
        writable(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let error = writable(&dir.path().join("x")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
