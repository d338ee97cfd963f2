//! Static rate codes.

use std::ffi::{c_int, c_uint};

use rocade_abi::*;

/// Rate code, multiple of 2.5 Gbit/s if there is one, rate in Mbit/s.
const RATES: [(c_uint, Option<c_int>, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, Some(1), 2_500),
    (IBV_RATE_5_GBPS, Some(2), 5_000),
    (IBV_RATE_10_GBPS, Some(4), 10_000),
    (IBV_RATE_14_GBPS, None, 14_062),
    (IBV_RATE_20_GBPS, Some(8), 20_000),
    (IBV_RATE_25_GBPS, None, 25_781),
    (IBV_RATE_28_GBPS, Some(11), 28_125),
    (IBV_RATE_30_GBPS, Some(12), 30_000),
    (IBV_RATE_40_GBPS, Some(16), 40_000),
    (IBV_RATE_50_GBPS, Some(20), 53_125),
    (IBV_RATE_56_GBPS, None, 56_250),
    (IBV_RATE_60_GBPS, Some(24), 60_000),
    (IBV_RATE_80_GBPS, Some(32), 80_000),
    (IBV_RATE_100_GBPS, None, 103_125),
    (IBV_RATE_112_GBPS, None, 112_500),
    (IBV_RATE_120_GBPS, Some(48), 120_000),
    (IBV_RATE_168_GBPS, None, 168_750),
    (IBV_RATE_200_GBPS, None, 206_250),
    (IBV_RATE_300_GBPS, None, 309_375),
    (IBV_RATE_400_GBPS, Some(160), 425_000),
    (IBV_RATE_600_GBPS, Some(240), 637_500),
    (IBV_RATE_800_GBPS, Some(320), 850_000),
    (IBV_RATE_1200_GBPS, Some(480), 1_275_000),
];

/// `ibv_rate_to_mult`: returns the multiple of 2.5 Gbit/s, or -1 if the rate has none.
pub(crate) extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    RATES
        .iter()
        .find(|(code, ..)| *code == rate)
        .and_then(|(_, mult, _)| *mult)
        .unwrap_or(-1)
}

/// `mult_to_ibv_rate`: returns `IBV_RATE_MAX` for a multiple without a code.
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    let found = RATES
        .iter()
        .find(|(_, multiple, _)| *multiple == Some(mult));
    found.map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

/// `ibv_rate_to_mbps`: returns -1 for an unknown code.
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES
        .iter()
        .find(|(code, ..)| *code == rate)
        .map_or(-1, |(_, _, mbps)| *mbps)
}

/// `mbps_to_ibv_rate`: returns `IBV_RATE_MAX` for a rate without a code.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES
        .iter()
        .find(|(_, _, rate)| *rate == mbps)
        .map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_round_trip() {
        for code in 0..64 {
            let mbps = ibv_rate_to_mbps(code);
            if mbps > 0 {
                assert_eq!(mbps_to_ibv_rate(mbps), code);
            }
            let mult = ibv_rate_to_mult(code);
            if mult > 0 {
                assert_eq!(mult_to_ibv_rate(mult), code);
            }
        }
    }

    #[test]
    fn unknown_values() {
        assert_eq!(ibv_rate_to_mult(IBV_RATE_MAX), -1);
        assert_eq!(ibv_rate_to_mult(IBV_RATE_100_GBPS), -1);
        assert_eq!(ibv_rate_to_mbps(25), -1);
        assert_eq!(mbps_to_ibv_rate(1_000), IBV_RATE_MAX);
        assert_eq!(mult_to_ibv_rate(3), IBV_RATE_MAX);
    }
}
