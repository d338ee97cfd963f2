//! The speed of a port, as verbs and sysfs encode it.

use super::PortAttr;

/// A speed of ports, in its encodings.
struct Speed {
    gbit: u32,
    width: u8,
    speed: u8,
    /// The contents of the file `rate` in sysfs.
    rate: &'static str,
}

const fn speed(gbit: u32, width: u8, speed: u8, rate: &'static str) -> Speed {
    Speed {
        gbit,
        width,
        speed,
        rate,
    }
}

/// `IB_WIDTH_1X`, `IB_WIDTH_4X` and `IB_WIDTH_2X` of `enum ib_port_width`.
const X1: u8 = 1;
const X4: u8 = 2;
const X2: u8 = 16;
/// `enum ib_port_speed`: the speed of a lane.
const SDR: u8 = 1;
const DDR: u8 = 2;
const QDR: u8 = 4;
const FDR10: u8 = 8;
const EDR: u8 = 32;
const HDR: u8 = 64;
const NDR: u8 = 128;

/// The codes that the kernel gives to speeds of Ethernet if a driver does not tell the number of
/// lanes (`ib_get_width_and_speed` in `drivers/infiniband/core/verbs.c`). The enumerations are in
/// `include/rdma/ib_verbs.h`, and the texts are those of `rate_show` in `core/sysfs.c`.
const SPEEDS: [Speed; 9] = [
    speed(1, X1, SDR, "2.5 Gb/sec (1X SDR)"),
    speed(10, X1, FDR10, "10 Gb/sec (1X FDR10)"),
    speed(20, X4, DDR, "20 Gb/sec (4X DDR)"),
    speed(25, X1, EDR, "25 Gb/sec (1X EDR)"),
    speed(40, X4, FDR10, "40 Gb/sec (4X FDR10)"),
    speed(50, X2, EDR, "50 Gb/sec (2X EDR)"),
    speed(100, X4, EDR, "100 Gb/sec (4X EDR)"),
    speed(200, X4, HDR, "200 Gb/sec (4X HDR)"),
    speed(400, X4, NDR, "400 Gb/sec (4X NDR)"),
];
/// The codes of mlx5 for the same speeds (`translate_eth_ext_proto_oper` in
/// `drivers/infiniband/hw/mlx5/main.c`). All others are as above.
const MLX5_SPEEDS: [Speed; 2] = [
    speed(10, X1, QDR, "10 Gb/sec (1X QDR)"),
    speed(40, X4, QDR, "40 Gb/sec (4X QDR)"),
];
/// The index of the code of all other speeds.
const DEFAULT: usize = 6;

impl PortAttr {
    fn speed(&self) -> &'static Speed {
        let special: &[Speed] = if self.has_qdr { &MLX5_SPEEDS } else { &[] };
        let mut all = special.iter().chain(&SPEEDS);
        let found = all.find(|speed| speed.gbit == self.gbit);
        found.unwrap_or(&SPEEDS[DEFAULT])
    }

    /// Returns `active_width` of `ibv_port_attr`.
    #[must_use]
    pub fn active_width(&self) -> u8 {
        self.speed().width
    }

    /// Returns `active_speed` of `ibv_port_attr`, the speed of one lane.
    #[must_use]
    pub fn active_speed(&self) -> u8 {
        self.speed().speed
    }

    /// Returns the contents of the file `rate` in sysfs, without the end of the line.
    #[must_use]
    pub fn rate(&self) -> &'static str {
        self.speed().rate
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// `ib_width_enum_to_int`, and ten times the Gbit/s of a lane in `rate_show`.
    fn tenths(one: &Speed) -> u32 {
        let lanes = [(X1, 1), (X4, 4), (X2, 2)];
        let lanes = lanes.into_iter().find(|(code, _)| *code == one.width);
        let speeds = [
            (SDR, 25),
            (DDR, 50),
            (QDR, 100),
            (FDR10, 100),
            (EDR, 250),
            (HDR, 500),
            (NDR, 1_000),
        ];
        let lane = speeds.into_iter().find(|(code, _)| *code == one.speed);
        lanes.expect("a width").1 * lane.expect("a speed").1
    }

    #[test]
    fn codes_and_texts_make_the_speed() {
        for one in SPEEDS.iter().chain(&MLX5_SPEEDS) {
            let tenths = tenths(one);
            // The slowest code is SDR.
            assert_eq!(tenths, (10 * one.gbit).max(25), "{}", one.rate);
            let number = one.rate.split_once(' ').expect("a unit").0;
            let half = if tenths.is_multiple_of(10) { "" } else { ".5" };
            assert_eq!(number, format!("{}{half}", tenths / 10));
        }
    }
}
