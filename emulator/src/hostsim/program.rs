//! The programs of simulated processes: each thread has one end of a connection (`exchange.rs`).

use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};

use super::board::{Board, End};
use super::exchange::exchange;
use super::plan::MEMORY;
use super::schedule::lock;
use crate::broker::hostsim::brokers;
use crate::config::BrokerConfig;
use crate::sync::turn;
use crate::{BrokerMode, Engine, EngineConfig, LinkMode};

/// Memory of processes that have ended, which others get.
static POOL: Mutex<Vec<&'static [AtomicU8]>> = Mutex::new(Vec::new());

/// Memory of an end, until this is dropped.
pub(super) struct Memory(pub(super) &'static [AtomicU8]);

impl Memory {
    pub(super) fn new() -> Self {
        let pooled = lock(&POOL).pop();
        let new = || -> &'static [AtomicU8] {
            Vec::leak((0..MEMORY).map(|_| AtomicU8::new(0)).collect::<Vec<_>>())
        };
        Self(pooled.unwrap_or_else(new))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        lock(&POOL).push(self.0);
    }
}

/// Runs the first thread of a process.
pub(super) fn run(board: &Arc<Board>, process: usize, broker: BrokerConfig) {
    let ends = board.ends().filter(|end| board.process_of(*end) == process);
    let ends: Vec<_> = ends.collect();
    let [first, others @ ..] = &ends[..] else {
        return;
    };
    let address = u8::try_from(process % 2).unwrap_or(0);
    let spec = format!("dev={}", brokers::address(address).ip());
    let config = EngineConfig::from_specs(&[spec], BrokerMode::Auto(broker)).expect("a device");
    let link = if board.plan.udp {
        LinkMode::Udp
    } else {
        LinkMode::Auto
    };
    let mut config = EngineConfig { link, ..config };
    if board.plan.loss > 0 {
        let rule = format!("drop p={}% seed={}", board.plan.loss, process + 1);
        config = config.with_faults(&rule).expect("a rule");
    }
    let engine = Engine::new(config).expect("an engine");
    let schedule = turn::own().expect("a simulated thread");
    for end in others {
        let (board, engine, end) = (Arc::clone(board), engine.clone(), *end);
        let name = name_of(end);
        schedule.spawn(&name, Box::new(move || exchange(&board, engine, end)));
    }
    exchange(board, engine.clone(), *first);
    let are_done = || {
        let notes = board.notes();
        others.iter().all(|end| notes.done.contains(end))
    };
    turn::until(None, are_done);
    drop(engine);
}

/// Returns the name of the thread of an end.
pub(super) fn name_of((connection, end): End) -> String {
    format!("c{connection}e{end}")
}
