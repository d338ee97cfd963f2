//! The text lines that the two processes exchange over pipes.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::str::FromStr;

use crate::error::CliError;

/// The requester's commands to the peer. The peer answers each with a line: `ok`, or an error text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerCommand {
    /// Answer `ok`, then answer and check pings up to the last one. Answer `ok` again.
    Pong,
    /// Prepare for a round of SENDs and answer `ok`. Receive them, check them against this seed,
    /// and answer `ok` again.
    Receive(u64),
    /// Check the bulk memory against this seed.
    Check(u64),
    /// Fill the bulk memory for this seed.
    Fill(u64),
    /// Check that the counter has this value, and reset it to 0.
    Counter(u64),
    /// End.
    Quit,
}

impl fmt::Display for PeerCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pong => f.write_str("pong 0"),
            Self::Receive(seed) => write!(f, "receive {seed}"),
            Self::Check(seed) => write!(f, "check {seed}"),
            Self::Fill(seed) => write!(f, "fill {seed}"),
            Self::Counter(value) => write!(f, "counter {value}"),
            Self::Quit => f.write_str("quit 0"),
        }
    }
}

impl FromStr for PeerCommand {
    type Err = CliError;

    fn from_str(line: &str) -> Result<Self, CliError> {
        let malformed = || {
            CliError::new(format!(
                "the second process of the demo received an invalid command {line:?}"
            ))
        };
        let (word, number) = line.split_once(' ').ok_or_else(malformed)?;
        let number = number.parse().map_err(|_| malformed())?;
        match word {
            "pong" => Ok(Self::Pong),
            "receive" => Ok(Self::Receive(number)),
            "check" => Ok(Self::Check(number)),
            "fill" => Ok(Self::Fill(number)),
            "counter" => Ok(Self::Counter(number)),
            "quit" => Ok(Self::Quit),
            _ => Err(malformed()),
        }
    }
}

/// A pipe in each direction.
pub(super) struct ControlPipe<R, W> {
    from: BufReader<R>,
    to: W,
}

impl<R: Read, W: Write> ControlPipe<R, W> {
    pub(super) fn new(from: R, to: W) -> Self {
        Self {
            from: BufReader::new(from),
            to,
        }
    }

    /// Returns both directions as byte streams.
    pub(super) fn streams(&mut self) -> (&mut impl Read, &mut impl Write) {
        (&mut self.from, &mut self.to)
    }

    pub(super) fn send_line(&mut self, what: impl fmt::Display) -> Result<(), CliError> {
        let mut send_line = || -> io::Result<()> {
            writeln!(self.to, "{what}")?;
            self.to.flush()
        };
        send_line().map_err(|error| gone(&error.to_string()))
    }

    pub(super) fn read_line(&mut self) -> Result<String, CliError> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err(gone("it ended")),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(gone(&error.to_string())),
        }
    }

    /// Fails unless the peer answers `ok`.
    pub(super) fn expect_ok(&mut self) -> Result<(), CliError> {
        match self.read_line()?.as_str() {
            "ok" => Ok(()),
            problem => Err(CliError::new(format!(
                "the second process reports: {problem}"
            ))),
        }
    }

    pub(super) fn command(&mut self, command: PeerCommand) -> Result<(), CliError> {
        self.send_line(command)?;
        self.expect_ok()
    }
}

fn gone(why: &str) -> CliError {
    CliError::new(format!(
        "lost the connection to the other process of the demo: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_the_pipe() {
        let all = [
            PeerCommand::Pong,
            PeerCommand::Receive(1),
            PeerCommand::Check(u64::MAX),
            PeerCommand::Fill(0),
            PeerCommand::Counter(7),
            PeerCommand::Quit,
        ];
        for command in all {
            assert_eq!(command.to_string().parse::<PeerCommand>().unwrap(), command);
        }
        assert!("fill x".parse::<PeerCommand>().is_err() && "".parse::<PeerCommand>().is_err());
    }

    #[test]
    fn what_the_peer_reports_is_an_error() {
        let mut pipe = ControlPipe::new(&b"ok\nbyte 7 is wrong\n"[..], Vec::new());
        pipe.command(PeerCommand::Quit).unwrap();
        let error = pipe.expect_ok().expect_err("a problem").to_string();
        assert!(error.contains("byte 7 is wrong"), "{error}");
        assert!(
            pipe.expect_ok()
                .expect_err("end")
                .to_string()
                .contains("lost the connection")
        );
        assert_eq!(pipe.to, b"quit 0\n");
    }
}
