//! The circumstances of a change to a queue pair, which all its consequences share.

use rocade_transport::Time;

use crate::memory::MemGuard;
use crate::state::Caller;

/// Time of a change, the thread that makes it, and the registered memory as it is meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cx<'m> {
    pub(crate) now: Time,
    pub(crate) caller: Caller,
    pub(crate) mem: &'m MemGuard<'m>,
}

impl<'m> Cx<'m> {
    /// Makes those of a change by a thread of the application.
    pub(crate) const fn of_application(now: Time, mem: &'m MemGuard<'m>) -> Self {
        let caller = Caller::Application;
        Self { now, caller, mem }
    }

    /// Makes those of a change by the background thread.
    pub(crate) const fn of_background(now: Time, mem: &'m MemGuard<'m>) -> Self {
        let caller = Caller::Background;
        Self { now, caller, mem }
    }
}
