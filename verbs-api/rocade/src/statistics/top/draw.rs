//! The picture of `rocade top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row as Cells, Sparkline, Table};

use super::rates::Row;
use super::{Below, Screen};
use crate::statistics::format::{as_f64, bits, bytes, short};

const BANDWIDTH_LINES: u16 = 5;
const WIDTHS: [u16; 13] = [23, 15, 15, 5, 11, 11, 7, 6, 6, 6, 10, 13, 9];

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let processes = screen.rates.rows(false);
    let qps = screen.rates.rows(true);
    let listed = u16::try_from(processes.len()).unwrap_or(u16::MAX);
    let has_second = screen.below != Below::Nothing;
    let process_lines = match has_second {
        true => Constraint::Max(listed.saturating_add(1)),
        false => Constraint::Fill(1),
    };
    let second_lines = match has_second {
        true => Constraint::Fill(1),
        false => Constraint::Length(0),
    };
    let [head, line, sums, process_area, second_area] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(BANDWIDTH_LINES),
        Constraint::Length(2),
        process_lines,
        second_lines,
    ])
    .areas(frame.area());
    frame.render_widget(title(&processes, &qps), head);
    draw_bandwidth(frame, line, screen);
    frame.render_widget(totals(screen, &processes), sums);
    frame.render_widget(table("process", "QPs", &processes), process_area);
    let second = match screen.below {
        Below::QueuePairs => table("queue pairs of", "QP", &qps),
        Below::Hosts => table("host (peer)", "QPs", &screen.rates.hosts()),
        Below::Nothing => return,
    };
    frame.render_widget(second, second_area);
}

fn title(processes: &[Row], qps: &[Row]) -> Paragraph<'static> {
    let text = match processes.len() {
        0 => "rocade top: no process uses the broker".to_owned(),
        count => format!("rocade top: {count} processes, {} queue pairs", qps.len()),
    };
    Paragraph::new(Line::from(vec![
        text.bold(),
        "    q: quit, Tab: queue pairs, hosts or neither".dark_gray(),
    ]))
}

fn draw_bandwidth(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let width = usize::from(area.width);
    let points = &screen.bandwidth;
    let skipped = points.len().saturating_sub(width);
    let points: Vec<u64> = points.iter().skip(skipped).copied().collect();
    let (last, most) = (points.last(), points.iter().max());
    let rate = |rate: Option<&u64>| bits(as_f64(rate.copied().unwrap_or(0)));
    let title = format!("sent and received: {}, at most {}", rate(last), rate(most));
    let block = Block::new().borders(Borders::TOP).title(title);
    let sparkline = Sparkline::default()
        .block(block)
        .data(points)
        .style(Style::new().fg(Color::Green));
    frame.render_widget(sparkline, area);
}

/// Returns the rates of all processes together, and the drops by their reasons.
fn totals(screen: &Screen, processes: &[Row]) -> Paragraph<'static> {
    // The sum of no numbers would be -0.
    let sum = |rate: fn(&Row) -> f64| processes.iter().map(rate).fold(0.0, |sum, one| sum + one);
    let memory: u64 = processes.iter().map(|row| row.memory).sum();
    let rates = format!(
        "{} messages/s   {} retransmissions/s   {} RNR NAKs/s   {} ECN marks/s   {} registered",
        short(sum(|row| row.messages)),
        short(sum(|row| row.retrans)),
        short(sum(|row| row.rnr)),
        short(sum(|row| row.ecn)),
        bytes(as_f64(memory)),
    );
    let drops = screen.rates.drops();
    let drops: Vec<String> = drops
        .iter()
        .map(|(reason, rate)| format!("{} {reason}", short(*rate)))
        .collect();
    let dropped = match drops.is_empty() {
        true => "no packet is dropped".to_owned().into(),
        false => format!("dropped/s: {}", drops.join(", ")).yellow(),
    };
    Paragraph::new(vec![Line::from(rates), Line::from(dropped)])
}

/// Returns the table of processes or of queue pairs.
fn table(process: &'static str, qp: &'static str, rows: &[Row]) -> Table<'static> {
    let titles = [
        process,
        qp,
        "peer",
        "state",
        "sent",
        "received",
        "msgs/s",
        "retr/s",
        "RNR/s",
        "ECN/s",
        "SQ/RQ/CQ",
        "in flight/of",
        "memory",
    ];
    let cells = rows.iter().map(|row| {
        let queues = format!("{}/{}/{}", row.send_queue, row.recv_queue, row.comp_queue);
        let flight = match row.in_flight {
            0 => String::new(),
            sent => format!("{}/{}", short(as_f64(sent)), short(as_f64(row.window))),
        };
        let memory = match row.memory {
            0 => String::new(),
            memory => bytes(as_f64(memory)),
        };
        let cells = Cells::new([
            row.process.clone(),
            row.qp.clone(),
            row.peer.clone(),
            row.state.to_owned(),
            bits(row.sent),
            bits(row.received),
            short(row.messages),
            short(row.retrans),
            short(row.rnr),
            short(row.ecn),
            queues,
            flight,
            memory,
        ]);
        let has_trouble = row.retrans + row.rnr + row.dropped > 0.0;
        match has_trouble {
            true => cells.style(Style::new().fg(Color::Yellow)),
            false => cells,
        }
    });
    let head = Style::new().add_modifier(Modifier::REVERSED);
    Table::new(cells, WIDTHS.map(Constraint::Length)).header(Cells::new(titles).style(head))
}
