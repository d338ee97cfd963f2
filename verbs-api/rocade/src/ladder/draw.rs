//! Draws a conversation as a ladder: two lines for the ends, time downwards, and arrows for
//! packets.

use std::fmt::Write as _;
use std::time::Duration;

use rocade_wire::{Operation, Qpn};

use super::ends::End;
use super::label::{label, name};
use super::pair::{Arrow, Conversation, Marks};

/// The width of a drawing. All lengths are in pixels.
pub(super) const WIDTH: u32 = 1280;
const LEFT: u32 = 480;
const RIGHT: u32 = 780;
/// The distance between two packets.
const ROW: u32 = 19;
/// The distance between an event and an arrival.
const ARRIVAL: u32 = 7;
const GAP: u32 = 30;
const HEAD: u32 = 78;
/// The minimum length of a silence to show. It must also be long compared with the others.
const SILENCE: Duration = Duration::from_micros(200);
/// The number of packets from which on only incidents are shown.
const MANY: usize = 300;
/// The number of packets to show around an incident.
const AROUND: usize = 8;
/// The number of packets to show at the beginning.
const BEGINNING: usize = 30;
/// The number of similar packets in a row from which on they become one arrow.
const ALIKE: usize = 5;
/// The maximum number of characters below the name of an end.
const MAX_UNDER: usize = 37;
/// The maximum number of incidents in the text.
const MAX_TOLD: usize = 40;

/// A line of the ladder.
enum Item<'a> {
    Packet(&'a Arrow),
    /// A number of similar packets, with the first and the last one.
    Many(usize, &'a Arrow, &'a Arrow),
    /// A number of omitted packets.
    Skipped(usize),
}

impl Item<'_> {
    /// Returns true if the arrival is an event of its own.
    fn arrives_later(&self) -> bool {
        let (left, arrived) = match self {
            Self::Packet(arrow) => (arrow.left, arrow.arrived),
            Self::Many(_, first, end) => (first.left, end.arrived),
            Self::Skipped(_) => return false,
        };
        arrived.is_some() && left != arrived
    }
}

/// Escapes text for XML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The styles of a drawing.
pub(super) const STYLE: &str = "\
text{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,monospace;fill:#24292f}
.b{font-weight:600}.s{fill:#57606a;font-size:11px}.e{text-anchor:end}.m{text-anchor:middle}
.life{stroke:#8c959f;stroke-width:1.5}.box{fill:#f6f8fa;stroke:#8c959f}
.gap{fill:#f6f8fa}.a{fill:none;stroke-width:1.6}.thick{stroke-width:4}
.q{stroke:#0969da}.r{stroke:#1a7f37}.k{stroke:#6e7781}.n{stroke:#cf222e}.w{stroke:#bc4c00}.again{stroke-dasharray:6 3}
.tq{fill:#0969da}.tr{fill:#1a7f37}.tk{fill:#57606a}.tn{fill:#cf222e}.tw{fill:#bc4c00}
.hq{fill:#0969da}.hr{fill:#1a7f37}.hk{fill:#6e7781}.hn{fill:#cf222e}.hw{fill:#bc4c00}
.x{stroke:#cf222e;stroke-width:2.6}";

/// Returns the class of a packet's colour.
fn colour(arrow: &Arrow) -> char {
    let Marks {
        nak,
        rnr,
        again,
        refused,
        ..
    } = arrow.marks;
    let operation = arrow.seen.headers.bth.opcode.operation();
    match operation {
        _ if nak || rnr || refused => 'n',
        _ if again => 'w',
        Some(Operation::Acknowledge) => 'k',
        Some(operation) if operation.is_request() => 'q',
        _ => 'r',
    }
}

/// Returns the remarks about a packet.
fn remarks(marks: Marks) -> Vec<&'static str> {
    let Marks {
        lost,
        again,
        damaged,
        marked,
        ..
    } = marks;
    let all = [
        (damaged, "DAMAGED"),
        (lost, "LOST"),
        (again, "sent again"),
        (marked, "ECN"),
    ];
    all.into_iter()
        .filter(|(is, _)| *is)
        .map(|(_, word)| word)
        .collect()
}

/// Formats a time for people.
pub(super) fn human(time: Duration) -> String {
    let ns = time.as_nanos();
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", time.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.2} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.3} s", time.as_secs_f64()),
    }
}

impl End {
    /// Returns address and QP as text.
    pub(super) fn name(&self) -> String {
        match self.qpn {
            Some(qpn) => format!("{}  QP {}", self.address, Qpn::new(qpn)),
            None => format!("{}  QP unknown", self.address),
        }
    }

    /// Returns [`name`](Self::name) with the process, if the capture names it.
    pub(super) fn full_name(&self) -> String {
        match &self.process {
            Some(process) => format!("{}  {process}", self.name()),
            None => self.name(),
        }
    }
}

impl Conversation {
    /// Returns the incidents, one per line.
    pub(super) fn incident_lines(&self) -> Vec<String> {
        let Some(begin) = self.arrows.first().map(Arrow::time) else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        for (index, arrow) in self.arrows.iter().enumerate() {
            let marks = arrow.marks;
            let Marks {
                lost,
                nak,
                rnr,
                refused,
                damaged,
                noted,
                ..
            } = marks;
            if !(lost || nak || rnr || refused || damaged || noted) {
                continue;
            }
            if lines.len() == MAX_TOLD {
                lines.push("… and more".to_owned());
                break;
            }
            let seen = &arrow.seen;
            let what = label(seen);
            let at = human(arrow.time().saturating_sub(begin));
            let mut line = format!("{at}: {what}");
            if !seen.note.is_empty() {
                let _ = write!(line, " — {}", seen.note);
            } else if marks.lost {
                line.push_str(" — arrival not captured");
            } else if marks.damaged {
                line.push_str(" — ICRC error");
            }
            let is_same = |later: &&Arrow| {
                later.forward == arrow.forward
                    && later.seen.headers.bth.psn == seen.headers.bth.psn
                    && later.marks.again
            };
            if (marks.lost || marks.damaged)
                && let Some(later) = self.arrows[index + 1..].iter().find(is_same)
            {
                let after = later.time().saturating_sub(arrow.time());
                let _ = write!(line, ", sent again {} later", human(after));
            }
            lines.push(line);
        }
        lines
    }

    /// Returns the lines of the ladder.
    fn items(&self, all: bool) -> Vec<Item<'_>> {
        let shown = self.shown(all);
        let mut items: Vec<Item<'_>> = Vec::new();
        let mut at = 0;
        while at < self.arrows.len() {
            if !shown[at] {
                let skipped = shown[at..].iter().take_while(|shown| !**shown).count();
                items.push(Item::Skipped(skipped));
                at += skipped;
                continue;
            }
            let first = &self.arrows[at];
            let is_like = |(arrow, shown): &(&Arrow, &bool)| {
                **shown
                    && arrow.forward == first.forward
                    && arrow.seen.headers.bth.opcode == first.seen.headers.bth.opcode
                    && name(&arrow.seen) == name(&first.seen)
                    && arrow.marks == first.marks
                    && arrow.seen.note.is_empty()
                    && !(arrow.marks.lost || arrow.marks.nak || arrow.marks.damaged)
            };
            let alike = self.arrows[at..]
                .iter()
                .zip(&shown[at..])
                .take_while(is_like)
                .count();
            if alike > ALIKE && !all {
                items.push(Item::Many(alike, first, &self.arrows[at + alike - 1]));
                at += alike;
            } else {
                items.push(Item::Packet(first));
                at += 1;
            }
        }
        items
    }

    /// Returns the packets to show.
    fn shown(&self, all: bool) -> Vec<bool> {
        let count = self.arrows.len();
        let mut shown = vec![all || count <= MANY; count];
        shown
            .iter_mut()
            .take(BEGINNING)
            .for_each(|shown| *shown = true);
        for (at, arrow) in self.arrows.iter().enumerate() {
            if arrow.marks.is_incident() {
                let end = (at + AROUND + 1).min(count);
                shown[at.saturating_sub(AROUND)..end].fill(true);
            }
        }
        shown
    }

    /// Draws a conversation from `top` on. Returns the drawing and its height.
    pub(super) fn draw(&self, top: u32, all: bool) -> (String, u32) {
        let items = self.items(all);
        let mut events: Vec<(Duration, bool, usize)> = Vec::new();
        let begin = self.arrows.first().map_or(Duration::ZERO, Arrow::time);
        let mut last = begin;
        for (index, item) in items.iter().enumerate() {
            let (left, arrived) = match item {
                Item::Packet(arrow) => (arrow.left, arrow.arrived),
                Item::Many(_, first, end) => (first.left, end.arrived),
                Item::Skipped(_) => (Some(last), None),
            };
            last = last.max(left.or(arrived).unwrap_or(last));
            if let Some(left) = left {
                events.push((left, false, index));
            }
            if let Some(arrived) = arrived
                && left != Some(arrived)
            {
                events.push((arrived, true, index));
            }
        }
        // Arrivals come first, because they may cause a packet that leaves at the same time.
        events.sort_by_key(|(time, arrives, index)| (*time, !*arrives, *index));
        let usual = usual_gap(&events);
        let mut places: Vec<[Option<u32>; 2]> = vec![[None; 2]; items.len()];
        let mut out = String::new();
        let (mut y, mut before, mut shown_time) = (top + HEAD, begin, None);
        let mut silences = Vec::new();
        let mut flying = 0_u32;
        for (time, arrives, index) in events {
            let silence = time.saturating_sub(before);
            before = time;
            // A silence is shown only where no arrow is in flight.
            if silence >= SILENCE && silence > usual * 20 && flying == 0 {
                silences.push((y + ROW, silence));
                y += GAP;
            }
            if arrives {
                y += ARRIVAL;
                if places[index][0].is_none() {
                    y += ROW - ARRIVAL;
                }
                places[index][1] = Some(y);
                flying = flying.saturating_sub(1);
            } else {
                y += ROW;
                places[index][0] = Some(y);
                flying += u32::from(items[index].arrives_later());
                if shown_time != Some(time) && !matches!(items[index], Item::Skipped(_)) {
                    let at = human(time.saturating_sub(begin));
                    let _ = writeln!(out, "<text class='s e' x='86' y='{}'>{at}</text>", y + 4);
                    shown_time = Some(time);
                }
            }
        }
        let end = y + ROW + ARRIVAL;
        let mut behind = self.frame(top, end);
        for (y, silence) in silences {
            let _ = writeln!(
                behind,
                "<rect class='gap' x='{LEFT}' y='{}' width='{}' height='18'/>\
                 <text class='s m' x='{}' y='{}'>{} of silence</text>",
                y - 8,
                RIGHT - LEFT,
                u32::midpoint(LEFT, RIGHT),
                y + 5,
                human(silence),
            );
        }
        for (item, place) in items.iter().zip(places) {
            match item {
                Item::Packet(arrow) => draw_arrow(&mut out, arrow, place, None),
                Item::Many(count, first, end) => {
                    let psns = (first.seen.headers.bth.psn, end.seen.headers.bth.psn);
                    let name = name(&first.seen);
                    let text = format!("{count} × {name}  psn {} … {}", psns.0.get(), psns.1.get());
                    draw_arrow(&mut out, first, place, Some(text));
                }
                Item::Skipped(count) => {
                    let y = place[0].unwrap_or(top) + 4;
                    let _ = writeln!(
                        out,
                        "<text class='s m' x='{}' y='{y}'>⋮ {count} packets without incident ⋮</text>",
                        u32::midpoint(LEFT, RIGHT),
                    );
                }
            }
        }
        behind.push_str(&out);
        (behind, end + ROW - top)
    }

    /// Returns the roles of the ends. Datagrams have neither a requester nor a responder.
    fn roles(&self) -> [&'static str; 2] {
        let is_datagram = |arrow: &Arrow| arrow.seen.headers.deth.is_some();
        if !self.arrows.iter().all(is_datagram) {
            return ["requester", "responder"];
        }
        let role = |end: &End| match end.qpn {
            Some(1) => "CM",
            _ => "UD",
        };
        [role(&self.ends[0]), role(&self.ends[1])]
    }

    /// Draws the ends and their lines.
    fn frame(&self, top: u32, end: u32) -> String {
        let mut out = String::new();
        let boxes = [LEFT, RIGHT].into_iter().zip(self.roles());
        for ((x, role), place) in boxes.zip(&self.ends) {
            let name = escape(&place.name());
            let under = match &place.process {
                Some(process) if role.is_empty() => process.to_string(),
                Some(process) => format!("{role}, {process}"),
                None => role.to_owned(),
            };
            let under = escape(&shortened(&under));
            let _ = writeln!(
                out,
                "<line class='life' x1='{x}' y1='{y}' x2='{x}' y2='{end}'/>\
                 <rect class='box' x='{bx}' y='{by}' width='260' height='40' rx='5'/>\
                 <text class='b m' x='{tx}' y='{ty}'>{name}</text><text class='s m' x='{tx}' y='{sy}'>{under}</text>",
                y = top + 52,
                bx = if x == LEFT { x - 200 } else { x - 60 },
                by = top + 12,
                tx = if x == LEFT { x - 70 } else { x + 70 },
                ty = top + 29,
                sy = top + 45,
            );
        }
        out
    }
}

/// Shortens a text so that it fits below a name.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_UNDER) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns the median of the times between events. A silence is much longer.
fn usual_gap(events: &[(Duration, bool, usize)]) -> Duration {
    let mut gaps: Vec<Duration> = events
        .windows(2)
        .map(|pair| pair[1].0.saturating_sub(pair[0].0))
        .collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or_default()
}

/// Draws an arrow, and its label at the sender's line. `many` stands for several packets.
fn draw_arrow(out: &mut String, arrow: &Arrow, place: [Option<u32>; 2], many: Option<String>) {
    let colour = colour(arrow);
    let (from, to) = if arrow.forward {
        (LEFT, RIGHT)
    } else {
        (RIGHT, LEFT)
    };
    let y1 = place[0].unwrap_or_else(|| place[1].map_or(0, |y| y - ARRIVAL));
    let y2 = place[1].unwrap_or(y1 + ARRIVAL);
    let lost = arrow.marks.lost;
    // The arrow of a lost packet ends half-way. The arrow of a packet without a recorded departure
    // starts half-way.
    let middle = (u32::midpoint(from, to), u32::midpoint(y1, y2));
    let begin = if place[0].is_none() {
        middle
    } else {
        (from, y1)
    };
    let end = if lost { middle } else { (to, y2) };
    let again = if arrow.marks.again { " again" } else { "" };
    let thick = if many.is_some() { " thick" } else { "" };
    let seen = &arrow.seen;
    let mut tip = format!("{} len={}", seen.headers, seen.payload_len);
    if let Some(message) = &seen.message {
        let _ = write!(tip, "\n{message}");
    }
    if !seen.note.is_empty() {
        let _ = write!(tip, "\n{}", seen.note);
    }
    if let (Some(left), Some(arrived)) = (arrow.left, arrow.arrived)
        && many.is_none()
    {
        let _ = write!(tip, "\n{} on its way", human(arrived.saturating_sub(left)));
    }
    let tip = tip.lines().map(escape).collect::<Vec<_>>().join("&#10;");
    let _ = write!(
        out,
        "<g><title>{tip}</title><path class='a {colour}{again}{thick}' d='M{} {}L{} {}'/>",
        begin.0, begin.1, end.0, end.1
    );
    if lost {
        let (x, y) = middle;
        let _ = write!(
            out,
            "<path class='x' d='M{} {}l12 12m0 -12l-12 12'/>",
            x - 6,
            y - 6
        );
    } else {
        // The head is a triangle that points to the other line.
        let back = if arrow.forward { end.0 - 9 } else { end.0 + 9 };
        let _ = write!(
            out,
            "<path class='h{colour}' d='M{} {}L{back} {}L{back} {}Z'/>",
            end.0,
            end.1,
            end.1 - 4,
            end.1 + 4
        );
    }
    let text = many.unwrap_or_else(|| label(seen));
    let words = remarks(arrow.marks).join(" ");
    let (x, class) = if arrow.forward {
        (LEFT - 8, " e")
    } else {
        (RIGHT + 8, "")
    };
    let mark = if words.is_empty() {
        String::new()
    } else {
        let red = if words == "sent again" { "tw" } else { "tn" };
        format!("<tspan class='{red} b'>  {words}</tspan>")
    };
    let _ = writeln!(
        out,
        "<text xml:space='preserve' class='t{colour}{class}' x='{x}' y='{}'>{}{mark}</text></g>",
        y1 + 4,
        escape(&text)
    );
}
