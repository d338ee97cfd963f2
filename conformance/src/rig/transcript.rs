//! The packets of a case, as a ladder and as frames.

use std::{
    fmt,
    net::SocketAddr,
    time::{Instant, SystemTime},
};

use rocade_wire::Packet;
use serde::{Deserialize, Serialize};

/// The origin of a line of a transcript.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The rig sent the packet.
    Rig,
    /// The peer sent the packet.
    Peer,
    /// The line tells what else happened.
    Note,
}

/// A line of a transcript.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Step {
    /// The time since the start of the case in milliseconds.
    pub ms: f64,
    /// The origin of the packet.
    pub from: Origin,
    /// The packet or event in words.
    pub text: String,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = match self.from {
            Origin::Rig => "rig --> peer",
            Origin::Peer => "rig <-- peer",
            Origin::Note => "",
        };
        writeln!(f, "{:9.3} ms  {arrow}  {}", self.ms, self.text)
    }
}

/// A packet as it was on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The time of the packet.
    pub at: SystemTime,
    /// The source address and port.
    pub from: SocketAddr,
    /// The destination address and port.
    pub to: SocketAddr,
    /// The sender is the rig.
    pub is_sent: bool,
    /// The bytes from the BTH to the ICRC.
    pub bytes: Vec<u8>,
    /// The lines of the transcript between the previous packet and this one.
    pub comment: String,
}

#[derive(Debug)]
enum Line {
    Packet(Frame),
    Note(String),
}

/// The sent and received packets of a case, in order.
#[derive(Debug)]
pub(super) struct Transcript {
    start: Instant,
    lines: Vec<(Instant, Line)>,
    /// The notes since the last packet.
    pending: String,
}

impl Transcript {
    pub(super) const fn new(start: Instant) -> Self {
        Self {
            start,
            lines: Vec::new(),
            pending: String::new(),
        }
    }

    pub(super) fn sent(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.packet(from, to, true, bytes);
    }

    pub(super) fn received(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.packet(from, to, false, bytes);
    }

    fn packet(&mut self, from: SocketAddr, to: SocketAddr, is_sent: bool, bytes: &[u8]) {
        let frame = Frame {
            at: SystemTime::now(),
            from,
            to,
            is_sent,
            bytes: bytes.to_vec(),
            comment: std::mem::take(&mut self.pending),
        };
        self.push(Line::Packet(frame));
    }

    pub(super) fn note(&mut self, text: String) {
        if !self.pending.is_empty() {
            self.pending.push('\n');
        }
        self.pending.push_str(&text);
        self.push(Line::Note(text));
    }

    fn push(&mut self, line: Line) {
        self.lines.push((Instant::now(), line));
    }

    /// Returns the lines of the ladder.
    pub(super) fn steps(&self) -> Vec<Step> {
        let step = |(at, line): &(Instant, Line)| {
            let (from, text) = match line {
                Line::Packet(frame) if frame.is_sent => (Origin::Rig, in_words(&frame.bytes)),
                Line::Packet(frame) => (Origin::Peer, in_words(&frame.bytes)),
                Line::Note(text) => (Origin::Note, text.clone()),
            };
            let ms = at.duration_since(self.start).as_secs_f64() * 1e3;
            let ms = (ms * 1e3).round() / 1e3;
            Step { ms, from, text }
        };
        self.lines.iter().map(step).collect()
    }

    /// Returns the packets.
    pub(super) fn frames(&self) -> Vec<Frame> {
        let packets = self.lines.iter().filter_map(|(_, line)| match line {
            Line::Packet(frame) => Some(frame.clone()),
            Line::Note(_) => None,
        });
        packets.collect()
    }
}

fn in_words(bytes: &[u8]) -> String {
    match Packet::parse(bytes) {
        Ok(packet) => packet.to_string(),
        Err(error) => format!("{} bytes, no packet: {error}", bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_has_a_line_for_everything() {
        let mut transcript = Transcript::new(Instant::now());
        let [rig, peer] = [1, 2].map(|host| SocketAddr::from(([192, 0, 2, host], 4791)));
        transcript.note("connect".to_owned());
        let mut ack = [0; 20];
        ack[0] = 0x11;
        transcript.sent(rig, peer, &ack);
        transcript.received(peer, rig, &[0; 3]);
        let lines: Vec<_> = transcript.steps().iter().map(Step::to_string).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("connect\n"));
        let sent = "rig --> peer  RC ACKNOWLEDGE";
        assert!(lines[1].contains(sent), "{}", lines[1]);
        assert!(lines[2].contains("3 bytes, no packet"));
        let frames = transcript.frames();
        assert_eq!(frames.len(), 2);
        assert_eq!((frames[0].is_sent, &*frames[0].comment), (true, "connect"));
        assert_eq!((frames[1].from, &*frames[1].comment), (peer, ""));
    }
}
