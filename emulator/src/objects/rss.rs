//! Receive work queues, and queue pairs that distribute frames over them (RSS).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rocade_transport::{QpAttr, QpAttrMask, QpCap, QpState, QpType, Receives, Sge};
use rocade_wire::Qpn;

use super::cq::Cq;
use super::pd::Pd;
use super::poster::RecvPoster;
use super::qp::{Qp, QpInitAttr, config, create};
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::raw::{RSS_FIELDS, RSS_KEY_LEN, RawState, RssTable};
use crate::state::QpResources;

/// A receive work queue (`ibv_wq`), into which an RSS queue pair puts its share of the frames.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_wq")]
pub struct Wq {
    qp: Qp,
    users: Arc<AtomicU32>,
}

/// The state of a receive work queue. The discriminants are the `ibv_wq_state` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[doc(alias = "ibv_wq_state")]
#[expect(missing_docs, reason = "as in ibv_wq_state")]
pub enum WqState {
    Reset = 0,
    Rdy = 1,
    Err = 2,
}

/// The Toeplitz hash by which an RSS queue pair distributes frames (`ibv_rx_hash_conf`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_rx_hash_conf")]
pub struct RxHash {
    /// The Toeplitz key.
    pub key: [u8; RSS_KEY_LEN],
    /// The header fields to hash (`ibv_rx_hash_fields`).
    pub fields: u32,
}

impl Pd {
    /// Makes a receive work queue, in RESET.
    ///
    /// # Errors
    /// As [`Pd::create_qp`].
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(&self, cq: &Cq, max_wr: u32, max_sge: u32) -> Result<Wq, VerbsError> {
        self.inner.context.enter(Verb::CreateWq)?;
        let qp = self.create_qp(QpInitAttr {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap {
                max_recv_wr: max_wr,
                max_recv_sge: max_sge,
                ..QpCap::default()
            },
            qp_type: QpType::RawPacket,
            sq_sig_all: false,
            cookie: 0,
        })?;
        let users = Arc::default();
        Ok(Wq { qp, users })
    }

    /// Makes a raw packet queue pair without queues of its own, which distributes the frames of its
    /// flows over `queues`.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] unless the number of queues is a power of two, and the
    /// fields are known. As [`Pd::create_qp`].
    pub fn create_rss_qp(
        &self,
        queues: &[Wq],
        hash: RxHash,
        cookie: u64,
    ) -> Result<Qp, VerbsError> {
        if !queues.len().is_power_of_two() {
            return Err(VerbsError::InvalidArgument("rwq_ind_tbl"));
        }
        if hash.fields & !RSS_FIELDS != 0 {
            return Err(VerbsError::InvalidArgument("rx_hash_fields_mask"));
        }
        let context = &self.inner.context;
        let port = context.engine.raw_port(&context.hca)?;
        let numbers: Vec<Qpn> = queues.iter().map(|wq| wq.qp.qp_num()).collect();
        let rss_table = RssTable::new(numbers, hash.key, hash.fields);
        let config = config(&self.inner, QpType::RawPacket, QpCap::default(), false);
        let parts = QpResources {
            raw: Some(Box::new(RawState::with_rss(port, rss_table))),
            ..QpResources::default()
        };
        let inner = create(&self.inner, config, Receives::Own, cookie, parts, |_| ())?;
        Ok(Qp::held(inner, Arc::clone(&self.inner), None))
    }
}

impl Wq {
    /// The number of the queue.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.qp.qp_num()
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> WqState {
        match self.qp.state() {
            QpState::Reset => WqState::Reset,
            QpState::Err => WqState::Err,
            _ => WqState::Rdy,
        }
    }

    /// Changes its state: RESET to RDY, and any to RESET and ERR.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for another transition.
    #[doc(alias = "ibv_modify_wq")]
    pub fn modify(&self, to: WqState) -> Result<(), VerbsError> {
        self.qp.owner().enter(Verb::ModifyWq)?;
        let step = |state: QpState, more| {
            let attr = QpAttr {
                qp_state: state.code(),
                port_num: 1,
                ..QpAttr::default()
            };
            self.qp.modify(&attr, QpAttrMask::STATE | more)
        };
        let none = QpAttrMask::empty();
        match (self.state(), to) {
            (from, to) if from == to => Ok(()),
            (WqState::Reset, WqState::Rdy) => {
                step(QpState::Init, QpAttrMask::PORT)?;
                step(QpState::Rtr, none)
            }
            (WqState::Rdy, WqState::Err) => step(QpState::Err, none),
            (_, WqState::Reset) => step(QpState::Reset, none),
            _ => Err(VerbsError::InvalidArgument("wq_state")),
        }
    }

    /// Locks the queue for posting, as [`Qp::recv_queue`] does.
    #[must_use]
    pub fn recv_queue(&self) -> RecvPoster<'_> {
        self.qp.recv_queue()
    }

    /// Queues a receive.
    ///
    /// # Errors
    /// [`VerbsError::Post`].
    pub fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        self.recv_queue().push(wr_id, sges)
    }

    /// Records that one more (`more`) or one less indirection table names the queue.
    pub fn set_in_use(&self, more: bool) {
        if more {
            self.users.fetch_add(1, Ordering::AcqRel);
        } else {
            self.users.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Destroys the queue.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while a table names it. [`VerbsError::InvalidArgument`] if it was
    /// already destroyed.
    #[doc(alias = "ibv_destroy_wq")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.qp.owner().enter(Verb::DestroyWq)?;
        if self.users.load(Ordering::Acquire) > 0 {
            return Err(VerbsError::Busy(
                "work queue, by an indirection table".to_owned(),
            ));
        }
        self.qp.destroy()
    }
}
