//! The conformance suite against the kernel: its known deviations are those of `conformance/expectations/rxe.toml`, and no others.
//!
//! `ROCADE_CONFORMANCE_RXE=all` runs all areas, which takes a minute, most of it in waiting for what does not come; otherwise
//! those that are quick.

use std::{env, ffi::OsString};

use rocade_tests::{
    harness::{Network, RxeGuest, conformance_agent, free_port, start_conformance},
    or_skip,
};

use super::{LONG, rig};

const QUICK: &str = "packets,sequence,acknowledge,duplicates,resources,requester,migration";

/// An address of the bridge, as long as it lives.
struct Stranger<'a>(&'a Network);

impl Stranger<'_> {
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

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        Self::change(self.0, "del");
    }
}

#[test]
fn the_kernel_keeps_the_rules_but_for_known_deviations() {
    let (rig, guest) = or_skip!(rig());
    let agent = or_skip!(conformance_agent(&rig));
    guest.put(&agent);
    let port = free_port();
    let name = "conformance-agent";
    let program = format!("/share/{name}");
    let listen = port.to_string();
    guest.spawn(name, Some(port), &[&program, "-d", "rxe0", "-l", &listen]);
    assert!(Stranger::change(rig.network(), "add"), "ip addr add");
    let _stranger = Stranger(rig.network());

    let at = format!("{}:{port}", RxeGuest::ADDRESS);
    let mut arguments = vec!["--local", "192.168.77.1", "--peer", RxeGuest::ADDRESS];
    arguments.extend(["--stranger", Stranger::ADDRESS, "--connect", &at]);
    let is_whole = env::var_os("ROCADE_CONFORMANCE_RXE").is_some_and(|which| which == "all");
    if !is_whole {
        arguments.extend(["--area", QUICK]);
    }
    let suite = start_conformance(&rig, "rxe.toml", &arguments);
    let output = suite.finish(LONG).expect_success();
    let summary = if is_whole {
        "rxe0: 336 cases, 149 passed, 52 known to fail, 135 skipped, 0 unexpected"
    } else {
        "rxe0: 101 cases, 76 passed, 13 known to fail, 12 skipped, 0 unexpected"
    };
    assert!(output.contains(summary), "{output}");
    let ended = guest.wait(name, LONG);
    assert!(ended.status.success(), "{}", ended.output);
}
