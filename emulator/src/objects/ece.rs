//! Enhanced connection establishment: vendor-specific options that both ends negotiate.

use super::qp::Qp;
use crate::cm::Ece;
use crate::error::VerbsError;

impl Qp {
    /// Returns the vendor of the device without options, because Rocade has none to negotiate.
    #[must_use]
    #[doc(alias = "ibv_query_ece")]
    pub fn ece(&self) -> Ece {
        Ece {
            vendor_id: self.owner().hca().device_attr().vendor_id,
            options: 0,
        }
    }

    /// Accepts the peer's offer in any state, and ignores it.
    ///
    /// # Errors
    /// [`VerbsError::NotSupported`] for a vendor of 0, which means that the peer does not support
    /// ECE.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, offered: Ece) -> Result<(), VerbsError> {
        match offered.vendor_id {
            0 => Err(VerbsError::NotSupported("a peer without ECE")),
            _ => Ok(()),
        }
    }
}
