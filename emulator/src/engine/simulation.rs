//! Driving an engine whose network is simulated: there is no background thread, and time moves when the program
//! has nothing left to do at that time.

use std::sync::atomic::Ordering;

use rocade_transport::Time;

use super::EngineInner;
use super::ack_hold::HOLD_NS;
use super::handover::Driver;

impl EngineInner {
    /// Is the network simulated?
    pub(crate) const fn is_simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// When something happens next of its own accord; `None` where nothing does.
    pub(crate) fn next_event(&self) -> Option<Time> {
        let network = self.sim.as_ref()?;
        let acks = self.looks_after_acks().then(|| self.now().plus_ns(HOLD_NS));
        let posts = (self.waiting_count.load(Ordering::Relaxed) > 0).then(|| self.now());
        let all = [
            posts,
            network.next_due(),
            self.timers.next(),
            self.tap.next_due(),
            self.moderated.next(),
            acks,
            self.cm().next_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Time goes by in which nothing happens.
    pub(crate) fn move_to(&self, time: Time) {
        if let Some(network) = &self.sim {
            network.move_to(time);
        }
    }

    /// Moves time to the next event and lets it happen. False where nothing is going to happen.
    pub(super) fn advance(&self) -> bool {
        self.fail_qps_of_overrun_cqs();
        let Some(next) = self.next_event() else {
            return false;
        };
        self.move_to(next);
        self.release_late(Driver::Application);
        for uplink in self.uplinks.read().iter() {
            let mut rx = uplink.rx.lock();
            while self.receive(uplink, &mut rx, Driver::Application).more {}
        }
        self.fire_timers();
        self.serve_cm();
        self.raise_moderated();
        self.release_acks(HOLD_NS, Driver::Application);
        self.fail_qps_of_overrun_cqs();
        true
    }
}
