//! `rocade ladder`: draws a capture as a packet ladder.

mod arrivals;
#[cfg(test)]
mod capture_tests;
#[cfg(test)]
mod datagram_tests;
mod draw;
mod ends;
mod label;
mod pair;
pub(crate) mod read;
#[cfg(test)]
mod tests;

use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::LadderArgs;
use crate::error::CliError;
use crate::output;

use draw::{STYLE, WIDTH, escape};
use pair::{Conversation, Marks};
use read::Capture;

/// The maximum number of conversations to draw if the user selects none.
const MAX_DRAWN: usize = 16;
/// The height of the legend in a drawing.
const LEGEND: u32 = 44;

pub(crate) fn run(args: &LadderArgs) -> Result<ExitCode, CliError> {
    let capture = read::read(&args.file)?;
    let facts = Facts::of(&args.file, &capture);
    let is_whole = capture.left_out == 0 && capture.cut.is_none();
    let mut conversations = pair::conversations(capture.packets, is_whole);
    if conversations.is_empty() {
        return Err(facts.explain_nothing());
    }
    let found = conversations.len();
    if let Some(qpn) = args.qp {
        conversations.retain(|c| c.ends.iter().any(|end| end.qpn == Some(qpn)));
        if conversations.is_empty() {
            return Err(CliError::new(format!(
                "QP {qpn:#x} neither sends nor receives a packet"
            )));
        }
    } else if !args.all {
        conversations.truncate(MAX_DRAWN);
    }
    let out = match &args.output {
        Some(out) => out.clone(),
        None => args.file.with_extension("html"),
    };
    let is_svg = out.extension().is_some_and(|extension| extension == "svg");
    let text = if is_svg {
        svg(&conversations, args.all)
    } else {
        html(&facts, &conversations, found, args.all)
    };
    write(&out, &text)?;
    let packets: usize = conversations.iter().map(|c| c.arrows.len()).sum();
    let summary = summary(conversations.iter());
    let (path, drawn) = (out.display(), conversations.len());
    let packets = counted(packets, "packet");
    output::line(format_args!(
        "{path}: {packets} of {}{summary}",
        counted(drawn, "conversation")
    ))?;
    for line in facts.lines() {
        output::line(line)?;
    }
    if drawn < found && args.qp.is_none() {
        output::line(format_args!(
            "the {drawn} longest of {found} conversations (--all draws the others, --qp N one of them)"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(out: &Path, text: &str) -> Result<(), CliError> {
    if out == Path::new("-") {
        return output::print(text);
    }
    std::fs::write(out, text)
        .map_err(|error| CliError::new(format!("failed to write {}: {error}", out.display())))
}

/// Returns a number and a noun, which gets an s unless the number is 1.
pub(crate) fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Returns [`counted`] and the verb "is" or "are".
fn are(count: u64, noun: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", counted(count, noun))
}

/// The properties of the capture file.
pub(crate) struct Facts {
    file: PathBuf,
    others: u64,
    joined: u64,
    segments: u64,
    too_long: u64,
    shortened: u64,
    left_out: u64,
    is_own: bool,
    cut: Option<String>,
}

impl Facts {
    pub(crate) fn of(file: &Path, capture: &Capture) -> Self {
        Self {
            file: file.to_owned(),
            others: capture.others,
            joined: capture.joined,
            segments: capture.segments,
            too_long: capture.too_long,
            shortened: capture.shortened,
            left_out: capture.left_out,
            is_own: capture.is_own,
            cut: capture.cut.clone(),
        }
    }

    /// Returns what a reader has to know about the file, one sentence per line.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.joined > 0 {
            lines.push(format!(
                "The kernel had joined {} in {} (GSO, GRO), which are cut here.",
                counted(self.segments, "packet"),
                counted(self.joined, "datagram")
            ));
        }
        if self.too_long > 0 {
            lines.push(format!(
                "{} too long for a packet, and no length of packets has right ICRCs.",
                are(self.too_long, "datagram")
            ));
        }
        if self.shortened > 0 {
            lines.push(format!(
                "The file has only the beginning of {} (tcpdump -s), missing here.",
                counted(self.shortened, "packet")
            ));
        }
        if self.others > 0 {
            lines.push(format!("{} not RoCEv2.", are(self.others, "packet")));
        }
        if self.left_out > 0 {
            lines.push(format!(
                "The capturing program dropped {}, missing here.",
                counted(self.left_out, "packet")
            ));
        }
        if let Some(reason) = &self.cut {
            lines.push(format!("The end of the file cannot be read: {reason}."));
        }
        lines
    }

    /// Explains a capture without packets.
    pub(crate) fn explain_nothing(&self) -> CliError {
        let file = self.file.display();
        if self.is_own {
            let message = format!("{file}: the program neither sent nor received a packet");
            return CliError::new(message).hint("ROCADE_LOG=debug tells what it does");
        }
        if self.shortened > 0 {
            let count = counted(self.shortened, "packet");
            let message = format!("{file}: only the beginning of {count} is in the file");
            return CliError::new(message).hint("capture with `tcpdump -s 0`");
        }
        let among = match self.others {
            0 => "in an empty capture".to_owned(),
            others => format!("among {}", counted(others, "packet")),
        };
        let message = format!("{file}: no RoCEv2 packets found {among}");
        CliError::new(message).hint(
            "processes of a host exchange packets through shared memory, which only \
             `rocade run --capture` captures",
        )
    }
}

/// Counts the incidents of each kind.
fn summary<'a>(conversations: impl Iterator<Item = &'a Conversation> + Clone) -> String {
    let count =
        |is_so: fn(Marks) -> bool| -> usize { conversations.clone().map(|c| c.count(is_so)).sum() };
    let counts = [
        ("lost", count(|marks| marks.lost)),
        ("damaged", count(|marks| marks.damaged)),
        ("sent again", count(|marks| marks.again)),
        ("NAK", count(|marks| marks.nak)),
        ("RNR NAK", count(|marks| marks.rnr)),
        ("refused by the CM", count(|marks| marks.refused)),
    ];
    let mut text = String::new();
    for (name, count) in counts {
        if count > 0 {
            // Writing to a string does not fail.
            let _ = write!(text, ", {count} {name}");
        }
    }
    text
}

fn legend(top: u32) -> String {
    let kinds = [
        ("q", "request"),
        ("r", "response with data"),
        ("k", "acknowledgement"),
        ("n", "NAK, REJ"),
        ("w again", "sent again"),
    ];
    let mut out = String::new();
    let mut x = 20;
    let y = top + 20;
    for (class, words) in kinds {
        let _ = write!(
            out,
            "<path class='a {class}' d='M{x} {y}h36'/><text x='{}' y='{}'>{words}</text>",
            x + 44,
            y + 4
        );
        x += 44 + 8 * u32::try_from(words.len()).unwrap_or(0) + 30;
    }
    let _ = write!(
        out,
        "<path class='x' d='M{x} {}l12 12m0 -12l-12 12'/><text x='{}' y='{}'>lost on the way</text>",
        y - 6,
        x + 20,
        y + 4
    );
    let _ = write!(
        out,
        "<text class='s' x='{}' y='{}'>time goes down</text>",
        x + 180,
        y + 4
    );
    out
}

fn svg(conversations: &[Conversation], all: bool) -> String {
    let mut body = legend(0);
    let mut top = LEGEND;
    for conversation in conversations {
        let (drawing, height) = conversation.draw(top, all);
        body.push_str(&drawing);
        top += height;
        for line in conversation.incident_lines() {
            let _ = writeln!(
                body,
                "<text x='24' y='{}'>• {}</text>",
                top + 10,
                escape(&line)
            );
            top += 18;
        }
        top += 24;
    }
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {top}' width='{WIDTH}' height='{top}'>\
         <style>{STYLE}</style><rect width='100%' height='100%' fill='white'/>\n{body}</svg>\n"
    )
}

fn html(facts: &Facts, conversations: &[Conversation], found: usize, all: bool) -> String {
    let name = facts.file.file_name().unwrap_or_default().to_string_lossy();
    let name = escape(&name);
    let mut body = format!("<h1>{name}</h1>\n");
    for line in facts.lines() {
        let _ = writeln!(body, "<p>{}</p>", escape(&line));
    }
    let arrows = conversations.iter().flat_map(|c| &c.arrows);
    let one_sided = arrows.filter(|arrow| arrow.is_one_sided()).count();
    if one_sided > 0 {
        let _ = writeln!(
            body,
            "<p>Whether {} arrived is unknown, because only the sender's records are here.</p>",
            counted(one_sided, "packet")
        );
    }
    if conversations.len() < found {
        let _ = writeln!(
            body,
            "<p>{} of {found} conversations, those with the most packets.</p>",
            conversations.len()
        );
    }
    let _ = writeln!(
        body,
        "<svg viewBox='0 0 {WIDTH} {LEGEND}' width='{WIDTH}' height='{LEGEND}'>{}</svg>",
        legend(0)
    );
    for conversation in conversations {
        let ends = &conversation.ends;
        let (drawing, height) = conversation.draw(0, all);
        let _ = writeln!(
            body,
            "<section><h2>{} ⇄ {}</h2><p>{}{}</p>",
            escape(&ends[0].full_name()),
            escape(&ends[1].full_name()),
            counted(conversation.arrows.len(), "packet"),
            summary(std::iter::once(conversation)),
        );
        let lines = conversation.incident_lines();
        if !lines.is_empty() {
            body.push_str("<ul>");
            for line in lines {
                let _ = write!(body, "<li>{}</li>", escape(&line));
            }
            body.push_str("</ul>\n");
        }
        let _ = writeln!(
            body,
            "<svg viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'>\n{drawing}</svg></section>"
        );
    }
    format!(
        "<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>{name}</title>\n<style>\
         body{{font:15px system-ui,sans-serif;margin:24px;color:#24292f;background:#fff;max-width:{WIDTH}px}}\
         h1{{font-size:22px}}h2{{font:600 15px ui-monospace,'DejaVu Sans Mono',Menlo,monospace;margin:28px 0 4px;\
         border-top:1px solid #d0d7de;padding-top:16px;white-space:pre-wrap}}p{{margin:4px 0}}\
         ul{{margin:6px 0;padding-left:20px}}li{{white-space:pre-wrap}}svg{{display:block}}\n{STYLE}</style>\n\
         <body>\n{body}</body></html>\n"
    )
}
