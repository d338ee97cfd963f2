//! Processes that end and leave a child, which has all of their descriptors.

use super::super::paths::Paths;
use super::super::simulated::identity::SimulatedProcess;
use super::super::start;
use super::world::{ROUNDS, World};

impl World {
    /// Ends a process whose child goes on, and does nothing with what it has.
    pub(super) fn end_with_child(&mut self, client: u8) {
        let Some(member) = self.members[usize::from(client)].take() else {
            return;
        };
        self.expect_farewells(&member);
        self.disturbances += 1;
        self.mark("a process ends before its child");
        self.host.processes.lock().end(member.number);
        self.children.push(member);
    }

    /// Ends the children of processes that have ended.
    pub(super) fn end_children(&mut self) {
        self.disturbances += u64::from(!self.children.is_empty());
        self.children.clear();
    }

    /// Checks that the peers of a process know of its end before its child has ended, when all that
    /// is ready has run.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(super) fn check_ended(&mut self) -> Result<(), String> {
        if self.children.is_empty() {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            if !self.work()? {
                break;
            }
        }
        let ended: Vec<_> = self.children.iter().map(|child| child.number).collect();
        let talks = self.notes.talks.lock().clone();
        let (early, later) = std::mem::take(&mut self.farewells)
            .into_iter()
            .partition(|(talk, _)| talks.get(talk).is_some_and(|of| ended.contains(of)));
        self.farewells = early;
        self.check_farewells()?;
        self.farewells = later;
        Ok(())
    }

    /// Connects to the broker of a directory as another user.
    pub(super) fn connect_as_another_user(&mut self, dir: u8) {
        let process = SimulatedProcess::new(&self.host, dir)
            .expect("a process")
            .of_another_user();
        if let Ok(connection) = start::connect(&Paths::new(&self.brokers.config_of(dir)), &process)
        {
            self.mark("a program of another user is refused");
            self.brokers.strangers.push(connection);
        }
    }
}
