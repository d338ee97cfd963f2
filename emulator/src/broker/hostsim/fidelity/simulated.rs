//! A script on the simulated host.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use super::super::process::text_of;
use super::super::step::{CLIENTS, Step};
use super::super::world::{ROUNDS, World};
use super::{Act, Stage};

pub(super) struct Simulated(World);

impl Simulated {
    pub(super) fn new() -> Self {
        Self(World::new())
    }

    fn step_of(&self, act: Act) -> Option<Step> {
        Some(match act {
            Act::Connect { client, dir } => Step::Connect { client, dir },
            Act::Call { client, call } => Step::Call { client, call },
            Act::Kill { client } => Step::Kill { client },
            Act::KillBroker { dir } => {
                let mut brokers = self.0.brokers.list.iter();
                let broker = brokers.position(|broker| broker.dir == dir)?;
                Step::KillBroker {
                    broker: u8::try_from(broker).ok()?,
                }
            }
            Act::EndBroker { dir } => Step::EndBroker { dir },
            Act::OtherVersion { dir } => Step::OtherVersion { dir },
        })
    }

    /// Lets all run until each process has a broker and no call is left.
    fn settle(&mut self) -> Result<(), String> {
        let world = &mut self.0;
        for _ in 0..ROUNDS {
            if world.work()? {
                continue;
            }
            let is_connected = world.clients().all(|(_, view)| view.is_connected);
            if is_connected && world.waiting() == 0 {
                return Ok(());
            }
            let next = world.next_deadline().ok_or("nothing happens any more")?;
            world.host.now_ns.store(next.as_ns(), Ordering::Relaxed);
        }
        Err("it goes on for ever".to_owned())
    }
}

impl Stage for Simulated {
    fn perform(&mut self, act: Act) -> Result<String, String> {
        self.0.results.clear();
        if let Some(step) = self.step_of(act) {
            self.0.take(step)?;
        }
        self.settle()?;
        self.0.check()?;
        let mut seen = String::new();
        for (client, result) in &self.0.results {
            let _ = writeln!(seen, "client {client} gets {result}");
        }
        for client in 0..CLIENTS {
            if let Some(view) = self.0.view_of(client) {
                let _ = writeln!(seen, "client {client} has {}", text_of(view));
            }
        }
        Ok(seen)
    }
}
