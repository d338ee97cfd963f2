//! Two connected hosts of a simulated network, for tests.

use rocade_emulator::AccessFlags;

use crate::completion::CompletionQueue;
use crate::config::Config;
use crate::device::{DeviceList, ProtectionDomain};
use crate::error::{PairError, Result, VerbsError};
use crate::memory::MemoryRegion;
use crate::queue_pair::{ConnectOptions, QueuePair};
use crate::simulation::Simulation;

/// The completions that the queue of a [`Host`] holds: those of 64 sends and 64 receives.
const ENTRIES: u32 = 128;

/// A host of a simulated network, whose queue pair is connected to that of the other host.
#[derive(Debug)]
#[non_exhaustive]
pub struct Host {
    /// The protection domain.
    pub domain: ProtectionDomain,
    /// The completion queue of sends and receives.
    pub cq: CompletionQueue,
    /// The queue pair, of service RC.
    pub qp: QueuePair,
    simulation: Simulation,
}

impl Host {
    /// Registers a new buffer of `len` zero bytes.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`].
    pub fn register(&self, len: usize, access: AccessFlags) -> Result<MemoryRegion, VerbsError> {
        self.domain.register(len, access)
    }

    /// Returns a handle on the simulated network of both hosts.
    #[must_use]
    pub const fn simulation(&self) -> &Simulation {
        &self.simulation
    }
}

/// Returns two connected hosts in a simulated network: [`Config::simulated`] and
/// [`Config::pair`].
///
/// # Errors
/// As [`Config::pair`].
pub fn simulated_pair(seed: u64) -> Result<(Host, Host), PairError> {
    Config::simulated(seed).pair()
}

impl Config {
    /// Returns two connected hosts on the first two devices of a simulated network.
    ///
    /// # Errors
    /// [`PairError::NotSimulated`] if the network is real.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rocade_verbs::{AccessFlags, Config, SendRequest};
    ///
    /// let (a, b) = Config::simulated(42).with_faults("drop nth=1")?.pair()?;
    /// let inbox = b.register(64, AccessFlags::LOCAL_WRITE)?;
    /// b.qp.post_recv(1, &[(&inbox).into()])?;
    /// a.qp.post_send(&SendRequest::send_inline(b"hello"))?;
    /// assert_eq!(b.cq.wait(Duration::from_secs(60))?.byte_len, 5);
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    pub fn pair(self) -> Result<(Host, Host), PairError> {
        let list = DeviceList::new(self)?;
        let simulation = list.simulation()?;
        let open = |name| -> Result<_, PairError> {
            let domain = list.open(name)?.protection_domain()?;
            let cq = domain.context().completion_queue(ENTRIES)?;
            let qp = domain.queue_pair(&cq).build()?;
            Ok((domain, cq, qp))
        };
        let ((a_domain, a_cq, a_qp), (b_domain, b_cq, b_qp)) = (open("a")?, open("b")?);
        let (a_qp, b_qp) = QueuePair::connect_pair(a_qp, b_qp, &ConnectOptions::default())?;
        let host = |domain, cq, qp| Host {
            domain,
            cq,
            qp,
            simulation: simulation.clone(),
        };
        Ok((host(a_domain, a_cq, a_qp), host(b_domain, b_cq, b_qp)))
    }
}
