//! The log of skipped tests, and what may be skipped in CI.

/// A line of the skip log, as `rocade_skip` writes it: `SKIP: name: reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    /// Name of the test: that of its program, then its own.
    pub(crate) name: String,
    /// The reason why it did not run.
    pub(crate) reason: String,
}

/// Properties that a CI machine may lack: the beginning of the test's name, and that of the reason.
/// A missing package is not one, because CI can install it. Neither is a reason that a defect of
/// Rocade could cause.
const EXPECTED_IN_CI: &[(&str, &str)] = &[
    // QEMU with a tap needs root, /dev/net/tun and a network namespace.
    (
        "interop_rxe::",
        "no rxe guest: rxe-vm: needs Linux on x86-64",
    ),
    ("interop_rxe::", "no rxe guest: rxe-vm: needs root"),
    (
        "interop_rxe::",
        "no rxe guest: rxe-vm: cannot open /dev/net/tun",
    ),
    (
        "interop_rxe::",
        "no rxe guest: rxe-vm: cannot create a network namespace",
    ),
    ("udp_wire::", "no network namespace: "),
    ("udp_wire::", "no TUN device: "),
    ("network::", "cannot make a network namespace"),
    ("consumers::", "cannot make a network namespace"),
    ("consumers::", "cannot make a veth pair"),
    ("consumers::", "containers need root"),
    ("consumers::", "a clean root directory needs root"),
    ("consumers::", "podman cannot run a container"),
    ("rocade_tests::", "cannot make a network namespace"),
    ("c_programs::", "cannot make a network namespace"),
    // The kernel may have no such devices, or not show them to a container.
    ("c_programs::", "no DMA-buf from /dev/udmabuf"),
    ("c_programs::", "no DMA-buf from /dev/dma_heap/system"),
    ("doctor::", "cannot make a network namespace"),
    ("doctor::", "cannot make a mount namespace"),
    ("doctor::", "cannot give up a capability"),
    ("chroot::", "cannot make a mount namespace"),
    // IPv6 may be off.
    (
        "rocade_emulator::",
        "no place on ::1: ::1 is not an address of this machine",
    ),
    ("broker::", "needs root"),
    ("broker::", "no mount namespace"),
    ("broker::", "no such interface: no network namespace"),
    ("broker::", "cannot become somebody else"),
];

impl Skip {
    /// Returns true if CI may go on without this test.
    pub(crate) fn is_expected_in_ci(&self) -> bool {
        EXPECTED_IN_CI
            .iter()
            .any(|(name, reason)| self.name.starts_with(name) && self.reason.starts_with(reason))
    }
}

/// Reads the skip log. A test that logs twice counts once.
pub(crate) fn parse_skip_log(log: &str) -> Vec<Skip> {
    let mut skips: Vec<Skip> = Vec::new();
    for line in log.lines() {
        let Some(text) = line.strip_prefix("SKIP: ") else {
            continue;
        };
        let (name, reason) = text.split_once(": ").unwrap_or((text, ""));
        if skips.iter().all(|seen| seen.name != name) {
            skips.push(Skip {
                name: name.to_owned(),
                reason: reason.to_owned(),
            });
        }
    }
    skips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_skip_log() {
        let log = "SKIP: consumers::a: missing package perftest\nnoise\nSKIP: rxe::b: needs root\n\
                   SKIP: rxe::b: needs root\n";
        let skips = parse_skip_log(log);
        let read: Vec<_> = skips
            .iter()
            .map(|skip| (&*skip.name, &*skip.reason))
            .collect();
        assert_eq!(
            read,
            [
                ("consumers::a", "missing package perftest"),
                ("rxe::b", "needs root")
            ]
        );
    }

    #[test]
    fn ci_knows_what_may_be_missing() {
        let expected = |line: &str| parse_skip_log(line)[0].is_expected_in_ci();
        assert!(expected(
            "SKIP: interop_rxe::small_pingpong_both_ways: no rxe guest: rxe-vm: needs root (taps)"
        ));
        assert!(expected(
            "SKIP: broker::other_users_are_refused: needs root"
        ));
        for unexpected in [
            "SKIP: interop_rxe::small_pingpong_both_ways: missing package qemu-system-x86",
            "SKIP: interop_rxe::small_pingpong_both_ways: no rxe guest: rxe-vm: no image",
            "SKIP: consumers::pingpong::small: target/debug/rocade is not there",
            "SKIP: conformance::packets: needs root",
        ] {
            assert!(!expected(unexpected), "{unexpected}");
        }
        let no_package = |(_, reason): &(&str, &str)| !reason.contains("package");
        assert!(EXPECTED_IN_CI.iter().all(no_package));
    }
}
