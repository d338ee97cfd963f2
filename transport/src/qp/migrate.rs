//! Automatic path migration.

use rocade_wire::Bth;

use super::{Qp, modify};
use crate::attr::QpAttrMask;
use crate::counters::DropReason;
use crate::event::QpEvent;
use crate::peer::{Alternate, Migration, PacketMeta};

impl Qp {
    /// Returns true if the QP has migrated since the last call. All later packets use the new path.
    ///
    /// [`Qp::local`], [`Qp::remote`] and the attributes of the primary path are then those of the
    /// former alternate path.
    pub const fn take_migrated(&mut self) -> bool {
        core::mem::replace(&mut self.has_migrated, false)
    }

    /// Returns true if the QP has an alternate path.
    #[must_use]
    pub const fn has_alternate(&self) -> bool {
        self.peer.alternate.is_some()
    }

    /// Handles a migration bit that requires a state change
    /// ([`Peer::changes_migration_state`](crate::peer::Peer::changes_migration_state)). Returns the
    /// reason if the packet is dropped.
    #[cold]
    pub(super) fn handle_migreq(&mut self, meta: &PacketMeta, bth: &Bth) -> Option<DropReason> {
        if self.peer.migration == Migration::Rearm {
            let reason = self.peer.reject_reason(meta, bth);
            if reason.is_none() {
                //= RC-APM-04
                self.set_migration(Migration::Armed);
            }
            return reason;
        }
        if !self.peer.framing.owns(bth.opcode) {
            return Some(DropReason::WrongService);
        }
        let Some(alternate) = self.peer.alternate.as_deref_mut() else {
            return Some(DropReason::WrongAddress);
        };
        //= RC-APM-07
        if meta.source != alternate.remote || meta.destination != alternate.local {
            return Some(DropReason::WrongAddress);
        }
        if !bth.pkey.matches(alternate.pkey) {
            if !core::mem::replace(&mut alternate.complained, true) {
                //= AEV-06
                self.out.events.push(QpEvent::PathMigErr);
            }
            return Some(DropReason::BadPkey);
        }
        //= RC-APM-05
        self.migrate(false);
        None
    }

    /// Makes the alternate path the primary one. `failed` is true if the primary path has failed.
    //= RC-APM-06
    #[cold]
    pub(super) fn migrate(&mut self, failed: bool) {
        let Some(alternate) = self.peer.alternate.take() else {
            return;
        };
        let Alternate {
            pkey,
            local,
            remote,
            ..
        } = *alternate;
        (self.peer.pkey, self.peer.local, self.peer.remote) = (pkey, local, remote);
        //= RC-APM-10
        self.attr.take_alternate();
        self.set_migration(Migration::Migrated);
        modify::apply_attrs(self, QpAttrMask::TIMEOUT);
        self.send.change_path(failed);
        self.has_migrated = true;
        //= AEV-06
        self.out.events.push(QpEvent::PathMig);
    }

    pub(super) fn set_migration(&mut self, migration: Migration) {
        self.peer.set_migration(migration);
        self.attr.path_mig_state = migration as u32;
    }
}
