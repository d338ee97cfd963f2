//! IDs whose device a fault rule removes.
//!
//! As in the kernel (`cma_process_remove`), each ID that is bound to the device gets its last
//! event, and calls for it fail from then on (`ucma_close_id`). An ID that listens on all addresses
//! is bound to none, so that it stays.

use std::io;
use std::sync::Arc;

use rocade_transport::Time;

use super::event::{CmEventKind, CmParam};
use super::host::{CmCore, CmHost};
use super::id::{IdCore, IdKey, IdState};
use super::io::CmIo;
use crate::error::VerbsError;
use crate::hca::Hca;

impl IdCore {
    /// Returns the error of calls for an ID whose device was removed (`ucma_get_ctx`).
    #[expect(clippy::unused_self, reason = "the error belongs to a state of the ID")]
    pub(super) fn removed(&self) -> VerbsError {
        VerbsError::Io(io::Error::from_raw_os_error(libc::ENXIO))
    }
}

impl CmHost {
    /// Ends all IDs that are bound to a device. Its packets are lost already, so that peers are not
    /// told.
    pub(crate) fn remove_ids(&self, io: &dyn CmIo, hca: &Arc<Hca>) {
        let mut core = self.lock();
        let Some(core) = &mut *core else { return };
        let now = io.host().now();
        let is_bound = |id: &IdCore| {
            let own = id.hca.as_ref();
            own.is_some_and(|own| Arc::ptr_eq(own, hca)) && id.state != IdState::Removed
        };
        let bound = core.ids.iter().filter(|(_, id)| is_bound(id));
        let bound: Vec<IdKey> = bound.map(|(key, _)| *key).collect();
        for key in bound {
            core.remove_id(key, now);
        }
        self.follow_up(io, core, now);
    }
}

impl CmCore {
    /// Ends the connection of an ID, and tells its application.
    fn remove_id(&mut self, key: IdKey, now: Time) {
        let Some(id) = self.ids.get_mut(&key) else {
            return;
        };
        // A listener keeps its port until it is destroyed, but takes no more requests.
        id.state = IdState::Removed;
        if let Some(conn) = id.conn.take() {
            self.by_conn.remove(&conn);
            self.cm.destroy(now, conn);
        }
        self.queue_event(key, CmEventKind::DeviceRemoval, 0, CmParam::None);
    }
}
