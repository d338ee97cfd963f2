//! What surrounds a call.

use crate::outputs::Outputs;
use crate::peer::Peer;
use crate::time::Time;

/// When something happens, with whom, with whose memory, and where its results go: whatever a function of
/// the requester or the responder may need besides its subject.
#[derive(Debug)]
pub(crate) struct Cx<'a, H> {
    pub(crate) now: Time,
    pub(crate) peer: &'a Peer,
    /// A [`Memory`](crate::Memory); `()` where no memory is reached.
    pub(crate) host: &'a H,
    pub(crate) out: &'a mut Outputs,
}
