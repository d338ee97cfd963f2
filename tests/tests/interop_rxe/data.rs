//! WRITE, READ and atomics between Rocade and the guest, also through memory windows. A test
//! program on both sides (`tests/interop/data`) verifies every byte, which perftest does not.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use rocade_tests::{
    harness::{Device, Process, Rig, RxeGuest, free_port},
    or_skip,
    skip::{Reason, missing_command},
};

use super::{LONG, Watch, finish, gid_index, newer_rig, rig, strs};

const NAME: &str = "rdma-data";

/// Compiles a test program into a directory.
pub(super) fn program(dir: &Path, name: &str) -> Result<PathBuf, Reason> {
    if let Some(reason) = missing_command(&[("gcc", "gcc")]) {
        return Err(reason);
    }
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return Err(Reason::Package("libibverbs-dev".to_owned()));
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/data");
    let source = sources.join(name).with_extension("c");
    let program = dir.join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    gcc.arg(&program).arg(source).arg("-libverbs");
    assert!(gcc.status().is_ok_and(|status| status.success()), "gcc");
    Ok(program)
}

/// Compiles the program with indirect keys, which only Rocade's libibverbs supports.
fn matrix_program(rig: &Rig) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = rig.dir().join("rdma-matrix");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    gcc.arg(root.join("../verbs-api/include")).arg("-o");
    gcc.arg(&program)
        .arg(root.join("interop/data/rdma-matrix.c"));
    gcc.arg(rig.rocade_path().with_file_name("libibverbs.so"));
    assert!(gcc.status().is_ok_and(|status| status.success()), "gcc");
    program
}

/// The parameters of the test program on both sides.
struct Pair<'a> {
    rig: &'a Rig,
    guest: &'a RxeGuest,
    ours: PathBuf,
    gid: String,
}

impl Pair<'_> {
    fn on_rocade(&self, role: &str, port: u16, host: Option<&str>) -> Process {
        let (program, port) = (self.ours.to_string_lossy(), port.to_string());
        let mut words = vec![&*program, role, "rocade0", &self.gid, &port];
        words.extend(host);
        let device = Device::on(RxeGuest::BRIDGE);
        self.rig.start(&format!("{NAME} {role}"), &device, &words)
    }

    fn in_guest(&self, role: &str, port: u16, host: Option<&str>) {
        let mut words = vec![format!("/share/{NAME}"), role.to_owned()];
        words.extend(["rxe0", "1"].map(str::to_owned));
        words.push(port.to_string());
        words.extend(host.map(str::to_owned));
        let listen = host.is_none().then_some(port);
        self.guest.spawn(NAME, listen, &strs(&words));
    }

    /// Checks that both sides have verified these numbers of operations.
    fn check_counts(&self, process: Process, counts: [u32; 2]) {
        let outputs = finish(process, self.guest, NAME, LONG);
        for (output, count) in outputs.iter().zip(counts) {
            let line = format!("verified {count} operations");
            assert!(output.contains(&line), "{count}: {outputs:?}");
        }
    }

    fn check(&self, process: Process) {
        let [ours, theirs] = finish(process, self.guest, NAME, LONG);
        // 9 lengths at 2 places with a WRITE and a READ each, 76 atomics, and a WRITE and a READ
        // through each of 4 windows. A SEND invalidates 2 of these windows. The responder verifies
        // the WRITEs.
        let counts = [&ours, &theirs].map(|output| {
            ["verified 122 operations", "verified 22 operations"].map(|line| output.contains(line))
        });
        assert!(
            counts == [[true, false], [false, true]] || counts == [[false, true], [true, false]],
            "{ours}\n{theirs}"
        );
    }
}

#[test]
fn every_byte_is_where_it_belongs() {
    let (rig, guest) = or_skip!(rig());
    let ours = or_skip!(program(rig.dir(), NAME));
    guest.put(&ours);
    let watch = Watch::new(guest);
    let gid = gid_index(&rig, "::ffff:192.168.77.1").to_string();
    let pair = Pair {
        rig: &rig,
        guest,
        ours,
        gid,
    };
    // Rocade is the requester, and the kernel the responder.
    let port = free_port();
    pair.in_guest("responds", port, None);
    pair.check(pair.on_rocade("requests", port, Some(RxeGuest::ADDRESS)));
    // The kernel is the requester, and Rocade the responder.
    let port = free_port();
    pair.in_guest("requests", port, None);
    pair.check(pair.on_rocade("responds", port, Some(RxeGuest::ADDRESS)));
    watch.check();
}

/// Runs ATOMIC WRITE among other requests, in both directions.
//= ORD-07 type=test
#[test]
fn an_atomic_write_stores_its_bytes_both_ways() {
    let (rig, guest) = or_skip!(newer_rig());
    let ours = or_skip!(program(rig.dir(), NAME));
    guest.put(&ours);
    let watch = Watch::new(guest);
    let gid = gid_index(&rig, "::ffff:192.168.77.1").to_string();
    let pair = Pair {
        rig: &rig,
        guest,
        ours,
        gid,
    };
    let port = free_port();
    pair.in_guest("responds", port, None);
    let process = pair.on_rocade("stores", port, Some(RxeGuest::ADDRESS));
    pair.check_counts(process, [38, 0]);
    let port = free_port();
    pair.in_guest("stores", port, None);
    let process = pair.on_rocade("responds", port, Some(RxeGuest::ADDRESS));
    pair.check_counts(process, [0, 38]);
    watch.check();
}

/// Moves columns of a matrix, which form one memory key (UMR). Rocade's requests gather them into
/// the kernel's memory and scatter them from it. Then the kernel does so with a plain key and
/// address. A masked atomic fails on Rocade's side, so that the kernel gets no packet with an
/// unknown opcode.
//= UMR-35 XAW-08 type=test
#[test]
fn a_matrix_goes_to_the_kernel_and_back() {
    let (rig, guest) = or_skip!(rig());
    let theirs = or_skip!(program(rig.dir(), NAME));
    let ours = matrix_program(&rig);
    guest.put(&theirs);
    let watch = Watch::new(guest);
    let gid = gid_index(&rig, "::ffff:192.168.77.1").to_string();
    let pair = Pair {
        rig: &rig,
        guest,
        ours,
        gid,
    };
    let port = free_port();
    pair.in_guest("responds", port, None);
    let process = pair.on_rocade("requests", port, Some(RxeGuest::ADDRESS));
    pair.check_counts(process, [12, 6]);
    // 6 lengths at 2 places with a WRITE and a READ each, and 76 atomics.
    let port = free_port();
    pair.in_guest("requests-part", port, None);
    let process = pair.on_rocade("responds", port, Some(RxeGuest::ADDRESS));
    pair.check_counts(process, [12, 100]);
    let port = free_port();
    pair.in_guest("responds", port, None);
    let process = pair.on_rocade("masked", port, Some(RxeGuest::ADDRESS));
    pair.check_counts(process, [1, 1]);
    watch.check();
}
