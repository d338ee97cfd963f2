//! Enhanced connection establishment: what adapters of one vendor agree on beside the standard.

use super::qp::Qp;
use crate::cm::Ece;
use crate::error::VerbsError;

impl Qp {
    /// What it has to offer: the vendor of the device, and no options, because there is nothing to agree on.
    #[must_use]
    #[doc(alias = "ibv_query_ece")]
    pub fn ece(&self) -> Ece {
        Ece {
            vendor_id: self.owner().hca().device_attr().vendor_id,
            options: 0,
        }
    }

    /// Takes note of what the peer offers, in any state. None of it is used.
    ///
    /// # Errors
    /// [`VerbsError::NotSupported`] for a vendor of 0, that of a peer that does not know of this.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, offered: Ece) -> Result<(), VerbsError> {
        match offered.vendor_id {
            0 => Err(VerbsError::NotSupported("a peer without ECE")),
            _ => Ok(()),
        }
    }
}
