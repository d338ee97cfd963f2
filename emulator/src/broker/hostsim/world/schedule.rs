//! The schedule: which broker and which process runs next, and how time passes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rocade_transport::Time;

use super::super::super::server::start::{Step as Start, Takeover};
use super::super::super::server::{LOOK_AGAIN, Server};
use super::super::identity::SimulatedProcess;
use super::super::step::{CLIENTS, Call};
use super::{Broker, IDLE, MOMENT, Member, REST, ROUNDS, World, is_readable};

impl World {
    /// Lets the brokers begin that processes have started.
    pub(in crate::broker::hostsim) fn start_brokers(&mut self) {
        let started = std::mem::take(&mut *self.host.started.lock());
        for (liveness_socket, dir) in started {
            let process = Arc::new(SimulatedProcess::new(&self.host, dir));
            let takeover = Takeover::new(&self.config(dir), self.now(), process.clone());
            if self.brokers.iter().any(|broker| broker.dir == dir) {
                self.mark("two brokers of a directory at a time");
            }
            self.brokers.push(Broker {
                dir,
                process,
                is_told: false,
                used_at: self.now(),
                server: None,
                takeover: takeover.ok(),
                next: self.now(),
                is_stopped: false,
                _liveness_socket: liveness_socket,
            });
        }
    }

    /// Gives a broker a turn. Returns false if it has nothing to do.
    pub(super) fn turn(&mut self, index: usize) -> Result<bool, String> {
        let now = self.now();
        let broker = &mut self.brokers[index];
        if broker.is_stopped {
            return Ok(false);
        }
        let Some(server) = &mut broker.server else {
            return Ok(self.start(index));
        };
        let input = server.wait(Duration::ZERO).map_err(|e| e.to_string())?;
        if input.is_empty() && broker.next > now {
            return Ok(false);
        }
        let next = server.turn(now, &input);
        if server.is_used() {
            broker.used_at = now;
        }
        match next {
            Some(next) if next <= now => {
                return Err("a broker wants a turn at once, for ever".to_owned());
            }
            Some(next) => broker.next = next,
            None if !broker.is_told && now < broker.used_at.plus(IDLE) => {
                return Err("a broker ends although it was used just now".to_owned());
            }
            None => {
                server.end();
                self.end_broker(index);
            }
        }
        Ok(true)
    }

    /// Takes the next step of a broker that starts. Returns false if it has to wait.
    fn start(&mut self, index: usize) -> bool {
        let now = self.now();
        let config = self.config(self.brokers[index].dir);
        let broker = &mut self.brokers[index];
        if broker.next > now {
            return false;
        }
        match broker.takeover.take().map(|takeover| takeover.step(now)) {
            Some(Ok(Start::Wait(takeover))) => {
                broker.takeover = Some(takeover);
                broker.next = now.plus(LOOK_AGAIN);
            }
            Some(Ok(Start::Listening(files))) => {
                let process = Arc::clone(&broker.process);
                self.host
                    .processes
                    .lock()
                    .listen(broker.dir, process.number);
                let server = Server::new(&config, files, false, now, process);
                broker.next = server.next_turn().unwrap_or(now);
                broker.server = Some(Box::new(server));
            }
            _ => {
                self.mark("a broker ends because another one runs");
                self.end_broker(index);
            }
        }
        true
    }

    pub(in crate::broker::hostsim) fn has_ready(&self) -> bool {
        let broker = |broker: &Broker| {
            let has_input = |server: &Server| {
                server
                    .wait(Duration::ZERO)
                    .is_ok_and(|input| !input.is_empty())
            };
            let server = broker.server.as_deref();
            !broker.is_stopped && (broker.next <= self.now() || server.is_some_and(has_input))
        };
        let member = |member: &Member| self.is_ready(member) || self.is_service_due(member);
        self.brokers.iter().any(broker) || self.members.iter().flatten().any(member)
    }

    /// Returns the earliest time at which something happens by itself.
    pub(in crate::broker::hostsim) fn next_deadline(&self) -> Option<Time> {
        let now = self.now();
        let brokers = self.brokers.iter().filter(|broker| !broker.is_stopped);
        let members = self.members.iter().flatten();
        let members = members.filter(|member| !member.is_stopped);
        let of_member = |member: &Member| match member.waits {
            Some(wait) => Some(wait.until),
            None => member.service_at,
        };
        let times = brokers.map(|broker| broker.next);
        times
            .chain(members.filter_map(of_member))
            .filter(|time| *time > now)
            .min()
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
        for broker in &mut self.brokers {
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
        self.start_brokers();
        // One that ends is removed.
        for index in (0..self.brokers.len()).rev() {
            any |= self.turn(index)?;
        }
        Ok(any)
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
