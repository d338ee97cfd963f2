//! `rocade top`: processes, queue pairs and hosts by their rates, in a terminal.

mod draw;
pub(super) mod rates;

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Instant;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rocade_emulator::broker::BrokerConfig;

use self::rates::Rates;
use super::args::TopArgs;
use super::gather;
use crate::error::CliError;

/// Most points of the line of the bandwidth.
const MOST_POINTS: usize = 512;

/// The state of the screen.
struct Screen {
    rates: Rates,
    /// Bytes per second, both directions, oldest first.
    bandwidth: VecDeque<u64>,
    /// The second table.
    below: Below,
}

/// The table below that of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    QueuePairs,
    Hosts,
    Nothing,
}

impl Below {
    /// Returns the next one.
    const fn next(self) -> Self {
        match self {
            Self::QueuePairs => Self::Hosts,
            Self::Hosts => Self::Nothing,
            Self::Nothing => Self::QueuePairs,
        }
    }
}

pub(super) fn run(args: &TopArgs, config: &BrokerConfig) -> Result<ExitCode, CliError> {
    if !std::io::stdout().is_terminal() {
        return Err(CliError::new("standard output is no terminal")
            .hint("`rocade stat --watch` writes the same as lines"));
    }
    let mut screen = Screen {
        rates: Rates::new(gather(config)?),
        bandwidth: VecDeque::new(),
        below: Below::QueuePairs,
    };
    let failed = |error| CliError::new(format!("failed to use the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let result = show(args, config, &mut screen, &mut terminal);
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
}

/// Updates the screen until the user ends it.
fn show(
    args: &TopArgs,
    config: &BrokerConfig,
    screen: &mut Screen,
    terminal: &mut DefaultTerminal,
) -> Result<(), CliError> {
    let failed = |error| CliError::new(format!("failed to use the terminal: {error}"));
    loop {
        let next = Instant::now() + args.interval;
        terminal
            .draw(|frame| draw::draw(frame, screen))
            .map_err(failed)?;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if !event::poll(left).map_err(failed)? {
                break;
            }
            match event::read().map_err(failed)? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(());
                    }
                    KeyCode::Tab => screen.below = screen.below.next(),
                    _ => continue,
                },
                Event::Resize(..) => {}
                _ => continue,
            }
            terminal
                .draw(|frame| draw::draw(frame, screen))
                .map_err(failed)?;
        }
        screen.advance(gather(config)?);
    }
}

impl Screen {
    fn advance(&mut self, now: Vec<rocade_emulator::broker::ProcessStatistics>) {
        self.rates.advance(now);
        let rows = self.rates.rows(false);
        let bytes: f64 = rows.iter().map(|row| row.sent + row.received).sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is positive, and its fraction does not matter"
        )]
        self.bandwidth.push_back(bytes as u64);
        if self.bandwidth.len() > MOST_POINTS {
            self.bandwidth.pop_front();
        }
    }
}
