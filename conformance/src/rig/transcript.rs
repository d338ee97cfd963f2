//! The packets of a case, printed as a ladder.

use std::{fmt, time::Instant};

use rocade_wire::Packet;

#[derive(Debug)]
enum Line {
    Sent(Vec<u8>),
    Received(Vec<u8>),
    Note(String),
}

/// The sent and received packets of a case, in order.
#[derive(Debug)]
pub(super) struct Transcript {
    start: Instant,
    lines: Vec<(Instant, Line)>,
}

impl Transcript {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            lines: Vec::new(),
        }
    }

    pub(super) fn sent(&mut self, bytes: &[u8]) {
        self.push(Line::Sent(bytes.to_vec()));
    }

    pub(super) fn received(&mut self, bytes: &[u8]) {
        self.push(Line::Received(bytes.to_vec()));
    }

    pub(super) fn note(&mut self, text: String) {
        self.push(Line::Note(text));
    }

    fn push(&mut self, line: Line) {
        self.lines.push((Instant::now(), line));
    }
}

impl fmt::Display for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, line) in &self.lines {
            let ms = at.duration_since(self.start).as_secs_f64() * 1e3;
            write!(f, "{ms:9.3} ms  ")?;
            match line {
                Line::Sent(bytes) => write_packet(f, "rig --> peer", bytes)?,
                Line::Received(bytes) => write_packet(f, "rig <-- peer", bytes)?,
                Line::Note(text) => writeln!(f, "  {text}")?,
            }
        }
        Ok(())
    }
}

fn write_packet(f: &mut fmt::Formatter<'_>, arrow: &str, bytes: &[u8]) -> fmt::Result {
    write!(f, "{arrow}  ")?;
    match Packet::parse(bytes) {
        Ok(packet) => writeln!(f, "{packet}"),
        Err(error) => writeln!(f, "{} bytes, no packet: {error}", bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_has_a_line_for_everything() {
        let mut transcript = Transcript::new();
        transcript.note("connect".to_owned());
        let mut ack = [0; 20];
        ack[0] = 0x11;
        transcript.sent(&ack);
        transcript.received(&[0; 3]);
        let text = transcript.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("connect"));
        assert!(lines[1].contains("rig --> peer  RC ACKNOWLEDGE"), "{text}");
        assert!(lines[2].contains("3 bytes, no packet"));
    }
}
