//! Checks whether the system has idle processors. On a busy system, a thread that polls takes the
//! processor from the program that it waits for. It also wakes up late afterwards, because the
//! scheduler counts its CPU time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;

use rocade_transport::Time;

use crate::sys;
use crate::tuning::LOAD_CHECK_NS;

/// The load of the system.
#[derive(Debug, Default)]
pub(crate) struct CpuIdle {
    file: Option<File>,
    processors: usize,
    /// End of the validity of `idle`.
    until: Option<Time>,
    idle: bool,
}

impl CpuIdle {
    /// Returns true if there are at least as many processors as runnable threads. Pollers call this
    /// too, so it is not a cancellation point.
    pub(crate) fn has_idle_processors(&mut self, now: Time) -> bool {
        #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
        if let Some(schedule) = crate::sync::turn::own() {
            return schedule.random().is_multiple_of(2);
        }
        if self.until.is_none_or(|until| until <= now) {
            // The running threads, including this one.
            let running = sys::uncancelled(|| self.running());
            self.idle = running.is_some_and(|n| n <= self.processors);
            self.until = Some(now.plus_ns(LOAD_CHECK_NS));
        }
        self.idle
    }

    /// Returns the number of runnable threads, or `None` if the system does not report it.
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

/// Returns the number in a line of /proc/loadavg, such as `0.20 0.18 0.12 1/80 11206`.
fn running_in(line: &str) -> Option<usize> {
    let (running, _) = line.split_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_busy_system_has_no_idle_processors() {
        let mut cpu_idle = CpuIdle::default();
        assert!(
            cpu_idle.running().is_some_and(|running| running >= 1),
            "Linux"
        );
        cpu_idle.processors = 0;
        assert!(!cpu_idle.has_idle_processors(Time::ZERO));
        cpu_idle.processors = usize::MAX;
        let soon = Time::ZERO.plus_ns(LOAD_CHECK_NS - 1);
        assert!(
            !cpu_idle.has_idle_processors(soon),
            "it does not look again yet"
        );
        assert!(cpu_idle.has_idle_processors(Time::ZERO.plus_ns(LOAD_CHECK_NS)));
    }

    #[test]
    fn lines_of_other_systems_are_no_surprise() {
        assert_eq!(running_in("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for line in ["", "0.20 0.18 0.12", "0 0 0 x/80 1", "0 0 0 3 1"] {
            assert_eq!(running_in(line), None, "{line:?}");
        }
    }
}
