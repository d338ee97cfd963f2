//! Services of the engine for the connection manager.

use std::sync::Arc;

use rocade_transport::Time;
use rocade_transport::cm::CmTransmit;
use rocade_wire::Psn;

use crate::engine::Host;
use crate::journal::AckJournal;
use crate::steering::ProcessSlot;

/// The engine, as far as the connection manager needs it.
pub(crate) trait CmIo {
    /// The devices, the clock and the random numbers.
    fn host(&self) -> &Host;

    /// The slot of this process, if it has one.
    fn slot(&self) -> Option<ProcessSlot>;

    /// The journal that the broker executes when this process has ended, if there is a broker.
    fn journal(&self) -> Option<Arc<AckJournal>>;

    /// Sends a MAD from QP 1 to QP 1. Without room or a socket it is lost, like any datagram.
    /// `flow` is the flow label of its connection, if it has one.
    fn send_mad(&self, psn: Psn, transmit: &CmTransmit, flow: Option<u32>);

    /// Lets the background thread serve the connection manager at `at`.
    fn wake_by(&self, at: Time);

    /// Receives what is in shared memory.
    fn receive_rings(&self);
}
