//! Rig and peer, with which a case works.

mod conn;
mod requests;
mod responses;

use std::{
    cell::{Cell, OnceCell},
    time::{Duration, Instant},
};

use rocade_wire::{Operation, Psn, Qpn};

use crate::{
    Peer, PeerQp, QpSpec, Rig,
    case::{CaseError, CaseResult, fail},
    peer::{RegionSpec, Unable},
};

pub use conn::Conn;
pub(crate) use responses::POSITIVE;

/// The time limits of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The time limit for a required answer.
    pub patience: Duration,
    /// The duration of a required silence, after the peer has answered a later request.
    pub silence: Duration,
    /// The time limit for a case.
    pub case_limit: Duration,
}

impl Default for Timing {
    /// Limits for a peer on the same machine, which may be busy.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(20),
            silence: Duration::from_millis(5),
            case_limit: Duration::from_secs(90),
        }
    }
}

/// A queue pair of the peer, and the rig's QP number that it is connected to.
struct Link {
    qp: Box<dyn PeerQp>,
    rig_qpn: Qpn,
    spec: QpSpec,
}

/// A separate connection whose answers show that the peer has processed all earlier packets.
struct Fence {
    link: Link,
    next: Cell<Psn>,
}

/// Rig and peer.
pub struct Bench<'p> {
    rig: Rig,
    peer: &'p dyn Peer,
    timing: Timing,
    deadline: Cell<Instant>,
    fence: OnceCell<Fence>,
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench")
            .field("rig", &self.rig)
            .field("peer", &self.peer.name())
            .finish_non_exhaustive()
    }
}

impl<'p> Bench<'p> {
    /// Creates a bench for a peer.
    #[must_use]
    pub fn new(rig: Rig, peer: &'p dyn Peer, timing: Timing) -> Self {
        Self {
            rig,
            peer,
            timing,
            deadline: Cell::new(Instant::now() + timing.case_limit),
            fence: OnceCell::new(),
        }
    }

    /// Returns the rig.
    #[must_use]
    pub const fn rig(&self) -> &Rig {
        &self.rig
    }

    /// Returns the peer.
    #[must_use]
    pub fn peer(&self) -> &'p dyn Peer {
        self.peer
    }

    /// Prepares for the next case.
    pub(crate) fn start_case(&self) {
        // Packets of an earlier case in the socket do not belong to this one.
        let _stale = self.rig.drain();
        self.rig.clear();
        self.deadline.set(Instant::now() + self.timing.case_limit);
    }

    /// Creates a queue pair of the peer, connected to an unused QP number of the rig.
    ///
    /// # Errors
    /// Skips the case if the peer cannot create such a queue pair.
    pub fn connect(&self, spec: QpSpec) -> CaseResult<Conn<'_>> {
        Ok(Conn::new(self, self.open(spec)?))
    }

    fn open(&self, mut spec: QpSpec) -> CaseResult<Link> {
        spec.rig_addr = self.rig.local();
        spec.rig_qpn = self.rig.new_qpn();
        self.rig.expect(spec.rig_qpn, spec.of_service());
        let qp = self.peer.open(&spec).map_err(skip)?;
        Ok(Link {
            qp,
            rig_qpn: spec.rig_qpn,
            spec,
        })
    }

    /// Returns the deadline for an answer.
    pub(crate) fn patience(&self) -> Instant {
        (Instant::now() + self.timing.patience).min(self.deadline.get())
    }

    fn time_is_up(&self) -> bool {
        Instant::now() >= self.deadline.get()
    }

    /// Waits until the peer has processed everything sent so far: it answers a request on another
    /// connection, and then some time passes.
    fn settle(&self) -> CaseResult {
        if self.fence.get().is_none() {
            let spec = QpSpec {
                regions: vec![RegionSpec::new(8)],
                ..QpSpec::default()
            };
            let fence = Fence {
                next: Cell::new(spec.rq_psn),
                link: self.open(spec)?,
            };
            // The cell is empty, because no other code sets it in between.
            let _set = self.fence.set(fence);
        }
        let Some(fence) = self.fence.get() else {
            return fail("no fence");
        };
        let link = &fence.link;
        let psn = fence.next.get();
        fence.next.set(psn.next());
        let region = link.qp.region(0);
        let request = conn::rc_packet(Operation::WriteOnly, link.qp.qpn(), psn)
            .reth(region.va, region.rkey, 0)
            .ack_req();
        self.rig.send(&request)?;
        match self.rig.receive(link.rig_qpn, self.patience())? {
            Some(answer) if answer.headers.bth.psn == psn => {}
            Some(answer) => {
                return fail(format!(
                    "the connection without errors got {}",
                    answer.headers
                ));
            }
            None => return fail("the peer does not answer on a connection without errors"),
        }
        std::thread::sleep(self.timing.silence);
        self.rig.drain()
    }
}

fn skip(unable: Unable) -> CaseError {
    CaseError::Skipped(unable.0)
}
