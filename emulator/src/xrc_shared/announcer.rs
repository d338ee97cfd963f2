//! Tells other processes of events of shared targets. It does so in a thread of its own, because a
//! broker may not answer for long, and the background thread has to receive meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use rocade_wire::Qpn;

use crate::broker::BrokerLink;
use crate::inherited::spawn_detached;
use crate::journal::DomainKey;
use crate::sync::Mutex;

/// An event of a target for other processes.
#[derive(Debug)]
pub(super) struct Announcement {
    pub(super) key: DomainKey,
    pub(super) qpn: Qpn,
    /// The code of the event.
    pub(super) code: u8,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Announcement>,
    /// A thread tells of those that wait, and ends when there are none.
    is_running: bool,
}

/// The events that other processes are told of, in their order.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    state: Mutex<State>,
}

impl Announcer {
    /// Tells other processes of an event, soon.
    pub(super) fn announce(self: &Arc<Self>, broker: Arc<BrokerLink>, announcement: Announcement) {
        let was_running = {
            let mut state = self.state.lock();
            state.waiting.push_back(announcement);
            std::mem::replace(&mut state.is_running, true)
        };
        if was_running {
            return;
        }
        let own = Arc::clone(self);
        let run = move || while own.tell_next(&broker) {};
        if let Err(error) = spawn_detached("rocade-events", run) {
            tracing::info!(%error, "failed to tell other processes of events of XRC targets");
            *self.state.lock() = State::default();
        }
    }

    /// Tells of the next event. Returns false without any.
    fn tell_next(&self, broker: &BrokerLink) -> bool {
        let next = {
            let mut state = self.state.lock();
            let next = state.waiting.pop_front();
            state.is_running = next.is_some();
            next
        };
        let Some(Announcement { key, qpn, code }) = next else {
            return false;
        };
        if let Err(error) = broker.client().raise_target_event(key, qpn, code) {
            tracing::info!(%error, ?qpn, code, "failed to tell other processes of an XRC target's event");
        }
        true
    }
}
