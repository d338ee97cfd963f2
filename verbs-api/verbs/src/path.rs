//! How fast a queue pair sends, and which of two paths it takes (APM).

use rocade_emulator::{AddressVector, Gid, QpAttr, QpAttrMask};

use crate::error::Result;
use crate::queue_pair::QueuePair;
use crate::units::Rate;

/// Whether a queue pair could leave its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_mig_state")]
pub enum PathState {
    /// It has one path, or has just taken the other.
    Migrated,
    /// Its other path is known; that of the peer is not yet.
    Rearm,
    /// So are both: from now on each end changes over when its path fails, and takes the other one along.
    Armed,
}

/// `ibv_mig_state`.
const MIGRATED: u32 = 0;
const REARM: u32 = 1;
const ARMED: u32 = 2;

impl QueuePair {
    /// Sends no faster than `kbps` kilobits per second from now on; 0 is as fast as it can. Answers to the peer are not
    /// slowed down. Of RC.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) after a failure.
    //= QPS-05
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn set_rate_limit(&self, limit: Option<Rate>) -> Result<()> {
        Ok(self.raw().set_rate_limit(limit.map_or(0, Rate::kbps))?)
    }

    /// Names another path to the peer: from the first address of this device's `port` to `peer`, an address of the peer's
    /// device. The peer does likewise; with the messages after that both become [`Armed`](PathState::Armed). Of RC.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if there is no such port, or nothing leads there.
    //= RC-APM-01
    pub fn set_other_path(&self, port: u8, peer: Gid) -> Result<()> {
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

    /// Takes the other path now. The peer follows with the next message.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) unless it is [`Armed`](PathState::Armed).
    pub fn take_other_path(&self) -> Result<()> {
        let attr = QpAttr {
            path_mig_state: MIGRATED,
            ..self.raw().query().0
        };
        Ok(self.raw().modify(&attr, QpAttrMask::PATH_MIG_STATE)?)
    }

    /// Whether it could leave its path.
    #[must_use]
    pub fn path_state(&self) -> PathState {
        match self.raw().query().0.path_mig_state {
            REARM => PathState::Rearm,
            ARMED => PathState::Armed,
            _ => PathState::Migrated,
        }
    }

    /// The port of the device that its packets leave from.
    #[must_use]
    pub fn path_port(&self) -> u8 {
        self.raw().query().0.port_num
    }
}
