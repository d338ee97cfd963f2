//! The schedule: which process runs next, and how time passes.

use std::sync::atomic::Ordering;

use rocade_transport::Time;

use super::super::step::{CLIENTS, Call};
use super::{MOMENT, Member, REST, ROUNDS, World, is_readable};

impl World {
    pub(in crate::broker::hostsim) fn has_ready(&self) -> bool {
        let member = |member: &Member| self.is_ready(member) || self.is_service_due(member);
        self.brokers.have_ready() || self.members.iter().flatten().any(member)
    }

    /// Returns the earliest time at which something happens by itself.
    pub(in crate::broker::hostsim) fn next_deadline(&self) -> Option<Time> {
        let now = self.now();
        let members = self.members.iter().flatten();
        let members = members.filter(|member| !member.is_stopped);
        let of_member = |member: &Member| match member.waits {
            Some(wait) => Some(wait.until),
            None => member.service_at,
        };
        let of_members = members.filter_map(of_member).filter(|time| *time > now);
        of_members.chain(self.brokers.next_deadline()).min()
    }

    pub(super) fn advance(&mut self) {
        let now = self.now();
        let next = if self.has_ready() {
            now.plus(MOMENT)
        } else {
            self.next_deadline().unwrap_or_else(|| now.plus(MOMENT))
        };
        self.host.now_ns.store(next.as_ns(), Ordering::Relaxed);
    }

    /// Continues everything that is stopped, and lets all run until nothing is left to do.
    pub(super) fn rest(&mut self) -> Result<(), String> {
        self.members
            .iter_mut()
            .flatten()
            .for_each(|member| member.is_stopped = false);
        for broker in &mut self.brokers.list {
            broker.is_stopped = false;
        }
        self.host.processes.lock().continue_all();
        // What was about to fail because of a disturbance may still do so.
        self.disturbances += 1;
        self.check_ended()?;
        self.end_children();
        let end = self.now().plus(REST);
        for _ in 0..ROUNDS {
            if self.now() >= end {
                return Ok(());
            }
            if !self.work()? {
                let next = self.next_deadline().unwrap_or(end).min(end);
                self.host.now_ns.store(next.as_ns(), Ordering::Relaxed);
            }
        }
        Err("the host does not come to rest".to_owned())
    }

    /// Lets run all that is ready. Returns false if nothing is.
    pub(in crate::broker::hostsim) fn work(&mut self) -> Result<bool, String> {
        let mut any = false;
        for client in 0..CLIENTS {
            any |= self.go_on(client)?;
            any |= self.service(client)?;
        }
        Ok(self.brokers.work()? || any)
    }

    /// Lets an idle process service its client, if its time has come or the broker has sent
    /// something. Returns false if not.
    fn service(&mut self, client: u8) -> Result<bool, String> {
        let member = self.members[usize::from(client)].as_ref();
        if !member.is_some_and(|member| self.is_service_due(member)) {
            return Ok(false);
        }
        self.call(client, Call::Service)?;
        Ok(true)
    }

    /// Returns true if an idle process has something to do for its client.
    fn is_service_due(&self, member: &Member) -> bool {
        if member.waits.is_some() || member.is_stopped {
            return false;
        }
        let connection = member.view.as_ref().and_then(|view| view.connection);
        let has_input = connection.is_some_and(is_readable);
        has_input || member.service_at.is_some_and(|at| at <= self.now())
    }
}
