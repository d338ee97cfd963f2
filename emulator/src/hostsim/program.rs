//! The programs of simulated processes: each thread has one end of a connection (`exchange.rs`).

use std::sync::Arc;

use super::board::{Board, End};
use super::exchange::exchange;
use super::keeper::keep;
use super::plan::address_of;
use super::pool::Pool;
use crate::broker::simulated::brokers;
use crate::config::BrokerConfig;
use crate::sync::turn;
use crate::{BrokerMode, Context, Engine, EngineConfig, LinkMode};

/// A program, which its threads share.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) board: Arc<Board>,
    pub(super) engine: Engine,
    pub(super) context: Context,
    /// The receives that its ends share.
    pub(super) pool: Option<Arc<Pool>>,
}

/// Runs the first thread of a process.
pub(super) fn run(board: &Arc<Board>, process: usize, broker: BrokerConfig) {
    let ends = board.ends().filter(|end| board.process_of(*end) == process);
    let ends: Vec<_> = ends.collect();
    let is_kept = |end: &End| board.keeper_of(*end) == Some(process);
    let kept: Vec<_> = board.ends().filter(is_kept).collect();
    if ends.is_empty() && kept.is_empty() {
        return;
    }
    let spec = format!("dev={}", brokers::address_of(address_of(process)).ip());
    let config = EngineConfig::from_specs(&[spec], BrokerMode::Auto(broker)).expect("a device");
    let link = if board.plan.udp {
        LinkMode::Udp
    } else {
        LinkMode::Auto
    };
    let mut config = EngineConfig { link, ..config };
    if let Some(path) = &board.capture {
        config = config.with_capture(path);
    }
    if board.plan.loss > 0 {
        let rule = format!("drop p={}% seed={}", board.plan.loss, process + 1);
        config = config.with_faults(&rule).expect("a rule");
    }
    let engine = Engine::new(config).expect("an engine");
    let context = engine.open_device("dev").expect("a device");
    let pool = Pool::new(board, &context, process).map(Arc::new);
    let program = Program {
        board: Arc::clone(board),
        engine,
        context,
        pool,
    };
    let schedule = turn::own().expect("a simulated thread");
    for end in kept {
        let program = program.clone();
        let name = name_of(end) + "k";
        schedule.spawn(&name, Box::new(move || keep(&program, end)));
    }
    for end in ends.iter().skip(1) {
        let (program, end) = (program.clone(), *end);
        let name = name_of(end);
        schedule.spawn(&name, Box::new(move || exchange(&program, end)));
    }
    if let Some(first) = ends.first() {
        exchange(&program, *first);
    }
    let are_done = || {
        let notes = board.notes();
        ends.iter().all(|end| notes.done.contains(end))
    };
    turn::until(None, are_done);
    if let Some(pool) = &program.pool {
        pool.check_limit(board, &program.context, process);
    }
}

/// Returns the name of the thread of an end.
pub(super) fn name_of((connection, end): End) -> String {
    format!("c{connection}e{end}")
}
