//! Looking for the next packets for a moment before sleeping, where that costs nobody anything.
//!
//! A process whose memory is read and written by others calls nothing: its background thread does the
//! work, and is woken for each request. Waking takes longer than all the rest, so where the next
//! request usually comes within microseconds, the thread stays awake for it. It does so only while
//! the system has fewer threads to run than processors: on a busy one it would take the processor
//! away from the very program that it waits for, and later wake up late, because the scheduler
//! counts what it has used.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;

use rocade_transport::Time;

use super::EngineInner;
use super::handover::Driver;

/// How long to look.
const LINGER_NS: u64 = 40_000;
/// After so long with packets all the time, everything else has its turn.
const TURN_NS: u64 = 400_000;
/// With shared memory in use the sockets have their turn after so many looks.
const SOCKET_TURN: u32 = 32;
/// An idle system counts as idle for so long, a busy one as busy.
const IDLE_NS: u64 = 1_000_000;
const BUSY_NS: u64 = 100_000;
/// After looking in vain so often, it is left alone 2^n times.
const MAX_DOUBLINGS: u32 = 10;

/// Whether to linger; the background thread's own affair.
#[derive(Debug, Default)]
pub(super) struct Linger {
    /// How often in a row it was in vain.
    in_vain: u32,
    /// Occasions left to let pass.
    skip: u32,
    load: Load,
}

impl Linger {
    /// Packets have come and have been dealt with: look for more?
    fn tries(&mut self, now: Time) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.load.has_idle_processors(now)
    }

    fn has_found(&mut self, found: bool) {
        if found {
            self.in_vain = 0;
        } else {
            self.in_vain = (self.in_vain + 1).min(MAX_DOUBLINGS);
            self.skip = (1 << self.in_vain) - 1;
        }
    }
}

/// How busy the system is.
#[derive(Debug, Default)]
struct Load {
    file: Option<File>,
    processors: usize,
    /// Until when the answer holds.
    until: Option<Time>,
    idle: bool,
}

impl Load {
    fn has_idle_processors(&mut self, now: Time) -> bool {
        if self.until.is_none_or(|until| until <= now) {
            // Those that run now, with this thread among them.
            self.idle = self.running().is_some_and(|n| n <= self.processors);
            self.until = Some(now.plus_ns(if self.idle { IDLE_NS } else { BUSY_NS }));
        }
        self.idle
    }

    /// How many threads run or want to; `None` where the system does not tell.
    fn running(&mut self) -> Option<usize> {
        if self.file.is_none() {
            self.file = File::open("/proc/loadavg").ok();
            self.processors = thread::available_parallelism().map_or(1, usize::from);
        }
        let mut line = [0; 128];
        let len = self.file.as_ref()?.read_at(&mut line, 0).ok()?;
        running_in(str::from_utf8(&line[..len]).ok()?)
    }
}

/// The number in a line of /proc/loadavg, such as `0.20 0.18 0.12 1/80 11206`.
fn running_in(line: &str) -> Option<usize> {
    let (running, _) = line.split_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

impl EngineInner {
    /// Receives what comes in the next moments, until the application polls or something else is to be
    /// done. True where packets were still coming.
    pub(super) fn linger(&self, linger: &mut Linger) -> bool {
        let begin = self.now();
        if !linger.tries(begin) {
            return false;
        }
        let (mut now, mut last) = (begin, None);
        for look in 0u32.. {
            if self.look(look) {
                last = Some(now);
            }
            now = self.now();
            let idle_ns = now.ns_since(last.unwrap_or(begin));
            let is_due = self.agenda.next_timer().is_some_and(|at| at <= now);
            if idle_ns >= LINGER_NS || now.ns_since(begin) >= TURN_NS || is_due {
                linger.has_found(last.is_some());
                return last.is_some() && idle_ns < LINGER_NS;
            }
            if self.handover.is_polling(now.as_ns()) {
                return false;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Receives what is there; true where there was anything. Looking at a socket takes longer than at
    /// shared memory, so where there is any, sockets have their turn now and then.
    fn look(&self, turn: u32) -> bool {
        let channels = self.channels.read();
        let mut packets = self.receive_shared(&channels, Driver::Background);
        let sockets = channels.is_empty() || turn.is_multiple_of(SOCKET_TURN);
        drop(channels);
        if sockets {
            for uplink in self.uplinks.read().iter() {
                let mut rx = uplink.rx.lock();
                packets += self.receive(uplink, &mut rx, Driver::Background).packets;
            }
        }
        packets > 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_less_and_less() {
        let mut linger = Linger::default();
        linger.load.running();
        linger.load.processors = usize::MAX;
        let tried = (0..10_000u32).filter(|_| {
            let tries = linger.tries(Time::ZERO);
            if tries {
                linger.has_found(false);
            }
            tries
        });
        assert!((10..=20).contains(&tried.count()));
        linger.skip = 0;
        linger.has_found(true);
        assert!((0..100).all(|_| linger.tries(Time::ZERO)));
    }

    #[test]
    fn a_busy_system_is_left_alone() {
        let mut load = Load::default();
        assert!(load.running().is_some_and(|running| running >= 1), "Linux");
        load.processors = 0;
        assert!(!load.has_idle_processors(Time::ZERO));
        load.processors = usize::MAX;
        let soon = Time::ZERO.plus_ns(BUSY_NS - 1);
        assert!(
            !load.has_idle_processors(soon),
            "it does not look again yet"
        );
        assert!(load.has_idle_processors(Time::ZERO.plus_ns(BUSY_NS)));
    }

    #[test]
    fn lines_of_other_systems_are_no_surprise() {
        assert_eq!(running_in("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for line in ["", "0.20 0.18 0.12", "0 0 0 x/80 1", "0 0 0 3 1"] {
            assert_eq!(running_in(line), None, "{line:?}");
        }
    }
}
