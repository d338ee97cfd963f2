//! Limits on timeouts that a peer may request: a field of five bits can encode microseconds or
//! hours.

use rocade_wire::mad::CmTimeout;

/// The longest response time of a peer that is honoured: 16 s, four times what Linux requests.
const MAX_RESPONSE: CmTimeout = CmTimeout::new(22);
/// The longest time during which a message is repeated.
const MAX_EXCHANGE_NS: u64 = 70_000_000_000;
/// The longest service time that a peer can request in an MRA: 65 s, what Linux requests.
const MAX_SERVICE: CmTimeout = CmTimeout::new(24);
/// The longest stay in TimeWait: 4 s. Packets do not live longer.
const MAX_TIMEWAIT: CmTimeout = CmTimeout::new(20);

const fn at_most(asked: CmTimeout, most: CmTimeout) -> CmTimeout {
    if asked.code() > most.code() {
        most
    } else {
        asked
    }
}

/// Returns how long to wait for a peer's answer, in ns, and how often to send again.
//= CM-FLD-04
pub(super) const fn resending(response: CmTimeout, max_retries: u8) -> (u64, u8) {
    let interval_ns = at_most(response, MAX_RESPONSE).as_ns();
    let mut retries = max_retries;
    while retries > 0 && interval_ns * (retries as u64 + 1) > MAX_EXCHANGE_NS {
        retries -= 1;
    }
    (interval_ns, retries)
}

/// Returns how much longer a peer's answer may take after its MRA, in ns.
//= CM-ST-09
pub(super) const fn service_ns(asked: CmTimeout) -> u64 {
    at_most(asked, MAX_SERVICE).as_ns()
}

/// Returns how long a connection stays in TimeWait, in ns.
//= CM-ST-03
pub(super) const fn timewait_ns(ack_timeout: CmTimeout) -> u64 {
    at_most(ack_timeout, MAX_TIMEWAIT).as_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    //= CM-FLD-04 type=test
    #[test]
    fn a_peer_cannot_ask_for_hours() {
        for code in 0..32 {
            let asked = CmTimeout::new(code);
            for retries in 0..16 {
                let (interval_ns, left) = resending(asked, retries);
                assert!(interval_ns * (u64::from(left) + 1) <= MAX_EXCHANGE_NS);
                assert!(interval_ns <= asked.as_ns() && left <= retries);
            }
            assert!(service_ns(asked) <= 1 << 36 && timewait_ns(asked) <= 1 << 32);
        }
        // The values that Linux requests are granted.
        let linux = CmTimeout::new(20);
        assert_eq!(resending(linux, 15), (linux.as_ns(), 15));
        assert_eq!(service_ns(CmTimeout::new(24)), CmTimeout::new(24).as_ns());
        assert_eq!(timewait_ns(CmTimeout::new(19)), CmTimeout::new(19).as_ns());
    }
}
