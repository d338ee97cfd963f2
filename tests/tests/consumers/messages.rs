//! Diagnostics that programs and users get when a call fails.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use rocade_tests::{
    harness::{Device, Rig, free_port},
    or_skip, skip,
};

use crate::{LIMIT, UTILS};

/// Returns Rocade's lines, which begin with its name and the process.
fn ours(output: &str) -> Vec<&str> {
    output
        .lines()
        .filter(|line| line.starts_with("rocade"))
        .collect()
}

/// Returns the output of both sides of `ibv_rc_pingpong` with these options. The side with the
/// error ends, and so the other side ends too.
fn failing_pingpong(rig: &Rig, device: &Device, options: &[&str]) -> String {
    let port = free_port();
    let number = port.to_string();
    let words = [&["ibv_rc_pingpong", "-p", &number], options].concat();
    let mut server = rig.start("server", device, &words);
    server.wait_listening(port, LIMIT);
    let words = [&words[..], &["127.0.0.1"]].concat();
    let client = rig.start("client", device, &words).finish(LIMIT);
    let server = server.finish(LIMIT);
    assert!(!client.status.success() && !server.status.success());
    server.output + &client.output
}

fn assert_has(output: &str, parts: &[&str]) {
    for part in parts {
        assert!(output.contains(part), "no {part:?} in {output}");
    }
}

/// Without `-g` the programs exchange no GID.
#[test]
fn pingpong_without_a_gid_is_told_the_option() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let output = failing_pingpong(&rig, &Device::on("lo"), &[]);
    let lines = ours(&output);
    assert_eq!(lines.len(), 1, "{output}");
    assert_has(lines[0], &["ibv_modify_qp: QP 0x", "INIT -> RTR", "GID"]);
    assert_has(&output, &["RoCE needs a GID: -g 0"]);
}

/// The UDP port is used by a kernel driver or another program.
#[test]
fn a_port_that_is_taken_is_said() {
    let rig = or_skip!(Rig::loopback(&[UTILS, &[("python3", "python3")]].concat()));
    let script = "import socket, time\n\
                  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                  s.bind(('127.0.0.9', 4791)); print('bound', flush=True); time.sleep(600)";
    let mut holder = rig.start_plain("holder", &["python3", "-c", script]);
    holder.wait_until("bound socket", LIMIT, |holder| {
        holder.output().contains("bound").then_some(())
    });
    let output = failing_pingpong(&rig, &Device::on("127.0.0.9"), &["-g", "0"]);
    assert_eq!(ours(&output).len(), 1, "{output}");
    assert_has(
        &output,
        &[
            "ibv_modify_qp: QP 0x",
            "UDP port 4791 of 127.0.0.9 is taken",
            "python3",
        ],
    );
}

/// Programs with more privileges than their caller ignore `LD_LIBRARY_PATH`.
#[test]
fn privileged_programs_are_run_with_a_warning() {
    let needs = [
        ("setpriv", "util-linux"),
        ("setcap", "libcap2-bin"),
        ("ip", "iproute2"),
    ];
    let rig = or_skip!(Rig::loopback(&needs));
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        skip!("only root can give a program rights");
    }
    let place = |name: &str| rig.dir().join(name).display().to_string();
    fs::set_permissions(rig.dir(), Permissions::from_mode(0o755)).unwrap();
    let (set_id, capable) = (place("set-id"), place("capable"));
    for file in [&set_id, &capable] {
        fs::copy("/bin/true", file).unwrap();
    }
    fs::set_permissions(&set_id, Permissions::from_mode(0o4755)).unwrap();
    let marked = rig.start_plain("setcap", &["setcap", "cap_net_raw+ep", &capable]);
    let marked = marked.finish(LIMIT);
    if !marked.status.success() {
        skip!("no file capabilities here: {}", marked.output.trim());
    }
    // `rocade run` sets this variable to its own path.
    let as_unprivileged =
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$ROCADE_BROKER\" run -- \"$0\"";
    let run = |script: &str, program: &str| {
        let words = ["sh", "-c", script, program];
        rig.start("program", &Device::on("lo"), &words)
            .finish(LIMIT)
    };
    let readable = run("exec setpriv --reuid 65534 test -x \"$ROCADE_BROKER\"", "");
    if !readable.status.success() {
        skip!("other users cannot execute the build");
    }
    for (program, part) in [
        (&set_id, "is set-user-ID"),
        (&capable, "has file capabilities"),
    ] {
        let output = run(as_unprivileged, program).expect_success();
        assert!(
            output.contains("warning: ") && output.contains(part),
            "{output}"
        );
        // Root gains no privileges from such a file.
        let output = run("exec \"$ROCADE_BROKER\" run -- \"$0\"", program).expect_success();
        assert!(!output.contains("warning"), "{output}");
    }
}
