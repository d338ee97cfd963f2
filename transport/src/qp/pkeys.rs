//! The P_Keys of a QP after a change of the table.

use rocade_wire::Pkey;

use crate::attr::QpState;

use super::Qp;

impl Qp {
    /// Selects the P_Keys of the QP once more, by its indices. `pkey_of` returns the entry at an
    /// index. A QP in RESET has none.
    pub fn select_pkeys(&mut self, pkey_of: impl Fn(u16) -> Pkey) {
        if self.state != QpState::Reset {
            self.peer.pkey = pkey_of(self.attr.pkey_index);
        }
        if let Some(alternate) = &mut self.peer.alternate {
            alternate.pkey = pkey_of(self.attr.alternate().pkey_index);
        }
    }
}
