//! Rate limits, and the alternate path of a queue pair (APM).

use rocade_emulator::{AddressVector, Gid, QpAttr, QpAttrMask};

use crate::error::{Result, VerbsError};
use crate::queue_pair::QueuePair;
use crate::units::Rate;

/// The path migration state of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_mig_state")]
pub enum MigrationState {
    /// The queue pair has no alternate path, or has just migrated to it.
    Migrated,
    /// The alternate path is loaded on this side, but the peer has not signaled its own yet.
    Rearm,
    /// Both sides have loaded their alternate paths. Each side now migrates when its path fails,
    /// and the other side follows.
    Armed,
}

/// `ibv_mig_state`.
const MIGRATED: u32 = 0;
const REARM: u32 = 1;
const ARMED: u32 = 2;

impl QueuePair {
    /// Limits the rate at which this RC queue pair sends requests. `None` removes the limit.
    /// Responses to the peer are not limited.
    ///
    /// # Errors
    /// [`VerbsError`] in state ERR.
    //= QPS-05
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn set_rate_limit(&self, limit: Option<Rate>) -> Result<(), VerbsError> {
        Ok(self.raw().set_rate_limit(limit.map_or(0, Rate::kbps))?)
    }

    /// Loads the alternate path of an RC queue pair. It leads from the first address of the local
    /// `port` to `peer`, an address of the peer's device.
    ///
    /// The peer loads its own alternate path in the same way. Both queue pairs become
    /// [`Armed`](MigrationState::Armed) with the next messages that they exchange.
    ///
    /// # Errors
    /// [`VerbsError`] if there is no such port, or no route from it to
    /// `peer`.
    //= RC-APM-01
    pub fn set_alternate_path(&self, port: u8, peer: Gid) -> Result<(), VerbsError> {
        let now = self.raw().query().0;
        let attr = QpAttr {
            alt_ah_attr: AddressVector {
                dgid: peer,
                is_global: true,
                port_num: port,
                sgid_index: 0,
                ..now.ah_attr
            },
            alt_port_num: port,
            alt_timeout: now.timeout,
            path_mig_state: REARM,
            ..now
        };
        let mask = QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE;
        Ok(self.raw().modify(&attr, mask)?)
    }

    /// Migrates to the alternate path now. The peer follows with the next message.
    ///
    /// # Errors
    /// [`VerbsError`] unless the state is [`Armed`](MigrationState::Armed).
    pub fn migrate(&self) -> Result<(), VerbsError> {
        let attr = QpAttr {
            path_mig_state: MIGRATED,
            ..self.raw().query().0
        };
        Ok(self.raw().modify(&attr, QpAttrMask::PATH_MIG_STATE)?)
    }

    /// Returns the path migration state.
    #[must_use]
    pub fn migration_state(&self) -> MigrationState {
        match self.raw().query().0.path_mig_state {
            REARM => MigrationState::Rearm,
            ARMED => MigrationState::Armed,
            _ => MigrationState::Migrated,
        }
    }

    /// Returns the number of the port that the queue pair sends from.
    #[must_use]
    pub fn path_port(&self) -> u8 {
        self.raw().query().0.port_num
    }
}
