//! The conformance suite against the kernel, whose known deviations must be exactly those of
//! `conformance/expectations/rxe.toml` and the files for later kernels.
//!
//! `ROCADE_CONFORMANCE_RXE=all` runs all areas. This takes three minutes per kernel, mostly spent
//! waiting for packets that must not arrive. With `newest`, they run against the newest kernel of
//! Debian's backports in place of 6.1. Otherwise only the quick areas run.

use std::{env, ffi::OsString};

use rocade_tests::{
    harness::{
        Finished, IcrcCounters, Network, Rig, RxeGuest, conformance_agent, free_port,
        start_conformance,
    },
    or_skip,
    skip::Reason,
};

use super::{LONG, NEEDS, newer_rig, rig};

const QUICK: &str =
    "packets,sequence,acknowledge,duplicates,resources,requester,migration,hostile_ranges";

/// An additional address of the bridge, removed on drop.
struct ThirdHost<'a>(&'a Network);

impl ThirdHost<'_> {
    const ADDRESS: &'static str = "192.168.77.9";

    fn change(network: &Network, verb: &str) -> bool {
        let place = format!("{}/24", Self::ADDRESS);
        let words = ["ip", "addr", verb, &place, "dev", RxeGuest::BRIDGE].map(OsString::from);
        network
            .command(&words)
            .status()
            .is_ok_and(|status| status.success())
    }
}

impl Drop for ThirdHost<'_> {
    fn drop(&mut self) {
        Self::change(self.0, "del");
    }
}

/// The name of the agent's job in the guest, and its token.
const AGENT: &str = "conformance-agent";

/// Runs the suite against a guest to its end. `agent` contains further options of the agent.
fn suite(
    rig: &Rig,
    guest: &RxeGuest,
    agent: &[&str],
    expectations: &[&str],
    options: &[&str],
) -> Result<Finished, Reason> {
    guest.put(&conformance_agent(rig)?);
    let port = free_port();
    let program = format!("/share/{AGENT}");
    let listen = port.to_string();
    let mut words = vec![
        &*program,
        "-d",
        "rxe0",
        "-l",
        &listen,
        "-a",
        RxeGuest::ADDRESS,
        "-t",
        AGENT,
    ];
    words.extend(agent);
    guest.spawn(AGENT, Some(port), &words);
    assert!(ThirdHost::change(rig.network(), "add"), "ip addr add");
    let _third_host = ThirdHost(rig.network());

    let at = format!("{}:{port}", RxeGuest::ADDRESS);
    let mut arguments = vec!["--local", "192.168.77.1", "--peer", RxeGuest::ADDRESS];
    arguments.extend(["--third-host", ThirdHost::ADDRESS, "--connect", &at]);
    arguments.extend(["--token", AGENT]);
    arguments.extend(options);
    let suite = start_conformance(rig, expectations, &arguments);
    let finished = suite.finish(LONG);
    let ended = guest.wait(AGENT, LONG);
    assert!(ended.status.success(), "{}", ended.output);
    Ok(finished)
}

/// Returns true if `ROCADE_CONFORMANCE_RXE` has this value.
fn is_asked_for(what: &str) -> bool {
    env::var_os("ROCADE_CONFORMANCE_RXE").is_some_and(|which| which == what)
}

/// Returns true if all areas are requested.
fn is_whole() -> bool {
    is_asked_for("all")
}

/// Runs all cases against the newest kernel, whose version changes.
fn newest() -> Result<(), Reason> {
    let guest = RxeGuest::boot_newest()?;
    let rig = Rig::in_namespace(guest.namespace(), NEEDS)?;
    let expectations = ["rxe.toml", "rxe-6.12.toml", "rxe-7.3.toml"];
    let finished = suite(&rig, &guest, &["-f", "rxe-flush"], &expectations, &[])?;
    let output = finished.expect_success();
    assert!(output.contains(", 0 unexpected"), "{output}");
    println!("{}", guest.shell("uname -r").expect_success());
    Ok(())
}

#[test]
fn the_kernel_keeps_the_rules_but_for_known_deviations() {
    if is_asked_for("newest") {
        or_skip!(newest());
        return;
    }
    let (rig, guest) = or_skip!(rig());
    let (options, summary): (&[&str], _) = if is_whole() {
        (
            &[],
            "rxe0: 618 cases, 328 passed, 109 known to fail, 181 skipped, 0 unexpected",
        )
    } else {
        (
            &["--area", QUICK],
            "rxe0: 133 cases, 95 passed, 15 known to fail, 23 skipped, 0 unexpected",
        )
    };
    let finished = or_skip!(suite(&rig, guest, &[], &["rxe.toml"], options));
    let output = finished.expect_success();
    assert!(output.contains(summary), "{output}");
}

/// Runs FLUSH and ATOMIC WRITE. The suite's FLUSH packets carry the ICRC that this kernel expects,
/// and are otherwise as specified.
#[test]
fn the_newer_kernel_flushes_and_stores() {
    let (rig, guest) = or_skip!(newer_rig());
    let (options, summary): (&[&str], _) = if is_whole() {
        (
            &[],
            "rxe0: 618 cases, 333 passed, 120 known to fail, 165 skipped, 0 unexpected",
        )
    } else {
        // Plain verbs cannot post the two requester cases.
        (
            &["--area", "flush"],
            "rxe0: 15 cases, 8 passed, 5 known to fail, 2 skipped, 0 unexpected",
        )
    };
    let expectations = ["rxe.toml", "rxe-6.12.toml"];
    let finished = or_skip!(suite(
        &rig,
        guest,
        &["-f", "rxe-flush"],
        &expectations,
        options
    ));
    let output = finished.expect_success();
    assert!(output.contains(summary), "{output}");
}

/// Checks that this kernel drops a FLUSH with a correct ICRC. If this test fails, the kernel has
/// been fixed.
//= RXE-17 type=test
#[test]
fn the_newer_kernel_drops_a_flush_with_a_right_icrc() {
    let (rig, guest) = or_skip!(newer_rig());
    let before = guest.icrc();
    let options = ["--select", "RC-RSP-25/a-flush", "--patience", "1000"];
    let finished = or_skip!(suite(&rig, guest, &[], &[], &options));
    let output = finished.output;
    assert!(output.contains("no packet from the peer"), "{output}");
    let [accepted, rejected] = [before.accepted + 1, before.rejected + 1];
    assert_eq!(
        guest.icrc(),
        IcrcCounters { accepted, rejected },
        "{output}"
    );
}
