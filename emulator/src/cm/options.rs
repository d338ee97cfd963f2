//! Options of an ID (`rdma_set_option`) and the offers of enhanced connection establishment.

use rocade_wire::Qkey;
use rocade_wire::mad::Ece;

use super::command::{CmId, wrong_state};
use super::id::IdState;
use crate::error::VerbsError;

impl CmId {
    /// Traffic class of the path (`RDMA_OPTION_ID_TOS`).
    ///
    /// # Errors
    /// The ID is gone.
    pub fn set_tos(&self, tos: u8) -> Result<(), VerbsError> {
        self.with_id(|id| {
            id.tos = tos;
            Ok(())
        })
    }

    /// Others may have the port as well (`RDMA_OPTION_ID_REUSEADDR`).
    ///
    /// # Errors
    /// The ID listens already; or it has a port, which is not taken back.
    //= LRC-14
    pub fn set_reuse(&self, reuse: bool) -> Result<(), VerbsError> {
        self.with_id(|id| {
            if id.state != IdState::Idle && (!reuse || id.state == IdState::Listen) {
                return wrong_state();
            }
            id.reuse = reuse;
            Ok(())
        })
    }

    /// An unspecified IPv6 address does not stand for IPv4 (`RDMA_OPTION_ID_AFONLY`).
    ///
    /// # Errors
    /// The ID has an address already.
    pub fn set_af_only(&self, af_only: bool) -> Result<(), VerbsError> {
        self.with_id(|id| {
            if !matches!(id.state, IdState::Idle | IdState::AddrBound) {
                return wrong_state();
            }
            id.af_only = af_only;
            Ok(())
        })
    }

    /// ACK timeout code of the queue pair, 0 to 31 (`RDMA_OPTION_ID_ACK_TIMEOUT`).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for other codes, and datagrams.
    //= CMA-06
    pub fn set_ack_timeout(&self, code: u8) -> Result<(), VerbsError> {
        self.with_id(|id| {
            if code > 31 || id.is_datagram() {
                return Err(VerbsError::InvalidArgument("ack timeout"));
            }
            id.ack_timeout = (code != 0).then_some(code);
            Ok(())
        })
    }

    /// What is offered to the peer of enhanced establishment, in the request or the answer (`rdma_set_local_ece`).
    ///
    /// # Errors
    /// The ID is gone.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), VerbsError> {
        self.with_id(|id| {
            id.local_ece = ece;
            Ok(())
        })
    }

    /// What the peer has offered; nothing before its request or answer was there.
    ///
    /// # Errors
    /// The ID is gone.
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Result<Ece, VerbsError> {
        self.with_id(|id| Ok(id.remote_ece))
    }

    /// Key of the datagram service.
    ///
    /// # Errors
    /// The ID is gone.
    pub fn set_qkey(&self, qkey: Qkey) -> Result<(), VerbsError> {
        self.with_id(|id| {
            id.qkey = Some(qkey);
            Ok(())
        })
    }
}
