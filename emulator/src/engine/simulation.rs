//! Drives an engine with a simulated network. There is no background thread, and time advances when
//! the application has nothing left to do at the current time.

use crate::state::Caller;
use rocade_transport::Time;

use super::{Engine, Host, Nic};

/// The time of a simulated network, for programs that decide when it moves.
impl Engine {
    /// Returns the time of a simulation and the time of its next event, or `None` if the network is
    /// real.
    #[must_use]
    pub fn simulated_time(&self) -> Option<(Time, Option<Time>)> {
        let engine = &self.inner;
        engine
            .host
            .is_simulated()
            .then(|| (engine.host.now(), engine.next_event()))
    }

    /// Advances the time of a simulation. Events up to then happen with the next step or poll.
    pub fn move_simulated_time(&self, to: Time) {
        self.inner.host.move_to(to);
    }

    /// Handles what is due in a simulation, or else advances its time to the next event. Returns
    /// false if there is nothing to handle, or if the network is real.
    pub fn step_simulation(&self) -> bool {
        self.inner.host.is_simulated() && self.inner.progress_inline(None)
    }
}

impl Host {
    /// Returns true if the network is simulated.
    pub(crate) const fn is_simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// Advances the time, without events.
    pub(crate) fn move_to(&self, time: Time) {
        if let Some(network) = &self.sim {
            network.move_to(time);
        }
    }
}

impl Nic {
    /// Returns the time of the next event, or `None` if there is none.
    pub(crate) fn next_event(&self) -> Option<Time> {
        let network = self.host.sim.as_ref()?;
        let all = [
            network.next_due(),
            self.scheduler.service_queue.next_deadline(self.host.now()),
            self.links.hooks.next_due(),
            self.faults.plan.next_due(),
            self.cm.next_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Advances the time to the next event and handles it. Returns false if there is none.
    pub(super) fn advance(&self) -> bool {
        self.fail_qps_of_overrun_cqs();
        let Some(next) = self.next_event() else {
            return false;
        };
        self.host.move_to(next);
        if self.links.hooks.is_active() {
            self.release_delayed(Caller::Application);
        }
        if self.faults.plan.next_due().is_some() {
            self.execute_due_faults();
        }
        for endpoint in self.links.endpoints.read().iter() {
            let mut rx = endpoint.rx.lock();
            while self.receive(endpoint, &mut rx, Caller::Application).more {}
        }
        self.fire_timers();
        self.cm.serve(self);
        self.raise_moderated();
        self.serve_in_background();
        self.fail_qps_of_overrun_cqs();
        true
    }
}
