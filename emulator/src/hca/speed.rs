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

/// `IBV_WIDTH_1X`, `IBV_WIDTH_4X` and 2X.
const X1: u8 = 1;
const X4: u8 = 2;
const X2: u8 = 16;

/// The codes that the kernel gives to speeds of Ethernet (`ib_get_eth_speed`).
const SPEEDS: [Speed; 9] = [
    speed(1, X1, 1, "2.5 Gb/sec (1X SDR)"),
    speed(10, X1, 8, "10 Gb/sec (1X FDR10)"),
    speed(20, X4, 2, "20 Gb/sec (4X DDR)"),
    speed(25, X1, 32, "25 Gb/sec (1X EDR)"),
    speed(40, X4, 8, "40 Gb/sec (4X FDR10)"),
    speed(50, X2, 32, "50 Gb/sec (2X EDR)"),
    speed(100, X4, 32, "100 Gb/sec (4X EDR)"),
    speed(200, X4, 64, "200 Gb/sec (4X HDR)"),
    speed(400, X4, 128, "400 Gb/sec (4X NDR)"),
];
/// The index of the code of all other speeds.
const DEFAULT: usize = 6;

impl PortAttr {
    fn speed(&self) -> &'static Speed {
        let mut all = SPEEDS.iter();
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
