//! Options of an ID (`rdma_set_option`), and enhanced connection establishment (ECE).

use rocade_wire::Qkey;
use rocade_wire::mad::Ece;

use super::command::{CmId, wrong_state};
use super::id::IdState;
use crate::error::VerbsError;

impl CmId {
    /// Sets the traffic class of the path (`RDMA_OPTION_ID_TOS`).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    pub fn set_tos(&self, tos: u8) -> Result<(), VerbsError> {
        self.with_id(|id| {
            id.tos = tos;
            Ok(())
        })
    }

    /// Allows other IDs to have the same port (`RDMA_OPTION_ID_REUSEADDR`).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID already listens, or `reuse` is false and it
    /// already has a port.
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

    /// Makes an unspecified IPv6 address exclude IPv4 (`RDMA_OPTION_ID_AFONLY`).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID has a peer, or listens already.
    pub fn set_af_only(&self, af_only: bool) -> Result<(), VerbsError> {
        self.with_id(|id| {
            if !matches!(id.state, IdState::Idle | IdState::AddrBound) {
                return wrong_state();
            }
            id.af_only = af_only;
            Ok(())
        })
    }

    /// Sets the ACK timeout code of the queue pair, 0 to 31 (`RDMA_OPTION_ID_ACK_TIMEOUT`).
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

    /// Sets the ECE that the request or response offers to the peer (`rdma_set_local_ece`).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), VerbsError> {
        self.with_id(|id| {
            id.local_ece = ece;
            Ok(())
        })
    }

    /// Returns the ECE that the peer has offered, or zeros before its request or response has
    /// arrived.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Result<Ece, VerbsError> {
        self.with_id(|id| Ok(id.remote_ece))
    }

    /// Sets the Q_Key of the datagram service.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    pub fn set_qkey(&self, qkey: Qkey) -> Result<(), VerbsError> {
        self.with_id(|id| {
            id.qkey = Some(qkey);
            Ok(())
        })
    }
}
