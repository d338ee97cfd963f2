//! System calls and context switches per message, of both processes of an exchange together.

use std::{fs, path::Path, process::Command, time::Duration};

use super::{
    echo,
    exchange::{Exchange, PING_STEPS, Program, Side, per_message},
};
use crate::{
    child::Failure,
    rig::{self, Rig},
};

/// The limit of an echo that ends by its number of round trips.
const LONG: Duration = Duration::from_secs(30);
/// The round trips of the two runs of which the difference counts.
const FEW: u32 = 200;
const MANY: u32 = 1200;

/// A kind of event that `perf stat` counts without slowing the program down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    SystemCall,
    ContextSwitch,
}

impl Event {
    /// The name for `perf stat -e`.
    const fn name(self) -> &'static str {
        match self {
            Self::SystemCall => "raw_syscalls:sys_enter",
            Self::ContextSwitch => "context-switches",
        }
    }
}

/// Returns the number of events per message.
pub(crate) fn measure(rig: &Rig, event: Event, exchange: Exchange) -> Result<f64, Failure> {
    rig::require("perf", "linux-perf")?;
    let messages = match exchange.program {
        Program::Rping(_) => PING_STEPS,
        _ => 2,
    };
    per_message(
        |count| run(rig, event, exchange, count),
        FEW,
        MANY,
        messages,
    )
}

/// Returns the number of events of a whole run.
fn run(rig: &Rig, event: Event, exchange: Exchange, count: u32) -> Result<f64, Failure> {
    let file = |side: Side| rig.file(&format!("perf-{}", side.word()));
    let wrap = |side: Side, mut command: Command| {
        command.args(["perf", "stat", "-x", ",", "-e", event.name(), "-o"]);
        command.arg(file(side)).arg("--");
        command
    };
    match exchange.program {
        Program::Echo(wake) => {
            let words = echo::client_words(count, LONG);
            exchange.run_echo(rig, wake, &words, wrap)?;
        }
        Program::Rping(_) => exchange.run_rping(rig, count, wrap)?,
        Program::SendLat(arguments, _) => {
            exchange.run_send_lat(rig, arguments, count, wrap)?;
        }
        Program::Qperf(_) | Program::Rstream(_) => {
            return Err("only programs that end by a count are counted".to_owned());
        }
    }
    Ok(read(&file(Side::Server), event)? + read(&file(Side::Client), event)?)
}

fn read(path: &Path, event: Event) -> Result<f64, Failure> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text, event)
}

/// Parses the line with the event: the first field is the count.
fn parse(text: &str, event: Event) -> Result<f64, Failure> {
    let counted = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        let named = fields.iter().any(|field| *field == event.name());
        named.then(|| fields.first()?.parse().ok()).flatten()
    });
    counted.ok_or_else(|| {
        format!(
            "perf does not count {}\n  run as root on a machine with tracefs",
            event.name()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_count_of_an_event() {
        let text = "# started on Thu Nov 26 18:14:51 2026\n\n\
                    47738,,raw_syscalls:sys_enter,132541880,100.00,,\n";
        let counted = parse(text, Event::SystemCall).expect("a count");
        assert!((counted - 47738.0).abs() < 1e-9);
        assert!(parse(text, Event::ContextSwitch).is_err());
        let refused = "<not supported>,,raw_syscalls:sys_enter,0,100.00,,\n";
        let refused = parse(refused, Event::SystemCall).expect_err("no count");
        assert!(refused.contains("run as root"), "{refused}");
    }
}
